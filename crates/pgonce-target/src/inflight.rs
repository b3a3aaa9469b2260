//! Statements that have been sent and not yet answered.
//!
//! The client's connection stops reading while an answer is not taken, so nothing else may be awaited on it before
//! [`InFlight::drain`]: answers are taken in the order of the statements, which is also the order in which PostgreSQL
//! gives them.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use pgonce::connect::SqlConnection;
use pgonce::position::CommitLsn;
use tokio_postgres::{Error, Statement};

use crate::failure::Failure;
use crate::prepared::Prepared;
use crate::value::RawValue;

/// Statements in flight, oldest first, within bounds.
#[derive(Default)]
pub(crate) struct InFlight {
    sent: VecDeque<Sent>,
    bytes: usize,
}

const STATEMENTS_MAX: usize = 256;
const BYTES_MAX: usize = 8 << 20;

struct Sent {
    answer: Answer,
    bytes: usize,
    subject: Subject,
}

enum Answer {
    Awaited(Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>>),
    Here(Result<u64, Error>),
}

/// What a statement is about, and with it how many rows it must hit.
pub(crate) enum Subject {
    /// Rows of a transaction's change: exactly `rows`. `shown` is the key with its values, where it was asked for.
    Change { statement: Arc<Prepared>, commit: CommitLsn, xid: u32, rows: u64, shown: Option<Box<str>> },
    /// The flow's row under our epoch: none means that there is a newer writer.
    Flow,
    /// Anything else.
    Other,
}

impl InFlight {
    /// Sends a statement. Awaits answers only when too many are outstanding.
    pub(crate) async fn send(
        &mut self,
        connection: &Arc<SqlConnection>,
        statement: &Statement,
        values: Vec<RawValue>,
        subject: Subject,
    ) -> Result<(), Failure> {
        let bytes = values.iter().map(RawValue::len).sum();
        let (connection, statement) = (Arc::clone(connection), statement.clone());
        self.track(async move { connection.client.execute_raw(&statement, values).await }, bytes, subject).await
    }

    /// The same for a request that is made otherwise.
    pub(crate) async fn track(
        &mut self,
        request: impl Future<Output = Result<u64, Error>> + Send + 'static,
        bytes: usize,
        subject: Subject,
    ) -> Result<(), Failure> {
        let mut request: Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>> = Box::pin(request);
        // The first poll sends: requests leave in the order of the calls.
        let answer = match futures_util::poll!(request.as_mut()) {
            Poll::Ready(result) => Answer::Here(result),
            Poll::Pending => Answer::Awaited(request),
        };
        self.bytes += bytes;
        self.sent.push_back(Sent { answer, bytes, subject });
        if self.sent.len() >= STATEMENTS_MAX || self.bytes > BYTES_MAX {
            // Half of them at once: the two ends then wake each other less often.
            while self.sent.len() > STATEMENTS_MAX / 2 || self.bytes > BYTES_MAX / 2 {
                self.take_one().await?;
            }
        }
        Ok(())
    }

    /// Takes all answers that are outstanding, and fails with the first that is not as it should be.
    pub(crate) async fn drain(&mut self) -> Result<(), Failure> {
        while !self.sent.is_empty() {
            self.take_one().await?;
        }
        Ok(())
    }

    /// Forgets what is outstanding. The answers are dropped when they come.
    pub(crate) fn abandon(&mut self) {
        self.sent.clear();
        self.bytes = 0;
    }

    async fn take_one(&mut self) -> Result<(), Failure> {
        // Popped only when the answer is here: a future that is dropped meanwhile loses nothing.
        let Some(oldest) = self.sent.front_mut() else { return Ok(()) };
        if let Answer::Awaited(request) = &mut oldest.answer {
            let result = request.await;
            oldest.answer = Answer::Here(result);
        }
        let Some(Sent { answer: Answer::Here(result), bytes, subject }) = self.sent.pop_front() else { return Ok(()) };
        self.bytes -= bytes;
        subject.check(result)
    }
}

impl Subject {
    fn check(self, result: Result<u64, Error>) -> Result<(), Failure> {
        match (self, result) {
            (Subject::Change { statement, commit, xid, rows, shown }, Ok(found)) if found != rows => {
                Err(Failure::Rows {
                    commit,
                    xid,
                    operation: statement.operation,
                    table: statement.mapping.table.label(),
                    key: statement.key.iter().map(|c| statement.mapping.column(*c).name.clone()).collect(),
                    found,
                    shown,
                })
            }
            (Subject::Change { statement, .. }, Err(error)) => {
                let table = &statement.mapping.table;
                Err(Failure::Sql { error, table: Some((table.schema.clone(), table.name.clone())) })
            }
            (Subject::Flow, Ok(0)) => Err(Failure::Fenced),
            (_, Ok(_)) => Ok(()),
            (_, Err(error)) => Err(error.into()),
        }
    }
}
