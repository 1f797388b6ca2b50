//! A Pod as Linux sees it: read back from the kernel at this moment, never from memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use podwright_runtime::{ContainerStatus, ProcessInfo, SandboxStatus};
use serde_json::{Map, Value, json};

use super::{Machine, sandbox_of};
use crate::api::{Status, rpc::PodRef};

/// The limits that are read back from each cgroup.
const FILES: [&str; 9] = [
    "cpu.weight",
    "cpu.max",
    "memory.max",
    "memory.current",
    "memory.swap.max",
    "memory.oom.group",
    "pids.max",
    "pids.current",
    "cgroup.procs",
];

/// So many processes of a Pod are described.
const PROCESSES: usize = 1000;

/// Everything about one Pod. What cannot be read is told as an error beside what can.
pub async fn inspect(machine: &Machine, pod: &PodRef) -> Result<Value, Status> {
    let sandbox = sandbox_of(machine, &pod.uid).await.ok_or_else(|| Status::not_found("pods", "", &pod.name))?;
    let mut errors = Vec::new();
    let netns = machine.runtime.netns(&sandbox.spec.id).await.ok();
    let network = match machine.network.inspect(&pod.uid, netns).await {
        Ok(found) => json!(found),
        Err(error) => {
            errors.push(error.to_string());
            Value::Null
        }
    };
    let (mut containers, mut left) = (Vec::new(), PROCESSES);
    for container in &sandbox.containers {
        let processes = match machine.runtime.processes(&container.id, left).await {
            Ok(processes) => processes,
            Err(error) => {
                if container.pid != 0 {
                    errors.push(error.to_string());
                }
                Vec::new()
            }
        };
        left -= processes.len();
        let all = machine.runtime.pids(&container.id).map_or(0, |pids| pids.len());
        if left == 0 && all > processes.len() {
            errors.push(format!(
                "{} of the {all} processes of container {} are shown",
                processes.len(),
                container.id.name
            ));
        }
        let stats = machine.runtime.stats(&container.id).await.ok();
        containers.push(described(container, &processes, json!(stats)));
    }
    let stats = machine.runtime.sandbox_stats(&sandbox.spec.id).await.ok();
    let services = services(machine, &pod.uid).await;
    Ok(json!({
        "pod": pod,
        "sandbox": {
            "id": sandbox.spec.id,
            "state": sandbox.state,
            "created": sandbox.created,
            "hostname": sandbox.spec.hostname,
            "pause": process(&sandbox),
            "cgroup": cgroup(cgroup_of(sandbox.pid).as_deref().and_then(Path::parent)),
            "stats": stats,
        },
        "network": network,
        "services": services,
        "containers": containers,
        "errors": errors,
    }))
}

/// The elements of the node's nftables sets that carry the Pod's traffic, as the kernel has them.
async fn services(machine: &Machine, uid: &str) -> Value {
    let addresses = machine.network.addresses_of(uid).unwrap_or_default();
    let listing = machine
        .network
        .netns()
        .run(|| std::process::Command::new("nft").args(["-j", "list", "ruleset"]).output().map(|out| out.stdout));
    let Ok(Ok(bytes)) = listing.await else { return Value::Null };
    let rules: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let addresses: Vec<String> = addresses.iter().map(|a| a.to_string()).collect();
    carrying(&rules, &addresses, &machine.network.service_names())
}

/// What names one of the addresses, and what leads to the endpoint lists that have them: frontends and verdicts. `names`:
/// the Services' ports by the numbers of their lists.
fn carrying(rules: &Value, addresses: &[String], names: &BTreeMap<u32, String>) -> Value {
    let sets = rules["nftables"].as_array().into_iter().flatten().filter_map(|entry| entry.as_object()?.iter().next());
    let all = sets.flat_map(|(kind, set)| {
        let elements = set["elem"].as_array().map(Vec::as_slice).unwrap_or_default();
        elements.iter().map(move |element| (kind, set, element))
    });
    let all: Vec<(&String, &Value, &Value)> = all.collect();
    let about = |element: &Value| {
        let text = element.to_string();
        addresses.iter().any(|address| text.contains(&format!("\"{address}\"")))
    };
    let list = |element: &Value| numbers(element).into_iter().find(|number| names.contains_key(number));
    let lists: BTreeSet<u32> = all.iter().filter(|(.., e)| about(e)).filter_map(|(.., e)| list(e)).collect();
    let carries = |set: &Value, element: &Value| {
        // The other slots of a list lead to other endpoints.
        let slots = ["endpoints", "slots", "sticky"].iter().any(|name| set["name"] == *name);
        about(element) || (!slots && list(element).is_some_and(|list| lists.contains(&list)))
    };
    let carrying = all.iter().filter(|(_, set, element)| carries(set, element));
    let described = carrying.map(|(kind, set, element)| {
        let service = list(element).and_then(|list| names.get(&list));
        json!({ "table": set["table"], kind.as_str(): set["name"], "element": element, "service": service })
    });
    described.collect()
}

/// All numbers of an element; among them may be that of an endpoint list.
fn numbers(element: &Value) -> Vec<u32> {
    match element {
        Value::Number(number) => number.as_u64().and_then(|n| u32::try_from(n).ok()).into_iter().collect(),
        Value::Array(parts) => parts.iter().flat_map(numbers).collect(),
        Value::Object(parts) => parts.values().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

fn described(container: &ContainerStatus, processes: &[ProcessInfo], stats: Value) -> Value {
    let mut described = json!({
        "name": container.id.name,
        "id": container.id.to_string(),
        "state": container.state,
        "pid": container.pid,
        "started": container.started,
        "exit": container.exit,
        "log": container.log.as_ref().map(|l| l.path.clone()),
    });
    // One that has ended has nothing in the kernel any more.
    if container.exit.is_none() {
        described["cgroup"] = cgroup(cgroup_of(container.pid).as_deref());
        described["stats"] = stats;
        described["processes"] = json!(processes);
    }
    described
}

/// The holder of the Pod's namespaces.
fn process(sandbox: &SandboxStatus) -> Value {
    let folder = format!("/proc/{}/ns", sandbox.pid);
    let mut namespaces = Map::new();
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
        if let Ok(link) = std::fs::read_link(entry.path()) {
            let inode = link.to_string_lossy().trim_end_matches(']').rsplit('[').next().map(str::to_owned);
            let inode: Option<u64> = inode.and_then(|i| i.parse().ok());
            namespaces.insert(entry.file_name().to_string_lossy().into_owned(), json!(inode));
        }
    }
    json!({ "pid": sandbox.pid, "namespaces": namespaces })
}

/// The cgroup v2 path of a process. The Pod's own is the one above `pause`'s.
fn cgroup_of(pid: u32) -> Option<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(PathBuf::from)
}

/// A file of a cgroup, as far as it is of use: its processes may be many.
fn beginning(path: &Path) -> Option<String> {
    const MOST: u64 = 64 << 10;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MOST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// A cgroup: its path and its limits as the kernel has them.
fn cgroup(path: Option<&Path>) -> Value {
    let Some(path) = path else { return Value::Null };
    let root = [Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/unified")]
        .into_iter()
        .map(|root| root.join(path.strip_prefix("/").unwrap_or(path)))
        .find(|folder| folder.join("cgroup.procs").exists());
    let mut limits = Map::new();
    for file in FILES {
        if let Some(text) = root.as_ref().and_then(|root| beginning(&root.join(file))) {
            limits.insert(file.to_owned(), json!(text.trim()));
        }
    }
    json!({ "path": path, "files": limits })
}
