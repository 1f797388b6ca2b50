//! A Pod as Linux sees it: read from the kernel at this moment, never from cached state.

use std::io::Read;
use std::path::{Path, PathBuf};

use podwright_net::dataplane::{Carrier, TABLE};
use podwright_runtime::{ContainerStatus, ProcessInfo, SandboxStatus};
use serde_json::{Map, Value, json};

use super::Machine;
use podwright_api::{Status, rpc::PodRef};

/// The limits read from each cgroup.
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

/// Maximum number of described processes of a Pod.
const PROCESSES: usize = 1000;

/// Maximum number of described elements that carry a Pod's traffic: users can create tens of thousands with Services.
const ELEMENTS: usize = 1000;

/// Everything about one Pod. Unreadable parts are reported as errors beside the rest.
pub async fn inspect(machine: &Machine, pod: &PodRef) -> Result<Value, Status> {
    let sandbox = machine.newest_sandbox(&pod.uid).await.ok_or_else(|| Status::not_found("pods", "", &pod.name))?;
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
    let services = services(machine, &pod.uid, &mut errors).await;
    let conflicting_tables = match machine.network.conflicting_tables().await {
        Ok(found) => json!(found),
        Err(error) => {
            errors.push(error.to_string());
            Value::Null
        }
    };
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
        "conflictingTables": conflicting_tables,
        "containers": containers,
        "errors": errors,
    }))
}

/// By what the Pod's traffic is judged.
///
/// # Errors
///
/// The kernel cannot be asked.
pub async fn policies(machine: &Machine, pod: &PodRef) -> Result<Value, Status> {
    let addresses = machine.network.addresses_of(&pod.uid).unwrap_or_default();
    let judged = machine.network.judged(addresses.clone()).await.map_err(Status::internal)?;
    Ok(json!({ "pod": pod, "addresses": addresses, "judged": judged }))
}

/// The elements of the node's nftables sets that carry the Pod's traffic, as read from the kernel.
async fn services(machine: &Machine, uid: &str, errors: &mut Vec<String>) -> Value {
    let addresses = machine.network.addresses_of(uid).unwrap_or_default();
    let (carriers, all) = match machine.network.carriers(addresses, ELEMENTS).await {
        Ok(found) => found,
        Err(error) => {
            errors.push(error.to_string());
            return Value::Null;
        }
    };
    if all > ELEMENTS {
        errors.push(format!("{} of the {all} nftables elements that carry its traffic are shown", carriers.len()));
    }
    let described = carriers.into_iter().map(|Carrier { set, is_map, element, service, .. }| {
        let kind = if is_map { "map" } else { "set" };
        json!({ "table": TABLE, kind: set, "element": element, "service": service })
    });
    described.collect()
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
    // An exited one has nothing in the kernel any more.
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

/// The cgroup v2 path of a process. The Pod's cgroup is the parent of `pause`'s.
fn cgroup_of(pid: u32) -> Option<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(PathBuf::from)
}

/// The beginning of a cgroup file: it may list many processes.
fn beginning(path: &Path) -> Option<String> {
    const MOST: u64 = 64 << 10;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MOST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// A cgroup: its path and its limits as read from the kernel.
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
