//! `podwright agent`: this machine's node alone, against a server: by its socket, or by TLS with a certificate of its own.

use std::path::PathBuf;

use anyhow::Context;
use ipnet::IpNet;

use super::{
    node::{self, Node, NodeArgs, ServerAt},
    notify,
    paths::StateArgs,
    private::Owner,
    shutdown,
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
    /// The ranges that ClusterIPs come from, as the server has them
    #[arg(long, value_delimiter = ',', default_value = "10.96.0.0/16", value_name = "CIDR")]
    service_cidr: Vec<IpNet>,
    /// A bootstrap token, by which a node joins at --server https://HOST:PORT; needed once
    #[arg(long, value_name = "ID.SECRET", env = "PODWRIGHT_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The CA of the cluster that a node joins; needed once
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

pub async fn run(args: Args, global: cli::Global) -> anyhow::Result<()> {
    let stop = shutdown::on_signals()?;
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
            token: args.token.clone(),
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
    stop.cancelled().await;
    if let Some(renewing) = renewing {
        renewing.abort();
    }
    node.stop().await
}
