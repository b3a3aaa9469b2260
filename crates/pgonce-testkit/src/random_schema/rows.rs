//! Statements on the rows of one table.

use super::column::{Column, IdentityColumn};
use super::table::{Identity, Table};
use crate::Random;

/// Rows chosen by their content and not by where they lie: `count` of them, from `place` on.
fn some(table: &str, random: &mut Random, count: u64) -> String {
    // Rows that look alike are alike.
    format!(
        "(tableoid, ctid) IN (SELECT tableoid, ctid FROM {table} x ORDER BY x::text COLLATE \"C\" \
         OFFSET (SELECT {} % greatest(count(*), 1) FROM {table}) LIMIT {count})",
        random.below(1_000)
    )
}

fn assignment(column: &Column, random: &mut Random) -> String {
    let value = match column.identity {
        Some(IdentityColumn::Always) => "DEFAULT".to_owned(),
        _ => column.value(random),
    };
    format!("{} = {value}", column.name)
}

/// Inserts of one row or of several, some of them over what is there.
pub(crate) fn insert(table: &Table, random: &mut Random) -> String {
    let columns: Vec<&Column> = table.columns.iter().filter(|column| column.is_writable()).collect();
    if columns.is_empty() {
        return format!("INSERT INTO {} DEFAULT VALUES", table.quoted());
    }
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let rows = if random.percent(50) { 1 } else { random.between(2, 9) };
    let row = |random: &mut Random| {
        let values: Vec<String> = columns.iter().map(|column| column.value(random)).collect();
        format!("({})", values.join(", "))
    };
    let rows: Vec<String> = (0..rows).map(|_| row(random)).collect();
    let conflict = match table.key.as_slice() {
        _ if table.deferrable => String::new(),
        [at] if random.percent(20) && table.columns[*at].is_writable() && table.identity_columns() == table.key => {
            // Twice the same key in one statement is refused.
            let set: Vec<String> = names.iter().skip(1).map(|name| format!("{name} = excluded.{name}")).collect();
            let first = rows.first().cloned().unwrap_or_default();
            if set.is_empty() {
                " ON CONFLICT DO NOTHING".to_owned()
            } else {
                return format!(
                    "INSERT INTO {} ({}) VALUES {first} ON CONFLICT ({}) DO UPDATE SET {}",
                    table.quoted(),
                    names.join(", "),
                    table.columns[*at].name,
                    set.join(", ")
                );
            }
        }
        _ => " ON CONFLICT DO NOTHING".to_owned(),
    };
    format!("INSERT INTO {} ({}) VALUES {}{conflict}", table.quoted(), names.join(", "), rows.join(", "))
}

/// Rows of a table without a key once more.
pub(crate) fn duplicate(table: &Table, random: &mut Random) -> String {
    let columns: Vec<&str> =
        table.columns.iter().filter(|column| column.is_writable()).map(|column| column.name.as_str()).collect();
    let list = columns.join(", ");
    format!(
        "INSERT INTO {name} ({list}) SELECT {list} FROM {name} x ORDER BY x::text COLLATE \"C\" OFFSET {} LIMIT 3",
        random.below(20),
        name = table.quoted()
    )
}

/// An update of columns that are in no key, of several rows at once; some of them change nothing.
pub(crate) fn update(table: &Table, random: &mut Random) -> String {
    let free: Vec<&Column> = (0..table.columns.len())
        .filter(|at| !table.key.contains(at) && !table.columns[*at].in_key && table.columns[*at].generated.is_none())
        .map(|at| &table.columns[at])
        .collect();
    let name = table.quoted();
    if free.is_empty() || random.percent(8) {
        // Nothing that the row does not have already.
        let column = &table.columns[0];
        let set = match column.identity {
            Some(IdentityColumn::Always) => return change_key(table, random),
            _ => format!("{0} = {0}", column.name),
        };
        return format!("UPDATE {name} SET {set} WHERE {}", some(&name, random, 3));
    }
    let mut set = vec![assignment(free[random.place(free.len())], random)];
    for column in &free {
        if random.percent(25) && !set[0].starts_with(&format!("{} =", column.name)) {
            set.push(assignment(column, random));
        }
    }
    let rows = if random.percent(60) { 1 } else { random.between(2, 8) };
    format!("UPDATE {name} SET {} WHERE {}", set.join(", "), some(&name, random, rows))
}

/// An update of one row's key, identity or partition.
pub(crate) fn change_key(table: &Table, random: &mut Random) -> String {
    let name = table.quoted();
    if table.deferrable && random.percent(60) {
        let column = &table.columns[0].name;
        let step = *random.pick(&["+ 1", "- 1", "* -1"]);
        return format!("UPDATE {name} SET {column} = {column} {step}");
    }
    let keys: Vec<&Column> = table.columns.iter().filter(|column| column.in_key || column.identity.is_some()).collect();
    let Some(first) = keys.first() else { return update(table, random) };
    let chosen = if random.percent(50) { *random.pick(&keys) } else { *first };
    let mut set = vec![assignment(chosen, random)];
    let more: Vec<&Column> = table.columns.iter().filter(|column| column.is_writable() && !column.in_key).collect();
    if !more.is_empty() && random.percent(40) {
        let other = *random.pick(&more);
        if other.name != chosen.name {
            set.push(assignment(other, random));
        }
    }
    let rows = if table.key.is_empty() && table.identity == Identity::Full { 3 } else { 1 };
    format!("UPDATE {name} SET {} WHERE {}", set.join(", "), some(&name, random, rows))
}

/// Deletes some rows.
pub(crate) fn delete(table: &Table, random: &mut Random) -> String {
    let rows = if random.percent(60) { 1 } else { random.between(2, 6) };
    let name = table.quoted();
    format!("DELETE FROM {name} WHERE {}", some(&name, random, rows))
}
