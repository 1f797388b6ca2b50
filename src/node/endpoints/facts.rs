//! A snapshot of the node, as data from which all endpoints are rendered. Pure.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use podwright_runtime::facts::{Group, Interface, MachineFacts, system::SystemFacts};

use crate::storage::{Disks, Space, Usage};

/// A snapshot. Nothing is guessed: what the host does not report is `None`.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub at: Timestamp,
    pub node: NodeFacts,
    /// Pods with a ready sandbox, one per namespace and name.
    pub pods: Vec<PodFacts>,
    /// Number of containers by state: `created`, `running`, `exited`.
    pub containers: BTreeMap<&'static str, usize>,
    /// The runtime could not be queried.
    pub failed: bool,
}

#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    pub name: String,
    pub machine: MachineFacts,
    pub boot_id: String,
    pub machine_id: String,
    pub system_uuid: String,
    /// Interfaces of the node's network.
    pub interfaces: Vec<Interface>,
    pub disks: Disks,
    /// Non-Pod consumers: the agent, the shims, and all Pods together.
    pub system: Vec<SystemFacts>,
    /// CPU in nanocores, as reported for `metrics.k8s.io`.
    pub nanocores: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct PodFacts {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub cgroup: String,
    /// When its sandbox was created.
    pub started: Timestamp,
    pub group: Group,
    pub interfaces: Vec<Interface>,
    pub containers: Vec<ContainerFacts>,
    /// Its disk usage as last measured.
    pub stored: Option<Arc<Stored>>,
}

#[derive(Clone, Debug, Default)]
pub struct ContainerFacts {
    pub name: String,
    /// The id of this run of the container.
    pub id: String,
    pub image: String,
    pub cgroup: String,
    pub started: Option<Timestamp>,
    pub group: Group,
    pub nanocores: Option<u64>,
}

/// A Pod's disk usage.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    pub at: Timestamp,
    /// `None`: could not be measured.
    pub usage: Option<Usage>,
    /// Volumes with file systems of their own.
    pub volumes: Vec<VolumeFacts>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeFacts {
    pub name: String,
    /// The name of its claim.
    pub claim: Option<String>,
    pub space: Space,
}

impl PodFacts {
    /// CPU of all its containers, if all were measured.
    pub fn nanocores(&self) -> Option<u64> {
        (!self.containers.is_empty()).then(|| self.containers.iter().map(|c| c.nanocores).sum::<Option<u64>>())?
    }
}

impl Space {
    pub fn bytes_used(&self) -> u64 {
        self.bytes.saturating_sub(self.bytes_free)
    }

    pub fn inodes_used(&self) -> u64 {
        self.inodes.saturating_sub(self.inodes_free)
    }
}
