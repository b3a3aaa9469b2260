use proptest::prelude::*;

use super::*;

fn column(name: &str, type_oid: u32, type_modifier: i32, key: bool) -> RelationColumn {
    RelationColumn { name: name.to_owned(), type_oid, type_modifier, key }
}

/// `id int4` as the key, `a varchar(10)`, `b numeric(10, 2)`, `c` of a user's type.
fn table() -> Relation {
    Relation {
        oid: 16_400,
        schema: "s".to_owned(),
        name: "t".to_owned(),
        identity: ReplicaIdentity::Default,
        columns: vec![
            column("id", 23, -1, true),
            column("a", 1043, 14, false),
            column("b", 1700, (10 << 16 | 2) + 4, false),
            column("c", 16_500, -1, false),
        ],
    }
}

fn change(alter: impl FnOnce(&mut Relation)) -> SchemaChange {
    let mut after = table();
    alter(&mut after);
    SchemaChange::between(&Arc::new(table()), &Arc::new(after)).unwrap()
}

#[test]
fn every_kind_is_told_with_old_and_new_and_without_a_value() {
    let full = |relation: &mut Relation| {
        relation.identity = ReplicaIdentity::Full;
        relation.columns.iter_mut().for_each(|c| c.key = true);
    };
    type Alter<'a> = &'a dyn Fn(&mut Relation);
    let cases: &[(Alter<'_>, bool, &str)] = &[
        (&|t| t.columns.push(column("z", 23, -1, false)), true, "column \"z\" added, of type int4"),
        (&|t| t.columns.push(column("z", 16_501, -1, false)), true, "column \"z\" added, of the type with OID 16501"),
        (&|t| drop(t.columns.remove(1)), false, "column \"a\" dropped"),
        (&|t| t.columns[1].name = "A a".into(), false, "column \"a\" renamed to \"A a\""),
        (&|t| t.columns[0].name = "k".into(), false, "column \"id\" renamed to \"k\""),
        (
            &|t| t.columns[3].name = "d".into(),
            false,
            "column \"c\" dropped; column \"d\" added, of the type with OID 16500",
        ),
        (&|t| t.columns[0].type_oid = 20, false, "type of column \"id\" changed from type int4 to type int8"),
        (
            &|t| (t.columns[1].type_oid, t.columns[1].type_modifier) = (25, -1),
            false,
            "type of column \"a\" changed from type varchar(10) to type text",
        ),
        (&|t| t.columns[1].type_modifier = 24, false, "column \"a\" changed from type varchar(10) to type varchar(20)"),
        (
            &|t| t.columns[3].type_modifier = 3,
            false,
            "type modifier of column \"c\", of the type with OID 16500, changed from -1 to 3",
        ),
        (
            &|t| t.columns[1].key = true,
            false,
            "the columns that identify a row changed from (\"id\") to (\"id\", \"a\")",
        ),
        (&|t| t.columns[0].key = false, false, "the columns that identify a row changed from (\"id\") to ()"),
        (&|t| t.identity = ReplicaIdentity::Index, false, "replica identity changed from DEFAULT to USING INDEX"),
        (&full, false, "replica identity changed from DEFAULT to FULL"),
        (&|t| t.name = "u".into(), false, "renamed from \"t\" to \"u\""),
        (&|t| t.schema = "x".into(), false, "moved from schema \"s\" to schema \"x\""),
        (
            &|t| t.columns.swap(1, 2),
            false,
            "columns (\"id\", \"a\", \"b\", \"c\") are in the order (\"id\", \"b\", \"a\", \"c\") now: dropped and \
             made anew, or names exchanged",
        ),
        (
            &|t| {
                t.columns.remove(2);
                t.columns.push(column("z", 25, -1, false));
            },
            false,
            "column \"b\" dropped; column \"z\" added, of type text",
        ),
    ];
    for (alter, additive, said) in cases {
        let change = change(alter);
        assert_eq!(change.description(), *said);
        assert_eq!(change.to_string(), format!("table s.t: {said}"));
        assert_eq!((change.is_additive(), change.is_destructive()), (*additive, !additive), "{said}");
        let decision = if *additive { SchemaDecision::Accept } else { SchemaDecision::Refuse };
        assert_eq!(change.default_decision(), decision, "{said}");
    }
    assert_eq!(SchemaChange::between(&Arc::new(table()), &Arc::new(table())), None);
    let first = SchemaChange::first_seen(&Arc::new(table()));
    assert!(first.is_additive() && first.to_string() == "table s.t: it has joined the flow", "{first}");
}

#[test]
fn b7_another_index_as_the_identity_is_a_change_of_the_key() {
    let mut before = table();
    before.identity = ReplicaIdentity::Index;
    let mut after = before.clone();
    (after.columns[0].key, after.columns[2].key) = (false, true);
    let change = SchemaChange::between(&Arc::new(before), &Arc::new(after)).unwrap();
    assert_eq!(change.description(), "the columns that identify a row changed from (\"id\") to (\"b\")");
}

#[test]
fn with_full_a_column_that_comes_or_goes_is_no_change_of_the_key() {
    let full = |relation: &mut Relation| {
        relation.identity = ReplicaIdentity::Full;
        relation.columns.iter_mut().for_each(|c| c.key = true);
    };
    let (mut before, mut after) = (table(), table());
    after.columns.push(column("z", 23, -1, false));
    full(&mut before);
    full(&mut after);
    let change = SchemaChange::between(&Arc::new(before), &Arc::new(after)).unwrap();
    assert!(change.is_additive(), "{change}");
}

fn relation() -> impl Strategy<Value = Relation> {
    let columns = proptest::sample::subsequence(vec!["a", "b", "c", "d"], 0..=4).prop_shuffle();
    let attributes = proptest::collection::vec((0..3_u32, -1..2_i32, any::<bool>()), 4);
    let identity = proptest::sample::select(vec![
        ReplicaIdentity::Default,
        ReplicaIdentity::Nothing,
        ReplicaIdentity::Full,
        ReplicaIdentity::Index,
    ]);
    ("[st]", "[tu]", identity, columns, attributes).prop_map(|(schema, name, identity, columns, attributes)| Relation {
        oid: 1,
        schema,
        name,
        identity,
        columns: columns
            .into_iter()
            .zip(attributes)
            .map(|(name, (type_oid, type_modifier, key))| column(name, type_oid + 23, type_modifier, key))
            .collect(),
    })
}

proptest! {
    #[test]
    fn there_is_a_difference_if_and_only_if_something_differs(before in relation(), after in relation()) {
        let (before, after) = (Arc::new(before), Arc::new(after));
        prop_assert_eq!(differences(&before, &after).is_empty(), before == after);
        prop_assert_eq!(SchemaChange::between(&before, &after).is_none(), before == after);
        prop_assert!(differences(&before, &before).is_empty());
    }

    #[test]
    fn what_is_additive_leaves_all_that_was_there(before in relation(), after in relation()) {
        let (before, after) = (Arc::new(before), Arc::new(after));
        let Some(change) = SchemaChange::between(&before, &after) else { return Ok(()) };
        let full = before.identity == ReplicaIdentity::Full;
        let rest: Vec<_> = after.columns.iter().filter(|c| before.columns.iter().any(|b| b.name == c.name)).collect();
        let kept = before.columns.iter().collect::<Vec<_>>() == rest
            && (&before.schema, &before.name, before.identity) == (&after.schema, &after.name, after.identity)
            && after.columns.iter().all(|c| full || !c.key || rest.contains(&c));
        // A column in the middle is one that was generated and is not any more.
        prop_assert_eq!(change.is_additive(), kept, "{}", change);
        prop_assert!(!change.what().is_empty());
        prop_assert!(change.what().iter().all(|d| d.is_additive() != d.is_destructive()));
    }
}
