//! Prevents privilege escalation: the checks on writes of roles and bindings, and (in [`params`]) of admission policies.

use super::grants::GROUP;
use super::missing::missing;
use super::rule::{Rule, quoted};
use super::rule_index::TooMuch;
use super::{
    admin_access,
    attributes::{Attributes, Decision, MASTERS},
    params,
};
use crate::Server;
use crate::resolved_request::ResolvedRequest;
use podwright_api::{Object, Status};

/// The rules of a role that grants everything, required to write an aggregation rule.
pub(super) fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule { api_groups: all(), resources: all(), verbs: all(), ..Rule::default() },
        Rule { non_resource_urls: all(), verbs: all(), ..Rule::default() },
    ]
}

/// Refuses a write by which its user would gain, or grant, more than they have.
pub(crate) fn may_grant(
    server: &Server,
    call: &ResolvedRequest,
    new: &Object,
    old: Option<&Object>,
) -> Result<(), Status> {
    admin_access::check(server, call, new, old)?;
    let check: Check = match call.kind.built_in() {
        "Role" | "ClusterRole" => role,
        "RoleBinding" | "ClusterRoleBinding" => binding,
        "ValidatingAdmissionPolicy" => params::of_policy,
        "ValidatingAdmissionPolicyBinding" => params::of_binding,
        _ => return Ok(()),
    };
    match call.user.is_in(MASTERS) || old.is_some_and(|old| is_left_alone(new, old)) {
        true => Ok(()),
        false => check(server, call, new, old),
    }
}

/// The check of a write: the new object and the old one.
type Check = fn(&Server, &ResolvedRequest, &Object, Option<&Object>) -> Result<(), Status>;

/// Whether only fields that the garbage collector writes have changed.
fn is_left_alone(new: &Object, old: &Object) -> bool {
    let stripped = |object: &Object| {
        let mut object = object.clone();
        for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
            object.set_meta(field, None);
        }
        object
    };
    stripped(new) == stripped(old)
}

fn role(server: &Server, call: &ResolvedRequest, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    let escalate = Attributes {
        namespace: call.within(),
        name: new.name(),
        ..Attributes::new(&call.user, "escalate", GROUP, call.kind.plural)
    };
    if server.authorizer.decide(&escalate) == Decision::Allow {
        return Ok(());
    }
    holds(server, call, &rules_of(new)?)?;
    let aggregates = |object: &Object| object.at("aggregationRule").is_some();
    if aggregates(new) || old.is_some_and(aggregates) {
        holds(server, call, &everything())
            .map_err(|_| call.forbidden("must have cluster-admin privileges to use an aggregationRule"))?;
    }
    Ok(())
}

fn binding(server: &Server, call: &ResolvedRequest, new: &Object, _: Option<&Object>) -> Result<(), Status> {
    let role_ref = &new.0["roleRef"];
    let bind = Attributes {
        namespace: call.within(),
        name: role_ref["name"].as_str().unwrap_or(""),
        ..Attributes::new(&call.user, "bind", GROUP, if role_ref["kind"] == "Role" { "roles" } else { "clusterroles" })
    };
    if server.authorizer.decide(&bind) == Decision::Allow {
        return Ok(());
    }
    holds(server, call, &server.authorizer.rbac.role_of(role_ref, call.within())?.rules)
}

/// Whether the user has all of these.
fn holds(server: &Server, call: &ResolvedRequest, wanted: &[Rule]) -> Result<(), Status> {
    let granted = server.authorizer.rbac.rules(&call.user, call.within());
    let missing = missing(granted.rules(), wanted).map_err(|TooMuch| {
        call.forbidden("the rules are too many to compare with those that the user holds; grant them by several roles")
    })?;
    if missing.is_empty() {
        return Ok(());
    }
    let mut why = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        call.user.name,
        quoted(&call.user.groups),
        told(missing)
    );
    if !granted.errors.is_empty() {
        why = format!("{why}; resolution errors: [{}]", granted.errors.join(" "));
    }
    Err(call.forbidden(why))
}

/// The most bytes of missing rules in a message. (Upstream lists all of them, however long.)
const TOLD: usize = 16 << 10;

/// The missing rules, one per line.
fn told(missing: Vec<Rule>) -> String {
    let mut lines: Vec<String> = missing.iter().map(Rule::to_string).collect();
    lines.sort();
    lines.dedup();
    let mut left = TOLD;
    let mut fits = |line: &String| {
        let rest = left.checked_sub(line.len() + 1);
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    let whole = lines.iter().map_while(|line| fits(line).then_some(())).count();
    let others = lines.len() - whole;
    lines.truncate(whole);
    if others > 0 {
        lines.push(match whole {
            0 => format!("{others} rules, which are too long to be told"),
            _ => format!("and {others} more"),
        });
    }
    lines.join("\n")
}

fn rules_of(role: &Object) -> Result<Vec<Rule>, Status> {
    let rules = role.at("rules").cloned().unwrap_or_else(|| serde_json::json!([]));
    serde_json::from_value(rules).map_err(|why| Status::bad_request(why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_as_far_as_somebody_reads_it() {
        let rule = |name: String| Rule { verbs: vec![name], ..Rule::default() };
        let all: Vec<Rule> = (0..50).map(|i| rule(format!("v{i}"))).collect();
        assert_eq!(told([&all[..], &all].concat()).lines().count(), 50);
        let many = told((0..100_000).map(|i| rule(format!("v{i:06}"))).collect());
        assert!(many.len() < TOLD + 100, "{}", many.len());
        assert!(many.starts_with("{Verbs:[\"v000000\"]}\n") && many.ends_with(" more"), "{}", &many[TOLD - 100..]);
        assert_eq!(told(vec![rule("x".repeat(1 << 20))]), "1 rules, which are too long to be told");
    }
}
