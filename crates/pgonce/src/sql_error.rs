//! Errors of SQL sessions as reasons, without their texts.

use crate::ident::quote_ident;
use crate::stop::{Reason, ServerFault, Side, Stop};

/// What a server's error says about itself, without message and detail.
pub fn fault_of(error: &tokio_postgres::error::DbError) -> ServerFault {
    ServerFault {
        sqlstate: error.code().code().to_owned(),
        schema: error.schema().map(str::to_owned),
        table: error.table().map(str::to_owned),
        column: error.column().map(str::to_owned),
        constraint: error.constraint().map(str::to_owned),
    }
}

/// Whether a server error with this SQLSTATE passes by itself: the one place that says so.
///
/// Connection exceptions (08), transaction rollback (40: deadlock, serialization), insufficient resources (53: disk
/// full, out of memory, too many connections), lock not available (55P03), operator intervention (57: shutdown,
/// starting up; but not a dropped database, 57P04) and system errors (58).
pub fn passes(sqlstate: &str) -> bool {
    match sqlstate {
        "57P04" => false,
        "55P03" => true,
        _ => matches!(sqlstate.get(..2), Some("08" | "40" | "53" | "57" | "58")),
    }
}

/// The reason behind an error of a SQL session that is not the fault of a transaction in the stream.
pub fn stop_from_sql(side: Side, error: &tokio_postgres::Error) -> Stop {
    let Some(db) = error.as_db_error() else {
        let what = if error.is_closed() { "connection lost".to_owned() } else { io_text(error) };
        return Reason::Connection { side, what }.into();
    };
    let fault = fault_of(db);
    if passes(&fault.sqlstate) {
        return Reason::Busy { side, fault }.into();
    }
    let denied = Denied::of(db);
    let on = denied.as_ref().map(|denied| format!(", {} {}", denied.kind, denied.name)).unwrap_or_default();
    let what = format!("{fault}{on} ({})", condition(&fault.sqlstate));
    let hint = match (fault.sqlstate.as_str(), denied.and_then(|denied| denied.grant(side))) {
        ("42501", Some(grant)) => format!("On the {side}: {grant} TO the {side}'s role; or use another role."),
        ("42501", None) => {
            format!("Grant the {side}'s role what is missing, or use another role; the server's log has the statement.")
        }
        (state, _) if is_encoding(state) => match side {
            Side::Source => SOURCE_ENCODING.to_owned(),
            Side::Target => TARGET_ENCODING.to_owned(),
        },
        ("25006", _) => format!(
            "The {side} is read-only, as a standby is: name its primary, or all its hosts, with \
             target_session_attrs=read-write."
        ),
        _ => format!("The {side}'s server log has the statement and the full message."),
    };
    match side {
        Side::Source => Reason::SourceNotReady { what, hint }.into(),
        Side::Target => Reason::TargetNotReady { what, hint }.into(),
    }
}

/// Whether this is a character, or bytes that are none, which one of the two databases' encodings lacks.
pub fn is_encoding(sqlstate: &str) -> bool {
    matches!(sqlstate, "22021" | "22P05")
}

/// What to do about a character that the target's encoding lacks.
pub const TARGET_ENCODING: &str = "The target database's encoding lacks a character (SHOW server_encoding; tells it, \
     on both sides). A target database made with ENCODING 'UTF8' takes every character, and a new flow copies into it. \
     To change the character on the source instead is enough before its row is copied, and not for a transaction that \
     has committed.";

/// What to do about bytes that the source's server cannot send as UTF8.
pub const SOURCE_ENCODING: &str = "The source database holds bytes that are no characters of its encoding, or, with \
     SQL_ASCII, none of UTF8. To see them, without a conversion: PGCLIENTENCODING=SQL_ASCII psql SOURCE. Correct the \
     rows on the source.";
/// What a role may not use. PostgreSQL names it in the message alone.
#[derive(PartialEq, Eq, Debug)]
struct Denied {
    /// `table`, `schema`, ...
    kind: String,
    /// Its name in the catalog.
    name: String,
}

impl Denied {
    fn of(error: &tokio_postgres::error::DbError) -> Option<Denied> {
        // The function in which the server checks rights, and writes nothing but names. A message that somebody raises
        // with the same code comes from another one, and may hold values.
        (error.routine() == Some("aclcheck_error")).then(|| Denied::parse(error.message())).flatten()
    }

    fn parse(message: &str) -> Option<Denied> {
        let object =
            message.strip_prefix("permission denied for ").or_else(|| message.strip_prefix("must be owner of "));
        let (kind, name) = object?.split_once(' ')?;
        let kinds = ["database", "function", "relation", "schema", "sequence", "table", "type", "view"];
        let known = kinds.contains(&kind) && !name.contains(char::is_control);
        known.then(|| Denied { kind: kind.to_owned(), name: name.to_owned() })
    }

    /// The beginning of the GRANT that is missing, for what is met here.
    fn grant(&self, side: Side) -> Option<String> {
        let rights = match (self.kind.as_str(), side) {
            ("table" | "view", Side::Source) => "SELECT",
            ("table", Side::Target) => "SELECT, INSERT, UPDATE, DELETE, TRUNCATE",
            ("schema", _) => "USAGE",
            ("sequence", Side::Source) => "SELECT",
            ("sequence", Side::Target) => "SELECT, UPDATE",
            ("database", _) => "CREATE",
            ("function", _) => "EXECUTE",
            _ => return None,
        };
        // A view is granted as a table is.
        let kind = if self.kind == "view" { "TABLE".to_owned() } else { self.kind.to_uppercase() };
        Some(format!("GRANT {rights} ON {kind} {}", quote_ident(&self.name)))
    }
}

/// PostgreSQL's name of an error condition, for the ones that people meet here.
pub fn condition(sqlstate: &str) -> &'static str {
    match sqlstate {
        "22001" => "string_data_right_truncation",
        "22003" => "numeric_value_out_of_range",
        "22021" => "character_not_in_repertoire",
        "22P02" => "invalid_text_representation",
        "22P05" => "untranslatable_character",
        "23502" => "not_null_violation",
        "23503" => "foreign_key_violation",
        "23505" => "unique_violation",
        "23514" => "check_violation",
        "23P01" => "exclusion_violation",
        "25006" => "read_only_sql_transaction",
        "40001" => "serialization_failure",
        "40P01" => "deadlock_detected",
        "42501" => "insufficient_privilege",
        "42703" => "undefined_column",
        "42704" => "undefined_object",
        "42P01" => "undefined_table",
        "42P07" => "duplicate_table",
        "42804" => "datatype_mismatch",
        "53100" => "disk_full",
        "53400" => "configuration_limit_exceeded",
        "55000" => "object_not_in_prerequisite_state",
        "55006" => "object_in_use",
        "55P03" => "lock_not_available",
        "57014" => "query_canceled",
        "57P01" => "admin_shutdown",
        "57P02" => "crash_shutdown",
        "57P03" => "cannot_connect_now",
        "58P01" => "undefined_file",
        _ => "see PostgreSQL's appendix \"Error Codes\"",
    }
}

/// Whether a value could not be converted to or from its SQL type. The cause is a text of the conversion's own, which
/// may quote the value. The driver tells this apart by nothing but its words.
pub(crate) fn is_conversion(error: &tokio_postgres::Error) -> bool {
    let words = error.to_string();
    words.starts_with("error serializing parameter") || words.starts_with("error deserializing column")
}

fn io_text(error: &tokio_postgres::Error) -> String {
    if is_conversion(error) {
        return "a value could not be converted to or from its SQL type".to_owned();
    }
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return io.to_string();
        }
        source = inner.source();
    }
    "the session failed on the client's side".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_denial_the_object_is_told_and_nothing_else() {
        let denied = |message| Denied::parse(message).map(|denied| (denied.kind, denied.name));
        let some = |kind: &str, name: &str| Some((kind.to_owned(), name.to_owned()));
        assert_eq!(denied("permission denied for table orders"), some("table", "orders"));
        assert_eq!(denied("permission denied for schema a b"), some("schema", "a b"));
        assert_eq!(denied("must be owner of sequence s"), some("sequence", "s"));
        assert_eq!(denied("permission denied for customer 4711"), None);
        assert_eq!(denied("keine Berechtigung für Tabelle t"), None);
        let grant = Denied { kind: "table".to_owned(), name: "O".to_owned() }.grant(Side::Source);
        assert_eq!(grant.as_deref(), Some("GRANT SELECT ON TABLE \"O\""));
    }
}
