//! Volumes made of API objects, in a mount namespace of their own.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use podwright::{
    api::Env,
    client::{Recorder, local},
    node::{
        objects::Objects,
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
    apart(true, renewal);
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

async fn renewal(folder: PathBuf) {
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
    let recorder = Recorder::new(client.clone(), env.clone(), "kubelet", None);
    let local = folder.join("local-volumes");
    let volumes = Volumes::open(pods, memory.clone(), local, objects, tokens, env.clone(), recorder).unwrap();
    let volumes = Arc::new(volumes);
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
