//! The parameters of a policy: the objects that a binding names.

use crate::admission::Review;
use podwright_api::selector::LabelSelector;
use podwright_api::{Kind, Object};

/// The sets of parameters that a policy is asked with: one of nothing where it takes none. The error is one of the policy's
/// or the binding's author.
pub(super) fn of(review: &Review<'_>, policy: &Object, binding: &Object) -> Result<Vec<Option<Object>>, String> {
    let (kind, reference) = (&policy.0["spec"]["paramKind"], &binding.0["spec"]["paramRef"]);
    if kind.is_null() || reference.is_null() {
        return Ok(vec![None]);
    }
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("").to_owned();
    let (api_version, name) = (text(&kind["apiVersion"]), text(&kind["kind"]));
    let row = review.server.kinds().of(&api_version, &name).map(Kind::stored);
    let row = row.ok_or_else(|| format!("paramKind kind `{api_version}, Kind={name}` not known"))?;
    let given = text(&reference["namespace"]);
    let namespace = match (row.namespaced, given.as_str()) {
        (false, "") => None,
        (false, _) => return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned()),
        (true, "") if review.namespace().is_empty() => {
            return Err("cannot use namespaced paramRef in policy with cluster-scoped resource".to_owned());
        }
        (true, "") => Some(review.namespace()),
        (true, given) => Some(given),
    };
    let resource = row.exact();
    let found: Vec<Object> = match reference["name"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => review.get(&resource, namespace, name).into_iter().collect(),
        None => {
            let selector = LabelSelector::from_json(&reference["selector"]).map_err(|why| why.message)?;
            let mut all = review.list(&resource, namespace);
            all.retain(|object| selector.matches_labels(object.labels()));
            all
        }
    };
    if found.is_empty() && reference["parameterNotFoundAction"] != "Allow" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(found.into_iter().map(Some).collect())
}
