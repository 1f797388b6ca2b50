//! What is on the machine before and after: processes, mounts, cgroups, links, namespaces, tables.

use std::{collections::BTreeSet, fs, path::Path, process::Command, time::Duration};

use super::eventually;

/// Everything that could be ours and can be seen from the machine's own namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine(BTreeSet<String>);

impl Machine {
    /// Looks.
    pub fn look() -> Machine {
        let mut seen = BTreeSet::new();
        processes(&mut seen);
        mounts(&mut seen);
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let root = roots.into_iter().find(|p| Path::new(p).join("cgroup.controllers").exists());
        cgroups(Path::new(root.unwrap_or("/sys/fs/cgroup")), &mut seen, 0);
        lines("link", Command::new("ip").args(["-o", "link"]), |l| l.split(": ").nth(1).map(str::to_owned), &mut seen);
        lines("table", Command::new("nft").args(["list", "tables"]), |l| Some(l.to_owned()), &mut seen);
        Machine(seen)
    }

    /// Waits until nothing is there that was not there before.
    #[track_caller]
    pub fn assert_unchanged(&self) {
        eventually("nothing is left behind", Duration::from_secs(10), || {
            let now = Machine::look();
            let new: Vec<&String> = now.0.difference(&self.0).collect();
            if new.is_empty() { Ok(()) } else { Err(format!("{new:#?}")) }
        });
    }
}

fn processes(seen: &mut BTreeSet<String>) {
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.parse::<u32>().is_err() {
            continue;
        }
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let own_cgroup = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        if own_cgroup.contains("podwright") || command.contains("podwright-shim") {
            seen.insert(format!("process {name} {command}"));
        }
    }
}

fn mounts(seen: &mut BTreeSet<String>) {
    for line in fs::read_to_string("/proc/self/mounts").unwrap().lines() {
        let mut words = line.split(' ');
        if let (Some(what), Some(at)) = (words.next(), words.next()) {
            seen.insert(format!("mount {what} {at}"));
        }
    }
}

fn cgroups(dir: &Path, seen: &mut BTreeSet<String>, depth: usize) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && depth < 6 {
            if path.to_string_lossy().contains("podwright") {
                seen.insert(format!("cgroup {}", path.display()));
            }
            cgroups(&path, seen, depth + 1);
        }
    }
}

fn lines(what: &str, command: &mut Command, pick: impl Fn(&str) -> Option<String>, seen: &mut BTreeSet<String>) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    seen.extend(text.lines().filter_map(pick).map(|line| format!("{what} {line}")));
}
