//! StatefulSets: Pods that keep their names, their volumes and their order.
//!
//! Upstream: `pkg/controller/statefulset`. [`plan`] corresponds to upstream's `updateStatefulSet`; [`identity`] names Pods,
//! [`claims`] manages their volumes, [`pods`] builds them from both, [`status`] computes the status.

pub mod claims;
pub mod identity;
pub mod pods;
pub mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, RollingUpdateStatefulSetStrategy, StatefulSet},
        core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde_json::Value;

use super::{
    Context, Plan, Row, Work, Writes,
    history::{self, Belongings, Current, Wanted},
    meta,
    short_lives::Maker,
    write::{BURST_BYTES, Note, Write},
};
use podwright_api::int_or_string::{Round, scaled};
use podwright_client::{Key, reference};

/// The revision's label with its hash.
const HASH: &str = "controller.kubernetes.io/hash";
/// The most Pods created for one StatefulSet at a time.
const BURST: usize = 500;

pub const ROW: Row = Row {
    name: "statefulset-controller",
    workers: 5,
    writes: Writes::Of(&["statefulsets.apps", "pods", "persistentvolumeclaims", "controllerrevisions.apps"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.stateful_sets);
        watches.pods_of("StatefulSet");
        watches.owner(&informers.controller_revisions, "StatefulSet");
        watches.on(&informers.pods, |world, queue, change| {
            // An orphan may be adopted, and blocks its name until then.
            let Some(pod) = change.new.as_ref().or(change.old.as_ref()) else { return };
            if meta::controller(&pod.metadata).is_some() {
                return;
            }
            for set in world.informers.stateful_sets.list_namespace(&change.key.namespace) {
                if identity::ordinal(&set, pod).is_some() {
                    queue.add(Key::of(&*set));
                }
            }
        });
        watches.on(&informers.persistent_volume_claims, |world, queue, change| {
            for set in world.informers.stateful_sets.list_namespace(&change.key.namespace) {
                if claims::may_be_of(&set, &change.key.name) {
                    queue.add(Key::of(&*set));
                }
            }
        });
    },
    reconcile,
};

fn selector(set: &StatefulSet) -> Option<podwright_api::selector::LabelSelector> {
    meta::selector(&set.spec.as_ref()?.selector)
}

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let informers = &context.world.informers;
    let Some(set) = informers.stateful_sets.get(key) else { return Plan::default() };
    let Some(selector) = selector(&set) else { return Plan::default() };
    let fits = |pod: &Pod| identity::ordinal(&set, pod).is_some();
    let Belongings { pods, revisions } = match history::belongings(informers, &*set, &selector, fits) {
        Ok(belongings) => belongings,
        Err(first) => return first,
    };
    self::plan(&Inputs {
        set: &set,
        revisions: &revisions,
        taken: &|name| informers.controller_revisions.get(&Key::new(&key.namespace, name)).is_some(),
        pods: &pods,
        claim: &|name| informers.persistent_volume_claims.get(&Key::new(&key.namespace, name)),
        now: context.now,
    })
}

/// The inputs of a StatefulSet's plan.
pub struct Inputs<'a> {
    pub set: &'a StatefulSet,
    /// Its own ControllerRevisions.
    pub revisions: &'a [Arc<ControllerRevision>],
    /// Whether a ControllerRevision of this name exists, of any owner.
    pub taken: &'a dyn Fn(&str) -> bool,
    /// Its own Pods, including finished and terminating ones.
    pub pods: &'a [Arc<Pod>],
    /// The claim of this name, of any owner.
    pub claim: &'a dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>>,
    pub now: Timestamp,
}

/// A template and the name of its revision.
pub struct Revision {
    pub name: String,
    pub template: PodTemplateSpec,
}

impl Revision {
    fn of(revision: &ControllerRevision) -> Option<Revision> {
        Some(Revision { name: revision.metadata.name.clone()?, template: history::template(revision)? })
    }
}

/// A StatefulSet's Pods, grouped.
pub struct Roll<'a> {
    pub scene: &'a Inputs<'a>,
    pub current: Revision,
    pub update: Revision,
    /// The desired ordinals, and their existing Pods.
    pub ordinals: Range<i32>,
    pub replicas: BTreeMap<i32, &'a Arc<Pod>>,
    /// The surplus Pods; the highest ordinal first.
    pub condemned: Vec<(i32, &'a Arc<Pod>)>,
}

/// The actions to take.
#[derive(Default)]
struct Steps {
    /// What Pods that stay need, with their claims; one entry per ordinal.
    tended: Vec<Work>,
    /// The Pods to create, each after its claims.
    created: Vec<Work>,
    /// The Pods to delete, each after its claims have their owners.
    deleted: Vec<Work>,
    /// Their names.
    going: BTreeSet<String>,
    /// Why others are not created.
    notes: Vec<Note>,
    /// The size of everything that is created.
    bytes: usize,
}

impl Steps {
    /// Whether nothing more is created for now.
    fn is_full(&self) -> bool {
        self.created.len() >= BURST || self.bytes >= BURST_BYTES
    }

    /// Creates the missing claims of an ordinal, as far as there is room; also returns whether these are all.
    fn claim(&mut self, scene: &Inputs<'_>, ordinal: i32) -> (Vec<Write>, bool) {
        let mut writes = Vec::new();
        for write in claims::missing(scene, ordinal) {
            if self.is_full() {
                return (writes, false);
            }
            self.bytes += write.size();
            writes.push(write);
        }
        (writes, true)
    }

    /// Deletes a Pod that is not terminating yet, after `first`.
    fn delete(&mut self, set: &StatefulSet, pod: &Pod, first: Vec<Write>) {
        let name = meta::name(&pod.metadata);
        let new = !meta::is_terminating(&pod.metadata) && self.going.insert(name.to_owned());
        let write = new.then(|| told(set, "delete", name, Write::delete(pod)));
        self.deleted.push(Work::from(first).then(write));
    }

    fn is_going(&self, pod: &Pod) -> bool {
        meta::is_terminating(&pod.metadata) || self.going.contains(meta::name(&pod.metadata))
    }

    /// In order, one after the other; otherwise independently.
    fn work(self, in_order: bool) -> Work {
        let all = if in_order { Work::Chain } else { Work::Beside };
        all(vec![all(self.tended), Work::SlowStart(self.created), Work::Beside(self.deleted)])
    }
}

/// A write about a Pod, with upstream's events.
fn told(set: &StatefulSet, verb: &'static str, pod: &str, write: Write) -> Write {
    let (done, failed) = match verb {
        "create" => ("SuccessfulCreate", "FailedCreate"),
        "update" => ("SuccessfulUpdate", "FailedUpdate"),
        _ => ("SuccessfulDelete", "FailedDelete"),
    };
    let what = format!("{verb} Pod {pod} in StatefulSet {}", meta::name(&set.metadata));
    write.done(Note::normal(reference(set), done, format!("{what} successful"))).failed(Note::warning(
        reference(set),
        failed,
        format!("{what} failed error: {{}}"),
    ))
}

/// Plans a StatefulSet.
pub fn plan(scene: &Inputs<'_>) -> Plan {
    let (set, mut plan) = (scene.set, Plan::default());
    let Some(spec) = &set.spec else { return plan };
    let collisions = set.status.as_ref().and_then(|status| status.collision_count);
    let wanted = Wanted { owner: set, template: &spec.template, label: HASH, collisions };
    let terminating = meta::is_terminating(&set.metadata);
    let update = match history::current(&wanted, scene.revisions, scene.taken) {
        Current::Is(_, Some(_)) if terminating => return plan,
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
    let Some(roll) = Roll::of(scene, &update) else { return plan };
    let mut new = set.clone();
    new.status = Some(status::of(&roll));
    plan.report = Write::status(set, &new);
    let mut steps = if terminating { Steps::default() } else { roll.steps() };
    plan.notes.append(&mut steps.notes);
    let expired = history::expired(scene.revisions, spec.revision_history_limit, &roll.alive());
    plan.work = plan.work.then(steps.work(roll.in_order()).beside(expired));
    plan.maker = Some(Maker::of(set));
    let ripe = scene.pods.iter().filter_map(|pod| meta::available_at(pod, min_ready_seconds(set)));
    if let Some(wait) = ripe.filter_map(|at| meta::until(scene.now, at)).min() {
        plan.requeue(wait);
    }
    if set.status.as_ref().and_then(|status| status.observed_generation) < set.metadata.generation {
        // Once for each change; the claims stay as they are.
        plan.notes.extend(roll.replicas.keys().flat_map(|ordinal| claims::conflicts(scene, *ordinal)));
    }
    plan
}

fn min_ready_seconds(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
}

/// `spec.replicas`, 1 if unset.
pub fn replicas(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// The first ordinal.
pub fn start(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.ordinals.as_ref()?.start).unwrap_or(0)
}

/// The settings of a rolling update; `None` for OnDelete.
pub fn rolling(set: &StatefulSet) -> Option<RollingUpdateStatefulSetStrategy> {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    match strategy.and_then(|strategy| strategy.type_.as_deref()) {
        Some("OnDelete") => None,
        _ => Some(strategy.and_then(|strategy| strategy.rolling_update.clone()).unwrap_or_default()),
    }
}

/// How many Pods may be unavailable in a rolling update: a percentage is rounded down, but at least one.
pub fn max_unavailable(set: &StatefulSet) -> i32 {
    let value = match rolling(set).and_then(|rolling| rolling.max_unavailable) {
        None => return 1,
        Some(IntOrString::Int(number)) => Value::from(number),
        Some(IntOrString::String(text)) => Value::from(text),
    };
    let number = scaled(&value, replicas(set).into(), Round::Down).unwrap_or(1);
    i32::try_from(number.max(1)).unwrap_or(i32::MAX)
}

impl<'a> Roll<'a> {
    fn of(scene: &'a Inputs<'a>, update: &ControllerRevision) -> Option<Roll<'a>> {
        let set = scene.set;
        let known = set.status.as_ref().and_then(|status| status.current_revision.as_deref());
        let current = scene.revisions.iter().find(|revision| revision.metadata.name.as_deref() == known);
        let update = Revision::of(update)?;
        let current = current.and_then(|current| Revision::of(current));
        let current =
            current.unwrap_or_else(|| Revision { name: update.name.clone(), template: update.template.clone() });
        let ordinals = start(set)..start(set).saturating_add(replicas(set));
        let (mut living, mut condemned) = (BTreeMap::new(), Vec::new());
        for pod in scene.pods {
            match identity::ordinal(set, pod) {
                Some(ordinal) if ordinals.contains(&ordinal) => drop(living.insert(ordinal, pod)),
                Some(ordinal) => condemned.push((ordinal, pod)),
                None => {}
            }
        }
        condemned.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
        Some(Roll { scene, current, update, ordinals, replicas: living, condemned })
    }

    /// All existing Pods.
    pub fn pods(&self) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.replicas.values().copied().chain(self.condemned.iter().map(|(_, pod)| *pod))
    }

    /// The revisions in use.
    fn alive(&self) -> BTreeSet<&str> {
        let pods = self.pods().filter_map(|pod| identity::revision(pod));
        pods.chain([self.current.name.as_str(), self.update.name.as_str()]).collect()
    }

    fn in_order(&self) -> bool {
        let policy = self.scene.set.spec.as_ref().and_then(|spec| spec.pod_management_policy.as_deref());
        policy != Some("Parallel")
    }

    /// Ready for at least minReadySeconds.
    pub fn is_available(&self, pod: &Pod) -> bool {
        let since = meta::available_at(pod, min_ready_seconds(self.scene.set));
        meta::phase(pod) == "Running" && since.is_some_and(|at| at <= self.scene.now)
    }

    fn is_unavailable(&self, pod: &Pod) -> bool {
        meta::is_terminating(&pod.metadata) || !self.is_available(pod)
    }

    /// The steps in upstream's order. With ordered Pod management everything waits for the first unhealthy Pod.
    fn steps(&self) -> Steps {
        let mut steps = Steps::default();
        for ordinal in self.ordinals.clone() {
            let waits = self.tend(ordinal, self.replicas.get(&ordinal).copied(), &mut steps);
            if (waits && self.in_order()) || steps.is_full() {
                return steps;
            }
        }
        let unwell = self.condemned.iter().filter(|(_, pod)| self.is_unavailable(pod)).count();
        for (n, (ordinal, pod)) in self.condemned.iter().enumerate() {
            let settled = claims::settle(self.scene, *ordinal, pod, false);
            // In order the highest goes first, and only if it is healthy or no other is unhealthy.
            match !self.in_order() || n == 0 && (!self.is_unavailable(pod) || unwell == 1) {
                true => steps.delete(self.scene.set, pod, settled),
                false => steps.tended.push(settled.into()),
            }
        }
        if !self.in_order() || self.condemned.is_empty() {
            self.update(&mut steps);
        }
        steps
    }

    /// Brings one replica to its desired state; returns whether later ones must wait for it.
    fn tend(&self, ordinal: i32, pod: Option<&Arc<Pod>>, steps: &mut Steps) -> bool {
        let set = self.scene.set;
        let Some(pod) = pod else {
            if claims::is_stale(self.scene, ordinal) {
                steps.notes.extend(claims::deleted(self.scene, ordinal));
                return true;
            }
            let (claims, are_all) = steps.claim(self.scene, ordinal);
            let pod = are_all.then(|| {
                let pod = self.create(ordinal);
                told(set, "create", meta::name(&pod.metadata), Write::create(&pod))
            });
            steps.bytes += pod.as_ref().map_or(0, Write::size);
            steps.created.push(Work::from(claims).then(pod));
            return true;
        };
        if meta::is_finished(pod) {
            steps.delete(set, pod, Vec::new());
            return true;
        }
        let mut writes = Vec::new();
        if meta::phase(pod) == "Pending" {
            writes.extend(steps.claim(self.scene, ordinal).0);
        }
        let waits = self.in_order() && self.is_unavailable(pod);
        if !waits {
            writes.extend(claims::settle(self.scene, ordinal, pod, true));
            // Most are, which avoids comparing everything.
            if !identity::is_named(set, ordinal, pod) {
                let write = Write::change(&**pod, &identity::named(set, ordinal, pod));
                writes.extend(write.map(|write| told(set, "update", meta::name(&pod.metadata), write)));
            }
        }
        steps.tended.push(writes.into());
        waits
    }

    /// A new Pod, of the current revision below the partition, otherwise of the update revision.
    fn create(&self, ordinal: i32) -> Pod {
        let set = self.scene.set;
        let partition = rolling(set).and_then(|rolling| rolling.partition).unwrap_or(0);
        let revision = if ordinal.saturating_sub(start(set)) < partition { &self.current } else { &self.update };
        pods::create(set, ordinal, revision)
    }

    /// Deletes Pods of other revisions, the highest ordinals first: unhealthy ones, which an update may repair, at once; the others
    /// as far as maxUnavailable allows, counting all that are down.
    fn update(&self, steps: &mut Steps) {
        let set = self.scene.set;
        let Some(rolling) = rolling(set) else { return };
        let is_old = |pod: &Pod| identity::revision(pod) != Some(self.update.name.as_str());
        let is_down = |pod: &&&Arc<Pod>| steps.is_going(pod) || self.is_unavailable(pod);
        let down = self.ordinals.len() - self.replicas.len() + self.replicas.values().filter(is_down).count();
        let room = usize::try_from(max_unavailable(set)).unwrap_or(0).saturating_sub(down);
        let from = self.ordinals.start.saturating_add(rolling.partition.unwrap_or(0));
        let beyond = self.replicas.range(from..).rev().map(|(_, pod)| *pod);
        let old = beyond.filter(|pod| is_old(pod) && !steps.is_going(pod));
        let (broken, well): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) = old.partition(|pod| self.is_unavailable(pod));
        broken.into_iter().chain(well.into_iter().take(room)).for_each(|pod| steps.delete(set, pod, Vec::new()));
    }
}
