//! Which objects the Pods of a node need: what its agent may read.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use super::follow::{Follower, ObjectEvent};
use super::grants::Rights;
use super::needs::{Needs, thing};
use crate::cache::Cache;
use podwright_api::kinds;

/// Pods by node, and their references, as `secrets/<namespace>/<name>`.
pub(super) struct Graph(RwLock<State>);

struct State {
    pods: Follower,
    needs: HashMap<Arc<str>, Arc<Needs>>,
    /// How many of a node's Pods need an object.
    nodes: HashMap<String, HashMap<String, usize>>,
}

impl Graph {
    pub fn new(cache: &Cache) -> Graph {
        // The invariant: the kinds table has Pods.
        let pods = Follower::new(&cache.resource(kinds::lookup("pods").expect("the row of Pods")));
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
        pods.catch_up(|event| match event {
            ObjectEvent::Restart => {
                needs.clear();
                nodes.clear();
            }
            ObjectEvent::Put(item) => {
                let new = match &item.rights {
                    Rights::Needs(needs) => Some(needs.clone()),
                    _ => Needs::of(&item.bytes).map(Arc::new),
                };
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
            ObjectEvent::Gone(item) => needs.remove(&item.key).iter().for_each(|old| forget(nodes, old)),
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
