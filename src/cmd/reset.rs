//! `podwright reset`: removes everything that a node of this machine ever made.

use std::{
    io::{BufRead, IsTerminal},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use anyhow::Context;
use ipnet::IpNet;
use podwright_net::{Network, NetworkConfig};
use podwright_runtime::{Runtime, Scribe, sys::tree::remove_all};

use super::{
    node::{NodeArgs, name, shim},
    paths::{Paths, StateArgs},
    private::Owner,
};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    node: NodeArgs,
    /// The ranges that ClusterIPs came from
    #[arg(long, value_delimiter = ',', default_value = "10.96.0.0/16", value_name = "CIDR")]
    service_cidr: Vec<IpNet>,
    /// Do not ask
    #[arg(long, short = 'y')]
    yes: bool,
}

/// 1. nobody may be running, 2. Pods, 3. the network, 4. mounts, 5. folders. What fails is said, and the rest goes on.
pub async fn run(args: Args) -> anyhow::Result<()> {
    if let Some(dir) = &args.state.state_dir {
        anyhow::ensure!(
            is_state(dir),
            "{} is no folder of podwright's: nothing of a node or a server is in it",
            dir.display()
        );
    }
    let paths = args.state.paths(Owner::here())?;
    anyhow::ensure!(
        UnixStream::connect(paths.socket()).is_err(),
        "podwright is running on unix://{}: end it first",
        paths.socket().display()
    );
    if !args.yes && !confirmed(&paths)? {
        anyhow::bail!("nothing was removed");
    }
    let mut errors = Vec::new();
    errors.extend(pods(&paths).await);
    errors.extend(network(&args, &paths).await);
    errors.extend(mounts(&paths));
    errors.extend(folders(&paths));
    for error in &errors {
        eprintln!("podwright: {error:#}");
    }
    anyhow::ensure!(errors.is_empty(), "{} things stay behind", errors.len());
    println!("nothing of the node is left");
    Ok(())
}

/// Whether the folder has something in it that a node or a server makes.
fn is_state(dir: &Path) -> bool {
    let ours = ["store.db", "store.db.lock", "pki", "images", "runtime", "network", "agent", "api.sock"];
    !dir.is_symlink() && ours.iter().any(|name| dir.join(name).symlink_metadata().is_ok())
}

fn confirmed(paths: &Paths) -> anyhow::Result<bool> {
    anyhow::ensure!(std::io::stdin().is_terminal(), "nobody can be asked: give --yes");
    eprint!("Remove all Pods, images, logs and the store below {}? [y/N] ", paths.state.display());
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Ends every sandbox with its containers, and the cgroup subtree.
async fn pods(paths: &Paths) -> Vec<anyhow::Error> {
    let runtime = async {
        let config = podwright_runtime::Config {
            state_dir: paths.runtime(),
            run_dir: paths.shims(),
            cgroup_root: paths.cgroup_root.clone(),
            shim: shim()?,
            birth_timeout: podwright_runtime::BIRTH,
        };
        Runtime::open(config).await.context("opening the runtime")
    };
    let runtime = match runtime.await {
        Ok(runtime) => runtime,
        Err(error) => return vec![error],
    };
    let mut errors = Vec::new();
    for sandbox in runtime.list().await {
        let removed = runtime.remove_sandbox(&sandbox.spec.id, &Scribe::none()).await;
        errors.extend(removed.with_context(|| format!("removing the sandbox {}", sandbox.spec.id)).err());
    }
    errors.extend(runtime.remove_root(&Scribe::none()).await.context("removing the cgroups").err());
    errors
}

/// Takes links, routes and tables away. A node that never had a network is left alone.
async fn network(args: &Args, paths: &Paths) -> Vec<anyhow::Error> {
    if !paths.network().exists() {
        return Vec::new();
    }
    let up = async {
        let config = NetworkConfig {
            node: name(&args.node)?,
            folder: paths.network(),
            // An isolated node keeps its namespace pinned here.
            isolated: mounted_below(&paths.network())?.contains(&paths.network().join("netns")),
            addresses: args.node.node_ip.clone(),
            service_ranges: args.service_cidr.clone(),
            dns: args.node.cluster_dns.clone(),
            conntrack_max: None,
        };
        Network::up(config).await.context("opening the node's network")
    };
    match up.await {
        Ok(network) => network.remove().await.into_iter().map(anyhow::Error::from).collect(),
        Err(error) => vec![error],
    }
}

fn mounts(paths: &Paths) -> Vec<anyhow::Error> {
    let mut errors = Vec::new();
    for folder in [&paths.state, &paths.run] {
        match mounted_below(folder) {
            Ok(mounts) => errors.extend(mounts.into_iter().rev().filter_map(|mount| {
                let done = rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH);
                done.with_context(|| format!("umount {}", mount.display())).err()
            })),
            Err(error) => errors.push(error),
        }
    }
    errors
}

/// What is mounted at or below a folder, in the order of mounting.
fn mounted_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
    let points =
        table.lines().filter_map(|line| line.split(' ').nth(1)).map(|p| PathBuf::from(p.replace("\\040", " ")));
    Ok(points.filter(|p| p.starts_with(folder)).collect())
}

/// Removes the folders; never while something is still mounted below them.
fn folders(paths: &Paths) -> Vec<anyhow::Error> {
    let mut errors = Vec::new();
    for folder in [&paths.state, &paths.run, &paths.logs] {
        match mounted_below(folder) {
            Ok(mounts) if mounts.is_empty() => {}
            Ok(mounts) => {
                errors.push(anyhow::anyhow!("{} stays: {} is still mounted", folder.display(), mounts[0].display()));
                continue;
            }
            Err(error) => {
                errors.push(error);
                continue;
            }
        }
        if let Err(e) = remove_all(folder) {
            errors.push(anyhow::Error::from(e).context(format!("removing {}", folder.display())));
        }
    }
    errors
}
