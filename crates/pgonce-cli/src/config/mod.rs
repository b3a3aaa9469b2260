//! What a flow is configured with: flags, environment and file become raw values, raw values become a [`FlowConfig`].
//!
//! [`keys::KEYS`] is the one list of keys. [`flags`], [`variables`] and [`file`] read them, [`FlowConfig::validate`]
//! gives them their meaning; [`schema`] and [`sample`] describe them.

pub mod effective;
pub mod file;
pub mod flags;
pub mod keys;
pub mod kind;
pub mod part;
pub mod raw;
pub mod reference;
pub mod sample;
pub mod schema;
#[cfg(test)]
mod tests;
pub mod variables;

use std::fmt;
use std::path::{Path, PathBuf};

use pgonce::assemble::SpillSettings;
use pgonce::connect::{ConnectionSettings, Environment, ParseConnectionError};
use pgonce::destination::StartMode;
use pgonce::slot_source::{OriginFilter, Streaming};
use pgonce_target::{SynchronousCommit, TableMap};

use self::flags::{DEFAULT_FILE, FlowOptions};
use self::keys::{Key, key};
use self::raw::{ConfigError, Given, Raw};

/// A flow, ready to be opened.
#[derive(Clone, Debug)]
pub struct FlowConfig {
    /// The flow's name.
    pub flow: FlowName,
    /// Where changes come from.
    pub source: SourceConfig,
    /// Where changes go.
    pub target: TargetConfig,
    /// The target's names of tables.
    pub map: TableMap,
    /// What an empty checkpoint means.
    pub start: StartMode,
    /// Whether the target's schema is created, and how.
    pub copy_schema: Option<SchemaConfig>,
    /// How many pieces of tables may be copied at a time.
    pub jobs: usize,
    /// Directory of the lock and of spilled transactions.
    pub data_dir: PathBuf,
    /// What those may take.
    pub spill: SpillConfig,
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
    /// Which transactions are carried, by where they come from.
    pub origin: OriginFilter,
    /// Whether transactions are sent while they are in progress.
    pub streaming: Streaming,
}

/// What the transactions that are being received may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpillConfig {
    /// Bytes in memory.
    pub memory: usize,
    /// Bytes on disk.
    pub disk: u64,
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

/// How the target's schema is created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchemaConfig {
    /// Whether with owners and privileges.
    pub privileges: bool,
    /// The folder of `pg_dump`, where one is named.
    pub client_tools: Option<PathBuf>,
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

/// Reads the file, the environment and the flags of a command, and makes a flow of them.
///
/// # Errors
///
/// The first thing that is wrong, with its place. No secret is quoted.
pub fn load(options: &FlowOptions) -> Result<FlowConfig, ConfigError> {
    FlowConfig::validate(&gather(options)?.raw, &Environment::process())
}

/// What was given, and the file that was read for it.
#[derive(Debug)]
pub struct Gathered {
    /// The values.
    pub raw: Raw,
    /// The file, if one was read.
    pub file: Option<PathBuf>,
}

/// Gathers what was given: a flag wins over a variable, and a variable over the file.
///
/// # Errors
///
/// The file cannot be read, or something in it is no key or no value.
pub fn gather(options: &FlowOptions) -> Result<Gathered, ConfigError> {
    let named = options.named_file();
    let path = named.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    let lookup = |name: &str| std::env::var(name).ok();
    let (file, read) = match std::fs::read_to_string(&path) {
        Ok(text) => (file::read(&path, &text, &lookup)?, Some(path)),
        // A flow can be described without a file, but one that was asked for must be there.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => (Raw::default(), None),
        Err(error) => {
            let hint = "Name the configuration file with --config or PGONCE_CONFIG, or write one with `pgonce init`.";
            let what = format!("cannot read {}: {error}", path.display());
            return Err(ConfigError { place: None, what, hint: hint.to_owned() });
        }
    };
    let raw = file.overridden_by(variables::read(&lookup)).overridden_by(options.keys.0.clone());
    Ok(Gathered { raw, file: read })
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
                origin: match choice(raw, key("source.origin"))? {
                    Some("none") => OriginFilter::None,
                    _ => OriginFilter::Any,
                },
                streaming: match choice(raw, key("source.streaming"))? {
                    Some("off") => Streaming::Off,
                    _ => Streaming::On,
                },
            },
            target: TargetConfig {
                connection: target,
                synchronous_commit: match choice(raw, key("target.synchronous_commit"))? {
                    Some("on") => SynchronousCommit::On,
                    _ => SynchronousCommit::Off,
                },
            },
            map: table_map(raw)?,
            copy_schema: copy_schema(raw, start)?,
            start,
            jobs: jobs(raw)?,
            data_dir: data_dir(raw, &flow)?,
            spill: spill(raw)?,
            flow,
        })
    }
}

fn required<'a>(raw: &'a Raw, key: &Key) -> Result<&'a Given, ConfigError> {
    raw.one(key).ok_or_else(|| ConfigError {
        place: None,
        what: format!("`{}` is not set", key.path),
        hint: format!(
            "Give --{} {}, set {}, or the key `{}` in {DEFAULT_FILE} (`pgonce init` writes one, --config names \
             another).",
            key.flag,
            key.value,
            key.variable(),
            key.path
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

fn spill(raw: &Raw) -> Result<SpillConfig, ConfigError> {
    let usual = SpillSettings::default();
    Ok(SpillConfig {
        memory: size(raw, key("spill.memory"))?
            .map_or(usual.memory, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        disk: size(raw, key("spill.disk"))?.unwrap_or(usual.disk),
    })
}

/// So many bytes: a whole number with a unit as PostgreSQL writes it.
fn size(raw: &Raw, key: &Key) -> Result<Option<u64>, ConfigError> {
    let Some(given) = raw.one(key) else { return Ok(None) };
    let digits = given.text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = given.text.split_at(digits);
    let factor: Option<u64> = match unit {
        "kB" => Some(1 << 10),
        "MB" => Some(1 << 20),
        "GB" => Some(1 << 30),
        "TB" => Some(1 << 40),
        _ => None,
    };
    let bytes = number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    bytes.map(Some).ok_or_else(|| {
        let what = format!("{} is not a value of `{}`", given.quoted(), key.path);
        ConfigError::at(&given.place, what, format!("Allowed: {}.", key.allowed()))
    })
}

fn table_map(raw: &Raw) -> Result<TableMap, ConfigError> {
    let mut map = TableMap::default();
    for given in raw.list(key("map")) {
        map.add(&given.text).map_err(|error| {
            let what = if given.shown { error.what } else { "the entry has no meaning".to_owned() };
            ConfigError::at(&given.place, format!("`map`: {what}"), error.hint)
        })?;
    }
    Ok(map)
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

fn boolean(raw: &Raw, key: &Key) -> Result<bool, ConfigError> {
    let Some(given) = raw.one(key) else { return Ok(false) };
    given.text.parse().map_err(|_| {
        let what = format!("{} is not a value of `{}`", given.quoted(), key.path);
        ConfigError::at(&given.place, what, "Allowed: true or false.")
    })
}

fn copy_schema(raw: &Raw, start: StartMode) -> Result<Option<SchemaConfig>, ConfigError> {
    let (asked, privileges) = (key("copy_schema"), key("schema_privileges"));
    let with_privileges = boolean(raw, privileges)?;
    if !boolean(raw, asked)? {
        return match raw.one(privileges) {
            Some(given) if with_privileges => {
                let what = "`schema_privileges` is true, and `copy_schema` is not: no schema is copied";
                Err(ConfigError::at(&given.place, what, "Set copy_schema: true too, or leave schema_privileges out."))
            }
            _ => Ok(None),
        };
    }
    if let (Some(given), StartMode::GoForward) = (raw.one(asked), start) {
        let what = "`copy_schema` creates tables for rows that are copied, and `start: go-forward` copies none";
        let hint = "A flow that goes forward expects a target that is a copy already: leave copy_schema out, or use \
                    start: snapshot.";
        return Err(ConfigError::at(&given.place, what, hint));
    }
    if let (Some(given), Some(map)) = (raw.one(asked), raw.one(key("map"))) {
        let what =
            format!("`copy_schema` creates tables under the source's names, and `map` ({}) has others", map.place);
        let hint = "Create the mapped tables by hand (pg_dump --schema-only writes their definitions) and leave \
                    copy_schema out; or leave map out.";
        return Err(ConfigError::at(&given.place, what, hint));
    }
    let client_tools = raw.one(key("client_tools")).map(|given| match given.text.is_empty() {
        true => Err(ConfigError::at(&given.place, "`client_tools` is empty", "Name the folder that holds pg_dump.")),
        false => Ok(PathBuf::from(&given.text)),
    });
    Ok(Some(SchemaConfig { privileges: with_privileges, client_tools: client_tools.transpose()? }))
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
