//! cgroup v2: finding it, enabling its controllers, limits, statistics, killing and removing.
//!
//! Everything is a file, so this consists of calls of [`Kernel::write`] and tables.
//!
//! Why not `cgroups-rs`: in 0.5.1 `zbus` is not behind a feature, so it adds 42 crates, including a D-Bus client, an async executor
//! and a second `nix`. 0.3.4 lacks that dependency, but cannot read reliably: it panics if a cgroup is removed while `memory_stat`
//! reads it, which happens to every agent, and if a device of `io.stat` has a minor number above 32,767; it returns `cpu.stat` as
//! text, and lacks `memory.events` and pressure stalls. Neither supports `memory.oom.group`, `cgroup.kill`, `cgroup.events` and
//! `CLONE_INTO_CGROUP`, and their writes would bypass the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::spec::{CgroupName, Resources, Stats};
use crate::{Error, Result, devices, usage};
use podwright_sys::{Kernel, SysResult, io};

mod removal;
use removal::remove;

/// The controllers that limits need.
pub const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];
/// Controllers enabled for children if the host has them.
const WANTED: [&str; 6] = ["cpu", "cpuset", "io", "memory", "pids", "hugetlb"];

/// The capabilities of this host's cgroup v2.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Capabilities {
    /// Its mount point.
    pub mount: PathBuf,
    /// Controllers available below the runtime's root.
    pub controllers: BTreeSet<String>,
    /// The missing ones of [`NEEDED`]: limits that need them are not enforced.
    pub missing: Vec<String>,
    /// Version 1 hierarchies are mounted too (and hold the missing controllers).
    pub hybrid: bool,
    /// Why device rules cannot be enforced here, if so: then containers have no CAP_MKNOD, unless they may use all devices.
    pub devices_refused: Option<String>,
}

/// A runtime's subtree.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
    pub capabilities: Capabilities,
}

impl Tree {
    /// Finds the v2 mount and creates `root` (such as `/podwright`) below it, with all controllers enabled on the way.
    pub fn open(kernel: &Kernel, root: &Path) -> Result<Tree> {
        let mount = find_mount()?;
        // The mount point itself would be the whole machine.
        let name = CgroupName::try_from(root.strip_prefix("/").unwrap_or(root).to_owned())?;
        let root = mount.join(name.as_path());
        let controllers = words(&mount.join("cgroup.controllers"));
        let missing = NEEDED.iter().filter(|c| !controllers.contains(**c)).map(|c| c.to_string()).collect();
        let hybrid = fs::read_to_string("/proc/self/cgroup").unwrap_or_default().lines().any(|l| !l.starts_with("0::"));
        let capabilities = Capabilities { mount, controllers, missing, hybrid, devices_refused: None };
        let mut tree = Tree { root, capabilities };
        make(kernel, &tree.root)?;
        tree.capabilities.devices_refused = tree.try_devices(kernel).err().map(|e| e.to_string());
        Ok(tree)
    }

    /// Loads a device filter program and attaches it to a temporary cgroup.
    fn try_devices(&self, kernel: &Kernel) -> Result<()> {
        let Some(program) = devices::program(&[])? else { return Ok(()) };
        let program = kernel.load_device_program(&program)?;
        let trial = CgroupName::new("trial");
        let attached = kernel.attach_device_program(&self.make_leaf(kernel, &trial)?, program.as_fd());
        self.remove(kernel, &trial)?;
        Ok(attached?)
    }

    /// The absolute path of a cgroup.
    pub fn path(&self, name: &CgroupName) -> PathBuf {
        self.root.join(name.as_path())
    }

    /// Creates a cgroup and its parents, each with its controllers enabled for its children, itself included.
    pub fn make(&self, kernel: &Kernel, name: &CgroupName) -> SysResult<PathBuf> {
        let path = self.path(name);
        make(kernel, &path)?;
        Ok(path)
    }

    /// A leaf that has never been killed: an old one of the same name is removed first.
    pub fn make_leaf(&self, kernel: &Kernel, name: &CgroupName) -> SysResult<PathBuf> {
        let path = self.path(name);
        if path.exists() {
            remove(kernel, &path)?;
        }
        if let Some(parent) = path.parent() {
            make(kernel, parent)?;
        }
        kernel.mkdir(&path)?;
        Ok(path)
    }

    /// The names of a cgroup's children.
    pub fn children(&self, name: &CgroupName) -> Vec<String> {
        let names =
            children(&self.path(name)).into_iter().filter_map(|child| child.file_name()?.to_owned().into_string().ok());
        names.collect()
    }

    /// The highest cgroups that have a child of this name. Not searched further below: containers may nest arbitrarily.
    pub fn having(&self, child: &str) -> Vec<CgroupName> {
        let (mut folders, mut found) = (vec![self.root.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            match folder.join(child).is_dir() {
                true => {
                    found.extend(folder.strip_prefix(&self.root).ok().and_then(|name| name.to_owned().try_into().ok()))
                }
                false => folders.extend(children(&folder)),
            }
        }
        found
    }

    /// Kills every process of a cgroup and below; succeeds if it does not exist.
    pub fn kill(&self, kernel: &Kernel, name: &CgroupName) -> SysResult<()> {
        kill(kernel, &self.path(name))
    }

    /// Kills what is left in a cgroup and removes it with everything below (blocks briefly); succeeds if it does not exist.
    pub fn remove(&self, kernel: &Kernel, name: &CgroupName) -> SysResult<()> {
        remove(kernel, &self.path(name))
    }

    /// [`Tree::remove`] of the whole tree.
    pub fn remove_root(&self, kernel: &Kernel) -> SysResult<()> {
        remove(kernel, &self.root)
    }
}

fn make(kernel: &Kernel, path: &Path) -> SysResult<()> {
    let mut missing: Vec<&Path> = path.ancestors().take_while(|a| !a.join("cgroup.procs").exists()).collect();
    let top = missing.last().and_then(|p| p.parent()).unwrap_or(path).to_owned();
    enable(kernel, &top)?;
    while let Some(folder) = missing.pop() {
        kernel.op(
            "mkdir",
            |a| a.path(folder),
            || match fs::create_dir(folder) {
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                done => done,
            },
        )?;
        enable(kernel, folder)?;
    }
    Ok(())
}

/// Enables the controllers of `folder` for its children that they lack.
fn enable(kernel: &Kernel, folder: &Path) -> SysResult<()> {
    let (has, gives) = (words(&folder.join("cgroup.controllers")), words(&folder.join("cgroup.subtree_control")));
    for controller in WANTED.iter().filter(|c| has.contains(**c) && !gives.contains(**c)) {
        let enabled = kernel.write(&folder.join("cgroup.subtree_control"), &format!("+{controller}"));
        // Optional controllers may be refused (a cpuset in use, real-time processes).
        if NEEDED.contains(controller) {
            enabled?;
        }
    }
    Ok(())
}

/// The mount point of cgroup v2: the usual one on a pure host, another one on a hybrid host.
pub fn find_mount() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            (kind.split(' ').next() == Some("cgroup2")).then_some(mount)
        })
        .filter_map(|mount| Some(PathBuf::from(mount.split(' ').nth(4)?)))
        .min_by_key(|path| path.as_os_str().len())
        .ok_or_else(|| Error::Kernel("cgroup v2 is not mounted on this host".into()))
}

fn words(file: &Path) -> BTreeSet<String> {
    fs::read_to_string(file).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// The files that `resources` sets, in writing order.
pub fn settings(resources: &Resources) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = Vec::new();
    let mut set = |file: &str, value: Option<u64>| {
        if let Some(value) = value {
            files.push((file.to_owned(), value.to_string()));
        }
    };
    set("cpu.weight", resources.cpu_weight.map(|w| w.clamp(1, 10_000)));
    set("memory.max", resources.memory_max);
    set("memory.high", resources.memory_high);
    set("memory.low", resources.memory_low);
    set("memory.min", resources.memory_min);
    set("memory.swap.max", resources.memory_swap_max);
    set("memory.oom.group", resources.oom_group.map(u64::from));
    set("pids.max", resources.pids_max);
    if let Some(quota) = resources.cpu_quota_us {
        files.push(("cpu.max".into(), format!("{quota} {}", resources.cpu_period_us.unwrap_or(100_000))));
    }
    for (size, bytes) in &resources.hugetlb {
        files.push((format!("hugetlb.{size}.max"), bytes.to_string()));
    }
    files.extend(resources.unified.iter().map(|(file, text)| (file.clone(), text.clone())));
    files
}

/// Applies limits to a cgroup. Returns the files that this host does not have: those limits are not enforced.
pub fn apply(kernel: &Kernel, cgroup: &Path, resources: &Resources) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    for (file, text) in settings(resources) {
        if file.contains('/') {
            return Err(Error::Invalid(format!("cgroup file {file:?}")));
        }
        let path = cgroup.join(&file);
        if path.exists() {
            kernel.write(&path, &text)?;
        } else {
            missing.push(file);
        }
    }
    Ok(missing)
}

/// [`apply`] to a cgroup in use; reads the files back, as the kernel may not have accepted the exact values.
pub fn change(kernel: &Kernel, cgroup: &Path, resources: &Resources) -> Result<Vec<String>> {
    let missing = apply(kernel, cgroup, resources)?;
    for (file, text) in settings(resources).into_iter().filter(|(file, _)| !missing.contains(file)) {
        let found = fs::read_to_string(cgroup.join(&file)).unwrap_or_default();
        if !is_same(&file, found.trim(), &text) {
            return Err(Error::Kernel(format!(
                "{}: {file} is {:?} instead of {text:?}",
                cgroup.display(),
                found.trim()
            )));
        }
    }
    Ok(missing)
}

/// The kernel's default contents of files that others might write, if the limits do not set them.
const DEFAULTS: &[(&str, &str)] = &[
    ("cpu.max", "max 100000"),
    ("memory.max", "max"),
    ("memory.swap.max", "max"),
    ("pids.max", "max"),
    ("cgroup.freeze", "0"),
];

/// The limits of a cgroup that differ from `resources`: file and intended content. `found`: a file's content, if this host has it.
pub fn undone(resources: &Resources, found: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    // Values of an OCI spec's `unified` may be formatted differently by the kernel.
    let mut wanted = settings(&Resources { unified: BTreeMap::new(), ..resources.clone() });
    let unset = DEFAULTS.iter().filter(|(file, _)| !wanted.iter().any(|(set, _)| set == file)).collect::<Vec<_>>();
    wanted.extend(unset.into_iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())));
    let is_other = |file: &str, text: &str| found(file).is_some_and(|found| !is_same(file, found.trim(), text));
    wanted.retain(|(file, text)| is_other(file, text));
    wanted
}

/// Restores limits that were changed externally. Returns their files.
pub fn mend(kernel: &Kernel, cgroup: &Path, resources: &Resources) -> Result<Vec<String>> {
    let other = undone(resources, |file| fs::read_to_string(cgroup.join(file)).ok());
    for (file, text) in &other {
        kernel.write(&cgroup.join(file), text)?;
    }
    Ok(other.into_iter().map(|(file, _)| file).collect())
}

/// Re-enables required controllers for a cgroup's children that were disabled externally. Returns which.
pub fn mend_controllers(kernel: &Kernel, cgroup: &Path) -> Result<Vec<&'static str>> {
    let (has, gives) = (words(&cgroup.join("cgroup.controllers")), words(&cgroup.join("cgroup.subtree_control")));
    let lost: Vec<&str> = NEEDED.into_iter().filter(|c| has.contains(*c) && !gives.contains(*c)).collect();
    for controller in &lost {
        kernel.write(&cgroup.join("cgroup.subtree_control"), &format!("+{controller}"))?;
    }
    Ok(lost)
}

/// Limits the depth and number of cgroups below a Pod's: a process that mounts cgroup2 in its own user namespace can create some
/// below its root, and removing, listing and counting them walks through all. A node in a Pod, with systemd, has five levels and
/// some hundreds. Paths stay below PATH_MAX, whatever the names; and a node's 110 Pods together leave some of the 65,535 that the
/// kernel supports with a memory controller.
const BOUNDS: [(&str, &str); 2] = [("cgroup.max.depth", "14"), ("cgroup.max.descendants", "512")];

/// Sets these bounds on a Pod's cgroup, or restores them. Returns the files that differed.
pub fn bound(kernel: &Kernel, pod: &Path) -> Result<Vec<&'static str>> {
    let mut other = Vec::new();
    for (file, text) in BOUNDS {
        let path = pod.join(file);
        if fs::read_to_string(&path).is_ok_and(|found| found.trim() != text) {
            kernel.write(&path, text)?;
            other.push(file);
        }
    }
    Ok(other)
}

/// Memory is counted in pages, of whatever size.
fn is_same(file: &str, found: &str, written: &str) -> bool {
    const LARGEST_PAGE: u64 = 64 << 10;
    let whole_pages = || {
        let (found, written) = (found.parse::<u64>().ok()?, written.parse::<u64>().ok()?);
        Some(found <= written && written - found < LARGEST_PAGE)
    };
    /// The kernel treats more than any machine has as no limit.
    const ENDLESS: u64 = 1 << 62;
    let endless = || found == "max" && written.parse::<u64>().is_ok_and(|written| written >= ENDLESS);
    let is_unlimited = |text: &str| text.starts_with("max ");
    found == written
        || (file.starts_with("memory.") && (whole_pages() == Some(true) || endless()))
        || (file == "cpu.max" && is_unlimited(found) && is_unlimited(written))
}

/// The limits of a cgroup as read from the kernel: file -> text, for `inspect`.
pub fn read_back(cgroup: &Path) -> Vec<(String, String)> {
    const FILES: [&str; 9] = [
        "cpu.weight",
        "cpu.max",
        "memory.max",
        "memory.high",
        "memory.low",
        "memory.min",
        "memory.swap.max",
        "memory.oom.group",
        "pids.max",
    ];
    let read = |file: &&str| Some((file.to_string(), fs::read_to_string(cgroup.join(file)).ok()?.trim().to_owned()));
    FILES.iter().filter_map(read).collect()
}

/// Usage of a cgroup including everything below.
pub fn stats(cgroup: &Path) -> Stats {
    let number = |file: &str| fs::read_to_string(cgroup.join(file)).ok()?.trim().parse::<u64>().ok();
    let keyed = |file: &str, key: &str| {
        let text = fs::read_to_string(cgroup.join(file)).ok()?;
        text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
    };
    let memory_current = number("memory.current");
    let inactive = keyed("memory.stat", "inactive_file").unwrap_or(0);
    let resident = || usage::resident(&procs(cgroup));
    Stats {
        cpu_usage_us: keyed("cpu.stat", "usage_usec"),
        memory_current,
        memory_working_set: Some(memory_current.map_or_else(resident, |m| m.saturating_sub(inactive))),
        pids: number("pids.current").or_else(|| Some(procs(cgroup).len() as u64)),
        oom_kills: keyed("memory.events", "oom_kill"),
    }
}

/// The processes of a cgroup and below.
pub fn procs(cgroup: &Path) -> Vec<u32> {
    let own = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<u32> = own.lines().filter_map(|l| l.parse().ok()).collect();
    pids.extend(children(cgroup).iter().flat_map(|c| procs(c)));
    pids
}

fn children(cgroup: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cgroup).into_iter().flatten().flatten();
    entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

fn kill(kernel: &Kernel, cgroup: &Path) -> SysResult<()> {
    if !cgroup.exists() {
        return Ok(());
    }
    kernel.write(&cgroup.join("cgroup.kill"), "1")
}

/// Waits (blocking) until no process is left.
fn await_empty(cgroup: &Path, timeout: Duration) -> bool {
    let Ok(events) = fs::File::open(cgroup.join("cgroup.events")) else { return true };
    let deadline = Instant::now() + timeout;
    loop {
        // Reading arms the notification for later changes.
        let mut text = [0u8; 256];
        let n = rustix::io::pread(&events, &mut text, 0).unwrap_or(0);
        if String::from_utf8_lossy(&text[..n]).contains("populated 0") {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let _ = io::poll(&mut [io::PollFd::new(events.as_fd(), libc::POLLPRI)], left.as_millis() as i32 + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_the_root_nor_outside_of_it() {
        for bad in ["", "/", ".", "..", "../x", "a/../..", "/sys/fs/cgroup"] {
            assert!(CgroupName::try_from(PathBuf::from(bad)).is_err(), "{bad:?}");
            assert!(serde_json::from_value::<CgroupName>(serde_json::json!(bad)).is_err(), "{bad:?}");
        }
        let name = CgroupName::new("burstable").child("pod6f1c");
        assert_eq!(name.as_path(), Path::new("burstable/pod6f1c"));
        assert_eq!(serde_json::to_value(&name).unwrap(), "burstable/pod6f1c");
        let escapes = ["", ".", "..", "/", "/etc", "../.."].map(|n| CgroupName::new(n).child(n));
        for name in escapes {
            assert_eq!(name.as_path().components().count(), 2, "{name:?}");
            assert!(CgroupName::try_from(name.as_path().to_owned()).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn memory_is_the_same_by_the_page() {
        assert!(is_same("memory.max", "1048576", "1050000") && is_same("cpu.max", "1000 100000", "1000 100000"));
        assert!(!is_same("memory.max", "1048576", "1200000") && !is_same("memory.max", "max", "9000"));
        assert!(!is_same("memory.max", "9001", "9000") && !is_same("cpu.weight", "8999", "9000"));
        assert!(!is_same("cpu.max", "max 100000", "1000 100000"));
    }

    #[test]
    fn limits_that_somebody_has_changed_are_put_back_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let (kernel, path) = (Kernel::new(&podwright_journal::JournalWriter::none()), folder.path());
        let put = |file: &str, text: &str| fs::write(path.join(file), text).unwrap();
        let text = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
        // As the kernel shows these values: a trailing newline, whole pages.
        let limits = Resources {
            cpu_quota_us: Some(50_000),
            memory_max: Some((1 << 20) + 5),
            unified: [("io.max".to_owned(), "8:0 rbps=1".to_owned())].into(),
            ..Resources::default()
        };
        let sound =
            [("cpu.max", "50000 100000\n"), ("memory.max", "1048576\n"), ("pids.max", "max\n"), ("io.max", "\n")];
        sound.iter().for_each(|(file, text)| put(file, text));
        assert_eq!(mend(&kernel, path, &limits).unwrap(), [""; 0], "nothing is written that is as it should be");
        // Changes each, up and down, set or not; missing files are not created.
        for (file, other, again) in [
            ("cpu.max", "max 100000\n", "50000 100000"),
            ("cpu.max", "1000 100000\n", "50000 100000"),
            ("memory.max", "max\n", "1048581"),
            ("memory.max", "4096\n", "1048581"),
            ("pids.max", "1\n", "max"),
        ] {
            put(file, other);
            assert_eq!(mend(&kernel, path, &limits).unwrap(), [file]);
            assert_eq!(text(file), again);
        }
        assert!(!path.join("memory.swap.max").exists());
        let none = Resources { memory_max: Some(u64::MAX), ..Resources::default() };
        put("memory.max", "max\n");
        put("cpu.max", "max 50000\n");
        assert_eq!(mend(&kernel, path, &none).unwrap(), [""; 0]);
    }

    #[test]
    fn limits_are_files() {
        let resources = Resources {
            cpu_weight: Some(39),
            cpu_quota_us: Some(50_000),
            memory_max: Some(1 << 20),
            oom_group: Some(true),
            pids_max: Some(10),
            ..Resources::default()
        };
        let files = settings(&resources);
        let text: Vec<String> = files.iter().map(|(f, t)| format!("{f}={t}")).collect();
        let expected =
            ["cpu.weight=39", "memory.max=1048576", "memory.oom.group=1", "pids.max=10", "cpu.max=50000 100000"];
        assert_eq!(text, expected);
    }
}
