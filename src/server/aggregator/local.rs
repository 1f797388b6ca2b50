//! The APIServices of what this server serves itself: created if missing, and kept as long as it is served.
//!
//! As upstream's `autoregister` and `crdregistration`, with two differences. One of a built-in group is also recreated at run time:
//! deleting the APIService of an extension server that replaced it restores it. And `metrics.k8s.io` has none: upstream does not
//! serve it, and installers of a server for it (metrics-server's chart) take an existing one for a conflict.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{OWN_GROUP, RESOURCE, kind};
use crate::custom::set_condition;
use crate::{Server, store_error};
use podwright_api::kinds::api_service::{AUTOMANAGED, AVAILABLE, local_condition, priorities};
use podwright_api::kinds::registry::Kinds;
use podwright_api::{Object, Options, Request, Status, User, Verb};
use podwright_store::{Compare, Txn, Write};

/// Served here without an APIService.
const UNREGISTERED: &[&str] = &[OWN_GROUP, "metrics.k8s.io"];

/// A group version that is served here.
#[derive(Debug, PartialEq)]
struct Wanted {
    group: &'static str,
    version: &'static str,
    of_definition: bool,
}

impl Wanted {
    fn name(&self) -> String {
        format!("{}.{}", self.version, self.group)
    }

    fn object(&self) -> Object {
        let (of_group, of_version) = priorities(self.group, self.version, self.of_definition);
        let mut spec =
            json!({"version": self.version, "groupPriorityMinimum": of_group, "versionPriority": of_version});
        if !self.group.is_empty() {
            spec["group"] = self.group.into();
        }
        let managed = if self.of_definition { "true" } else { "onstart" };
        Object(json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": self.name(), "labels": {AUTOMANAGED: managed}}, "spec": spec,
        }))
    }
}

/// All that should exist. (A group version of the built-in table never counts as a CRD's, even if one adds to it.)
fn wanted(kinds: &Kinds) -> BTreeMap<String, Wanted> {
    let mut all = BTreeMap::new();
    for kind in kinds.all().filter(|kind| !UNREGISTERED.contains(&kind.group)) {
        let wanted = Wanted { group: kind.group, version: kind.version, of_definition: kind.is_custom() };
        all.entry(wanted.name()).or_insert(wanted);
    }
    all
}

/// A change to one APIService.
#[derive(Debug, PartialEq)]
enum Change {
    Create(Object),
    Update(Object),
    Status(Object),
    Delete(String, String),
}

/// Whoever puts a Service into one, or removes the label, takes it over.
fn plan(wanted: &BTreeMap<String, Wanted>, found: &BTreeMap<String, Object>, now: &str) -> Vec<Change> {
    let mut changes = Vec::new();
    for (name, wanted) in wanted {
        let Some(held) = found.get(name) else {
            changes.push(Change::Create(wanted.object()));
            continue;
        };
        if is_ours(held) && held.label(AUTOMANAGED) == Some("true") && held.0["spec"] != wanted.object().0["spec"] {
            let mut new = held.clone();
            new.0["spec"] = wanted.object().0["spec"].clone();
            changes.push(Change::Update(new));
        }
    }
    for (name, held) in found {
        if is_ours(held) && !wanted.contains_key(name) && !held.is_terminating() {
            changes.push(Change::Delete(name.clone(), held.uid().to_owned()));
        } else if is_local(held) {
            let mut new = held.clone();
            if availability_set(&mut new, now) {
                changes.push(Change::Status(new));
            }
        }
    }
    changes
}

fn is_local(held: &Object) -> bool {
    held.at("spec.service").is_none_or(Value::is_null)
}

fn is_ours(held: &Object) -> bool {
    is_local(held) && held.label(AUTOMANAGED).is_some()
}

/// Sets the condition of a local one, with the time that is missing after creation. `true`: it changed.
fn availability_set(object: &mut Object, now: &str) -> bool {
    let condition = local_condition();
    let text = |field: &str| condition[field].as_str().unwrap_or("");
    let changed = set_condition(object, AVAILABLE, "True", text("reason"), text("message"), now);
    let conditions = object.0["status"]["conditions"].as_array_mut().into_iter().flatten();
    let mut timeless = conditions.filter(|it| it["type"] == AVAILABLE && it["lastTransitionTime"].is_null());
    match timeless.next() {
        Some(condition) => {
            condition["lastTransitionTime"] = now.into();
            true
        }
        None => changed,
    }
}

impl Server {
    /// Creates those of the built-in groups, in one transaction, before serving starts.
    pub(crate) async fn register_own_groups(&self) -> Result<(), Status> {
        self.cache.fresh().await?;
        let (kind, now) = (kind()?, self.timestamp());
        let resource = self.cache.resource(kind);
        let mut txn = Txn::default();
        for wanted in wanted(&Kinds::default()).values() {
            let key = kind.key(None, &wanted.name());
            if resource.get(&key).is_some() {
                continue;
            }
            let mut object = wanted.object();
            object.set_meta("uid", Value::from(self.env.uid()));
            object.set_meta("creationTimestamp", Value::from(now.clone()));
            availability_set(&mut object, &now);
            txn.compares.push(Compare::Absent(key.clone()));
            txn.writes.push(Write::Put(key, resource.head.store(&object)));
        }
        if !txn.writes.is_empty() {
            // If another server was faster, the loop adds what is missing.
            self.store.commit(txn).await.map_err(store_error)?;
            self.cache.fresh().await?;
        }
        Ok(())
    }
}

/// Brings all local ones to the desired state.
pub(super) async fn keep(server: &Arc<Server>) -> Result<(), Status> {
    let items: Vec<_> = server.cache.resource(kind()?).read().items.values().cloned().collect();
    let objects = items.iter().filter_map(|item| Object::from_slice(&item.bytes).ok());
    let found = objects.map(|object| (object.name().to_owned(), object)).collect();
    for change in plan(&wanted(&server.kinds()), &found, &server.timestamp()) {
        match server.handle(request(change)).await {
            // Decided again when the concurrent change is observed.
            Err(why) if why.is_conflict() || why.is_not_found() || why.is_already_exists() => {}
            Err(why) => return Err(why),
            Ok(_) => {}
        }
    }
    Ok(())
}

fn request(change: Change) -> Request {
    let request = |verb, name: &str, body| Request {
        verb,
        resource: RESOURCE.into(),
        name: Some(name.to_owned()),
        body,
        options: Options { field_manager: Some("kube-apiserver".into()), ..Options::default() },
        user: User::system("system:apiserver"),
        ..Request::default()
    };
    match change {
        Change::Create(object) => request(Verb::Create, object.name(), Some(object.0.clone())),
        Change::Update(object) => request(Verb::Update, object.name(), Some(object.0.clone())),
        Change::Status(object) => {
            let update = request(Verb::Update, object.name(), Some(object.0.clone()));
            Request { subresource: Some("status".into()), ..update }
        }
        Change::Delete(name, uid) => {
            let mut request = request(Verb::Delete, &name, None);
            request.options.preconditions.get_or_insert_default().uid = Some(uid);
            request
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn found(objects: impl IntoIterator<Item = Object>) -> BTreeMap<String, Object> {
        objects.into_iter().map(|object| (object.name().to_owned(), object)).collect()
    }

    fn ready(mut object: Object) -> Object {
        availability_set(&mut object, NOW);
        object
    }

    #[test]
    fn every_served_version_has_one_and_those_of_others_stay_theirs() {
        let all = wanted(&Kinds::default());
        assert!(all.contains_key("v1.") && all.contains_key("v1.apps") && all.contains_key("v2.autoscaling"));
        assert!(!all.contains_key("v1.apiregistration.k8s.io") && !all.contains_key("v1beta1.metrics.k8s.io"));
        let made = plan(&all, &BTreeMap::new(), NOW);
        assert_eq!(made.len(), all.len());
        let objects = || all.values().map(|wanted| ready(wanted.object()));
        assert_eq!(plan(&all, &found(objects()), NOW), []);

        let apps = || all["v1.apps"].object();
        let mut theirs = apps();
        theirs.0["spec"]["service"] = json!({"namespace": "n", "name": "s", "port": 443});
        let with = |object: Object| {
            let mut all = found(objects());
            all.insert(object.name().to_owned(), object);
            all
        };
        assert_eq!(plan(&all, &with(theirs), NOW), [], "somebody has put a server in its place");
        let mut timeless = apps();
        timeless.0["status"] = json!({"conditions": [local_condition()]});
        assert_eq!(plan(&all, &with(timeless), NOW), [Change::Status(ready(apps()))]);
    }

    #[test]
    fn those_of_definitions_go_with_them_and_are_kept_as_they_should_be() {
        let widgets = Wanted { group: "example.com", version: "v1", of_definition: true };
        let all = BTreeMap::from([(widgets.name(), widgets)]);
        let good = ready(all["v1.example.com"].object());
        let mut bent = good.clone();
        bent.0["spec"]["versionPriority"] = 7.into();
        assert_eq!(plan(&all, &found([bent]), NOW), [Change::Update(good.clone())]);
        let gone = Change::Delete("v1.example.com".into(), String::new());
        assert_eq!(plan(&BTreeMap::new(), &found([good.clone()]), NOW), [gone]);
        let mut own = good;
        own.0["metadata"]["labels"] = json!({});
        assert_eq!(plan(&BTreeMap::new(), &found([own]), NOW), [], "what nobody manages is somebody's own");
    }
}
