//! `pgonce version`.

use clap::Args;
use serde_json::json;

use crate::config::flags::FormatOption;
use crate::output::Output;
use crate::render::Listing;

/// The version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit that the program was built from; empty where it was not built from a checkout.
const COMMIT: &str = env!("PGONCE_COMMIT");

/// Major versions of PostgreSQL that the tests run against.
const POSTGRESQL_OLDEST: u32 = 14;
const POSTGRESQL_NEWEST: u32 = 18;

/// Arguments of `pgonce version`.
#[derive(Args, Debug)]
pub struct VersionArguments {
    /// How to report
    #[command(flatten)]
    pub format: FormatOption,
}

/// Says which pgonce this is.
pub fn execute(output: Output) {
    let ledger = pgonce_target::LEDGER_VERSION;
    if output.is_json() {
        let commit = Some(COMMIT).filter(|commit| !commit.is_empty());
        output.object(&json!({
            "version": VERSION, "commit": commit, "ledger": ledger,
            "postgresql": {"oldest": POSTGRESQL_OLDEST, "newest": POSTGRESQL_NEWEST},
        }));
        return;
    }
    let mut list = Listing::default();
    list.pair("pgonce", VERSION);
    list.pair("commit", if COMMIT.is_empty() { "unknown (not built from a checkout)" } else { COMMIT });
    list.pair("PostgreSQL", format!("{POSTGRESQL_OLDEST} to {POSTGRESQL_NEWEST}"));
    list.pair("ledger", format!("version {ledger}"));
    list.write(output);
}
