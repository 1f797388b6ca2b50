//! Names of nodes that certificates have taken, over the years that these last.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use podwright::api::{Env, Object, Options, Request, User, Verb};
use podwright::server::pki::{Names, Pki};
use podwright::server::{Config, Server};
use podwright::store::Memory;
use serde_json::json;

use super::{Api, bootstrap_token, object_of, request};

const CSRS: &str = "certificatesigningrequests.certificates.k8s.io";
const WAITS: &str = "podwright/waits-for-approval";
const HOUR: Duration = Duration::from_secs(3600);
/// More than passes between two looks for names that nothing takes any more.
const ROUND: Duration = Duration::from_secs(1300);

fn clock() -> Env {
    Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1)
}

/// A server that signs.
async fn open(store: Arc<Memory>, env: Env, dir: &tempfile::TempDir) -> Api {
    let pki = Pki::open(dir.path(), &Names::new("cluster.local", None, []), env.now()).unwrap();
    let config = Config { authority: Some(pki.signer()), ..Config::default() };
    with_token(Server::open(store, env, config).await.unwrap()).await
}

/// A server that signs nothing, as one of several whose CA is elsewhere.
async fn unable(store: Arc<Memory>, env: Env) -> Api {
    with_token(Server::open(store, env, Config::default()).await.unwrap()).await
}

/// There is the token that nodes join by, unless there was one.
async fn with_token(server: Arc<Server>) -> Api {
    let api = Api(server);
    api.bootstrap_token("abcdef").await;
    api
}

/// Somebody with a bootstrap token asks to be the node `n` for so many hours: the request's name.
async fn ask_for(api: &Api, hours: u64) -> String {
    ask_with(api, hours, rcgen::CertificateParams::default()).await
}

async fn ask_with(api: &Api, hours: u64, params: rcgen::CertificateParams) -> String {
    ask_as(api, hours, params, json!({"generateName": "csr-"})).await
}

async fn ask_as(api: &Api, hours: u64, params: rcgen::CertificateParams, metadata: serde_json::Value) -> String {
    ask_of(api, bootstrapper(), hours, params, metadata).await
}

fn bootstrapper() -> User {
    User::new("system:bootstrap:abcdef", ["system:bootstrappers", "system:authenticated"])
}

async fn ask_of(
    api: &Api,
    user: User,
    hours: u64,
    mut params: rcgen::CertificateParams,
    metadata: serde_json::Value,
) -> String {
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n");
    let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let csr = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": metadata,
        "spec": {
            "request": base64::engine::general_purpose::STANDARD.encode(pem),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["client auth", "digital signature"],
            "expirationSeconds": hours * HOUR.as_secs(),
        },
    });
    let asked = request(Verb::Create, CSRS, "", Some(csr), Options::default());
    api.0.handle(Request { user, ..asked }).await.map(object_of).unwrap().name().to_owned()
}

/// Whether a request is signed; else it waits for an administrator.
async fn is_signed(api: &Api, name: &str) -> bool {
    for _ in 0..1000 {
        let now = api.get(CSRS, name).await.unwrap();
        match (now.at("status.certificate").is_some(), now.annotation(WAITS)) {
            (true, _) => return true,
            (false, Some(why)) if now.at("status.conditions").is_none() => {
                assert!(why.starts_with("a certificate was signed for the node \"n\""), "{why}");
                return false;
            }
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    panic!("{name} is neither signed nor left to anybody");
}

/// The first condition of a request, or the first two: types and reasons. None: it waits for an administrator.
async fn decided_by(api: &Api, name: &str, conditions: usize) -> Vec<String> {
    for _ in 0..1000 {
        let now = api.get(CSRS, name).await.unwrap();
        let found = now.0["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let word = |of: &serde_json::Value| of.as_str().unwrap_or("").to_owned();
        let found: Vec<String> =
            found.iter().map(|it| format!("{} {}", word(&it["type"]), word(&it["reason"]))).collect();
        if found.len() >= conditions || now.annotation(WAITS).is_some() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing is decided of {name}")
}

async fn decided(api: &Api, name: &str) -> Vec<String> {
    decided_by(api, name, 1).await
}

/// An administrator lets it be signed.
async fn approve(api: &Api, name: &str) {
    let mut csr = api.get(CSRS, name).await.unwrap();
    csr.0["status"]["conditions"] = json!([{"type": "Approved", "status": "True", "reason": "Manual"}]);
    api.sub(Verb::Update, CSRS, name, "approval", csr.0).await.unwrap();
    assert!(is_signed(api, name).await, "{name} is approved");
}

async fn names_taken(api: &Api) -> usize {
    let asked = request(Verb::List, "leases.coordination.k8s.io", "", None, Options::default());
    match api.0.handle(Request { namespace: Some("kube-system".into()), ..asked }).await.unwrap().body {
        podwright::api::request::Body::List(list) => {
            let leases = list.items.iter().map(|item| Object::from_slice(item).unwrap());
            leases.filter(|lease| lease.name().starts_with("node-name-")).count()
        }
        other => panic!("{other:?}"),
    }
}

/// Of the certificates that an administrator lets be signed beside the first one the last to end counts, in whatever order they
/// come.
#[tokio::test(start_paused = true)]
async fn a_name_is_taken_until_the_last_of_its_certificates_ends() {
    let dir = tempfile::tempdir().unwrap();
    let api = open(Arc::new(Memory::new()), clock(), &dir).await;
    let [first, longer] = [ask_for(&api, 1).await, ask_for(&api, 10).await];
    assert!(is_signed(&api, &first).await && !is_signed(&api, &longer).await);
    approve(&api, &longer).await;
    let shorter = ask_for(&api, 1).await;
    assert!(!is_signed(&api, &shorter).await);
    approve(&api, &shorter).await;
    // The first and the third one have ended, the second one has not.
    tokio::time::sleep(2 * HOUR).await;
    assert!(!is_signed(&api, &ask_for(&api, 1).await).await, "somebody still is the node");
    assert_eq!(names_taken(&api).await, 1);
    tokio::time::sleep(9 * HOUR).await;
    assert_eq!(names_taken(&api).await, 0, "what has ended is looked for");
    assert!(is_signed(&api, &ask_for(&api, 1).await).await, "nobody is");
}

/// A server that signs nothing, as one of several whose CA is elsewhere, approves all the same.
#[tokio::test(start_paused = true)]
async fn a_name_that_was_taken_for_nothing_is_given_back() {
    let store = Arc::new(Memory::new());
    let (env, dir) = (clock(), tempfile::tempdir().unwrap());
    let api = unable(store.clone(), env.clone()).await;
    let approved = async |api: &Api, name: &str| assert_eq!(decided(api, name).await, ["Approved AutoApproved"]);
    let first = ask_for(&api, 2).await;
    approved(&api, &first).await;
    tokio::time::sleep(ROUND).await;
    assert_eq!(names_taken(&api).await, 1, "it may still be signed");
    api.delete(CSRS, &first, Options::default()).await.unwrap();
    tokio::time::sleep(ROUND).await;
    assert_eq!(names_taken(&api).await, 0);
    // What is signed later counts as such, also where that is earlier by a clock that was set meanwhile.
    let second = ask_for(&api, 2).await;
    approved(&api, &second).await;
    drop(api);
    env.set_clock(-jiff::SignedDuration::from_hours(1));
    let api = open(store, env, &dir).await;
    assert!(is_signed(&api, &second).await);
    api.delete(CSRS, &second, Options::default()).await.unwrap();
    tokio::time::sleep(ROUND).await;
    assert_eq!(names_taken(&api).await, 1, "its certificate outlives the request");
    assert!(!is_signed(&api, &ask_for(&api, 1).await).await);
}

/// It asks for nothing that it may not, so it is approved; and it has what nobody signs here.
#[tokio::test(start_paused = true)]
async fn a_name_is_free_again_where_what_was_approved_cannot_be_signed() {
    let dir = tempfile::tempdir().unwrap();
    let api = open(Arc::new(Memory::new()), clock(), &dir).await;
    let mut params = rcgen::CertificateParams::default();
    params.custom_extensions.push(rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]));
    let odd = ask_with(&api, 2, params).await;
    let mut types = Vec::new();
    for _ in 0..1000 {
        let csr = api.get(CSRS, &odd).await.unwrap();
        let conditions = csr.0["status"]["conditions"].as_array().cloned().unwrap_or_default();
        types = conditions.iter().map(|condition| condition["type"].as_str().unwrap_or("").to_owned()).collect();
        if types.len() == 2 && names_taken(&api).await == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((types, names_taken(&api).await), (vec!["Approved".to_owned(), "Failed".to_owned()], 0));
    assert!(is_signed(&api, &ask_for(&api, 1).await).await, "nobody is the node");
}

/// Whatever becomes of the Node: another one that asks for the name meanwhile gets it.
#[tokio::test(start_paused = true)]
async fn what_is_left_to_an_administrator_stays_his() {
    let (store, env, dir) = (Arc::new(Memory::new()), clock(), tempfile::tempdir().unwrap());
    let api = open(store.clone(), env.clone(), &dir).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    api.create("nodes", node.clone()).await.unwrap();
    let left = ask_for(&api, 2).await;
    while api.get(CSRS, &left).await.unwrap().annotation(WAITS).is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // One that has no room for a note of that is nobody's.
    let metadata = json!({"name": "full", "annotations": {"full": "x".repeat(256 * 1024 - "full".len())}});
    ask_as(&api, 2, rcgen::CertificateParams::default(), metadata).await;
    while api.get(CSRS, "full").await.unwrap().at("status.conditions").is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(api.get(CSRS, "full").await.unwrap().0["status"]["conditions"][0]["type"], "Denied");
    drop(api);
    let api = open(store, env, &dir).await;
    api.delete("nodes", "n", Options::default()).await.unwrap();
    // It is looked at again, and what the controller has said of it is nobody else's to take away.
    let cleared = json!({"metadata": {"annotations": null, "labels": {"looked": "at"}}});
    let cleared = api.patch(CSRS, &left, cleared).await.unwrap();
    assert!(cleared.annotation(WAITS).unwrap().starts_with("there is a Node \"n\""), "{cleared:?}");
    let next = ask_for(&api, 2).await;
    assert!(is_signed(&api, &next).await, "the name is free");
    assert_eq!(api.get(CSRS, &left).await.unwrap().at("status.conditions"), None);
    // By the second one's certificate the name is taken; that ends, and the third one is left all the same.
    let third = ask_for(&api, 2).await;
    assert!(!is_signed(&api, &third).await);
    tokio::time::sleep(3 * HOUR).await;
    assert_eq!(names_taken(&api).await, 0);
    for name in [&left, &third] {
        api.patch(CSRS, name, json!({"metadata": {"labels": {"looked": "again"}}})).await.unwrap();
    }
    assert!(is_signed(&api, &ask_for(&api, 2).await).await);
    for name in [&left, &third] {
        assert_eq!(api.get(CSRS, name).await.unwrap().at("status.conditions"), None, "{name}");
    }
    approve(&api, &third).await;
}

/// A token counts when a request is approved, and again when it is signed, which may be later and on another server.
#[tokio::test(start_paused = true)]
async fn who_holds_a_token_that_is_withdrawn_joins_no_more() {
    let token = "bootstrap-token-abcdef";
    let data = |more: serde_json::Value| Some(json!({"stringData": more}));
    let groups = "auth-extra-groups";
    let holder =
        |group: &str| User::new("system:bootstrap:abcdef", ["system:bootstrappers", "system:authenticated", group]);
    for (way, withdraws) in [
        ("deleted", None),
        ("expired", data(json!({"expiration": "2025-12-31T00:00:00Z"}))),
        ("of no use", data(json!({"usage-bootstrap-authentication": "false"}))),
        ("of other groups", data(json!({groups: "system:bootstrappers:b"}))),
    ] {
        let (store, env, dir) = (Arc::new(Memory::new()), clock(), tempfile::tempdir().unwrap());
        let api = unable(store.clone(), env.clone()).await;
        let change = async |api: &Api, what: Option<serde_json::Value>| {
            let asked = match what {
                Some(patch) => {
                    let options =
                        Options { patch_type: Some(podwright::api::request::PatchType::Merge), ..Options::default() };
                    request(Verb::Patch, "secrets", token, Some(patch), options)
                }
                None => request(Verb::Delete, "secrets", token, None, Options::default()),
            };
            api.0.handle(Request { namespace: Some("kube-system".into()), ..asked }).await.unwrap();
        };
        change(&api, data(json!({groups: "system:bootstrappers:a"}))).await;
        let ask = async |api: &Api, name: &str| {
            let (user, params) = (holder("system:bootstrappers:a"), rcgen::CertificateParams::default());
            ask_of(api, user, 1, params, json!({"name": name})).await
        };
        ask(&api, "approved").await;
        assert_eq!(decided(&api, "approved").await, ["Approved AutoApproved"], "{way}");
        change(&api, withdraws).await;
        ask(&api, "late").await;
        assert_eq!(decided(&api, "late").await, [""; 0], "{way}");
        let late = api.get(CSRS, "late").await.unwrap();
        assert!(late.annotation(WAITS).unwrap().starts_with("the bootstrap token \"abcdef\" is withdrawn"), "{late:?}");
        drop(api);
        let config = Config {
            authority: Some(Pki::open(dir.path(), &Names::new("cluster.local", None, []), env.now()).unwrap().signer()),
            ..Config::default()
        };
        let api = Api(Server::open(store, env, config).await.unwrap());
        let failed = ["Approved AutoApproved", "Failed TokenNotFound"];
        assert_eq!(decided_by(&api, "approved", 2).await, failed, "{way}");
        assert!(api.get(CSRS, "approved").await.unwrap().at("status.certificate").is_none(), "{way}");
        assert_eq!(names_taken(&api).await, 0, "{way}: nobody is the node");
        // One that is made again is another, for those who ask from now on; an administrator may know the machine.
        if way == "deleted" {
            api.create("secrets", bootstrap_token("abcdef", json!({groups: "system:bootstrappers:a"}))).await.unwrap();
        }
        api.patch(CSRS, "late", json!({"metadata": {"labels": {"looked": "again"}}})).await.unwrap();
        tokio::time::sleep(ROUND).await;
        assert_eq!(api.get(CSRS, "late").await.unwrap().at("status.conditions"), None, "{way}");
        approve(&api, "late").await;
    }
}

/// Its certificate is nobody's to renew, once the Node is deleted: also where that was approved before.
#[tokio::test(start_paused = true)]
async fn a_node_renews_its_certificate_while_there_is_the_node() {
    let (store, env, dir) = (Arc::new(Memory::new()), clock(), tempfile::tempdir().unwrap());
    let api = unable(store.clone(), env.clone()).await;
    let renew = async |api: &Api, name: &str| {
        let itself = User::new("system:node:n", ["system:nodes", "system:authenticated"]);
        ask_of(api, itself, 1, rcgen::CertificateParams::default(), json!({"name": name})).await;
    };
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    renew(&api, "before").await;
    assert_eq!(decided(&api, "before").await, ["Denied NodeNotFound"]);
    api.create("nodes", node.clone()).await.unwrap();
    renew(&api, "approved").await;
    assert_eq!(decided(&api, "approved").await, ["Approved AutoApproved"]);
    api.delete("nodes", "n", Options::default()).await.unwrap();
    drop(api);
    let api = open(store, env, &dir).await;
    assert_eq!(decided_by(&api, "approved", 2).await, ["Approved AutoApproved", "Failed NodeNotFound"]);
    api.create("nodes", node).await.unwrap();
    renew(&api, "with").await;
    assert!(is_signed(&api, "with").await);
    api.delete("nodes", "n", Options::default()).await.unwrap();
    renew(&api, "after").await;
    assert_eq!(decided(&api, "after").await, ["Denied NodeNotFound"]);
}

/// Who has the right by a binding that outlives him: a ServiceAccount that makes nodes join.
#[tokio::test(start_paused = true)]
async fn a_service_account_that_is_gone_lets_nobody_join() {
    let dir = tempfile::tempdir().unwrap();
    let api = open(Arc::new(Memory::new()), clock(), &dir).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "joiner"}});
    let made = api.create("serviceaccounts", account.clone()).await.unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "joiner"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "joiner", "namespace": "default"}],
    });
    api.create("clusterrolebindings.rbac.authorization.k8s.io", binding).await.unwrap();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "asks"},
        "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["create"]}],
    });
    api.create("clusterroles.rbac.authorization.k8s.io", role).await.unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "asks"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "asks"},
        "subjects": [{"kind": "ServiceAccount", "name": "joiner", "namespace": "default"}],
    });
    api.create("clusterrolebindings.rbac.authorization.k8s.io", binding).await.unwrap();
    let groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
    let user = User { uid: made.uid().to_owned(), ..User::new("system:serviceaccount:default:joiner", groups) };
    let ask = async |name: &str| {
        ask_of(&api, user.clone(), 1, rcgen::CertificateParams::default(), json!({"name": name})).await
    };
    api.delete("serviceaccounts", "joiner", Options::default()).await.unwrap();
    for again in ["gone", "another"] {
        ask(again).await;
        assert_eq!(decided(&api, again).await, [""; 0], "{again}");
        let asked = api.get(CSRS, again).await.unwrap();
        assert!(asked.annotation(WAITS).unwrap().starts_with("there is no ServiceAccount of"), "{asked:?}");
        api.create("serviceaccounts", account.clone()).await.ok();
    }
    let user = User { uid: api.get("serviceaccounts", "joiner").await.unwrap().uid().to_owned(), ..user.clone() };
    ask_of(&api, user, 1, rcgen::CertificateParams::default(), json!({"name": "good"})).await;
    assert!(is_signed(&api, "good").await);
}
