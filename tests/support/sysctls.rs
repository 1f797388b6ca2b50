//! The machine's own sysctls: tests that start nodes must leave them unchanged.
//!
//! A node sets what it needs (forwarding, redirects, reverse path filters, fragment limits, its Pods' sysctls) in its own
//! namespaces. Setting it outside would go unnoticed: Pods and Services work as well then.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// Those of other namespaces that a Pod can have, in addition to all network ones.
const OF_IPC_AND_UTS: [&str; 10] = [
    "kernel/domainname",
    "kernel/hostname",
    "kernel/msgmax",
    "kernel/msgmnb",
    "kernel/msgmni",
    "kernel/sem",
    "kernel/shm_rmid_forced",
    "kernel/shmall",
    "kernel/shmmax",
    "kernel/shmmni",
];
/// Counters of the kernel among them.
const COUNTERS: [&str; 1] = ["net/netfilter/nf_conntrack_count"];

/// The sysctls in a thread's own namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctls(BTreeMap<PathBuf, String>);

impl Sysctls {
    pub fn look() -> Sysctls {
        let root = Path::new("/proc/sys");
        let (mut folders, mut files) = (vec![root.join("net")], OF_IPC_AND_UTS.map(|name| root.join(name)).to_vec());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_folder { &mut folders } else { &mut files }.push(entry.path());
            }
        }
        let counters = COUNTERS.map(|name| root.join(name));
        files.retain(|file| !counters.contains(file));
        // Some are write-only.
        Sysctls(files.into_iter().filter_map(|file| fs::read_to_string(&file).ok().map(|text| (file, text))).collect())
    }

    /// The differences to a later reading. Added sysctls (of a link, or a module) and removed ones do not count.
    pub fn changed(&self, now: &Sysctls) -> Vec<String> {
        let pairs = self.0.iter().filter_map(|(file, before)| Some((file, before, now.0.get(file)?)));
        let other = pairs.filter(|(_, before, now)| before != now);
        other.map(|(file, before, now)| format!("{} was {before:?}, is {now:?}", file.display())).collect()
    }
}

/// The machine before this process's first node.
static BEFORE: OnceLock<Sysctls> = OnceLock::new();
/// A guest, whose settings belong to its node.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// A node is about to start, on the machine's own network or not.
pub fn note(on_host: bool) {
    BEFORE.get_or_init(Sysctls::look);
    IS_OURS.fetch_or(on_host, Ordering::Relaxed);
}

/// The machine's settings that have changed since the first node.
pub fn touched() -> Vec<String> {
    match BEFORE.get().filter(|_| !IS_OURS.load(Ordering::Relaxed)) {
        Some(before) => before.changed(&Sysctls::look()),
        None => Vec::new(),
    }
}
