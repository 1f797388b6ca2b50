//! How lists merge: upstream's `patchStrategy`, `patchMergeKey`, `listType` and `listMapKey`, which k8s-openapi leaves out.

use super::ListKind;

#[derive(Clone, Copy, Default)]
pub struct Rule {
    pub list: ListKind,
    pub retain_keys: bool,
    pub atomic: bool,
}

/// The rule for `field` of the struct `parent`; lists without a row are replaced as a whole.
pub fn of(parent: &str, field: &str) -> Rule {
    if let Ok(at) = LISTS.binary_search_by(|row| (row.0, row.1).cmp(&(parent, field))) {
        let (_, _, merge_key, map_keys) = LISTS[at];
        let set = map_keys.is_empty() && merge_key == Some("");
        return Rule {
            list: ListKind { merge_key, map_keys, set },
            retain_keys: RETAIN.contains(&(parent, field)),
            ..Rule::default()
        };
    }
    Rule {
        retain_keys: RETAIN.contains(&(parent, field)),
        atomic: ATOMIC.contains(&(parent, field)),
        ..Rule::default()
    }
}

/// Struct, field, the key of a strategic merge ("": merged as a set of plain values; `None`: replaced), and the keys of
/// the list for server-side apply (none: a set where it merges). Sorted.
#[rustfmt::skip]
const LISTS: &[(&str, &str, Option<&str>, &[&str])] = &[
    ("Container", "env", Some("name"), &["name"]),
    ("Container", "ports", Some("containerPort"), &["containerPort", "protocol"]),
    ("Container", "volumeDevices", Some("devicePath"), &["devicePath"]),
    ("Container", "volumeMounts", Some("mountPath"), &["mountPath"]),
    ("DeploymentStatus", "conditions", Some("type"), &["type"]),
    ("EndpointSlice", "ports", None, &[]),
    ("EphemeralContainer", "env", Some("name"), &["name"]),
    ("EphemeralContainer", "ports", Some("containerPort"), &["containerPort", "protocol"]),
    ("EphemeralContainer", "volumeDevices", Some("devicePath"), &["devicePath"]),
    ("EphemeralContainer", "volumeMounts", Some("mountPath"), &["mountPath"]),
    ("LoadBalancerIngress", "ports", None, &[]),
    ("NamespaceStatus", "conditions", Some("type"), &["type"]),
    ("NodeSpec", "podCIDRs", Some(""), &[]),
    ("NodeStatus", "addresses", Some("type"), &["type"]),
    ("NodeStatus", "conditions", Some("type"), &["type"]),
    ("ObjectMeta", "finalizers", Some(""), &[]),
    ("ObjectMeta", "ownerReferences", Some("uid"), &["uid"]),
    ("PodSpec", "containers", Some("name"), &["name"]),
    ("PodSpec", "ephemeralContainers", Some("name"), &["name"]),
    ("PodSpec", "hostAliases", Some("ip"), &["ip"]),
    ("PodSpec", "imagePullSecrets", Some("name"), &["name"]),
    ("PodSpec", "initContainers", Some("name"), &["name"]),
    ("PodSpec", "resourceClaims", Some("name"), &["name"]),
    ("PodSpec", "schedulingGates", Some("name"), &["name"]),
    ("PodSpec", "topologySpreadConstraints", Some("topologyKey"), &["topologyKey", "whenUnsatisfiable"]),
    ("PodSpec", "volumes", Some("name"), &["name"]),
    ("PodStatus", "conditions", Some("type"), &["type"]),
    ("PodStatus", "hostIPs", Some("ip"), &["ip"]),
    ("PodStatus", "podIPs", Some("ip"), &["ip"]),
    ("PodStatus", "resourceClaimStatuses", Some("name"), &["name"]),
    ("ProjectedVolumeSource", "sources", None, &[]),
    ("ReplicaSetStatus", "conditions", Some("type"), &["type"]),
    ("ResourceRequirements", "claims", None, &["name"]),
    ("ServiceAccount", "imagePullSecrets", None, &[]),
    ("ServiceAccount", "secrets", Some("name"), &["name"]),
    ("ServiceSpec", "ports", Some("port"), &["port", "protocol"]),
    ("ServiceStatus", "conditions", Some("type"), &["type"]),
];

const RETAIN: &[(&str, &str)] = &[("DeploymentSpec", "strategy"), ("PodSpec", "volumes")];

/// Upstream's `x-kubernetes-map-type: atomic` fields, which server-side apply replaces as a whole.
const ATOMIC: &[(&str, &str)] =
    &[("ConfigMapEnvSource", "name"), ("PodSpec", "nodeSelector"), ("ServiceSpec", "selector")];

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_is_sorted() {
        assert!(super::LISTS.is_sorted_by_key(|row| (row.0, row.1)));
    }
}
