//! The description of a Node.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    related::Related,
    text::{annotations, labels, lines, list, or, text, time},
};
use crate::page::Page;
use podwright_api::{Object, Quantity, columns::age, quantity::Format};

const ROLE: &str = "node-role.kubernetes.io/";

pub fn describe(page: &mut Page, node: &Object, related: &Related, now: Timestamp) {
    let (metadata, spec, status) = (&node.0["metadata"], &node.0["spec"], &node.0["status"]);
    page.line(0, format!("Name:\t{}", node.name()));
    let roles = node.labels().into_iter().flatten().filter_map(|(key, _)| key.strip_prefix(ROLE));
    let roles = roles.collect::<Vec<_>>().join(",");
    page.line(0, format!("Roles:\t{}", if roles.is_empty() { "<none>" } else { &roles }));
    labels(page, 0, "Labels", &metadata["labels"]);
    annotations(page, 0, &metadata["annotations"]);
    page.line(0, format!("CreationTimestamp:\t{}", time(&metadata["creationTimestamp"])));
    lines(page, 0, "Taints", list(&spec["taints"]).iter().map(taint).collect());
    page.line(0, format!("Unschedulable:\t{}", spec["unschedulable"] == true));
    lease(page, related.lease.as_ref());
    conditions(page, status);
    page.line(0, "Addresses:");
    for address in list(&status["addresses"]) {
        page.line(1, format!("{}:\t{}", text(&address["type"]), text(&address["address"])));
    }
    for (title, field) in [("Capacity", "capacity"), ("Allocatable", "allocatable")] {
        page.line(0, format!("{title}:"));
        let mut all: Vec<_> = status[field].as_object().into_iter().flatten().collect();
        all.sort_by_key(|(name, _)| name.as_str());
        all.into_iter().for_each(|(name, value)| page.line(1, format!("{name}:\t{}", text(value))));
    }
    system(page, &status["nodeInfo"]);
    page.optional(0, "PodCIDR", &text(&spec["podCIDR"]));
    page.optional(0, "PodCIDRs", &list(&spec["podCIDRs"]).iter().map(text).collect::<Vec<_>>().join(","));
    page.optional(0, "ProviderID", &text(&spec["providerID"]));
    pods(page, node, &related.pods, now);
}

/// `key=value:Effect`
fn taint(taint: &Value) -> String {
    let value = match text(&taint["value"]) {
        value if value.is_empty() => value,
        value => format!("={value}"),
    };
    format!("{}{value}:{}", text(&taint["key"]), text(&taint["effect"]))
}

fn lease(page: &mut Page, lease: Option<&Object>) {
    page.line(0, "Lease:");
    let Some(lease) = lease else { return page.line(1, "Failed to get lease: not found") };
    let spec = &lease.0["spec"];
    page.line(1, format!("HolderIdentity:\t{}", or(&spec["holderIdentity"], "<unset>")));
    page.line(1, format!("AcquireTime:\t{}", time(&spec["acquireTime"])));
    page.line(1, format!("RenewTime:\t{}", time(&spec["renewTime"])));
}

fn conditions(page: &mut Page, status: &Value) {
    page.line(0, "Conditions:");
    page.line(1, "Type\tStatus\tLastHeartbeatTime\tLastTransitionTime\tReason\tMessage");
    page.line(1, "----\t------\t-----------------\t------------------\t------\t-------");
    for condition in list(&status["conditions"]) {
        let [kind, status, reason, message] = ["type", "status", "reason", "message"].map(|f| text(&condition[f]));
        let [beat, change] = ["lastHeartbeatTime", "lastTransitionTime"].map(|f| time(&condition[f]));
        page.line(1, format!("{kind} \t{status} \t{beat} \t{change} \t{reason} \t{message}"));
    }
}

fn system(page: &mut Page, info: &Value) {
    const FIELDS: [(&str, &str); 9] = [
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
    ];
    page.line(0, "System Info:");
    FIELDS.iter().for_each(|(title, field)| page.line(1, format!("{title}:\t{}", text(&info[field]))));
}

/// CPU in thousandths; memory and ephemeral storage in bytes.
type Amounts = [i64; 3];

fn amounts_of(list: &Value) -> Amounts {
    let quantity = |name: &str| Quantity::from_json(&list[name]);
    let bytes = |name: &str| quantity(name).map_or(0, |q| q.value());
    [quantity("cpu").map_or(0, |q| q.millis()), bytes("memory"), bytes("ephemeral-storage")]
}

/// Combines two amounts by element.
fn each(a: Amounts, b: Amounts, of: impl Fn(i64, i64) -> i64) -> Amounts {
    std::array::from_fn(|i| of(a[i], b[i]))
}

/// The requests or limits of a Pod: the sum of its regular containers, or the largest init container.
fn amounts(pod: &Object, field: &str) -> Amounts {
    let of = |container: &Value| amounts_of(&container["resources"][field]);
    let spec = &pod.0["spec"];
    let is_sidecar = |c: &&Value| c["restartPolicy"] == "Always";
    let sidecars = list(&spec["initContainers"]).iter().filter(is_sidecar);
    let running = list(&spec["containers"]).iter().chain(sidecars).map(of);
    let total = running.fold(Amounts::default(), |a, b| each(a, b, |a, b| a + b));
    let inits = list(&spec["initContainers"]).iter().filter(|c| !is_sidecar(c)).map(of);
    inits.fold(total, |a, b| each(a, b, i64::max))
}

/// Amounts in the format of `Allocated resources`: with their share of the total.
fn shown(part: Amounts, whole: Amounts) -> [String; 3] {
    std::array::from_fn(|i| {
        let share = if whole[i] == 0 { 0 } else { (part[i] as f64 / whole[i] as f64 * 100.0) as i64 };
        let amount = if i == 0 {
            Quantity::from_millis(part[i]).to_string()
        } else {
            Quantity::from_units(part[i], Format::BinarySi).to_string()
        };
        format!("{amount} ({share}%)")
    })
}

fn pods(page: &mut Page, node: &Object, pods: &[Object], now: Timestamp) {
    let over = |pod: &&Object| !matches!(pod.0["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let mut pods: Vec<&Object> = pods.iter().filter(over).collect();
    pods.sort_by_key(|pod| (pod.namespace().unwrap_or("").to_owned(), pod.name().to_owned()));
    let whole = amounts_of(&node.0["status"]["allocatable"]);
    page.line(0, format!("Non-terminated Pods:\t({} in total)", pods.len()));
    page.line(1, "Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge");
    page.line(1, "---------\t----\t\t------------\t----------\t---------------\t-------------\t---");
    let (mut requested, mut limited) = (Amounts::default(), Amounts::default());
    for pod in pods {
        let (requests, limits) = (amounts(pod, "requests"), amounts(pod, "limits"));
        let ([cpu, memory, _], [most_cpu, most_memory, _]) = (shown(requests, whole), shown(limits, whole));
        let (namespace, name) = (pod.namespace().unwrap_or(""), pod.name());
        let age = age(&pod.0["metadata"]["creationTimestamp"], now);
        page.line(1, format!("{namespace}\t{name}\t\t{cpu}\t{most_cpu}\t{memory}\t{most_memory}\t{age}"));
        (requested, limited) = (each(requested, requests, |a, b| a + b), each(limited, limits, |a, b| a + b));
    }
    page.line(0, "Allocated resources:");
    page.line(1, "(Total limits may be over 100 percent, i.e., overcommitted.)");
    page.line(1, "Resource\tRequests\tLimits");
    page.line(1, "--------\t--------\t------");
    let (requests, limits) = (shown(requested, whole), shown(limited, whole));
    for (i, resource) in ["cpu", "memory", "ephemeral-storage"].into_iter().enumerate() {
        page.line(1, format!("{resource}\t{}\t{}", requests[i], limits[i]));
    }
}
