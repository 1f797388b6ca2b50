//! Assembles this machine's node: runtime, images, network, DNS, proxy, agent.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use ipnet::IpNet;
use podwright_net::cni::CniConfig;
use podwright_net::overlay::{self, OverlayConfig, Transport};
use podwright_net::{Network, NetworkConfig, NodeNetns, dns};
use podwright_runtime::{JournalWriter, Runtime, image::ImageStore, sys::shared};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{
    durations::duration,
    folder, node_name,
    paths::Paths,
    private::{self, Owner},
};
use crate::{
    api::{Env, Status},
    client::{Client, Recorder},
    node::{
        Agent, Config, Parts,
        admission::sysctls::Sysctls,
        counters::{Counters, requests},
        id_pool::IdPool,
        kernel_release, pods_of,
        shutdown::{self, GracePeriodError, GracePeriods},
        storage::{Thresholds, pressure},
        verification::{self, VerificationPolicy},
        volumes::owners_in,
    },
    proxy::{self, Proxy, ProxyConfig, Relay, Sources},
    server::default_dns_address,
};

const HOST_RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where nodes answered DNS when that did not depend on their ranges.
const FORMER_DNS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 10));

#[derive(Clone, Debug, clap::Args)]
pub struct NodeArgs {
    /// The name of the Node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Give the node its own network namespace and cgroup subtree, removed when the process ends
    #[arg(long)]
    pub isolated: bool,
    /// With --isolated, an existing network namespace to use, such as /run/netns/NAME: its links lead to other nodes. When the process
    /// ends, what the node has made in it is removed, and the namespace stays
    #[arg(long, value_name = "PATH", requires = "isolated")]
    pub netns: Option<PathBuf>,
    /// How Pods of other nodes are reached: routes (nodes share a link, or the network between them knows the way), vxlan, or auto:
    /// routes between nodes that publish that they share a link, VXLAN to others
    #[arg(long, value_name = "TRANSPORT", default_value = "auto")]
    pub network: Transport,
    /// VXLAN network identifier, the same on all nodes
    #[arg(long, value_name = "VNI", default_value_t = overlay::VNI, value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    pub vxlan_id: u32,
    /// UDP port of VXLAN, the same on all nodes
    #[arg(long, value_name = "PORT", default_value_t = overlay::PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub vxlan_port: u16,
    /// Have CNI plugins make Pods' interfaces and addresses: the directory of network configuration lists, of which the first one by
    /// name counts, as /etc/cni/net.d
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// The directories of CNI plugins
    #[arg(long, value_delimiter = ',', value_name = "DIR", default_value = "/opt/cni/bin,/usr/lib/cni")]
    pub cni_bin_dir: Vec<PathBuf>,
    /// IP addresses of the node, at most one per family; with --netns, of its links [default: those of the default routes, or with
    /// --netns the first ones of its links]
    #[arg(long, value_delimiter = ',', value_name = "IP")]
    pub node_ip: Vec<IpAddr>,
    /// Start even if the host lacks the cgroup v2 controllers for limits (implied by --isolated)
    #[arg(long)]
    pub allow_missing_cgroup_controllers: bool,
    /// IP addresses of the cluster's DNS server [default: the tenth of the first range of --service-cidr]
    #[arg(long, value_delimiter = ',', value_name = "IP")]
    cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN")]
    pub cluster_domain: String,
    /// Resolver configuration for names outside the cluster, and for Pods with dnsPolicy Default
    #[arg(long, value_name = "FILE", default_value = HOST_RESOLV_CONF)]
    pub resolv_conf: PathBuf,
    /// Number of tracked connections of the node; its Pods share half of them [default: nf_conntrack_max]
    #[arg(long, value_name = "N")]
    pub conntrack_max: Option<usize>,
    /// Number of Pods that can run on this node
    #[arg(long, default_value_t = 110)]
    pub max_pods: u32,
    /// Maximum number of processes per Pod [default: no limit]
    #[arg(long, value_name = "N")]
    pub pod_max_pids: Option<u64>,
    /// Allow list of unsafe sysctls or unsafe sysctl patterns (ending in *); only namespaced ones
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Host IDs for Pods with user namespaces, as in /etc/subuid [default: from 65536 on, for twice --max-pods]
    #[arg(long, value_name = "FIRST:COUNT")]
    pub userns_range: Option<IdPool>,
    /// Which images present on the node every Pod may use without verification of its pull credentials: NeverVerify (all),
    /// NeverVerifyPreloadedImages (those that were not pulled), NeverVerifyAllowlistedImages, AlwaysVerify (none)
    #[arg(long, value_name = "POLICY", default_value = verification::POLICIES[0])]
    pub image_pull_credentials_verification_policy: String,
    /// Images that NeverVerifyAllowlistedImages exempts: registry/repository, or registry/path/* for all below
    #[arg(long, value_delimiter = ',', value_name = "IMAGE")]
    pub preloaded_images_verification_allowlist: Vec<String>,
    /// Labels to add when registering the node
    #[arg(long, value_delimiter = ',', value_name = "KEY=VALUE")]
    pub node_labels: Vec<String>,
    /// The directory of static Pod manifests [default: /etc/podwright/manifests, or manifests in --state-dir]
    #[arg(long, value_name = "DIR")]
    pub pod_manifests: Option<PathBuf>,
    /// Eviction thresholds that, if met, evict Pods and admit no others: SIGNAL<QUANTITY or SIGNAL<PERCENT%, separated by
    /// commas; signals are nodefs.available, nodefs.inodesFree (volumes, logs, writable layers), imagefs.available and
    /// imagefs.inodesFree; empty for none [default: nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,
    /// imagefs.inodesFree<5%; with --isolated nodefs.available<16Mi,nodefs.inodesFree<1k]
    #[arg(long, value_name = "THRESHOLDS")]
    pub eviction_hard: Option<Thresholds>,
    /// How long a shutdown of the machine is delayed for Pods to end, by systemd-logind; no Pods are accepted meanwhile
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub shutdown_grace_period: Duration,
    /// How much of --shutdown-grace-period, at its end, is for critical Pods
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub shutdown_grace_period_critical_pods: Duration,
    /// The grace periods of Pods at shutdown by their priority, in place of the two above: each is for Pods of this priority and above
    #[arg(long, value_name = "PRIORITY=DURATION,...", default_value = "")]
    pub shutdown_grace_period_by_pod_priority: GracePeriods,
    /// Do not record kernel operations; `trace` then shows only the control plane's steps
    #[arg(long)]
    pub no_journal: bool,
}

impl NodeArgs {
    /// Refuses directories of static Pod manifests, networks or plugins that others may write: what is in them runs as root.
    pub fn check_files(&self) -> anyhow::Result<()> {
        let plugins = self.cni_bin_dir.iter().filter(|_| self.cni_conf_dir.is_some()).map(|dir| ("--cni-bin-dir", dir));
        let networks = self.cni_conf_dir.iter().map(|dir| ("--cni-conf-dir", dir));
        let manifests = self.pod_manifests.iter().map(|dir| ("--pod-manifests", dir));
        let all = manifests.chain(networks).chain(plugins).filter(|(_, folder)| folder.exists());
        all.into_iter().try_for_each(|(flag, folder)| private::named(flag, folder, Owner::here()))
    }

    /// Refuses addresses that are no machine's, as kubelet does.
    fn check_node_ip(&self) -> anyhow::Result<()> {
        for (n, ip) in self.node_ip.iter().enumerate() {
            let unusable = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
            anyhow::ensure!(!unusable, "--node-ip {ip}: it is no machine's address");
            let twice = self.node_ip[..n].iter().any(|other| other.is_ipv4() == ip.is_ipv4());
            anyhow::ensure!(!twice, "--node-ip: at most one address of each family, not {ip} as well");
        }
        Ok(())
    }

    /// How much time Pods get when the machine shuts down.
    fn shutdown_grace_periods(&self) -> Result<GracePeriods, GracePeriodError> {
        let (total, critical) = (self.shutdown_grace_period, self.shutdown_grace_period_critical_pods);
        GracePeriods::new(total, critical, self.shutdown_grace_period_by_pod_priority.clone())
    }

    /// How other nodes' Pods are reached.
    pub fn overlay(&self) -> OverlayConfig {
        OverlayConfig { transport: self.network, vni: self.vxlan_id, port: self.vxlan_port }
    }

    /// How the node's network is laid out, with these addresses for DNS.
    pub fn network(&self, node: String, paths: &Paths, service_ranges: &[IpNet], dns: Vec<IpAddr>) -> NetworkConfig {
        NetworkConfig {
            node,
            folder: paths.network(),
            isolated: self.isolated,
            netns: self.netns.clone(),
            addresses: self.node_ip.clone(),
            service_ranges: service_ranges.to_vec(),
            dns,
            conntrack_max: self.conntrack_max,
            overlay: self.overlay(),
            cni: CniConfig { conf_dir: self.cni_conf_dir.clone(), bin_dirs: self.cni_bin_dir.clone() },
        }
    }

    /// Where the node answers DNS, in a cluster whose Services have these ranges.
    pub fn cluster_dns(&self, service_ranges: &[IpNet]) -> anyhow::Result<Vec<IpAddr>> {
        let dns = match self.cluster_dns.is_empty() {
            true => default_dns_address(service_ranges).into_iter().collect(),
            false => self.cluster_dns.clone(),
        };
        anyhow::ensure!(
            !dns.is_empty(),
            "--service-cidr: the first range has no tenth address for DNS; give --cluster-dns"
        );
        Ok(dns)
    }

    /// Where it may have answered DNS, for cleaning up: without a flag also the fixed address of earlier versions.
    pub fn former_cluster_dns(&self, service_ranges: &[IpNet]) -> Vec<IpAddr> {
        match self.cluster_dns.is_empty() {
            true => BTreeSet::from_iter(default_dns_address(service_ranges).into_iter().chain([FORMER_DNS]))
                .into_iter()
                .collect(),
            false => self.cluster_dns.clone(),
        }
    }
}

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
        let (name, labels, shim) = (node_name::of_flags(args.node_name.as_deref())?, labels(args)?, shim()?);
        args.check_node_ip()?;
        let cluster_dns = args.cluster_dns(service_ranges)?;
        check_resolv_conf(&args.resolv_conf)?;
        sysctls(args)?;
        verification(args)?;
        let periods = args.shutdown_grace_periods()?;
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
        // An isolated node leaves the machine's configuration alone.
        let shutdown = shutdown::Manager::start(periods, !args.isolated).await.context("--shutdown-grace-period")?;
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
        check_controllers(args, &runtime)?;
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
            host_ports_elsewhere: network.plugins_map_ports(),
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
            sysctls: sysctls(args)?,
            verification: verification(args)?,
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

fn labels(args: &NodeArgs) -> anyhow::Result<Vec<(String, String)>> {
    let pair = |text: &String| {
        let (key, value) = text.split_once('=').with_context(|| format!("--node-labels {text}: expected KEY=VALUE"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    args.node_labels.iter().map(pair).collect()
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

fn check_controllers(args: &NodeArgs, runtime: &Runtime) -> anyhow::Result<()> {
    let missing = &runtime.cgroups().missing;
    anyhow::ensure!(
        missing.is_empty() || args.isolated || args.allow_missing_cgroup_controllers,
        "this host lacks the cgroup v2 controllers {}, so limits of Pods could not be enforced. Boot with \
         cgroup_no_v1=all (or systemd.unified_cgroup_hierarchy=1), or give --allow-missing-cgroup-controllers",
        missing.join(", ")
    );
    Ok(())
}

/// The sysctls that Pods may set on this kernel.
fn sysctls(args: &NodeArgs) -> anyhow::Result<Sysctls> {
    Sysctls::new(&kernel_release(), &args.allowed_unsafe_sysctls)
        .map_err(|why| anyhow::anyhow!("--allowed-unsafe-sysctls: {why}"))
}

/// Which existing images are available to every Pod.
fn verification(args: &NodeArgs) -> anyhow::Result<VerificationPolicy> {
    let allowlist = &args.preloaded_images_verification_allowlist;
    VerificationPolicy::new(&args.image_pull_credentials_verification_policy, allowlist)
        .map_err(|why| anyhow::anyhow!("--image-pull-credentials-verification-policy: {why}"))
}

/// An explicitly named file must exist; a host without name servers may lack the default one.
fn check_resolv_conf(path: &Path) -> anyhow::Result<()> {
    match shared::read_linked(path, 1) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound || path != Path::new(HOST_RESOLV_CONF) => {
            Err(e).with_context(|| format!("--resolv-conf {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Argv {
        #[command(flatten)]
        node: NodeArgs,
    }

    fn dns(given: &[&str], ranges: &[&str]) -> anyhow::Result<Vec<IpAddr>> {
        let argv = Argv::try_parse_from([&["podwright"], given].concat())?;
        let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        argv.node.cluster_dns(&ranges)
    }

    #[test]
    fn dns_has_the_tenth_address_of_the_first_range_unless_it_is_told_another() {
        let addresses = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let of = |given: &[&str], ranges: &[&str]| dns(given, ranges).unwrap();
        assert_eq!(of(&[], &["10.50.0.0/16"]), addresses(&["10.50.0.10"]));
        assert_eq!(of(&[], &["10.50.7.9/16", "fd00:50::/112"]), addresses(&["10.50.0.10"]));
        assert_eq!(of(&[], &["fd00:50::/112", "10.50.0.0/16"]), addresses(&["fd00:50::a"]));
        // An address outside the ranges is an operator's own.
        let given = ["--cluster-dns", "192.0.2.53,2001:db8::53"];
        assert_eq!(of(&given, &["10.50.0.0/16"]), addresses(&["192.0.2.53", "2001:db8::53"]));
        for small in [&["10.50.0.0/29"][..], &["255.255.255.248/29"], &["10.50.0.0/29", "fd00:50::/112"]] {
            let why = dns(&[], small).unwrap_err().to_string();
            assert_eq!(why, "--service-cidr: the first range has no tenth address for DNS; give --cluster-dns");
            assert_eq!(of(&given, small).len(), 2);
        }
    }

    #[test]
    fn the_flags_of_the_network_are_checked() {
        let parsed =
            |given: &[&str]| Argv::try_parse_from([&["podwright"], given].concat()).map_err(|why| why.to_string());
        let node =
            parsed(&["--isolated", "--netns", "/run/netns/a", "--network", "vxlan", "--vxlan-id", "7"]).unwrap().node;
        let config = node.network("n".to_owned(), &paths(), &[], Vec::new());
        assert_eq!(config.overlay, OverlayConfig { transport: Transport::Vxlan, vni: 7, port: 8472 });
        assert_eq!(config.netns.as_deref(), Some(Path::new("/run/netns/a")));
        for (given, why) in [
            (&["--netns", "/run/netns/a"][..], "--isolated"),
            (&["--network", "wireguard"], "WireGuard is not supported"),
            (&["--network", "ipip"], "expected auto, routes or vxlan"),
            (&["--vxlan-id", "16777216"], "16777216"),
        ] {
            let error = parsed(given).err().expect("it is refused");
            assert!(error.contains(why), "{error}");
        }
        for (ip, why) in [
            ("127.0.0.1", "--node-ip 127.0.0.1: it is no machine's address"),
            ("::", "--node-ip ::: it is no machine's address"),
            ("10.0.0.1,10.0.0.2", "--node-ip: at most one address of each family, not 10.0.0.2 as well"),
        ] {
            let error = parsed(&["--node-ip", ip]).unwrap().node.check_node_ip().unwrap_err();
            assert_eq!(error.to_string(), why);
        }
        parsed(&["--node-ip", "10.0.0.1,fd00::1"]).unwrap().node.check_node_ip().unwrap();
    }

    fn paths() -> Paths {
        let folder = PathBuf::from("/nonexistent");
        Paths {
            state: folder.clone(),
            run: folder.clone(),
            logs: folder.clone(),
            manifests: folder,
            cgroup_root: PathBuf::new(),
        }
    }

    #[test]
    fn who_removes_a_node_removes_also_where_earlier_ones_answered() {
        let former = |given: &[&str], range: &str| {
            let argv = Argv::parse_from([&["podwright"], given].concat());
            let dns = argv.node.former_cluster_dns(&[range.parse().unwrap()]);
            dns.iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        assert_eq!(former(&[], "10.96.0.0/16"), ["10.96.0.10"]);
        assert_eq!(former(&[], "10.50.0.0/16"), ["10.50.0.10", "10.96.0.10"]);
        assert_eq!(former(&[], "10.50.0.0/29"), ["10.96.0.10"]);
        assert_eq!(former(&["--cluster-dns", "192.0.2.53"], "10.50.0.0/16"), ["192.0.2.53"]);
    }
}
