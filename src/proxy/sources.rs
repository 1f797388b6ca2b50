//! The proxy's inputs from the API: informers and their events.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use podwright_client::{Client, Delta, Informer, Informers, Key};
use tokio::sync::mpsc;

use super::objects::{Dirty, Objects, service_of};
use super::policy::PolicySources;

/// The proxy's informers.
#[derive(Clone)]
pub struct Sources {
    /// To find out whether the server is there.
    pub(super) client: Client,
    pub services: Informer<Service>,
    /// Index: [`Informers::BY_SERVICE`].
    pub endpoint_slices: Informer<EndpointSlice>,
    pub nodes: Informer<Node>,
    /// Only this node's.
    pub pods: Informer<Pod>,
    pub policies: PolicySources,
}

impl Sources {
    /// Starts the informers of a node, except that of its Pods. Must be called inside a tokio runtime.
    pub fn start(client: Client, node: &str, pods: Informer<Pod>) -> Sources {
        Sources {
            client: client.clone(),
            services: Informer::builder(client.clone()).start(),
            endpoint_slices: Informer::builder(client.clone())
                .index(Informers::BY_SERVICE, |slice: &EndpointSlice| {
                    service_of(slice).map(|key| key.to_string()).into_iter().collect()
                })
                .start(),
            nodes: Informer::builder(client.clone()).start(),
            pods,
            policies: PolicySources::start(client, node),
        }
    }

    pub(super) async fn synced(&self) {
        self.services.synced().await;
        self.endpoint_slices.synced().await;
        self.nodes.synced().await;
        self.pods.synced().await;
        self.policies.policies.synced().await;
    }
}

impl Sources {
    /// Whether the server answers. It is asked for what every node may read: its own Node.
    pub(super) async fn is_connected(&self, node: &str, within: Duration) -> bool {
        let asked = self.client.within(within);
        match asked.get::<Node>(None, node).await {
            Ok(_) => true,
            // It is there, and says so.
            Err(status) => status.is_not_found(),
        }
    }
}

impl Objects for Sources {
    fn services(&self) -> Vec<Arc<Service>> {
        self.services.list()
    }
    fn service(&self, key: &Key) -> Option<Arc<Service>> {
        self.services.get(key)
    }
    fn slices(&self, service: &Key) -> Vec<Arc<EndpointSlice>> {
        self.endpoint_slices.indexed(Informers::BY_SERVICE, &service.to_string())
    }
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.list()
    }
    fn pod(&self, key: &Key) -> Option<Arc<Pod>> {
        self.pods.get(key)
    }
    fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.list()
    }
    fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&Key::new("", name))
    }
}

/// Events of the objects.
pub(super) struct Events {
    services: Receiver<Service>,
    endpoint_slices: Receiver<EndpointSlice>,
    nodes: Receiver<Node>,
    pods: Receiver<Pod>,
}

type Receiver<K> = mpsc::UnboundedReceiver<Delta<K>>;

impl Events {
    pub fn of(sources: &Sources) -> Events {
        Events {
            services: sources.services.subscribe(),
            endpoint_slices: sources.endpoint_slices.subscribe(),
            nodes: sources.nodes.subscribe(),
            pods: sources.pods.subscribe(),
        }
    }

    /// Records all pending events.
    pub fn drain(&mut self, dirty: &mut Dirty) {
        while let Ok(delta) = self.services.try_recv() {
            dirty.service(delta);
        }
        while let Ok(delta) = self.endpoint_slices.try_recv() {
            dirty.slice(&delta);
        }
        while let Ok(delta) = self.pods.try_recv() {
            dirty.pod(delta);
        }
        while self.nodes.try_recv().is_ok() {
            dirty.nodes();
        }
    }

    /// Waits for an event and records it; `false`: there will be none.
    pub async fn next(&mut self, dirty: &mut Dirty) -> bool {
        tokio::select! {
            Some(delta) = self.services.recv() => dirty.service(delta),
            Some(delta) = self.endpoint_slices.recv() => dirty.slice(&delta),
            Some(delta) = self.pods.recv() => dirty.pod(delta),
            Some(_) = self.nodes.recv() => dirty.nodes(),
            else => return false,
        }
        true
    }
}
