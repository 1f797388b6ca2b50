//! A backup of the older program becomes a store of the newer one.

use std::fs;

use super::{Older, TIMEOUT};
use crate::support::{TestNode, contains, eventually};

#[test]
fn a_backup_of_the_older_program_is_restored_and_none_of_the_newer_by_the_older() {
    let Some(older) = Older::here() else { return };
    let mut old = TestNode::of_control_plane(&[]);
    older.takes(&mut old);
    old.spawn();
    old.wait_answering();
    old.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: kept}, data: {word: before}}");
    old.apply("{apiVersion: v1, kind: Secret, metadata: {name: hidden}, stringData: {word: sesame}}");
    let uid = old.field(&["cm", "kept"], ".metadata.uid");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    // By the older client as well: it is what the operator has at that time.
    let made = older.client(&old, &["backup", &file("old")], "");
    assert_eq!(made.code, 0, "{}", made.all());

    let mut new = TestNode::of_control_plane(&["--restore", &file("old")]);
    let keys = "encryption-config.yaml";
    fs::copy(old.dir.path().join(keys), new.dir.path().join(keys)).unwrap();
    new.spawn();
    new.wait_answering();
    assert_eq!(new.field(&["cm", "kept"], ".metadata.uid"), uid);
    assert_eq!(new.field(&["secret", "hidden"], ".data.word"), "c2VzYW1l");
    new.ok(&["backup", &file("new")]);

    let mut back = TestNode::of_control_plane(&["--restore", &file("new")]);
    fs::copy(old.dir.path().join(keys), back.dir.path().join(keys)).unwrap();
    older.takes(&mut back);
    back.spawn();
    eventually("it refuses to start", TIMEOUT, || contains(&back.log(), "the store's layout has version 2, not 1"));
    back.wait_ended();
    assert!(!back.dir.path().join("store.db").exists());
}
