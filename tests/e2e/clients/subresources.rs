//! Subresources with `kube`: status, scale, eviction.

use k8s_openapi::api::{apps::v1::Deployment, autoscaling::v1::Scale, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{EvictParams, Patch, PatchParams, PostParams},
    runtime::{conditions, wait::await_condition},
};
use serde_json::json;

use super::{
    Cluster,
    board::{self, Board, BoardStatus},
    idle_pod, object, refused,
};

#[test]
fn status_and_the_rest_are_written_apart() {
    let cluster = Cluster::start();
    let client = cluster.client.clone();
    let (post, patching) = (PostParams::default(), PatchParams::default());
    cluster.run(async {
        board::define(&client).await;
        let boards: Api<Board> = Api::default_namespaced(client.clone());
        let mut wanted = Board::new("b", 2, "x");
        wanted.status = Some(BoardStatus { copies: 9, observed_generation: 9 });
        let made = boards.create(&post, &wanted).await.unwrap();
        assert!(made.status.is_none(), "who creates has no say in the status");

        let both = json!({"spec": {"text": "y"}, "status": {"copies": 1, "observedGeneration": 1}});
        let told = boards.patch_status("b", &patching, &Patch::Merge(both.clone())).await.unwrap();
        assert_eq!((told.spec.text.as_str(), told.metadata.generation), ("x", Some(1)));
        assert_eq!(told.status.as_ref().map(|status| status.copies), Some(1));
        let mut newer = told.clone();
        newer.status = Some(BoardStatus { copies: 2, observed_generation: 1 });
        newer.spec.text = "z".into();
        let newer = boards.replace_status("b", &post, &newer).await.unwrap();
        assert_eq!((newer.spec.text.as_str(), newer.status.as_ref().unwrap().copies), ("x", 2));
        refused(boards.replace_status("b", &post, &told).await, 409, "Conflict", "the object has been modified");
        assert_eq!(boards.get_status("b").await.unwrap().resource_version(), newer.resource_version());
        let spec = boards.patch("b", &patching, &Patch::Merge(both)).await.unwrap();
        assert_eq!((spec.spec.text.as_str(), spec.status.unwrap().copies), ("y", 2));

        let pods = cluster.pods();
        pods.create(&post, &idle_pod("p")).await.unwrap();
        let gate = json!({"status": {"conditions": [{"type": "example.com/gate", "status": "True"}]}});
        let told = pods.patch_status("p", &patching, &Patch::Strategic(gate)).await.unwrap();
        let types: Vec<String> = told.status.unwrap().conditions.unwrap().into_iter().map(|c| c.type_).collect();
        assert!(types.contains(&"example.com/gate".to_owned()), "{types:?}");
        let none = cluster.configmaps().patch_status("c", &patching, &Patch::Merge(json!({}))).await;
        refused(none, 404, "NotFound", "the server could not find the requested resource");
    });
}

#[test]
fn deployments_and_custom_resources_are_scaled() {
    let cluster = Cluster::start();
    let client = cluster.client.clone();
    let (post, patching) = (PostParams::default(), PatchParams::default());
    let scaled = |replicas: i32| Patch::Merge(json!({"spec": {"replicas": replicas}}));
    let wish = |scale: &Scale| scale.spec.as_ref().and_then(|spec| spec.replicas);
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    cluster.run(async {
        let template = json!({"metadata": {"labels": {"app": "d"}}, "spec": idle_pod("").spec});
        let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "d"}}, "template": template});
        let deployment: Deployment = object(json!({"metadata": {"name": "d"}, "spec": spec}));
        deployments.create(&post, &deployment).await.unwrap();
        let mut scale = deployments.get_scale("d").await.unwrap();
        assert_eq!((wish(&scale), scale.metadata.name.as_deref()), (Some(0), Some("d")));
        assert_eq!(scale.status.as_ref().unwrap().selector.as_deref(), Some("app=d"));
        assert_eq!(wish(&deployments.patch_scale("d", &patching, &scaled(1)).await.unwrap()), Some(1));
        let stale = deployments.replace_scale("d", &post, &scale).await;
        refused(stale, 409, "Conflict", "the object has been modified");
        scale = deployments.get_scale("d").await.unwrap();
        scale.spec.as_mut().unwrap().replicas = Some(3);
        // Whatever its controller has written meanwhile.
        scale.metadata.resource_version = None;
        assert_eq!(wish(&deployments.replace_scale("d", &post, &scale).await.unwrap()), Some(3));
        let wrong = deployments.patch_scale("d", &patching, &scaled(-1)).await;
        let wrong = refused(wrong, 422, "Invalid", "must be greater than or equal to 0");
        assert_eq!(wrong.details.unwrap().causes[0].field, "spec.replicas");
    });
    cluster.until("it is scaled", async || {
        let status = deployments.get_scale("d").await.unwrap().status.unwrap();
        if status.replicas == 3 { Ok(()) } else { Err(format!("{status:?}")) }
    });
    cluster.run(async {
        board::define(&client).await;
        let boards: Api<Board> = Api::default_namespaced(client.clone());
        boards.create(&post, &Board::new("b", 2, "x")).await.unwrap();
        assert_eq!(wish(&boards.get_scale("b").await.unwrap()), Some(2));
        assert_eq!(wish(&boards.patch_scale("b", &patching, &scaled(4)).await.unwrap()), Some(4));
        assert_eq!(boards.get("b").await.unwrap().spec.copies, 4);
    });
}

#[test]
fn an_eviction_deletes_a_pod_unless_it_is_only_tried() {
    let cluster = Cluster::start();
    cluster.node.import_busybox();
    let (pods, post) = (cluster.pods(), PostParams::default());
    cluster.run(async {
        refused(pods.evict("none", &EvictParams::default()).await, 404, "NotFound", "pods \"none\" not found");
        let pod: Pod = object(json!({
            "metadata": {"name": "p", "labels": {"app": "p"}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "localhost/busybox:1", "command": ["sleep", "infinity"]}],
            },
        }));
        pods.create(&post, &pod).await.unwrap();
        await_condition(pods.clone(), "p", conditions::is_pod_running()).await.unwrap();
        let uid = pods.get("p").await.unwrap().uid().unwrap();
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let dry = EvictParams { post_options: dry, ..EvictParams::default() };
        assert!(pods.evict("p", &dry).await.unwrap().is_success());
        assert!(pods.get("p").await.unwrap().metadata.deletion_timestamp.is_none());
        assert!(pods.evict("p", &EvictParams::default()).await.unwrap().is_success());
        await_condition(pods.clone(), "p", conditions::is_deleted(&uid)).await.unwrap();
    });
}
