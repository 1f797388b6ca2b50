//! `podwright agent`: only this machine's node, connected to a server: by its socket, or over TLS with its own certificate.

use ipnet::IpNet;

use super::{
    collector::TracingArgs,
    joining::JoinArgs,
    node::{Node, ServerAt},
    node_args::NodeArgs,
    notify,
    private::{self, Owner},
    shutdown,
    state_dir::StateArgs,
};
use crate::{cli, client::rpc};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    node: NodeArgs,
    /// CIDR ranges of Service cluster IPs, as the server has them
    #[arg(long, value_delimiter = ',', default_value = "10.96.0.0/16", value_name = "CIDR")]
    service_cidr: Vec<IpNet>,
    #[command(flatten)]
    join: JoinArgs,
    #[command(flatten)]
    tracing: TracingArgs,
}

/// Removes the token from the arguments that other users can see. Must be called first.
pub fn hide_token(args: &Args) {
    args.join.hide_token();
}

pub async fn run(args: Args, global: cli::Global) -> anyhow::Result<()> {
    let stop = shutdown::on_signals()?;
    args.node.check_files()?;
    args.join.check_files()?;
    if let Some(file) = &args.tracing.tracing_config_file {
        private::named("--tracing-config-file", file, Owner::here())?;
    }
    let _tracing = args.tracing.start("podwright-agent")?;
    let paths = args.state.paths(Owner::here())?;
    let (client, server, membership) = if let Some(url) = args.join.url(&global.server)? {
        let joining = args.join.membership(url, paths.membership(), args.node.name()?);
        // It may wait for minutes.
        let membership = tokio::select! {
            joined = joining => joined?,
            () = stop.cancelled() => return Ok(()),
        };
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
