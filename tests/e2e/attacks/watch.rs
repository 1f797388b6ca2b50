//! What no attack may change of the machine: its sysctls, its mounts outside of nodes, its devices, `/etc`, the settings of sysfs,
//! and cgroups that are no node's.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Metadata},
    os::unix::fs::MetadataExt,
    path::Path,
};

type Facts = BTreeMap<String, Vec<u8>>;

/// Values that the kernel itself changes all the time, and the machine's own network, which other tests have no part in either.
const RESTLESS: &[&str] = &[
    "/proc/sys/fs/aio-nr",
    "/proc/sys/fs/binfmt_misc",
    "/proc/sys/fs/dentry-state",
    "/proc/sys/fs/file-nr",
    "/proc/sys/fs/inode-nr",
    "/proc/sys/fs/inode-state",
    "/proc/sys/fs/quota",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/kernel/pty/nr",
    "/proc/sys/kernel/random",
    "/proc/sys/net/netfilter/nf_conntrack_count",
];

/// Where sysfs has settings of the machine. What else it has are devices, and files whose reading takes long.
const SETTINGS: &[&str] =
    &["/sys/devices/system", "/sys/devices/virtual", "/sys/fs", "/sys/kernel", "/sys/module", "/sys/power"];
/// No settings, or too many: caches of the kernel's memory, and what only looks like a file.
const NO_SETTINGS: &[&str] = &[
    "/sys/fs/bpf",
    "/sys/fs/cgroup",
    "/sys/fs/fuse",
    "/sys/fs/pstore",
    "/sys/kernel/btf",
    "/sys/kernel/debug",
    "/sys/kernel/security",
    "/sys/kernel/slab",
    "/sys/kernel/tracing",
];
/// Files of a cgroup that say what is done to processes, or by them: those of a release, limits, weights, states.
const RULES: &[&str] =
    &["release_agent", "notify_on_release", "freeze", "freezer.state", "devices.list", "subtree_control"];

/// The machine, as it was at one moment.
pub struct Host {
    facts: Facts,
}

impl Host {
    pub fn look() -> Host {
        let mut facts = Facts::new();
        read(Path::new("/proc/sys"), RESTLESS, &mut facts);
        assert!(facts.len() > 100, "/proc/sys was not read");
        mounts(&mut facts);
        for entry in fs::read_dir("/dev").into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            facts.insert(entry.path().display().to_string(), format!("{:?} {}", who(&meta), meta.rdev()).into_bytes());
        }
        files(Path::new("/etc"), &mut facts);
        // What another look a moment later sees otherwise is no setting.
        let (mut settings, mut again) = (Facts::new(), Facts::new());
        for looked in [&mut settings, &mut again] {
            SETTINGS.iter().for_each(|folder| read(Path::new(folder), NO_SETTINGS, looked));
        }
        settings.retain(|name, value| again.get(name) == Some(value));
        assert!(settings.len() > 100, "/sys was not read");
        facts.append(&mut settings);
        cgroups(Path::new("/sys/fs/cgroup"), &mut facts);
        Host { facts }
    }

    /// Every difference, a line each; empty when there is none.
    pub fn changes(&self, now: &Host) -> String {
        let mut found = Vec::new();
        let text = |value: Option<&Vec<u8>>| value.map(|value| String::from_utf8_lossy(value).into_owned());
        let names: BTreeSet<&String> = self.facts.keys().chain(now.facts.keys()).collect();
        for name in names {
            let (before, after) = (self.facts.get(name), now.facts.get(name));
            // Links, devices and cgroups of the machine come and go with what else runs on it; a value that is another one does not.
            let comes_and_goes = ["/proc/sys/net/", "/sys/"].iter().any(|folder| name.starts_with(folder))
                && (before.is_none() || after.is_none());
            if before != after && !comes_and_goes {
                found.push(format!("{name}: {:?} -> {:?}", text(before), text(after)));
            }
        }
        found.join("\n")
    }
}

/// Mounts that are no node's and no test's: those live in the folder for temporary files.
fn mounts(found: &mut Facts) {
    for line in fs::read_to_string("/proc/self/mounts").unwrap().lines() {
        let mut words = line.split(' ');
        let (Some(what), Some(at)) = (words.next(), words.next()) else { continue };
        if !Path::new(at).starts_with(std::env::temp_dir()) {
            let more = words.collect::<Vec<_>>().join(" ");
            found.insert(format!("mount {at}"), format!("{what} {more}").into_bytes());
        }
    }
}

fn who(meta: &Metadata) -> (u32, u32, u32) {
    (meta.mode(), meta.uid(), meta.gid())
}

/// All values that root may write.
fn read(folder: &Path, without: &[&str], found: &mut Facts) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.display().to_string();
        let Ok(meta) = entry.metadata() else { continue };
        // What these say in bytes follows from a setting beside them and from how much memory is free.
        let follows = name.starts_with("/sys/devices/virtual/bdi/") && name.ends_with("_bytes");
        if follows || without.iter().any(|left_out| name.starts_with(left_out)) {
            continue;
        }
        if meta.is_dir() {
            read(&path, without, found);
        } else if meta.is_file()
            && meta.mode() & 0o200 != 0
            && let Ok(value) = fs::read(&path)
        {
            found.insert(name, value);
        }
    }
}

/// All files of a folder: whose they are, and what they say.
fn files(folder: &Path, found: &mut Facts) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(meta) = entry.metadata() else { continue };
        let mut fact = format!("{:?} ", who(&meta)).into_bytes();
        if meta.is_dir() {
            files(&path, found);
        } else if meta.is_symlink() {
            fact.extend(fs::read_link(&path).unwrap_or_default().as_os_str().as_encoded_bytes());
        } else if meta.is_file() {
            fact.extend(fs::read(&path).unwrap_or_default());
        }
        found.insert(path.display().to_string(), fact);
    }
}

/// All cgroups, of every hierarchy, that are no node's.
fn cgroups(folder: &Path, found: &mut Facts) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() && !name.starts_with("podwright") {
            found.insert(path.display().to_string(), format!("{:?}", who(&meta)).into_bytes());
            cgroups(&path, found);
        }
        // The controllers of the topmost one are enabled for nodes.
        let top = name == "cgroup.subtree_control" && !path.with_file_name("cgroup.type").exists();
        let rule = [".max", ".min", ".high", ".low", ".weight"].iter().chain(RULES).any(|end| name.ends_with(end));
        if meta.is_file()
            && rule
            && !top
            && let Ok(value) = fs::read(&path)
        {
            found.insert(path.display().to_string(), value);
        }
    }
}
