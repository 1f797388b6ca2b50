//! Pods' leftovers on disk: folders that take long to delete, and who waits for them.

use std::{
    fs,
    os::unix::fs::{lchown, symlink},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use nix::mount::{MsFlags, mount};
use podwright::node::{id_pool::IDS_PER_POD, spec::PodExt, translate::env::Facts, users::Users, volumes::owners_of};
use podwright_runtime::{
    IdRange, JournalWriter,
    fair_pool::{ALONE, Outcome},
    removals::{ALL, Owner, Removals},
    sys::{
        ids::{self, HOSTS, Ids},
        tree,
    },
};
use serde_json::json;

use super::runtime::support::Bed;
use super::volumes::{apart, opened_with, set_up};

/// Deleting this many files takes far longer than another owner's few.
const MANY: usize = 50_000;
const USERS: IdRange = IdRange { host: 131072, size: 65536 };

/// Occupies all turns of an owner until the result is dropped.
fn held(removals: &Removals, owner: &str) -> mpsc::Sender<()> {
    let (end, wait) = mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    for _ in 0..ALONE {
        let wait = wait.clone();
        let job = move || {
            wait.lock().unwrap().recv().ok();
            Outcome::Done
        };
        removals.pool().push(owner, Box::new(job));
    }
    end
}

fn fill(folder: &Path) {
    for n in 0..MANY {
        if n % 1000 == 0 {
            fs::create_dir_all(folder.join(format!("d{}", n / 1000))).unwrap();
        }
        fs::write(folder.join(format!("d{}/f{n}", n / 1000)), "").unwrap();
    }
}

/// The owners of anything left there.
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
        set_up(&volumes, pod, &Facts::default()).await.unwrap();
        volumes.note_owner(pod, (pod.namespace() == "busy").then_some(USERS), None).unwrap();
    }
    busy.iter().for_each(|pod| fs::create_dir_all(volumes.folder(pod).join("volumes/v/in")).unwrap());
    let noted = || owners_of(volumes.root()).values().flatten().filter(|note| note.owner.users().is_some()).count();
    // A missing note, or one with another range, is corrected.
    volumes.adopt_owner(&busy[0], None, None).unwrap();
    assert_eq!(noted(), 3);
    volumes.adopt_owner(&busy[0], Some(USERS), None).unwrap();
    assert_eq!(noted(), 4);
    let end = held(&removals, "busy");
    for pod in &busy {
        volumes.remove(pod, None, &JournalWriter::none()).await.unwrap();
        assert!(!volumes.folder(pod).exists());
    }
    assert_eq!(removals.users(), [USERS; 4], "there are files of these ids");
    assert_eq!((noted(), volumes.owners().len()), (0, 30));
    // A new Pod of the same uid: unrelated to the old data.
    set_up(&volumes, &busy[0], &Facts::default()).await.unwrap();
    assert_eq!(fs::read_dir(volumes.folder(&busy[0]).join("volumes/v")).unwrap().count(), 0);
    for pod in &others {
        volumes.remove(pod, None, &JournalWriter::none()).await.unwrap();
    }
    while left(&folder.join("pods")).contains(&"other".to_owned()) {
        tokio::task::yield_now().await;
    }
    assert_eq!(left(&folder.join("pods")), ["b0", "busy"], "they have waited for nobody");
    drop(end);
    removals.gone(&folder).await;
    assert_eq!((left(&folder.join("pods")), removals.users()), (vec!["b0".to_owned()], vec![]));
    volumes.remove(&busy[0], None, &JournalWriter::none()).await.unwrap();
    assert_eq!(removals.drained().await, [""; 0]);
}

/// An ended Pod has released its ids, except those of files still being deleted in its folder.
#[test]
fn what_is_aside_in_a_pods_folder_keeps_its_ids_when_the_folder_is_put_aside() {
    apart(false, |folder| async move {
        let removals = Removals::default();
        let spec = json!({ "containers": [{ "name": "c", "image": "i:1" }] });
        let (_server, volumes, pod) = opened_with(&folder, spec, removals.clone()).await;
        let own = volumes.folder(&pod);
        fs::create_dir_all(own.join("volumes/v/in")).unwrap();
        volumes.note_owner(&pod, Some(USERS), None).unwrap();
        let end = held(&removals, "default");
        removals.put_aside(&own.join("volumes/v"), &Owner::new("default", Some(USERS))).unwrap();
        volumes.note_owner(&pod, None, None).unwrap();
        volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
        assert!(!own.exists());
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let names: Vec<String> = fs::read_dir(volumes.root()).unwrap().flatten().map(name).collect();
        let owner = format!(".{}", Owner::new("default", Some(USERS)));
        assert!(names.len() == 1 && names[0].ends_with(&owner), "{names:?}: a later agent knows nothing else");
        assert_eq!(removals.owners(), [Owner::new("default", Some(USERS)), Owner::new("default", Some(USERS))]);
        drop(end);
        removals.gone(&folder).await;
        assert!(removals.users().is_empty());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_sandbox_leaves_is_out_of_the_way_and_removed_by_a_later_agent_too() {
    let mut bed = Bed::new("aside").await;
    let sandboxes = bed.path("state/sandboxes");
    bed.sandbox_with("s", |spec| spec.owner = "busy".to_owned()).await;
    let id = bed.run("many", "echo 1 > /file; exec sleep 1000").await;
    let upper = bed.runtime.layer(&id)[0].clone();
    fs::create_dir_all(upper.join("d0/in")).unwrap();
    let end = held(bed.runtime.removals(), "busy");
    bed.runtime.remove_sandbox("s", &JournalWriter::none()).await.unwrap();
    assert_eq!(left(&sandboxes), ["busy"]);
    // A successor of the same name, with a container of the same name.
    bed.sandbox("s").await;
    assert_eq!(bed.run("many", "echo 2 > /file; exec sleep 1000").await, id);
    drop(end);
    bed.runtime.removals().gone(&sandboxes).await;
    assert!(left(&sandboxes) == ["s"] && upper.exists() && !upper.join("d0").exists());
    // An agent is killed between the two steps.
    bed.forget().await;
    fill(&sandboxes.join(".aside-1.131072+65536.busy/c/many.0/upper"));
    let of_living = [sandboxes.join("s/c/.aside-1.-.busy"), sandboxes.join("s/c/many.0/.aside-2.-.busy")];
    of_living.iter().for_each(|aside| fs::create_dir(aside).unwrap());
    bed.reopen().await;
    assert_eq!(bed.runtime.removals().users(), [USERS], "nobody has waited until it is gone");
    assert_eq!(bed.runtime.list().await.len(), 1);
    bed.runtime.removals().gone(&sandboxes).await;
    assert_eq!((left(&sandboxes), bed.runtime.removals().users()), (vec!["s".to_owned()], vec![]));
    assert!(of_living.iter().all(|aside| !aside.exists()) && upper.exists());
    bed.end().await;
}

/// A mount, or anything undeletable, does not keep the rest.
#[test]
fn what_cannot_go_is_told_and_the_rest_goes() {
    apart(false, |folder| async move {
        // The test ends when it is unmounted.
        fs::create_dir(folder.join("memory")).unwrap();
        let stays = folder.join("all/b/mounted");
        fs::create_dir_all(&stays).unwrap();
        let none = None::<&str>;
        let tmpfs = |at: &Path| mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), none).unwrap();
        [&stays, &folder.join("memory")].into_iter().for_each(|at| tmpfs(at));
        fs::write(stays.join("file"), "").unwrap();
        for n in 0..100 {
            fs::create_dir_all(folder.join(format!("all/b/d{n}/in"))).unwrap();
            fs::create_dir_all(folder.join(format!("all/d{n}/in"))).unwrap();
        }
        let error = tree::remove_all(&folder.join("all")).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
        assert_eq!(fs::read_dir(folder.join("all")).unwrap().count(), 1);
        assert!(stays.join("file").exists());
        nix::mount::umount(&stays).unwrap();
        tree::remove_all(&folder.join("all")).unwrap();
    });
}

/// An exited container's data is no longer readable; the next one has its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_layer_of_a_container_that_has_ended_is_out_of_the_way() {
    let mut bed = Bed::new("ended").await;
    bed.sandbox("s").await;
    let id = bed.run("many", "echo 1 > /file; exec true").await;
    bed.exit(&id, std::time::Duration::from_secs(20)).await;
    let [upper, _] = bed.runtime.layer(&id);
    let own = upper.parent().unwrap().to_owned();
    assert!(upper.join("file").exists());
    bed.runtime.clear_layer(&id).await.unwrap();
    assert!(!upper.join("file").exists());
    // An earlier agent may have done only this.
    bed.runtime.removals().gone(&own).await;
    bed.forget().await;
    fs::create_dir_all(own.join(".aside-1.-./x")).unwrap();
    bed.reopen().await;
    bed.runtime.removals().gone(&own).await;
    assert!(!own.join(".aside-1.-.").exists() && own.join("container.json").exists());
    assert_eq!(bed.status(&id).await.exit.map(|exit| exit.code), Some(0));
    bed.runtime.remove_container(&id, &JournalWriter::none()).await.unwrap();
    assert!(!own.exists() && bed.runtime.sandbox("s").await.unwrap().containers.is_empty());
    bed.end().await;
}

const LONG: Duration = Duration::from_secs(60);

fn owned(path: &Path, id: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "").unwrap();
    lchown(path, Some(0), Some(id)).unwrap();
}

/// The note is lost, as after a power cut: files keep their whole range from being reused.
#[test]
fn the_range_of_files_in_a_folder_that_says_nothing_is_nobodys() {
    apart(false, |folder| async move {
        fs::create_dir(folder.join("memory")).unwrap();
        mount(Some("tmpfs"), &folder.join("memory"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let (pods, second) = (folder.join("pods"), 3221225472 + IDS_PER_POD);
        owned(&pods.join("a/volumes/v/file"), second + 7);
        let users = Users::of_host("3221225472:196608".parse().unwrap(), &pods, [], Removals::default());
        users.look(LONG).await;
        let found = IdRange { host: second + 7, size: 1 };
        assert_eq!(users.of("a"), Some(found));
        assert_eq!(users.take("a", "default").unwrap(), IdRange { host: 3221225472, size: IDS_PER_POD });
        assert_eq!(users.of("a"), Some(IdRange { host: 3221225472, size: IDS_PER_POD + 8 }), "both are left with it");
        assert_eq!(users.take("b", "other").unwrap().host, second + IDS_PER_POD);
        assert!(users.take("c", "third").is_err());
        assert_eq!(Owner::found_in("team", &pods.join("a"), LONG), Owner::new("team", Some(found)));
    });
}

/// The note is lost, the ids are found in the Pod's files, the Pod gets another range, and the agent restarts: the files still
/// exist.
#[test]
fn what_a_pods_files_were_found_to_have_is_noted_with_its_new_range() {
    apart(false, |folder| async move {
        let spec = json!({ "containers": [{ "name": "c", "image": "i:1" }] });
        let (_server, volumes, pod) = opened_with(&folder, spec, Removals::default()).await;
        let [first, second] = [0, 1].map(|n| IdRange { host: 3221225472 + n * IDS_PER_POD, size: IDS_PER_POD });
        owned(&volumes.folder(&pod).join("volumes/v/file"), second.host + 7);
        let start = || Users::of_host("3221225472:131072".parse().unwrap(), volumes.root(), [], Removals::default());
        let users = start();
        users.look(LONG).await;
        assert_eq!(users.take(pod.uid(), "default").unwrap(), first);
        volumes.note_owner(&pod, Some(first), users.found(pod.uid())).unwrap();
        let users = start();
        users.look(LONG).await;
        assert_eq!(users.take(pod.uid(), "default").unwrap(), first, "it has its note");
        assert!(users.take("other", "default").is_err(), "the files are still there");
        let owner = Owner::new("default", Some(IdRange { host: first.host, size: IDS_PER_POD + 8 }));
        let note = owners_of(volumes.root()).remove(pod.uid()).flatten().unwrap();
        assert_eq!(note.of_files(), owner, "it goes with all that it may have");
    });
}

/// Its ids were unknown when it was moved aside; the remaining files tell.
#[test]
fn what_cannot_be_removed_keeps_no_ids_but_those_that_it_has() {
    apart(false, |folder| async move {
        let (pods, none, id) = (folder.join("pods"), None::<&str>, 3221225472);
        let tmpfs = |at: &Path| {
            fs::create_dir_all(at).unwrap();
            mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), none).unwrap();
        };
        tmpfs(&folder.join("memory"));
        let name = |n: u8| pods.join(format!(".aside-{n}.{}", Owner::new("team", Some(ALL))));
        let mounted = [1, 2].map(|n| name(n).join("d/mounted"));
        mounted.iter().for_each(|at| tmpfs(at));
        lchown(name(1).join("d"), Some(id), Some(id)).unwrap();
        let removals = Removals::default();
        let end = held(&removals, "team");
        removals.find(&pods);
        assert_eq!(removals.users(), [ALL, ALL]);
        drop(end);
        assert_eq!(removals.drained().await.len(), 2);
        assert_eq!(removals.users(), [IdRange { host: id, size: 1 }], "the other has none");
        mounted.iter().for_each(|at| nix::mount::umount(at).unwrap());
        removals.gone(&pods).await;
        assert!(removals.users().is_empty());
    });
}

/// Mounts in a folder, and targets of symlinks, are excluded, whoever owns them.
#[test]
fn ids_are_found_of_what_is_in_a_folder_itself() {
    apart(false, |folder| async move {
        let (none, id) = (None::<&str>, HOSTS + 7);
        let tmpfs = |at: &Path| {
            fs::create_dir_all(at).unwrap();
            mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some("uid=65543,gid=65543")).unwrap();
        };
        let (own, other) = (folder.join("own"), folder.join("other"));
        tmpfs(&folder.join("memory"));
        owned(&other.join("d/file"), id);
        fs::create_dir_all(own.join("d/e")).unwrap();
        symlink(other.join("d"), own.join("d/e/folder")).unwrap();
        symlink(other.join("d/file"), own.join("d/e/file")).unwrap();
        let find = || ids::find(&own, HOSTS, LONG);
        assert!(matches!(find(), Ids::None), "{:?}", find());
        let mounted = [own.join("d/e/tmpfs"), own.join("d/same"), own.join("d/one")];
        tmpfs(&mounted[0]);
        owned(&mounted[0].join("file"), id);
        fs::create_dir(&mounted[1]).unwrap();
        fs::write(&mounted[2], "").unwrap();
        mount(Some(&other.join("d")), &mounted[1], none, MsFlags::MS_BIND, none).unwrap();
        mount(Some(&other.join("d/file")), &mounted[2], none, MsFlags::MS_BIND, none).unwrap();
        assert!(matches!(find(), Ids::None), "{:?}", find());
        // A symlink has an owner of its own.
        lchown(own.join("d/e/folder"), Some(id), Some(0)).unwrap();
        assert!(matches!(find(), Ids::Has(found) if found == id), "{:?}", find());
        lchown(own.join("d/e/folder"), Some(0), Some(0)).unwrap();
        owned(&own.join("d/e/f/file"), id);
        assert!(matches!(find(), Ids::Has(found) if found == id), "{:?}", find());
        // Files below are hidden.
        tmpfs(&own);
        assert!(matches!(find(), Ids::Unknown(_)), "{:?}", find());
        assert_eq!(Owner::found_in("team", &own, LONG), Owner::new("team", Some(ALL)));
        [&own].into_iter().chain(&mounted).for_each(|at| nix::mount::umount(at).unwrap());
    });
}
