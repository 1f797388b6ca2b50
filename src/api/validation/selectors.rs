//! Label selectors in objects, and their limits.
//!
//! Upstream has no limits; but a stored selector is evaluated for every related object that changes, and one object has room for
//! tens of thousands of requirements.

use super::{At, Errors, metadata, names};

/// The most requirements in a selector, `matchLabels` and `matchExpressions` together.
pub const MAX_REQUIREMENTS: usize = 256;
/// The most values in its requirements, all together.
pub const MAX_VALUES: usize = 1000;
/// The most requirements and values in all selectors of an object that are evaluated together.
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

/// A selector in the form of a label map, as in a Service, or a Pod's `nodeSelector`.
pub fn label_map(at: &At<'_>, errs: &mut Errors) {
    errs.at_most(at, MAX_REQUIREMENTS);
    metadata::labels(at, errs);
}

/// The limits of a selector with a list of requirements, and `beside` other ones.
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

/// The maximum lookups and comparisons of a `metav1.LabelSelector` for one object.
pub fn lookups(at: &At<'_>) -> usize {
    let expressions = at.get("matchExpressions");
    at.get("matchLabels").len() + expressions.len() + values(&expressions)
}

fn values(expressions: &At<'_>) -> usize {
    expressions.items().map(|it| it.get("values").len()).sum()
}
