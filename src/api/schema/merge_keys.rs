//! Merge rules: upstream's `patchStrategy`, `patchMergeKey`, `listType`, `listMapKey` and `mapType`, which k8s-openapi leaves out.

use super::ListKind;
use super::Topology::{self, Atomic, Map, Set};

#[derive(Clone, Copy, Default)]
pub struct Rule {
    pub list: ListKind,
    pub retain_keys: bool,
    pub replace: bool,
    pub atomic: bool,
}

/// The rule for `field` of the struct `parent`; lists without a row are replaced as a whole.
pub fn of(parent: &str, field: &str) -> Rule {
    let is_in = |table: &[(&str, &str)]| table.contains(&(parent, field));
    let list = match LISTS.binary_search_by(|row| (row.0, row.1).cmp(&(parent, field))) {
        Ok(at) => ListKind { merge_key: LISTS[at].2, topology: LISTS[at].3 },
        Err(_) => ListKind::default(),
    };
    Rule { list, retain_keys: is_in(RETAIN), replace: is_in(REPLACE), atomic: is_in(ATOMIC) }
}

/// Whether server-side apply treats a struct as a single value.
pub fn is_atomic(name: &str) -> bool {
    ATOMIC_TYPES.binary_search(&name).is_ok()
}

/// Struct, field, the key for strategic merge ("": merged as a set of plain values; `None`: replaced), and the list type for
/// server-side apply. Sorted.
#[rustfmt::skip]
const LISTS: &[(&str, &str, Option<&str>, Topology)] = &[
    ("APIServiceStatus", "conditions", Some("type"), Map(&["type"])),
    ("AllocatedDeviceStatus", "conditions", None, Map(&["type"])),
    ("CSIDriverSpec", "volumeLifecycleModes", None, Set),
    ("CSINodeSpec", "drivers", Some("name"), Map(&["name"])),
    ("CertificateSigningRequestStatus", "conditions", None, Map(&["type"])),
    ("Container", "env", Some("name"), Map(&["name"])),
    ("Container", "ports", Some("containerPort"), Map(&["containerPort", "protocol"])),
    ("Container", "volumeDevices", Some("devicePath"), Map(&["devicePath"])),
    ("Container", "volumeMounts", Some("mountPath"), Map(&["mountPath"])),
    ("ContainerRestartRuleOnExitCodes", "values", None, Set),
    ("ContainerStatus", "allocatedResourcesStatus", Some("name"), Map(&["name"])),
    ("ContainerStatus", "volumeMounts", Some("mountPath"), Map(&["mountPath"])),
    ("CustomResourceDefinitionStatus", "conditions", None, Map(&["type"])),
    ("DaemonSetStatus", "conditions", Some("type"), Map(&["type"])),
    ("DeploymentStatus", "conditions", Some("type"), Map(&["type"])),
    ("Endpoint", "addresses", None, Set),
    ("EphemeralContainer", "env", Some("name"), Map(&["name"])),
    ("EphemeralContainer", "ports", Some("containerPort"), Map(&["containerPort", "protocol"])),
    ("EphemeralContainer", "volumeDevices", Some("devicePath"), Map(&["devicePath"])),
    ("EphemeralContainer", "volumeMounts", Some("mountPath"), Map(&["mountPath"])),
    ("FlowSchemaStatus", "conditions", Some("type"), Map(&["type"])),
    ("HorizontalPodAutoscalerStatus", "conditions", Some("type"), Map(&["type"])),
    ("JobStatus", "conditions", Some("type"), Atomic),
    ("MutatingWebhook", "matchConditions", Some("name"), Map(&["name"])),
    ("MutatingWebhookConfiguration", "webhooks", Some("name"), Map(&["name"])),
    ("NamespaceStatus", "conditions", Some("type"), Map(&["type"])),
    ("NodeSpec", "podCIDRs", Some(""), Set),
    ("NodeStatus", "addresses", Some("type"), Map(&["type"])),
    ("NodeStatus", "conditions", Some("type"), Map(&["type"])),
    ("NonResourcePolicyRule", "nonResourceURLs", None, Set),
    ("NonResourcePolicyRule", "verbs", None, Set),
    ("ObjectMeta", "finalizers", Some(""), Set),
    ("ObjectMeta", "ownerReferences", Some("uid"), Map(&["uid"])),
    ("PersistentVolumeClaimStatus", "conditions", Some("type"), Map(&["type"])),
    ("PodDisruptionBudgetStatus", "conditions", Some("type"), Map(&["type"])),
    ("PodFailurePolicyOnExitCodesRequirement", "values", None, Set),
    ("PodSpec", "containers", Some("name"), Map(&["name"])),
    ("PodSpec", "ephemeralContainers", Some("name"), Map(&["name"])),
    ("PodSpec", "hostAliases", Some("ip"), Map(&["ip"])),
    ("PodSpec", "imagePullSecrets", Some("name"), Map(&["name"])),
    ("PodSpec", "initContainers", Some("name"), Map(&["name"])),
    ("PodSpec", "resourceClaims", Some("name"), Map(&["name"])),
    ("PodSpec", "schedulingGates", Some("name"), Map(&["name"])),
    ("PodSpec", "topologySpreadConstraints", Some("topologyKey"), Map(&["topologyKey", "whenUnsatisfiable"])),
    ("PodSpec", "volumes", Some("name"), Map(&["name"])),
    ("PodStatus", "conditions", Some("type"), Map(&["type"])),
    ("PodStatus", "hostIPs", Some("ip"), Atomic),
    ("PodStatus", "podIPs", Some("ip"), Map(&["ip"])),
    ("PodStatus", "resourceClaimStatuses", Some("name"), Map(&["name"])),
    ("PriorityLevelConfigurationStatus", "conditions", Some("type"), Map(&["type"])),
    ("ReplicaSetStatus", "conditions", Some("type"), Map(&["type"])),
    ("ReplicationControllerStatus", "conditions", Some("type"), Map(&["type"])),
    ("ResourceClaimStatus", "devices", None, Map(&["driver", "device", "pool", "shareID"])),
    ("ResourceClaimStatus", "reservedFor", Some("uid"), Map(&["uid"])),
    ("ResourcePolicyRule", "apiGroups", None, Set),
    ("ResourcePolicyRule", "namespaces", None, Set),
    ("ResourcePolicyRule", "resources", None, Set),
    ("ResourcePolicyRule", "verbs", None, Set),
    ("ResourceRequirements", "claims", None, Map(&["name"])),
    ("ResourceStatus", "resources", None, Map(&["resourceID"])),
    ("ServiceAccount", "secrets", Some("name"), Map(&["name"])),
    ("ServiceCIDRStatus", "conditions", Some("type"), Map(&["type"])),
    ("ServiceSpec", "ports", Some("port"), Map(&["port", "protocol"])),
    ("ServiceStatus", "conditions", Some("type"), Map(&["type"])),
    ("StatefulSetStatus", "conditions", Some("type"), Map(&["type"])),
    ("UncountedTerminatedPods", "failed", None, Set),
    ("UncountedTerminatedPods", "succeeded", None, Set),
    ("ValidatingAdmissionPolicyBindingSpec", "validationActions", None, Set),
    ("ValidatingAdmissionPolicySpec", "matchConditions", Some("name"), Map(&["name"])),
    ("ValidatingAdmissionPolicySpec", "variables", Some("name"), Map(&["name"])),
    ("ValidatingAdmissionPolicyStatus", "conditions", None, Map(&["type"])),
    ("ValidatingWebhook", "matchConditions", Some("name"), Map(&["name"])),
    ("ValidatingWebhookConfiguration", "webhooks", Some("name"), Map(&["name"])),
];

/// `patchStrategy: retainKeys`.
const RETAIN: &[(&str, &str)] = &[
    ("DeploymentSpec", "strategy"),
    ("PodSpec", "resourceClaims"),
    ("PodSpec", "volumes"),
    ("PodStatus", "resourceClaimStatuses"),
];

/// `patchStrategy: replace`, for structs.
const REPLACE: &[(&str, &str)] = &[("PodDisruptionBudgetSpec", "selector")];

/// `x-kubernetes-map-type: atomic`, for maps.
const ATOMIC: &[(&str, &str)] = &[
    ("PodSpec", "nodeSelector"),
    ("ReplicationControllerSpec", "selector"),
    ("Scheduling", "nodeSelector"),
    ("ServiceSpec", "selector"),
];

/// `x-kubernetes-map-type: atomic`, for structs. Sorted.
const ATOMIC_TYPES: &[&str] = &[
    "ConfigMapKeySelector",
    "CrossVersionObjectReference",
    "EndpointAddress",
    "EndpointPort",
    "FileKeySelector",
    "LabelSelector",
    "LocalObjectReference",
    "MatchResources",
    "NamedRuleWithOperations",
    "NodeSelector",
    "NodeSelectorTerm",
    "ObjectFieldSelector",
    "ObjectReference",
    "OwnerReference",
    "ParamKind",
    "ParamRef",
    "ResourceFieldSelector",
    "RoleRef",
    "ScopeSelector",
    "SecretKeySelector",
    "SecretReference",
    "ServiceBackendPort",
    "Subject",
    "TopologySelectorTerm",
    "TypedLocalObjectReference",
    "Variable",
];

#[cfg(test)]
mod tests {
    #[test]
    fn the_tables_are_sorted() {
        assert!(super::LISTS.is_sorted_by_key(|row| (row.0, row.1)));
        assert!(super::ATOMIC_TYPES.is_sorted());
    }

    /// A row without a matching field would be a mistake.
    #[test]
    fn every_row_names_a_list_of_some_kind() {
        use crate::{kinds::KINDS, schema};
        KINDS.iter().for_each(|kind| drop(kind.schema()));
        let all = schema::compiled();
        for (parent, field, ..) in super::LISTS {
            let found = all
                .iter()
                .any(|s| s.name == *parent && matches!(s.field(field).map(|f| &f.of), Some(schema::Type::List(_))));
            assert!(found, "{parent}.{field}");
        }
        for name in super::ATOMIC_TYPES {
            assert!(all.iter().any(|s| s.name == *name), "{name}");
        }
    }
}
