//! Every lab passes as it is written, each of its checks can fail, and nothing is left of it.

use std::{
    path::Path,
    process::{Command, Output},
    sync::Mutex,
};

use crate::support::{leftovers::Machine, node::binary};

/// How many labs run at a time; each is a node or two.
const TOGETHER: usize = 3;

fn lab(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(binary()).args(["lab", "--folder"]).arg(folder).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_lab_passes_and_each_of_its_checks_can_fail() {
    let folder = tempfile::Builder::new().prefix("pw").tempdir().unwrap();
    let untouched = Machine::untouched(folder.path());
    let listed = text(&lab(folder.path(), &["list"]).stdout);
    let names: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"01-create-pod"), "{listed}");
    let (left, failed) = (Mutex::new(names), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                while let Some(name) = { left.lock().unwrap().pop() } {
                    let ran = lab(folder.path(), &["run", name, "--prove", "--timeout", "120s"]);
                    if !ran.status.success() {
                        failed.lock().unwrap().push(format!("{name}: {}{}", text(&ran.stdout), text(&ran.stderr)));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a lab leaves its folder");
    untouched.assert_unchanged();
}
