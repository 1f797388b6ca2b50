//! Nothing written on one's own Pod gives access to another's Pod, or to the host's files.

use k8s_openapi::api::{
    core::v1::{Namespace, Node, Pod},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client, Config,
    api::{AttachParams, LogParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{conditions, wait::await_condition},
};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::{Cluster, object, refused};

const MIRROR: &str = "kubernetes.io/config.mirror";

/// Outputs `of-b` in every way: its log, its streams, its port.
const VICTIM: &str = "while true; do echo of-b; echo of-b | nc -l -p 8080 -w 1; done";

fn pod(name: &str, node: &str, script: &str, annotations: Value) -> Pod {
    let container = json!({"name": "c", "image": "localhost/busybox:1", "command": ["sh", "-c", script]});
    object(json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]},
    }))
}

/// A client of the administrator that impersonates someone.
async fn client_as(cluster: &Cluster, user: &str) -> Client {
    let kubeconfig = Kubeconfig::read_from(cluster.node.dir.path().join("admin.kubeconfig")).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(user.to_owned());
    Client::try_from(config).unwrap()
}

/// The output of each kind of session with a Pod, and whether it was opened at all.
async fn reached(pods: &Api<Pod>, name: &str) -> Vec<(&'static str, String)> {
    let mut said = Vec::new();
    let mut told = |by, what: String| said.push((by, what));
    told("logs", pods.logs(name, &LogParams::default()).await.unwrap_or_default());
    let streams = AttachParams::default().stderr(false);
    let commanded = pods.exec(name, ["hostname"], &streams).await;
    for (by, process) in [("exec", commanded), ("attach", pods.attach(name, &streams).await)] {
        let Ok(mut process) = process else { continue };
        let mut out = String::new();
        if let Some(mut stdout) = process.stdout() {
            let read = stdout.read_to_string(&mut out);
            // An attached process does not end.
            let _ = tokio::time::timeout(std::time::Duration::from_secs(3), read).await;
        }
        told(by, out);
    }
    if let Ok(mut forwarder) = pods.portforward(name, &[8080]).await
        && let Some(mut stream) = forwarder.take_stream(8080)
    {
        let mut out = String::new();
        let _ = tokio::time::timeout(std::time::Duration::from_secs(3), stream.read_to_string(&mut out)).await;
        told("port-forward", out);
    }
    said
}

#[test]
fn a_pod_that_says_to_be_the_mirror_of_anothers_is_itself_alone() {
    let cluster = Cluster::start();
    cluster.node.import_busybox();
    cluster.run(async {
        let root = &cluster.client;
        let namespaces: Api<Namespace> = Api::all(root.clone());
        for name in ["a", "b"] {
            let namespace = object(json!({"metadata": {"name": name}}));
            namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        }
        let binding: RoleBinding = object(json!({
            "metadata": {"name": "edit"},
            "subjects": [{"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        }));
        Api::<RoleBinding>::namespaced(root.clone(), "a").create(&PostParams::default(), &binding).await.unwrap();
        let node = Api::<Node>::all(root.clone()).list(&Default::default()).await.unwrap().items.remove(0);
        let on = node.metadata.name.clone().unwrap();
        let of_b: Api<Pod> = Api::namespaced(root.clone(), "b");
        let victim = of_b.create(&PostParams::default(), &pod("victim", &on, VICTIM, json!({}))).await.unwrap();
        await_condition(of_b.clone(), "victim", conditions::is_pod_running()).await.unwrap();
        let uid = victim.metadata.uid.clone().unwrap();
        let honest = reached(&of_b, "victim").await;
        assert!(honest.iter().any(|(_, out)| out.contains("of-b") || out.contains("victim")), "{honest:?}");

        // Mallory's own Pod does not become a mirror by claiming so.
        let mallory: Api<Pod> = Api::namespaced(client_as(&cluster, "mallory").await, "a");
        let post = PostParams::default();
        let annotated = pod("liar", &on, "sleep 1000", json!({MIRROR: uid}));
        refused(mallory.create(&post, &annotated).await, 403, "Forbidden", "may be set by nodes only");
        let claims = json!({
            "kubernetes.io/config.source": "file", "kubernetes.io/config.hash": uid, "kubernetes.io/config.seen": "x",
        });
        mallory.create(&post, &pod("liar", &on, "sleep 1000", claims)).await.unwrap();
        let patch = json!({"metadata": {"annotations": {MIRROR: uid}}});
        let patched = mallory.patch("liar", &PatchParams::default(), &Patch::Merge(&patch)).await;
        refused(patched, 422, "Invalid", "may not add mirror pod annotation");
        await_condition(mallory.clone(), "liar", conditions::is_pod_running()).await.unwrap();
        let own = reached(&mallory, "liar").await;
        assert!(own.contains(&("exec", "liar\n".to_owned())), "{own:?}");
        assert!(own.iter().all(|(_, out)| !out.contains("of-b") && !out.contains("victim")), "{own:?}");

        // Not even one created by the superuser in the form of a mirror leads there: the node knows its own mirrors.
        let mut shaped = pod("shaped", &on, "sleep 1000", json!({MIRROR: uid}));
        shaped.metadata.owner_references = object(json!([{
            "apiVersion": "v1", "kind": "Node", "name": on, "uid": node.metadata.uid, "controller": true,
        }]));
        let made: Api<Pod> = Api::namespaced(root.clone(), "a");
        made.create(&post, &shaped).await.unwrap();
        let status = json!({"status": {"phase": "Running", "containerStatuses": [{
            "name": "c", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "state": {"running": {}},
        }]}});
        // It may be gone by now: its node finds no static Pod for it.
        let _ = made.patch_status("shaped", &PatchParams::default(), &Patch::Merge(&status)).await;
        let by_mirror = reached(&mallory, "shaped").await;
        assert!(by_mirror.iter().all(|(_, out)| !out.contains("of-b") && !out.contains("victim")), "{by_mirror:?}");
    });
}

#[test]
fn a_log_that_a_pod_has_replaced_by_a_link_is_not_read() {
    let cluster = Cluster::start();
    cluster.node.import_busybox();
    let folder = cluster.node.dir.path();
    // It has the format of a log: it must not be shown for other reasons than odd lines.
    std::fs::create_dir(folder.join("canary")).unwrap();
    std::fs::write(folder.join("canary/0.log"), "2026-11-20T17:00:00.000000001Z stdout F secret\n").unwrap();
    let canary = folder.join("canary");
    let canary = canary.display();
    for (name, script) in [
        ("file", format!("cd /logs/*_file_*/c && ln -sf {canary}/0.log 0.log")),
        ("folder", format!("cd /logs/*_folder_* && mv c d && ln -s {canary} c")),
    ] {
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "volumes": [{"name": "logs", "hostPath": {"path": folder.join("log")}}],
                "containers": [{
                    "name": "c", "image": "localhost/busybox:1", "volumeMounts": [{"name": "logs", "mountPath": "/logs"}],
                    "command": ["sh", "-c", format!("{script} && touch /done; exec sleep 1000")],
                    "readinessProbe": {"exec": {"command": ["test", "-e", "/done"]}, "periodSeconds": 1},
                }],
            },
        });
        cluster.node.apply(&manifest.to_string());
        cluster.node.wait("condition=Ready", &[&format!("pod/{name}")], super::TIMEOUT);
        let answer = cluster.node.run(&["logs", name]);
        assert!(!answer.all().contains("secret"), "{name}: {}", answer.all());
        assert_ne!(answer.code, 0, "{name}: {}", answer.all());
    }
}
