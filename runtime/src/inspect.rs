//! Processes as the kernel shows them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::cgroup;
use crate::spec::ProcessInfo;

/// Maximum bytes read of a process's arguments, and of its other files: it can make them arbitrarily long, even without using the
/// memory (prctl(2), PR_SET_MM).
const ARGUMENTS: u64 = 4096;
/// Maximum number of listed arguments: a one-byte argument takes several in the output.
const WORDS: usize = 64;
const FILE: u64 = 1 << 20;

/// The processes of a cgroup, starting with `first`, at most `most`. Leaves out those that exit meanwhile.
pub fn processes(cgroup: &Path, first: u32, most: usize) -> Vec<ProcessInfo> {
    let mut pids = cgroup::procs(cgroup);
    pids.sort_by_key(|pid| (*pid != first, *pid));
    pids.truncate(most);
    pids.into_iter().filter_map(|pid| process(pid, pid == first)).collect()
}

/// One process; with its mounts if requested.
pub fn process(pid: u32, mounts: bool) -> Option<ProcessInfo> {
    let dir = format!("/proc/{pid}");
    let text = |file: &str| Some(String::from_utf8_lossy(&beginning(&format!("{dir}/{file}"), FILE)?).into_owned());
    let status = text("status")?;
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).unwrap_or("").trim();
    let first_number = |name: &str| field(name).split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let mut line = beginning(&format!("{dir}/cmdline"), ARGUMENTS + 1).unwrap_or_default();
    let is_cut = line.len() as u64 > ARGUMENTS;
    line.truncate(ARGUMENTS as usize);
    let mut words = line.split(|b| *b == 0).filter(|word| !word.is_empty());
    let mut args: Vec<String> = words.by_ref().take(WORDS).map(|word| String::from_utf8_lossy(word).into()).collect();
    if is_cut || words.next().is_some() {
        args.push("...".to_owned());
    }
    let lines = |file: &str| text(file).unwrap_or_default().lines().map(str::to_owned).collect();
    Some(ProcessInfo {
        pid,
        comm: field("Name").to_owned(),
        args,
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

/// The first bytes of a file.
fn beginning(path: &str, most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn namespaces(dir: &str) -> BTreeMap<String, u64> {
    let kinds = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let inode = |kind: &str| fs::metadata(format!("{dir}/ns/{kind}")).ok().map(|m| m.ino());
    kinds.iter().filter_map(|kind| Some((kind.to_string(), inode(kind)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn with_arguments(arguments: &[String]) -> Child {
        let child = Command::new("sh").args(["-c", "read line", "sh"]).args(arguments).stdin(Stdio::piped()).spawn();
        child.unwrap()
    }

    #[test]
    fn arguments_are_read_up_to_a_bound_and_say_that_there_are_more() {
        let seen = |arguments: &[String]| {
            let mut child = with_arguments(arguments);
            let mut found = Vec::new();
            // It has been executed, but its arguments appear a moment later.
            for _ in 0..1000 {
                found = process(child.id(), false).unwrap().args;
                if !found.is_empty() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            child.kill().unwrap();
            child.wait().unwrap();
            found
        };
        assert_eq!(seen(&["few".to_owned()])[3..], ["sh", "few"]);
        let many = seen(&vec!["x".repeat(100); 1000]);
        assert!(many.len() < 50 && many.iter().map(String::len).sum::<usize>() < 4200, "{}", many.len());
        assert_eq!(many.last().map(String::as_str), Some("..."));
        let short = seen(&vec!["x".to_owned(); 1000]);
        assert_eq!((short.len(), short.last().map(String::as_str)), (WORDS + 1, Some("...")));
    }

    #[test]
    fn so_many_processes_are_told_the_first_one_first() {
        let folder = tempfile::tempdir().unwrap();
        let mut children = [0, 1, 2].map(|_| with_arguments(&[]));
        let pids = children.each_ref().map(Child::id);
        fs::write(folder.path().join("cgroup.procs"), pids.map(|pid| pid.to_string()).join("\n")).unwrap();
        let found: Vec<u32> = processes(folder.path(), pids[2], 2).iter().map(|found| found.pid).collect();
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(found, [pids[2], pids[0].min(pids[1])]);
    }
}
