//! Paths in a Pod's spec.

use crate::validation::{At, Errors};

/// A relative path without `..`.
pub fn descending(at: &At<'_>, errs: &mut Errors) {
    if at.str().starts_with('/') {
        errs.invalid(&at.path, at.str(), "must be a relative path");
    }
    no_backsteps(at, errs);
}

pub fn no_backsteps(at: &At<'_>, errs: &mut Errors) {
    if at.str().split('/').any(|part| part == "..") {
        errs.invalid(&at.path, at.str(), "must not contain '..'");
    }
}
