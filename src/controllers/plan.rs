//! Plans: what a reconciler wants done, as a value. The driver carries it out.

use std::time::Duration;

use super::{
    metadata_informers::Item,
    short_lives::Maker,
    work::Work,
    write::{Note, Write},
};
use podwright_api::Request;

/// What to do: tell the notes, then do the work and report beside it, then (unless woken before) come back.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What has to be known first. Nothing else is done: the key is reconciled again at once, with the answers.
    pub live_reads: Vec<Request>,
    /// Events that depend on no write.
    pub notes: Vec<Note>,
    /// What is told about it all, usually a status: it is written whatever becomes of the work.
    pub report: Option<Write>,
    /// What is told in its place where none of the Pods may be made that it was to wait for.
    pub report_if_held: Option<Write>,
    pub work: Work,
    /// Who makes the Pods among its work: they are made ever more slowly if they end right after.
    pub maker: Option<Maker>,
    /// Where this plan leaves off, if it is one of a round of several: the next one comes at once, whatever was refused, and begins
    /// behind it. What was refused in a round is tried again after the round.
    pub left_off: Option<Item>,
    pub requeue_after: Option<Duration>,
}

impl Plan {
    /// Asks the server first.
    pub fn ask(question: Request) -> Plan {
        Plan { live_reads: vec![question], ..Plan::default() }
    }

    /// Does these when all the work so far has succeeded.
    pub fn then(&mut self, writes: Vec<Write>) {
        self.work = std::mem::take(&mut self.work).then(writes);
    }

    /// Comes back at the latest after `delay`.
    pub fn requeue(&mut self, delay: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(delay, |other| other.min(delay)));
    }

    /// The Pods that were to be made are not, and may be after `delay`.
    pub fn hold(&mut self, delay: Duration) {
        self.report = self.report.take().or(self.report_if_held.take());
        self.requeue(delay);
    }

    pub fn is_empty(&self) -> bool {
        self.writes().next().is_none() && self.notes.is_empty()
    }

    /// All that is written: the report beside the work.
    pub fn into_work(self) -> Work {
        Work::from(self.report).beside(self.work)
    }

    /// All writes, in order.
    pub fn writes(&self) -> impl Iterator<Item = &Write> {
        self.report.iter().chain(self.work.writes())
    }
}
