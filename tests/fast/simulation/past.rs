//! What is remembered of the steps of a history, because later ones are judged by it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    batch::v1::{CronJob, Job},
    core::v1::Pod,
};
use podwright::{
    client::{Key, Typed},
    controllers::meta,
};

use super::{
    invariants::{bounds::Bounds, room},
    scalings::Scalings,
    world::{Change, Shelf, Step, World},
};

/// How far anybody lags behind what it watches, at most; and how far clocks are set back.
pub const LAG: SignedDuration = SignedDuration::from_secs(35);

/// What has to be remembered.
#[derive(Default)]
pub struct Past {
    /// What was wished of each workload since the last rest, by uid.
    pub bounds: BTreeMap<Option<String>, Bounds>,
    /// Whether something other than the controllers has taken Pods away since the last rest.
    pub disturbed: bool,
    /// The workloads, by uid, of which somebody has evicted a Pod since then.
    pub evicted: BTreeSet<String>,
    /// Those of which the scheduler has taken one for a more important Pod.
    pub preempted: BTreeSet<String>,
    /// Those of which one has ceased to be ready.
    pub unsteady: BTreeSet<String>,
    /// Every Pod that there has been, by uid.
    pub known: BTreeMap<String, Known>,
    pub scalings: Scalings,
    /// What runs, by uid: the Pod's name and its node.
    pub running: BTreeMap<String, (Key, String)>,
    /// Each Job that a CronJob has made: the CronJob's uid and the time, and the Jobs' uids.
    pub started: BTreeMap<(String, String), BTreeSet<Option<String>>>,
    /// The schedules and zones that were wished of each CronJob since the last rest, by uid.
    pub schedules: BTreeMap<Option<String>, BTreeSet<(String, Option<String>)>>,
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

/// A Pod that there is, or was.
#[derive(Clone, Debug)]
pub struct Known {
    pub priority: i32,
    /// Whether others may have to go for it.
    pub preempts: bool,
    pub node: Option<String>,
    /// Until when it waited for a node.
    pub waited: Option<Timestamp>,
    /// Until when it was ready.
    pub lapsed: Option<Timestamp>,
}

impl Known {
    fn of(pod: &Pod) -> Known {
        let spec = pod.spec.as_ref();
        Known {
            priority: spec.and_then(|spec| spec.priority).unwrap_or(0),
            preempts: spec.and_then(|spec| spec.preemption_policy.as_deref()) != Some("Never"),
            node: meta::node_name(pod).map(str::to_owned),
            waited: None,
            lapsed: None,
        }
    }
}

impl World {
    /// Keeps of a step what later ones are judged by.
    pub fn remember(&mut self, step: &Step) {
        self.remember_scaling(step);
        let past = &mut self.past;
        match step {
            Step::Disturbance => {
                past.disturbed = true;
                past.bounds.values_mut().for_each(Bounds::relax);
            }
            Step::Lost(node) => drop(past.lost.insert(node.clone())),
            Step::Found(node) => drop(past.lost.remove(node)),
            Step::Rest => {
                past.disturbed = false;
                past.evicted.clear();
                past.preempted.clear();
                past.unsteady.clear();
                past.bounds.clear();
                let crons = self.cron_jobs.all().map(|(_, cron)| cron);
                let schedules = crons.filter_map(|cron| Some((cron.metadata.uid.clone(), [schedule(cron)?].into())));
                past.schedules = schedules.collect();
                self.settle();
            }
            Step::Runs { pod, uid, node } => drop(past.running.insert(uid.clone(), (pod.clone(), node.clone()))),
            Step::Writes { part, plane } => drop(past.acted.insert((part, plane.clone()))),
            Step::Leads { part, plane } => drop(past.leading.entry(part).or_insert_with(|| plane.clone())),
            Step::Resigns { part, plane } => past.leading.retain(|of, known| of != part || known != plane),
            Step::Ends { uid } => drop(past.running.remove(uid)),
            Step::Deployment(change) => {
                past.wish(change, Bounds::of_deployment);
                if is_less_midway(&self.replica_sets, change) {
                    past.relax(&change.new.as_ref().and_then(|new| new.metadata.uid.clone()));
                }
            }
            Step::StatefulSet(change) => past.wish(change, Bounds::of_stateful_set),
            Step::DaemonSet(change) => past.wish(change, Bounds::of_daemon_set),
            Step::Job(change) => {
                past.wish(change, Bounds::of_job);
                past.start(change);
            }
            Step::CronJob(change) => {
                past.suspend(change, self.now);
                let new = change.new.as_ref();
                let schedule = new.and_then(|cron| Some((cron.metadata.uid.clone(), schedule(cron)?)));
                if let Some((uid, schedule)) = schedule {
                    past.schedules.entry(uid).or_default().insert(schedule);
                }
            }
            Step::Pod(change) => {
                past.succeed(change);
                past.know(change, self.now);
                // One that no node has goes at once, and with its mark.
                let last = change.new.as_deref().or(change.old.as_deref());
                if let Some(gone) = change.deleted().filter(|_| last.is_some_and(is_evicted)) {
                    let workload = workload(&self.replica_sets, gone);
                    past.relax(&workload);
                    past.evicted.extend(workload);
                }
            }
            Step::Falls(pod) => {
                let workload = self.pods.get(pod).and_then(|pod| workload(&self.replica_sets, pod));
                past.unsteady.extend(workload);
            }
            Step::Preempts { pod, uid } => {
                let victim = self.pods.get(pod).filter(|pod| uid.is_none() || pod.metadata.uid == *uid);
                let workload = victim.and_then(|pod| workload(&self.replica_sets, pod));
                past.relax(&workload);
                past.preempted.extend(workload);
            }
            _ => {}
        }
    }

    /// At rest everything keeps to its newest wish, and has what it needs, or all of it for which there is room.
    fn settle(&mut self) {
        fn each<K: Typed>(shelf: &Shelf<K>, of: impl Fn(&K) -> Bounds) -> Vec<(Option<String>, Bounds)> {
            shelf.all().map(|(_, object)| (object.metadata().uid.clone(), of(object))).collect()
        }
        let deployments = each(&self.deployments, |deployment| {
            let bounds = Bounds::of_deployment(deployment);
            let pods: Vec<_> = self.pods_of(&deployment.metadata.uid).collect();
            match pods.iter().any(|pod| room::is_stuck(self, pod)) {
                true => bounds.short(pods.iter().filter(|pod| meta::is_active(pod) && meta::is_ready(pod)).count()),
                false => bounds.settled(),
            }
        });
        let others = each(&self.stateful_sets, Bounds::of_stateful_set).into_iter();
        let others =
            others.chain(each(&self.daemon_sets, Bounds::of_daemon_set)).chain(each(&self.jobs, Bounds::of_job));
        self.past.bounds.extend(deployments.into_iter().chain(others));
    }

    /// The Pods of a workload, whether it has them itself or by way of ReplicaSets.
    pub fn pods_of(&self, uid: &Option<String>) -> impl Iterator<Item = &Arc<Pod>> {
        let pods = self.pods.all().map(|(_, pod)| pod);
        pods.filter(move |pod| uid.is_some() && self.workload(pod) == *uid)
    }

    /// Whether a Pod is there and ready, or was so a moment ago: who acts on it may not have heard yet.
    pub fn lately(&self, pod: &Pod) -> bool {
        let known = self.past.known.get(pod.metadata.uid.as_deref().unwrap_or_default());
        let lapsed = known.and_then(|known| known.lapsed);
        let was = lapsed.is_some_and(|at| self.now.duration_since(at) <= LAG);
        meta::is_active(pod) && (meta::is_ready(pod) || was)
    }

    /// The uid of the workload that a Pod is of: what controls it, or controls its ReplicaSet.
    pub fn workload(&self, pod: &Pod) -> Option<String> {
        workload(&self.replica_sets, pod)
    }
}

fn schedule(cron: &CronJob) -> Option<(String, Option<String>)> {
    cron.spec.as_ref().map(|spec| (spec.schedule.clone(), spec.time_zone.clone()))
}

/// Whether a Deployment is made smaller in the midst of a rollout: then each of its ReplicaSets loses its share ("proportional
/// scaling"), whether its Pods are ready or not.
fn is_less_midway(sets: &Shelf<ReplicaSet>, change: &Change<Deployment>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return false };
    let replicas = |deployment: &Deployment| deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let has_pods = |set: &&Arc<ReplicaSet>| set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1) > 0;
    replicas(new) < replicas(old) && sets.owned(&new.metadata.uid).filter(has_pods).count() > 1
}

fn workload(sets: &Shelf<ReplicaSet>, pod: &Pod) -> Option<String> {
    let owner = meta::controller(&pod.metadata)?;
    let set = sets.get(&Key::new(meta::namespace(&pod.metadata), &owner.name));
    let set = set.filter(|set| set.metadata.uid.as_ref() == Some(&owner.uid));
    let above = set.and_then(|set| meta::controller(&set.metadata));
    Some(above.unwrap_or(owner).uid.clone())
}

/// Whether the Pod goes because somebody has evicted it.
pub fn is_evicted(pod: &Pod) -> bool {
    let target = meta::pod_condition(pod, "DisruptionTarget").filter(|condition| condition.status == "True");
    target.is_some_and(|condition| condition.reason.as_deref() == Some("EvictionByEvictionAPI"))
}

impl Past {
    /// Nobody promises ready Pods of a workload any more.
    fn relax(&mut self, workload: &Option<String>) {
        if let Some(bounds) = self.bounds.get_mut(workload) {
            bounds.relax();
        }
    }

    fn know(&mut self, change: &Change<Pod>, now: Timestamp) {
        let Some(pod) = change.new.as_ref().or(change.old.as_ref()) else { return };
        let mut pod_now = Known::of(pod);
        let before = self.known.get(pod.metadata.uid.as_deref().unwrap_or_default());
        let waits = change.new.is_some() && meta::is_active(pod) && pod_now.node.is_none();
        pod_now.waited = match before.and_then(|before| before.waited) {
            _ if waits => None,
            Some(known) => Some(known),
            None => Some(now),
        };
        let lapses = change.old.as_deref().is_some_and(meta::is_ready) && !meta::is_ready(pod);
        pod_now.lapsed = if lapses { Some(now) } else { before.and_then(|before| before.lapsed) };
        self.known.insert(pod.metadata.uid.clone().unwrap_or_default(), pod_now);
    }

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
