//! The copy of tables into a program's sink.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use tokio::sync::Mutex;

use super::record::TableRecord;
use super::{Inner, Keeping, Session};
use crate::copied::{CopiedRows, CopiedTable};
use crate::copy_text::{BadCopyText, RowBuffer};
use crate::destination::Loader;
use crate::piece::{Extent, Format, Piece, Standing, TableCopy};
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

impl<K: Keeping> Inner<K> {
    /// The session, for what was made in session `number`.
    fn take_for(&mut self, number: u64) -> Result<Session, Stop> {
        match number == self.sessions {
            true => self.take(),
            false => Err(Stop::internal("the session that the copy belonged to is over")),
        }
    }
}

impl Session {
    /// Takes in what is to be copied. False: it is stored already.
    pub(super) fn plan(&mut self, tables: &[TableCopy], published: &str) -> Result<bool, Stop> {
        let Session { bound: Some((flow, _)), scope, .. } = self else {
            return Err(Stop::internal("planned before the flow was bound"));
        };
        let mut any = false;
        for copy in tables.iter().filter(|copy| copy.standing != Standing::Planned) {
            let oid = copy.table.oid;
            let before = flow.tables.iter().position(|table| table.oid == oid);
            let before = before.map(|at| flow.tables.swap_remove(at));
            flow.tables.push(TableRecord {
                oid,
                bytes: copy.pieces.iter().map(|piece| piece.bytes).sum(),
                begun: copy.replaces || before.is_some_and(|before| before.begun),
                boundary: None,
            });
            scope.table(oid, None);
            any = true;
        }
        if any {
            published.clone_into(&mut flow.binding.published);
        }
        Ok(any)
    }

    /// What is stored of a table that is copied.
    fn copy(&mut self, oid: u32) -> Result<&mut TableRecord, Stop> {
        let table = self.bound()?.0.tables.iter_mut().find(|table| table.oid == oid);
        table.ok_or_else(|| Stop::internal("a table is copied that was not planned"))
    }
}

/// The refusal of tables that would have to be copied.
pub(super) fn not_taken(tables: &[TableCopy]) -> Stop {
    let names: Vec<String> = tables.iter().map(|copy| copy.table.to_string()).collect();
    let what = format!("the sink takes no copy, and {} would have to be copied", names.join(", "));
    let hint = "Let the sink take a copy: Sink::takes_copy, begin_table and rows.".to_owned();
    Reason::Unsupported { what, hint }.into()
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
        begun.map_err(|e| inner.failed(e))?;
        inner.session = Some(session);
        Ok(())
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
            session.schemas.copied(&table.relation);
        }
        let (records, version, replaces) = session.next_state(last.is_some())?;
        let state = State { flow: &inner.flow, records: &records, version, replaces };
        let rows = CopiedRows { relation: &table.relation, buffer, last: last.is_some(), state };
        inner.keeping.rows(&rows).await.map_err(|e| inner.failed(e))?;
        inner.session = Some(session);
        Ok(())
    }
}
