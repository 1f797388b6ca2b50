//! The default roles and bindings of every cluster, as upstream's, created and completed at every start.
//!
//! One annotated with `rbac.authorization.kubernetes.io/autoupdate: "false"` is left alone.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::{Value, json};

use super::aggregate::gathered;
use super::grants::{GROUP, selectors_of};
use super::missing::missing;
use super::rule::Rule;
use crate::cache::item::Item;
use crate::large::Weighed;
use crate::{Server, store_error};
use podwright_api::{Kind, Object, Status, kinds};
use podwright_store::{Compare, Outcome, Txn, Write};

mod controllers;
mod roles;

use roles::{ClusterRole, Grant, Scoped};

const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const BOOTSTRAPPING: (&str, &str) = ("kubernetes.io/bootstrapping", "rbac-defaults");
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";
/// How often the defaults are retried after a conflicting write.
const ATTEMPTS: usize = 5;

/// What every node may do regardless of its Pods; see `node`.
pub(super) fn node_rules() -> Vec<Rule> {
    roles::NODE.iter().map(rule).collect()
}

/// Converts a row of the tables.
fn rule(grant: &Grant) -> Rule {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let verbs = words(grant.verbs);
    if !grant.urls.is_empty() {
        return Rule { non_resource_urls: words(grant.urls), verbs, ..Rule::default() };
    }
    let group = |word: &str| if word == "core" { String::new() } else { word.to_owned() };
    Rule {
        api_groups: grant.groups.split_whitespace().map(group).collect(),
        resources: words(grant.resources),
        resource_names: words(grant.names),
        verbs,
        ..Rule::default()
    }
}

fn rules(grants: &[Grant]) -> Value {
    // Strings always encode.
    grants.iter().map(|grant| serde_json::to_value(rule(grant)).unwrap_or_default()).collect()
}

/// The desired RBAC object, without fields that the system adds.
struct Wanted {
    kind: &'static Kind,
    object: Object,
}

fn wanted(plural: &str, namespace: Option<&str>, name: &str, mut rest: Value) -> Result<Wanted, Status> {
    let kind = kinds::lookup(&format!("{plural}.{GROUP}")).ok_or_else(|| Status::internal(format!("no {plural}")))?;
    let mut metadata = json!({
        "name": name, "labels": {BOOTSTRAPPING.0: BOOTSTRAPPING.1}, "annotations": {AUTOUPDATE: "true"},
    });
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    rest["metadata"] = metadata;
    Ok(Wanted { kind, object: Object(rest) })
}

/// A subject in the tables' notation: `user:x`, `group:x`, `account:namespace/name`.
fn subject(text: &str) -> Value {
    let (kind, name) = text.split_once(':').unwrap_or(("user", text));
    match kind {
        "account" => {
            let (namespace, name) = name.split_once('/').unwrap_or(("kube-system", name));
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
        "group" => json!({"apiGroup": GROUP, "kind": "Group", "name": name}),
        _ => json!({"apiGroup": GROUP, "kind": "User", "name": name}),
    }
}

fn binding(role_kind: &str, role: &str, subjects: &str) -> Value {
    let subjects: Vec<Value> = subjects.split_whitespace().map(subject).collect();
    let mut binding = json!({"roleRef": {"apiGroup": GROUP, "kind": role_kind, "name": role}});
    if !subjects.is_empty() {
        binding["subjects"] = subjects.into();
    }
    binding
}

/// All desired objects, built once.
static ALL: LazyLock<Result<Vec<Wanted>, Status>> = LazyLock::new(all);

fn all() -> Result<Vec<Wanted>, Status> {
    let mut all = Vec::new();
    for ClusterRole { name, aggregates, into, grants, bound_to } in roles::CLUSTER_ROLES {
        let rest = match *aggregates {
            "" => json!({"rules": rules(grants)}),
            what => {
                let label = format!("{AGGREGATE}{what}");
                json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}, "rules": []})
            }
        };
        let mut role = wanted("clusterroles", None, name, rest)?;
        for into in into.split_whitespace() {
            role.object.0["metadata"]["labels"][format!("{AGGREGATE}{into}")] = "true".into();
        }
        all.push(role);
        if let Some(subjects) = bound_to {
            all.push(wanted("clusterrolebindings", None, name, binding("ClusterRole", name, subjects))?);
        }
    }
    for (name, grants) in controllers::CONTROLLERS {
        let role = format!("system:controller:{name}");
        let account = format!("account:kube-system/{name}");
        all.push(wanted("clusterroles", None, &role, json!({"rules": rules(grants)}))?);
        all.push(wanted("clusterrolebindings", None, &role, binding("ClusterRole", &role, &account))?);
    }
    for (name, role, subjects) in roles::BINDINGS {
        all.push(wanted("clusterrolebindings", None, name, binding("ClusterRole", role, subjects))?);
    }
    for Scoped { namespace, name, grants, bound_to } in roles::ROLES {
        all.push(wanted("roles", Some(namespace), name, json!({"rules": rules(grants)}))?);
        if !bound_to.is_empty() {
            all.push(wanted("rolebindings", Some(namespace), name, binding("Role", name, bound_to))?);
        }
    }
    fill_aggregated(&mut all);
    Ok(all)
}

/// Aggregated roles start with their rules, so that the first requests need not wait for the loop. The table's order builds them
/// up: view, edit, admin.
fn fill_aggregated(all: &mut [Wanted]) {
    let rules = |role: &Object| Vec::<Rule>::deserialize(&role.0["rules"]).unwrap_or_default();
    for i in 0..all.len() {
        let Some(rule) = all[i].object.at("aggregationRule") else { continue };
        let mut others: Vec<(&Object, Vec<Rule>)> = all
            .iter()
            .filter(|one| one.kind.built_in() == "ClusterRole")
            .map(|one| (&one.object, rules(&one.object)))
            .collect();
        others.sort_by(|(a, _), (b, _)| a.name().cmp(b.name()));
        let gathered = gathered(&selectors_of(rule), |selector| {
            let found = others.iter().filter(|(role, _)| selector.matches_labels(role.labels()));
            found.flat_map(|(_, rules)| rules).collect::<Vec<_>>()
        });
        all[i].object.0["rules"] = json!(gathered);
    }
}

impl Server {
    /// Creates missing default roles and bindings, in one transaction.
    pub(crate) async fn ensure_default_roles(&self) -> Result<(), Status> {
        let all = ALL.as_ref().map_err(Status::clone)?;
        for _ in 0..ATTEMPTS {
            self.cache.fresh().await?;
            let mut txn = Txn::default();
            for one in all {
                self.plan_default(one, &mut txn)?;
            }
            if txn.writes.is_empty() {
                return Ok(());
            }
            if let Outcome::Committed(_) = self.store.commit(txn).await.map_err(store_error)? {
                return Ok(());
            }
        }
        Err(Status::conflict("clusterroles", GROUP, "", "the default roles are being modified too often"))
    }

    /// Adds to the transaction what one object still needs.
    fn plan_default(&self, one: &Wanted, txn: &mut Txn) -> Result<(), Status> {
        let resource = self.cache.resource(one.kind);
        let key = one.kind.key(one.object.namespace(), one.object.name());
        let found: Option<Arc<Item>> = resource.get(&key);
        let object = match &found {
            None => {
                let mut object = one.object.clone();
                object.set_meta("uid", Value::from(self.env.uid()));
                object.set_meta("creationTimestamp", Value::from(self.timestamp()));
                txn.compares.push(Compare::Absent(key.clone()));
                object
            }
            Some(item) => {
                let current = item.decode(Weighed::own())?.object;
                let Some(object) = completed(&current, &one.object) else { return Ok(()) };
                txn.compares.push(Compare::Unchanged(key.clone(), item.revision));
                object
            }
        };
        txn.writes.push(Write::Put(key, resource.head.store(&object)));
        Ok(())
    }
}

/// An object with missing rules, subjects and labels added. `None`: nothing is missing, or it opted out. Additions by others stay.
fn completed(current: &Object, wanted: &Object) -> Option<Object> {
    if current.annotation(AUTOUPDATE) == Some("false") {
        return None;
    }
    let mut object = current.clone();
    for map in ["labels", "annotations"] {
        for (key, value) in wanted.0["metadata"][map].as_object().into_iter().flatten() {
            if object.0["metadata"][map].get(key).is_none() {
                object.0["metadata"][map][key.as_str()] = value.clone();
            }
        }
    }
    let parse =
        |object: &Object| -> Vec<Rule> { serde_json::from_value(object.0["rules"].clone()).unwrap_or_default() };
    if wanted.at("aggregationRule").is_some() {
        object.0["aggregationRule"] = wanted.0["aggregationRule"].clone();
    } else if wanted.at("rules").is_some() {
        // A role that is too large to compare was changed by somebody else.
        let lacking = missing(&parse(current), &parse(wanted)).unwrap_or_default();
        extend(&mut object, "rules", lacking.iter().filter_map(|rule| serde_json::to_value(rule).ok()));
    }
    let known: HashSet<String> = current.0["subjects"].as_array().into_iter().flatten().map(identity).collect();
    let subjects = wanted.0["subjects"].as_array().into_iter().flatten();
    extend(&mut object, "subjects", subjects.filter(|subject| !known.contains(&identity(subject))).cloned());
    // A binding's role cannot be changed: one that refers to another role is deliberate.
    (object != *current && current.0["roleRef"] == wanted.0["roleRef"]).then_some(object)
}

fn identity(subject: &Value) -> String {
    ["kind", "namespace", "name"].map(|field| subject[field].as_str().unwrap_or("")).join("/")
}

fn extend(object: &mut Object, field: &str, more: impl Iterator<Item = Value>) {
    for one in more {
        match object.0[field].as_array_mut() {
            Some(list) => list.push(one),
            None => object.0[field] = json!([one]),
        }
    }
}
