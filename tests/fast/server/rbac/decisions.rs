//! RBAC: a table of decisions, and how long one takes.

use podwright::api::User;
use serde_json::json;

use super::{Api, GROUP, rules};

/// A role's rules, the questions that it answers yes, and those that it answers no. All is asked in the namespace `a`,
/// where the role is bound, and once more in `b`, where it is not.
const DECISIONS: &[(&[&str], &[&str], &[&str])] = &[
    (
        &["get,list core pods"],
        &["get core pods", "list core pods", "get core pods named x"],
        &[
            "watch core pods",
            "create core pods",
            "delete core pods named x",
            "get core pods/log",
            "get core pods/status named x",
            "get apps pods",
            "get core podtemplates",
            "get core configmaps",
            "* core pods",
            "get core *",
            "GET core pods",
        ],
    ),
    (
        &["* core pods"],
        &["get core pods", "create core pods", "deletecollection core pods", "frobnicate core pods", "* core pods"],
        &["get core pods/log", "create core pods/exec named x", "get core secrets", "get apps deployments"],
    ),
    (
        &["get core *"],
        &["get core pods", "get core secrets named x", "get core pods/log named x", "get core serviceaccounts/token"],
        &["list core pods", "get apps deployments", "get batch jobs", "create core pods/exec named x"],
    ),
    (
        &["get * deployments"],
        &[
            "get apps deployments",
            "get extensions deployments",
            "get core deployments",
            "get x.example.com deployments",
        ],
        &["get apps deployments/scale named x", "get apps replicasets", "update apps deployments"],
    ),
    (
        &["get,update * */scale"],
        &["get apps deployments/scale named x", "update apps statefulsets/scale", "get x.io widgets/scale"],
        &["get apps deployments", "get apps deployments/status", "patch apps deployments/scale", "get apps scale"],
    ),
    (
        &["get core pods/log", "create core pods/exec,pods/attach"],
        &["get core pods/log named x", "create core pods/exec named y", "create core pods/attach"],
        &[
            "get core pods named x",
            "get core pods/exec",
            "create core pods",
            "create core pods/portforward",
            "get core logs/pods",
        ],
    ),
    (
        &["get,update core configmaps a,b"],
        &["get core configmaps named a", "get core configmaps named b", "update core configmaps named a"],
        &[
            "get core configmaps named c",
            "get core configmaps",
            "list core configmaps",
            "create core configmaps",
            "delete core configmaps named a",
            "get core secrets named a",
        ],
    ),
    (
        &["list,watch core configmaps a"],
        &["list core configmaps named a", "watch core configmaps named a"],
        &["list core configmaps", "watch core configmaps named b"],
    ),
    (
        &["get core pods", "delete apps deployments x", "create batch jobs,cronjobs"],
        &["get core pods", "delete apps deployments named x", "create batch jobs", "create batch cronjobs"],
        &[
            "delete core pods",
            "get apps deployments named x",
            "delete apps deployments named y",
            "create core pods",
            "delete batch jobs",
            "create batch jobs/status",
        ],
    ),
    (
        &["get core,apps pods,deployments"],
        &["get core pods", "get apps deployments", "get apps pods", "get core deployments"],
        &["get batch jobs", "get extensions deployments"],
    ),
    (
        &["* * *"],
        &[
            "get core pods",
            "delete core nodes named n",
            "create core pods/exec named p",
            "impersonate core users named root",
            "escalate rbac.authorization.k8s.io roles",
            "anything at.all whatever/sub",
        ],
        &[],
    ),
    (&[], &[], &["get core pods", "list core namespaces", "create core pods", "impersonate core users named x"]),
    (
        &["impersonate core users,groups alice,devs", "impersonate authentication.k8s.io userextras/scopes view"],
        &[
            "impersonate core users named alice",
            "impersonate core groups named devs",
            "impersonate authentication.k8s.io userextras/scopes named view",
        ],
        &[
            "impersonate core users named bob",
            "impersonate core groups named system:masters",
            "impersonate core serviceaccounts named alice",
            "impersonate authentication.k8s.io userextras/other named view",
            "impersonate authentication.k8s.io userextras/scopes named admin",
            "impersonate authentication.k8s.io userextras named view",
        ],
    ),
    (
        &["bind rbac.authorization.k8s.io clusterroles view", "escalate rbac.authorization.k8s.io roles"],
        &[
            "bind rbac.authorization.k8s.io clusterroles named view",
            "escalate rbac.authorization.k8s.io roles named any",
        ],
        &[
            "bind rbac.authorization.k8s.io clusterroles named admin",
            "bind rbac.authorization.k8s.io roles named view",
            "escalate rbac.authorization.k8s.io clusterroles named any",
        ],
    ),
];

#[tokio::test]
async fn a_table_of_decisions() {
    let api = Api::new().await;
    let mut wrong = Vec::new();
    let mut count = 0;
    for (i, (grants, yes, no)) in DECISIONS.iter().enumerate() {
        let (role, user) = (format!("role-{i}"), format!("user-{i}"));
        api.cluster_role(&role, rules(grants)).await;
        let subject = json!([{"kind": "User", "name": user}]);
        api.create(
            "namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("a{i}")}}),
        )
        .await
        .unwrap();
        let (here, there) = (format!("a{i}"), "b");
        api.bind(&role, Some(&here), subject).await;
        let everywhere = format!("everywhere-{i}");
        let group = format!("group-{i}");
        api.cluster_role(&everywhere, rules(grants)).await;
        api.bind(&everywhere, None, json!([{"kind": "Group", "name": group}])).await;
        for (questions, expected) in [(yes, true), (no, false)] {
            for question in questions.iter() {
                let asked = [
                    (user.as_str(), vec![], format!("{question} in {here}"), expected),
                    (user.as_str(), vec![], format!("{question} in {there}"), false),
                    (user.as_str(), vec![], (*question).to_string(), false),
                    ("someone", vec![group.as_str()], format!("{question} in {there}"), expected),
                    ("someone", vec![group.as_str()], (*question).to_string(), expected),
                    ("someone", vec!["other"], format!("{question} in {here}"), false),
                ];
                for (user, groups, question, expected) in asked {
                    count += 1;
                    if api.may(user, &groups, &question).await != expected {
                        wrong.push(format!("{grants:?}: {user} {groups:?} {question}: should be {expected}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count} decisions are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 300, "{count} decisions");
}

/// Rules for paths, which only bindings to the whole cluster give.
#[tokio::test]
async fn paths_are_granted_with_a_trailing_star() {
    let api = Api::new().await;
    api.cluster_role("paths", rules(&["get url /healthz/*,/logs,/x*", "* url /all"])).await;
    api.bind("paths", None, json!([{"kind": "User", "name": "u"}])).await;
    api.bind("paths", Some("default"), json!([{"kind": "User", "name": "v"}])).await;
    for path in ["/healthz/etcd", "/healthz/", "/logs", "/x", "/xyz/1", "/all"] {
        assert!(api.may("u", &[], &format!("get {path}")).await, "{path}");
        assert!(!api.may("v", &[], &format!("get {path}")).await, "{path}");
    }
    for path in ["/healthz", "/logs/a", "/y", "/metrics", "/all/a"] {
        assert!(!api.may("u", &[], &format!("get {path}")).await, "{path}");
    }
    assert!(api.may("u", &[], "post /all").await);
    assert!(!api.may("u", &[], "post /logs").await);
}

/// Not a test: prints how long a decision takes among thousands of bindings.
#[tokio::test]
#[ignore = "a benchmark"]
async fn bench_decisions() {
    use podwright::server::Impersonation;
    let api = Api::new().await;
    api.cluster_role("actor", rules(&["impersonate core users ann"])).await;
    api.bind("actor", None, json!([{"kind": "User", "name": "actor"}])).await;
    for i in 0..5000 {
        let subjects = json!([{"kind": "User", "name": format!("user-{i}")}, {"kind": "Group", "name": "people"}]);
        let binding = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "RoleBinding", "metadata": {"name": format!("b{i}"), "namespace": "default"},
            "subjects": subjects, "roleRef": {"kind": "ClusterRole", "name": "view"},
        });
        api.create("rolebindings", binding).await.unwrap();
    }
    let mut asked = Impersonation::default();
    asked.add("impersonate-user", "ann");
    for user in [User::new("actor", ["system:authenticated"]), User::system("root")] {
        let began = std::time::Instant::now();
        for _ in 0..10_000 {
            api.0.impersonate(user.clone(), &asked).await.unwrap();
        }
        println!("a decision for {}: {:?}", user.name, began.elapsed() / 10_000);
    }
}
