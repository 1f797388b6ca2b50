//! Resource usage: the agents' reports, and `metrics.k8s.io/v1beta1`.
//!
//! An agent measures (`node::usage`) and puts a [`Report`] to the subresource `usage` of its own Node. The server keeps the last
//! one of each node in memory and answers `get` and `list` of the group's `pods` and `nodes` from it (`server::usage`); there is
//! nothing to watch. Clients read them like any other object:
//!
//! ```text
//! let selected = Options { label_selector: Some("app=web".into()), ..Options::default() };
//! client.list::<PodMetrics>(Some("default"), selected).await?.items
//! client.get::<PodMetrics>(Some("default"), "web-0").await?       // NotFound: there are no figures (yet)
//! client.list::<NodeMetrics>(None, Options::default()).await?.items
//! client.report(node, &Report { .. }).await?                      // what an agent does, and a test
//! ```

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    ClusterResourceScope, NamespaceResourceScope,
    apimachinery::pkg::{
        api::resource::Quantity as Text,
        apis::meta::v1::{ObjectMeta, Time},
    },
};
use serde::{Deserialize, Serialize};

use super::quantity::{Format, Quantity};
use super::schema::Defined;

/// Quantities by the names of resources: `cpu`, `memory`.
pub type ResourceList = BTreeMap<String, Text>;

/// The API group.
pub const GROUP: &str = "metrics.k8s.io";

/// The usage of a node and its containers, which its agent puts to `nodes/<name>/usage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The time of measurement, by the node's clock.
    pub time: Timestamp,
    /// The node as a whole; `None`: it was measured only once so far.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<NodeUsage>,
    /// The Pods all of whose running containers have been measured twice.
    #[serde(default)]
    pub pods: Vec<PodUsage>,
}

/// The usage of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeUsage {
    /// The time before [`Report::time`] over which the CPU was measured, in milliseconds.
    pub window_ms: u64,
    #[serde(flatten)]
    pub usage: Usage,
}

/// The usage of one Pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsage {
    pub namespace: String,
    pub name: String,
    /// The uid in the API: for a static Pod, its mirror's.
    pub uid: String,
    /// As for a node; the longest of its containers'.
    pub window_ms: u64,
    pub containers: Vec<ContainerUsage>,
}

/// The usage of one container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerUsage {
    pub name: String,
    #[serde(flatten)]
    pub usage: Usage,
}

/// The measured values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// 10^-9 CPUs.
    pub nanocores: u64,
    /// The working set, in bytes.
    pub memory: u64,
}

impl Usage {
    /// As a resource list: `cpu` in decimal, `memory` in binary form, as in metrics-server.
    pub fn quantities(&self) -> ResourceList {
        let units = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let (cpu, memory) =
            (Quantity::from_nanos(self.nanocores), Quantity::from_units(units(self.memory), Format::BinarySi));
        BTreeMap::from([("cpu".to_owned(), Text(cpu.to_string())), ("memory".to_owned(), Text(memory.to_string()))])
    }
}

/// `metrics.k8s.io/v1beta1` PodMetrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodMetrics {
    /// Name, namespace and labels are the Pod's.
    pub metadata: ObjectMeta,
    /// The end of the CPU measurement.
    pub timestamp: Time,
    /// Its duration, in Go's format: `15.02s`.
    pub window: String,
    pub containers: Vec<ContainerMetrics>,
}

/// The usage of one container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerMetrics {
    pub name: String,
    pub usage: ResourceList,
}

/// `metrics.k8s.io/v1beta1` NodeMetrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeMetrics {
    /// Name and labels are the Node's.
    pub metadata: ObjectMeta,
    pub timestamp: Time,
    pub window: String,
    pub usage: ResourceList,
}

macro_rules! resource {
    ($type:ident, $plural:literal, $scope:ty) => {
        crate::view!($type, "metrics.k8s.io/v1beta1", GROUP, "v1beta1", stringify!($type), $plural, $scope);

        impl Defined for $type {
            const NAME: &'static str = concat!("io.k8s.metrics.pkg.apis.metrics.v1beta1.", stringify!($type));
        }
    };
}

resource!(PodMetrics, "pods", NamespaceResourceScope);
resource!(NodeMetrics, "nodes", ClusterResourceScope);
