//! The rights that an admission policy's author needs: what he takes for its parameters comes back to him in its messages.

use podwright::api::{Object, Options, Request, Status, User, Verb};
use serde_json::{Value, json};

use super::{Api, object_of, request};

const GROUP: &str = "admissionregistration.k8s.io";

fn policy(name: &str, kind: Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {"paramKind": kind, "validations": [{"expression": "false"}], "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]}}})
}

fn binding(name: &str, policy: &str, reference: Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": policy, "paramRef": reference, "validationActions": ["Deny"]}})
}

fn kind(api_version: &str, kind: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind})
}

/// Of one object of a namespace, or by a selector.
fn named(namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "name": name, "parameterNotFoundAction": "Deny"})
}

fn selected(namespace: &str) -> Value {
    json!({"namespace": namespace, "selector": {}, "parameterNotFoundAction": "Deny"})
}

impl Api {
    /// A role for `ann`, in a namespace or everywhere.
    async fn grant(&self, name: &str, namespace: Option<&str>, rules: Value) {
        let rbac = "rbac.authorization.k8s.io";
        let (role, bound) = match namespace {
            Some(_) => ("Role", "RoleBinding"),
            None => ("ClusterRole", "ClusterRoleBinding"),
        };
        let of = |kind: &str, more: Value| {
            let mut it = json!({"apiVersion": format!("{rbac}/v1"), "kind": kind, "metadata": {"name": name}});
            if let Some(namespace) = namespace {
                it["metadata"]["namespace"] = namespace.into();
            }
            json_patch::merge(&mut it, &more);
            it
        };
        let plural = |kind: &str| format!("{}s", kind.to_lowercase());
        self.create(&plural(role), of(role, json!({"rules": rules}))).await.unwrap();
        let more = json!({"roleRef": {"apiGroup": rbac, "kind": role, "name": name},
            "subjects": [{"kind": "User", "name": "ann", "apiGroup": rbac}]});
        self.create(&plural(bound), of(bound, more)).await.unwrap();
    }

    async fn as_ann(&self, verb: Verb, resource: &str, object: Value) -> Result<Object, Status> {
        let asked = request(verb, resource, "", Some(object), Options::default());
        let user = User::new("ann", ["system:authenticated"]);
        self.0.handle(Request { user, ..asked }).await.map(object_of)
    }

    async fn writes_policy(&self, verb: Verb, object: Value) -> Result<Object, Status> {
        self.as_ann(verb, "validatingadmissionpolicies", object).await
    }

    async fn writes_binding(&self, verb: Verb, object: Value) -> Result<Object, Status> {
        self.as_ann(verb, "validatingadmissionpolicybindings", object).await
    }
}

/// `ann` writes policies; ConfigMaps she may get everywhere, Secrets in `default` alone.
async fn world() -> Api {
    let api = Api::new().await;
    api.grant("policies", None, json!([{"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]}])).await;
    api.grant("maps", None, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}])).await;
    api.grant("secrets", Some("default"), json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]))
        .await;
    api
}

#[track_caller]
fn refused(done: Result<Object, Status>, field: &str, why: &str) {
    let status = done.unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"), "{status}");
    assert_eq!(status.message.matches(&format!("{field}: Forbidden: {why}")).count(), 1, "{status}");
}

#[tokio::test]
async fn a_policy_asks_for_all_objects_of_its_param_kind() {
    let api = world().await;
    let why = |kind: &str, version: &str| {
        format!(
            "user \"ann\" must have \"get\" permission on all objects of the referenced paramKind (kind={kind}, \
             apiVersion={version})"
        )
    };
    api.writes_policy(Verb::Create, policy("none", Value::Null)).await.unwrap();
    let maps = api.writes_policy(Verb::Create, policy("maps", kind("v1", "ConfigMap"))).await.unwrap();
    let secrets = api.writes_policy(Verb::Create, policy("secrets", kind("v1", "Secret"))).await;
    refused(secrets, "spec.paramKind", &why("Secret", "v1"));
    // What nobody knows yet may become anything.
    let unknown = api.writes_policy(Verb::Create, policy("unknown", kind("example.com/v1", "Widget"))).await;
    refused(unknown, "spec.paramKind", &why("Widget", "example.com/v1"));

    // By updates of all sorts.
    let mut changed = maps.0.clone();
    changed["spec"]["paramKind"] = kind("v1", "Secret");
    refused(api.writes_policy(Verb::Update, changed.clone()).await, "spec.paramKind", &why("Secret", "v1"));
    let mut added = api.get("validatingadmissionpolicies", "none").await.unwrap().0;
    added["spec"]["paramKind"] = kind("v1", "Secret");
    refused(api.writes_policy(Verb::Update, added).await, "spec.paramKind", &why("Secret", "v1"));
    // What is there already is not asked for anew; nor is the superuser.
    let kept = api.update("validatingadmissionpolicies", &Object(changed)).await.unwrap();
    let mut kept = kept.0;
    kept["spec"]["validations"] = json!([{"expression": "true"}]);
    api.writes_policy(Verb::Update, kept).await.unwrap();

    api.grant("all", None, json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}])).await;
    api.writes_policy(Verb::Create, policy("secrets", kind("v1", "Secret"))).await.unwrap();
}

#[tokio::test]
async fn a_binding_asks_for_the_objects_that_it_refers_to() {
    let api = world().await;
    let put = async |name: &str, of: Value| api.create("validatingadmissionpolicies", policy(name, of)).await.unwrap();
    put("none", Value::Null).await;
    put("maps", kind("v1", "ConfigMap")).await;
    put("secrets", kind("v1", "Secret")).await;
    let why = "user \"ann\" does not have \"get\" permission on the object referenced by paramRef";
    let lists = "user \"ann\" does not have \"list\" permission on the object referenced by paramRef";
    for (policy, reference, refusal) in [
        ("secrets", Value::Null, None),
        ("secrets", named("default", "s"), None),
        ("secrets", named("kube-system", "s"), Some(why)),
        // Without a namespace it is that of each request.
        ("secrets", named("", "s"), Some(why)),
        ("secrets", selected("kube-system"), Some(why)),
        ("secrets", selected("default"), Some(lists)),
        ("maps", named("kube-system", "m"), None),
        ("maps", named("", "m"), None),
        ("maps", selected(""), Some(lists)),
        // What the policy will take is not known.
        ("none", named("default", "m"), Some(why)),
        ("absent", named("default", "m"), Some(why)),
    ] {
        let mut reference = reference;
        if reference["namespace"] == "" {
            reference.as_object_mut().unwrap().shift_remove("namespace");
        }
        let done = api.writes_binding(Verb::Create, binding("b", policy, reference.clone())).await;
        match refusal {
            None => {
                done.unwrap_or_else(|status| panic!("{policy} {reference}: {status}"));
                api.delete("validatingadmissionpolicybindings", "b", Options::default()).await.unwrap();
            }
            Some(why) => refused(done, "spec.paramRef", why),
        }
    }

    // Another object, or another policy for the same one.
    let mine = api.writes_binding(Verb::Create, binding("b", "maps", named("kube-system", "x"))).await.unwrap();
    for (field, value) in [("policyName", json!("secrets")), ("policyName", json!("absent"))] {
        let mut changed = mine.0.clone();
        changed["spec"][field] = value;
        refused(api.writes_binding(Verb::Update, changed).await, "spec.paramRef", why);
    }
    let mut same = mine.0.clone();
    same["spec"]["validationActions"] = json!(["Warn"]);
    api.writes_binding(Verb::Update, same).await.unwrap();
    let object = binding("theirs", "secrets", named("kube-system", "s"));
    let theirs = api.create("validatingadmissionpolicybindings", object).await.unwrap();
    let mut same = theirs.0.clone();
    same["spec"]["validationActions"] = json!(["Warn"]);
    let mut other = same.clone();
    api.writes_binding(Verb::Update, same).await.unwrap();
    other["metadata"].as_object_mut().unwrap().shift_remove("resourceVersion");
    other["spec"]["paramRef"]["name"] = "t".into();
    refused(api.writes_binding(Verb::Update, other).await, "spec.paramRef", why);
}
