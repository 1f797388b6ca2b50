//! `podwright agent`: this machine's node alone, against a server's socket.

use ipnet::IpNet;

use super::{
    node::{Node, NodeArgs, ServerAt},
    notify,
    paths::StateArgs,
    shutdown,
};
use crate::{cli, client::rpc};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    node: NodeArgs,
    /// The ranges that ClusterIPs come from, as the server has them
    #[arg(long, value_delimiter = ',', default_value = "10.96.0.0/16", value_name = "CIDR")]
    service_cidr: Vec<IpNet>,
}

pub async fn run(args: Args, global: cli::Global) -> anyhow::Result<()> {
    let stop = shutdown::on_signals()?;
    let paths = args.state.paths()?;
    let address: rpc::Address = global.server.parse().map_err(anyhow::Error::msg)?;
    let node =
        Node::start(&args.node, &args.service_cidr, &paths, rpc::client(address, "kubelet"), ServerAt::Elsewhere)
            .await?;
    notify::ready();
    stop.cancelled().await;
    node.stop().await
}
