//! Row changes on a real target.

mod support;

use pgonce::destination::Destination;
use pgonce::pgoutput::{Column, ReplicaIdentity};
use pgonce::stop::{Reason, Stop};
use support::{Feed, NULL, Table, Target, UNCHANGED, t, table_t};

const CREATE_T: &str = "create table t(id int primary key, n int, b text)";

fn feed_t() -> (Feed, Table) {
    let (mut feed, table) = (Feed::new(), table_t());
    feed.describe(&table);
    (feed, table)
}

#[tokio::test]
async fn inserts_updates_deletes_and_truncates_apply_in_order() {
    for target in Target::each("apply_order").await {
        target.sql(CREATE_T).await;
        let (mut feed, table) = feed_t();
        let mut sink = target.open().await;
        let group = [
            feed.transaction(|tx| (1..=9).for_each(|i| tx.insert(&table, &[t(&i.to_string()), t("0"), NULL]))),
            feed.transaction(|tx| {
                tx.update(&table, None, &[t("1"), t("7"), t("é\\n'\"")]);
                // The key changes, and goes where another was.
                tx.delete(&table, &[t("2"), NULL, NULL]);
                tx.update(&table, Some(&[t("3"), NULL, NULL]), &[t("2"), t("5"), t("")]);
            }),
        ];
        let written = sink.write(&group).await.unwrap();
        assert_eq!((written.applied, written.redelivered, written.changes), (2, 0, 12));
        let rows = target.rows("select t::text from t where n > 0 or b is not null order by id").await;
        assert_eq!(rows, [r#"(1,7,"é\\n'""")"#, r#"(2,5,"")"#]);
        assert_eq!(target.number("select count(*) from t").await, 8);
        let last = feed.transaction(|tx| {
            tx.truncate(&[&table], false);
            tx.insert(&table, &[t("1"), NULL, NULL]);
        });
        assert_eq!(sink.write(&[last]).await.unwrap().changes, 2);
        assert_eq!(target.table("t").await, ["(1,,)"]);
    }
}

#[tokio::test]
async fn b2_b3_an_unchanged_toast_value_stays() {
    for target in Target::each("toast").await {
        target.sql(&format!("{CREATE_T}; alter table t alter b set storage external")).await;
        let (mut feed, table) = feed_t();
        let mut sink = target.open().await;
        let large = "x".repeat(10_000);
        sink.write(&[feed.insert(&table, &[t("1"), t("0"), t(&large)])]).await.unwrap();
        sink.write(&[feed.transaction(|tx| tx.update(&table, None, &[t("1"), t("1"), UNCHANGED]))]).await.unwrap();
        // With the key changing, too.
        let moved = feed.transaction(|tx| tx.update(&table, Some(&[t("1"), NULL, NULL]), &[t("2"), t("2"), UNCHANGED]));
        sink.write(&[moved]).await.unwrap();
        assert_eq!(
            target.rows("select id || ':' || n || ':' || md5(b) from t").await,
            target.rows(&format!("select '2:2:' || md5('{large}')")).await
        );
    }
}

#[tokio::test]
async fn b1_with_full_identity_an_unchanged_toast_value_stays() {
    for target in Target::each("toast_full").await {
        target.sql(&format!("{CREATE_T}; alter table t alter b set storage external")).await;
        let table = Table::new(1, "t", ReplicaIdentity::Full, &["id", "n", "b"]);
        let mut feed = Feed::new();
        feed.describe(&table);
        let mut sink = target.open().await;
        let large = "x".repeat(10_000);
        let group = [
            feed.insert(&table, &[t("1"), t("0"), t(&large)]),
            feed.transaction(|tx| {
                tx.update(&table, Some(&[t("1"), t("0"), t(&large)]), &[t("1"), t("1"), UNCHANGED]);
            }),
        ];
        sink.write(&group).await.unwrap();
        assert_eq!(target.rows("select n || ':' || length(b) from t").await, ["1:10000"]);
    }
}

#[tokio::test]
async fn b4_a_table_of_nothing_but_its_key() {
    for target in Target::each("key_only").await {
        target.sql("create table k(id int primary key); create table k2(a int, b int, primary key (a, b))").await;
        let k = Table::new(1, "k", ReplicaIdentity::Default, &["*id"]);
        let k2 = Table::new(2, "k2", ReplicaIdentity::Default, &["*a", "*b"]);
        let mut feed = Feed::new();
        feed.describe(&k);
        feed.describe(&k2);
        let mut sink = target.open().await;
        let group = [
            feed.insert(&k, &[t("1")]),
            feed.transaction(|tx| tx.update(&k, None, &[t("1")])),
            feed.transaction(|tx| {
                tx.insert(&k2, &[t("1"), t("1")]);
                tx.insert(&k2, &[t("1"), t("2")]);
                tx.update(&k2, None, &[t("1"), t("2")]);
            }),
        ];
        sink.write(&group).await.unwrap();
        assert_eq!(target.table("k").await, ["(1)"]);
        assert_eq!(target.table("k2").await, ["(1,1)", "(1,2)"]);
        // Nothing is set, and still the row has to be there.
        let stop = sink.write(&[feed.transaction(|tx| tx.update(&k, None, &[t("9")]))]).await.unwrap_err();
        assert!(matches!(stop.reason(), Reason::RowConflict { operation: "UPDATE", found: 0, .. }), "{stop}");
    }
}

#[tokio::test]
async fn b6_of_two_identical_rows_one_goes() {
    for target in Target::each("duplicates").await {
        // Columns of types without equality, values that equality takes for the same, NULLs.
        target
            .sql(
                "create type pair as (a int, b text);
                 create domain word as varchar(5);
                 create table t(n numeric(9,3), j json, p point, c char(5), w word, a int[], r pair, x text)",
            )
            .await;
        let table = Table::new(1, "t", ReplicaIdentity::Full, &["n", "j", "p", "c", "w", "a", "r", "x"]);
        let mut feed = Feed::new();
        feed.describe(&table);
        let row =
            [t("1.000"), t("{\"a\": 1}"), t("(1,2)"), t("ab   "), t("w"), t("[0:1]={7,NULL}"), t("(1,\"x y\")"), NULL];
        let other =
            [t("1.000"), t("{\"a\":1}"), t("(1,2)"), t("ab   "), t("w"), t("[0:1]={7,NULL}"), t("(1,\"x y\")"), NULL];
        let mut sink = target.open().await;
        let inserted = feed.transaction(|tx| {
            tx.insert(&table, &row);
            tx.insert(&table, &other);
            tx.insert(&table, &row);
        });
        sink.write(&[inserted, feed.transaction(|tx| tx.delete(&table, &row))]).await.unwrap();
        assert_eq!(target.rows("select j::text from t order by 1").await, ["{\"a\": 1}", "{\"a\":1}"]);
        let mut changed = row;
        changed[7] = t("new");
        sink.write(&[feed.transaction(|tx| tx.update(&table, Some(&row), &changed))]).await.unwrap();
        assert_eq!(target.rows("select x from t order by 1").await, ["new", "NULL"]);
        // The rows that are left: `other`, and the changed one.
        let stop = sink.write(&[feed.transaction(|tx| tx.delete(&table, &row))]).await.unwrap_err();
        let Reason::RowConflict { key, found: 0, .. } = stop.reason() else { panic!("{stop}") };
        assert_eq!(key.len(), 8);
    }
}

#[tokio::test]
async fn a_keyless_row_of_a_partitioned_table_is_found_with_the_help_of_an_index() {
    for target in Target::each("keyless_partitions").await {
        target
            .sql(
                "create table t(n int, b text) partition by list (n); create table t1 partition of t for values in (1);
                 create table t2 partition of t default; create index on t(b)",
            )
            .await;
        let table = Table::new(1, "t", ReplicaIdentity::Full, &["n", "b"]);
        let mut feed = Feed::new();
        feed.describe(&table);
        let mut sink = target.open().await;
        let group = [
            feed.transaction(|tx| {
                tx.insert(&table, &[t("1"), t("x")]);
                tx.insert(&table, &[t("2"), t("x")]);
                tx.insert(&table, &[t("2"), NULL]);
            }),
            feed.transaction(|tx| {
                tx.update(&table, Some(&[t("2"), t("x")]), &[t("1"), t("y")]);
                tx.delete(&table, &[t("1"), t("x")]);
                tx.update(&table, Some(&[t("2"), NULL]), &[t("2"), t("z")]);
            }),
        ];
        sink.write(&group).await.unwrap();
        assert_eq!(target.rows("select t::text from t order by n").await, ["(1,y)", "(2,z)"]);
    }
}

#[tokio::test]
async fn k5_a_missing_row_is_a_conflict_with_its_key_columns() {
    for target in Target::each("missing_row").await {
        target.sql(CREATE_T).await;
        let (mut feed, table) = feed_t();
        let mut sink = target.open().await;
        let group = [
            feed.insert(&table, &[t("1"), t("1"), NULL]),
            feed.transaction(|tx| {
                tx.update(&table, None, &[t("1"), t("2"), NULL]);
                tx.delete(&table, &[t("44"), NULL, NULL]);
            }),
            feed.insert(&table, &[t("2"), t("1"), NULL]),
        ];
        let stop = sink.write(&group).await.unwrap_err();
        let expected: Stop = Reason::RowConflict {
            commit: group[1].commit(),
            xid: group[1].xid(),
            operation: "DELETE",
            table: "public.t".into(),
            key: vec!["id".into()],
            found: 0,
        }
        .into();
        assert_eq!(stop, expected);
        assert!(!stop.to_string().contains("44"), "{stop}");
        // What came before is applied, and nothing of the transaction itself.
        assert_eq!(target.table("t").await, ["(1,1,)"]);
        assert_eq!(target.number("select count(*) from pgonce.applied").await, 1);
    }
}

#[tokio::test]
async fn j4_hostile_names_stay_names() {
    for target in Target::each("hostile_names").await {
        let long = "L".repeat(63);
        target
            .sql(&format!(
                r#"create schema "S; drop""s"; 
                   create table "S; drop""s"."t'; --"("or'der" int primary key, 
                       "a""b" text, "$1" text, "{long}" text)"#
            ))
            .await;
        let mut table = Table::new(1, "t'; --", ReplicaIdentity::Default, &["*or'der", "a\"b", "$1", &long]);
        table.schema = "S; drop\"s".into();
        let mut feed = Feed::new();
        feed.describe(&table);
        let mut sink = target.open().await;
        let group = [
            feed.transaction(|tx| (1..=5).for_each(|i| tx.insert(&table, &[t(&i.to_string()), t("a"), t("b"), NULL]))),
            feed.transaction(|tx| tx.update(&table, None, &[t("1"), t("c"), t("d"), t("e")])),
            feed.transaction(|tx| (2..=5).for_each(|i| tx.delete(&table, &[t(&i.to_string()), NULL, NULL, NULL]))),
        ];
        sink.write(&group).await.unwrap();
        assert_eq!(target.table(r#""S; drop""s"."t'; --""#).await, ["(1,c,d,e)"]);
        sink.write(&[feed.transaction(|tx| tx.truncate(&[&table], true))]).await.unwrap();
    }
}

#[tokio::test]
async fn g4_columns_go_by_name_and_the_targets_own_keep_their_defaults() {
    for target in Target::each("other_columns").await {
        target.sql("create table t(own int default 42, b text, more text, n int, id int primary key)").await;
        let (mut feed, table) = feed_t();
        let mut sink = target.open().await;
        let group = [
            feed.transaction(|tx| (1..=5).for_each(|i| tx.insert(&table, &[t(&i.to_string()), t("1"), t("x")]))),
            feed.transaction(|tx| tx.insert(&table, &[t("6"), t("1"), t("x")])),
            feed.transaction(|tx| tx.update(&table, None, &[t("1"), t("2"), t("y")])),
        ];
        sink.write(&group).await.unwrap();
        assert_eq!(
            target.rows("select t::text from t where id in (1, 6) order by id").await,
            ["(42,y,,2,1)", "(42,x,,1,6)"]
        );
    }
}

#[tokio::test]
async fn d2_identity_and_generated_columns() {
    for target in Target::each("identity").await {
        target
            .sql(
                "create table t(id bigint generated always as identity primary key, n int, b text,
                                gen text generated always as (upper(b)) stored);
                 create table u(id int primary key, always int generated always as identity,
                                large text, own int default 7)",
            )
            .await;
        let table = table_t();
        let u = Table::new(2, "u", ReplicaIdentity::Default, &["*id", "always", "large"]);
        let mut feed = Feed::new();
        feed.describe(&table);
        feed.describe(&u);
        let mut sink = target.open().await;
        let group = [
            feed.transaction(|tx| (1..=5).for_each(|i| tx.insert(&table, &[t(&i.to_string()), t("1"), t("x")]))),
            feed.insert(&table, &[t("6"), t("1"), t("x")]),
            // K7: the key is an identity column, unchanged and changed.
            feed.transaction(|tx| {
                tx.update(&table, None, &[t("1"), t("2"), t("y")]);
                tx.update(&table, Some(&[t("2"), NULL, NULL]), &[t("20"), t("2"), UNCHANGED]);
            }),
            // An identity column beside the key.
            feed.transaction(|tx| {
                tx.insert(&u, &[t("1"), t("10"), t("large")]);
                tx.update(&u, None, &[t("1"), t("11"), UNCHANGED]);
            }),
        ];
        sink.write(&group).await.unwrap();
        assert_eq!(
            target.rows("select t::text from t order by id").await,
            ["(1,2,y,Y)", "(3,1,x,X)", "(4,1,x,X)", "(5,1,x,X)", "(6,1,x,X)", "(20,2,x,X)"]
        );
        assert_eq!(target.table("u").await, ["(1,11,large,7)"]);
    }
}

#[tokio::test]
async fn h2_a_truncate_is_one_statement_for_all_tables() {
    for target in Target::each("truncate").await {
        target
            .sql(
                "create table a(id serial primary key, n int, b text);
                 create table b(id int primary key references a);
                 insert into a values (default, 1, ''); insert into b values (1)",
            )
            .await;
        let a = Table { name: "a".into(), ..table_t() };
        let b = Table::new(2, "b", ReplicaIdentity::Default, &["*id"]);
        let mut feed = Feed::new();
        feed.describe(&a);
        feed.describe(&b);
        let mut sink = target.open().await;
        sink.write(&[feed.transaction(|tx| tx.truncate(&[&a, &b], true))]).await.unwrap();
        assert_eq!(target.number("select nextval('a_id_seq')").await, 1);
        // A table outside of the flow refers to it: nothing is cascaded.
        target.sql("create table outside(id int references a)").await;
        let stop = sink.write(&[feed.transaction(|tx| tx.truncate(&[&a, &b], false))]).await.unwrap_err();
        let Reason::TransactionFailed { fault, .. } = stop.reason() else { panic!("{stop}") };
        assert_eq!(fault.sqlstate, "0A000");
    }
}

#[tokio::test]
async fn a_failing_transaction_in_a_group_of_50_is_named_and_those_before_it_are_applied() {
    for target in Target::each("narrowing").await {
        target.sql("create table t(id int primary key, n int constraint n_once unique, b text)").await;
        let (mut feed, table) = feed_t();
        let mut sink = target.open().await;
        let group: Vec<_> = (1..=50)
            .map(|i| {
                let n = if i == 37 { 5 } else { i };
                feed.insert(&table, &[t(&i.to_string()), t(&n.to_string()), t("secret")])
            })
            .collect();
        let stop = sink.write(&group).await.unwrap_err();
        let Reason::TransactionFailed { commit, xid, fault } = stop.reason() else { panic!("{stop}") };
        assert_eq!((*commit, *xid), (group[36].commit(), group[36].xid()));
        assert_eq!(fault.sqlstate, "23505");
        assert_eq!((fault.table.as_deref(), fault.constraint.as_deref()), (Some("t"), Some("n_once")));
        assert!(!stop.to_string().contains("secret"));
        assert_eq!(target.number("select max(id)::int8 from t").await, 36);
        assert_eq!(target.number("select count(*) from pgonce.applied").await, 36);
        // The target is mended: the flow takes it up where it stopped.
        target.sql("alter table t drop constraint n_once").await;
        let mut sink = target.open().await;
        let written = sink.write(&group).await.unwrap();
        assert_eq!((written.applied, written.redelivered), (14, 36));
        assert_eq!(target.number("select count(*) from t").await, 50);
    }
}

#[tokio::test]
async fn a9_a_value_that_does_not_fit_stops_the_flow_without_being_told() {
    for target in Target::each("narrow_column").await {
        target.sql("create table t(id int primary key, n smallint, b varchar(3))").await;
        let (mut feed, table) = feed_t();
        let mut sink = target.open().await;
        let stop = sink.write(&[feed.insert(&table, &[t("1"), t("70000"), NULL])]).await.unwrap_err();
        let Reason::TransactionFailed { fault, .. } = stop.reason() else { panic!("{stop}") };
        assert_eq!((fault.sqlstate.as_str(), fault.table.as_deref()), ("22003", Some("t")));
        assert!(!format!("{stop:?}").contains("70000"));
        // In a run, a cast must not cut a value short either.
        let mut feed = Feed::new();
        feed.describe(&table);
        let mut sink = target.open().await;
        let many =
            feed.transaction(|tx| (1..=9).for_each(|i| tx.insert(&table, &[t(&i.to_string()), NULL, t("abcd")])));
        let stop = sink.write(&[many]).await.unwrap_err();
        let Reason::TransactionFailed { fault, .. } = stop.reason() else { panic!("{stop}") };
        assert_eq!(fault.sqlstate, "22001");
    }
}

#[tokio::test]
async fn what_the_target_lacks_is_named_with_the_command_to_type() {
    for target in Target::each("missing_table").await {
        let (mut feed, table) = feed_t();
        let mut sink = target.open().await;
        let insert = feed.insert(&table, &[t("1"), t("1"), NULL]);
        let stop = sink.write(std::slice::from_ref(&insert)).await.unwrap_err();
        assert_eq!(stop.code(), "schema_mismatch");
        assert!(stop.hint().contains("pg_dump"), "{}", stop.hint());
        target.sql("create table t(id int primary key, b text)").await;
        let mut sink = target.open().await;
        let stop = sink.write(std::slice::from_ref(&insert)).await.unwrap_err();
        assert!(stop.hint().contains(r#"ALTER TABLE "public"."t" ADD COLUMN "n" text"#), "{}", stop.hint());
        target.sql("alter table t add n int").await;
        let mut sink = target.open().await;
        assert_eq!(sink.write(&[insert]).await.unwrap().applied, 1);
    }
}

#[tokio::test]
async fn g3_the_target_may_be_altered_while_the_session_lives() {
    for target in Target::each("altered").await {
        target.sql(CREATE_T).await;
        let (mut feed, mut table) = feed_t();
        let mut sink = target.open().await;
        let rows = |feed: &mut Feed, table: &Table, from: i32| {
            feed.transaction(|tx| {
                for i in from..from + 5 {
                    tx.insert(table, &[t(&i.to_string()), t("1"), t("x")]);
                }
                tx.update(table, None, &[t(&from.to_string()), t("2"), t("y")]);
            })
        };
        let group = [rows(&mut feed, &table, 10)];
        sink.write(&group).await.unwrap();
        target.sql("alter table t alter n type bigint, alter b type varchar(20); alter table t add z int").await;
        let group = [rows(&mut feed, &table, 20)];
        sink.write(&group).await.unwrap();
        // The source follows.
        table.columns.push(("z".into(), false));
        feed.describe(&table);
        let with_z = feed.transaction(|tx| tx.update(&table, None, &[t("20"), t("3"), t("y"), t("9")]));
        sink.write(&[with_z]).await.unwrap();
        assert_eq!(target.rows("select t::text from t where id = 20").await, ["(20,3,y,9)"]);
    }
}

#[tokio::test]
async fn triggers_and_foreign_keys_of_the_target_keep_still() {
    for target in Target::each("triggers").await {
        target
            .sql(
                "create table parent(id int primary key);
                 create table t(id int primary key references parent, n int, b text);
                 create function f() returns trigger language plpgsql as 'begin new.n := 99; return new; end';
                 create trigger f before insert on t for each row execute function f()",
            )
            .await;
        let (mut feed, table) = feed_t();
        let mut sink = target.open().await;
        assert!(sink.report().unwrap().triggers_suppressed);
        let many = feed.transaction(|tx| (1..=5).for_each(|i| tx.insert(&table, &[t(&i.to_string()), t("1"), NULL])));
        sink.write(&[many]).await.unwrap();
        assert_eq!(target.rows("select distinct n::text from t").await, ["1"]);
    }
}

#[tokio::test]
async fn values_in_binary_format_go_as_they_are() {
    for target in Target::each("binary_values").await {
        target.sql(CREATE_T).await;
        let (mut feed, table) = feed_t();
        let mut sink = target.open().await;
        let group = [
            feed.transaction(|tx| {
                for i in 1..=5_i32 {
                    tx.insert(&table, &[Column::Binary(&i.to_be_bytes()), t("1"), Column::Binary(b"x")]);
                }
            }),
            feed.transaction(|tx| tx.update(&table, None, &[Column::Binary(&1_i32.to_be_bytes()), NULL, t("y")])),
        ];
        sink.write(&group).await.unwrap();
        assert_eq!(target.rows("select t::text from t where id = 1").await, ["(1,,y)"]);
        assert_eq!(target.number("select count(*) from t").await, 5);
        let key = |i: i32| i.to_be_bytes();
        let group = [
            feed.transaction(|tx| tx.delete(&table, &[Column::Binary(&key(2)), NULL, NULL])),
            // The key changes, from binary to text.
            feed.transaction(|tx| {
                let old = [Column::Binary(&key(3)), NULL, NULL];
                tx.update(&table, Some(&old), &[t("30"), t("2"), Column::Binary(b"z")]);
            }),
        ];
        sink.write(&group).await.unwrap();
        assert_eq!(target.rows("select t::text from t where id > 5").await, ["(30,2,z)"]);
        assert_eq!(target.number("select count(*) from t").await, 4);
    }
}

#[tokio::test]
async fn a_table_that_others_inherit_from_is_written_alone() {
    for target in Target::each("inheritance").await {
        target
            .sql(&format!("{CREATE_T}; create table child() inherits (t); insert into child values (1, 1, 'child')"))
            .await;
        let (mut feed, table) = feed_t();
        let mut sink = target.open().await;
        let group = [
            feed.insert(&table, &[t("1"), t("1"), NULL]),
            feed.transaction(|tx| tx.update(&table, None, &[t("1"), t("2"), NULL])),
            feed.transaction(|tx| tx.delete(&table, &[t("1"), NULL, NULL])),
            feed.transaction(|tx| tx.truncate(&[&table], false)),
        ];
        sink.write(&group).await.unwrap();
        assert_eq!(target.table("t").await, ["(1,1,child)"]);
    }
}
