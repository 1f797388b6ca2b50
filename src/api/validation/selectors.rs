//! Selectors of labels as objects have them, and how large they may be.
//!
//! Upstream has no bounds; but a selector that is stored is asked of every object that changes near it, for as long as it is there,
//! and one object has room for tens of thousands of requirements.

use super::{At, Errors, metadata, names};

/// How many requirements a selector has at most, `matchLabels` and `matchExpressions` together.
pub const MAX_REQUIREMENTS: usize = 256;
/// How many values its requirements have at most, all together.
pub const MAX_VALUES: usize = 1000;
/// How many requirements and values those selectors of an object have together that are asked one after the other.
pub const MAX_OF_ALL: usize = 4096;

/// A `metav1.LabelSelector`.
pub fn label_selector(at: &At<'_>, errs: &mut Errors) {
    let (labels, expressions) = (at.get("matchLabels"), at.get("matchExpressions"));
    bounds(at, labels.len(), &expressions, errs);
    metadata::labels(&labels, errs);
    for it in expressions.items() {
        let values = it.get("values");
        match it.get("operator").str() {
            "In" | "NotIn" if values.is_empty() => {
                errs.required(&values.path, "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errs.forbidden(&values.path, why);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errs.invalid(it.path("operator"), other, "not a valid selector operator"),
        }
        let key = it.get("key");
        errs.invalid_each(&key.path, key.str(), names::qualified_name(key.str()));
        for value in values.items() {
            errs.invalid_each(&value.path, value.str(), names::label_value(value.str()));
        }
    }
}

/// A selector that is a map of labels, as a Service's, or a Pod's `nodeSelector`.
pub fn label_map(at: &At<'_>, errs: &mut Errors) {
    errs.at_most(at, MAX_REQUIREMENTS);
    metadata::labels(at, errs);
}

/// The bounds of a selector with requirements in a list, and so many beside it.
pub fn bounds(at: &At<'_>, beside: usize, expressions: &At<'_>, errs: &mut Errors) {
    let requirements = beside + expressions.len();
    if requirements > MAX_REQUIREMENTS {
        errs.too_many(&at.path, requirements, MAX_REQUIREMENTS);
    }
    let values = values(expressions);
    if values > MAX_VALUES {
        errs.too_many_of(&expressions.path, values, MAX_VALUES, "values");
    }
}

/// How many look-ups and comparisons a `metav1.LabelSelector` takes at most for one object.
pub fn lookups(at: &At<'_>) -> usize {
    let expressions = at.get("matchExpressions");
    at.get("matchLabels").len() + expressions.len() + values(&expressions)
}

fn values(expressions: &At<'_>) -> usize {
    expressions.items().map(|it| it.get("values").len()).sum()
}
