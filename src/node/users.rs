//! User namespaces: which ids of the host a Pod's users are, a range for each Pod that has users of its own.
//!
//! A range is taken before a Pod's sandbox is made, and kept in the sandbox's record and with the Pod's folder. When the Pod is gone, the
//! names of the folders that it has left say it, until the last file in them is removed: then it is free again.
//! Upstream: `pkg/kubelet/userns/userns_manager.go`; KEP-127.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::Path,
    str::FromStr,
    sync::{Mutex, MutexGuard},
};

use podwright_runtime::{IdRange, removals::Removals, sys::shared};

use super::volumes::users_in;

/// kubelet's `idsPerPod`: as many as a plain Linux has.
pub const IDS_PER_POD: u32 = 1 << 16;

/// Of each of the host's files of users so many bytes are read.
const LARGEST: usize = 16 << 20;

/// Ids of the host, as `/etc/subuid` has them: `FIRST:COUNT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdPool {
    first: u32,
    count: u32,
}

impl IdPool {
    /// Twice as many ranges as there are Pods: what one Pod had is not at once another's.
    pub fn for_pods(max_pods: u32) -> IdPool {
        let count = max_pods.saturating_mul(2).clamp(1, MOST) * IDS_PER_POD;
        IdPool { first: IDS_PER_POD, count }
    }
}

/// The host's own ids come before the first range, and the last id of all is nobody's: -1.
const MOST: u32 = (1 << 16) - 2;

impl FromStr for IdPool {
    type Err = String;

    fn from_str(text: &str) -> Result<IdPool, String> {
        let parts = text.split_once(':').and_then(|(first, count)| Some((first.parse().ok()?, count.parse().ok()?)));
        let (first, count): (u32, u32) = parts.ok_or("expected FIRST:COUNT")?;
        if first < IDS_PER_POD || !first.is_multiple_of(IDS_PER_POD) {
            return Err(format!("the first id must be a multiple of {IDS_PER_POD}, and not 0"));
        }
        if count == 0 || !count.is_multiple_of(IDS_PER_POD) {
            return Err(format!("the number of ids must be a multiple of {IDS_PER_POD}, and not 0"));
        }
        if u64::from(first) + u64::from(count) > u64::from(MOST + 1) * u64::from(IDS_PER_POD) {
            return Err(format!("there are no ids above {}", u64::from(MOST + 1) * u64::from(IDS_PER_POD) - 1));
        }
        Ok(IdPool { first, count })
    }
}

/// Ids from which on, and up to which, somebody has them.
pub type Ids = Range<u64>;

fn ids(range: &IdRange) -> Ids {
    u64::from(range.host)..u64::from(range.host) + u64::from(range.size)
}

fn overlap(a: &Ids, b: &Ids) -> bool {
    a.start < b.end && b.start < a.end
}

/// The first free range of the pool at or after the id `next`, and then from the pool's start. Pure.
pub fn pick(pool: IdPool, taken: &[Ids], next: u32) -> Option<IdRange> {
    let slots = pool.count / IDS_PER_POD;
    let begin = next.saturating_sub(pool.first) / IDS_PER_POD;
    let ranges =
        (0..slots).map(|n| IdRange { host: pool.first + (begin + n) % slots * IDS_PER_POD, size: IDS_PER_POD });
    ranges.into_iter().find(|range| !taken.iter().any(|other| overlap(other, &ids(range))))
}

/// What of `/etc/subuid` or `/etc/subgid` (`NAME:FIRST:COUNT`), or of `/etc/passwd` or `/etc/group` (`NAME:x:ID`), Pods must
/// not have. What cannot be read as one of these is nobody's. Pure.
pub fn taken_by_host(delegated: &str, users: &str) -> Vec<Ids> {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    let delegated = delegated.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(1);
        let (first, count) = (number(fields.next())?, number(fields.next())?);
        Some(first..first.saturating_add(count))
    });
    let users = users.lines().filter_map(|line| number(line.split(':').nth(2)).map(|id| id..id.saturating_add(1)));
    delegated.chain(users).filter(|ids| !ids.is_empty()).collect()
}

/// The ranges of a node's Pods.
#[derive(Debug)]
pub struct Users {
    pool: IdPool,
    /// Of people and daemons of the host.
    foreign: Vec<Ids>,
    held: Mutex<Held>,
    /// What Pods that are gone have left.
    removals: Removals,
}

#[derive(Debug, Default)]
struct Held {
    /// Pod uid -> its range.
    ranges: BTreeMap<String, IdRange>,
    /// Where to look for the next free one.
    next: u32,
}

impl Users {
    /// `living`: the ranges of all Pods that there are, with their uids.
    pub fn new(
        pool: IdPool,
        foreign: Vec<Ids>,
        living: impl IntoIterator<Item = (String, IdRange)>,
        removals: Removals,
    ) -> Users {
        let ranges: BTreeMap<String, IdRange> = living.into_iter().collect();
        let next = ranges.values().map(|range| range.host.saturating_add(range.size)).max().unwrap_or(pool.first);
        Users { pool, foreign, held: Mutex::new(Held { ranges, next }), removals }
    }

    /// As the host's files have people and daemons now. `pods`: the folder of all Pods' folders; `living`: as all sandboxes' records
    /// say. An earlier agent may have been killed when only the one or the other was there. It blocks.
    pub fn of_host(
        pool: IdPool,
        pods: &Path,
        living: impl IntoIterator<Item = (String, Option<IdRange>)>,
        removals: Removals,
    ) -> Users {
        let read = |path: &str| {
            let bytes = shared::read_linked(Path::new(path), LARGEST).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let users = taken_by_host(&read("/etc/subuid"), &read("/etc/passwd"));
        let groups = taken_by_host(&read("/etc/subgid"), &read("/etc/group"));
        let living: Vec<(String, Option<IdRange>)> = living.into_iter().collect();
        let noted = users_in(pods, |uid| living.iter().any(|(known, _)| known == uid));
        let living = living.into_iter().filter_map(|(uid, range)| Some((uid, range?)));
        Users::new(pool, [users, groups].concat(), noted.into_iter().chain(living), removals)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // What a panic left behind is sound: a range is noted at once or not at all.
        self.held.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The range of a Pod: the one that it has, or one that is free and of which nobody has left any files.
    /// Error: there is none, in upstream's words.
    pub fn take(&self, pod: &str) -> Result<IdRange, String> {
        let mut held = self.held();
        if let Some(range) = held.ranges.get(pod) {
            return Ok(*range);
        }
        // What is left of a Pod is known before its range is free.
        let left = self.removals.users();
        let taken = held.ranges.values().chain(&left).map(ids).chain(self.foreign.iter().cloned());
        let taken: Vec<Ids> = taken.collect();
        let found = pick(self.pool, &taken, held.next);
        let range = found.ok_or("create user namespace: could not find an empty slot to allocate a user namespace")?;
        held.next = range.host.saturating_add(range.size);
        held.ranges.insert(pod.to_owned(), range);
        Ok(range)
    }

    /// The Pod is gone; what it has left says that it is of these ids.
    pub fn free(&self, pod: &str) {
        self.held().ranges.remove(pod);
    }

    /// Frees what no Pod has of which `has_anything` is true.
    pub fn retain(&self, has_anything: impl Fn(&str) -> bool) {
        self.held().ranges.retain(|pod, _| has_anything(pod));
    }
}
