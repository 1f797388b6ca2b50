//! Volumes made of API objects, in a mount namespace of their own.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use podwright::{
    api::Env,
    client::{Recorder, local},
    node::{
        objects::Objects,
        spec::PodExt,
        translate::env::Facts,
        volumes::{Tokens, Volumes},
    },
    server::{Config, Server},
    store::Memory,
};
use serde_json::{Value, json};

/// A projected token in a Pod's files, under a clock of the test's own: what a container reads is renewed at 80 % of its
/// life, all at once, and never while it is young.
#[test]
fn a_projected_token_is_renewed_in_the_files_of_its_volume() {
    apart(true, renewal);
}

/// What the agent makes for a Pod counts for no limit of the Pod's: neither a volume in memory nor `subPath` is as many folders as
/// somebody likes.
#[test]
fn folders_that_the_agent_makes_have_bounds() {
    apart(false, bounds);
}

/// Files of API objects are in a tmpfs of their Pod's, which has room for them twice: who keeps old ones open has no new ones, and
/// nobody else has less.
#[test]
fn who_keeps_old_files_open_takes_the_room_from_his_own_pod() {
    apart(false, own_room);
}

/// Runs a test in a folder and a mount namespace of its own, whose `memory` is a tmpfs of volumes in the end.
pub fn apart<F: Future<Output = ()>>(paused: bool, test: impl FnOnce(PathBuf) -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(paused).build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        runtime.block_on(test(folder.path().to_owned()));
        nix::mount::umount(&folder.path().join("memory")).unwrap();
    });
    thread.join().unwrap();
}

/// A server, a Pod `default/web` of it, and a node's volumes in that folder.
async fn opened(folder: &Path, mut spec: Value) -> (Arc<Server>, Arc<Volumes>, Arc<Pod>) {
    let env = Env::simulated("2026-11-20T17:00:00Z".parse().unwrap(), 1);
    let server = Server::open(Arc::new(Memory::new()), env.clone(), Config::default()).await.unwrap();
    let client = local::client(server.clone(), "kubelet");
    spec["automountServiceAccountToken"] = json!(false);
    let pod = json!({ "metadata": { "name": "web", "namespace": "default" }, "spec": spec });
    let pod = Arc::new(client.create(&serde_json::from_value::<Pod>(pod).unwrap()).await.unwrap());
    let objects = Arc::new(Objects::new(client.clone(), false));
    objects.synced().await;
    let tokens = Tokens::new(client.clone(), env.clone());
    let (pods, memory, local) = (folder.join("pods"), folder.join("memory"), folder.join("local-volumes"));
    let recorder = Recorder::new(client, env.clone(), "kubelet", None);
    let volumes = Volumes::open(pods, memory, local, objects, tokens, env, recorder).unwrap();
    (server, Arc::new(volumes), pod)
}

async fn bounds(folder: PathBuf) {
    let deep = |folders: usize| vec!["d"; folders].join("/");
    let mount = |sub: usize| json!({ "name": "m", "mountPath": format!("/m{sub}"), "subPath": deep(sub) });
    let spec = json!({
        "containers": [
            { "name": "fits", "image": "i:1", "volumeMounts": [mount(64)] },
            { "name": "deep", "image": "i:1", "volumeMounts": [mount(65)] },
        ],
        "volumes": [
            { "name": "m", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
            { "name": "large", "emptyDir": { "medium": "Memory", "sizeLimit": "64Mi" } },
        ],
    });
    let (_server, volumes, pod) = opened(&folder, spec).await;
    volumes.prepare(&pod, &Facts::default()).await.unwrap();
    let inodes = |name: &str| {
        let volume = pod.spec().volumes.iter().flatten().find(|volume| volume.name == name).unwrap();
        rustix::fs::statvfs(volumes.path(&pod, volume)).unwrap().f_files
    };
    assert_eq!((inodes("m"), inodes("large")), (1024, 65_536));
    let mounts = async |name: &str| volumes.mounts(&pod, &pod.part(name).unwrap(), &Default::default()).await;
    assert_eq!(mounts("fits").await.unwrap().len(), 1);
    let why = mounts("deep").await.unwrap_err().message;
    assert!(why.contains("65 elements, more than 64"), "{why}");
    // The agent looks for mounts in its process's namespace; these are in this thread's.
    for mounted in ["subpaths/fits/0", "volumes/m", "volumes/large"] {
        nix::mount::umount(&volumes.folder(&pod).join(mounted)).unwrap();
    }
}

async fn renewal(folder: PathBuf) {
    let token = json!({ "serviceAccountToken": { "path": "token", "audience": "vault", "expirationSeconds": 600 } });
    let word =
        json!({ "downwardAPI": { "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } });
    let spec = json!({
        "containers": [{ "name": "c", "image": "i:1", "volumeMounts": [{ "name": "all", "mountPath": "/all" }] }],
        "volumes": [{ "name": "all", "projected": { "sources": [token, word] } }],
    });
    let (server, volumes, pod) = opened(&folder, spec).await;
    let (memory, uid) = (folder.join("memory"), pod.metadata.uid.clone().unwrap());
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
    volumes.remove(&pod).await.unwrap();
    assert!(!memory.join(&uid).exists());
}

async fn own_room(folder: PathBuf) {
    let text = |letter: &str| letter.repeat(100 << 10);
    let item = json!({ "path": "text", "fieldRef": { "fieldPath": "metadata.annotations['text']" } });
    let spec = json!({
        "containers": [{ "name": "c", "image": "i:1" }],
        "volumes": [{ "name": "v", "downwardAPI": { "items": [item] } }],
    });
    let (_server, volumes, pod) = opened(&folder, spec).await;
    let with = |letter: &str| {
        let mut pod = Pod::clone(&pod);
        pod.metadata.annotations = Some([("text".to_owned(), text(letter))].into());
        Arc::new(pod)
    };
    let own = folder.join("memory").join(pod.metadata.uid.as_deref().unwrap());
    let read = || fs::read_to_string(own.join("v/text")).unwrap();
    volumes.prepare(&with("a"), &Facts::default()).await.unwrap();
    assert_eq!(read(), text("a"));
    // The pages of the file, and of three folders and two links, twice.
    let size = rustix::fs::statvfs(&own).unwrap();
    assert_eq!((size.f_blocks * size.f_frsize, size.f_files), (58 * 4096, 59));
    let kept = fs::File::open(own.join("v/text")).unwrap();
    volumes.refresh(&with("b"), &Facts::default()).await.unwrap();
    let why = volumes.refresh(&with("c"), &Facts::default()).await.unwrap_err().message;
    assert!(why.contains("No space left on device"), "{why}");
    assert_eq!(read(), text("b"));
    drop(kept);
    volumes.refresh(&with("c"), &Facts::default()).await.unwrap();
    assert_eq!(read(), text("c"));
    volumes.remove(&pod).await.unwrap();
    assert!(!own.exists());
}
