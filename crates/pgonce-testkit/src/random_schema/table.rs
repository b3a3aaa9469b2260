//! Tables: what there is of columns, keys, identity and partitions.

use super::column::{Column, IdentityColumn, LISTED, NAMES, name};
use super::publication::Publication;
use super::types::{Equality, kind};
use crate::Random;
use crate::ident::quote;

/// A table that a seed describes.
#[derive(Debug)]
pub struct Table {
    pub(crate) number: u64,
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) columns: Vec<Column>,
    /// Columns of the primary key; empty for none.
    pub(crate) key: Vec<usize>,
    /// The primary key may be violated until the end of a statement.
    pub(crate) deferrable: bool,
    pub(crate) identity: Identity,
    pub(crate) partitions: Option<Partitions>,
    /// Its one-column key is referenced by (table, column): see [`Table::references`].
    pub(crate) foreign_key: Option<ForeignKey>,
    /// Published with `publish = 'insert'`.
    pub(crate) inserts_only: bool,
    /// Rows that are published, as a condition.
    pub(crate) filter: Option<String>,
    /// A column that was dropped stands before the others.
    pub(crate) dropped: bool,
    /// Only the target has a plain index on a column, for a table without a key.
    pub(crate) target_index: Option<usize>,
    /// The order of columns at the target.
    pub(crate) target_order: Vec<usize>,
    /// Columns that only the target has.
    pub(crate) target_own: bool,
    pub(crate) target_partitions: TargetPartitions,
}

/// The replica identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Identity {
    Default,
    Full,
    Nothing,
    /// A unique index on this column.
    Index(usize),
}

/// How a table is partitioned, always with three partitions below the root, one of them partitioned again or made
/// apart and attached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Partitions {
    pub(crate) by: By,
    pub(crate) column: usize,
    pub(crate) below: bool,
    pub(crate) attached: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Of a whole number.
    Range,
    /// Of a text.
    List,
    Hash,
}

/// How the target cuts a table that the source has in partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetPartitions {
    AsSource,
    None,
    Other,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ForeignKey {
    pub(crate) column: usize,
    pub(crate) table: u64,
    pub(crate) cascade: bool,
}

/// Schemas beside `public`.
pub(crate) const SCHEMAS: &[&str] = &["public", "public", "Sales; --", "app"];

impl Table {
    pub(crate) fn new(
        random: &mut Random,
        number: u64,
        major: u32,
        publication: Publication,
        before: &[Table],
    ) -> Table {
        let mut columns: Vec<Column> = Vec::new();
        let partitioned = random.percent(30);
        let full = random.percent(45);
        let keyless = full && random.percent(55);
        let mut key = Vec::new();
        let deferrable = full && !keyless && !partitioned && random.percent(30);
        if !keyless {
            for _ in 0..*random.pick(&[1, 1, 1, 2, 3]) {
                key.push(columns.len());
                columns.push(Column::of_key(random, columns.len()));
            }
            if deferrable {
                columns[0].kind = kind("int4");
            }
        }
        let partitions = partitioned.then(|| {
            let by = *random.pick(&[By::Range, By::List, By::Hash]);
            // Its own column, so that what is cut does not depend on the key's type.
            let name = name(random, columns.len());
            let mut column = Column::new(&name, kind(if by == By::List { "text" } else { "int4" }));
            column.not_null = true;
            column.in_key = true;
            column.choices = (by == By::List).then_some(LISTED);
            if !keyless {
                key.push(columns.len());
            }
            columns.push(column);
            Partitions { by, column: columns.len() - 1, below: random.percent(50), attached: random.percent(50) }
        });
        for _ in 0..random.between(1, 6) {
            columns.push(Column::any(random, columns.len()));
        }
        let mut table = Table {
            number,
            schema: (*random.pick(SCHEMAS)).to_owned(),
            name: if random.percent(50) { format!("t{number}") } else { format!("{}{number}", random.pick(NAMES)) },
            deferrable,
            identity: if full { Identity::Full } else { Identity::Default },
            target_own: random.percent(25),
            dropped: random.percent(25),
            inserts_only: false,
            foreign_key: None,
            filter: None,
            target_index: None,
            target_order: Vec::new(),
            target_partitions: TargetPartitions::AsSource,
            partitions,
            columns,
            key,
        };
        table.refine(random, major, publication, before);
        table.target_order = (0..table.columns.len()).collect();
        if random.percent(35) {
            random.shuffle(&mut table.target_order);
        }
        table
    }

    /// What depends on what the table is already.
    fn refine(&mut self, random: &mut Random, major: u32, publication: Publication, before: &[Table]) {
        let plain = self.partitions.is_none();
        if !self.key.is_empty() && plain && !self.deferrable && random.percent(30) {
            let way = if random.percent(50) { IdentityColumn::Always } else { IdentityColumn::ByDefault };
            self.columns[0].kind = kind("int8");
            self.columns[0].identity = Some(way);
        }
        if self.identity == Identity::Default && plain && random.percent(25) {
            let mut column = Column::of_key(random, self.columns.len());
            column.not_null = true;
            self.identity = Identity::Index(self.columns.len());
            self.columns.push(column);
            // The index may be all there is.
            if random.percent(40) && self.columns.iter().all(|column| column.identity.is_none()) {
                self.key.clear();
            }
        }
        if plain && publication.names_tables() && self.identity == Identity::Default && random.percent(20) {
            self.inserts_only = true;
            self.identity = Identity::Nothing;
            // A key that is deleted at the source, and comes again, would still be at the target.
            self.key.clear();
        }
        if plain && !self.inserts_only && random.percent(30) {
            let parent = before.iter().find(|table| table.can_be_referenced());
            if let Some(parent) = parent {
                self.refer_to(random, parent);
            }
        }
        // From 18 on, a FULL identity with a generated column cannot be published.
        if (self.identity != Identity::Full || major < 18)
            && random.percent(30)
            && let Some(column) = Column::generated(random, self.columns.len(), &self.columns, major)
        {
            self.columns.push(column);
        }
        if self.key.is_empty() && random.percent(40) {
            // A large value does not fit into an index.
            let usable = |at: &usize| {
                let column = &self.columns[*at];
                column.kind.is_key() && column.generated.is_none() && !column.kind.can_be_large()
            };
            let usable: Vec<usize> = (0..self.columns.len()).filter(usable).collect();
            self.target_index = (!usable.is_empty()).then(|| *random.pick(&usable));
        }
        if publication.as_root() && !plain {
            self.target_partitions =
                *random.pick(&[TargetPartitions::AsSource, TargetPartitions::None, TargetPartitions::Other]);
        }
        let limited = major >= 15 && publication.names_tables() && self.identity != Identity::Full;
        if limited && (plain || publication.as_root()) && random.percent(20) {
            self.limit(random);
        }
    }

    fn can_be_referenced(&self) -> bool {
        let simple = self.key.len() == 1 && self.partitions.is_none() && !self.deferrable && self.filter.is_none();
        simple && !self.inserts_only && self.columns[self.key[0]].published
    }

    fn refer_to(&mut self, random: &mut Random, parent: &Table) {
        let referenced = &parent.columns[parent.key[0]];
        let name = format!("ref{}", self.columns.len());
        let mut column = Column::new(&name, referenced.kind);
        column.reference = Some(format!(
            "(SELECT r.{key} FROM {} r ORDER BY r.{key}::text COLLATE \"C\" OFFSET {{place}} LIMIT 1)",
            parent.quoted(),
            key = referenced.name,
        ));
        self.foreign_key =
            Some(ForeignKey { column: self.columns.len(), table: parent.number, cascade: random.percent(60) });
        self.columns.push(column);
    }

    /// A list of columns or a filter of rows in the publication.
    fn limit(&mut self, random: &mut Random) {
        let identity = self.identity_columns();
        let generated = self.columns.iter().any(|column| column.generated.is_some());
        if random.percent(50) && !generated {
            for at in 0..self.columns.len() {
                let column = &mut self.columns[at];
                let may = !identity.contains(&at) && !column.not_null && !self.key.contains(&at);
                column.published = !(may && random.percent(60));
            }
        }
        if random.percent(60)
            && let Some(at) =
                identity.iter().find(|at| matches!(self.columns[**at].kind.name, "int4" | "int8" | "text"))
        {
            let column = &self.columns[*at];
            self.filter = Some(match column.kind.name {
                "text" => format!("{} >= 'k5'", column.name),
                _ => format!("{} % 3 <> 0", column.name),
            });
        }
    }

    /// The columns of the replica identity, unless it is FULL or NOTHING.
    pub(crate) fn identity_columns(&self) -> Vec<usize> {
        match self.identity {
            Identity::Default => self.key.clone(),
            Identity::Index(column) => vec![column],
            Identity::Full | Identity::Nothing => Vec::new(),
        }
    }

    /// Its name, with its schema and quoted.
    pub fn quoted(&self) -> String {
        format!("{}.{}", quote(&self.schema), quote(&self.name))
    }

    pub(crate) fn schema_quoted(&self) -> String {
        quote(&self.schema)
    }

    /// As a member of a publication, with its list of columns and its filter.
    pub(crate) fn member(&self) -> String {
        let mut text = self.quoted();
        if self.columns.iter().any(|column| !column.published) {
            let sent = self.columns.iter().filter(|column| column.published).map(|column| column.name.as_str());
            text = format!("{text} ({})", sent.collect::<Vec<_>>().join(", "));
        }
        if let Some(filter) = &self.filter {
            text = format!("{text} WHERE ({filter})");
        }
        text
    }

    /// Published with its inserts only, so that the target keeps what the source changes or deletes.
    pub fn is_inserts_only(&self) -> bool {
        self.inserts_only
    }

    /// Whether a list of columns or a filter leaves out a part of it.
    pub fn is_limited(&self) -> bool {
        self.filter.is_some() || self.columns.iter().any(|column| !column.published)
    }

    /// Whether a native subscription carries it exactly. With FULL and without a key at the target, it takes any row
    /// that is equal by the types' operators; it fails where a type has none, and finds no row where a column is
    /// generated, or is the target's own with a value.
    pub fn is_native(&self) -> bool {
        if self.identity != Identity::Full || !self.key.is_empty() && !self.deferrable {
            return true;
        }
        let least = if self.key.is_empty() { Equality::Exact } else { Equality::Loose };
        !self.target_own
            && self.columns.iter().all(|column| column.generated.is_none() && column.kind.equality >= least)
    }

    /// The published rows of the source, as sorted text.
    pub fn source_rows(&self) -> String {
        let filter = self.filter.as_ref().map_or(String::new(), |filter| format!(" WHERE {filter}"));
        self.rows_of(&self.quoted(), &filter)
    }

    /// What they have to be like at the target.
    pub fn target_rows(&self) -> String {
        self.rows_of(&self.quoted(), "")
    }

    /// Every column of the target, those of its own too, as sorted text.
    pub fn all_target_rows(&self) -> String {
        format!("SELECT t::text COLLATE \"C\" FROM {} t ORDER BY 1", self.quoted())
    }

    /// Queries of the partitions that must be alike on both sides, where they are published by themselves.
    pub fn partition_rows(&self, publication: Publication) -> Vec<String> {
        match self.partitions {
            Some(partitions) if !publication.as_root() => {
                self.leaves(partitions).iter().map(|leaf| self.rows_of(leaf, "")).collect()
            }
            _ => Vec::new(),
        }
    }

    fn rows_of(&self, table: &str, filter: &str) -> String {
        let sent = |column: &&Column| {
            column.published && column.generated.as_ref().is_none_or(|generated| self.columns[generated.base].published)
        };
        let columns: Vec<&str> = self.columns.iter().filter(sent).map(|column| column.name.as_str()).collect();
        format!("SELECT ROW({})::text COLLATE \"C\" FROM {table}{filter} ORDER BY 1", columns.join(", "))
    }

    /// The quoted name of a partition.
    pub(crate) fn partition(&self, suffix: &str) -> String {
        format!("{}.{}", quote(&self.schema), quote(&format!("{}_{suffix}", self.name)))
    }

    /// The quoted names of all partitions that hold rows.
    pub(crate) fn leaves(&self, partitions: Partitions) -> Vec<String> {
        let names: &[&str] = if partitions.below { &["1", "2a", "2b", "3"] } else { &["1", "2", "3"] };
        names.iter().map(|suffix| self.partition(suffix)).collect()
    }
}
