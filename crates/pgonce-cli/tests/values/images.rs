//! With the identity FULL a row is found by what it looks like, also where two servers, or one server at two times,
//! keep the same value in different bytes.

use pgonce_testkit::majors;

use crate::pair::Case;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c7_a_row_of_a_composite_type_that_grew_is_found_by_its_image() {
    for major in majors().unwrap() {
        let case = Case::new(major, "grown").await;
        case.both(
            "CREATE TYPE grown AS (a int);
             CREATE TABLE f (id int, v grown, l grown[]); ALTER TABLE f REPLICA IDENTITY FULL;
             CREATE TABLE p (id int, v grown) PARTITION BY RANGE (id); ALTER TABLE p REPLICA IDENTITY FULL;
             CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
             ALTER TABLE p1 REPLICA IDENTITY FULL",
        )
        .await;
        case.at_source(
            "INSERT INTO f SELECT i, ROW(i)::grown, ARRAY[ROW(i)]::grown[] FROM generate_series(1, 6) i;
             INSERT INTO p SELECT i, ROW(i)::grown FROM generate_series(1, 6) i",
        )
        .await;
        case.drain().await;
        // What lies in the tables keeps its one attribute; it is read as having two.
        case.both("ALTER TYPE grown ADD ATTRIBUTE b text").await;
        case.at_source(
            "UPDATE f SET v = ROW(7, 'x') WHERE id = 1; UPDATE f SET id = 20 WHERE id = 2; DELETE FROM f WHERE id = 3;
             UPDATE f SET v = ROW(8, 'y') WHERE id = 1; INSERT INTO f SELECT id + 30, v, l FROM f;
             DELETE FROM f WHERE id IN (31, 34);
             UPDATE p SET v = ROW(7, 'x') WHERE id = 1; DELETE FROM p WHERE id = 3",
        )
        .await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM f ORDER BY id, v").await.len(), 8);
        assert_eq!(case.assert_same("SELECT * FROM p ORDER BY id, v").await.len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c4_values_that_print_alike_are_found_whatever_their_bits_are() {
    for major in majors().unwrap() {
        let case = Case::new(major, "bits").await;
        case.both(
            "CREATE TABLE f (id int, a float8, b float4, p point, l float8[], r numrange);
             ALTER TABLE f REPLICA IDENTITY FULL;
             CREATE TABLE g (id int, a float8, x xml); ALTER TABLE g REPLICA IDENTITY FULL",
        )
        .await;
        case.at_source(
            "INSERT INTO f SELECT i, n, n, point(n, n), ARRAY[n, 'NaN'], '[1.10,2]'
                 FROM generate_series(1, 6) i, (SELECT 'Infinity'::float8 - 'Infinity'::float8 AS n) s;
             INSERT INTO g SELECT i, 'NaN', '<?xml version=\"1.0\" encoding=\"UTF-8\"?><a/>'
                 FROM generate_series(1, 4) i",
        )
        .await;
        case.drain().await;
        // As a copy in binary format, or another way of filling the target, may have left them.
        case.at_target("UPDATE f SET a = 'Infinity'::float8 - 'Infinity'::float8 WHERE id < 3").await;
        case.at_target("UPDATE f SET p = point('Infinity'::float8 - 'Infinity'::float8, 'NaN') WHERE id = 4").await;
        case.at_source(
            "DELETE FROM f WHERE id = 1; UPDATE f SET id = 20 WHERE id = 2; DELETE FROM f WHERE id = 3;
             UPDATE f SET r = '[1.1,2]' WHERE id = 4; DELETE FROM g WHERE id = 1; UPDATE g SET a = 1 WHERE id = 2",
        )
        .await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM f ORDER BY id").await.len(), 4);
        assert_eq!(case.assert_same("SELECT * FROM g ORDER BY id").await.len(), 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c3_values_that_only_compare_equal_are_told_apart() {
    for major in majors().unwrap() {
        let case = Case::new(major, "apart").await;
        case.both(
            "CREATE TABLE f (n numeric, d float8, t text, x xml, j json); ALTER TABLE f REPLICA IDENTITY FULL;
             CREATE TABLE i (n numeric, d float8, t text, x xml, j json); ALTER TABLE i REPLICA IDENTITY FULL",
        )
        .await;
        case.at_target("CREATE INDEX ON i (n)").await;
        for table in ["f", "i"] {
            case.at_source(&format!(
                "INSERT INTO {table} VALUES (1.0, 0, '', '<a/>', '[1,1]'), (1.00, 0, '', '<a/>', '[1,1]'),
                     (1.0, '-0', '', '<a/>', '[1,1]'), (1.0, 0, NULL, '<a/>', '[1,1]'),
                     (1.0, 0, '', '<a></a>', '[1,1]'), (1.0, 0, '', '<a/>', '[1, 1]'),
                     (NULL, 0, '', NULL, NULL), (NULL, NULL, NULL, NULL, NULL)"
            ))
            .await;
        }
        case.drain().await;
        for table in ["f", "i"] {
            case.at_source(&format!(
                "DELETE FROM {table} WHERE n::text = '1.00'; DELETE FROM {table} WHERE d::text = '-0';
                 DELETE FROM {table} WHERE t IS NULL AND n IS NOT NULL; DELETE FROM {table} WHERE x::text = '<a></a>';
                 UPDATE {table} SET t = 'found' WHERE j::text = '[1, 1]'; DELETE FROM {table} WHERE d IS NULL"
            ))
            .await;
        }
        case.drain().await;
        for table in ["f", "i"] {
            assert_eq!(case.assert_same(&format!("SELECT * FROM {table} ORDER BY t COLLATE \"C\", n")).await.len(), 3);
        }
    }
}
