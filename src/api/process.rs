//! What Prometheus' clients tell of each process, out of `/proc/self` (proc_pid_stat(5)).

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// The unit of times in /proc (USER_HZ) on all architectures that Linux has today.
const TICKS: f64 = 100.0;

/// In OpenMetrics; what cannot be read is left out.
pub fn metrics() -> String {
    let mut out = String::new();
    let mut tell = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        let Some(value) = value else { return };
        let sample = if kind == "counter" { "_total" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{sample} {value}");
    };
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field, the name, may have blanks; it ends with the last parenthesis.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<Option<f64>> = after.split_whitespace().map(|field| field.parse().ok()).collect();
    let field = |number: usize| fields.get(number - 3).copied().flatten();
    let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS);
    tell("process_cpu_seconds", "counter", "Total user and system CPU time spent in seconds.", cpu);
    tell("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", field(23));
    tell("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident());
    let up = std::fs::read_to_string("/proc/uptime").ok();
    let up = up.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|now| now.as_secs_f64());
    let start = field(22).zip(up).zip(now).map(|((start, up), now)| now - up + start / TICKS);
    tell("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", start);
    let open = std::fs::read_dir("/proc/self/fd").ok().map(|all| all.count() as f64);
    tell("process_open_fds", "gauge", "Number of open file descriptors.", open);
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.map(|most| most as f64);
    tell("process_max_fds", "gauge", "Maximum number of open file descriptors.", most);
    out
}

/// The resident memory, in bytes.
fn resident() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<f64>().ok())?;
    Some(kib * 1024.0)
}
