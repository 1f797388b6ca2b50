//! Back-off for checks of Pods' links.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{CONTESTED, LONG_REST, TOLD};

/// The Pods' links that wait for their next check because they keep changing. A Pod may be able to change its own link, and must
/// not delay others.
#[derive(Default)]
pub struct Backoff {
    pods: BTreeMap<String, Turn>,
}

struct Turn {
    /// The start of the counting period, and the count of each repair.
    since: Instant,
    repairs: BTreeMap<String, u32>,
    /// Until when it is not checked.
    rests: Instant,
    /// Whether a check is due after that.
    due: bool,
}

impl Backoff {
    /// Whether a Pod's link may be checked now; otherwise it is after its pause.
    pub fn may_look(&mut self, owner: &str) -> bool {
        let resting = self.pods.get_mut(owner).filter(|turn| turn.rests > Instant::now());
        resting.map(|turn| turn.due = true).is_none()
    }

    /// A Pod's link was repaired, which took this long.
    pub fn mended(&mut self, owner: String, what: String, took: Duration) {
        let now = Instant::now();
        self.pods.retain(|_, turn| now - turn.since < TOLD || turn.rests > now || turn.due);
        let new = || Turn { since: now, repairs: BTreeMap::new(), rests: now, due: false };
        let turn = self.pods.entry(owner).or_insert_with(new);
        let times = turn.repairs.entry(what).or_default();
        *times += 1;
        if *times >= CONTESTED {
            turn.rests = now + LONG_REST.1.max(took * LONG_REST.0);
        }
    }

    /// Those whose pause is over and whose check is due.
    pub fn rested(&mut self, now: Instant) -> Vec<String> {
        let over = self.pods.iter_mut().filter(|(_, turn)| turn.due && turn.rests <= now);
        let due = |(owner, turn): (&String, &mut Turn)| {
            turn.due = false;
            owner.clone()
        };
        over.map(due).collect()
    }

    pub fn keep(&mut self, is_there: impl Fn(&String) -> bool) {
        self.pods.retain(|owner, _| is_there(owner));
    }
}

#[cfg(test)]
mod tests {
    use super::super::told::Told;
    use super::*;

    #[test]
    fn whoever_keeps_changing_a_pods_link_makes_that_pod_wait_and_nobody_else() {
        let mut backoff = Backoff::default();
        let mut told = Told::new(drop);
        let what = "links of the Pod, which were down";
        for _ in 0..CONTESTED {
            assert!(backoff.may_look("hostile"));
            backoff.mended("hostile".to_owned(), what.to_owned(), Duration::from_millis(100));
        }
        for _ in 0..=CONTESTED {
            told.mended_of_pod(what);
        }
        assert!(!told.is_contested());
        assert!(backoff.may_look("other"));
        assert!(!backoff.may_look("hostile"));
        assert_eq!(backoff.rested(Instant::now()), [""; 0]);
        let later = Instant::now() + LONG_REST.0 * Duration::from_millis(100) + LONG_REST.1;
        assert_eq!(backoff.rested(later), ["hostile"]);
        assert_eq!(backoff.rested(later), [""; 0], "it is due once");
        for _ in 0..=CONTESTED {
            told.mended("table ip podwright");
        }
        assert!(told.is_contested(), "the node's own");
    }
}
