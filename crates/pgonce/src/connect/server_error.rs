//! What the server says in an ErrorResponse or a NoticeResponse.

use std::fmt;

/// An error or notice from the server, with all its fields.
///
/// `Display` and `Debug` print the severity, the SQLSTATE and the names of objects. The texts
/// ([`message`](ServerError::message), `detail`, `hint`, `context`) may quote values of rows; they are shown only to
/// who asks for them by name.
///
/// See PostgreSQL, "Error and Notice Message Fields".
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerError {
    /// `ERROR`, `FATAL`, `PANIC`, or a notice's level. Not localised where the server is 9.6 or newer.
    pub severity: String,
    /// The SQLSTATE, five characters.
    pub sqlstate: String,
    /// The schema of the object concerned.
    pub schema: Option<String>,
    /// The table concerned.
    pub table: Option<String>,
    /// The column concerned.
    pub column: Option<String>,
    /// The data type concerned.
    pub datatype: Option<String>,
    /// The constraint concerned.
    pub constraint: Option<String>,
    /// Where in the query text the error lies, counted in characters from 1.
    pub position: Option<u32>,
    /// The server's source file.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The server's routine.
    pub routine: Option<String>,
    pub(super) message: String,
    pub(super) detail: Option<String>,
    pub(super) hint: Option<String>,
    pub(super) context: Option<String>,
}

impl ServerError {
    /// The text of the error. It may quote values of rows.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The text that explains the error. It may quote values of rows.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// The server's advice. It may quote values of rows.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The call stack of the server's functions, and internal queries. It may quote values of rows.
    pub fn context(&self) -> Option<&str> {
        self.context.as_deref()
    }

    /// The SQLSTATE's class, its first two characters; the whole of a shorter one.
    pub fn class(&self) -> &str {
        self.sqlstate.get(..2).unwrap_or(&self.sqlstate)
    }

    /// Reads the fields of an ErrorResponse or NoticeResponse. `None` if the body breaks the protocol.
    pub(crate) fn parse(mut body: &[u8]) -> Option<ServerError> {
        let mut error = ServerError::default();
        let mut localised = String::new();
        loop {
            let (&field, rest) = body.split_first()?;
            if field == 0 {
                break;
            }
            let end = rest.iter().position(|byte| *byte == 0)?;
            // Before the client encoding is set, the server may answer in any encoding.
            let text = String::from_utf8_lossy(&rest[..end]).into_owned();
            body = &rest[end + 1..];
            match field {
                b'S' => localised = text,
                b'V' => error.severity = text,
                b'C' => error.sqlstate = text,
                b'M' => error.message = text,
                b'D' => error.detail = Some(text),
                b'H' => error.hint = Some(text),
                b'P' => error.position = text.parse().ok(),
                b'W' => error.context = Some(text),
                b's' => error.schema = Some(text),
                b't' => error.table = Some(text),
                b'c' => error.column = Some(text),
                b'd' => error.datatype = Some(text),
                b'n' => error.constraint = Some(text),
                b'F' => error.file = Some(text),
                b'L' => error.line = text.parse().ok(),
                b'R' => error.routine = Some(text),
                // Clients should ignore fields they do not know; the internal query (q, p) is of no use here.
                _ => {}
            }
        }
        if error.severity.is_empty() {
            error.severity = localised;
        }
        Some(error)
    }
}

impl From<&tokio_postgres::error::DbError> for ServerError {
    fn from(error: &tokio_postgres::error::DbError) -> ServerError {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        ServerError {
            severity: error.severity().to_owned(),
            sqlstate: error.code().code().to_owned(),
            schema: owned(error.schema()),
            table: owned(error.table()),
            column: owned(error.column()),
            datatype: owned(error.datatype()),
            constraint: owned(error.constraint()),
            position: match error.position() {
                Some(tokio_postgres::error::ErrorPosition::Original(position)) => Some(*position),
                _ => None,
            },
            file: owned(error.file()),
            line: error.line(),
            routine: owned(error.routine()),
            message: error.message().to_owned(),
            detail: owned(error.detail()),
            hint: owned(error.hint()),
            context: owned(error.where_()),
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.severity, self.sqlstate)?;
        match (&self.schema, &self.table) {
            (Some(schema), Some(table)) => write!(f, ", table {schema}.{table}")?,
            (None, Some(table)) => write!(f, ", table {table}")?,
            (Some(schema), None) => write!(f, ", schema {schema}")?,
            (None, None) => {}
        }
        let names = [("column", &self.column), ("type", &self.datatype), ("constraint", &self.constraint)];
        for (what, name) in names {
            if let Some(name) = name {
                write!(f, ", {what} {name}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerError({self})")
    }
}

impl std::error::Error for ServerError {}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] =
        b"SFEHLER\0VERROR\0C23505\0Mduplicate key\0DKey (id)=(4711)\0spublic\0tshop\0nshop_pkey\0L12\0?x\0\0";

    #[test]
    fn every_field_is_read() {
        let error = ServerError::parse(BODY).unwrap();
        assert_eq!((error.severity.as_str(), error.sqlstate.as_str()), ("ERROR", "23505"));
        assert_eq!((error.message(), error.detail()), ("duplicate key", Some("Key (id)=(4711)")));
        assert_eq!((error.class(), error.line), ("23", Some(12)));
    }

    #[test]
    fn no_text_is_printed_unasked() {
        let error = ServerError::parse(BODY).unwrap();
        assert_eq!(error.to_string(), "ERROR 23505, table public.shop, constraint shop_pkey");
        assert!(!format!("{error:?}").contains("4711"));
    }

    #[test]
    fn a_broken_body_is_refused() {
        for end in 0..BODY.len() {
            assert_eq!(ServerError::parse(&BODY[..end]), None, "cut at {end}");
        }
    }
}
