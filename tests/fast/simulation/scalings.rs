//! What is remembered of autoscalers: their wishes, how they have scaled, and who else has.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use podwright::{
    client::{Autoscaler, Key},
    controllers::meta,
};

use super::{
    invariants::room,
    planes::CONTROLLERS,
    world::{Change, Step, World},
};

/// A Deployment is made larger, or smaller, by its autoscaler.
#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    pub at: Timestamp,
    pub from: i32,
    pub to: i32,
}

/// See the module. Everything goes by the names of Deployments.
#[derive(Default)]
pub struct Scalings {
    /// How much CPU those who use its Pods want of them together, in thousandths.
    pub load: BTreeMap<Key, u64>,
    /// What its autoscaler has done. One that begins anew knows nothing of it.
    pub done: BTreeMap<Key, Vec<Scaling>>,
    /// The least and the most that was wished since the last rest.
    pub ranges: BTreeMap<Key, (i64, i64)>,
    /// Whose size somebody else has changed, or whose autoscaler, since then.
    pub meddled: BTreeSet<Key>,
    /// Those that lacked room for a Pod at that rest: it is not known what its autoscaler makes of that.
    pub short: BTreeSet<Key>,
    /// Whether anything at all has been done since then.
    pub stirred: bool,
    /// When anything was done last that may change what is measured, or how that is seen.
    pub touched: Timestamp,
}

/// The Deployment that an autoscaler is for.
pub fn target(hpa: &Autoscaler) -> Option<Key> {
    let namespace = hpa.metadata.namespace.as_deref()?;
    Some(Key::new(namespace, hpa.spec["scaleTargetRef"]["name"].as_str()?))
}

/// Between which numbers an autoscaler keeps its target.
pub fn range(hpa: &Autoscaler) -> (i64, i64) {
    (hpa.spec["minReplicas"].as_i64().unwrap_or(1), hpa.spec["maxReplicas"].as_i64().unwrap_or(0))
}

pub fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

impl World {
    pub fn remember_scaling(&mut self, step: &Step) {
        let from = match step {
            Step::Scales { target, .. } => self.deployments.get(target).map(|deployment| replicas(deployment)),
            _ => None,
        };
        let (now, touches) = (self.now, self.touches(step));
        let short: BTreeSet<Key> = match step {
            Step::Rest => {
                let lack = |(_, it): &(&Key, &Arc<Deployment>)| room::lacks(self, &it.metadata.uid);
                self.deployments.all().filter(lack).map(|(key, _)| key.clone()).collect()
            }
            _ => BTreeSet::new(),
        };
        let scalings = &mut self.past.scalings;
        if touches {
            scalings.touched = now;
        }
        match step {
            Step::Stirs => scalings.stirred = true,
            Step::Load(app, millis) => drop(scalings.load.insert(app.clone(), *millis)),
            Step::Leads { part: CONTROLLERS, .. } => scalings.done.clear(),
            Step::Scales { target, replicas } => {
                let Some(from) = from.filter(|from| from != replicas) else { return };
                let done = scalings.done.entry(target.clone()).or_default();
                done.push(Scaling { at: now, from, to: *replicas });
            }
            Step::Autoscaler(change) => scalings.wish(change),
            Step::Deployment(change) => scalings.see(change),
            Step::Rest => {
                scalings.stirred = false;
                scalings.short = short;
                scalings.meddled.clear();
                let autoscalers = self.autoscalers.all().map(|(_, hpa)| hpa);
                scalings.ranges = autoscalers.filter_map(|hpa| Some((target(hpa)?, range(hpa)))).collect();
            }
            _ => {}
        }
    }
}

impl World {
    /// Whether a step may change what autoscalers see.
    fn touches(&self, step: &Step) -> bool {
        let generation = |deployment: &Arc<Deployment>| deployment.metadata.generation;
        match step {
            Step::Load(..) | Step::Scales { .. } | Step::Disturbance | Step::Falls(_) => true,
            Step::Leads { part, .. } => *part == CONTROLLERS,
            Step::Autoscaler(change) => {
                change.old.as_ref().map(|old| &old.spec) != change.new.as_ref().map(|new| &new.spec)
            }
            Step::Deployment(change) => change.old.as_ref().map(generation) != change.new.as_ref().map(generation),
            Step::Pod(change) => {
                let state = |pod: &Arc<Pod>| (meta::is_active(pod), meta::is_ready(pod));
                let changed = change.old.as_ref().map(state) != change.new.as_ref().map(state);
                let owner = change.new.as_ref().or(change.old.as_ref()).and_then(|pod| meta::controller(&pod.metadata));
                changed && owner.is_some_and(|owner| owner.kind == "ReplicaSet")
            }
            _ => false,
        }
    }
}

impl Scalings {
    fn wish(&mut self, change: &Change<Autoscaler>) {
        let hpa = change.new.as_ref().or(change.old.as_ref());
        let Some(target) = hpa.and_then(|hpa| target(hpa)) else { return };
        if change.old.as_ref().map(|old| &old.spec) == change.new.as_ref().map(|new| &new.spec) {
            return;
        }
        self.meddled.insert(target.clone());
        if let Some((least, most)) = change.new.as_ref().map(|new| range(new)) {
            let known = self.ranges.entry(target).or_insert((least, most));
            *known = (known.0.min(least), known.1.max(most));
        }
    }

    fn see(&mut self, change: &Change<Deployment>) {
        let Some(new) = &change.new else { return drop(self.done.remove(&change.key)) };
        let changed = change.old.as_ref().is_none_or(|old| replicas(old) != replicas(new));
        let last = self.done.get(&change.key).and_then(|done| done.last());
        if changed && last.is_none_or(|last| last.to != replicas(new)) {
            self.meddled.insert(change.key.clone());
        }
    }
}
