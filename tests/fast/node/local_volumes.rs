//! Folders of volumes on a node: what is asked of it, what is made and removed, and what an agent that ends half way leaves.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use k8s_openapi::api::core::v1::PersistentVolume;
use podwright::{
    api::patch,
    node::volumes::local::{Deed, Folders, Identity, LocalError, deed},
};
use serde_json::{Value, json};

const NAME: &str = "pvc-0a1b";

fn identity(uid: &str) -> Identity {
    Identity { name: NAME.into(), uid: uid.into() }
}

fn volume(changes: Value) -> PersistentVolume {
    let base = json!({
        "metadata": { "name": NAME, "uid": "v1", "labels": { "podwright.dev/node": "n1" },
            "annotations": { "pv.kubernetes.io/provisioned-by": "podwright.dev/local" },
            "finalizers": ["podwright.dev/local-volume"] },
        "spec": { "capacity": { "storage": "1Ki" }, "persistentVolumeReclaimPolicy": "Delete",
            "local": { "path": "/etc" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [
                { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] }] } } },
    });
    serde_json::from_value(patch::merge(&base, &changes)).unwrap()
}

#[test]
fn what_is_deleted_is_removed_by_the_node_that_keeps_it() {
    let ending = json!({ "metadata": { "deletionTimestamp": "2026-11-23T10:00:00Z" } });
    let of = |change: Value| volume(patch::merge(&ending, &change));
    assert_eq!(deed(&volume(json!({})), "n1"), Some(Deed::Limit(identity("v1"), Some(1024))));
    assert_eq!(deed(&of(json!({})), "n1"), Some(Deed::Remove(identity("v1"))));
    let terms = |term: Value| json!({ "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } } } });
    for (why, change) in [
        (
            "it is bound",
            json!({ "metadata": { "finalizers": ["kubernetes.io/pv-protection", "podwright.dev/local-volume"] } }),
        ),
        ("its node is done with it", json!({ "metadata": { "finalizers": ["x.io/other"] } })),
        ("it is to be retained", json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } })),
        (
            "another has made it",
            json!({ "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": "x.io/other" } } }),
        ),
        ("its name leads out", json!({ "metadata": { "name": "../../etc" } })),
        ("its name is no volume's", json!({ "metadata": { "name": "etc" } })),
        ("it is another node's", json!({ "metadata": { "labels": { "podwright.dev/node": "n2" } } })),
        (
            "others reach it",
            terms(json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1", "n2"] }] })),
        ),
        (
            "a label says where it is",
            terms(
                json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"] }] }),
            ),
        ),
    ] {
        assert_eq!(deed(&of(change), "n1"), None, "{why}");
    }
    assert_eq!(deed(&of(json!({})), "n2"), None);
}

fn names(folder: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn a_volume_is_made_once_and_removed_with_all_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("local-volumes");
    let folders = Folders::open(root.clone()).unwrap();
    let made = folders.make(&identity("v1"), Some(1 << 20)).unwrap();
    assert!(made.fresh);
    let data = folders.data(NAME);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&root), mode(&root.join(NAME)), mode(&data)), (0o700, 0o700, 0o777));
    fs::write(data.join("file"), "text").unwrap();
    // A second Pod, and a later agent, find what is there.
    assert!(!folders.make(&identity("v1"), None).unwrap().fresh);
    let folders = Folders::open(root.clone()).unwrap();
    folders.tidy().unwrap();
    assert!(!folders.make(&identity("v1"), None).unwrap().fresh);
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "text");
    // Links lead to what is not the volume's.
    let outside = dir.path().join("outside");
    fs::create_dir_all(outside.join("folder")).unwrap();
    fs::write(outside.join("folder/canary"), "sings").unwrap();
    let before = fs::metadata(outside.join("folder/canary")).unwrap();
    symlink(&outside, data.join("link")).unwrap();
    symlink("../../../outside/folder", data.join("relative")).unwrap();
    symlink("/", data.join("root")).unwrap();
    fs::create_dir(data.join("deep")).unwrap();
    symlink(outside.join("folder"), data.join("deep/link")).unwrap();
    fs::hard_link(outside.join("folder/canary"), data.join("hard")).unwrap();
    let used = folders.remove(&identity("v1"), || Some("web".into())).unwrap_err();
    assert!(matches!(&used, LocalError::InUse(pod) if pod == "web"), "{used}");
    assert!(data.join("file").exists());
    folders.remove(&identity("v1"), || None).unwrap();
    assert_eq!(names(&root), Vec::<String>::new());
    assert_eq!(fs::read_to_string(outside.join("folder/canary")).unwrap(), "sings");
    let after = fs::metadata(outside.join("folder/canary")).unwrap();
    assert_eq!((after.mode(), after.uid(), after.nlink()), (before.mode(), before.uid(), 1));
    // Once more is fine, and no Pod that was on its way makes it again.
    folders.remove(&identity("v1"), || None).unwrap();
    assert!(matches!(folders.make(&identity("v1"), None), Err(LocalError::Deleted)));
}

#[test]
fn what_an_agent_left_half_done_is_finished_or_removed() {
    let dir = tempfile::tempdir().unwrap();
    let folders = Folders::open(dir.path().to_owned()).unwrap();
    // It ended while it made a volume, and while it removed another: between any two of its files.
    let half = dir.path().join(format!(".new-{NAME}"));
    for step in ["", "data", "volume.json"] {
        fs::create_dir_all(&half).unwrap();
        match step {
            "data" => fs::create_dir(half.join("data")).unwrap(),
            "volume.json" => fs::write(half.join(step), "{").unwrap(),
            _ => {}
        }
        assert!(folders.make(&identity("v1"), None).unwrap().fresh, "{step}");
        assert_eq!(names(dir.path()), [NAME], "{step}");
        fs::rename(dir.path().join(NAME), dir.path().join(format!(".gone-{NAME}"))).unwrap();
        fs::write(dir.path().join(format!(".gone-{NAME}/data/left")), "").unwrap();
        fs::create_dir(&half).unwrap();
        folders.tidy().unwrap();
        assert_eq!(names(dir.path()), Vec::<String>::new(), "{step}");
    }
    // The object still waits for it: that it has gone is found.
    folders.make(&identity("v1"), None).unwrap();
    fs::rename(dir.path().join(NAME), dir.path().join(format!(".gone-{NAME}"))).unwrap();
    folders.remove(&identity("v1"), || None).unwrap();
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn what_is_not_the_volume_is_neither_used_nor_removed() {
    let dir = tempfile::tempdir().unwrap();
    let folders = Folders::open(dir.path().to_owned()).unwrap();
    let at = dir.path().join(NAME);
    let both = |words: &str| {
        for said in [folders.make(&identity("v1"), None).map(drop), folders.remove(&identity("v1"), || None)] {
            let said = said.unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
    };
    fs::create_dir_all(at.join("data")).unwrap();
    fs::write(at.join("data/file"), "mine").unwrap();
    both("is not of this node's making: volume.json");
    fs::write(at.join("volume.json"), "rubbish").unwrap();
    both("is not of this node's making: volume.json");
    fs::write(at.join("volume.json"), serde_json::to_vec(&identity("v0")).unwrap()).unwrap();
    both("with the uid v0, not v1");
    assert_eq!(fs::read_to_string(at.join("data/file")).unwrap(), "mine");
    fs::rename(&at, dir.path().join("elsewhere")).unwrap();
    symlink(dir.path().join("elsewhere"), &at).unwrap();
    both("is not a directory");
    fs::remove_file(&at).unwrap();
    fs::rename(dir.path().join("elsewhere"), &at).unwrap();
    fs::write(at.join("volume.json"), serde_json::to_vec(&identity("v1")).unwrap()).unwrap();
    // Its data was lost: what comes in its place would be an empty volume that looks like it.
    fs::remove_dir_all(at.join("data")).unwrap();
    let why = folders.make(&identity("v1"), None).unwrap_err();
    assert_eq!(why.to_string(), format!("path \"{}\" does not exist", at.join("data").display()));
    for name in ["../pvc-a", "pvc-a/../..", "", "data", "pvc-A"] {
        let named = Identity { name: name.into(), uid: "v1".into() };
        assert!(matches!(folders.make(&named, None), Err(LocalError::NotAName(_))), "{name}");
        assert!(matches!(folders.remove(&named, || None), Err(LocalError::NotAName(_))), "{name}");
    }
}

#[test]
fn a_file_system_without_quotas_says_that_nothing_holds_the_volume() {
    // tmpfs counts no projects.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let folders = Folders::open(dir.path().to_owned()).unwrap();
    let made = folders.make(&identity("v1"), Some(1 << 20)).unwrap();
    assert!(made.limited.unwrap_err().to_string().ends_with("its file system has no project quotas"));
}
