//! Stops a container: preStop hook, signal, grace period, kill; the grace period may be shortened meanwhile.

use std::{net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::{sync::watch, time::Instant};

use super::{
    Shared,
    executor::ExecutorError,
    hooks::{self, HookError},
    pod::observed::Exit,
    spec::PodExt,
};
use podwright_api::Env;

/// The minimum grace after a preStop hook that has used up the grace period.
const LEAST: Duration = Duration::from_secs(2);

/// The deadline of a stop, by a monotonic clock.
struct Limit<'a> {
    env: &'a Env,
    /// May be moved to an earlier time.
    told: watch::Receiver<Timestamp>,
    at: Instant,
}

impl<'a> Limit<'a> {
    fn new(env: &'a Env, told: watch::Receiver<Timestamp>) -> Limit<'a> {
        let mut limit = Limit { env, told, at: Instant::now() };
        let left = limit.told_left();
        limit.at += left;
        limit
    }

    /// The remaining time.
    fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Waits until it is moved; `false`: it no longer can be.
    async fn moved(&mut self) -> bool {
        let moved = self.told.changed().await.is_ok();
        self.at = self.at.min(Instant::now() + self.told_left());
        moved
    }

    fn told_left(&mut self) -> Duration {
        let at = *self.told.borrow_and_update();
        Duration::try_from(at.duration_since(self.env.now())).unwrap_or(Duration::ZERO)
    }
}

/// Stops a container by `deadline`, which may be moved to an earlier time while this runs.
///
/// # Errors
///
/// It may still be running. A failing hook is only reported.
pub async fn stop(
    shared: &Arc<Shared>,
    pod: &Arc<Pod>,
    container: &str,
    id: &str,
    ips: &[IpAddr],
    deadline: watch::Receiver<Timestamp>,
) -> Result<Option<Exit>, ExecutorError> {
    let mut limit = Limit::new(&shared.env, deadline);
    let part = pod.part(container);
    let lifecycle = part.as_ref().and_then(|p| p.container.lifecycle.clone());
    let mut least = Duration::ZERO;
    if let (Some(part), Some(hook)) = (&part, lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref())) {
        let grace = limit.left();
        if grace > Duration::ZERO {
            least = LEAST.min(grace);
            // The deadline may be moved.
            let work = hooks::run(shared, pod, &part.container, id, ips, hook, grace + LEAST);
            tokio::pin!(work);
            let result = loop {
                let until = limit.at;
                tokio::select! {
                    result = &mut work => break result,
                    () = tokio::time::sleep_until(until) => break Err(HookError::GraceOver),
                    moved = limit.moved() => if !moved { break Ok(()) },
                }
            };
            if let Err(why) = result {
                let message = format!("PreStopHook failed: {why}");
                shared.recorder.warning(pod.about(Some(container)), "FailedPreStopHook", message);
            }
        }
    }
    let signal = lifecycle.as_ref().and_then(|l| l.stop_signal.clone());
    let mut grace = limit.left().max(least);
    // A stop with a shorter grace overtakes the previous one.
    loop {
        let stopping = shared.executor.stop(pod, id, signal.as_deref(), grace);
        tokio::select! {
            result = stopping => return result,
            true = limit.moved() => grace = limit.left(),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::backoff::later;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_moves_no_end_of_a_stop() {
        // Invariant: a valid literal.
        let env = Env::simulated("2026-11-20T17:00:00Z".parse().expect("a time"), 1);
        let seconds = Duration::from_secs;
        let (tell, told) = watch::channel(later(env.now(), seconds(30)));
        let mut limit = Limit::new(&env, told);
        env.set_clock(SignedDuration::from_hours(-1));
        tokio::time::advance(seconds(5)).await;
        assert_eq!(limit.left(), seconds(25));
        for (told, left) in [(10, 10), (20, 10)] {
            tell.send_replace(later(env.now(), seconds(told)));
            assert!(limit.moved().await);
            assert_eq!(limit.left(), seconds(left), "it comes nearer alone");
        }
        tokio::time::advance(seconds(11)).await;
        drop(tell);
        assert!(!limit.moved().await);
        assert_eq!(limit.left(), Duration::ZERO);
    }
}
