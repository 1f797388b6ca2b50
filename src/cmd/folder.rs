//! Which directories belong to podwright, and what in them: `podwright reset` removes nothing else.
//!
//! A directory in use is marked by a file, which lists what was in it before. Older versions made no mark: their directories are
//! recognized by a unique combination of files.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};

use super::paths::Paths;
use crate::server::pki::write_private;

/// The file that marks a directory as podwright's.
pub const MARK: &str = ".podwright";

/// What a node creates in its directories, each a directory of its own.
const NODE: &[&str] =
    &["images", "runtime", "network", "pods", "shims", "journals", "volumes", "log", crate::node::LOCAL_VOLUMES];
/// What a server, or an agent, creates in its directories.
const SERVER: &[&str] = &[
    "store.db",
    "store.db-wal",
    "store.db-shm",
    "store.db.lock",
    "store.db.backup",
    "store.db.draft",
    "pki",
    "agent",
    super::node_name::FILE,
    "admin.kubeconfig",
    "admin.kubeconfig.new",
    "encryption-config.yaml",
    "encryption-config.yaml.new",
    "api.sock",
    PROFILES,
];
/// Temporary files of profiles.
pub const PROFILES: &str = "profiles";
/// Directories that are created empty: their content is the administrator's.
const FOR_OTHERS: &[&str] = &["manifests", "seccomp"];
/// The header of an SQLite file.
const SQLITE: &[u8] = b"SQLite format 3\0";

/// Marks a directory as podwright's. Existing content stays its owner's.
///
/// Fails if it is not podwright's, and has something in it that a node would treat as its own, and remove.
pub fn take(dir: &Path) -> anyhow::Result<()> {
    if is_ours(dir) {
        return mark(dir, &[]);
    }
    let ours = NODE.iter().chain(SERVER);
    let before: Vec<&str> = ours.copied().filter(|name| dir.join(name).symlink_metadata().is_ok()).collect();
    if let Some(name) = before.iter().find(|name| NODE.contains(name) && !is_empty(&dir.join(name))) {
        bail!(
            "{0} is not podwright's (it has no file {MARK}), and has {name:?} in it, where a node keeps its own: give \
             --state-dir an empty folder",
            dir.display()
        );
    }
    mark(dir, &before)
}

/// Creates the directory of the Pods' logs, and marks it unless somebody else has used it before: `/var/log/pods` may be a
/// kubelet's as well.
pub fn take_logs(paths: &Paths) -> anyhow::Result<()> {
    let dir = &paths.logs;
    if dir.starts_with(&paths.state) {
        return Ok(());
    }
    fs::create_dir_all(dir).with_context(|| format!("making the folder {}", dir.display()))?;
    if is_empty(dir) { mark(dir, &[]) } else { Ok(()) }
}

fn mark(dir: &Path, before: &[&str]) -> anyhow::Result<()> {
    let file = dir.join(MARK);
    if file.symlink_metadata().is_ok() {
        return Ok(());
    }
    let mut text =
        "# podwright's folder: `podwright reset` removes what podwright makes in it, and this file.\n".to_owned();
    if !before.is_empty() {
        text += "# What was here before, and stays:\n";
        text.extend(before.iter().flat_map(|name| [*name, "\n"]));
    }
    write_private(&file, &text)
}

/// Whether podwright has created or marked the directory.
pub fn is_ours(dir: &Path) -> bool {
    is_file(&dir.join(MARK)) || is_older(dir)
}

/// Whether a version without marks created it: it has the store with its lock, or a node's image store and runtime.
fn is_older(dir: &Path) -> bool {
    let begins = |file: &Path| {
        let mut start = [0; SQLITE.len()];
        File::open(file).and_then(|mut file| file.read_exact(&mut start)).is_ok_and(|()| start == SQLITE)
    };
    let server = || {
        let store = dir.join("store.db");
        is_file(&dir.join("store.db.lock")) && is_file(&store) && begins(&store)
    };
    let node = || {
        let folders = ["images/blobs/sha256", "images/layers", "images/refs", "runtime/sandboxes"];
        is_file(&dir.join("images/lock")) && folders.iter().all(|folder| is_folder(&dir.join(folder)))
    };
    server() || node()
}

/// What `reset` removes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Files, and directories with their content.
    pub whole: Vec<PathBuf>,
    /// Directories to remove when empty, inner ones first.
    pub emptied: Vec<PathBuf>,
    /// What existed before podwright, or belongs to others.
    pub stays: Vec<PathBuf>,
}

/// What podwright has created in a node's directories, as far as it exists.
pub fn holdings(paths: &Paths) -> anyhow::Result<Holdings> {
    let mut all = Holdings::default();
    let there = |path: &PathBuf| path.symlink_metadata().is_ok();
    let folders = if paths.run == paths.state { vec![&paths.state] } else { vec![&paths.state, &paths.run] };
    for dir in folders {
        let before = before(dir)?;
        let found = NODE.iter().chain(SERVER).map(|name| (name, dir.join(name))).filter(|(_, path)| there(path));
        for (name, path) in found {
            let list = if before.iter().any(|kept| kept == name) { &mut all.stays } else { &mut all.whole };
            list.push(path);
        }
        all.emptied.extend(FOR_OTHERS.iter().map(|name| dir.join(name)).filter(|path| there(path)));
        // Last: until then the directory remains recognizable.
        all.emptied.push(dir.clone());
    }
    if !paths.logs.starts_with(&paths.state) && there(&paths.logs) {
        let list = if is_file(&paths.logs.join(MARK)) { &mut all.whole } else { &mut all.stays };
        list.push(paths.logs.clone());
    }
    Ok(all)
}

/// What was in a directory before podwright marked it.
fn before(dir: &Path) -> anyhow::Result<Vec<String>> {
    let file = dir.join(MARK);
    match fs::read_to_string(&file) {
        Ok(text) => Ok(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(why) => Err(why).with_context(|| file.display().to_string()),
    }
}

/// Removes a directory's mark and the directory, if it is otherwise empty; returns whether it was removed.
pub fn give_up(dir: &Path) -> io::Result<bool> {
    let gone = |done: io::Result<()>| match done {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    gone(fs::remove_file(dir.join(MARK)))?;
    match gone(fs::remove_dir(dir)) {
        // A mount point goes with its mount.
        Err(why) if matches!(why.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::ResourceBusy) => Ok(false),
        done => done.map(|()| true),
    }
}

fn is_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file())
}

fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
}

fn is_empty(dir: &Path) -> bool {
    is_folder(dir) && fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(dir: &Path) -> Paths {
        Paths {
            run: dir.to_owned(),
            logs: dir.join("log"),
            manifests: dir.join("manifests"),
            cgroup_root: "/podwright-test".into(),
            state: dir.to_owned(),
        }
    }

    /// A directory with these files.
    fn with(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "precious").unwrap();
        }
        dir
    }

    #[test]
    fn folders_of_others_are_not_podwrights() {
        for files in [
            &["images/logo.png", "src/main.c"][..],
            &["images/a", "pods/b", "mine"],
            &["pki/ca.crt", "manifests/kube-apiserver.yaml"],
            &["network/files/local-kv.db", "containers/x", "image/overlay2/y", "volumes/z"],
            &["store.db", "runtime/x"],
            &["store.db", "store.db.lock"],
            &[".podwright/x", "images/a"],
        ] {
            let dir = with(files);
            assert!(!is_ours(dir.path()), "{files:?}");
        }
    }

    #[test]
    fn a_node_does_not_take_a_folder_that_has_what_it_would_clear() {
        let dir = with(&["images/tmp/logo.png", "src/main.c"]);
        let why = take(dir.path()).unwrap_err().to_string();
        assert!(why.contains("is not podwright's") && why.contains("\"images\""), "{why}");
        assert!(!is_ours(dir.path()));
        // An empty one is treated like none.
        let dir = with(&["src/main.c"]);
        fs::create_dir(dir.path().join("images")).unwrap();
        take(dir.path()).unwrap();
        assert!(is_ours(dir.path()));
    }

    #[test]
    fn what_was_there_before_stays() {
        let dir = with(&["pki/ca.crt", "notes", "manifests/web.yaml"]);
        take(dir.path()).unwrap();
        take(dir.path()).unwrap();
        fs::write(dir.path().join("store.db"), "").unwrap();
        fs::create_dir(dir.path().join("seccomp")).unwrap();
        let at = |names: &[&str]| names.iter().map(|name| dir.path().join(name)).collect::<Vec<_>>();
        let expected = Holdings {
            whole: at(&["store.db"]),
            emptied: [at(&["manifests", "seccomp"]), vec![dir.path().to_owned()]].concat(),
            stays: at(&["pki"]),
        };
        assert_eq!(holdings(&below(dir.path())).unwrap(), expected);
        assert!(!give_up(&dir.path().join("manifests")).unwrap());
        assert!(give_up(&dir.path().join("seccomp")).unwrap());
        assert!(!give_up(dir.path()).unwrap() && !is_file(&dir.path().join(MARK)));
    }

    #[test]
    fn folders_of_older_versions_are_known() {
        let node = with(&["images/lock"]);
        for folder in ["images/blobs/sha256", "images/layers", "images/refs", "runtime/sandboxes"] {
            assert!(!is_ours(node.path()), "without {folder}");
            fs::create_dir_all(node.path().join(folder)).unwrap();
        }
        let server = with(&["store.db.lock"]);
        fs::write(server.path().join("store.db"), SQLITE).unwrap();
        for dir in [node, server] {
            take(dir.path()).unwrap();
            assert!(is_file(&dir.path().join(MARK)) && before(dir.path()).unwrap().is_empty());
        }
    }

    #[test]
    fn logs_of_a_kubelet_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let of = |logs: &str| Paths { logs: dir.path().join(logs), ..below(&dir.path().join("state")) };
        take_logs(&of("own")).unwrap();
        fs::create_dir_all(dir.path().join("kubelets/kube-system_etcd_1")).unwrap();
        take_logs(&of("kubelets")).unwrap();
        assert_eq!(holdings(&of("own")).unwrap().whole, [dir.path().join("own")]);
        assert_eq!(holdings(&of("kubelets")).unwrap().stays, [dir.path().join("kubelets")]);
    }
}
