//! The objects that determine a node's network, and which of them have changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use podwright_client::{Delta, Key};

use super::host_ports::wanted;

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The objects that determine a node's network.
pub trait Objects {
    fn services(&self) -> Vec<Arc<Service>>;
    fn service(&self, key: &Key) -> Option<Arc<Service>>;
    /// The slices of a Service.
    fn slices(&self, service: &Key) -> Vec<Arc<EndpointSlice>>;
    /// The Pods of this node.
    fn pods(&self) -> Vec<Arc<Pod>>;
    fn pod(&self, key: &Key) -> Option<Arc<Pod>>;
    fn nodes(&self) -> Vec<Arc<Node>>;
    fn node(&self, name: &str) -> Option<Arc<Node>>;
}

/// Objects that have changed since the network's state was compiled.
#[derive(Debug, Default)]
pub struct Dirty {
    pub(super) services: BTreeSet<Key>,
    /// Those whose own object has changed, not only their endpoints.
    pub(super) written: BTreeSet<Key>,
    /// Pods whose host ports have changed.
    pub(super) pods: BTreeSet<Key>,
    pub(super) nodes: bool,
}

impl Dirty {
    /// All existing objects.
    pub fn everything(objects: &impl Objects) -> Dirty {
        let services: BTreeSet<Key> = objects.services().iter().map(|service| Key::of(&**service)).collect();
        let pods = objects.pods().iter().map(|pod| Key::of(&**pod)).collect();
        Dirty { written: services.clone(), services, pods, nodes: true }
    }

    pub fn service(&mut self, delta: Delta<Service>) {
        self.services.insert(delta.key.clone());
        self.written.insert(delta.key);
    }
    pub fn slice(&mut self, delta: &Delta<EndpointSlice>) {
        let slices = delta.old.iter().chain(&delta.new);
        self.services.extend(slices.filter_map(|slice| service_of(slice)));
    }
    pub fn pod(&mut self, delta: Delta<Pod>) {
        // Including those that cannot be served, which are reported.
        let ports = |pod: &Option<Arc<Pod>>| pod.iter().flat_map(|pod| wanted(pod)).collect::<Vec<_>>();
        if ports(&delta.old) != ports(&delta.new) {
            self.pods.insert(delta.key);
        }
    }
    /// The Services that may be others than before, and whether Nodes may.
    pub(super) fn looked_at(&self) -> (BTreeSet<Key>, bool) {
        (self.services.clone(), self.nodes)
    }

    pub fn nodes(&mut self) {
        self.nodes = true;
    }
}

/// The Service that a slice belongs to.
pub(super) fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(Key::new(slice.metadata.namespace.clone().unwrap_or_default(), name.clone()))
}
