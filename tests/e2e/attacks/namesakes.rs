//! With custom resources named like built-in kinds.

use std::time::Duration;

use serde_json::{Value, json};

use super::world::{EDIT, NODE, OURS, THEIRS, World};
use super::{Target, Verdict, verdict};
use crate::support::eventually;

const GROUP: &str = "evil.example";
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

fn define(world: &World, kind: &str, plural: &str, scope: &str) -> Result<(), String> {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let name = format!("{plural}.{GROUP}");
    let spec = json!({"group": GROUP, "scope": scope, "versions": [version],
        "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind}});
    world.create(DEFINITIONS, "", json!({"metadata": {"name": name}, "spec": spec}))?;
    eventually("a definition is served", Duration::from_secs(10), || {
        match world.ask(EDIT, "GET", &format!("/apis/{GROUP}/v1/{plural}"), &Value::Null) {
            (200, _) => Ok(()),
            (_, said) => Err(said),
        }
    });
    Ok(())
}

pub fn namesakes(world: &World, _: &Target) -> Verdict {
    let rules = json!([{"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]}]);
    let role_ref = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "namesakes"});
    let subjects = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "tenants"}]);
    world.create("clusterroles", "", json!({"metadata": {"name": "namesakes"}, "rules": rules})).unwrap();
    let binding = json!({"metadata": {"name": "namesakes"}, "roleRef": role_ref, "subjects": subjects});
    world.create("clusterrolebindings", "", binding).unwrap();
    let kinds =
        [("Service", "services", "Namespaced"), ("Secret", "secrets", "Namespaced"), ("Node", "nodes", "Cluster")];
    for (kind, plural, scope) in kinds {
        if let Err(why) = define(world, kind, plural, scope) {
            return Verdict::Untried(why);
        }
    }
    let outcome = try_all(world);
    for (_, plural, _) in kinds {
        world.delete(DEFINITIONS, "", &format!("{plural}.{GROUP}"));
    }
    world.delete("clusterrolebindings", "", "namesakes");
    world.delete("clusterroles", "", "namesakes");
    outcome.unwrap_or_else(Verdict::Breach)
}

/// A breach is the error.
fn try_all(world: &World) -> Result<Verdict, String> {
    let object = |kind: &str, name: &str, rest: Value| {
        let mut object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name}});
        json_patch::merge(&mut object, &rest);
        object
    };
    let evil = |plural: &str| format!("/apis/{GROUP}/v1/namespaces/{OURS}/{plural}");
    let service = json!({"metadata": {"name": "namesakes"}, "spec": {"ports": [{"port": 80}]}});
    let victim = world.create("services", THEIRS, service)?["spec"]["clusterIP"].clone();
    for ip in [victim, json!("10.96.0.1")] {
        let spec = json!({"spec": {"clusterIP": "None", "clusterIPs": ["None", ip]}});
        let (made, said) = world.ask(EDIT, "POST", &evil("services"), &object("Service", "x", spec));
        let (gone, _) = world.ask(EDIT, "DELETE", &format!("{}/x", evil("services")), &Value::Null);
        if (made, gone) != (201, 200) {
            return Ok(Verdict::Untried(said));
        }
        let spec = json!({"clusterIP": ip, "ports": [{"port": 80}]});
        let thief = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "thief"}, "spec": spec});
        let (code, said) = world.ask(EDIT, "POST", &format!("/api/v1/namespaces/{OURS}/services"), &thief);
        if code != 422 {
            return Err(format!("the address {ip} is given away: {code} {said}"));
        }
    }
    world.delete("services", THEIRS, "namesakes");

    let nodes = format!("/apis/{GROUP}/v1/nodes");
    let (made, said) = world.ask(EDIT, "POST", &nodes, &object("Node", NODE, json!({})));
    if made != 201 {
        return Ok(Verdict::Untried(said));
    }
    for (method, sub, body) in [
        ("connect", "dial", json!({"address": "127.0.0.1:22"})),
        ("connect", "image", json!({"list": {}})),
        ("update", "usage", json!({"time": "2026-01-01T00:00:00Z", "pods": []})),
    ] {
        let params = json!({"resource": format!("nodes.{GROUP}"), "name": NODE, "subresource": sub, "body": body});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let (_, said) = world.ask(EDIT, "POST", "/rpc", &call);
        if !said.contains("\"error\"") || !said.contains("could not find the requested resource") {
            return Err(format!("{method} {sub}: {said}"));
        }
    }
    let (code, said) = world.ask(EDIT, "GET", &format!("{nodes}/{NODE}/proxy/"), &Value::Null);
    if !matches!(code, 404 | 405) {
        return Err(format!("proxy: {code} {said}"));
    }

    let asks = json!({"type": "kubernetes.io/service-account-token",
        "metadata": {"annotations": {"kubernetes.io/service-account.name": "default"}}});
    let (code, said) = world.ask(EDIT, "POST", &evil("secrets"), &object("Secret", "x", asks));
    if code != 201 || said.contains("\"token\":") {
        return Err(format!("a token: {code} {said}"));
    }
    for (at, spec) in [json!("x"), json!([]), json!({"ports": "x"}), json!(7)].into_iter().enumerate() {
        let (code, said) =
            world.ask(EDIT, "POST", &evil("services"), &object("Service", &format!("s{at}"), json!({"spec": spec})));
        if code != 201 {
            return Err(format!("{spec}: {code} {said}"));
        }
    }
    let token = format!("/api/v1/namespaces/{OURS}/serviceaccounts/default/token");
    for body in [json!({"spec": "x"}), json!({"spec": []}), json!({"metadata": "x"}), json!([]), json!(1)] {
        let (code, said) = world.ask(EDIT, "POST", &token, &body);
        if !matches!(code, 400 | 403) {
            return Err(format!("a request for a token, {body}: {code} {said}"));
        }
    }
    Ok(verdict(true, "no address, session or token by a kind's name"))
}
