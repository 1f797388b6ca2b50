//! PrioritySort: the more important Pod is decided first, of equals the one that came first. The queue is in this order.

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

/// What comes first in the order of Pods; within one rank it is first come, first served.
pub fn rank(pod: &PodInfo) -> Reverse<i32> {
    Reverse(pod.priority)
}
