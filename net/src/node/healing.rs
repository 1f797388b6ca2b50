//! Keeps the kernel's state of a node's network as intended, whoever changes it.
//!
//! ```text
//!  rtnetlink of the node, of each Pod --changed--.
//!  the ruleset's generation --another's----------+--> compare --> mend --> Repair
//!  once a minute; settings each two seconds -----'    (compared)
//! ```
//!
//! A notification tells where to look, not what to do: repairs are the difference between the intended and the actual state.
//! Repeated external changes are answered a few times a second at most, and less often the more a repair costs, so that the agent
//! uses only a small part of a CPU for it.

mod backoff;
mod compared;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use podwright_journal::JournalWriter;

use super::{Inner, Network, lock};
use crate::netlink::{self, Watch};
use crate::{Error, Result};
use backoff::Backoff;
use told::Told;

/// The interval for reading the ruleset's generation.
const TICK: Duration = Duration::from_millis(500);
/// Minimum interval between two checks.
const PAUSE: Duration = Duration::from_millis(250);
/// After a notification, related ones are awaited.
const SETTLE: Duration = Duration::from_millis(30);
/// The pause after a check, as a multiple of its duration.
const REST: u32 = 4;
/// The same while repairs keep being undone, with a minimum.
const LONG_REST: (u32, Duration) = (20, Duration::from_secs(1));
/// The interval for cheap checks without notifications: settings, and a mount.
const GLANCE: Duration = Duration::from_secs(2);
/// The interval for comparing everything.
const FULL: Duration = Duration::from_secs(60);
/// The same repair is not reported again for this long.
const TOLD: Duration = Duration::from_secs(60);
/// This many undone repairs within that time are reported as contested.
const CONTESTED: u32 = 10;
/// After this many failed repairs in a row a Pod needs a new sandbox.
const LOST: u32 = 3;

/// The result of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Restored: what, in words.
    Mended(String),
    /// Restored many times within a minute: something else keeps undoing it.
    Contested(String),
    /// Could not be restored; it is retried.
    Failed(String),
    /// The network of this Pod cannot be restored: it needs a new sandbox.
    Lost(String),
}

/// A Pod whose link is maintained.
pub(super) struct Attached {
    netns: OwnedFd,
    /// The namespace's inode: another one means another sandbox.
    inode: u64,
    journal: JournalWriter,
    /// Adopted, with unknown addresses.
    unknown: bool,
}

impl Attached {
    pub fn new(netns: OwnedFd, journal: &JournalWriter) -> Result<Attached> {
        Ok(Attached { inode: netlink::inode(netns.as_fd())?, netns, journal: journal.clone(), unknown: false })
    }
}

/// Stops the maintenance when dropped.
pub struct Healing {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Healing {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Network {
    /// Starts maintaining the node's links, routes, addresses, settings and tables, and each Pod's end of its link. `tell` is
    /// called on its own thread.
    pub fn heal(&self, tell: impl FnMut(Repair) + Send + 'static) -> Result<Healing> {
        let failed = |e| Error::call("socketpair", e);
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let healer = Healer {
            inner: Arc::downgrade(&self.0),
            node: Watch::open_in(self.0.netns.fd())?,
            links_of_pods: BTreeSet::new(),
            pods: BTreeMap::new(),
            due: Due { everything: true, node: true, pods: BTreeSet::new() },
            failures: BTreeMap::new(),
            backoff: Backoff::default(),
            told: Told::new(tell),
        };
        let thread = std::thread::Builder::new().name("podwright-heal".to_owned());
        let thread = thread.spawn(move || healer.run(&stopped)).map_err(|e| Error::call("spawn a thread", e))?;
        Ok(Healing { stop: Some(stop), thread: Some(thread) })
    }

    /// Starts maintaining a Pod's link created by an earlier agent. If its addresses are neither in the record nor in the node's
    /// routes, it is lost ([`Repair::Lost`]) unless it is attached anew meanwhile: its own end would only show what the Pod has
    /// configured.
    pub fn adopt(&self, owner: &str, pod: OwnedFd, journal: &JournalWriter) -> Result<()> {
        let attached = Attached { unknown: self.addresses_of(owner).is_none(), ..Attached::new(pod, journal)? };
        lock(&self.0.attached).insert(owner.to_owned(), attached);
        Ok(())
    }
}

/// Where something may have changed.
#[derive(Default)]
struct Due {
    everything: bool,
    node: bool,
    pods: BTreeSet<String>,
}

impl Due {
    fn is_empty(&self) -> bool {
        !self.everything && !self.node && self.pods.is_empty()
    }
}

struct Healer {
    inner: Weak<Inner>,
    node: Watch,
    /// The indexes of Pods' links, on the node's side.
    links_of_pods: BTreeSet<u32>,
    /// Monitors of the Pods' namespaces, with those namespaces' inodes.
    pods: BTreeMap<String, (u64, Watch)>,
    due: Due,
    /// Consecutive failed repairs of a Pod's link.
    failures: BTreeMap<String, u32>,
    backoff: Backoff,
    told: Told,
}

impl Healer {
    fn run(mut self, stopped: &UnixStream) {
        let begun = Instant::now();
        // The earliest time of the next check, and the times of periodic ones.
        let (mut next, mut tick, mut full, mut glance) = (begun, begun, begun, begun);
        loop {
            let at = if self.due.is_empty() { tick.max(next) } else { next };
            if !self.wait(stopped, at.saturating_duration_since(Instant::now()).max(SETTLE).min(TICK)) {
                return;
            }
            let started = Instant::now();
            if started < next || started < tick && self.due.is_empty() {
                continue;
            }
            tick = started + TICK;
            let Some(inner) = self.inner.upgrade() else { return };
            if started >= full {
                self.due.everything = true;
            }
            let rested = self.backoff.rested(started);
            self.due.node |= !rested.is_empty();
            self.due.pods.extend(rested);
            let (whole, glances) = (self.due.everything, started >= glance);
            if glances {
                glance = started + GLANCE;
            }
            let turn = || {
                if glances {
                    self.glance(&inner);
                }
                self.look(&inner);
            };
            // Whatever goes wrong in one check, there is another one.
            if catch_unwind(AssertUnwindSafe(turn)).is_err() {
                tracing::error!("failed to check the node's network: retrying");
                self.due.everything = true;
            }
            let took = started.elapsed();
            next = Instant::now()
                + match self.told.is_contested() {
                    false => PAUSE.max(took * REST),
                    true => LONG_REST.1.max(took * LONG_REST.0),
                };
            if whole {
                full = Instant::now() + FULL.max(took * 200);
            }
        }
    }

    /// Waits for notifications, at most this long, and records them; returns whether to go on.
    fn wait(&mut self, stopped: &UnixStream, timeout: Duration) -> bool {
        // The time is at most a tick, so it fits.
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![readable(stopped.as_fd()), readable(self.node.as_fd())];
        fds.extend(self.pods.values().map(|(_, watch)| readable(watch.as_fd())));
        let ready = poll(&mut fds, timeout).unwrap_or(0);
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        if is_ready(&fds[0]) {
            return false;
        }
        if ready == 0 {
            return true;
        }
        let ready: Vec<bool> = fds.iter().skip(1).map(is_ready).collect();
        std::thread::sleep(SETTLE);
        if ready[0] {
            self.due.node |= self.node.changed(|index| self.links_of_pods.contains(&index));
        }
        for ((owner, (_, watch)), _) in self.pods.iter_mut().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            if watch.changed(|_| true) {
                self.due.pods.insert(owner.clone());
            }
        }
        true
    }

    /// Compares what has no notifications, and repairs it.
    fn glance(&mut self, inner: &Inner) {
        match inner.mend_settings() {
            Ok(mended) => mended.iter().for_each(|what| self.told.mended(what)),
            Err(error) => self.told.failed(&format!("the node's settings: {error}")),
        }
        if inner.is_overlay_due() {
            self.mend_overlay(inner);
        }
    }

    fn mend_addresses(&mut self, inner: &Inner) {
        match inner.mend_addresses() {
            Ok(mended) => mended.iter().for_each(|what| self.told.mended(what)),
            Err(error) => {
                self.due.node = true;
                self.told.failed(&format!("the node's addresses: {error}"));
            }
        }
    }

    fn mend_overlay(&mut self, inner: &Inner) {
        match inner.mend_overlay() {
            Ok(mended) => mended.iter().for_each(|what| self.told.mended(what)),
            Err(error) => self.told.failed(&format!("the way to other nodes' Pods: {error}")),
        }
    }

    /// Compares what is due, and repairs it.
    fn look(&mut self, inner: &Inner) {
        self.listen(inner);
        let due = std::mem::take(&mut self.due);
        if due.node || due.everything {
            // Before all that has them as its source, and while nothing else has delayed it.
            self.mend_addresses(inner);
        }
        match inner.mend_tables(due.everything) {
            Ok(mended) if mended.is_empty() => {}
            Ok(mended) => self.told.mended(&mended.join(", ")),
            Err(error) => self.told.failed(&format!("the tables of Services: {error}")),
        }
        let mut lacking = BTreeMap::new();
        if due.node || due.everything {
            self.mend_overlay(inner);
            match inner.mend_node() {
                Ok(lacks) => {
                    lacks.node.iter().for_each(|what| self.told.mended(what));
                    (lacking, self.links_of_pods) = (lacks.pods, lacks.indexes);
                }
                Err(error) => self.told.failed(&format!("the node's links: {error}")),
            }
        }
        let pods = if due.everything { self.pods.keys().cloned().collect() } else { due.pods };
        let mut unseen: Vec<String> = pods.into_iter().filter(|owner| !lacking.contains_key(owner)).collect();
        unseen.retain(|owner| self.backoff.may_look(owner));
        for owner in unseen {
            match inner.lacking_in_pod(&owner) {
                Ok(None) => drop(self.failures.remove(&owner)),
                Ok(Some(lack)) => drop(lacking.insert(owner, lack)),
                Err(error) => self.pod_failed(owner, &error),
            }
        }
        lacking.retain(|owner, _| self.backoff.may_look(owner));
        for (owner, lack) in lacking {
            let begun = Instant::now();
            match inner.mend_pod(&owner) {
                Ok(()) => self.told.mended_of_pod(&lack),
                Err(error) => self.pod_failed(owner.clone(), &error),
            }
            self.backoff.mended(owner, lack, begun.elapsed());
        }
    }

    /// Monitors the namespaces of the current Pods. A new one is checked: it was not monitored until now.
    fn listen(&mut self, inner: &Inner) {
        let mut fresh = Vec::new();
        {
            let attached = lock(&inner.attached);
            self.pods.retain(|owner, (inode, _)| attached.get(owner).is_some_and(|a| a.inode == *inode));
            self.failures.retain(|owner, _| attached.contains_key(owner));
            self.backoff.keep(|owner| attached.contains_key(owner));
            for (owner, attached) in attached.iter().filter(|(owner, _)| !self.pods.contains_key(*owner)) {
                fresh.push((owner.clone(), attached.inode, attached.netns.try_clone()));
            }
        }
        for (owner, inode, netns) in fresh {
            let netns = netns.map_err(|e| Error::call("dup", e));
            match netns.and_then(|netns| Watch::open_in(netns.as_fd())) {
                Ok(watch) => {
                    self.pods.insert(owner.clone(), (inode, watch));
                    self.due.pods.insert(owner);
                }
                Err(error) => self.pod_failed(owner, &error),
            }
        }
    }

    fn pod_failed(&mut self, owner: String, error: &Error) {
        let failures = self.failures.entry(owner.clone()).or_default();
        *failures += 1;
        if *failures < LOST {
            self.due.node = true;
            self.due.pods.insert(owner.clone());
            return self.told.failed(&format!("the link of Pod {owner}: {error}"));
        }
        self.failures.remove(&owner);
        self.told.lost(owner);
    }
}
