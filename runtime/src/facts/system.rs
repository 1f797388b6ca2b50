//! The node's own resource usage beside its containers: the agent, the shims, and all Pods together.

use std::fs;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use super::Group;
use crate::usage;

/// A part of the node, by upstream's name.
#[derive(Clone, Debug, Default)]
pub struct SystemFacts {
    pub name: &'static str,
    pub started: Option<Timestamp>,
    pub group: Group,
}

const TICK_MS: u64 = 10;

/// This process, reported as upstream's kubelet.
pub fn agent(booted: Option<Timestamp>) -> SystemFacts {
    let text = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let (stat, status) = (text("/proc/self/stat"), text("/proc/self/status"));
    SystemFacts { name: "kubelet", ..process(&stat, &status, booted) }
}

/// A process, from its `stat` and `status`; proc_pid_stat(5).
fn process(stat: &str, status: &str, booted: Option<Timestamp>) -> SystemFacts {
    // Its name is in parentheses and may contain some itself.
    let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
    // Field 3 of the man page is the first one here.
    let field = |number: usize| fields.get(number - 3)?.trim().parse::<u64>().ok();
    let micros = |number: usize| Some(field(number)?.saturating_mul(TICK_MS * 1000));
    let bytes = |name: &str| Some(usage::kib(status, name)?.saturating_mul(1024));
    let (user, system, faults, major) = (micros(14), micros(15), field(10), field(12));
    let group = Group {
        at: Timestamp::now(),
        cpu_us: user.zip(system).map(|(user, system)| user.saturating_add(system)),
        cpu_user_us: user,
        cpu_system_us: system,
        memory: bytes("VmRSS"),
        working_set: bytes("VmRSS"),
        rss: bytes("RssAnon"),
        faults: faults.zip(major).map(|(minor, major)| minor.saturating_add(major)),
        major_faults: major,
        ..Group::default()
    };
    let since = field(22).and_then(|ticks| i64::try_from(ticks.saturating_mul(TICK_MS)).ok());
    let started = booted.zip(since).and_then(|(at, ms)| at.checked_add(SignedDuration::from_millis(ms)).ok());
    SystemFacts { name: "", started, group }
}

/// The shims, and all Pods: what is in the runtime's cgroup besides the shims.
pub fn runtime(root: &Path, shims: &Path) -> [SystemFacts; 2] {
    let (all, shims) = (Group::read(root), Group::read(shims));
    let less = |which: fn(&Group) -> Option<u64>| Some(which(&all)?.saturating_sub(which(&shims)?));
    let pods = Group {
        at: all.at,
        cpu_us: less(|group| group.cpu_us),
        cpu_user_us: less(|group| group.cpu_user_us),
        cpu_system_us: less(|group| group.cpu_system_us),
        memory: less(|group| group.memory),
        working_set: less(|group| group.working_set),
        rss: less(|group| group.rss),
        faults: less(|group| group.faults),
        major_faults: less(|group| group.major_faults),
        ..Group::default()
    };
    [
        SystemFacts { name: "runtime", started: None, group: shims },
        SystemFacts { name: "pods", started: None, group: pods },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_its_times_and_pages() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 300 0 20 0 150 50 0 0 20 0 9 0 1234 1000 25 0\n";
        let status = "Name:\ta\nVmRSS:\t  100 kB\nRssAnon:\t  60 kB\n";
        let booted = Timestamp::from_second(1000).unwrap();
        let found = process(stat, status, Some(booted));
        assert_eq!(found.started, Some(Timestamp::from_millisecond(1_012_340).unwrap()));
        let group = found.group;
        assert_eq!(
            (group.cpu_us, group.cpu_user_us, group.cpu_system_us),
            (Some(2_000_000), Some(1_500_000), Some(500_000))
        );
        assert_eq!((group.working_set, group.rss), (Some(100 << 10), Some(60 << 10)));
        assert_eq!((group.faults, group.major_faults), (Some(320), Some(20)));
        let none = process("", "", Some(booted));
        assert_eq!((none.group.cpu_us, none.group.working_set, none.started), (None, None, None));
        let own = agent(Some(booted));
        assert!(own.group.working_set > Some(1 << 20) && own.started.is_some());
    }

    #[test]
    fn pods_are_all_but_the_shims() {
        let root = tempfile::tempdir().unwrap();
        let shims = root.path().join("shims");
        fs::create_dir(&shims).unwrap();
        fs::write(root.path().join("cpu.stat"), "usage_usec 700\n").unwrap();
        fs::write(shims.join("cpu.stat"), "usage_usec 200\n").unwrap();
        let [of_shims, pods] = runtime(root.path(), &shims);
        assert_eq!((of_shims.name, of_shims.group.cpu_us), ("runtime", Some(200)));
        assert_eq!((pods.name, pods.group.cpu_us, pods.group.memory), ("pods", Some(500), None));
    }
}
