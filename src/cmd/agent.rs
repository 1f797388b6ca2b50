//! `podwright agent`: only this machine's node, connected to a server: by its socket, or over TLS with its own certificate.

use std::path::PathBuf;

use anyhow::Context;
use ipnet::IpNet;
use podwright_runtime::sys::arguments::hide_argument;

use super::{
    collector::TracingArgs,
    node::{self, Node, NodeArgs, ServerAt},
    notify,
    private::{self, Owner},
    shutdown,
    state_dir::StateArgs,
};
use crate::{
    api::Env,
    cli,
    client::{
        join::{Joining, Membership},
        rpc,
    },
};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    node: NodeArgs,
    /// CIDR ranges of Service cluster IPs, as the server has them
    #[arg(long, value_delimiter = ',', default_value = "10.96.0.0/16", value_name = "CIDR")]
    service_cidr: Vec<IpNet>,
    /// A file with the bootstrap token by which a node joins --server https://HOST:PORT; needed once
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// The bootstrap token; prefer the environment or --token-file, as all users of the machine can see a process's arguments
    /// until it has read them
    #[arg(long, value_name = "ID.SECRET", env = "PODWRIGHT_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A file with the certificate authority of the cluster that the node joins; needed once
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    #[command(flatten)]
    tracing: TracingArgs,
}

/// Removes the token from the arguments that other users can see. Must be called first.
pub fn hide_token(args: &Args) {
    let Some(token) = args.token.as_deref().filter(|token| !token.is_empty()) else { return };
    if let Err(why) = hide_argument(token.as_bytes()) {
        eprintln!("podwright: --token stays among the arguments that all users see: {why}; use --token-file");
    }
}

impl Args {
    fn token(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.token_file else { return Ok(self.token.clone()) };
        private::named("--token-file", file, Owner::here())?;
        let text = std::fs::read_to_string(file).with_context(|| format!("--token-file {}", file.display()))?;
        Ok(Some(text.trim().to_owned()))
    }
}

pub async fn run(args: Args, global: cli::Global) -> anyhow::Result<()> {
    let stop = shutdown::on_signals()?;
    args.node.check_files()?;
    if let Some(file) = &args.ca_file {
        private::named("--ca-file", file, Owner::here())?;
    }
    if let Some(file) = &args.tracing.tracing_config_file {
        private::named("--tracing-config-file", file, Owner::here())?;
    }
    let _tracing = args.tracing.start("podwright-agent")?;
    let paths = args.state.paths(Owner::here())?;
    let (client, server, membership) = if global.server.starts_with("https://") {
        let ca = args
            .ca_file
            .as_ref()
            .map(|file| std::fs::read_to_string(file).with_context(|| format!("--ca-file {}", file.display())));
        let joining = Joining {
            folder: paths.membership(),
            node: node::name(&args.node)?,
            url: global.server.clone(),
            ca: ca.transpose()?,
            token: args.token()?,
        };
        let membership = Membership::open(joining, Env::system()).await?;
        (membership.client(), ServerAt::Tls(membership.server().to_owned()), Some(membership))
    } else {
        let address: rpc::Address = global.server.parse().map_err(anyhow::Error::msg)?;
        (rpc::client(address, "kubelet"), ServerAt::Socket, None)
    };
    let renewing = membership.map(|membership| tokio::spawn(membership.keep()));
    let node = Node::start(&args.node, &args.service_cidr, &paths, client, server).await?;
    notify::ready();
    tokio::select! {
        () = stop.cancelled() => {}
        () = node.ended() => {}
    }
    if let Some(renewing) = renewing {
        renewing.abort();
    }
    node.stop().await
}
