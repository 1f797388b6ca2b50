//! The election: which node announces an address on a link, decided by each node alone from what it hears on that link. Pure.
//!
//! Among those who may announce an address and are heard, the highest hash of name and address wins (rendezvous hashing), so that
//! addresses spread over nodes, and only those of a node that goes move. As VRRP (RFC 9568) has it, who comes back does not take
//! over at once: nodes that have been there for a while go before those that have just come. And who has lost the control plane,
//! and may want what is no longer wanted, announces nothing beside those who have not.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::frames::Heartbeat;
use crate::dataplane::ids::fnv;

/// Heartbeats a second: three and a bit.
pub const INTERVAL: Duration = Duration::from_millis(300);
/// A node that was not heard for so long is gone: five heartbeats. Together with a [`TICK`] the time of a failover.
pub const SILENCE: Duration = Duration::from_millis(1500);
/// How often it is decided anew.
pub const TICK: Duration = Duration::from_millis(100);
/// Who has just come listens for so long, so that it knows who is there, before it announces anything.
pub const LISTENING: Duration = Duration::from_millis(1000);
/// Who has been there for so long is as good as any other; before, only as good as those who have come with it.
const SETTLED: Duration = Duration::from_secs(5);
const TOGETHER: Duration = Duration::from_secs(2);
/// The most nodes of a link that are listened to: names are invented easily.
const MOST: usize = 1024;

/// How much a node's claim is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It has lost the control plane.
    Lost,
    /// It has just come.
    New,
    Settled,
}

/// Who is heard on a link, with its standing; and oneself. Two equal ones lead to equal decisions.
pub type View = BTreeMap<String, Standing>;

/// The nodes that are heard on one link.
#[derive(Debug, Default)]
pub struct Members(BTreeMap<String, Member>);

#[derive(Clone, Copy, Debug)]
struct Member {
    heard: Instant,
    /// When it was heard.
    age: Duration,
    connected: bool,
}

impl Members {
    /// Notes a heartbeat. Names that nobody `knows` are no nodes.
    pub fn hear(&mut self, beat: Heartbeat, knows: impl Fn(&str) -> bool, now: Instant) {
        if beat.leaving {
            self.0.remove(&beat.name);
        } else if knows(&beat.name) && (self.0.len() < MOST || self.0.contains_key(&beat.name)) {
            self.0.insert(beat.name, Member { heard: now, age: beat.age, connected: beat.connected });
        }
    }

    /// Forgets who has fallen silent.
    pub fn expire(&mut self, now: Instant) {
        self.0.retain(|_, member| now.saturating_duration_since(member.heard) < SILENCE);
    }

    /// Everybody's standing, and one's own.
    pub fn view(&self, own: &str, age: Duration, connected: bool, now: Instant) -> View {
        let aged = |member: &Member| member.age + now.saturating_duration_since(member.heard);
        let others = self.0.iter().filter(|(name, _)| *name != own);
        let others = others.map(|(name, member)| (name.as_str(), aged(member), member.connected));
        let all: Vec<(&str, Duration, bool)> = others.chain([(own, age, connected)]).collect();
        let oldest = all.iter().map(|(_, age, _)| *age).max().unwrap_or(age);
        let standing = |age: Duration, connected| match connected {
            false => Standing::Lost,
            true if age < SETTLED && oldest - age > TOGETHER => Standing::New,
            true => Standing::Settled,
        };
        all.into_iter().map(|(name, age, connected)| (name.to_owned(), standing(age, connected))).collect()
    }
}

/// Whether `own` announces an address on the link that it sees so.
pub fn announces(view: &View, own: &str, address: &IpAddr, candidates: &BTreeSet<String>) -> bool {
    let mine = view.get(own).copied().unwrap_or(Standing::Lost);
    if mine == Standing::Lost && view.values().any(|other| *other > Standing::Lost) {
        return false;
    }
    let heard = candidates.iter().filter_map(|name| Some((*view.get(name)?, hash(name, address), name)));
    heard.max().is_some_and(|(.., name)| name == own)
}

fn hash(name: &str, address: &IpAddr) -> u64 {
    fnv(format!("{name} {address}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> BTreeSet<String> {
        (1..=count).map(|n| format!("n{n}")).collect()
    }

    fn address(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    fn beat(name: &str, age: u64) -> Heartbeat {
        Heartbeat { cluster: 1, name: name.to_owned(), age: Duration::from_secs(age), connected: true, leaving: false }
    }

    /// Who announces, of those who all see the same.
    fn winners(view: &View, address: &IpAddr, candidates: &BTreeSet<String>) -> Vec<String> {
        view.keys().filter(|name| announces(view, name, address, candidates)).cloned().collect()
    }

    fn all(count: usize, standing: Standing) -> View {
        names(count).into_iter().map(|name| (name, standing)).collect()
    }

    #[test]
    fn each_address_has_one_node_and_only_those_of_one_that_goes_move() {
        let candidates = names(5);
        let before: Vec<_> = (0..=255).map(|n| winners(&all(5, Standing::Settled), &address(n), &candidates)).collect();
        assert!(before.iter().all(|who| who.len() == 1));
        for name in &candidates {
            let count = before.iter().filter(|who| who[0] == *name).count();
            assert!((25..=80).contains(&count), "{name} has {count} of 256");
        }
        let mut without = all(5, Standing::Settled);
        without.remove("n3");
        for (n, who) in before.iter().enumerate() {
            let now = winners(&without, &address(n as u8), &candidates);
            assert!(now.len() == 1 && (who == &now || who[0] == "n3"), "{who:?} -> {now:?}");
        }
    }

    #[test]
    fn those_alone_who_may_announce_do() {
        let view = all(3, Standing::Settled);
        for (candidates, expected) in [(&["n2"][..], &["n2"][..]), (&["n9"], &[]), (&[], &[])] {
            let candidates: BTreeSet<String> = candidates.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(winners(&view, &address(1), &candidates), expected);
        }
    }

    #[test]
    fn who_comes_back_waits_and_who_has_lost_the_control_plane_is_silent() {
        let candidates = names(2);
        let first = winners(&all(2, Standing::Settled), &address(1), &candidates).remove(0);
        let second = candidates.iter().find(|name| **name != first).unwrap().clone();
        for standing in [Standing::New, Standing::Lost] {
            let mut view = all(2, Standing::Settled);
            view.insert(first.clone(), standing);
            assert_eq!(winners(&view, &address(1), &candidates), [second.clone()]);
        }
        // Where all are new, or all have lost it, it is as ever.
        for standing in [Standing::New, Standing::Lost] {
            assert_eq!(winners(&all(2, standing), &address(1), &candidates), [first.clone()]);
        }
        // It wants what is no longer wanted, and is the only one that does.
        let mut view = all(2, Standing::Settled);
        view.insert(first.clone(), Standing::Lost);
        assert!(!announces(&view, &first, &address(1), &BTreeSet::from([first.clone()])));
    }

    #[test]
    fn who_falls_silent_or_leaves_is_gone() {
        let (mut members, begin) = (Members::default(), Instant::now());
        let knows = |name: &str| name.starts_with('n');
        members.hear(beat("n2", 60), knows, begin);
        members.hear(beat("stranger", 60), knows, begin);
        members.hear(beat("n3", 0), knows, begin);
        let view = |members: &Members, at: Instant| -> Vec<(String, Standing)> {
            members.view("n1", Duration::from_secs(60), true, at).into_iter().collect()
        };
        let seen = |names: &[(&str, Standing)]| {
            names.iter().map(|(name, standing)| ((*name).to_owned(), *standing)).collect::<Vec<_>>()
        };
        use Standing::{New, Settled};
        assert_eq!(view(&members, begin), seen(&[("n1", Settled), ("n2", Settled), ("n3", New)]));
        let mut young = Members::default();
        young.hear(beat("n2", 1), knows, begin);
        let all = young.view("n1", Duration::ZERO, true, begin);
        assert!(all.values().all(|standing| *standing == Settled), "they have come together");
        assert_eq!(view(&members, begin + SETTLED), seen(&[("n1", Settled), ("n2", Settled), ("n3", Settled)]));
        members.hear(Heartbeat { leaving: true, ..beat("n2", 61) }, knows, begin);
        members.expire(begin + SILENCE / 2);
        assert_eq!(view(&members, begin), seen(&[("n1", Settled), ("n3", New)]));
        members.expire(begin + SILENCE);
        assert_eq!(view(&members, begin), seen(&[("n1", Settled)]));
        assert!(SILENCE + TICK + LISTENING < Duration::from_secs(3) && SILENCE + TICK < Duration::from_secs(2));
    }

    #[test]
    fn invented_names_take_no_room_without_end() {
        let (mut members, now) = (Members::default(), Instant::now());
        (0..5000).for_each(|n| members.hear(beat(&format!("n{n}"), 9), |_| true, now));
        assert_eq!(members.0.len(), MOST);
    }
}
