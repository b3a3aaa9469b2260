//! What the assembler makes of a stream, in the words of the model.
#![allow(dead_code, reason = "each program uses its own part")]

use pgonce::assemble::Assembled;
use pgonce::pgoutput::encode::{RelationIdsBuf, encoded};
use pgonce::pgoutput::{LogicalMessageBody, Message, TruncateOptions};
use pgonce::transaction::{Change, Transaction};

use super::model::Committed;

/// The transaction that a message has completed.
pub fn transaction(assembled: Assembled<'_>) -> Option<Transaction> {
    match assembled {
        Assembled::Transaction(transaction) => Some(transaction),
        Assembled::Settled { transaction, .. } => transaction,
        _ => None,
    }
}

/// The transaction as the model has it, with the changes up to the first that cannot be read, and whether that was all.
pub fn committed(transaction: &Transaction) -> (Committed, bool) {
    let (mut changes, mut pass) = (Vec::new(), transaction.changes());
    let whole = loop {
        match pass.next() {
            Ok(Some(change)) => changes.push(message(&change)),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    let committed = Committed {
        xid: transaction.xid(),
        commit: transaction.commit().0.0,
        end: transaction.end().0.0,
        origin: transaction.origin().map(str::to_owned),
        changes,
    };
    (committed, whole)
}

fn message(change: &Change<'_>) -> Vec<u8> {
    let stream_xid = None;
    match *change {
        Change::Insert { relation, new } => encoded(&Message::Insert { stream_xid, relation: relation.oid, new }),
        Change::Update { relation, old, new } => {
            encoded(&Message::Update { stream_xid, relation: relation.oid, old, new })
        }
        Change::Delete { relation, old } => encoded(&Message::Delete { stream_xid, relation: relation.oid, old }),
        Change::Truncate { relations, cascade, restart_identity } => {
            let oids: RelationIdsBuf = relations.iter().map(|relation| relation.oid).collect();
            let options = TruncateOptions { cascade, restart_identity };
            encoded(&Message::Truncate { stream_xid, options, relations: oids.relations() })
        }
        Change::Message { lsn, prefix, content } => encoded(&Message::LogicalMessage(LogicalMessageBody {
            stream_xid,
            transactional: true,
            lsn,
            prefix,
            content,
        })),
    }
}
