//! PrioritySort: the more important Pod is decided first. Of equals the queue takes one of each namespace in turn, and of one
//! namespace the one that came first.

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

/// What comes first in the order of Pods.
pub fn rank(pod: &PodInfo) -> Reverse<i32> {
    Reverse(pod.priority)
}
