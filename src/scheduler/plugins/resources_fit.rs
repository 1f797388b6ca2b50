//! NodeResourcesFit: the Pod's requests must be available on the node; its score depends on the resulting utilization.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/resource-bin-packing/>

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    super::framework::{ClusterEventKind, Plugin, Point, PreFilter, Rejection, Row, args},
    resource_scores::{CurvePoint, Resource, Strategy, checked, cpu_and_memory},
};
use crate::{
    cluster::{Cluster, NodeInfo},
    pod::PodInfo,
};
use podwright_api::{
    configuration::{FieldError, Problem},
    validation::names,
};

pub const ROW: Row = Row {
    name: "NodeResourcesFit",
    weight: 1,
    points: &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score],
    events_to_register: &[ClusterEventKind::NodeAdded, ClusterEventKind::NodeAllocatable, ClusterEventKind::PodRemoved],
    make,
};

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeResourcesFitArgs {
    ignored_resources: Option<Vec<String>>,
    ignored_resource_groups: Option<Vec<String>>,
    scoring_strategy: Option<ScoringStrategy>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ScoringStrategy {
    #[serde(rename = "type")]
    kind: String,
    resources: Option<Vec<Resource>>,
    requested_to_capacity_ratio: Option<RequestedToCapacityRatio>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct RequestedToCapacityRatio {
    shape: Vec<CurvePoint>,
}

struct NodeResourcesFit {
    /// Resources that something else manages.
    ignored: Vec<String>,
    /// Prefixes (before the `/`) of such resources.
    ignored_groups: Vec<String>,
    strategy: Strategy,
    resources: Vec<Resource>,
}

fn make(value: &Value) -> Result<Box<dyn Plugin>, FieldError> {
    let args: NodeResourcesFitArgs = args(value)?;
    let scoring = args.scoring_strategy.unwrap_or_default();
    let resources = scoring.resources.filter(|list| !list.is_empty()).unwrap_or_else(cpu_and_memory);
    checked(&resources).map_err(|why| why.below("scoringStrategy."))?;
    let strategy = match scoring.kind.as_str() {
        "" | "LeastAllocated" => Strategy::Least,
        "MostAllocated" => Strategy::Most,
        "RequestedToCapacityRatio" => {
            let shape = scoring.requested_to_capacity_ratio.unwrap_or_default().shape;
            check_shape(&shape).map_err(|why| why.below("scoringStrategy.requestedToCapacityRatio.shape"))?;
            Strategy::Curve(shape)
        }
        other => {
            let known = "\"LeastAllocated\", \"MostAllocated\", \"RequestedToCapacityRatio\"";
            let why = Problem::Unsupported(format!("{other:?}: supported values: {known}"));
            return Err(FieldError::new("scoringStrategy.type", why));
        }
    };
    let ignored = args.ignored_resources.unwrap_or_default();
    let ignored_groups = args.ignored_resource_groups.unwrap_or_default();
    check_names("ignoredResources", &ignored)?;
    if let Some(n) = ignored_groups.iter().position(|group| group.contains('/')) {
        let (group, why) = (&ignored_groups[n], "resource group name can't contain '/'");
        return Err(FieldError::invalid(format!("ignoredResourceGroups[{n}]"), format!("{group:?}: {why}")));
    }
    check_names("ignoredResourceGroups", &ignored_groups)?;
    Ok(Box::new(NodeResourcesFit { ignored, ignored_groups, strategy, resources }))
}

fn check_names(field: &str, given: &[String]) -> Result<(), FieldError> {
    let wrong = |(n, name): (usize, &String)| {
        let why = names::qualified_name(name).into_iter().next()?;
        Some(FieldError::invalid(format!("{field}[{n}]"), format!("{name:?}: {why}")))
    };
    given.iter().enumerate().find_map(wrong).map_or(Ok(()), Err)
}

/// Errors name the field below the shape.
fn check_shape(shape: &[CurvePoint]) -> Result<(), FieldError> {
    if shape.is_empty() {
        return Err(FieldError::required("", "at least one point must be specified"));
    }
    for (n, point) in shape.iter().enumerate() {
        if !(0..=100).contains(&point.utilization) {
            return Err(FieldError::invalid(format!("[{n}].utilization"), point.utilization.to_string()));
        }
        if n > 0 && point.utilization <= shape[n - 1].utilization {
            let why = format!("{}: values must be sorted in increasing order", point.utilization);
            return Err(FieldError::invalid(format!("[{n}].utilization"), why));
        }
        if !(0..=10).contains(&point.score) {
            return Err(FieldError::invalid(format!("[{n}].score"), point.score.to_string()));
        }
    }
    Ok(())
}

/// How many other insufficient resources are reported per node.
const MAX_TOLD: usize = 10;

impl NodeResourcesFit {
    fn ignores(&self, resource: &str) -> bool {
        let group = resource.split_once('/').map(|(group, _)| group);
        self.ignored.iter().any(|name| name == resource)
            || group.is_some_and(|group| self.ignored_groups.iter().any(|known| known == group))
    }

    fn check(&self, pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
        let (wanted, used, capacity) = (&pod.requests, &node.load.requested, &node.allocatable);
        // Usage may exceed the capacity; resources that are not requested do not matter.
        let lacks = |wanted: i64, used: i64, capacity: i64| wanted > 0 && wanted > capacity.saturating_sub(used);
        let (mut why, mut resolvable) = (Vec::new(), true);
        if node.load.pod_count() + 1 > node.max_pods {
            why.push("Too many pods".into());
        }
        let mut test = |name: &'static str, wanted: i64, used: i64, capacity: i64| {
            if lacks(wanted, used, capacity) {
                why.push(name.into());
                resolvable &= wanted <= capacity;
            }
        };
        test("Insufficient cpu", wanted.cpu, used.cpu, capacity.cpu);
        test("Insufficient memory", wanted.memory, used.memory, capacity.memory);
        let (wants, has) = (wanted.ephemeral_storage, capacity.ephemeral_storage);
        test("Insufficient ephemeral-storage", wants, used.ephemeral_storage, has);
        let others = wanted
            .others
            .iter()
            .filter(|(name, amount)| lacks(**amount, used.get(name), capacity.get(name)) && !self.ignores(name));
        for (n, (name, amount)) in others.enumerate() {
            if n < MAX_TOLD {
                why.push(format!("Insufficient {name}").into());
            }
            resolvable &= *amount <= capacity.get(name);
        }
        (!why.is_empty()).then_some(Rejection { why, resolvable })
    }
}

impl Plugin for NodeResourcesFit {
    fn pre_filter<'c>(&'c self, pod: &'c PodInfo, _: &'c Cluster) -> PreFilter<'c> {
        PreFilter::Check(Box::new(|node| self.check(pod, node)))
    }

    fn score(&self, pod: &PodInfo, _: &Cluster, nodes: &[&NodeInfo], points: &mut [i64]) -> bool {
        for (node, points) in nodes.iter().zip(points) {
            *points = self.strategy.score(&self.resources, &pod.assumed, node);
        }
        true
    }
}
