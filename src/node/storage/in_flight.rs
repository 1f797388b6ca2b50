//! Who has descriptors on their way through sockets whenever he is looked at: files without a name may be among them, which nobody
//! sees. Pure.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

/// Who hands descriptors to processes that live receives them sooner, or at some time between these looks has none on their way.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOKS: u32 = 5;

/// Pods that had some when they were seen last, by uid: since when, and in how many looks.
#[derive(Debug, Default)]
pub struct InFlight(HashMap<String, (Instant, u32)>);

impl InFlight {
    /// A look has seen so many; whether that has gone on for too long.
    pub fn seen(&mut self, uid: &str, in_flight: u64, now: Instant) -> bool {
        if in_flight == 0 {
            self.0.remove(uid);
            return false;
        }
        let (since, looks) = self.0.entry(uid.to_owned()).or_insert((now, 0));
        *looks += 1;
        now >= *since + PATIENCE && *looks >= LOOKS
    }

    /// No other Pods are there.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_there(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_receives_now_and_then_is_trusted_and_who_never_does_is_not() {
        let (mut pods, begin) = (InFlight::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        for n in 0..6 {
            assert!(!pods.seen("busy", 3, at(10 * n)) && !pods.seen("hides", 1, at(10 * n)));
        }
        assert!(!pods.seen("busy", 0, at(60)));
        assert!(!pods.seen("busy", 1, at(70)) && pods.seen("hides", 1, at(70)) && pods.seen("hides", 1, at(80)));
        // Few looks are a matter of chance, however far apart.
        assert!((0..4).all(|n| !pods.seen("slow", 1, at(500 * n))) && pods.seen("slow", 1, at(2000)));
        pods.retain(|uid| uid == "slow");
        assert_eq!(pods.0.len(), 1);
    }
}
