//! The kernel's counters of cgroups, network interfaces and the machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use jiff::Timestamp;

use crate::spec::{ContainerId, Labels};
use crate::{cgroup, usage};

pub mod descriptors;
pub mod pressure;
pub mod system;

use pressure::Pressure;

/// No limit: the kernel's `max`.
pub const UNLIMITED: u64 = u64::MAX;

/// Maximum number of reported interfaces of a network and devices of a cgroup: root in a network namespace can create any number.
const MOST: usize = 16;

/// A cgroup including everything below. `None`: not available on this host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    pub at: Timestamp,
    pub cpu_us: Option<u64>,
    pub cpu_user_us: Option<u64>,
    pub cpu_system_us: Option<u64>,
    /// Periods of `cpu.max`, and how many were throttled.
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
    pub throttled_us: Option<u64>,
    /// Bytes: `memory.current`, the same without inactive file pages, anonymous, file, mapped file, swap, peak.
    pub memory: Option<u64>,
    pub working_set: Option<u64>,
    pub rss: Option<u64>,
    pub cache: Option<u64>,
    pub mapped: Option<u64>,
    pub swap: Option<u64>,
    pub peak: Option<u64>,
    pub faults: Option<u64>,
    pub major_faults: Option<u64>,
    /// How often its memory limit was reached, and a process was killed for it.
    pub limit_hits: Option<u64>,
    pub oom_kills: Option<u64>,
    pub processes: Option<u64>,
    pub threads: Option<u64>,
    pub threads_max: Option<u64>,
    /// Open descriptors, and how many are sockets; only for containers.
    pub descriptors: Option<u64>,
    pub sockets: Option<u64>,
    pub cpu_pressure: Pressure,
    pub memory_pressure: Pressure,
    pub io_pressure: Pressure,
    /// Limits; [`UNLIMITED`] for none.
    pub memory_max: Option<u64>,
    pub memory_high: Option<u64>,
    pub swap_max: Option<u64>,
    pub cpu_weight: Option<u64>,
    pub cpu_quota_us: Option<u64>,
    pub cpu_period_us: Option<u64>,
    pub devices: Vec<Device>,
}

/// Bytes a cgroup has read from and written to a block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// `/dev/sda`, or its numbers if it has no name.
    pub name: String,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// A network interface with its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub received: Traffic,
    pub sent: Traffic,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// A ready sandbox with its running containers.
#[derive(Clone, Debug)]
pub struct SandboxFacts {
    pub id: String,
    pub labels: Labels,
    /// As in `/proc/<pid>/cgroup`.
    pub cgroup: String,
    pub created: Timestamp,
    pub group: Group,
    /// Of its own network; empty with the host's.
    pub interfaces: Vec<Interface>,
    pub containers: Vec<ContainerFacts>,
}

#[derive(Clone, Debug)]
pub struct ContainerFacts {
    pub id: ContainerId,
    pub labels: Labels,
    pub cgroup: String,
    pub started: Option<Timestamp>,
    pub group: Group,
}

/// Properties and counters of the whole machine.
#[derive(Clone, Debug, Default)]
pub struct MachineFacts {
    /// As for a cgroup with all processes.
    pub group: Group,
    pub booted: Option<Timestamp>,
    pub cpus: Option<u64>,
    pub cores: Option<u64>,
    pub sockets: Option<u64>,
    pub memory: Option<u64>,
    pub memory_available: Option<u64>,
    pub swap: Option<u64>,
    pub processes_max: Option<u64>,
}

impl Group {
    /// Reads a cgroup's files; blocks briefly.
    pub fn read(cgroup: &Path) -> Group {
        let at = Timestamp::now();
        let text = |file: &str| fs::read_to_string(cgroup.join(file)).unwrap_or_default();
        let number = |file: &str| number(&text(file));
        let (cpu, memory, events) = (text("cpu.stat"), text("memory.stat"), text("memory.events"));
        let pids = cgroup::procs(cgroup);
        let current = number("memory.current");
        let inactive = keyed(&memory, "inactive_file").unwrap_or(0);
        // Without the controller, sums over the processes.
        let resident = || usage::resident(&pids);
        let anonymous = || (!pids.is_empty()).then(|| usage::resident_as(&pids, "RssAnon"));
        let (quota, period) = two(&text("cpu.max"));
        Group {
            at,
            cpu_us: keyed(&cpu, "usage_usec"),
            cpu_user_us: keyed(&cpu, "user_usec"),
            cpu_system_us: keyed(&cpu, "system_usec"),
            periods: keyed(&cpu, "nr_periods"),
            throttled_periods: keyed(&cpu, "nr_throttled"),
            throttled_us: keyed(&cpu, "throttled_usec"),
            memory: current,
            working_set: Some(current.map_or_else(resident, |all| all.saturating_sub(inactive))),
            rss: keyed(&memory, "anon").or_else(anonymous),
            cache: keyed(&memory, "file"),
            mapped: keyed(&memory, "file_mapped"),
            swap: number("memory.swap.current"),
            peak: number("memory.peak"),
            faults: keyed(&memory, "pgfault"),
            major_faults: keyed(&memory, "pgmajfault"),
            limit_hits: keyed(&events, "max"),
            oom_kills: keyed(&events, "oom_kill"),
            processes: Some(pids.len() as u64),
            threads: number("pids.current"),
            threads_max: number("pids.max"),
            descriptors: None,
            sockets: None,
            cpu_pressure: Pressure::read(&cgroup.join("cpu.pressure")),
            memory_pressure: Pressure::read(&cgroup.join("memory.pressure")),
            io_pressure: Pressure::read(&cgroup.join("io.pressure")),
            memory_max: number("memory.max"),
            memory_high: number("memory.high"),
            swap_max: number("memory.swap.max"),
            cpu_weight: number("cpu.weight"),
            cpu_quota_us: quota,
            cpu_period_us: period,
            devices: devices(&text("io.stat")),
        }
    }

    /// Adds the number of open descriptors, which is more expensive to count.
    pub fn with_descriptors(self, cgroup: &Path) -> Group {
        let found = descriptors::count(&cgroup::procs(cgroup));
        Group { descriptors: found.all, sockets: found.sockets, ..self }
    }

    /// Adds the sum of the children's open descriptors, if known for all.
    pub fn with_descriptors_of<'a>(self, below: impl Iterator<Item = &'a Group> + Clone) -> Group {
        let sum = |which: fn(&Group) -> Option<u64>| below.clone().map(which).sum::<Option<u64>>();
        Group { descriptors: sum(|group| group.descriptors), sockets: sum(|group| group.sockets), ..self }
    }
}

/// A file's one number; `max` is [`UNLIMITED`].
fn number(text: &str) -> Option<u64> {
    match text.trim() {
        "max" => Some(UNLIMITED),
        number => number.parse().ok(),
    }
}

fn two(text: &str) -> (Option<u64>, Option<u64>) {
    let mut words = text.split_whitespace().map(number);
    (words.next().flatten(), words.next().flatten())
}

/// The number of a line `key 123`.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Parses `io.stat`: lines like `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn devices(text: &str) -> Vec<Device> {
    let device = |line: &str| {
        let mut words = line.split_whitespace();
        let numbers = words.next().filter(|numbers| numbers.contains(':'))?;
        let counts: BTreeMap<&str, u64> =
            words.filter_map(|word| word.split_once('=')).filter_map(|(k, v)| Some((k, v.parse().ok()?))).collect();
        let of = |key: &str| counts.get(key).copied();
        let (read_bytes, written_bytes) = (of("rbytes")?, of("wbytes")?);
        Some(Device { name: device_name(numbers), read_bytes, written_bytes, reads: of("rios")?, writes: of("wios")? })
    };
    text.lines().filter_map(device).take(MOST).collect()
}

fn device_name(numbers: &str) -> String {
    let link = fs::read_link(format!("/sys/dev/block/{numbers}")).ok();
    match link.as_deref().and_then(Path::file_name) {
        Some(name) => format!("/dev/{}", name.to_string_lossy()),
        None => numbers.to_owned(),
    }
}

/// The wanted interfaces of a `/proc/<pid>/net/dev`, without loopback.
pub fn interfaces(text: &str, wanted: impl Fn(&str) -> bool) -> Vec<Interface> {
    let interface = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        let counts: Vec<u64> = counts.split_whitespace().map_while(|count| count.parse().ok()).collect();
        let traffic = |from: usize| {
            Some(Traffic {
                bytes: *counts.get(from)?,
                packets: *counts.get(from + 1)?,
                errors: *counts.get(from + 2)?,
                dropped: *counts.get(from + 3)?,
            })
        };
        Some(Interface { name: name.trim().to_owned(), received: traffic(0)?, sent: traffic(8)? })
    };
    text.lines().filter_map(interface).filter(|i| i.name != "lo" && wanted(&i.name)).take(MOST).collect()
}

impl MachineFacts {
    /// Reads `/proc` and `/sys`; blocks briefly.
    pub fn read() -> MachineFacts {
        let text = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let (stat, meminfo, vmstat) = (text("/proc/stat"), text("/proc/meminfo"), text("/proc/vmstat"));
        let bytes = |name: &str| Some(usage::kib(&meminfo, name)? * 1024);
        let (swap, swap_free) = (bytes("SwapTotal"), bytes("SwapFree"));
        let total = bytes("MemTotal");
        let used = total.zip(bytes("MemFree")).map(|(total, free)| total.saturating_sub(free));
        let (cores, sockets) = topology();
        // `1/321`: runnable threads, and all.
        let threads = text("/proc/loadavg").split_whitespace().nth(3).and_then(|of| of.split_once('/')?.1.parse().ok());
        let group = Group {
            at: Timestamp::now(),
            cpu_us: usage::busy_us(&stat, &usage::BUSY),
            cpu_user_us: usage::busy_us(&stat, &[0, 1]),
            cpu_system_us: usage::busy_us(&stat, &[2, 5, 6]),
            memory: used,
            working_set: usage::working_set(&meminfo),
            rss: bytes("AnonPages"),
            cache: bytes("Cached"),
            mapped: bytes("Mapped"),
            swap: swap.zip(swap_free).map(|(total, free)| total.saturating_sub(free)),
            faults: keyed(&vmstat, "pgfault"),
            major_faults: keyed(&vmstat, "pgmajfault"),
            oom_kills: keyed(&vmstat, "oom_kill"),
            threads,
            cpu_pressure: Pressure::read(Path::new("/proc/pressure/cpu")),
            memory_pressure: Pressure::read(Path::new("/proc/pressure/memory")),
            io_pressure: Pressure::read(Path::new("/proc/pressure/io")),
            ..Group::default()
        };
        MachineFacts {
            group,
            booted: keyed(&stat, "btime").and_then(|second| Timestamp::from_second(second.try_into().ok()?).ok()),
            cpus: std::thread::available_parallelism().ok().map(|n| n.get() as u64),
            cores,
            sockets,
            memory: total,
            memory_available: bytes("MemAvailable"),
            swap,
            processes_max: number(&text("/proc/sys/kernel/pid_max")),
        }
    }
}

/// The machine's numbers of cores and sockets.
fn topology() -> (Option<u64>, Option<u64>) {
    let mut cores = BTreeMap::<String, std::collections::BTreeSet<String>>::new();
    for entry in fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten() {
        let of = |file: &str| fs::read_to_string(entry.path().join("topology").join(file)).ok();
        if let (Some(socket), Some(core)) = (of("physical_package_id"), of("core_id")) {
            cores.entry(socket).or_default().insert(core);
        }
    }
    match cores.len() as u64 {
        0 => (None, None),
        sockets => (Some(cores.values().map(|cores| cores.len() as u64).sum()), Some(sockets)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_networks_interfaces_are_told_without_loopback_and_not_without_end() {
        let head = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo\n";
        let lines = "    lo:       1       1    0    0    0     0          0         0        1       1    0    0 0 0 0 0\n  \
            eth0:    1000      10    1    2    0     0          0         0     2000      20    3    4 0 0 0 0\n";
        let found = interfaces(&format!("{head}{lines}"), |_| true);
        let received = Traffic { bytes: 1000, packets: 10, errors: 1, dropped: 2 };
        let sent = Traffic { bytes: 2000, packets: 20, errors: 3, dropped: 4 };
        assert_eq!(found, [Interface { name: "eth0".into(), received, sent }]);
        let many: String = (0..500).map(|n| format!("d{n}: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n")).collect();
        assert_eq!(interfaces(&many, |_| true).len(), MOST);
        assert!(interfaces(&many, |name| name == "eth0").is_empty());
        assert!(interfaces("eth0: 1 2 3\n", |_| true).is_empty());
    }

    #[test]
    fn devices_are_told_with_both_directions() {
        let found = devices("0:999 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\nnonsense\n0:998\n");
        let device = Device { name: "0:999".into(), read_bytes: 1, written_bytes: 2, reads: 3, writes: 4 };
        assert_eq!(found, [device]);
    }

    #[test]
    fn a_folder_that_is_no_cgroup_tells_nothing_but_that_nobody_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let read = Group::read(folder.path());
        let nothing = Group { at: read.at, working_set: Some(0), processes: Some(0), ..Group::default() };
        assert_eq!(read, nothing);
        std::fs::write(folder.path().join("cpu.max"), "max 100000\n").unwrap();
        std::fs::write(folder.path().join("memory.max"), "1048576\n").unwrap();
        std::fs::write(folder.path().join("memory.current"), "5000\n").unwrap();
        std::fs::write(folder.path().join("memory.stat"), "anon 7\nfile 9\ninactive_file 1000\npgfault 3\n").unwrap();
        let read = Group::read(folder.path());
        assert_eq!((read.cpu_quota_us, read.cpu_period_us), (Some(UNLIMITED), Some(100_000)));
        assert_eq!((read.memory_max, read.working_set, read.rss), (Some(1 << 20), Some(4000), Some(7)));
    }

    #[test]
    fn this_machine_tells_what_it_is() {
        let machine = MachineFacts::read();
        assert!(machine.cpus >= Some(1) && machine.memory > Some(1 << 20) && machine.group.cpu_us > Some(0));
        assert!(machine.booted.is_some_and(|booted| booted < Timestamp::now()));
    }
}
