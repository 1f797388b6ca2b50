//! Registries that lie, stall, or redirect: what the image store accepts, and whom they delay.

use std::time::Duration;

use podwright_runtime::image::{Auth, ImageError, ImageStore, ImportOptions, Options};
use serde_json::json;

use crate::image::{layout_of, secret, store, wait_for};
use crate::image_limits::remains;
use crate::image_registry::{Liar, Lie, Registry, digest, noise, tar};

/// Pulls from a fake registry with short timeouts; the store is unchanged.
async fn pull_from(liar: &Liar, auth: &Auth) -> ImageError {
    pull_with(liar, auth, Options { read_timeout_seconds: 1, min_rate: 1 << 20, ..Options::default() }).await
}

async fn pull_with(liar: &Liar, auth: &Auth, options: Options) -> ImageError {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open_with(dir.path(), options).unwrap();
    let name = format!("{}/app:1", liar.addr);
    let pulled = tokio::time::timeout(Duration::from_secs(60), store.pull(&name, auth, None)).await;
    let error = pulled.expect("it takes for ever").unwrap_err();
    wait_for("nothing left", || match remains(dir.path()) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{error}: {left:?}")),
    })
    .await;
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_cannot_fill_memory_or_take_for_ever() {
    let ok = || Lie::answer("200 OK", "", b"{}");
    let endless = Liar::start(move |head| match head.contains("/manifests/") {
        true => Lie::endless(&[b' '; 1 << 16], Duration::ZERO),
        false => ok(),
    });
    let error = pull_from(&endless, &Auth::Anonymous).await;
    assert!(
        matches!(&error, ImageError::Invalid(m) if m.contains("manifest has more than 4194304 bytes")),
        "{error:?}"
    );
    let dripping = Liar::start(move |head| match head.contains("/manifests/") {
        true => Lie::endless(b" ", Duration::from_millis(50)),
        false => ok(),
    });
    let error = pull_from(&dripping, &Auth::Anonymous).await;
    assert!(matches!(&error, ImageError::Network(m) if m.contains("manifest: not here after 2 s")), "{error:?}");
    let tokens = Liar::start(|head| match head.contains("GET /v2/ ") {
        true => {
            let host = head.lines().find_map(|l| l.strip_prefix("host: ")).unwrap_or_default();
            let realm = format!("Www-Authenticate: Bearer realm=\"http://{host}/token\"\r\n");
            Lie::answer("401 Unauthorized", &realm, b"")
        }
        false => Lie::endless(&[b' '; 1 << 16], Duration::ZERO),
    });
    let error = pull_from(&tokens, &Auth::Anonymous).await;
    assert!(matches!(&error, ImageError::Invalid(m) if m.contains("token has more than")), "{error:?}");
}

/// Each of what a pull asks for, by answers that are none: the head goes on and on, before the answer or within it.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_does_not_end_ends_the_pull() {
    let layer = tar(&[("a", b"a")]);
    let config = config_of(&[digest(&layer)]);
    let layers = json!([{ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(&layer), "size": layer.len() }]);
    let manifest = manifest_of(&config, layers);
    let hints = Lie { pieces: vec![b"HTTP/1.1 103 Early Hints\r\n\r\n".to_vec()], endless: true, ..Lie::default() };
    let slow_hints = Lie { moment: Duration::from_millis(300), ..hints.clone() };
    let headers = Lie {
        pieces: vec![b"HTTP/1.1 200 OK\r\n".to_vec(), b"a: b\r\n".to_vec()],
        moment: Duration::from_millis(300),
        endless: true,
    };
    for (lie, why) in
        [(hints, "informational answers"), (slow_hints, "no answer after 1 s"), (headers, "no answer after 1 s")]
    {
        for path in ["GET /v2/ ", "/manifests/", "/blobs/"] {
            let (lie, manifest, config, of_config) = (lie.clone(), manifest.clone(), config.clone(), digest(&config));
            let liar = Liar::start(move |head| match () {
                () if head.contains(path) && !head.contains(&of_config) => lie.clone(),
                () if head.contains("/manifests/") => Lie::answer("200 OK", "", manifest.as_bytes()),
                () if head.contains(&of_config) => Lie::answer("200 OK", "", &config),
                () => Lie::answer("200 OK", "", b"{}"),
            });
            let error = pull_from(&liar, &Auth::Anonymous).await;
            let in_time = ["not here after", "did not arrive within"];
            let is_told = |m: &str| m.contains(why) || in_time.iter().any(|late| m.contains(late));
            assert!(matches!(&error, ImageError::Network(m) if is_told(m)), "{path}: {why}: {error:?}");
        }
    }
}

/// A manifest with this config, of which only the size matters, and these layers.
fn manifest_of(config: &[u8], layers: serde_json::Value) -> String {
    let config = json!({ "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(config), "size": config.len() });
    json!({ "schemaVersion": 2, "config": config, "layers": layers }).to_string()
}

fn config_of(diff_ids: &[String]) -> Vec<u8> {
    let rootfs = json!({ "type": "layers", "diff_ids": diff_ids });
    json!({ "architecture": "amd64", "os": "linux", "rootfs": rootfs }).to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_that_drip_or_are_larger_than_any_disk_are_refused() {
    let layer = tar(&[("a", b"a")]);
    let config = config_of(&[digest(&layer), digest(&layer)]);
    let of_size = |size: u64| {
        json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(&layer), "size": size,
            "urls": ["http://127.0.0.1:1/elsewhere"] })
    };
    let serve = |manifest: String| {
        let config = config.clone();
        let of_config = digest(&config);
        Liar::start(move |head| match () {
            () if head.contains("/manifests/") => Lie::answer("200 OK", "", manifest.as_bytes()),
            () if head.contains(&of_config) => Lie::answer("200 OK", "", &config),
            () if head.contains("/blobs/") => Lie::endless(b"x", Duration::from_millis(50)),
            () => Lie::answer("200 OK", "", b"{}"),
        })
    };
    let liar = serve(manifest_of(&config, json!([of_size(u64::MAX), of_size(u64::MAX)])));
    let error = pull_from(&liar, &Auth::Anonymous).await;
    assert!(matches!(&error, ImageError::DiskFull(m) if m.contains("no space left for images")), "{error:?}");
    let liar = serve(manifest_of(&config, json!([of_size(1 << 20), of_size(1 << 20)])));
    let error = pull_from(&liar, &Auth::Anonymous).await;
    assert!(matches!(&error, ImageError::Network(m) if m.contains("no progress")), "{error:?}");
    assert_eq!(liar.seen("elsewhere"), 0);
    // One that keeps making progress, but takes forever.
    let options = Options { read_timeout_seconds: 1, min_rate: 1, min_average: 1 << 30, ..Options::default() };
    let error = pull_with(&liar, &Auth::Anonymous, options).await;
    assert!(matches!(&error, ImageError::Network(m) if m.contains("did not arrive within 5 s")), "{error:?}");
    // And one that announces a short size.
    let liar = serve(manifest_of(&config, json!([of_size(10), of_size(10)])));
    let options = Options { read_timeout_seconds: 5, min_rate: 1, ..Options::default() };
    let error = pull_with(&liar, &Auth::Anonymous, options).await;
    assert!(matches!(&error, ImageError::Invalid(m) if m.contains("is longer (11) than the 10")), "{error:?}");
}

/// A manifest may list another image's documents as layers, whether they fail to unpack or are supposedly present already.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_names_others_documents_as_layers_takes_nothing_away() {
    let (_dir, store) = store();
    let victim = store.import(&tar(&[("a", b"a")])[..], "localhost/victim:1", &ImportOptions::default()).unwrap();
    let diff_id = victim.config.rootfs().diff_ids()[0].clone();
    for layer in [&victim.id, &victim.digest] {
        for diff_ids in [vec![digest(b"another")], vec![diff_id.clone(), digest(b"another")]] {
            let config = config_of(&diff_ids);
            let layer = json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": 9 });
            let manifest = manifest_of(&config, diff_ids.iter().map(|_| layer.clone()).collect());
            let of_config = digest(&config);
            let liar = Liar::start(move |head| match () {
                () if head.contains("/manifests/") => Lie::answer("200 OK", "", manifest.as_bytes()),
                () if head.contains(&of_config) => Lie::answer("200 OK", "", &config),
                () if head.contains("/blobs/") => Lie::answer("200 OK", "", b"no layer."),
                () => Lie::answer("200 OK", "", b"{}"),
            });
            let error = store.pull(&format!("{}/evil:1", liar.addr), &Auth::Anonymous, None).await.unwrap_err();
            assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error:?}");
            assert_eq!(store.resolve("localhost/victim:1").unwrap().as_ref(), Some(&victim));
        }
    }
}

/// Knowing only the id of another's image, with a registry that claims it, gives no access.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_gives_nobody_the_image() {
    let registry = Registry::start_with(true);
    let name = registry.push(&layout_of(&[tar(&[("word", b"private")])], json!({})), "app", "team/private:1");
    let (_dir, store) = store();
    let own = store.pull_for("owner", &name, &secret(), None).await.unwrap();
    let mut manifest = registry.manifest("team/private", "1");
    manifest["layers"][0]["digest"] = json!(digest(b"invented"));
    let size = manifest["config"]["size"].as_u64().unwrap() as usize;
    for lie in [None, Some(vec![b' '; size])] {
        let manifest = manifest.to_string();
        let thief = Liar::start(move |head| match &lie {
            _ if head.contains("/manifests/") => Lie::answer("200 OK", "", manifest.as_bytes()),
            Some(lie) if head.contains("/blobs/") => Lie::answer("200 OK", "", lie),
            _ if head.contains("/blobs/") => Lie::answer("404 Not Found", "", b"{}"),
            _ => Lie::answer("200 OK", "", b"{}"),
        });
        let name = format!("{}/app:1", thief.addr);
        let error = store.pull_for("thief", &name, &Auth::Anonymous, None).await.unwrap_err();
        assert!(matches!(error, ImageError::NotFound(_) | ImageError::DigestMismatch { .. }), "{error:?}");
        assert_eq!((thief.seen(&own.id), store.resolve(&name).unwrap()), (1, None));
    }
    // Its owner need not fetch it again.
    let fetched = registry.gets("/blobs/");
    assert_eq!(store.pull_for("owner", &name, &secret(), None).await.unwrap(), own);
    assert_eq!(registry.gets("/blobs/"), fetched);
}

/// An index's entry must be a manifest: with nested indexes the choice would be ambiguous.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_in_an_index_is_refused() {
    let architecture = std::env::consts::ARCH.replace("x86_64", "amd64").replace("aarch64", "arm64");
    let index = |of: &str, size: usize| {
        let entry = json!({ "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": of, "size": size,
            "platform": { "architecture": architecture, "os": "linux" } });
        json!({ "schemaVersion": 2, "manifests": [entry] }).to_string()
    };
    let nested = index(&digest(b"a manifest"), 10);
    let (inner, outer) = (digest(nested.as_bytes()), index(&digest(nested.as_bytes()), nested.len()));
    let liar = Liar::start(move |head| match () {
        () if head.contains(&inner) => Lie::answer("200 OK", "", nested.as_bytes()),
        () if head.contains("/manifests/") => Lie::answer("200 OK", "", outer.as_bytes()),
        () => Lie::answer("200 OK", "", b"{}"),
    });
    let error = pull_from(&liar, &Auth::Anonymous).await;
    assert!(matches!(&error, ImageError::Unsupported(m) if m.contains("an index in an index")), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_cannot_lead_the_node_to_its_neighbours() {
    let metadata = "http://169.254.169.254/latest/meta-data";
    let redirecting = Liar::start(move |head| match head.contains("/manifests/") {
        true => Lie::answer("307 Temporary Redirect", &format!("Location: {metadata}\r\n"), b""),
        false => Lie::answer("200 OK", "", b"{}"),
    });
    let error = pull_from(&redirecting, &Auth::Anonymous).await.to_string();
    assert!(error.contains("redirect refused: 169.254.169.254"), "{error}");
    let realm = Liar::start(move |_| {
        Lie::answer("401 Unauthorized", &format!("Www-Authenticate: Bearer realm=\"{metadata}\"\r\n"), b"")
    });
    let error = pull_from(&realm, &secret()).await.to_string();
    assert!(error.contains("token server: 169.254.169.254 is 169.254.169.254"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_stay_with_whom_they_are_for() {
    let other = Liar::start(|_| Lie::answer("404 Not Found", "", b"{}"));
    let elsewhere = format!("Location: http://{}/stolen\r\n", other.addr);
    let registry = Liar::start(move |head| match head.contains("/manifests/") {
        true => Lie::answer("307 Temporary Redirect", &elsewhere, b""),
        false => Lie::answer("401 Unauthorized", "Www-Authenticate: Basic realm=\"x\"\r\n", b""),
    });
    pull_from(&registry, &secret()).await;
    assert_eq!((registry.seen("authorization: basic"), other.seen("/stolen")), (1, 0));
    // An identity token is in the request's body, which this kind of redirect would repeat.
    let elsewhere = format!("Location: http://{}/stolen\r\n", other.addr);
    let registry = Liar::start(move |head| match head.contains("GET /v2/ ") {
        true => {
            let host = head.lines().find_map(|l| l.strip_prefix("host: ")).unwrap_or_default();
            let realm = format!("Www-Authenticate: Bearer realm=\"http://{host}/token\"\r\n");
            Lie::answer("401 Unauthorized", &realm, b"")
        }
        false => Lie::answer("307 Temporary Redirect", &elsewhere, b""),
    });
    let error = pull_from(&registry, &Auth::IdentityToken("an identity".into())).await;
    assert!(error.to_string().contains("/token: 307 Temporary Redirect"), "{error:?}");
    assert_eq!((registry.seen("POST /token"), other.seen("/stolen")), (1, 0));
}

/// Requesting another's layer, or using a silent registry, only delays oneself: not the node's shared threads, nor others who have
/// the same layer from another registry.
#[test]
fn a_silent_registry_keeps_nobody_else_waiting() {
    let few = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(2)
        .enable_all()
        .build()
        .unwrap();
    few.block_on(async {
        let layer = tar(&[("noise", &noise(10_000))]);
        let honest = Registry::start();
        let good = honest.push(&layout_of(std::slice::from_ref(&layer), json!({})), "app", "app:1");
        let stored = honest.manifest("app", "1")["layers"][0]["digest"].as_str().unwrap().to_owned();
        let config = config_of(&vec![digest(&layer); 4]);
        let of = |digest: &str| {
            json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": 1 << 30 })
        };
        let others = (0..3).map(|n| digest(format!("other {n}").as_bytes()));
        let layers: Vec<_> = std::iter::once(stored).chain(others).map(|digest| of(&digest)).collect();
        let manifest = manifest_of(&config, json!(layers));
        let of_config = digest(&config);
        let silent = Liar::start(move |head| match () {
            () if head.contains("/manifests/") => Lie::answer("200 OK", "", manifest.as_bytes()),
            () if head.contains(&of_config) => Lie::answer("200 OK", "", &config),
            () if head.contains("/blobs/") => Lie::endless(b"x", Duration::from_secs(1)),
            () => Lie::answer("200 OK", "", b"{}"),
        });
        let (_dir, store) = store();
        let held: Vec<_> = (0..6)
            .map(|n| {
                let (store, name) = (store.clone(), format!("{}/app:{n}", silent.addr));
                tokio::spawn(async move { store.pull_for("hostile", &name, &Auth::Anonymous, None).await })
            })
            .collect();
        // A tenant waits for its own pulls even with a name that others request.
        let queued = {
            let (store, name) = (store.clone(), good.clone());
            tokio::spawn(async move { store.pull_for("hostile", &name, &Auth::Anonymous, None).await })
        };
        wait_for("the silent registry is asked", || match silent.seen("/blobs/") {
            asked if asked >= 4 => Ok(()),
            asked => Err(format!("{asked} times")),
        })
        .await;
        let pulled = tokio::time::timeout(Duration::from_secs(30), store.pull_for("other", &good, &Auth::Anonymous, None));
        assert_eq!(pulled.await.expect("nobody else waits").unwrap().layers.len(), 1);
        // A tenant has few pulls at once: three of these six names.
        let names = (0..6).filter(|n| silent.seen(&format!("/manifests/{n} ")) > 0).count();
        assert_eq!(names, 3);
        assert!(!queued.is_finished());
        held.into_iter().chain([queued]).for_each(|pull| pull.abort());
    });
    few.shutdown_timeout(Duration::from_secs(5));
}
