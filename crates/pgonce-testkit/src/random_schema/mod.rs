//! Tables, publications and transactions of every kind, generated from a seed: what a round trip is made of.
//!
//! All of it is SQL that was written before anything runs, so a seed and a major give the same text again. What a
//! statement meets can differ between runs (a kill, a lock that is waited for), what both sides must hold in the end
//! cannot: the source says it.
//!
//! ```
//! use pgonce_testkit::random_schema::RandomSchema;
//! let schema = RandomSchema::new(7, 18);
//! let transactions = schema.workload(1, 20, false);
//! assert_eq!(transactions, RandomSchema::new(7, 18).workload(1, 20, false));
//! ```

mod column;
mod ddl;
mod publication;
mod rows;
mod table;
mod types;
mod workload;

use crate::Random;
pub use publication::Publication;
pub use table::Table;
pub use workload::Step;

/// A schema that a seed describes, and what is published of it.
#[derive(Debug)]
pub struct RandomSchema {
    seed: u64,
    tables: Vec<Table>,
    publication: Publication,
}

impl RandomSchema {
    /// The schema of a seed, for servers of a major.
    pub fn new(seed: u64, major: u32) -> RandomSchema {
        let mut random = Random::split(seed, 1);
        let publication = Publication::new(&mut random, major);
        let number = random.between(3, 7);
        let mut tables: Vec<Table> = Vec::new();
        for n in 0..number {
            let table = Table::new(&mut random, n, major, publication, &tables);
            tables.push(table);
        }
        RandomSchema { seed, tables, publication }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// How the tables are published.
    pub fn publication(&self) -> Publication {
        self.publication
    }

    /// The tables, partitions not among them.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// What makes types and tables at the source.
    pub fn source_sql(&self) -> String {
        let tables: String =
            self.tables.iter().map(|table| ddl::create(table, &self.tables, ddl::Side::Source)).collect();
        format!("{}{tables}", ddl::preamble(&self.tables))
    }

    /// What makes them at the target: columns in another order, columns of its own, partitions cut otherwise.
    pub fn target_sql(&self) -> String {
        let tables: String =
            self.tables.iter().map(|table| ddl::create(table, &self.tables, ddl::Side::Target)).collect();
        format!("{}{tables}", ddl::preamble(&self.tables))
    }

    /// The target once more, for a native subscription: without foreign keys, since not all tables are in it.
    pub fn native_sql(&self) -> String {
        let tables: String =
            self.tables.iter().map(|table| ddl::create(table, &self.tables, ddl::Side::Native)).collect();
        format!("{}{tables}", ddl::preamble(&self.tables))
    }

    /// What makes the publications for pgonce, and their names. Nothing where it makes its own.
    pub fn publications(&self) -> (String, Vec<String>) {
        publication::create(&self.tables, self.publication, "carried", |_| true)
    }

    /// The same for a native subscription, of the tables that it can carry exactly.
    pub fn native_publications(&self) -> (String, Vec<String>) {
        let own = match self.publication {
            Publication::Leaves => Publication::Leaves,
            _ => Publication::Roots,
        };
        publication::create(&self.tables, own, "natively", Table::is_native)
    }

    /// Rows for every table, before anything else.
    pub fn first_rows(&self) -> Vec<Step> {
        workload::first_rows(&self.tables, Random::split(self.seed, 99))
    }

    /// The steps of `transactions` transactions, in several sessions. Another `phase` has others. In a `gentle` one,
    /// tables that are published with their inserts only are only inserted into: while they are copied, what a change
    /// leaves behind at a target would depend on when it was copied.
    pub fn workload(&self, phase: u64, transactions: u32, gentle: bool) -> Vec<Step> {
        let subject = workload::Subject { tables: &self.tables, publication: self.publication, gentle };
        workload::steps(subject, Random::split(self.seed, 100 + phase), transactions)
    }
}

#[cfg(test)]
mod tests;
