//! `cluster-info`: the addresses of the control plane and the cluster's services.

use std::process::ExitCode;

use super::{
    Outcome, Session,
    pods::kind_of,
    target::{Selection, Target},
};

/// The label of the cluster's own services, as upstream.
const CLUSTER_SERVICE: &str = "kubernetes.io/cluster-service=true";

#[derive(clap::Args)]
pub struct Args {}

pub async fn run(_: Args, session: &Session) -> Outcome {
    let target = Target { kind: kind_of("services"), namespace: Some("kube-system".to_owned()), name: None };
    let selection = Selection { selector: Some(CLUSTER_SERVICE.to_owned()), ..Selection::default() };
    let (services, _) = selection.list(&target, session).await?;
    outln!("Kubernetes control plane is running at unix://{}", session.socket().display());
    for service in services {
        let name = service.label("kubernetes.io/name").unwrap_or(service.name()).to_owned();
        let port = service.0["spec"]["ports"][0]["name"].as_str().map(|port| format!(":{port}")).unwrap_or_default();
        outln!("{name} is running at /api/v1/namespaces/kube-system/services/{}{port}/proxy", service.name());
    }
    outln!("");
    outln!("For the protections in force on this host and in its cluster, use 'podwright doctor'.");
    Ok(ExitCode::SUCCESS)
}
