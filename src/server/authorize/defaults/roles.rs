//! The default roles, as tables: who may do what with which resources.

/// Words are separated by spaces; `core` is the group "".
pub(super) struct Grant {
    pub verbs: &'static str,
    pub groups: &'static str,
    pub resources: &'static str,
    pub names: &'static str,
    /// Paths instead of resources.
    pub urls: &'static str,
}

pub(super) const fn on(verbs: &'static str, groups: &'static str, resources: &'static str) -> Grant {
    Grant { verbs, groups, resources, names: "", urls: "" }
}
const fn named(verbs: &'static str, groups: &'static str, resources: &'static str, names: &'static str) -> Grant {
    Grant { names, ..on(verbs, groups, resources) }
}
const fn urls(verbs: &'static str, urls: &'static str) -> Grant {
    Grant { urls, ..on(verbs, "", "") }
}

pub(super) const READ: &str = "get list watch";
pub(super) const WRITE: &str = "create delete deletecollection patch update";
pub(super) const READ_WRITE: &str = "create delete deletecollection get list patch update watch";
/// What nearly every controller does.
pub(super) const EVENTS: Grant = on("create patch update", "core events.k8s.io", "events");

/// A ClusterRole, and the subjects of a binding of the same name (`None`: there is no binding).
pub(super) struct ClusterRole {
    pub name: &'static str,
    /// It aggregates all roles that are labelled for this one.
    pub aggregates: &'static str,
    /// It is labelled for aggregation into these.
    pub into: &'static str,
    pub grants: &'static [Grant],
    pub bound_to: Option<&'static str>,
}

const NOBODY: ClusterRole = ClusterRole { name: "", aggregates: "", into: "", grants: &[], bound_to: None };

/// A Role, and the subjects of a RoleBinding of the same name.
pub(super) struct Scoped {
    pub namespace: &'static str,
    pub name: &'static str,
    pub grants: &'static [Grant],
    pub bound_to: &'static str,
}

const APPROVE_CLIENT: &[Grant] =
    &[named("approve", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-client")];
const APPROVE_NODE: &[Grant] =
    &[named("approve", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-client-kubelet")];
const APPROVE_SERVING: &[Grant] =
    &[named("approve", "certificates.k8s.io", "signers", "kubernetes.io/kubelet-serving")];
const APPROVE_UNKNOWN: &[Grant] = &[named("approve", "certificates.k8s.io", "signers", "kubernetes.io/legacy-unknown")];

const fn approver(name: &'static str, grants: &'static [Grant]) -> ClusterRole {
    ClusterRole { name, grants, ..NOBODY }
}

const DELEGATION: [Grant; 2] = [
    on("create", "authentication.k8s.io", "tokenreviews"),
    on("create", "authorization.k8s.io", "subjectaccessreviews"),
];

/// Users' roles first, then those of components. Aggregated ones are in the order in which they build up.
pub(super) const CLUSTER_ROLES: &[ClusterRole] = &[
    ClusterRole {
        name: "cluster-admin",
        grants: &[on("*", "*", "*"), urls("*", "*")],
        bound_to: Some("group:system:masters"),
        ..NOBODY
    },
    ClusterRole { name: "system:aggregate-to-view", into: "view", grants: VIEW, ..NOBODY },
    ClusterRole { name: "system:aggregate-to-edit", into: "edit", grants: EDIT, ..NOBODY },
    ClusterRole { name: "system:aggregate-to-admin", into: "admin", grants: ADMIN, ..NOBODY },
    // As metrics-server's manifests define it.
    ClusterRole {
        name: "system:aggregated-metrics-reader",
        into: "view edit admin",
        grants: &[on(READ, "metrics.k8s.io", "pods nodes")],
        ..NOBODY
    },
    ClusterRole { name: "view", aggregates: "view", into: "edit", ..NOBODY },
    ClusterRole { name: "edit", aggregates: "edit", into: "admin", ..NOBODY },
    ClusterRole { name: "admin", aggregates: "admin", ..NOBODY },
    ClusterRole {
        name: "system:basic-user",
        grants: &[
            on("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
            on("create", "authentication.k8s.io", "selfsubjectreviews"),
        ],
        bound_to: Some("group:system:authenticated"),
        ..NOBODY
    },
    ClusterRole {
        name: "system:discovery",
        grants: &[urls(
            "get",
            "/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/",
        )],
        bound_to: Some("group:system:authenticated"),
        ..NOBODY
    },
    ClusterRole {
        name: "system:public-info-viewer",
        grants: &[urls("get", "/healthz /livez /readyz /version /version/")],
        bound_to: Some("group:system:authenticated group:system:unauthenticated"),
        ..NOBODY
    },
    ClusterRole {
        name: "system:monitoring",
        grants: &[
            urls("get", "/flagz /healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/* /statusz"),
            on("get list watch", "metrics.k8s.io", "pods nodes"),
        ],
        bound_to: Some("group:system:monitoring"),
        ..NOBODY
    },
    ClusterRole {
        name: "system:service-account-issuer-discovery",
        grants: &[urls(
            "get",
            "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/",
        )],
        bound_to: Some("group:system:serviceaccounts"),
        ..NOBODY
    },
    ClusterRole { name: "system:auth-delegator", grants: &DELEGATION, ..NOBODY },
    // Nodes are authorized by `node`; the role exists for explicit bindings, as upstream.
    ClusterRole { name: "system:node", grants: NODE_ROLE, bound_to: Some(""), ..NOBODY },
    ClusterRole {
        name: "system:node-bootstrapper",
        grants: &[on("create get list watch", "certificates.k8s.io", "certificatesigningrequests")],
        ..NOBODY
    },
    ClusterRole {
        name: "system:node-problem-detector",
        grants: &[on("get", "core", "nodes"), on("patch", "core", "nodes/status"), EVENTS],
        ..NOBODY
    },
    ClusterRole {
        name: "system:node-proxier",
        grants: &[
            on("list watch", "core", "endpoints services"),
            on(READ, "core", "nodes"),
            EVENTS,
            on("list watch", "discovery.k8s.io", "endpointslices"),
            on("list watch", "networking.k8s.io", "servicecidrs"),
        ],
        bound_to: Some("user:system:kube-proxy"),
        ..NOBODY
    },
    ClusterRole {
        name: "system:kubelet-api-admin",
        grants: &[
            on(READ, "core", "nodes"),
            on("proxy", "core", "nodes"),
            on("*", "core", "nodes/log nodes/metrics nodes/proxy nodes/stats"),
            // KEP-2862.
            on("*", "core", "nodes/configz nodes/healthz nodes/pods"),
        ],
        ..NOBODY
    },
    ClusterRole {
        name: "system:heapster",
        grants: &[on(READ, "core", "events namespaces nodes pods"), on(READ, "extensions", "deployments")],
        ..NOBODY
    },
    ClusterRole { name: "system:kube-aggregator", grants: &[on(READ, "core", "endpoints services")], ..NOBODY },
    ClusterRole {
        name: "system:kube-dns",
        grants: &[on("list watch", "core", "endpoints services")],
        bound_to: Some("account:kube-system/kube-dns"),
        ..NOBODY
    },
    ClusterRole {
        name: "system:persistent-volume-provisioner",
        grants: &[
            on("create delete get list watch", "core", "persistentvolumes"),
            on("get list update watch", "core", "persistentvolumeclaims"),
            on(READ, "storage.k8s.io", "storageclasses"),
            on("watch", "core", "events"),
            EVENTS,
        ],
        ..NOBODY
    },
    ClusterRole {
        name: "system:kube-controller-manager",
        grants: KUBE_CONTROLLER_MANAGER,
        bound_to: Some("user:system:kube-controller-manager"),
        ..NOBODY
    },
    ClusterRole {
        name: "system:kube-scheduler",
        grants: KUBE_SCHEDULER,
        bound_to: Some("user:system:kube-scheduler"),
        ..NOBODY
    },
    ClusterRole {
        name: "system:volume-scheduler",
        grants: &[
            on("get list patch update watch", "core", "persistentvolumes"),
            on(READ, "storage.k8s.io", "storageclasses"),
            on("get list patch update watch", "core", "persistentvolumeclaims"),
        ],
        bound_to: Some("user:system:kube-scheduler"),
        ..NOBODY
    },
    ClusterRole {
        name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        grants: &[on("create", "certificates.k8s.io", "certificatesigningrequests/nodeclient")],
        ..NOBODY
    },
    ClusterRole {
        name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        grants: &[on("create", "certificates.k8s.io", "certificatesigningrequests/selfnodeclient")],
        ..NOBODY
    },
    approver("system:certificates.k8s.io:kube-apiserver-client-approver", APPROVE_CLIENT),
    approver("system:certificates.k8s.io:kube-apiserver-client-kubelet-approver", APPROVE_NODE),
    approver("system:certificates.k8s.io:kubelet-serving-approver", APPROVE_SERVING),
    approver("system:certificates.k8s.io:legacy-unknown-approver", APPROVE_UNKNOWN),
];

const VIEW: &[Grant] = &[
    on(
        READ,
        "core",
        "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers \
         replicationcontrollers/scale serviceaccounts services services/status",
    ),
    on(
        READ,
        "core",
        "bindings events limitranges namespaces/status pods/log pods/status replicationcontrollers/status resourcequotas \
         resourcequotas/status",
    ),
    // In a namespace: the namespace itself.
    on(READ, "core", "namespaces"),
    on(READ, "discovery.k8s.io", "endpointslices"),
    on(
        READ,
        "apps",
        "controllerrevisions daemonsets daemonsets/status deployments deployments/scale deployments/status replicasets \
         replicasets/scale replicasets/status statefulsets statefulsets/scale statefulsets/status",
    ),
    on(READ, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
    on(READ, "batch", "cronjobs cronjobs/status jobs jobs/status"),
    on(
        READ,
        "extensions",
        "daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses ingresses/status \
         networkpolicies replicasets replicasets/scale replicasets/status replicationcontrollers/scale",
    ),
    on(READ, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
    on(READ, "networking.k8s.io", "ingresses ingresses/status networkpolicies"),
    on(READ, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
];

const EDIT: &[Grant] = &[
    // Reading these takes more than view.
    on(READ, "core", "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy"),
    on("impersonate", "core", "serviceaccounts"),
    on(WRITE, "core", "pods pods/attach pods/exec pods/portforward pods/proxy"),
    on("create", "core", "pods/eviction"),
    on(
        WRITE,
        "core",
        "configmaps events persistentvolumeclaims replicationcontrollers replicationcontrollers/scale secrets \
         serviceaccounts services services/proxy",
    ),
    on("create", "core", "serviceaccounts/token"),
    on(
        WRITE,
        "apps",
        "daemonsets deployments deployments/rollback deployments/scale replicasets replicasets/scale statefulsets \
         statefulsets/scale",
    ),
    on(WRITE, "autoscaling", "horizontalpodautoscalers"),
    on(WRITE, "batch", "cronjobs jobs"),
    on(
        WRITE,
        "extensions",
        "daemonsets deployments deployments/rollback deployments/scale ingresses networkpolicies replicasets \
         replicasets/scale replicationcontrollers/scale",
    ),
    on(WRITE, "policy", "poddisruptionbudgets"),
    on(WRITE, "networking.k8s.io", "ingresses networkpolicies"),
    on(READ_WRITE, "coordination.k8s.io", "leases"),
    on(WRITE, "resource.k8s.io", "resourceclaims resourceclaimtemplates"),
];

const ADMIN: &[Grant] = &[
    on("create", "authorization.k8s.io", "localsubjectaccessreviews"),
    on(READ_WRITE, "rbac.authorization.k8s.io", "rolebindings roles"),
];

/// What every node may do, in addition to what `node` allows by its Pods.
pub(super) const NODE: &[Grant] = &[
    on("create", "authentication.k8s.io", "tokenreviews"),
    on("create", "authorization.k8s.io", "localsubjectaccessreviews subjectaccessreviews"),
    on(READ, "core", "services"),
    EVENTS,
    on("get", "core", "endpoints"),
    on("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
    on(READ, "storage.k8s.io", "csidrivers"),
    on(READ, "node.k8s.io", "runtimeclasses"),
    on(READ, "certificates.k8s.io", "clustertrustbundles"),
    // Who its Pods may talk with: policies, and what they select namespaces and Pods by. (Upstream's network plugins have roles for that.)
    on("list watch", "networking.k8s.io", "networkpolicies"),
    on("list watch", "network.podwright.io", "namespaceidentities podidentities"),
];

const NODE_ROLE: &[Grant] = &[
    on("create", "authentication.k8s.io", "tokenreviews"),
    on("create", "authorization.k8s.io", "localsubjectaccessreviews subjectaccessreviews"),
    on(READ, "core", "services"),
    on("create get list watch", "core", "nodes"),
    on("patch update", "core", "nodes/status"),
    on("patch update", "core", "nodes"),
    on("create patch update", "core events.k8s.io", "events"),
    on(READ, "core", "pods"),
    on("create delete", "core", "pods"),
    on("patch update", "core", "pods/status"),
    on("create", "core", "pods/eviction"),
    on(READ, "core", "configmaps secrets"),
    on("get", "core", "persistentvolumeclaims persistentvolumes"),
    on("get", "core", "endpoints"),
    on("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
    on("create delete get patch update", "coordination.k8s.io", "leases"),
    on("get", "storage.k8s.io", "volumeattachments"),
    on("create", "core", "serviceaccounts/token"),
    on("get patch update", "core", "persistentvolumeclaims/status"),
    on(READ, "storage.k8s.io", "csidrivers"),
    on("create delete get patch update", "storage.k8s.io", "csinodes"),
    on(READ, "node.k8s.io", "runtimeclasses"),
];

const KUBE_CONTROLLER_MANAGER: &[Grant] = &[
    EVENTS,
    on("create", "coordination.k8s.io", "leases"),
    named("get update", "coordination.k8s.io", "leases", "kube-controller-manager"),
    on("create", "core", "secrets serviceaccounts"),
    on("delete", "core", "secrets"),
    on("get", "core", "configmaps namespaces secrets serviceaccounts"),
    on("update", "core", "secrets serviceaccounts"),
    on("create", "authentication.k8s.io", "tokenreviews"),
    on("create", "authorization.k8s.io", "subjectaccessreviews"),
    on("list watch", "*", "*"),
    on("create", "core", "serviceaccounts/token"),
];

const KUBE_SCHEDULER: &[Grant] = &[
    EVENTS,
    on("create", "coordination.k8s.io", "leases"),
    named("get list update watch", "coordination.k8s.io", "leases", "kube-scheduler"),
    on(READ, "core", "nodes"),
    on("delete get list watch", "core", "pods"),
    on("create", "core", "bindings pods/binding"),
    on("patch update", "core", "pods/status"),
    on(READ, "core", "namespaces replicationcontrollers services"),
    on(READ, "apps extensions", "replicasets"),
    on(READ, "apps", "statefulsets"),
    on(READ, "policy", "poddisruptionbudgets"),
    on(READ, "core", "persistentvolumeclaims persistentvolumes"),
    on("create", "authentication.k8s.io", "tokenreviews"),
    on("create", "authorization.k8s.io", "subjectaccessreviews"),
    on(READ, "storage.k8s.io", "csidrivers csinodes csistoragecapacities volumeattachments"),
];

/// Additional bindings, with the role and its subjects: what lets a node join with a bootstrap token and renew its certificate, as
/// kubeadm sets it up, and what its proxy needs.
pub(super) const BINDINGS: &[(&str, &str, &str)] = &[
    ("podwright:node-bootstrap", "system:node-bootstrapper", "group:system:bootstrappers"),
    (
        "podwright:node-autoapprove-bootstrap",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        "group:system:bootstrappers",
    ),
    (
        "podwright:node-autoapprove-certificate-rotation",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        "group:system:nodes",
    ),
    ("podwright:node-proxier", "system:node-proxier", "group:system:nodes"),
];

pub(super) const ROLES: &[Scoped] = &[
    Scoped {
        namespace: "kube-system",
        name: "extension-apiserver-authentication-reader",
        grants: &[named(READ, "core", "configmaps", "extension-apiserver-authentication")],
        bound_to: "",
    },
    Scoped {
        namespace: "kube-system",
        name: "system:controller:bootstrap-signer",
        grants: &[on(READ, "core", "secrets")],
        bound_to: "account:kube-system/bootstrap-signer",
    },
    Scoped {
        namespace: "kube-system",
        name: "system:controller:token-cleaner",
        grants: &[on("delete get list watch", "core", "secrets"), EVENTS],
        bound_to: "account:kube-system/token-cleaner",
    },
    Scoped {
        namespace: "kube-system",
        name: "system::leader-locking-kube-controller-manager",
        grants: &[
            on("watch", "core", "configmaps"),
            named("get update", "core", "configmaps", "kube-controller-manager"),
        ],
        bound_to: "user:system:kube-controller-manager account:kube-system/kube-controller-manager",
    },
    Scoped {
        namespace: "kube-system",
        name: "system::leader-locking-kube-scheduler",
        grants: &[on("watch", "core", "configmaps"), named("get update", "core", "configmaps", "kube-scheduler")],
        bound_to: "user:system:kube-scheduler account:kube-system/kube-scheduler",
    },
    Scoped {
        namespace: "kube-public",
        name: "system:controller:bootstrap-signer",
        grants: &[on(READ, "core", "configmaps"), named("update", "core", "configmaps", "cluster-info"), EVENTS],
        bound_to: "account:kube-system/bootstrap-signer",
    },
    // Who knows a token finds out by it whether what he reads is the cluster's: as kubeadm sets it up.
    Scoped {
        namespace: "kube-public",
        name: "podwright:bootstrap-signer-clusterinfo",
        grants: &[named("get", "core", "configmaps", "cluster-info")],
        bound_to: "user:system:anonymous",
    },
];
