//! Annotations with AppArmor profiles: each must refer to a container, have a valid profile, and match the container's field.

use std::collections::HashSet;

use super::super::{At, Errors};
use crate::app_armor::{ANNOTATION, Profile};

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Upstream's `ValidateAppArmorPodAnnotations`, and its check of annotations against fields.
pub fn annotations(annotations: &At<'_>, spec: &At<'_>, errs: &mut Errors) {
    let named = |list: &&'static str| spec.get(list).items().map(|container| container.get("name").str());
    let names: HashSet<&str> = LISTS.iter().flat_map(named).collect();
    for (key, value) in annotations.entries() {
        let Some(name) = key.strip_prefix(ANNOTATION) else { continue };
        let path = format!("{}[{key}]", annotations.path);
        if !names.contains(name) {
            errs.invalid(&path, name, "container not found");
        }
        if !value.str().is_empty() && Profile::of_annotation(value.str()).is_none() {
            errs.invalid(&path, value.str(), format!("invalid AppArmor profile name: {:?}", value.str()));
        }
    }
    if spec.get("os").get("name").str() == "windows" {
        return;
    }
    for list in LISTS {
        for container in spec.get(list).items() {
            let field = container.get("securityContext").get("appArmorProfile");
            let key = format!("{ANNOTATION}{}", container.get("name").str());
            if let Some(annotation) = annotations.value.get(&key).and_then(|value| value.as_str()) {
                agrees(annotation, &field, errs);
            }
        }
    }
}

fn agrees(annotation: &str, field: &At<'_>, errs: &mut Errors) {
    let (kind, local) = (field.get("type"), field.get("localhostProfile"));
    // Other rules report invalid profiles.
    let Some(of_field) = Profile::of_field(kind.str(), Some(local.str())) else { return };
    match (of_field, Profile::of_annotation(annotation)) {
        (Profile::Localhost(one), Some(Profile::Localhost(other))) if one != other => {
            errs.forbidden(&local.path, "apparmor profile in annotation and field must match");
        }
        (of_field, Some(other)) if std::mem::discriminant(&of_field) == std::mem::discriminant(&other) => {}
        _ => errs.forbidden(&kind.path, "apparmor type in annotation and field must match"),
    }
}
