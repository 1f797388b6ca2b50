//! PodMetrics and NodeMetrics (metrics.k8s.io): generated from nodes' reports; nothing is stored.

use super::{Kind, Storage};
use crate::columns::{Column, NAME, column, text};
use crate::metrics::{NodeMetrics, PodMetrics};
use crate::{Object, Quantity, Verb};

pub const NODE: Kind = shown(Kind::of::<NodeMetrics>("nodemetrics"));
pub const POD: Kind = shown(Kind::of::<PodMetrics>("podmetrics"));

const fn shown(kind: Kind) -> Kind {
    Kind { storage: Storage::Nowhere, verbs: &[Verb::Get, Verb::List], columns: COLUMNS, ..kind }
}

/// As metrics-server's.
const COLUMNS: &[Column] = &[
    NAME,
    column("CPU", |o, _| used(o, "cpu")),
    column("MEMORY", |o, _| used(o, "memory")),
    column("WINDOW", |o, _| text(o, "window")),
];

/// A node's usage, or the sum of a Pod's containers.
fn used(object: &Object, resource: &str) -> String {
    let containers = object.0["containers"].as_array().into_iter().flatten();
    let usages = containers.chain([&object.0]).map(|part| &part["usage"][resource]);
    usages.filter_map(Quantity::from_json).sum::<Quantity>().to_string()
}
