//! What attacks must not change on the machine: its sysctls, mounts outside of nodes, devices, `/etc`, sysfs settings, and other
//! cgroups.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Metadata},
    os::unix::fs::MetadataExt,
    path::Path,
};

type Facts = BTreeMap<String, Vec<u8>>;

/// Values that the kernel itself changes all the time, and the machine's own network, which is affected by other work.
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

/// Where sysfs has the machine's settings. The rest are devices, and files that are slow to read.
const SETTINGS: &[&str] =
    &["/sys/devices/system", "/sys/devices/virtual", "/sys/fs", "/sys/kernel", "/sys/module", "/sys/power"];
/// Not settings, or too many: slab caches, and special files.
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
/// Control files of a cgroup: releases, limits, weights, states.
const RULES: &[&str] =
    &["release_agent", "notify_on_release", "freeze", "freezer.state", "devices.list", "subtree_control"];

/// The machine at a point in time.
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
        // What differs in a second reading is not a setting.
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

    /// All differences, one per line; empty if there are none.
    pub fn changes(&self, now: &Host) -> String {
        let mut found = Vec::new();
        let text = |value: Option<&Vec<u8>>| value.map(|value| String::from_utf8_lossy(value).into_owned());
        let names: BTreeSet<&String> = self.facts.keys().chain(now.facts.keys()).collect();
        for name in names {
            let (before, after) = (self.facts.get(name), now.facts.get(name));
            // Links, devices and cgroups come and go with other work on the machine; changed values do not.
            let comes_and_goes = ["/proc/sys/net/", "/sys/"].iter().any(|folder| name.starts_with(folder))
                && (before.is_none() || after.is_none());
            if before != after && !comes_and_goes {
                found.push(format!("{name}: {:?} -> {:?}", text(before), text(after)));
            }
        }
        found.join("\n")
    }
}

/// Mounts outside the folder for temporary files, where nodes and tests have theirs.
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

/// All values writable by root.
fn read(folder: &Path, without: &[&str], found: &mut Facts) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.display().to_string();
        let Ok(meta) = entry.metadata() else { continue };
        // These byte values depend on a setting beside them and on free memory.
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

/// All files of a folder: their owners and contents.
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

/// All cgroups, of every hierarchy, that belong to no node.
fn cgroups(folder: &Path, found: &mut Facts) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() && !name.starts_with("podwright") {
            found.insert(path.display().to_string(), format!("{:?}", who(&meta)).into_bytes());
            cgroups(&path, found);
        }
        // Nodes need the top-level controllers enabled.
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
