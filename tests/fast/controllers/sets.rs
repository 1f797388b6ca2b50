//! What the small worlds of StatefulSets and DaemonSets share.

use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Pod};
use podwright::{
    api::{Request, Verb},
    controllers::Plan,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::merge;

/// A set and all around it, small enough to be a value.
pub trait SmallWorld {
    type Set: Serialize + DeserializeOwned;

    fn set(&mut self) -> &mut Self::Set;
    fn pods(&self) -> &[Pod];
    fn plan(&self) -> Plan;
    /// Plans and does it; returns what was done.
    fn step(&mut self) -> Vec<String>;
    /// Lets everybody else do their work: who is to go is gone, and who was made runs.
    fn settle(&mut self);

    /// The steps until nothing is left to do.
    fn reach_rest(&mut self) -> Vec<String> {
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

    /// Changes the spec, and so the generation.
    fn change(&mut self, spec: Value) {
        let generation = serde_json::to_value(self.set()).unwrap()["metadata"]["generation"].as_i64().unwrap();
        merge(self.set(), &json!({ "metadata": { "generation": generation + 1 }, "spec": spec }));
    }

    fn set_image(&mut self, image: &str) {
        self.change(json!({ "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } }));
    }
}

/// Does what a plan asks for about a ControllerRevision.
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
