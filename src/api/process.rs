//! Standard process metrics of Prometheus' clients, from `/proc/self` (proc_pid_stat(5)).

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// The unit of times in /proc (USER_HZ) on all current Linux architectures.
const TICKS: f64 = 100.0;

/// The fields of `/proc/self/stat` by their numbers.
struct Stat(Vec<Option<f64>>);

impl Stat {
    fn read() -> Stat {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The second field, the name, may contain blanks; it ends with the last parenthesis.
        let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        Stat(after.split_whitespace().map(|field| field.parse().ok()).collect())
    }

    /// A field from the third one on.
    fn field(&self, number: usize) -> Option<f64> {
        self.0.get(number - 3).copied().flatten()
    }

    /// The start time, in seconds since boot.
    fn start(&self) -> Option<f64> {
        let up = std::fs::read_to_string("/proc/uptime").ok()?;
        let up: f64 = up.split(' ').next()?.parse().ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
        Some(now - up + self.field(22)? / TICKS)
    }
}

/// The start time of the process, in seconds since the epoch.
pub fn start() -> Option<f64> {
    Stat::read().start()
}

/// One metric in OpenMetrics; unavailable ones are left out.
fn tell(out: &mut String, name: &str, kind: &str, help: &str, value: Option<f64>) {
    let Some(value) = value else { return };
    let sample = if kind == "counter" { "_total" } else { "" };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{sample} {value}");
}

fn tell_start(out: &mut String, stat: &Stat) {
    let help = "Start time of the process since unix epoch in seconds.";
    tell(out, "process_start_time_seconds", "gauge", help, stat.start());
}

/// The start time of the process, as a metric.
pub fn start_metric() -> String {
    let mut out = String::new();
    tell_start(&mut out, &Stat::read());
    out
}

/// All of them.
pub fn metrics() -> String {
    let mut out = String::new();
    let stat = Stat::read();
    tell_start(&mut out, &stat);
    let mut tell = |name, kind, help, value| tell(&mut out, name, kind, help, value);
    let field = |number: usize| stat.field(number);
    let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS);
    tell("process_cpu_seconds", "counter", "Total user and system CPU time spent in seconds.", cpu);
    tell("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", field(23));
    tell("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident());
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
