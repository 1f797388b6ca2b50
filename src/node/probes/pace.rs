//! How many commands of probes a node runs at once: each is a process that the node makes, and whoever has hundreds of Pods may ask for
//! hundreds in a second.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use podwright_runtime::turns::{Given, Line};
use tokio::{sync::oneshot, time::Instant};

/// As often somebody who waits looks whether others are stuck.
const LOOK: Duration = Duration::from_secs(1);

/// Whose turn it is, by namespace, as with work on a disk: see [`Line`]. Cheap to clone.
#[derive(Clone, Default)]
pub struct Pace(Arc<Mutex<Line<oneshot::Sender<Turn>>>>);

/// A turn; it ends when this is dropped.
pub struct Turn {
    pace: Pace,
    given: Option<Given>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(given) = self.given.take() {
            self.pace.line().end(&given);
            self.pace.give();
        }
    }
}

impl Pace {
    fn line(&self) -> MutexGuard<'_, Line<oneshot::Sender<Turn>>> {
        // What a panic left behind is sound: each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn of the namespace's.
    pub async fn take(&self, namespace: &str) -> Turn {
        loop {
            let (sender, mut receiver) = oneshot::channel();
            self.line().push(namespace, sender, Instant::now().into_std());
            loop {
                self.give();
                match tokio::time::timeout(LOOK, &mut receiver).await {
                    Ok(Ok(turn)) => return turn,
                    // Nobody drops it without a turn in it; else it is asked for again.
                    Ok(Err(_)) => break,
                    Err(_) => {}
                }
            }
        }
    }

    fn give(&self) {
        let mut line = self.line();
        while let Some((given, waits)) = line.next(Instant::now().into_std()) {
            let turn = Turn { pace: self.clone(), given: Some(given.clone()) };
            // Whoever has gone meanwhile needs none. It is not to be dropped with `line` held.
            if let Err(mut turn) = waits.send(turn) {
                turn.given = None;
                line.end(&given);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use podwright_runtime::turns::ALONE;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hundreds_of_probes_of_a_namespace_run_a_few_at_a_time_and_keep_nobody_elses_waiting() {
        let (pace, running, most) = (Pace::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut probes = tokio::task::JoinSet::new();
        for _ in 0..300 {
            let (pace, running, most) = (pace.clone(), running.clone(), most.clone());
            probes.spawn(async move {
                let _turn = pace.take("many").await;
                most.fetch_max(running.fetch_add(1, Relaxed) + 1, Relaxed);
                tokio::time::sleep(Duration::from_secs(2)).await;
                running.fetch_sub(1, Relaxed);
            });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let begin = Instant::now();
        drop(pace.take("other").await);
        assert!(begin.elapsed() < Duration::from_millis(10), "{:?}", begin.elapsed());
        probes.join_all().await;
        assert_eq!(most.load(Relaxed), ALONE);
        assert!(!pace.line().has_waiting() && pace.line().of("many") == 0);
    }

    /// A container's probes end with it, whether they wait or not.
    #[tokio::test(start_paused = true)]
    async fn who_has_gone_has_no_turn_and_who_is_stuck_keeps_it_from_his_own() {
        let pace = Pace::default();
        let mut stuck = Vec::new();
        for owner in 0..ALONE {
            stuck.push(pace.take(&owner.to_string()).await);
            stuck.push(pace.take(&owner.to_string()).await);
        }
        let waits = tokio::time::timeout(Duration::from_secs(2), pace.take("gone"));
        assert!(waits.await.is_err(), "there are no more places");
        let begin = Instant::now();
        let late = pace.take("late").await;
        assert!(begin.elapsed() < Duration::from_secs(10), "the others are stuck");
        assert_eq!(pace.line().of("gone"), 0);
        drop((late, stuck));
        assert_eq!(pace.line().of("late"), 0);
    }
}
