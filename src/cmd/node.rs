//! Assembles this machine's node: runtime, images, network, DNS, proxy, agent.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use ipnet::IpNet;
use podwright_net::{Network, NodeNetns, dns};
use podwright_runtime::{JournalWriter, Runtime, image::ImageStore, sys::shared};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{folder, node_args::NodeArgs, node_name, paths::Paths};
use crate::{
    api::{Env, Status},
    client::{Client, Recorder},
    node::{
        Agent, Config, Parts,
        counters::{Counters, requests},
        id_pool::IdPool,
        pods_of, shutdown,
        storage::{Thresholds, pressure},
        volumes::owners_in,
    },
    proxy::{self, Proxy, ProxyConfig, Relay, Sources},
};

/// The location of the node's server.
pub enum ServerAt {
    /// In this process.
    Here,
    /// At a socket on this machine.
    Socket,
    /// At `HOST:PORT`, with the node's own identity.
    Tls(String),
}

/// A running node.
pub struct Node {
    agent: JoinHandle<Result<(), Status>>,
    ended: CancellationToken,
    runtime: Runtime,
    network: Network,
    isolated: bool,
    stop: CancellationToken,
    /// They end when dropped.
    _relay: Option<Relay>,
    _proxy: Proxy,
    _dns: Arc<dns::DnsServer>,
}

/// The foundation of a node.
struct Ground {
    name: String,
    labels: Vec<(String, String)>,
    cluster_dns: Vec<IpAddr>,
    images: ImageStore,
    runtime: Runtime,
    shutdown: Option<shutdown::Manager>,
}

impl Node {
    /// Starts everything, taking over what an earlier process with the same directories left running. An isolated node without Pods
    /// that fails to start leaves nothing behind.
    pub async fn start(
        args: &NodeArgs,
        service_ranges: &[IpNet],
        paths: &Paths,
        client: Client,
        server: ServerAt,
    ) -> anyhow::Result<Node> {
        // 1. The configuration.
        let (name, labels, shim) = (args.name()?, args.labels()?, shim()?);
        args.check_node_ip()?;
        let cluster_dns = args.cluster_dns(service_ranges)?;
        args.check_resolv_conf()?;
        args.sysctls()?;
        args.verification()?;
        let periods = args.shutdown_grace_periods()?;
        // An isolated node leaves the machine's configuration alone.
        let shutdown = shutdown::Manager::start(periods, !args.isolated).await.context("--shutdown-grace-period")?;
        folder::take_logs(paths)?;
        // 2. Images, whose lock excludes other agents with these directories.
        let images = paths.images();
        let images = tokio::task::spawn_blocking(move || ImageStore::open(&images)).await;
        let images = images.context("opening the image store")?.context("opening the image store")?;
        node_name::keep(paths, &name)?;
        // 3. The runtime, with running Pods.
        let config = podwright_runtime::Config {
            state_dir: paths.runtime(),
            run_dir: paths.shims(),
            cgroup_root: paths.cgroup_root.clone(),
            shim,
            birth_timeout: podwright_runtime::BIRTH,
            owners: owners_in(paths.state.join("pods")),
        };
        let runtime = Runtime::open(config).await.context("opening the runtime")?;
        // 4. Everything else.
        let ground = Ground { name: name.clone(), labels, cluster_dns, images, runtime: runtime.clone(), shutdown };
        let node = Node::on(ground, args, service_ranges, paths, client, server).await;
        if node.is_err() && args.isolated && runtime.list().await.is_empty() {
            remove_cgroups(&runtime).await;
            remove_network(args, name, paths, service_ranges).await;
        }
        node
    }

    async fn on(
        ground: Ground,
        args: &NodeArgs,
        service_ranges: &[IpNet],
        paths: &Paths,
        client: Client,
        server: ServerAt,
    ) -> anyhow::Result<Node> {
        let Ground { name, labels, cluster_dns, images, runtime, shutdown } = ground;
        args.check_controllers(&runtime)?;
        // 1. The network: namespace, addresses, routes.
        let config = args.network(name.clone(), paths, service_ranges, cluster_dns.clone());
        std::fs::create_dir_all(paths.network())?;
        let network = Network::up(config).await.context("the node's network")?;
        // 2. DNS, and the proxy that updates it and the dataplane.
        let host = NodeNetns::of_process()?;
        let upstream = dns::Upstream::new(host, &args.resolv_conf, shared::read_linked, cluster_dns.clone());
        let table = dns::Table::new(&args.cluster_domain, service_ranges.to_vec(), cluster_dns.clone());
        let dns = dns::DnsServer::start(network.netns(), &cluster_dns, table, upstream).await;
        let dns = Arc::new(dns.context("serving DNS")?);
        let by_name = matches!(server, ServerAt::Tls(_));
        let servers = match &server {
            ServerAt::Tls(address) => resolved(address).await,
            ServerAt::Here | ServerAt::Socket => Vec::new(),
        };
        let counters = Arc::<Counters>::default();
        let client = requests::counted(&client, &counters);
        let way = match server {
            ServerAt::Here => None,
            ServerAt::Socket => Some(proxy::ServerAddress::Told(client.clone())),
            ServerAt::Tls(address) => Some(proxy::ServerAddress::At(address)),
        };
        let relay = match way.filter(|_| args.isolated) {
            Some(way) => Some(Relay::start(&network, &way).await.context("the way to the API")?),
            None => None,
        };
        let config = ProxyConfig {
            node: name.clone(),
            domain: args.cluster_domain.clone(),
            service_ranges: service_ranges.to_vec(),
            dns: cluster_dns.clone(),
            api: relay.iter().flat_map(|relay| relay.addresses()).copied().collect(),
            servers,
        };
        let pods = pods_of(&client, &name);
        let sources = Sources::start(client.named("kube-proxy"), &name, pods.clone());
        let services = sources.services.clone();
        let recorder = Recorder::new(client.named("kube-proxy"), Env::system(), "kube-proxy", Some(&name));
        let proxy = Proxy::start(config, sources, network.clone(), Some(dns.clone()), recorder);
        // 3. The agent.
        let stop = CancellationToken::new();
        let config = Config {
            log_dir: paths.logs.clone(),
            manifests: Some(args.pod_manifests.clone().unwrap_or_else(|| paths.manifests.clone())),
            network_namespace: network.netns().pinned().map(Path::to_owned),
            addresses: network.addresses().to_vec(),
            networks: network.networks().await.context("the node's links")?,
            cluster_dns,
            cluster_domain: args.cluster_domain.clone(),
            resolv_conf: args.resolv_conf.clone(),
            max_pods: args.max_pods,
            pod_pids_max: args.pod_max_pids,
            journal: !args.no_journal,
            labels,
            remove_at_exit: args.isolated,
            by_name,
            eviction_hard: match &args.eviction_hard {
                Some(thresholds) => thresholds.clone(),
                None if args.isolated => pressure::ISOLATED.parse().map_err(anyhow::Error::msg)?,
                None => Thresholds::default(),
            },
            shutdown_grace_periods: args.shutdown_grace_periods()?,
            sysctls: args.sysctls()?,
            verification: args.verification()?,
            ids: args.userns_range.unwrap_or_else(|| IdPool::for_pods(args.max_pods)),
            ..Config::new(&name, paths.state.clone(), paths.run.clone())
        };
        let env = Env::system();
        let (of_runtime, of_network) = (runtime.clone(), network.clone());
        let gate = proxy.gate().clone();
        let parts = Parts {
            client,
            counters,
            pods,
            services,
            runtime: of_runtime,
            images,
            network: of_network,
            gate,
            shutdown,
            env,
        };
        let (ended, running) = (CancellationToken::new(), Agent::run(config, parts, stop.clone()));
        let guard = ended.clone().drop_guard();
        let agent = tokio::spawn(async move {
            let _guard = guard;
            running.await
        });
        Ok(Node {
            agent,
            ended,
            runtime,
            network,
            isolated: args.isolated,
            stop,
            _relay: relay,
            _proxy: proxy,
            _dns: dns,
        })
    }

    /// Resolves when the agent has ended by itself: it has failed, and [`Node::stop`] returns the error.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// The node's network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Ends the node. An isolated one removes its Pods and everything that it created; otherwise Pods keep running.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        let outcome = self.agent.await;
        drop((self._relay, self._proxy, self._dns));
        if self.isolated {
            remove_cgroups(&self.runtime).await;
            for error in self.network.remove().await {
                tracing::warn!(%error, "failed to clean up the node's network");
            }
        }
        outcome.context("the agent")?.context("the agent")
    }
}

/// Removes what a node that did not start has made of its network.
async fn remove_network(args: &NodeArgs, name: String, paths: &Paths, service_ranges: &[IpNet]) {
    let pin = paths.network().join("netns");
    // One that somebody else has made goes on without it. There is none where it was refused.
    let errors = match args.netns.is_some() && pin.exists() {
        true => {
            let config = args.network(name, paths, service_ranges, args.former_cluster_dns(service_ranges));
            match Network::open_to_remove(config).await {
                Ok(network) => network.remove().await,
                Err(error) => vec![error],
            }
        }
        false => NodeNetns::remove(&pin).err().into_iter().collect(),
    };
    for error in errors {
        tracing::warn!(%error, "failed to remove the node's network namespace");
    }
}

async fn remove_cgroups(runtime: &Runtime) {
    if let Err(error) = runtime.remove_root(&JournalWriter::none()).await {
        tracing::warn!(%error, "failed to clean up the node's cgroups");
    }
}

/// The addresses of a server at `HOST:PORT`. If it has none now it cannot be contacted, and the cluster provides other ones.
async fn resolved(address: &str) -> Vec<IpAddr> {
    match tokio::net::lookup_host(address).await {
        Ok(found) => found.map(|at| at.ip()).collect(),
        Err(error) => {
            tracing::warn!(%error, address, "failed to resolve the server's address for the Service rules");
            Vec::new()
        }
    }
}

/// The path of the shim: `PODWRIGHT_SHIM`, or beside this program.
pub fn shim() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("PODWRIGHT_SHIM") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("finding podwright-shim")?;
    let beside = own.with_file_name("podwright-shim");
    anyhow::ensure!(beside.exists(), "{} is missing: it belongs beside podwright", beside.display());
    Ok(beside)
}
