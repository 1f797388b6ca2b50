//! User namespaces: the host ids of Pods' users, one range for each Pod with a user namespace.
//!
//! A range is allocated before a Pod's sandbox is created, and stored in the sandbox's record and in a note in the Pod's folder, on
//! disk before the ids are used. When the Pod has ended, or is gone, the names of its remaining folders record the range until
//! their last file is removed: then it is free again. The note of an ended Pod that still exists then says that it has none; the
//! sandbox's record is unchanged, and the note takes precedence.
//!
//! A namespace may have at most half of the usable ranges that the others leave, so one is always left for a newcomer. By default
//! there are twice as many ranges as Pods, unless an operator configures otherwise or other users of the host have some: then a
//! namespace with only running Pods is never refused.
//!
//! If neither can be read, the owners of the Pod's files tell which ids are in use, but never which are the Pod's: another process
//! may have created the files. Until they have been scanned, no id is free. The result is also stored in the Pod's folder, once the
//! Pod has its own range: its next note covers at least its files.
//!
//! Upstream: `pkg/kubelet/userns/userns_manager.go`; KEP-127.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use podwright_runtime::{
    IdRange,
    removals::{self, Owner, Removals},
    sys::{
        ids::{self as files, HOSTS},
        shared,
    },
};
use tokio::time::Instant;

use super::{
    disk,
    id_pool::{IDS_PER_POD, IdPool, Ids, hull, ids, merged, pick},
    volumes::owner::owners_of,
};

/// Maximum bytes read of each of the host's user databases.
const LARGEST: usize = 16 << 20;
/// The delay before an incomplete scan is repeated, increasing each time.
const SOON: Duration = Duration::from_secs(10);
const SELDOM: Duration = Duration::from_secs(600);
/// Its time limit, for all Pods' files together: only Pods that want their own ids wait for it.
const LONG: Duration = Duration::from_secs(600);
/// How much later than its limit a scan may end.
const LATE: Duration = Duration::from_secs(1);

/// No range is available for a Pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFreeRange {
    /// In upstream's words.
    #[error("create user namespace: could not find an empty slot to allocate a user namespace")]
    All,
    #[error(
        "create user namespace: namespace {namespace} has {has} of this node's {all} ranges of ids, as many as others leave it; \
         what its Pods have left on disk counts until it is removed"
    )]
    Share { namespace: String, has: usize, all: usize },
}

/// The ids of `/etc/subuid` or `/etc/subgid` (`NAME:FIRST:COUNT`), and of `/etc/passwd` or `/etc/group` (`NAME:x:ID`), which Pods
/// must not have. Malformed lines are ignored. Pure.
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
    /// Ids of people and daemons of the host.
    foreign: Vec<Ids>,
    held: Mutex<Held>,
    /// The folder of all Pods' folders.
    pods: PathBuf,
    /// What removed Pods have left.
    removals: Removals,
}

#[derive(Debug, Default)]
struct Held {
    /// Pod uid -> its range.
    ranges: BTreeMap<String, IdRange>,
    /// Pod uid -> the namespace of a Pod with a range, if known.
    namespaces: BTreeMap<String, String>,
    /// Pod uid -> the ids of its files, as far as scanned. No Pod gets these, including this one.
    found: BTreeMap<String, Found>,
    /// Where to search for the next free one.
    next: u32,
}

impl Held {
    /// Whether a namespace may have one more range, counting those still being removed. Ranges that cannot be allocated, because
    /// they contain `foreign` ids or ids found in files, are not available for sharing.
    fn admit(&self, pool: IdPool, foreign: &[Ids], left: &[Owner], namespace: &str) -> Result<(), NoFreeRange> {
        let found = self.found.values().map(|found| ids(&found.users()));
        let barred: BTreeSet<u32> = foreign.iter().cloned().chain(found).flat_map(|ids| pool.ranges_of(&ids)).collect();
        let of_pods = self.ranges.iter().map(|(pod, range)| (self.namespaces.get(pod).map_or("", |n| n), *range));
        let of_left = left.iter().filter_map(|owner| Some((owner.name(), owner.users()?)));
        let numbered =
            of_pods.chain(of_left).flat_map(|(of, range)| pool.ranges_of(&ids(&range)).map(move |n| (of, n)));
        // What a living Pod has left belongs to its own range.
        let held: BTreeSet<(&str, u32)> = numbered.filter(|(_, n)| !barred.contains(n)).collect();
        let has = held.iter().filter(|(of, _)| *of == namespace).count();
        let all = pool.ranges() as usize - barred.len();
        let most = all.saturating_sub(held.len() - has).div_ceil(2);
        if has < most { Ok(()) } else { Err(NoFreeRange::Share { namespace: namespace.to_owned(), has, all }) }
    }
}

/// The ids of a Pod's files.
#[derive(Clone, Copy, Debug)]
enum Found {
    Unseen,
    Seen(IdRange),
}

impl Found {
    fn users(&self) -> IdRange {
        match self {
            Found::Unseen => removals::ALL,
            Found::Seen(users) => *users,
        }
    }
}

impl Users {
    /// `living`: the ranges of all existing Pods, by uid.
    pub fn new(
        pool: IdPool,
        foreign: Vec<Ids>,
        living: impl IntoIterator<Item = (String, IdRange)>,
        removals: Removals,
    ) -> Users {
        // A Pod is never given a range of another size.
        let (ranges, odd): (BTreeMap<_, _>, BTreeMap<_, _>) =
            living.into_iter().partition(|(_, range): &(String, IdRange)| range.size == IDS_PER_POD);
        let found = odd.into_iter().map(|(pod, range)| (pod, Found::Seen(range))).collect();
        let next = ranges.values().map(|range| range.host.saturating_add(range.size)).max().unwrap_or(pool.first());
        Users {
            pool,
            foreign: merged(foreign),
            held: Mutex::new(Held { ranges, found, next, ..Held::default() }),
            pods: PathBuf::new(),
            removals,
        }
    }

    /// Reads the host's user databases. `pods`: the folder of all Pods' folders; `living`: the ranges in all sandboxes' records. An
    /// earlier agent may have been killed after writing only one of both. Pods with neither must be [scanned](Users::look): no
    /// range is allocated before. Blocks.
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
        let known: HashSet<&String> = living.iter().map(|(uid, _)| uid).collect();
        let owners = owners_of(pods);
        // An ended Pod has released its range, whatever its sandbox was created with.
        let has_none = |uid: &str| matches!(owners.get(uid), Some(Some(note)) if note.owner.users().is_none());
        let namespaces: Vec<(String, String)> = owners
            .iter()
            .filter_map(|(uid, note)| Some((uid.clone(), note.as_ref()?.owner.name().to_owned())))
            .collect();
        let unsaid = owners.iter().filter(|(uid, owner)| owner.is_none() && !known.contains(uid));
        let unseen = unsaid.map(|(uid, _)| (uid.clone(), Found::Unseen));
        let seen = owners.iter().filter_map(|(uid, note)| Some((uid.clone(), Found::Seen(note.as_ref()?.found?))));
        let found: Vec<_> = unseen.chain(seen).collect();
        let noted = owners.iter().filter_map(|(uid, note)| Some((uid.clone(), note.as_ref()?.owner.users()?)));
        let living = living.iter().filter(|(uid, _)| !has_none(uid));
        let living = living.filter_map(|(uid, range)| Some((uid.clone(), (*range)?)));
        let own = Users::new(pool, [users, groups].concat(), noted.chain(living), removals);
        own.held().found.extend(found);
        own.held().namespaces.extend(namespaces);
        Users { pods: pods.to_owned(), ..own }
    }

    /// Scans the files of Pods with unknown ids, within a total time limit.
    pub async fn look(&self, within: Duration) {
        let (end, unseen) = (Instant::now() + within, self.unseen());
        for (n, uid) in unseen.iter().enumerate() {
            let now = Instant::now();
            if now > end {
                return;
            }
            // Time that one does not need is left to the others.
            let share = (end - now) / u32::try_from(unseen.len() - n).unwrap_or(u32::MAX);
            let folder = self.pods.join(uid);
            let look = disk::work(move || files::find(&folder, HOSTS, share));
            match tokio::time::timeout_at(now + share + LATE, look).await {
                Ok(Ok(found)) => self.seen(uid, found),
                Ok(Err(why)) => tracing::warn!(uid, why, "failed to read the owners of a Pod's files"),
                Err(_) => tracing::warn!(uid, "reading the owners of a Pod's files takes long"),
            }
        }
    }

    /// Repeats the scan until all Pods are complete.
    pub async fn look_on(&self) {
        let mut pause = SOON;
        while !self.unseen().is_empty() {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(SELDOM);
            self.look(LONG).await;
        }
    }

    /// The Pods whose files have not been scanned completely.
    fn unseen(&self) -> Vec<String> {
        let held = self.held();
        held.found.iter().filter(|(_, found)| matches!(found, Found::Unseen)).map(|(uid, _)| uid.clone()).collect()
    }

    fn seen(&self, pod: &str, ids: files::Ids) {
        let mut held = self.held();
        // It may be known from elsewhere by now, or be gone.
        let Some(found) = held.found.get_mut(pod) else { return };
        match ids {
            files::Ids::None => {
                held.found.remove(pod);
            }
            // One id is enough: a Pod with its own ids uses only one range.
            files::Ids::Has(host) => *found = Found::Seen(IdRange { host, size: 1 }),
            files::Ids::Unknown(why) => {
                tracing::warn!(uid = pod, %why, "no host IDs are allocated until this Pod's files have been read");
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // The state is consistent even after a panic: a range is recorded atomically.
        self.held.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The range of a Pod: its existing one, or a free one without leftover files.
    ///
    /// # Errors
    ///
    /// None is free, or none for the Pod's namespace.
    pub fn take(&self, pod: &str, namespace: &str) -> Result<IdRange, NoFreeRange> {
        let mut held = self.held();
        if let Some(range) = held.ranges.get(pod) {
            return Ok(*range);
        }
        // What is left of a Pod is known before its range is free.
        let owners = self.removals.owners();
        let left: Vec<IdRange> = owners.iter().filter_map(Owner::users).collect();
        let found: Vec<IdRange> = held.found.values().map(Found::users).collect();
        let taken = held.ranges.values().chain(&found).chain(&left).map(ids).chain(self.foreign.iter().cloned());
        let taken: Vec<Ids> = taken.collect();
        let found = pick(self.pool, &taken, held.next);
        let range = found.ok_or(NoFreeRange::All)?;
        held.admit(self.pool, &self.foreign, &owners, namespace)?;
        held.next = range.host.saturating_add(range.size);
        held.ranges.insert(pod.to_owned(), range);
        held.namespaces.insert(pod.to_owned(), namespace.to_owned());
        Ok(range)
    }

    /// The ids that a Pod's files may have, as far as known: including others found in its files.
    pub fn of(&self, pod: &str) -> Option<IdRange> {
        let held = self.held();
        let found = held.found.get(pod).map(Found::users);
        held.ranges.get(pod).copied().into_iter().chain(found).reduce(hull)
    }

    /// Ids found in a Pod's files besides its own, to be stored with its folder.
    pub fn found(&self, pod: &str) -> Option<IdRange> {
        match self.held().found.get(pod) {
            Some(Found::Seen(users)) => Some(*users),
            Some(Found::Unseen) | None => None,
        }
    }

    /// The Pod uses the host's users, according to its manifest: ids of its files belong to no range.
    pub fn are_hosts(&self, pod: &str) {
        self.held().found.remove(pod);
    }

    /// The Pod is gone, or has ended for good; its leftovers record these ids.
    pub fn free(&self, pod: &str) {
        let mut held = self.held();
        held.ranges.remove(pod);
        held.found.remove(pod);
        held.namespaces.remove(pod);
    }

    /// Frees the ranges of Pods for which `has_anything` is false.
    pub fn retain(&self, has_anything: impl Fn(&str) -> bool) {
        let mut held = self.held();
        held.ranges.retain(|pod, _| has_anything(pod));
        held.found.retain(|pod, _| has_anything(pod));
        held.namespaces.retain(|pod, _| has_anything(pod));
    }
}
