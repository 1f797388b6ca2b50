//! Tokens: a node gets them for its own Pods, and for audiences that these request (upstream's
//! `ServiceAccountNodeAudienceRestriction`).

use serde_json::Value;

use super::super::{operation::Operation, review::Review};
use crate::authorize::attributes::Attributes;
use podwright_api::pod_references::own_claim;
use podwright_api::{Object, Status};

pub(super) fn request(review: &Review<'_>, node: &str, request: &Object) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(request, why));
    if review.operation != Operation::Create {
        return Ok(());
    }
    let bound_to = &request.0["spec"]["boundObjectRef"];
    let text = |field: &str| bound_to[field].as_str().unwrap_or("");
    let (name, uid) = (text("name"), text("uid"));
    if text("apiVersion") != "v1" || text("kind") != "Pod" || name.is_empty() {
        return refuse("node requested token not bound to a pod".into());
    }
    if uid.is_empty() {
        return refuse("node requested token with a pod binding without a uid".into());
    }
    let Some(pod) = review.get("pods", Some(review.namespace()), name) else {
        return Err(Status::not_found("pods", "", name));
    };
    if uid != pod.uid() {
        return refuse(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        ));
    }
    if pod.0["spec"]["nodeName"] != node {
        return refuse("node requested token bound to a pod scheduled on a different node".into());
    }
    let audiences: Vec<&str> = items(&request.0["spec"]["audiences"]).filter_map(Value::as_str).collect();
    let audience = match audiences[..] {
        [] => "",
        [one] => one,
        _ => return refuse("node may only request 0 or 1 audiences".into()),
    };
    let granted = Attributes {
        namespace: review.namespace(),
        name: review.call.name(),
        ..Attributes::new(&review.call.user, "request-serviceaccounts-token-audience", "", audience)
    };
    match is_wanted(review, &pod, audience) || review.server.authorizer.authorize(&granted).is_ok() {
        true => Ok(()),
        false => refuse(format!(
            "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
            review.call.user.name
        )),
    }
}

/// Whether the Pod has a volume that projects a token for this audience, or whose driver requests one.
fn is_wanted(review: &Review<'_>, pod: &Object, audience: &str) -> bool {
    items(&pod.0["spec"]["volumes"]).any(|volume| {
        let projected = items(&volume["projected"]["sources"]).map(|source| &source["serviceAccountToken"]);
        let mut tokens = projected.filter(|token| token.is_object());
        tokens.any(|token| token["audience"].as_str().unwrap_or("") == audience)
            || driver(review, pod, volume).is_some_and(|driver| is_given(review, &driver, audience))
    })
}

/// The CSI driver of a volume: named inline, or by the volume that its claim is bound to.
fn driver(review: &Review<'_>, pod: &Object, volume: &Value) -> Option<String> {
    if let Some(driver) = volume["csi"]["driver"].as_str() {
        return Some(driver.to_owned());
    }
    let claim = match volume["ephemeral"].is_object() {
        true => own_claim(pod, volume),
        false => volume["persistentVolumeClaim"]["claimName"].as_str()?.to_owned(),
    };
    let claim = review.get("persistentvolumeclaims", Some(review.namespace()), &claim)?;
    let volume = review.get("persistentvolumes", None, claim.0["spec"]["volumeName"].as_str()?)?;
    volume.0["spec"]["csi"]["driver"].as_str().map(str::to_owned)
}

fn is_given(review: &Review<'_>, driver: &str, audience: &str) -> bool {
    review.get("csidrivers.storage.k8s.io", None, driver).is_some_and(|driver| {
        items(&driver.0["spec"]["tokenRequests"]).any(|request| request["audience"].as_str().unwrap_or("") == audience)
    })
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
