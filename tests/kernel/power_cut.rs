//! Synced files after a power cut: on real file systems, in image files.
//!
//! Copying an image while it is mounted yields the state after a power cut: everything the file system has written to its disk, and
//! nothing of what it still has in memory.

use std::{
    cell::Cell,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use podwright::node::{spec::PodExt, translate::env::Facts};
use podwright_journal::kept;
use podwright_runtime::{IdRange, removals::Removals};
use serde_json::json;

use super::volumes::{opened_with, set_up};

/// How each file system is created, and how a copy of it is mounted beside it.
const FILE_SYSTEMS: [(&str, &[&str], &str); 2] =
    [("xfs", &["mkfs.xfs", "-q"], "loop,nouuid"), ("ext4", &["mkfs.ext4", "-q", "-F"], "loop")];

/// The minimum size for XFS.
const BYTES: u64 = 320 << 20;

/// A mounted image; its loop device is removed with the mount.
struct Mounted(PathBuf);

impl Mounted {
    fn at(image: &Path, folder: PathBuf, fs: &str, options: &str) -> Result<Mounted, String> {
        fs::create_dir_all(&folder).unwrap();
        let done = Command::new("mount").args(["-t", fs, "-o", options]).arg(image).arg(&folder).output().unwrap();
        match done.status.success() {
            true => Ok(Mounted(folder)),
            false => Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(why) = umount2(&self.0, MntFlags::empty()) {
            eprintln!("{} is still mounted: {why}", self.0.display());
        }
    }
}

/// A file system in use, with occasional power cuts.
struct Disk<'a> {
    fs: &'a str,
    options: &'a str,
    image: PathBuf,
    folder: &'a Path,
    used: Mounted,
    /// Each uses a new file: a loop device may keep a previous one's for a while.
    copies: Cell<u32>,
}

impl Disk<'_> {
    /// The contents of these files after a power cut right now.
    fn after_a_cut(&self, names: &[&str]) -> Vec<Option<String>> {
        let n = self.copies.get();
        self.copies.set(n + 1);
        let copy = self.folder.join(format!("copy-{n}"));
        let copied = Command::new("cp").arg("--sparse=always").args([&self.image, &copy]).status().unwrap();
        assert!(copied.success());
        let again = Mounted::at(&copy, self.folder.join(format!("again-{n}")), self.fs, self.options).unwrap();
        let read = |name: &&str| match fs::read_to_string(again.path(name)) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => None,
            read => Some(read.unwrap()),
        };
        names.iter().map(read).collect()
    }

    fn keep(&self, name: &str, text: &str) {
        kept::replace_durably(&self.used.path(name), text.as_bytes()).unwrap();
    }
}

#[test]
fn what_was_awaited_is_there() {
    let tried = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        for (fs, make, options) in FILE_SYSTEMS {
            let folder = tempfile::tempdir().unwrap();
            let image = folder.path().join("image");
            fs::File::create(&image).unwrap().set_len(BYTES).unwrap();
            let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
            let made = Command::new(make[0]).env("PATH", path).args(&make[1..]).arg(&image).output().unwrap();
            assert!(made.status.success(), "{made:?}");
            match Mounted::at(&image, folder.path().join("used"), fs, "loop") {
                Ok(used) => {
                    let disk = Disk { fs, options, image, folder: folder.path(), used, copies: Cell::new(0) };
                    cut(&disk);
                    ids_of_a_pod(&disk);
                }
                Err(why) => crate::missing::here(&format!("no image of {fs} can be mounted here: {why}")),
            }
        }
    });
    tried.join().unwrap();
}

/// Each record has its last synced content: the first one of its folder, and one that replaced another.
fn cut(disk: &Disk<'_>) {
    let fs = disk.fs;
    disk.keep("record", "old");
    disk.keep("of/a/pod/record", "first");
    let found = |text: &str| Some(text.to_owned());
    let names = ["record", "of/a/pod/record", "unawaited"];
    // The last one is not synced: it shows that the power cut works at all.
    fs::write(disk.used.path("unawaited.tmp"), "text").unwrap();
    fs::rename(disk.used.path("unawaited.tmp"), disk.used.path("unawaited")).unwrap();
    let after = disk.after_a_cut(&names);
    assert_eq!(after[..2], [found("old"), found("first")], "{fs}");
    assert_ne!(after[2], found("text"), "{fs}: nothing is lost: this is no power cut");
    disk.keep("record", "new");
    assert_eq!(disk.after_a_cut(&names[..2]), [found("new"), found("first")], "{fs}");
    for n in 0..3 {
        let name = format!("of/pod-{n}/record");
        disk.keep(&name, "text");
        assert_eq!(disk.after_a_cut(&[&name]), [found("text")], "{fs}: {name}");
    }
}

/// Files with a Pod's own ids survive, and so does the record of these ids: it is written before any of them.
fn ids_of_a_pod(disk: &Disk<'_>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let containers = json!([{ "name": "c", "image": "i:1" }]);
        let spec = json!({ "containers": containers, "volumes": [{ "name": "v", "emptyDir": {} }] });
        let (_server, volumes, pod) = opened_with(&disk.used.0, spec, Removals::default()).await;
        set_up(&volumes, &pod, &Facts::default()).await.unwrap();
        let note = format!("pods/{}/owner", pod.uid());
        volumes.note_owner(&pod, Some(IdRange { host: 131072, size: 65536 }), None).unwrap();
        assert_eq!(disk.after_a_cut(&[&note]), [Some("131072+65536.default".to_owned())], "{}", disk.fs);
        volumes.close().unwrap();
    });
}
