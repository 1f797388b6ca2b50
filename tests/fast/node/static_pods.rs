//! The manifest folder and mirror Pods: what is shown after a restart, and how changes of the folder are read.

use std::{fs, path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use podwright::{
    api::Env,
    client::{Client, local},
    node::{
        spec::PodExt,
        static_pods::{Mirrors, read_folder, watch},
    },
    server::{Config, Server},
    store::{Memory, Store, Txn, Write},
};

use super::{
    at,
    hollow::{Cluster, cluster_with, until},
};

fn put(folder: &Path, name: &str, image: &str) {
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c, image: '{image}'}}]}}}}"
    );
    fs::write(folder.join(format!("{name}.yaml")), text).unwrap();
}

async fn client() -> Client {
    client_of(Arc::new(Memory::new())).await
}

async fn client_of(store: Arc<Memory>) -> Client {
    let server = Server::open(store, Env::simulated(at(0), 1), Config::default()).await.unwrap();
    let client = local::client(server, "kubelet");
    client.create::<Node>(&serde_json::from_str(r#"{"metadata": {"name": "n1"}}"#).unwrap()).await.unwrap();
    client
}

async fn mirror(client: &Client, name: &str) -> Option<Arc<Pod>> {
    client.get::<Pod>(Some("default"), name).await.ok().map(Arc::new)
}

fn uid(pod: &Option<Arc<Pod>>) -> Option<String> {
    pod.as_ref().and_then(|pod| pod.metadata.uid.clone())
}

/// What was begun in the background has been done.
async fn settled() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_mirror_of_an_earlier_agent_is_judged_by_the_folder_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    ["same", "changed", "gone"].iter().for_each(|name| put(folder.path(), name, "i:1"));
    let client = client().await;
    let mut earlier = Mirrors::new(client.clone());
    earlier.replace(&read_folder(folder.path(), "n1"));
    settled().await;
    let names = ["same-n1", "changed-n1", "gone-n1"];
    let mut before = Vec::new();
    for name in names {
        before.push(mirror(&client, name).await);
    }
    assert!(before.iter().all(Option::is_some), "{before:#?}");

    // Another agent finds them while it has not read the folder yet: none of them is touched.
    put(folder.path(), "changed", "i:2");
    fs::remove_file(folder.path().join("gone.yaml")).unwrap();
    let mut later = Mirrors::new(client.clone());
    before.iter().flatten().for_each(|mirror| later.found(mirror));
    settled().await;
    for (name, pod) in names.iter().zip(&before) {
        assert_eq!(uid(&mirror(&client, name).await), uid(pod), "{name}");
    }
    // Then it reads: what shows the folder as it is stays, what does not goes.
    let pods = read_folder(folder.path(), "n1");
    assert_eq!(later.replace(&pods), [""; 0]);
    settled().await;
    assert_eq!(uid(&mirror(&client, "same-n1").await), uid(&before[0]));
    for name in ["changed-n1", "gone-n1"] {
        assert!(mirror(&client, name).await.is_none(), "{name}");
    }
    let shown =
        |name: &str| pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name)).and_then(|p| later.of(p));
    assert_eq!(uid(&shown("same-n1")), uid(&before[0]));
    assert_eq!(uid(&shown("changed-n1")), None, "the old mirror does not show the new manifest");
    // The watch tells that they have gone: what still has a file is made again.
    later.gone(before[1].as_ref().unwrap());
    later.gone(before[2].as_ref().unwrap());
    settled().await;
    let again = mirror(&client, "changed-n1").await;
    assert_eq!(again.unwrap().spec.as_ref().unwrap().containers[0].image.as_deref(), Some("i:2"));
    assert!(mirror(&client, "gone-n1").await.is_none());
}

/// As agents made them before mirrors had owners. (The server lets none be made any more, so it is put into the store.)
#[tokio::test(start_paused = true)]
async fn a_mirror_that_nobody_owns_gives_way_to_one_of_the_node() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a", "i:1");
    let store = Arc::new(Memory::new());
    let client = client_of(store.clone()).await;
    let pods = read_folder(folder.path(), "n1");
    let mut old = (*pods[0]).clone();
    let hash = old.metadata.annotations.as_ref().unwrap()["kubernetes.io/config.hash"].clone();
    old.metadata.annotations.as_mut().unwrap().insert("kubernetes.io/config.mirror".into(), hash);
    old.metadata.uid = Some("an-old-one".into());
    let write = Write::Put("/registry/pods/default/a-n1".into(), serde_json::to_vec(&old).unwrap().into());
    store.commit(Txn { writes: vec![write], ..Txn::default() }).await.unwrap();
    settled().await;
    let old = mirror(&client, "a-n1").await.unwrap();
    assert!(old.is_false_mirror() && !old.is_mirror());

    let mut mirrors = Mirrors::new(client.clone());
    // Where no file names it, it is in nobody's way; the node rejects it.
    assert!(!mirrors.stands_in_the_way(&old));
    settled().await;
    assert_eq!(uid(&mirror(&client, "a-n1").await), uid(&Some(old.clone())));
    mirrors.replace(&pods);
    settled().await;
    assert!(mirror(&client, "a-n1").await.is_none());
    mirrors.gone(&old);
    settled().await;
    assert!(mirror(&client, "a-n1").await.unwrap().is_mirror());
    assert!(mirrors.stands_in_the_way(&old), "it has come back");
}

async fn agent(folder: &Path) -> Cluster {
    let folder = folder.to_owned();
    cluster_with(move |config| config.manifests = Some(folder.clone())).await
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_starts_again_keeps_the_mirrors_that_are_right() {
    let folder = tempfile::tempdir().unwrap();
    ["same", "changed", "gone"].iter().for_each(|name| put(folder.path(), name, "i:1"));
    let cluster = agent(folder.path()).await;
    let names = ["same-n1", "changed-n1", "gone-n1"];
    for name in names {
        cluster.until_phase(name, "Running").await;
    }
    let uid = async |cluster: &Cluster, name: &str| cluster.get(name).await.and_then(|pod| pod.metadata.uid);
    let before = [uid(&cluster, names[0]).await, uid(&cluster, names[1]).await];
    put(folder.path(), "changed", "i:2");
    fs::remove_file(folder.path().join("gone.yaml")).unwrap();
    let manifests = folder.path().to_owned();
    let cluster = cluster.restarted_with(move |config| config.manifests = Some(manifests.clone())).await;
    until("the mirror without a manifest is gone", || async { cluster.get("gone-n1").await.is_none() }).await;
    until("the changed one is another", || async {
        let now = uid(&cluster, "changed-n1").await;
        now.is_some() && now != before[1]
    })
    .await;
    cluster.until_phase("changed-n1", "Running").await;
    cluster.until_phase("same-n1", "Running").await;
    assert_eq!(uid(&cluster, "same-n1").await, before[0]);
}

#[tokio::test]
async fn what_changes_together_in_the_folder_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "first", "i:1");
    let mut lists = watch(folder.path(), "n1");
    let mut next = async || {
        let list = tokio::time::timeout(Duration::from_secs(30), lists.recv()).await.expect("a list").unwrap();
        list.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect::<Vec<String>>()
    };
    assert_eq!(next().await, ["first-n1"]);
    // The task that reads is on this thread: it wakes up to all of these events at once.
    for n in 0..20 {
        put(folder.path(), &format!("p{n:02}"), "i:1");
    }
    fs::rename(folder.path().join("p19.yaml"), folder.path().join("z.yaml")).unwrap();
    fs::remove_file(folder.path().join("first.yaml")).unwrap();
    let all: Vec<String> = (0..20).map(|n| format!("p{n:02}-n1")).collect();
    assert_eq!(next().await, all);
    // Had each event been read for itself, forty lists of the same would wait before this one.
    fs::write(folder.path().join("notes.txt"), "").unwrap();
    put(folder.path(), "last", "i:1");
    assert_eq!(next().await.first().unwrap(), "last-n1");
}

/// A Pod has the folder as a volume.
#[test]
fn no_file_of_the_folder_keeps_the_others_waiting() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "good", "i:1");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.path().join("fifo.yaml"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let large = fs::File::create(folder.path().join("large.yaml")).unwrap();
    large.set_len(1 << 40).unwrap();
    // Linked, as people do.
    let elsewhere = tempfile::tempdir().unwrap();
    put(elsewhere.path(), "linked", "i:1");
    std::os::unix::fs::symlink(elsewhere.path().join("linked.yaml"), folder.path().join("linked.yaml")).unwrap();
    let (sender, read) = std::sync::mpsc::channel();
    let of = folder.path().to_owned();
    std::thread::spawn(move || sender.send(read_folder(&of, "n1")));
    let pods = read.recv_timeout(Duration::from_secs(20)).expect("it is read without waiting for anybody");
    let names: Vec<&str> = pods.iter().map(|pod| pod.name()).collect();
    assert_eq!(names, ["good-n1", "linked-n1"]);
}
