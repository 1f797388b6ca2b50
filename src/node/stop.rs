//! The end of a container: preStop hook, signal, grace, kill; the grace may shrink while it runs.

use std::{net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

use super::{
    Shared,
    executor::ExecutorError,
    hooks::{self, HookError},
    pod::Exit,
    spec::PodExt,
};

/// What a container gets after a preStop hook that has used up the grace period.
const LEAST: Duration = Duration::from_secs(2);

/// Stops a container by `deadline`, which may be moved to an earlier moment while this runs.
///
/// # Errors
///
/// It may still run. A hook that fails is told of, and stops nothing.
pub async fn stop(
    shared: &Arc<Shared>,
    pod: &Arc<Pod>,
    container: &str,
    id: &str,
    ips: &[IpAddr],
    mut deadline: watch::Receiver<Timestamp>,
) -> Result<Option<Exit>, ExecutorError> {
    let left = |at: Timestamp| Duration::try_from(at.duration_since(shared.env.now())).unwrap_or(Duration::ZERO);
    let part = pod.part(container);
    let lifecycle = part.as_ref().and_then(|p| p.container.lifecycle.clone());
    let mut least = Duration::ZERO;
    if let (Some(part), Some(hook)) = (&part, lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref())) {
        let grace = left(*deadline.borrow_and_update());
        if grace > Duration::ZERO {
            least = LEAST.min(grace);
            // The deadline below is the limit: it may move.
            let work = hooks::run(shared, pod, &part.container, id, ips, hook, grace + LEAST);
            tokio::pin!(work);
            let result = loop {
                let until = left(*deadline.borrow_and_update());
                tokio::select! {
                    result = &mut work => break result,
                    () = tokio::time::sleep(until) => break Err(HookError::GraceOver),
                    changed = deadline.changed() => if changed.is_err() { break Ok(()) },
                }
            };
            if let Err(why) = result {
                let message = format!("PreStopHook failed: {why}");
                shared.recorder.warning(pod.about(Some(container)), "FailedPreStopHook", message);
            }
        }
    }
    let signal = lifecycle.as_ref().and_then(|l| l.stop_signal.clone());
    let grace = left(*deadline.borrow_and_update()).max(least);
    let stopping = shared.executor.stop(pod, id, signal.as_deref(), grace);
    tokio::pin!(stopping);
    tokio::select! {
        result = &mut stopping => result,
        Ok(()) = deadline.changed() => {
            let shorter = left(*deadline.borrow_and_update());
            // A second stop with less grace overtakes the first, which then sees the end.
            tokio::select! {
                result = &mut stopping => result,
                result = shared.executor.stop(pod, id, signal.as_deref(), shorter) => result,
            }
        }
    }
}
