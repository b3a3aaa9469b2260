//! What a flow is configured with: flags and file become raw values, raw values become a [`FlowConfig`].
//!
//! [`keys::KEYS`] is the one list of keys. [`flags`] and [`file`] read them, [`FlowConfig::validate`] gives them their
//! meaning.

pub mod file;
pub mod flags;
pub mod keys;
pub mod raw;
pub mod reference;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use pgonce::connect::{ConnectionSettings, Environment, ParseConnectionError};
use pgonce::sink::StartMode;
use pgonce_target::SynchronousCommit;

use self::flags::{DEFAULT_FILE, FlowOptions};
use self::keys::{Key, key};
use self::raw::{ConfigError, Given, Raw};

/// A commented configuration file, with every key: what `pgonce init` writes.
pub const SAMPLE: &str = include_str!("sample.yml");

/// A flow, ready to be opened.
#[derive(Clone, Debug)]
pub struct FlowConfig {
    /// The flow's name.
    pub flow: FlowName,
    /// Where changes come from.
    pub source: SourceConfig,
    /// Where changes go.
    pub target: TargetConfig,
    /// What an empty checkpoint means.
    pub start: StartMode,
    /// How many pieces of tables may be copied at a time.
    pub jobs: usize,
    /// Directory of the lock and of spilled transactions.
    pub data_dir: PathBuf,
}

/// The source's end of a flow.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// How to connect.
    pub connection: ConnectionSettings,
    /// The source's name in record keys, where one was chosen.
    pub id: Option<String>,
    /// What is published.
    pub publish: Publish,
    /// The replication slot.
    pub slot: String,
}

/// What the source publishes for a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Publish {
    /// Publications that an administrator made.
    Existing(Vec<String>),
    /// A publication of ours, of the tables that match the patterns; of all tables where there is no pattern.
    Ours {
        /// Its name.
        name: String,
        /// Patterns for `schema.table`.
        tables: Vec<String>,
    },
}

impl Publish {
    /// The names of the publications.
    pub fn names(&self) -> Vec<String> {
        match self {
            Publish::Existing(names) => names.clone(),
            Publish::Ours { name, .. } => vec![name.clone()],
        }
    }
}

/// The target's end of a flow.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// How to connect.
    pub connection: ConnectionSettings,
    /// Whether each commit waits for the target's disk.
    pub synchronous_commit: SynchronousCommit,
}

/// The name of a flow: at most 40 lower-case letters, digits and underscores, so that `pgonce_<flow>` is a slot's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowName(String);

impl FlowName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FlowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads the file and the flags of a command, and makes a flow of them.
///
/// # Errors
///
/// The first thing that is wrong, with its place. No secret is quoted.
pub fn load(options: &FlowOptions) -> Result<FlowConfig, ConfigError> {
    let path = options.config.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
    let file = match std::fs::read_to_string(path) {
        Ok(text) => file::read(path, &text, &|name| std::env::var(name).ok())?,
        // A flow can be described by flags alone, but a file that was asked for must be there.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && options.config.is_none() => Raw::default(),
        Err(error) => {
            let hint = "Name the configuration file with --config, or write one with `pgonce init`.";
            let what = format!("cannot read {}: {error}", path.display());
            return Err(ConfigError { place: None, what, hint: hint.to_owned() });
        }
    };
    FlowConfig::validate(&file.overridden_by(options.keys.0.clone()), &Environment::process())
}

impl FlowConfig {
    /// Gives raw values their meaning. `environment` completes the connection strings, as libpq does.
    ///
    /// # Errors
    ///
    /// The first value that is missing or has no meaning.
    pub fn validate(raw: &Raw, environment: &Environment) -> Result<FlowConfig, ConfigError> {
        let flow = flow_name(required(raw, key("flow"))?)?;
        let ours = format!("pgonce_{flow}");
        let source = connection(raw, key("source.url"), environment)?;
        let target = connection(raw, key("target.url"), environment)?;
        if source.endpoints == target.endpoints && source.dbname == target.dbname {
            let what = format!("source and target are the same database, {}", source.dbname);
            let hint = "A flow carries changes from one database to another: correct one of the two URLs.";
            return Err(ConfigError::at(&required(raw, key("target.url"))?.place, what, hint));
        }
        refuse_stream(raw)?;
        refuse_copy_schema(raw)?;
        let start = match choice(raw, key("start"))? {
            Some("go-forward") => StartMode::GoForward,
            _ => StartMode::Snapshot,
        };
        Ok(FlowConfig {
            source: SourceConfig {
                connection: source,
                id: raw.one(key("source.id")).map(source_id).transpose()?,
                publish: publish(raw, &ours)?,
                slot: raw.one(key("source.slot")).map(slot_name).transpose()?.unwrap_or(ours),
            },
            target: TargetConfig {
                connection: target,
                synchronous_commit: match choice(raw, key("target.synchronous_commit"))? {
                    Some("on") => SynchronousCommit::On,
                    _ => SynchronousCommit::Off,
                },
            },
            start,
            jobs: jobs(raw)?,
            data_dir: data_dir(raw, &flow)?,
            flow,
        })
    }
}

fn required<'a>(raw: &'a Raw, key: &Key) -> Result<&'a Given, ConfigError> {
    raw.one(key).ok_or_else(|| ConfigError {
        place: None,
        what: format!("`{}` is not set", key.path),
        hint: format!(
            "Give --{} {}, or the key `{}` in {DEFAULT_FILE} (`pgonce init` writes one, --config names another).",
            key.flag, key.value, key.path
        ),
    })
}

fn flow_name(given: &Given) -> Result<FlowName, ConfigError> {
    let well_formed = is_slot_word(&given.text) && given.text.len() <= 40;
    well_formed.then(|| FlowName(given.text.clone())).ok_or_else(|| {
        let what = format!("{} cannot name a flow", given.quoted());
        ConfigError::at(&given.place, what, "Use 1 to 40 lower-case letters, digits and underscores, as in `shop`.")
    })
}

fn slot_name(given: &Given) -> Result<String, ConfigError> {
    let well_formed = is_slot_word(&given.text) && given.text.len() <= 63;
    well_formed.then(|| given.text.clone()).ok_or_else(|| {
        let what = format!("{} cannot name a replication slot", given.quoted());
        ConfigError::at(&given.place, what, "PostgreSQL allows 1 to 63 lower-case letters, digits and underscores.")
    })
}

fn is_slot_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn source_id(given: &Given) -> Result<String, ConfigError> {
    // A record key is `id:commit:transaction:order`: a colon in the id would make it ambiguous.
    let well_formed = !given.text.is_empty() && !given.text.contains(|c: char| c == ':' || c.is_control());
    well_formed.then(|| given.text.clone()).ok_or_else(|| {
        let what = format!("{} cannot name a source", given.quoted());
        ConfigError::at(&given.place, what, "Use any text without colons and control characters.")
    })
}

fn connection(raw: &Raw, key: &Key, environment: &Environment) -> Result<ConnectionSettings, ConfigError> {
    let given = required(raw, key)?;
    ConnectionSettings::parse(&given.text, environment).map_err(|error| {
        let what = match error {
            // The key of a mistyped URI is the URI up to its first `=`, password and all.
            ParseConnectionError::UnknownKey { key, .. }
                if !key.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()) =>
            {
                "connection string: neither a URI nor keys and values".to_owned()
            }
            error => error.to_string(),
        };
        let hint = "Write a URI, postgresql://user@host:5432/database?sslmode=verify-full, or keys and values, \
                    host=... user=... dbname=...; a password is best left to ${VAR}, {file: PATH} or PGPASSWORD.";
        ConfigError::at(&given.place, format!("`{}`: {what}", key.path), hint)
    })
}

fn publish(raw: &Raw, ours: &str) -> Result<Publish, ConfigError> {
    let tables = raw.list(key("source.tables"));
    let publications = raw.list(key("source.publication"));
    if let (Some(_), Some(publication)) = (tables.first(), publications.first()) {
        let what = "`source.tables` and `source.publication` exclude each other";
        let hint = "A publication says itself which tables it holds. Name it to use one that exists; give \
                    `tables` to have one made.";
        return Err(ConfigError::at(&publication.place, what, hint));
    }
    if let Some(table) = tables.iter().find(|table| !is_table_pattern(&table.text)) {
        let what = format!("{} is not a pattern for tables", table.quoted());
        let hint = "Write schema.table, with * for any text: public.*, public.orders, *.audit_*.";
        return Err(ConfigError::at(&table.place, what, hint));
    }
    if let Some(publication) = publications.iter().find(|p| p.text.is_empty() || p.text.len() > 63) {
        let what = format!("{} cannot name a publication", publication.quoted());
        return Err(ConfigError::at(&publication.place, what, "A name has 1 to 63 bytes."));
    }
    let texts = |given: &[Given]| given.iter().map(|g| g.text.clone()).collect();
    Ok(match publications {
        [] => Publish::Ours { name: ours.to_owned(), tables: texts(tables) },
        _ => Publish::Existing(texts(publications)),
    })
}

fn is_table_pattern(text: &str) -> bool {
    text.split_once('.').is_some_and(|(schema, table)| !schema.is_empty() && !table.is_empty())
}

fn choice<'a>(raw: &'a Raw, key: &Key) -> Result<Option<&'a str>, ConfigError> {
    let (Some(given), keys::Kind::Choice(words)) = (raw.one(key), key.kind) else { return Ok(None) };
    if words.contains(&given.text.as_str()) {
        return Ok(Some(&given.text));
    }
    let what = format!("{} is not a value of `{}`", given.quoted(), key.path);
    Err(ConfigError::at(&given.place, what, format!("Allowed: {}.", key.allowed())))
}

fn refuse_stream(raw: &Raw) -> Result<(), ConfigError> {
    let Some(given) = raw.one(key("stream")) else { return Ok(()) };
    let what = match given.text.as_str() {
        "none" => return Ok(()),
        "local" => "there is no local log yet".to_owned(),
        // A broker's URL may hold a password.
        text if text.starts_with("nats://") => "there is no NATS stream yet".to_owned(),
        _ => "`stream` has no such value".to_owned(),
    };
    Err(ConfigError::at(&given.place, what, "Allowed: none (the slot feeds the target directly, effect-once)."))
}

fn refuse_copy_schema(raw: &Raw) -> Result<(), ConfigError> {
    let Some(given) = raw.one(key("copy_schema")) else { return Ok(()) };
    match given.text.as_str() {
        "false" => Ok(()),
        "true" => {
            let hint = "Create the tables first: pg_dump --schema-only --no-owner --no-privileges --no-publications \
                        --no-subscriptions \"$SOURCE_URL\" | psql \"$TARGET_URL\"";
            Err(ConfigError::at(&given.place, "pgonce cannot copy the schema yet", hint))
        }
        _ => {
            let what = format!("{} is not a value of `copy_schema`", given.quoted());
            Err(ConfigError::at(&given.place, what, "Allowed: true or false."))
        }
    }
}

fn jobs(raw: &Raw) -> Result<usize, ConfigError> {
    let Some(given) = raw.one(key("jobs")) else { return Ok(4) };
    given.text.parse().ok().filter(|jobs| (1..=1000).contains(jobs)).ok_or_else(|| {
        let what = format!("{} is not a number of jobs", given.quoted());
        ConfigError::at(&given.place, what, "Allowed: a whole number from 1 to 1000.")
    })
}

fn data_dir(raw: &Raw, flow: &FlowName) -> Result<PathBuf, ConfigError> {
    match raw.one(key("data_dir")) {
        None => Ok(Path::new("./pgonce-data").join(flow.as_str())),
        Some(given) if given.text.is_empty() => {
            Err(ConfigError::at(&given.place, "`data_dir` is empty", "Name a directory."))
        }
        Some(given) => Ok(PathBuf::from(&given.text)),
    }
}
