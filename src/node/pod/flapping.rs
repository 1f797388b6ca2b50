//! Readiness that turns back and forth is told at a pace: a Pod may have hundreds of containers, each with a probe that fails every
//! other second, and each turn would be a status to write, to store, to send to all who watch, and endpoints to make anew.
//!
//! What is lost costs, and what is gained does not: a Pod that becomes ready for the first time waits for nothing. (Upstream's kubelet
//! tells each change, at the pace of its client, 50 requests a second for the whole node.)

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::backoff::{later, pause};

/// Readiness may be lost so often at once ..
const AT_ONCE: u32 = 10;
/// .. and once more after so long.
const EACH: Duration = Duration::from_secs(1);

/// How often a Pod has told of late that something in it is not ready any more.
#[derive(Clone, Debug, Default)]
pub struct Flapping {
    /// When all that would have been a fair part of the time.
    even_at: Option<Timestamp>,
}

impl Flapping {
    /// Until when a status waits that differs from what was told by readiness alone.
    pub fn waits(&self, told: &Value, status: &Value, now: Timestamp) -> Option<Timestamp> {
        let due = self.even_at?.checked_sub(AT_ONCE * EACH).ok();
        pause(due, EACH, now).filter(|_| but_for_readiness(told) == but_for_readiness(status))
    }

    /// A status is told.
    pub fn tells(&mut self, told: &Value, status: &Value, now: Timestamp) {
        if loses_readiness(told, status) {
            // Nobody owes more, however often something else was told with it, or the clock was set back.
            let even_at = self.even_at.map_or(now, |at| at.clamp(now, later(now, AT_ONCE * EACH)));
            self.even_at = Some(later(even_at, EACH));
        }
    }
}

fn containers(status: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["containerStatuses", "initContainerStatuses"];
    lists.into_iter().filter_map(|list| status[list].as_array()).flatten()
}

/// Whether a container was told to be ready, and is not.
fn loses_readiness(told: &Value, status: &Value) -> bool {
    let is_same = |a: &Value, b: &Value| a["name"] == b["name"];
    let lost =
        |now: &Value| now["ready"] == false && containers(told).any(|was| is_same(was, now) && was["ready"] == true);
    containers(status).any(lost)
}

/// A status without what of it says who is ready, and since when.
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
