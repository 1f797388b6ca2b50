//! Controllers: loops that drive the cluster towards its desired state. This file is their contract and their table.
//!
//! A controller is one row of [`CONTROLLERS`]: it says which changes wake which keys (`watch`) and what a key needs (`reconcile`).
//! `reconcile` is a synchronous pure function of the informers' content, the time and the last failure: it returns a [`Plan`], a
//! value, and is idempotent; its [`Work`] says which write waits for which. It takes a key, never an event, and has no retry loop:
//! the [`driver`] executes plans, the [`queue`] requeues keys. There is no other state, so a restart loses nothing.

#![forbid(unsafe_code)]

pub mod admission_policy;
mod aside;
pub mod bootstrap_signer;
pub mod certificate_cleaner;
pub mod clock;
pub mod conditions;
pub mod coordinates;
pub mod cron_job;
pub mod daemon_set;
pub mod deployment;
pub mod disruption;
mod driver;
pub mod endpoint_mirror;
pub mod endpoint_slice;
pub mod endpoints;
mod fair_queue;
pub mod garbage;
pub mod history;
pub mod horizontal_pod_autoscaler;
pub mod job;
pub mod live_reads;
pub mod load_balancer;
pub mod meta;
pub mod metadata_informers;
pub mod namespace;
pub mod node_ipam;
pub mod node_lifecycle;
pub mod node_ttl;
pub mod node_zones;
mod pace;
mod patience;
pub mod persistent_volume;
pub mod plan;
pub mod pod_garbage;
pub mod queue;
mod queue_metrics;
pub mod replica_set;
pub mod resource_quota;
pub mod root_ca;
pub mod scales;
mod service_account;
pub mod short_lives;
pub mod stateful_set;
pub mod taint_eviction;
pub mod token_cleaner;
pub mod ttl_after_finished;
mod watches;
pub mod work;
pub mod write;
mod writes;

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use jiff::{Timestamp, tz::TimeZone};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use aside::Aside;
pub use live_reads::LiveReads;
use metadata_informers::Item;
pub use metadata_informers::MetadataInformers;
pub use plan::Plan;
use podwright_api::{Env, load_balancer::LoadBalancing};
use podwright_client::{Client, Informers, Key, Recorder};
use short_lives::Maker;
use watches::Watches;
pub use work::Work;
pub use writes::{Unfollowed, Writes, check};

/// One controller.
pub struct Row {
    /// Upstream's name, used as the source of writes and events.
    pub name: &'static str,
    /// How many keys are processed concurrently.
    pub workers: usize,
    /// What its plans write: other writes are refused.
    pub writes: Writes,
    /// Connects informers to the queue: which changes wake which keys.
    pub watch: fn(&mut Watches<'_>),
    /// What the key needs now.
    pub reconcile: fn(&Context<'_>, &Key) -> Plan,
}

/// The table.
pub static CONTROLLERS: &[Row] = &[
    deployment::ROW,
    replica_set::ROW,
    replica_set::REPLICATION,
    stateful_set::ROW,
    daemon_set::ROW,
    job::ROW,
    job::ORPHANS,
    ttl_after_finished::ROW,
    certificate_cleaner::ROW,
    bootstrap_signer::ROW,
    token_cleaner::ROW,
    cron_job::ROW,
    endpoint_slice::ROW,
    endpoints::ROW,
    endpoint_mirror::ROW,
    load_balancer::ROW,
    namespace::ROW,
    garbage::ROW,
    service_account::ROW,
    root_ca::ROW,
    node_ipam::ROW,
    node_lifecycle::ROW,
    node_zones::ROW,
    node_ttl::ROW,
    taint_eviction::ROW,
    pod_garbage::ORPHANED,
    pod_garbage::UNSCHEDULED,
    pod_garbage::TERMINATED,
    resource_quota::ROW,
    admission_policy::ROW,
    disruption::ROW,
    disruption::STALE,
    horizontal_pod_autoscaler::ROW,
    persistent_volume::claim::ROW,
    persistent_volume::volume::ROW,
    persistent_volume::local::CLAIMS,
    persistent_volume::local::VOLUMES,
    persistent_volume::ephemeral::ROW,
    persistent_volume::protection::CLAIMS,
    persistent_volume::protection::VOLUMES,
];

/// The configuration of the controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// The ranges of nodes' podCIDRs, in order of preference (dual-stack: two).
    pub cluster_cidrs: Vec<IpNet>,
    /// Whether nodes get podCIDRs here; otherwise another component assigns them.
    pub allocate_node_cidrs: bool,
    /// Never assigned to nodes.
    pub service_cidrs: Vec<IpNet>,
    /// The prefix lengths of a node's podCIDRs.
    pub node_mask_v4: u8,
    pub node_mask_v6: u8,
    /// A node whose Lease was not renewed for this long is not ready.
    pub node_monitor_grace: Duration,
    /// The same for a node that has never reported.
    pub node_startup_grace: Duration,
    /// How long Pods of a deleted node are kept.
    pub node_gone_quarantine: Duration,
    /// How many nodes of a zone are tainted for eviction per second.
    pub node_eviction_rate: f64,
    /// The same in a large zone that is partially disrupted; in a smaller one evictions stop.
    pub secondary_node_eviction_rate: f64,
    /// A zone with more nodes is large.
    pub large_cluster_size: usize,
    /// The share of nodes that are not ready from which a zone is disrupted.
    pub unhealthy_zone_threshold: f64,
    /// From this many Pods of a namespace that wait for a node, more are created slowly (see `pace`).
    pub crowd: usize,
    /// How many terminated Pods are kept.
    pub terminated_pods: usize,
    pub autoscaling: horizontal_pod_autoscaler::Settings,
    /// The server's CA for Pods, in PEM, published to every namespace.
    pub root_ca: Option<String>,
    /// Where Services of type LoadBalancer get their addresses.
    pub load_balancing: LoadBalancing,
    /// The Pod Security level that is enforced in namespaces that name none.
    pub pod_security_level: String,
}

impl Default for Config {
    fn default() -> Config {
        // The invariant: literals that parse.
        let cidr = |text: &str| text.parse::<IpNet>().expect("a valid CIDR");
        Config {
            cluster_cidrs: vec![cidr("10.244.0.0/16")],
            allocate_node_cidrs: true,
            service_cidrs: vec![cidr("10.96.0.0/16")],
            node_mask_v4: 24,
            node_mask_v6: 64,
            node_monitor_grace: Duration::from_secs(50),
            node_startup_grace: Duration::from_secs(60),
            node_gone_quarantine: Duration::from_secs(40),
            node_eviction_rate: 0.1,
            secondary_node_eviction_rate: 0.01,
            large_cluster_size: 50,
            unhealthy_zone_threshold: 0.55,
            crowd: 5_000,
            terminated_pods: 12_500,
            autoscaling: Default::default(),
            root_ca: None,
            load_balancing: LoadBalancing::default(),
            pod_security_level: "privileged".to_owned(),
        }
    }
}

/// What all controllers share.
pub struct World {
    pub informers: Informers,
    pub metadata: MetadataInformers,
    pub heartbeats: node_lifecycle::Heartbeats,
    pub scales: scales::Scales,
    pub autoscaling: horizontal_pod_autoscaler::Memory,
    pub paces: pace::Paces,
    pub short_lives: short_lives::ShortLives,
    pub(crate) patience: patience::Patience,
    pub last_successes: job::last_success::LastSuccesses,
    /// The time zone of schedules without one: that of the process.
    pub zone: TimeZone,
    pub config: Config,
    aside: Aside,
}

impl World {
    /// How many more Pods a namespace has room for.
    fn room(&self, namespace: &str) -> usize {
        let count = |index| self.informers.pods.count(index, namespace);
        pace::room(count(Informers::WAITING), count(Informers::LEAVING), self.config.crowd)
    }
}

/// The inputs of one reconcile.
pub struct Context<'a> {
    pub world: &'a World,
    pub now: Timestamp,
    /// Why writes of the key's last plan failed, for those that report it.
    pub failures: &'a [Failure],
    /// Where the key's last plan stopped.
    pub left_off: Option<&'a Item>,
    /// The server's responses to the key's reads.
    pub live_reads: &'a LiveReads,
}

impl<'a> Context<'a> {
    /// The first failure: most plans are refused for a single reason.
    pub fn failure(&self) -> Option<&'a Failure> {
        self.failures.first()
    }

    /// How many Pods to plan for the key's object: a plan of everything desired would be computed again at each change. At least
    /// one: the driver decides when it is created.
    fn most_pods(&self, namespace: &str, maker: &Maker) -> usize {
        let most = match self.world.short_lives.must_wait(maker) {
            true => 0,
            false => self.world.paces.most(namespace, self.world.room(namespace)),
        };
        most.max(1)
    }
}

/// A failed write: the reason of its event and the server's message.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub reason: &'static str,
    pub message: String,
}

/// Runs all controllers until `shutdown`, with a table that passes [`check`]; returns when every worker has ended.
pub async fn run(client: Client, env: Env, informers: Informers, config: Config, shutdown: CancellationToken) {
    let metadata = MetadataInformers::start(&client);
    let world = Arc::new(World {
        informers,
        metadata,
        heartbeats: Default::default(),
        scales: Default::default(),
        autoscaling: Default::default(),
        paces: Default::default(),
        short_lives: Default::default(),
        patience: Default::default(),
        last_successes: Default::default(),
        zone: env.zone(),
        config,
        aside: Aside::default(),
    });
    let synced = async {
        world.informers.synced().await;
        world.metadata.synced().await;
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => return,
        () = synced => {}
    }
    let (mut tasks, mut queues) = (JoinSet::new(), Vec::new());
    for row in CONTROLLERS {
        let client = client.named(row.name);
        let recorder = Recorder::new(client.clone(), env.clone(), row.name, None);
        let driver = Arc::new(driver::Driver {
            row,
            world: world.clone(),
            client,
            env: env.clone(),
            recorder,
            queue: queue::Queue::new(row.name, row.workers),
            memory: Default::default(),
            lately: Default::default(),
            unused: Default::default(),
        });
        (row.watch)(&mut Watches {
            queue: &driver.queue,
            world: &world,
            env: &env,
            shutdown: &shutdown,
            tasks: &mut tasks,
        });
        for _ in 0..row.workers {
            tasks.spawn(driver.clone().work(shutdown.clone()));
        }
        queues.push(driver.queue.clone());
    }
    tasks.spawn(clock::watch(env, queues, shutdown));
    while let Some(ended) = tasks.join_next().await {
        tell_of(ended);
    }
}

fn tell_of(ended: Result<(), JoinError>) {
    if let Err(why) = ended {
        tracing::error!(%why, "a task of the controllers failed");
    }
}
