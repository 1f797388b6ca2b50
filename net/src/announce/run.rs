//! The task: hears, decides and answers on all of the node's links, which come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::election::{INTERVAL, SILENCE, TICK};
use super::frames::Heartbeat;
use super::link::{Ears, Heard, Link, Sockets};
use super::{Announced, Wanted};
use crate::netlink::{Uplink, uplinks};
use crate::{NodeNetns, Result};

/// How often the links are listed.
const LOOK: Duration = Duration::from_secs(1);
/// What waits to be read, of each kind.
const QUEUE: usize = 256;
/// The most links of a node on which it announces.
const MOST_LINKS: usize = 16;

/// Links that have come, and those that have gone or are not as they were.
struct Found {
    gone: Vec<u32>,
    new: Vec<Sockets>,
}

/// Runs until the sender of what is wanted is dropped.
pub async fn run(
    netns: NodeNetns,
    name: String,
    mut wanted: watch::Receiver<Arc<Wanted>>,
    connected: watch::Receiver<bool>,
    announced: watch::Sender<Announced>,
) {
    loop {
        let now_wanted = wanted.borrow_and_update().clone();
        if now_wanted.addresses.is_empty() {
            announced.send_if_modified(|before| !std::mem::take(before).is_empty());
            match wanted.changed().await {
                Ok(()) => continue,
                Err(_) => return,
            }
        }
        let mut node = Node::new(&name, now_wanted, connected.clone());
        let is_over = node.serve(&netns, &mut wanted, &announced).await;
        node.leave();
        if is_over {
            return;
        }
    }
}

/// A node that announces, or would.
struct Node<'a> {
    name: &'a str,
    wanted: Arc<Wanted>,
    /// The names in `wanted`.
    known: BTreeSet<String>,
    connected: watch::Receiver<bool>,
    links: BTreeMap<u32, Link>,
    last_tick: Instant,
    next_beat: Instant,
    is_new: bool,
}

impl<'a> Node<'a> {
    fn new(name: &'a str, wanted: Arc<Wanted>, connected: watch::Receiver<bool>) -> Node<'a> {
        let now = Instant::now();
        let (known, links) = (names(&wanted), BTreeMap::new());
        Node { name, wanted, known, connected, links, last_tick: now, next_beat: now, is_new: true }
    }

    /// Serves while something is wanted; returns whether nothing will be any more.
    async fn serve(
        &mut self,
        netns: &NodeNetns,
        wanted: &mut watch::Receiver<Arc<Wanted>>,
        announced: &watch::Sender<Announced>,
    ) -> bool {
        let (beats, mut beats_here) = mpsc::channel(QUEUE);
        let (questions, mut questions_here) = mpsc::channel(QUEUE);
        let ears = Ears { beats, questions };
        let (found, mut found_here) = mpsc::channel(1);
        let _looking = Ending(tokio::spawn(look(netns.clone(), wanted.clone(), found)).abort_handle());
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                changed = wanted.changed() => {
                    if changed.is_err() {
                        return true;
                    }
                    self.want(wanted.borrow_and_update().clone());
                    if self.wanted.addresses.is_empty() {
                        return false;
                    }
                }
                Some((link, heard)) = beats_here.recv() => self.hear(link, heard),
                _ = tick.tick() => self.tick(announced),
                Some(found) = found_here.recv() => self.take(found, &ears),
                Some((link, heard)) = questions_here.recv() => {
                    if let Some(link) = self.links.get_mut(&link) {
                        link.answer(&heard);
                    }
                }
            }
        }
    }

    fn want(&mut self, wanted: Arc<Wanted>) {
        (self.known, self.wanted, self.is_new) = (names(&wanted), wanted, true);
    }

    fn hear(&mut self, link: u32, heard: Heard) {
        let (Heard::Beat(beat), Some(link)) = (heard, self.links.get_mut(&link)) else { return };
        // Who has lost the control plane may not know who has come since.
        let knows_all = *self.connected.borrow();
        if beat.cluster == self.wanted.cluster && beat.name != self.name {
            link.members.hear(beat, |name| !knows_all || self.known.contains(name), Instant::now());
        }
    }

    fn take(&mut self, found: Found, ears: &Ears) {
        found.gone.iter().for_each(|index| drop(self.links.remove(index)));
        for sockets in found.new {
            let (name, index) = (sockets.uplink.name.clone(), sockets.uplink.index);
            match Link::open(sockets, ears, Instant::now()) {
                Ok(link) => drop(self.links.insert(index, link)),
                Err(error) => tracing::warn!(%error, link = name, "no addresses are announced there"),
            }
        }
        self.is_new = true;
    }

    fn tick(&mut self, announced: &watch::Sender<Announced>) {
        let now = Instant::now();
        // It was suspended, and others have taken over.
        if now.saturating_duration_since(self.last_tick) >= SILENCE {
            self.links.values_mut().for_each(|link| link.restart(now));
        }
        self.last_tick = now;
        let connected = *self.connected.borrow();
        let (is_new, mut is_changed) = (std::mem::take(&mut self.is_new), false);
        for link in self.links.values_mut() {
            is_changed |= link.decide(self.name, &self.wanted, connected, is_new, now);
            link.tell(now);
        }
        if now >= self.next_beat {
            self.next_beat = now + INTERVAL;
            self.beat(false);
        }
        if is_new || is_changed {
            self.publish(announced);
        }
    }

    fn beat(&self, leaving: bool) {
        let now = Instant::now();
        for link in self.links.values() {
            let (cluster, name, connected) = (self.wanted.cluster, self.name.to_owned(), *self.connected.borrow());
            link.beat(&Heartbeat { cluster, name, age: link.age(now), connected, leaving });
        }
    }

    /// Lets others take over at once.
    fn leave(&self) {
        self.beat(true);
    }

    fn publish(&self, announced: &watch::Sender<Announced>) {
        let mut all = Announced::new();
        for link in self.links.values() {
            for address in link.owned() {
                all.entry(address).or_default().insert(link.uplink.name.clone());
            }
        }
        announced.send_if_modified(|before| {
            let is_changed = *before != all;
            *before = all;
            is_changed
        });
    }
}

fn names(wanted: &Wanted) -> BTreeSet<String> {
    wanted.addresses.values().flat_map(|all| all.iter().cloned()).collect()
}

/// A task that ends with this.
struct Ending(AbortHandle);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Lists the links for ever, and opens sockets on new ones.
async fn look(netns: NodeNetns, wanted: watch::Receiver<Arc<Wanted>>, found: mpsc::Sender<Found>) {
    let mut known: BTreeMap<u32, Uplink> = BTreeMap::new();
    let mut again = interval(LOOK);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        again.tick().await;
        let (before, wanted) = (known.clone(), wanted.borrow().clone());
        match netns.run(move || compare(before, &wanted.pods)).await.and_then(|compared| compared) {
            Ok((all, Found { gone, new })) if !gone.is_empty() || !new.is_empty() => {
                known = all;
                if found.send(Found { gone, new }).await.is_err() {
                    return;
                }
            }
            Ok((all, _)) => known = all,
            Err(error) => tracing::warn!(%error, "listing the links to announce addresses on"),
        }
    }
}

/// All links, and how they differ from those that were known. One that cannot be used is tried again when it has changed.
fn compare(known: BTreeMap<u32, Uplink>, pods: &[IpNet]) -> Result<(BTreeMap<u32, Uplink>, Found)> {
    let all: BTreeMap<u32, Uplink> =
        uplinks(pods)?.into_iter().take(MOST_LINKS).map(|link| (link.index, link)).collect();
    let gone = known.iter().filter(|(index, link)| all.get(index) != Some(link)).map(|(index, _)| *index).collect();
    let mut new = Vec::new();
    for link in all.values().filter(|link| known.get(&link.index) != Some(link)) {
        match Sockets::open(link.clone()) {
            Ok(sockets) => new.push(sockets),
            Err(error) => tracing::warn!(%error, link = link.name, "no addresses are announced there"),
        }
    }
    Ok((all, Found { gone, new }))
}
