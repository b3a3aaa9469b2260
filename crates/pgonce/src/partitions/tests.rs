use super::*;

const ROOT: u32 = 100;

fn partition(oid: u32, attached: &str, storage: u32) -> Partition {
    let label = format!("partition public.p_{oid} of public.p");
    let attached = attached.to_owned();
    Partition { oid, root: ROOT, attached, storage, changed_by: storage, label, ..Partition::default() }
}

fn leaf(oid: u32, attached: &str) -> Partition {
    Partition { own: true, ..partition(oid, attached, oid) }
}

fn bound(partitions: &[Partition]) -> String {
    let lines = partitions.iter().map(|p| format!("{}\n", p.line()));
    format!("publication 5 1111 # publication x\npublishes {ROOT} # table public.p\n{}", lines.collect::<String>())
}

/// A look by which nothing is found out that was not said.
fn look(watch: &mut Watch, now: &[Partition], answers: Answers) {
    let roots = BTreeSet::from([ROOT]);
    if !watch.questions(now, &roots).nothing_new() {
        watch.look(now, &roots, &answers);
    }
}

fn told_once(watch: &mut Watch) -> String {
    let told = watch.take_news().join("\n");
    assert!(watch.take_news().is_empty());
    told
}

#[test]
fn nothing_is_told_or_stored_where_nothing_happens() {
    let now = [partition(1, "7", 11), partition(2, "7", 12)];
    let mut watch = Watch::new(&bound(&now));
    assert!(watch.questions(&now, &BTreeSet::from([ROOT])).nothing_new());
    assert_eq!((watch.take_news(), watch.take_memory()), (vec![], None));
}

#[test]
fn a_new_partition_is_stored_and_told_only_if_it_held_rows() {
    let before = [partition(1, "7", 11)];
    for (filled, told) in [(vec![], false), (vec![2], true)] {
        let mut watch = Watch::new(&bound(&before));
        let now = [before[0].clone(), partition(2, "9", 12)];
        let filled = filled.into_iter().collect();
        look(&mut watch, &now, Answers { filled, ..Answers::default() });
        assert_eq!(told_once(&mut watch).contains("p_2 was attached to public.p"), told);
        let stored = watch.take_memory().unwrap();
        assert!(stored.starts_with(&bound(&before)[..30]) && stored.contains("partition 2 9 100 12 # "), "{stored}");
        // A later start tells the same, and until it is mended.
        assert_eq!(Watch::new(&stored).take_news().len(), usize::from(told));
        assert_eq!(warnings(&stored).len(), usize::from(told));
        if told {
            for name in ["public.p", "public.p_2"] {
                let stored = mended(&stored, name).unwrap();
                assert!(warnings(&stored).is_empty() && stored.contains("partition 2 9"), "{stored}");
            }
        }
        assert_eq!(mended(&stored, "public.p_1"), None);
    }
}

#[test]
fn one_that_cannot_be_looked_into_stays_new() {
    let mut watch = Watch::new(&bound(&[]));
    let now = [partition(2, "9", 12)];
    let unknown = BTreeSet::from([2]);
    look(&mut watch, &now, Answers { unknown, ..Answers::default() });
    assert_eq!((watch.take_news(), watch.take_memory()), (vec![], None));
    assert_eq!(watch.questions(&now, &BTreeSet::from([ROOT])).new, now);
}

#[test]
fn detached_and_dropped_are_told_apart_and_attached_again_is_told() {
    let before = [partition(1, "7", 11), partition(2, "7", 12), partition(3, "7", 13)];
    let mut watch = Watch::new(&bound(&before));
    look(&mut watch, &before[..1], Answers { existing: BTreeSet::from([2]), ..Answers::default() });
    let told = told_once(&mut watch);
    assert!(told.contains("partition public.p_2 was detached from public.p"), "{told}");
    assert!(told.contains("partition public.p_3 of public.p was dropped"), "{told}");
    let stored = watch.take_memory().unwrap();
    assert!(!stored.contains("partition 2") && stored.contains("detached 2 100 # "), "{stored}");
    let mut watch = Watch::new(&stored);
    watch.take_news();
    look(&mut watch, &[before[0].clone(), partition(2, "8", 12)], Answers::default());
    let told = told_once(&mut watch);
    assert!(told.contains("public.p_2 was attached") && !told.contains("detached"), "{told}");
}

#[test]
fn detached_and_attached_between_two_looks_is_told() {
    let before = [partition(1, "7", 11)];
    let mut watch = Watch::new(&bound(&before));
    look(&mut watch, &[partition(1, "8", 11)], Answers::default());
    assert!(told_once(&mut watch).contains("public.p_1 was attached"));
}

#[test]
fn other_storage_is_judged_when_the_stream_has_caught_up() {
    let at = crate::position::Lsn;
    let rewritten = |truncate: Option<(u32, u32)>| {
        let before = [partition(1, "7", 11)];
        let mut watch = Watch::new(&bound(&before));
        let answers = || Answers { point: at(50), ..Answers::default() };
        look(&mut watch, &[partition(1, "7", 21)], answers());
        // Looked at again, and nothing new.
        assert!(watch.questions(&[partition(1, "7", 21)], &BTreeSet::from([ROOT])).nothing_new());
        watch.received(at(49));
        assert_eq!((watch.take_news(), watch.take_memory()), (vec![], None));
        if let Some((xid, table)) = truncate {
            watch.truncated(xid, &[table]);
        }
        watch.received(at(50));
        assert!(watch.take_memory().unwrap().contains("partition 1 7 100 21"));
        told_once(&mut watch).contains("p_1 of public.p was truncated, or rewritten")
    };
    assert!(rewritten(None));
    assert!(!rewritten(Some((21, ROOT))), "the TRUNCATE of the root was sent");
    assert!(rewritten(Some((21, 999))), "that was another table's");
    assert!(rewritten(Some((20, ROOT))), "that was another transaction's");
}

#[test]
fn a_leaf_that_is_published_for_itself_is_not_forgotten_when_it_is_detached() {
    let text = format!("{}publishes 1 # table public.p_1\n", bound(&[leaf(1, "7.6")]));
    let mut watch = Watch::new(&text);
    look(&mut watch, &[], Answers { existing: BTreeSet::from([1]), ..Answers::default() });
    assert!(told_once(&mut watch).contains("public.p_1 was detached"));
    let stored = watch.take_memory().unwrap();
    assert_eq!(leaves_of(&stored), BTreeSet::from([1]));
    // Mended, it is not told, and neither a reason to stop nor forgotten: attached again it lacks what was written.
    let settled = mended(&stored, "public.p_1").unwrap();
    assert!(warnings(&settled).is_empty() && leaves_of(&settled) == BTreeSet::from([1]), "{settled}");
    assert_eq!(mended(&settled, "public.p_1"), None);
    let mut watch = Watch::new(&settled);
    look(&mut watch, &[leaf(1, "9.6")], Answers::default());
    assert!(told_once(&mut watch).contains("public.p_1 was attached"));
    // One that was added is another matter.
    let mut watch = Watch::new(&text);
    look(&mut watch, &[leaf(1, "7.6"), leaf(2, "9.6")], Answers::default());
    assert_eq!((watch.take_news(), watch.take_memory()), (vec![], None));
}

#[test]
fn lines_of_the_first_version_are_completed() {
    let old = format!("publishes {ROOT} # table public.p\npartition 1 7 # partition p_1\n");
    let mut watch = Watch::new(&old);
    look(&mut watch, &[partition(1, "7", 11)], Answers::default());
    assert!(watch.take_news().is_empty());
    assert!(watch.take_memory().unwrap().contains("partition 1 7 100 11 # "));
}

#[test]
fn many_are_told_in_one_text_and_names_may_hold_anything() {
    let now: Vec<Partition> = (1..=30).map(|oid| partition(oid, "7", oid)).collect();
    let mut watch = Watch::new(&bound(&now));
    look(&mut watch, &[], Answers::default());
    let told = watch.take_news();
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("public.p_5, 25 more of public.p were dropped"), "{told:?}");
    let label = r#"partition "a of b"."c" of public."d of e""#.to_owned();
    let note = Note { root: 1, kind: Kind::Dropped, oid: 2, label };
    assert_eq!(note.names(), (r#""a of b"."c""#, r#"public."d of e""#));
    assert_eq!(Note::parse(&note.line()), Some(note));
}
