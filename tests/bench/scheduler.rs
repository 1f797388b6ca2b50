//! The scheduler: how fast it decides, and how fast Pods get their nodes through the API.

use std::sync::Arc;

use podwright::{api::Env, client::local, scheduler::bench, server, store::Sqlite};

use crate::{beside, report};

const NODES: usize = 5_000;
const PODS: usize = 5_000;

/// Decisions without I/O, then Pods bound through the API server on a durable store.
pub fn speed() {
    for (what, affinity, budget) in [("basic", false, 5_000.0), ("node affinity", true, 2_200.0)] {
        let speed = bench::decisions(NODES, PODS, affinity).expect("every Pod fits");
        let what = format!("scheduling {what}, {NODES} nodes");
        report(&what, format!("{speed:.0} Pods/s"), &format!(">= {budget} Pods/s"), speed >= budget);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let bound = runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, env) = (Sqlite::open(&dir.path().join("scheduler.db")).unwrap(), Env::system());
        let server = server::Server::open(Arc::new(store), env.clone(), server::Config::default()).await.unwrap();
        bench::bindings(local::client(server, "kube-scheduler"), env, NODES, PODS).await.expect("every Pod is bound")
    });
    beside(&format!("bound through the API, durably, {NODES} nodes"), format!("{bound:.0} Pods/s"));
}
