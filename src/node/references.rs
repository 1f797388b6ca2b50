//! Which objects of the API concern a Pod: those whose changes its worker hears of.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{
    objects::{Changed, What},
    spec::PodExt,
    volumes::kinds::references_of,
};

/// Whether a Pod refers to what has changed: in a volume, or in a container's environment.
pub fn concerns(pod: &Pod, changed: &Changed) -> bool {
    let Changed { what, key } = changed;
    if pod.namespace() != key.namespace {
        return false;
    }
    let of_volume = |volume| references_of(pod, volume).iter().any(|(kind, name)| kind == what && *name == key.name);
    let of_env = || {
        let parts = pod.parts();
        let mut all = parts.iter().map(|part| env_references(&part.container));
        match what {
            What::ConfigMap => all.any(|(maps, _)| maps.contains(&key.name)),
            What::Secret => all.any(|(_, secrets)| secrets.contains(&key.name)),
            What::Claim => false,
        }
    };
    pod.spec().volumes.iter().flatten().any(of_volume) || of_env()
}

/// The ConfigMaps and Secrets that a container's environment is made of.
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
