//! Volumes made of API objects, in separate mount namespaces.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use podwright::{
    api::Env,
    client::{Informer, Recorder, local},
    node::{
        executor::ActionError,
        objects::Objects,
        spec::PodExt,
        translate::env::Facts,
        volumes::{MountError, Tokens, Volumes},
    },
    server::{Config, Server},
    store::Memory,
};
use podwright_runtime::{JournalWriter, Role, removals::Removals};
use serde_json::{Value, json};

/// A projected token in a Pod's files, with a simulated clock: the file is renewed at 80 % of its lifetime, atomically, and never
/// earlier.
#[test]
fn a_projected_token_is_renewed_in_the_files_of_its_volume() {
    apart(true, renewal);
}

/// What the agent creates for a Pod counts for none of the Pod's limits: the number of folders of in-memory volumes and `subPath`
/// is bounded.
#[test]
fn folders_that_the_agent_makes_have_bounds() {
    apart(false, bounds);
}

/// Files of API objects are in their Pod's own tmpfs, which has room for them twice: keeping old ones open blocks one's own new
/// ones, and no one else's.
#[test]
fn who_keeps_old_files_open_takes_the_room_from_his_own_pod() {
    apart(false, own_room);
}

/// Memory of an ended Pod's open files counts for its namespace until they are closed, across agents.
#[test]
fn what_is_open_of_a_pod_that_has_ended_counts_until_it_is_closed() {
    apart(false, left_open);
}

/// A Pod may have passed a file of an in-memory emptyDir to another one: its memory would no longer count for any Pod.
#[test]
fn what_is_open_of_an_emptydir_in_memory_holds_nothing_when_its_pod_has_ended() {
    apart(false, in_memory_left_open);
}

/// An agent may be killed, or a call fail, midway through creating an emptyDir: the next try completes it.
#[test]
fn an_emptydir_that_was_half_made_is_made_whole() {
    apart(false, half_made);
}

/// External mounts in and over the folders of a Pod's files are not emptied with them.
#[test]
fn what_is_mounted_in_a_pods_files_keeps_what_it_holds() {
    apart(false, mounted_over);
}

/// A volume of an unsupported kind is refused; others of its Pod are not.
#[test]
fn a_kind_of_volume_that_is_not_supported_is_refused() {
    apart(false, unsupported);
}

/// The Pod's journal records the agent's mounts and unmounts, with their manifest fields.
#[test]
fn mounts_are_told_with_the_fields_that_ask_for_them() {
    apart(false, told);
}

/// Runs a test in a separate folder and mount namespace, whose `memory` becomes a tmpfs for volumes.
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

/// A server, its Pod `default/web`, and a node's volumes in that folder.
async fn opened(folder: &Path, spec: Value) -> (Arc<Server>, Arc<Volumes>, Arc<Pod>) {
    opened_with(folder, spec, Removals::default()).await
}

/// The same, with a set of removals.
pub async fn opened_with(folder: &Path, mut spec: Value, removals: Removals) -> (Arc<Server>, Arc<Volumes>, Arc<Pod>) {
    let env = Env::simulated("2026-11-20T17:00:00Z".parse().unwrap(), 1);
    let server = Server::open(Arc::new(Memory::new()), env.clone(), Config::default()).await.unwrap();
    let client = local::client(server.clone(), "kubelet");
    spec["automountServiceAccountToken"] = json!(false);
    let pod = json!({ "metadata": { "name": "web", "namespace": "default" }, "spec": spec });
    let pod = Arc::new(client.create(&serde_json::from_value::<Pod>(pod).unwrap()).await.unwrap());
    let objects = Arc::new(Objects::new(client.clone(), Informer::builder(client.clone()).start(), false));
    objects.synced().await;
    let tokens = Tokens::new(client.clone(), env.clone());
    let (pods, memory, local) = (folder.join("pods"), folder.join("memory"), folder.join("local-volumes"));
    let recorder = Recorder::new(client, env.clone(), "kubelet", None);
    let volumes = Volumes::open(pods, memory, local, objects, tokens, env, recorder, removals).unwrap();
    (server, Arc::new(volumes), pod)
}

/// Sets all volumes of a Pod up concurrently, as its agent may.
pub async fn set_up(volumes: &Arc<Volumes>, pod: &Arc<Pod>, facts: &Facts) -> Result<(), MountError> {
    let none = JournalWriter::none();
    let all = pod.spec().volumes.iter().flatten().map(|volume| volumes.set_up(pod, volume, facts, &none));
    futures::future::try_join_all(all).await.map(drop)
}

async fn refresh(volumes: &Arc<Volumes>, pod: &Arc<Pod>, facts: &Facts) -> Result<(), MountError> {
    for volume in pod.spec().volumes.iter().flatten() {
        volumes.refresh(pod, volume, facts, &JournalWriter::none()).await?;
    }
    Ok(())
}

async fn unsupported(folder: PathBuf) {
    let spec = json!({
        "containers": [{ "name": "c", "image": "i:1" }],
        "volumes": [
            { "name": "first", "emptyDir": {} },
            { "name": "shared", "nfs": { "server": "192.0.2.1", "path": "/exported" } },
            { "name": "last", "emptyDir": {} },
        ],
    });
    let (_server, volumes, pod) = opened(&folder, spec).await;
    let facts = Facts::default();
    let none = JournalWriter::none();
    let one = async |name: &str| volumes.set_up(&pod, pod.volume(name).unwrap(), &facts, &none).await;
    let trouble = ActionError::from(one("shared").await.unwrap_err());
    one("first").await.unwrap();
    one("last").await.unwrap();
    let why = "MountVolume.SetUp failed for volume \"shared\" : this kind of volume is not supported by this node";
    assert_eq!((trouble.reason.as_str(), &*trouble.message), ("FailedMount", why));
    let made = ["first", "shared", "last"].map(|name| volumes.folder(&pod).join("volumes").join(name).exists());
    assert_eq!(made, [true, false, true]);
    volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
}

async fn told(folder: PathBuf) {
    let mount = json!({ "name": "cache", "mountPath": "/in", "subPath": "in" });
    let spec = json!({
        "containers": [{ "name": "c", "image": "i:1", "volumeMounts": [mount] }],
        "volumes": [
            { "name": "cache", "emptyDir": { "medium": "Memory" } },
            { "name": "keys", "secret": { "secretName": "none", "optional": true } },
        ],
    });
    let (_server, volumes, pod) = opened(&folder, spec).await;
    let journal = JournalWriter::open(&folder.join("journal"), Role::Agent).unwrap().about("u1", 7);
    for volume in pod.spec().volumes.iter().flatten() {
        volumes.set_up(&pod, volume, &Facts::default(), &journal).await.unwrap();
    }
    volumes.mounts(&pod, &pod.part("c").unwrap(), &Default::default(), &journal).unwrap();
    volumes.release(&pod, &journal).await.unwrap();
    journal.flush();
    let records = podwright_journal::read(&folder.join("journal")).unwrap();
    let (own, keys) = (volumes.folder(&pod), folder.join("memory").join(pod.uid()));
    let (cache, part, twin) = (own.join("volumes/cache"), own.join("subpaths/c/0"), own.join("memory"));
    let [cache, part, twin, keys] = [&cache, &part, &twin, &keys].map(|path| path.display());
    let mut records = records.iter().filter(|record| ["mount", "umount2"].contains(&&*record.call));
    for (call, args, field) in [
        ("mount", format!("tmpfs on {cache}, mode=0777"), "spec.volumes{cache}.emptyDir"),
        ("mount", format!("bind {keys} on {twin}"), "spec.volumes{keys}.secret"),
        ("mount", format!("tmpfs on {keys}, mode=0755,size="), "spec.volumes{keys}.secret"),
        ("mount", format!("bind {cache}/in on {part}, recursive"), "spec.containers{c}.volumeMounts[0].subPath"),
        ("umount2", format!("{part}, MNT_DETACH"), "spec.volumes"),
        ("umount2", format!("{cache}, MNT_DETACH"), "spec.volumes"),
    ] {
        let record = records.next().unwrap_or_else(|| panic!("no {call}({args})"));
        assert!(record.call == call && record.args.starts_with(&args), "{record:?}, not {call}({args})");
        assert_eq!((&*record.field, &*record.subject, record.revision, &record.error), (field, "u1", 7, &None));
    }
    assert!(records.any(|record| record.call == "umount2" && record.args.starts_with(&keys.to_string())));
    volumes.remove(&pod, None, &journal).await.unwrap();
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
    set_up(&volumes, &pod, &Facts::default()).await.unwrap();
    let inodes = |name: &str| {
        let volume = pod.spec().volumes.iter().flatten().find(|volume| volume.name == name).unwrap();
        rustix::fs::statvfs(volumes.path(&pod, volume)).unwrap().f_files
    };
    assert_eq!((inodes("m"), inodes("large")), (1024, 65_536));
    let none = JournalWriter::none();
    let mounts = |name: &str| volumes.mounts(&pod, &pod.part(name).unwrap(), &Default::default(), &none);
    assert_eq!(mounts("fits").unwrap().len(), 1);
    let why = mounts("deep").unwrap_err().message;
    assert!(why.contains("65 elements, more than 64"), "{why}");
    // The agent reads its process's mount table; these mounts are in this thread's namespace.
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
    set_up(&volumes, &pod, &facts).await.unwrap();
    let volume = memory.join(&uid).join("all");
    let read = |name: &str| fs::read_to_string(volume.join(name)).unwrap();
    let (first, data) = (read("token"), fs::read_link(volume.join("..data")).unwrap());
    assert_eq!(read("name"), "web");
    server.verify_token(&first, "vault").await.unwrap();

    tokio::time::advance(Duration::from_secs(470)).await;
    assert!(volumes.stale_tokens().is_empty());
    refresh(&volumes, &pod, &facts).await.unwrap();
    assert_eq!((read("token"), fs::read_link(volume.join("..data")).unwrap()), (first.clone(), data.clone()));
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(volumes.stale_tokens().into_iter().collect::<Vec<_>>(), [uid.clone()]);
    refresh(&volumes, &pod, &facts).await.unwrap();
    let second = read("token");
    assert_ne!(second, first);
    assert_ne!(fs::read_link(volume.join("..data")).unwrap(), data, "one link changes all files at once");
    assert!(!volume.join(data).exists() && volumes.stale_tokens().is_empty());
    // The first one expires as announced; readers of the file continue.
    tokio::time::advance(Duration::from_secs(120)).await;
    server.verify_token(&first, "vault").await.unwrap_err();
    server.verify_token(&second, "vault").await.unwrap();
    volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
    assert!(!memory.join(&uid).exists());
}

/// A volume that shows an annotation as the file `v/text`.
fn showing() -> Value {
    let item = json!({ "path": "text", "fieldRef": { "fieldPath": "metadata.annotations['text']" } });
    json!({
        "containers": [{ "name": "c", "image": "i:1" }],
        "volumes": [{ "name": "v", "downwardAPI": { "items": [item] } }],
    })
}

fn text(letter: &str) -> String {
    letter.repeat(100 << 10)
}

/// The Pod with another uid and this text.
fn like(pod: &Pod, uid: &str, letter: &str) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.metadata.uid = Some(uid.to_owned());
    pod.metadata.annotations = Some([("text".to_owned(), text(letter))].into());
    Arc::new(pod)
}

async fn in_memory_left_open(folder: PathBuf) {
    let spec = json!({
        "containers": [{ "name": "c", "image": "i:1" }],
        "volumes": [{ "name": "v", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }],
    });
    let (_server, volumes, pod) = opened(&folder, spec).await;
    let (own, over) = (volumes.folder(&pod).join("volumes/v"), folder.join("over"));
    fs::create_dir(&over).unwrap();
    for ends_by_itself in [true, false] {
        set_up(&volumes, &pod, &Facts::default()).await.unwrap();
        let below = own.join("a");
        fs::create_dir(&below).unwrap();
        fs::write(below.join("file"), vec![1; 8192]).unwrap();
        let open = fs::File::open(below.join("file")).unwrap();
        let pages = || open.metadata().unwrap().blocks();
        assert_eq!(pages(), 16);
        // A mount over it belongs to someone else.
        fs::write(over.join("others"), "text").unwrap();
        mount(Some(&over), &own, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        if ends_by_itself {
            volumes.release(&pod, &JournalWriter::none()).await.unwrap();
            assert_eq!(pages(), 0);
        }
        volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
        assert_eq!((pages(), open.metadata().unwrap().len()), (0, 0));
        assert_eq!(fs::read(over.join("others")).unwrap(), b"text");
    }
}

async fn half_made(folder: PathBuf) {
    let spec = json!({
        "containers": [{ "name": "c", "image": "i:1" }],
        "securityContext": { "fsGroup": 2000 },
        "volumes": [
            { "name": "disk", "emptyDir": {} },
            { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
        ],
    });
    let (_server, volumes, pod) = opened(&folder, spec).await;
    let path = |name: &str| volumes.path(&pod, pod.volume(name).unwrap());
    let (again, of) = (volumes.clone(), pod.clone());
    // A thread that may not change the group stops at that point.
    let half = std::thread::spawn(move || {
        caps::drop(None, caps::CapSet::Effective, caps::Capability::CAP_CHOWN).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let facts = Facts::default();
        ["disk", "memory"].map(|name| {
            runtime.block_on(again.set_up(&of, of.volume(name).unwrap(), &facts, &JournalWriter::none())).is_ok()
        })
    });
    assert!(!half.join().unwrap()[0], "the group was not given");
    assert!(!path("disk").exists(), "what is half made has not its name");
    set_up(&volumes, &pod, &Facts::default()).await.unwrap();
    for name in ["disk", "memory"] {
        let made = fs::metadata(path(name)).unwrap();
        assert_eq!((made.mode() & 0o7777, made.gid()), (0o2777, 2000), "{name}");
    }
    let left: Vec<_> = fs::read_dir(path("disk").parent().unwrap()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
}

async fn left_open(folder: PathBuf) {
    let memory = folder.join("memory");
    fs::create_dir(&memory).unwrap();
    // The namespace gets a quarter: room for one Pod's 58 pages, not for two.
    mount(Some("tmpfs"), &memory, Some("tmpfs"), MsFlags::empty(), Some("size=1600k")).unwrap();
    let own = |uid: &str| memory.join(uid).join("v/text");
    let place = |name: &str| memory.join(".ended").join(name);
    let used = |place: &Path| rustix::fs::statvfs(place).map(|size| size.f_blocks - size.f_bfree).unwrap();
    let refused = async |volumes: &Arc<Volumes>, pod: Arc<Pod>| {
        let why = set_up(volumes, &pod, &Facts::default()).await.unwrap_err().to_string();
        assert!(why.contains("the volumes of namespace default would have"), "{why}");
        volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
    };
    let (server, volumes, pod) = opened(&folder, showing()).await;
    let (one, two) = (like(&pod, "one", "b"), like(&pod, "two", "c"));
    set_up(&volumes, &like(&pod, "one", "a"), &Facts::default()).await.unwrap();
    let replaced = fs::File::open(own("one")).unwrap();
    refresh(&volumes, &one, &Facts::default()).await.unwrap();
    let current = fs::File::open(own("one")).unwrap();
    refused(&volumes, two.clone()).await;
    // Hidden is not gone.
    nix::mount::umount2(&memory.join("one"), nix::mount::MntFlags::MNT_DETACH).unwrap();
    volumes.release(&one, &JournalWriter::none()).await.unwrap();
    assert!(!memory.join("one").exists());
    assert_eq!(current.metadata().unwrap().len(), 0, "what has a name gives its pages back at once");
    assert_eq!(used(&place("one.0")), 25, "what was replaced has them");
    volumes.mend().await;
    refused(&volumes, two.clone()).await;
    volumes.remove(&one, None, &JournalWriter::none()).await.unwrap();

    // A new agent.
    drop((volumes, server));
    let (server, volumes, _) = opened(&folder, showing()).await;
    assert!(volumes.owners().is_empty(), "{:?}", volumes.owners());
    refused(&volumes, two.clone()).await;
    drop(replaced);
    volumes.mend().await;
    refused(&volumes, two.clone()).await;
    drop(current);
    volumes.mend().await;
    assert!(!memory.join(".ended").exists());
    set_up(&volumes, &two, &Facts::default()).await.unwrap();

    // One that ended while no agent was running: only its uid is known.
    let replaced = fs::File::open(own("two")).unwrap();
    refresh(&volumes, &like(&pod, "two", "d"), &Facts::default()).await.unwrap();
    drop((volumes, server));
    // The agent was killed before it could remove the folder of a released tmpfs.
    fs::create_dir_all(place("gone.0")).unwrap();
    let (_server, volumes, _) = opened(&folder, showing()).await;
    assert!(!memory.join(".ended").exists());
    refused(&volumes, one.clone()).await;
    let mut swept = Pod::default();
    swept.metadata.uid = Some("two".to_owned());
    volumes.remove(&swept, None, &JournalWriter::none()).await.unwrap();
    assert_eq!(used(&place("two.0")), 25);
    refused(&volumes, one.clone()).await;
    drop(replaced);
    volumes.mend().await;
    set_up(&volumes, &one, &Facts::default()).await.unwrap();
    volumes.remove(&one, None, &JournalWriter::none()).await.unwrap();
    assert_eq!(fs::read_dir(&memory).unwrap().count(), 0, "nobody has anything open: it is gone at once");

    // What is left when the node ends is removed with it.
    set_up(&volumes, &one, &Facts::default()).await.unwrap();
    let kept = fs::File::open(own("one")).unwrap();
    volumes.remove(&one, None, &JournalWriter::none()).await.unwrap();
    assert!(place("one.0").exists());
    volumes.close().unwrap();
    volumes.mend().await;
    assert_eq!(fs::read_dir(&memory).unwrap().count(), 0);
    drop(kept);
    // For the caller.
    mount(Some("tmpfs"), &memory, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
}

async fn mounted_over(folder: PathBuf) {
    let (_server, volumes, pod) = opened(&folder, showing()).await;
    let (memory, foreign) = (folder.join("memory"), folder.join("foreign"));
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("file"), "text").unwrap();
    let bind = |target: PathBuf| mount(Some(&foreign), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    for target in ["one/v", "one"] {
        let one = like(&pod, "one", "a");
        set_up(&volumes, &one, &Facts::default()).await.unwrap();
        let kept = fs::File::open(memory.join("one/v/text")).unwrap();
        bind(memory.join(target));
        volumes.remove(&one, None, &JournalWriter::none()).await.unwrap();
        assert_eq!(fs::read_to_string(foreign.join("file")).unwrap(), "text");
        assert_eq!(kept.metadata().unwrap().len(), 0);
        assert!(memory.join(".ended/one.0").exists());
        drop(kept);
        volumes.mend().await;
        assert_eq!(fs::read_dir(&memory).unwrap().count(), 0);
    }
}

async fn own_room(folder: PathBuf) {
    let (_server, volumes, pod) = opened(&folder, showing()).await;
    let with = |letter: &str| {
        let mut pod = Pod::clone(&pod);
        pod.metadata.annotations = Some([("text".to_owned(), text(letter))].into());
        Arc::new(pod)
    };
    let own = folder.join("memory").join(pod.metadata.uid.as_deref().unwrap());
    let read = || fs::read_to_string(own.join("v/text")).unwrap();
    set_up(&volumes, &with("a"), &Facts::default()).await.unwrap();
    assert_eq!(read(), text("a"));
    // The pages of the file, and of three folders and two links, twice.
    let size = rustix::fs::statvfs(&own).unwrap();
    assert_eq!((size.f_blocks * size.f_frsize, size.f_files), (58 * 4096, 59));
    let kept = fs::File::open(own.join("v/text")).unwrap();
    refresh(&volumes, &with("b"), &Facts::default()).await.unwrap();
    let why = refresh(&volumes, &with("c"), &Facts::default()).await.unwrap_err().to_string();
    assert!(why.contains("No space left on device"), "{why}");
    assert_eq!(read(), text("b"));
    drop(kept);
    refresh(&volumes, &with("c"), &Facts::default()).await.unwrap();
    assert_eq!(read(), text("c"));
    volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
    assert!(!own.exists());
}
