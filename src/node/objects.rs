//! The ConfigMaps, Secrets and Services that this node's Pods refer to: one informer per kind, and never older than the Pod.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use tokio::sync::mpsc;

use super::{publish::revision, spec::PodExt, translate::env::Sources};
use crate::{
    api::Status,
    client::{Client, Informer, Key, Typed},
};

pub struct Objects {
    client: Client,
    config_maps: Informer<ConfigMap>,
    secrets: Informer<Secret>,
    services: Informer<Service>,
}

/// Which object has changed: `(is it a Secret, namespace, name)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    pub secret: bool,
    pub key: Key,
}

impl Objects {
    pub fn new(client: Client) -> Objects {
        Objects {
            config_maps: Informer::builder(client.clone()).start(),
            secrets: Informer::builder(client.clone()).start(),
            services: Informer::builder(client.clone()).start(),
            client,
        }
    }

    /// Changes of ConfigMaps and Secrets from now on.
    pub fn changes(&self) -> mpsc::UnboundedReceiver<Changed> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (mut maps, mut secrets) = (self.config_maps.subscribe(), self.secrets.subscribe());
        tokio::spawn(async move {
            loop {
                let changed = tokio::select! {
                    Some(delta) = maps.recv() => Changed { secret: false, key: delta.key },
                    Some(delta) = secrets.recv() => Changed { secret: true, key: delta.key },
                    else => return,
                };
                if sender.send(changed).is_err() {
                    return;
                }
            }
        });
        receiver
    }

    /// The named objects of the Pod's namespace; those that do not exist are left out.
    pub async fn sources(
        &self,
        pod: &Pod,
        config_maps: &BTreeSet<String>,
        secrets: &BTreeSet<String>,
    ) -> Result<Sources, String> {
        let mut sources = Sources::default();
        for name in config_maps {
            if let Some(object) = self.get(&self.config_maps, pod, name).await? {
                sources.config_maps.insert(name.clone(), object);
            }
        }
        for name in secrets {
            if let Some(object) = self.get(&self.secrets, pod, name).await? {
                sources.secrets.insert(name.clone(), object);
            }
        }
        Ok(sources)
    }

    /// One object, at least as new as the Pod: a watch may lag behind the watch that brought the Pod.
    async fn get<K: Typed>(&self, informer: &Informer<K>, pod: &Pod, name: &str) -> Result<Option<Arc<K>>, String> {
        let known: u64 = informer.resource_version().parse().unwrap_or(0);
        let cached = informer.get(&Key::new(pod.namespace(), name));
        if cached.is_some() && known >= revision(pod) {
            return Ok(cached);
        }
        match self.client.get::<K>(Some(pod.namespace()), name).await {
            Ok(object) => Ok(Some(Arc::new(object))),
            Err(status) if status.is_not_found() => Ok(None),
            Err(status) if cached.is_some() && status.is_retriable() => Ok(cached),
            Err(Status { message, .. }) => Err(message),
        }
    }

    /// The Services whose addresses a Pod gets as variables.
    pub fn services_for(&self, pod: &Pod) -> Vec<Arc<Service>> {
        let mut services = self.services.list_namespace(pod.namespace());
        if pod.namespace() != "default" {
            services.extend(self.services.get(&Key::new("default", "kubernetes")));
        }
        services
    }

    /// Waits until Services are known, which variables are made of.
    pub async fn synced(&self) {
        self.services.synced().await;
    }
}

/// The ConfigMaps and Secrets that a Pod refers to anywhere.
pub fn references(pod: &Pod) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
    for volume in pod.spec().volumes.iter().flatten() {
        maps.extend(volume.config_map.iter().map(|s| s.name.clone()));
        secrets.extend(volume.secret.iter().filter_map(|s| s.secret_name.clone()));
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            maps.extend(source.config_map.iter().map(|s| s.name.clone()));
            secrets.extend(source.secret.iter().map(|s| s.name.clone()));
        }
    }
    for part in pod.parts() {
        let (more_maps, more_secrets) = env_references(&part.container);
        maps.extend(more_maps);
        secrets.extend(more_secrets);
    }
    (maps, secrets)
}

/// The ConfigMaps and Secrets that a container's environment is made of.
pub fn env_references(container: &k8s_openapi::api::core::v1::Container) -> (BTreeSet<String>, BTreeSet<String>) {
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
