//! The Pods of this node: the one table that maps API objects to Pods, for sessions and metrics.
//!
//! An API object identifies a Pod by namespace, name and uid together. A mirror Pod stands for the static Pod that this agent
//! created it for. Nothing is taken from what users can write, in particular annotations.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;

use super::spec::PodExt;
use podwright_api::{Status, Watermark, rpc::PodRef};

/// A starting agent finds its Pods in less; requests wait for that.
const RECOVERY: Duration = Duration::from_secs(20);

/// The Pods that this node runs.
#[derive(Debug, Default)]
pub struct Residents {
    state: RwLock<State>,
    /// 1 once the Pods that existed at the agent's start are included.
    recovered: Watermark,
}

#[derive(Debug, Default)]
struct State {
    /// By the node's uid of the Pod.
    pods: HashMap<String, Arc<Pod>>,
    /// Mirror Pod uids to static Pod uids.
    mirrors: HashMap<String, String>,
}

impl Residents {
    // Each change is a single insertion or removal: the state is consistent even after a panic.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The Pods that existed before are known now: any other does not exist here.
    pub fn recovered(&self) {
        self.recovered.set(1);
    }

    /// Adds or updates a Pod.
    pub fn put(&self, pod: Arc<Pod>) {
        self.write().pods.insert(pod.uid().to_owned(), pod);
    }

    /// Removes a Pod of which nothing is left.
    pub fn remove(&self, uid: &str) {
        let mut state = self.write();
        state.pods.remove(uid);
        state.mirrors.retain(|_, of| of != uid);
    }

    /// Links a mirror Pod to its static Pod.
    pub fn shows(&self, mirror: &str, uid: &str) {
        self.write().mirrors.insert(mirror.to_owned(), uid.to_owned());
    }

    /// Removes a mirror Pod.
    pub fn shows_no_more(&self, mirror: &str) {
        self.write().mirrors.remove(mirror);
    }

    /// The Pod of this node that an API object is, or mirrors.
    pub fn find(&self, object: &PodRef) -> Option<Arc<Pod>> {
        let state = self.read();
        let pod = match state.mirrors.get(&object.uid) {
            Some(uid) => state.pods.get(uid).filter(|pod| pod.is_static()),
            None => state.pods.get(&object.uid).filter(|pod| !pod.is_static()),
        };
        pod.filter(|pod| pod.namespace() == object.namespace && pod.name() == object.name).cloned()
    }

    /// The same for requests from outside, which may come as soon as this agent is connected: waits until the existing Pods are
    /// known.
    ///
    /// Fails with `NotFound` if the Pod is not here, and with `ServiceUnavailable` if that is not known in time.
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

    /// The Pod of this name; of several, the one that is not terminating.
    pub fn named(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let state = self.read();
        let named = state.pods.values().filter(|pod| pod.namespace() == namespace && pod.name() == name);
        named.max_by_key(|pod| (pod.metadata.deletion_timestamp.is_none(), &pod.metadata.creation_timestamp)).cloned()
    }

    /// The API's uid of a Pod of this node: its own, or that of its mirror.
    pub fn api_uid(&self, uid: &str) -> Option<String> {
        let state = self.read();
        if state.pods.get(uid)?.is_static() {
            return state.mirrors.iter().find(|(_, of)| *of == uid).map(|(mirror, _)| mirror.clone());
        }
        Some(uid.to_owned())
    }
}
