//! The control plane's parts, put together: store, API server with its socket, controllers, scheduler.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use ipnet::IpNet;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::endpoint::{self, EndpointArgs};
use super::paths::Paths;
use crate::{
    api::Env,
    client::{self, Informers},
    controllers, scheduler, server,
    store::{self, Store},
};

#[derive(Clone, Debug, clap::Args)]
pub struct ControlPlaneArgs {
    /// The ranges that nodes' Pod ranges come from; two for dual-stack
    #[arg(long, value_delimiter = ',', default_value = "10.244.0.0/16", value_name = "CIDR")]
    pub cluster_cidr: Vec<IpNet>,
    /// The ranges that ClusterIPs come from; two for dual-stack
    #[arg(long, value_delimiter = ',', default_value = "10.96.0.0/16", value_name = "CIDR")]
    pub service_cidr: Vec<IpNet>,
    /// Start from this backup; refused where a store exists already
    #[arg(long, value_name = "FILE")]
    pub restore: Option<PathBuf>,
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}

/// A running control plane.
pub struct ControlPlane {
    store: Arc<store::Sqlite>,
    loops: JoinSet<()>,
    listener: tokio::task::JoinHandle<std::io::Result<()>>,
    /// Ends controllers and scheduler.
    stop_loops: CancellationToken,
    /// Ends the listener; after the loops, because they and the agent still write while they end.
    stop_listener: CancellationToken,
}

impl ControlPlane {
    /// Starts everything; when this returns, the socket answers.
    /// `isolated`: it is for one machine's own use.
    pub async fn start(args: &ControlPlaneArgs, paths: &Paths, isolated: bool) -> anyhow::Result<ControlPlane> {
        // 1. The store.
        let file = paths.store();
        if let Some(backup) = &args.restore {
            store::restore(backup, &file).with_context(|| format!("--restore {}", backup.display()))?;
        }
        let store = Arc::new(store::Sqlite::open(&file).context("opening the store")?);
        // 2. The API server, its socket and its TLS endpoint.
        let env = Env::system();
        let config = server::Config { service_cidrs: args.service_cidr.clone(), ..server::Config::default() };
        let tls =
            endpoint::open(&args.endpoint, paths, isolated, &config, &env).await.context("the API's TLS endpoint")?;
        let server = server::Server::open(store.clone(), env.clone(), config).await?;
        let listener = server::listen::bind(&paths.socket())
            .with_context(|| format!("listening on {}", paths.socket().display()))?;
        let stop_listener = CancellationToken::new();
        let listener =
            tokio::spawn(server::listen::serve(server.clone(), listener, tls, stop_listener.clone().cancelled_owned()));
        // 3. Controllers and scheduler, on one set of informers.
        let stop_loops = CancellationToken::new();
        let informers = Informers::start(client::local::client(server.clone(), "informers"));
        let mut loops = JoinSet::new();
        let config = controllers::Config {
            cluster_cidrs: args.cluster_cidr.clone(),
            service_cidrs: args.service_cidr.clone(),
            ..controllers::Config::default()
        };
        let client = client::local::client(server.clone(), "kube-controller-manager");
        loops.spawn(controllers::run(client, env.clone(), informers.clone(), config, stop_loops.clone()));
        let client = client::local::client(server, "kube-scheduler");
        loops.spawn(scheduler::run(client, env, informers, stop_loops.clone()));
        Ok(ControlPlane { store, loops, listener, stop_loops, stop_listener })
    }

    /// Ends the loops, then the listener, and closes the store. Carries on past what fails.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop_loops.cancel();
        while self.loops.join_next().await.is_some() {}
        self.stop_listener.cancel();
        let served = self.listener.await;
        let closed = self.store.close().await;
        served.context("the listener")?.context("the listener")?;
        closed.context("closing the store")
    }
}
