//! DaemonSets: a Pod on every eligible node.
//!
//! Upstream: `pkg/controller/daemon`. [`plan`] corresponds to upstream's `updateDaemonSet`; [`nodes`] decides which nodes are
//! eligible, [`rolling`] how a change of the template is rolled out. Upstream's back-off counts failed Pods of each node in memory;
//! here each Pod has that count in an annotation, so a restart changes nothing.

pub mod nodes;
pub mod rolling;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus},
    core::v1::{Node, Pod, PodSpec},
};

use super::{
    Context, Plan, Row, Work, Writes,
    history::{self, Belongings, Current, Wanted},
    meta,
    write::{Note, Write},
};
use nodes::Fit;
use podwright_client::{Delta, Key, reference};

/// How many Pods failed in a row on a Pod's node before it.
pub const FAILURES: &str = "podwright/failures";
/// How long a failed Pod is kept: first not at all, then longer each time, counted from its creation.
const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(15 * 60);
/// The most Pods created or deleted for one DaemonSet at a time.
const BURST: usize = 250;

pub const ROW: Row = Row {
    name: "daemonset-controller",
    workers: 2,
    writes: Writes::Of(&["daemonsets.apps", "pods", "controllerrevisions.apps"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.daemon_sets);
        // Without the back-off for Pods that fail at once: each node has a back-off of its own.
        watches.owner(&informers.pods, "DaemonSet");
        watches.owner(&informers.controller_revisions, "DaemonSet");
        watches.on(&informers.pods, |world, queue, change| {
            // An orphan may be adopted by any DaemonSet that selects it.
            let Some(pod) = meta::orphan(change) else { return };
            for set in world.informers.daemon_sets.list_namespace(&change.key.namespace) {
                if set.spec.as_ref().is_some_and(|spec| meta::selects(&spec.selector, &pod.metadata)) {
                    queue.add(Key::of(&*set));
                }
            }
        });
        watches.on(&informers.nodes, |world, queue, change| {
            // Heartbeats are frequent, and affect no Pod.
            if change.old.is_some() && change.new.is_some() && looks(&change.old) == looks(&change.new) {
                return;
            }
            for set in world.informers.daemon_sets.list() {
                if concerns(&set, change) {
                    queue.add(Key::of(&*set));
                }
            }
        });
    },
    reconcile,
};

/// The properties of a node that decide which Pods run on it.
fn looks(
    node: &Option<Arc<Node>>,
) -> Option<(&Option<BTreeMap<String, String>>, Option<&Vec<k8s_openapi::api::core::v1::Taint>>)> {
    let node = node.as_ref()?;
    Some((&node.metadata.labels, node.spec.as_ref().and_then(|spec| spec.taints.as_ref())))
}

fn concerns(set: &DaemonSet, change: &Delta<Node>) -> bool {
    let spec = nodes::spec(set);
    let fit = |node: &Option<Arc<Node>>| node.as_ref().map(|node| nodes::fit(&spec, node));
    fit(&change.old) != fit(&change.new)
}

fn selector(set: &DaemonSet) -> Option<podwright_api::selector::LabelSelector> {
    meta::selector(&set.spec.as_ref()?.selector)
}

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let informers = &context.world.informers;
    let mut plan = Plan::default();
    let Some(set) = informers.daemon_sets.get(key) else { return plan };
    let Some(selector) = selector(&set) else {
        let message = "This daemon set is selecting all pods. A non-empty selector is required.";
        plan.notes.push(Note::warning(reference(&*set), "SelectingAll", message));
        return plan;
    };
    let Belongings { pods, revisions } = match history::belongings(informers, &*set, &selector, |_| true) {
        Ok(belongings) => belongings,
        Err(first) => return first,
    };
    self::plan(&Inputs {
        set: &set,
        revisions: &revisions,
        taken: &|name| informers.controller_revisions.get(&Key::new(&key.namespace, name)).is_some(),
        pods: &pods,
        nodes: &informers.nodes.list(),
        now: context.now,
    })
}

/// The inputs of a DaemonSet's plan.
pub struct Inputs<'a> {
    pub set: &'a DaemonSet,
    /// Its own ControllerRevisions.
    pub revisions: &'a [Arc<ControllerRevision>],
    /// Whether a ControllerRevision of this name exists, of any owner.
    pub taken: &'a dyn Fn(&str) -> bool,
    /// Its own Pods, including finished and terminating ones.
    pub pods: &'a [Arc<Pod>],
    pub nodes: &'a [Arc<Node>],
    pub now: Timestamp,
}

/// A DaemonSet's Pods, grouped.
pub struct Daemons<'a> {
    pub scene: &'a Inputs<'a>,
    /// The Pods' spec without their node.
    spec: PodSpec,
    /// The hash of the current template's revision; and those of all equal revisions.
    hash: String,
    hashes: BTreeSet<String>,
    fits: BTreeMap<&'a str, Fit>,
    /// The Pods on or for each node, the oldest first; without finished and terminating ones.
    places: BTreeMap<&'a str, Vec<&'a Arc<Pod>>>,
}

/// The actions to take.
#[derive(Default)]
pub struct Steps<'a> {
    /// The nodes that get a Pod, and how many have failed there before.
    create: Vec<(&'a str, u32)>,
    delete: Vec<&'a Arc<Pod>>,
    again: Option<Duration>,
}

/// Plans a DaemonSet.
pub fn plan(scene: &Inputs<'_>) -> Plan {
    let (set, mut plan) = (scene.set, Plan::default());
    let Some(spec) = set.spec.as_ref().filter(|_| !meta::is_terminating(&set.metadata)) else { return plan };
    let collisions = set.status.as_ref().and_then(|status| status.collision_count);
    let wanted = Wanted { owner: set, template: &spec.template, label: history::REVISION, collisions };
    let update = match history::current(&wanted, scene.revisions, scene.taken) {
        Current::Is(update, write) => {
            plan.then(write.into_iter().collect());
            update
        }
        Current::Collision => {
            let mut new = set.clone();
            new.status.get_or_insert_default().collision_count = Some(collisions.unwrap_or(0) + 1);
            plan.then(Write::status(set, &new).into_iter().collect());
            return plan;
        }
    };
    let daemons = Daemons::of(scene, &update);
    let mut steps = daemons.manage();
    if steps.create.is_empty() && steps.delete.is_empty() {
        // A rollout continues when every node has its Pod.
        rolling::steps(&daemons, &mut steps);
    }
    let mut new = set.clone();
    new.status = Some(daemons.status());
    plan.report = Write::status(set, &new);
    let expired = daemons.expired(spec.revision_history_limit, &update);
    steps.again.into_iter().for_each(|wait| plan.requeue(wait));
    plan.work = plan.work.then(daemons.work(&steps).beside(expired));
    let ripe = scene.pods.iter().filter_map(|pod| meta::available_at(pod, min_ready_seconds(set)));
    if let Some(wait) = ripe.filter_map(|at| meta::until(scene.now, at)).min() {
        plan.requeue(wait);
    }
    plan
}

fn min_ready_seconds(set: &DaemonSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
}

/// The hash label of a revision or a Pod.
fn hash(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Option<&str> {
    meta.labels.as_ref()?.get(history::REVISION).map(String::as_str)
}

impl<'a> Daemons<'a> {
    fn of(scene: &'a Inputs<'a>, update: &ControllerRevision) -> Daemons<'a> {
        let spec = nodes::spec(scene.set);
        let fits = scene.nodes.iter().map(|node| (meta::name(&node.metadata), nodes::fit(&spec, node))).collect();
        let mut places: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
        let counts = |pod: &&Arc<Pod>| !(meta::is_finished(pod) && meta::is_terminating(&pod.metadata));
        for pod in scene.pods.iter().filter(counts) {
            if let Some(node) = nodes::target(pod) {
                places.entry(node).or_default().push(pod);
            }
        }
        for pods in places.values_mut() {
            pods.sort_by_key(|pod| (meta::node_name(pod).is_none(), meta::created(&pod.metadata), &pod.metadata.name));
        }
        let template = scene.set.spec.as_ref().map(|spec| &spec.template);
        let same = |known: &&Arc<ControllerRevision>| template.is_some_and(|template| history::has(known, template));
        let hashes = scene.revisions.iter().filter(same).filter_map(|known| hash(&known.metadata));
        let current = hash(&update.metadata).unwrap_or_else(|| meta::name(&update.metadata)).to_owned();
        let hashes = hashes.map(str::to_owned).chain([current.clone()]).collect();
        Daemons { scene, spec, hash: current, hashes, fits, places }
    }

    /// The Pods on or for a node, the oldest first.
    pub fn on(&self, node: &str) -> &[&'a Arc<Pod>] {
        self.places.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// The nodes that need a Pod.
    pub fn wanted(&self) -> impl Iterator<Item = &'a str> {
        self.fits.iter().filter(|(_, fit)| fit.run).map(|(name, _)| *name)
    }

    /// The nodes whose Pods may stay, but would not be replaced.
    pub fn leaving(&self) -> impl Iterator<Item = &'a str> {
        let leaves = |(name, fit): &(&&'a str, &Fit)| fit.stay && !fit.run && !self.on(name).is_empty();
        self.fits.iter().filter(leaves).map(|(name, _)| *name)
    }

    pub fn is_updated(&self, pod: &Pod) -> bool {
        hash(&pod.metadata).is_some_and(|hash| self.hashes.contains(hash))
    }

    /// Ready for at least minReadySeconds.
    pub fn is_available(&self, pod: &Pod) -> bool {
        meta::available_at(pod, min_ready_seconds(self.scene.set)).is_some_and(|at| at <= self.scene.now)
    }

    /// Gives every eligible node a Pod of any revision.
    fn manage(&self) -> Steps<'a> {
        let mut steps = Steps::default();
        for (node, fit) in &self.fits {
            let pods = self.on(node);
            match fit {
                Fit { run: true, .. } if pods.is_empty() => steps.create.push((node, 0)),
                Fit { stay: true, .. } => self.tend(node, fit.run, pods, &mut steps),
                Fit { stay: false, .. } => {
                    steps.delete.extend(pods.iter().filter(|pod| !meta::is_terminating(&pod.metadata)));
                }
            }
        }
        // No other component removes Pods that wait for a deleted node.
        let lost = self.places.iter().filter(|(node, _)| !self.fits.contains_key(*node)).flat_map(|(_, pods)| pods);
        let waits = |pod: &&&Arc<Pod>| meta::node_name(pod).is_none() && !meta::is_terminating(&pod.metadata);
        steps.delete.extend(lost.filter(waits));
        steps
    }

    /// Removes finished and surplus Pods from a node.
    fn tend(&self, node: &'a str, run: bool, pods: &[&'a Arc<Pod>], steps: &mut Steps<'a>) {
        let mut living = Vec::new();
        let (mut failures, mut kept) = (0, false);
        for pod in pods.iter().filter(|pod| !meta::is_terminating(&pod.metadata)) {
            match meta::phase(pod) {
                "Failed" => match self.forgive(pod) {
                    Ok(count) => {
                        failures = failures.max(count);
                        steps.delete.push(pod);
                    }
                    Err(wait) => {
                        steps.again = Some(steps.again.map_or(wait, |other| other.min(wait)));
                        kept = true;
                    }
                },
                "Succeeded" => steps.delete.push(pod),
                _ => living.push(*pod),
            }
        }
        let surge = rolling::allows_surge(self.scene.set);
        let leaves = pods.iter().any(|pod| meta::is_terminating(&pod.metadata));
        if living.is_empty() && !kept && (surge || !leaves) && run {
            // Finished ones are deleted at once; the next one continues their count.
            steps.create.push((node, failures));
        }
        match surge {
            true => self.prune(&living, steps),
            false => steps.delete.extend(living.iter().skip(1)),
        }
    }

    /// With surge, a ready old Pod may stay beside a new one that is not available yet; no other may.
    fn prune(&self, living: &[&'a Arc<Pod>], steps: &mut Steps<'a>) {
        let (new, old): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) = living.iter().partition(|pod| self.is_updated(pod));
        steps.delete.extend(new.iter().skip(1).chain(old.iter().skip(1)));
        if let (Some(new), Some(old)) = (new.first(), old.first())
            && (!meta::is_ready(old) || self.is_available(new))
        {
            steps.delete.push(old);
        }
    }

    /// How many have failed including this one; or how long to keep it before the next attempt.
    fn forgive(&self, pod: &Pod) -> Result<u32, Duration> {
        let made = meta::created(&pod.metadata);
        let before = meta::annotation(&pod.metadata, FAILURES).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        let forgotten = meta::later(made, 2 * MOST) <= self.scene.now || !self.is_updated(pod);
        let before = if forgotten { 0 } else { before };
        let wait = match before {
            0 => Duration::ZERO,
            n => FIRST.saturating_mul(1u32.checked_shl(n - 1).unwrap_or(u32::MAX)).min(MOST),
        };
        match meta::until(self.scene.now, meta::later(made, wait)) {
            None => Ok(before.saturating_add(1)),
            Some(wait) => Err(wait),
        }
    }

    /// The event for a Pod that is deleted because it has finished.
    fn end(&self, pod: &Pod) -> Option<Note> {
        let (key, about) = (Key::of(pod), reference(self.scene.set));
        let node = nodes::target(pod).unwrap_or_default();
        match meta::phase(pod) {
            "Failed" => {
                let message = format!("Found failed daemon pod {key} on node {node}, will try to kill it");
                Some(Note::warning(about, "FailedDaemonPod", message))
            }
            "Succeeded" => {
                let message = format!("Found succeeded daemon pod {key} on node {node}, will try to delete it");
                Some(Note::normal(about, "SucceededDaemonPod", message))
            }
            _ => None,
        }
    }

    /// A Pod that cannot be deleted does not affect other nodes.
    fn work(&self, steps: &Steps<'a>) -> Work {
        let set = self.scene.set;
        let delete = |pod: &&Arc<Pod>| {
            let deleted = format!("Deleted pod: {}", meta::name(&pod.metadata));
            let mut write =
                Write::delete(&***pod).failed(Note::warning(reference(set), "FailedDelete", "Error deleting: {}"));
            write.done.extend(self.end(pod));
            write.done(Note::normal(reference(set), "SuccessfulDelete", deleted)).into()
        };
        let create = |(node, failures): &(&str, u32)| -> Work {
            Write::create(&nodes::create(set, &self.spec, &self.hash, node, *failures))
                .done(Note::normal(reference(set), "SuccessfulCreate", "Created pod: {}"))
                .failed(Note::warning(reference(set), "FailedCreate", "Error creating: {}"))
                .into()
        };
        let deleted = Work::Beside(steps.delete.iter().take(BURST).map(delete).collect());
        let first = steps.create.first().map(create);
        let most = first.and_then(|first| first.writes().last().map(|pod| pod.burst(BURST))).unwrap_or(BURST);
        let created = steps.create.iter().take(most).map(create).collect();
        deleted.beside(Work::SlowStart(created))
    }

    /// Deletes the oldest unused revisions beyond the limit.
    fn expired(&self, limit: Option<i32>, update: &ControllerRevision) -> Vec<Write> {
        let pods: BTreeSet<&str> = self.scene.pods.iter().filter_map(|pod| hash(&pod.metadata)).collect();
        let known = self.scene.revisions.iter().map(|known| &known.metadata);
        let used = known.filter(|meta| hash(meta).is_some_and(|hash| pods.contains(hash))).map(meta::name);
        let mut alive: BTreeSet<&str> = used.collect();
        alive.insert(meta::name(&update.metadata));
        // Old revisions in use count against the limit.
        let used = i32::try_from(alive.len() - 1).unwrap_or(i32::MAX);
        history::expired(self.scene.revisions, Some(limit.unwrap_or(10).saturating_sub(used).max(0)), &alive)
    }

    fn status(&self) -> DaemonSetStatus {
        let set = self.scene.set;
        let before = set.status.clone().unwrap_or_default();
        let mut status = DaemonSetStatus {
            observed_generation: set.metadata.generation,
            collision_count: before.collision_count,
            conditions: before.conditions,
            ..DaemonSetStatus::default()
        };
        let (mut updated, mut available) = (0, 0);
        for (node, fit) in &self.fits {
            let first = self.on(node).first();
            if !fit.run {
                status.number_misscheduled += i32::from(first.is_some());
                continue;
            }
            status.desired_number_scheduled += 1;
            let Some(pod) = first else { continue };
            status.current_number_scheduled += 1;
            status.number_ready += i32::from(meta::is_ready(pod));
            available += i32::from(self.is_available(pod));
            updated += i32::from(self.is_updated(pod));
        }
        status.updated_number_scheduled = Some(updated);
        status.number_available = Some(available);
        status.number_unavailable = Some(status.desired_number_scheduled - available);
        status
    }
}
