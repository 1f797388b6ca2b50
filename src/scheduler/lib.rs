//! The scheduler: assigns every Pod without a node to the best one.
//!
//! ```text
//!   informers --> Cluster (nodes, what is on them, counts) --\
//!       \-------> Queue (active, backoff, parked) ----pod----> decide (pure) --> reserve, wait for its volumes, bind,
//!                   ^                                                            park with the reasons, or
//!                   \-- a change that may help                                   make room by preemption
//! ```
//!
//! One task owns cluster and queue and processes one Pod at a time; a decision takes effect at once (the Pod is *assumed* on its
//! node), while the binding is written concurrently. The plugins are rows of [`plugins::PLUGINS`], a file each, with the contract
//! of [`framework`]; a [`profile`] selects the plugins for the Pods of one `schedulerName`.

#![forbid(unsafe_code)]

pub mod carriers;
pub mod cluster;
pub mod config;
pub mod decide;
mod driver;
pub mod filters;
pub mod framework;
pub mod index;
mod metrics;
mod node_info;
mod nomination;
pub mod plugins;
pub mod pod;
mod point;
pub mod profile;
pub mod queue;
pub mod search;
pub mod storage;
mod strict;
pub mod term;
mod timing;
pub mod workloads;
mod writes;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub use config::Config;
pub use pod::NAME;
use podwright_api::Env;
use podwright_client::{Client, Informers};

/// Runs until `shutdown`.
pub async fn run(client: Client, env: Env, informers: Informers, config: Arc<Config>, shutdown: CancellationToken) {
    let synced = async {
        informers.pods.synced().await;
        informers.nodes.synced().await;
        informers.namespaces.synced().await;
        informers.services.synced().await;
        informers.replica_sets.synced().await;
        informers.stateful_sets.synced().await;
        informers.pod_disruption_budgets.synced().await;
        informers.persistent_volume_claims.synced().await;
        informers.persistent_volumes.synced().await;
        informers.storage_classes.synced().await;
    };
    if shutdown.run_until_cancelled(synced).await.is_some() {
        driver::Scheduler::new(client, env, &informers, config).run(shutdown).await;
    }
}
