//! `/stats/summary`: upstream's `k8s.io/kubelet/pkg/apis/stats/v1alpha1`, filled as far as known. Pure.

use jiff::{Timestamp, Unit};
use podwright_runtime::{
    facts::{
        Group, Interface, UNLIMITED,
        pressure::{Pressure, Stall},
        system::SystemFacts,
    },
    sys::walk::Measure,
};
use serde_json::{Map, Value, json};

use super::facts::{ContainerFacts, Facts, NodeFacts, PodFacts, Stored};
use crate::storage::Space;

/// A field that is present if its value is known.
type Field = (&'static str, Option<Value>);

fn object<const N: usize>(fields: [Field; N]) -> Value {
    let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(known.collect::<Map<_, _>>())
}

fn time(at: Timestamp) -> Option<Value> {
    // Upstream's times have a resolution of seconds.
    at.round(Unit::Second).ok().map(|at| json!(at))
}

fn number(number: Option<u64>) -> Option<Value> {
    number.map(Value::from)
}

/// The document; `short`: only CPU and memory.
pub fn render(facts: &Facts, short: bool) -> Value {
    let pods: Vec<Value> = facts.pods.iter().map(|pod| of_pod(pod, &facts.node, short)).collect();
    json!({ "node": of_node(&facts.node, facts.at, short), "pods": pods })
}

fn of_node(node: &NodeFacts, at: Timestamp, short: bool) -> Value {
    let machine = &node.machine;
    let more = |value: Option<Value>| value.filter(|_| !short);
    let available = machine.memory_available;
    object([
        ("nodeName", Some(json!(node.name))),
        ("systemContainers", (!node.system.is_empty()).then(|| node.system.iter().map(of_system).collect())),
        ("startTime", machine.booted.and_then(time)),
        ("cpu", cpu(&machine.group, node.nanocores)),
        ("memory", memory(&machine.group, available)),
        ("network", more(network(&node.interfaces, machine.group.at))),
        ("fs", more(node.disks.nodefs.map(|space| file_system(&space, at, None)))),
        ("runtime", more(node.disks.imagefs.map(|space| json!({ "imageFs": file_system(&space, at, None) })))),
        (
            "rlimit",
            more(machine.processes_max.map(|most| {
                let running = number(machine.group.threads);
                object([("time", time(at)), ("maxpid", Some(most.into())), ("curproc", running)])
            })),
        ),
        ("io", more(io(&machine.group))),
        ("swap", swap(&machine.group, machine.swap)),
    ])
}

fn of_system(part: &SystemFacts) -> Value {
    object([
        ("name", Some(json!(part.name))),
        ("startTime", part.started.and_then(time)),
        ("cpu", cpu(&part.group, None)),
        ("memory", memory(&part.group, None)),
    ])
}

fn of_pod(pod: &PodFacts, node: &NodeFacts, short: bool) -> Value {
    let more = |value: Option<Value>| value.filter(|_| !short);
    let containers: Vec<Value> = pod.containers.iter().map(|it| of_container(it, pod, node, short)).collect();
    let stored = pod.stored.as_deref();
    object([
        ("podRef", Some(json!({ "name": pod.name, "namespace": pod.namespace, "uid": pod.uid }))),
        ("startTime", time(pod.started)),
        ("containers", Some(containers.into())),
        ("cpu", cpu(&pod.group, pod.nanocores())),
        ("memory", memory(&pod.group, room(&pod.group))),
        ("network", more(network(&pod.interfaces, pod.group.at))),
        ("volume", more(stored.and_then(|stored| volumes(stored, node, &pod.namespace)))),
        (
            "ephemeral-storage",
            more(stored.and_then(|stored| {
                let total = stored.usage.as_ref()?.total();
                Some(file_system(&node.disks.nodefs?, stored.at, Some(told(total)?)))
            })),
        ),
        ("process_stats", more(pod.group.processes.map(|count| json!({ "process_count": count })))),
        ("io", more(io(&pod.group))),
        ("swap", swap(&pod.group, None)),
    ])
}

fn of_container(container: &ContainerFacts, pod: &PodFacts, node: &NodeFacts, short: bool) -> Value {
    let stored = pod.stored.as_deref().filter(|_| !short);
    let own = |which: fn(&crate::storage::ContainerUsage) -> Measure| {
        let stored = stored?;
        let used = stored.usage.as_ref()?.containers.get(&container.name)?;
        Some(file_system(&node.disks.nodefs?, stored.at, Some(told(which(used))?)))
    };
    object([
        ("name", Some(json!(container.name))),
        ("startTime", container.started.and_then(time)),
        ("cpu", cpu(&container.group, container.nanocores)),
        ("memory", memory(&container.group, room(&container.group))),
        ("rootfs", own(|used| used.layer)),
        ("logs", own(|used| used.logs)),
        ("io", io(&container.group).filter(|_| !short)),
        ("swap", swap(&container.group, container.group.swap_max.filter(|most| *most != UNLIMITED))),
    ])
}

fn cpu(group: &Group, nanocores: Option<u64>) -> Option<Value> {
    let total = group.cpu_us?.saturating_mul(1000);
    Some(object([
        ("time", time(group.at)),
        ("usageNanoCores", number(nanocores)),
        ("usageCoreNanoSeconds", Some(total.into())),
        ("psi", psi(&group.cpu_pressure)),
    ]))
}

fn io(group: &Group) -> Option<Value> {
    Some(object([("time", time(group.at)), ("psi", Some(psi(&group.io_pressure)?))]))
}

/// Upstream's `PSIStats`: both or neither, zero where the kernel counts none (`full` for the whole machine's CPUs).
///
/// Totals are in microseconds, as in the kernel and cAdvisor; the kubelet passes them on like this although its type says
/// nanoseconds.
fn psi(pressure: &Pressure) -> Option<Value> {
    let one = |stall: Stall| json!({ "total": stall.total_us, "avg10": stall.avg10, "avg60": stall.avg60, "avg300": stall.avg300 });
    let some = pressure.some?;
    Some(json!({ "full": one(pressure.full.unwrap_or_default()), "some": one(some) }))
}

fn memory(group: &Group, available: Option<u64>) -> Option<Value> {
    let working_set = group.working_set?;
    Some(object([
        ("time", time(group.at)),
        ("availableBytes", number(available)),
        ("usageBytes", number(group.memory)),
        ("workingSetBytes", Some(working_set.into())),
        ("rssBytes", number(group.rss)),
        ("pageFaults", number(group.faults)),
        ("majorPageFaults", number(group.major_faults)),
        ("psi", psi(&group.memory_pressure)),
    ]))
}

/// The unused part of a memory limit, if there is one.
fn room(group: &Group) -> Option<u64> {
    let most = group.memory_max.filter(|most| *most != UNLIMITED)?;
    Some(most.saturating_sub(group.working_set?))
}

fn swap(group: &Group, most: Option<u64>) -> Option<Value> {
    let used = group.swap?;
    let available = most.map(|most| most.saturating_sub(used));
    Some(object([
        ("time", time(group.at)),
        ("swapAvailableBytes", number(available)),
        ("swapUsageBytes", Some(used.into())),
    ]))
}

/// All interfaces, with the first as the default one.
fn network(interfaces: &[Interface], at: Timestamp) -> Option<Value> {
    let one = |of: &Interface| {
        let (received, sent) = (of.received, of.sent);
        json!({
            "name": of.name, "rxBytes": received.bytes, "rxErrors": received.errors,
            "txBytes": sent.bytes, "txErrors": sent.errors,
        })
    };
    let mut first = one(interfaces.first()?);
    first["time"] = time(at).unwrap_or_default();
    first["interfaces"] = interfaces.iter().map(one).collect();
    Some(first)
}

/// The measurement, unless the tree evaded it.
fn told(measure: Measure) -> Option<(u64, u64)> {
    (!measure.evades).then_some((measure.bytes, measure.inodes))
}

/// A file system, with the space used by one user or by all.
fn file_system(space: &Space, at: Timestamp, used: Option<(u64, u64)>) -> Value {
    let (bytes, inodes) = used.unwrap_or((space.bytes_used(), space.inodes_used()));
    json!({
        "time": time(at), "availableBytes": space.bytes_free, "capacityBytes": space.bytes, "usedBytes": bytes,
        "inodesFree": space.inodes_free, "inodes": space.inodes, "inodesUsed": inodes,
    })
}

fn volumes(stored: &Stored, node: &NodeFacts, namespace: &str) -> Option<Value> {
    let measured = stored.usage.iter().flat_map(|usage| &usage.volumes).filter_map(|(name, measure)| {
        let space = node.disks.nodefs?;
        Some(named(file_system(&space, stored.at, Some(told(*measure)?)), name, None))
    });
    let own = stored.volumes.iter().map(|volume| {
        let claim = volume.claim.as_ref().map(|claim| json!({ "name": claim, "namespace": namespace }));
        named(file_system(&volume.space, stored.at, None), &volume.name, claim)
    });
    let mut all: Vec<Value> = measured.chain(own).collect();
    all.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    (!all.is_empty()).then(|| all.into())
}

fn named(mut shown: Value, name: &str, claim: Option<Value>) -> Value {
    shown["name"] = name.into();
    if let Some(claim) = claim {
        shown["pvcRef"] = claim;
    }
    shown
}
