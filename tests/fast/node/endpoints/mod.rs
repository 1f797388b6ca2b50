//! The node's endpoints, rendered from a snapshot: nothing is invented, everything is bounded.

mod documents;
mod logs;
mod metrics;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podwright::node::endpoints::facts::{ContainerFacts, Facts, NodeFacts, PodFacts, Stored, VolumeFacts};
use podwright::node::storage::{ContainerUsage, Disks, Space, Usage};
use podwright_runtime::facts::pressure::{Pressure, Stall};
use podwright_runtime::facts::system::SystemFacts;
use podwright_runtime::facts::{Device, Group, Interface, MachineFacts, Traffic, UNLIMITED};
use podwright_runtime::sys::walk::Measure;

use super::at;

fn group(cpu_us: u64, working_set: u64) -> Group {
    Group { at: at(100), cpu_us: Some(cpu_us), working_set: Some(working_set), ..Group::default() }
}

fn stall(total_us: u64) -> Stall {
    Stall { avg10: 1.5, avg60: 1.0, avg300: 0.5, total_us }
}

fn measure(bytes: u64) -> Measure {
    Measure { bytes, inodes: 3, evades: false, cost: Duration::ZERO }
}

fn container(name: &str, group: Group) -> ContainerFacts {
    ContainerFacts {
        name: name.to_owned(),
        id: format!("u1_0/{name}.0"),
        image: "registry/i:1".to_owned(),
        cgroup: format!("/podwright/besteffort/podu1/{name}.0"),
        started: Some(at(50)),
        group,
        nanocores: Some(250_000_000),
    }
}

/// A node with the Pod `default/web`, whose containers are `c` and `d`.
fn facts() -> Facts {
    let machine = MachineFacts {
        group: Group { threads: Some(321), ..group(9_000_000, 5000) },
        booted: Some(at(0)),
        cpus: Some(2),
        memory: Some(10_000),
        memory_available: Some(4000),
        processes_max: Some(32768),
        ..MachineFacts::default()
    };
    let nodefs = Some(Space { bytes: 1000, bytes_free: 400, inodes: 100, inodes_free: 60 });
    let node = NodeFacts {
        name: "n".to_owned(),
        machine,
        machine_id: "m".to_owned(),
        interfaces: vec![interface("eth0", 5)],
        disks: Disks { nodefs, imagefs: None, shared: true },
        nanocores: Some(300_000_000),
        system: vec![SystemFacts { name: "kubelet", started: Some(at(10)), group: group(70, 80) }],
        ..NodeFacts::default()
    };
    let limited = Group {
        cpu_quota_us: Some(50_000),
        cpu_period_us: Some(100_000),
        memory_max: Some(8000),
        descriptors: Some(40),
        sockets: Some(4),
        cpu_pressure: Pressure { some: Some(stall(2_500_000)), full: None },
        io_pressure: Pressure { some: Some(stall(1_000_000)), full: Some(stall(500_000)) },
        devices: vec![Device { name: "/dev/sda".into(), read_bytes: 7, ..Device::default() }],
        ..group(1_500_000, 2000)
    };
    let free = Group { cpu_quota_us: Some(UNLIMITED), memory_max: Some(UNLIMITED), ..group(2_000_000, 1000) };
    let usage = Usage {
        volumes: BTreeMap::from([("scratch".to_owned(), measure(11))]),
        containers: BTreeMap::from([("c".to_owned(), ContainerUsage { layer: measure(20), logs: measure(30) })]),
        rest: measure(1),
    };
    let claim = VolumeFacts {
        name: "data".to_owned(),
        claim: Some("data-0".to_owned()),
        space: Space { bytes: 500, bytes_free: 100, inodes: 50, inodes_free: 10 },
    };
    let pod = PodFacts {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        uid: "u1".to_owned(),
        cgroup: "/podwright/besteffort/podu1".to_owned(),
        started: at(40),
        group: Group { processes: Some(4), ..group(3_500_000, 3000) },
        interfaces: vec![interface("eth0", 70)],
        containers: vec![container("c", limited), container("d", free)],
        stored: Some(Arc::new(Stored { at: at(90), usage: Some(usage), volumes: vec![claim] })),
    };
    let containers = BTreeMap::from([("exited", 1), ("running", 2)]);
    Facts { at: at(100), node, pods: vec![pod], containers, failed: false }
}

fn interface(name: &str, bytes: u64) -> Interface {
    let traffic = |bytes| Traffic { bytes, ..Traffic::default() };
    Interface { name: name.to_owned(), received: traffic(bytes), sent: traffic(bytes + 1) }
}
