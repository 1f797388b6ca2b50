//! `expose`: creates a Service for the Pods of an object.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::{
    Outcome, Session,
    error::Failure,
    pods::kind_of,
    target::{Selection, Target},
    write::Writing,
};
use podwright_api::{FieldValidation, Object};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// The port that the service should serve on [default: that of the resource]
    #[arg(long)]
    port: Option<u16>,
    /// Name or number for the port on the container [default: the service's port]
    #[arg(long)]
    target_port: Option<String>,
    /// The network protocol for the service: TCP, UDP, SCTP
    #[arg(long, default_value = "TCP")]
    protocol: String,
    /// The name for the newly created object [default: that of the resource]
    #[arg(long)]
    name: Option<String>,
    /// Type for this service: ClusterIP, NodePort, LoadBalancer
    #[arg(long = "type", default_value = "ClusterIP", value_parser = ["ClusterIP", "NodePort", "LoadBalancer"])]
    of_type: String,
    /// "None" for a headless Service
    #[arg(long)]
    cluster_ip: Option<String>,
    /// The session affinity for the service: None, ClientIP
    #[arg(long)]
    session_affinity: Option<String>,
    #[command(flatten)]
    writing: Writing,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    for target in args.selection.several(false, session).await? {
        for object in args.selection.fetch(&target, session).await? {
            let service = service(&args, &target, &object).map_err(Failure::usage)?;
            let kind = kind_of("services");
            let made = args.writing.create(session, kind, &service, FieldValidation::Strict).await?;
            args.writing.tell(kind, &made, "exposed")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn service(args: &Args, target: &Target, object: &Object) -> Result<Object, String> {
    let ports = match args.port {
        Some(port) => vec![(port, args.protocol.clone())],
        None => ports(target, object),
    };
    if ports.is_empty() {
        return Err("couldn't find port via --port flag or introspection".to_owned());
    }
    let several = ports.len() > 1;
    let one = |(at, (port, protocol)): (usize, (u16, String))| {
        let to = args.target_port.as_ref().map(|t| t.parse::<u16>().map_or_else(|_| json!(t), |n| json!(n)));
        let mut entry = json!({ "port": port, "protocol": protocol, "targetPort": to.unwrap_or_else(|| port.into()) });
        if several {
            entry["name"] = format!("port-{}", at + 1).into();
        }
        entry
    };
    let ports: Vec<Value> = ports.into_iter().enumerate().map(one).collect();
    let mut spec = json!({ "ports": ports, "selector": selector(target, object)?, "type": args.of_type });
    for (field, value) in [("clusterIP", &args.cluster_ip), ("sessionAffinity", &args.session_affinity)] {
        if let Some(value) = value {
            spec[field] = value.as_str().into();
        }
    }
    let name = args.name.as_deref().unwrap_or(object.name());
    let mut metadata = json!({ "name": name, "namespace": object.namespace() });
    if let Some(labels) = object.labels() {
        metadata["labels"] = Value::Object(labels.clone());
    }
    Ok(Object(json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec })))
}

/// The labels that select the object's Pods.
fn selector(target: &Target, object: &Object) -> Result<Map<String, Value>, String> {
    let path = match target.kind.built_in() {
        "Pod" => "metadata.labels",
        "Service" => "spec.selector",
        _ if object.at("spec.selector.matchExpressions").is_some() => {
            return Err("couldn't convert expressions to a map-based selector".to_owned());
        }
        _ => "spec.selector.matchLabels",
    };
    let labels = object.at(path).and_then(Value::as_object).filter(|map| !map.is_empty());
    labels.cloned().ok_or_else(|| format!("cannot expose {}: it selects no Pods", target.kind.plural))
}

/// The containers' ports, or a Service's own.
fn ports(target: &Target, object: &Object) -> Vec<(u16, String)> {
    let of = |port: &Value, field: &str| {
        let number = port[field].as_u64().and_then(|n| u16::try_from(n).ok());
        number.map(|n| (n, port["protocol"].as_str().unwrap_or("TCP").to_owned()))
    };
    let list = |path: &str| object.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    if target.kind.built_in() == "Service" {
        return list("spec.ports").iter().filter_map(|port| of(port, "port")).collect();
    }
    let containers = [list("spec.containers"), list("spec.template.spec.containers")].concat();
    let all = containers.iter().filter_map(|c| c["ports"].as_array()).flatten();
    all.filter_map(|port| of(port, "containerPort")).collect()
}
