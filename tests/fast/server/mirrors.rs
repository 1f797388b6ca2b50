//! Mirror Pods: who makes them, what they may be, that nobody makes another Pod look like one, and that they take no traffic.

use podwright::api::request::PatchType;
use podwright::api::{Env, Object, Options, Request, Response, Status, User, Verb};
use podwright::client::{Informers, local};
use podwright::controllers;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::nodes::{ask, node};
use super::{Api, mirror, pod, request};

const KEY: &str = "kubernetes.io/config.mirror";

/// A cluster with the node `n1`, and `mallory`, who may edit the namespace `default`.
async fn cluster() -> (Api, Object) {
    let api = Api::new().await;
    let own = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let own = api.create("nodes", own).await.unwrap();
    for role in ["edit", "admin"] {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": role},
            "subjects": [{"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        });
        api.create("rolebindings.rbac.authorization.k8s.io", binding).await.unwrap();
    }
    (api, own)
}

fn mallory() -> User {
    User::new("mallory", ["system:authenticated"])
}

async fn create_as(api: &Api, user: User, pod: Value) -> Result<Response, Status> {
    api.0.handle(Request { user, ..request(Verb::Create, "pods", "", Some(pod), Options::default()) }).await
}

#[tokio::test]
async fn nodes_alone_make_mirror_pods() {
    let (api, own) = cluster().await;
    let named = |name: &str| mirror(name, &own);
    let mut bare = pod("bare");
    bare["metadata"]["annotations"] = json!({KEY: "0123456789abcdef"});
    let mut empty = bare.clone();
    empty["metadata"]["annotations"][KEY] = "".into();
    let mut of_a_controller = named("of-a-controller");
    of_a_controller["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true,
        "blockOwnerDeletion": true,
    }]);
    let others = "annotation \"kubernetes.io/config.mirror\" may be set by nodes only";
    let cases = [
        (mallory(), bare.clone(), others),
        (mallory(), empty, others),
        (mallory(), named("whole"), others),
        (User::new("system:node:n1", ["system:authenticated"]), named("no-group"), "cannot create resource \"pods\""),
        (
            User::new("system:node:", ["system:nodes", "system:authenticated"]),
            named("unknown"),
            "unknown node for user",
        ),
        (node("n2"), named("of-another"), "node \"n2\" can only create pods with spec.nodeName set to itself"),
        (
            node("n1"),
            pod("plain"),
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods",
        ),
        (User::system("root"), bare, "node \"\" can only create pods with spec.nodeName set to itself"),
        // What a tenant writes into a template comes as this.
        (
            User::system("system:kube-controller-manager"),
            of_a_controller,
            "node \"n1\" can only create pods with an owner reference set to itself",
        ),
    ];
    for (user, pod, why) in cases {
        let (name, user_name) = (pod["metadata"]["name"].clone(), user.name.clone());
        let refused = create_as(&api, user, pod).await.unwrap_err();
        assert!(refused.code == 403 && refused.message.contains(why), "{user_name} {name}: {refused}");
    }
    create_as(&api, node("n1"), named("made")).await.unwrap();
    create_as(&api, User::system("root"), named("of-the-superuser")).await.unwrap();
    create_as(&api, mallory(), pod("plain")).await.unwrap();
}

#[tokio::test]
async fn a_mirror_is_its_nodes_own_and_refers_to_nothing() {
    let (api, own) = cluster().await;
    let refers = |resource: &str| format!("node \"n1\" can not create pods that reference {resource}");
    let owner = |what: &str| format!("node \"n1\" can only create pods with {what} owner reference set to itself");
    let owned = |change: fn(&mut Value)| {
        let mut owners = mirror("x", &own)["metadata"]["ownerReferences"].clone();
        change(&mut owners);
        owners
    };
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = "v".into();
        json!([volume])
    };
    let projected = |source: Value| volume(json!({"projected": {"sources": [source]}}));
    let (containers, secrets, maps) = ("/spec/containers/0", refers("secrets"), refers("configmaps"));
    let cases = [
        ("/metadata/ownerReferences", json!([]), owner("an")),
        ("/metadata/ownerReferences", owned(|o| o[0]["name"] = "n2".into()), owner("an")),
        ("/metadata/ownerReferences", owned(|o| o[0]["kind"] = "Pod".into()), owner("an")),
        ("/metadata/ownerReferences", owned(|o| o[0]["controller"] = false.into()), owner("a controller")),
        (
            "/metadata/ownerReferences",
            owned(|o| o[0]["uid"] = "other".into()),
            "node n1 UID mismatch: expected other got".into(),
        ),
        (
            "/metadata/ownerReferences",
            owned(|o| o[0]["blockOwnerDeletion"] = true.into()),
            "node \"n1\" must not set blockOwnerDeletion on an owner reference".into(),
        ),
        (
            "/metadata/ownerReferences",
            owned(|o| {
                let second = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
                o.as_array_mut().unwrap().push(second);
            }),
            owner("a single"),
        ),
        ("/spec/serviceAccountName", json!("default"), refers("a service account")),
        ("/spec/imagePullSecrets", json!([{"name": "s"}]), secrets.clone()),
        ("/spec/volumes", volume(json!({"secret": {"secretName": "s"}})), secrets.clone()),
        ("/spec/volumes", volume(json!({"configMap": {"name": "c"}})), maps.clone()),
        ("/spec/volumes", projected(json!({"secret": {"name": "s"}})), secrets.clone()),
        ("/spec/volumes", projected(json!({"configMap": {"name": "c"}})), maps.clone()),
        ("/spec/volumes", projected(json!({"serviceAccountToken": {"path": "t"}})), refers("a service account")),
        (
            "/spec/volumes",
            projected(json!({"clusterTrustBundle": {"name": "b", "path": "t"}})),
            refers("clustertrustbundles"),
        ),
        (
            "/spec/volumes",
            volume(json!({"csi": {"driver": "d.example.com", "nodePublishSecretRef": {"name": "s"}}})),
            secrets.clone(),
        ),
        (
            "/spec/volumes",
            volume(json!({"flexVolume": {"driver": "a/b", "secretRef": {"name": "s"}}})),
            secrets.clone(),
        ),
        (
            "/spec/volumes",
            volume(json!({"persistentVolumeClaim": {"claimName": "c"}})),
            refers("persistentvolumeclaims"),
        ),
        ("/spec/resourceClaims", json!([{"name": "r", "resourceClaimName": "r"}]), refers("resourceclaims")),
        ("/spec/resourceClaims", json!([{"name": "r", "resourceClaimTemplateName": "t"}]), refers("resourceclaims")),
        ("envFrom", json!([{"secretRef": {"name": "s"}}]), secrets.clone()),
        ("envFrom", json!([{"configMapRef": {"name": "c"}}]), maps.clone()),
        ("env", json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]), secrets),
        ("env", json!([{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]), maps),
    ];
    for (at, value, why) in cases {
        let mut greedy = mirror("greedy", &own);
        let (parent, field) = if at.starts_with('/') { at.rsplit_once('/').unwrap() } else { (containers, at) };
        greedy.pointer_mut(parent).unwrap()[field] = value.clone();
        for user in [node("n1"), User::system("root")] {
            let refused = create_as(&api, user, greedy.clone()).await.unwrap_err();
            assert!(refused.code == 403 && refused.message.contains(&why), "{at} {value}: {refused}");
        }
    }
    // What init containers refer to counts as well.
    let mut greedy = mirror("greedy", &own);
    greedy["spec"]["initContainers"] = json!([{"name": "i", "image": "i", "envFrom": [{"secretRef": {"name": "s"}}]}]);
    let refused = create_as(&api, node("n1"), greedy).await.unwrap_err();
    assert!(refused.message.contains(&refers("secrets")), "{refused}");
}

/// Neither who may edit, nor the superuser, nor the node: what is a mirror stays one, what is none becomes none, by no way.
#[tokio::test]
async fn the_annotation_is_neither_added_nor_changed_nor_removed() {
    let (api, own) = cluster().await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    api.create("secrets", secret).await.unwrap();
    create_as(&api, node("n1"), mirror("shown", &own)).await.unwrap();
    let mut plain = pod("plain");
    plain["spec"]["nodeName"] = "n1".into();
    create_as(&api, mallory(), plain).await.unwrap();
    create_as(&api, mallory(), pod("waiting")).await.unwrap();

    let patch = |value: Value| json!({"metadata": {"annotations": {KEY: value}}});
    let root = User::system("root");
    for (name, value, verb) in [
        ("plain", json!("hash"), "add"),
        ("plain", json!(""), "add"),
        ("shown", json!("other"), "remove or update"),
        ("shown", Value::Null, "remove or update"),
    ] {
        for (user, sub) in [(&root, ""), (&mallory(), ""), (&root, "status")] {
            let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
            let subresource = Some(sub.to_owned()).filter(|sub| !sub.is_empty());
            let asked = Request {
                user: user.clone(),
                subresource,
                ..request(Verb::Patch, "pods", name, Some(patch(value.clone())), options)
            };
            let refused = api.0.handle(asked).await.unwrap_err();
            let cause = &refused.details.as_ref().unwrap().causes[0];
            let expected = (
                422,
                format!("metadata.annotations[{KEY}]"),
                format!("Forbidden: may not {verb} mirror pod annotation"),
            );
            assert_eq!((refused.code, cause.field.clone(), cause.message.clone()), expected, "{name} {sub} {value}");
        }
        let refused = ask(&api, Verb::Patch, "pods", name, "status", patch(value.clone())).await.unwrap_err();
        assert_eq!(refused.code, 403, "{refused}");
    }
    // Through subresources that keep metadata it does not come at all.
    for (sub, body) in [
        ("ephemeralcontainers", json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}})),
        ("resize", json!({"spec": {"containers": [{"name": "c", "resources": {}}]}})),
    ] {
        let mut body = body;
        body["metadata"] = patch(json!("hash"))["metadata"].clone();
        let options = Options { patch_type: Some(PatchType::Strategic), ..Options::default() };
        let asked = request(Verb::Patch, "pods", "plain", Some(body), options);
        api.0.handle(Request { subresource: Some(sub.into()), ..asked }).await.unwrap();
    }
    // A binding brings annotations along.
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waiting", "annotations": {KEY: "hash"}},
        "target": {"kind": "Node", "name": "n1"},
    });
    let refused = api.sub(Verb::Create, "pods", "waiting", "binding", binding).await.unwrap_err();
    assert!(refused.message.contains("may not add mirror pod annotation"), "{refused}");
    for name in ["plain", "waiting"] {
        let now = api.get("pods", name).await.unwrap();
        assert!(now.annotation(KEY).is_none(), "{now:?}");
    }
    // So the node reads nothing by its mirror.
    assert_eq!(ask(&api, Verb::Get, "secrets", "s", "", Value::Null).await.unwrap_err().code, 403);
}

/// Who stands behind the Service `web`, by slices and by Endpoints: the addresses.
async fn behind(api: &Api) -> (Vec<String>, Vec<String>) {
    let texts = |list: Vec<Value>| -> Vec<String> {
        let mut all: Vec<String> = list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        all.sort();
        all
    };
    let slices = api.list("endpointslices", Options::default()).await.unwrap().items;
    let of_web = slices
        .iter()
        .map(|slice| Object::from_slice(slice).unwrap())
        .filter(|slice| slice.label("kubernetes.io/service-name") == Some("web"));
    let slices = of_web.flat_map(|slice| slice.0["endpoints"].as_array().cloned().unwrap_or_default());
    let slices = slices.map(|endpoint| endpoint["addresses"][0].clone()).collect();
    let subsets =
        api.get("endpoints", "web").await.map(|all| all.0["subsets"][0]["addresses"].clone()).unwrap_or_default();
    let subsets = subsets.as_array().into_iter().flatten().map(|address| address["ip"].clone()).collect();
    (texts(slices), texts(subsets))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_stands_behind_no_service_unless_its_namespace_lets_it() {
    let (api, own) = cluster().await;
    let (client, env, stop) = (local::client(api.0.clone(), "test"), Env::system(), CancellationToken::new());
    let informers = Informers::start(client.clone());
    let running = tokio::spawn(controllers::run(client, env, informers, controllers::Config::default(), stop.clone()));
    let labelled = |mut pod: Value| {
        pod["metadata"]["labels"] = json!({"app": "web"});
        pod["spec"]["nodeName"] = "n1".into();
        pod
    };
    create_as(&api, node("n1"), labelled(mirror("stolen", &own))).await.unwrap();
    api.create("pods", labelled(pod("real"))).await.unwrap();
    for (name, ip) in [("stolen", "10.1.0.66"), ("real", "10.1.0.5")] {
        let status = json!({"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": "True"}],
        }});
        api.sub(Verb::Patch, "pods", name, "status", status).await.unwrap();
    }
    api.create("services", super::service("web", json!({"selector": {"app": "web"}}))).await.unwrap();
    let (real, both) = (vec!["10.1.0.5".to_owned()], vec!["10.1.0.5".to_owned(), "10.1.0.66".to_owned()]);
    for (label, expected) in [(Value::Null, &real), (json!("true"), &both), (json!("no"), &real)] {
        api.patch("namespaces", "default", json!({"metadata": {"labels": {"podwright/static-endpoints": label}}}))
            .await
            .unwrap();
        let mut found = Default::default();
        for _ in 0..1000 {
            found = behind(&api).await;
            if found == (expected.clone(), expected.clone()) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(found, (expected.clone(), expected.clone()), "{label}");
    }
    // Nor does it keep a budget: what it shows is nothing that an eviction would end.
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    api.create("poddisruptionbudgets", budget).await.unwrap();
    let counted = async || api.get("poddisruptionbudgets", "web").await.unwrap().0["status"].clone();
    for _ in 0..1000 {
        if counted().await["observedGeneration"] == 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let counted = counted().await;
    assert_eq!((&counted["expectedPods"], &counted["disruptionsAllowed"]), (&json!(1), &json!(0)), "{counted}");
    stop.cancel();
    let _ = running.await;
}
