//! Opening a session of our own.

use super::error::ConnectError;
use super::pins::PINS;
use super::settings::ConnectionSettings;
use super::startup::{Parameters, Session, start};
use super::stream::open_one;
use super::tries::{Attempt, Question, Tries, within};

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
    first_session(settings, Parameters { extra: extra_params, pins: &[PINS] }).await
}

/// Opens a session on the first of the addresses that will do: the one way in, for every kind of connection.
pub(super) async fn first_session(
    settings: &ConnectionSettings,
    parameters: Parameters<'_>,
) -> Result<Session, ConnectError> {
    let mut tries = Tries::new(settings);
    loop {
        let error = match tries.attempt().await {
            Ok(attempt) => match session(settings, &attempt, parameters).await {
                Ok(session) => return Ok(session),
                Err(error) => error,
            },
            Err(error) => error,
        };
        tries.failed(error)?;
    }
}

async fn session(
    settings: &ConnectionSettings,
    attempt: &Attempt,
    parameters: Parameters<'_>,
) -> Result<Session, ConnectError> {
    let transport = open_one(settings, &attempt.endpoint, attempt.encryption).await?;
    let at = transport.at();
    let mut session = within(settings, &at, start(transport, settings, parameters)).await?;
    if let Some(question) = Question::about(attempt.attrs) {
        let answer = match question.answered_by(|name| session.parameters.get(name).map(String::as_str)) {
            Some(answer) => answer,
            None => within(settings, &at, session.first_value(question.sql)).await?.as_deref() == Some(question.wanted),
        };
        question.check(answer, &at)?;
    }
    Ok(session)
}
