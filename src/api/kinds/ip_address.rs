//! IPAddress (networking.k8s.io/v1).

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text};
use crate::validation::{At, Errors, NameRule, path_segment};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    short_names: &["ip"],
    columns: &[NAME, column("PARENTREF", |o, _| parent(o)), AGE],
    strategy: Strategy { validate, validate_update, name: NameRule::PathSegment, ..Strategy::PLAIN },
    ..Kind::of::<k8s_openapi::api::networking::v1::IPAddress>("ipaddress")
};

/// `services/default/kubernetes`
fn parent(it: &Object) -> String {
    let part = |field: &str| text(it, &format!("spec.parentRef.{field}"));
    let group = part("group");
    let resource = if group.is_empty() { part("resource") } else { format!("{}.{group}", part("resource")) };
    let all = [resource, part("namespace"), part("name")];
    all.iter().filter(|s| !s.is_empty()).map(String::as_str).collect::<Vec<_>>().join("/")
}

fn validate(it: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    match it.name().parse::<std::net::IpAddr>() {
        Ok(ip) if ip.to_string() != it.name() => {
            errs.invalid("metadata.name", it.name(), format!("must be in canonical form (\"{ip}\")"));
        }
        Ok(_) => {}
        Err(_) => {
            errs.invalid("metadata.name", it.name(), "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
        }
    }
    let parent = At::root(&it.0).get("spec").get("parentRef");
    if !parent.is_set() {
        errs.required(&parent.path, "");
        return errs.0;
    }
    for field in ["resource", "name"] {
        let at = parent.get(field);
        match at.is_empty() {
            true => errs.required(&at.path, ""),
            false => errs.invalid_each(&at.path, at.str(), path_segment(at.str())),
        }
    }
    errs.0
}

fn validate_update(new: &Object, old: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let at = |o| At::root(o).get("spec").get("parentRef");
    errs.immutable(&at(&new.0), &at(&old.0));
    errs.0
}
