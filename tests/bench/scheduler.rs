//! The scheduler: how fast it decides, and how fast Pods get their nodes through the API.

use std::sync::Arc;

use podwright::{
    api::Env,
    client::local,
    scheduler::bench::{self, Workload},
    server,
    store::Sqlite,
};

use crate::report;

const PODS: usize = 5_000;

/// Decisions without I/O for each workload, then Pods bound through the API server on a durable store.
pub fn speed() {
    for workload in Workload::ALL {
        // Ten times upstream's floors at 5,000 nodes, and the design's own figure for basic Pods.
        let budget = match workload {
            Workload::Basic => 5_000.0,
            Workload::PreferredNodeAffinity => 2_200.0,
            Workload::RequiredPodAntiAffinity => 600.0,
            Workload::TopologySpread => 850.0,
            Workload::Preemption => 200.0,
        };
        for nodes in [100, 1_000, 5_000] {
            let speed = bench::decisions(nodes, workload).expect("every Pod fits");
            let what = format!("scheduling {} {nodes} nodes:", workload.name());
            report(&what, format!("{speed:.0} Pods/s"), &format!(">= {budget} Pods/s"), speed >= budget);
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for nodes in [100, 1_000, 5_000] {
        let bound = runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let (store, env) = (Sqlite::open(&dir.path().join("scheduler.db")).unwrap(), Env::system());
            let server = server::Server::open(Arc::new(store), env.clone(), server::Config::default()).await.unwrap();
            bench::bindings(local::client(server, "kube-scheduler"), env, nodes, PODS)
                .await
                .expect("every Pod is bound")
        });
        let what = format!("bound through the API, durably, {nodes} nodes:");
        report(&what, format!("{bound:.0} Pods/s"), ">= 5000 Pods/s", bound >= 5_000.0);
    }
}
