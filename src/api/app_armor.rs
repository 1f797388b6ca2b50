//! AppArmor profiles of Pods: by the fields `appArmorProfile`, or by the annotations that preceded them.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::Object;

/// The prefix of a container's name, on the Pod.
pub const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const LOCALHOST: &str = "localhost/";
/// The longest name of a profile that a field can have, in bytes.
const LONGEST: usize = 4095;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile<'a> {
    Unconfined,
    RuntimeDefault,
    /// A profile loaded on the node, by its name, which may be wrong.
    Localhost(&'a str),
}

impl<'a> Profile<'a> {
    /// Parses an annotation's value, if it is valid.
    pub fn of_annotation(value: &'a str) -> Option<Profile<'a>> {
        match value {
            "unconfined" => Some(Profile::Unconfined),
            "runtime/default" => Some(Profile::RuntimeDefault),
            _ => value.strip_prefix(LOCALHOST).map(Profile::Localhost),
        }
    }

    /// Parses a field; `None` for an unknown type.
    pub fn of_field(kind: &str, localhost: Option<&'a str>) -> Option<Profile<'a>> {
        match kind {
            "Unconfined" => Some(Profile::Unconfined),
            "RuntimeDefault" => Some(Profile::RuntimeDefault),
            "Localhost" => Some(Profile::Localhost(localhost.unwrap_or(""))),
            _ => None,
        }
    }

    fn of_value(field: &'a Value) -> Option<Profile<'a>> {
        Profile::of_field(field["type"].as_str()?, field["localhostProfile"].as_str())
    }

    fn field(self) -> Value {
        match self {
            Profile::Unconfined => json!({ "type": "Unconfined" }),
            Profile::RuntimeDefault => json!({ "type": "RuntimeDefault" }),
            Profile::Localhost(name) => json!({ "type": "Localhost", "localhostProfile": name }),
        }
    }

    /// Whether it can be expressed as a field.
    fn is_valid(self) -> bool {
        !matches!(self, Profile::Localhost(name) if name.is_empty() || name.len() > LONGEST || name.trim() != name)
    }
}

/// An annotation for a container that has no field of its own.
struct Annotated {
    list: &'static str,
    at: usize,
    key: String,
    /// The equivalent field, if it differs from the Pod's own.
    field: Option<Value>,
    /// Whether its author is warned to use the field.
    outdated: bool,
}

fn annotated(pod: &Object) -> Vec<Annotated> {
    let spec = &pod.0["spec"];
    let of_pod = &spec["securityContext"]["appArmorProfile"];
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    if spec["os"]["name"] == "windows" {
        return found;
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (at, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            let key = format!("{ANNOTATION}{}", container["name"].as_str().unwrap_or(""));
            let Some(value) = pod.annotation(&key) else { continue };
            // Of containers with the same name, which are refused, it applies to the first.
            if !seen.insert(key.clone()) {
                continue;
            }
            if !container["securityContext"]["appArmorProfile"].is_null() {
                continue;
            }
            let profile = Profile::of_annotation(value).filter(|profile| profile.is_valid());
            let field = profile.filter(|profile| Profile::of_value(of_pod) != Some(*profile)).map(Profile::field);
            let outdated = profile.is_none() || field.is_some();
            found.push(Annotated { list, at, key, field, outdated });
        }
    }
    found
}

/// Copies annotations into the fields, which count from then on. Upstream's `applyAppArmorVersionSkew`.
pub fn follow_annotations(pod: &mut Object) {
    for Annotated { list, at, field, .. } in annotated(pod) {
        let Some(field) = field else { continue };
        let context = &mut pod.0["spec"][list][at]["securityContext"];
        if context.is_null() {
            *context = json!({});
        }
        if let Some(context) = context.as_object_mut() {
            context.insert("appArmorProfile".into(), field);
        }
    }
}

/// Upstream's warnings about annotations, before [`follow_annotations`].
pub fn warnings(pod: &Object) -> Vec<String> {
    let outdated = annotated(pod).into_iter().filter(|found| found.outdated);
    let warn = |found: Annotated| {
        format!(
            "metadata.annotations[{}]: deprecated since v1.30; use the \"appArmorProfile\" field instead",
            found.key
        )
    };
    outdated.map(warn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise each container would get a copy of one annotation's value.
    #[test]
    fn an_annotation_is_for_one_container() {
        let pod = |profile: &str| {
            let container = json!({ "name": "x", "image": "i" });
            Object(json!({
                "metadata": { "annotations": { format!("{ANNOTATION}x"): format!("{LOCALHOST}{profile}") } },
                "spec": { "containers": [container, container, container] },
            }))
        };
        let followed = |profile: &str| -> Vec<bool> {
            let mut pod = pod(profile);
            follow_annotations(&mut pod);
            let containers = pod.0["spec"]["containers"].as_array().expect("a list").iter();
            containers.map(|c| c["securityContext"]["appArmorProfile"]["localhostProfile"] == profile).collect()
        };
        assert_eq!(followed(&"p".repeat(LONGEST)), [true, false, false]);
        assert_eq!(followed(&"p".repeat(LONGEST + 1)), [false; 3]);
    }
}
