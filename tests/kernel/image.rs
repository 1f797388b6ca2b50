//! The image store against Debian's docker-registry, skopeo's archives, and overlayfs itself.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use podwright_runtime::image::{Auth, Image, ImageError, ImageStore, ImportOptions, PullEvent};
use serde_json::json;

use crate::image_registry::{Layout, Registry, Relay, Rules, noise, run, tar, tree, two_layers};

pub fn store() -> (tempfile::TempDir, ImageStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(dir.path()).unwrap();
    (dir, store)
}

pub fn layout_of(layers: &[Vec<u8>], config: serde_json::Value) -> Layout {
    let mut layout = Layout::new();
    let image = layout.image("amd64", layers, config);
    layout.tag(image, "app");
    layout
}

pub fn two_layer_layout() -> Layout {
    let (layers, config) = two_layers();
    layout_of(&layers, config)
}

pub fn secret() -> Auth {
    Auth::Basic { username: "user".into(), password: "secret".into() }
}

/// Runs `look` on a mount, in a new mount namespace.
pub fn mounted<T: Send + 'static>(
    kind: &'static str,
    flags: MsFlags,
    options: String,
    look: impl FnOnce(&Path) -> T + Send + 'static,
) -> T {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let at = tempfile::tempdir().unwrap();
        mount(Some(kind), at.path(), Some(kind), flags, Some(options.as_str())).unwrap();
        let seen = look(at.path());
        // Detached: other processes scanning the machine's files may be using it.
        nix::mount::umount2(at.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
        seen
    });
    thread.join().unwrap()
}

/// Runs `look` on the image's layers merged by overlayfs.
pub fn merged<T: Send + 'static>(image: &Image, look: impl FnOnce(&Path) -> T + Send + 'static) -> T {
    let below: Vec<String> = image.layers.iter().map(|l| l.display().to_string()).collect();
    // A read-only overlay needs at least two lower layers.
    let empty = tempfile::tempdir().unwrap();
    let options = format!("lowerdir={}:{}", below.join(":"), empty.path().display());
    mounted("overlay", MsFlags::MS_RDONLY, options, look)
}

#[tokio::test]
async fn a_pull_gives_an_image_that_overlayfs_merges() {
    let registry = Registry::start();
    let name = registry.push(&two_layer_layout(), "app", "team/app:1");
    let (dir, store) = store();
    assert_eq!(store.resolve(&name), Ok(None));
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    let image =
        store.pull(&name, &Auth::Anonymous, Some(Arc::new(move |e| seen.lock().unwrap().push(e)))).await.unwrap();

    let digest = image.repo_digests[0].rsplit('@').next().unwrap().to_owned();
    assert_eq!(image.names, [name.clone()]);
    assert_eq!(image.reference(), format!("{}/team/app@{digest}", registry.addr));
    assert_eq!((image.entrypoint(), image.cmd()), (vec!["/bin/serve".to_owned()], vec!["--fast".to_owned()]));
    assert_eq!((image.working_dir().as_str(), image.stop_signal().as_str()), ("/srv", "SIGQUIT"));
    assert_eq!(
        (image.env(), image.volumes()),
        (vec!["A=1".into(), "PATH=/bin".into()], vec!["/a".into(), "/b".into()])
    );
    let user = image.resolve_user("").unwrap();
    assert_eq!((user.uid, user.gid, user.groups), (101, 102, vec![300]));
    assert_eq!(image.read_file("/hello").unwrap().as_deref(), Some(&b"upper"[..]));
    assert_eq!(image.read_file("/etc/old").unwrap(), None);
    let files = merged(&image, |root| {
        assert_eq!(fs::read_to_string(root.join("hello")).unwrap(), "upper");
        tree(root)
    });
    assert_eq!(files, ["data", "data/new", "etc", "etc/group", "etc/passwd", "hello"]);
    let events = events.lock().unwrap().clone();
    assert!(matches!(events[0], PullEvent::Resolved { layers: 2, .. }), "{events:?}");
    assert_eq!(events.iter().filter(|e| matches!(e, PullEvent::Unpacked { .. })).count(), 2);

    // By all of its names, also after reopening the store; and in the list.
    drop(store);
    let store = ImageStore::open(dir.path()).unwrap();
    for known in [&name, &image.repo_digests[0], &image.id, &image.digest] {
        assert_eq!(store.resolve(known).unwrap().as_ref(), Some(&image), "{known}");
    }
    let list = store.list().unwrap();
    assert_eq!((list.len(), list[0].created.as_deref()), (1, Some("2024-01-02T03:04:05Z")));

    // A second pull only requests the manifest, also by digest.
    let blobs = registry.gets("/blobs/");
    assert_eq!(blobs, 3);
    assert_eq!(store.pull(&name, &Auth::Anonymous, None).await.unwrap(), image);
    assert_eq!(store.pull(&image.repo_digests[0], &Auth::Anonymous, None).await.unwrap(), image);
    assert_eq!((registry.gets("/blobs/"), registry.gets("/manifests/")), (blobs, 3));

    // Layers in use outlive their image until collection.
    let (upper, lower) = (&image.layers[0], &image.layers[1]);
    let in_use: HashSet<PathBuf> = [lower.clone()].into();
    let removed = store.remove(&name, &in_use).unwrap();
    assert_eq!(removed.names.len(), 2);
    assert_eq!(removed.in_use, [lower.clone()]);
    assert!(lower.exists() && !upper.exists());
    assert_eq!(store.list().unwrap(), []);
    store.collect(&HashSet::new()).unwrap();
    assert_eq!(tree(dir.path()), ["blobs", "blobs/sha256", "downloads", "layers", "lock", "pulled", "refs", "tmp"]);
    assert!(matches!(store.remove(&name, &in_use), Err(ImageError::NotFound(_))));
}

#[tokio::test]
async fn an_index_gives_the_image_for_this_host() {
    let registry = Registry::start();
    let mut layout = Layout::new();
    let image = |arch: &str| layout.image(arch, &[tar(&[("arch", arch.as_bytes())])], json!({}));
    let (arm, amd, s390) = (image("arm64"), image("amd64"), image("s390x"));
    let both = layout.multi_arch(&[s390.clone(), arm, amd]);
    let foreign = layout.multi_arch(&[s390]);
    layout.tag(both, "both");
    layout.tag(foreign, "foreign");
    let name = registry.push(&layout, "both", "multi:1");
    let other = registry.push(&layout, "foreign", "multi:2");
    let (_dir, store) = store();
    let image = store.pull(&name, &Auth::Anonymous, None).await.unwrap();
    let host = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    assert_eq!(image.read_file("arch").unwrap().as_deref(), Some(host.as_bytes()));
    // The name refers to the index, as in a Pod's imageID.
    assert!(!image.reference().ends_with(&image.digest));
    assert_eq!(store.resolve(image.reference()).unwrap(), Some(image.clone()));
    let error = store.pull(&other, &Auth::Anonymous, None).await.unwrap_err();
    assert!(matches!(&error, ImageError::Unsupported(m) if m.contains("no match for platform")), "{error}");
}

#[tokio::test]
async fn failures_are_told_apart() {
    let registry = Registry::start();
    registry.push(&two_layer_layout(), "app", "app:1");
    let (_dir, store) = store();
    let pull = |name: String| {
        let store = store.clone();
        async move { store.pull(&name, &Auth::Anonymous, None).await.unwrap_err() }
    };
    let missing = pull(format!("{}/app:2", registry.addr)).await;
    assert!(matches!(missing, ImageError::NotFound(_)), "{missing:?}");
    assert_eq!(
        missing.to_string(),
        format!(
            "failed to pull and unpack image \"{0}/app:2\": failed to resolve reference \"{0}/app:2\": {0}/app:2: not found",
            registry.addr
        )
    );
    let absent = format!("{}/app@sha256:{}", registry.addr, "0".repeat(64));
    assert!(matches!(pull(absent).await, ImageError::NotFound(_)));
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = pull(format!("{closed}/app:1")).await;
    assert!(matches!(&refused, ImageError::Network(m) if m.contains("refused")), "{refused:?}");
    assert!(matches!(pull("App:1".into()).await, ImageError::InvalidName { .. }));
    let local = pull("localhost/busybox:1".into()).await;
    assert!(matches!(&local, ImageError::NotFound(m) if m.contains("never pulled")), "{local:?}");
}

#[tokio::test]
async fn basic_auth_decides() {
    let registry = Registry::start_with(true);
    let name = registry.push(&two_layer_layout(), "app", "private/app:1");
    let (_dir, store) = store();
    let wrong = Auth::Basic { username: "user".into(), password: "guess".into() };
    for auth in [Auth::Anonymous, wrong] {
        let error = store.pull(&name, &auth, None).await.unwrap_err();
        assert!(
            matches!(&error, ImageError::Unauthorized(m) if m.contains("pull access denied")),
            "{auth:?}: {error:?}"
        );
    }
    assert_eq!(store.pull(&name, &secret(), None).await.unwrap().names, [name]);
}

#[tokio::test]
async fn token_auth_decides() {
    let registry = Registry::start();
    registry.push(&two_layer_layout(), "app", "app:1");
    let relay = Relay::start(&registry, Rules { tokens: true, ..Rules::default() });
    let name = format!("{}/app:1", relay.addr);
    for (auth, granted) in [
        (Auth::Anonymous, false),
        (Auth::Basic { username: "user".into(), password: "guess".into() }, false),
        (secret(), true),
        (Auth::IdentityToken("identity+1".into()), true),
        (Auth::IdentityToken("stale".into()), false),
        (Auth::RegistryToken("let-me-in".into()), true),
        (Auth::RegistryToken("wrong".into()), false),
    ] {
        let (_dir, store) = store();
        match store.pull(&name, &auth, None).await {
            Ok(image) => assert!(granted && image.layers.len() == 2, "{auth:?}"),
            Err(error) => assert!(!granted && matches!(error, ImageError::Unauthorized(_)), "{auth:?}: {error:?}"),
        }
    }
    // Passwords are only sent to the token server.
    assert_eq!(relay.seen("Basic "), relay.seen("GET /token") - 1);
}

#[tokio::test]
async fn a_corrupted_blob_is_refused() {
    let registry = Registry::start();
    let name = registry.push(&two_layer_layout(), "app", "app:1");
    let manifest = registry.manifest("app", "1");
    for part in [&manifest["config"], &manifest["layers"][0], &manifest["layers"][1]] {
        let (dir, store) = store();
        let file = registry.blob_file(part["digest"].as_str().unwrap());
        let good = fs::read(&file).unwrap();
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        fs::write(&file, bad).unwrap();
        let error = store.pull(&name, &Auth::Anonymous, None).await.unwrap_err();
        assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error:?}");
        assert_eq!(store.resolve(&name).unwrap(), None);
        // The other layer may still be being moved into place.
        wait_for("empty tmp", || match tree(&dir.path().join("tmp")) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        })
        .await;
        fs::write(&file, good).unwrap();
        assert_eq!(store.pull(&name, &Auth::Anonymous, None).await.unwrap().layers.len(), 2);
    }
}

/// Damaged data is fetched from the registry again: missing, truncated, or altered.
#[tokio::test]
async fn a_damaged_part_of_an_image_counts_as_missing_and_is_fetched_again() {
    let registry = Registry::start();
    let name = registry.push(&two_layer_layout(), "app", "app:1");
    let (dir, store) = store();
    let image = store.pull(&name, &Auth::Anonymous, None).await.unwrap();
    let blob = |digest: &str| dir.path().join("blobs/sha256").join(digest.split_once(':').unwrap().1);
    for path in [blob(&image.digest), blob(&image.id)] {
        let sound = fs::read(&path).unwrap();
        for damage in [None, Some(&b""[..]), Some(&sound[..sound.len() / 2]), Some(b"{}"), Some(&[0; 64])] {
            match damage {
                None => fs::remove_file(&path).unwrap(),
                Some(bytes) => fs::write(&path, bytes).unwrap(),
            }
            assert_eq!(store.resolve(&name).unwrap(), None, "{damage:?}");
            store.list().unwrap();
            assert_eq!(store.pull(&name, &Auth::Anonymous, None).await.unwrap().layers, image.layers);
            assert_eq!(fs::read(&path).unwrap(), sound);
        }
    }
    let sound = merged(&image, tree);
    let top = image.layers[0].clone();
    for damage in [
        |fs: &Path| fs::remove_dir_all(fs).unwrap(),
        |fs: &Path| fs::remove_dir_all(fs.parent().unwrap()).unwrap(),
        |fs: &Path| {
            for entry in fs::read_dir(fs).unwrap().flatten() {
                let is_dir = entry.file_type().unwrap().is_dir();
                if is_dir { fs::remove_dir_all(entry.path()).unwrap() } else { fs::remove_file(entry.path()).unwrap() }
            }
        },
    ] {
        damage(&top);
        assert_eq!(store.resolve(&name).unwrap(), None);
        let again = store.pull(&name, &Auth::Anonymous, None).await.unwrap();
        assert_eq!(again.layers, image.layers);
        assert_eq!(merged(&again, tree), sound);
    }
    // What containers may use stays as long as they do, across a restart, and is then removed.
    let aside = || tree(&dir.path().join("layers")).into_iter().filter(|path| path.contains(".damaged-")).count();
    drop(store);
    let store = reopen(dir.path()).await;
    let in_use = HashSet::from([top]);
    store.collect(&in_use).unwrap();
    assert!(aside() > 0);
    store.collect(&HashSet::new()).unwrap();
    assert_eq!(aside(), 0);
    assert!(store.resolve(&name).unwrap().is_some());
}

#[tokio::test]
async fn a_layer_that_is_not_what_the_config_says_is_refused() {
    let registry = Registry::start();
    let mut layout = Layout::new();
    let honest = layout.image("amd64", &[tar(&[("a", b"1")])], json!({}));
    layout.tag(honest, "app");
    registry.push(&layout, "app", "app:1");
    // Another layer behind the same config, with correct transfer digests.
    let manifest = registry.manifest("app", "1");
    let evil = layout_of(&[tar(&[("a", b"2")])], json!({}));
    registry.push(&evil, "app", "app:2");
    let mut mixed = manifest.clone();
    mixed["layers"] = registry.manifest("app", "2")["layers"].clone();
    let dir = tempfile::tempdir().unwrap();
    run(Command::new("skopeo")
        .args(["copy", "--insecure-policy", "--src-tls-verify=false", &format!("docker://{}/app:2", registry.addr)])
        .arg(format!("dir:{}", dir.path().display())));
    let config = manifest["config"]["digest"].as_str().unwrap();
    fs::copy(registry.blob_file(config), dir.path().join(config.strip_prefix("sha256:").unwrap())).unwrap();
    fs::write(dir.path().join("manifest.json"), mixed.to_string()).unwrap();
    let name = format!("{}/app:mixed", registry.addr);
    run(Command::new("skopeo")
        .args(["copy", "--insecure-policy", "--dest-tls-verify=false", &format!("dir:{}", dir.path().display())])
        .arg(format!("docker://{name}")));
    let (store_dir, store) = store();
    let error = store.pull(&name, &Auth::Anonymous, None).await.unwrap_err();
    assert!(matches!(&error, ImageError::DigestMismatch { what, .. } if what.contains("uncompressed")), "{error:?}");
    assert_eq!(tree(&store_dir.path().join("layers")), [""; 0]);
}

#[tokio::test]
async fn a_pull_that_is_dropped_leaves_nothing_broken() {
    let registry = Registry::start();
    let layers = [tar(&[("small", b"1")]), tar(&[("big", &noise(3 << 20))])];
    registry.push(&layout_of(&layers, json!({})), "app", "app:1");
    let relay = Relay::start(&registry, Rules { stall_after: Some(1 << 20), ..Rules::default() });
    let (dir, store) = store();
    let stuck = format!("{}/app:1", relay.addr);
    let pull = tokio::spawn({
        let (store, stuck) = (store.clone(), stuck.clone());
        async move { store.pull(&stuck, &Auth::Anonymous, None).await }
    });
    let layers_dir = dir.path().join("layers");
    wait_for("a layer unpacked and the other one stuck", || {
        let done = relay.relayed.load(Ordering::SeqCst) > 1 << 20 && !tree(&layers_dir).is_empty();
        if done {
            Ok(())
        } else {
            Err(format!("{} bytes, {:?}", relay.relayed.load(Ordering::SeqCst), tree(dir.path())))
        }
    })
    .await;
    pull.abort();
    assert!(pull.await.unwrap_err().is_cancelled());
    assert_eq!(store.resolve(&stuck).unwrap(), None);
    drop(store);
    let store = reopen(dir.path()).await;
    assert_eq!(tree(&dir.path().join("tmp")), [""; 0]);
    assert_eq!(tree(&layers_dir), [""; 0], "a layer without its `done` is a leftover");
    let image = store.pull(&format!("{}/app:1", registry.addr), &Auth::Anonymous, None).await.unwrap();
    assert_eq!(image.read_file("small").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(fs::metadata(image.layers[0].join("big")).unwrap().size(), 3 << 20);
}

#[tokio::test]
async fn a_broken_connection_is_taken_up_where_it_broke() {
    let registry = Registry::start();
    let big = noise(3 << 20);
    registry.push(&layout_of(&[tar(&[("big", &big)])], json!({})), "app", "app:1");
    let cutting = Relay::start(&registry, Rules { cut_after: Mutex::new(Some(1 << 20)), ..Rules::default() });
    let name = format!("{}/app:1", cutting.addr);
    let (_dir, store) = store();
    let image = store.pull(&name, &Auth::Anonymous, None).await.unwrap();
    assert_eq!(fs::read(image.layers[0].join("big")).unwrap(), big);
    assert!(cutting.relayed.load(Ordering::SeqCst) < 4 << 20, "nothing travels twice");
    assert_eq!(cutting.seen("/blobs/"), cutting.seen("range: bytes=") + 2);
}

#[test]
fn one_owner_at_a_time_and_leftovers_go() {
    let (dir, store) = store();
    let image = store.import(&tar(&[("a", b"a")])[..], "localhost/a:1", &ImportOptions::default()).unwrap();
    assert!(matches!(ImageStore::open(dir.path()), Err(ImageError::Locked(_))));
    drop(store);
    fs::create_dir_all(dir.path().join("tmp/layer-7/fs/deep")).unwrap();
    fs::write(dir.path().join("tmp/blob-8"), "half").unwrap();
    let half = dir.path().join("layers").join("f".repeat(64));
    fs::create_dir_all(half.join("fs")).unwrap();
    fs::write(dir.path().join("refs").join("e".repeat(64)), "{broken").unwrap();
    let store = ImageStore::open(dir.path()).unwrap();
    assert_eq!(tree(&dir.path().join("tmp")), [""; 0]);
    assert!(!half.exists());
    assert_eq!(store.resolve("localhost/a:1").unwrap(), Some(image.clone()));
    // Deletion is not waited for.
    let until = Instant::now() + Duration::from_secs(30);
    let is_aside = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".aside-");
    while fs::read_dir(dir.path()).unwrap().flatten().any(is_aside) {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    // A manually deleted layer makes the image absent, not broken.
    fs::remove_dir_all(image.layers[0].parent().unwrap()).unwrap();
    assert_eq!(store.resolve("localhost/a:1").unwrap(), None);
}

pub async fn wait_for(what: &str, mut check: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(state) = check() {
        assert!(Instant::now() < deadline, "no {what}: {state}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Opens the store once the last thread of a dropped pull has released it.
async fn reopen(dir: &Path) -> ImageStore {
    let mut store = None;
    wait_for("store to open", || {
        store = Some(ImageStore::open(dir).map_err(|e| e.to_string())?);
        Ok(())
    })
    .await;
    store.unwrap()
}
