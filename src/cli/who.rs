//! `who`: the owner of a kernel object: its container and Pod, the Pod's controllers, who applied them, and the manifest's field.
//!
//! All is read as the user: the node's Pods one by one as `inspect` shows them, and their controllers.

use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Outcome, Session,
    error::Failure,
    image,
    inspect::{self, list},
    page::Page,
    pods::kind_of,
    print::{self, Format},
    target::{Selection, Target},
};
use find::Hit;
use owners::Owner;
use podwright_api::{Object, rpc::InspectOptions};
use question::Question;

mod find;
mod owners;
mod question;

#[derive(clap::Args)]
pub struct Args {
    /// PID, netns:INODE (also pidns, mntns, ...), cgroup PATH, veth NAME, mount PATH, nft ELEMENT, port NUMBER
    #[arg(required = true, value_name = "OBJECT")]
    object: Vec<String>,
    /// The node that has it; not needed if there is only one
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Output format: json, yaml, jsonpath=TEMPLATE
    #[arg(long, short = 'o', value_name = "FORMAT")]
    output: Option<Format>,
}

/// An object with its owners.
#[derive(Serialize)]
struct Answer {
    object: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    /// The Pod or Service first.
    owners: Vec<Owner>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let question = Question::parse(&args.object)?;
    let node = image::node(session, args.node).await?;
    let pods = pods_of(session, &node, &question).await?;
    let found = match question {
        Question::Port(port) => ports(session, port, &pods).await,
        _ => search(session, &question, pods).await?,
    };
    if found.is_empty() {
        return Err(Failure::usage(format!("{question} belongs to no Pod of node {node}{}", within(session))));
    }
    let mut answers = Vec::new();
    for (first, hit) in found {
        let owners = owners::chain(session, &first, &hit.field).await;
        answers.push(Answer { object: hit.object, container: hit.container, owners });
    }
    match args.output {
        None | Some(Format::Table | Format::Wide) => out!("{}", page(&answers)),
        Some(format) => {
            let all = json!({ "kind": "OwnerList", "apiVersion": "podwright/v1", "node": node, "items": answers });
            raw!("{}", print::object(&format, &Object(all))?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn within(session: &Session) -> String {
    if session.namespace_given { format!(" in namespace {}", session.namespace) } else { String::new() }
}

/// The objects of a kind, of all namespaces or the given one.
async fn all(session: &Session, kind: &str, field_selector: Option<String>) -> Result<Vec<Object>, Failure> {
    let selection = Selection { field_selector, all_namespaces: !session.namespace_given, ..Selection::default() };
    let target = Target { kind: kind_of(kind), namespace: None, name: None };
    Ok(selection.list(&target, session).await?.0)
}

/// The node's Pods, those first that the question names.
async fn pods_of(session: &Session, node: &str, question: &Question) -> Result<Vec<Object>, Failure> {
    let mut pods = all(session, "pods", Some(format!("spec.nodeName={node}"))).await?;
    pods.retain(|pod| !matches!(pod.at("status.phase").and_then(Value::as_str), Some("Succeeded" | "Failed")));
    pods.sort_by_key(|pod| !question.mentions(pod.uid()));
    Ok(pods)
}

/// Asks the node for one Pod after the other: it inspects one at a time.
async fn search(session: &Session, question: &Question, pods: Vec<Object>) -> Result<Vec<(Object, Hit)>, Failure> {
    let (mut found, mut failure) = (Vec::new(), None);
    for pod in pods {
        let shown = match inspect::view(session, &pod, &InspectOptions::default()).await {
            Ok(shown) => shown,
            // It is gone by now, or not there yet.
            Err(Failure::Server { status, .. }) if status.code == 404 => continue,
            Err(other) => {
                failure.get_or_insert(other);
                continue;
            }
        };
        for hit in find::find(question, &pod, &shown) {
            let first = match &hit.service {
                Some(name) => owners::service(session, name).await?,
                None => pod.clone(),
            };
            found.push((first, hit));
        }
        if question.is_unique() && !found.is_empty() {
            break;
        }
    }
    // What one Pod would have shown might be the answer.
    match failure {
        Some(failure) if found.is_empty() => Err(failure),
        _ => Ok(without_repeats(found)),
    }
}

/// An element leads to each of a Service's Pods, and is one.
fn without_repeats(found: Vec<(Object, Hit)>) -> Vec<(Object, Hit)> {
    let mut once: Vec<(Object, Hit)> = Vec::new();
    for (first, hit) in found {
        if !once.iter().any(|(other, known)| (other.uid(), known) == (first.uid(), &hit)) {
            once.push((first, hit));
        }
    }
    once
}

/// The Services and the containers that have a port. Without leave to list Services, the containers alone.
async fn ports(session: &Session, port: u16, pods: &[Object]) -> Vec<(Object, Hit)> {
    let services = all(session, "services", None).await.unwrap_or_else(|failure| {
        errln!("Warning: Services are not searched: {}", failure.into_error());
        Vec::new()
    });
    let of_services =
        services.iter().flat_map(|service| service_ports(service, port).into_iter().map(move |hit| (service, hit)));
    let of_pods = pods.iter().flat_map(|pod| container_ports(pod, port).into_iter().map(move |hit| (pod, hit)));
    of_services.chain(of_pods).map(|(object, hit)| (object.clone(), hit)).collect()
}

fn service_ports(service: &Object, port: u16) -> Vec<Hit> {
    let hits = list(&service.0["spec"]["ports"]).iter().filter_map(|entry| {
        let field = ["nodePort", "port"].into_iter().find(|field| entry[field] == port)?;
        let name = entry["name"].as_str().map_or_else(|| entry["port"].to_string(), str::to_owned);
        Some(port_hit(field, port, entry, None, format!("spec.ports{{{name}}}.{field}")))
    });
    hits.collect()
}

fn container_ports(pod: &Object, port: u16) -> Vec<Hit> {
    let hits = find::containers(pod).flat_map(|(of, container)| {
        let name = container["name"].as_str().unwrap_or_default();
        list(&container["ports"]).iter().filter_map(move |entry| {
            let field = ["hostPort", "containerPort"].into_iter().find(|field| entry[field] == port)?;
            let path = format!("spec.{of}{{{name}}}.ports{{{}}}.{field}", entry["containerPort"]);
            Some(port_hit(field, port, entry, Some(name.to_owned()), path))
        })
    });
    hits.collect()
}

fn port_hit(of: &str, port: u16, entry: &Value, container: Option<String>, field: String) -> Hit {
    let protocol = entry["protocol"].as_str().unwrap_or("TCP");
    Hit { object: format!("{of} {port}/{protocol}"), container, field, service: None }
}

fn page(answers: &[Answer]) -> Page {
    let mut page = Page::default();
    for answer in answers {
        page.line(0, format!("Object:\t{}", answer.object));
        page.optional(1, "Container", answer.container.as_deref().unwrap_or_default());
        for owner in &answer.owners {
            let name = owner.namespace.as_ref().map_or_else(|| owner.name.clone(), |of| format!("{of}/{}", owner.name));
            page.line(1, format!("{}:\t{name}", owner.kind));
            page.optional(2, "Field", owner.field.as_deref().unwrap_or_default());
            if let Some(by) = &owner.manager {
                let time = by.time.as_deref().map(|time| format!(" at {time}")).unwrap_or_default();
                page.line(2, format!("Applied by:\t{} ({}){time}", by.name, by.operation));
            }
            page.optional(2, "Unknown", owner.unknown.as_deref().unwrap_or_default());
        }
    }
    page
}
