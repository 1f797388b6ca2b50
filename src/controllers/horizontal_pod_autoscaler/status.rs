//! The status of an autoscaler as it is built, and its events.

use jiff::Timestamp;
use k8s_openapi::api::{autoscaling::v2::HorizontalPodAutoscalerCondition, core::v1::ObjectReference};

use crate::{
    conditions::{self, Condition},
    write::Note,
};
use podwright_client::{Autoscaler, autoscaler::AutoscalerStatus, reference};

pub(super) struct Draft {
    pub status: AutoscalerStatus,
    pub notes: Vec<Note>,
    about: ObjectReference,
    generation: Option<i64>,
}

impl Draft {
    pub fn of(hpa: &Autoscaler) -> Draft {
        Draft {
            status: hpa.status.clone(),
            notes: Vec::new(),
            about: reference(hpa),
            generation: hpa.metadata.generation,
        }
    }

    pub fn set(&mut self, kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) {
        let condition = HorizontalPodAutoscalerCondition::new(kind, status, reason, message, now);
        conditions::set(&mut self.status.conditions, condition);
    }

    pub fn told(&mut self, reason: &'static str, message: &str) {
        self.notes.push(Note::warning(self.about.clone(), reason, message));
    }

    /// The current and desired replicas: the latter unchanged if there is no decision.
    pub fn count(&mut self, current: i32, desired: Option<i32>) {
        self.status.observed_generation = self.generation;
        self.status.current_replicas = Some(current);
        if let Some(desired) = desired {
            self.status.desired_replicas = desired;
        }
    }
}
