//! What Pods leave on disk: folders that take long to remove, and who waits for them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use podwright::node::{spec::PodExt, translate::env::Facts};
use podwright_runtime::{IdRange, Scribe, removals::Removals};
use serde_json::json;

use super::runtime::support::Bed;
use super::volumes::{apart, opened_with};

/// So many files take far longer to remove than a few of somebody else's.
const MANY: usize = 50_000;
const USERS: IdRange = IdRange { host: 131072, size: 65536 };

fn fill(folder: &Path) {
    for n in 0..MANY {
        if n % 1000 == 0 {
            fs::create_dir_all(folder.join(format!("d{}", n / 1000))).unwrap();
        }
        fs::write(folder.join(format!("d{}/f{n}", n / 1000)), "").unwrap();
    }
}

/// Of whom anything is left there.
fn left(pods: &Path) -> Vec<String> {
    let names = fs::read_dir(pods).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    let mut owners: Vec<String> = names.map(|name| name.rsplit('.').next().unwrap().to_owned()).collect();
    owners.sort();
    owners.dedup();
    owners
}

#[test]
fn pods_that_leave_much_keep_nobody_elses_from_going() {
    apart(false, leaving);
}

async fn leaving(folder: PathBuf) {
    let removals = Removals::default();
    let spec = json!({
        "containers": [{ "name": "c", "image": "i:1" }],
        "volumes": [{ "name": "v", "emptyDir": {} }],
    });
    let (_server, volumes, pod) = opened_with(&folder, spec, removals.clone()).await;
    let of = |namespace: &str, uid: &str| {
        let mut pod = Pod::clone(&pod);
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.namespace = Some(namespace.to_owned());
        Arc::new(pod)
    };
    let busy: Vec<_> = (0..4).map(|n| of("busy", &format!("b{n}"))).collect();
    let others: Vec<_> = (0..30).map(|n| of("other", &format!("o{n}"))).collect();
    for pod in busy.iter().chain(&others) {
        volumes.prepare(pod, &Facts::default()).await.unwrap();
        volumes.note_owner(pod, (pod.namespace() == "busy").then_some(USERS)).unwrap();
    }
    busy.iter().for_each(|pod| fill(&volumes.folder(pod).join("volumes/v")));
    assert_eq!(volumes.users().len(), 4);
    for pod in &busy {
        volumes.remove(pod).await.unwrap();
        assert!(!volumes.folder(pod).exists());
    }
    assert_eq!(removals.users(), [USERS; 4], "there are files of these ids");
    assert!(volumes.users().is_empty() && volumes.owners().len() == 30);
    // One more of the same uid: it has nothing to do with what was there.
    volumes.prepare(&busy[0], &Facts::default()).await.unwrap();
    assert_eq!(fs::read_dir(volumes.folder(&busy[0]).join("volumes/v")).unwrap().count(), 0);
    for pod in &others {
        volumes.remove(pod).await.unwrap();
    }
    while left(&folder.join("pods")).contains(&"other".to_owned()) {
        tokio::task::yield_now().await;
    }
    assert_eq!(left(&folder.join("pods")), ["b0", "busy"], "they have waited for nobody");
    removals.gone(&folder).await;
    assert_eq!((left(&folder.join("pods")), removals.users()), (vec!["b0".to_owned()], vec![]));
    volumes.remove(&busy[0]).await.unwrap();
    assert_eq!(removals.drained().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_sandbox_leaves_is_out_of_the_way_and_removed_by_a_later_agent_too() {
    let mut bed = Bed::new("aside").await;
    let sandboxes = bed.path("state/sandboxes");
    bed.sandbox_with("s", |spec| spec.owner = "busy".to_owned()).await;
    let id = bed.run("many", "echo 1 > /file; exec sleep 1000").await;
    let upper = bed.runtime.layer(&id)[0].clone();
    fill(&upper);
    bed.runtime.remove_sandbox("s", &Scribe::none()).await.unwrap();
    assert_eq!(left(&sandboxes), ["busy"]);
    // The next one of its name, with a container of the same name.
    bed.sandbox("s").await;
    assert_eq!(bed.run("many", "echo 2 > /file; exec sleep 1000").await, id);
    bed.runtime.removals().gone(&sandboxes).await;
    assert!(left(&sandboxes) == ["s"] && upper.exists() && !upper.join("d0").exists());
    // An agent is killed after the one step, and before the other.
    bed.forget().await;
    fill(&sandboxes.join(".aside-1.131072+65536.busy/c/many.0/upper"));
    bed.reopen().await;
    assert_eq!(bed.runtime.removals().users(), [USERS], "nobody has waited until it is gone");
    assert_eq!(bed.runtime.list().await.len(), 1);
    bed.runtime.removals().gone(&sandboxes).await;
    assert_eq!((left(&sandboxes), bed.runtime.removals().users()), (vec!["s".to_owned()], vec![]));
    bed.end().await;
}

/// What a container that has ended has written is nobody's to read any more; the next has its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_layer_of_a_container_that_has_ended_is_out_of_the_way() {
    let mut bed = Bed::new("ended").await;
    bed.sandbox("s").await;
    let id = bed.run("many", "echo 1 > /file; exec true").await;
    bed.runtime.wait_container(&id, std::time::Duration::from_secs(20)).await.unwrap();
    let [upper, _] = bed.runtime.layer(&id);
    let own = upper.parent().unwrap().to_owned();
    assert!(upper.join("file").exists());
    bed.runtime.clear_layer(&id).await.unwrap();
    assert!(!upper.join("file").exists());
    // An earlier agent may have done no more than that.
    bed.runtime.removals().gone(&own).await;
    fill(&own.join(".aside-1.-./x"));
    bed.runtime.clear_layer(&id).await.unwrap();
    bed.runtime.removals().gone(&own).await;
    assert!(!own.join(".aside-1.-.").exists() && own.join("container.json").exists());
    bed.reopen().await;
    assert_eq!(bed.status(&id).await.exit.map(|exit| exit.code), Some(0));
    bed.runtime.remove_container(&id, &Scribe::none()).await.unwrap();
    assert!(!own.exists() && bed.runtime.sandbox("s").await.unwrap().containers.is_empty());
    bed.end().await;
}
