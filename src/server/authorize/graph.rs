//! Which objects the Pods of a node need: what its agent may read.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use serde_json::Value;

use super::follow::{Follower, News};
use crate::api::{Object, kinds};
use crate::server::cache::{Cache, Item};

/// Pods by node, and what they refer to, as `secrets/<namespace>/<name>`.
pub(super) struct Graph(RwLock<State>);

struct State {
    pods: Follower,
    needs: HashMap<Arc<str>, Needs>,
    /// How many of a node's Pods need a thing.
    nodes: HashMap<String, HashMap<String, usize>>,
}

/// Where a Pod is, and what it needs.
struct Needs {
    node: String,
    things: Vec<String>,
}

impl Graph {
    pub fn new(cache: &Cache) -> Graph {
        // The invariant: the kinds table has Pods.
        let pods = Follower::new(&cache.shelf(kinds::lookup("pods").expect("the row of Pods")));
        Graph(RwLock::new(State { pods, needs: HashMap::new(), nodes: HashMap::new() }))
    }

    /// Whether a Pod of the node needs this object, or is it.
    pub fn is_needed(&self, node: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let thing = thing(resource, namespace, name);
        let look = |state: &State| state.nodes.get(node).is_some_and(|things| things.contains_key(&thing));
        let state = self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !state.pods.is_behind() {
            return look(&state);
        }
        drop(state);
        let mut state = self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.catch_up();
        look(&state)
    }
}

impl State {
    fn catch_up(&mut self) {
        let State { pods, needs, nodes } = self;
        pods.catch_up(|news| match news {
            News::Restart => {
                needs.clear();
                nodes.clear();
            }
            News::Put(item) => {
                let new = Needs::of(item);
                if let Some(new) = &new {
                    let things = nodes.entry(new.node.clone()).or_default();
                    new.things.iter().for_each(|thing| *things.entry(thing.clone()).or_default() += 1);
                }
                let old = match new {
                    Some(new) => needs.insert(item.key.clone(), new),
                    None => needs.remove(&item.key),
                };
                old.iter().for_each(|old| forget(nodes, old));
            }
            News::Gone(item) => needs.remove(&item.key).iter().for_each(|old| forget(nodes, old)),
        });
    }
}

fn forget(nodes: &mut HashMap<String, HashMap<String, usize>>, old: &Needs) {
    let Some(things) = nodes.get_mut(&old.node) else { return };
    for thing in &old.things {
        if let Some(count) = things.get_mut(thing) {
            *count -= 1;
            if *count == 0 {
                things.remove(thing);
            }
        }
    }
    if things.is_empty() {
        nodes.remove(&old.node);
    }
}

impl Needs {
    /// `None`: the Pod is on no node.
    fn of(item: &Item) -> Option<Needs> {
        let pod = Object::from_slice(&item.bytes).ok()?;
        let node = pod.0["spec"]["nodeName"].as_str().filter(|node| !node.is_empty())?.to_owned();
        let namespace = pod.namespace().unwrap_or("");
        let mut found = Found { namespace, things: vec![thing("pods", namespace, pod.name())] };
        // A node makes mirror Pods by itself; they give it nothing.
        if pod.annotation("kubernetes.io/config.mirror").is_none() {
            found.pod(&pod);
        }
        found.things.sort();
        found.things.dedup();
        Some(Needs { node, things: found.things })
    }
}

/// What a Pod was found to refer to.
struct Found<'a> {
    namespace: &'a str,
    things: Vec<String>,
}

impl Found<'_> {
    fn add(&mut self, resource: &str, name: &Value) {
        if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
            self.things.push(thing(resource, self.namespace, name));
        }
    }

    fn pod(&mut self, pod: &Object) {
        let spec = &pod.0["spec"];
        self.add("serviceaccounts", &spec["serviceAccountName"]);
        items(&spec["imagePullSecrets"]).for_each(|secret| self.add("secrets", &secret["name"]));
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            items(&spec[list]).for_each(|container| self.container(container));
        }
        for volume in items(&spec["volumes"]) {
            if volume["ephemeral"].is_object() {
                let claim = format!("{}-{}", pod.name(), volume["name"].as_str().unwrap_or(""));
                self.add("persistentvolumeclaims", &claim.into());
            }
            self.volume(volume);
        }
        items(&spec["resourceClaims"]).for_each(|claim| self.add("resourceclaims", &claim["resourceClaimName"]));
        for claim in items(&pod.0["status"]["resourceClaimStatuses"]) {
            self.add("resourceclaims", &claim["resourceClaimName"]);
        }
    }

    fn container(&mut self, container: &Value) {
        for from in items(&container["envFrom"]) {
            self.add("secrets", &from["secretRef"]["name"]);
            self.add("configmaps", &from["configMapRef"]["name"]);
        }
        for env in items(&container["env"]) {
            self.add("secrets", &env["valueFrom"]["secretKeyRef"]["name"]);
            self.add("configmaps", &env["valueFrom"]["configMapKeyRef"]["name"]);
        }
    }

    fn volume(&mut self, volume: &Value) {
        self.add("secrets", &volume["secret"]["secretName"]);
        self.add("configmaps", &volume["configMap"]["name"]);
        self.add("persistentvolumeclaims", &volume["persistentVolumeClaim"]["claimName"]);
        for source in items(&volume["projected"]["sources"]) {
            self.add("secrets", &source["secret"]["name"]);
            self.add("configmaps", &source["configMap"]["name"]);
        }
        // The drivers' own sources: iscsi, rbd, cephfs, flexVolume, csi, azureFile and the like.
        for source in volume.as_object().into_iter().flatten().map(|(_, source)| source) {
            self.add("secrets", &source["secretRef"]["name"]);
            self.add("secrets", &source["nodePublishSecretRef"]["name"]);
            if !source["shareName"].is_null() {
                self.add("secrets", &source["secretName"]);
            }
        }
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn thing(resource: &str, namespace: &str, name: &str) -> String {
    format!("{resource}/{namespace}/{name}")
}
