//! What one node has on the machine: processes, mounts, cgroups, namespaces' links. Other nodes do not count, but the machine's own
//! settings do, whoever changed them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use sha2::{Digest, Sha256};

use super::{eventually, sweep, sysctls};

/// The observed state of the node on one folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    dir: PathBuf,
    seen: BTreeSet<String>,
}

impl Machine {
    /// Reads what the node on `dir` has.
    pub fn look(dir: &Path) -> Machine {
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let mut seen = BTreeSet::new();
        let root = cgroup_root(&dir);
        processes(&root, &mut seen);
        mounts(&dir, &mut seen);
        cgroups(&cgroup_mount().join(root), &mut seen);
        links(&dir.join("network/netns"), &mut seen);
        Machine { dir, seen }
    }

    /// A machine without anything of a node on `dir`, as required when the node is gone.
    pub fn untouched(dir: &Path) -> Machine {
        Machine { dir: dir.canonicalize().unwrap_or_else(|_| dir.to_owned()), seen: BTreeSet::new() }
    }

    /// Waits until there is nothing that was not there before.
    #[track_caller]
    pub fn assert_unchanged(&self) {
        eventually("nothing is left behind", Duration::from_secs(10), || {
            let now = Machine::look(&self.dir);
            let mut new: Vec<String> = now.seen.difference(&self.seen).cloned().collect();
            new.extend(sysctls::touched());
            if new.is_empty() { Ok(()) } else { Err(format!("{new:#?}")) }
        });
    }
}

/// Ends and removes everything that a node on `dir` has left, in any state: its processes, cgroups and mounts. For tests that have
/// already failed: what cannot be removed stays, and is reported.
pub fn sweep(dir: &Path) {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    sweep::cgroup(&cgroup_mount().join(cgroup_root(&dir)));
    sweep::mounts(&dir);
}

/// The mount point of the nodes' cgroups.
pub fn cgroup_mount() -> PathBuf {
    let mounted = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    mounted.map(PathBuf::from).into_iter().find(|p| p.join("cgroup.controllers").exists()).unwrap_or_default()
}

/// The node's cgroup below the mount, named as in `cmd/paths.rs`.
fn cgroup_root(dir: &Path) -> String {
    let digest = Sha256::digest(dir.as_os_str().as_encoded_bytes());
    let digits: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("podwright-{digits}")
}

/// Processes in the node's cgroups: every process that it creates starts there.
fn processes(cgroup: &str, seen: &mut BTreeSet<String>) {
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.parse::<u32>().is_err() {
            continue;
        }
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let own_cgroup = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        if own_cgroup.contains(cgroup) {
            seen.insert(format!("process {name} {command}"));
        }
    }
}

fn mounts(dir: &Path, seen: &mut BTreeSet<String>) {
    for line in fs::read_to_string("/proc/self/mounts").unwrap().lines() {
        let mut words = line.split(' ');
        if let (Some(what), Some(at)) = (words.next(), words.next())
            && Path::new(at).starts_with(dir)
        {
            seen.insert(format!("mount {what} {at}"));
        }
    }
}

fn cgroups(dir: &Path, seen: &mut BTreeSet<String>) {
    if !dir.is_dir() {
        return;
    }
    seen.insert(format!("cgroup {}", dir.display()));
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        cgroups(&entry.path(), seen);
    }
}

/// The links in the node's network namespace, while it exists.
fn links(netns: &Path, seen: &mut BTreeSet<String>) {
    let output = Command::new("nsenter").arg(format!("--net={}", netns.display())).args(["ip", "-o", "link"]).output();
    let output = output.unwrap_or_else(|e| panic!("nsenter: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    seen.extend(text.lines().filter_map(|line| line.split(": ").nth(1)).map(|link| format!("link {link}")));
}
