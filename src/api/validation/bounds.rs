//! Limits on the lengths of lists and maps in objects of built-in kinds.
//!
//! Upstream limits few of them, but one object has room for hundreds of thousands of items. So a list is limited here if each item
//! produces something many times its size, or if the list is traversed for each item of something else. Totals over several lists,
//! such as the ports of all containers, are in the rules of their kind.

use serde_json::Value;

use super::Errors;
use super::pod::update::MAX_CONTAINERS;
use crate::schema::decode::{PathNode, Step};
use crate::schema::{self, Type};
use crate::{Kind, Object};

/// The struct, its field, and the limit: far above realistic manifests. Sorted.
#[rustfmt::skip]
const BOUNDS: &[(&str, &str, usize)] = &[
    ("ContainerStatus", "allocatedResources", 256),
    // The mirror creates a slice for each, with all labels and annotations.
    ("Endpoints", "subsets", 1024),
    // All Pods are evaluated for each metric, and all recent scalings for each policy.
    ("HPAScalingRules", "policies", 100),
    ("HorizontalPodAutoscalerSpec", "metrics", 100),
    // Each is an entry in every node's rules for each port.
    ("LoadBalancerStatus", "ingress", 256),
    // Each is evaluated for every node.
    ("NodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution", 1000),
    ("NodeSelector", "nodeSelectorTerms", 1000),
    // Each is compared with each toleration of a Pod.
    ("NodeSpec", "taints", 256),
    ("NodeStatus", "allocatable", 1024),
    ("NodeStatus", "capacity", 1024),
    // They are copied to derived objects: EndpointSlices, claims.
    ("ObjectMeta", "labels", 1024),
    // Deleting an owner traverses all of them.
    ("ObjectMeta", "ownerReferences", 1000),
    // Each is compared with each of a volume.
    ("PersistentVolumeClaimSpec", "accessModes", 64),
    // A container takes kilobytes in every component that stores Pods; nodes run no more of them.
    ("PodSpec", "containers", MAX_CONTAINERS),
    // Those of a ServiceAccount are copied to each of its Pods.
    ("PodSpec", "imagePullSecrets", 256),
    ("PodSpec", "initContainers", MAX_CONTAINERS),
    // The Pod's status lists each missing one.
    ("PodSpec", "readinessGates", 256),
    ("PodSpec", "tolerations", 1000),
    // Each is compared with every Pod of the cluster.
    ("PodSpec", "topologySpreadConstraints", 100),
    // A volume takes kilobytes too, and claims are compared with other Pods'.
    ("PodSpec", "volumes", 1024),
    ("PodStatus", "allocatedResources", 256),
    ("PodStatus", "containerStatuses", MAX_CONTAINERS),
    ("PodStatus", "ephemeralContainerStatuses", MAX_CONTAINERS),
    ("PodStatus", "initContainerStatuses", MAX_CONTAINERS),
    // The scheduler keeps each name with the node, and evaluates it for every node.
    ("ResourceRequirements", "limits", 256),
    ("ResourceRequirements", "requests", 256),
    ("Scheduling", "tolerations", 1000),
    ("ServiceAccount", "imagePullSecrets", 256),
    // A Service's entry points are the products of these, which are limited.
    ("ServiceSpec", "externalIPs", 4096),
    ("ServiceSpec", "loadBalancerSourceRanges", 4096),
    ("ServiceSpec", "ports", 4096),
    // Each becomes a claim of every replica, with all labels of the selector.
    ("StatefulSetSpec", "volumeClaimTemplates", 512),
];

/// The most items in a Pod that are each created or looked up: sources of projected volumes, files in volumes, variables of
/// containers. Each takes kilobytes in a node's agent, and may be looked up by name. Upstream has no limit.
const MOST_PARTS: usize = 4096;
const PARTS: &str = "sources, items and variables in all volumes and containers";
/// The index of that limit, which is in no table.
const OF_PARTS: usize = BOUNDS.len();

fn most(row: usize) -> usize {
    BOUNDS.get(row).map_or(MOST_PARTS, |row| row.2)
}

/// Refuses lists and maps that exceed their limits. A stored object with a longer one keeps it, but it cannot grow.
pub fn check(kind: &Kind, new: &Object, old: Option<&Object>, errs: &mut Errors) {
    let mut beyond = Vec::new();
    visit(kind, new, &mut |row, count, at| {
        if count > most(row) {
            beyond.push((row, count, at.shown()));
        }
    });
    let mut before = [0; OF_PARTS + 1];
    if let Some(old) = old.filter(|_| !beyond.is_empty()) {
        visit(kind, old, &mut |row, count, _| before[row] = count.max(before[row]));
    }
    for (row, count, path) in beyond.into_iter().filter(|(row, count, _)| *count > before[*row]) {
        errs.too_many_of(path, count, most(row), if row == OF_PARTS { PARTS } else { "items" });
    }
}

/// Called for each limited list and map: the index of its row, its length, and its path.
type Found<'f> = dyn FnMut(usize, usize, &PathNode<'_>) + 'f;

fn visit(kind: &Kind, object: &Object, found: &mut Found<'_>) {
    match kind.is_custom() {
        false => within(&Type::Struct(kind.schema()), &object.0, &PathNode::ROOT, found),
        true => {
            let meta = &object.0["metadata"];
            within(&schema::metadata(), meta, &PathNode::ROOT.then(Step::Field("metadata")), found);
        }
    }
}

fn within(of: &Type, value: &Value, at: &PathNode<'_>, found: &mut Found<'_>) {
    match (of, value) {
        (Type::Struct(of), Value::Object(map)) => {
            if of.name == "PodSpec" {
                found(OF_PARTS, parts(value), at);
            }
            for (name, value) in map {
                let Some(field) = of.field(name) else { continue };
                let at = at.then(Step::Field(name));
                if let Some(count) = count(&field.of, value)
                    && let Ok(row) =
                        BOUNDS.binary_search_by(|row| (row.0, row.1).cmp(&(of.name.as_str(), name.as_str())))
                {
                    found(row, count, &at);
                }
                within(&field.of, value, &at, found);
            }
        }
        (Type::Map(of), Value::Object(map)) if has_parts(of) => {
            map.iter().for_each(|(key, value)| within(of, value, &at.then(Step::Key(key)), found));
        }
        (Type::List(list), Value::Array(items)) if has_parts(&list.item) => {
            items.iter().enumerate().for_each(|(i, item)| within(&list.item, item, &at.then(Step::Index(i)), found));
        }
        _ => {}
    }
}

fn count(of: &Type, value: &Value) -> Option<usize> {
    match (of, value) {
        (Type::List(_), Value::Array(items)) => Some(items.len()),
        (Type::Map(_), Value::Object(map)) => Some(map.len()),
        _ => None,
    }
}

/// The number of such items in a Pod's spec.
fn parts(spec: &Value) -> usize {
    let items = |of: &Value| of["items"].as_array().map_or(0, Vec::len);
    let shown = |of: &Value| ["configMap", "secret", "downwardAPI"].iter().map(|kind| items(&of[kind])).sum::<usize>();
    let of_volume = |volume: &Value| {
        let sources = volume["projected"]["sources"].as_array().map_or(&[][..], Vec::as_slice);
        shown(volume) + sources.len() + sources.iter().map(shown).sum::<usize>()
    };
    let of_container = |container: &Value| {
        ["env", "envFrom"].iter().map(|list| container[list].as_array().map_or(0, Vec::len)).sum::<usize>()
    };
    let all = |list: &str| spec[list].as_array().into_iter().flatten();
    let containers = ["containers", "initContainers", "ephemeralContainers"].into_iter().flat_map(all);
    all("volumes").map(of_volume).sum::<usize>() + containers.map(of_container).sum::<usize>()
}

fn has_parts(of: &Type) -> bool {
    matches!(of, Type::Struct(_) | Type::Map(_) | Type::List(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::KINDS;

    #[test]
    fn the_table_is_sorted() {
        assert!(BOUNDS.is_sorted_by_key(|row| (row.0, row.1)));
    }

    /// A row without a matching field would be a mistake.
    #[test]
    fn every_row_names_a_list_or_a_map() {
        KINDS.iter().for_each(|kind| drop(kind.schema()));
        let all = schema::compiled();
        for (parent, field, _) in BOUNDS {
            let is_it = |of: &Type| matches!(of, Type::List(_) | Type::Map(_));
            let found = all.iter().any(|s| s.name == *parent && s.field(field).is_some_and(|field| is_it(&field.of)));
            assert!(found, "{parent}.{field}");
        }
    }
}
