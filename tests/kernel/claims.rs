//! Volumes of claims in a separate mount namespace: links, ownership, and exclusive use.

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown, symlink},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use podwright::{
    api::{Env, patch},
    client::{Client, Informer, Recorder, local},
    node::{
        executor::ActionError,
        objects::{Objects, What},
        translate::env::Facts,
        volumes::{Tokens, Volumes, ownership},
    },
    server::{Config, Server},
    store::Memory,
};
use podwright_runtime::{JournalWriter, removals::Removals, sys::tree::LONGEST};
use serde_json::{Value, json};

use super::volumes::{apart, set_up};

/// The node `n1`, labelled `disk: fast`, with its own server.
struct Bed {
    client: Client,
    objects: Arc<Objects>,
    volumes: Arc<Volumes>,
    folder: PathBuf,
}

impl Bed {
    async fn new(folder: PathBuf) -> Bed {
        let env = Env::system();
        let server = Server::open(Arc::new(Memory::new()), env.clone(), Config::default()).await.unwrap();
        let client = local::client(server, "kubelet");
        let node = json!({ "metadata": { "name": "n1", "labels": { "disk": "fast" } } });
        client.create(&serde_json::from_value::<Node>(node).unwrap()).await.unwrap();
        let objects = Arc::new(Objects::new(client.clone(), Informer::builder(client.clone()).start(), true));
        let tokens = Tokens::new(client.clone(), env.clone());
        let (pods, memory) = (folder.join("pods"), folder.join("memory"));
        let recorder = Recorder::new(client.clone(), env.clone(), "kubelet", Some("n1"));
        let local = folder.join("local-volumes");
        let volumes =
            Volumes::open(pods, memory, local, objects.clone(), tokens, env, recorder, Removals::default()).unwrap();
        let volumes = Arc::new(volumes);
        Bed { client, objects, volumes, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The source of a local volume for nodes with this label.
    fn local(&self, path: &str, disk: &str) -> Value {
        let terms = json!([{ "matchExpressions": [{ "key": "disk", "operator": "In", "values": [disk] }] }]);
        json!({ "local": { "path": self.path(path) }, "nodeAffinity": { "required": { "nodeSelectorTerms": terms } } })
    }

    fn alone(&self, path: &str) -> Value {
        patch::merge(&self.local(path, "fast"), &json!({ "accessModes": ["ReadWriteOncePod"] }))
    }

    /// Claims bound to volumes of these sources, by name.
    async fn bound(&self, volumes: &[(&str, Value)]) {
        for (name, spec) in volumes {
            let modes = spec["accessModes"].as_array().cloned().unwrap_or_else(|| vec![json!("ReadWriteOnce")]);
            let claim = json!({
                "metadata": { "name": name, "namespace": "default" },
                "spec": { "accessModes": modes, "volumeMode": spec["volumeMode"], "volumeName": name,
                    "storageClassName": "", "resources": { "requests": { "storage": "1Gi" } } },
            });
            let claim: PersistentVolumeClaim =
                self.client.create(&serde_json::from_value(claim).unwrap()).await.unwrap();
            let mut spec = spec.clone();
            spec["accessModes"] = json!(modes);
            spec["capacity"] = json!({ "storage": "1Gi" });
            spec["claimRef"] = json!({ "namespace": "default", "name": name, "uid": claim.metadata.uid });
            let volume = json!({ "metadata": { "name": name }, "spec": spec });
            self.client.create(&serde_json::from_value::<PersistentVolume>(volume).unwrap()).await.unwrap();
            self.tell_bound(name).await;
        }
    }

    async fn tell_bound(&self, claim: &str) {
        let status = json!({ "status": { "phase": "Bound" } });
        self.client.merge::<PersistentVolumeClaim>(Some("default"), claim, Some("status"), status).await.unwrap();
    }

    /// A Pod with a claim and fsGroup 4242, with `changes` merged into its spec.
    async fn user(&self, name: &str, claim: &str, changes: Value) -> Arc<Pod> {
        self.user_of(name, json!({ "claimName": claim }), changes).await
    }

    async fn user_of(&self, name: &str, claim: Value, changes: Value) -> Arc<Pod> {
        let spec = json!({
            "automountServiceAccountToken": false, "nodeName": "n1",
            "securityContext": { "fsGroup": 4242 },
            "containers": [{ "name": "c", "image": "i:1", "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }],
            "volumes": [{ "name": "v", "persistentVolumeClaim": claim }],
        });
        let pod =
            json!({ "metadata": { "name": name, "namespace": "default" }, "spec": patch::merge(&spec, &changes) });
        Arc::new(self.client.create(&serde_json::from_value::<Pod>(pod).unwrap()).await.unwrap())
    }

    async fn prepare(&self, pod: &Arc<Pod>) -> Result<(), ActionError> {
        Ok(set_up(&self.volumes, pod, &Facts::default()).await?)
    }

    /// Why a Pod's volume is refused.
    async fn refused(&self, pod: &Arc<Pod>) -> String {
        self.prepare(pod).await.expect_err("it is refused").message
    }

    fn link(&self, pod: &Pod) -> PathBuf {
        self.path("pods").join(pod.metadata.uid.as_deref().unwrap()).join("volumes/v")
    }

    fn owner(&self, path: &str) -> (u32, u32) {
        owner(&self.path(path))
    }
}

/// The group and the mode.
fn owner(path: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.gid(), found.mode() & 0o7777)
}

fn of_group(group: u32) -> Value {
    json!({ "securityContext": { "fsGroup": group } })
}

fn unprocessed(why: &str) -> String {
    format!(
        "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: {why}"
    )
}

fn in_use(volume: &str) -> String {
    let why = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    format!("MountVolume.SetUp failed for volume \"{volume}\" : {why}")
}

/// Volumes' paths: what is linked, and what is refused with which message.
#[test]
fn claims_are_linked_to_what_their_volumes_are() {
    apart(false, |folder| async {
        let bed = Bed::new(folder).await;
        fs::create_dir(bed.path("data")).unwrap();
        fs::write(bed.path("data/file"), "x").unwrap();
        fs::write(bed.path("plain"), "").unwrap();
        let host = |path: &str, kind: &str| json!({ "hostPath": { "path": bed.path(path), "type": kind } });
        let block = |path: &str| patch::merge(&bed.local(path, "fast"), &json!({ "volumeMode": "Block" }));
        bed.bound(&[
            ("data", bed.local("data", "fast")),
            ("elsewhere", bed.local("data", "slow")),
            ("missing", bed.local("none", "fast")),
            ("file", bed.local("plain", "fast")),
            ("block", block("plain")),
            ("no-device", block("plain")),
            ("made", host("made", "DirectoryOrCreate")),
            ("host-file", host("plain", "Directory")),
            ("nfs", json!({ "nfs": { "server": "10.0.0.1", "path": "/x" } })),
        ])
        .await;
        let at = bed.folder.display();
        let device =
            json!([{ "name": "c", "image": "i:1", "volumeDevices": [{ "name": "v", "devicePath": "/dev/v" }] }]);
        let failed = |stage: &str, volume: &str, why: &str| format!("{stage} failed for volume \"{volume}\" : {why}");
        let here = |path: &str, why: &str| format!("{at}/{path} {why}");
        let missing = format!("path \"{at}/none\" does not exist");
        let no_folder = here("plain", "is not a directory; this node makes no file systems on devices");
        let absent = "error processing PVC default/nobody: failed to fetch PVC from API server: \
                      persistentvolumeclaims \"nobody\" not found";
        for (claim, reason, why) in [
            (
                "elsewhere",
                "FailedMount",
                "MountVolume.NodeAffinity check failed for volume \"elsewhere\" : no matching NodeSelectorTerms".into(),
            ),
            ("missing", "FailedMount", failed("MountVolume.NewMounter initialization", "missing", &missing)),
            ("file", "FailedMount", failed("MountVolume.MountDevice", "file", &no_folder)),
            ("block", "FailedMount", unprocessed("volume v has volumeMode Block, but is specified in volumeMounts")),
            (
                "no-device",
                "FailedMapVolume",
                failed("MapVolume.MapBlockVolume", "no-device", &here("plain", "is not a block device")),
            ),
            (
                "host-file",
                "FailedMount",
                failed(
                    "MountVolume.SetUp",
                    "host-file",
                    &format!("hostPath type check failed: {}", here("plain", "is not a directory")),
                ),
            ),
            ("nfs", "FailedMount", unprocessed("this node does not mount volumes of the kind nfs")),
            ("nobody", "FailedMount", unprocessed(absent)),
        ] {
            let changes = if claim == "no-device" { json!({ "containers": device }) } else { json!({}) };
            let pod = bed.user(claim, claim, changes).await;
            let trouble = bed.prepare(&pod).await.unwrap_err();
            assert_eq!((trouble.reason.as_str(), trouble.message), (reason, why));
        }
        let made = bed.user("made", "made", json!({})).await;
        bed.prepare(&made).await.unwrap();
        assert_eq!(bed.owner("made").0, 0, "what is the host's stays as it is");
        let data = bed.user("data", "data", json!({})).await;
        bed.prepare(&data).await.unwrap();
        assert_eq!(fs::read_link(bed.link(&data)).unwrap(), bed.path("data"));
        for pod in [&made, &data] {
            bed.volumes.remove(pod, None, &JournalWriter::none()).await.unwrap();
        }
        assert_eq!(fs::read_to_string(bed.path("data/file")).unwrap(), "x", "a Pod takes nothing with it");
        assert!(!bed.link(&data).exists());
    });
}

/// A claim that merely has the name of a Pod's ephemeral claim is never used for it.
#[test]
fn a_claim_in_the_way_of_an_ephemeral_volume_is_not_used() {
    apart(false, |folder| async {
        let bed = Bed::new(folder).await;
        fs::create_dir(bed.path("data")).unwrap();
        bed.bound(&[("web-v", bed.local("data", "fast"))]).await;
        let template =
            json!({ "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } });
        let volumes = json!({ "volumes": [{ "name": "v", "ephemeral": { "volumeClaimTemplate": template } }] });
        let pod = bed.user("web", "", volumes).await;
        let why = "PVC default/web-v was not created for pod default/web (pod is not owner)";
        assert_eq!(bed.refused(&pod).await, unprocessed(why));
        assert_eq!(bed.owner("data").0, 0);
    });
}

/// An awaited claim is reported once it is bound.
#[test]
fn a_claim_that_is_bound_late_is_told_of() {
    apart(false, |folder| async {
        let bed = Bed::new(folder).await;
        let mut changes = bed.objects.changes();
        let late = json!({
            "metadata": { "name": "late", "namespace": "default" },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "resources": { "requests": { "storage": "1Gi" } } },
        });
        bed.client.create(&serde_json::from_value::<PersistentVolumeClaim>(late).unwrap()).await.unwrap();
        let pod = bed.user("late", "late", json!({})).await;
        let why = unprocessed("error processing PVC default/late: PVC is not bound");
        assert_eq!(bed.refused(&pod).await, why);
        bed.tell_bound("late").await;
        let told = tokio::time::timeout(Duration::from_secs(30), changes.recv()).await.unwrap().unwrap();
        assert_eq!((told.what, told.key.name.as_str()), (What::Claim, "late"));
    });
}

/// The first writing Pod of a volume decides its group: not one that only reads, nor a later one, under any claim.
#[test]
fn a_volume_belongs_to_the_group_of_the_first_pod_that_writes() {
    apart(false, |folder| async {
        let bed = Bed::new(folder).await;
        fs::create_dir_all(bed.path("data/deep")).unwrap();
        fs::write(bed.path("data/deep/file"), "x").unwrap();
        symlink(bed.path("data"), bed.path("alias")).unwrap();
        bed.bound(&[("data", bed.local("data", "fast")), ("alias", bed.local("alias", "fast"))]).await;
        let all = || ["data", "data/deep", "data/deep/file"].map(|path| bed.owner(path).0);
        let reads = json!({ "claimName": "data", "readOnly": true });
        let reader = bed.user_of("reader", reads, json!({})).await;
        bed.prepare(&reader).await.unwrap();
        assert_eq!(all(), [0; 3], "it only reads");
        bed.volumes.remove(&reader, None, &JournalWriter::none()).await.unwrap();
        let first = bed.user("first", "data", json!({})).await;
        bed.prepare(&first).await.unwrap();
        assert_eq!(all(), [4242; 3]);
        for (name, claim) in [("second", "data"), ("other-name", "alias")] {
            let later = bed.user(name, claim, of_group(17)).await;
            bed.prepare(&later).await.unwrap();
            assert_eq!(all(), [4242; 3], "{name}: it is taken");
            bed.volumes.remove(&later, None, &JournalWriter::none()).await.unwrap();
        }
        bed.volumes.release(&first, &JournalWriter::none()).await.unwrap();
        // With OnRootMismatch a volume whose root is right is not walked.
        chown(bed.path("data/deep/file"), None, Some(0)).unwrap();
        let context = json!({ "securityContext": { "fsGroupChangePolicy": "OnRootMismatch" } });
        let lazy = bed.user("lazy", "data", context).await;
        bed.prepare(&lazy).await.unwrap();
        assert_eq!(all(), [4242, 4242, 0]);
        bed.volumes.remove(&lazy, None, &JournalWriter::none()).await.unwrap();
        let next = bed.user("next", "data", of_group(17)).await;
        bed.prepare(&next).await.unwrap();
        assert_eq!(all(), [17; 3]);
        bed.volumes.remove(&next, None, &JournalWriter::none()).await.unwrap();
    });
}

/// For one Pod only, until that releases it. Another volume at the same path is separate.
#[test]
fn a_volume_for_one_pod_alone_has_one() {
    apart(false, |folder| async {
        let bed = Bed::new(folder).await;
        fs::create_dir(bed.path("data")).unwrap();
        let host = json!({ "hostPath": { "path": bed.path("data") }, "accessModes": ["ReadWriteOncePod"] });
        bed.bound(&[("alone", bed.alone("data")), ("same-place", bed.alone("data")), ("host", host)]).await;
        let mut holders = Vec::new();
        for claim in ["alone", "same-place", "host"] {
            let first = bed.user(&format!("{claim}-1"), claim, json!({})).await;
            bed.prepare(&first).await.unwrap();
            let second = bed.user(&format!("{claim}-2"), claim, json!({})).await;
            assert_eq!(bed.refused(&second).await, in_use(claim));
            holders.push((first, second));
        }
        for (first, second) in &holders {
            // The same Pod may set it up again.
            bed.prepare(first).await.unwrap();
            bed.volumes.release(first, &JournalWriter::none()).await.unwrap();
            bed.prepare(second).await.unwrap();
            bed.volumes.remove(first, None, &JournalWriter::none()).await.unwrap();
            assert_eq!(fs::read_link(bed.link(second)).unwrap(), bed.path("data"));
            bed.volumes.remove(second, None, &JournalWriter::none()).await.unwrap();
        }
    });
}

/// After a reboot a disk may be missing, or a host folder be gone: the Pod waits for it, or it is created again.
#[test]
fn what_is_gone_after_a_boot_is_not_taken_for_granted() {
    apart(false, |folder| async {
        let bed = Bed::new(folder).await;
        fs::create_dir(bed.path("data")).unwrap();
        let host = json!({ "hostPath": { "path": bed.path("host") } });
        bed.bound(&[("data", bed.alone("data")), ("host", host)]).await;
        let local = bed.user("local", "data", json!({})).await;
        let hosts = bed.user("hosts", "host", json!({})).await;
        for pod in [&local, &hosts] {
            bed.prepare(pod).await.unwrap();
        }
        for name in ["data", "host"] {
            fs::remove_dir(bed.path(name)).unwrap();
        }
        let why = format!("path \"{}\" does not exist", bed.path("data").display());
        assert!(bed.refused(&local).await.ends_with(&why));
        bed.prepare(&hosts).await.unwrap();
        assert!(bed.path("host").is_dir());
        fs::create_dir(bed.path("data")).unwrap();
        fs::write(bed.path("data/file"), "").unwrap();
        bed.prepare(&local).await.unwrap();
        assert!(bed.link(&local).join("file").exists());
        assert_eq!(bed.owner("data/file").0, 4242);
        for pod in [&local, &hosts] {
            bed.volumes.remove(pod, None, &JournalWriter::none()).await.unwrap();
        }
    });
}

/// Symlinks in a volume are not followed, depth is bounded, and the volume's own path may be a symlink.
#[test]
fn what_lies_in_a_volume_leads_ownership_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    fs::create_dir_all(at("outside/folder")).unwrap();
    fs::write(at("outside/file"), "").unwrap();
    fs::create_dir_all(at("volume/deep")).unwrap();
    fs::write(at("volume/script"), "").unwrap();
    fs::set_permissions(at("volume/script"), std::os::unix::fs::PermissionsExt::from_mode(0o4701)).unwrap();
    let outside = ["outside", "outside/folder", "outside/file"].map(|path| (at(path), owner(&at(path))));
    for (link, to) in [("volume/file", "outside/file"), ("volume/deep/folder", "outside"), ("volume/up", ".")] {
        symlink(at(to), at(link)).unwrap();
    }
    symlink("nowhere", at("volume/broken")).unwrap();
    symlink(at("volume"), at("way")).unwrap();
    ownership::give(&at("way"), 4242, false, LONGEST).unwrap();
    assert_eq!([owner(&at("volume")), owner(&at("volume/deep"))], [(4242, 0o2775); 2]);
    assert_eq!(owner(&at("volume/script")).0, 4242);
    assert_eq!(owner(&at("volume/script")).1 & 0o777, 0o761);
    for link in ["volume/file", "volume/deep/folder", "volume/up", "volume/broken"] {
        assert_eq!(owner(&at(link)).0, 4242, "{link}");
    }
    for (path, before) in &outside {
        assert_eq!(owner(path), *before, "{}", path.display());
    }
    assert_eq!(owner(&at("way")).0, 0);
    // As deep as a path can express, and deeper than the limit.
    for (depth, expected) in [(200, Ok(())), (300, Err("folders are nested deeper than 256"))] {
        let root = at(&format!("deep-{depth}"));
        let deepest = root.join(vec!["d"; depth].join("/"));
        fs::create_dir_all(&deepest).unwrap();
        let given = ownership::give(&root, 17, false, LONGEST).map_err(|e| e.to_string());
        assert_eq!(given, expected.map_err(str::to_owned));
        assert_eq!(owner(&deepest).0 == 17, given.is_ok());
    }
    // A Pod that keeps creating files runs into the time limit.
    let late = ownership::give(&at("volume"), 17, false, Duration::ZERO).unwrap_err();
    assert_eq!(late.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(owner(&at("volume")).0, 4242, "it is not given as long as not all of it is");
}
