//! The machine's total usage, and processes' memory without a memory controller.

use std::fs;
use std::time::Instant;

use crate::spec::Usage;

/// The unit of `/proc/stat`: `USER_HZ` is 100 on every supported architecture.
const TICK_US: u64 = 10_000;

/// The machine's CPU time and working set, from `/proc`; `None`: not available.
pub fn machine() -> Option<Usage> {
    let at = Instant::now();
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let cpu_us = busy_us(&stat, &BUSY)?;
    let memory = working_set(&fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(Usage { at, cpu_us, memory })
}

/// The busy fields of `/proc/stat`: user, nice, system, irq and softirq. Guest time is included in user.
pub const BUSY: [usize; 5] = [0, 1, 2, 5, 6];

/// The time of all CPUs in these fields, in microseconds.
pub fn busy_us(stat: &str, of: &[usize]) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let ticks: u64 = of.iter().map(|at| fields.get(*at)).sum::<Option<u64>>()?;
    Some(ticks.saturating_mul(TICK_US))
}

/// Memory in use without inactive file pages, in bytes, as kubelet computes it for the machine.
pub fn working_set(meminfo: &str) -> Option<u64> {
    let used = kib(meminfo, "MemTotal")?.saturating_sub(kib(meminfo, "MemFree")?);
    Some(used.saturating_sub(kib(meminfo, "Inactive(file)").unwrap_or(0)) * 1024)
}

/// The number in a line `name:  123 kB`.
pub fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The resident bytes of processes, summed: shared pages count several times.
pub fn resident(pids: &[u32]) -> u64 {
    resident_as(pids, "VmRSS")
}

/// The same for one kind of pages: `RssAnon`, `RssFile` (proc_pid_status(5)).
pub fn resident_as(pids: &[u32], kind: &str) -> u64 {
    let kib = |pid: &u32| kib(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, kind);
    pids.iter().filter_map(kib).sum::<u64>() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_works_in_five_of_its_ways() {
        let stat = "cpu  100 20 30 9000 40 5 6 70 80 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 5\n";
        assert_eq!(busy_us(stat, &BUSY), Some((100 + 20 + 30 + 5 + 6) * TICK_US));
        assert_eq!(busy_us("cpu0 1 2 3\n", &BUSY), None);
        assert_eq!(busy_us("cpu  1 2 3\n", &BUSY), None);
    }

    #[test]
    fn file_pages_that_nobody_needs_are_not_in_the_working_set() {
        let meminfo = "MemTotal:  1000 kB\nMemFree:  300 kB\nMemAvailable: 1 kB\nInactive(file):  200 kB\n";
        assert_eq!(working_set(meminfo), Some(500 * 1024));
        assert_eq!(working_set("MemTotal: 10 kB\nMemFree: 4 kB\n"), Some(6 * 1024));
        assert_eq!(working_set("MemFree: 4 kB\n"), None);
    }

    #[test]
    fn processes_that_are_gone_have_nothing() {
        assert!(resident(&[std::process::id()]) > 100 << 10);
        assert_eq!(resident(&[0]), 0);
    }

    #[test]
    fn this_machine_can_be_measured() {
        let usage = machine().expect("Linux tells");
        assert!(usage.cpu_us > 0 && usage.memory > 1 << 20, "{usage:?}");
    }
}
