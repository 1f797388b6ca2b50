//! The node agent: one worker per Pod observes, plans (pure) and acts; it only dials out.
//!
//! ```text
//!  server --Pods--> pods.rs --PodEvent--> worker.rs ----> pod/  (PodState, PodEvent, now) -> (PodState, effects)   pure
//!  manifest folder ----^                   ^  |   <-----   |- plan.rs    what to do next
//!                                          |  |            '- status.rs  what to report
//!                      PodEvent::Done      |  | effects
//!                                          |  |- executor.rs  a trait
//!                                          '--|  |- machine/  runtime, images, net, volumes/
//!                                             |  '- hollow.rs no kernel below it
//!                                             '- publish.rs -> server
//! ```
//!
//! Reading order: `spec`, `pod` (its state), `plan`, `status`, `worker`, then `executor` and `machine`; only `translate` turns
//! manifests into runtime specifications; `sessions` serves logs, exec, attach, port-forward, images, inspect, trace, where
//! `residents` finds the Pod of an API object; `endpoints` serves the kubelet's endpoints from `counters` and `usage`; `storage`
//! evicts Pods that fill the disk; `shutdown` ends them before the machine shuts down.

#![forbid(unsafe_code)]

pub mod admission;
pub mod app_armor;
mod awaited;
pub mod backoff;
pub mod conditions;
mod config;
pub mod conflicting_tables;
pub mod counted;
pub mod counters;
mod disk;
pub mod endpoints;
pub mod events;
pub mod executor;
mod fair_semaphore;
mod hollow;
pub mod hooks;
mod host;
pub mod id_pool;
mod kernel;
mod labels;
pub mod logs;
mod machine;
mod mounts;
mod network_plugins;
pub mod objects;
mod orders;
mod panics;
pub mod plan;
pub mod pod;
mod pods;
pub mod probes;
mod publish;
pub mod qos;
pub mod references;
mod register;
pub mod residents;
pub mod resize;
pub mod restore_status;
pub mod sessions;
pub mod shutdown;
mod spans;
pub mod spec;
pub mod startup;
pub mod static_pods;
pub mod status;
mod stop;
pub mod storage;
mod told;
pub mod translate;
pub mod undecodable;
pub mod unsupported;
pub mod usage;
pub mod users;
pub mod verification;
pub mod volumes;
mod worker;

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use podwright_net::Network;
use podwright_proxy::Gate;
use podwright_runtime::{JournalWriter, Runtime, image::ImageStore, removals::LOOK, sys::Kernel};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use admission::protections::{Protections, Unavailable};
use app_armor::AppArmor;
use counted::Counted;
use counters::Counters;
use endpoints::Endpoints;
use executor::Executor;
use machine::{Machine, image_gc::ImageGc, places::Places};
use podwright_api::{Env, Status};
use podwright_client::{Client, Informer, Recorder};
use residents::Residents;
use status::Host;
use translate::{env::Facts, files::Names};
use users::Users;
use volumes::{Volumes, tokens::Tokens};

pub use config::Config;
pub use hollow::Hollow;
pub use kernel::release as kernel_release;

/// The folder of the built-in provisioner's volumes, below the state folder.
pub const LOCAL_VOLUMES: &str = "local-volumes";

/// The port that clients use for a node's kubelet endpoints. Nothing listens there: the server routes the requests.
pub const KUBELET_PORT: i32 = 10250;

/// What an agent stands on.
pub struct Parts {
    pub client: Client,
    /// Counts the requests of that client, too.
    pub counters: Arc<Counters>,
    /// [`pods_of`] this node.
    pub pods: Informer<Pod>,
    /// All Services; shared with the proxy.
    pub services: Informer<Service>,
    pub runtime: Runtime,
    pub images: ImageStore,
    pub network: Network,
    /// Where Pods wait until their policies are in force.
    pub gate: Gate,
    /// Delays the machine's shutdown, where that is asked for.
    pub shutdown: Option<shutdown::Manager>,
    pub env: Env,
}

/// Watches the Pods bound to a node. Must be called inside a tokio runtime.
pub fn pods_of(client: &Client, node: &str) -> Informer<Pod> {
    // A Pod that cannot be fully decoded does not stop the watch: its readable part is used.
    Informer::builder(client.named("kubelet")).fields(format!("spec.nodeName={node}")).keep_undecodable().start()
}

/// State that all workers of an agent share.
pub struct Shared {
    pub env: Env,
    pub client: Client,
    pub recorder: Recorder,
    pub executor: Arc<dyn Executor>,
    pub host: Host,
    pub config: Config,
    /// When cancelled, workers end and leave everything as it is.
    pub stop: CancellationToken,
    /// For measuring containers' usage.
    pub started: usage::Started,
    /// Finds Pods by API objects.
    pub residents: Arc<Residents>,
    /// Whether the disks are too full to accept Pods.
    pub pressure: storage::Pressure,
    /// Whether the machine is shutting down: no Pods are accepted.
    pub shutting_down: shutdown::ShuttingDown,
    /// Event counters for `/metrics`.
    pub counters: Arc<Counters>,
    /// The usage that is reported.
    pub used: Arc<usage::Used>,
    /// Limits the probes' concurrent commands.
    pub pace: probes::Pace,
    /// Limits the probes' CPU usage.
    pub share: probes::Share,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("node", &self.config.name).finish_non_exhaustive()
    }
}

/// A node's agent.
pub struct Agent;

impl Agent {
    /// Runs a node until `shutdown`.
    ///
    /// 1. read what the host is, 2. open volumes and informers, 3. run static Pods that need no server, 4. register the Node,
    /// 5. serve sessions, 6. wait for the node's Pod range, 7. find what an earlier agent left and run the Pods.
    ///
    /// # Errors
    ///
    /// A folder of the node cannot be made, or its volumes cannot be opened. What fails later is tried again.
    pub async fn run(config: Config, parts: Parts, shutdown: CancellationToken) -> Result<(), Status> {
        let Parts { client, counters, pods: wanted, services, runtime, images, network, gate, shutdown: manager, env } =
            parts;
        let client = client.named("kubelet");
        let host = host::Machine::read(&config.state_dir, &config.eviction_hard);
        let objects = Arc::new(objects::Objects::new(client.clone(), services, config.by_name));
        let tokens = Tokens::new(client.clone(), env.clone());
        let (logs, seccomp, journals) =
            (&config.log_dir, config.state_dir.join("seccomp"), config.run_dir.join("journals"));
        [logs, &seccomp].into_iter().try_for_each(std::fs::create_dir_all).map_err(Status::internal)?;
        // Shims follow no symlinks on the way to a log: Pods may control the folder below.
        let logs = logs.canonicalize().map_err(Status::internal)?;
        // Journals need not survive a reboot, and startup must not wait for a disk to write them.
        mounts::keep_in_memory(&Kernel::new(&JournalWriter::none()), &journals).map_err(Status::internal)?;
        let (pods, memory) = (config.state_dir.join("pods"), config.run_dir.join("volumes"));
        let local = config.state_dir.join(LOCAL_VOLUMES);
        let recorder = Recorder::new(client.clone(), env.clone(), "kubelet", Some(&config.name));
        let removals = runtime.removals().clone();
        removals.find(&logs);
        let volumes = Volumes::open(
            pods,
            memory,
            local.clone(),
            objects.clone(),
            tokens,
            env.clone(),
            recorder.clone(),
            removals,
        )
        .map_err(Status::internal)?;
        let missing_controllers: Vec<String> = runtime.cgroups().missing.clone();
        if !missing_controllers.is_empty() {
            let missing = missing_controllers.join(", ");
            tracing::warn!("this host lacks the cgroup v2 controllers {missing}: resource limits are not enforced");
        }
        if let Some(why) = &runtime.cgroups().devices_refused {
            tracing::warn!("device rules cannot be enforced ({why}): only privileged containers get CAP_MKNOD");
        }
        let user_namespaces = host::user_namespaces(&kernel::release(), runtime.user_namespaces());
        let project_quotas = machine::quota::in_force(&user_namespaces, &[volumes.root(), runtime.root()]);
        match &project_quotas {
            Ok(()) => tracing::info!("measuring the disk usage of Pods with user namespaces by project quotas"),
            Err(why) => tracing::info!("measuring the disk usage of Pods by walking: {why}"),
        }
        let protections = Protections {
            sysctls: config.sysctls.clone(),
            user_namespaces,
            ids: config.ids,
            app_armor: AppArmor::of_host().await,
            se_linux: host::se_linux(),
            project_quotas,
        };
        let sandboxes = runtime.list().await.into_iter();
        let living = sandboxes.map(|s| (s.spec.id, s.spec.users)).chain(runtime.lost_users());
        let living: Vec<_> = living.map(|(id, users)| (translate::split_sandbox_id(&id).0, users)).collect();
        let (ids, root, removals) = (config.ids, volumes.root().to_owned(), runtime.removals().clone());
        let users = disk::work(move || Users::of_host(ids, &root, living, removals)).await.map_err(Status::internal)?;
        users.look(LOOK).await;
        let machine = Arc::new(Machine {
            users,
            runtime,
            protections: protections.clone(),
            images,
            verification: config.verification.clone(),
            network: network.clone(),
            gate,
            objects: objects.clone(),
            volumes: Arc::new(volumes),
            env: env.clone(),
            places: Places {
                logs,
                journals,
                journal: config.journal,
                seccomp,
                resolv_conf: config.resolv_conf.clone(),
                network: config.network_namespace.clone(),
            },
            names: Names { dns: config.cluster_dns.clone(), domain: config.cluster_domain.clone() },
            facts: Facts {
                host_ips: config.addresses.clone(),
                pod_ips: Vec::new(),
                cpu_millis: host.cpus * 1000,
                memory: host.memory,
                ephemeral_storage: host.storage - host.storage_reserved,
            },
            pids_max: config.pod_pids_max,
            missing_controllers,
            journals: Mutex::default(),
            qos_cgroups: Default::default(),
            quotas: Default::default(),
            // An earlier agent may have left some.
            image_gc: Arc::new(ImageGc::new(true)),
        });
        let (looking, stop) = (machine.clone(), shutdown.clone());
        tokio::spawn(async move { stop.run_until_cancelled(looking.users.look_on()).await });
        let (pressure, shutting_down) = (storage::Pressure::default(), shutdown::ShuttingDown::default());
        let (conflicts, conflicting_tables) = watch::channel(None);
        let (plugins, no_network) =
            watch::channel(network.has_plugins().then(|| "cni plugin not initialized".to_owned()));
        let node = register::Registration::new(
            client.clone(),
            env.clone(),
            &config,
            host.clone(),
            &protections,
            Some(local),
            register::Signals {
                pressure: pressure.subscribe(),
                shutting_down: shutting_down.subscribe(),
                no_network,
                conflicting_tables,
            },
        );
        let nodes = Informer::<Node>::builder(client.clone()).fields(format!("metadata.name={}", config.name)).start();
        let residents = Arc::<Residents>::default();
        let used = Arc::<usage::Used>::default();
        let sessions = sessions::Sessions {
            endpoints: Endpoints::new(
                config.clone(),
                machine.clone(),
                residents.clone(),
                counters.clone(),
                used.clone(),
                host.info.clone(),
            ),
            machine: machine.clone(),
            residents: residents.clone(),
            client: client.clone(),
            node: config.name.clone(),
            open: Default::default(),
        };

        let shared = Arc::new(Shared {
            env: env.clone(),
            client: client.clone(),
            recorder: recorder.clone(),
            executor: Arc::new(Counted::new(machine.clone(), counters.clone())),
            host: Host::new(&config.addresses),
            config: config.clone(),
            stop: shutdown.clone(),
            started: usage::Started::default(),
            residents,
            pressure: pressure.clone(),
            shutting_down: shutting_down.clone(),
            counters,
            used,
            pace: probes::Pace::default(),
            share: probes::Share::default(),
        });

        let run = async {
            tokio::spawn(shutdown.clone().run_until_cancelled_owned(network_plugins::watch(network.clone(), plugins)));
            storage::glance(&shared).await;
            let (known, own) = (nodes.clone(), node.labels());
            let labels = move || {
                let known = known.list().first().map(|node| node.metadata.labels.clone().unwrap_or_default());
                known.unwrap_or_else(|| own.iter().cloned().collect())
            };
            let (joined, measured) = (shared.clone(), wanted.clone());
            let registered = async {
                node.register().await;
                tokio::spawn(sessions.serve(shutdown.clone()));
                let ranges = register::pod_ranges(&nodes).await;
                network.set_pod_ranges(ranges.clone());
                let followed = network.clone();
                tokio::spawn(register::follow_pod_ranges(nodes.clone(), ranges, move |now| {
                    followed.set_pod_ranges(now);
                }));
                let looks =
                    conflicting_tables::watch(network.clone(), recorder.clone(), config.name.clone(), conflicts);
                tokio::spawn(shutdown.clone().run_until_cancelled_owned(looks));
                let kept = (machine.volumes.clone(), client.clone(), recorder.clone(), config.name.clone());
                tokio::spawn(volumes::local::follow(kept.0, kept.1, kept.2, kept.3, shutdown.clone()));
                tokio::spawn(node.clone().heartbeat(nodes.clone()));
                node.ready().await;
                objects.synced().await;
                tokio::spawn(usage::run(joined, measured));
            };
            let pods =
                pods::Pods::new(shared.clone(), host.allocatable(config.max_pods), Box::new(labels), protections);
            pods.run(wanted, registered, Some((objects.clone(), machine.clone())), manager).await;
        };
        tokio::select! {
            () = run => {}
            () = shutdown.cancelled() => {}
        }
        if config.remove_at_exit {
            // Workers end on the same signal; the teardown also finds what they had begun.
            for error in machine.teardown().await {
                tracing::warn!(error, "failed to clean up after this node");
            }
        }
        Ok(())
    }

    /// Runs a hollow node: everything except the machine below it.
    ///
    /// # Errors
    ///
    /// As [`Agent::run_over`].
    pub async fn run_hollow(
        config: Config,
        client: Client,
        env: Env,
        shutdown: CancellationToken,
    ) -> Result<(), Status> {
        let hollow = |ranges| Arc::new(Hollow::new(env.clone(), ranges)) as Arc<dyn Executor>;
        Agent::run_over(hollow, config, client, env.clone(), shutdown).await
    }

    /// Runs a node over any executor, created with the node's Pod ranges.
    ///
    /// # Errors
    ///
    /// None: failures are retried.
    pub async fn run_over(
        executor: impl FnOnce(Vec<ipnet::IpNet>) -> Arc<dyn Executor>,
        config: Config,
        client: Client,
        env: Env,
        shutdown: CancellationToken,
    ) -> Result<(), Status> {
        let client = client.named("kubelet");
        let host = host::Machine::hollow();
        // There is no machine below that a Pod could reach.
        let protections = Protections {
            sysctls: config.sysctls.clone(),
            user_namespaces: Ok(()),
            ids: config.ids,
            app_armor: AppArmor::hollow(),
            se_linux: Ok(()),
            project_quotas: Err(Unavailable::NoDisk),
        };
        let (pressure, shutting_down) = (storage::Pressure::default(), shutdown::ShuttingDown::default());
        let node = register::Registration::new(
            client.clone(),
            env.clone(),
            &config,
            host.clone(),
            &protections,
            None,
            register::Signals {
                pressure: pressure.subscribe(),
                shutting_down: shutting_down.subscribe(),
                no_network: watch::channel(None).1,
                conflicting_tables: watch::channel(None).1,
            },
        );
        let nodes = Informer::<Node>::builder(client.clone()).fields(format!("metadata.name={}", config.name)).start();
        let run = async {
            node.register().await;
            let ranges = register::pod_ranges(&nodes).await;
            let recorder = Recorder::new(client.clone(), env.clone(), "kubelet", Some(&config.name));
            let shared = Arc::new(Shared {
                env: env.clone(),
                client: client.clone(),
                recorder,
                executor: executor(ranges),
                host: Host::new(&config.addresses),
                config: config.clone(),
                stop: shutdown.clone(),
                started: usage::Started::default(),
                residents: Arc::default(),
                pressure: pressure.clone(),
                shutting_down: shutting_down.clone(),
                counters: Arc::default(),
                used: Arc::default(),
                pace: probes::Pace::default(),
                share: probes::Share::default(),
            });
            storage::glance(&shared).await;
            tokio::spawn(node.clone().heartbeat(nodes.clone()));
            node.ready().await;
            let labels = move || nodes.list().first().and_then(|n| n.metadata.labels.clone()).unwrap_or_default();
            let wanted = pods_of(&client, &config.name);
            tokio::spawn(usage::run(shared.clone(), wanted.clone()));
            let pods = pods::Pods::new(shared, host.allocatable(config.max_pods), Box::new(labels), protections);
            pods.run(wanted, std::future::ready(()), None, None).await;
        };
        tokio::select! {
            () = run => {}
            () = shutdown.cancelled() => {}
        }
        Ok(())
    }
}
