//! Zones of nodes under the real controllers: what makes them look again at who is to lose its Pods.

use std::time::Duration;

use podwright::client::Key;
use serde_json::json;

use super::{cluster::Cluster, run};

const EVICTS: &str = "node.kubernetes.io/unreachable:NoExecute";

fn evicted(cluster: &Cluster) -> usize {
    let is = |node: &&str| cluster.taints(node).iter().any(|taint| taint == EVICTS);
    ["n1", "n2", "n3", "n4"].iter().filter(|node| is(node)).count()
}

fn silent(cluster: &Cluster) -> usize {
    let is =
        |node: &&str| cluster.taints(node).iter().any(|taint| taint == "node.kubernetes.io/unreachable:NoSchedule");
    ["n1", "n2", "n3", "n4"].iter().filter(|node| is(node)).count()
}

/// In a small zone of which most nodes are silent none loses its Pods; one that does not count any more may turn that.
#[test]
fn a_node_that_is_left_out_of_its_zone_changes_how_that_is() {
    run(async {
        let mut cluster = Cluster::new(11).await;
        for node in ["n1", "n2", "n3", "n4"] {
            cluster.add_node(node).await;
        }
        ["n1", "n2", "n3"].iter().for_each(|node| cluster.lose_node(node));
        cluster.until("all are known to be silent", |cluster| silent(cluster) == 3).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        let before = evicted(&cluster);
        assert!(before < 2, "{before}: the zone is not well");
        let label = json!({ "metadata": { "labels": { "node.kubernetes.io/exclude-disruption": "" } } });
        cluster.patch("nodes", &Key::new("", "n3"), label).await;
        cluster.until("the zone is well", |cluster| evicted(cluster) == 3).await;
    });
}

/// While no node at all is ready none loses its Pods; the first that is ready, though new, is reason to begin.
#[test]
fn the_first_node_that_is_ready_ends_the_truce() {
    run(async {
        let mut cluster = Cluster::new(12).await;
        for node in ["n1", "n2"] {
            cluster.add_node(node).await;
        }
        ["n1", "n2"].iter().for_each(|node| cluster.lose_node(node));
        cluster.until("all are known to be silent", |cluster| silent(cluster) == 2).await;
        cluster.create("nodes", "", json!({ "metadata": { "name": "n3" } })).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(evicted(&cluster), 0);
        cluster.find_node("n3").await;
        cluster.until("those that are silent lose their Pods", |cluster| evicted(cluster) == 2).await;
    });
}
