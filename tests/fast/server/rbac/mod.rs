//! RBAC: what its tests share, escalation, aggregation, and what the words of a refusal are.

use podwright::api::request::PatchType;
use podwright::api::{Object, Options, Request, Response, Status, User, Verb};
use serde_json::{Value, json};

use super::{Api, config_map, object_of, request};

mod decisions;
mod default_roles;
mod packets;
mod withdrawn;

const GROUP: &str = "rbac.authorization.k8s.io";

/// A rule as the table writes it: `verbs group resources [names]`, `core` for the group "", or `verbs url paths`.
fn rule(text: &str) -> Value {
    let words: Vec<&str> = text.split_whitespace().collect();
    let group = |word: &str| if word == "core" { String::new() } else { word.to_owned() };
    let list = |words: &str| words.split(',').map(group).collect::<Vec<_>>();
    match words.as_slice() {
        [verbs, "url", paths] => json!({"verbs": list(verbs), "nonResourceURLs": list(paths)}),
        [verbs, groups, resources] => {
            json!({"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources)})
        }
        [verbs, groups, resources, names] => json!({
            "verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources), "resourceNames": list(names),
        }),
        other => panic!("not a rule: {other:?}"),
    }
}

fn rules(texts: &[&str]) -> Value {
    texts.iter().map(|text| rule(text)).collect()
}

impl Api {
    /// A ClusterRole.
    async fn cluster_role(&self, name: &str, rules: Value) -> Object {
        let role = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
        self.create("clusterroles", role).await.unwrap()
    }

    /// Binds a ClusterRole to subjects, everywhere or in a namespace.
    async fn bind(&self, role: &str, namespace: Option<&str>, subjects: Value) {
        let name = format!("{role}-{}", namespace.unwrap_or("everywhere"));
        let mut binding = json!({
            "apiVersion": format!("{GROUP}/v1"), "metadata": {"name": name}, "subjects": subjects,
            "roleRef": {"kind": "ClusterRole", "name": role},
        });
        let (kind, resource) = match namespace {
            Some(namespace) => {
                binding["metadata"]["namespace"] = namespace.into();
                ("RoleBinding", "rolebindings")
            }
            None => ("ClusterRoleBinding", "clusterrolebindings"),
        };
        binding["kind"] = kind.into();
        self.create(resource, binding).await.unwrap();
    }

    /// What a SubjectAccessReview says: `get core pods/log in ns named x`, `get /healthz`.
    async fn may(&self, user: &str, groups: &[&str], question: &str) -> bool {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": spec(user, groups, question),
        });
        self.create("subjectaccessreviews", review).await.unwrap().0["status"]["allowed"] == true
    }

    async fn as_user(
        &self,
        user: &str,
        verb: Verb,
        resource: &str,
        name: &str,
        body: Option<Value>,
    ) -> Result<Response, Status> {
        let user = User::new(user, ["system:authenticated"]);
        self.0.handle(Request { user, ..request(verb, resource, name, body, Options::default()) }).await
    }
}

fn spec(user: &str, groups: &[&str], question: &str) -> Value {
    let words: Vec<&str> = question.split_whitespace().collect();
    let mut spec = json!({"user": user, "groups": groups});
    if let [verb, path] = words.as_slice() {
        spec["nonResourceAttributes"] = json!({"verb": verb, "path": path});
        return spec;
    }
    let (resource, sub) = words[2].split_once('/').unwrap_or((words[2], ""));
    let group = if words[1] == "core" { "" } else { words[1] };
    let mut asked = json!({"verb": words[0], "group": group, "resource": resource, "subresource": sub});
    for pair in words[3..].chunks(2) {
        match pair {
            ["in", namespace] => asked["namespace"] = (*namespace).into(),
            ["named", name] => asked["name"] = (*name).into(),
            other => panic!("not understood: {other:?}"),
        }
    }
    spec["resourceAttributes"] = asked;
    spec
}
#[tokio::test]
async fn everyone_may_see_what_is_served_and_who_he_is() {
    let api = Api::new().await;
    let (known, unknown) = (["system:authenticated"], ["system:unauthenticated"]);
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert!(api.may("u", &known, &format!("get {path}")).await, "{path}");
        assert!(api.may("system:anonymous", &unknown, &format!("get {path}")).await, "{path}");
    }
    for path in ["/api", "/apis/apps/v1", "/openapi/v2"] {
        assert!(api.may("u", &known, &format!("get {path}")).await, "{path}");
        assert!(!api.may("system:anonymous", &unknown, &format!("get {path}")).await, "{path}");
    }
    for path in
        ["/metrics", "/statusz", "/flagz", "/debug/pprof/profile", "/readyz/etcd", "/.well-known/openid-configuration"]
    {
        assert!(!api.may("u", &known, &format!("get {path}")).await, "{path}");
    }
    for path in ["/metrics", "/metrics/slis", "/statusz", "/flagz"] {
        assert!(api.may("m", &["system:monitoring"], &format!("get {path}")).await, "{path}");
    }
    assert!(!api.may("m", &["system:monitoring"], "get /debug/pprof/profile").await);
    assert!(api.may("s", &["system:serviceaccounts"], "get /.well-known/openid-configuration").await);
    assert!(api.may("u", &known, "create authorization.k8s.io selfsubjectaccessreviews").await);
    assert!(!api.may("u", &known, "create authorization.k8s.io subjectaccessreviews").await);
    let controller = "system:serviceaccount:kube-system:deployment-controller";
    assert!(api.may(controller, &[], "create apps replicasets in default").await);
    assert!(!api.may(controller, &[], "get core secrets in default").await);
    assert!(api.may("system:kube-scheduler", &[], "create core pods/binding in default").await);
    assert!(api.may("anyone", &["system:masters"], "frobnicate x.y z").await);
}

#[tokio::test]
async fn a_refusal_says_what_was_asked() {
    let api = Api::new().await;
    let list = api.as_user("alice", Verb::List, "pods", "", None).await.unwrap_err();
    assert_eq!((list.code, list.reason.as_str()), (403, "Forbidden"));
    assert_eq!(
        list.message,
        r#"pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "default""#
    );
    let get = api.as_user("alice", Verb::Get, "deployments", "x", None).await.unwrap_err();
    assert_eq!(
        get.message,
        r#"deployments.apps "x" is forbidden: User "alice" cannot get resource "deployments" in API group "apps" in the namespace "default""#
    );
    let nodes = api.as_user("alice", Verb::List, "nodes", "", None).await.unwrap_err();
    assert_eq!(
        nodes.message,
        r#"nodes is forbidden: User "alice" cannot list resource "nodes" in API group "" at the cluster scope"#
    );
    let namespace = api.as_user("alice", Verb::Get, "namespaces", "default", None).await.unwrap_err();
    assert!(namespace.message.ends_with(r#"in the namespace "default""#), "{namespace}");
    api.bind("gone", Some("default"), json!([{"kind": "User", "name": "alice"}])).await;
    let missing = api.as_user("alice", Verb::List, "pods", "", None).await.unwrap_err();
    assert!(
        missing.message.ends_with(r#": RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found"#),
        "{missing}"
    );
    // Who writes bindings does not have the answers to others be as long as he likes.
    for i in 0..30 {
        api.bind(&format!("gone-{i}"), Some("default"), json!([{"kind": "User", "name": "alice"}])).await;
    }
    let missing = api.as_user("alice", Verb::List, "pods", "", None).await.unwrap_err();
    assert_eq!(missing.message.matches("not found").count(), 10, "{missing}");
    assert!(missing.message.ends_with(", and 21 more]"), "{missing}");
}

#[tokio::test]
async fn grants_and_their_ends_count_at_once() {
    let api = Api::new().await;
    api.cluster_role("reader", rules(&["get core configmaps"])).await;
    api.create("configmaps", config_map("c")).await.unwrap();
    let subject = json!([{"kind": "User", "name": "u"}]);
    for _ in 0..20 {
        assert!(api.as_user("u", Verb::Get, "configmaps", "c", None).await.is_err());
        api.bind("reader", Some("default"), subject.clone()).await;
        assert!(api.as_user("u", Verb::Get, "configmaps", "c", None).await.is_ok());
        api.delete("rolebindings", "reader-default", Options::default()).await.unwrap();
        // A read waits for what was acknowledged, so the index shows it too.
        api.get("configmaps", "c").await.unwrap();
    }
    // Two bindings of one role: the end of one leaves the other.
    api.bind("reader", Some("default"), subject.clone()).await;
    api.bind("reader", None, subject.clone()).await;
    api.delete("rolebindings", "reader-default", Options::default()).await.unwrap();
    api.get("configmaps", "c").await.unwrap();
    assert!(api.as_user("u", Verb::Get, "configmaps", "c", None).await.is_ok());
    api.patch("clusterroles", "reader", json!({"rules": rules(&["list core configmaps"])})).await.unwrap();
    api.get("configmaps", "c").await.unwrap();
    assert!(api.as_user("u", Verb::Get, "configmaps", "c", None).await.is_err());
    // A namespace can be read by who may read namespaces within it.
    api.bind("view", Some("default"), subject).await;
    assert!(api.as_user("u", Verb::Get, "namespaces", "default", None).await.is_ok());
    assert!(api.as_user("u", Verb::Get, "namespaces", "kube-system", None).await.is_err());
}

#[tokio::test]
async fn nobody_grants_what_he_does_not_have() {
    let api = Api::new().await;
    api.cluster_role("rbac", rules(&["* rbac.authorization.k8s.io roles,rolebindings", "get core pods"])).await;
    api.bind("rbac", Some("default"), json!([{"kind": "User", "name": "u"}])).await;
    let role = |name: &str, grants: &[&str]| json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Role", "metadata": {"name": name}, "rules": rules(grants)});
    // "*" on roles holds `escalate` and `bind` too; so a user with the plain verbs is asked.
    api.patch(
        "clusterroles",
        "rbac",
        json!({"rules": rules(&["get,create,update,patch rbac.authorization.k8s.io roles,rolebindings", "get core pods"])}),
    )
    .await
    .unwrap();
    api.get("clusterroles", "rbac").await.unwrap();

    let refused =
        api.as_user("u", Verb::Create, "roles", "", Some(role("r", &["get,delete core pods", "list core secrets"])));
    let refused = refused.await.unwrap_err();
    assert_eq!(
        refused.message,
        "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"u\" (groups=[\"system:authenticated\"]) is attempting \
         to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}\n\
         {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"list\"]}"
    );
    let allowed = role("r", &["get core pods"]);
    let made = object_of(api.as_user("u", Verb::Create, "roles", "", Some(allowed)).await.unwrap());
    let mut more = made.clone();
    more.0["rules"] = rules(&["* core pods"]);
    assert_eq!(api.as_user("u", Verb::Update, "roles", "r", Some(more.0.clone())).await.unwrap_err().code, 403);
    api.update("roles", &more).await.unwrap();

    let binding = |role: &str| {
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "RoleBinding", "metadata": {"name": format!("b-{role}")},
            "subjects": [{"kind": "User", "name": "v"}], "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        })
    };
    let refused = api.as_user("u", Verb::Create, "rolebindings", "", Some(binding("view"))).await.unwrap_err();
    assert!(refused.message.contains("is attempting to grant RBAC permissions not currently held"), "{refused}");
    let missing = api.as_user("u", Verb::Create, "rolebindings", "", Some(binding("nothing"))).await.unwrap_err();
    assert_eq!(missing.message, "clusterroles.rbac.authorization.k8s.io \"nothing\" not found");
    api.cluster_role("may-bind", rules(&["bind rbac.authorization.k8s.io clusterroles view"])).await;
    api.bind("may-bind", Some("default"), json!([{"kind": "User", "name": "u"}])).await;
    api.as_user("u", Verb::Create, "rolebindings", "", Some(binding("view"))).await.unwrap();
    assert!(api.as_user("u", Verb::Create, "rolebindings", "", Some(binding("edit"))).await.is_err());

    let mut other = api.get("rolebindings", "b-view").await.unwrap();
    other.0["roleRef"]["name"] = "admin".into();
    let refused = api.update("rolebindings", &other).await.unwrap_err();
    assert!(refused.code == 422 && refused.message.contains("cannot change roleRef"), "{refused}");
}

#[tokio::test]
async fn applying_what_is_not_there_needs_the_right_to_create() {
    let api = Api::new().await;
    api.cluster_role("patcher", rules(&["patch core configmaps"])).await;
    api.bind("patcher", Some("default"), json!([{"kind": "User", "name": "u"}])).await;
    for of_type in [PatchType::Apply, PatchType::ThreeWay] {
        let apply = |name: &str| {
            let options = Options {
                patch_type: Some(of_type),
                field_manager: Some("test".into()),
                force: of_type == PatchType::Apply,
                ..Options::default()
            };
            let user = User::new("u", ["system:authenticated"]);
            let request = Request { user, ..request(Verb::Patch, "configmaps", name, Some(config_map(name)), options) };
            let server = api.0.clone();
            async move { server.handle(request).await }
        };
        let refused = apply("new").await.unwrap_err();
        assert!(refused.message.contains("cannot create resource \"configmaps\""), "{refused}");
        let _ = api.create("configmaps", config_map("old")).await;
        apply("old").await.unwrap();
    }
}

#[tokio::test]
async fn aggregated_roles_follow_their_parts() {
    let api = Api::new().await;
    let gathers = |of: &str| json!({"clusterRoleSelectors": [{"matchLabels": {"gather": of}}]});
    let role = |name: &str, labels: Value, rest: Value| {
        let mut role = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": name, "labels": labels}});
        role.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        role
    };
    api.create("clusterroles", role("all", json!({}), json!({"aggregationRule": gathers("a"), "rules": []})))
        .await
        .unwrap();
    api.bind("all", None, json!([{"kind": "User", "name": "u"}])).await;
    let part = role("part", json!({"gather": "a"}), json!({"rules": rules(&["get x.io widgets"])}));
    api.create("clusterroles", part).await.unwrap();
    wait(&api, "get x.io widgets", true).await;
    api.patch("clusterroles", "part", json!({"rules": rules(&["list x.io widgets"])})).await.unwrap();
    wait(&api, "get x.io widgets", false).await;
    assert!(api.may("u", &[], "list x.io widgets").await);
    // By two steps: through a role that gathers and is gathered.
    let middle = role("middle", json!({"gather": "a"}), json!({"aggregationRule": gathers("b"), "rules": []}));
    api.create("clusterroles", middle).await.unwrap();
    let leaf = role("leaf", json!({"gather": "b"}), json!({"rules": rules(&["get x.io gadgets"])}));
    api.create("clusterroles", leaf).await.unwrap();
    wait(&api, "get x.io gadgets", true).await;
    api.delete("clusterroles", "leaf", Options::default()).await.unwrap();
    wait(&api, "get x.io gadgets", false).await;

    let own = role(
        "custom",
        json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"}),
        json!({"rules": rules(&["get x.io things"])}),
    );
    api.create("clusterroles", own).await.unwrap();
    for aggregated in ["view", "edit", "admin"] {
        api.bind(aggregated, Some("default"), json!([{"kind": "User", "name": aggregated}])).await;
        wait_for(&api, aggregated, "get x.io things in default", true).await;
    }
}

/// Whoever may write ClusterRoles, and holds some rules: what a role gathers he cannot give, nor take the place of what is gathered.
#[tokio::test]
async fn what_a_role_gathers_is_for_those_who_have_everything() {
    let api = Api::new().await;
    let plain = ["get,create,update,patch rbac.authorization.k8s.io clusterroles", "get core pods"];
    api.cluster_role("rbac", rules(&plain)).await;
    api.bind("rbac", None, json!([{"kind": "User", "name": "u"}])).await;
    let everyone = json!({"clusterRoleSelectors": [{"matchLabels": {"gather": "a"}}]});
    let role = |name: &str, more: &[(&str, Value)]| {
        let mut role = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": name},
            "rules": rules(&["get core pods"])});
        more.iter().for_each(|(field, value)| role[*field] = value.clone());
        role
    };
    let own = object_of(api.as_user("u", Verb::Create, "clusterroles", "", Some(role("own", &[]))).await.unwrap());
    api.create("clusterroles", role("gathering", &[("aggregationRule", everyone.clone())])).await.unwrap();
    // What it gathers, which is nothing, takes the place of its rules.
    let gathering = without_rules(&api, "gathering").await;
    let with = |object: &Object, field: &str, value: Value| {
        let mut object = object.clone();
        object.0[field] = value;
        object.0
    };
    let tries = [
        ("made", Verb::Create, "", role("new", &[("aggregationRule", everyone.clone())])),
        ("made to gather", Verb::Update, "own", with(&own, "aggregationRule", everyone)),
        ("given rules that he holds", Verb::Update, "gathering", with(&gathering, "rules", rules(&["get core pods"]))),
        ("made to gather no more", Verb::Update, "gathering", with(&gathering, "aggregationRule", Value::Null)),
        ("labelled", Verb::Update, "gathering", {
            let mut labelled = gathering.clone();
            labelled.0["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-admin": "true"});
            labelled.0
        }),
    ];
    for (what, verb, name, body) in tries {
        let refused = api.as_user("u", verb, "clusterroles", name, Some(body)).await;
        let why = refused.map(|_| ()).expect_err(what);
        assert!(why.code == 403 && why.message.contains("cluster-admin privileges"), "{what}: {why}");
    }
    // Who has everything may.
    api.bind("cluster-admin", None, json!([{"kind": "User", "name": "u"}])).await;
    let emptied = with(&api.get("clusterroles", "gathering").await.unwrap(), "aggregationRule", Value::Null);
    api.as_user("u", Verb::Update, "clusterroles", "gathering", Some(emptied)).await.unwrap();
}

/// The ClusterRole once it has no rules.
async fn without_rules(api: &Api, name: &str) -> Object {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let role = api.get("clusterroles", name).await.unwrap();
        if role.0["rules"].as_array().is_none_or(Vec::is_empty) {
            return role;
        }
        assert!(tokio::time::Instant::now() < deadline, "{name} keeps its rules: {role:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

async fn wait(api: &Api, question: &str, expected: bool) {
    wait_for(api, "u", question, expected).await;
}

async fn wait_for(api: &Api, user: &str, question: &str, expected: bool) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    while api.may(user, &[], question).await != expected {
        assert!(tokio::time::Instant::now() < deadline, "{user}: {question} is still {}", !expected);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_its_field() {
    let api = Api::new().await;
    let role = |rule: Value| json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Role", "metadata": {"name": "r"}, "rules": [rule]});
    let cases = [
        (json!({"verbs": [], "apiGroups": [""], "resources": ["pods"]}), "rules[0].verbs"),
        (json!({"verbs": ["get"], "resources": ["pods"]}), "rules[0].apiGroups"),
        (json!({"verbs": ["get"], "apiGroups": [""]}), "rules[0].resources"),
        (json!({"verbs": ["get"], "nonResourceURLs": ["/x"]}), "rules[0].nonResourceURLs"),
    ];
    for (rule, field) in cases {
        let refused = api.create("roles", role(rule)).await.unwrap_err();
        assert_eq!((refused.code, refused.details.unwrap().causes[0].field.as_str()), (422, field));
    }
    let binding = |role_ref: Value, subject: Value| {
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "a:b"},
            "roleRef": role_ref, "subjects": [subject],
        })
    };
    let view = json!({"kind": "ClusterRole", "name": "view"});
    let user = json!({"kind": "User", "name": "u"});
    let cases = [
        (binding(json!({"kind": "Role", "name": "r"}), user.clone()), "roleRef.kind"),
        (binding(json!({"kind": "ClusterRole", "name": ""}), user.clone()), "roleRef.name"),
        (binding(json!({"apiGroup": "x", "kind": "ClusterRole", "name": "r"}), user.clone()), "roleRef.apiGroup"),
        (binding(view.clone(), json!({"kind": "Robot", "name": "u"})), "subjects[0].kind"),
        (binding(view.clone(), json!({"kind": "ServiceAccount", "name": "u"})), "subjects[0].namespace"),
        (binding(view.clone(), json!({"kind": "User", "name": ""})), "subjects[0].name"),
        (binding(view.clone(), json!({"kind": "Group", "name": "g", "apiGroup": "v1"})), "subjects[0].apiGroup"),
    ];
    for (binding, field) in cases {
        let refused = api.create("clusterrolebindings", binding).await.unwrap_err();
        assert_eq!((refused.code, refused.details.unwrap().causes[0].field.as_str()), (422, field));
    }
    let made = api.create("clusterrolebindings", binding(view, user)).await.unwrap();
    assert_eq!((&made.0["roleRef"]["apiGroup"], &made.0["subjects"][0]["apiGroup"]), (&json!(GROUP), &json!(GROUP)));
}

#[tokio::test]
async fn a_role_that_is_bound_often_is_told_once() {
    let api = Api::new().await;
    api.cluster_role("r", rules(&["get example.com widgets"])).await;
    for namespace in [None, Some("default")] {
        api.bind(
            "r",
            namespace,
            json!([{"kind": "User", "name": "ann"}, {"kind": "Group", "name": "system:authenticated"}]),
        )
        .await;
    }
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "default"}});
    let answer = api.as_user("ann", Verb::Create, "selfsubjectrulesreviews", "", Some(review)).await.unwrap();
    let status = object_of(answer).0["status"].take();
    let told =
        status["resourceRules"].as_array().unwrap().iter().filter(|rule| rule["resources"] == json!(["widgets"]));
    assert_eq!(told.count(), 1, "{status}");
}

/// Whoever may write roles in a namespace makes as many as he wants, as large as a body may be, and binds them to himself.
#[tokio::test]
async fn the_rules_of_a_user_of_very_many_are_listed_as_far_as_there_is_room() {
    let api = Api::new().await;
    let names: Vec<String> = (0..60_000).map(|n| format!("n{n}")).collect();
    let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": names}]);
    for n in 0..20 {
        let role = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Role", "metadata": {"name": format!("r{n}")}, "rules": rules});
        api.create("roles", role).await.unwrap();
        let binding = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "RoleBinding", "metadata": {"name": format!("r{n}")},
            "subjects": [{"kind": "User", "name": "jane"}], "roleRef": {"kind": "Role", "name": format!("r{n}")}});
        api.create("rolebindings", binding).await.unwrap();
    }
    let jane = User::new("jane", ["system:authenticated"]);
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "default"}});
    let before = api.0.large_turns();
    let asked = Request {
        user: jane.clone(),
        ..request(Verb::Create, "selfsubjectrulesreviews.authorization.k8s.io", "", Some(review), Options::default())
    };
    api.bind("system:basic-user", None, json!([{"kind": "User", "name": "jane"}])).await;
    // The authorizer sees what is written a little later.
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    let told = loop {
        let told = object_of(api.0.handle(asked.clone()).await.unwrap());
        if api.0.large_turns() > before {
            break told;
        }
        assert!(tokio::time::Instant::now() < deadline, "it has run as a large request");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let status = &told.0["status"];
    assert_eq!(status["incomplete"], true);
    assert!(status["evaluationError"].as_str().unwrap().contains("are left out"), "{}", status["evaluationError"]);
    let listed = status["resourceRules"].as_array().unwrap();
    assert!((10..20).contains(&listed.len()), "{}", listed.len());
    // What is left out of lists still counts.
    let secret = async |name: &str| {
        let get = Request { user: jane.clone(), ..request(Verb::Get, "secrets", name, None, Options::default()) };
        api.0.handle(get).await.unwrap_err().code
    };
    assert_eq!((secret("n59999").await, secret("n60000").await), (404, 403));
}
