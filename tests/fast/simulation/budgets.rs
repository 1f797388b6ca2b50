//! Disruption budgets hold: however many evict at once, never fewer Pods are healthy than a budget wants.

use std::time::Duration;

use podwright::{client::Key, controllers::meta};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;

use super::{REST, cluster::Cluster, first_seed, run, wishes::Wish};

fn healthy(cluster: &Cluster) -> usize {
    let pods = cluster.seen.pods.list();
    pods.iter().filter(|pod| meta::is_active(pod) && meta::is_ready(pod)).count()
}

/// Evicts for a while, a few Pods at once, with controllers that lag behind, fail, and restart. How many were evicted.
async fn evict_for_a_while(cluster: &mut Cluster, rng: &mut StdRng, least: usize) -> usize {
    let mut evicted = 0;
    for turn in 0..150 {
        let pods = cluster.seen.pods.list();
        let victims: Vec<Key> = (0..3).map(|_| Key::of(&*pods[rng.random_range(0..pods.len())])).collect();
        let before = healthy(cluster);
        let outcomes = futures::future::join_all(victims.iter().map(|pod| cluster.evict(pod))).await;
        for outcome in outcomes {
            match outcome {
                Ok(()) => evicted += 1,
                Err(status) if status.code == 429 => {
                    let why = &status.details.as_ref().expect("details").causes[0];
                    assert_eq!(why.reason, "DisruptionBudget", "{status:?}");
                }
                Err(status) => assert!(status.is_not_found() || status.is_conflict(), "{status:?}"),
            }
        }
        for _ in 0..rng.random_range(0..50) {
            tokio::task::yield_now().await;
            let now = healthy(cluster);
            assert!(now >= least, "turn {turn}: {now} of {before} are healthy, {least} are wanted");
        }
        if rng.random_bool(0.05) {
            cluster.stop_controllers().await;
            cluster.start_controllers();
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..400))).await;
        assert!(healthy(cluster) >= least, "turn {turn}: {least} are wanted");
    }
    evicted
}

#[test]
fn evictions_never_violate_a_budget() {
    let first = first_seed();
    for (seed, spec, least) in [
        (first, json!({ "minAvailable": 4 }), 4),
        (first + 1, json!({ "maxUnavailable": 2 }), 4),
        (first + 2, json!({ "maxUnavailable": "33%" }), 4),
        (first + 3, json!({ "minAvailable": "70%" }), 5),
    ] {
        println!("SIMULATION_SEED={seed} {spec}");
        run(async {
            let mut cluster = Cluster::rough(seed).await;
            cluster.add_node("n1").await;
            cluster.add_namespace("a").await;
            cluster.deploy(&Key::new("a", "web"), Wish::new(6, "v1")).await;
            cluster.rest(REST).await;
            cluster.relax();
            let mut budget = json!({ "metadata": { "name": "web" }, "spec": spec });
            budget["spec"]["selector"] = json!({ "matchLabels": { "app": "web" } });
            cluster.create("poddisruptionbudgets.policy", "a", budget).await;
            let allows = |cluster: &Cluster| {
                let budget = cluster.seen.pod_disruption_budgets.get(&Key::new("a", "web"));
                budget.and_then(|budget| Some(budget.status.as_ref()?.disruptions_allowed)) == Some(6 - least)
            };
            cluster.until("the budget is counted", allows).await;
            let mut rng = StdRng::seed_from_u64(seed);
            let evicted = evict_for_a_while(&mut cluster, &mut rng, usize::try_from(least).expect("a count")).await;
            assert!(evicted > 10, "only {evicted} evictions came through");
            cluster.rest(REST).await;
            cluster.until("the budget has recovered", allows).await;
        });
    }
}
