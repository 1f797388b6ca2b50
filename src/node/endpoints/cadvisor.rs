//! `/metrics/cadvisor`: cgroups of the machine, of Pods and of containers, under cAdvisor's names and labels. Pure.

use std::borrow::Cow;

use jiff::Timestamp;
use podwright_runtime::facts::{Device, Group, Interface, MachineFacts, Traffic, UNLIMITED, pressure::Stall};

use super::{
    facts::{Facts, Stored},
    text::{Exposition, Kind, Sample},
};
use crate::storage::Space;

/// A cgroup to expose: the machine's has no Pod, a Pod's no container.
struct Shown<'a> {
    id: &'a str,
    name: &'a str,
    image: &'a str,
    namespace: &'a str,
    pod: &'a str,
    container: &'a str,
    group: &'a Group,
    started: Option<Timestamp>,
    interfaces: &'a [Interface],
    /// The machine's own disk.
    disk: Option<Space>,
    stored: Option<&'a Stored>,
}

impl<'a> Shown<'a> {
    fn of(id: &'a str, group: &'a Group) -> Shown<'a> {
        let (name, image, namespace, pod, container) = ("", "", "", "", "");
        let (started, interfaces, disk, stored) = (None, &[][..], None, None);
        Shown { id, name, image, namespace, pod, container, group, started, interfaces, disk, stored }
    }
}

/// The values of a row's extra labels, and the number.
type Several = Vec<(Vec<String>, f64)>;

/// How a value is read.
enum Read {
    One(fn(&Shown<'_>) -> Option<f64>),
    /// One value per combination of extra labels.
    Each(&'static [&'static str], fn(&Shown<'_>) -> Several),
}
use Read::{Each, One};

struct Row {
    name: &'static str,
    kind: Kind,
    read: Read,
    help: &'static str,
}

const fn counter(name: &'static str, read: Read, help: &'static str) -> Row {
    Row { name, kind: Kind::Counter, read, help }
}

const fn gauge(name: &'static str, read: Read, help: &'static str) -> Row {
    Row { name, kind: Kind::Gauge, read, help }
}

fn seconds(micros: Option<u64>) -> Option<f64> {
    micros.map(|micros| micros as f64 / 1e6)
}

fn stalled(stall: Option<Stall>) -> Option<f64> {
    seconds(stall.map(|stall| stall.total_us))
}

fn number(number: Option<u64>) -> Option<f64> {
    number.map(|number| number as f64)
}

/// cAdvisor reports 0 for no limit.
fn limit(limit: Option<u64>) -> Option<f64> {
    limit.map(|limit| if limit == UNLIMITED { 0.0 } else { limit as f64 })
}

fn since_epoch(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1e3
}

fn traffic(shown: &Shown<'_>, of: impl Fn(&Interface) -> Traffic, which: fn(Traffic) -> u64) -> Several {
    shown.interfaces.iter().map(|interface| (vec![interface.name.clone()], which(of(interface)) as f64)).collect()
}

fn received(shown: &Shown<'_>, which: fn(Traffic) -> u64) -> Several {
    traffic(shown, |interface| interface.received, which)
}

fn sent(shown: &Shown<'_>, which: fn(Traffic) -> u64) -> Several {
    traffic(shown, |interface| interface.sent, which)
}

fn devices(shown: &Shown<'_>, which: fn(&Device) -> u64) -> Several {
    shown.group.devices.iter().map(|device| (vec![device.name.clone()], which(device) as f64)).collect()
}

/// Of the file system that Pods write to, which is not a single device.
fn disk(shown: &Shown<'_>, which: fn(&Space) -> u64) -> Several {
    shown.disk.iter().map(|space| (vec!["/".to_owned()], which(space) as f64)).collect()
}

/// Bytes written: by the machine on its disk, by a container in its layer and logs.
fn written(shown: &Shown<'_>) -> Several {
    let usage = shown.stored.and_then(|stored| stored.usage.as_ref());
    let own = usage.and_then(|usage| usage.containers.get(shown.container)).map(|container| container.total());
    let own = own.filter(|total| !total.evades).map(|total| (vec!["/".to_owned()], total.bytes as f64));
    own.into_iter().chain(disk(shown, Space::bytes_used)).collect()
}

fn failures(shown: &Shown<'_>) -> Several {
    let of = |kind: &str, count: Option<u64>| {
        count.map(|count| (vec![kind.to_owned(), "hierarchy".to_owned()], count as f64))
    };
    let group = shown.group;
    of("pgfault", group.faults).into_iter().chain(of("pgmajfault", group.major_faults)).collect()
}

/// The cgroup v2 weight as cgroup v1 shares, by runc's conversion.
fn shares(weight: u64) -> f64 {
    (2 + (weight.saturating_sub(1) * 262_142) / 9999) as f64
}

const INTERFACE: &[&str] = &["interface"];
const DEVICE: &[&str] = &["device"];

#[rustfmt::skip]
static ROWS: [Row; 51] = [
    gauge("container_last_seen", One(|s| Some(since_epoch(s.group.at).floor())), "Last time a container was seen by the exporter"),
    gauge("container_start_time_seconds", One(|s| s.started.map(since_epoch)), "Start time of the container since unix epoch in seconds."),
    counter("container_cpu_usage_seconds_total", Each(&["cpu"], |s| {
        seconds(s.group.cpu_us).map(|used| (vec!["total".to_owned()], used)).into_iter().collect()
    }), "Cumulative cpu time consumed in seconds."),
    counter("container_cpu_user_seconds_total", One(|s| seconds(s.group.cpu_user_us)), "Cumulative user cpu time consumed in seconds."),
    counter("container_cpu_system_seconds_total", One(|s| seconds(s.group.cpu_system_us)), "Cumulative system cpu time consumed in seconds."),
    counter("container_cpu_cfs_periods_total", One(|s| number(s.group.periods)), "Number of elapsed enforcement period intervals."),
    counter("container_cpu_cfs_throttled_periods_total", One(|s| number(s.group.throttled_periods)), "Number of throttled period intervals."),
    counter("container_cpu_cfs_throttled_seconds_total", One(|s| seconds(s.group.throttled_us)), "Total time duration the container has been throttled."),
    gauge("container_memory_usage_bytes", One(|s| number(s.group.memory)), "Current memory usage in bytes, including all memory regardless of when it was accessed"),
    gauge("container_memory_working_set_bytes", One(|s| number(s.group.working_set)), "Current working set in bytes."),
    gauge("container_memory_rss", One(|s| number(s.group.rss)), "Size of RSS in bytes."),
    gauge("container_memory_cache", One(|s| number(s.group.cache)), "Number of bytes of page cache memory."),
    gauge("container_memory_mapped_file", One(|s| number(s.group.mapped)), "Size of memory mapped files in bytes."),
    gauge("container_memory_swap", One(|s| number(s.group.swap)), "Container swap usage in bytes."),
    gauge("container_memory_max_usage_bytes", One(|s| number(s.group.peak)), "Maximum memory usage recorded in bytes"),
    counter("container_memory_failcnt", One(|s| number(s.group.limit_hits)), "Number of memory usage hits limits"),
    counter("container_memory_failures_total", Each(&["failure_type", "scope"], failures), "Cumulative count of memory allocation failures."),
    counter("container_oom_events_total", One(|s| number(s.group.oom_kills)), "Count of out of memory events observed for the container"),
    gauge("container_processes", One(|s| number(s.group.processes)), "Number of processes running inside the container."),
    gauge("container_threads", One(|s| number(s.group.threads)), "Number of threads running inside the container"),
    gauge("container_threads_max", One(|s| limit(s.group.threads_max)), "Maximum number of threads allowed inside the container, infinity if value is zero"),
    gauge("container_file_descriptors", One(|s| number(s.group.descriptors)), "Number of open file descriptors for the container."),
    gauge("container_sockets", One(|s| number(s.group.sockets)), "Number of open sockets for the container."),
    counter("container_pressure_cpu_waiting_seconds_total", One(|s| stalled(s.group.cpu_pressure.some)), "Total time duration tasks in the container have waited due to CPU congestion."),
    counter("container_pressure_cpu_stalled_seconds_total", One(|s| stalled(s.group.cpu_pressure.full)), "Total time duration no tasks in the container could make progress due to CPU congestion."),
    counter("container_pressure_memory_waiting_seconds_total", One(|s| stalled(s.group.memory_pressure.some)), "Total time duration tasks in the container have waited due to memory congestion."),
    counter("container_pressure_memory_stalled_seconds_total", One(|s| stalled(s.group.memory_pressure.full)), "Total time duration no tasks in the container could make progress due to memory congestion."),
    counter("container_pressure_io_waiting_seconds_total", One(|s| stalled(s.group.io_pressure.some)), "Total time duration tasks in the container have waited due to IO congestion."),
    counter("container_pressure_io_stalled_seconds_total", One(|s| stalled(s.group.io_pressure.full)), "Total time duration no tasks in the container could make progress due to IO congestion."),
    counter("container_network_receive_bytes_total", Each(INTERFACE, |s| received(s, |t| t.bytes)), "Cumulative count of bytes received"),
    counter("container_network_receive_packets_total", Each(INTERFACE, |s| received(s, |t| t.packets)), "Cumulative count of packets received"),
    counter("container_network_receive_packets_dropped_total", Each(INTERFACE, |s| received(s, |t| t.dropped)), "Cumulative count of packets dropped while receiving"),
    counter("container_network_receive_errors_total", Each(INTERFACE, |s| received(s, |t| t.errors)), "Cumulative count of errors encountered while receiving"),
    counter("container_network_transmit_bytes_total", Each(INTERFACE, |s| sent(s, |t| t.bytes)), "Cumulative count of bytes transmitted"),
    counter("container_network_transmit_packets_total", Each(INTERFACE, |s| sent(s, |t| t.packets)), "Cumulative count of packets transmitted"),
    counter("container_network_transmit_packets_dropped_total", Each(INTERFACE, |s| sent(s, |t| t.dropped)), "Cumulative count of packets dropped while transmitting"),
    counter("container_network_transmit_errors_total", Each(INTERFACE, |s| sent(s, |t| t.errors)), "Cumulative count of errors encountered while transmitting"),
    counter("container_fs_reads_bytes_total", Each(DEVICE, |s| devices(s, |d| d.read_bytes)), "Cumulative count of bytes read"),
    counter("container_fs_reads_total", Each(DEVICE, |s| devices(s, |d| d.reads)), "Cumulative count of reads completed"),
    counter("container_fs_writes_bytes_total", Each(DEVICE, |s| devices(s, |d| d.written_bytes)), "Cumulative count of bytes written"),
    counter("container_fs_writes_total", Each(DEVICE, |s| devices(s, |d| d.writes)), "Cumulative count of writes completed"),
    gauge("container_fs_usage_bytes", Each(DEVICE, written), "Number of bytes that are consumed by the container on this filesystem."),
    gauge("container_fs_limit_bytes", Each(DEVICE, |s| disk(s, |d| d.bytes)), "Number of bytes that can be consumed by the container on this filesystem."),
    gauge("container_fs_inodes_total", Each(DEVICE, |s| disk(s, |d| d.inodes)), "Number of Inodes"),
    gauge("container_fs_inodes_free", Each(DEVICE, |s| disk(s, |d| d.inodes_free)), "Number of available Inodes"),
    gauge("container_spec_cpu_period", One(|s| number(s.group.cpu_period_us)), "CPU period of the container."),
    gauge("container_spec_cpu_quota", One(|s| number(s.group.cpu_quota_us.filter(|quota| *quota != UNLIMITED))), "CPU quota of the container."),
    gauge("container_spec_cpu_shares", One(|s| s.group.cpu_weight.map(shares)), "CPU share of the container."),
    gauge("container_spec_memory_limit_bytes", One(|s| limit(s.group.memory_max)), "Memory limit for the container."),
    gauge("container_spec_memory_reservation_limit_bytes", One(|s| limit(s.group.memory_high)), "Memory reservation limit for the container."),
    gauge("container_spec_memory_swap_limit_bytes", One(|s| limit(s.group.swap_max)), "Memory swap limit for the container."),
];

fn shown(facts: &Facts) -> Vec<Shown<'_>> {
    let node = &facts.node;
    let mut all = vec![Shown {
        started: node.machine.booted,
        interfaces: &node.interfaces,
        disk: node.disks.nodefs,
        ..Shown::of("/", &node.machine.group)
    }];
    for pod in &facts.pods {
        let (namespace, name) = (pod.namespace.as_str(), pod.name.as_str());
        all.push(Shown {
            namespace,
            pod: name,
            started: Some(pod.started),
            interfaces: &pod.interfaces,
            ..Shown::of(&pod.cgroup, &pod.group)
        });
        all.extend(pod.containers.iter().map(|container| Shown {
            name: &container.id,
            image: &container.image,
            namespace,
            pod: name,
            container: &container.name,
            started: container.started,
            stored: pod.stored.as_deref(),
            ..Shown::of(&container.cgroup, &container.group)
        }));
    }
    all
}

/// Metrics of the machine itself.
type OfMachine = (&'static str, fn(&MachineFacts) -> Option<u64>, &'static str);
const MACHINE: [OfMachine; 5] = [
    ("machine_cpu_cores", |machine| machine.cpus, "Number of logical CPU cores."),
    ("machine_cpu_physical_cores", |machine| machine.cores, "Number of physical CPU cores."),
    ("machine_cpu_sockets", |machine| machine.sockets, "Number of CPU sockets."),
    ("machine_memory_bytes", |machine| machine.memory, "Amount of memory installed on the machine."),
    ("machine_swap_bytes", |machine| machine.swap, "Amount of swap memory available on the machine."),
];

pub fn render(facts: &Facts) -> String {
    let (mut out, all) = (Exposition::default(), shown(facts));
    for row in &ROWS {
        out.metric(row.name, row.kind, row.help, all.iter().flat_map(|shown| samples(row, shown)));
    }
    let node = &facts.node;
    let ids = [("boot_id", &node.boot_id), ("machine_id", &node.machine_id), ("system_uuid", &node.system_uuid)];
    for (name, read, help) in MACHINE {
        let labels = ids.iter().map(|(label, value)| (*label, Cow::Borrowed(value.as_str()))).collect();
        let sample = number(read(&node.machine)).map(|value| Sample { labels, value, at: None });
        out.metric(name, Kind::Gauge, help, sample);
    }
    let failed = f64::from(facts.failed || out.is_cut());
    out.gauge(
        "container_scrape_error",
        "1 if there was an error while getting container metrics, 0 otherwise",
        Some(failed),
    );
    out.finish()
}

/// The samples of one cgroup for a row, with cAdvisor's labels.
fn samples<'s>(row: &'static Row, shown: &'s Shown<'_>) -> Vec<Sample<'s>> {
    let sample = |further: &'static [&'static str], values: Vec<String>, value: f64| {
        let own = [
            ("container", shown.container),
            ("id", shown.id),
            ("image", shown.image),
            ("name", shown.name),
            ("namespace", shown.namespace),
            ("pod", shown.pod),
        ];
        let own = own.into_iter().map(|(label, value)| (label, Cow::Borrowed(value)));
        let labels = own.chain(further.iter().copied().zip(values.into_iter().map(Cow::Owned))).collect();
        Sample { labels, value, at: Some(shown.group.at) }
    };
    match &row.read {
        One(read) => read(shown).map(|value| sample(&[], Vec::new(), value)).into_iter().collect(),
        Each(labels, read) => read(shown).into_iter().map(|(values, value)| sample(labels, values, value)).collect(),
    }
}
