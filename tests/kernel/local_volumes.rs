//! The built-in provisioner's volumes in a separate mount namespace: a folder for the first Pod, removed when the object is deleted
//! and unused; mounts in one are untouched.

use std::{fs, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use nix::mount::{MsFlags, mount, umount};
use podwright::{
    api::{Env, Request, Verb},
    client::{Client, Informer, Recorder, Typed, local},
    node::{
        objects::Objects,
        translate::env::Facts,
        volumes::{
            Tokens, Volumes,
            local::{Folders, Identity, follow},
        },
    },
    server::{Config, Server},
    store::Memory,
};
use podwright_runtime::{JournalWriter, removals::Removals};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::volumes::{apart, set_up};

const TIMEOUT: Duration = Duration::from_secs(30);

async fn until(what: &str, is_so: impl AsyncFn() -> Result<(), String>) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while let Err(state) = is_so().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}: {state}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn create<K: Typed>(client: &Client, object: Value) -> K {
    client.create(&serde_json::from_value::<K>(object).unwrap()).await.unwrap()
}

#[test]
fn a_volume_is_made_for_its_first_pod_and_goes_when_nobody_uses_it() {
    apart(false, |folder| async move {
        let env = Env::system();
        let server = Server::open(Arc::new(Memory::new()), env.clone(), Config::default()).await.unwrap();
        let client = local::client(server, "kubelet");
        create::<Node>(&client, json!({ "metadata": { "name": "n1" } })).await;
        let objects = Arc::new(Objects::new(client.clone(), Informer::builder(client.clone()).start(), true));
        let tokens = Tokens::new(client.clone(), env.clone());
        let recorder = Recorder::new(client.clone(), env.clone(), "kubelet", Some("n1"));
        let (pods, memory, kept) = (folder.join("pods"), folder.join("memory"), folder.join("local-volumes"));
        let volumes = Volumes::open(
            pods.clone(),
            memory,
            kept.clone(),
            objects,
            tokens,
            env,
            recorder.clone(),
            Removals::default(),
        )
        .unwrap();
        let volumes = Arc::new(volumes);
        let name = "pvc-0a1b";
        let claim = json!({ "metadata": { "name": "c", "namespace": "default" }, "spec": { "storageClassName": "local",
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } }, "volumeName": name } });
        let claim: PersistentVolumeClaim = create(&client, claim).await;
        let volume = json!({
            "metadata": { "name": name, "labels": { "podwright.dev/node": "n1" },
                "annotations": { "pv.kubernetes.io/provisioned-by": "podwright.dev/local" } },
            // The path is only informative.
            "spec": { "capacity": { "storage": "1Mi" }, "accessModes": ["ReadWriteOnce"], "local": { "path": "/etc" },
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": { "namespace": "default", "name": "c", "uid": claim.metadata.uid },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [
                    { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] }] } } },
        });
        create::<PersistentVolume>(&client, volume).await;
        let bound = json!({ "status": { "phase": "Bound" } });
        client.merge::<PersistentVolumeClaim>(Some("default"), "c", Some("status"), bound).await.unwrap();
        let pod: Pod = create(
            &client,
            json!({ "metadata": { "name": "web", "namespace": "default" }, "spec": {
                "automountServiceAccountToken": false, "nodeName": "n1", "securityContext": { "fsGroup": 4242 },
                "containers": [{ "name": "c", "image": "i:1", "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }],
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }] } }),
        )
        .await;
        let pod = Arc::new(pod);
        set_up(&volumes, &pod, &Facts::default()).await.unwrap();
        let (pod_uid, data) = (pod.metadata.uid.clone().unwrap(), kept.join(name).join("data"));
        assert_eq!(fs::read_link(pods.join(&pod_uid).join("volumes/v")).unwrap(), data);
        let found = fs::metadata(&data).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o7777), (4242, 0o2777));
        fs::write(data.join("file"), "text").unwrap();

        let stop = CancellationToken::new();
        let following = follow(volumes.clone(), client.clone(), recorder, "n1".into(), stop.clone());
        let following = tokio::spawn(following);
        let finalizers = json!({ "metadata": { "finalizers": ["podwright.dev/local-volume"] } });
        client.merge::<PersistentVolume>(None, name, None, finalizers).await.unwrap();
        let delete = Request {
            verb: Verb::Delete,
            resource: PersistentVolume::resource(),
            name: Some(name.to_owned()),
            ..Request::default()
        };
        client.call(delete).await.unwrap();
        until("it says who uses it", async || {
            let events = Request { verb: Verb::List, resource: Event::resource(), ..Request::default() };
            let events = client.collection::<Event>(events).await.unwrap().items;
            let said: Vec<_> = events.iter().filter_map(|event| event.message.clone()).collect();
            match said.iter().any(|said| *said == format!("it is in use by Pod {pod_uid}")) {
                true => Ok(()),
                false => Err(format!("{said:?}")),
            }
        })
        .await;
        assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "text");
        volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
        until("the object goes with the folder", async || match client.get::<PersistentVolume>(None, name).await {
            Err(status) if status.is_not_found() => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        assert_eq!(fs::read_dir(&kept).unwrap().count(), 0);
        stop.cancel();
        following.await.unwrap();
    });
}

/// A mount in a volume keeps it, and the volume, until it is unmounted: whether the mount table shows it, or only the kernel knows,
/// as here, where the process's table is not the thread's.
#[test]
fn what_is_mounted_in_a_volume_is_not_removed_with_it() {
    apart(false, |folder| async move {
        fs::create_dir(folder.join("memory")).unwrap();
        mount(Some("x"), &folder.join("memory"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let folders = Folders::open(folder.join("local-volumes")).unwrap();
        let identity = Identity { name: "pvc-a".into(), uid: "v1".into() };
        folders.make(&identity, None).unwrap();
        let (data, outside) = (folders.data("pvc-a"), folder.join("outside"));
        fs::create_dir_all(outside.join("deep")).unwrap();
        fs::write(outside.join("deep/canary"), "sings").unwrap();
        let inside = data.join("a/b/mounted");
        fs::create_dir_all(&inside).unwrap();
        // On the same file system as the volume: the device number does not distinguish them.
        mount(Some(&outside), &inside, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        for _ in 0..2 {
            let why = folders.remove(&identity, || None).unwrap_err().to_string();
            assert!(
                why.contains("is mounted in it") || why.contains("os error 18") || why.contains("os error 16"),
                "{why}"
            );
            assert_eq!(fs::read_to_string(outside.join("deep/canary")).unwrap(), "sings");
        }
        let mounted = find(&folder.join("local-volumes"), "canary").expect("it is still mounted there");
        umount(mounted.parent().and_then(Path::parent).unwrap()).unwrap();
        folders.remove(&identity, || None).unwrap();
        assert_eq!(fs::read_dir(folders.root()).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(outside.join("deep/canary")).unwrap(), "sings");
    });
}

fn find(folder: &Path, name: &str) -> Option<std::path::PathBuf> {
    fs::read_dir(folder).unwrap().flatten().find_map(|entry| match entry.path() {
        path if path.is_dir() => find(&path, name),
        path => (entry.file_name() == name).then_some(path),
    })
}
