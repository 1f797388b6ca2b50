//! One link: its sockets, who is heard on it, and which addresses this node answers for there.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Wanted;
use super::election::{LISTENING, Members, View, announces};
use super::frames::{self, ETH_P_ARP, ETH_P_HEARTBEAT, Heartbeat, ON_LINK, Question};
use crate::Result;
use crate::netlink::{Discovery, Frames, LONGEST, Uplink};

/// All nodes on a link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// How often a new owner tells the link, and at which intervals: a frame may be lost.
const ROUNDS: u8 = 4;
const BETWEEN: Duration = Duration::from_millis(500);
/// How often it does again when somebody comes or goes, who may have told the link otherwise.
const AGAIN: u8 = 2;
/// The most addresses that are told of in one tick, and the most answers.
const TOLD_AT_ONCE: usize = 64;
const ANSWERS: u32 = 100;
/// How many frames are read before others have their turn.
const READ_AT_ONCE: usize = 64;
/// After an error of a socket, such as of a link that goes down.
const REST: Duration = Duration::from_millis(100);

/// What comes from a link.
pub enum Heard {
    Beat(Heartbeat),
    Arp(Question),
    Solicited { from: Ipv6Addr, target: Ipv6Addr },
}

/// Where it goes: heartbeats by a way of their own, which questions cannot fill.
#[derive(Clone)]
pub struct Ears {
    pub beats: mpsc::Sender<(u32, Heard)>,
    pub questions: mpsc::Sender<(u32, Heard)>,
}

/// The sockets of a link.
pub struct Sockets {
    pub uplink: Uplink,
    beats: Frames,
    arp: Option<Frames>,
    discovery: Option<Discovery>,
}

impl Sockets {
    /// Opens them in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel refuses one: without CAP_NET_RAW, or for a link that has gone.
    pub fn open(uplink: Uplink) -> Result<Sockets> {
        let beats = Frames::open(&uplink, ETH_P_HEARTBEAT)?;
        let arp = uplink.v4.then(|| Frames::open(&uplink, ETH_P_ARP)).transpose()?;
        let discovery = uplink.v6.then(|| Discovery::open(&uplink)).transpose()?;
        Ok(Sockets { uplink, beats, arp, discovery })
    }
}

/// A link with its state.
pub struct Link {
    pub uplink: Uplink,
    pub members: Members,
    beats: Arc<AsyncFd<Frames>>,
    arp: Option<Arc<AsyncFd<Frames>>>,
    discovery: Option<Arc<AsyncFd<Discovery>>>,
    /// Since when this node is heard there.
    since: Instant,
    seen: Option<(View, bool)>,
    owned: BTreeMap<IpAddr, Telling>,
    answers: u32,
    readers: Vec<AbortHandle>,
}

/// How often an address is still told of, and when next.
#[derive(Clone, Copy)]
struct Telling {
    rounds: u8,
    next: Instant,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.readers.iter().for_each(AbortHandle::abort);
    }
}

impl Link {
    /// Fails if the runtime does not take a socket.
    pub fn open(sockets: Sockets, ears: &Ears, now: Instant) -> io::Result<Link> {
        let Sockets { uplink, beats, arp, discovery } = sockets;
        let beats = Arc::new(watched(beats)?);
        let arp = arp.map(watched).transpose()?.map(Arc::new);
        let discovery = discovery.map(watched).transpose()?.map(Arc::new);
        let index = uplink.index;
        let (to, also, too) = (ears.beats.clone(), ears.questions.clone(), ears.questions.clone());
        let mut readers = vec![tokio::spawn(read(beats.clone(), move |socket| {
            frame(socket, |frame| Heartbeat::read(frame).map(Heard::Beat), index, &to)
        }))];
        readers.extend(arp.clone().map(|arp| {
            tokio::spawn(read(arp, move |socket| {
                frame(socket, |frame| frames::arp_question(frame).map(Heard::Arp), index, &also)
            }))
        }));
        readers.extend(
            discovery
                .clone()
                .map(|discovery| tokio::spawn(read(discovery, move |socket| message(socket, index, &too)))),
        );
        let readers = readers.iter().map(tokio::task::JoinHandle::abort_handle).collect();
        let members = Members::default();
        let (seen, owned) = (None, BTreeMap::new());
        Ok(Link { uplink, members, beats, arp, discovery, since: now, seen, owned, answers: ANSWERS, readers })
    }

    /// Begins anew, as one that has just come: after a time in which it heard nobody, and nobody heard it.
    pub fn restart(&mut self, now: Instant) {
        (self.members, self.since, self.seen) = (Members::default(), now, None);
    }

    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    pub fn owned(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.owned.keys().copied()
    }

    pub fn beat(&self, beat: &Heartbeat) {
        // A link that is down is looked after by whoever lists the links.
        let _ = self.beats.get_ref().send(&beat.frame(self.uplink.mac));
    }

    /// Decides which addresses are this node's to answer for; `is_new`: other ones are wanted than before. Returns whether they are
    /// others than before.
    pub fn decide(&mut self, own: &str, wanted: &Wanted, connected: bool, is_new: bool, now: Instant) -> bool {
        self.answers = ANSWERS;
        self.members.expire(now);
        let age = self.age(now);
        let seen = (self.members.view(own, age, connected, now), age < LISTENING);
        if !is_new && self.seen.as_ref() == Some(&seen) {
            return false;
        }
        let others_came_or_went = self.seen.as_ref().is_none_or(|(before, _)| !before.keys().eq(seen.0.keys()));
        let (view, listens) = &seen;
        let is_ours = |address: &IpAddr, candidates| {
            let fits = if address.is_ipv4() { self.uplink.v4 } else { self.uplink.v6 };
            !listens && fits && announces(view, own, address, candidates)
        };
        let mine: Vec<IpAddr> = wanted
            .addresses
            .iter()
            .filter(|(address, all)| is_ours(address, all))
            .map(|(address, _)| *address)
            .collect();
        let mut before = std::mem::take(&mut self.owned);
        for address in &mine {
            let known = before.remove(address);
            let again = if others_came_or_went { AGAIN } else { 0 };
            let telling = known.map_or(Telling { rounds: ROUNDS, next: now }, |telling| Telling {
                rounds: telling.rounds.max(again),
                next: telling.next.min(now + BETWEEN),
            });
            if known.is_none() {
                self.listen_for(address, true);
            }
            self.owned.insert(*address, telling);
        }
        let is_changed = !before.is_empty() || self.owned.values().any(|telling| telling.rounds == ROUNDS);
        before.keys().for_each(|address| self.listen_for(address, false));
        self.seen = Some(seen);
        is_changed
    }

    /// Solicitations of an address come to its group alone.
    fn listen_for(&self, address: &IpAddr, wanted: bool) {
        let (Some(discovery), IpAddr::V6(address)) = (&self.discovery, address) else { return };
        let group = frames::solicited_group(*address);
        let is_shared = |other: &IpAddr| matches!(other, IpAddr::V6(other) if frames::solicited_group(*other) == group);
        if self.owned.keys().any(is_shared) {
            return;
        }
        if let Err(error) = discovery.get_ref().join(group, wanted) {
            tracing::debug!(%error, link = self.uplink.name, %group, wanted, "the group of an announced address");
        }
    }

    /// Tells the link of those addresses that are due.
    pub fn tell(&mut self, now: Instant) {
        let mac = self.uplink.mac;
        let due = self.owned.iter_mut().filter(|(_, telling)| telling.rounds > 0 && telling.next <= now);
        for (address, telling) in due.take(TOLD_AT_ONCE) {
            *telling = Telling { rounds: telling.rounds - 1, next: now + BETWEEN };
            // What is lost is told again, and answered when asked.
            match address {
                IpAddr::V4(address) => {
                    let sent = self.arp.iter().flat_map(|arp| {
                        frames::arp_announcements(mac, *address).map(|frame| arp.get_ref().send(&frame))
                    });
                    sent.for_each(drop);
                }
                IpAddr::V6(address) => {
                    let message = frames::advertisement(mac, *address, false);
                    let sent = self.discovery.iter().map(|to| to.get_ref().send(&message, ALL_NODES));
                    sent.for_each(drop);
                }
            }
        }
    }

    /// Answers a question, if it is about an address of this node's; not more often in a tick than the link's hosts honestly ask.
    pub fn answer(&mut self, heard: &Heard) {
        let target = match heard {
            Heard::Arp(question) => IpAddr::V4(question.target),
            Heard::Solicited { target, .. } => IpAddr::V6(*target),
            Heard::Beat(_) => return,
        };
        if !self.owned.contains_key(&target) || self.answers == 0 {
            return;
        }
        self.answers -= 1;
        let sent = match (heard, &self.arp, &self.discovery) {
            // Somebody who has it, or thinks so, asks nobody for it.
            (Heard::Arp(question), Some(arp), _) if question.from != question.target => {
                arp.get_ref().send(&frames::arp_answer(self.uplink.mac, question))
            }
            (Heard::Solicited { from, target }, _, Some(discovery)) => {
                let is_known = !from.is_unspecified();
                let message = frames::advertisement(self.uplink.mac, *target, is_known);
                discovery.get_ref().send(&message, if is_known { *from } else { ALL_NODES })
            }
            _ => Ok(()),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, link = self.uplink.name, %target, "an answer about an announced address");
        }
    }
}

/// The safe constructor is deprecated for types whose descriptor could change; those of these sockets cannot.
#[expect(deprecated)]
fn watched<T: AsRawFd>(socket: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}

/// Reads a socket for ever, some at a time. `one` reads one frame and returns whether there was any.
async fn read<T: AsRawFd>(socket: Arc<AsyncFd<T>>, mut one: impl FnMut(&T) -> io::Result<bool>) {
    loop {
        let Ok(mut ready) = socket.readable().await else { return };
        for _ in 0..READ_AT_ONCE {
            match one(socket.get_ref()) {
                Ok(true) => {}
                Ok(false) => {
                    ready.clear_ready();
                    break;
                }
                Err(_) => {
                    ready.clear_ready();
                    tokio::time::sleep(REST).await;
                    break;
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Reads a frame and passes it on, if it is one; what there is no room for is lost.
fn frame(
    socket: &Frames,
    parse: impl Fn(&[u8]) -> Option<Heard>,
    link: u32,
    to: &mpsc::Sender<(u32, Heard)>,
) -> io::Result<bool> {
    let mut buffer = [0; LONGEST];
    let Some(length) = socket.receive(&mut buffer)? else { return Ok(false) };
    if let Some(heard) = parse(&buffer[..length]) {
        let _ = to.try_send((link, heard));
    }
    Ok(true)
}

fn message(socket: &Discovery, link: u32, to: &mpsc::Sender<(u32, Heard)>) -> io::Result<bool> {
    let mut buffer = [0; LONGEST];
    let Some(received) = socket.receive(&mut buffer)? else { return Ok(false) };
    if let Some(target) = frames::solicited(&buffer[..received.length]).filter(|_| received.hops == ON_LINK) {
        let _ = to.try_send((link, Heard::Solicited { from: received.from, target }));
    }
    Ok(true)
}
