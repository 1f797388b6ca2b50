//! A node without Pods: its startup time and idle cost.

use std::{
    fs,
    time::{Duration, Instant},
};

use crate::{quantile, report, sorted, support::TestNode};

/// `up` -> Ready, on a new folder.
pub fn ready() {
    let took = sorted(
        (0..10)
            .map(|_| {
                let mut node = TestNode::stopped(&[]);
                let start = Instant::now();
                node.spawn();
                node.wait_ready();
                start.elapsed().as_secs_f64() * 1000.0
            })
            .collect(),
    );
    report(
        "up -> node Ready",
        format!("p50 {:.0} ms, worst {:.0} ms", quantile(&took, 0.5), quantile(&took, 1.0)),
        "p50 <= 300 ms",
        quantile(&took, 0.5) <= 300.0,
    );
}

/// RSS, CPU and disk writes of `up` with nothing to do.
pub fn idle() {
    const WATCHED: Duration = Duration::from_secs(40);
    let node = TestNode::start(&[]);
    std::thread::sleep(Duration::from_secs(5));
    let (cpu, first) = (cpu_ticks(node.pid()), written(node.pid()));
    let (start, mut last, mut bursts) = (Instant::now(), first, 0);
    while start.elapsed() < WATCHED {
        std::thread::sleep(Duration::from_millis(100));
        let now = written(node.pid());
        bursts += u32::from(now != last);
        last = now;
    }
    let cpu = (cpu_ticks(node.pid()) - cpu) as f64 / 100.0 / WATCHED.as_secs_f64() * 100.0;
    let rss = rss_mib(node.pid());
    report("idle RSS of up", format!("{rss:.1} MiB"), "<= 40 MiB", rss <= 40.0);
    report("idle CPU of up", format!("{cpu:.2} % of a core"), "< 0.5 %", cpu < 0.5);
    // An fsync follows a write: so there are at most as many as bursts of writes.
    let figure = format!("{bursts} writes in {} s, {} KiB", WATCHED.as_secs(), (last - first) / 1024);
    report("idle disk use of up", figure, "<= 1 fsync per 10 s", bursts <= WATCHED.as_secs() as u32 / 10);
}

fn stat(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

pub fn rss_mib(pid: u32) -> f64 {
    of_status(pid, "VmRSS:")
}

/// Its peak.
pub fn peak_rss_mib(pid: u32) -> f64 {
    of_status(pid, "VmHWM:")
}

fn of_status(pid: u32, name: &str) -> f64 {
    let status = stat(pid, "status");
    let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("0");
    line.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// Hundredths of a second.
pub fn cpu_ticks(pid: u32) -> u64 {
    let stat = stat(pid, "stat");
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<u64>().ok()).sum()
}

/// Bytes written to the disk so far.
fn written(pid: u32) -> u64 {
    let io = stat(pid, "io");
    io.lines().find_map(|l| l.strip_prefix("write_bytes: ")?.parse().ok()).unwrap_or(0)
}
