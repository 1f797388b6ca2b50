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

/// What controllers and admission add to objects that are made of others: a template, or a Service, that is accepted makes objects that
/// are accepted. By kind, struct and field; sorted.
#[rustfmt::skip]
const ADDED: &[(&str, &str, &str, usize)] = &[
    // Whose it is, and of which revision or index.
    ("ControllerRevision", "ObjectMeta", "labels", 16),
    ("EndpointSlice", "ObjectMeta", "labels", 16),
    ("Endpoints", "ObjectMeta", "labels", 16),
    ("Job", "ObjectMeta", "labels", 16),
    // A StatefulSet's has its selector's labels beside its template's.
    ("PersistentVolumeClaim", "ObjectMeta", "labels", 256),
    ("Pod", "ObjectMeta", "labels", 32),
    // A RuntimeClass', those of a DaemonSet, and two of admission's own.
    ("Pod", "PodSpec", "tolerations", 1016),
    // A StatefulSet's claims, and the token.
    ("Pod", "PodSpec", "volumes", 513),
    ("ReplicaSet", "ObjectMeta", "labels", 16),
];
/// Sources and items of a token's volume, and a variable of each container of an Indexed Job.
const ADDED_PARTS: usize = 8 + MAX_CONTAINERS;

/// A Pod has at most so many things in lists of which one is made or looked up each: sources of projected volumes, files that volumes
/// show, variables of containers. Each takes kilobytes in a node's agent, and may be asked for by name. Upstream has no bound.
const MOST_PARTS: usize = 4096;
const PARTS: &str = "sources, items and variables in all volumes and containers";
/// The index of that limit, which is in no table.
const OF_PARTS: usize = BOUNDS.len();

fn most(kind: &Kind, row: usize) -> usize {
    let kind = kind.built_in();
    let Some((of, field, most)) = BOUNDS.get(row) else {
        return MOST_PARTS + if kind == "Pod" { ADDED_PARTS } else { 0 };
    };
    let added = ADDED.binary_search_by(|row| (row.0, row.1, row.2).cmp(&(kind, *of, *field)));
    most + added.map_or(0, |row| ADDED[row].3)
}

/// Refuses lists and maps that exceed their limits. A stored object with a longer one keeps it, but it cannot grow.
pub fn check(kind: &Kind, new: &Object, old: Option<&Object>, errs: &mut Errors) {
    let mut beyond = Vec::new();
    visit(kind, new, &mut |row, count, at| {
        if count > most(kind, row) {
            beyond.push((row, count, at.shown()));
        }
    });
    let mut before = [0; OF_PARTS + 1];
    if let Some(old) = old.filter(|_| !beyond.is_empty()) {
        visit(kind, old, &mut |row, count, _| before[row] = count.max(before[row]));
    }
    for (row, count, path) in beyond.into_iter().filter(|(row, count, _)| *count > before[*row]) {
        errs.too_many_of(path, count, most(kind, row), if row == OF_PARTS { PARTS } else { "items" });
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
    fn the_tables_are_sorted() {
        assert!(BOUNDS.is_sorted_by_key(|row| (row.0, row.1)));
        assert!(ADDED.is_sorted_by_key(|row| (row.0, row.1, row.2)));
        let is_bound = |of: &str, field: &str| BOUNDS.iter().any(|row| (row.0, row.1) == (of, field));
        assert!(ADDED.iter().all(|(kind, of, field, _)| KINDS.iter().any(|k| k.kind == *kind) && is_bound(of, field)));
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
