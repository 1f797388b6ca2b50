//! SchedulingGates: a Pod with gates is not queued.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/>

use super::{
    super::framework::{Plugin, Point, Reason, Row},
    plain,
};
use crate::pod::PodInfo;

pub const ROW: Row = Row {
    name: "SchedulingGates",
    weight: 0,
    points: &[Point::PreEnqueue],
    events_to_register: &[],
    make: plain::<SchedulingGates>,
};

#[derive(Default)]
struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn pre_enqueue(&self, pod: &PodInfo) -> Option<Reason> {
        let gates = pod.spec()?.scheduling_gates.as_ref()?;
        (!gates.is_empty()).then(|| "Scheduling is blocked due to non-empty scheduling gates".into())
    }
}
