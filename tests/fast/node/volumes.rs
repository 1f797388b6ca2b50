//! The atomic layout of volumes made of API objects.

use std::{fs, path::PathBuf};

use podwright::node::volumes::atomic::{File, Payload, write};

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
