//! `podwright server`: only the control plane.

use std::{net::IpAddr, path::Path};

use super::{
    confine::{self, Files, folder_of},
    control_plane::{ControlPlane, ControlPlaneArgs},
    notify,
    paths::Paths,
    shutdown,
    state_dir::StateArgs,
};
use crate::server::Confinement;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    state: StateArgs,
    /// Run as this user, who becomes the owner of the server's files and must be able to read the configured ones. For any
    /// user the server drops capabilities, access to other files and the system calls that it never makes
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// IP addresses of the cluster's DNS server, as the agents have them; kept from Services, as the tenth of each range of
    /// --service-cidr is
    #[arg(long, value_delimiter = ',', value_name = "IP")]
    cluster_dns: Vec<IpAddr>,
    #[command(flatten)]
    pub control_plane: ControlPlaneArgs,
}

/// A server with minimal privileges, ready to run.
pub struct Confined {
    paths: Paths,
    confinement: Confinement,
}

/// Drops privileges. Must be called before threads are started.
pub fn confined(args: &Args) -> anyhow::Result<Confined> {
    let owner = confine::owner(args.user.as_deref())?;
    args.control_plane.check_files(owner)?;
    args.control_plane.check_ranges()?;
    let paths = args.state.paths(owner)?;
    let confinement = confine::confine(args.user.as_deref(), &paths, &files(&args.control_plane))?;
    Ok(Confined { paths, confinement })
}

/// The files in flags: those that are read once, and the directories of those that are reread or written.
fn files(args: &ControlPlaneArgs) -> Files {
    let own = |(_, file): (&'static str, &Path)| file.to_path_buf();
    let again = args.read_again().map(|(_, file)| folder_of(file));
    let audit = args.requests.audit_log_path.iter().filter(|path| path.as_os_str() != "-");
    Files { read: args.read_once().map(own).chain(again).collect(), write: audit.map(|file| folder_of(file)).collect() }
}

pub async fn run(args: Args, confined: Confined) -> anyhow::Result<()> {
    let stop = shutdown::on_signals()?;
    let _tracing = args.control_plane.tracing.start("podwright-server")?;
    let Confined { paths, confinement } = confined;
    let control_plane = ControlPlane::start(&args.control_plane, &paths, false, confinement, &args.cluster_dns).await?;
    tracing::info!("serving on unix://{}", paths.socket().display());
    notify::ready();
    let failed = tokio::select! {
        () = stop.cancelled() => None,
        why = control_plane.failed() => Some(why),
    };
    let stopped = control_plane.stop().await;
    failed.map_or(stopped, Err)
}
