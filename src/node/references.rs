//! Which Pods refer to an API object: their workers are notified of its changes.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{
    objects::{Changed, What},
    spec::PodExt,
    volumes::kinds::{Reference, references_of},
};

/// Which Pods refer to an object: in a volume, or in a container's environment.
#[derive(Default)]
pub struct References {
    /// A hash of the object, and the Pod's uid: hashes are smaller than names, of which a Pod may have thousands. After a collision
    /// a Pod is notified of an unrelated object.
    pods: BTreeSet<(u64, Arc<str>)>,
    of: HashMap<Arc<str>, BTreeSet<u64>>,
    /// Keyed, so that users cannot choose colliding names.
    hasher: RandomState,
}

impl References {
    /// Adds or updates the Pod.
    pub fn put(&mut self, pod: &Pod) {
        self.remove(pod.uid());
        let all = references_of_all(pod);
        if all.is_empty() {
            return;
        }
        let uid: Arc<str> = pod.uid().into();
        let hashes: BTreeSet<u64> = all.iter().map(|(what, name)| self.hash(*what, pod.namespace(), name)).collect();
        self.pods.extend(hashes.iter().map(|hash| (*hash, uid.clone())));
        self.of.insert(uid, hashes);
    }

    pub fn remove(&mut self, uid: &str) {
        let Some((uid, hashes)) = self.of.remove_entry(uid) else { return };
        for hash in hashes {
            self.pods.remove(&(hash, uid.clone()));
        }
    }

    /// The uids of the referring Pods.
    pub fn to(&self, Changed { what, key }: &Changed) -> Vec<Arc<str>> {
        let hash = self.hash(*what, &key.namespace, &key.name);
        let first: (u64, Arc<str>) = (hash, "".into());
        self.pods.range(first..).take_while(|(of, _)| *of == hash).map(|(_, uid)| uid.clone()).collect()
    }

    fn hash(&self, what: What, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((what, namespace, name))
    }
}

fn references_of_all(pod: &Pod) -> BTreeSet<Reference> {
    let volumes = pod.spec().volumes.iter().flatten().flat_map(|volume| references_of(pod, volume));
    let parts = pod.parts();
    let env = parts.iter().flat_map(|part| {
        let (maps, secrets) = env_references(&part.container);
        let maps = maps.into_iter().map(|name| (What::ConfigMap, name));
        maps.chain(secrets.into_iter().map(|name| (What::Secret, name)))
    });
    volumes.chain(env).collect()
}

/// The ConfigMaps and Secrets in a container's environment.
pub fn env_references(container: &Container) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
    for from in container.env_from.iter().flatten() {
        maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
        secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
    }
    for source in container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()) {
        maps.extend(source.config_map_key_ref.iter().map(|r| r.name.clone()));
        secrets.extend(source.secret_key_ref.iter().map(|r| r.name.clone()));
    }
    (maps, secrets)
}

#[cfg(test)]
mod tests {
    use podwright_client::Key;
    use serde_json::{Value, json};

    use super::*;

    fn pod(namespace: &str, uid: &str, spec: Value) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": uid, "namespace": namespace, "uid": uid }, "spec": spec }))
            .unwrap()
    }

    #[test]
    fn a_change_concerns_those_that_refer_to_it_and_is_looked_up() {
        let sources = json!([{ "secret": { "name": "both" } }, { "configMap": { "name": "map" } }]);
        let first = json!({
            "containers": [{ "name": "c", "envFrom": [{ "configMapRef": { "name": "both" } }] }],
            "volumes": [{ "name": "v", "projected": { "sources": sources } }],
        });
        let claim = json!({ "claimName": "both" });
        let second = json!({ "containers": [], "volumes": [{ "name": "v", "persistentVolumeClaim": claim }] });
        let mut references = References::default();
        references.put(&pod("a", "1", first.clone()));
        references.put(&pod("a", "2", second.clone()));
        references.put(&pod("b", "3", first.clone()));
        let to = |references: &References, what, namespace: &str, name: &str| {
            references.to(&Changed { what, key: Key::new(namespace, name) }).join(" ")
        };
        for (what, namespace, name, expected) in [
            (What::ConfigMap, "a", "both", "1"),
            (What::Secret, "a", "both", "1"),
            (What::Claim, "a", "both", "2"),
            (What::ConfigMap, "a", "map", "1"),
            (What::Secret, "a", "map", ""),
            (What::ConfigMap, "b", "map", "3"),
            (What::ConfigMap, "c", "map", ""),
        ] {
            assert_eq!(to(&references, what, namespace, name), expected, "{what:?} {namespace}/{name}");
        }
        references.put(&pod("a", "1", second));
        assert_eq!(to(&references, What::Secret, "a", "both"), "", "it is another now");
        assert_eq!(to(&references, What::Claim, "a", "both"), "1 2");
        ["1", "2", "3"].iter().for_each(|uid| references.remove(uid));
        assert!(references.pods.is_empty() && references.of.is_empty());
    }
}
