//! Opening a session of our own.

use super::error::ConnectError;
use super::settings::ConnectionSettings;
use super::startup::{Session, startup};
use super::stream::open_one;
use super::tries::{Question, Tries, within};

/// Opens a session of its own on the first of the hosts that will do: connects, authenticates, waits until it is ready.
///
/// `extra_params` are startup parameters, such as `("replication", "database")`. See [`startup`].
///
/// # Errors
///
/// Why no session was started; with several hosts, [`ConnectError::Hosts`] says it of each.
pub async fn open_session(
    settings: &ConnectionSettings,
    extra_params: &[(&str, &str)],
) -> Result<Session, ConnectError> {
    let mut tries = Tries::new(settings);
    loop {
        match session(settings, &tries, extra_params).await {
            Ok(session) => return Ok(session),
            Err(error) => tries.failed(error)?,
        }
    }
}

async fn session(
    settings: &ConnectionSettings,
    tries: &Tries<'_>,
    extra_params: &[(&str, &str)],
) -> Result<Session, ConnectError> {
    let transport = open_one(settings, tries.endpoint(), tries.encryption()).await?;
    let at = transport.at();
    let mut session = within(settings, &at, startup(transport, settings, extra_params)).await?;
    if let Some(question) = Question::about(settings.target_session_attrs) {
        let answer = match question.answered_by(|name| session.parameters.get(name).map(String::as_str)) {
            Some(answer) => answer,
            None => within(settings, &at, session.first_value(question.sql)).await?.as_deref() == Some(question.wanted),
        };
        question.check(answer, &at)?;
    }
    Ok(session)
}
