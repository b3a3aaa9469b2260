//! Columns.

use super::types::{KINDS, Kind, kind};
use crate::Random;
use crate::ident::quote;

/// A column of a generated table.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    /// Quoted.
    pub(crate) name: String,
    pub(crate) kind: &'static Kind,
    pub(crate) not_null: bool,
    pub(crate) default: Option<String>,
    pub(crate) generated: Option<Generated>,
    pub(crate) identity: Option<IdentityColumn>,
    /// Part of a key or an index: its values are small, and hardly any two of them are the same.
    pub(crate) in_key: bool,
    /// All the values it can have.
    pub(crate) choices: Option<&'static [&'static str]>,
    /// Kept outside the row, uncompressed, where it is large.
    pub(crate) external: bool,
    /// One row of the referenced table, as an expression.
    pub(crate) reference: Option<String>,
    /// Whether it is sent: a publication can have a list of columns.
    pub(crate) published: bool,
}

/// What a generated column is made of.
#[derive(Debug, Clone)]
pub(crate) struct Generated {
    pub(crate) expression: String,
    pub(crate) type_name: &'static str,
    /// The place of the column that it is computed from.
    pub(crate) base: usize,
    pub(crate) stored: bool,
}

/// How an identity column takes values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdentityColumn {
    Always,
    ByDefault,
}

/// How many values a column of a key has: few enough to meet rows again and again.
const KEYS: u64 = 300;

/// The values of a column by which a table is partitioned as a list.
pub(crate) const LISTED: &[&str] = &["'a'", "'b'", "'it''s'", "'d'", "''", "E'\\N'"];

/// Names that need quotes, and some that do not.
pub(crate) const NAMES: &[&str] = &[
    "plain",
    "Order",
    "select",
    "it's",
    "a.b",
    "with space",
    "quo\"te",
    "\u{dc}n\u{ef}",
    "dollar$",
    "tab\tbed",
    "100%",
    "semi;colon --",
    "back\\slash",
    "user",
    "x\u{20ac}y",
];

impl Column {
    pub(crate) fn new(name: &str, kind: &'static Kind) -> Column {
        Column {
            name: quote(name),
            kind,
            not_null: false,
            default: None,
            generated: None,
            identity: None,
            in_key: false,
            choices: None,
            external: false,
            reference: None,
            published: true,
        }
    }

    /// A column of any type.
    pub(crate) fn any(random: &mut Random, number: usize) -> Column {
        let mut column = Column::new(&name(random, number), random.pick(KINDS));
        column.not_null = random.percent(20);
        column.external = column.kind.can_be_large() && random.percent(60);
        if random.percent(20) {
            column.default = Some(column.kind.value(random));
            // A subquery is no default.
            column.default = column.default.filter(|value| !value.contains("SELECT"));
        }
        column
    }

    /// A column of a type that can be a key's.
    pub(crate) fn of_key(random: &mut Random, number: usize) -> Column {
        let keys: Vec<&'static Kind> = KINDS.iter().filter(|kind| kind.is_key()).collect();
        // Half of all keys are what most keys are.
        let common = *random.pick(&["int4", "int8", "uuid", "text"]);
        let kind = if random.percent(50) { kind(common) } else { random.pick(&keys) };
        Column { not_null: true, in_key: true, ..Column::new(&name(random, number), kind) }
    }

    /// A column that is computed from one of `columns`.
    pub(crate) fn generated(random: &mut Random, number: usize, columns: &[Column], major: u32) -> Option<Column> {
        let usable = |column: &Column| {
            column.kind.built_in
                && column.generated.is_none()
                && column.identity.is_none()
                && column.reference.is_none()
        };
        let bases: Vec<usize> = (0..columns.len()).filter(|at| usable(&columns[*at])).collect();
        if bases.is_empty() {
            return None;
        }
        let base = *random.pick(&bases);
        let name_of_base = &columns[base].name;
        let (expression, type_name) = match columns[base].kind.name {
            "int2" | "int4" | "int8" => (format!("coalesce({name_of_base}, 3) % 7"), columns[base].kind.name),
            "text" => (format!("length({name_of_base})"), "int4"),
            _ => (format!("{name_of_base} IS NULL"), "bool"),
        };
        let stored = major < 18 || random.percent(50);
        let mut column = Column::new(&name(random, number), kind("int4"));
        column.generated = Some(Generated { expression, type_name, base, stored });
        Some(column)
    }

    /// Whether a statement can give it a value.
    pub(crate) fn is_writable(&self) -> bool {
        self.generated.is_none() && self.identity != Some(IdentityColumn::Always)
    }

    /// A value as SQL.
    pub(crate) fn value(&self, random: &mut Random) -> String {
        if !self.not_null && random.percent(15) {
            return "NULL".to_owned();
        }
        if self.default.is_some() && random.percent(20) {
            return "DEFAULT".to_owned();
        }
        match (&self.reference, self.choices) {
            (Some(row), _) => row.replace("{place}", &random.below(40).to_string()),
            (None, Some(choices)) => (*random.pick(choices)).to_owned(),
            (None, None) if self.in_key => self.kind.key_value(random.below(KEYS)),
            (None, None) => self.kind.value(random),
        }
    }

    /// Its definition in CREATE TABLE.
    pub(crate) fn definition(&self) -> String {
        let mut text = match &self.generated {
            Some(generated) => {
                let storage = if generated.stored { "STORED" } else { "VIRTUAL" };
                format!(
                    "{} {} GENERATED ALWAYS AS ({}) {storage}",
                    self.name, generated.type_name, generated.expression
                )
            }
            None => format!("{} {}", self.name, self.kind.name),
        };
        match self.identity {
            Some(IdentityColumn::Always) => text.push_str(" GENERATED ALWAYS AS IDENTITY"),
            Some(IdentityColumn::ByDefault) => text.push_str(" GENERATED BY DEFAULT AS IDENTITY"),
            None => {}
        }
        if let Some(default) = &self.default {
            text = format!("{text} DEFAULT {default}");
        }
        if self.not_null {
            text.push_str(" NOT NULL");
        }
        text
    }
}

/// A name of a column or a table that no other with another number has.
pub(crate) fn name(random: &mut Random, number: usize) -> String {
    if random.percent(50) { format!("c{number}") } else { format!("{}{number}", random.pick(NAMES)) }
}
