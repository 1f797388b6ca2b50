//! The atomic layout of volumes made of API objects.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{KeyToPath, Secret};
use podwright::node::{
    translate::env::Sources,
    volumes::{
        atomic::{File, PAGE, Payload, fingerprint, takes, write},
        kinds::secret,
        payload::Room,
    },
};

use super::at;

fn payload(files: &[(&str, &str)]) -> Payload {
    let file = |data: &str| File { data: data.as_bytes().to_vec(), mode: 0o644, uid: None };
    files.iter().map(|(path, data)| (PathBuf::from(path), file(data))).collect()
}

#[test]
fn files_change_all_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    assert!(write(root, &payload(&[("a", "1"), ("sub/b", "2")]), None, at(1)).unwrap());
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "1");
    assert_eq!(fs::read_to_string(root.join("sub/b")).unwrap(), "2");
    assert_eq!(fs::read_link(root.join("a")).unwrap(), PathBuf::from("..data/a"));
    let first = fs::read_link(root.join("..data")).unwrap();

    assert!(!write(root, &payload(&[("a", "1"), ("sub/b", "2")]), None, at(2)).unwrap(), "nothing changed");
    assert_eq!(fs::read_link(root.join("..data")).unwrap(), first);

    assert!(write(root, &payload(&[("a", "new"), ("c", "3")]), None, at(3)).unwrap());
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "new");
    let mut names: Vec<String> =
        fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let second = fs::read_link(root.join("..data")).unwrap().to_string_lossy().into_owned();
    let mut expected = vec!["..data".to_owned(), second, "a".to_owned(), "c".to_owned()];
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn paths_stay_inside() {
    let folder = tempfile::tempdir().unwrap();
    for bad in ["../x", "/x", "..data", "a/../../x", ""] {
        assert!(write(folder.path(), &payload(&[(bad, "")]), None, at(1)).is_err(), "{bad}");
    }
}

/// Whoever wrote a volume may have been killed at any point, and others may have been at it since: what is there counts, not that
/// `..data` leads to the right content.
#[test]
fn whatever_is_damaged_is_written_again() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 11] = [
        ("a link is missing", |root| fs::remove_file(root.join("a")).unwrap()),
        ("all links are missing", |root| {
            ["a", "sub"].iter().for_each(|name| fs::remove_file(root.join(name)).unwrap())
        }),
        ("a link leads elsewhere", |root| {
            fs::remove_file(root.join("a")).unwrap();
            symlink("/etc/passwd", root.join("a")).unwrap();
        }),
        ("a file stands where a link should", |root| {
            fs::remove_file(root.join("a")).unwrap();
            fs::write(root.join("a"), "1").unwrap();
        }),
        ("a folder stands where a link should", |root| {
            fs::remove_file(root.join("sub")).unwrap();
            fs::create_dir(root.join("sub")).unwrap();
            fs::write(root.join("sub/b"), "2").unwrap();
        }),
        ("..data is missing", |root| fs::remove_file(root.join("..data")).unwrap()),
        ("..data is a folder", |root| {
            fs::remove_file(root.join("..data")).unwrap();
            fs::create_dir(root.join("..data")).unwrap();
            fs::write(root.join("..data/a"), "1").unwrap();
        }),
        ("a file is shorter", |root| fs::write(root.join("..data/a"), "").unwrap()),
        ("a file is gone", |root| fs::remove_file(root.join("..data/sub/b")).unwrap()),
        ("a file has another mode", |root| {
            fs::set_permissions(root.join("..data/a"), fs::Permissions::from_mode(0o600)).unwrap();
        }),
        ("a writer was killed half-way", |root| {
            fs::create_dir(root.join("..2001_01_01_00_00_00.000000000")).unwrap();
            fs::write(root.join("..2001_01_01_00_00_00.000000000/a"), "").unwrap();
            symlink("..2001_01_01_00_00_00.000000000", root.join("..data_tmp")).unwrap();
        }),
    ];
    for (n, (what, damage)) in damages.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let wanted = payload(&[("a", "1"), ("sub/b", "2")]);
        write(root, &wanted, None, at(1)).unwrap();
        let whole = fingerprint(root);
        assert_eq!(fingerprint(root), whole, "{what}");
        damage(root);
        assert_ne!(fingerprint(root), whole, "{what}: not noticed");
        assert!(write(root, &wanted, None, at(10 + n as i64)).unwrap(), "{what}");
        assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "1", "{what}");
        assert_eq!(fs::read_to_string(root.join("sub/b")).unwrap(), "2", "{what}");
        for (name, leads) in [("a", "..data/a"), ("sub", "..data/sub")] {
            assert_eq!(fs::read_link(root.join(name)).unwrap(), PathBuf::from(leads), "{what}");
        }
        assert_eq!(fs::metadata(root.join("a")).unwrap().permissions().mode() & 0o777, 0o644, "{what}");
        assert_eq!(fs::read_dir(root).unwrap().count(), 4, "{what}: ..data, what it leads to, two links");
        assert!(!write(root, &wanted, None, at(99)).unwrap(), "{what}: it is as it should be");
    }
}

#[test]
fn every_folder_and_link_is_counted_once() {
    let pages = |files: &[(&str, &str)]| takes(&payload(files)) / PAGE;
    let large = "x".repeat(2 * PAGE + 1);
    assert_eq!(pages(&[]), 3);
    assert_eq!(pages(&[("a", "1")]), 3 + 2);
    assert_eq!(pages(&[("a", "1"), ("b", &large)]), 3 + 2 + 4);
    assert_eq!(pages(&[("d/e/a", ""), ("d/e/b", ""), ("d/f", "")]), 3 + 1 + 2 + 3);
    // What was counted is what there is: the timestamped folder and its link, files, folders, links, and the volume's own.
    let files = [("d/e/a", "1"), ("d/e/b", "2"), ("d/f", "3"), ("d-/x", "4"), ("g", "5"), ("h/i/j/k", "6")];
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &payload(&files), None, at(1)).unwrap();
    assert_eq!(fingerprint(folder.path()).looks, pages(&files));
}

#[test]
fn folders_of_items_count_for_the_room_of_their_pod() {
    let mut sources = Sources::default();
    let object = Secret { data: Some([("k".to_owned(), Default::default())].into()), ..Secret::default() };
    sources.secrets.insert("s".to_owned(), object.into());
    let show = |items: usize, folders: usize| {
        let item = |n: usize| KeyToPath {
            key: "k".to_owned(),
            path: format!("{n}/{}f", "d/".repeat(folders - 1)),
            mode: None,
        };
        let items: Vec<KeyToPath> = (0..items).map(item).collect();
        secret::files(&sources, "s", Some(&items), None, None, &mut Room::default()).map(|payload| payload.len())
    };
    assert_eq!(show(1000, 15).unwrap(), 1000);
    assert_eq!(show(1, 63).unwrap(), 1);
    assert_eq!(show(1, 400).unwrap_err().to_string(), "a path of 401 elements, more than 64");
    assert_eq!(
        show(1800, 15).unwrap_err().to_string(),
        "the Pod's volumes show more than 67108864 bytes of API objects"
    );
}
