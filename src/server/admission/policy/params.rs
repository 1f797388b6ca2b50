//! The parameters of a policy: the objects that a binding refers to.

use std::sync::Arc;

use crate::admission::review::Review;
use crate::cache::item::Item;
use podwright_api::selector::LabelSelector;
use podwright_api::{Kind, Object, Status};

/// Why a policy has no parameters, in upstream's words: an error of its or the binding's author.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParamsError {
    #[error("paramKind kind `{api_version}, Kind={kind}` not known")]
    UnknownKind { api_version: String, kind: String },
    /// A namespace is given, but the kind is cluster-scoped.
    #[error("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")]
    Namespace,
    /// No namespace is given, but the kind is namespaced.
    #[error("cannot use namespaced paramRef in policy with cluster-scoped resource")]
    NoNamespace,
    #[error("{}", .0.message)]
    Selector(Status),
    /// None was found, and the binding does not allow that.
    #[error("no params found for policy binding with `Deny` parameterNotFoundAction")]
    NotFound,
}

/// The sets of parameters that a policy is asked with: one of nothing where it takes none. They are decoded one at a time: whoever
/// makes them decides how many there are.
pub(super) fn of(
    review: &Review<'_>,
    policy: &Object,
    binding: &Object,
) -> Result<Vec<Option<Arc<Item>>>, ParamsError> {
    let (kind, reference) = (&policy.0["spec"]["paramKind"], &binding.0["spec"]["paramRef"]);
    if kind.is_null() || reference.is_null() {
        return Ok(vec![None]);
    }
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("").to_owned();
    let (api_version, kind) = (text(&kind["apiVersion"]), text(&kind["kind"]));
    let Some(row) = review.server.kinds().of(&api_version, &kind).map(Kind::stored) else {
        return Err(ParamsError::UnknownKind { api_version, kind });
    };
    let given = text(&reference["namespace"]);
    let namespace = match (row.namespaced, given.as_str()) {
        (false, "") => None,
        (false, _) => return Err(ParamsError::Namespace),
        (true, "") if review.namespace().is_empty() => return Err(ParamsError::NoNamespace),
        (true, "") => Some(review.namespace()),
        (true, given) => Some(given),
    };
    let resource = row.exact();
    let found: Vec<Arc<Item>> = match reference["name"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => review.item(&resource, namespace, name).into_iter().collect(),
        None => {
            let selector = LabelSelector::from_json(&reference["selector"]).map_err(ParamsError::Selector)?;
            let mut all = review.items(&resource, namespace);
            all.retain(|item| selector.matches(|key| item.label(key)));
            all
        }
    };
    if found.is_empty() && reference["parameterNotFoundAction"] != "Allow" {
        return Err(ParamsError::NotFound);
    }
    Ok(found.into_iter().map(Some).collect())
}
