//! Through components with their own privileges that act on users' objects: controllers, and admission.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::world::{ADMIN, EDIT, OURS, ROOT, SECRET, THEIRS, World};
use super::{Attack, Target, Try, Verdict, verdict};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "autoscaler-of-the-cluster",
        class: "rights of a controller",
        cves: &[],
        how: "`edit` makes a HorizontalPodAutoscaler whose target is a cluster-scoped custom resource with `scale`",
        held: "a namespace given with a cluster-scoped kind is refused by every door, so nothing acts on one for a namespace",
        attempt: Try::Code(autoscaler),
    },
    Attack {
        id: "policy-params",
        class: "rights of admission",
        cves: &[],
        how: "who may write admission policies takes another tenant's Secret for parameters, in a policy of his own and by a \
              binding of an administrator's, and has its text in the message of a refusal",
        held: "a policy needs `get` on all objects of its paramKind, a binding `get` on those of its paramRef",
        attempt: Try::Code(policy_params),
    },
    Attack {
        id: "objects-that-multiply",
        class: "work of a controller",
        cves: &[],
        how: "`edit` makes objects that others' work is multiplied by: budgets and Services that select by tens of thousands of \
              requirements, Pods and Services with thousands of named ports, terms of affinity with large selectors",
        held: "what a controller asks of each Pod, and one list of another, has a bound at admission",
        attempt: Try::Code(objects_that_multiply),
    },
];

fn objects_that_multiply(world: &World, target: &Target) -> Verdict {
    let budgets = format!("/apis/policy/v1/namespaces/{OURS}/poddisruptionbudgets");
    let core = |resource: &str| format!("/api/v1/namespaces/{OURS}/{resource}");
    let metadata = json!({"name": target.id});
    let expressions = |n: usize| {
        (0..n).map(|i| json!({"key": format!("k{i}"), "operator": "NotIn", "values": ["v"]})).collect::<Value>()
    };
    let labels = |n: usize| (0..n).map(|i| (format!("k{i}"), Value::from("v"))).collect::<serde_json::Map<_, _>>();
    let container = |ports: Value| json!([{"name": "c", "image": "x:1", "ports": ports}]);
    let budget = |selector: Value| {
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata,
            "spec": {"maxUnavailable": 1, "selector": selector}})
    };
    let service = |spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
    let pod = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    let named = (1..=6000).map(|n| json!({"name": format!("p{n}"), "containerPort": n})).collect::<Value>();
    let targets = (1..=4000).map(|n| json!({"name": format!("p{n}"), "port": n, "targetPort": format!("p{n}")}));
    let term = json!({"topologyKey": "a", "labelSelector": {"matchExpressions": expressions(200)}});
    let terms = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": vec![term; 90]}});
    let small = world.ask(EDIT, "POST", &budgets, &budget(json!({"matchExpressions": expressions(200)})));
    world.delete("poddisruptionbudgets.policy", OURS, target.id);
    if small.0 != 201 {
        return Verdict::Untried(small.1);
    }
    for (path, object) in [
        (budgets.clone(), budget(json!({"matchExpressions": expressions(10_000)}))),
        (budgets, budget(json!({"matchLabels": labels(30_000)}))),
        (core("services"), service(json!({"clusterIP": "None", "selector": labels(30_000)}))),
        (core("services"), service(json!({"selector": {"a": "b"}, "ports": targets.collect::<Value>()}))),
        (core("pods"), pod(json!({"containers": container(named)}))),
        (core("pods"), pod(json!({"containers": container(json!([])), "affinity": terms}))),
    ] {
        let (code, said) = world.ask(EDIT, "POST", &path, &object);
        if code != 422 || !said.contains("Too many: ") {
            return Verdict::Breach(format!("{path}: {code} {}", said.chars().take(300).collect::<String>()));
        }
    }
    Verdict::Held("all are refused".into())
}

const CRDS: &str = "customresourcedefinitions";
const RBAC: &str = "rbac.authorization.k8s.io";

/// Requests until the response satisfies the condition; returns the last one.
fn until(mut look: impl FnMut() -> Option<Value>, will_do: impl Fn(&Value) -> bool) -> Option<Value> {
    let mut last = None;
    for _ in 0..200 {
        last = look();
        if last.as_ref().is_some_and(&will_do) {
            return last;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    last
}

fn autoscaler(world: &World, target: &Target) -> Verdict {
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({"metadata": {"name": "pools.attack.example.com"}, "spec": {
        "group": "attack.example.com", "scope": "Cluster", "names": {"plural": "pools", "kind": "Pool"}, "versions": [{
            "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            "subresources": {"scale": scale}}]}});
    if let Err(why) = world.create(CRDS, "", definition) {
        return Verdict::Untried(why);
    }
    let pools = "pools.attack.example.com";
    let pool = json!({"apiVersion": "attack.example.com/v1", "kind": "Pool", "metadata": {"name": target.id},
        "spec": {"replicas": 3}});
    if until(|| world.create(pools, "", pool.clone()).ok(), |_| true).is_none() {
        return Verdict::Untried("no Pool can be made".into());
    }
    let path = format!("/apis/autoscaling/v2/namespaces/{OURS}/horizontalpodautoscalers");
    let autoscaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": target.id}, "spec": {
        "scaleTargetRef": {"apiVersion": "attack.example.com/v1", "kind": "Pool", "name": target.id},
        "minReplicas": 40, "maxReplicas": 41}});
    let (code, said) = world.ask(EDIT, "POST", &path, &autoscaler);
    if code != 201 {
        return Verdict::Untried(said);
    }
    let resource = "horizontalpodautoscalers.autoscaling";
    let told = |it: &Value| it["status"]["conditions"].as_array().is_some_and(|all| !all.is_empty());
    let it = until(|| world.get(resource, OURS, target.id), told).unwrap_or_default();
    let able =
        { it["status"]["conditions"].as_array().into_iter().flatten() }.find(|it| it["type"] == "AbleToScale").cloned();
    let replicas = world.get(pools, "", target.id).unwrap_or_default()["spec"]["replicas"].clone();
    // Not through REST, even for superusers.
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "get",
        "params": {"resource": "nodes", "namespace": OURS, "name": super::world::NODE}});
    let (_, answer) = world.ask(ROOT, "POST", "/rpc", &call);
    world.delete(resource, OURS, target.id);
    world.delete(CRDS, "", "pools.attack.example.com");
    match able {
        None => Verdict::Untried(format!("nothing is told of it: {it}")),
        Some(able) => {
            let held = replicas == 3
                && able["reason"] == "FailedGetScale"
                && answer.contains("could not find the requested resource");
            verdict(held, format!("{replicas} replicas, {able}, {answer}"))
        }
    }
}

fn policy_params(world: &World, target: &Target) -> Verdict {
    let group = "admissionregistration.k8s.io";
    let role =
        json!({"metadata": {"name": target.id}, "rules": [{"apiGroups": [group], "resources": ["*"], "verbs": ["*"]}]});
    let binding = json!({"metadata": {"name": target.id}, "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": target.id},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "adam"}]});
    for (resource, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        if let Err(why) = world.create(&format!("{resource}.{RBAC}"), "", object) {
            return Verdict::Untried(why);
        }
    }
    let policies = format!("validatingadmissionpolicies.{group}");
    let path = |plural: &str| format!("/apis/{group}/v1/validatingadmission{plural}");
    // Only for objects of this entry.
    let policy = |name: &str| {
        json!({"apiVersion": format!("{group}/v1"), "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": {
            "paramKind": {"apiVersion": "v1", "kind": "Secret"},
            "matchConstraints": {"objectSelector": {"matchLabels": {"attack": target.id}}, "resourceRules": [
                {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]},
            "validations": [{"expression": "false", "messageExpression": "'SEEN ' + string(params.data.word)"}]}})
    };
    let bound = |name: &str| {
        json!({"apiVersion": format!("{group}/v1"), "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name}, "spec": {
            "policyName": name, "validationActions": ["Deny"],
            "paramRef": {"name": "victim", "namespace": THEIRS, "parameterNotFoundAction": "Deny"}}})
    };
    let theirs = "policy-params-of-root";
    if let Err(why) = world.create(&policies, "", policy(theirs)) {
        return Verdict::Untried(why);
    }
    let asked = [
        world.ask(ADMIN, "POST", &path("policies"), &policy(target.id)),
        world.ask(ADMIN, "POST", &path("policybindings"), &bound(target.id)),
        world.ask(ADMIN, "POST", &path("policybindings"), &bound(theirs)),
    ];
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": target.id, "labels": {"attack": target.id}}});
    let (code, said) = world.ask(ADMIN, "POST", &format!("/api/v1/namespaces/{OURS}/configmaps"), &map);
    for name in [target.id, theirs] {
        world.delete(&format!("validatingadmissionpolicybindings.{group}"), "", name);
        world.delete(&policies, "", name);
    }
    world.delete("configmaps", OURS, target.id);
    for resource in ["clusterrolebindings", "clusterroles"] {
        world.delete(&format!("{resource}.{RBAC}"), "", target.id);
    }
    if said.contains(&STANDARD.encode(SECRET)) {
        return Verdict::Breach(said);
    }
    let codes: Vec<u16> = asked.iter().map(|(code, _)| *code).collect();
    let is_refusal = |said: &str| said.contains("\\\"get\\\" permission on");
    let held = codes == [422; 3] && asked.iter().all(|(_, said)| is_refusal(said)) && code == 201;
    verdict(held, format!("{codes:?} {code} {}", asked[2].1))
}
