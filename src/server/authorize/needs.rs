//! Which objects a Pod needs on its node, and so what that node's agent may read.

use podwright_api::Object;
use podwright_api::pod_references::{self, MIRROR, Reference};

/// A Pod's node, and what it needs. For a large Pod it is parsed when the cache receives it, before any request depends on it.
#[derive(Debug)]
pub(crate) struct Needs {
    pub(super) node: String,
    pub(super) things: Vec<String>,
}

impl Needs {
    /// `None`: the Pod has no node.
    pub(super) fn of(bytes: &[u8]) -> Option<Needs> {
        let pod = Object::from_slice(bytes).ok()?;
        let node = pod.0["spec"]["nodeName"].as_str().filter(|node| !node.is_empty())?.to_owned();
        let namespace = pod.namespace().unwrap_or("");
        let mut things = vec![thing("pods", namespace, pod.name())];
        // Nodes create mirror Pods themselves; these grant nothing.
        if pod.annotation(MIRROR).is_none() {
            let named = pod_references::all(&pod).into_iter().chain(made_claims(&pod));
            let named = named.filter(|(_, name)| !name.is_empty());
            things.extend(named.map(|(resource, name)| thing(resource, namespace, &name)));
        }
        things.sort();
        things.dedup();
        Some(Needs { node, things })
    }
}

/// The resource claims that were generated from templates for a Pod.
fn made_claims(pod: &Object) -> impl Iterator<Item = Reference> {
    let statuses = pod.0["status"]["resourceClaimStatuses"].as_array().into_iter().flatten();
    let names = statuses.filter_map(|status| status["resourceClaimName"].as_str());
    names.map(|name| ("resourceclaims", name.to_owned()))
}

pub(super) fn thing(resource: &str, namespace: &str, name: &str) -> String {
    format!("{resource}/{namespace}/{name}")
}
