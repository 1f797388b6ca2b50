//! Assembles the control plane: store, API server with its socket, controllers, scheduler.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use ipnet::IpNet;
use podwright_net::Network;
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::collector::TracingArgs;
use super::durations::duration;
use super::encryption::{self, EncryptionArgs};
use super::endpoint::{self, EndpointArgs};
use super::folder;
use super::oidc::OidcArgs;
use super::paths::Paths;
use super::private::{self, Owner};
use super::profiles::Profiles;
use super::requests::RequestArgs;
use super::store::StoreArgs;
use crate::{
    api::{Env, load_balancer::LoadBalancing, yaml},
    client::{
        self, Client, Informers,
        elector::{Election, Times},
    },
    controllers,
    proxy::api_listener,
    scheduler, server,
    store::{self, Store},
};

#[derive(Clone, Debug, clap::Args)]
pub struct ControlPlaneArgs {
    /// CIDR ranges for Pods in the cluster; two for dual-stack
    #[arg(long, value_delimiter = ',', default_value = "10.244.0.0/16", value_name = "CIDR")]
    pub cluster_cidr: Vec<IpNet>,
    /// Whether CIDRs for Pods are allocated and set on Nodes; if false, something else sets their spec.podCIDRs
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub allocate_node_cidrs: bool,
    /// CIDR ranges from which to assign Service cluster IPs; two for dual-stack
    #[arg(long, value_delimiter = ',', default_value = "10.96.0.0/16", value_name = "CIDR")]
    pub service_cidr: Vec<IpNet>,
    /// Addresses of Services of type LoadBalancer: ranges separated by commas, as
    /// 192.0.2.0/24,198.51.100.10-198.51.100.20,2001:db8::/64, which nodes announce on their links by ARP and neighbour discovery;
    /// nodes: the addresses of the nodes themselves; none: something else gives Services their addresses
    #[arg(long, value_name = "RANGES", default_value = "nodes")]
    pub load_balancer_pool: LoadBalancing,
    /// Amount of time that a node may be unresponsive before it is marked unhealthy; several times the 10 seconds
    /// between its heartbeats
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = duration)]
    pub node_monitor_grace_period: Duration,
    /// Number of nodes per second on which Pods are deleted in case of node failure when a zone is healthy
    #[arg(long, value_name = "RATE", default_value_t = 0.1)]
    pub node_eviction_rate: f64,
    /// Number of nodes per second on which Pods are deleted in case of node failure when a large zone is unhealthy
    #[arg(long, value_name = "RATE", default_value_t = 0.01)]
    pub secondary_node_eviction_rate: f64,
    /// Number of nodes from which a zone is large; in a smaller unhealthy zone no Pods are deleted
    #[arg(long, value_name = "NODES", default_value_t = 50)]
    pub large_cluster_size_threshold: usize,
    /// Fraction of nodes in a zone that need to be not ready (minimum 3) for the zone to be treated as unhealthy
    #[arg(long, value_name = "SHARE", default_value_t = 0.55)]
    pub unhealthy_zone_threshold: f64,
    #[command(flatten)]
    pub autoscaling: AutoscalingArgs,
    /// Elect a leader before running controllers and scheduler, by the Leases kube-controller-manager and kube-scheduler in
    /// kube-system. Needed for several servers on one store: always on with --etcd-servers, off by default with the embedded
    /// store, which only one process can open
    #[arg(long)]
    pub leader_elect: bool,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Do not create the StorageClass local, whose volumes are directories on nodes, in a new cluster. An existing one is deleted
    /// like any other object, and is not created again
    #[arg(long)]
    pub no_local_storage_class: bool,
    /// File with static bearer tokens, one a line: token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// The tolerationSeconds of the toleration for notReady:NoExecute that is added to Pods without one
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub default_not_ready_toleration_seconds: i64,
    /// The tolerationSeconds of the toleration for unreachable:NoExecute that is added to Pods without one
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub default_unreachable_toleration_seconds: i64,
    /// File with an AdmissionConfiguration, which configures PodSecurity
    #[arg(long, value_name = "FILE")]
    pub admission_control_config_file: Option<PathBuf>,
    /// Admission plugins to enable in addition to the default ones, which are all
    #[arg(long, value_delimiter = ',', value_name = "PLUGIN")]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plugins to disable although they are enabled by default; several of them isolate nodes and tenants
    #[arg(long, value_delimiter = ',', value_name = "PLUGIN")]
    pub disable_admission_plugins: Vec<String>,
    /// Ordered list of authorization plugins: Node, RBAC, AlwaysAllow, AlwaysDeny
    #[arg(long, value_delimiter = ',', default_value = "Node,RBAC", value_name = "MODE")]
    pub authorization_mode: Vec<String>,
    /// File with a KubeSchedulerConfiguration: the scheduler's profiles and plugins
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
    #[command(flatten)]
    pub encryption: EncryptionArgs,
    #[command(flatten)]
    pub requests: RequestArgs,
    /// Enable profiling at /debug/pprof/
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub profiling: bool,
    #[command(flatten)]
    pub tracing: TracingArgs,
    /// All flags of the process, as /flagz shows them
    #[arg(skip)]
    pub told: Vec<(String, String)>,
    #[command(flatten)]
    pub oidc: OidcArgs,
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}

impl ControlPlaneArgs {
    /// The files that are read once, with their flags.
    pub fn read_once(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [
            ("--token-auth-file", &self.token_auth_file),
            ("--admission-control-config-file", &self.admission_control_config_file),
            ("--scheduler-config", &self.scheduler_config),
            ("--encryption-provider-config", &self.encryption.encryption_provider_config),
            ("--audit-policy-file", &self.requests.audit_policy_file),
            ("--tracing-config-file", &self.tracing.tracing_config_file),
        ];
        files.into_iter().filter_map(|(flag, file)| Some((flag, file.as_deref()?))).chain(self.store.files())
    }

    /// The files that are read repeatedly.
    pub fn read_again(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [("--oidc-ca-file", &self.oidc.oidc_ca_file), ("--oidc-jwks-file", &self.oidc.oidc_jwks_file)];
        files.into_iter().filter_map(|(flag, file)| Some((flag, file.as_deref()?)))
    }

    fn disabled_admission(&self) -> anyhow::Result<server::DisabledAdmission> {
        let disabled = server::DisabledAdmission::of(&self.enable_admission_plugins, &self.disable_admission_plugins);
        let disabled = disabled.map_err(|why| anyhow::anyhow!("--{why}"))?;
        if !disabled.names().is_empty() {
            tracing::warn!(plugins = disabled.names().join(","), "admission plugins are disabled");
        }
        Ok(disabled)
    }

    fn authorization(&self) -> anyhow::Result<Vec<server::AuthorizationMode>> {
        server::AuthorizationMode::parse_all(&self.authorization_mode).map_err(anyhow::Error::msg)
    }

    /// Refuses files that others may write: each of them affects authorization in the cluster.
    pub fn check_files(&self, owner: Owner) -> anyhow::Result<()> {
        self.read_once().chain(self.read_again()).try_for_each(|(flag, file)| private::named(flag, file, owner))
    }

    /// Refuses ranges without room for the cluster's DNS Service, wherever nodes answer, and a pool that has addresses of others.
    pub fn check_ranges(&self) -> anyhow::Result<()> {
        let dns = server::default_dns_address(&self.service_cidr);
        dns.context(
            "--service-cidr: the first range has no tenth address for the Service kube-dns; give a larger one",
        )?;
        let Some(pool) = self.load_balancer_pool.pool() else { return Ok(()) };
        for (flag, ranges) in [("--cluster-cidr", &self.cluster_cidr), ("--service-cidr", &self.service_cidr)] {
            if let Some(range) = pool.overlapping(ranges) {
                anyhow::bail!("--load-balancer-pool: it has addresses of {range} ({flag})");
            }
        }
        Ok(())
    }

    /// Refuses a pool that has an address on which nodes answer DNS.
    fn check_pool(&self, cluster_dns: &[IpAddr]) -> anyhow::Result<()> {
        let pool = self.load_balancer_pool.pool();
        let inside = cluster_dns.iter().find(|address| pool.is_some_and(|pool| pool.contains(address)));
        inside.map_or(Ok(()), |address| {
            anyhow::bail!("--load-balancer-pool: it has the address {address} of the cluster's DNS (--cluster-dns)")
        })
    }
}

/// How HorizontalPodAutoscalers are looked after; upstream's flags.
#[derive(Clone, Debug, clap::Args)]
pub struct AutoscalingArgs {
    /// The period for syncing the number of Pods in HorizontalPodAutoscalers
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub horizontal_pod_autoscaler_sync_period: Duration,
    /// The period for which the autoscaler looks back and does not scale down below any recommendation made in it
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// The minimum change in the desired-to-actual metrics ratio for the autoscaler to consider scaling
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub horizontal_pod_autoscaler_tolerance: f64,
    /// The period after Pod start in which CPU samples might be skipped
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// The period after Pod start in which readiness changes are treated as initial readiness
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Duration,
}

impl AutoscalingArgs {
    fn settings(&self) -> controllers::horizontal_pod_autoscaler::Settings {
        controllers::horizontal_pod_autoscaler::Settings {
            sync_period: self.horizontal_pod_autoscaler_sync_period.max(Duration::from_secs(1)),
            downscale_stabilization: self.horizontal_pod_autoscaler_downscale_stabilization,
            tolerance: self.horizontal_pod_autoscaler_tolerance,
            cpu_initialization_period: self.horizontal_pod_autoscaler_cpu_initialization_period,
            initial_readiness_delay: self.horizontal_pod_autoscaler_initial_readiness_delay,
        }
    }
}

/// PodSecurity's configuration from an AdmissionConfiguration file. Other plugins cannot be configured.
fn pod_security(file: &Path) -> anyhow::Result<server::PodSecurity> {
    let read = || -> anyhow::Result<server::PodSecurity> {
        let documents = yaml::documents(&std::fs::read_to_string(file)?).map_err(anyhow::Error::msg)?;
        let config = documents.first().context("the file is empty")?;
        anyhow::ensure!(config["kind"] == "AdmissionConfiguration", "kind: must be AdmissionConfiguration");
        let mut found = None;
        for (i, plugin) in config["plugins"].as_array().into_iter().flatten().enumerate() {
            anyhow::ensure!(plugin["name"] == "PodSecurity", "plugins[{i}].name: only PodSecurity has a configuration");
            anyhow::ensure!(plugin["path"].is_null(), "plugins[{i}].path: put the configuration in place");
            anyhow::ensure!(found.is_none(), "plugins[{i}].name: PodSecurity is configured twice");
            let parsed = server::PodSecurity::from_json(&plugin["configuration"]);
            found = Some(parsed.map_err(|why| anyhow::anyhow!("plugins[{i}].configuration.{why}"))?);
        }
        Ok(found.unwrap_or_default())
    };
    read().with_context(|| format!("--admission-control-config-file {}", file.display()))
}

fn scheduler_config(file: &Path) -> anyhow::Result<scheduler::Config> {
    let read = || scheduler::config::parse(&std::fs::read_to_string(file)?).map_err(anyhow::Error::msg);
    let config = read().with_context(|| format!("--scheduler-config {}", file.display()))?;
    for field in &config.ignored {
        tracing::warn!(file = %file.display(), field, "ignored: the scheduler runs in the server's process");
    }
    Ok(config)
}

/// Loops that only one of several servers may run.
struct Part {
    client: Client,
    env: Env,
    /// Upstream's name, also for its Lease.
    name: &'static str,
    /// The candidate's identity; `None` with a single server.
    identity: Option<String>,
    stop: CancellationToken,
    /// Reports to the server that it runs.
    runs: server::Runs,
}

impl Part {
    async fn run<F>(self, lead: impl Fn(Client, CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Part { client, env, name, identity, stop, runs: _runs } = self;
        match identity {
            None => lead(client, stop).await,
            Some(identity) => Election { client, env, name, identity, times: Times::default() }.run(stop, lead).await,
        }
    }
}

/// A unique name, different even after a restart.
fn identity(env: &Env) -> anyhow::Result<String> {
    let host = nix::unistd::gethostname().context("gethostname")?;
    Ok(format!("{}_{}", host.to_string_lossy(), env.uid()))
}

/// A running control plane.
pub struct ControlPlane {
    server: Arc<server::Server>,
    /// How it is reached from outside a node's network.
    advertised: server::AdvertiseAddress,
    /// The family of the Service `kubernetes`.
    service_v4: bool,
    /// Accepts further TLS listeners, if TLS is enabled.
    tls_listeners: Option<mpsc::UnboundedSender<TcpListener>>,
    store: Arc<dyn Store>,
    loops: JoinSet<()>,
    listener: tokio::task::JoinHandle<std::io::Result<()>>,
    /// Ends controllers and scheduler.
    stop_loops: CancellationToken,
    /// Ends the listener; after the loops, because they and the agent still write while they end.
    stop_listener: CancellationToken,
}

impl ControlPlane {
    /// Starts everything; when this returns, the socket responds. `isolated`: only for this machine's use. `cluster_dns`: where
    /// nodes answer DNS.
    pub async fn start(
        args: &ControlPlaneArgs,
        paths: &Paths,
        isolated: bool,
        confinement: server::Confinement,
        cluster_dns: &[IpAddr],
    ) -> anyhow::Result<ControlPlane> {
        // Errors in files are reported before anything starts.
        let scheduling = args.scheduler_config.as_deref().map(scheduler_config).transpose()?.unwrap_or_default();
        let scheduling = Arc::new(scheduling);
        let (disabled_admission, authorization) = (args.disabled_admission()?, args.authorization()?);
        args.check_pool(cluster_dns)?;
        controllers::check(controllers::CONTROLLERS)?;
        // 1. The store.
        private::tighten(paths, None)?;
        let store = args.store.open(paths).await?;
        let env = Env::system();
        let encryption = match encryption::rules(&args.encryption, paths, &*store, &env).await {
            Err(why) if args.store.restore.is_some() => {
                // The restore was useless: the same command must be able to run again.
                store.close().await?;
                std::fs::remove_file(paths.store())?;
                return Err(why);
            }
            rules => Some(rules?),
        };
        // A backup comes without a CA.
        let any = store::Range { prefix: "/registry/".to_owned(), limit: 1, ..store::Range::default() };
        let in_use = args.store.restore.is_none() && !store.list(any).await?.entries.is_empty();
        // 2. The API server, its socket and its TLS endpoint.
        let tokens = args.token_auth_file.as_deref().map(server::StaticTokens::read).transpose()?.unwrap_or_default();
        let (service_cidrs, oidc) = (args.service_cidr.clone(), args.oidc.issuer()?);
        let toleration_seconds = server::TolerationSeconds {
            not_ready: args.default_not_ready_toleration_seconds,
            unreachable: args.default_unreachable_toleration_seconds,
        };
        let pod_security = args.admission_control_config_file.as_deref().map(pod_security).transpose()?;
        let pod_security = pod_security.unwrap_or_default();
        let host_ports = pod_security.allows_host_ports();
        let mut config = server::Config {
            disabled_admission,
            authorization,
            service_cidrs,
            cluster_dns: cluster_dns.to_vec(),
            cluster_cidrs: args.cluster_cidr.clone(),
            tokens,
            oidc,
            toleration_seconds,
            pod_security,
            load_balancer_pool: args.load_balancer_pool.pool().cloned(),
            encryption,
            audit: args.requests.audit(&env)?,
            limits: args.requests.limits()?,
            confinement,
            local_storage_class: !args.no_local_storage_class,
            flags: args.told.clone(),
            profiler: args
                .profiling
                .then(|| Profiles::new(paths.run.join(folder::PROFILES)) as Arc<dyn server::profiling::Profiler>),
            ..server::Config::default()
        };
        let endpoint::Endpoint { tls, advertised, keeper } =
            endpoint::open(&args.endpoint, paths, isolated, &mut config, in_use, &env)
                .await
                .context("the API's TLS endpoint")?;
        let root_ca = config.authority.as_ref().map(|authority| authority.certificate().to_owned());
        let server = server::Server::open(store.clone(), env.clone(), config).await?;
        let listener = server::listen::bind(&paths.socket())
            .with_context(|| format!("listening on {}", paths.socket().display()))?;
        let stop_listener = CancellationToken::new();
        let tls_listeners = tls.as_ref().map(server::listen::Tls::tls_listeners);
        let listener =
            tokio::spawn(server::listen::serve(server.clone(), listener, tls, stop_listener.clone().cancelled_owned()));
        // 3. Controllers and scheduler, on one set of informers.
        let stop_loops = CancellationToken::new();
        let informers = Informers::start(client::local::client(server.clone(), "informers"));
        let mut loops = JoinSet::new();
        let config = controllers::Config {
            cluster_cidrs: args.cluster_cidr.clone(),
            allocate_node_cidrs: args.allocate_node_cidrs,
            service_cidrs: args.service_cidr.clone(),
            root_ca,
            node_monitor_grace: args.node_monitor_grace_period,
            node_eviction_rate: args.node_eviction_rate,
            secondary_node_eviction_rate: args.secondary_node_eviction_rate,
            large_cluster_size: args.large_cluster_size_threshold,
            unhealthy_zone_threshold: args.unhealthy_zone_threshold,
            autoscaling: args.autoscaling.settings(),
            load_balancing: args.load_balancer_pool.clone(),
            pod_security_level: if host_ports { "privileged" } else { "baseline" }.to_owned(),
            ..controllers::Config::default()
        };
        let identity = match args.leader_elect || args.store.is_shared() {
            true => Some(identity(&env)?),
            false => None,
        };
        let part = |name: &'static str| Part {
            client: client::local::worker(server.clone(), name),
            env: env.clone(),
            name,
            identity: identity.clone(),
            stop: stop_loops.clone(),
            runs: server.runs(name.trim_start_matches("kube-")),
        };
        let (clock, shared) = (env.clone(), informers.clone());
        loops
            .spawn(part("kube-controller-manager").run(move |client, stop| {
                controllers::run(client, clock.clone(), shared.clone(), config.clone(), stop)
            }));
        let clock = env.clone();
        loops.spawn(part("kube-scheduler").run(move |client, stop| {
            scheduler::run(client, clock.clone(), informers.clone(), scheduling.clone(), stop)
        }));
        loops.spawn(keeper.run(env.clone(), stop_loops.clone()));
        // 4. An isolated node's Pods are reached differently: `ControlPlane::open_to`.
        if !isolated {
            if advertised.endpoint.is_none() && tls_listeners.is_some() {
                tracing::warn!(
                    "the API listens on loopback alone: Pods of nodes that are not isolated cannot reach it"
                );
            }
            server.advertise(advertised.clone());
        }
        let service_v4 = args.service_cidr.first().is_none_or(|cidr| cidr.addr().is_ipv4());
        Ok(ControlPlane {
            server,
            advertised,
            service_v4,
            tls_listeners,
            store,
            loops,
            listener,
            stop_loops,
            stop_listener,
        })
    }

    /// Serves the API to the Pods of an isolated node: inside its network, where this process is not.
    pub async fn open_to(&self, network: &Network) -> anyhow::Result<()> {
        let mut advertised = self.advertised.clone();
        let own = network.addresses();
        let fits = own.iter().find(|address| address.is_ipv4() == self.service_v4);
        if let (Some(tls_listeners), Some(address)) = (&self.tls_listeners, fits.or(own.first())) {
            let listener = api_listener(network, *address).await.context("listening for the API's calls of Pods")?;
            advertised.endpoint = Some(listener.local_addr()?);
            // The receiver is gone once the server has stopped.
            let _ = tls_listeners.send(listener);
        }
        self.server.advertise(advertised);
        Ok(())
    }

    /// Resolves when the store has failed permanently: then this process must exit, and be restarted.
    pub async fn failed(&self) -> anyhow::Error {
        let why = anyhow::Error::from(self.store.failed().await);
        why.context("the store has failed for good: this process ends, and its next start reads the file anew")
    }

    /// Ends the loops, then the listener and the server, and closes the store. Continues after errors.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop_loops.cancel();
        while self.loops.join_next().await.is_some() {}
        self.stop_listener.cancel();
        let served = self.listener.await;
        self.server.stop().await;
        let closed = self.store.close().await;
        served.context("the listener")?.context("the listener")?;
        closed.context("closing the store")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Argv {
        #[command(flatten)]
        control_plane: ControlPlaneArgs,
    }

    #[test]
    fn the_pool_has_nobody_elses_addresses() {
        let check = |given: &[&str]| {
            let argv = Argv::try_parse_from([&["podwright"], given].concat()).map_err(|why| why.to_string())?;
            let args = argv.control_plane;
            args.check_ranges().map_err(|why| why.to_string())?;
            args.check_pool(&["192.0.2.53".parse().unwrap()]).map_err(|why| why.to_string())
        };
        check(&[]).unwrap();
        check(&["--load-balancer-pool", "none"]).unwrap();
        check(&["--load-balancer-pool", "198.51.100.10-198.51.100.20,2001:db8::/64"]).unwrap();
        for (pool, why) in [
            ("10.0.0.0/8", "--load-balancer-pool: it has addresses of 10.244.0.0/16 (--cluster-cidr)"),
            ("10.96.255.1", "--load-balancer-pool: it has addresses of 10.96.0.0/16 (--service-cidr)"),
            (
                "192.0.2.0/24",
                "--load-balancer-pool: it has the address 192.0.2.53 of the cluster's DNS (--cluster-dns)",
            ),
            ("192.0.2.9-192.0.2.1", "the first address is behind the last"),
            ("here", "here: expected an address, a CIDR, or two addresses as FIRST-LAST"),
        ] {
            let error = check(&["--load-balancer-pool", pool]).unwrap_err();
            assert!(error.contains(why), "{pool}: {error}");
        }
    }

    #[test]
    fn the_first_range_has_room_for_dns() {
        let check =
            |ranges: &str| Argv::parse_from(["podwright", "--service-cidr", ranges]).control_plane.check_ranges();
        for large in ["10.50.0.0/28", "fd00:50::/112,10.50.0.0/29"] {
            check(large).unwrap();
        }
        for small in ["10.50.0.0/29", "10.50.0.0/29,fd00:50::/112"] {
            let why = check(small).unwrap_err().to_string();
            assert_eq!(
                why,
                "--service-cidr: the first range has no tenth address for the Service kube-dns; give a larger one"
            );
        }
    }
}
