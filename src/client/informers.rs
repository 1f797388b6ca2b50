//! The shared informers of a server process: one per kind, for controllers and scheduler alike.

use std::sync::Arc;

use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicy,
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::{CronJob, Job},
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{
        ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController,
        ResourceQuota, Secret, Service, ServiceAccount,
    },
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
    storage::v1::StorageClass,
};

use super::{Autoscaler, Client, Followed, Informer, Key, Typed};
use podwright_api::{
    bootstrap_token, cluster_info,
    persistent_volume::{all_used, claim_class, claim_ref, volume_class, volume_name},
    root_ca,
};

/// The namespace of agents' heartbeats, one Lease per Node with its name.
pub const NODE_LEASES: &str = "kube-node-lease";

/// Makes the table: its rows become the fields of [`Informers`], what starts them and waits for them, and what finds them by their
/// resources. A row has the kind's type; `only` what of the kind is followed, by methods of `InformerBuilder`; `by` its indexes.
macro_rules! table {
    ($($(#[$doc:meta])* $field:ident: $kind:ty
        $(, only $part:ident($value:expr))*
        $(, by $($index:ident => $keys:expr),+)?;)+) => {
        /// One shared informer per kind and process. Cheap to clone.
        #[derive(Clone)]
        pub struct Informers {
            $($(#[$doc])* $(#[doc = concat!("Indexes:" $(, " [`Informers::", stringify!($index), "`]")+, ".")])?
            pub $field: Informer<$kind>,)+
        }

        impl Informers {
            /// Starts them all. Must be called inside a tokio runtime.
            pub fn start(client: Client) -> Informers {
                Informers {
                    $($field: Informer::<$kind>::builder(client.clone())
                        $(.$part($value))*
                        $($(.index(Self::$index, $keys))+)?
                        .start(),)+
                }
            }

            /// Waits until every first list is complete.
            pub async fn synced(&self) {
                $(self.$field.synced().await;)+
            }

            /// The informer that may follow the object of this key of a resource, if there is one.
            pub fn of(&self, resource: &str, key: &Key) -> Option<Arc<dyn Followed>> {
                $(if self.$field.resource() == resource && self.$field.followed().may_cover(key) {
                    return Some(self.$field.followed());
                })+
                None
            }

            /// The resources with an informer.
            pub fn resources() -> Vec<String> {
                vec![$(<$kind as Typed>::resource()),+]
            }
        }
    };
}

table! {
    pods: Pod, by BY_NODE => node_of, BY_OWNER => owner_of, OPEN => open_of, BY_CLAIM => claims_used, WAITING => waits_in,
        LEAVING => leaves, ENDED => ended;
    nodes: Node;
    services: Service;
    endpoint_slices: EndpointSlice, by BY_SERVICE => service_of;
    endpoints: Endpoints;
    namespaces: Namespace;
    service_accounts: ServiceAccount;
    /// Only the ConfigMaps `kube-root-ca.crt`.
    root_cas: ConfigMap, only name(root_ca::NAME);
    /// The ConfigMap `kube-public/cluster-info` alone.
    cluster_infos: ConfigMap, only namespace(cluster_info::NAMESPACE), only name(cluster_info::NAME);
    /// The Secrets of `kube-system` alone that are bootstrap tokens.
    bootstrap_tokens: Secret, only namespace(bootstrap_token::NAMESPACE), only fields(format!("type={}", bootstrap_token::TYPE));
    resource_quotas: ResourceQuota;
    admission_policies: ValidatingAdmissionPolicy;
    certificate_signing_requests: CertificateSigningRequest;
    persistent_volume_claims: PersistentVolumeClaim, by BY_CLASS => class_wanted, BY_VOLUME => volume_of;
    persistent_volumes: PersistentVolume, by BY_CLAIM => claim_of, BY_CLASS => class_offered;
    storage_classes: StorageClass;
    pod_disruption_budgets: PodDisruptionBudget;
    replica_sets: ReplicaSet, by BY_OWNER => owner_of;
    deployments: Deployment;
    replication_controllers: ReplicationController;
    stateful_sets: StatefulSet;
    daemon_sets: DaemonSet;
    controller_revisions: ControllerRevision, by BY_OWNER => owner_of;
    jobs: Job, by BY_OWNER => owner_of;
    cron_jobs: CronJob;
    horizontal_pod_autoscalers: Autoscaler;
    /// Only the Leases in `kube-node-lease`.
    leases: Lease, only namespace(NODE_LEASES);
}

impl Informers {
    /// Pods by `spec.nodeName`, "" for unscheduled ones.
    pub const BY_NODE: &str = "node";
    /// By the uid of the controller; those without one under `<namespace>/`.
    pub const BY_OWNER: &str = "owner";
    /// Pods that have not ended, have failed, or are held by a finalizer, as by [`Informers::BY_OWNER`]; those of indexes with a limit
    /// of their own only until they have ended and are released.
    pub const OPEN: &str = "open";
    /// Pods that have ended, all under "".
    pub const ENDED: &str = "ended";
    /// Pods that wait for a node, by their namespace.
    pub const WAITING: &str = "waiting";
    /// Pods that have failed or are terminating, by namespace.
    pub const LEAVING: &str = "leaving";
    /// PersistentVolumes by their claim, and Pods by the claims that they use: `<namespace>/<name>`.
    pub const BY_CLAIM: &str = "claim";
    /// PersistentVolumes without a claim, and claims without a volume, by storage class; "" is none.
    pub const BY_CLASS: &str = "class";
    /// Claims by their volume.
    pub const BY_VOLUME: &str = "volume";
    /// EndpointSlices by `<namespace>/<service>`.
    pub const BY_SERVICE: &str = "service";
}

fn node_of(pod: &Pod) -> Vec<String> {
    vec![pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default()]
}

fn claims_used(pod: &Pod) -> Vec<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    all_used(pod).iter().map(|used| format!("{namespace}/{}", used.name)).collect()
}

fn waits_in(pod: &Pod) -> Vec<String> {
    match waits(pod) {
        true => vec![pod.metadata.namespace.clone().unwrap_or_default()],
        false => Vec::new(),
    }
}

fn leaves(pod: &Pod) -> Vec<String> {
    let failed = || pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Failed"));
    match pod.metadata.deletion_timestamp.is_some() || failed() {
        true => vec![pod.metadata.namespace.clone().unwrap_or_default()],
        false => Vec::new(),
    }
}

fn has_ended(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|s| matches!(s.phase.as_deref(), Some("Succeeded" | "Failed")))
}

fn ended(pod: &Pod) -> Vec<String> {
    if has_ended(pod) { vec![String::new()] } else { Vec::new() }
}

/// How often an index of a Job with `backoffLimitPerIndex` failed before this Pod.
const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";

fn open_of(pod: &Pod) -> Vec<String> {
    let is_held = || pod.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty());
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    // Of an index with a limit of its own: its successor knows of it.
    let has_own_limit = || pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(INDEX_FAILURES));
    let is_done = phase == Some("Succeeded") || phase == Some("Failed") && has_own_limit();
    if is_done && !is_held() { Vec::new() } else { owner_of(pod) }
}

/// Whether a Pod waits for a node. (One that is being deleted, or has ended, waits for none.)
fn waits(pod: &Pod) -> bool {
    let scheduled =
        pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref().is_some_and(|node| !node.is_empty()));
    !scheduled && pod.metadata.deletion_timestamp.is_none() && !has_ended(pod)
}

fn owner_of<K: Typed>(object: &K) -> Vec<String> {
    let meta = object.metadata();
    let owner = meta.owner_references.iter().flatten().find(|o| o.controller == Some(true));
    match owner {
        Some(owner) => vec![owner.uid.clone()],
        None => vec![format!("{}/", meta.namespace.as_deref().unwrap_or_default())],
    }
}

fn service_of(slice: &EndpointSlice) -> Vec<String> {
    let service = slice.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/service-name"));
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    service.map(|name| format!("{namespace}/{name}")).into_iter().collect()
}

fn class_wanted(claim: &PersistentVolumeClaim) -> Vec<String> {
    match volume_name(claim) {
        None => vec![claim_class(claim).to_owned()],
        Some(_) => Vec::new(),
    }
}

fn volume_of(claim: &PersistentVolumeClaim) -> Vec<String> {
    volume_name(claim).map(str::to_owned).into_iter().collect()
}

fn claim_of(volume: &PersistentVolume) -> Vec<String> {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    claim.map(|claim| format!("{}/{}", part(&claim.namespace), part(&claim.name))).into_iter().collect()
}

fn class_offered(volume: &PersistentVolume) -> Vec<String> {
    match claim_ref(volume) {
        None => vec![volume_class(volume).to_owned()],
        Some(_) => Vec::new(),
    }
}
