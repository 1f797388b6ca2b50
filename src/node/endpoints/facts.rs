//! What this node is and has at a moment, as data: all endpoints are rendered from it. Pure.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use podwright_runtime::facts::{Group, Interface, MachineFacts, system::SystemFacts};

use crate::storage::{Disks, Space, Usage};

/// A snapshot. Nothing in it is guessed: what this host does not tell is `None`.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub at: Timestamp,
    pub node: NodeFacts,
    /// Those whose sandbox is ready, by namespace and name, of which there is one each.
    pub pods: Vec<PodFacts>,
    /// How many containers are in which state: `created`, `running`, `exited`.
    pub containers: BTreeMap<&'static str, usize>,
    /// The runtime could not be asked.
    pub failed: bool,
}

#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    pub name: String,
    pub machine: MachineFacts,
    pub boot_id: String,
    pub machine_id: String,
    pub system_uuid: String,
    /// Of the node's network.
    pub interfaces: Vec<Interface>,
    pub disks: Disks,
    /// What of it is no Pod: the agent, the shims; and all Pods together.
    pub system: Vec<SystemFacts>,
    /// Billionths of a CPU, as it is reported for `metrics.k8s.io`.
    pub nanocores: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct PodFacts {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub cgroup: String,
    /// When its sandbox was made.
    pub started: Timestamp,
    pub group: Group,
    pub interfaces: Vec<Interface>,
    pub containers: Vec<ContainerFacts>,
    /// What it has on disk, as it was measured last.
    pub stored: Option<Arc<Stored>>,
}

#[derive(Clone, Debug, Default)]
pub struct ContainerFacts {
    pub name: String,
    /// Of this one start of it.
    pub id: String,
    pub image: String,
    pub cgroup: String,
    pub started: Option<Timestamp>,
    pub group: Group,
    pub nanocores: Option<u64>,
}

/// What a Pod has on disk.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    pub at: Timestamp,
    /// `None`: it could not be told.
    pub usage: Option<Usage>,
    /// Volumes on file systems of their own account.
    pub volumes: Vec<VolumeFacts>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeFacts {
    pub name: String,
    /// The claim that it is, by its name.
    pub claim: Option<String>,
    pub space: Space,
}

impl PodFacts {
    /// What its containers use together, where all have been measured.
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
