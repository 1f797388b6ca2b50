//! `inspect pod NAME`: the Linux view of a Pod: processes, namespaces, cgroups, links, mounts, nftables elements. `inspect policy NAME`:
//! by what its traffic is judged.

use std::process::ExitCode;

use serde_json::Value;

use super::{
    Outcome, Session,
    error::Failure,
    exec,
    page::Page,
    pods,
    print::{self, Format},
    stream,
};
use podwright_api::{Object, rpc::InspectOptions};

mod policy;

#[derive(clap::Args)]
pub struct Args {
    /// The Pod, as pod NAME or pod/NAME; as policy NAME: the NetworkPolicies that select it, and their chains in the kernel
    #[arg(required = true, num_args = 1..=2, value_name = "POD")]
    names: Vec<String>,
    /// Output format: json, yaml, jsonpath=TEMPLATE
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
}

/// The Pod for `pod NAME`, `pod/NAME` or `TYPE/NAME`.
pub async fn pod(session: &Session, words: &[String]) -> Result<Object, Failure> {
    match words {
        [one] => pods::one(session, one).await,
        [of, name] => pods::one(session, &format!("{of}/{name}")).await,
        _ => Err(Failure::usage("one Pod is needed: pod NAME")),
    }
}

/// The Linux view of a Pod.
pub async fn view(session: &Session, pod: &Object, options: &InspectOptions) -> Result<Value, Failure> {
    let frames = stream::open(session, exec::request(session, pod, "inspect", options)?).await?;
    let bytes = stream::collect(frames).await?;
    Ok(serde_json::from_slice(&bytes).map_err(anyhow::Error::from)?)
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let of_policies = policy::pod_of(&args.names);
    let pod = pod(session, of_policies.as_deref().unwrap_or(&args.names)).await?;
    let options = InspectOptions { policies: of_policies.is_some(), packet: None };
    let found = view(session, &pod, &options).await?;
    if options.policies && !found["judged"].is_array() {
        return Err(Failure::usage("the Pod's node, or the server, is too old to tell of its policies"));
    }
    match args.output {
        None | Some(Format::Table | Format::Wide) if options.policies => {
            out!("{}", policy::page(&found, &policy::selecting(session, &pod).await?));
        }
        None | Some(Format::Table | Format::Wide) => out!("{}", page(&found)),
        Some(format) => raw!("{}", print::object(&format, &Object(found))?),
    }
    Ok(ExitCode::SUCCESS)
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// What drops Pods' traffic, and where `nft` shows it.
fn conflicting(conflict: &Value) -> String {
    let message = short(&conflict["message"]);
    conflict["handle"].as_u64().map_or_else(|| message.clone(), |handle| format!("{message} # handle {handle}"))
}

/// A value as one short line; null as `<none>`.
fn short(value: &Value) -> String {
    match value {
        Value::Null => "<none>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "<none>".to_owned(),
        Value::Array(items) => items.iter().map(short).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn page(found: &Value) -> Page {
    let (pod, sandbox) = (&found["pod"], &found["sandbox"]);
    let mut page = Page::default();
    page.line(0, format!("Pod:\t{}/{}", short(&pod["namespace"]), short(&pod["name"])));
    page.line(0, format!("UID:\t{}", short(&pod["uid"])));
    page.line(0, "Sandbox:");
    for (title, field) in [("ID", "id"), ("State", "state"), ("Hostname", "hostname")] {
        page.line(1, format!("{title}:\t{}", short(&sandbox[field])));
    }
    page.line(1, format!("Pause:\tpid {}", short(&sandbox["pause"]["pid"])));
    page.line(1, format!("Namespaces:\t{}", namespaces(&sandbox["pause"]["namespaces"])));
    cgroup(&mut page, &sandbox["cgroup"]);
    network(&mut page, &found["network"]);
    services(&mut page, list(&found["services"]));
    if !list(&found["conflictingTables"]).is_empty() {
        page.line(0, "Conflicting tables of the node:");
        list(&found["conflictingTables"]).iter().for_each(|conflict| page.line(1, conflicting(conflict)));
    }
    page.line(0, "Containers:");
    list(&found["containers"]).iter().for_each(|c| container(&mut page, c));
    if !list(&found["errors"]).is_empty() {
        page.line(0, "Could not be read:");
        list(&found["errors"]).iter().for_each(|error| page.line(1, short(error)));
    }
    page
}

/// `ipc 4026532, net 4026533`
fn namespaces(map: &Value) -> String {
    let mut all: Vec<String> =
        map.as_object().into_iter().flatten().map(|(k, v)| format!("{k} {}", short(v))).collect();
    all.sort();
    if all.is_empty() { "<none>".to_owned() } else { all.join(", ") }
}

fn cgroup(page: &mut Page, cgroup: &Value) {
    page.line(1, format!("Cgroup:\t{}", short(&cgroup["path"])));
    for (file, text) in cgroup["files"].as_object().into_iter().flatten() {
        page.line(2, format!("{file}:\t{}", short(text).replace('\n', " ")));
    }
}

fn network(page: &mut Page, network: &Value) {
    if network.is_null() {
        return page.line(0, "Network:\tthe node's own");
    }
    page.line(0, "Network:");
    page.line(1, format!("Addresses:\t{}", short(&network["addresses"])));
    for (title, field) in [("Host link", "host"), ("Pod link", "pod")] {
        let link = &network[field];
        if link.is_null() {
            continue;
        }
        let state = if link["up"] == true { "up" } else { "down" };
        let peer = short(link.get("peerIndex").unwrap_or(&link["peer_index"]));
        let (name, index) = (short(&link["name"]), short(&link["index"]));
        page.line(1, format!("{title}:\t{name} (index {index}, peer {peer}), {state}, mtu {}", short(&link["mtu"])));
        page.line(2, format!("MAC:\t{}", short(&link["mac"])));
        page.line(2, format!("Addresses:\t{}", short(&link["addresses"])));
        page.line(2, format!("Routes:\t{}", short(&link["routes"])));
    }
}

fn services(page: &mut Page, elements: &[Value]) {
    page.line(0, format!("Nftables elements:{}", if elements.is_empty() { "\t<none>" } else { "" }));
    for element in elements {
        let set = ["map", "set"].iter().find_map(|kind| element[kind].as_str().map(|name| format!("{kind} {name}")));
        let (table, set) = (short(&element["table"]), set.unwrap_or_default());
        let service = element["service"].as_str().map(|name| format!("\tService {name}"));
        page.line(1, format!("{table} {set}\t{}{}", nft(&element["element"]), service.unwrap_or_default()));
    }
}

/// An element in nft's notation: `10.244.0.2 . 80 : 7 . 0`.
pub fn nft(element: &Value) -> String {
    if let Some(parts) = element["concat"].as_array() {
        return parts.iter().map(nft).collect::<Vec<_>>().join(" . ");
    }
    match element {
        Value::Array(pair) => pair.iter().map(nft).collect::<Vec<_>>().join(" : "),
        Value::Object(map) if map.contains_key("elem") => nft(&map["elem"]["val"]),
        // A verdict: `goto lb-2`, `drop`.
        Value::Object(map) => match map.iter().next() {
            Some((verb, to)) => format!("{verb} {}", to["target"].as_str().unwrap_or_default()).trim_end().to_owned(),
            None => String::new(),
        },
        plain => short(plain),
    }
}

fn container(page: &mut Page, container: &Value) {
    page.line(1, format!("{}:", short(&container["name"])));
    for (title, field) in [("ID", "id"), ("State", "state"), ("Started", "started"), ("Log", "log")] {
        page.line(2, format!("{title}:\t{}", short(&container[field])));
    }
    if !container["exit"].is_null() {
        let exit = &container["exit"];
        page.line(2, format!("Exit:\tcode {}, signal {}, {}", exit["code"], exit["signal"], short(&exit["reason"])));
    }
    let cgroup = &container["cgroup"];
    if !cgroup.is_null() {
        page.line(2, format!("Cgroup:\t{}", short(&cgroup["path"])));
    }
    for (file, text) in cgroup["files"].as_object().into_iter().flatten() {
        page.line(3, format!("{file}:\t{}", short(text).replace('\n', " ")));
    }
    for process in list(&container["processes"]) {
        let words: Vec<String> = list(&process["args"]).iter().map(short).collect();
        page.line(2, format!("Process {}:\t{}", process["pid"], words.join(" ")));
        page.line(3, format!("User:\tuid {}, gid {}", process["uid"], process["gid"]));
        page.line(3, format!("Namespaces:\t{}", namespaces(&process["namespaces"])));
        let capabilities = process["capabilities"].as_object().into_iter().flatten();
        let sets: Vec<String> = capabilities.map(|(set, hex)| format!("{set} {}", short(hex))).collect();
        page.line(3, format!("Capabilities:\t{}", sets.join(", ")));
        let seccomp = match process["seccomp"].as_u64() {
            Some(0) => "none",
            Some(1) => "strict",
            Some(2) => "filter",
            _ => "unknown",
        };
        page.line(3, format!("Seccomp:\t{seccomp}"));
        page.line(3, format!("No new privileges:\t{}", process["noNewPrivs"] == true));
        mounts(page, list(&process["mounts"]));
    }
}

/// Lines of `/proc/<pid>/mountinfo`: mount point, file system, options.
fn mounts(page: &mut Page, lines: &[Value]) {
    if lines.is_empty() {
        return;
    }
    page.line(3, "Mounts:");
    for line in lines.iter().filter_map(Value::as_str) {
        let (head, tail) = line.split_once(" - ").unwrap_or((line, ""));
        let head: Vec<&str> = head.split(' ').collect();
        let kind = tail.split(' ').next().unwrap_or("");
        page.line(4, format!("{}\t{kind}\t{}", head.get(4).unwrap_or(&""), head.get(5).unwrap_or(&"")));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn elements_look_like_nft() {
        let element = json!([{"concat": [391163343, 0]}, {"concat": ["10.244.0.13", 8080]}]);
        assert_eq!(super::nft(&element), "391163343 . 0 : 10.244.0.13 . 8080");
        assert_eq!(super::nft(&json!("10.244.0.13")), "10.244.0.13");
        assert_eq!(super::nft(&json!([7, {"goto": {"target": "lb-2"}}])), "7 : goto lb-2");
        assert_eq!(super::nft(&json!([7, {"drop": null}])), "7 : drop");
    }
}
