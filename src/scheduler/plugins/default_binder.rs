//! DefaultBinder: the driver writes a Binding. The row exists so that profiles can name it.

use super::{
    super::framework::{Plugin, Point, Row},
    plain,
};

pub const ROW: Row = Row {
    name: "DefaultBinder",
    weight: 0,
    points: &[Point::Bind],
    events_to_register: &[],
    make: plain::<DefaultBinder>,
};

#[derive(Default)]
struct DefaultBinder;

impl Plugin for DefaultBinder {}
