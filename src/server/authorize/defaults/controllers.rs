//! The roles of the controllers: each is `system:controller:<name>`, bound to the ServiceAccount `<name>` in `kube-system`.

use super::roles::{EVENTS, Grant, READ, on};

const OWN_PODS: Grant = on("create delete list patch watch", "core", "pods");
const REVISIONS: Grant = on("create delete get list patch update watch", "apps", "controllerrevisions");
const SLICES: Grant = on("create delete get list update watch", "discovery.k8s.io", "endpointslices");
const STATUS_OF_PODS: Grant = on("patch update", "core", "pods/status");

pub(super) const CONTROLLERS: &[(&str, &[Grant])] = &[
    (
        "attachdetach-controller",
        &[
            on("list watch", "core", "persistentvolumeclaims persistentvolumes"),
            on(READ, "core", "nodes"),
            on("patch update", "core", "nodes/status"),
            on("list watch", "core", "pods"),
            on("create delete get list watch", "storage.k8s.io", "volumeattachments"),
            on(READ, "storage.k8s.io", "csidrivers csinodes"),
            EVENTS,
        ],
    ),
    (
        "certificate-controller",
        &[
            on("delete get list watch", "certificates.k8s.io", "certificatesigningrequests"),
            on(
                "update",
                "certificates.k8s.io",
                "certificatesigningrequests/approval certificatesigningrequests/status",
            ),
            Grant {
                names: "kubernetes.io/kube-apiserver-client-kubelet",
                ..on("approve", "certificates.k8s.io", "signers")
            },
            Grant {
                names: "kubernetes.io/kube-apiserver-client kubernetes.io/kube-apiserver-client-kubelet \
                        kubernetes.io/kubelet-serving kubernetes.io/legacy-unknown",
                ..on("sign", "certificates.k8s.io", "signers")
            },
            on("create", "authorization.k8s.io", "subjectaccessreviews"),
            EVENTS,
        ],
    ),
    (
        "clusterrole-aggregation-controller",
        &[on("escalate get list patch update watch", "rbac.authorization.k8s.io", "clusterroles")],
    ),
    (
        "cronjob-controller",
        &[
            on("get list update watch", "batch", "cronjobs"),
            on("create delete get list patch update watch", "batch", "jobs"),
            on("update", "batch", "cronjobs/finalizers cronjobs/status"),
            on("delete list watch", "core", "pods"),
            EVENTS,
        ],
    ),
    (
        "daemon-set-controller",
        &[
            on(READ, "apps extensions", "daemonsets"),
            on("update", "apps extensions", "daemonsets/finalizers daemonsets/status"),
            on("list watch", "core", "nodes"),
            OWN_PODS,
            on("create", "core", "pods/binding"),
            REVISIONS,
            EVENTS,
        ],
    ),
    (
        "deployment-controller",
        &[
            on("get list update watch", "apps extensions", "deployments"),
            on("update", "apps extensions", "deployments/finalizers deployments/status"),
            on("create delete get list patch update watch", "apps extensions", "replicasets"),
            on("get list update watch", "core", "pods"),
            EVENTS,
        ],
    ),
    (
        "disruption-controller",
        &[
            on(READ, "apps extensions", "deployments replicasets"),
            on(READ, "core", "replicationcontrollers"),
            on(READ, "policy", "poddisruptionbudgets"),
            on(READ, "apps", "statefulsets"),
            on("update", "policy", "poddisruptionbudgets/status"),
            STATUS_OF_PODS,
            on("get", "*", "*/scale"),
            EVENTS,
        ],
    ),
    (
        "endpoint-controller",
        &[
            on(READ, "core", "pods services"),
            on("create delete get list update watch", "core", "endpoints"),
            on("create", "core", "endpoints/restricted"),
            EVENTS,
        ],
    ),
    (
        "endpointslice-controller",
        &[on(READ, "core", "nodes pods services"), on("update", "core", "services/finalizers"), SLICES, EVENTS],
    ),
    (
        "endpointslicemirroring-controller",
        &[
            on(READ, "core", "endpoints services"),
            on("update", "core", "endpoints/finalizers services/finalizers"),
            SLICES,
            EVENTS,
        ],
    ),
    (
        "ephemeral-volume-controller",
        &[
            on(READ, "core", "pods"),
            on("update", "core", "pods/finalizers"),
            on("create get list watch", "core", "persistentvolumeclaims"),
            EVENTS,
        ],
    ),
    (
        "expand-controller",
        &[
            on("get list patch update watch", "core", "persistentvolumes"),
            on("patch update", "core", "persistentvolumeclaims/status"),
            on(READ, "core", "persistentvolumeclaims"),
            EVENTS,
        ],
    ),
    ("generic-garbage-collector", &[on("delete get list patch update watch", "*", "*"), EVENTS]),
    (
        "horizontal-pod-autoscaler",
        &[
            on(READ, "autoscaling", "horizontalpodautoscalers"),
            on("update", "autoscaling", "horizontalpodautoscalers/status"),
            on("get update", "*", "*/scale"),
            on("list watch", "core", "pods"),
            on("list", "metrics.k8s.io", "pods"),
            on("get list", "custom.metrics.k8s.io external.metrics.k8s.io", "*"),
            EVENTS,
        ],
    ),
    (
        "job-controller",
        &[
            on("get list patch update watch", "batch", "jobs"),
            on("update", "batch", "jobs/finalizers jobs/status"),
            OWN_PODS,
            EVENTS,
        ],
    ),
    (
        "legacy-service-account-token-cleaner",
        &[
            Grant { names: "kube-apiserver-legacy-service-account-token-tracking", ..on("get", "core", "configmaps") },
            on("delete patch", "core", "secrets"),
        ],
    ),
    (
        "namespace-controller",
        &[
            on("delete get list watch", "core", "namespaces"),
            on("update", "core", "namespaces/finalize namespaces/status"),
            on("delete deletecollection get list watch", "*", "*"),
        ],
    ),
    (
        "node-controller",
        &[
            on("delete get list patch update watch", "core", "nodes"),
            on("patch update", "core", "nodes/status"),
            STATUS_OF_PODS,
            on("delete get list watch", "core", "pods"),
            EVENTS,
        ],
    ),
    (
        "persistent-volume-binder",
        &[
            on("create delete get list update watch", "core", "persistentvolumes"),
            on("update", "core", "persistentvolumeclaims/status persistentvolumes/status"),
            on("get list update watch", "core", "persistentvolumeclaims"),
            on("create delete get list watch", "core", "pods"),
            on(READ, "storage.k8s.io", "storageclasses"),
            on("list watch", "core", "nodes"),
            on("watch", "core", "events"),
            EVENTS,
        ],
    ),
    (
        "pod-garbage-collector",
        &[on("delete list watch", "core", "pods"), on(READ, "core", "nodes"), on("patch", "core", "pods/status")],
    ),
    ("pv-protection-controller", &[on("get list update watch", "core", "persistentvolumes"), EVENTS]),
    (
        "pvc-protection-controller",
        &[on("get list update watch", "core", "persistentvolumeclaims"), on(READ, "core", "pods"), EVENTS],
    ),
    (
        "replicaset-controller",
        &[
            on("get list update watch", "apps extensions", "replicasets"),
            on("update", "apps extensions", "replicasets/finalizers replicasets/status"),
            OWN_PODS,
            EVENTS,
        ],
    ),
    (
        "replication-controller",
        &[
            on("get list update watch", "core", "replicationcontrollers"),
            on("update", "core", "replicationcontrollers/finalizers replicationcontrollers/status"),
            OWN_PODS,
            EVENTS,
        ],
    ),
    ("resourcequota-controller", &[on("list watch", "*", "*"), on("update", "core", "resourcequotas/status"), EVENTS]),
    ("root-ca-cert-publisher", &[on("create update", "core", "configmaps"), EVENTS]),
    ("route-controller", &[on("list watch", "core", "nodes"), on("patch", "core", "nodes/status"), EVENTS]),
    ("service-account-controller", &[on("create", "core", "serviceaccounts"), EVENTS]),
    (
        "service-controller",
        &[
            on(READ, "core", "services"),
            on("patch update", "core", "services/status"),
            on("list watch", "core", "nodes"),
            EVENTS,
        ],
    ),
    (
        "statefulset-controller",
        &[
            on("create delete get list patch update watch", "core", "pods"),
            on(READ, "apps", "statefulsets"),
            on("update", "apps", "statefulsets/finalizers statefulsets/status"),
            on("update", "core", "pods/finalizers"),
            REVISIONS,
            on("create delete get list update watch", "core", "persistentvolumeclaims"),
            EVENTS,
        ],
    ),
    ("ttl-after-finished-controller", &[on("delete get list watch", "batch", "jobs"), EVENTS]),
    ("ttl-controller", &[on("list patch update watch", "core", "nodes"), EVENTS]),
    (
        "validatingadmissionpolicy-status-controller",
        &[
            on(READ, "admissionregistration.k8s.io", "validatingadmissionpolicies"),
            on("get patch update", "admissionregistration.k8s.io", "validatingadmissionpolicies/status"),
            EVENTS,
        ],
    ),
];
