//! The whole store as it is at one moment, decoded, with what has to be remembered of the moments before.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::{CronJob, Job},
    coordination::v1::Lease,
    core::v1::{Endpoints, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use podwright::{
    client::{Key, Partial, Typed},
    controllers::meta,
};

use super::invariants::bounds::Bounds;

/// One change of one object.
pub struct Change<K> {
    pub key: Key,
    pub old: Option<Arc<K>>,
    pub new: Option<Arc<K>>,
}

impl<K: Typed> Change<K> {
    /// The new object, if it was not there before.
    pub fn made(&self) -> Option<&K> {
        self.new.as_deref().filter(|_| self.old.is_none())
    }

    /// The object that is being deleted, or gone, and was not before.
    pub fn deleted(&self) -> Option<&K> {
        let goes = |object: &K| object.metadata().deletion_timestamp.is_some();
        let old = self.old.as_deref().filter(|old| !goes(old))?;
        self.new.as_deref().is_none_or(goes).then_some(old)
    }
}

/// The objects of one kind.
pub struct Shelf<K>(BTreeMap<Key, Arc<K>>);

impl<K> Default for Shelf<K> {
    fn default() -> Shelf<K> {
        Shelf(BTreeMap::new())
    }
}

impl<K: Typed> Shelf<K> {
    pub fn get(&self, key: &Key) -> Option<&Arc<K>> {
        self.0.get(key)
    }
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Arc<K>)> {
        self.0.iter()
    }
    /// Those that an owner controls.
    pub fn owned(&self, uid: &Option<String>) -> impl Iterator<Item = &Arc<K>> {
        self.0.values().filter(move |object| meta::is_controlled_by(object.metadata(), uid))
    }

    fn set(&mut self, key: &Key, bytes: Option<&[u8]>) -> Change<K> {
        let new = bytes.map(|bytes| Arc::new(serde_json::from_slice::<K>(bytes).expect("what is stored decodes")));
        let old = match new.clone() {
            Some(new) => self.0.insert(key.clone(), new),
            None => self.0.remove(key),
        };
        Change { key: key.clone(), old, new }
    }
}

/// Something that happened.
pub enum Step {
    Pod(Change<Pod>),
    Claim(Change<PersistentVolumeClaim>),
    Deployment(Change<Deployment>),
    StatefulSet(Change<StatefulSet>),
    DaemonSet(Change<DaemonSet>),
    Job(Change<Job>),
    CronJob(Change<CronJob>),
    /// An object that only counts at rest.
    Other,
    /// A Pod's containers begin to run on a node.
    Runs {
        pod: Key,
        uid: String,
        node: String,
    },
    /// They have ended.
    Ends {
        uid: String,
    },
    /// A part of a control plane sends a write.
    Writes {
        part: &'static str,
        plane: String,
    },
    /// The loops of a part begin; they have ended.
    Leads {
        part: &'static str,
        plane: String,
    },
    Resigns {
        part: &'static str,
        plane: String,
    },
    /// Pods are lost, or may be, by other hands than the controllers': nobody promises a number of ready ones.
    Disturbance,
    /// A node is lost: its Pods can neither be told nor go.
    Lost(String),
    Found(String),
    /// Everything is as it shall be.
    Rest,
}

/// See the module.
#[derive(Default)]
pub struct World {
    pub now: Timestamp,
    /// The metadata of every object, by resource and key.
    pub all: BTreeMap<(String, Key), Arc<Partial>>,
    /// Keys of the store that are no objects: allocated addresses and ports.
    pub ranges: BTreeMap<String, String>,
    pub pods: Shelf<Pod>,
    pub nodes: Shelf<Node>,
    pub claims: Shelf<PersistentVolumeClaim>,
    pub volumes: Shelf<PersistentVolume>,
    pub services: Shelf<Service>,
    pub slices: Shelf<EndpointSlice>,
    pub endpoints: Shelf<Endpoints>,
    pub deployments: Shelf<Deployment>,
    pub replica_sets: Shelf<ReplicaSet>,
    pub stateful_sets: Shelf<StatefulSet>,
    pub daemon_sets: Shelf<DaemonSet>,
    pub replication_controllers: Shelf<ReplicationController>,
    pub revisions: Shelf<ControllerRevision>,
    pub jobs: Shelf<Job>,
    pub cron_jobs: Shelf<CronJob>,
    pub budgets: Shelf<PodDisruptionBudget>,
    pub leases: Shelf<Lease>,
    pub past: Past,
}

/// What has to be remembered.
#[derive(Default)]
pub struct Past {
    /// What was wished of each workload since the last rest, by uid.
    pub bounds: BTreeMap<Option<String>, Bounds>,
    /// Whether something other than the controllers has taken Pods away since the last rest.
    pub disturbed: bool,
    /// Whether somebody has evicted a Pod since then.
    pub evicted: bool,
    /// What runs, by uid: the Pod's name and its node.
    pub running: BTreeMap<String, (Key, String)>,
    /// Each Job that a CronJob has made: the CronJob's uid and the time, and the Jobs' uids.
    pub started: BTreeMap<(String, String), BTreeSet<Option<String>>>,
    /// Since when a CronJob is suspended, by uid.
    pub suspended: BTreeMap<Option<String>, Timestamp>,
    /// The Pods that ended well while their Job counted on them, by the Job's uid.
    pub succeeded: BTreeMap<String, BTreeSet<Option<String>>>,
    /// The nodes that are lost: their Pods cannot go.
    pub lost: BTreeSet<String>,
    /// Whose loops run, by part; the first that began.
    pub leading: BTreeMap<&'static str, String>,
    /// Who has written anything.
    pub acted: BTreeSet<(&'static str, String)>,
}

impl World {
    /// Takes in a write of the store.
    pub fn write(&mut self, key: &str, bytes: Option<&[u8]>) -> Step {
        let rest = key.strip_prefix("/registry/").unwrap_or(key);
        if let Some(range) = rest.strip_prefix("ranges/") {
            let owner = bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            match owner {
                Some(owner) => drop(self.ranges.insert(range.into(), owner)),
                None => drop(self.ranges.remove(range)),
            }
            return Step::Other;
        }
        let parts: Vec<&str> = rest.split('/').collect();
        let (resource, key) = match parts[..] {
            [resource, name] => (resource, Key::new("", name)),
            [resource, namespace, name] => (resource, Key::new(namespace, name)),
            // The server's own.
            _ => return Step::Other,
        };
        let partial = bytes.and_then(|bytes| serde_json::from_slice::<Partial>(bytes).ok());
        match partial {
            Some(partial) => drop(self.all.insert((resource.into(), key.clone()), Arc::new(partial))),
            None => drop(self.all.remove(&(resource.to_owned(), key.clone()))),
        }
        let step = self.shelve(resource, &key, bytes);
        self.remember(&step);
        step
    }

    fn shelve(&mut self, resource: &str, key: &Key, bytes: Option<&[u8]>) -> Step {
        match resource {
            "pods" => return Step::Pod(self.pods.set(key, bytes)),
            "nodes" => drop(self.nodes.set(key, bytes)),
            "persistentvolumeclaims" => return Step::Claim(self.claims.set(key, bytes)),
            "deployments.apps" => return Step::Deployment(self.deployments.set(key, bytes)),
            "statefulsets.apps" => return Step::StatefulSet(self.stateful_sets.set(key, bytes)),
            "daemonsets.apps" => return Step::DaemonSet(self.daemon_sets.set(key, bytes)),
            "replicationcontrollers" => drop(self.replication_controllers.set(key, bytes)),
            "jobs.batch" => return Step::Job(self.jobs.set(key, bytes)),
            "cronjobs.batch" => return Step::CronJob(self.cron_jobs.set(key, bytes)),
            "poddisruptionbudgets.policy" => drop(self.budgets.set(key, bytes)),
            "leases.coordination.k8s.io" => drop(self.leases.set(key, bytes)),
            "replicasets.apps" => drop(self.replica_sets.set(key, bytes)),
            "controllerrevisions.apps" => drop(self.revisions.set(key, bytes)),
            "persistentvolumes" => drop(self.volumes.set(key, bytes)),
            "services" => drop(self.services.set(key, bytes)),
            "endpointslices.discovery.k8s.io" => drop(self.slices.set(key, bytes)),
            "endpoints" => drop(self.endpoints.set(key, bytes)),
            _ => {}
        }
        Step::Other
    }

    /// Keeps of a step what later ones are judged by.
    pub fn remember(&mut self, step: &Step) {
        let past = &mut self.past;
        match step {
            Step::Disturbance => {
                past.disturbed = true;
                past.bounds.values_mut().for_each(Bounds::relax);
            }
            Step::Lost(node) => drop(past.lost.insert(node.clone())),
            Step::Found(node) => drop(past.lost.remove(node)),
            Step::Rest => {
                (past.disturbed, past.evicted) = (false, false);
                past.bounds.clear();
                self.settle();
            }
            Step::Runs { pod, uid, node } => drop(past.running.insert(uid.clone(), (pod.clone(), node.clone()))),
            Step::Writes { part, plane } => drop(past.acted.insert((part, plane.clone()))),
            Step::Leads { part, plane } => drop(past.leading.entry(part).or_insert_with(|| plane.clone())),
            Step::Resigns { part, plane } => past.leading.retain(|of, known| of != part || known != plane),
            Step::Ends { uid } => drop(past.running.remove(uid)),
            Step::Deployment(change) => past.wish(change, Bounds::of_deployment),
            Step::StatefulSet(change) => past.wish(change, Bounds::of_stateful_set),
            Step::DaemonSet(change) => past.wish(change, Bounds::of_daemon_set),
            Step::Job(change) => {
                past.wish(change, Bounds::of_job);
                past.start(change);
            }
            Step::CronJob(change) => past.suspend(change, self.now),
            Step::Pod(change) => {
                past.succeed(change);
                if change.deleted().is_some() && change.new.as_deref().is_some_and(is_evicted) {
                    past.evicted = true;
                    past.bounds.values_mut().for_each(Bounds::relax);
                }
            }
            _ => {}
        }
    }

    /// At rest everything keeps to its newest wish, and has what it needs.
    fn settle(&mut self) {
        let bounds = &mut self.past.bounds;
        bounds
            .extend(self.deployments.0.values().map(|d| (d.metadata.uid.clone(), Bounds::of_deployment(d).settled())));
        bounds.extend(self.stateful_sets.0.values().map(|s| (s.metadata.uid.clone(), Bounds::of_stateful_set(s))));
        bounds.extend(self.daemon_sets.0.values().map(|s| (s.metadata.uid.clone(), Bounds::of_daemon_set(s))));
        bounds.extend(self.jobs.0.values().map(|job| (job.metadata.uid.clone(), Bounds::of_job(job))));
    }
}

/// Whether the Pod goes because somebody has evicted it.
pub fn is_evicted(pod: &Pod) -> bool {
    let target = meta::pod_condition(pod, "DisruptionTarget").filter(|condition| condition.status == "True");
    target.is_some_and(|condition| condition.reason.as_deref() == Some("EvictionByEvictionAPI"))
}

impl Past {
    fn wish<K: Typed>(&mut self, change: &Change<K>, of: fn(&K) -> Bounds) {
        let Some(new) = &change.new else { return };
        let generation = |object: &Arc<K>| object.metadata().generation;
        if change.old.as_ref().is_some_and(|old| generation(old) == generation(new)) {
            return;
        }
        let (uid, wished) = (new.metadata().uid.clone(), of(new));
        match self.bounds.get_mut(&uid) {
            Some(bounds) => bounds.widen(&wished),
            // It has nothing yet: so nothing can be missing.
            None => drop(self.bounds.insert(uid, wished.fresh())),
        }
    }

    fn start(&mut self, change: &Change<Job>) {
        let Some(job) = change.made() else { return };
        let Some(owner) = meta::controller(&job.metadata).filter(|owner| owner.kind == "CronJob") else { return };
        if let Some(at) = meta::annotation(&job.metadata, "batch.kubernetes.io/cronjob-scheduled-timestamp") {
            self.started.entry((owner.uid.clone(), at.to_owned())).or_default().insert(job.metadata.uid.clone());
        }
    }

    fn suspend(&mut self, change: &Change<CronJob>, now: Timestamp) {
        let Some(cron) = &change.new else { return };
        match cron.spec.as_ref().and_then(|spec| spec.suspend) {
            Some(true) => drop(self.suspended.entry(cron.metadata.uid.clone()).or_insert(now)),
            _ => drop(self.suspended.remove(&cron.metadata.uid)),
        }
    }

    fn succeed(&mut self, change: &Change<Pod>) {
        let Some(pod) = &change.new else { return };
        let held = pod.metadata.finalizers.iter().flatten().any(|f| f == podwright::controllers::job::FINALIZER);
        let owner = meta::controller(&pod.metadata).filter(|owner| owner.kind == "Job");
        if let Some(owner) = owner.filter(|_| held && meta::phase(pod) == "Succeeded") {
            self.succeeded.entry(owner.uid.clone()).or_default().insert(pod.metadata.uid.clone());
        }
    }
}
