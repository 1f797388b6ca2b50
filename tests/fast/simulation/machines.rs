//! The machines of the simulated nodes: which there are, what they have, and their heartbeats.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Node;
use podwright::{
    api::{Env, Verb},
    client::{Client, Key},
};
use serde_json::json;

use super::cluster::{Outcome, request, status};

/// What the simulation decides about nodes.
#[derive(Default)]
pub struct Machines {
    /// The nodes that are there, and whether they are alive.
    pub nodes: BTreeMap<String, bool>,
    pub beating: bool,
    /// How many Pod addresses have been given out.
    pub addresses: u32,
    /// What a node has that comes.
    pub room: Room,
    /// Pods that shall not be ready for so long, by uid.
    pub sick: BTreeMap<String, Duration>,
    /// Thousandths of a CPU that the Pods of an app use together.
    pub load: BTreeMap<Key, u64>,
}

/// What a node has.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub cpu: &'static str,
    pub memory: &'static str,
    pub pods: &'static str,
}

impl Default for Room {
    fn default() -> Room {
        Room { cpu: "10", memory: "32Gi", pods: "110" }
    }
}

/// One heartbeat; what a node tells of itself when it is new, or was thought lost.
pub async fn beat(client: &Client, env: &Env, name: &str, room: Room) -> Outcome<()> {
    let key = Key::new("kube-node-lease", name);
    let now = env.now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let renewed = json!({ "spec": { "renewTime": now, "holderIdentity": name, "leaseDurationSeconds": 40 } });
    match client.call(request(Verb::Patch, "leases.coordination.k8s.io", &key, Some(renewed.clone()))).await {
        Err(status) if status.is_not_found() => {
            let mut lease = renewed;
            lease["metadata"] = json!({ "name": name });
            let ns = Key::new("kube-node-lease", "");
            client.call(request(Verb::Create, "leases.coordination.k8s.io", &ns, Some(lease))).await?;
        }
        other => drop(other?),
    }
    let node: Node = client.get(None, name).await?;
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    if !conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True") {
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "reason": "KubeletReady", "message": "" });
        let all = json!([condition("Ready", "True"), condition("MemoryPressure", "False")]);
        let room = match node.status.and_then(|status| status.allocatable) {
            Some(known) => json!(known),
            None => json!({ "cpu": room.cpu, "memory": room.memory, "pods": room.pods }),
        };
        let told = json!({ "conditions": all, "capacity": room, "allocatable": room });
        status(client, "nodes", &Key::new("", name), told).await?;
    }
    Ok(())
}
