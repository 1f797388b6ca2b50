//! Status conditions: sets them with correct times.

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{DeploymentCondition, ReplicaSetCondition},
        autoscaling::v2::HorizontalPodAutoscalerCondition,
        batch::v1::JobCondition,
        core::v1::{NamespaceCondition, NodeCondition, PodCondition},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::meta;

/// Common to all types of conditions.
pub trait Condition {
    fn new(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> Self;
    fn kind(&self) -> &str;
    fn status(&self) -> &str;
    fn reason(&self) -> &str;
    fn message(&self) -> &str;
    fn transition(&mut self) -> &mut Option<Time>;
}

macro_rules! conditions {
    ($($type:ident { $($update:ident)? }),*) => { $(
        impl Condition for $type {
            #[allow(clippy::needless_update, reason = "some of these types have more fields than others")]
            fn new(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> $type {
                $type {
                    type_: kind.to_owned(),
                    status: status.to_owned(),
                    reason: Some(reason.to_owned()),
                    message: Some(message.to_owned()),
                    last_transition_time: Some(meta::time(now)),
                    $($update: Some(meta::time(now)),)?
                    ..$type::default()
                }
            }
            fn kind(&self) -> &str {
                &self.type_
            }
            fn status(&self) -> &str {
                &self.status
            }
            fn reason(&self) -> &str {
                self.reason.as_deref().unwrap_or_default()
            }
            fn message(&self) -> &str {
                self.message.as_deref().unwrap_or_default()
            }
            fn transition(&mut self) -> &mut Option<Time> {
                &mut self.last_transition_time
            }
        }
    )* };
}

conditions! {
    DeploymentCondition { last_update_time },
    ReplicaSetCondition {},
    HorizontalPodAutoscalerCondition {},
    JobCondition { last_probe_time },
    NamespaceCondition {},
    NodeCondition {},
    PodCondition {}
}

pub fn find<'a, C: Condition>(all: &'a [C], kind: &str) -> Option<&'a C> {
    all.iter().find(|c| c.kind() == kind)
}

/// Sets a condition. An equal one is left unchanged; one with the same status keeps its transition time.
pub fn set<C: Condition>(all: &mut Vec<C>, new: C) {
    let same = |old: &C| old.status() == new.status() && old.reason() == new.reason() && old.message() == new.message();
    if !find(all, new.kind()).is_some_and(same) {
        replace(all, new);
    }
}

/// Sets a condition. One with the same status and reason is left unchanged, including its first message (upstream's `SetCondition`
/// of ReplicaSets): messages of refusals name the object to be created, a different one each time.
pub fn set_once<C: Condition>(all: &mut Vec<C>, new: C) {
    let same = |old: &C| old.status() == new.status() && old.reason() == new.reason();
    if !find(all, new.kind()).is_some_and(same) {
        replace(all, new);
    }
}

/// Sets a condition even if it is equal (its other times are news); the transition time follows the status.
pub fn replace<C: Condition>(all: &mut Vec<C>, mut new: C) {
    match all.iter_mut().find(|old| old.kind() == new.kind()) {
        Some(old) => {
            if old.status() == new.status() {
                *new.transition() = old.transition().clone();
            }
            *old = new;
        }
        None => all.push(new),
    }
}

pub fn remove<C: Condition>(all: &mut Vec<C>, kind: &str) {
    all.retain(|c| c.kind() != kind);
}
