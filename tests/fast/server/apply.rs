//! Server-side apply through the server's door: what the pipeline adds to the merge.

use podwright::api::request::PatchType;
use podwright::api::{Object, Options, Status, Verb};
use serde_json::{Value, json};

use super::{Api, config_map, object_of, request};

impl Api {
    pub async fn apply(&self, resource: &str, manager: &str, object: Value, force: bool) -> Result<Object, Status> {
        let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let options = Options { field_manager: Some(manager.into()), force, ..apply_options() };
        self.0.handle(request(Verb::Patch, resource, &name, Some(object), options)).await.map(object_of)
    }
    /// An update under a manager's name.
    async fn write(&self, resource: &str, manager: &str, name: &str, patch: Value) -> Result<Object, Status> {
        let options =
            Options { field_manager: Some(manager.into()), patch_type: Some(PatchType::Merge), ..Options::default() };
        self.0.handle(request(Verb::Patch, resource, name, Some(patch), options)).await.map(object_of)
    }
}

fn apply_options() -> Options {
    Options { patch_type: Some(PatchType::Apply), ..Options::default() }
}

fn managers(object: &Object) -> Vec<String> {
    let entries = object.0["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |e: &Value, f: &str| e[f].as_str().unwrap_or("").to_owned();
    let shown = |e: &Value| match text(e, "subresource").as_str() {
        "" => format!("{} {}", text(e, "manager"), text(e, "operation")),
        sub => format!("{} {} {sub}", text(e, "manager"), text(e, "operation")),
    };
    entries.iter().map(shown).collect()
}

fn deployment(replicas: Option<u32>) -> Value {
    let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1000m"}}}]}}}});
    if let Some(n) = replicas {
        object["spec"]["replicas"] = n.into();
    }
    object
}

#[tokio::test]
async fn an_apply_creates_changes_and_conflicts() {
    let api = Api::new().await;
    let made = api.apply("deployments.apps", "me", deployment(Some(2)), false).await.unwrap();
    assert_eq!(managers(&made), ["me Apply"]);
    assert_eq!((made.generation(), &made.0["spec"]["strategy"]["type"]), (1, &json!("RollingUpdate")));
    // Nothing new: no write.
    let again = api.apply("deployments.apps", "me", deployment(Some(2)), false).await.unwrap();
    assert_eq!(again, made);
    // Someone scales.
    let body = json!({"spec": {"replicas": 3}});
    let options = Options {
        field_manager: Some("kubectl-scale".into()),
        patch_type: Some(PatchType::Merge),
        ..Options::default()
    };
    let scale = podwright::api::Request {
        subresource: Some("scale".into()),
        ..request(Verb::Patch, "deployments.apps", "a", Some(body), options)
    };
    api.0.handle(scale).await.unwrap();
    let scaled = api.get("deployments.apps", "a").await.unwrap();
    assert_eq!(managers(&scaled), ["me Apply", "kubectl-scale Update scale"]);
    let refused = api.apply("deployments.apps", "me", deployment(Some(2)), false).await.unwrap_err();
    assert_eq!((refused.code, refused.reason.as_str()), (409, "Conflict"));
    let words = "Apply failed with 1 conflict: conflict with \"kubectl-scale\" with subresource \"scale\" using apps/v1: .spec.replicas";
    assert_eq!(refused.message, words);
    let cause = &refused.details.unwrap().causes[0];
    assert_eq!((cause.reason.as_str(), cause.field.as_str()), ("FieldManagerConflict", ".spec.replicas"));
    let forced = api.apply("deployments.apps", "me", deployment(Some(2)), true).await.unwrap();
    assert_eq!((&forced.0["spec"]["replicas"], managers(&forced)), (&json!(2), vec!["me Apply".to_owned()]));
    // What is applied no longer has its default again.
    let left = api.apply("deployments.apps", "me", deployment(None), false).await.unwrap();
    assert_eq!((&left.0["spec"]["replicas"], left.generation()), (&json!(1), 4));
}

#[tokio::test]
async fn a_status_has_managers_of_its_own() {
    let api = Api::new().await;
    api.apply("deployments.apps", "me", deployment(None), false).await.unwrap();
    let options =
        Options { field_manager: Some("controller".into()), patch_type: Some(PatchType::Merge), ..Options::default() };
    let request = podwright::api::Request {
        subresource: Some("status".into()),
        ..request(Verb::Patch, "deployments.apps", "a", Some(json!({"status": {"replicas": 1}})), options)
    };
    let told = object_of(api.0.handle(request).await.unwrap());
    assert_eq!(managers(&told), ["me Apply", "controller Update status"]);
    let entry = &told.0["metadata"]["managedFields"][1];
    assert_eq!(entry["fieldsV1"], json!({"f:status": {"f:replicas": {}}}));
}

#[tokio::test]
async fn writes_are_tracked_where_a_writer_has_a_name() {
    let api = Api::new().await;
    // No name, and the components' own objects: not tracked, until the first apply.
    let plain = api.create("configmaps", config_map("plain")).await.unwrap();
    assert!(plain.0["metadata"].get("managedFields").is_none());
    assert!(managers(&api.write("configmaps", "x", "plain", json!({"data": {"b": "2"}})).await.unwrap()).is_empty());
    let refused = api
        .apply(
            "configmaps",
            "me",
            json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "plain"}, "data": {"a": "9"}}),
            false,
        )
        .await
        .unwrap_err();
    assert_eq!(refused.message, "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.a");
    // A name: tracked from the beginning.
    let options = Options { field_manager: Some("kubectl-create".into()), ..Options::default() };
    let create = request(Verb::Create, "configmaps", "", Some(config_map("named")), options);
    let named = object_of(api.0.handle(create).await.unwrap());
    assert_eq!(managers(&named), ["kubectl-create Update"]);
    let fields = json!({"f:data": {".": {}, "f:a": {}}});
    assert_eq!(named.0["metadata"]["managedFields"][0]["fieldsV1"], fields);
    let edited = api.write("configmaps", "kubectl-edit", "named", json!({"data": {"a": "2"}})).await.unwrap();
    assert_eq!(managers(&edited), ["kubectl-create Update", "kubectl-edit Update"]);
    // A writer that sends the object without them leaves them; an empty entry ends the tracking.
    let mut bare = edited.clone();
    bare.set_meta("managedFields", None);
    assert_eq!(managers(&api.update("configmaps", &bare).await.unwrap()), managers(&edited));
    bare.set_meta("managedFields", json!([{}]));
    bare.set_meta("resourceVersion", None);
    assert!(managers(&api.update("configmaps", &bare).await.unwrap()).is_empty());
}

#[tokio::test]
async fn what_an_apply_must_say() {
    let api = Api::new().await;
    let ask = |name: &str, body: Value, options: Options| {
        api.0.handle(request(Verb::Patch, "configmaps", name, Some(body), options))
    };
    let nameless = ask("a", config_map("a"), apply_options()).await.unwrap_err();
    assert_eq!(
        (nameless.code, nameless.message.as_str()),
        (422, "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch")
    );
    let force = Options { force: true, patch_type: Some(PatchType::Merge), ..Options::default() };
    let refused = ask("a", json!({}), force).await.unwrap_err();
    assert!(refused.message.ends_with("force: Forbidden: may not be specified for non-apply patch"), "{refused}");
    let mut managed = config_map("a");
    managed["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    let named = || Options { field_manager: Some("me".into()), ..apply_options() };
    assert_eq!(ask("a", managed, named()).await.unwrap_err().message, "metadata.managedFields must be nil");
    let other = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}});
    assert_eq!(ask("a", other, named()).await.unwrap_err().code, 400);
    assert_eq!(ask("b", config_map("a"), named()).await.unwrap_err().code, 400);
    let unknown = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "date": {}});
    let refused = ask("a", unknown, named()).await.unwrap_err();
    assert_eq!(
        (refused.code, refused.reason.as_str(), refused.message.as_str()),
        (
            500,
            "",
            "failed to create typed patch object (default/a; /v1, Kind=ConfigMap): .date: field not declared in schema"
        )
    );
    // An old resourceVersion refuses, as in any write.
    let made = object_of(ask("a", config_map("a"), named()).await.unwrap());
    api.write("configmaps", "x", "a", json!({"data": {"z": "1"}})).await.unwrap();
    let mut stale = config_map("a");
    stale["metadata"]["resourceVersion"] = made.resource_version().into();
    assert!(ask("a", stale, named()).await.unwrap_err().message.contains("the object has been modified"));
    // A dry run writes nothing.
    let dry = Options { dry_run: true, ..named() };
    object_of(ask("dry", config_map("dry"), dry).await.unwrap());
    assert!(api.get("configmaps", "dry").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn addresses_survive_an_apply() {
    let api = Api::new().await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 80}]}});
    let made = api.apply("services", "me", service.clone(), false).await.unwrap();
    let again = api.apply("services", "me", service, false).await.unwrap();
    assert_eq!(again.0["spec"], made.0["spec"]);
    assert!(made.0["spec"]["ports"][0]["nodePort"].is_number());
}

/// What tracking costs a write; run by hand: `--ignored --nocapture cost`.
#[tokio::test]
#[ignore = "a benchmark"]
async fn the_cost_of_tracking() {
    const WRITES: u32 = 2000;
    for (what, object) in [("ConfigMap", config_map("x")), ("Deployment", deployment(Some(1)))] {
        for manager in [None, Some("me")] {
            let api = Api::new().await;
            let resource = if what == "ConfigMap" { "configmaps" } else { "deployments.apps" };
            let (mut creates, mut updates) = (std::time::Duration::ZERO, std::time::Duration::ZERO);
            for i in 0..WRITES {
                let mut object = object.clone();
                object["metadata"]["name"] = format!("o{i}").into();
                let options = || Options { field_manager: manager.map(str::to_owned), ..Options::default() };
                let start = std::time::Instant::now();
                let made = api.0.handle(request(Verb::Create, resource, "", Some(object), options())).await.unwrap();
                creates += start.elapsed();
                let mut made = object_of(made);
                made.set_meta("labels", json!({"changed": "by-now"}));
                let start = std::time::Instant::now();
                api.0.handle(request(Verb::Update, resource, "", Some(made.0), options())).await.unwrap();
                updates += start.elapsed();
            }
            let each = |all: std::time::Duration| all / WRITES;
            println!("{what} by {manager:?}: create {:?}, update {:?}", each(creates), each(updates));
        }
    }
}

/// One manager's fields are one entry, in whatever version it applies; what it leaves out of another version goes.
#[tokio::test]
async fn an_applier_may_change_its_version() {
    const V1: &str = "horizontalpodautoscalers.v1.autoscaling";
    const V2: &str = "horizontalpodautoscalers.autoscaling";
    let api = Api::new().await;
    let scaler = |version: &str, more: Value| {
        let mut it = json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "a"}, "spec": {"maxReplicas": 5, "minReplicas": 2,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}}});
        it["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        it
    };
    let old = scaler("v1", json!({"targetCPUUtilizationPercentage": 60}));
    let metric = |percent: u32| json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}]);
    let made = api.apply(V1, "me", old.clone(), false).await.unwrap();
    let entry = &made.0["metadata"]["managedFields"][0];
    assert_eq!(
        (&entry["apiVersion"], &entry["fieldsV1"]["f:spec"]["f:targetCPUUtilizationPercentage"]),
        (&json!("autoscaling/v1"), &json!({}))
    );
    // Another's conflict, seen across versions.
    let refused = api.apply(V2, "other", scaler("v2", json!({"metrics": metric(70)})), false).await.unwrap_err();
    assert_eq!(refused.code, 409);
    assert!(refused.message.contains("conflict with \"me\": .spec.metrics"), "{}", refused.message);
    // The same value is no conflict, and shared.
    let shared = api.apply(V2, "other", scaler("v2", json!({"metrics": metric(60)})), false).await.unwrap();
    assert_eq!(managers(&shared), ["me Apply", "other Apply"]);
    api.apply(
        V2,
        "other",
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"}}),
        false,
    )
    .await
    .unwrap();
    // The manager itself goes over to the newer version.
    let newer = api.apply(V2, "me", scaler("v2", json!({"metrics": metric(80)})), false).await.unwrap();
    assert_eq!(newer.0["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
    let entries = newer.0["metadata"]["managedFields"].as_array().unwrap();
    let mine: Vec<&Value> = entries.iter().filter(|entry| entry["manager"] == "me").collect();
    assert_eq!((mine.len(), &mine[0]["apiVersion"]), (1, &json!("autoscaling/v2")), "{entries:?}");
    assert_eq!(mine[0]["fieldsV1"]["f:spec"]["f:targetCPUUtilizationPercentage"], Value::Null);
    let back = api.apply(V1, "me", old, false).await.unwrap();
    assert_eq!(back.0["spec"]["targetCPUUtilizationPercentage"], 60);
}

/// `null` in what is applied is no value: the field has its default again.
#[tokio::test]
async fn an_applied_null_unsets() {
    let api = Api::new().await;
    api.apply("deployments.apps", "me", deployment(Some(4)), false).await.unwrap();
    let mut without = deployment(None);
    without["spec"]["replicas"] = Value::Null;
    without["metadata"]["labels"] = Value::Null;
    let told = api.apply("deployments.apps", "me", without, false).await.unwrap();
    assert_eq!((&told.0["spec"]["replicas"], told.0["metadata"].get("labels")), (&json!(1), None));
    // Nobody holds it: another takes it without a conflict.
    let scaled =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"replicas": 7}});
    api.apply("deployments.apps", "other", scaled, false).await.unwrap();
}

/// Each write goes through all of them.
#[tokio::test]
async fn the_managers_of_an_object_are_bounded() {
    let api = Api::new().await;
    let with = |count: usize| {
        let entry = |n: usize| {
            json!({"manager": format!("m{n:03}"), "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {format!("f:k{n}"): {}}}})
        };
        let mut object = config_map("full");
        object["data"] = json!({"k0": "v"});
        object["metadata"]["managedFields"] = (0..count).map(entry).collect();
        object
    };
    let mut many = with(400);
    many["metadata"]["name"] = "many".into();
    let made = api.create("configmaps", many).await.unwrap();
    let known = managers(&made).len();
    assert!((299..=301).contains(&known), "no more are known: {known}");
    let made = api.create("configmaps", with(258)).await.unwrap();
    assert!(managers(&made).len() >= 256, "{:?}", managers(&made));
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "full"}, "data": {"k0": "v"}});
    let refused = api.apply("configmaps", "another", config.clone(), false).await.unwrap_err();
    assert_eq!((refused.code, refused.reason.as_str()), (422, "Invalid"));
    assert!(refused.message.contains("metadata.managedFields: Too many: "), "{}", refused.message);
    api.apply("configmaps", "m001", config, false).await.unwrap();
}

/// An apply keeps one of what its object has twice, and says nothing of that: who writes such an object is warned of it.
#[tokio::test]
async fn who_writes_twice_what_an_apply_keeps_once_is_warned() {
    let api = Api::new().await;
    let with = |env: Value| {
        let mut object = deployment(Some(1));
        object["spec"]["template"]["spec"]["containers"][0]["env"] = env;
        object
    };
    let warning = "spec.template.spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply";
    let twice = with(json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]));
    let create = request(Verb::Create, "deployments.apps", "", Some(twice), Options::default());
    assert_eq!(api.0.handle(create).await.unwrap().warnings, [warning]);
    let merge = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
    for (patch, warnings) in
        [(json!({"metadata": {"labels": {"a": "b"}}}), &[][..]), (json!({"spec": {"replicas": 2}}), &[warning])]
    {
        let patch = request(Verb::Patch, "deployments.apps", "a", Some(patch), merge.clone());
        assert_eq!(api.0.handle(patch).await.unwrap().warnings, warnings);
    }
    let once = with(json!([{"name": "A", "value": "3"}]));
    let options = Options { field_manager: Some("me".into()), force: true, ..apply_options() };
    let applied = api.0.handle(request(Verb::Patch, "deployments.apps", "a", Some(once), options)).await.unwrap();
    assert!(applied.warnings.is_empty());
    let env = &object_of(applied).0["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(*env, json!([{"name": "A", "value": "3"}]));
}
