//! The shared informers of a server process: one per kind, for controllers and scheduler alike.

use k8s_openapi::{
    Metadata,
    api::{
        admissionregistration::v1::ValidatingAdmissionPolicy,
        apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
        batch::v1::{CronJob, Job},
        certificates::v1::CertificateSigningRequest,
        coordination::v1::Lease,
        core::v1::{
            ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController,
            ResourceQuota, Service, ServiceAccount,
        },
        discovery::v1::EndpointSlice,
        policy::v1::PodDisruptionBudget,
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{Autoscaler, Client, Informer};
use crate::api::{
    persistent_volume::{claim_class, claim_ref, volume_class, volume_name},
    root_ca,
};

/// Where agents keep their heartbeats, one Lease named as its Node.
pub const NODE_LEASES: &str = "kube-node-lease";

/// One shared informer per kind and process. Cheap to clone.
#[derive(Clone)]
pub struct Informers {
    /// Indexes: [`Informers::BY_NODE`], [`Informers::BY_OWNER`].
    pub pods: Informer<Pod>,
    pub nodes: Informer<Node>,
    pub services: Informer<Service>,
    /// Index: [`Informers::BY_SERVICE`].
    pub endpoint_slices: Informer<EndpointSlice>,
    pub endpoints: Informer<Endpoints>,
    pub namespaces: Informer<Namespace>,
    pub service_accounts: Informer<ServiceAccount>,
    /// The ConfigMaps `kube-root-ca.crt` alone.
    pub root_cas: Informer<ConfigMap>,
    pub resource_quotas: Informer<ResourceQuota>,
    pub admission_policies: Informer<ValidatingAdmissionPolicy>,
    pub certificate_signing_requests: Informer<CertificateSigningRequest>,
    /// Indexes: [`Informers::BY_CLASS`], [`Informers::BY_VOLUME`].
    pub persistent_volume_claims: Informer<PersistentVolumeClaim>,
    /// Indexes: [`Informers::BY_CLAIM`], [`Informers::BY_CLASS`].
    pub persistent_volumes: Informer<PersistentVolume>,
    pub storage_classes: Informer<StorageClass>,
    pub pod_disruption_budgets: Informer<PodDisruptionBudget>,
    /// Index: [`Informers::BY_OWNER`].
    pub replica_sets: Informer<ReplicaSet>,
    pub deployments: Informer<Deployment>,
    pub replication_controllers: Informer<ReplicationController>,
    pub stateful_sets: Informer<StatefulSet>,
    pub daemon_sets: Informer<DaemonSet>,
    /// Index: [`Informers::BY_OWNER`].
    pub controller_revisions: Informer<ControllerRevision>,
    /// Index: [`Informers::BY_OWNER`].
    pub jobs: Informer<Job>,
    pub cron_jobs: Informer<CronJob>,
    pub horizontal_pod_autoscalers: Informer<Autoscaler>,
    /// The Leases of the namespace `kube-node-lease` alone.
    pub leases: Informer<Lease>,
}

impl Informers {
    /// Pods by `spec.nodeName`, "" for unscheduled ones.
    pub const BY_NODE: &str = "node";
    /// By the uid of the controlling owner; those without one under `<namespace>/`.
    pub const BY_OWNER: &str = "owner";
    /// Pods that wait for a node, by their namespace.
    pub const WAITING: &str = "waiting";
    /// PersistentVolumes by the claim that they refer to: `<namespace>/<name>`.
    pub const BY_CLAIM: &str = "claim";
    /// PersistentVolumes that refer to no claim, and claims that name no volume, by their storage class; "" is none.
    pub const BY_CLASS: &str = "class";
    /// Claims by the volume that they name.
    pub const BY_VOLUME: &str = "volume";
    /// EndpointSlices by `<namespace>/<service>`.
    pub const BY_SERVICE: &str = "service";

    /// Starts them all. Must be called inside a tokio runtime.
    pub fn start(client: Client) -> Informers {
        let node_of = |pod: &Pod| vec![pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default()];
        let service_of = |slice: &EndpointSlice| {
            let service = slice.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/service-name"));
            let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
            service.map(|name| format!("{namespace}/{name}")).into_iter().collect()
        };
        let claim_of = |volume: &PersistentVolume| {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            let part = |part: &Option<String>| part.clone().unwrap_or_default();
            claim.map(|claim| format!("{}/{}", part(&claim.namespace), part(&claim.name))).into_iter().collect()
        };
        Informers {
            pods: Informer::builder(client.clone())
                .index(Self::BY_NODE, node_of)
                .index(Self::BY_OWNER, |pod: &Pod| owner_of(pod.metadata()))
                .index(Self::WAITING, |pod: &Pod| match waits(pod) {
                    true => vec![pod.metadata.namespace.clone().unwrap_or_default()],
                    false => Vec::new(),
                })
                .start(),
            nodes: Informer::builder(client.clone()).start(),
            services: Informer::builder(client.clone()).start(),
            endpoint_slices: Informer::builder(client.clone()).index(Self::BY_SERVICE, service_of).start(),
            endpoints: Informer::builder(client.clone()).start(),
            namespaces: Informer::builder(client.clone()).start(),
            service_accounts: Informer::builder(client.clone()).start(),
            root_cas: Informer::builder(client.clone()).fields(format!("metadata.name={}", root_ca::NAME)).start(),
            resource_quotas: Informer::builder(client.clone()).start(),
            admission_policies: Informer::builder(client.clone()).start(),
            certificate_signing_requests: Informer::builder(client.clone()).start(),
            persistent_volume_claims: Informer::builder(client.clone())
                .index(Self::BY_CLASS, |claim: &PersistentVolumeClaim| match volume_name(claim) {
                    None => vec![claim_class(claim).to_owned()],
                    Some(_) => Vec::new(),
                })
                .index(Self::BY_VOLUME, |claim| volume_name(claim).map(str::to_owned).into_iter().collect())
                .start(),
            persistent_volumes: Informer::builder(client.clone())
                .index(Self::BY_CLAIM, claim_of)
                .index(Self::BY_CLASS, |volume| match claim_ref(volume) {
                    None => vec![volume_class(volume).to_owned()],
                    Some(_) => Vec::new(),
                })
                .start(),
            storage_classes: Informer::builder(client.clone()).start(),
            pod_disruption_budgets: Informer::builder(client.clone()).start(),
            replica_sets: Informer::builder(client.clone())
                .index(Self::BY_OWNER, |rs: &ReplicaSet| owner_of(rs.metadata()))
                .start(),
            deployments: Informer::builder(client.clone()).start(),
            replication_controllers: Informer::builder(client.clone()).start(),
            stateful_sets: Informer::builder(client.clone()).start(),
            daemon_sets: Informer::builder(client.clone()).start(),
            controller_revisions: Informer::builder(client.clone())
                .index(Self::BY_OWNER, |revision: &ControllerRevision| owner_of(revision.metadata()))
                .start(),
            jobs: Informer::builder(client.clone()).index(Self::BY_OWNER, |job: &Job| owner_of(job.metadata())).start(),
            cron_jobs: Informer::builder(client.clone()).start(),
            horizontal_pod_autoscalers: Informer::builder(client.clone()).start(),
            leases: Informer::builder(client).namespace(NODE_LEASES).start(),
        }
    }

    /// Waits until every first list is complete.
    pub async fn synced(&self) {
        self.pods.synced().await;
        self.nodes.synced().await;
        self.services.synced().await;
        self.endpoint_slices.synced().await;
        self.endpoints.synced().await;
        self.namespaces.synced().await;
        self.service_accounts.synced().await;
        self.root_cas.synced().await;
        self.resource_quotas.synced().await;
        self.admission_policies.synced().await;
        self.certificate_signing_requests.synced().await;
        self.persistent_volume_claims.synced().await;
        self.persistent_volumes.synced().await;
        self.storage_classes.synced().await;
        self.pod_disruption_budgets.synced().await;
        self.replica_sets.synced().await;
        self.deployments.synced().await;
        self.replication_controllers.synced().await;
        self.stateful_sets.synced().await;
        self.daemon_sets.synced().await;
        self.controller_revisions.synced().await;
        self.jobs.synced().await;
        self.cron_jobs.synced().await;
        self.horizontal_pod_autoscalers.synced().await;
        self.leases.synced().await;
    }
}

/// Whether a Pod waits for a node. (One that is being deleted, or has ended, waits for none.)
fn waits(pod: &Pod) -> bool {
    let ended = || pod.status.as_ref().is_some_and(|s| matches!(s.phase.as_deref(), Some("Succeeded" | "Failed")));
    let scheduled =
        pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref().is_some_and(|node| !node.is_empty()));
    !scheduled && pod.metadata.deletion_timestamp.is_none() && !ended()
}

fn owner_of(meta: &ObjectMeta) -> Vec<String> {
    let owner = meta.owner_references.iter().flatten().find(|o| o.controller == Some(true));
    match owner {
        Some(owner) => vec![owner.uid.clone()],
        None => vec![format!("{}/", meta.namespace.as_deref().unwrap_or_default())],
    }
}
