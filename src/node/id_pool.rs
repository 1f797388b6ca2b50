//! The host ids that a node reserves for Pods with user namespaces, and which of them are free. Pure.

use std::{ops::Range, str::FromStr};

use podwright_runtime::IdRange;

/// kubelet's `idsPerPod`: the number of ids of a plain Linux system.
pub const IDS_PER_POD: u32 = 1 << 16;

/// Host ids in the notation of `/etc/subuid`: `FIRST:COUNT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdPool {
    first: u32,
    count: u32,
}

impl IdPool {
    /// Twice as many ranges as Pods, so that a freed range is not reused at once.
    pub fn for_pods(max_pods: u32) -> IdPool {
        let count = max_pods.saturating_mul(2).clamp(1, MOST) * IDS_PER_POD;
        IdPool { first: IDS_PER_POD, count }
    }

    pub fn first(self) -> u32 {
        self.first
    }

    /// The number of Pods it has ids for.
    pub fn ranges(self) -> u32 {
        self.count / IDS_PER_POD
    }

    /// The indices of the ranges that overlap these ids.
    pub fn ranges_of(self, ids: &Ids) -> Range<u32> {
        let (first, size) = (u64::from(self.first), u64::from(IDS_PER_POD));
        let within = |id: u64| id.clamp(first, first + u64::from(self.count)) - first;
        // Invariant: there are no more than `MOST`.
        (within(ids.start) / size) as u32..within(ids.end).div_ceil(size) as u32
    }

    /// Whether a host id from a manifest is in the pool.
    pub fn has(self, id: i64) -> bool {
        (i64::from(self.first)..i64::from(self.first) + i64::from(self.count)).contains(&id)
    }

    /// The message that these ids are reserved.
    pub fn kept(self) -> String {
        let last = u64::from(self.first) + u64::from(self.count) - 1;
        format!("this node keeps ids {} to {last} for Pods with `hostUsers: false` (--userns-range)", self.first)
    }
}

/// The host's own ids precede the first range, and the last id is invalid: -1.
const MOST: u32 = (1 << 16) - 2;

/// Ids from here on are invalid.
const END: u64 = (MOST as u64 + 1) * IDS_PER_POD as u64;

/// Why a text is not a valid [`IdPool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdPoolError {
    #[error("expected FIRST:COUNT")]
    Malformed,
    #[error("the first id must be a multiple of {IDS_PER_POD}, and not 0")]
    First,
    #[error("the number of ids must be a multiple of {IDS_PER_POD}, and not 0")]
    Count,
    #[error("there are no ids above {last}", last = END - 1)]
    TooHigh,
}

impl FromStr for IdPool {
    type Err = IdPoolError;

    fn from_str(text: &str) -> Result<IdPool, IdPoolError> {
        let parts = text.split_once(':').and_then(|(first, count)| Some((first.parse().ok()?, count.parse().ok()?)));
        let (first, count): (u32, u32) = parts.ok_or(IdPoolError::Malformed)?;
        if first < IDS_PER_POD || !first.is_multiple_of(IDS_PER_POD) {
            return Err(IdPoolError::First);
        }
        if count == 0 || !count.is_multiple_of(IDS_PER_POD) {
            return Err(IdPoolError::Count);
        }
        if u64::from(first) + u64::from(count) > END {
            return Err(IdPoolError::TooHigh);
        }
        Ok(IdPool { first, count })
    }
}

/// A half-open range of ids in use.
pub type Ids = Range<u64>;

pub fn ids(range: &IdRange) -> Ids {
    u64::from(range.host)..u64::from(range.host) + u64::from(range.size)
}

fn overlap(a: &Ids, b: &Ids) -> bool {
    a.start < b.end && b.start < a.end
}

/// The same ids in the fewest ranges. Pure.
pub fn merged(mut all: Vec<Ids>) -> Vec<Ids> {
    all.sort_by_key(|ids| ids.start);
    all.into_iter().fold(Vec::new(), |mut merged: Vec<Ids>, ids| {
        match merged.last_mut() {
            Some(last) if ids.start <= last.end => last.end = last.end.max(ids.end),
            _ => merged.push(ids),
        }
        merged
    })
}

/// The first free range of the pool at or after the id `next`, wrapping around. Pure.
pub fn pick(pool: IdPool, taken: &[Ids], next: u32) -> Option<IdRange> {
    let slots = pool.ranges();
    let begin = next.saturating_sub(pool.first) / IDS_PER_POD;
    let ranges =
        (0..slots).map(|n| IdRange { host: pool.first + (begin + n) % slots * IDS_PER_POD, size: IDS_PER_POD });
    ranges.into_iter().find(|range| !taken.iter().any(|other| overlap(other, &ids(range))))
}

/// The smallest range that covers both.
pub fn hull(a: IdRange, b: IdRange) -> IdRange {
    let host = a.host.min(b.host);
    let end = a.host.saturating_add(a.size).max(b.host.saturating_add(b.size));
    IdRange { host, size: end - host }
}
