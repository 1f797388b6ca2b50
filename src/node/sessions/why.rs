//! The way of a packet through this node, and what becomes of it: by what the kernel has, with the objects behind it named.

use std::net::IpAddr;

use podwright_net::dataplane::Protocol;
use podwright_net::links::link_name;
use podwright_net::why::{Cause, End, Entry, Packet, Step, Walk};
use serde::Serialize;
use serde_json::{Value, json};

use super::Sessions;
use podwright_api::{
    Status,
    rpc::{PacketOptions, PodRef},
};
use podwright_proxy::Owner;

use crate::spec::PodExt;

/// What becomes of a packet on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Verdict {
    /// Whether it goes on, or arrives.
    allowed: bool,
    text: String,
}

/// The ways of a packet through this node: one for each endpoint that may be chosen, in each family that both ends have. `pod`: the
/// near end; without a uid the node itself.
///
/// # Errors
///
/// The ends have no family in common, or the kernel cannot be asked.
pub async fn why(sessions: &Sessions, pod: &PodRef, asked: &PacketOptions) -> Result<Value, Status> {
    let machine = &sessions.machine;
    let network = &machine.network;
    let owned = network.addresses_of(&pod.uid);
    let link = match &owned {
        Some(_) if network.is_attached_by_plugins(&pod.uid) => Entry::WayBack,
        Some(_) => Entry::Link(link_name(&pod.uid)),
        // It has the node's own network.
        None => Entry::Node,
    };
    let own = owned.unwrap_or_else(|| asked.to.map_or_else(|| network.addresses().to_vec(), |to| vec![to]));
    let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(&asked.protocol));
    let protocol = protocol.ok_or_else(|| Status::bad_request("packet.protocol: it is unknown"))?;
    let mut ways = Vec::new();
    for peer in &asked.addresses {
        let Some(near) = own.iter().find(|address| address.is_ipv4() == peer.is_ipv4()).copied() else { continue };
        let (packet, entry) = match (asked.incoming, &link) {
            (false, Entry::Node) => (packet(protocol, None, *peer, asked.port), Entry::Node),
            (false, entry) => (packet(protocol, Some(near), *peer, asked.port), entry.clone()),
            (true, _) => (packet(protocol, Some(*peer), near, asked.port), Entry::WayBack),
        };
        let own_address = !asked.incoming && near == *peer && link != Entry::Node;
        if own_address {
            ways.push(json!({
                "source": near, "to": peer, "destination": peer, "port": asked.port, "steps": [],
                "verdict": Verdict { allowed: true, text: "allowed: it never leaves the Pod".to_owned() },
            }));
            continue;
        }
        for walk in network.why(packet.clone(), entry).await.map_err(Status::internal)? {
            ways.push(way(sessions, &packet, walk, asked.visible.as_deref()).await?);
        }
    }
    if ways.is_empty() {
        return Err(Status::bad_request("the two ends have no IP family in common"));
    }
    Ok(json!({ "node": sessions.node, "ways": ways }))
}

fn packet(protocol: Protocol, source: Option<IpAddr>, destination: IpAddr, port: u16) -> Packet {
    Packet { protocol, source, destination, port }
}

/// A way as it is shown. What is behind a destination that is not to be seen is left out.
async fn way(
    sessions: &Sessions,
    packet: &Packet,
    mut walk: Walk,
    visible: Option<&[IpAddr]>,
) -> Result<Value, Status> {
    let is_hidden =
        walk.destination != packet.destination && visible.is_some_and(|visible| !visible.contains(&walk.destination));
    if is_hidden {
        let translated = walk.steps.iter().position(|step| step.found.starts_with("dnat "));
        walk.steps.truncate(translated.unwrap_or_default());
        let text = "unknown: the endpoint is no Pod that you may inspect".to_owned();
        return Ok(json!({
            "source": packet.source, "to": packet.destination, "port": packet.port, "hidden": true,
            "steps": walk.steps.iter_mut().map(named).collect::<Vec<_>>(), "choices": walk.choices,
            "verdict": Verdict { allowed: false, text },
        }));
    }
    let mut delivered = Value::Null;
    if let End::Delivered { link } = &walk.end {
        let pods = sessions.residents.all();
        let owner = pods.iter().find(|pod| link_name(pod.uid()) == *link);
        delivered = owner.map_or(Value::Null, |pod| json!({ "namespace": pod.namespace(), "name": pod.name() }));
    }
    if visible.is_some() && !walk.uncertain.is_empty() {
        walk.uncertain = vec![format!("{} rules of this machine's other tables", walk.uncertain.len())];
    }
    let verdict = verdict(&walk);
    walk.steps.iter_mut().for_each(|step| drop(named(step)));
    Ok(json!({
        "source": packet.source, "to": packet.destination, "destination": walk.destination, "port": walk.port,
        "steps": walk.steps, "end": walk.end, "pod": delivered, "choices": walk.choices,
        "uncertain": walk.uncertain, "verdict": verdict,
    }))
}

/// Calls the objects behind a step what users call them.
fn named(step: &mut Step) -> Step {
    step.objects = objects(step);
    // They are named once.
    step.cause = None;
    step.clone()
}

fn objects(step: &Step) -> Vec<String> {
    let of_list = |key: &String| {
        let (name, port) = key.rsplit_once(':').unwrap_or((key, ""));
        let port = if port.is_empty() { String::new() } else { format!(" port {port}") };
        match Owner::of(name) {
            Some(Owner::Pod(key)) => format!("Pod {key} host port"),
            _ => format!("Service {name}{port}"),
        }
    };
    match &step.cause {
        Some(Cause::List(_)) => step.objects.iter().map(of_list).collect(),
        Some(Cause::Policies { .. } | Cause::Unjudged { .. }) => {
            step.objects.iter().map(|name| format!("NetworkPolicy {name}")).collect()
        }
        None => step.objects.clone(),
    }
}

/// What a way comes to, in words. Pure.
fn verdict(walk: &Walk) -> Verdict {
    let last = walk.steps.last().cloned().unwrap_or_default();
    let names = objects(&last).join(", ");
    let allowed = |text: &str| Verdict { allowed: true, text: text.to_owned() };
    let stopped = |text: String| Verdict { allowed: false, text };
    let error = match &walk.end {
        End::Delivered { .. } | End::Local => return allowed("allowed"),
        End::Leaves { link, .. } => return allowed(&format!("allowed to leave by {link}")),
        End::NoRoute { why } if why == "no route" => return stopped(why.clone()),
        End::NoRoute { why } => return stopped(format!("no route: {why}")),
        End::Dropped => "dropped",
        End::Rejected { .. } => "refused",
    };
    match &last.cause {
        Some(Cause::Policies { direction, .. }) => {
            let direction = format!("{direction:?}").to_lowercase();
            match names.is_empty() {
                true => stopped(format!("{error} by policies: {direction}: no rule matches")),
                false => stopped(format!("{error} by {names}: {direction}: no rule matches")),
            }
        }
        Some(Cause::List(_)) if last.chain == "sources" => {
            stopped(format!("{error}: the source is not in loadBalancerSourceRanges of {names}"))
        }
        Some(Cause::List(_)) if error == "refused" => stopped(format!("refused: {names} has no ready endpoints")),
        Some(Cause::List(_)) => stopped(format!("dropped: {names} has no endpoints on this node, and a Local policy")),
        _ if last.chain == "refuse" => {
            stopped(format!("refused: no Service has {} port {}", walk.destination, walk.port))
        }
        _ => stopped(format!("{error} by table {}, chain {}: {}", last.table, last.chain, last.lookup)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_net::dataplane::Direction;

    fn ended(end: End, chain: &str, objects: &[&str], cause: Option<Cause>) -> String {
        let objects = objects.iter().map(|name| (*name).to_owned()).collect();
        let step = Step { table: "ip podwright".into(), chain: chain.into(), objects, cause, ..Step::default() };
        let destination = "10.244.0.2".parse().unwrap();
        verdict(&Walk { steps: vec![step], end, destination, port: 80, uncertain: Vec::new(), choices: 1 }).text
    }

    #[test]
    fn a_verdict_names_whose_doing_it_is() {
        let policies =
            |direction| Some(Cause::Policies { address: "10.244.0.2".parse().unwrap(), direction, chain: None });
        let text = ended(End::Dropped, "forbid", &["a/deny", "a/web"], policies(Direction::Egress));
        assert_eq!(text, "dropped by NetworkPolicy a/deny, NetworkPolicy a/web: egress: no rule matches");
        let refused = || End::Rejected { with: "tcp reset".into() };
        let text = ended(refused(), "refuse", &["a/web:http"], Some(Cause::List(7)));
        assert_eq!(text, "refused: Service a/web port http has no ready endpoints");
        let text = ended(End::Dropped, "balance", &["a/web:80"], Some(Cause::List(7)));
        assert_eq!(text, "dropped: Service a/web port 80 has no endpoints on this node, and a Local policy");
        assert_eq!(ended(refused(), "refuse", &[], None), "refused: no Service has 10.244.0.2 port 80");
        assert_eq!(ended(End::NoRoute { why: "no route".into() }, "", &[], None), "no route");
        assert_eq!(ended(End::Local, "", &[], None), "allowed");
    }
}
