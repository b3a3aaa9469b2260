//! The receive path alone: a backlog is read from a slot and thrown away, by pgonce's source end and by an ideal
//! reader, each in a process of its own, from the same slot position.

use std::io::Read as _;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use super::catch_up::{BASE_SLOT, Backlog, PUBLICATION, RUN_MAX, RUN_SLOT};
use crate::contestant::{Contestant, Kind};
use crate::drain::{self, Drained, Reader};
use crate::measure::{Bench, Measured};
use crate::sample::Sampler;

/// Lets one contestant drain the backlog.
pub async fn run(bench: &Bench<'_>, backlog: &Backlog, contestant: Contestant) -> Result<Measured> {
    let Kind::Reader(reader) = contestant.kind else { bail!("{} reads no backlog", contestant.name()) };
    let databases = backlog.databases();
    databases.copy_slot(BASE_SLOT, RUN_SLOT).await?;
    let (source, target) = bench.stand.watchers(databases).await?;
    let mut command = drain::command(reader, &databases.source_url, RUN_SLOT, PUBLICATION, backlog.marker())?;
    let begun = Instant::now();
    let mut child = command.spawn().context("starting a reader")?;
    let sampler = Sampler::start(source, target, Some(child.id()));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > RUN_MAX {
            child.kill()?;
            child.wait()?;
            bail!("{} has not read everything after {} s", contestant.name(), RUN_MAX.as_secs());
        }
        tokio::time::sleep(super::catch_up::LOOK).await;
    };
    let mut extra = sampler.finish().await?;
    databases.drop_slot(RUN_SLOT).await?;
    ensure!(status.success(), "{} ({}) ended with {status}", contestant.name(), contestant.mode());
    let mut printed = Vec::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_end(&mut printed)?;
    }
    let drained = drain::outcome(&printed)?;
    check(backlog, contestant, &drained)?;
    extra.insert("first".to_owned(), drained.first);
    extra.insert("rows_per_s".to_owned(), (drained.changes as f64 / drained.seconds).round());
    // Nobody writes there.
    extra.retain(|name, _| !name.ends_with("_target"));
    Ok(Measured::new(contestant, drained.seconds, extra))
}

/// A time counts only if everything has come: the backlog, and the marker behind it.
fn check(backlog: &Backlog, contestant: Contestant, drained: &Drained) -> Result<()> {
    let (transactions, changes) = (backlog.transactions() + 1, backlog.changes() + 1);
    // Before 15 a transaction of which nothing is published comes too, as an empty one.
    let complete = drained.changes == changes && drained.transactions >= transactions;
    ensure!(
        complete,
        "{} ({}) read {} changes in {} transactions instead of {changes} in {transactions}",
        contestant.name(),
        contestant.mode(),
        drained.changes,
        drained.transactions
    );
    Ok(())
}

/// Who takes part.
pub fn lineup(ideal: bool, own: bool) -> Vec<Contestant> {
    let readers = Reader::IDEAL.into_iter().filter(|_| ideal).chain(own.then_some(Reader::Pgonce));
    readers.map(|reader| Contestant { kind: Kind::Reader(reader), synchronous: false }).collect()
}
