//! What the simulated nodes tell of usage: a load that the ready Pods of an app share, measured and reported as agents do.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use podwright::{
    client::{Client, Key},
    controllers::meta,
    node::{
        spec::USAGE,
        usage::{hollow::Pretence, meter::Meter},
    },
};
use tokio::time::Instant;

use super::nodes::Hollow;

/// How often a node measures.
pub const PERIOD: Duration = Duration::from_secs(15);

/// The meters of all nodes.
pub struct Meters {
    /// One for each server: an agent is known to all of them.
    pub servers: Vec<Client>,
    pub nodes: BTreeMap<String, (Pretence, Meter)>,
}

/// The app that a Pod is of.
fn app(pod: &Pod) -> Option<Key> {
    let app = pod.metadata.labels.as_ref()?.get("app")?;
    Some(Key::new(meta::namespace(&pod.metadata), app))
}

fn works(pod: &Pod) -> bool {
    meta::is_active(pod) && meta::is_ready(pod)
}

/// The Pods of a node, each with its share of the load.
fn loaded(node: &str, all: &[Arc<Pod>], load: &BTreeMap<Key, u64>) -> Vec<Arc<Pod>> {
    let share = |pod: &Pod| {
        let app = app(pod)?;
        let others = all.iter().filter(|other| works(other) && self::app(other).as_ref() == Some(&app)).count() as u64;
        works(pod).then(|| load.get(&app).copied().unwrap_or(0) / others.max(1))
    };
    let here = all.iter().filter(|pod| meta::node_name(pod) == Some(node));
    let loaded = here.map(|pod| {
        let mut loaded = Pod::clone(pod);
        let usage = format!("cpu={}m", share(pod).unwrap_or(0));
        loaded.metadata.annotations.get_or_insert_default().insert(USAGE.to_owned(), usage);
        Arc::new(loaded)
    });
    loaded.collect()
}

impl Hollow {
    /// Has each node that is alive measure and report.
    pub async fn measure(&mut self) {
        let (nodes, load) = {
            let machines = self.machines();
            (machines.nodes.clone(), machines.load.clone())
        };
        self.meters.nodes.retain(|node, _| nodes.contains_key(node));
        let pods = self.seen.pods.list();
        for (node, _) in nodes.iter().filter(|(_, alive)| **alive) {
            let (pretence, meter) = self.meters.nodes.entry(node.clone()).or_default();
            let sample = pretence.sample(&loaded(node, &pods, &load), Instant::now());
            let (report, _) = meter.take(sample, self.env.now());
            for server in &self.meters.servers {
                // The node may have been deleted a moment ago.
                server.report(node, &report).await.ok();
            }
        }
    }
}
