//! PrioritySort: higher priority first. Among equal priorities the queue alternates between namespaces, and within a namespace it
//! is first come, first served.

use std::cmp::Reverse;

use super::{
    super::framework::{Plugin, Point, Row},
    plain,
};
use crate::pod::PodInfo;

pub const ROW: Row = Row {
    name: "PrioritySort",
    weight: 0,
    points: &[Point::QueueSort],
    events_to_register: &[],
    make: plain::<PrioritySort>,
};

#[derive(Default)]
struct PrioritySort;

impl Plugin for PrioritySort {}

/// The primary sort key of Pods.
pub fn rank(pod: &PodInfo) -> Reverse<i32> {
    Reverse(pod.priority)
}
