//! What no attack may change of the machine: its sysctls, its mounts outside of nodes, its devices.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

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

/// The machine, as it was at one moment.
pub struct Host {
    facts: BTreeMap<String, Vec<u8>>,
}

impl Host {
    pub fn look() -> Host {
        let mut facts = BTreeMap::new();
        read(Path::new("/proc/sys"), &mut facts);
        assert!(facts.len() > 100, "/proc/sys was not read");
        mounts(&mut facts);
        for entry in fs::read_dir("/dev").into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            let (path, is) = (entry.path().display().to_string(), (meta.mode(), meta.rdev(), meta.uid(), meta.gid()));
            facts.insert(path, format!("{is:?}").into_bytes());
        }
        Host { facts }
    }

    /// Every difference, a line each; empty when there is none.
    pub fn changes(&self, now: &Host) -> String {
        let mut found = Vec::new();
        let text = |value: Option<&Vec<u8>>| value.map(|value| String::from_utf8_lossy(value).into_owned());
        let names: std::collections::BTreeSet<&String> = self.facts.keys().chain(now.facts.keys()).collect();
        for name in names {
            let (before, after) = (self.facts.get(name), now.facts.get(name));
            // Links of the machine come and go with what else runs on it; a value that is another one does not.
            let comes_and_goes = name.starts_with("/proc/sys/net/") && (before.is_none() || after.is_none());
            if before != after && !comes_and_goes {
                found.push(format!("{name}: {:?} -> {:?}", text(before), text(after)));
            }
        }
        found.join("\n")
    }
}

/// Mounts that are no node's and no test's: those live in the folder for temporary files.
fn mounts(found: &mut BTreeMap<String, Vec<u8>>) {
    for line in fs::read_to_string("/proc/self/mounts").unwrap().lines() {
        let mut words = line.split(' ');
        let (Some(what), Some(at)) = (words.next(), words.next()) else { continue };
        if !Path::new(at).starts_with(std::env::temp_dir()) {
            let more = words.collect::<Vec<_>>().join(" ");
            found.insert(format!("mount {at}"), format!("{what} {more}").into_bytes());
        }
    }
}

/// All that root may write.
fn read(folder: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.display().to_string();
        let Ok(meta) = entry.metadata() else { continue };
        if RESTLESS.iter().any(|restless| name.starts_with(restless)) {
            continue;
        }
        if meta.is_dir() {
            read(&path, found);
        } else if meta.permissions().mode() & 0o200 != 0
            && let Ok(value) = fs::read(&path)
        {
            found.insert(name, value);
        }
    }
}
