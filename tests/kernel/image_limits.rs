//! The cost limits of images: bombs, and full disks.

use std::path::Path;
use std::process::Command;

use nix::mount::MsFlags;
use podwright_runtime::image::{Auth, ImageError, ImageStore, ImportOptions, Options};
use serde_json::json;

use crate::image::mounted;
use crate::image_registry::{Layout, Registry, gzip, noise, tar, tree};

/// Everything in the store's folder, except the empty folders it starts with.
pub fn remains(dir: &Path) -> Vec<String> {
    ["tmp", "layers", "refs", "blobs/sha256", "downloads"].iter().flat_map(|part| tree(&dir.join(part))).collect()
}

/// Small limits for small bombs.
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
    // Compressed twice: the archive's content is as small as the archive, and so is the limit on what it may unpack to.
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
    // With higher limits it is accepted.
    drop(store);
    let generous = ImageStore::open(dir.path()).unwrap();
    generous.pull(&name, &Auth::Anonymous, None).await.unwrap();
}

/// One blob used for many layers was transferred once: it must not multiply the image's limit.
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
