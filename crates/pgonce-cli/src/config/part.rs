//! As much of a flow as is configured: for commands that can do with one of the two databases, or with none.

use pgonce::connect::{ConnectionSettings, Environment};
use pgonce::destination::StartMode;

use super::flags::FlowOptions;
use super::keys::key;
use super::raw::{ConfigError, Raw};
use super::{FlowName, Publish, boolean, choice, connection, flow_name, gather, jobs, publish, slot_name};

/// The publication of a flow that has no name yet.
pub const UNNAMED_PUBLICATION: &str = "pgonce_publication";

/// What is known of a flow.
#[derive(Clone, Debug)]
pub struct PartOfFlow {
    /// Its name.
    pub flow: Option<FlowName>,
    /// The source.
    pub source: Option<ConnectionSettings>,
    /// What is published.
    pub publish: Publish,
    /// The slot.
    pub slot: Option<String>,
    /// The target.
    pub target: Option<ConnectionSettings>,
    /// What an empty checkpoint means.
    pub start: StartMode,
    /// Whether the target's schema is created.
    pub copy_schema: bool,
    /// How many tables may be copied at a time.
    pub jobs: usize,
}

/// Reads what is there of the file, the variables and the flags.
///
/// # Errors
///
/// The first thing that is wrong, with its place. What is missing is not wrong.
pub fn load(options: &FlowOptions) -> Result<PartOfFlow, ConfigError> {
    PartOfFlow::validate(&gather(options)?.raw, &Environment::process())
}

impl PartOfFlow {
    fn validate(raw: &Raw, environment: &Environment) -> Result<PartOfFlow, ConfigError> {
        let flow = raw.one(key("flow")).map(flow_name).transpose()?;
        let ours = flow.as_ref().map(|flow| format!("pgonce_{flow}"));
        let side = |path| match raw.one(key(path)) {
            Some(_) => connection(raw, key(path), environment).map(Some),
            None => Ok(None),
        };
        Ok(PartOfFlow {
            source: side("source.url")?,
            publish: publish(raw, ours.as_deref().unwrap_or(UNNAMED_PUBLICATION))?,
            slot: raw.one(key("source.slot")).map(slot_name).transpose()?.or(ours),
            target: side("target.url")?,
            start: match choice(raw, key("start"))? {
                Some("go-forward") => StartMode::GoForward,
                _ => StartMode::Snapshot,
            },
            copy_schema: boolean(raw, key("copy_schema"))?,
            jobs: jobs(raw)?,
            flow,
        })
    }
}
