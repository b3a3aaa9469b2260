//! The values of a connection string, completed from service file and environment.

use std::collections::BTreeMap;

use super::environment::Environment;
use super::keys::{KEYS, Key, Standing};
use super::origin::{Given, Origin};
use super::parse_error::ParseConnectionError;
use super::settings::FileChoice;
use super::{parse, service};

/// A value, and where it comes from.
pub(super) struct Value {
    key: &'static Key,
    text: String,
    origin: Origin,
}

impl Value {
    pub(super) fn invalid(&self, reason: impl Into<String>) -> ParseConnectionError {
        ParseConnectionError::InvalidValue { key: self.key.name, origin: self.origin.clone(), reason: reason.into() }
    }
}

/// The values of a connection string, completed from service file and environment: the string goes before the
/// service, and the service before the environment.
pub(super) struct Values(BTreeMap<&'static str, Value>);

impl Values {
    pub(super) fn gather(text: &str, environment: &Environment) -> Result<Values, ParseConnectionError> {
        let mut values = Values(BTreeMap::new());
        for (key, text) in parse::pairs(text)? {
            values.0.insert(key.name, Value { key, text, origin: Origin::String });
        }
        for name in ["service", "servicefile"] {
            values.complete(name, environment)?;
        }
        if let (Some(name), Some(value)) = (values.text("service"), values.0.get("service")) {
            let section = service::find(name, &value.origin, values.text("servicefile"), environment)?;
            for (key, text, line) in section.entries {
                let origin = Origin::Service { file: section.file.clone(), line };
                values.0.entry(key.name).or_insert(Value { key, text, origin });
            }
        }
        for key in KEYS {
            values.complete(key.name, environment)?;
        }
        values.refuse_what_is_not_supported()?;
        Ok(values)
    }

    /// Completes a key from the variable that stands in for it.
    fn complete(&mut self, name: &str, environment: &Environment) -> Result<(), ParseConnectionError> {
        let Some(key) = super::keys::find(name) else { return Ok(()) };
        let Some(variable) = key.variable else { return Ok(()) };
        let Some(found) = environment.get(variable) else { return Ok(()) };
        if self.0.contains_key(key.name) {
            return Ok(());
        }
        let mut value = Value { key, text: String::new(), origin: Origin::Variable(variable) };
        value.text = found.to_str().ok_or_else(|| value.invalid("it is not UTF-8"))?.to_owned();
        if value.text.contains('\0') {
            return Err(value.invalid("it holds a NUL character"));
        }
        self.0.insert(key.name, value);
        Ok(())
    }

    fn refuse_what_is_not_supported(&self) -> Result<(), ParseConnectionError> {
        for value in self.0.values() {
            let Standing::Refused(reason) = value.key.standing else { continue };
            // A variable set for other programs does no harm where it would not be looked at.
            let idle = matches!(value.origin, Origin::Variable(_)) && (value.text.is_empty() || value.key.is_idle());
            if !idle {
                let (key, origin) = (value.key.name, value.origin.clone());
                return Err(ParseConnectionError::UnsupportedKey { key, origin, reason });
            }
        }
        self.choice("gssencmode", (), &[("disable", ()), ("prefer", ())])?;
        self.choice("sslcompression", (), &[("0", ())])?;
        // What is spoken is 3.0, which every server speaks.
        self.choice("min_protocol_version", (), &[("3.0", ())])?;
        self.choice("max_protocol_version", (), &[("3.0", ()), ("3.2", ()), ("latest", ())])?;
        self.choice("client_encoding", (), &[("UTF8", ()), ("utf8", ()), ("UTF-8", ()), ("utf-8", ()), ("auto", ())])
    }

    /// What was given, for showing.
    pub(super) fn given(&self) -> Vec<Given> {
        let shown = |value: &Value| (value.key.name != "password").then(|| value.text.clone());
        let given = |value: &Value| Given { key: value.key.name, value: shown(value), origin: value.origin.clone() };
        self.0.values().filter(|value| value.key.standing == Standing::Accepted).map(given).collect()
    }

    /// What is wrong with a key that was given.
    pub(super) fn invalid(&self, key: &'static str, reason: impl Into<String>) -> ParseConnectionError {
        match self.0.get(key) {
            Some(value) => value.invalid(reason),
            None => ParseConnectionError::InvalidValue { key, origin: Origin::Default, reason: reason.into() },
        }
    }

    /// A file that was named, or the one of this name below the home directory.
    pub(super) fn file(&self, key: &str, environment: &Environment, default: &str) -> Option<FileChoice> {
        match self.text(key) {
            Some(path) => Some(FileChoice::Named(path.into())),
            None => environment.home().map(|home| FileChoice::Default(home.join(default))),
        }
    }

    /// The value of a key that means nothing when empty.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|value| value.text.as_str()).filter(|text| !text.is_empty())
    }

    pub(super) fn choice<T: Copy>(
        &self,
        key: &str,
        default: T,
        choices: &[(&str, T)],
    ) -> Result<T, ParseConnectionError> {
        let Some(value) = self.0.get(key) else { return Ok(default) };
        let chosen = choices.iter().find(|(name, _)| *name == value.text).map(|(_, chosen)| *chosen);
        chosen.ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            value.invalid(format!("accepted: {}", names.join(", ")))
        })
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<i32>, ParseConnectionError> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        value.text.trim().parse().map(Some).map_err(|_| value.invalid("it is not a whole number"))
    }

    /// A number of which 0 means the system's default.
    pub(super) fn positive(&self, key: &str) -> Result<Option<u32>, ParseConnectionError> {
        let Some(number) = self.number(key)? else { return Ok(None) };
        match u32::try_from(number) {
            Ok(number) => Ok(Some(number).filter(|number| *number > 0)),
            Err(_) => Err(self.0[key].invalid("it is negative")),
        }
    }
}
