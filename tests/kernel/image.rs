//! The image store against Debian's docker-registry, skopeo's archives, and overlayfs itself.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use podwright_runtime::image::{Auth, Image, ImageError, ImageStore, ImportOptions, Options, PullEvent};
use serde_json::json;

use crate::image_registry::{Layout, Registry, Relay, Rules, gzip, noise, run, tar, tree, two_layers};

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

fn two_layer_layout() -> Layout {
    let (layers, config) = two_layers();
    layout_of(&layers, config)
}

pub fn secret() -> Auth {
    Auth::Basic { username: "user".into(), password: "secret".into() }
}

/// Runs `look` on something mounted, in a mount namespace of its own.
fn mounted<T: Send + 'static>(
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
        // Detached: whoever looks at all files of the machine may look at these just now.
        nix::mount::umount2(at.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
        seen
    });
    thread.join().unwrap()
}

/// Runs `look` on the image's layers as overlayfs merges them.
fn merged<T: Send + 'static>(image: &Image, look: impl FnOnce(&Path) -> T + Send + 'static) -> T {
    let below: Vec<String> = image.layers.iter().map(|l| l.display().to_string()).collect();
    // A mount of lower layers alone needs two of them.
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

    // By every name that it has, also after the store was opened anew; and in the list.
    drop(store);
    let store = ImageStore::open(dir.path()).unwrap();
    for known in [&name, &image.repo_digests[0], &image.id, &image.digest] {
        assert_eq!(store.resolve(known).unwrap().as_ref(), Some(&image), "{known}");
    }
    let list = store.list().unwrap();
    assert_eq!((list.len(), list[0].created.as_deref()), (1, Some("2024-01-02T03:04:05Z")));

    // A second pull asks for the manifest only, one by digest too.
    let blobs = registry.gets("/blobs/");
    assert_eq!(blobs, 3);
    assert_eq!(store.pull(&name, &Auth::Anonymous, None).await.unwrap(), image);
    assert_eq!(store.pull(&image.repo_digests[0], &Auth::Anonymous, None).await.unwrap(), image);
    assert_eq!((registry.gets("/blobs/"), registry.gets("/manifests/")), (blobs, 3));

    // Layers in use outlive their image until they are collected.
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
    // The name stands for the index, as a Pod's imageID has it.
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
    // Nobody's password goes anywhere but to the token server.
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
        // The other layer may still be on its way to its place.
        wait_for("empty tmp", || match tree(&dir.path().join("tmp")) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        })
        .await;
        fs::write(&file, good).unwrap();
        assert_eq!(store.pull(&name, &Auth::Anonymous, None).await.unwrap().layers.len(), 2);
    }
}

/// What the disk has lost comes from the registry again, whatever became of it: gone, torn, or other bytes.
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
    // What containers may stand on stays as long as they do, across a restart, and then goes.
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
    // Another layer behind the same config, every digest of the transfer right.
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

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_pulls_happen_once() {
    let registry = Registry::start();
    let shared = tar(&[("shared", &noise(1 << 20))]);
    registry.push(&layout_of(&[shared.clone(), tar(&[("a", b"a")])], json!({})), "app", "a:1");
    registry.push(&layout_of(&[shared, tar(&[("b", b"b")])], json!({})), "app", "b:1");
    let (_dir, store) = store();
    let pulls: Vec<_> = (0..16)
        .map(|i| {
            let (store, name) = (store.clone(), format!("{}/{}:1", registry.addr, if i % 2 == 0 { "a" } else { "b" }));
            tokio::spawn(async move { store.pull(&name, &Auth::Anonymous, None).await })
        })
        .collect();
    let mut images = Vec::new();
    for pull in pulls {
        images.push(pull.await.unwrap().unwrap());
    }
    assert!(images.iter().step_by(2).all(|i| *i == images[0]));
    assert_eq!(images[0].layers[1], images[1].layers[1]);
    // Two manifests; two configs, the shared layer once, and a layer of each.
    assert_eq!((registry.gets("/manifests/"), registry.gets("/blobs/")), (2, 5), "{}", registry.log());
}

/// A layer as it was downloaded, whose bytes come only when the test sends them: who unpacks it waits.
struct Held(PathBuf);

impl Held {
    fn layer(dir: &Path, digest: &str) -> Held {
        let path = dir.join("downloads").join(digest.strip_prefix("sha256:").unwrap());
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        Held(path)
    }

    /// Once somebody has opened it to read, who then waits for as long as this lives.
    async fn opened(&self) -> fs::File {
        let mut file = None;
        wait_for("somebody unpacks it", || {
            use std::os::unix::fs::OpenOptionsExt;
            let opened = fs::File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&self.0);
            file = Some(opened.map_err(|e| e.to_string())?);
            Ok(())
        })
        .await;
        file.unwrap()
    }
}

/// Layers of images that are pulled side by side: one of a tenant's is unpacked at a time, two of all.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_take_turns_to_unpack() {
    const BRIEFLY: Duration = Duration::from_millis(700);
    let registry = Registry::start();
    let made: Vec<(String, String)> = (0..6)
        .map(|n| {
            let name = format!("i{n}");
            let layers = [tar(&[(name.as_str(), name.as_bytes())])];
            let full = registry.push(&layout_of(&layers, json!({})), "app", &format!("{name}:1"));
            let layer = registry.manifest(&name, "1")["layers"][0]["digest"].as_str().unwrap().to_owned();
            (full, layer)
        })
        .collect();
    let (dir, store) = store();
    let pull = |tenant: &'static str, n: usize| {
        let (store, name) = (store.clone(), made[n].0.clone());
        tokio::spawn(async move { store.pull_for(tenant, &name, &Auth::Anonymous, None).await })
    };
    let hold = |n: usize| (Held::layer(dir.path(), &made[n].1), fs::read(registry.blob_file(&made[n].1)).unwrap());
    let finished = async |pull: tokio::task::JoinHandle<_>, why: &str| -> Image {
        let done: Result<Image, ImageError> =
            tokio::time::timeout(Duration::from_secs(20), pull).await.unwrap_or_else(|_| panic!("{why}")).unwrap();
        done.unwrap()
    };
    // 1. What a tenant has unpacked keeps his others waiting, and nobody else's.
    let (first, first_bytes) = hold(0);
    let slow = pull("one", 0);
    let mut first = first.opened().await;
    let mut own = pull("one", 1);
    tokio::time::timeout(BRIEFLY, &mut own).await.expect_err("it waits for the tenant's first");
    finished(pull("other", 2), "nobody else waits").await;
    // 2. Two hold all places: a third tenant waits for them.
    let (second, second_bytes) = hold(3);
    let slow_other = pull("other", 3);
    let mut second = second.opened().await;
    let mut third = pull("third", 4);
    tokio::time::timeout(BRIEFLY, &mut third).await.expect_err("it waits for one of the two");
    second.write_all(&second_bytes).unwrap();
    drop(second);
    finished(slow_other, "it has come").await;
    finished(third, "there is a place").await;
    first.write_all(&first_bytes).unwrap();
    drop(first);
    finished(slow, "it has come").await;
    finished(own, "it is its turn").await;
}

/// One layer is unpacked once, however many want it. Another blob that says of itself that it is the same waits for nobody.
#[tokio::test(flavor = "multi_thread")]
async fn who_wants_the_same_blob_waits_for_it_and_who_has_another_does_not() {
    let registry = Registry::start();
    let pushed = |name: &str, text: &str, packed: bool| {
        let mut layout = Layout::new();
        let layers = [tar(&[("file", text.as_bytes())])];
        let image = match packed {
            true => layout.packed_image("amd64", &layers, json!({})),
            false => layout.image("amd64", &layers, json!({})),
        };
        layout.tag(image, "app");
        let full = registry.push(&layout, "app", &format!("{name}:1"));
        (full, registry.manifest(name, "1")["layers"][0]["digest"].as_str().unwrap().to_owned())
    };
    let (dir, store) = store();
    let pull = |tenant: &'static str, name: &str| {
        let (store, name) = (store.clone(), name.to_owned());
        tokio::spawn(async move { store.pull_for(tenant, &name, &Auth::Anonymous, None).await })
    };
    let has = async |pull: tokio::task::JoinHandle<Result<Image, ImageError>>, text: &str| {
        let image = tokio::time::timeout(Duration::from_secs(20), pull).await.expect("its layer is there").unwrap();
        assert_eq!(fs::read_to_string(image.unwrap().layers[0].join("file")).unwrap(), text);
    };
    let bytes = |digest: &str| fs::read(registry.blob_file(digest)).unwrap();

    let (name, digest) = pushed("same", "text", false);
    let held = Held::layer(dir.path(), &digest);
    let first = pull("one", &name);
    let mut held = held.opened().await;
    let mut second = pull("two", &name);
    tokio::time::timeout(Duration::from_millis(700), &mut second).await.expect_err("its layer is being unpacked");
    // The bytes come once: whoever else read them would have had a part.
    held.write_all(&bytes(&digest)).unwrap();
    drop(held);
    has(first, "text").await;
    has(second, "text").await;

    let ((name, digest), (other_name, other_digest)) = (pushed("one", "more", false), pushed("other", "more", true));
    assert_ne!(digest, other_digest, "one layer as two blobs");
    let held = Held::layer(dir.path(), &digest);
    let slow = pull("one", &name);
    let mut held = held.opened().await;
    has(pull("two", &other_name), "more").await;
    held.write_all(&bytes(&digest)).unwrap();
    drop(held);
    has(slow, "more").await;
}

#[test]
fn archives_load() {
    let layout = two_layer_layout();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let source = format!("oci:{}:app", layout.dir.path().display());
    let copy = |target: String| run(Command::new("skopeo").args(["copy", "--insecure-policy", &source, &target]));
    copy(format!("oci-archive:{}:localhost/app:oci", path("oci.tar")));
    copy(format!("docker-archive:{}:localhost/app:docker", path("docker.tar")));
    copy(format!("oci-archive:{}", path("nameless.tar")));
    run(Command::new("gzip").args(["-k", &path("docker.tar")]));
    run(Command::new("zstd").args(["-q", &path("oci.tar"), "-o", &path("oci.tar.zst")]));
    for (file, name, given) in [
        ("oci.tar", "localhost/app:oci", None),
        ("docker.tar", "localhost/app:docker", None),
        ("docker.tar.gz", "localhost/app:docker", None),
        ("oci.tar.zst", "localhost/app:oci", None),
        ("nameless.tar", "localhost/given:1", Some("localhost/given:1")),
    ] {
        let (store_dir, store) = store();
        let images = store.load(fs::File::open(path(file)).unwrap(), given).unwrap();
        assert_eq!(images.iter().map(|i| i.names.clone()).collect::<Vec<_>>(), [[name]], "{file}");
        let image = store.resolve(name).unwrap().unwrap();
        assert_eq!(image.repo_digests, [""; 0]);
        assert_eq!(image.user(), "web", "{file}");
        assert_eq!(merged(&image, tree), ["data", "data/new", "etc", "etc/group", "etc/passwd", "hello"], "{file}");
        assert_eq!(tree(&store_dir.path().join("tmp")), [""; 0]);
    }
    let (_dir, store) = store();
    let nameless = store.load(fs::File::open(path("nameless.tar")).unwrap(), None).unwrap_err();
    assert!(nameless.to_string().contains("no name"), "{nameless}");
    let rootfs = store.load(&tar(&[("etc/x", b"")])[..], None).unwrap_err();
    assert!(rootfs.to_string().contains("image import"), "{rootfs}");
    let truncated = fs::read(path("oci.tar")).unwrap();
    assert!(matches!(store.load(&truncated[..truncated.len() / 2], None), Err(ImageError::Invalid(_))));
    assert_eq!(store.list().unwrap(), []);
}

#[test]
fn a_damaged_archive_is_refused() {
    let layout = two_layer_layout();
    for blob in tree(&layout.dir.path().join("blobs/sha256")) {
        let path = layout.dir.path().join("blobs/sha256").join(&blob);
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        fs::write(&path, bad).unwrap();
        let archive = Command::new("tar").arg("-C").arg(layout.dir.path()).args(["-c", "."]).output().unwrap().stdout;
        fs::write(&path, good).unwrap();
        let (_dir, store) = store();
        let error = store.load(&archive[..], Some("localhost/x:1")).unwrap_err();
        assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error:?}");
    }
}

#[test]
fn a_root_filesystem_imports() {
    let rootfs = tar(&[("bin/sh", b"#!"), ("tmp/", b"")]);
    let options = ImportOptions {
        entrypoint: vec!["/bin/sh".into()],
        env: vec!["A=b".into()],
        volumes: vec!["/v".into()],
        ..ImportOptions::default()
    };
    let (dir, store) = store();
    let image = store.import(&rootfs[..], "localhost/busybox:1", &options).unwrap();
    assert_eq!(image.entrypoint(), ["/bin/sh"]);
    assert_eq!(image.env(), ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "A=b"]);
    assert_eq!((image.volumes(), image.reference()), (vec!["/v".to_owned()], image.id.as_str()));
    assert_eq!(merged(&image, tree), ["bin", "bin/sh", "tmp"]);
    let again = store.import(&rootfs[..], "localhost/busybox:2", &options).unwrap();
    assert_eq!(again.id, image.id);
    assert_eq!(again.names, ["localhost/busybox:1", "localhost/busybox:2"]);
    assert_eq!(fs::read_dir(dir.path().join("layers")).unwrap().count(), 1);
    // One of two names goes: the image stays.
    store.remove("localhost/busybox:1", &HashSet::new()).unwrap();
    assert!(store.resolve("localhost/busybox:2").unwrap().is_some() && image.layers[0].exists());
    // A name moves to other content: the old content can be collected.
    let other = store.import(&tar(&[("other", b"")])[..], "localhost/busybox:2", &options).unwrap();
    assert_eq!(store.collect(&HashSet::new()).unwrap().deleted.len(), 3);
    assert!(!image.layers[0].exists() && other.layers[0].exists());
    let digest = format!("localhost/x@sha256:{}", "0".repeat(64));
    assert!(matches!(store.import(&rootfs[..], &digest, &options), Err(ImageError::InvalidName { .. })));
    let bomb = ImageStore::open_with(
        tempfile::tempdir().unwrap().path(),
        Options { max_layer_bytes: 99, ..Options::default() },
    );
    assert!(matches!(bomb.unwrap().import(&rootfs[..], "x", &options), Err(ImageError::Invalid(_))));
}

/// Everything that the store has on the disk, but the empty folders that it starts with.
pub fn remains(dir: &Path) -> Vec<String> {
    ["tmp", "layers", "refs", "blobs/sha256", "downloads"].iter().flat_map(|part| tree(&dir.join(part))).collect()
}

/// Limits of a store for small bombs.
fn narrow() -> Options {
    Options { free_bytes: 1 << 20, max_ratio: 20, ..Options::default() }
}

#[tokio::test]
async fn a_bomb_is_not_pulled_loaded_or_imported_and_leaves_nothing() {
    let honest = tar(&[("honest", b"bytes")]);
    let zeros = gzip(&tar(&[("zeros", &vec![0; 8 << 20])]));
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open_with(dir.path(), narrow()).unwrap();
    let is_bomb = |error: ImageError| {
        assert!(matches!(&error, ImageError::Invalid(m) if m.contains("decompression bomb")), "{error:?}");
        assert_eq!(remains(dir.path()), [""; 0], "{error}");
    };
    is_bomb(store.import(&zeros[..], "localhost/bomb:1", &ImportOptions::default()).unwrap_err());
    // Packed twice: what comes out of the archive is as small as the archive, and no more is allowed to come out of that.
    let twice = gzip(&tar(&[("inner.tar.gz", &gzip(&zeros))]));
    let error = store.load(&twice[..], Some("localhost/bomb:1")).unwrap_err();
    assert!(error.to_string().contains("neither an OCI layout"), "{error}");
    let registry = Registry::start();
    let mut layout = Layout::new();
    let layers = [honest, tar(&[("zeros", &vec![0; 8 << 20])])];
    layout.tag(layout.packed_image("amd64", &layers, serde_json::json!({})), "app");
    let archive = Command::new("tar").arg("-C").arg(layout.dir.path()).args(["-c", "."]).output().unwrap().stdout;
    is_bomb(store.load(&archive[..], Some("localhost/bomb:1")).unwrap_err());
    let name = registry.push(&layout, "app", "bomb:1");
    is_bomb(store.pull(&name, &Auth::Anonymous, None).await.unwrap_err());
    // Who allows it gets it.
    drop(store);
    let generous = ImageStore::open(dir.path()).unwrap();
    generous.pull(&name, &Auth::Anonymous, None).await.unwrap();
}

/// One blob in the place of many layers came once: it is not to unpack to so many times of what an image may.
#[tokio::test]
async fn a_layer_that_an_image_has_many_times_counts_as_it_came() {
    let registry = Registry::start();
    let layer = tar(&[("noise", &noise(100_000)), ("zeros", &vec![0; 1_400_000])]);
    let pull = |layers: Vec<Vec<u8>>, name: &'static str| {
        let mut layout = Layout::new();
        layout.tag(layout.packed_image("amd64", &layers, json!({})), "app");
        let name = registry.push(&layout, "app", name);
        async move {
            let dir = tempfile::tempdir().unwrap();
            let store = ImageStore::open_with(dir.path(), narrow()).unwrap();
            store.pull(&name, &Auth::Anonymous, None).await.map(drop)
        }
    };
    pull(vec![layer.clone()], "once:1").await.unwrap();
    let error = pull(vec![layer; 3], "thrice:1").await.unwrap_err();
    assert!(error.to_string().contains("decompression bomb"), "{error}");
}

#[test]
fn a_full_disk_is_said_and_leaves_room_behind() {
    let big = tar(&[("big", &noise(4 << 20))]);
    mounted("tmpfs", MsFlags::empty(), "size=2m".into(), move |at| {
        let store = ImageStore::open(at).unwrap();
        let error = store.import(&big[..], "localhost/big:1", &ImportOptions::default()).unwrap_err();
        assert!(matches!(&error, ImageError::DiskFull(m) if m.contains("no space left")), "{error:?}");
        assert_eq!(tree(&at.join("tmp")), [""; 0]);
        store.import(&tar(&[("small", b"s")])[..], "localhost/small:1", &ImportOptions::default()).unwrap();
    });
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
    // A layer that somebody deleted by hand makes the image absent, not broken.
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

/// Opens the store once the last thread of a dropped pull has let go of it.
async fn reopen(dir: &Path) -> ImageStore {
    let mut store = None;
    wait_for("store to open", || {
        store = Some(ImageStore::open(dir).map_err(|e| e.to_string())?);
        Ok(())
    })
    .await;
    store.unwrap()
}
