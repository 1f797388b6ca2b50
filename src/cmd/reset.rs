//! `podwright reset`: removes everything that a node has created on this machine.

use std::{
    io::{BufRead, IsTerminal},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use anyhow::Context;
use ipnet::IpNet;
use podwright_net::{Network, NetworkConfig};
use podwright_runtime::{
    JournalWriter, Runtime,
    image::ImageStore,
    kept::unescaped,
    removals::{self, Owners},
    sys::{Kernel, tree::remove_all},
};

use super::{
    folder::{self, Holdings},
    node::shim,
    node_args::NodeArgs,
    node_name,
    paths::Paths,
    private::{self, Owner},
    state_dir::StateArgs,
};
use crate::node::{LOCAL_VOLUMES, shutdown::remove_configuration, volumes::local::release_projects};

#[derive(clap::Args)]
pub struct ResetArgs {
    #[command(flatten)]
    node: Args,
    /// Keep the folders with images, volumes, logs, the store and the node's credentials: end the Pods, and remove what they and the
    /// node have in the kernel. The next start finds the node as after a reboot
    #[arg(long)]
    keep_state: bool,
}

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    node: NodeArgs,
    /// CIDR ranges of Service cluster IPs
    #[arg(long, value_delimiter = ',', default_value = "10.96.0.0/16", value_name = "CIDR")]
    service_cidr: Vec<IpNet>,
    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    yes: bool,
}

/// 1. Checks that the directory is podwright's,
/// 2. that nothing runs on it,
/// 3. and asks for confirmation; until then nothing is changed. Then it removes
/// 4. Pods,
/// 5. the network,
/// 6. mounts,
/// 7. directories, unless they are to be kept.
///
/// Errors are reported, and the rest continues.
pub async fn run(args: ResetArgs) -> anyhow::Result<()> {
    let ResetArgs { node: args, keep_state } = args;
    if let Some(paths) = args.checked()? {
        let what = if keep_state { "End all Pods of the node in" } else { EVERYTHING };
        args.confirm(&paths, what)?;
        let ended = end_pods(&paths).await;
        let removed = match keep_state {
            true => args.remove_from_kernel(&paths).await,
            false => args.remove(&paths).await,
        };
        ended.and(removed)?;
        if keep_state {
            println!("nothing of the node runs; its folders are kept: {}", paths.state.display());
            return Ok(());
        }
    }
    println!("nothing of the node is left");
    Ok(())
}

impl Args {
    /// The node's folders as they are; none where there is nothing of podwright's.
    ///
    /// # Errors
    /// They are not podwright's.
    pub fn folders(&self) -> anyhow::Result<Option<Paths>> {
        let paths = self.state.found()?;
        if self.state.state_dir.is_none() && !paths.state.exists() && !paths.run.exists() {
            return Ok(None);
        }
        anyhow::ensure!(
            folder::is_ours(&paths.state),
            "{} is no folder of podwright's: it has no file {} of podwright's making",
            paths.state.display(),
            folder::MARK
        );
        for folder in [&paths.state, &paths.run].into_iter().filter(|folder| folder.exists()) {
            private::check_folder(folder, Owner::here())?;
        }
        Ok(Some(paths))
    }

    /// The same, where nothing runs on them.
    ///
    /// # Errors
    /// A server or an agent runs.
    pub fn checked(&self) -> anyhow::Result<Option<Paths>> {
        let Some(paths) = self.folders()? else { return Ok(None) };
        // Before anything is changed.
        self.node_name(Some(&paths))?;
        anyhow::ensure!(
            UnixStream::connect(paths.socket()).is_err(),
            "podwright is running on unix://{}: end it first",
            paths.socket().display()
        );
        anyhow::ensure!(!agent_runs(&paths)?, "an agent is running on {}: end it first", paths.state.display());
        Ok(Some(paths))
    }

    /// Asks the user about `what`, unless he has said `--yes`.
    ///
    /// # Errors
    /// He says no, or cannot be asked.
    pub fn confirm(&self, paths: &Paths, what: &str) -> anyhow::Result<()> {
        anyhow::ensure!(self.yes || confirmed(paths, what)?, "nothing was removed");
        Ok(())
    }

    /// The name of the Node: of these folders, where there are some.
    ///
    /// # Errors
    /// It cannot be read, or the flags name another one.
    pub fn node_name(&self, paths: Option<&Paths>) -> anyhow::Result<String> {
        let given = self.node.node_name.as_deref();
        paths.map_or_else(|| node_name::of_flags(given), |paths| node_name::of_last(given, paths))
    }

    /// Removes all but what Pods run: network, mounts, folders.
    ///
    /// # Errors
    /// Something stays; what and why is told.
    pub async fn remove(&self, paths: &Paths) -> anyhow::Result<()> {
        let mut errors = network(self, paths).await;
        errors.extend(remove_configuration().err().map(anyhow::Error::from));
        let holdings = folder::holdings(paths)?;
        errors.extend(mounts(&holdings));
        errors.extend(folders(&holdings));
        told(errors)
    }

    /// Removes the network and mounts alone.
    ///
    /// # Errors
    /// Something stays; what and why is told.
    async fn remove_from_kernel(&self, paths: &Paths) -> anyhow::Result<()> {
        let mut errors = network(self, paths).await;
        errors.extend(remove_configuration().err().map(anyhow::Error::from));
        errors.extend(mounts(&folder::holdings(paths)?));
        told(errors)
    }
}

/// Whether an agent runs on the folders.
pub fn agent_runs(paths: &Paths) -> anyhow::Result<bool> {
    Ok(ImageStore::is_in_use(&paths.images())?)
}

/// Ends every Pod.
///
/// # Errors
/// Some stay; which and why is told.
pub async fn end_pods(paths: &Paths) -> anyhow::Result<()> {
    told(pods(paths).await)
}

fn told(errors: Vec<anyhow::Error>) -> anyhow::Result<()> {
    for error in &errors {
        eprintln!("podwright: {error:#}");
    }
    anyhow::ensure!(errors.is_empty(), "{} things stay behind", errors.len());
    Ok(())
}

/// What is removed where no folder is kept.
pub const EVERYTHING: &str = "Remove all Pods, images, logs and the store below";

fn confirmed(paths: &Paths, what: &str) -> anyhow::Result<bool> {
    anyhow::ensure!(std::io::stdin().is_terminal(), "nobody can be asked: give --yes");
    eprint!("{what} {}? [y/N] ", paths.state.display());
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Removes every sandbox with its containers, and the cgroup subtree.
async fn pods(paths: &Paths) -> Vec<anyhow::Error> {
    let runtime = async {
        let config = podwright_runtime::Config {
            state_dir: paths.runtime(),
            run_dir: paths.shims(),
            cgroup_root: paths.cgroup_root.clone(),
            shim: shim()?,
            birth_timeout: podwright_runtime::BIRTH,
            // No ids are assigned here any more.
            owners: Owners::new(|_| Some(removals::Owner::default())),
        };
        Runtime::open_to_remove(config).await.context("opening the runtime")
    };
    let runtime = match runtime.await {
        Ok(runtime) => runtime,
        Err(error) => return vec![error],
    };
    let mut errors = Vec::new();
    for sandbox in runtime.list().await {
        let removed = runtime.remove_sandbox(&sandbox.spec.id, &JournalWriter::none()).await;
        errors.extend(removed.with_context(|| format!("removing the sandbox {}", sandbox.spec.id)).err());
    }
    errors.extend(runtime.removals().drained().await.into_iter().map(anyhow::Error::msg));
    errors.extend(runtime.remove_root(&JournalWriter::none()).await.context("removing the cgroups").err());
    errors
}

/// Removes links, routes and tables. A node that never had a network is skipped.
async fn network(args: &Args, paths: &Paths) -> Vec<anyhow::Error> {
    if !paths.network().exists() {
        return Vec::new();
    }
    let up = async {
        let dns = args.node.former_cluster_dns(&args.service_cidr);
        let config = NetworkConfig {
            // An isolated node keeps its namespace pinned here. Where the mount has gone, so has the namespace: this process' own is
            // another's.
            isolated: paths.network().join("netns").exists(),
            conntrack_max: None,
            ..args.node.network(args.node_name(Some(paths))?, paths, &args.service_cidr, dns)
        };
        Network::open_to_remove(config).await.context("opening the node's network")
    };
    match up.await {
        Ok(network) => network.remove().await.into_iter().map(anyhow::Error::from).collect(),
        Err(error) => vec![error],
    }
}

/// Unmounts everything below what podwright has created.
fn mounts(holdings: &Holdings) -> Vec<anyhow::Error> {
    let kernel = Kernel::new(&JournalWriter::none());
    let mut errors = Vec::new();
    for place in &holdings.whole {
        match mounted_below(place) {
            Ok(mounts) => errors.extend(
                mounts.into_iter().rev().filter_map(|mount| kernel.unmount(&mount).err().map(anyhow::Error::from)),
            ),
            Err(error) => errors.push(error),
        }
    }
    errors
}

/// The mounts at or below a directory, in mount order.
fn mounted_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(unescaped);
    Ok(points.filter(|p| p.starts_with(folder)).collect())
}

/// Removes what podwright has created, unless something is still mounted in it; then empty directories.
fn folders(holdings: &Holdings) -> Vec<anyhow::Error> {
    let mut errors = Vec::new();
    for place in &holdings.whole {
        match mounted_below(place) {
            Ok(mounts) if mounts.is_empty() => {}
            Ok(mounts) => {
                errors.push(anyhow::anyhow!("{} stays: {} is still mounted", place.display(), mounts[0].display()));
                continue;
            }
            Err(error) => {
                errors.push(error);
                continue;
            }
        }
        if place.ends_with(LOCAL_VOLUMES) {
            release_projects(place);
        }
        let removed = match place.symlink_metadata() {
            Ok(found) if found.is_dir() => remove_all(place),
            Ok(_) => std::fs::remove_file(place),
            Err(why) => Err(why),
        };
        match removed {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                errors.push(anyhow::Error::from(why).context(format!("removing {}", place.display())));
            }
            _ => {}
        }
    }
    // The mark stays while there is something left to reset.
    if !errors.is_empty() {
        return errors;
    }
    for place in &holdings.stays {
        eprintln!("podwright: {} was there before podwright, and stays", place.display());
    }
    for folder in &holdings.emptied {
        match folder::give_up(folder) {
            Ok(true) => {}
            Ok(false) => eprintln!("podwright: {} stays: what else is in it is not podwright's", folder.display()),
            Err(why) => errors.push(anyhow::Error::from(why).context(format!("removing {}", folder.display()))),
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ResetArgs,
    }

    /// Why it is not removed. Otherwise it would ask for confirmation, without `--yes`.
    async fn refusal(dir: &Path) -> String {
        let line = Line::parse_from(["reset", "--state-dir", dir.to_str().expect("a name of ours")]);
        run(line.args).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn only_a_folder_of_podwrights_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (theirs, ours, link) = (dir.path().join("theirs"), dir.path().join("ours"), dir.path().join("link"));
        std::fs::create_dir(&theirs).unwrap();
        std::fs::write(theirs.join("thesis.txt"), "years of work").unwrap();
        std::fs::create_dir(&ours).unwrap();
        std::fs::write(ours.join("store.db"), "").unwrap();
        std::os::unix::fs::symlink(&ours, &link).unwrap();
        for (foreign, words) in [(&theirs, "is no folder of podwright's"), (&link, "is a symbolic link")] {
            let why = refusal(foreign).await;
            assert!(why.contains(words), "{}: {why}", foreign.display());
        }
        let missing = dir.path().join("missing");
        let line = Line::parse_from(["reset", "--state-dir", missing.to_str().expect("a name of ours")]);
        let _ = run(line.args).await;
        assert!(!missing.exists(), "none is made to be removed");
    }
}
