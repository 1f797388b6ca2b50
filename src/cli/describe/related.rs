//! Objects related to a described one: its events, Pods, ReplicaSets, EndpointSlices, Lease.

use serde_json::Value;

use crate::{
    Session,
    describe::own_page,
    error::Failure,
    pods::{self, kind_of},
    target::{Selection, Target},
};
use podwright_api::{Kind, Object, selector::LabelSelector};

#[derive(Default)]
pub struct Related {
    /// `None`: the description has no such section.
    pub events: Option<Vec<Object>>,
    /// The Pods on a node, of a set, or those that use a claim.
    pub pods: Vec<Object>,
    pub sets: Vec<Object>,
    pub slices: Vec<Object>,
    pub lease: Option<Object>,
}

pub async fn fetch(session: &Session, kind: &Kind, object: &Object, events: bool) -> Result<Related, Failure> {
    let mut related = Related::default();
    let namespace = object.namespace();
    let list = async |of: &str, namespace: Option<&str>, label: Option<String>, field: Option<String>| {
        let selection = Selection {
            all_namespaces: namespace.is_none(),
            selector: label,
            field_selector: field,
            ..Selection::default()
        };
        let target = Target { kind: kind_of(of), namespace: namespace.map(str::to_owned), name: None };
        Ok::<_, Failure>(selection.list(&target, session).await?.0)
    };
    match own_page(kind) {
        "Node" => {
            related.pods = list("pods", None, None, Some(format!("spec.nodeName={}", object.name()))).await?;
            related.lease = session.get(kind_of("leases"), Some("kube-node-lease"), object.name()).await.ok();
        }
        "Service" => {
            let label = format!("kubernetes.io/service-name={}", object.name());
            related.slices = list("endpointslices", namespace, Some(label), None).await?;
        }
        "Deployment" => {
            related.sets = list("replicasets", namespace, None, None).await?;
            related.sets.retain(|set| set.controller().is_some_and(|owner| owner.uid == object.uid()));
        }
        "ReplicaSet" | "StatefulSet" | "DaemonSet" => {
            let selector = LabelSelector::from_optional_json(object.at("spec.selector"))?.unwrap_or_default();
            related.pods = pods::select(session, namespace, &selector.to_string()).await?;
            related.pods.retain(|pod| pod.controller().is_some_and(|owner| owner.uid == object.uid()));
        }
        "PersistentVolumeClaim" => {
            related.pods = list("pods", namespace, None, None).await?;
            related.pods.retain(|pod| uses(pod, object));
        }
        _ => {}
    }
    // As upstream, which does not show events for these.
    if events && !matches!(kind.built_in(), "Secret" | "Namespace" | "Event") {
        let mut field = format!("involvedObject.kind={},involvedObject.name={}", kind.kind, object.name());
        if kind.built_in() != "Node" {
            field += &format!(",involvedObject.uid={}", object.uid());
        }
        related.events = Some(list("events", namespace, None, Some(field)).await?);
    }
    Ok(related)
}

/// Whether a Pod mounts a claim, or owns it.
fn uses(pod: &Object, claim: &Object) -> bool {
    let mut volumes = list_at(pod, "spec.volumes");
    let mut owners = list_at(claim, "metadata.ownerReferences");
    volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == claim.name())
        || owners.any(|owner| owner["kind"] == "Pod" && owner["uid"] == pod.uid())
}

fn list_at<'a>(object: &'a Object, path: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object.at(path).and_then(Value::as_array).into_iter().flatten()
}
