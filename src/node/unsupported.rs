//! A table of fields that are stored but not acted upon, so that nothing is ignored silently. Fields of volumes are in their kinds'
//! rows.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{spec::PodExt, volumes::kinds::unsupported};

type Rule<T> = (&'static str, fn(&T) -> bool);

const POD: &[Rule<Pod>] =
    &[("spec.resourceClaims", |p| p.spec().resource_claims.as_ref().is_some_and(|c| !c.is_empty()))];

const CONTAINER: &[Rule<Container>] = &[
    ("resources.claims", |c| c.resources.as_ref().is_some_and(|r| r.claims.as_ref().is_some_and(|c| !c.is_empty()))),
    ("resources.limits.hugepages", |c| limit(c, "hugepages-")),
    ("env.valueFrom.fileKeyRef", |c| {
        c.env.iter().flatten().any(|e| e.value_from.as_ref().is_some_and(|v| v.file_key_ref.is_some()))
    }),
];

fn limit(container: &Container, prefix: &str) -> bool {
    let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
    limits.is_some_and(|l| l.keys().any(|k| k.starts_with(prefix)))
}

/// The paths of all fields of a Pod that this node does not act upon.
pub fn fields(pod: &Pod) -> Vec<String> {
    let mut found: Vec<String> = POD.iter().filter(|(_, set)| set(pod)).map(|(path, _)| (*path).to_owned()).collect();
    for part in pod.parts() {
        // spec.containers{web} -> spec.containers[web]
        let place = part.path().replace('{', "[").replace('}', "]");
        let rules = CONTAINER.iter().filter(|(_, set)| set(&part.container));
        found.extend(rules.map(|(path, _)| format!("{place}.{path}")));
    }
    for volume in pod.spec().volumes.iter().flatten() {
        found.extend(unsupported(volume).into_iter().map(|path| format!("spec.volumes[{}].{path}", volume.name)));
    }
    found
}
