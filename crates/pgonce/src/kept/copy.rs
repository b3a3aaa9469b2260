//! The copy of tables into a program's sink.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use tokio::sync::Mutex;

use super::{Inner, Keeping};
use crate::copied::{CopiedRows, CopiedTable};
use crate::copy_text::{BadCopyText, RowBuffer};
use crate::destination::Loader;
use crate::piece::{Extent, Format, Piece, TableCopy};
use crate::position::Boundary;
use crate::sink::State;
use crate::snapshot::TableRows;
use crate::stop::{Reason, Stop};

/// Copies whole tables into the sink, in turn with whatever else is written.
#[derive(Debug)]
pub struct TableLoader<K> {
    pub(super) inner: Arc<Mutex<Inner<K>>>,
    /// The session that it belongs to.
    pub(super) session: u64,
}

impl<K: Keeping + 'static> Loader for TableLoader<K> {
    async fn load(
        &mut self,
        table: &TableCopy,
        piece: &Piece,
        boundary: Boundary,
        mut rows: TableRows,
    ) -> Result<u64, Stop> {
        if rows.format() != Format::Text || piece.extent != Extent::Whole {
            return Err(Stop::internal("a sink takes whole tables, as text"));
        }
        let columns = u16::try_from(table.relation.columns.len());
        let mut buffer = RowBuffer::new(columns.map_err(|_| Stop::internal("more columns than a table can have"))?);
        self.begin(table).await?;
        let bad = |e: BadCopyText| Stop::from(Reason::Protocol { what: format!("table {}: {e}", table.table) });
        let mut data = Bytes::new();
        loop {
            if data.is_empty() {
                match rows.next().await? {
                    Some(next) => data = next,
                    None => break,
                }
            }
            if buffer.is_full() {
                self.hand_over(table, &buffer, None).await?;
                buffer.clear();
            }
            let taken = buffer.push(&data).map_err(bad)?;
            data.advance(taken);
        }
        buffer.finish().map_err(bad)?;
        self.hand_over(table, &buffer, Some(boundary)).await?;
        Ok(rows.count())
    }
}

impl<K: Keeping> TableLoader<K> {
    /// The copy begins. That it has is stored before any row is: what is there may have to be removed then.
    async fn begin(&self, table: &TableCopy) -> Result<(), Stop> {
        let mut inner = self.inner.lock().await;
        let inner = &mut *inner;
        let mut session = inner.take_for(self.session)?;
        let copy = session.copy(table.table.oid)?;
        let anew = std::mem::replace(&mut copy.begun, true);
        let (records, version, replaces) = session.next_state(!anew)?;
        let state = State { flow: &inner.flow, records: &records, version, replaces };
        let (relation, key) = (&table.relation, table.table.key.as_slice());
        let begun = inner.keeping.begin_table(&CopiedTable { relation, key, anew, state }).await;
        inner.put_back(session, begun)
    }

    /// Hands rows over; the last ones with the boundary at which they were read.
    async fn hand_over(&self, table: &TableCopy, buffer: &RowBuffer, last: Option<Boundary>) -> Result<(), Stop> {
        let mut inner = self.inner.lock().await;
        let inner = &mut *inner;
        let mut session = inner.take_for(self.session)?;
        let oid = table.table.oid;
        if last.is_some() {
            session.copy(oid)?.boundary = last;
            session.scope.table(oid, last);
        }
        let (records, version, replaces) = session.next_state(last.is_some())?;
        let state = State { flow: &inner.flow, records: &records, version, replaces };
        let rows = CopiedRows { relation: &table.relation, buffer, last: last.is_some(), state };
        let taken = inner.keeping.rows(&rows).await;
        inner.put_back(session, taken)
    }
}
