//! pgonce's whole source end, from the slot to a sink that takes everything for durable at once.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use pgonce::connect::{ConnectionSettings, Environment};
use pgonce::destination::{Binding, Destination, IdlePoint, NoLoader, StartMode, Stored, Written, no_copy};
use pgonce::flow::SourceIdentity;
use pgonce::guarantee::EffectOnce;
use pgonce::pipeline::{Pipeline, PipelineOptions};
use pgonce::position::CommitLsn;
use pgonce::slot_source::{SlotSettings, SlotSource};
use pgonce::stop::Stop;
use pgonce::transaction::Transaction;
use tokio::sync::{mpsc, watch};

use super::{Drained, Task};

pub async fn run(task: &Task) -> Result<Drained> {
    let begun = Instant::now();
    let environment = Environment::default();
    let connection = ConnectionSettings::parse(&task.source, &environment).context("the source")?;
    let source = SlotSource::new(SlotSettings::new(connection, &task.slot, vec![task.publication.clone()]));
    let (reached, mut outcome) = mpsc::channel(1);
    let sink = NullSink { begun, marker: task.marker, drained: Drained::default(), reached };
    let mut pipeline = Pipeline::new(source, sink, PipelineOptions::new(StartMode::GoForward));
    // Nobody stops it: the process ends when the marker has come.
    let (_stop, stopped) = watch::channel(false);
    tokio::select! {
        ended = pipeline.run(stopped) => match ended {
            Ok(finished) => bail!("the pipeline ended before the marker came: {finished:?}"),
            Err(stop) => bail!("{stop}"),
        },
        drained = outcome.recv() => drained.context("no marker came"),
    }
}

#[derive(Debug)]
struct NullSink {
    begun: Instant,
    marker: CommitLsn,
    drained: Drained,
    reached: mpsc::Sender<Drained>,
}

impl Destination for NullSink {
    type Loader = NoLoader;

    type Mode = EffectOnce;

    fn takes_copy(&self) -> bool {
        false
    }

    async fn open(&mut self, _: &SourceIdentity) -> Result<Stored, Stop> {
        Ok(Stored::Nothing)
    }

    async fn bind(&mut self, _: &Binding) -> Result<(), Stop> {
        Ok(())
    }

    async fn write(&mut self, group: &[Transaction]) -> Result<Written, Stop> {
        let now = self.begun.elapsed().as_secs_f64();
        if self.drained.transactions == 0 {
            self.drained.first = now;
        }
        let mut written = Written::default();
        for transaction in group {
            written.applied += 1;
            written.changes += transaction.change_count();
            written.durable = Some(transaction.end());
            if transaction.commit() >= self.marker {
                self.drained.seconds = now;
            }
        }
        self.drained.transactions += written.applied;
        self.drained.changes += written.changes;
        if self.drained.seconds > 0.0 {
            // Full only if it was reached before.
            let _ = self.reached.try_send(self.drained);
        }
        Ok(written)
    }

    async fn persist_idle(&mut self, _: IdlePoint) -> Result<bool, Stop> {
        Ok(true)
    }

    fn loader(&mut self) -> Result<NoLoader, Stop> {
        Err(no_copy())
    }
}
