//! Server-side apply with `kube`: field managers, conflicts, force, and fields no longer applied.

use std::collections::BTreeMap;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{Cluster, board, configmap, refused};

/// A manager's apply of the ConfigMap `shared`.
fn wish(data: Value) -> Patch<Value> {
    Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": data}))
}

fn data(map: ConfigMap) -> BTreeMap<String, String> {
    map.data.unwrap_or_default()
}

fn pairs(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// The managers of an object: (manager, operation, subresource).
fn managers<K: kube::Resource>(of: &K) -> Vec<(String, String, String)> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    of.managed_fields().iter().map(|e| (text(&e.manager), text(&e.operation), text(&e.subresource))).collect()
}

#[test]
fn managers_share_an_object_and_conflict_over_a_field() {
    let cluster = Cluster::start();
    let configmaps = cluster.configmaps();
    let (alpha, beta) = (PatchParams::apply("alpha"), PatchParams::apply("beta"));
    cluster.run(async {
        let apply = async |by: &PatchParams, of: Value| configmaps.patch("shared", by, &wish(of)).await;
        let made = apply(&alpha, json!({"a": "1", "b": "1"})).await.unwrap();
        assert_eq!(managers(&made), [("alpha".into(), "Apply".into(), String::new())]);
        let again = apply(&alpha, json!({"a": "1", "b": "1"})).await.unwrap();
        assert_eq!(again.resource_version(), made.resource_version(), "nothing to write");
        // Others may apply the same, or something else in addition.
        assert_eq!(
            data(apply(&beta, json!({"b": "1", "c": "1"})).await.unwrap()),
            pairs(&[("a", "1"), ("b", "1"), ("c", "1")])
        );
        // But not a conflicting value.
        let conflict = apply(&beta, json!({"a": "2", "b": "1", "c": "1"})).await;
        let conflict = refused(conflict, 409, "Conflict", "conflict with \"alpha\": .data.a");
        let cause = &conflict.details.unwrap().causes[0];
        assert_eq!((cause.reason.as_str(), cause.field.as_str()), ("FieldManagerConflict", ".data.a"));
        assert_eq!(cause.message, "conflict with \"alpha\"");
        let forced = beta.clone().force();
        let forced = apply(&forced, json!({"a": "2", "b": "1", "c": "1"})).await.unwrap();
        assert_eq!(data(forced), pairs(&[("a", "2"), ("b", "1"), ("c", "1")]));
        let conflict = apply(&alpha, json!({"a": "1", "b": "1"})).await;
        refused(conflict, 409, "Conflict", "conflict with \"beta\": .data.a");
        // What its last manager no longer applies is removed; what another applies stays.
        assert_eq!(data(apply(&alpha, json!({})).await.unwrap()), pairs(&[("a", "2"), ("b", "1"), ("c", "1")]));
        assert_eq!(data(apply(&beta, json!({"a": "2"})).await.unwrap()), pairs(&[("a", "2")]));

        // An update takes over what it changes.
        let post = PostParams { field_manager: Some("editor".into()), ..PostParams::default() };
        let mut edited = configmaps.get("shared").await.unwrap();
        edited.data = Some(pairs(&[("a", "3")]));
        let edited = configmaps.replace("shared", &post, &edited).await.unwrap();
        assert!(managers(&edited).contains(&("editor".into(), "Update".into(), String::new())));
        refused(apply(&beta, json!({"a": "2"})).await, 409, "Conflict", "conflict with \"editor\" using v1: .data.a");
        let dry = apply(&beta.clone().force().dry_run(), json!({"a": "2"})).await.unwrap();
        assert_eq!(data(dry), pairs(&[("a", "2")]));
        assert_eq!(data(configmaps.get("shared").await.unwrap()), pairs(&[("a", "3")]));

        // Requirements of apply on its patch.
        let nobody = configmaps.patch("shared", &PatchParams::default(), &wish(json!({}))).await;
        refused(nobody, 422, "Invalid", "fieldManager: Required value");
        let unknown = json!({"apiVersion": "v1", "kind": "ConfigMap", "dota": {}});
        let unknown = configmaps.patch("shared", &alpha.clone().validation_strict(), &Patch::Apply(unknown)).await;
        refused(unknown, 500, "", ".dota: field not declared in schema");
        let mut managed = configmap("shared", json!({}), json!({}));
        managed.metadata.managed_fields = edited.metadata.managed_fields;
        let managed = configmaps.patch("shared", &alpha, &Patch::Apply(managed)).await;
        refused(managed, 400, "BadRequest", "metadata.managedFields must be nil");
    });
}

#[test]
fn lists_are_applied_by_their_keys() {
    let cluster = Cluster::start();
    let deployments: Api<Deployment> = Api::default_namespaced(cluster.client.clone());
    let wish = |containers: Value, more: Value| {
        let template = json!({
            "metadata": {"labels": {"app": "d"}},
            "spec": {"schedulerName": "nobody", "containers": containers},
        });
        let mut spec = json!({"selector": {"matchLabels": {"app": "d"}}, "template": template});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Patch::Apply(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}))
    };
    let containers = |deployment: Deployment| -> Vec<(String, String)> {
        let pod = deployment.spec.unwrap().template.spec.unwrap();
        pod.containers.into_iter().map(|c| (c.name, c.image.unwrap_or_default())).collect()
    };
    let pair = |name: &str, image: &str| (name.to_owned(), image.to_owned());
    cluster.run(async {
        let owner = PatchParams::apply("owner");
        let main = json!([{"name": "main", "image": "localhost/main:1", "ports": [{"containerPort": 80}]}]);
        deployments.patch("d", &owner, &wish(main.clone(), json!({"replicas": 0}))).await.unwrap();
        let injector = PatchParams::apply("injector");
        let side = json!([{"name": "side", "image": "localhost/side:1"}]);
        let both = deployments.patch("d", &injector, &wish(side, json!({}))).await.unwrap();
        assert_eq!(containers(both), [pair("main", "localhost/main:1"), pair("side", "localhost/side:1")]);
        // The owner hands the replicas over to the scaler, and does not change the other's container.
        let scale = Patch::Merge(json!({"spec": {"replicas": 1}}));
        let scaler = PatchParams { field_manager: Some("scaler".into()), ..PatchParams::default() };
        deployments.patch_scale("d", &scaler, &scale).await.unwrap();
        let conflict = deployments.patch("d", &owner, &wish(main.clone(), json!({"replicas": 0}))).await;
        refused(conflict, 409, "Conflict", "conflict with \"scaler\" with subresource \"scale\" using apps/v1");
        let kept = deployments.patch("d", &owner, &wish(main, json!({}))).await.unwrap();
        assert_eq!(kept.spec.as_ref().unwrap().replicas, Some(1));
        let gone = deployments.patch("d", &injector, &wish(json!([]), json!({}))).await.unwrap();
        assert_eq!(containers(gone), [pair("main", "localhost/main:1")]);
    });
}

#[test]
fn custom_resources_are_applied_by_their_schema() {
    let cluster = Cluster::start();
    let client = cluster.client.clone();
    cluster.run(async {
        board::define(&client).await;
        let resource = ApiResource::erase::<board::Board>(&());
        let boards: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &resource);
        let wish = |spec: Value| Patch::Apply(DynamicObject::new("b", &resource).data(json!({"spec": spec})));
        let (one, two) = (PatchParams::apply("one"), PatchParams::apply("two"));
        let spec = json!({"text": "x", "marks": [{"name": "a", "color": "red"}]});
        boards.patch("b", &one, &wish(spec)).await.unwrap();
        let spec = json!({"text": "x", "marks": [{"name": "b", "color": "blue"}]});
        let both = boards.patch("b", &two, &wish(spec)).await.unwrap();
        let marks = json!([{"name": "a", "color": "red"}, {"name": "b", "color": "blue"}]);
        assert_eq!(both.data["spec"]["marks"], marks);
        let conflict = boards.patch("b", &two, &wish(json!({"text": "y"}))).await;
        refused(conflict, 409, "Conflict", "conflict with \"one\": .spec.text");
        let gone = boards.patch("b", &two, &wish(json!({"text": "x"}))).await.unwrap();
        assert_eq!(gone.data["spec"]["marks"], json!([{"name": "a", "color": "red"}]));
        // The status has its own managers.
        let status = DynamicObject::new("b", &resource).data(json!({"status": {"copies": 7}}));
        let told = boards.patch_status("b", &two, &Patch::Apply(status)).await.unwrap();
        assert_eq!(told.data["status"], json!({"copies": 7}));
        assert!(managers(&told).contains(&("two".into(), "Apply".into(), "status".into())), "{:?}", managers(&told));
        let untouched = boards.patch("b", &two, &wish(json!({"text": "x"}))).await.unwrap();
        assert_eq!(untouched.data["status"], json!({"copies": 7}));
    });
}
