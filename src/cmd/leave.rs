//! `podwright node leave`: a machine leaves its cluster: its Pods go elsewhere, what its agent made is removed, and its Node is
//! deleted.

use anyhow::{Context, ensure};

use super::{private, reset};
use crate::{
    cli::{Global, LeaveArgs, Leaving},
    client::join,
};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Have a node leave the cluster: cordon and drain it, remove what its agent made on this machine, and delete the Node.
    /// While the agent runs, its Pods are drained; end it then, and run the command again. It goes on where it left off
    Leave(Box<Leave>),
}

#[derive(clap::Args)]
struct Leave {
    /// A node of another machine, on which nothing is removed ('podwright reset' does that there) [default: this machine's]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    leaving: LeaveArgs,
    #[command(flatten)]
    reset: reset::Args,
}

pub async fn run(args: Args, global: Global) -> anyhow::Result<()> {
    let What::Leave(args) = args.what;
    if let Some(file) = &args.leaving.kubeconfig {
        private::named("--kubeconfig", file, private::Owner::here())?;
    }
    match &args.name {
        Some(name) => elsewhere(&args, name, global).await,
        None => here(&args, global).await,
    }
}

/// A node of another machine: 1. its Pods go, as far as an agent is there to end them, 2. its agent has ended, 3. its Node goes.
async fn elsewhere(args: &Leave, name: &str, global: Global) -> anyhow::Result<()> {
    let leaving = Leaving::begin(&args.leaving, global, name).await?;
    leaving.empty(leaving.is_alive().await?).await?;
    leaving.ensure_ended().await?;
    leaving.delete().await?;
    println!("the node {name} has left the cluster; 'podwright reset' on its machine removes what it made there");
    Ok(())
}

/// This machine's node: 1. its Pods go, while its agent runs to end them; once that has ended, 2. what is left of Pods is ended
/// here, 3. the Node goes, 4. and what the agent made, with its credentials. Each step finds what is done already.
async fn here(args: &Leave, global: Global) -> anyhow::Result<()> {
    let reset = &args.reset;
    let paths = reset.folders()?;
    if let Some(paths) = &paths {
        ensure!(
            !paths.store().exists(),
            "the cluster's own server keeps its state in {}: it cannot leave; 'podwright reset' removes the cluster",
            paths.state.display()
        );
    }
    let member = paths.as_ref().and_then(|paths| join::kept_name(&paths.membership()));
    let is_member = member.is_some();
    let name = member.map_or_else(|| reset.node_name(paths.as_ref()), Ok)?;
    let runs = paths.as_ref().map_or(Ok(false), reset::agent_runs)?;
    let leaving = Leaving::begin(&args.leaving, global, &name).await?;
    leaving.empty(runs).await?;
    ensure!(
        !runs,
        "the node {name} is drained; its agent still runs here: end it (systemctl stop podwright-agent), then run this again"
    );
    if !is_member {
        // Nothing here proves that the Node of this name is this machine's.
        leaving.ensure_ended().await?;
    }
    let paths = reset.checked()?;
    if let Some(paths) = &paths {
        reset.confirm(paths, reset::EVERYTHING)?;
        reset::end_pods(paths).await?;
    }
    leaving.delete().await?;
    if let Some(paths) = &paths {
        reset.remove(paths).await.context("the Node is deleted; run this again, or podwright reset")?;
    }
    println!("the node {name} has left the cluster; nothing of it is left here");
    Ok(())
}
