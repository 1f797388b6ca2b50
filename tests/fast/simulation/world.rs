//! The whole store as it is at one moment, decoded; and what happens to it, step by step.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{Timestamp, tz::TimeZone};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::{CronJob, Job},
    coordination::v1::Lease,
    core::v1::{Endpoints, Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use podwright::client::{Autoscaler, Key, Partial, Typed};

use super::past::Past;

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
        self.0.values().filter(move |object| podwright::controllers::meta::is_controlled_by(object.metadata(), uid))
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
    Autoscaler(Change<Autoscaler>),
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
    /// A Pod that is ready ceases to be, by itself.
    Falls(Key),
    /// So many thousandths of a CPU are wanted of the Pods of an app.
    Load(Key, u64),
    /// Somebody does something.
    Stirs,
    /// An autoscaler sets the size of a Deployment.
    Scales {
        target: Key,
        replicas: i32,
    },
    /// A part of a control plane sends a write.
    Writes {
        part: &'static str,
        plane: String,
    },
    /// The scheduler has a Pod deleted.
    Preempts {
        pod: Key,
        uid: Option<String>,
    },
    /// It tells for whom, by uid, and from which node a Pod had to go.
    Preempted {
        victim: String,
        by: String,
        node: String,
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
    /// The zone of schedules that name none; without one, UTC.
    pub zone: Option<TimeZone>,
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
    pub autoscalers: Shelf<Autoscaler>,
    pub budgets: Shelf<PodDisruptionBudget>,
    pub leases: Shelf<Lease>,
    pub past: Past,
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
            "horizontalpodautoscalers.autoscaling" => return Step::Autoscaler(self.autoscalers.set(key, bytes)),
            "poddisruptionbudgets.policy" => drop(self.budgets.set(key, bytes)),
            "leases.coordination.k8s.io" => drop(self.leases.set(key, bytes)),
            "replicasets.apps" => drop(self.replica_sets.set(key, bytes)),
            "controllerrevisions.apps" => drop(self.revisions.set(key, bytes)),
            "persistentvolumes" => drop(self.volumes.set(key, bytes)),
            "services" => drop(self.services.set(key, bytes)),
            "endpointslices.discovery.k8s.io" => drop(self.slices.set(key, bytes)),
            "endpoints" => drop(self.endpoints.set(key, bytes)),
            "events" => return preempted(bytes).unwrap_or(Step::Other),
            _ => {}
        }
        Step::Other
    }
}

/// What the event of a preemption tells.
fn preempted(event: Option<&[u8]>) -> Option<Step> {
    let event: Event = serde_json::from_slice(event?).ok()?;
    let (by, node) = event.message?.strip_prefix("Preempted by pod ")?.split_once(" on node ").map(own)?;
    Some(Step::Preempted { victim: event.involved_object.uid?, by, node })
}

fn own((one, other): (&str, &str)) -> (String, String) {
    (one.to_owned(), other.to_owned())
}
