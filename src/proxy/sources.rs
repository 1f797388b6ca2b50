//! What the proxy reads of the API: the informers, and which slices are a Service's.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use podwright_client::{Client, Informer, Informers, Key};

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The informers that the proxy reads.
#[derive(Clone)]
pub struct Sources {
    pub services: Informer<Service>,
    /// Index: [`Informers::BY_SERVICE`].
    pub endpoint_slices: Informer<EndpointSlice>,
    pub nodes: Informer<Node>,
    /// This node's alone.
    pub pods: Informer<Pod>,
}

impl Sources {
    /// Informers of its own, but for the node's Pods. Must be called inside a tokio runtime.
    pub fn start(client: Client, pods: Informer<Pod>) -> Sources {
        Sources {
            services: Informer::builder(client.clone()).start(),
            endpoint_slices: Informer::builder(client.clone())
                .index(Informers::BY_SERVICE, |slice: &EndpointSlice| {
                    service_of(slice).map(|key| key.to_string()).into_iter().collect()
                })
                .start(),
            nodes: Informer::builder(client).start(),
            pods,
        }
    }

    pub(super) async fn synced(&self) {
        self.services.synced().await;
        self.endpoint_slices.synced().await;
        self.nodes.synced().await;
        self.pods.synced().await;
    }

    /// Those of a Service.
    pub(super) fn slices(&self, service: &Key) -> Vec<Arc<EndpointSlice>> {
        self.endpoint_slices.indexed(Informers::BY_SERVICE, &service.to_string())
    }
}

/// The Service that a slice belongs to.
pub(super) fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(Key::new(slice.metadata.namespace.clone().unwrap_or_default(), name.clone()))
}
