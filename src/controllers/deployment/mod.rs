//! Deployments: a ReplicaSet for each revision of a Pod template, and rollouts between them.
//!
//! Upstream: `pkg/controller/deployment`. [`plan`] corresponds to upstream's `syncDeployment`; [`rolling`] has the arithmetic,
//! [`revision`] the names and numbers of ReplicaSets, [`status`] the status.

pub mod revision;
pub mod rolling;
pub mod status;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use serde_json::json;

use super::{
    Context, Failure, Plan, Row, Work, Writes,
    meta::{self, Claim},
    replica_set::replicas as size,
    write::{Note, Write},
};
use podwright_client::{Informers, Key, reference};

pub const ROW: Row = Row {
    name: "deployment-controller",
    workers: 5,
    writes: Writes::Of(&["deployments.apps", "replicasets.apps"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.deployments);
        watches.owner(&informers.replica_sets, "Deployment");
        watches.on(&informers.replica_sets, |world, queue, change| {
            // An orphan may be adopted by any Deployment that selects it.
            let Some(set) = meta::orphan(change) else { return };
            for deployment in world.informers.deployments.list_namespace(&change.key.namespace) {
                if deployment.spec.as_ref().is_some_and(|spec| meta::selects(&spec.selector, &set.metadata)) {
                    queue.add(Key::of(&*deployment));
                }
            }
        });
        watches.on(&informers.pods, |world, queue, change| {
            // Recreate waits until the last old Pod is gone.
            let Some(pod) = change.old.as_ref().filter(|_| change.new.is_none()) else { return };
            let Some(set) = meta::controller(&pod.metadata) else { return };
            let set = world.informers.replica_sets.get(&Key::new(&change.key.namespace, &set.name));
            if let Some(owner) = set.as_ref().and_then(|set| meta::controller(&set.metadata)) {
                queue.add(Key::new(&change.key.namespace, &owner.name));
            }
        });
    },
    reconcile,
};

fn selector(deployment: &Deployment) -> Option<podwright_api::selector::LabelSelector> {
    meta::selector(&deployment.spec.as_ref()?.selector)
}

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let informers = &context.world.informers;
    let Some(deployment) = informers.deployments.get(key) else { return Plan::default() };
    let mut plan = Plan::default();
    let Some(selector) = selector(&deployment) else {
        let message = "This deployment is selecting all pods. A non-empty selector is required.";
        plan.notes.push(Note::warning(reference(&*deployment), "SelectingAll", message));
        return plan;
    };
    let orphans = informers.replica_sets.indexed(Informers::BY_OWNER, &format!("{}/", key.namespace));
    let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
    let (mut claims, mut own) = (Vec::new(), Vec::new());
    for set in informers.replica_sets.indexed(Informers::BY_OWNER, uid).into_iter().chain(orphans) {
        match meta::claim(&*deployment, &selector, &*set) {
            Claim::Own => own.push(set),
            Claim::Other => {}
            Claim::Adopt(write) | Claim::Release(write) => claims.push(write),
        }
    }
    if !claims.is_empty() {
        plan.then(claims);
        return plan;
    }
    let namesake = |name: &str| informers.replica_sets.get(&Key::new(&key.namespace, name)).is_some();
    let pods_of =
        |set: &ReplicaSet| informers.pods.indexed(Informers::BY_OWNER, set.metadata.uid.as_deref().unwrap_or_default());
    self::plan(&Inputs {
        deployment: &deployment,
        sets: &own,
        taken: &namesake,
        pods_of: &pods_of,
        now: context.now,
        failure: context.failure(),
    })
}

/// The inputs of a Deployment's plan.
pub struct Inputs<'a> {
    pub deployment: &'a Deployment,
    /// Its own ReplicaSets.
    pub sets: &'a [Arc<ReplicaSet>],
    /// Whether a ReplicaSet of this name exists, of any owner.
    pub taken: &'a dyn Fn(&str) -> bool,
    pub pods_of: &'a dyn Fn(&ReplicaSet) -> Vec<Arc<Pod>>,
    pub now: Timestamp,
    pub failure: Option<&'a Failure>,
}

/// A ReplicaSet in its current and desired state.
#[derive(Clone, Debug)]
pub struct Set {
    pub old: Arc<ReplicaSet>,
    pub new: ReplicaSet,
}

impl Set {
    fn of(set: &Arc<ReplicaSet>) -> Set {
        Set { old: set.clone(), new: ReplicaSet::clone(set) }
    }

    /// Its desired number of Pods.
    pub fn size(&self) -> i32 {
        size(&self.new)
    }

    /// Resizes it for a Deployment with this many replicas.
    fn resize(&mut self, to: i32, deployment: &Deployment) {
        self.new.spec.get_or_insert_default().replicas = Some(to);
        rolling::annotate(&mut self.new, deployment);
    }

    /// The number of its available Pods. Its status may still count Pods that it was told to delete.
    pub fn available(&self) -> i32 {
        let status = self.old.status.as_ref();
        status.and_then(|status| status.available_replicas).unwrap_or(0).min(self.size())
    }

    /// How many Pods it may have now: the larger of the desired and the actual number. Unknown until its controller has observed
    /// the spec.
    pub fn occupied(&self) -> Option<i32> {
        let status = self.old.status.as_ref()?;
        (self.old.metadata.generation <= status.observed_generation).then(|| status.replicas.max(self.size()))
    }

    fn write(&self, deployment: &Deployment) -> Option<Write> {
        let failed = format!("Failed to update replica set \"{}\": {{}}", meta::name(&self.new.metadata));
        let write = Write::change(&*self.old, &self.new)?;
        let write = write.failed(Note::warning(reference(deployment), status::UPDATE_ERROR, failed));
        let (from, to) = (size(&self.old), self.size());
        Some(if from == to { write } else { write.done(scaled(deployment, &self.new, from, to)) })
    }
}

fn scaled(deployment: &Deployment, set: &ReplicaSet, from: i32, to: i32) -> Note {
    let way = if from < to { "up" } else { "down" };
    let name = meta::name(&set.metadata);
    Note::normal(
        reference(deployment),
        "ScalingReplicaSet",
        format!("Scaled {way} replica set {name} from {from} to {to}"),
    )
}

/// A rollout in progress: the ReplicaSets of all revisions, and the decisions about them.
pub struct Rollout<'a> {
    pub deployment: &'a Deployment,
    /// The ReplicaSet of the current template.
    pub new: Option<Set>,
    /// The others, oldest first.
    pub old: Vec<Set>,
}

impl Rollout<'_> {
    pub fn sets(&self) -> impl Iterator<Item = &Set> {
        self.old.iter().chain(&self.new)
    }
    /// The desired Pods of all revisions.
    pub fn total(&self) -> i32 {
        self.sets().map(Set::size).fold(0, i32::saturating_add)
    }
    fn changed(&self) -> bool {
        self.sets().any(|set| size(&set.old) != set.size())
    }
}

/// The desired replicas of a Deployment.
pub fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn is_recreate(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

fn is_paused(deployment: &Deployment) -> bool {
    deployment.spec.as_ref().and_then(|spec| spec.paused).unwrap_or(false)
}

/// Plans a Deployment.
pub fn plan(scene: &Inputs<'_>) -> Plan {
    let deployment = scene.deployment;
    let mut plan = Plan::default();
    let mut rollout = revision::sort(deployment, scene.sets);
    if meta::is_terminating(&deployment.metadata) {
        return finish(scene, &rollout, plan, None);
    }

    // 1. The current ReplicaSet gets the Deployment's annotations and the highest revision.
    let next = revision::next(&rollout);
    if let Some(new) = &mut rollout.new {
        revision::annotate(deployment, &mut new.new, next);
    }

    // 2. Resize the ReplicaSets, or decide to create the current one.
    let step = match () {
        () if is_paused(deployment) || rolling::is_scaling(&rollout) => {
            rolling::scale(&mut rollout);
            Step::Done
        }
        () if is_recreate(deployment) => recreate(scene, &mut rollout),
        () => roll(&mut rollout),
    };
    let new = match step {
        Step::Done => None,
        Step::Create => match revision::create(deployment, &rollout, next) {
            // A ReplicaSet with that name and another template: hash again with another seed.
            new if (scene.taken)(meta::name(&new.metadata)) => return collide(scene, &rollout, plan),
            new => Some(new),
        },
    };

    // 3. Write this, delete revisions beyond the limit, and update the status.
    let resized: Vec<Write> = rollout.sets().filter_map(|set| set.write(deployment)).collect();
    plan.work = resized.into();
    if is_paused(deployment) || status::is_complete(deployment, &status::of(&rollout)) {
        plan.work = plan.work.beside(revision::expired(&rollout));
    }
    finish(scene, &rollout, plan, new.as_ref())
}

/// A strategy's decision beyond resizing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Done,
    /// The current template has no ReplicaSet yet.
    Create,
}

/// First scale up, within maxSurge; then down, within maxUnavailable.
fn roll(rollout: &mut Rollout<'_>) -> Step {
    if rollout.new.is_none() {
        return Step::Create;
    }
    rolling::grow_new(rollout);
    if !rollout.changed() {
        rolling::shrink_old(rollout);
    }
    Step::Done
}

/// First scale all old Pods down and wait until they are gone, then scale the new ones up.
fn recreate(scene: &Inputs<'_>, rollout: &mut Rollout<'_>) -> Step {
    let deployment = rollout.deployment;
    let mut down = false;
    for set in rollout.old.iter_mut().filter(|set| set.size() > 0) {
        set.resize(0, deployment);
        down = true;
    }
    // Observing no Pod is not enough: a ReplicaSet that has not observed its new size of 0 may be creating some.
    let gone =
        |set: &Set| set.occupied() == Some(0) && (scene.pods_of)(&set.old).iter().all(|pod| meta::is_finished(pod));
    if down || !rollout.old.iter().all(gone) {
        return Step::Done;
    }
    match &mut rollout.new {
        Some(new) => {
            if new.size() != replicas(deployment) {
                new.resize(replicas(deployment), deployment);
            }
            Step::Done
        }
        None => Step::Create,
    }
}

fn make(deployment: &Deployment, new: &ReplicaSet) -> Write {
    let name = meta::name(&new.metadata);
    let failed = format!("Failed to create new replica set \"{name}\": {{}}");
    let write = Write::create(new).failed(Note::warning(reference(deployment), status::CREATE_ERROR, failed));
    match size(new) {
        0 => write,
        size => write.done(scaled(deployment, new, 0, size)),
    }
}

fn collide(scene: &Inputs<'_>, rollout: &Rollout<'_>, mut plan: Plan) -> Plan {
    let mut told = scene.deployment.clone();
    let count = told.status.get_or_insert_with(|| status::of(rollout)).collision_count.get_or_insert_default();
    *count += 1;
    plan.report = Write::status(scene.deployment, &told);
    plan
}

/// Writes the new ReplicaSet, the revision annotation and the status. A status that reports the creation waits for it; any other is
/// written in any case, above all one with the reason of its failure.
fn finish(scene: &Inputs<'_>, rollout: &Rollout<'_>, mut plan: Plan, new: Option<&ReplicaSet>) -> Plan {
    let deployment = scene.deployment;
    let (status, requeue) = status::next(deployment, rollout, new, scene.now, scene.failure);
    let mut told = deployment.clone();
    told.status = Some(status);
    let mut told = Write::status(deployment, &told);
    if new.is_none_or(|new| status::refusal(new, scene.failure).is_some()) {
        plan.report = told.take();
    }
    let numbered = number(deployment, new.or(rollout.new.as_ref().map(|set| &set.new)));
    let made = Work::from(new.map(|new| make(deployment, new)));
    plan.work = plan.work.beside(made.then(Work::from(numbered).beside(told)));
    if let Some(delay) = requeue {
        plan.requeue(delay);
    }
    plan
}

/// Sets the Deployment's revision annotation. Only this controller writes it, so other changes do not conflict.
fn number(deployment: &Deployment, current: Option<&ReplicaSet>) -> Option<Write> {
    let number = meta::annotation(&current?.metadata, revision::REVISION)?;
    let known = meta::annotation(&deployment.metadata, revision::REVISION);
    if known == Some(number) || meta::is_terminating(&deployment.metadata) {
        return None;
    }
    let annotations = json!({ revision::REVISION: number });
    let patch = json!({ "metadata": { "uid": deployment.metadata.uid, "annotations": annotations } });
    Some(Write::merge::<Deployment>(&Key::of(deployment), patch))
}
