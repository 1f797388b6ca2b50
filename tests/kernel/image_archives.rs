//! Archives and root file systems: what is loaded from them, under which names.

use std::collections::HashSet;
use std::fs;
use std::process::Command;

use podwright_runtime::image::{ImageError, ImageStore, ImportOptions, Options};
use serde_json::json;

use crate::image::{merged, store, two_layer_layout};
use crate::image_registry::{digest, run, tar, tree};

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
    // One of two names is removed: the image stays.
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

/// An archive must not assign names with another content's digest.
#[test]
fn no_archive_names_an_image_by_a_digest_that_is_not_its_own() {
    let (dir, store) = store();
    let config = br#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#;
    let other = digest(b"another image");
    let named = format!("registry.example/app@{other}");
    let docker = format!(r#"[{{"Config":"config.json","RepoTags":["{named}"],"Layers":[]}}]"#);
    let docker = tar(&[("config.json", config), ("manifest.json", docker.as_bytes())]);
    let manifest = json!({"schemaVersion": 2, "layers": [],
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(config), "size": config.len()}});
    let manifest = manifest.to_string();
    let oci = |key: &str, name: &str| {
        let index = json!({"schemaVersion": 2, "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest(manifest.as_bytes()), "size": manifest.len(), "annotations": {key: name}}]});
        let blob = |bytes: &[u8]| format!("blobs/sha256/{}", digest(bytes).strip_prefix("sha256:").unwrap());
        tar(&[
            ("index.json", index.to_string().as_bytes()),
            (&blob(manifest.as_bytes()), manifest.as_bytes()),
            (&blob(config), config),
        ])
    };
    let (whole, reference) = ("io.containerd.image.name", "org.opencontainers.image.ref.name");
    for archive in [docker, oci(whole, &named), oci(reference, &named)] {
        let error = store.load(&archive[..], None).unwrap_err();
        assert!(matches!(&error, ImageError::InvalidName { name, .. } if *name == named), "{error:?}");
        assert_eq!(store.find(&named).unwrap(), None);
    }
    // As `ctr images export` names what was pulled by digest.
    let own = format!("registry.example/app@{}", digest(manifest.as_bytes()));
    store.load(&oci(whole, &own)[..], None).unwrap();
    assert!(store.resolve(&own).unwrap().is_some());
    // Such names accepted by an earlier version are dropped.
    let path = fs::read_dir(dir.path().join("refs")).unwrap().next().unwrap().unwrap().path();
    fs::write(
        &path,
        fs::read_to_string(&path).unwrap().replace(&format!("\"name\":\"{own}"), &format!("\"name\":\"{named}")),
    )
    .unwrap();
    drop(store);
    let store = ImageStore::open(dir.path()).unwrap();
    assert_eq!(store.find(&named).unwrap(), None);
}

/// A tar of files and of links, which are `(name, target, kind)`.
fn linked(files: &[(&str, &[u8])], links: &[(&str, &str, tar::EntryType)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, kind: tar::EntryType, target: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        if !target.is_empty() {
            header.set_link_name(target).unwrap();
        }
        archive.append_data(&mut header, name, content).unwrap();
    };
    files.iter().for_each(|(name, content)| add(name, tar::EntryType::Regular, "", content));
    links.iter().for_each(|(name, target, kind)| add(name, *kind, target, b""));
    archive.into_inner().unwrap()
}

/// The documents of an image of one layer.
fn documents(layer: &[u8]) -> (String, String) {
    let rootfs = json!({"type": "layers", "diff_ids": [digest(layer)]});
    let config = json!({"architecture": "amd64", "os": "linux", "rootfs": rootfs}).to_string();
    let described = |kind: &str, content: &[u8]| json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest(content), "size": content.len()});
    let manifest = json!({"schemaVersion": 2, "config": described("config.v1+json", config.as_bytes()),
        "layers": [described("layer.v1.tar", layer)]});
    (manifest.to_string(), config)
}

fn blob(content: &[u8]) -> String {
    format!("blobs/sha256/{}", digest(content).strip_prefix("sha256:").unwrap())
}

fn index(manifests: &[(&str, &str)]) -> String {
    let entry = |(document, name): &(&str, &str)| {
        json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": document.len(),
            "digest": digest(document.as_bytes()), "annotations": {"io.containerd.image.name": name}})
    };
    json!({"schemaVersion": 2, "manifests": manifests.iter().map(entry).collect::<Vec<_>>()}).to_string()
}

/// Of another's image only the manifest is known: whether the image is present already, or comes later.
#[test]
fn a_manifest_alone_gives_nobody_its_image() {
    let (private, own) = (tar(&[("word", b"private")]), tar(&[("word", b"own")]));
    let ((manifest, config), (_, own_config)) = (documents(&private), documents(&own));
    let (layer, its_config) = (blob(&private), blob(config.as_bytes()));
    let index_of = |name: &str| index(&[(&manifest, name)]);
    let whole = index_of("localhost/private:1");
    let whole = linked(
        &[
            ("index.json", whole.as_bytes()),
            (&blob(manifest.as_bytes()), manifest.as_bytes()),
            (&its_config, config.as_bytes()),
            (&layer, &private),
        ],
        &[],
    );
    for kind in [tar::EntryType::Symlink, tar::EntryType::Link] {
        let up = if kind == tar::EntryType::Symlink { "../../" } else { "" };
        let (to_config, to_layer) = (format!("{up}own.json"), format!("{up}own.tar"));
        let index = index_of("localhost/mine:1");
        let theft = linked(
            &[
                ("index.json", index.as_bytes()),
                (&blob(manifest.as_bytes()), manifest.as_bytes()),
                ("own.json", own_config.as_bytes()),
                ("own.tar", &own),
            ],
            &[(&its_config, &to_config, kind), (&layer, &to_layer, kind)],
        );
        for first in [&theft, &whole] {
            let (dir, store) = store();
            for archive in [first, if first == &theft { &whole } else { &theft }] {
                let loaded = store.load(&archive[..], None);
                assert_eq!(loaded.is_ok(), archive == &whole, "{loaded:?}");
            }
            assert_eq!(store.find("localhost/mine:1").unwrap(), None);
            assert!(store.resolve("localhost/private:1").unwrap().is_some());
            assert_eq!(tree(&dir.path().join("refs")).len(), 1);
        }
    }
}

/// An index refers to content that has the digest.
#[test]
fn no_blob_of_an_archive_is_a_link() {
    let (good, evil) = (tar(&[("word", b"good")]), tar(&[("word", b"evil")]));
    let ((manifest, _), (other, other_config)) = (documents(&good), documents(&evil));
    let name = format!("registry.example/app@{}", digest(manifest.as_bytes()));
    let index = index(&[(&manifest, &name)]);
    let (its_place, evil_config, evil_layer) = (blob(manifest.as_bytes()), blob(other_config.as_bytes()), blob(&evil));
    let files: [(&str, &[u8]); 4] = [
        ("index.json", index.as_bytes()),
        ("evil.json", other.as_bytes()),
        (&evil_config, other_config.as_bytes()),
        (&evil_layer, &evil),
    ];
    for (target, kind) in [("../../evil.json", tar::EntryType::Symlink), ("evil.json", tar::EntryType::Link)] {
        let (_dir, store) = store();
        let error = store.load(&linked(&files, &[(&its_place, target, kind)])[..], None).unwrap_err();
        assert!(matches!(&error, ImageError::Invalid(m) if m.contains("is a link in the archive")), "{error:?}");
        assert_eq!(store.find(&name).unwrap(), None);
    }
}

/// One of two images is invalid: then neither gets a name.
#[test]
fn an_archive_that_fails_leaves_nothing() {
    let (good, bad) = (tar(&[("word", b"good")]), tar(&[("word", b"bad")]));
    let ((manifest, config), (other, other_config)) = (documents(&good), documents(&bad));
    let index = index(&[(&manifest, "localhost/good:1"), (&other, "localhost/bad:1")]);
    let archive = linked(
        &[
            ("index.json", index.as_bytes()),
            (&blob(manifest.as_bytes()), manifest.as_bytes()),
            (&blob(config.as_bytes()), config.as_bytes()),
            (&blob(&good), &good),
            (&blob(other.as_bytes()), other.as_bytes()),
            (&blob(other_config.as_bytes()), other_config.as_bytes()),
            (&blob(&bad), &good),
        ],
        &[],
    );
    let (dir, store) = store();
    let error = store.load(&archive[..], None).unwrap_err();
    assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error:?}");
    for part in ["refs", "layers", "tmp"] {
        assert_eq!(tree(&dir.path().join(part)), [""; 0], "{part}");
    }
}
