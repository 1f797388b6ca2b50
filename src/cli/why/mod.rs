//! `why FROM TO:PORT`: the way of a connection's first packet, as the kernels of the nodes would have it go, and which object
//! allows or drops it. Nothing is sent and nothing changes.
//!
//! Each node is asked for its own part: first the one that the packet starts on, then the one that it leaves for. What they answer
//! is put together ([`story`]) and shown ([`show`]).

mod ends;
mod show;
mod story;

use std::net::IpAddr;
use std::process::ExitCode;

use serde_json::Value;

use super::{
    Outcome, Session,
    error::Failure,
    pods::kind_of,
    print::{self, Format},
    stream,
};
use ends::{End, Target};
use podwright_api::rpc::{InspectOptions, PacketOptions};
use podwright_api::{Object, Options, Status, Verb};
use story::{Hop, Story, Way};

/// What fails otherwise than by a verdict.
const TROUBLE: u8 = 2;

#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 if the packet arrives, 1 if it does not, 2 if that could not be found out.")]
pub struct Args {
    /// Who opens the connection: [NAMESPACE/]POD, node/NAME, or an address outside the cluster
    #[arg(value_name = "FROM")]
    from: String,
    /// What it is for: [NAMESPACE/]POD, svc/[NAMESPACE/]NAME, node/NAME or an address; each with a port, by number or name
    #[arg(value_name = "TO:PORT")]
    to: String,
    /// The protocol: TCP, UDP, SCTP. By default that of the named port, or TCP
    #[arg(long, value_name = "PROTOCOL", ignore_case = true, value_parser = ["TCP", "UDP", "SCTP"])]
    protocol: Option<String>,
    /// The node where packets from outside the cluster arrive
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Output format: json, yaml, wide, jsonpath=TEMPLATE
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let output = args.output.clone();
    let story = match follow(args, session).await {
        Ok(story) => story,
        Err(failure) => {
            failure.report();
            return Err(Failure::Said(TROUBLE));
        }
    };
    match output {
        None | Some(Format::Table) => out!("{}", show::text(&story, false)),
        Some(Format::Wide) => out!("{}", show::text(&story, true)),
        Some(format) => raw!("{}", print::object(&format, &Object(story.to_json()))?),
    }
    if story.is_allowed() { Ok(ExitCode::SUCCESS) } else { Err(Failure::Said(1)) }
}

async fn follow(args: Args, session: &Session) -> Result<Story, Failure> {
    let from = End::parse(&args.from, &session.namespace)?;
    let (to, port) = Target::split(&args.to)?;
    let to = End::parse(to, &session.namespace)?;
    let target = ends::target(session, &to, port, args.protocol.as_deref()).await?;
    let asked = |incoming, peer: &End, port| PacketOptions {
        incoming,
        peer: peer.as_peer(),
        port,
        protocol: target.protocol.clone(),
        to: None,
        addresses: Vec::new(),
        visible: None,
    };
    let mut story = Story::new(&args.from, &args.to, &target);
    if matches!(from, End::Service { .. }) {
        return Err(Failure::usage("a Service opens no connections: name one of its Pods"));
    }
    // 1. The node that the packet starts on, or comes to from outside.
    let (near, packet) = match (&from, &to) {
        (End::Address(_), End::Pod { .. }) => (to.clone(), asked(true, &from, target.port)),
        (End::Address(_), End::Node { .. }) => (to.clone(), asked(true, &from, target.port)),
        (End::Address(_), _) => {
            let node = args.node.ok_or_else(|| {
                Failure::usage("where do packets from outside arrive? Name that node by --node, or node/NAME as TO")
            })?;
            let of = ends::outer_address(session, &to).await?;
            (End::Node { name: node }, PacketOptions { to: Some(of), ..asked(true, &from, target.port) })
        }
        _ => (from.clone(), asked(false, &to, target.port)),
    };
    for (hop, way) in ask(session, &near, packet).await? {
        let mut way = Way::new(hop, &way);
        // 2. The node that it leaves for.
        if let Some(leaving) = way.leaves_for() {
            match owner(session, &to, leaving.destination).await? {
                Some(end) => {
                    // Whose packets the node sends as its own are the node's.
                    let peer = if leaving.is_own { from.clone() } else { End::Address(leaving.source) };
                    let mut packet = asked(true, &peer, leaving.port);
                    packet.to = matches!(end, End::Node { .. }).then_some(leaving.destination);
                    let found = ask(session, &end, packet).await?;
                    // Whoever writes a Service's slices may name any Pod there.
                    let is_its = |way: &Value| {
                        matches!(to, End::Pod { .. }) || story::address(way, "to") == Some(leaving.destination)
                    };
                    let of =
                        |(_, way): &&(Hop, Value)| story::address(way, "source") == Some(leaving.source) && is_its(way);
                    match found.iter().find(of) {
                        Some((hop, answer)) => way.go_on(hop.clone(), answer),
                        None => way.ends_unknown("its node knows no such packet"),
                    }
                }
                None => way.ends_outside(),
            }
        }
        story.ways.push(way);
    }
    Ok(story)
}

/// Asks the node of an end for the ways of a packet there.
async fn ask(session: &Session, near: &End, packet: PacketOptions) -> Result<Vec<(Hop, Value)>, Failure> {
    let (kind, namespace, name) = match near {
        End::Pod { namespace, name } => ("pods", Some(namespace.as_str()), name),
        End::Node { name } => ("nodes", None, name),
        End::Service { .. } | End::Address(_) => return Err(Failure::usage("only Pods and nodes can be asked")),
    };
    let mut request = session.request(Verb::Connect, kind_of(kind), namespace, Some(name));
    request.subresource = Some("inspect".to_owned());
    let options = InspectOptions { policies: false, packet: Some(packet) };
    request.body = Some(serde_json::to_value(&options).map_err(anyhow::Error::from)?);
    let bytes = stream::collect(stream::open(session, request).await?).await?;
    let found: Value = serde_json::from_slice(&bytes).map_err(anyhow::Error::from)?;
    let ways = found["ways"].as_array();
    let ways = ways.ok_or_else(|| Failure::usage("the node, or the server, is too old to follow packets"))?;
    let node = found["node"].as_str().unwrap_or_default();
    Ok(ways.iter().map(|way| (Hop::of(node, way), way.clone())).collect())
}

/// Who in the cluster has an address that a packet leaves its node for; `None`: nobody.
async fn owner(session: &Session, to: &End, address: IpAddr) -> Result<Option<End>, Failure> {
    match to {
        End::Pod { .. } => return Ok(Some(to.clone())),
        End::Service { namespace, name } => {
            if let Some(pod) = endpoint(session, namespace, name, address).await? {
                return Ok(Some(pod));
            }
        }
        End::Node { .. } | End::Address(_) => {}
    }
    let has = |object: &&Object, list: &str, field: &str| {
        let all = object.0["status"][list].as_array().into_iter().flatten();
        all.filter_map(|entry| entry[field].as_str()?.parse::<IpAddr>().ok()).any(|has| has == address)
    };
    let everywhere =
        podwright_api::Request { namespace: None, ..session.request(Verb::List, kind_of("pods"), None, None) };
    let pods = objects(session, everywhere).await?;
    let mut own = pods.iter().filter(|pod| pod.0["spec"]["hostNetwork"] != true && !has_ended(pod));
    if let Some(pod) = own.find(|pod| has(pod, "podIPs", "ip")) {
        let namespace = pod.namespace().unwrap_or_default().to_owned();
        return Ok(Some(End::Pod { namespace, name: pod.name().to_owned() }));
    }
    let nodes = objects(session, session.request(Verb::List, kind_of("nodes"), None, None)).await?;
    let node = nodes.iter().find(|node| has(node, "addresses", "address"));
    Ok(node.map(|node| End::Node { name: node.name().to_owned() }))
}

/// Whether a Pod has given back its addresses.
fn has_ended(pod: &Object) -> bool {
    matches!(pod.0["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// The Pod that is an endpoint of a Service with this address.
async fn endpoint(session: &Session, namespace: &str, service: &str, address: IpAddr) -> Result<Option<End>, Failure> {
    let mut request = session.request(Verb::List, kind_of("endpointslices"), Some(namespace), None);
    let selector = format!("kubernetes.io/service-name={service}");
    request.options = Options { label_selector: Some(selector), ..Options::default() };
    let slices = objects(session, request).await?;
    let endpoints = slices.iter().flat_map(|slice| slice.0["endpoints"].as_array().into_iter().flatten());
    let has = |endpoint: &&Value| {
        let all = endpoint["addresses"].as_array().into_iter().flatten();
        all.filter_map(|has| has.as_str()?.parse::<IpAddr>().ok()).any(|has| has == address)
    };
    let pod = endpoints.filter(has).find_map(|endpoint| endpoint["targetRef"]["name"].as_str());
    Ok(pod.map(|name| End::Pod { namespace: namespace.to_owned(), name: name.to_owned() }))
}

async fn objects(session: &Session, request: podwright_api::Request) -> Result<Vec<Object>, Failure> {
    match session.call(request).await?.body {
        podwright_api::request::Body::List(list) => {
            let read = |item: &bytes::Bytes| Object::from_slice(item);
            Ok(list.items.iter().map(read).collect::<Result<_, Status>>()?)
        }
        _ => Err(Status::internal("the server did not answer with a list").into()),
    }
}
