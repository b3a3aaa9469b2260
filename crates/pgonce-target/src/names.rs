//! Values of the type `name`. Its input function cuts what is longer than 63 bytes, and says nothing: letters that
//! take one byte at the source may take two here.

use pgonce::pgoutput::Column;
use pgonce::position::CommitLsn;
use pgonce::published::PublishedTable;
use pgonce::stop::{Reason, ServerFault, Stop};

use crate::copy_target::CopyTarget;
use crate::schema::Mapping;

/// `NAMEDATALEN - 1`.
const LENGTH_MAX: usize = 63;

/// Whether a value fits into the type `name`. `letters`: every letter takes one byte in the target's encoding.
pub(crate) fn fits(value: &[u8], letters: bool) -> bool {
    let length = if letters { String::from_utf8_lossy(value).chars().count() } else { value.len() };
    length <= LENGTH_MAX
}

impl Mapping {
    /// Whether a value of a column of the relation would be cut.
    pub(crate) fn cuts(&self, column: usize, value: Column<'_>) -> bool {
        let Column::Text(value) = value else { return false };
        value.len() > LENGTH_MAX && self.column(column).is_name && !fits(value, self.table.letters)
    }

    /// The reason for not writing such a value.
    pub(crate) fn would_cut(&self, column: usize, commit: CommitLsn, xid: u32) -> Stop {
        let fault = ServerFault {
            sqlstate: "22001".to_owned(),
            schema: Some(self.table.schema.clone()),
            table: Some(self.table.name.clone()),
            column: Some(self.column(column).name.clone()),
            constraint: None,
        };
        Reason::TransactionFailed { commit, xid, fault }.into()
    }
}

/// Refuses to copy a table that has such values into columns that would cut them.
pub(crate) fn refuse_long_names(table: &PublishedTable, target: &CopyTarget, long: &[String]) -> Result<(), Stop> {
    let Some(name) = long.iter().find(|name| target.is_name(name)) else { return Ok(()) };
    Err(Reason::SchemaMismatch {
        table: table.to_string(),
        what: format!(
            "column {name:?} has values of more than 63 bytes in the target's encoding, and the type name would cut \
             them (SQLSTATE 22001)"
        ),
        hint: format!(
            "On the target: ALTER TABLE {} ALTER COLUMN {} TYPE varchar(63);",
            target.quoted,
            pgonce::ident::quote_ident(name)
        ),
    }
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c6_a_name_has_63_bytes_in_the_targets_encoding() {
        let accented = "é".repeat(32);
        assert!(fits(b"", false) && fits(&[b'n'; 63], false) && !fits(&[b'n'; 64], false));
        assert!(!fits(accented.as_bytes(), false) && fits(accented.as_bytes(), true));
        assert!(!fits("é".repeat(64).as_bytes(), true));
    }
}
