//! NodeResourcesBalancedAllocation: prefers nodes whose resources are used in equal shares.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    super::framework::{MAX_SCORE, Plugin, Point, Row, args},
    resource_scores::{Resource, checked, cpu_and_memory, share},
};
use crate::{
    cluster::{Cluster, NodeInfo},
    pod::PodInfo,
};
use podwright_api::configuration::FieldError;

pub const ROW: Row = Row {
    name: "NodeResourcesBalancedAllocation",
    weight: 1,
    points: &[Point::PreScore, Point::Score],
    events_to_register: &[],
    make,
};

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct NodeResourcesBalancedAllocationArgs {
    resources: Option<Vec<Resource>>,
}

struct BalancedAllocation {
    resources: Vec<Resource>,
}

fn make(value: &Value) -> Result<Box<dyn Plugin>, FieldError> {
    let args: NodeResourcesBalancedAllocationArgs = args(value)?;
    let resources = args.resources.filter(|list| !list.is_empty()).unwrap_or_else(cpu_and_memory);
    checked(&resources)?;
    if let Some(n) = resources.iter().position(|resource| resource.weight != 1) {
        let why = format!("{}: must be 1", resources[n].weight);
        return Err(FieldError::invalid(format!("resources[{n}].weight"), why));
    }
    Ok(Box::new(BalancedAllocation { resources }))
}

impl BalancedAllocation {
    /// 100 minus the standard deviation of the shares, by actual requests.
    fn of(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let (used, wanted, capacity) = (&node.load.requested, &pod.requests, &node.allocatable);
        let share = |resource: &Resource| {
            let (used, capacity) = share(&resource.name, used, wanted, capacity)?;
            Some((used as f64 / capacity as f64).min(1.0))
        };
        let mut shares = self.resources.iter().filter_map(share);
        let deviation = match (shares.next(), shares.next(), shares.next()) {
            (_, None, _) => 0.0,
            // The exact formula for the usual two.
            (Some(one), Some(other), None) => (one - other).abs() / 2.0,
            _ => {
                let shares: Vec<f64> = self.resources.iter().filter_map(share).collect();
                let mean = shares.iter().sum::<f64>() / shares.len() as f64;
                (shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / shares.len() as f64).sqrt()
            }
        };
        ((1.0 - deviation) * MAX_SCORE as f64) as i64
    }
}

impl Plugin for BalancedAllocation {
    /// A Pod without requests does not affect the balance.
    fn score(&self, pod: &PodInfo, _: &Cluster, nodes: &[&NodeInfo], points: &mut [i64]) -> bool {
        if pod.requests.is_zero() {
            return false;
        }
        for (node, points) in nodes.iter().zip(points) {
            *points = self.of(pod, node);
        }
        true
    }
}
