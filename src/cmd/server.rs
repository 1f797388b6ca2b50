//! `podwright server`: the control plane alone.

use super::{
    control_plane::{ControlPlane, ControlPlaneArgs},
    notify,
    paths::StateArgs,
    shutdown,
};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    control_plane: ControlPlaneArgs,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let stop = shutdown::on_signals()?;
    let paths = args.state.paths()?;
    let control_plane = ControlPlane::start(&args.control_plane, &paths, false).await?;
    tracing::info!("serving on unix://{}", paths.socket().display());
    notify::ready();
    stop.cancelled().await;
    control_plane.stop().await
}
