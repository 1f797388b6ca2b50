//! Concurrent pulls: sharing, turns, and ownership of downloads.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_runtime::image::{Auth, Image, ImageError, ImageStore};
use serde_json::json;

use crate::image::{layout_of, secret, store, wait_for};
use crate::image_registry::{Layout, Registry, digest, noise, tar};

/// The path of a layer downloaded with these credentials from a registry, until it is unpacked.
fn download(store: &ImageStore, dir: &Path, registry: &Registry, blob: &str, auth: &Auth) -> PathBuf {
    let hex = |digest: &str| digest.strip_prefix("sha256:").unwrap().to_owned();
    let whose = if *auth == Auth::Anonymous { "anybody".to_owned() } else { store.hash_of(auth).unwrap() };
    let source = digest(format!("{} {whose}", registry.addr).as_bytes());
    dir.join("downloads").join(format!("{}.{}", hex(blob), hex(&source)))
}

/// A layer being pulled belongs to its puller: others with its digest, but without the credentials, ask the registry.
#[tokio::test]
async fn a_download_is_for_who_could_have_asked_for_it() {
    let registry = Registry::start();
    let full = registry.push(&layout_of(&[tar(&[("private", b"word")])], json!({})), "app", "private:1");
    let layer = registry.manifest("private", "1")["layers"][0]["digest"].as_str().unwrap().to_owned();
    let blob = registry.blob_file(&layer);
    let bytes = fs::read(&blob).unwrap();
    fs::remove_file(&blob).unwrap();
    let (dir, store) = store();
    fs::write(download(&store, dir.path(), &registry, &layer, &secret()), &bytes).unwrap();
    fs::write(dir.path().join("downloads").join(layer.strip_prefix("sha256:").unwrap()), &bytes).unwrap();
    let error = store.pull(&full, &Auth::Anonymous, None).await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound(_)), "{error:?}");
    store.pull(&full, &secret(), None).await.unwrap();
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
    // Two manifests; two configs, the shared layer once, and a layer each.
    assert_eq!((registry.gets("/manifests/"), registry.gets("/blobs/")), (2, 5), "{}", registry.log());
}

/// A downloaded layer whose bytes arrive only when the test sends them: unpacking blocks.
struct Held(PathBuf);

impl Held {
    fn layer(store: &ImageStore, dir: &Path, registry: &Registry, digest: &str) -> Held {
        let path = download(store, dir, registry, digest, &Auth::Anonymous);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        Held(path)
    }

    /// Once it was opened for reading; the reader then blocks as long as the result lives.
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

/// Layers of concurrently pulled images: one per tenant is unpacked at a time, two in total.
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
    let hold = |n: usize| {
        (Held::layer(&store, dir.path(), &registry, &made[n].1), fs::read(registry.blob_file(&made[n].1)).unwrap())
    };
    let finished = async |pull: tokio::task::JoinHandle<_>, why: &str| -> Image {
        let done: Result<Image, ImageError> =
            tokio::time::timeout(Duration::from_secs(20), pull).await.unwrap_or_else(|_| panic!("{why}")).unwrap();
        done.unwrap()
    };
    // 1. A tenant's unpacking only delays its own others.
    let (first, first_bytes) = hold(0);
    let slow = pull("one", 0);
    let mut first = first.opened().await;
    let mut own = pull("one", 1);
    tokio::time::timeout(BRIEFLY, &mut own).await.expect_err("it waits for the tenant's first");
    finished(pull("other", 2), "nobody else waits").await;
    // 2. Two occupy all places: a third tenant waits for them.
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

/// One layer is unpacked once, for any number of requests. Another blob claiming the same content waits for nothing.
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
    let held = Held::layer(&store, dir.path(), &registry, &digest);
    let first = pull("one", &name);
    let mut held = held.opened().await;
    let mut second = pull("two", &name);
    tokio::time::timeout(Duration::from_millis(700), &mut second).await.expect_err("its layer is being unpacked");
    // The bytes come once: another reader would have taken some.
    held.write_all(&bytes(&digest)).unwrap();
    drop(held);
    has(first, "text").await;
    has(second, "text").await;

    let ((name, digest), (other_name, other_digest)) = (pushed("one", "more", false), pushed("other", "more", true));
    assert_ne!(digest, other_digest, "one layer as two blobs");
    let held = Held::layer(&store, dir.path(), &registry, &digest);
    let slow = pull("one", &name);
    let mut held = held.opened().await;
    has(pull("two", &other_name), "more").await;
    held.write_all(&bytes(&digest)).unwrap();
    drop(held);
    has(slow, "more").await;
}
