//! Plans: what a reconcile wants done, as a value. The driver executes it.

use std::time::Duration;

use super::{
    metadata_informers::Item,
    short_lives::Maker,
    work::Work,
    write::{Note, Write},
};
use podwright_api::Request;

/// What to do: emit the notes, then do the work and the report, then (unless woken before) requeue.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Reads that must come first. Nothing else is done: the key is reconciled again at once, with the responses.
    pub live_reads: Vec<Request>,
    /// Events that do not depend on a write.
    pub notes: Vec<Note>,
    /// The report, usually a status: it is written whatever the result of the work.
    pub report: Option<Write>,
    /// Written instead if none of the Pods that it was to wait for may be created.
    pub report_if_held: Option<Write>,
    pub work: Work,
    /// The owner of the Pods in its work: these are created with growing back-off if they fail at once.
    pub maker: Option<Maker>,
    /// Where this plan stops, if it is part of a round: the next one follows at once, whatever was refused, and starts after it.
    /// Refused writes are retried after the round.
    pub left_off: Option<Item>,
    pub requeue_after: Option<Duration>,
}

impl Plan {
    /// Reads from the server first.
    pub fn ask(question: Request) -> Plan {
        Plan { live_reads: vec![question], ..Plan::default() }
    }

    /// Adds writes for after all previous work has succeeded.
    pub fn then(&mut self, writes: Vec<Write>) {
        self.work = std::mem::take(&mut self.work).then(writes);
    }

    /// Requeues after `delay` at the latest.
    pub fn requeue(&mut self, delay: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(delay, |other| other.min(delay)));
    }

    /// The Pods of this plan are not created, and may be after `delay`.
    pub fn hold(&mut self, delay: Duration) {
        self.report = self.report.take().or(self.report_if_held.take());
        self.requeue(delay);
    }

    pub fn is_empty(&self) -> bool {
        self.writes().next().is_none() && self.notes.is_empty()
    }

    /// All writes: the report beside the work.
    pub fn into_work(self) -> Work {
        Work::from(self.report).beside(self.work)
    }

    /// All writes, in order.
    pub fn writes(&self) -> impl Iterator<Item = &Write> {
        self.report.iter().chain(self.work.writes())
    }
}
