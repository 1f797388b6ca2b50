//! Volumes made of API objects, and those of claims, in a mount namespace of their own.

use std::{fs, path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use podwright::{
    api::Env,
    client::{Client, local},
    node::{
        objects::{Objects, What},
        translate::env::Facts,
        volumes::{Tokens, Volumes},
    },
    server::{Config, Server},
    store::Memory,
};
use serde_json::json;

/// A projected token in a Pod's files, under a clock of the test's own: what a container reads is renewed at 80 % of its
/// life, all at once, and never while it is young.
#[test]
fn a_projected_token_is_renewed_in_the_files_of_its_volume() {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        runtime.block_on(renewal(folder.path()));
        nix::mount::umount(&folder.path().join("memory")).unwrap();
    });
    thread.join().unwrap();
}

async fn renewal(folder: &Path) {
    let env = Env::simulated("2026-11-20T17:00:00Z".parse().unwrap(), 1);
    let server = Server::open(Arc::new(Memory::new()), env.clone(), Config::default()).await.unwrap();
    let client = local::client(server.clone(), "kubelet");
    let token = json!({ "serviceAccountToken": { "path": "token", "audience": "vault", "expirationSeconds": 600 } });
    let word =
        json!({ "downwardAPI": { "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } });
    let pod = json!({
        "metadata": { "name": "web", "namespace": "default" },
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{ "name": "c", "image": "i:1", "volumeMounts": [{ "name": "all", "mountPath": "/all" }] }],
            "volumes": [{ "name": "all", "projected": { "sources": [token, word] } }],
        },
    });
    let pod = Arc::new(client.create(&serde_json::from_value::<Pod>(pod).unwrap()).await.unwrap());
    let uid = pod.metadata.uid.clone().unwrap();
    let objects = Arc::new(Objects::new(client.clone(), false));
    objects.synced().await;
    let tokens = Tokens::new(client.clone(), env.clone());
    let (pods, memory) = (folder.join("pods"), folder.join("memory"));
    let volumes = Volumes::open(pods, memory.clone(), objects, tokens, env.clone()).unwrap();
    let facts = Facts::default();
    volumes.prepare(&pod, &facts).await.unwrap();
    let volume = memory.join(&uid).join("all");
    let read = |name: &str| fs::read_to_string(volume.join(name)).unwrap();
    let (first, data) = (read("token"), fs::read_link(volume.join("..data")).unwrap());
    assert_eq!(read("name"), "web");
    server.verify_token(&first, "vault").await.unwrap();

    tokio::time::advance(Duration::from_secs(470)).await;
    assert!(volumes.stale_tokens().is_empty());
    volumes.refresh(&pod, &facts).await.unwrap();
    assert_eq!((read("token"), fs::read_link(volume.join("..data")).unwrap()), (first.clone(), data.clone()));
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(volumes.stale_tokens().into_iter().collect::<Vec<_>>(), [uid.clone()]);
    volumes.refresh(&pod, &facts).await.unwrap();
    let second = read("token");
    assert_ne!(second, first);
    assert_ne!(fs::read_link(volume.join("..data")).unwrap(), data, "one link changes all files at once");
    assert!(!volume.join(data).exists() && volumes.stale_tokens().is_empty());
    // The first one ends when it said it would; who reads the file goes on.
    tokio::time::advance(Duration::from_secs(120)).await;
    server.verify_token(&first, "vault").await.unwrap_err();
    server.verify_token(&second, "vault").await.unwrap();
    volumes.remove(&pod).unwrap();
    assert!(!memory.join(&uid).exists());
}

/// Claims and what is at the paths of their volumes: which are linked, given to the Pod's group, and refused, in which words.
#[test]
fn claims_are_linked_to_what_their_volumes_are() {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        runtime.block_on(linked(folder.path()));
        nix::mount::umount(&folder.path().join("memory")).unwrap();
    });
    thread.join().unwrap();
}

/// A server with claims that are bound to volumes of these sources, each of its name.
async fn bound(client: &Client, volumes: &[(&str, serde_json::Value)]) {
    for (name, spec) in volumes {
        let modes = spec["accessModes"].as_array().cloned().unwrap_or_else(|| vec![json!("ReadWriteOnce")]);
        let claim = json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "accessModes": modes, "volumeMode": spec["volumeMode"], "volumeName": name, "storageClassName": "",
                "resources": { "requests": { "storage": "1Gi" } } },
        });
        let claim: PersistentVolumeClaim = client.create(&serde_json::from_value(claim).unwrap()).await.unwrap();
        let mut spec = spec.clone();
        spec["accessModes"] = json!(modes);
        spec["capacity"] = json!({ "storage": "1Gi" });
        spec["claimRef"] = json!({ "namespace": "default", "name": name, "uid": claim.metadata.uid });
        let volume = json!({ "metadata": { "name": name }, "spec": spec });
        client.create(&serde_json::from_value::<PersistentVolume>(volume).unwrap()).await.unwrap();
        let status = json!({ "status": { "phase": "Bound" } });
        client.merge::<PersistentVolumeClaim>(Some("default"), name, Some("status"), status).await.unwrap();
    }
}

async fn user(client: &Client, name: &str, claim: &str, more: serde_json::Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "automountServiceAccountToken": false, "nodeName": "n1",
            "securityContext": { "fsGroup": 4242 },
            "containers": [{ "name": "c", "image": "i:1", "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }],
            "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }],
        },
    });
    pod["spec"]["securityContext"] = podwright::api::patch::merge(&pod["spec"]["securityContext"], &more);
    Arc::new(client.create(&serde_json::from_value::<Pod>(pod).unwrap()).await.unwrap())
}

async fn linked(folder: &Path) {
    let env = Env::system();
    let server = Server::open(Arc::new(Memory::new()), env.clone(), Config::default()).await.unwrap();
    let client = local::client(server.clone(), "kubelet");
    let node = json!({ "metadata": { "name": "n1", "labels": { "disk": "fast" } } });
    client.create(&serde_json::from_value::<Node>(node).unwrap()).await.unwrap();
    let objects = Arc::new(Objects::new(client.clone(), true));
    let tokens = Tokens::new(client.clone(), env.clone());
    let (pods, memory) = (folder.join("pods"), folder.join("memory"));
    let volumes = Volumes::open(pods.clone(), memory, objects.clone(), tokens, env).unwrap();
    let on = |disk: &str| {
        json!({ "required": { "nodeSelectorTerms":
        [{ "matchExpressions": [{ "key": "disk", "operator": "In", "values": [disk] }] }] } })
    };
    let local = |path: &str, disk: &str| json!({ "local": { "path": folder.join(path) }, "nodeAffinity": on(disk) });
    fs::create_dir_all(folder.join("data/deep")).unwrap();
    fs::write(folder.join("data/deep/file"), "x").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("data/out")).unwrap();
    fs::write(folder.join("plain"), "").unwrap();
    let host = |path: &str, kind: &str| json!({ "hostPath": { "path": folder.join(path), "type": kind } });
    let mut alone = local("data", "fast");
    alone["accessModes"] = json!(["ReadWriteOncePod"]);
    let mut block = local("plain", "fast");
    block["volumeMode"] = json!("Block");
    bound(
        &client,
        &[
            ("data", local("data", "fast")),
            ("alone", alone),
            ("elsewhere", local("data", "slow")),
            ("missing", local("none", "fast")),
            ("file", local("plain", "fast")),
            ("block", block),
            ("made", host("made", "DirectoryOrCreate")),
            ("host-file", host("plain", "Directory")),
            ("nfs", json!({ "nfs": { "server": "10.0.0.1", "path": "/x" } })),
        ],
    )
    .await;
    let facts = Facts::default();
    let at = folder.display();
    let unprocessed = |why: &str| {
        format!(
            "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: {why}"
        )
    };
    for (claim, why) in [
        (
            "elsewhere",
            "MountVolume.NodeAffinity check failed for volume \"elsewhere\" : no matching NodeSelectorTerms".into(),
        ),
        (
            "missing",
            format!(
                "MountVolume.NewMounter initialization failed for volume \"missing\" : path \"{at}/none\" does not exist"
            ),
        ),
        (
            "file",
            format!(
                "MountVolume.MountDevice failed for volume \"file\" : {at}/plain is not a directory; \
                 this node makes no file systems on devices"
            ),
        ),
        ("block", unprocessed("volume v has volumeMode Block, but is specified in volumeMounts")),
        (
            "host-file",
            format!(
                "MountVolume.SetUp failed for volume \"host-file\" : hostPath type check failed: {at}/plain is not a directory"
            ),
        ),
        ("nfs", unprocessed("this node does not mount volumes of the kind nfs")),
        (
            "nobody",
            unprocessed(
                "error processing PVC default/nobody: failed to fetch PVC from API server: \
                 persistentvolumeclaims \"nobody\" not found",
            ),
        ),
    ] {
        let pod = user(&client, claim, claim, json!({})).await;
        let trouble = volumes.prepare(&pod, &facts).await.unwrap_err();
        assert_eq!((trouble.reason.as_str(), trouble.message), ("FailedMount", why));
    }
    let made = user(&client, "made", "made", json!({})).await;
    volumes.prepare(&made, &facts).await.unwrap();
    let group = |path: &str| {
        use std::os::unix::fs::MetadataExt;
        let found = fs::symlink_metadata(folder.join(path)).unwrap();
        (found.gid(), found.mode() & 0o7777)
    };
    assert_eq!(group("made").0, 0, "what is the host's stays as it is");

    // The group of the Pod gets all of a local volume, and nothing that a link in it points to.
    let passwd = fs::metadata("/etc/passwd").unwrap();
    let first = user(&client, "first", "alone", json!({})).await;
    volumes.prepare(&first, &facts).await.unwrap();
    let link = |pod: &Pod| pods.join(pod.metadata.uid.clone().unwrap()).join("volumes/v");
    assert_eq!(fs::read_link(link(&first)).unwrap(), folder.join("data"));
    assert_eq!(
        [group("data"), group("data/deep"), group("data/deep/file")],
        [(4242, 0o2775), (4242, 0o2775), (4242, 0o664)]
    );
    assert_eq!(group("data/out").0, 4242);
    let after = fs::metadata("/etc/passwd").unwrap();
    assert_eq!(passwd.permissions(), after.permissions());
    assert_eq!(std::os::unix::fs::MetadataExt::gid(&after), std::os::unix::fs::MetadataExt::gid(&passwd));
    // With OnRootMismatch what is right at the top is not looked into.
    std::os::unix::fs::chown(folder.join("data/deep/file"), None, Some(0)).unwrap();
    let lazy = user(&client, "lazy", "data", json!({ "fsGroupChangePolicy": "OnRootMismatch" })).await;
    volumes.prepare(&lazy, &facts).await.unwrap();
    assert_eq!(group("data/deep/file").0, 0);
    volumes.remove(&lazy).unwrap();

    // For one Pod alone, until that lets go of it.
    let second = user(&client, "second", "alone", json!({})).await;
    let trouble = volumes.prepare(&second, &facts).await.unwrap_err();
    let why = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    assert_eq!(trouble.message, unprocessed(why));
    volumes.release(&first).unwrap();
    volumes.prepare(&second, &facts).await.unwrap();
    for pod in [&first, &second, &made] {
        volumes.remove(pod).unwrap();
    }
    assert_eq!(fs::read_to_string(folder.join("data/deep/file")).unwrap(), "x", "a Pod takes nothing with it");

    // What is awaited is told of once it is bound.
    let mut changes = objects.changes();
    let late = json!({
        "metadata": { "name": "late", "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": { "requests": { "storage": "1Gi" } } },
    });
    client.create(&serde_json::from_value::<PersistentVolumeClaim>(late).unwrap()).await.unwrap();
    let pod = user(&client, "late", "late", json!({})).await;
    let trouble = volumes.prepare(&pod, &facts).await.unwrap_err();
    assert_eq!(trouble.message, unprocessed("error processing PVC default/late: PVC is not bound"));
    let status = json!({ "status": { "phase": "Bound" } });
    client.merge::<PersistentVolumeClaim>(Some("default"), "late", Some("status"), status).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(30), changes.recv()).await.unwrap().unwrap();
    assert_eq!((told.what, told.key.name.as_str()), (What::Claim, "late"));
}
