//! Pods' disk usage on this machine, from project quotas or by walking.

use std::{
    collections::{BTreeSet, HashSet},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::{
    ContainerId, ContainerState, Restless, Runtime, SandboxState, projects,
    removals::{Owner, Removals, asides},
    sys::{
        shared,
        tree::remove_all,
        unlinked::{Holder, unlinked},
        walk::{Measure, measure, settled},
    },
};

use super::{
    Machine,
    error::{Error, Result, all, call},
    file_systems::space,
    quota, termination,
};
use crate::{
    disk,
    logs::files::of_attempt,
    spec::PodExt,
    storage::{CLEANUP, ContainerUsage, Space, Thresholds, Usage},
    translate::split_sandbox_id,
    volumes::kinds::{Measured, measured as measured_as},
};

/// Besides volumes, the parts of a Pod's folder that its containers may write to.
const MANAGED: [&str; 4] = ["containers", "hosts", "hostname", "resolv.conf"];

/// Measures everything of a Pod. What an exited container wrote to its root is deleted first: it is unreadable from then on, and
/// would count for as long as the Pod exists. A Pod with more than can be walked in this much CPU time is treated as evading.
/// `None`, with a warning: it cannot be measured. `still`: containers that move files during the walk may be frozen.
pub async fn usage(machine: &Machine, pod: &Pod, most: Duration, still: bool) -> Option<Usage> {
    clear_ended(machine, pod).await;
    let holdings = holdings(machine, pod, still).await;
    let (uid, now) = (pod.uid().to_owned(), Instant::now());
    let (by_quota, believed) = (quota::may_count(pod), machine.quotas.are_believed(&uid, now));
    let measured = tokio::task::spawn_blocking(move || {
        let walked = if by_quota && believed { None } else { Some(holdings.walk(most)?) };
        // After the walk: files written meanwhile do not mean that quotas miss something.
        let counted = if by_quota { holdings.count(most)? } else { None };
        match counted {
            None => Ok((None, walked.map_or_else(|| holdings.walk(most), Ok)?)),
            Some(counted) => Ok((walked, counted)),
        }
    });
    match measured.await.map_err(|e| Error::Panicked(e.to_string())).flatten() {
        Ok((None, usage)) => Some(usage),
        // Says nothing about the quotas.
        Ok((Some(unfinished), _)) if unfinished.total().cost >= most => Some(unfinished),
        Ok((Some(walked), counted)) => Some(machine.quotas.judge(pod.uid(), now, counted, walked)),
        Err(error) => {
            tracing::warn!(pod = %pod.full_name(), %error, "failed to measure a Pod's disk usage");
            None
        }
    }
}

/// The responding file systems of these volumes of a Pod, by volume name.
pub async fn spaces(machine: &Machine, pod: &Pod, volumes: &[&str]) -> Vec<(String, Space)> {
    let named = pod.spec().volumes.iter().flatten().filter(|volume| volumes.contains(&volume.name.as_str()));
    let places: Vec<_> = named.map(|volume| (volume.name.clone(), machine.volumes.path(pod, volume))).collect();
    // A remote one may hang; the thread is lost until it responds.
    let read = move || places.into_iter().filter_map(|(name, path)| Some((name, space(&path)?))).collect();
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

/// The places that count towards a Pod's disk usage.
struct Holdings {
    uid: String,
    /// A folder on the same disk.
    disk: PathBuf,
    /// What may have to be frozen.
    sandbox: Option<Restless>,
    volumes: Vec<(String, PathBuf)>,
    containers: Vec<Holding>,
    rest: Vec<PathBuf>,
    /// Moved aside but not removed yet. Project quotas still count it.
    aside: Vec<PathBuf>,
    runtime: Runtime,
}

struct Holding {
    container: String,
    /// All its attempts.
    starts: Vec<ContainerId>,
    layers: Vec<PathBuf>,
    /// Parts of the Pod's volumes that the agent has mounted for it.
    mounted: Vec<PathBuf>,
    logs: Vec<PathBuf>,
}

async fn holdings(machine: &Machine, pod: &Pod, still: bool) -> Holdings {
    let mut containers: Vec<Holding> = Vec::new();
    let sandboxes = of(machine, pod).await;
    for part in pod.parts() {
        let own = sandboxes.iter().flat_map(|sandbox| &sandbox.containers).filter(|c| c.id.name == part.name());
        let starts: Vec<ContainerId> = own.map(|start| start.id.clone()).collect();
        let layers = starts.iter().flat_map(|id| machine.runtime.layer(id)).collect();
        let mounted = machine.volumes.sub_paths(pod, &part).collect();
        let logs = kept(&starts, machine.log_dir(pod).join(part.name()), |id| machine.runtime.annotation_file(id));
        containers.push(Holding { container: part.name().to_owned(), starts, layers, mounted, logs });
    }
    let folder = machine.volumes.folder(pod);
    let mut rest: Vec<PathBuf> = MANAGED.iter().map(|name| folder.join(name)).collect();
    let mut volumes: Vec<(String, PathBuf)> = Vec::new();
    for volume in pod.spec().volumes.iter().flatten() {
        let path = folder.join("volumes").join(&volume.name);
        match measured_as(volume) {
            Measured::Disk => volumes.push((volume.name.clone(), path)),
            Measured::Managed => rest.push(path),
            Measured::FileSystem | Measured::Nothing => {}
        }
    }
    let ready = sandboxes.iter().find(|sandbox| still && sandbox.state == SandboxState::Ready);
    Holdings {
        uid: pod.uid().to_owned(),
        disk: machine.volumes.root().to_owned(),
        sandbox: ready.and_then(|sandbox| machine.runtime.restless(&sandbox.spec.id)),
        volumes,
        aside: aside(&folder.join("volumes"), &containers),
        containers,
        rest,
        runtime: machine.runtime.clone(),
    }
}

/// Files kept for a container: its logs, and the file with what an exec needs for each attempt, including its environment.
fn kept(starts: &[ContainerId], logs: PathBuf, noted: impl Fn(&ContainerId) -> PathBuf) -> Vec<PathBuf> {
    starts.iter().map(noted).chain([logs]).collect()
}

/// Data of an existing Pod that was moved aside: of its volumes, of its containers' layers, and whole attempts.
fn aside(volumes: &Path, containers: &[Holding]) -> Vec<PathBuf> {
    let starts = containers.iter().flat_map(|holding| &holding.layers).filter_map(|layer| layer.parent());
    let starts: BTreeSet<&Path> = starts.collect();
    let sandboxes: BTreeSet<&Path> = starts.iter().filter_map(|start| start.parent()).collect();
    [volumes].into_iter().chain(starts).chain(sandboxes).flat_map(asides).collect()
}

impl Holdings {
    /// Measures file by file.
    fn walk<'a>(&'a self, mut left: Duration) -> Result<Usage> {
        let mut usage = Usage { rest: sum(&self.rest, &mut left)?, ..Usage::default() };
        usage.rest += sum(&self.aside, &mut left)?;
        for (name, path) in &self.volumes {
            usage.volumes.insert(name.clone(), self.moved(std::slice::from_ref(path), &mut left)?);
        }
        let holder = |holding: &'a Holding| Holder {
            pids: Box::new(|| holding.starts.iter().flat_map(|id| self.runtime.pids(id).unwrap_or_default()).collect()),
            mounted: holding.mounted.clone(),
        };
        let holders: Vec<Holder<'_>> = self.containers.iter().map(holder).collect();
        let nameless = unlinked(&holders, &self.uid, &self.disk, left);
        left = nameless.iter().fold(left, |left, held| left.saturating_sub(held.cost));
        for (Holding { container, layers, logs, .. }, held) in self.containers.iter().zip(nameless) {
            let mut layer = self.moved(layers, &mut left)?;
            layer += held;
            let logs = sum(logs, &mut left)?;
            usage.containers.insert(container.clone(), ContainerUsage { layer, logs });
        }
        Ok(usage)
    }

    /// Measures paths in which containers may move files.
    fn moved(&self, paths: &[PathBuf], left: &mut Duration) -> Result<Measure> {
        let Some(sandbox) = &self.sandbox else { return sum(paths, left) };
        let still = || {
            sandbox
                .keep_still()
                .inspect_err(|error| tracing::warn!(%error, "failed to freeze a Pod while its disk usage is measured"))
        };
        total(paths, left, |path, left| settled(path, left, still))
    }

    /// Reads project quotas, which include unlinked files; walks what containers share with the node. `None`: some of the folders
    /// have no project of their own.
    fn count(&self, mut left: Duration) -> Result<Option<Usage>> {
        let counted = |paths: &[PathBuf]| projects::usage(paths).map_err(Error::ProjectQuota);
        let mut usage = Usage { rest: sum(&self.rest, &mut left)?, ..Usage::default() };
        for (name, path) in &self.volumes {
            let Some(volume) = counted(std::slice::from_ref(path))? else { return Ok(None) };
            usage.volumes.insert(name.clone(), volume);
        }
        for Holding { container, layers, logs, .. } in &self.containers {
            let Some(layer) = counted(layers)? else { return Ok(None) };
            let logs = sum(logs, &mut left)?;
            usage.containers.insert(container.clone(), ContainerUsage { layer, logs });
        }
        Ok(Some(usage))
    }
}

/// The total of all these paths.
fn sum(paths: &[PathBuf], left: &mut Duration) -> Result<Measure> {
    total(paths, left, measure)
}

/// The total of these measurements within the remaining CPU time.
fn total(
    paths: &[PathBuf],
    left: &mut Duration,
    count: impl Fn(&Path, Duration) -> io::Result<Measure>,
) -> Result<Measure> {
    paths.iter().try_fold(Measure::default(), |mut sum, path| {
        let counted = count(path, *left).map_err(|source| Error::File { path: path.clone(), source })?;
        *left = left.saturating_sub(counted.cost);
        sum += counted;
        Ok(sum)
    })
}

pub(super) async fn of(machine: &Machine, pod: &Pod) -> Vec<podwright_runtime::SandboxStatus> {
    let all = machine.runtime.list().await;
    all.into_iter().filter(|sandbox| split_sandbox_id(&sandbox.spec.id).0 == pod.uid()).collect()
}

/// Removes the writable layers of the Pod's exited containers.
pub async fn clear_ended(machine: &Machine, pod: &Pod) {
    for sandbox in of(machine, pod).await {
        for container in sandbox.containers.iter().filter(|c| c.state == ContainerState::Exited) {
            if let Err(error) = machine.runtime.clear_layer(&container.id).await {
                tracing::warn!(%error, id = %container.id, "failed to remove the writable layer of a terminated container");
            }
        }
    }
}

/// Releases the disk space of a Pod that has ended, except its containers' termination messages and logs. There may be a million
/// files: they are moved aside and deleted in the background, so that the Pod ends quickly.
///
/// # Errors
///
/// Some of it could not be moved aside.
pub async fn clear(machine: &Machine, pod: &Pod) -> Result<()> {
    clear_ended(machine, pod).await;
    let (scratch, folder) = (machine.volumes.scratch(pod), machine.volumes.folder(pod));
    // The Pod releases its ids before this is deleted.
    let owner = Owner::new(pod.namespace(), machine.users.of(pod.uid()));
    let removals = machine.runtime.removals().clone();
    let own = folder.clone();
    let tidied = disk::work(move || {
        let managed = ["hosts", "hostname", "resolv.conf"].map(|name| remove(own.join(name)));
        all(managed.into_iter().chain([cut_messages(&own.join("containers"))]))
    });
    let tidied = tidied.await.map_err(Error::Panicked).flatten();
    let renamed = machine.runtime.removals().in_turn(pod.namespace(), move || {
        // An earlier agent may have moved some aside.
        removals.find(&folder.join("volumes"));
        let aside = |path: PathBuf| removals.put_aside(&path, &owner).map_err(call("rename", path));
        all(scratch.into_iter().map(aside))
    });
    let renamed = renamed.await.unwrap_or_else(|| Err(Error::Panicked("a task panicked".to_owned())));
    let sandboxes = of(machine, pod).await.into_iter().map(|sandbox| machine.runtime.root().join(sandbox.spec.id));
    let folders: Vec<PathBuf> = sandboxes.chain([machine.volumes.folder(pod)]).collect();
    given_back(machine.runtime.removals(), &folders).await;
    all([tidied, renamed])
}

/// Waits until what was moved aside in these folders is deleted, so that a caller short of disk space evicts nothing else
/// meanwhile; bounded in time.
async fn given_back(removals: &Removals, folders: &[PathBuf]) {
    let gone = futures::future::join_all(folders.iter().map(|folder| removals.gone(folder)));
    tokio::time::timeout(CLEANUP, gone).await.ok();
}

/// Removed Pods whose folders, sandbox folders or logs are still being deleted.
pub fn leaving(machine: &Machine) -> HashSet<String> {
    let underway = machine.runtime.removals().underway();
    let (pods, sandboxes, logs) = (machine.volumes.root(), machine.runtime.root(), &machine.places.logs);
    underway.iter().filter_map(|folder| left_by(folder, pods, sandboxes, logs)).collect()
}

/// The uid of the Pod that left a whole folder: in the folder of all Pods, of their sandboxes, or of their logs.
fn left_by(folder: &Path, pods: &Path, sandboxes: &Path, logs: &Path) -> Option<String> {
    let (parent, name) = (folder.parent()?, folder.file_name()?.to_str()?);
    match parent {
        _ if parent == pods => Some(name.to_owned()),
        _ if parent == sandboxes => Some(split_sandbox_id(name).0),
        // What an earlier agent has put aside has no uid in its name.
        _ if parent == logs => Some(name.rsplit_once('_').map_or(name, |(_, uid)| uid).to_owned()),
        _ => None,
    }
}

/// Removes a folder with its contents, or a file.
fn remove(path: PathBuf) -> Result<()> {
    let removed = match path.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
        true => std::fs::remove_file(&path),
        false => remove_all(&path),
    };
    removed.map_err(call("remove", path))
}

/// Truncates termination messages to the length that is ever read.
fn cut_messages(containers: &Path) -> Result<()> {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let messages = entries(containers).flat_map(|own| entries(&own).collect::<Vec<_>>());
    all(messages.map(|file| shared::cut(&file, termination::MESSAGE as u64).map_err(call("truncate", file))))
}

/// Frees space without affecting running Pods: as upstream, deletes logs of Pods that have ended, and unused images.
pub async fn reclaim(machine: &Machine, thresholds: &Thresholds) {
    clear_logs(machine).await;
    if let Err(error) = super::images::reclaim(machine, thresholds).await {
        tracing::warn!(%error, "failed to remove unused images");
    }
}

/// Removes the logs of ended Pods.
async fn clear_logs(machine: &Machine) {
    for sandbox in machine.runtime.list().await {
        let over = |c: &podwright_runtime::ContainerStatus| c.state == ContainerState::Exited;
        if sandbox.state == SandboxState::Ready || !sandbox.containers.iter().all(over) {
            continue;
        }
        for log in sandbox.containers.iter().filter_map(|container| container.log.as_ref()) {
            for file in of_attempt(&log.path) {
                std::fs::remove_file(file).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

    use podwright_runtime::fair_pool::{ALONE, Outcome};

    use super::*;

    #[test]
    fn what_is_noted_of_each_start_counts() {
        let root = tempfile::tempdir().unwrap();
        let noted = |id: &ContainerId| root.path().join(id.key());
        let starts = [0, 1, 2].map(|attempt| ContainerId::new("s", "a", attempt));
        let logs = root.path().join("logs");
        std::fs::create_dir(&logs).unwrap();
        for file in [logs.join("1.log"), noted(&starts[0]), noted(&starts[1])] {
            std::fs::write(file, vec![b'x'; 1 << 20]).unwrap();
        }
        let mut left = Duration::from_secs(10);
        // Nothing was recorded of the third.
        let counted = sum(&kept(&starts, logs, noted), &mut left).unwrap();
        assert!((3 << 20..4 << 20).contains(&counted.bytes), "{counted:?}");
    }

    /// The next Pod to be evicted is innocent: it is spared while the space of the previous one is being freed.
    #[tokio::test(start_paused = true)]
    async fn who_has_ended_is_waited_for_as_long_as_who_is_evicted() {
        let (root, removals) = (tempfile::tempdir().unwrap(), Removals::default());
        let (end, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..ALONE {
            let wait = wait.clone();
            let job = move || {
                wait.lock().unwrap_or_else(|p| p.into_inner()).recv().ok();
                Outcome::Done
            };
            removals.pool().push("a", Box::new(job));
        }
        let folder = root.path().join("volumes/v");
        std::fs::create_dir_all(&folder).unwrap();
        removals.put_aside(&folder, &Owner::new("a", None)).unwrap();
        let begun = tokio::time::Instant::now();
        given_back(&removals, &[root.path().join("other")]).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        given_back(&removals, &[root.path().to_owned()]).await;
        assert!(begun.elapsed() >= CLEANUP);
        drop(end);
        removals.gone(root.path()).await;
        let begun = tokio::time::Instant::now();
        given_back(&removals, &[root.path().to_owned()]).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[test]
    fn whoever_leaves_a_folder_leaves_logs_too() {
        let [pods, sandboxes, logs] = ["/s/pods", "/s/sandboxes", "/s/logs"].map(Path::new);
        for (folder, uid) in [
            ("/s/pods/u-1", Some("u-1")),
            ("/s/sandboxes/u-1_0", Some("u-1")),
            ("/s/logs/team_web-0_u-1", Some("u-1")),
            ("/s/logs/.aside-1.-.team", Some(".aside-1.-.team")),
            ("/s/pods/u-1/volumes/v", None),
            ("/s/sandboxes/u-1_0/c/a.0", None),
            ("/", None),
        ] {
            assert_eq!(left_by(Path::new(folder), pods, sandboxes, logs).as_deref(), uid, "{folder}");
        }
    }

    #[test]
    fn what_a_pod_has_aside_is_its_own_until_it_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let own = ["volumes/.aside-1.-.a", "c/x.0/.aside-2.-.a", "c/.aside-3.-.a"];
        for path in own.iter().chain(&["volumes/v", "c/x.0/upper", "other/.aside-4.-.a"]) {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        let container = Holding {
            container: "x".to_owned(),
            starts: Vec::new(),
            layers: vec![at("c/x.0/upper"), at("c/x.0/work")],
            mounted: Vec::new(),
            logs: Vec::new(),
        };
        assert_eq!(aside(&at("volumes"), &[container]), own.map(at));
    }
}
