//! Who lives here: the one table by which this node finds the Pod that the API means, for sessions and for figures.
//!
//! An object of the API names a Pod of this node by namespace, name and uid, all three. A mirror Pod stands for the static Pod
//! that this agent has found it to show. Nothing is taken from what a user can write: annotations least of all.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;

use super::spec::PodExt;
use podwright_api::{Status, Watermark, rpc::PodRef};

/// An agent that has just begun finds its Pods in less; who asks for one waits for that.
const RECOVERY: Duration = Duration::from_secs(20);

/// The Pods that this node runs.
#[derive(Debug, Default)]
pub struct Residents {
    state: RwLock<State>,
    /// 1 once the Pods that were there when the agent began are among them.
    recovered: Watermark,
}

#[derive(Debug, Default)]
struct State {
    /// By the uid that the node knows them by.
    pods: HashMap<String, Arc<Pod>>,
    /// Uids of mirror Pods: those of the static Pods that they show.
    mirrors: HashMap<String, String>,
}

impl Residents {
    // Each change is one insertion or removal: what a panic left behind is sound.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that were here before are known by now: whoever is not does not live here.
    pub fn recovered(&self) {
        self.recovered.set(1);
    }

    /// A Pod lives here, or has changed.
    pub fn put(&self, pod: Arc<Pod>) {
        self.write().pods.insert(pod.uid().to_owned(), pod);
    }

    /// Nothing is left of a Pod.
    pub fn remove(&self, uid: &str) {
        let mut state = self.write();
        state.pods.remove(uid);
        state.mirrors.retain(|_, of| of != uid);
    }

    /// A mirror Pod shows a static Pod.
    pub fn shows(&self, mirror: &str, uid: &str) {
        self.write().mirrors.insert(mirror.to_owned(), uid.to_owned());
    }

    /// A mirror Pod is gone.
    pub fn shows_no_more(&self, mirror: &str) {
        self.write().mirrors.remove(mirror);
    }

    /// The Pod of this node that an object of the API is, or shows.
    pub fn find(&self, object: &PodRef) -> Option<Arc<Pod>> {
        let state = self.read();
        let pod = match state.mirrors.get(&object.uid) {
            Some(uid) => state.pods.get(uid).filter(|pod| pod.is_static()),
            None => state.pods.get(&object.uid).filter(|pod| !pod.is_static()),
        };
        pod.filter(|pod| pod.namespace() == object.namespace && pod.name() == object.name).cloned()
    }

    /// The same for whoever asks from outside, perhaps as soon as this agent is connected: it is looked for when the Pods that were
    /// here before are known.
    ///
    /// Fails with `NotFound` where it does not live here, and with `ServiceUnavailable` where that is not known in time.
    pub async fn sought(&self, object: &PodRef) -> Result<Arc<Pod>, Status> {
        let in_time = tokio::time::timeout(RECOVERY, self.recovered.reached(1)).await;
        match self.find(object) {
            Some(pod) => Ok(pod),
            None if in_time.is_ok() => Err(Status::not_found("pods", "", &object.name)),
            None => {
                let why = "the node's agent has just begun, and does not know its Pods yet; please try again later";
                let mut status = Status::unavailable(why);
                status.details.get_or_insert_default().retry_after_seconds = Some(1);
                Err(status)
            }
        }
    }

    /// All of them, by namespace and name.
    pub fn all(&self) -> Vec<Arc<Pod>> {
        let mut all: Vec<Arc<Pod>> = self.read().pods.values().cloned().collect();
        all.sort_by(|a, b| (a.namespace(), a.name(), a.uid()).cmp(&(b.namespace(), b.name(), b.uid())));
        all
    }

    /// The Pod of this name; of several, whose earlier ones end, the one that does not.
    pub fn named(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let state = self.read();
        let named = state.pods.values().filter(|pod| pod.namespace() == namespace && pod.name() == name);
        named.max_by_key(|pod| (pod.metadata.deletion_timestamp.is_none(), &pod.metadata.creation_timestamp)).cloned()
    }

    /// The uid by which the API knows a Pod of this node: its own, or its mirror's, if it has one.
    pub fn api_uid(&self, uid: &str) -> Option<String> {
        let state = self.read();
        if state.pods.get(uid)?.is_static() {
            return state.mirrors.iter().find(|(_, of)| *of == uid).map(|(mirror, _)| mirror.clone());
        }
        Some(uid.to_owned())
    }
}
