//! Scoring strategies of NodeResourcesFit, and the amounts that scores are based on.

use serde::{Deserialize, Serialize};

use super::super::framework::MAX_SCORE;
use crate::cluster::NodeInfo;
use podwright_api::{
    configuration::{FieldError, Problem},
    pod_resources::Amounts,
};

/// A resource and its weight.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Resource {
    pub name: String,
    pub weight: i64,
}

impl Default for Resource {
    fn default() -> Resource {
        Resource { name: String::new(), weight: 1 }
    }
}

/// Upstream's defaults.
pub fn cpu_and_memory() -> Vec<Resource> {
    ["cpu", "memory"].map(|name| Resource { name: name.into(), weight: 1 }).into()
}

/// Fails if a weight is out of range, or a name is missing or duplicate.
pub fn checked(resources: &[Resource]) -> Result<(), FieldError> {
    for (n, resource) in resources.iter().enumerate() {
        if !(1..=100).contains(&resource.weight) {
            let why = format!("{}: must be in the range [1, 100]", resource.weight);
            return Err(FieldError::invalid(format!("resources[{n}].weight"), why));
        }
        if resource.name.is_empty() {
            return Err(FieldError::new(format!("resources[{n}].name"), Problem::Missing));
        }
        if resources[..n].iter().any(|other| other.name == resource.name) {
            let twice = Problem::Duplicate(format!("{:?}", resource.name));
            return Err(FieldError::new(format!("resources[{n}].name"), twice));
        }
    }
    Ok(())
}

/// A point of a curve: the score (0..=10) at a utilization (0..=100).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CurvePoint {
    pub utilization: i64,
    pub score: i64,
}

#[derive(Clone, Debug)]
pub enum Strategy {
    /// Prefers the least used.
    Least,
    /// Prefers the most used.
    Most,
    Curve(Vec<CurvePoint>),
}

/// A resource's usage including the Pod, and the capacity. `None`: the node has none of it, or the Pod requests none of a special
/// resource.
pub fn share(resource: &str, used: &Amounts, wanted: &Amounts, capacity: &Amounts) -> Option<(i64, i64)> {
    let (has, wants) = (capacity.get(resource), wanted.get(resource));
    let scarce = !matches!(resource, "cpu" | "memory" | "ephemeral-storage");
    (has > 0 && !(scarce && wants == 0)).then(|| (used.get(resource).saturating_add(wants), has))
}

impl Strategy {
    /// The weighted mean over resources, 0..=100.
    pub fn score(&self, resources: &[Resource], wanted: &Amounts, node: &NodeInfo) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        for Resource { name, weight } in resources {
            let Some((used, capacity)) = share(name, &node.load.assumed, wanted, &node.allocatable) else { continue };
            let points = self.points(used, capacity);
            // Upstream's curve ignores resources with a score of 0.
            if points > 0 || !matches!(self, Strategy::Curve(_)) {
                sum += points * weight;
                weights += weight;
            }
        }
        match (weights, self) {
            (0, _) => 0,
            (_, Strategy::Curve(_)) => (sum as f64 / weights as f64).round() as i64,
            _ => sum / weights,
        }
    }

    fn points(&self, used: i64, capacity: i64) -> i64 {
        match self {
            Strategy::Least => percent((capacity - used).max(0), capacity),
            Strategy::Most => percent(used.min(capacity), capacity),
            Strategy::Curve(curve) => on(curve, if used > capacity { MAX_SCORE } else { percent(used, capacity) }),
        }
    }
}

/// `part` as a percentage of `capacity`, which is positive.
fn percent(part: i64, capacity: i64) -> i64 {
    part.checked_mul(MAX_SCORE).map_or_else(|| part / (capacity / MAX_SCORE), |part| part / capacity)
}

/// Linear interpolation between the points, times ten.
fn on(curve: &[CurvePoint], utilization: i64) -> i64 {
    let score = |n: usize| curve[n].score * 10;
    for n in 0..curve.len() {
        if utilization <= curve[n].utilization {
            if n == 0 {
                return score(0);
            }
            let (from, to) = (&curve[n - 1], &curve[n]);
            let (rise, run) = (score(n) - score(n - 1), to.utilization - from.utilization);
            return score(n - 1) + rise * (utilization - from.utilization) / run;
        }
    }
    curve.last().map_or(0, |last| last.score * 10)
}
