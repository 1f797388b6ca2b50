//! The claims that Pods of this node wait for, and the order in which they are polled.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use podwright_client::Key;

/// The interval at which claims are polled.
pub const AWAIT: Duration = Duration::from_secs(1);
/// Claims polled per namespace each time: a namespace waiting for hundreds waits longer, without delaying others.
const EACH: usize = 8;
/// How many times a claim is polled at the full rate.
const OFTEN: u32 = 120;
/// The interval after that, for as long as its Pod wants it.
const RARELY: Duration = Duration::from_secs(10);
/// A claim is forgotten this long after its Pod last wanted it: longer than any pause between two tries, even where a Pod tries
/// each of a thousand volumes every four seconds.
const WANTED: Duration = Duration::from_secs(7200);
/// At most so many names of one namespace are kept, more than its Pods on a node may have volumes: Pods come and go, and their claims'
/// names with them. Then the one that was wanted least recently is forgotten; its Pod finds it by itself when it tries again.
const MOST: usize = 32_768;

/// By namespace, and by name.
#[derive(Default)]
pub struct Awaited(BTreeMap<String, Claims>);

#[derive(Default)]
struct Claims {
    all: BTreeMap<String, Claim>,
    /// The longest waiting is first.
    queue: VecDeque<String>,
}

struct Claim {
    /// How often it was polled; a retry does not reset it.
    looks: u32,
    due: Instant,
    /// When its Pod last wanted it.
    wanted: Instant,
}

impl Awaited {
    /// Whether no claim is awaited.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records that a Pod wants a claim that is not bound yet.
    pub fn want(&mut self, key: Key, now: Instant) {
        let claims = self.0.entry(key.namespace).or_default();
        if let Some(claim) = claims.all.get_mut(&key.name) {
            claim.wanted = now;
            return;
        }
        if claims.all.len() >= MOST {
            claims.forget_half();
        }
        claims.queue.push_back(key.name.clone());
        claims.all.insert(key.name, Claim { looks: 0, due: now, wanted: now });
    }

    /// Removes a claim that is bound. Returns whether it was awaited.
    pub fn remove(&mut self, key: &Key) -> bool {
        let Some(claims) = self.0.get_mut(&key.namespace) else { return false };
        let was_wanted = claims.all.remove(&key.name).is_some();
        claims.queue.retain(|name| *name != key.name);
        self.0.retain(|_, claims| !claims.all.is_empty());
        was_wanted
    }

    /// The claims to poll now, by namespace.
    pub fn turns(&mut self, now: Instant) -> Vec<Vec<Key>> {
        for claims in self.0.values_mut() {
            claims.all.retain(|_, claim| now.saturating_duration_since(claim.wanted) < WANTED);
            claims.queue.retain(|name| claims.all.contains_key(name));
        }
        self.0.retain(|_, claims| !claims.all.is_empty());
        let turns = self
            .0
            .iter_mut()
            .map(|(namespace, claims)| claims.turn(now).into_iter().map(|name| Key::new(namespace, name)).collect());
        turns.filter(|turn: &Vec<Key>| !turn.is_empty()).collect()
    }
}

impl Claims {
    /// Forgets the half that was wanted least recently.
    fn forget_half(&mut self) {
        let mut wanted: Vec<Instant> = self.all.values().map(|claim| claim.wanted).collect();
        wanted.sort_unstable();
        let Some(&middle) = wanted.get(wanted.len() / 2) else { return };
        // Of those that were wanted at one moment some stay.
        let mut spare = wanted.iter().skip(wanted.len() / 2).filter(|at| **at == middle).count();
        self.all.retain(|_, claim| {
            let stays = claim.wanted > middle || (claim.wanted == middle && spare > 0);
            spare -= usize::from(stays && claim.wanted == middle);
            stays
        });
        self.queue.retain(|name| self.all.contains_key(name));
    }

    fn turn(&mut self, now: Instant) -> Vec<String> {
        let mut turn = Vec::new();
        for _ in 0..self.queue.len() {
            if turn.len() == EACH {
                break;
            }
            let Some(name) = self.queue.pop_front() else { break };
            let Some(claim) = self.all.get_mut(&name) else { continue };
            if claim.due <= now {
                claim.looks = claim.looks.saturating_add(1);
                claim.due = now + if claim.looks < OFTEN { AWAIT } else { RARELY };
                turn.push(name.clone());
            }
            self.queue.push_back(name);
        }
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_the_many_claims_of_another_namespace() {
        let (mut awaited, now) = (Awaited::default(), Instant::now());
        for n in 0..500 {
            awaited.want(Key::new("many", format!("claim-{n}")), now);
        }
        awaited.want(Key::new("other", "data"), now);
        let mut seen = std::collections::BTreeSet::new();
        for second in 0..63 {
            let turns = awaited.turns(now + Duration::from_secs(second));
            assert_eq!(turns.iter().map(Vec::len).collect::<Vec<_>>(), [8, 1]);
            seen.extend(turns.into_iter().flatten());
        }
        assert_eq!(seen.len(), 501, "each of them has its turn");
    }

    #[tokio::test(start_paused = true)]
    async fn the_names_of_pods_that_have_gone_do_not_pile_up() {
        let (mut awaited, begin) = (Awaited::default(), Instant::now());
        for n in 0..3 * MOST {
            let now = begin + Duration::from_millis(n as u64);
            awaited.want(Key::new("many", format!("claim-{n}")), now);
            awaited.want(Key::new("many", "living"), now);
        }
        let kept = &awaited.0["many"];
        assert!(kept.all.len() <= MOST && kept.queue.len() == kept.all.len());
        assert!(kept.all.contains_key("living"), "what is still wanted stays");
        awaited = Awaited::default();
        (0..=MOST).for_each(|n| awaited.want(Key::new("many", format!("claim-{n}")), begin));
        assert_eq!(awaited.0["many"].all.len(), MOST / 2 + 1, "all of one moment are not forgotten at once");
    }

    #[tokio::test(start_paused = true)]
    async fn looks_become_rare_although_the_pod_tries_again_and_again() {
        let (mut awaited, begin) = (Awaited::default(), Instant::now());
        let key = Key::new("default", "data");
        let mut looks = 0;
        for second in 0..3600 {
            let now = begin + Duration::from_secs(second);
            if second % 122 == 0 {
                awaited.want(key.clone(), now);
            }
            looks += awaited.turns(now).len();
        }
        assert_eq!(looks, 120 + 348);
        awaited.turns(begin + Duration::from_secs(3600) + WANTED);
        assert!(awaited.is_empty(), "its Pod has gone");
        awaited.want(key.clone(), begin);
        assert!(awaited.remove(&key) && !awaited.remove(&key));
        assert!(awaited.is_empty(), "it is bound");
    }
}
