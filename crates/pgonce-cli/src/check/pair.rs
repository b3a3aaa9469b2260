//! Checks of a table of the source beside its table of the target.

use pgonce::ident::{quote_ident, quote_qualified};

use super::columns::Column;
use super::finding::{Finding, Severity, Who};
use super::server::Server;
use super::target_tables::TargetTable;
use super::types::{Fit, fit};
use crate::render::counted;

/// A table that is carried, or would be.
#[derive(Clone, Debug)]
pub struct Carried {
    /// Schema on the source.
    pub schema: String,
    /// Name on the source.
    pub name: String,
    /// Schema and name on the target.
    pub there: (String, String),
    /// Its replica identity is FULL.
    pub full: bool,
    /// Its columns: those that are published, and the generated ones.
    pub columns: Vec<Column>,
}

/// A table that the target does not have, or that is none.
pub fn missing(carried: &Carried, found: Option<&TargetTable>) -> Option<Finding> {
    const ID: &str = "target.table";
    let (schema, name) = &carried.there;
    if let Some(found) = found.filter(|found| !found.is_table()) {
        let what = match found.kind.as_str() {
            "v" => "a view",
            "m" => "a materialized view",
            _ => "a foreign table",
        };
        return Some(
            Finding::new(ID, Severity::Problem, format!("{what}, not a table"))
                .table(schema, name)
                .means("Rows cannot be copied into it. Rename it, and make the table."),
        );
    }
    found.is_none().then(|| {
        let table = shell_quoted(&quote_qualified(&carried.schema, &carried.name));
        Finding::new(ID, Severity::Problem, "missing")
            .table(schema, name)
            .means(
                "The target has no table of this name. `copy_schema: true` (`pgonce run --copy-schema`) creates all of \
                 them, with what they need. This makes the one, as it is on the source, in a schema that is there.",
            )
            .mend(
                Who::Shell,
                format!(
                    "pg_dump --schema-only --no-owner --no-privileges --no-publications --no-subscriptions \
                     --table={table} \"$SOURCE_URL\" | psql -X \"$TARGET_URL\""
                ),
            )
    })
}

/// Tables that the target does not have and `copy_schema` creates, which takes a right.
pub fn created(count: u64, server: &Server) -> Option<Finding> {
    const ID: &str = "target.table";
    if count == 0 {
        return None;
    }
    let found = format!("{} missing, and copy_schema creates them", counted(count, "table is", "tables are"));
    if server.may_create {
        return Some(
            Finding::new(ID, Severity::Note, found).means("They are created at the first start, before the rows."),
        );
    }
    let (database, role) = (quote_ident(&server.database), quote_ident(&server.role));
    Some(
        Finding::new(ID, Severity::Problem, format!("{found}, but the role may not create schemas"))
            .means("Schemas, and extensions, take CREATE on the database.")
            .mend(Who::TargetAdmin, format!("GRANT CREATE ON DATABASE {database} TO {role};")),
    )
}

fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Columns and types.
pub fn columns(carried: &Carried, table: &TargetTable, there: &[Column]) -> Vec<Finding> {
    let mut found = Vec::new();
    for column in &carried.columns {
        match there.iter().find(|c| c.name == column.name) {
            None if column.is_generated() => {}
            None => found.push(no_column(table, column)),
            Some(other) => found.extend(column_pair(table, column, other)),
        }
    }
    for column in there.iter().filter(|c| !carried.columns.iter().any(|s| s.name == c.name)) {
        if column.not_null && !column.filled && !column.is_generated() {
            found.push(
                Finding::new("target.column.extra", Severity::Problem, "NOT NULL without a default, and not published")
                    .column(&table.schema, &table.name, &column.name)
                    .means("No value arrives for it, so every insert would be refused.")
                    .mend(table.owner(), alter(table, &column.name, "DROP NOT NULL")),
            );
        }
    }
    let plain = || carried.columns.iter().filter(|c| !c.is_generated());
    let key: Vec<String> = plain().filter(|c| c.key).map(|c| c.name.clone()).collect();
    let first = plain().find(|c| matches!(c.kind.category.as_str(), "N" | "D" | "S" | "U" | "E"));
    found.extend(table.index(&key, carried.full, first.map(|c| c.name.as_str())));
    found
}

fn alter(table: &TargetTable, column: &str, what: &str) -> String {
    format!("ALTER TABLE {} ALTER COLUMN {} {what};", table.quoted(), quote_ident(column))
}

fn no_column(table: &TargetTable, column: &Column) -> Finding {
    Finding::new("target.column", Severity::Problem, "missing")
        .column(&table.schema, &table.name, &column.name)
        .means(
            "The source's values would have no place. If the column was renamed on the source, rename it here; if it \
             has a default there, add it with that.",
        )
        .mend(
            table.owner(),
            format!("ALTER TABLE {} ADD COLUMN {} {};", table.quoted(), quote_ident(&column.name), column.type_name),
        )
}

fn column_pair(table: &TargetTable, column: &Column, other: &Column) -> Vec<Finding> {
    let mut found = Vec::new();
    let at =
        |id, severity, what: String| Finding::new(id, severity, what).column(&table.schema, &table.name, &column.name);
    match (column.is_generated(), other.is_generated()) {
        (true, true) => return found,
        (false, true) => {
            let finding = at(
                "target.column.generated",
                Severity::Problem,
                "generated on the target, and an ordinary column on the source".to_owned(),
            )
            .means("The source's values cannot be written to it.");
            found.push(match other.generated.as_str() {
                // What is stored can stay; a virtual column has nothing that could.
                "s" => finding.mend(table.owner(), alter(table, &column.name, "DROP EXPRESSION")),
                _ => {
                    let name = quote_ident(&column.name);
                    let (quoted, kind) = (table.quoted(), &column.type_name);
                    finding.mend(
                        table.owner(),
                        format!(
                            "ALTER TABLE {quoted} DROP COLUMN {name};\nALTER TABLE {quoted} ADD COLUMN {name} {kind};"
                        ),
                    )
                }
            });
            return found;
        }
        (true, false) => {
            found.push(
                at(
                    "target.column.generated",
                    Severity::Problem,
                    "generated on the source, and an ordinary column on the target".to_owned(),
                )
                .means(
                    "Generated values are neither copied nor sent: the target has to make them itself. Drop the column \
                     here and add it with the source's expression (see \\d on the source).",
                ),
            );
            return found;
        }
        (false, false) => {}
    }
    let types = format!("{} on the source, {} on the target", column.type_name, other.type_name);
    let change = || format!("TYPE {0} USING {1}::{0}", column.type_name, quote_ident(&column.name));
    match fit(&column.kind, &other.kind) {
        Fit::Same => {}
        Fit::Changed(why) => found.push(
            at("target.column.type", Severity::Note, types)
                .means(format!("All values fit, with a difference: {why}. `pgonce verify` compares their texts.")),
        ),
        Fit::Narrower(why) => {
            let finding = at("target.column.type", Severity::Warning, types)
                .means(format!("Some values may not fit: {why}. A value that is refused stops the flow."));
            found.push(finding.mend(
                table.owner(),
                type_mend(table, column, other).unwrap_or_else(|| alter(table, &column.name, &change())),
            ));
        }
        Fit::No => found.push(
            at("target.column.type", Severity::Problem, types)
                .means("Values of the one type are not read as values of the other: the first row would stop the flow.")
                .mend(
                    table.owner(),
                    // Through text, which every type can be read from.
                    alter(
                        table,
                        &column.name,
                        &format!("TYPE {0} USING {1}::text::{0}", column.type_name, quote_ident(&column.name)),
                    ),
                ),
        ),
    }
    if other.not_null && !column.not_null {
        found.push(
            at("target.column.not_null", Severity::Warning, "NOT NULL on the target only".to_owned())
                .means("A row with NULL in it would stop the flow.")
                .mend(table.owner(), alter(table, &column.name, "DROP NOT NULL")),
        );
    }
    let sequence = |c: &Column| !c.identity.is_empty() || (c.filled && c.kind.category == "N");
    if !column.identity.is_empty() && !sequence(other) {
        let kind = if column.identity == "a" { "ALWAYS" } else { "BY DEFAULT" };
        found.push(
            at("target.column.identity", Severity::Warning, "an identity column on the source only".to_owned())
                .means("The flow works without, but after the handoff nothing makes new values here.")
                .mend(
                    table.owner(),
                    format!(
                        "{}\n{}",
                        alter(table, &column.name, "SET NOT NULL"),
                        alter(table, &column.name, &format!("ADD GENERATED {kind} AS IDENTITY"))
                    ),
                ),
        );
    }
    if column.collation != other.collation {
        let name = |c: &Column| c.collation.clone().unwrap_or_else(|| "the database's default".to_owned());
        found.push(
            at(
                "target.column.collation",
                Severity::Note,
                format!("collation {} on the source, {} on the target", name(column), name(other)),
            )
            .means(
                "Rows sort in another order, and under a nondeterministic collation other values may count as equal: \
                 a unique index could refuse a row.",
            ),
        );
    }
    found
}

/// An enum gets the labels that it lacks; nothing else changes its type.
fn type_mend(table: &TargetTable, column: &Column, other: &Column) -> Option<String> {
    let (here, there) = (column.kind.labels.as_ref()?, other.kind.labels.as_ref()?);
    if column.kind.name != other.kind.name {
        return None;
    }
    let name = column.kind.name.trim_end_matches("[]");
    let add =
        |label: &String| format!("ALTER TYPE {name} ADD VALUE IF NOT EXISTS {};", pgonce::ident::quote_literal(label));
    let missing: Vec<String> = here.iter().filter(|label| !there.contains(label)).map(add).collect();
    (!missing.is_empty() && table.is_table()).then(|| missing.join("\n"))
}
