//! `podwright up`: control plane and node in one process.

use super::{
    control_plane::{ControlPlane, ControlPlaneArgs},
    node::{Node, ServerAt},
    node_args::NodeArgs,
    notify,
    private::Owner,
    shutdown,
    state_dir::StateArgs,
};
use crate::{client::rpc, server::Confinement};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    pub control_plane: ControlPlaneArgs,
    #[command(flatten)]
    node: NodeArgs,
}

/// The node needs root, and is in the same process: the server cannot drop privileges.
const HERE: Confinement = Confinement { runs_node: true, landlock: false };

/// 1. starts the control plane, 2. the node with its socket, 3. waits for a signal (or the store's failure), 4. stops the node,
///    then the control plane.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let stop = shutdown::on_signals()?;
    args.control_plane.check_files(Owner::here())?;
    args.node.check_files()?;
    args.control_plane.check_ranges()?;
    let _tracing = args.control_plane.tracing.start("podwright")?;
    let paths = args.state.paths(Owner::here())?;
    let ranges = &args.control_plane.service_cidr;
    let dns = args.node.cluster_dns(ranges)?;
    let control_plane = ControlPlane::start(&args.control_plane, &paths, args.node.isolated, HERE, &dns).await?;
    let client = rpc::client(rpc::Address(paths.socket()), "kubelet");
    let node = match Node::start(&args.node, ranges, &paths, client, ServerAt::Here).await {
        Ok(node) => node,
        Err(error) => {
            control_plane.stop().await?;
            return Err(error);
        }
    };
    if args.node.isolated
        && let Err(error) = control_plane.open_to(node.network()).await
    {
        node.stop().await.and(control_plane.stop().await)?;
        return Err(error);
    }
    tracing::info!("serving on unix://{}", paths.socket().display());
    notify::ready();
    let failed = tokio::select! {
        () = stop.cancelled() => None,
        () = node.ended() => None,
        why = control_plane.failed() => Some(why),
    };
    let node = node.stop().await;
    let control_plane = control_plane.stop().await;
    failed.map_or(node.and(control_plane), Err)
}
