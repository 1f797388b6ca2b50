//! Who Pods and Namespaces are to NetworkPolicies, as nodes read it: derived from these, and nothing else of them.

use std::sync::Arc;

use podwright::api::request::{Body, EventKind, List};
use podwright::api::{Env, Object, Options, Request, Status, User, Verb};
use podwright::server::{Config, Server, Watch};
use podwright::store::{Memory, Store};
use serde_json::{Value, json};

use super::nodes::node;
use super::{Api, pod, request};

const RESOURCE: &str = "podidentities.network.podwright.io";

async fn open(store: &Arc<Memory>) -> Api {
    Api(Server::open(store.clone(), Env::system(), Config::default()).await.unwrap())
}

/// A Pod that has an address, with things in it that are nobody else's business.
async fn running(api: &Api, name: &str, on: &str, ip: &str) {
    let mut pod = pod(name);
    pod["metadata"]["annotations"] = json!({"note": "secret"});
    pod["spec"]["nodeName"] = on.into();
    pod["spec"]["containers"][0]["env"] = json!([{"name": "KEY", "value": "secret"}]);
    pod["spec"]["containers"][0]["ports"] = json!([{"name": "web", "containerPort": 8080}, {"containerPort": 9}]);
    api.create("pods", pod).await.unwrap();
    status(api, name, json!({"phase": "Running", "podIPs": [{"ip": ip}]})).await;
}

async fn status(api: &Api, name: &str, status: Value) {
    api.sub(Verb::Patch, "pods", name, "status", json!({"status": status})).await.unwrap();
}

async fn condition(api: &Api, name: &str, reason: &str) {
    let condition = json!({"type": "Ready", "status": "True", "reason": reason});
    status(api, name, json!({"conditions": [condition]})).await;
}

async fn list_as(api: &Api, user: User, options: Options) -> Result<List, Status> {
    let request = Request { user, namespace: None, ..request(Verb::List, RESOURCE, "", None, options) };
    match api.0.handle(request).await?.body {
        Body::List(list) => Ok(list),
        other => panic!("not a list: {other:?}"),
    }
}

/// All but those of `n1`, as that node watches them.
async fn watch(api: &Api, from: Option<String>) -> Result<Watch, Status> {
    let options = Options { field_selector: Some("nodeName!=n1".into()), resource_version: from, ..Options::default() };
    api.0
        .watch(Request { user: node("n1"), namespace: None, ..request(Verb::Watch, RESOURCE, "", None, options) })
        .await
}

async fn told(watch: &mut Watch) -> (EventKind, Object) {
    let event = tokio::time::timeout(std::time::Duration::from_secs(30), watch.recv()).await.unwrap().unwrap();
    (event.kind, Object::from_slice(&event.object).unwrap())
}

fn names(list: &List) -> Vec<String> {
    list.items.iter().map(|item| Object::from_slice(item).unwrap().name().to_owned()).collect()
}

#[tokio::test]
async fn nodes_read_who_pods_are_and_nobody_else_does() {
    let api = Api::new().await;
    running(&api, "a", "n2", "10.2.0.1").await;
    let found = list_as(&api, node("n1"), Options::default()).await.unwrap();
    let mut found = found.items.iter().map(|item| Object::from_slice(item).unwrap());
    let (first, rest) = (found.next().unwrap(), found.next());
    let expected = json!({
        "apiVersion": "network.podwright.io/v1", "kind": "PodIdentity",
        "metadata": {
            "name": "a", "namespace": "default", "labels": {"app": "a"}, "resourceVersion": first.resource_version(),
        },
        "nodeName": "n2", "podIPs": ["10.2.0.1"], "ports": [{"name": "web", "containerPort": 8080, "protocol": "TCP"}],
    });
    assert_eq!((first.0, rest), (expected, None));
    // Not even the owner of a namespace reads it, and nobody writes it.
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "owner"},
        "subjects": [{"kind": "User", "name": "owner", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
    });
    api.create("rolebindings.rbac.authorization.k8s.io", binding).await.unwrap();
    let owner = User::new("owner", ["system:authenticated"]);
    let ask = |user: &User, verb, resource: &str, name: &str| {
        api.0.handle(Request { user: user.clone(), ..request(verb, resource, name, None, Options::default()) })
    };
    assert!(ask(&owner, Verb::List, "pods", "").await.is_ok());
    for verb in [Verb::List, Verb::Get] {
        let name = if verb == Verb::Get { "a" } else { "" };
        assert_eq!(ask(&owner, verb, RESOURCE, name).await.unwrap_err().code, 403, "{verb:?}");
    }
    assert_eq!(ask(&node("n1"), Verb::List, "pods", "").await.unwrap_err().code, 403);
    assert_eq!(ask(&node("n1"), Verb::Get, RESOURCE, "a").await.unwrap_err().code, 403);
    assert_eq!(ask(&User::system("test"), Verb::Delete, RESOURCE, "a").await.unwrap_err().code, 405);
    assert!(api.get("pods", "a").await.is_ok());
    assert!(api.get(RESOURCE, "a").await.is_ok(), "administrators do");
}

#[tokio::test]
async fn a_watch_tells_what_is_news_to_policies_alone() {
    let api = Api::new().await;
    let mut watch = watch(&api, None).await.unwrap();
    running(&api, "own", "n1", "10.1.0.1").await;
    running(&api, "a", "n2", "10.2.0.1").await;
    let (kind, first) = told(&mut watch).await;
    assert_eq!((kind, first.name(), &first.0["podIPs"]), (EventKind::Added, "a", &json!(["10.2.0.1"])));
    condition(&api, "a", "Heartbeat").await;
    api.patch("pods", "a", json!({"metadata": {"annotations": {"note": "another"}}})).await.unwrap();
    let labelled = api.patch("pods", "a", json!({"metadata": {"labels": {"tier": "db"}}})).await.unwrap();
    let (kind, second) = told(&mut watch).await;
    assert_eq!((kind, second.label("tier")), (EventKind::Modified, Some("db")));
    assert_eq!(second.resource_version(), labelled.resource_version());
    condition(&api, "a", "Another").await;
    let listed = list_as(&api, node("n1"), Options::default()).await.unwrap();
    assert_eq!(listed.items[0], second.to_vec(), "it is of the revision of its own last change");
    status(&api, "a", json!({"podIP": "10.2.0.9", "podIPs": [{"ip": "10.2.0.9"}]})).await;
    assert_eq!(told(&mut watch).await.1.0["podIPs"], json!(["10.2.0.9"]));
    // Who has ended has an address no more, nor has who is deleted.
    status(&api, "a", json!({"phase": "Succeeded"})).await;
    let (kind, ended) = told(&mut watch).await;
    assert_eq!((kind, &ended.0["podIPs"]), (EventKind::Deleted, &json!(["10.2.0.9"])));
    assert_eq!(ended.resource_version(), api.get("pods", "a").await.unwrap().resource_version());
    running(&api, "b", "n2", "10.2.0.2").await;
    assert_eq!(told(&mut watch).await.0, EventKind::Added);
    api.delete("pods", "b", Options { grace_period_seconds: Some(0), ..Options::default() }).await.unwrap();
    let (kind, gone) = told(&mut watch).await;
    assert_eq!((kind, gone.name()), (EventKind::Deleted, "b"));
}

/// A node that comes back goes on where it was, also with a server that has just started; and from its beginning if it was away too long.
#[tokio::test]
async fn a_watch_goes_on_over_a_restart() {
    let store = Arc::new(Memory::new());
    let api = open(&store).await;
    running(&api, "a", "n2", "10.2.0.1").await;
    let listed = list_as(&api, node("n1"), Options::default()).await.unwrap();
    for n in 0..20 {
        condition(&api, "a", &format!("Heartbeat{n}")).await;
    }
    api.patch("pods", "a", json!({"metadata": {"labels": {"tier": "db"}}})).await.unwrap();
    running(&api, "b", "n2", "10.2.0.2").await;
    api.delete("pods", "a", Options { grace_period_seconds: Some(0), ..Options::default() }).await.unwrap();
    drop(api);

    let api = open(&store).await;
    let mut resumed = watch(&api, Some(listed.resource_version.clone())).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (kind, object) = told(&mut resumed).await;
        seen.push((kind, object.name().to_owned()));
    }
    let expected = [(EventKind::Modified, "a"), (EventKind::Added, "b"), (EventKind::Deleted, "a")];
    assert_eq!(seen, expected.map(|(kind, name)| (kind, name.to_owned())));
    let listed_now = list_as(&api, node("n1"), Options::default()).await.unwrap();
    assert_eq!(names(&listed_now), ["b"]);
    store.compact(store.revision().await.unwrap()).await.unwrap();
    drop(api);
    let api = open(&store).await;
    let expired = watch(&api, Some(listed.resource_version)).await.unwrap_err();
    assert_eq!((expired.code, expired.reason.as_str()), (410, "Expired"));
}

#[tokio::test]
async fn pages_have_all_who_can_be_peers() {
    let api = Api::new().await;
    for n in 0..6 {
        running(&api, &format!("p{n}"), "n2", &format!("10.2.0.{n}")).await;
        api.create("pods", pod(&format!("p{n}-waits"))).await.unwrap();
    }
    let (mut all, mut token) = (Vec::new(), None);
    loop {
        let options = Options { limit: Some(2), continue_token: token, ..Options::default() };
        let page = list_as(&api, node("n1"), options).await.unwrap();
        assert!(page.items.len() <= 2);
        all.extend(names(&page));
        if page.continue_token.is_empty() {
            break;
        }
        token = Some(page.continue_token);
    }
    assert_eq!(all, ["p0", "p1", "p2", "p3", "p4", "p5"]);
    let of_node = Options { field_selector: Some("nodeName=n1".into()), ..Options::default() };
    assert!(list_as(&api, node("n1"), of_node).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn of_namespaces_nodes_read_the_labels_alone() {
    let api = Api::new().await;
    let metadata = json!({"name": "shop", "labels": {"team": "red"}, "annotations": {"note": "secret"}});
    api.create("namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})).await.unwrap();
    let resource = "namespaceidentities.network.podwright.io";
    let ask =
        |user: User| api.0.handle(Request { user, ..request(Verb::List, resource, "", None, Options::default()) });
    let Body::List(list) = ask(node("n1")).await.unwrap().body else { panic!("no list") };
    let shop = list.items.iter().map(|item| Object::from_slice(item).unwrap()).find(|it| it.name() == "shop").unwrap();
    let labels = json!({"kubernetes.io/metadata.name": "shop", "team": "red"});
    let metadata = json!({"name": "shop", "labels": labels, "resourceVersion": shop.resource_version()});
    let expected = json!({"apiVersion": "network.podwright.io/v1", "kind": "NamespaceIdentity", "metadata": metadata});
    assert_eq!(shop.0, expected);
    assert_eq!(ask(User::new("somebody", ["system:authenticated"])).await.unwrap_err().code, 403);
}
