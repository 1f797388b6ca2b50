//! A Pod as Linux sees it: read back from the kernel at this moment, never from memory.

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
    let mut containers = Vec::new();
    for container in &sandbox.containers {
        let processes = match machine.runtime.processes(&container.id).await {
            Ok(processes) => processes,
            Err(error) => {
                if container.pid != 0 {
                    errors.push(error.to_string());
                }
                Vec::new()
            }
        };
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

/// The elements of the node's nftables sets that name one of the Pod's addresses.
async fn services(machine: &Machine, uid: &str) -> Value {
    let addresses = machine.network.addresses_of(uid).unwrap_or_default();
    let listing = machine
        .network
        .netns()
        .run(|| std::process::Command::new("nft").args(["-j", "list", "ruleset"]).output().map(|out| out.stdout));
    let Ok(Ok(bytes)) = listing.await else { return Value::Null };
    let rules: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let wanted: Vec<String> = addresses.iter().map(|a| a.to_string()).collect();
    let names = machine.network.service_names();
    let mut found = Vec::new();
    for entry in rules["nftables"].as_array().into_iter().flatten() {
        let Some((kind, object)) = entry.as_object().and_then(|o| o.iter().next()) else { continue };
        for element in object["elem"].as_array().into_iter().flatten() {
            let text = element.to_string();
            if wanted.iter().any(|a| text.contains(&format!("\"{a}\""))) {
                let service = numbers(element).into_iter().find_map(|number| names.get(&number));
                let (table, set) = (&object["table"], &object["name"]);
                found.push(json!({ "table": table, kind: set, "element": element, "service": service }));
            }
        }
    }
    Value::Array(found)
}

/// All numbers of an element; among them may be that of a Service.
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

/// A cgroup: its path and its limits as the kernel has them.
fn cgroup(path: Option<&Path>) -> Value {
    let Some(path) = path else { return Value::Null };
    let root = [Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/unified")]
        .into_iter()
        .map(|root| root.join(path.strip_prefix("/").unwrap_or(path)))
        .find(|folder| folder.join("cgroup.procs").exists());
    let mut limits = Map::new();
    for file in FILES {
        if let Some(text) = root.as_ref().and_then(|root| std::fs::read_to_string(root.join(file)).ok()) {
            limits.insert(file.to_owned(), json!(text.trim()));
        }
    }
    json!({ "path": path, "files": limits })
}
