//! What the model worlds of StatefulSets and DaemonSets share.

use std::sync::Mutex;

use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Pod};
use podwright::{
    api::{Request, Verb},
    controllers::{Plan, write::Write},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{begun, merge};

/// A set and everything around it, small enough to be a value.
pub trait SmallWorld {
    type Set: Serialize + DeserializeOwned;

    fn set(&mut self) -> &mut Self::Set;
    fn pods(&self) -> &[Pod];
    fn plan(&self) -> Plan;
    /// A write in short; with a slash if it concerns neither Pods nor claims.
    fn label(&self, write: &Write) -> String;
    fn act(&mut self, write: &Write);
    fn tick(&mut self);

    /// Plans and executes, except refused writes; returns the writes begun.
    fn step_refusing(&mut self, refused: &(dyn Fn(&str) -> bool + Sync)) -> Vec<String>
    where
        Self: Send,
    {
        let plan = self.plan();
        let world = Mutex::new(&mut *self);
        let begun = begun(plan, &|write| {
            let mut world = world.lock().unwrap();
            let label = world.label(write);
            let refused = refused(&label);
            if !refused {
                world.act(write);
            }
            (label, !refused)
        });
        self.tick();
        begun
    }

    /// Plans and executes; returns the writes to Pods and claims.
    fn step(&mut self) -> Vec<String>
    where
        Self: Send,
    {
        self.step_refusing(&|_| false).into_iter().filter(|label| !label.contains('/')).collect()
    }

    /// Lets all others do their work: Pods being deleted are gone, and created ones run.
    fn settle(&mut self);

    /// The steps until nothing is left to do.
    fn reach_rest(&mut self) -> Vec<String>
    where
        Self: Send,
    {
        let mut steps = Vec::new();
        for _ in 0..100 {
            if self.plan().is_empty() && self.pods().iter().all(|pod| pod.metadata.deletion_timestamp.is_none()) {
                return steps;
            }
            steps.extend(self.step());
            self.settle();
        }
        panic!("no rest: {steps:?}");
    }

    /// Changes the spec, and thereby the generation.
    fn change(&mut self, spec: Value) {
        let generation = serde_json::to_value(self.set()).unwrap()["metadata"]["generation"].as_i64().unwrap();
        merge(self.set(), &json!({ "metadata": { "generation": generation + 1 }, "spec": spec }));
    }

    fn set_image(&mut self, image: &str) {
        self.change(json!({ "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } }));
    }
}

/// Executes a plan's request for a ControllerRevision.
pub fn revise(revisions: &mut Vec<ControllerRevision>, request: &Request) {
    let body = request.body.clone().unwrap_or_default();
    match request.verb {
        Verb::Create => revisions.push(serde_json::from_value(body).unwrap()),
        Verb::Patch => {
            let known = revisions.iter_mut().find(|known| known.metadata.name == request.name);
            merge(known.expect("a revision to patch"), &body);
        }
        Verb::Delete => revisions.retain(|known| known.metadata.name != request.name),
        _ => panic!("unexpected write {request:?}"),
    }
}
