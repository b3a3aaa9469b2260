//! What of each table is compared: the tables and columns of both sides, mapped by name.

use std::collections::{BTreeMap, BTreeSet};

use pgonce::published::PublishedTable;
use pgonce::sql_error::stop_from_sql;
use pgonce::stop::{Side, Stop};
use pgonce_target::TableName as TargetName;
use tokio_postgres::Client;

use super::report::{NotCompared, Outcome, Problem, TableReport};
use super::sql::Scan;

/// Schema and name.
pub type TableName = (String, String);

/// The tables of one side.
pub type Tables = BTreeMap<TableName, TableInfo>;

/// A table of one side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableInfo {
    /// `relkind`.
    pub kind: char,
    /// Whether it is a partition of another table.
    pub partition: bool,
    /// Its columns, in the table's order.
    pub columns: Vec<ColumnInfo>,
}

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// Its type, with modifiers.
    pub type_name: String,
    /// Whether its values are computed.
    pub generated: bool,
}

/// Reads the tables of a database: ordinary, partitioned, foreign ones and views, outside system schemas and `pgonce`.
pub async fn read(client: &Client, side: Side) -> Result<Tables, Stop> {
    let sql = "SELECT n.nspname::text, c.relname::text, c.relkind::text, c.relispartition, a.attname::text, \
           pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated <> '' \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
         WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema', \
         'pgonce') AND n.nspname NOT LIKE 'pg\\_%' AND c.relpersistence <> 't' ORDER BY c.oid, a.attnum";
    let mut tables = Tables::new();
    for row in client.query(sql, &[]).await.map_err(|e| stop_from_sql(side, &e))? {
        let kind = row.get::<_, String>(2).chars().next().unwrap_or(' ');
        let info = TableInfo { kind, partition: row.get(3), columns: Vec::new() };
        let table = tables.entry((row.get(0), row.get(1))).or_insert(info);
        if let Some(name) = row.get(4) {
            table.columns.push(ColumnInfo { name, type_name: row.get(5), generated: row.get(6) });
        }
    }
    Ok(tables)
}

/// Operations that the publications leave out, by table: `UPDATE and DELETE`. Tables with all operations are not in it.
pub async fn left_out(client: &Client, publications: &[String]) -> Result<BTreeMap<TableName, String>, Stop> {
    let sql = "SELECT t.schemaname::text, t.tablename::text, pg_catalog.bool_or(p.pubinsert), \
        pg_catalog.bool_or(p.pubupdate), \
           pg_catalog.bool_or(p.pubdelete), pg_catalog.bool_or(p.pubtruncate) \
         FROM pg_catalog.pg_publication_tables t JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname \
         WHERE t.pubname = ANY ($1) GROUP BY 1, 2";
    let rows = client.query(sql, &[&publications]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    let mut tables = BTreeMap::new();
    for row in rows {
        let missing: Vec<&str> = ["INSERT", "UPDATE", "DELETE", "TRUNCATE"]
            .into_iter()
            .enumerate()
            .filter(|(index, _)| !row.get::<_, bool>(index + 2))
            .map(|(_, operation)| operation)
            .collect();
        if !missing.is_empty() {
            tables.insert((row.get(0), row.get(1)), missing.join(", "));
        }
    }
    Ok(tables)
}

/// What of one table is compared.
#[derive(Clone, Debug)]
pub struct TablePlan {
    /// What will be reported of it, so far without sums.
    pub report: TableReport,
    /// How both sides are read; `None` where they cannot be, which the report explains.
    pub scans: Option<(Scan, Scan)>,
}

/// Maps a published table to the target's table of the name `there`.
pub fn plan(
    published: &PublishedTable,
    there: &TargetName,
    source: Option<&TableInfo>,
    target: Option<&TableInfo>,
) -> TablePlan {
    let renamed = (&there.schema, &there.name) != (&published.schema, &published.name);
    let mut report = TableReport {
        table: published.to_string(),
        target_table: renamed.then(|| there.to_string()),
        outcome: Outcome::NotComparable,
        reason: None,
        source: None,
        target: None,
        key: Vec::new(),
        columns: Vec::new(),
        not_compared: Vec::new(),
        row_filter: published.row_filter.clone(),
        notes: Vec::new(),
        difference: None,
    };
    let Some(target) = target.filter(|target| matches!(target.kind, 'r' | 'p')) else {
        report.reason = Some(Problem::new(
            "schema_mismatch",
            format!("table {there} does not exist on the target"),
            "Create it there, or take the source's out of the publication.",
        ));
        return TablePlan { report, scans: None };
    };
    let mut lacking = Vec::new();
    for column in &published.columns {
        match target.columns.iter().find(|there| there.name == *column) {
            None => lacking.push(column.as_str()),
            Some(there) if there.generated => {
                report.not_compared.push(NotCompared { column: column.clone(), why: "generated on the target" });
            }
            Some(there) => {
                let here = source.and_then(|source| source.columns.iter().find(|here| here.name == *column));
                if let Some(here) = here.filter(|here| here.type_name != there.type_name) {
                    let types =
                        format!("{column} is {} on the source and {} on the target", here.type_name, there.type_name);
                    report.notes.push(types);
                }
                report.columns.push(column.clone());
            }
        }
    }
    let published_columns: BTreeSet<&String> = published.columns.iter().collect();
    for column in source.map_or(&[][..], |source| &source.columns) {
        if !published_columns.contains(&column.name) {
            let why = if column.generated { "generated on the source" } else { "not published" };
            report.not_compared.push(NotCompared { column: column.name.clone(), why });
        }
    }
    for column in &target.columns {
        let known = published_columns.contains(&column.name)
            || report.not_compared.iter().any(|skipped| skipped.column == column.name);
        if !known {
            report.not_compared.push(NotCompared { column: column.name.clone(), why: "only on the target" });
        }
    }
    if !lacking.is_empty() {
        report.reason = Some(Problem::new(
            "schema_mismatch",
            format!("the target's table {there} lacks the published column {}", lacking.join(", ")),
            "Add it there (and copy its values), or take it out of the publication's column list.",
        ));
        return TablePlan { report, scans: None };
    }
    let positions: Option<Vec<usize>> =
        published.key.iter().map(|key| report.columns.iter().position(|column| column == key)).collect();
    let key = positions.unwrap_or_default();
    report.key = key.iter().filter_map(|index| report.columns.get(*index).cloned()).collect();
    let here = Scan {
        schema: published.schema.clone(),
        name: published.name.clone(),
        with_children: published.partitioned,
        filter: published.row_filter.clone(),
        columns: report.columns.clone(),
        key,
    };
    let there = Scan {
        schema: there.schema.clone(),
        name: there.name.clone(),
        with_children: target.kind == 'p',
        filter: None,
        ..here.clone()
    };
    TablePlan { report, scans: Some((here, there)) }
}

/// Names of the tables in `all` that are not in `known`, without partitions and views.
pub fn others(all: &Tables, known: &BTreeSet<TableName>) -> Vec<String> {
    let tables =
        all.iter().filter(|(name, info)| matches!(info.kind, 'r' | 'p') && !info.partition && !known.contains(*name));
    tables.map(|((schema, name), _)| format!("{schema}.{name}")).collect()
}

#[cfg(test)]
mod tests {
    use pgonce::pgoutput::ReplicaIdentity;

    use super::*;

    fn published(columns: &[&str], key: &[&str]) -> PublishedTable {
        PublishedTable {
            oid: 1,
            schema: "public".to_owned(),
            name: "t".to_owned(),
            columns: columns.iter().map(|c| (*c).to_owned()).collect(),
            generated: Vec::new(),
            streamed: Vec::new(),
            row_filter: None,
            partitioned: false,
            identity: ReplicaIdentity::Default,
            key: key.iter().map(|c| (*c).to_owned()).collect(),
            bytes: 0,
            rows_estimated: 0,
        }
    }

    fn plan(published: &PublishedTable, source: Option<&TableInfo>, target: Option<&TableInfo>) -> TablePlan {
        super::plan(published, &TargetName::new("public", "t"), source, target)
    }

    fn table(columns: &[(&str, &str, bool)]) -> TableInfo {
        let column = |(name, type_name, generated): &(&str, &str, bool)| ColumnInfo {
            name: (*name).to_owned(),
            type_name: (*type_name).to_owned(),
            generated: *generated,
        };
        TableInfo { kind: 'r', partition: false, columns: columns.iter().map(column).collect() }
    }

    #[test]
    fn columns_are_mapped_by_name_and_the_others_are_named() {
        let source =
            table(&[("id", "integer", false), ("a", "numeric", false), ("g", "text", true), ("x", "text", false)]);
        let target = table(&[("a", "numeric(9,2)", false), ("own", "text", false), ("id", "bigint", false)]);
        let plan = plan(&published(&["id", "a"], &["id"]), Some(&source), Some(&target));
        let (here, there) = plan.scans.expect("comparable");
        assert_eq!((here.columns.clone(), here.key.clone()), (vec!["id".to_owned(), "a".to_owned()], vec![0]));
        assert_eq!(there, here);
        let skipped: Vec<(&str, &str)> =
            plan.report.not_compared.iter().map(|skipped| (skipped.column.as_str(), skipped.why)).collect();
        assert_eq!(skipped, [("g", "generated on the source"), ("x", "not published"), ("own", "only on the target")]);
        assert_eq!(
            plan.report.notes,
            [
                "id is integer on the source and bigint on the target",
                "a is numeric on the source and numeric(9,2) on the target"
            ]
        );
    }

    #[test]
    fn a_table_or_column_that_the_target_lacks_is_not_comparable() {
        let source = table(&[("id", "integer", false)]);
        let none = plan(&published(&["id"], &["id"]), Some(&source), None);
        assert!(none.scans.is_none() && none.report.reason.is_some_and(|reason| reason.code == "schema_mismatch"));
        let other = table(&[("other", "integer", false)]);
        let lacking = plan(&published(&["id"], &["id"]), Some(&source), Some(&other));
        assert!(
            lacking.scans.is_none() && lacking.report.reason.is_some_and(|reason| reason.text.ends_with("column id"))
        );
    }

    #[test]
    fn a_table_of_another_name_is_read_under_it_and_both_names_are_reported() {
        let both = table(&[("id", "integer", false)]);
        let there = TargetName::new("app", "u");
        let plan = super::plan(&published(&["id"], &["id"]), &there, Some(&both), Some(&both));
        let (source, target) = plan.scans.expect("comparable");
        assert_eq!((source.schema.as_str(), source.name.as_str()), ("public", "t"));
        assert_eq!((target.schema.as_str(), target.name.as_str()), ("app", "u"));
        assert_eq!(plan.report.target_table.as_deref(), Some("app.u"));
    }

    #[test]
    fn a_key_that_is_not_compared_whole_is_no_key() {
        let source = table(&[("id", "integer", false), ("a", "text", false)]);
        let target = table(&[("id", "integer", true), ("a", "text", false)]);
        let plan = plan(&published(&["id", "a"], &["id"]), Some(&source), Some(&target));
        assert!(plan.report.key.is_empty() && plan.report.columns == ["a"]);
    }
}
