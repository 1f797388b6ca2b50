//! Rate-limits reports of flapping readiness: a Pod may have hundreds of containers, each with a probe that fails every other
//! second, and each change would be a status to write, store, and send to all watchers, and endpoints to update.
//!
//! Losing readiness is charged, gaining it is not: a Pod that becomes ready for the first time does not wait. (The upstream kubelet
//! reports each change, at its client's rate of 50 requests a second for the whole node.)

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::backoff::{later, pause};

/// The burst of readiness losses ..
const AT_ONCE: u32 = 10;
/// .. and the interval of one more.
const EACH: Duration = Duration::from_secs(1);

/// How often a Pod has reported a loss of readiness recently.
#[derive(Clone, Debug, Default)]
pub struct Flapping {
    /// When the reported losses will be within the rate.
    even_at: Option<Timestamp>,
}

impl Flapping {
    /// Until when a status is held that differs from the reported one only in readiness.
    pub fn waits(&self, told: &Value, status: &Value, now: Timestamp) -> Option<Timestamp> {
        let due = self.even_at?.checked_sub(AT_ONCE * EACH).ok();
        pause(due, EACH, now).filter(|_| but_for_readiness(told) == but_for_readiness(status))
    }

    /// A status is reported.
    pub fn tells(&mut self, told: &Value, status: &Value, now: Timestamp) {
        if loses_readiness(told, status) {
            // The debt is bounded, whatever else was reported with it, or if the clock was set back.
            let even_at = self.even_at.map_or(now, |at| at.clamp(now, later(now, AT_ONCE * EACH)));
            self.even_at = Some(later(even_at, EACH));
        }
    }
}

fn containers(status: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["containerStatuses", "initContainerStatuses"];
    lists.into_iter().filter_map(|list| status[list].as_array()).flatten()
}

/// Whether a container reported as ready no longer is.
fn loses_readiness(told: &Value, status: &Value) -> bool {
    let is_same = |a: &Value, b: &Value| a["name"] == b["name"];
    let lost =
        |now: &Value| now["ready"] == false && containers(told).any(|was| is_same(was, now) && was["ready"] == true);
    containers(status).any(lost)
}

/// A status without its readiness and the times of it.
fn but_for_readiness(status: &Value) -> Value {
    let mut rest = status.clone();
    for list in ["containerStatuses", "initContainerStatuses"] {
        let all = rest[list].as_array_mut().into_iter().flatten();
        all.filter_map(Value::as_object_mut).for_each(|container| _ = container.shift_remove("ready"));
    }
    if let Some(conditions) = rest["conditions"].as_array_mut() {
        conditions
            .retain(|condition| !["Ready", "ContainersReady"].contains(&condition["type"].as_str().unwrap_or("")));
    }
    rest
}
