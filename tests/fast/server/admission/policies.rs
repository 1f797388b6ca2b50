//! Admission policies: what they are about, what they refuse, with which parameters and in whose words.

use std::sync::Arc;

use podwright::api::{Env, Object, Options, User, Verb};
use podwright::server::{Config, Server};
use podwright::store::{Memory, Store, Txn, Write};
use serde_json::{Value, json};

use super::{Api, pod, request, told, with, within};

/// A policy about Deployments' and Pods' creation and change, with `more` in its spec.
fn policy(name: &str, more: Value) -> Value {
    let mut policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": [
            {"apiGroups": ["", "apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["pods", "deployments", "configmaps"]}]}}});
    json_patch::merge(&mut policy["spec"], &more);
    policy
}

fn binding(name: &str, policy: &str, more: Value) -> Value {
    let mut binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": policy, "validationActions": ["Deny"]}});
    json_patch::merge(&mut binding["spec"], &more);
    binding
}

fn validation(expression: &str) -> Value {
    json!({"validations": [{"expression": expression}]})
}

fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

impl Api {
    async fn policy(&self, spec: Value, bound: Value) {
        self.create("validatingadmissionpolicies", policy("p", spec)).await.unwrap();
        self.create("validatingadmissionpolicybindings", binding("b", "p", bound)).await.unwrap();
    }

    async fn put(&self, data: Value) -> (Result<Object, podwright::api::Status>, Vec<String>) {
        self.create_warned("configmaps", config_map("x", data)).await
    }
}

#[tokio::test]
async fn a_validation_that_fails_is_told_in_its_own_words() {
    for (spec, code, reason, why) in [
        (validation("object.data.a == '1'"), 422, "Invalid", "failed expression: object.data.a == '1'"),
        (json!({"validations": [{"expression": "false", "message": " must not be "}]}), 422, "Invalid", "must not be"),
        (
            json!({"validations": [{"expression": "false", "messageExpression": "'a is ' + object.data.a", "reason": "Forbidden"}]}),
            403,
            "Forbidden",
            "a is 2",
        ),
        (
            json!({"validations": [{"expression": "false", "messageExpression": "object.data.none", "message": "plain", "reason": "RequestEntityTooLarge"}]}),
            413,
            "RequestEntityTooLarge",
            "plain",
        ),
        (
            json!({"validations": [{"expression": "true"}, {"expression": "false", "message": "the second"}]}),
            422,
            "Invalid",
            "the second",
        ),
        (
            json!({"variables": [{"name": "a", "expression": "int(object.data.a)"}, {"name": "b", "expression": "variables.a * 2"}],
                "validations": [{"expression": "variables.b == 5", "messageExpression": "'b is ' + string(variables.b)"}]}),
            422,
            "Invalid",
            "b is 4",
        ),
        (
            validation("object.data.none == 'x'"),
            422,
            "Invalid",
            "expression 'object.data.none == 'x'' resulted in error: no such key: none",
        ),
    ] {
        let api = Api::new().await;
        api.policy(spec.clone(), json!({})).await;
        let refused = api.put(json!({"a": "2"})).await.0.unwrap_err();
        let message = format!(
            "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {why}"
        );
        assert_eq!((refused.code, refused.reason.as_str(), refused.message), (code, reason, message), "{spec}");
    }
}

#[tokio::test]
async fn expressions_see_the_request() {
    for expression in [
        "object.metadata.name == 'x' && oldObject == null",
        "request.operation == 'CREATE' && request.namespace == 'default' && request.name == 'x'",
        "request.kind.kind == 'ConfigMap' && request.resource.resource == 'configmaps' && request.userInfo.username == 'test'",
        "'system:masters' in request.userInfo.groups && !request.dryRun",
        "namespaceObject.metadata.name == 'default' && namespaceObject.metadata.labels['kubernetes.io/metadata.name'] == 'default'",
        "has(object.data.a) && !has(object.data.z) && size(object.data) == 1",
        "authorizer.group('').resource('pods').namespace('default').check('create').allowed()",
        "!authorizer.serviceAccount('default', 'nobody').group('').resource('secrets').namespace('default').check('get').allowed()",
        "authorizer.requestResource.check('create').allowed() && authorizer.path('/healthz').check('get').allowed()",
        "authorizer.requestResource.check('create').reason() == '' && !authorizer.requestResource.check('x').errored()",
    ] {
        let api = Api::new().await;
        api.policy(validation(expression), json!({})).await;
        if let Err(refused) = api.put(json!({"a": "2"})).await.0 {
            panic!("{refused}");
        }
        let negated = json!({"spec": {"validations": [{"expression": format!("!({expression})")}]}});
        api.patch("validatingadmissionpolicies", "p", negated).await.unwrap();
        let again = with(config_map("x", json!({"a": "2"})), "/metadata/name", "x".into());
        api.delete("configmaps", "x", Options::default()).await.unwrap();
        assert!(api.create("configmaps", again).await.unwrap_err().message.contains("denied request"), "{expression}");
    }
}

#[tokio::test]
async fn updates_and_deletions_are_judged_with_what_was() {
    let api = Api::new().await;
    let rules = json!({"matchConstraints": {"resourceRules": [
        {"apiGroups": [""], "apiVersions": ["*"], "operations": ["UPDATE", "DELETE"], "resources": ["configmaps"]}]}});
    let mut spec = json!({"validations": [
        {"expression": "object == null || object.data.a >= oldObject.data.a", "message": "only upwards"},
        {"expression": "request.operation != 'DELETE' || oldObject.data.a == '9'", "message": "not before nine"},
    ]});
    json_patch::merge(&mut spec, &rules);
    api.policy(spec, json!({})).await;
    api.put(json!({"a": "5"})).await.0.unwrap();
    assert!(
        api.patch("configmaps", "x", json!({"data": {"a": "4"}})).await.unwrap_err().message.ends_with("only upwards")
    );
    let early = api.delete("configmaps", "x", Options::default()).await.unwrap_err();
    assert!(early.message.ends_with("not before nine"), "{early}");
    api.patch("configmaps", "x", json!({"data": {"a": "9"}})).await.unwrap();
    api.delete("configmaps", "x", Options::default()).await.unwrap();
}

#[tokio::test]
async fn actions_say_what_follows() {
    for (actions, refused, warned) in [
        (json!(["Deny"]), true, false),
        (json!(["Warn"]), false, true),
        (json!(["Audit"]), false, false),
        (json!(["Warn", "Audit"]), false, true),
    ] {
        let api = Api::new().await;
        api.policy(
            json!({"validations": [{"expression": "false", "message": "no"}]}),
            json!({"validationActions": actions}),
        )
        .await;
        let (made, warnings) = api.put(json!({"a": "2"})).await;
        assert_eq!(made.is_err(), refused, "{actions}");
        let warning = "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': no";
        assert_eq!(warnings, if warned { vec![warning] } else { vec![] }, "{actions}");
    }
    // Without a binding a policy is nothing yet.
    let api = Api::new().await;
    api.create("validatingadmissionpolicies", policy("p", validation("false"))).await.unwrap();
    api.put(json!({"a": "1"})).await.0.unwrap();
}

#[tokio::test]
async fn failures_fail_unless_they_are_ignored() {
    for (policy, refused) in [("Fail", true), ("Ignore", false)] {
        let api = Api::new().await;
        let spec = json!({"failurePolicy": policy, "validations": [{"expression": "object.data.none == 'x'"}]});
        api.policy(spec, json!({"validationActions": ["Warn"]})).await;
        assert_eq!(api.put(json!({"a": "1"})).await.0.is_err(), refused, "{policy}");
    }
}

#[tokio::test]
async fn constraints_conditions_and_bindings_choose() {
    let api = Api::new().await;
    api.namespace("strict", json!({"env": "prod"})).await;
    let spec = json!({
        "matchConstraints": {"excludeResourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"], "resourceNames": ["spared"]}]},
        "matchConditions": [
            {"name": "not-root", "expression": "request.userInfo.username != 'root'"},
            {"name": "has-data", "expression": "has(object.data)"},
        ],
        "validations": [{"expression": "false", "message": "no"}],
    });
    let bound = json!({"matchResources": {"namespaceSelector": {"matchLabels": {"env": "prod"}},
        "objectSelector": {"matchExpressions": [{"key": "free", "operator": "DoesNotExist"}]}}});
    api.policy(spec, bound).await;
    let create = async |namespace: &str, object: Value, user: &str| {
        let mut create = within(namespace, request(Verb::Create, "configmaps", "", Some(object), Options::default()));
        create.user = User::system(user);
        create.options.dry_run = true;
        told(api.0.handle(create).await).0
    };
    let x = || config_map("x", json!({"a": "1"}));
    assert!(create("strict", x(), "test").await.unwrap_err().message.ends_with("denied request: no"));
    for (namespace, object, user) in [
        ("default", x(), "test"),
        ("strict", x(), "root"),
        ("strict", with(x(), "/data", Value::Null), "test"),
        ("strict", config_map("spared", json!({"a": "1"})), "test"),
        ("strict", with(x(), "/metadata/labels", json!({"free": "yes"})), "test"),
    ] {
        create(namespace, object, user).await.unwrap();
    }
}

#[tokio::test]
async fn parameters_are_objects_that_bindings_name() {
    let spec = || {
        json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": [
            {"expression": "object.spec.containers.size() <= int(params.data.max)", "messageExpression": "'at most ' + params.data.max"}],
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]}})
    };
    let limits = |name: &str, max: &str| {
        with(config_map(name, json!({"max": max})), "/metadata/labels", json!({"limits": "yes"}))
    };
    let two =
        || with(pod("two"), "/spec/containers", json!([{"name": "a", "image": "x:1"}, {"name": "b", "image": "x:1"}]));
    let by_name = |action: &str| json!({"paramRef": {"name": "limits", "parameterNotFoundAction": action}});

    let api = Api::new().await;
    api.policy(spec(), by_name("Deny")).await;
    let refused = api.create("pods", pod("one")).await.unwrap_err();
    let why = "denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    assert!(refused.message.ends_with(why), "{refused}");
    api.create("configmaps", limits("limits", "1")).await.unwrap();
    api.create("pods", pod("one")).await.unwrap();
    assert!(api.create("pods", two()).await.unwrap_err().message.ends_with("denied request: at most 1"));
    api.patch("configmaps", "limits", json!({"data": {"max": "2"}})).await.unwrap();
    api.create("pods", two()).await.unwrap();

    let api = Api::new().await;
    api.policy(spec(), by_name("Allow")).await;
    api.create("pods", two()).await.unwrap();

    // All that a selector finds must agree; and they may be of another namespace.
    let api = Api::new().await;
    api.namespace("rules", json!({})).await;
    let by_label = json!({"paramRef": {"namespace": "rules", "selector": {"matchLabels": {"limits": "yes"}}, "parameterNotFoundAction": "Allow"}});
    api.policy(spec(), by_label).await;
    for (name, max) in [("a", "3"), ("b", "1")] {
        let create = request(Verb::Create, "configmaps", "", Some(limits(name, max)), Options::default());
        api.0.handle(within("rules", create)).await.unwrap();
    }
    assert!(api.create("pods", two()).await.unwrap_err().message.ends_with("at most 1"));

    // One that is there and cannot be read allows nothing.
    let store = Arc::new(Memory::new());
    let api = Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap());
    api.policy(spec(), by_name("Allow")).await;
    api.create("configmaps", limits("limits", "2")).await.unwrap();
    api.create("pods", two()).await.unwrap();
    let cut =
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"limits","namespace":"default"},"data":{"max":"#;
    let writes = vec![Write::Put("/registry/configmaps/default/limits".into(), cut.into())];
    store.commit(Txn { writes, ..Txn::default() }).await.unwrap();
    let refused = loop {
        match api.create("pods", with(two(), "/metadata/name", json!("next"))).await {
            Ok(_) => drop(api.delete("pods", "next", Options::default()).await),
            Err(refused) => break refused,
        }
    };
    assert!(refused.message.ends_with("failed to configure binding: a parameter cannot be decoded"), "{refused}");

    let api = Api::new().await;
    let odd =
        json!({"paramKind": {"apiVersion": "example.com/v1", "kind": "Odd"}, "validations": [{"expression": "true"}]});
    api.policy(odd, by_name("Allow")).await;
    let refused = api.put(json!({"a": "1"})).await.0.unwrap_err();
    assert!(refused.message.ends_with("paramKind kind `example.com/v1, Kind=Odd` not known"), "{refused}");
}

#[tokio::test]
async fn an_expression_that_does_not_compile_is_refused_where_it_stands() {
    let api = Api::new().await;
    for (spec, field, why) in [
        (validation("object.x +"), "spec.validations[0].expression", "compilation failed: ERROR: <input>:1:"),
        (validation("nobody == 1"), "spec.validations[0].expression", "undeclared reference to 'nobody'"),
        (validation("params.x == 1"), "spec.validations[0].expression", "undeclared reference to 'params'"),
        (validation("'text'"), "spec.validations[0].expression", "must evaluate to bool"),
        (
            json!({"validations": [{"expression": "true", "messageExpression": "1"}]}),
            "spec.validations[0].messageExpression",
            "must evaluate to string",
        ),
        (
            json!({"matchConditions": [{"name": "a", "expression": "1"}], "validations": [{"expression": "true"}]}),
            "spec.matchConditions[0].expression",
            "must evaluate to bool",
        ),
        (
            json!({"variables": [{"name": "a", "expression": "variables.b"}], "validations": [{"expression": "true"}]}),
            "spec.variables[0].expression",
            "undefined field 'b'",
        ),
        (
            json!({"auditAnnotations": [{"key": "a", "valueExpression": "1"}]}),
            "spec.auditAnnotations[0].valueExpression",
            "must evaluate to",
        ),
    ] {
        let refused = api.create("validatingadmissionpolicies", policy("p", spec.clone())).await.unwrap_err();
        assert_eq!(refused.code, 422, "{refused}");
        assert!(
            refused.message.contains(&format!("{field}: Invalid value")) && refused.message.contains(why),
            "{spec}: {refused}"
        );
    }
    let hook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "w"},
        "webhooks": [{"name": "a.example.com", "clientConfig": {"url": "https://h"}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "matchConditions": [{"name": "a", "expression": "variables.x"}]}]});
    let refused = api.create("validatingwebhookconfigurations", hook).await.unwrap_err();
    assert!(refused.message.contains("webhooks[0].matchConditions[0].expression: Invalid value"), "{refused}");
}

#[tokio::test]
async fn the_example_does_what_it_says() {
    let api = Api::new().await;
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/admission.yaml")).unwrap();
    for object in podwright::api::yaml::documents(&text).unwrap() {
        let kind = object["kind"].as_str().unwrap().to_owned();
        api.create(&kind, object).await.unwrap();
    }
    let deployment = |labels: Value, security: Value| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "guarded", "labels": labels},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
                "securityContext": security, "containers": [{"name": "c", "image": "x:1"}]}}}})
    };
    let refused = api.create("deployments", deployment(json!({}), json!({}))).await.unwrap_err();
    let why = "the Deployment d belongs to no team: set the label `team`";
    assert!(refused.code == 403 && refused.message.ends_with(why), "{refused}");
    let hardened = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    let unsure = "status unknown for quota: room, resources: count/deployments.apps";
    let refused = api.create("deployments", deployment(json!({"team": "a"}), hardened)).await.unwrap_err();
    assert!(refused.message.ends_with(unsure), "no controller runs here that counts: {refused}");
}

#[tokio::test]
async fn system_priorities_are_kept_to_kube_system_by_the_example() {
    let api = Api::new().await;
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/system-priorities.yaml")).unwrap();
    let pod = |namespace: &str, class: &str| {
        let mut pod = super::pod("p");
        pod["metadata"]["namespace"] = namespace.into();
        if !class.is_empty() {
            pod["spec"]["priorityClassName"] = class.into();
        }
        pod["metadata"]["name"] = if class.is_empty() { "plain".into() } else { class.into() };
        pod
    };
    api.create("pods", pod("default", "system-node-critical")).await.expect("upstream lets it, and so is it here");
    for object in podwright::api::yaml::documents(&text).unwrap() {
        let kind = object["kind"].as_str().unwrap().to_owned();
        api.create(&kind, object).await.unwrap();
    }
    for (namespace, class, allowed) in [
        ("default", "system-cluster-critical", false),
        ("default", "", true),
        ("kube-system", "system-cluster-critical", true),
        ("kube-system", "system-node-critical", true),
    ] {
        let outcome = api.create("pods", pod(namespace, class)).await;
        assert_eq!(outcome.is_ok(), allowed, "{class} in {namespace}: {outcome:?}");
        if let Err(refused) = outcome {
            assert!(refused.code == 403 && refused.message.contains("kube-system alone"), "{refused}");
        }
    }
}

/// The cases of upstream's documentation: a limit that a custom resource keeps, images by their namespace's environment, and
/// requests that a policy does not concern.
#[tokio::test]
async fn the_policies_of_the_documentation() {
    let api = Api::new().await;
    // A kind for parameters alone, with a limit for each namespace that has one.
    let schema = json!({"type": "object", "properties": {"maxReplicas": {"type": "integer"}}});
    let mut definition = super::super::custom::definition(schema);
    definition["metadata"]["name"] = "replicalimits.rules.example.com".into();
    definition["spec"]["group"] = "rules.example.com".into();
    definition["spec"]["names"] = json!({"plural": "replicalimits", "singular": "replicalimit", "kind": "ReplicaLimit", "listKind": "ReplicaLimitList"});
    api.define(definition).await;
    let limit = json!({"apiVersion": "rules.example.com/v1", "kind": "ReplicaLimit", "metadata": {"name": "limit"}, "maxReplicas": 3});
    api.create("replicalimits.rules.example.com", limit).await.unwrap();
    let spec = json!({
        "paramKind": {"apiVersion": "rules.example.com/v1", "kind": "ReplicaLimit"},
        "matchConditions": [
            {"name": "not-the-nodes", "expression": "!('system:nodes' in request.userInfo.groups)"},
            {"name": "not-who-may-break-glass",
                "expression": "!authorizer.group('rules.example.com').resource('replicalimits').name('limit').check('breakglass').allowed()"},
        ],
        "validations": [{
            "expression": "object.spec.replicas <= params.maxReplicas", "reason": "Invalid",
            "messageExpression": "'object.spec.replicas must be no greater than ' + string(params.maxReplicas)"}],
        "auditAnnotations": [{"key": "high-replica-count",
            "valueExpression": "'Deployment spec.replicas set to ' + string(object.spec.replicas)"}],
        "matchConstraints": {"resourceRules": [
            {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]}]},
    });
    api.policy(spec, json!({"paramRef": {"name": "limit", "namespace": "default", "parameterNotFoundAction": "Deny"}}))
        .await;
    let group = "rbac.authorization.k8s.io";
    for (user, rule) in [
        ("dev", json!({"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]})),
        ("sre", json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})),
    ] {
        let role = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": user}, "rules": [rule]});
        let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": user},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": user}, "subjects": [{"apiGroup": group, "kind": "User", "name": user}]});
        api.create("clusterroles", role).await.unwrap();
        api.create("clusterrolebindings", binding).await.unwrap();
    }
    let deployment = |name: &str, replicas: u32, image: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {"replicas": replicas,
            "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": image}]}}}})
    };
    let create = |namespace: &'static str, object: Value, user: User| {
        let mut asked =
            within(namespace, request(Verb::Create, "deployments.apps", "", Some(object), Options::default()));
        asked.user = user;
        api.0.handle(asked)
    };
    let dev = || User::new("dev", ["system:authenticated"]);
    create("default", deployment("few", 3, "i:1"), dev()).await.unwrap();
    let refused = create("default", deployment("many", 4, "i:1"), dev()).await.unwrap_err();
    let why =
        "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: object.spec.replicas must be no greater than 3";
    assert!(refused.code == 422 && refused.message.ends_with(why), "{refused}");
    create("default", deployment("glass", 4, "i:1"), User::new("sre", ["system:authenticated"])).await.unwrap();
    create("default", deployment("node", 4, "i:1"), User::new("dev", ["system:nodes"])).await.unwrap();

    // Variables, and the namespace's labels.
    api.namespace("shop", json!({"environment": "staging"})).await;
    let images = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "images"},
        "spec": {"failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [
                {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]}]},
            "variables": [
                {"name": "environment", "expression": "'environment' in namespaceObject.metadata.labels ? namespaceObject.metadata.labels['environment'] : 'prod'"},
                {"name": "exempt", "expression": "has(object.metadata.labels) && 'exempt' in object.metadata.labels && object.metadata.labels['exempt'] == 'true'"},
                {"name": "containers", "expression": "object.spec.template.spec.containers"},
                {"name": "toCheck", "expression": "variables.containers.filter(c, c.image.contains('example.com/'))"}],
            "validations": [{
                "expression": "variables.exempt || variables.toCheck.all(c, c.image.startsWith(variables.environment + '.'))",
                "messageExpression": "'only ' + variables.environment + ' images are allowed in namespace ' + namespaceObject.metadata.name"}]}});
    api.create("validatingadmissionpolicies", images).await.unwrap();
    let selected = json!({"matchResources": {"namespaceSelector": {"matchLabels": {"environment": "staging"}}}});
    api.create("validatingadmissionpolicybindings", binding("images", "images", selected)).await.unwrap();
    create("shop", deployment("a", 1, "staging.example.com/nginx:1"), dev()).await.unwrap();
    create("shop", deployment("b", 1, "nginx:1"), dev()).await.unwrap();
    let prod = deployment("c", 1, "prod.example.com/nginx:1");
    let refused = create("shop", prod.clone(), dev()).await.unwrap_err();
    assert!(
        refused.message.ends_with("denied request: only staging images are allowed in namespace shop"),
        "{refused}"
    );
    create("shop", with(prod.clone(), "/metadata/labels", json!({"exempt": "true"})), dev()).await.unwrap();
    create("default", prod, dev()).await.unwrap();
}

/// Each variable may cost what one evaluation may, all together what an object may.
#[tokio::test]
async fn variables_are_paid_for_by_their_policy() {
    let tree = format!("[[1]]{}", ".map(x, [x, x])".repeat(18));
    for (count, is_refused) in [(5, false), (20, true)] {
        let api = Api::new().await;
        let variable = |i: usize| json!({"name": format!("v{i}"), "expression": format!("{tree} == {tree}")});
        let variables: Vec<Value> = (0..count).map(variable).collect();
        let all: Vec<String> = (0..count).map(|i| format!("variables.v{i}")).collect();
        let spec = json!({"variables": variables, "validations": [{"expression": all.join(" && ")}]});
        api.policy(spec, json!({})).await;
        match api.put(json!({"a": "2"})).await.0 {
            Ok(_) => assert!(!is_refused, "{count}"),
            Err(refused) => {
                assert!(is_refused && refused.message.contains("cost budget"), "{count}: {refused}");
            }
        }
    }
}

/// Small as it is, a write may make its policies take long: not where everybody's requests wait.
#[tokio::test]
async fn what_takes_long_is_decided_in_the_turns_of_what_is_large() {
    let tree = format!("[[1]]{}", ".map(x, [x, x])".repeat(16));
    let long = format!("{tree} == {tree}");
    for (expression, is_long) in [("object.data.a == '2'".to_owned(), false), (long, true)] {
        let denies = format!("({expression}) && object.data.a == '3'");
        let api = Api::new().await;
        api.policy(validation(&expression), json!({})).await;
        api.create("validatingadmissionpolicies", policy("q", validation(&denies))).await.unwrap();
        let warns = json!({"validationActions": ["Warn"]});
        api.create("validatingadmissionpolicybindings", binding("c", "q", warns)).await.unwrap();
        let before = api.0.large_turns();
        let (made, warnings) = api.put(json!({"a": "2"})).await;
        made.unwrap();
        assert_eq!(warnings.len(), 1, "it is told once, however often it was found: {warnings:?}");
        let turns = api.0.large_turns() - before;
        assert_eq!(turns > 0, is_long, "{expression}: {turns} turns");
        assert!(!is_long || turns > 2, "and others go first between two expressions");
    }
}

/// Whoever makes parameters decides how many there are.
#[tokio::test]
async fn many_parameters_are_looked_at_in_turns() {
    for (count, is_long) in [(2, false), (3, true)] {
        let api = Api::new().await;
        for n in 0..count {
            let mut params = config_map(&format!("p{n}"), json!({"a": "x".repeat(30_000)}));
            params["metadata"]["labels"] = json!({"params": "yes"});
            api.create("configmaps", params).await.unwrap();
        }
        let mut spec = validation("params.data.a.size() == 30000");
        spec["paramKind"] = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        let params = json!({"selector": {"matchLabels": {"params": "yes"}}, "parameterNotFoundAction": "Deny"});
        api.policy(spec, json!({"paramRef": params})).await;
        let before = api.0.large_turns();
        api.put(json!({"a": "2"})).await.0.unwrap();
        assert_eq!(api.0.large_turns() > before, is_long, "{count}");
    }
}

#[tokio::test]
async fn an_authorizers_answer_costs_what_upstreams_does() {
    for (each, fine) in [("1, 2", true), ("1, 2, 3", false)] {
        let api = Api::new().await;
        let expression = format!("[{each}].all(i, authorizer.requestResource.check('create').allowed())");
        api.policy(validation(&expression), json!({})).await;
        match api.put(json!({"a": "2"})).await.0 {
            Ok(_) => assert!(fine, "{expression} is too much"),
            Err(refused) => assert!(!fine && refused.message.contains("actual cost limit exceeded"), "{refused}"),
        }
    }
}
