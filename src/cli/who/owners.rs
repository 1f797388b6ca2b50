//! From an object up to who applied it: its controllers, the managers of their specs, and the field of each that it comes from.

use serde::Serialize;
use serde_json::Value;

use crate::{Session, error::Failure, inspect::list, known};
use podwright_api::Object;

/// Maximum length of a chain: owner references are users' words, and may lead in a circle.
const MOST: usize = 8;

/// One object of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    pub api_version: String,
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
    /// Where the field is in this object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<Manager>,
    /// Why no more is known of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// Who wrote an object's spec last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Manager {
    pub name: String,
    pub operation: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
}

/// The object and its controllers, the topmost last.
pub async fn chain(session: &Session, first: &Object, field: &str) -> Vec<Owner> {
    let mut chain = vec![owner(first, field)];
    let (mut object, namespace) = (first.clone(), first.namespace().map(str::to_owned));
    while let Some(reference) = object.controller().filter(|_| chain.len() < MOST) {
        let types = (reference.api_version.as_str(), reference.kind.as_str());
        known::learn_of_types(session, [types]).await;
        let found = match known::kinds().of(types.0, types.1) {
            Some(kind) => {
                session.get(kind, namespace.as_deref(), &reference.name).await.map_err(|status| status.message)
            }
            None => Err("the server does not have its type".to_owned()),
        };
        // A namesake that was made later is not the owner.
        let found = found.and_then(|it| if it.uid() == reference.uid { Ok(it) } else { Err("it is gone".to_owned()) });
        object = match found {
            Ok(found) => found,
            Err(why) => {
                let (api_version, kind) = (reference.api_version, reference.kind);
                let (name, uid) = (reference.name, reference.uid);
                chain.push(Owner { api_version, kind, name, uid, unknown: Some(why), ..Owner::default() });
                break;
            }
        };
        chain.push(owner(&object, field));
    }
    chain
}

/// A Service's own chain, by `namespace/name`.
///
/// # Errors
///
/// It cannot be read.
pub async fn service(session: &Session, name: &str) -> Result<Object, Failure> {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    Ok(session.get(crate::pods::kind_of("services"), Some(namespace), name).await?)
}

fn owner(object: &Object, field: &str) -> Owner {
    Owner {
        api_version: object.api_version().to_owned(),
        kind: object.kind().to_owned(),
        namespace: object.namespace().map(str::to_owned),
        name: object.name().to_owned(),
        uid: object.uid().to_owned(),
        field: field_in(object.kind(), field),
        manager: manager(object),
        unknown: None,
    }
}

/// Where kinds keep the template of the Pods that they lead to.
const TEMPLATES: [(&str, &str); 7] = [
    ("Deployment", "spec.template."),
    ("ReplicaSet", "spec.template."),
    ("StatefulSet", "spec.template."),
    ("DaemonSet", "spec.template."),
    ("ReplicationController", "spec.template."),
    ("Job", "spec.template."),
    ("CronJob", "spec.jobTemplate.spec.template."),
];

/// A field of a Pod or Service in an object of this kind. A status comes from no template.
fn field_in(kind: &str, field: &str) -> Option<String> {
    if matches!(kind, "Pod" | "Service") {
        return Some(field.to_owned());
    }
    let (_, template) = TEMPLATES.into_iter().find(|(of, _)| *of == kind)?;
    (!field.starts_with("status")).then(|| format!("{template}{field}"))
}

/// The manager with the latest operation on the spec.
fn manager(object: &Object) -> Option<Manager> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_spec = |entry: &&Value| text(&entry["subresource"]).is_empty() && entry["fieldsV1"].get("f:spec").is_some();
    let last =
        list(object.at("metadata.managedFields")?).iter().filter(of_spec).max_by_key(|entry| text(&entry["time"]))?;
    let (name, operation) = (text(&last["manager"]), text(&last["operation"]));
    Some(Manager { name, operation, time: last["time"].as_str().map(str::to_owned) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_writer_of_the_spec_is_the_manager() {
        let entry = |name: &str, time: &str, part: &str, subresource: &str| json!({ "manager": name, "operation": "Apply", "time": time, "fieldsV1": { part: {} }, "subresource": subresource });
        let entries = [
            entry("kubectl", "2026-01-02T00:00:00Z", "f:spec", ""),
            entry("old", "2026-01-01T00:00:00Z", "f:spec", ""),
            entry("labels", "2026-01-03T00:00:00Z", "f:metadata", ""),
            entry("kubelet", "2026-01-04T00:00:00Z", "f:status", "status"),
            entry("scaler", "2026-01-05T00:00:00Z", "f:spec", "scale"),
        ];
        let found = manager(&Object(json!({ "metadata": { "managedFields": entries } }))).unwrap();
        assert_eq!((found.name.as_str(), found.time.as_deref()), ("kubectl", Some("2026-01-02T00:00:00Z")));
        assert_eq!(manager(&Object(json!({}))), None);
    }

    #[test]
    fn a_field_is_found_in_the_template_of_each_kind() {
        let field = |kind| field_in(kind, "spec.hostNetwork");
        assert_eq!(field("Pod").as_deref(), Some("spec.hostNetwork"));
        assert_eq!(field("Job").as_deref(), Some("spec.template.spec.hostNetwork"));
        assert_eq!(field("CronJob").as_deref(), Some("spec.jobTemplate.spec.template.spec.hostNetwork"));
        assert_eq!((field("Node"), field_in("Job", "status.podIPs")), (None, None));
    }
}
