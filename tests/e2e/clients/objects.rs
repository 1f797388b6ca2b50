//! Objects through `kube`'s typed and dynamic `Api`: read, listed in every way, created, replaced, patched, deleted.

use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{ConfigMap, Namespace, Node},
};
use kube::{
    Api, Discovery, ResourceExt,
    api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions, VersionMatch},
    core::{DynamicObject, GroupVersionKind, Selector, TypeMeta},
};
use serde_json::{Value, json};

use super::{Cluster, board, configmap, idle_pod, object, refused};

fn names<K: kube::Resource>(list: impl IntoIterator<Item = K>) -> Vec<String> {
    list.into_iter().map(|item| item.name_any()).collect()
}

/// A Deployment whose Pods are never run.
fn deployment(name: &str, replicas: u32) -> Deployment {
    object(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"schedulerName": "nobody", "containers": [
                    {"name": "a", "image": "localhost/a:1"},
                    {"name": "b", "image": "localhost/b:1"},
                ]},
            },
        },
    }))
}

#[test]
fn objects_are_made_read_and_replaced() {
    let cluster = Cluster::start();
    let configmaps = cluster.configmaps();
    let post = PostParams { field_manager: Some("tester".into()), ..PostParams::default() };
    cluster.run(async {
        let made = configmaps.create(&post, &configmap("a", json!({}), json!({"k": "1"}))).await.unwrap();
        assert!(made.uid().is_some() && made.resource_version().is_some() && made.creation_timestamp().is_some());
        assert_eq!(made.managed_fields()[0].manager.as_deref(), Some("tester"));
        let twice = configmaps.create(&post, &configmap("a", json!({}), json!({}))).await;
        refused(twice, 409, "AlreadyExists", "configmaps \"a\" already exists");
        let missing = refused(configmaps.get("b").await, 404, "NotFound", "configmaps \"b\" not found");
        let details = missing.details.unwrap();
        assert_eq!((details.name.as_str(), details.kind.as_str()), ("b", "configmaps"));
        assert!(configmaps.get_opt("b").await.unwrap().is_none());
        let wrong = configmaps.create(&post, &configmap("Not_A_Name", json!({}), json!({"a b": "1"}))).await;
        let wrong = refused(wrong, 422, "Invalid", "ConfigMap \"Not_A_Name\" is invalid");
        let fields: Vec<String> = wrong.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
        assert_eq!(fields, ["metadata.name", "data[a b]"]);

        let dry = PostParams { dry_run: true, ..PostParams::default() };
        assert!(configmaps.create(&dry, &configmap("dry", json!({}), json!({}))).await.unwrap().uid().is_some());
        assert!(configmaps.get_opt("dry").await.unwrap().is_none());
        let mut generated = configmap("", json!({}), json!({}));
        generated.metadata = object(json!({"generateName": "gen-"}));
        let generated = configmaps.create(&post, &generated).await.unwrap();
        assert!(generated.name_any().len() > "gen-".len(), "{}", generated.name_any());

        // A stale replace is refused.
        let mut newer = made.clone();
        newer.data = Some([("k".to_owned(), "2".to_owned())].into());
        let newer = configmaps.replace("a", &post, &newer).await.unwrap();
        assert_ne!(newer.resource_version(), made.resource_version());
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        refused(configmaps.replace("a", &post, &made).await, 409, "Conflict", why);
        assert_eq!(configmaps.get("a").await.unwrap(), newer);
        assert_eq!(configmaps.get_with("a", &GetParams::any()).await.unwrap(), newer);
        let metadata = configmaps.get_metadata("a").await.unwrap();
        assert_eq!(metadata.types.as_ref().map(|types| types.kind.as_str()), Some("PartialObjectMetadata"));
        assert_eq!(metadata.metadata, newer.metadata);

        // An entry is a get, a change and a replace or create.
        let entry = configmaps.entry("a").await.unwrap();
        let change = |map: &mut ConfigMap| map.data = Some([("k".to_owned(), "3".to_owned())].into());
        entry.and_modify(change).or_insert(ConfigMap::default).commit(&post).await.unwrap();
        assert_eq!(configmaps.get("a").await.unwrap().data.unwrap()["k"], "3");
        let mut entry = configmaps.entry("c").await.unwrap().or_insert(|| configmap("c", json!({}), json!({})));
        entry.commit(&post).await.unwrap();
        assert!(configmaps.get_opt("c").await.unwrap().is_some());

        // Without a namespace, and across all namespaces.
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 1);
        let everywhere: Api<ConfigMap> = Api::all(cluster.client.clone());
        let found = everywhere.list(&ListParams::default().fields("metadata.namespace=kube-system")).await.unwrap();
        assert!(found.items.iter().all(|map| map.namespace().as_deref() == Some("kube-system")));
        let nowhere: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "nowhere");
        let refusal = nowhere.create(&post, &configmap("a", json!({}), json!({}))).await;
        refused(refusal, 404, "NotFound", "namespaces \"nowhere\" not found");
    });
}

#[test]
fn lists_are_selected_paged_and_of_a_moment() {
    let cluster = Cluster::start();
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let configmaps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "lists");
    let post = PostParams::default();
    cluster.run(async {
        namespaces.create(&post, &object(json!({"metadata": {"name": "lists"}}))).await.unwrap();
        for number in 0..10 {
            let tier = ["a", "b", "c"][number % 3];
            let labels = json!({"tier": tier, "all": "yes"});
            configmaps.create(&post, &configmap(&format!("m{number}"), labels, json!({}))).await.unwrap();
        }
        let of = async |params: &ListParams| names(configmaps.list(params).await.unwrap());
        let all = ListParams::default().labels("all=yes");
        assert_eq!(of(&all).await.len(), 10);
        assert_eq!(of(&ListParams::default().labels("tier in (a, b), tier!=b")).await, ["m0", "m3", "m6", "m9"]);
        let selector = Selector::from_iter([("tier".to_owned(), "c".to_owned())]);
        assert_eq!(of(&ListParams::default().labels_from(&selector)).await, ["m2", "m5", "m8"]);
        assert_eq!(of(&ListParams::default().fields("metadata.name=m4")).await, ["m4"]);
        let unknown = configmaps.list(&ListParams::default().fields("data.x=1")).await;
        refused(unknown, 400, "BadRequest", "field label not supported: data.x");

        // Pages are of one point in time, whatever happens between them.
        let first = configmaps.list(&all.clone().limit(4)).await.unwrap();
        let revision = first.metadata.resource_version.clone().unwrap();
        assert_eq!(first.metadata.remaining_item_count, None, "not told with a selector");
        configmaps.delete("m9", &DeleteParams::default()).await.unwrap();
        configmaps.create(&post, &configmap("m99", json!({"all": "yes"}), json!({}))).await.unwrap();
        let (mut found, mut token) = (names(first.items), first.metadata.continue_);
        while let Some(next) = token.filter(|token| !token.is_empty()) {
            let page = configmaps.list(&all.clone().limit(4).continue_token(&next)).await.unwrap();
            assert_eq!(page.metadata.resource_version.as_deref(), Some(revision.as_str()));
            found.extend(names(page.items));
            token = page.metadata.continue_;
        }
        assert_eq!(found, ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9"]);
        assert!(of(&all).await.contains(&"m99".to_owned()));
        let exact = all.clone().at(&revision).matching(VersionMatch::Exact);
        assert_eq!(of(&exact).await, found, "the same moment once more");
        let newer = all.clone().at(&revision).matching(VersionMatch::NotOlderThan);
        assert!(of(&newer).await.contains(&"m99".to_owned()));
        let counted = configmaps.list(&ListParams::default().limit(4)).await.unwrap().metadata;
        let rest = configmaps.list(&ListParams::default()).await.unwrap().items.len() - 4;
        assert_eq!(counted.remaining_item_count, Some(rest as i64));
        refused(configmaps.list(&all.clone().continue_token("!")).await, 400, "BadRequest", "continue");

        let partial = configmaps.list_metadata(&ListParams::default().fields("metadata.name=m1")).await.unwrap();
        assert_eq!(partial.types.kind, "PartialObjectMetadataList");
        assert_eq!(partial.items[0].labels()["tier"], "b");
    });
}

#[test]
fn objects_are_patched_in_each_type() {
    let cluster = Cluster::start();
    let (post, patching) = (PostParams::default(), PatchParams::default());
    let deployments: Api<Deployment> = Api::default_namespaced(cluster.client.clone());
    let image = |deployment: &Deployment, at: usize| {
        let pod = deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        pod.containers[at].image.clone().unwrap()
    };
    cluster.run(async {
        deployments.create(&post, &deployment("d", 0)).await.unwrap();
        let merge = Patch::Merge(json!({"metadata": {"labels": {"x": "1", "y": "2"}}}));
        assert_eq!(deployments.patch("d", &patching, &merge).await.unwrap().labels().len(), 2);
        let merge = Patch::Merge(json!({"metadata": {"labels": {"x": null}}}));
        assert_eq!(deployments.patch("d", &patching, &merge).await.unwrap().labels().len(), 1);

        let of = |pod: Value| json!({"spec": {"template": {"spec": pod}}});
        let strategic = Patch::Strategic(of(json!({"containers": [{"name": "b", "image": "localhost/b:2"}]})));
        let patched = deployments.patch("d", &patching, &strategic).await.unwrap();
        assert_eq!((image(&patched, 0), image(&patched, 1)), ("localhost/a:1".into(), "localhost/b:2".into()));
        assert_eq!(patched.metadata.generation, Some(2));

        let json_patch = |operations: Value| Patch::Json::<()>(serde_json::from_value(operations).unwrap());
        let path = "/spec/template/spec/containers/-1/image";
        let replaced = json_patch(json!([
            {"op": "test", "path": path, "value": "localhost/b:2"},
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "replace", "path": path, "value": "localhost/b:3"},
        ]));
        let patched = deployments.patch("d", &patching, &replaced).await.unwrap();
        assert_eq!(image(&patched, 1), "localhost/b:3");
        refused(deployments.patch("d", &patching, &replaced).await, 422, "Invalid", "the server rejected our request");
        let dry = deployments.patch("d", &patching.clone().dry_run(), &strategic).await.unwrap();
        assert_eq!(image(&dry, 1), "localhost/b:2");
        assert_eq!(image(&deployments.get("d").await.unwrap(), 1), "localhost/b:3");

        let unknown = Patch::Merge(json!({"spec": {"replica": 1}}));
        let strict = deployments.patch("d", &patching.clone().validation_strict(), &unknown).await;
        refused(strict, 422, "Invalid", "unknown field \"spec.replica\"");
        deployments.patch("d", &patching.clone().validation_warn(), &unknown).await.unwrap();
        refused(deployments.patch("none", &patching, &merge).await, 404, "NotFound", "deployments.apps \"none\"");
        let stale = Patch::Merge(json!({"metadata": {"resourceVersion": "1", "labels": {"x": "9"}}}));
        refused(deployments.patch("d", &patching, &stale).await, 409, "Conflict", "the object has been modified");
        let selector = Patch::Merge(json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}}));
        let causes = refused(deployments.patch("d", &patching, &selector).await, 422, "Invalid", "is invalid");
        assert!(causes.details.unwrap().causes.iter().any(|cause| cause.field == "spec.selector"));
        let metadata = Patch::Merge(json!({"metadata": {"annotations": {"note": "yes"}}}));
        let partial = deployments.patch_metadata("d", &patching, &metadata).await.unwrap();
        assert_eq!(partial.annotations()["note"], "yes");
    });
}

#[test]
fn deleting_keeps_its_word_on_dependents_and_conditions() {
    let cluster = Cluster::start();
    let client = cluster.client.clone();
    let (post, configmaps, pods) = (PostParams::default(), cluster.configmaps(), cluster.pods());
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let replicasets: Api<ReplicaSet> = Api::default_namespaced(client.clone());
    cluster.run(async {
        let made = configmaps.create(&post, &configmap("a", json!({}), json!({}))).await.unwrap();
        let dry = DeleteParams::default().dry_run();
        configmaps.delete("a", &dry).await.unwrap();
        let other = Preconditions { uid: Some("other".into()), resource_version: None };
        let refusal = configmaps.delete("a", &DeleteParams::default().preconditions(other)).await;
        refused(refusal, 409, "Conflict", "the UID in the precondition (other) does not match");
        let same = Preconditions { uid: made.uid(), resource_version: made.resource_version() };
        let gone = configmaps.delete("a", &DeleteParams::default().preconditions(same)).await.unwrap();
        let gone = gone.right().expect("a Status: it is gone at once");
        assert!(gone.is_success());
        let details = gone.details.unwrap();
        assert_eq!((details.name.as_str(), details.kind.as_str(), Some(details.uid)), ("a", "configmaps", made.uid()));
        refused(configmaps.delete("a", &DeleteParams::default()).await, 404, "NotFound", "configmaps \"a\" not found");
        for (name, tier) in [("x", "a"), ("y", "a"), ("z", "b")] {
            configmaps.create(&post, &configmap(name, json!({"tier": tier}), json!({}))).await.unwrap();
        }
        let selected = ListParams::default().labels("tier=a");
        let gone = configmaps.delete_collection(&DeleteParams::default(), &selected).await.unwrap();
        assert_eq!(names(gone.left().expect("a list of what went")), ["x", "y"]);
        let kept = names(configmaps.list(&ListParams::default().labels("tier")).await.unwrap());
        assert_eq!(kept, ["z"]);

        // An unscheduled Pod has nothing to end gracefully; a finalizer keeps it nevertheless.
        let mut pod = idle_pod("held");
        pod.metadata.finalizers = Some(vec!["example.com/hold".into()]);
        pods.create(&post, &pod).await.unwrap();
        let held = pods.delete("held", &DeleteParams::default()).await.unwrap().left().expect("it is still there");
        assert!(held.metadata.deletion_timestamp.is_some());
        let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        pods.patch("held", &PatchParams::default(), &release).await.unwrap();
        assert!(pods.get_opt("held").await.unwrap().is_none());
    });
    for (name, params) in [
        ("orphan", DeleteParams::orphan()),
        ("background", DeleteParams::background()),
        ("foreground", DeleteParams::foreground()),
    ] {
        let selected = ListParams::default().labels(&format!("app={name}"));
        cluster.run(async { deployments.create(&post, &deployment(name, 1)).await.unwrap() });
        let pod = cluster.until("there is a Pod", async || {
            let found = pods.list(&selected).await.map_err(|why| why.to_string())?;
            found.items.first().map(ResourceExt::name_any).ok_or_else(|| "none".to_owned())
        });
        let answer = cluster.run(async { deployments.delete(name, &params).await.unwrap() });
        if name == "foreground" {
            let waiting = answer.left().expect("it waits for its dependents");
            assert_eq!(waiting.finalizers(), ["foregroundDeletion"]);
        }
        cluster.until("the Deployment is gone", async || match deployments.get_opt(name).await.unwrap() {
            None => Ok(()),
            Some(still) => Err(format!("{still:?}")),
        });
        if name == "orphan" {
            let kept = cluster.until("the ReplicaSet is nobody's", async || {
                let found = replicasets.list(&selected).await.unwrap().items.remove(0);
                if found.owner_references().is_empty() { Ok(found) } else { Err(format!("{found:?}")) }
            });
            assert!(cluster.run(pods.get_opt(&pod)).unwrap().is_some());
            cluster.run(replicasets.delete(&kept.name_any(), &DeleteParams::background())).unwrap();
        }
        cluster.until("nothing is left of it", async || {
            let sets = names(replicasets.list(&selected).await.unwrap());
            let pods = names(pods.list(&selected).await.unwrap());
            if sets.is_empty() && pods.is_empty() { Ok(()) } else { Err(format!("{sets:?} {pods:?}")) }
        });
    }
}

#[test]
fn a_dynamic_api_does_all_this_to_kinds_known_at_run_time() {
    let cluster = Cluster::start();
    let client = cluster.client.clone();
    cluster.run(async {
        board::define(&client).await;
        let found = Discovery::new(client.clone()).filter(&[board::GROUP, "apps"]).run().await.unwrap();
        let (boards, _) = found.resolve_gvk(&GroupVersionKind::gvk(board::GROUP, "v1", "Board")).unwrap();
        let api: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &boards);
        let spec = json!({"text": "hello", "unknown": 1});
        let one = DynamicObject::new("one", &boards).data(json!({"spec": spec}));
        let made = api.create(&PostParams::default(), &one).await.unwrap();
        assert_eq!(made.data["spec"], json!({"text": "hello", "copies": 1}), "defaulted and pruned");
        let typed: board::Board = made.clone().try_parse().unwrap();
        assert_eq!(typed.spec.copies, 1);
        let merged = Patch::Merge(json!({"spec": {"copies": 2}}));
        let mut merged = api.patch("one", &PatchParams::default(), &merged).await.unwrap();
        assert_eq!(merged.metadata.generation, Some(2));
        let strategic = api.patch("one", &PatchParams::default(), &Patch::Strategic(json!({"spec": {}}))).await;
        refused(strategic, 415, "UnsupportedMediaType", "the body of the request was in an unknown format");
        merged.data["spec"]["copies"] = json!(1000);
        let wrong = api.replace("one", &PostParams::default(), &merged).await;
        let wrong = refused(wrong, 422, "Invalid", "Board.boards.example.com \"one\" is invalid");
        assert_eq!(wrong.details.unwrap().causes[0].field, "spec.copies");
        merged.data["spec"]["copies"] = json!(3);
        let replaced = api.replace("one", &PostParams::default(), &merged).await.unwrap();
        assert_eq!(replaced.data["spec"]["copies"], 3);
        let listed = api.list(&ListParams::default()).await.unwrap();
        assert_eq!(listed.types, TypeMeta::list::<board::Board>());
        assert_eq!(names(listed), ["one"]);
        let everywhere: Api<DynamicObject> = Api::all_with(client.clone(), &boards);
        assert_eq!(names(everywhere.list(&ListParams::default()).await.unwrap()), ["one"]);
        assert!(api.delete("one", &DeleteParams::default()).await.unwrap().is_right());
        refused(api.get("one").await, 404, "NotFound", "boards.boards.example.com \"one\" not found");
    });
}
