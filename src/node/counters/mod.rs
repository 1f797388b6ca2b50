//! The agent's event counters: a table of metrics under upstream's names, and their series.
//!
//! Label values come from this program's tables, except those of probes, which name a Pod of this node: they are dropped with the
//! Pod. No metric ever has more than [`MOST`] series.

pub mod requests;
pub mod table;

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Maximum number of series of one metric.
pub const MOST: usize = 4096;

/// A counted metric: one row of a table, identified by its name.
#[derive(Debug)]
pub struct Row {
    pub name: &'static str,
    pub help: &'static str,
    pub labels: &'static [&'static str],
    /// The upper bounds of a histogram's buckets, in the unit of the metric's name; empty for a counter.
    pub buckets: &'static [f64],
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Count {
    Total(u64),
    Spread(Spread),
}

/// A histogram's observations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// Counts by bucket, not cumulative; the last holds values above all bounds.
    pub buckets: Vec<u64>,
    pub sum: f64,
}

/// The series of one metric, by the values of its labels.
pub type Series = BTreeMap<Vec<String>, Count>;

#[derive(Debug, Default)]
pub struct Counters {
    series: Mutex<BTreeMap<&'static str, Series>>,
    /// When the Pods' sync loop last ran.
    turn: Mutex<Option<Instant>>,
    shutdown: Mutex<ShutdownTimes>,
}

/// When the last graceful shutdown of the machine began and ended, in seconds since the epoch; 0: there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShutdownTimes {
    pub start: f64,
    pub end: f64,
}

impl Counters {
    pub fn add(&self, row: &'static Row, labels: &[&str]) {
        self.change(row, labels, |count| {
            if let Count::Total(total) = count {
                *total = total.saturating_add(1);
            }
        });
    }

    pub fn observe(&self, row: &'static Row, labels: &[&str], took: Duration) {
        self.measure(row, labels, took.as_secs_f64());
    }

    /// Records a value that is not a duration.
    pub fn measure(&self, row: &'static Row, labels: &[&str], value: f64) {
        self.change(row, labels, |count| {
            if let Count::Spread(spread) = count {
                let at = row.buckets.iter().position(|bound| value <= *bound).unwrap_or(row.buckets.len());
                spread.buckets[at] += 1;
                spread.sum += value;
            }
        });
    }

    fn change(&self, row: &'static Row, labels: &[&str], change: impl FnOnce(&mut Count)) {
        debug_assert_eq!(row.labels.len(), labels.len(), "{}", row.name);
        let labels: Vec<String> = labels.iter().map(|&value| value.to_owned()).collect();
        let mut series = self.lock();
        let of_row = series.entry(row.name).or_default();
        if of_row.len() < MOST || of_row.contains_key(&labels) {
            change(of_row.entry(labels).or_insert_with(|| row.zero()));
        }
    }

    /// Drops the series of these metrics whose labels are gone.
    pub fn forget(&self, rows: &[&'static Row], gone: impl Fn(&[String]) -> bool) {
        let mut series = self.lock();
        for row in rows {
            if let Some(of_row) = series.get_mut(row.name) {
                of_row.retain(|labels, _| !gone(labels));
            }
        }
    }

    /// The current series of a metric. One without labels has a series from the start.
    pub fn read(&self, row: &Row) -> Series {
        let mut found = self.lock().get(row.name).cloned().unwrap_or_default();
        if row.labels.is_empty() {
            found.entry(Vec::new()).or_insert_with(|| row.zero());
        }
        found
    }

    /// Records a run of the Pods' sync loop.
    pub fn turned(&self) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// How long ago the loop last ran, if it has started.
    pub fn since_turn(&self) -> Option<Duration> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).map(|at| at.elapsed())
    }

    /// Records the last graceful shutdown.
    pub fn set_shutdown(&self, times: ShutdownTimes) {
        *self.shutdown.lock().unwrap_or_else(PoisonError::into_inner) = times;
    }

    /// The last graceful shutdown.
    pub fn shutdown(&self) -> ShutdownTimes {
        *self.shutdown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Series>> {
        // Each change is a single number: the state is consistent even after a panic.
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Row {
    fn zero(&self) -> Count {
        match self.buckets.len() {
            0 => Count::Total(0),
            bounds => Count::Spread(Spread { buckets: vec![0; bounds + 1], sum: 0.0 }),
        }
    }
}
