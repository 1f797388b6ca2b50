//! Processes as the kernel shows them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::cgroup;
use crate::spec::ProcessInfo;

/// The processes of a cgroup, `first` first. One that ends meanwhile is left out.
pub fn processes(cgroup: &Path, first: u32) -> Vec<ProcessInfo> {
    let mut pids = cgroup::procs(cgroup);
    pids.sort_by_key(|pid| (*pid != first, *pid));
    pids.into_iter().filter_map(|pid| process(pid, pid == first)).collect()
}

/// One process; with its mounts if asked.
pub fn process(pid: u32, mounts: bool) -> Option<ProcessInfo> {
    let dir = format!("/proc/{pid}");
    let text = |file: &str| fs::read_to_string(format!("{dir}/{file}")).ok();
    let status = text("status")?;
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).unwrap_or("").trim();
    let first_number = |name: &str| field(name).split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let args = fs::read(format!("{dir}/cmdline")).unwrap_or_default();
    let lines = |file: &str| text(file).unwrap_or_default().lines().map(str::to_owned).collect();
    Some(ProcessInfo {
        pid,
        comm: field("Name").to_owned(),
        args: args.split(|b| *b == 0).filter(|a| !a.is_empty()).map(|a| String::from_utf8_lossy(a).into()).collect(),
        namespaces: namespaces(&dir),
        uid: first_number("Uid"),
        gid: first_number("Gid"),
        capabilities: sets.iter().map(|s| (s.to_string(), field(s).to_owned())).collect(),
        no_new_privs: field("NoNewPrivs") == "1",
        seccomp: first_number("Seccomp"),
        cgroup: text("cgroup")?.lines().find_map(|l| l.strip_prefix("0::")).unwrap_or("").to_owned(),
        mounts: if mounts { lines("mountinfo") } else { Vec::new() },
    })
}

fn namespaces(dir: &str) -> BTreeMap<String, u64> {
    let kinds = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let inode = |kind: &str| fs::metadata(format!("{dir}/ns/{kind}")).ok().map(|m| m.ino());
    kinds.iter().filter_map(|kind| Some((kind.to_string(), inode(kind)?))).collect()
}
