//! The SQL that an admin types on both sides, so that the flow's roles need nothing else. It can be run again.

use pgonce::catalog::usable_identity;
use pgonce::ident::{quote_ident, quote_literal};
use pgonce_target::LEDGER_SQL;

use crate::config::Publish;
use crate::config::part::PartOfFlow;

/// The roles where no URL names one.
const SOURCE_ROLE: &str = "pgonce_source";
const TARGET_ROLE: &str = "pgonce_target";

/// For the source: the role, what it may read, the publication.
pub fn for_source(part: &PartOfFlow) -> String {
    let role = part.source.as_ref().map_or(SOURCE_ROLE, |settings| &settings.user);
    let (quoted, text) = (quote_ident(role), quote_literal(role));
    let place = part.source.as_ref().map_or_else(|| "any".to_owned(), |settings| settings.to_string());
    let (tables, publication) = match &part.publish {
        Publish::Existing(names) => (
            format!(
                "SELECT DISTINCT t.schemaname AS schema, t.tablename AS name FROM pg_catalog.pg_publication_tables t \
                 WHERE t.pubname::text IN ({})",
                names.iter().map(|name| quote_literal(name)).collect::<Vec<_>>().join(", ")
            ),
            existing(names),
        ),
        Publish::Ours { name, tables } => (tables_sql(tables), ours(name, tables)),
    };
    let attributes = block(&format!(
        "BEGIN\n    \
             IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = {text}) THEN\n        \
                 CREATE ROLE {quoted} LOGIN;\n    \
             END IF;\n    \
             IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = {text} AND (r.rolreplication OR \
               r.rolsuper)) \
             THEN\n        \
                 ALTER ROLE {quoted} WITH REPLICATION;\n    \
             END IF;\n    \
             EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %I TO %I', pg_catalog.current_database(), {text});\n\
         END"
    ));
    let grants = block(&format!(
        "DECLARE\n    entry record;\nBEGIN\n    \
             FOR entry IN {tables} LOOP\n        \
                 EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA %I TO %I', entry.schema, {text});\n        \
                 EXECUTE pg_catalog.format('GRANT SELECT ON TABLE %I.%I TO %I', entry.schema, entry.name, \
                   {text});\n    \
             END LOOP;\n    \
             FOR entry IN SELECT n.nspname AS schema, c.relname AS name FROM pg_catalog.pg_class c\n            \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace\n            \
                 WHERE c.relkind = 'S' AND pg_catalog.has_schema_privilege({text}, n.oid, 'USAGE')\n              \
                   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgonce')\n              \
                   AND EXISTS (SELECT FROM ({tables}) x WHERE x.schema = n.nspname) LOOP\n        \
                 EXECUTE pg_catalog.format('GRANT SELECT ON SEQUENCE %I.%I TO %I', entry.schema, entry.name, \
                   {text});\n    \
             END LOOP;\n\
         END"
    ));
    format!(
        "-- ==== For the source: {} ====\n\
         -- An admin types this, connected to the source's database. It can be run again.\n\
         -- What it does not do, because it needs a restart:\n\
         --   ALTER SYSTEM SET wal_level = 'logical';\n\
         \n\
         -- The role: LOGIN and REPLICATION. Give a new one a password: \\password {}\n\
         {attributes}\n\
         \n\
         -- SELECT on what is carried: for the initial copy and `pgonce verify`, and, at the handoff, for the \
           sequences.\n\
         {grants}\n\
         \n\
         {publication}\n\
         {schema}\
         -- pgonce makes the slot itself, for which REPLICATION is enough.\n",
        one_line(&place),
        one_line(&quoted),
        schema = if part.copy_schema {
            format!(
                "-- copy_schema: pg_dump reads the definitions of the whole database.\nGRANT pg_read_all_data TO \
                     {quoted};\n\n"
            )
        } else {
            String::new()
        },
    )
}

/// For the target: the role, the ledger, what the role may write.
pub fn for_target(part: &PartOfFlow) -> String {
    let role = part.target.as_ref().map_or(TARGET_ROLE, |settings| &settings.user);
    let (quoted, text) = (quote_ident(role), quote_literal(role));
    let place = part.target.as_ref().map_or_else(|| "any".to_owned(), |settings| settings.to_string());
    let attributes = block(&format!(
        "BEGIN\n    \
             IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = {text}) THEN\n        \
                 CREATE ROLE {quoted} LOGIN;\n    \
             END IF;\n    \
             EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %I TO %I', pg_catalog.current_database(), {text});\n\
         END"
    ));
    let tables = match &part.publish {
        Publish::Existing(_) => format!(
            "-- The role owns the tables, best. Where it does not, for each table that is published:\n\
             --   GRANT USAGE ON SCHEMA ... TO {quoted};\n\
             --   GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON TABLE ... TO {quoted};\n",
            quoted = one_line(&quoted)
        ),
        Publish::Ours { tables, .. } => {
            let grants = block(&format!(
                "DECLARE\n    entry record;\nBEGIN\n    \
                     FOR entry IN {tables} LOOP\n        \
                         EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA %I TO %I', entry.schema, {text});\n        \
                         EXECUTE pg_catalog.format('GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON TABLE %I.%I TO \
                           %I',\n            \
                             entry.schema, entry.name, {text});\n    \
                     END LOOP;\n\
                 END",
                tables =
                    format_args!("{} AND NOT pg_catalog.pg_has_role({text}, c.relowner, 'USAGE')", tables_sql(tables)),
            ));
            format!(
                "-- The role owns the tables, best. This is for those that are there and that it does not \
                  own.\n{grants}\n"
            )
        }
    };
    format!(
        "-- ==== For the target: {} ====\n\
         -- An admin types this, connected to the target's database. It can be run again.\n\
         \n\
         -- The role: LOGIN. Give a new one a password: \\password {one}\n\
         {attributes}\n\
         \n\
         -- The ledger: where pgonce keeps the checkpoint, in the same commits as the rows.\n\
         {}\n\
         {}\n\
         \n\
         {tables}\n\
         {schema}\
         -- Optional, from version 15 on. Without it, triggers and foreign keys of the target act on what is written:\n\
         --   GRANT SET ON PARAMETER session_replication_role TO {one};",
        one_line(&place),
        LEDGER_SQL.trim_end(),
        crate::check::ledger_grants(role),
        one = one_line(&quoted),
        schema = if part.copy_schema {
            let create = block(&format!(
                "BEGIN\n    \
                     EXECUTE pg_catalog.format('GRANT CREATE ON DATABASE %I TO %I',\n            \
                         pg_catalog.current_database(), {text});\n    \
                     EXECUTE pg_catalog.format('GRANT CREATE ON SCHEMA public TO %I', {text});\n\
                 END"
            ));
            format!("-- copy_schema: the role creates schemas, and the tables, which it then owns.\n{create}\n\n")
        } else {
            String::new()
        },
    )
}

/// A statement that runs `body`, whatever the body holds.
fn block(body: &str) -> String {
    let tags = std::iter::once("$pgonce$".to_owned()).chain((1..).map(|n| format!("$pgonce{n}$")));
    let tag = tags.into_iter().find(|tag| !body.contains(tag.as_str())).unwrap_or_default();
    format!("DO {tag} {body} {tag};")
}

/// For a comment: a name may hold a line break, behind which it would be a statement.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// An SQL condition: `schema` and `name`, two expressions, match one of the patterns.
fn matching(patterns: &[String], schema: &str, name: &str) -> String {
    if patterns.is_empty() {
        return "true".to_owned();
    }
    let like = |pattern: &String| {
        let pattern = pattern.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_").replace('*', "%");
        format!("{schema} || '.' || {name} LIKE {}", quote_literal(&pattern))
    };
    format!("({})", patterns.iter().map(like).collect::<Vec<_>>().join(" OR "))
}

/// A query for the tables that patterns choose.
fn tables_sql(patterns: &[String]) -> String {
    format!(
        "SELECT n.nspname AS schema, c.relname AS name FROM pg_catalog.pg_class c\n            \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace\n            \
             WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition\n            \
               AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgonce') AND n.nspname NOT LIKE \
                 'pg\\_%'\n            \
               AND {}",
        matching(patterns, "n.nspname", "c.relname")
    )
}

fn existing(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| quote_ident(name)).collect();
    format!("-- The publications are used as they are: {}", one_line(&names.join(", ")))
}

/// Makes the publication that pgonce would make, of the same tables.
fn ours(name: &str, patterns: &[String]) -> String {
    let create = format!("CREATE PUBLICATION {} FOR TABLE ", quote_ident(name));
    let usable = usable_identity("l", "l.relreplident");
    // On lines of its own, what is asked of a table can be read.
    let usable = ["WHEN 'n'", "ELSE", "AND CASE", "AND NOT EXISTS"]
        .iter()
        .fold(usable, |sql, word| sql.replace(&format!(" {word} "), &format!("\n                        {word} ")));
    let body = format!(
        "DECLARE\n    entry record;\n    names text;\nBEGIN\n    \
             IF EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = {name}) THEN\n        \
                 RETURN;\n    \
             END IF;\n    \
             FOR entry IN SELECT x.schema, x.name, NOT EXISTS (\n                \
                 -- the table, or a partition of it, without a usable replica identity\n                \
                 SELECT FROM pg_catalog.pg_class l\n                \
                 WHERE (l.oid = x.oid OR l.relkind = 'r' \
                   AND l.oid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(x.oid) t))\n                  \
                   AND NOT (l.relreplident IN ('f', x.identity) AND\n                        \
                        {usable})\n            \
             ) AS identifiable FROM (\n            \
                 {tables}\n            \
             ) AS x ORDER BY 1, 2 LOOP\n        \
                 IF entry.identifiable THEN\n            \
                     names := pg_catalog.concat_ws(', ', names, pg_catalog.format('%I.%I', entry.schema, \
                       entry.name));\n        \
                 ELSE\n            \
                     RAISE WARNING '%.% is left out: it has no usable replica identity', entry.schema, \
                       entry.name;\n        \
                 END IF;\n    \
             END LOOP;\n    \
             IF names IS NULL THEN\n        \
                 RAISE WARNING 'no table can be published: run this again when there are some';\n        \
                 RETURN;\n    \
             END IF;\n    \
             EXECUTE {create} || names || ' WITH (publish_via_partition_root = true)';\n\
         END",
        name = quote_literal(name),
        tables = tables_sql(patterns).replacen("AS name", "AS name, c.oid, c.relreplident AS identity", 1),
        create = quote_literal(&create),
    );
    format!(
        "-- The publication: the tables that match and have a usable replica identity. To choose by hand instead:\n\
         --   {}... WITH (publish_via_partition_root = true);\n{}",
        one_line(&create),
        block(&body)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_block_or_comment() {
        assert!(block("x $pgonce$ y").starts_with("DO $pgonce1$ "));
        assert_eq!(one_line("a\nDROP TABLE b"), "a DROP TABLE b");
    }

    #[test]
    fn a_pattern_is_no_other_pattern() {
        assert_eq!(matching(&["a_b.c*".to_owned()], "s", "t"), r"(s || '.' || t LIKE E'a\\_b.c%')");
        assert_eq!(matching(&[], "s", "t"), "true");
    }
}
