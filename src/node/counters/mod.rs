//! What the agent counts as things happen: a table of metrics under upstream's names, and their series.
//!
//! Label values are words of this program's tables, but for those of probes, which name a Pod that lives here: they are forgotten
//! with it, and no metric ever has more than [`MOST`] series.

pub mod requests;
pub mod table;

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Series of one metric.
pub const MOST: usize = 4096;

/// A metric that is counted. Each is one row of a table, known by its name.
#[derive(Debug)]
pub struct Row {
    pub name: &'static str,
    pub help: &'static str,
    pub labels: &'static [&'static str],
    /// The upper bounds of a histogram's buckets, in the unit that its name ends with; none of a counter.
    pub buckets: &'static [f64],
}

/// What a series has come to.
#[derive(Clone, Debug, PartialEq)]
pub enum Count {
    Total(u64),
    Spread(Spread),
}

/// A histogram's observations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// By bucket, each without those below it; the last has what is above all bounds.
    pub buckets: Vec<u64>,
    pub sum: f64,
}

/// The series of one metric, by the values of its labels.
pub type Series = BTreeMap<Vec<String>, Count>;

#[derive(Debug, Default)]
pub struct Counters {
    series: Mutex<BTreeMap<&'static str, Series>>,
    /// When the loop that looks after all Pods last came round.
    turn: Mutex<Option<Instant>>,
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

    /// The same of what is no time.
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

    /// Forgets the series of these metrics whose labels are no more.
    pub fn forget(&self, rows: &[&'static Row], gone: impl Fn(&[String]) -> bool) {
        let mut series = self.lock();
        for row in rows {
            if let Some(of_row) = series.get_mut(row.name) {
                of_row.retain(|labels, _| !gone(labels));
            }
        }
    }

    /// The series of a metric as they are now. One without labels has one from the beginning.
    pub fn read(&self, row: &Row) -> Series {
        let mut found = self.lock().get(row.name).cloned().unwrap_or_default();
        if row.labels.is_empty() {
            found.entry(Vec::new()).or_insert_with(|| row.zero());
        }
        found
    }

    /// The loop that looks after all Pods has come round.
    pub fn turned(&self) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// How long ago that was, if it has begun.
    pub fn since_turn(&self) -> Option<Duration> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).map(|at| at.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Series>> {
        // Each change is of one number: what a panic left behind is sound.
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
