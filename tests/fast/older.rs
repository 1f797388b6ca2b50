//! `./dev older` where this repository's history is not there: it says which commit is missing and how to get it, and builds nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn git(folder: &Path, args: &[&str]) {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]).args(args);
    let done = git.current_dir(folder).output().expect("git is installed");
    assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A folder with what `./dev` needs to begin.
fn copied(into: &Path) -> PathBuf {
    fs::create_dir(into).unwrap();
    for file in ["dev", "Cargo.toml"] {
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(file), into.join(file)).unwrap();
    }
    into.to_owned()
}

#[test]
fn a_clone_without_the_older_commit_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let files = copied(&folder.path().join("files"));
    let whole = copied(&folder.path().join("whole"));
    git(&whole, &["init", "--quiet"]);
    git(&whole, &["add", "."]);
    for message in ["one", "two"] {
        git(&whole, &["commit", "--quiet", "--allow-empty", "-m", message]);
    }
    let shallow = folder.path().join("shallow");
    let from = format!("file://{}", whole.display());
    git(folder.path(), &["clone", "--quiet", "--depth", "1", &from, "shallow"]);
    let commit = include_str!("../../dev").lines().find_map(|line| line.strip_prefix("older_commit=")).unwrap();
    for (clone, advice) in [
        (&shallow, "This clone is shallow. Get its history: git fetch --unshallow".to_owned()),
        (&whole, format!("Get it: git fetch origin {commit}")),
        (&files, "This is no clone of the repository, but a copy of its files. Clone it.".to_owned()),
    ] {
        let mut dev = Command::new("./dev");
        dev.arg("older")
            .current_dir(clone)
            .env("GIT_CEILING_DIRECTORIES", folder.path())
            .env_remove("CARGO_TARGET_DIR");
        let said = dev.output().unwrap();
        let wanted = format!("./dev test: the tests upgrade from the commit {commit}, which is not here.\n{advice}\n");
        assert_eq!((String::from_utf8_lossy(&said.stderr).as_ref(), said.status.code()), (wanted.as_str(), Some(1)));
        assert!(!clone.join("target").exists());
    }
}
