//! The table of kinds of volumes: each kind has one row, which answers for it.

use std::{collections::BTreeSet, path::Path};

use k8s_openapi::api::core::v1::Volume;
use podwright::{
    client::Key,
    node::{
        objects::{Changed, What},
        references::References,
        volumes::kinds::{KINDS, Location, Measured, SetUp, find, is_read_only, measured, references_of, shows_pod},
    },
};
use serde_json::{Value, json};

use super::pod;

fn volume(source: Value) -> Volume {
    let mut volume = source;
    volume["name"] = json!("v");
    serde_json::from_value(volume).unwrap()
}

/// Where a volume is, how it is set up, what it counts as, whether it can only be read, whether it shows its Pod, what it refers to.
fn row(volume: &Volume) -> String {
    let row = find(volume).unwrap();
    let location = match row.location {
        Location::PodFolder => "folder".to_owned(),
        Location::PodMemory => "memory".to_owned(),
        Location::Link => "link".to_owned(),
        Location::Host(path) => path(volume).display().to_string(),
    };
    let set_up = match row.set_up {
        SetUp::Once(_) => "once",
        SetUp::Files(_) => "files",
        SetUp::Claim => "claim",
    };
    let pod = pod(json!({ "containers": [], "volumes": [volume] }));
    let mut all = vec![row.field.to_owned(), location, set_up.to_owned(), format!("{:?}", measured(volume))];
    let marks = [("read-only", is_read_only(volume)), ("shows its Pod", shows_pod(&pod)), ("scratch", row.scratch)];
    all.extend(marks.iter().filter(|(_, has)| *has).map(|(word, _)| (*word).to_owned()));
    all.extend(references_of(&pod, volume).iter().map(|(what, name)| format!("{what:?} {name}")));
    all.join(", ")
}

#[test]
fn each_kind_has_its_row() {
    let all = [
        (json!({ "configMap": { "name": "m" } }), "configMap, folder, files, Managed, read-only, ConfigMap m"),
        (json!({ "downwardAPI": {} }), "downwardAPI, memory, files, Nothing, read-only, shows its Pod"),
        (json!({ "emptyDir": {} }), "emptyDir, folder, once, Disk, scratch"),
        (json!({ "emptyDir": { "medium": "Memory" } }), "emptyDir, folder, once, FileSystem, scratch"),
        (json!({ "emptyDir": { "medium": "HugePages" } }), "emptyDir, folder, once, Nothing, scratch"),
        (json!({ "ephemeral": {} }), "ephemeral, link, claim, FileSystem, Claim web-v"),
        (json!({ "hostPath": { "path": "/there" } }), "hostPath, /there, once, Nothing"),
        (
            json!({ "persistentVolumeClaim": { "claimName": "c" } }),
            "persistentVolumeClaim, link, claim, FileSystem, Claim c",
        ),
        (
            json!({ "persistentVolumeClaim": { "claimName": "c", "readOnly": true } }),
            "persistentVolumeClaim, link, claim, FileSystem, read-only, Claim c",
        ),
        (
            json!({ "projected": { "sources": [{ "secret": { "name": "s" } }, { "configMap": { "name": "m" } }] } }),
            "projected, memory, files, Nothing, read-only, Secret s, ConfigMap m",
        ),
        (
            json!({ "projected": { "sources": [{ "downwardAPI": {} }] } }),
            "projected, memory, files, Nothing, read-only, shows its Pod",
        ),
        (json!({ "secret": { "secretName": "s" } }), "secret, memory, files, Nothing, read-only, Secret s"),
    ];
    let mut seen = BTreeSet::new();
    for (source, expected) in all {
        let volume = volume(source);
        let rows: Vec<&str> = KINDS.iter().filter(|row| (row.is)(&volume)).map(|row| row.field).collect();
        assert_eq!(rows.len(), 1, "{rows:?}");
        seen.extend(rows);
        assert_eq!(row(&volume), expected);
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), KINDS.iter().map(|row| row.field).collect::<Vec<_>>());
}

#[test]
fn a_kind_without_a_row_is_nothing_here() {
    for source in [json!({}), json!({ "nfs": { "server": "s", "path": "/p" } }), json!({ "csi": { "driver": "d" } })] {
        let volume = volume(source);
        assert!(find(&volume).is_none());
        assert_eq!((measured(&volume), is_read_only(&volume)), (Measured::Nothing, false));
        assert!(references_of(&pod(json!({ "containers": [] })), &volume).is_empty());
    }
}

#[test]
fn a_pod_hears_of_what_its_volumes_and_environments_refer_to() {
    let pod = pod(json!({
        "containers": [{ "name": "c", "envFrom": [{ "secretRef": { "name": "of-env" } }] }],
        "volumes": [
            { "name": "m", "configMap": { "name": "of-volume" } },
            { "name": "c", "ephemeral": {} },
        ],
    }));
    let mut references = References::default();
    references.put(&pod);
    let hears = |what, namespace, name| !references.to(&Changed { what, key: Key::new(namespace, name) }).is_empty();
    for (what, name) in [(What::ConfigMap, "of-volume"), (What::Secret, "of-env"), (What::Claim, "web-c")] {
        assert!(hears(what, "default", name), "{what:?} {name}");
        assert!(!hears(what, "other", name), "{what:?} of another namespace");
        assert!(!hears(what, "default", "other"));
    }
    for (what, name) in [(What::Secret, "of-volume"), (What::ConfigMap, "of-env"), (What::Secret, "web-c")] {
        assert!(!hears(what, "default", name), "{what:?} {name}");
    }
}

/// What tells kinds of volumes apart beside the table, by the ends of its paths.
const TELLS_KINDS_APART: [&str; 2] = ["volumes/claims.rs", "limits.rs"];

/// `claims` has the sources of PersistentVolumes, `limits` upstream's rule of `sizeLimit`.
#[test]
fn the_rest_of_the_node_knows_no_kind_of_volume() {
    const FIELDS: [&str; 8] = [
        ".host_path",
        ".empty_dir",
        ".downward_api",
        ".projected",
        ".persistent_volume_claim",
        "volume.ephemeral",
        "volume.config_map",
        "volume.secret",
    ];
    let node = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/node");
    let (mut folders, mut wrong) = (vec![node.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.to_string_lossy();
            if path.is_dir() {
                folders.extend((path != node.join("volumes/kinds")).then(|| path.clone()));
            } else if !TELLS_KINDS_APART.iter().any(|end| name.ends_with(end)) {
                let text = std::fs::read_to_string(&path).unwrap();
                let lines = text.lines().filter(|line| FIELDS.iter().any(|field| line.contains(field)));
                wrong.extend(lines.map(|line| format!("{name}: {}", line.trim())));
            }
        }
    }
    assert!(wrong.is_empty(), "these tell kinds of volumes apart, as the table does:\n{}", wrong.join("\n"));
}
