//! Counting what a folder holds, whatever is made there while it is counted.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};
use podwright_runtime::sys::{
    tree::remove_all,
    unlinked::unlinked,
    walk::{Measure, measure},
};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, renameat};

fn count(path: &Path) -> std::io::Result<Measure> {
    measure(path, Duration::from_secs(60))
}

/// What it costs is left out.
fn nameless(pids: &[u32], own: &str) -> Measure {
    held(&[pids], own, Path::new("/")).remove(0)
}

fn held(containers: &[&[u32]], own: &str, disk: &Path) -> Vec<Measure> {
    let containers: Vec<Vec<u32>> = containers.iter().map(|pids| pids.to_vec()).collect();
    let found = unlinked(&containers, own, disk, Duration::from_secs(60));
    found.into_iter().map(|held| Measure { cost: Duration::ZERO, ..held }).collect()
}

fn blocks(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().blocks() * 512
}

fn bytes(length: usize) -> Vec<u8> {
    vec![7; length]
}

#[test]
fn blocks_are_counted_once_an_inode_and_links_and_mounts_are_not_followed() {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let (outside, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("big"), bytes(9 << 20)).unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::create_dir(at("bound")).unwrap();
        fs::write(at("a/b/file"), bytes(1 << 20)).unwrap();
        for n in 0..50 {
            fs::hard_link(at("a/b/file"), at(&format!("a/link-{n}"))).unwrap();
        }
        symlink(outside.path(), at("elsewhere")).unwrap();
        symlink(outside.path().join("big"), at("a/big")).unwrap();
        // A hole of a tebibyte costs nothing.
        let sparse = File::create(at("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        sparse.write_at(b"end", (1 << 40) - 3).unwrap();
        sparse.sync_all().unwrap();
        File::open(at("a/b/file")).unwrap().sync_all().unwrap();
        let paths = ["", "a", "a/b", "a/b/file", "elsewhere", "a/big", "sparse"];
        let wanted: u64 = paths.iter().map(|path| blocks(&at(path))).sum();
        let bind = MsFlags::MS_BIND;
        mount(Some(outside.path()), &at("bound"), None::<&str>, bind, None::<&str>).unwrap();
        let counted = count(folder.path()).unwrap();
        umount(&at("bound")).unwrap();
        assert_eq!((counted.inodes, counted.bytes, counted.evades), (paths.len() as u64, wanted, false));
        assert!(wanted < 3 << 20, "{wanted}");
        let one = count(&at("a/b/file")).unwrap();
        assert_eq!((one.inodes, one.bytes), (1, blocks(&at("a/b/file"))));
        assert_eq!(count(&at("elsewhere")).unwrap().inodes, 1);
        assert_eq!(count(&at("missing")).unwrap().inodes, 0);
    });
    thread.join().unwrap();
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// `depth` folders one within the other, each with a file.
fn nest(path: &Path, depth: usize) {
    let mut at = openat(CWD, path, FOLDER, Mode::empty()).unwrap();
    for _ in 0..depth {
        openat(&at, "f", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RWXU).unwrap();
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = openat(&at, "d", FOLDER, Mode::empty()).unwrap();
    }
}

#[test]
fn neither_depth_nor_number_stops_the_count() {
    let folder = tempfile::tempdir().unwrap();
    let (deep, wide) = (folder.path().join("deep"), folder.path().join("wide"));
    fs::create_dir(&deep).unwrap();
    nest(&deep, 20_000);
    let small = std::thread::Builder::new().stack_size(128 << 10);
    let path = deep.clone();
    let counted = small.spawn(move || count(&path)).unwrap().join().unwrap();
    remove_all(&deep).unwrap();
    let counted = counted.unwrap();
    assert_eq!((counted.inodes, counted.evades), (40_001, false));
    for name in 0..30 {
        let inner = wide.join(name.to_string());
        fs::create_dir_all(&inner).unwrap();
        (0..1000).for_each(|file| drop(File::create(inner.join(format!("{file:0>200}"))).unwrap()));
    }
    let counted = count(&wide).unwrap();
    assert_eq!((counted.inodes, counted.evades), (30_031, false));
}

#[test]
fn what_is_deleted_and_still_open_is_counted_once_where_it_is_the_pods_own() {
    let folder = tempfile::tempdir().unwrap();
    let me = [std::process::id()];
    let path = folder.path().join("big");
    let named = count(folder.path()).unwrap().bytes;
    let before = nameless(&me, "").bytes;
    let file = File::create(&path).unwrap();
    let _again = file.try_clone().unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all_at(&bytes(4 << 20), 0).unwrap();
    file.sync_all().unwrap();
    // A file in memory is no use of a disk.
    let memory = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    File::from(memory.try_clone().unwrap()).write_all_at(&bytes(9 << 20), 0).unwrap();
    assert_eq!(count(folder.path()).unwrap().bytes, named, "no walk sees it");
    let grown = nameless(&[me[0], me[0]], "").bytes - before;
    // Other tests of this process may hold a file of theirs.
    assert!((4 << 20..8 << 20).contains(&grown), "{grown}");
    assert_eq!(nameless(&me, "no such folder"), Default::default());
    drop((file, _again));
    assert!(nameless(&me, "").bytes < before + (4 << 20));
    assert_eq!(nameless(&[u32::MAX], ""), Default::default());
}

/// In a mount namespace of its own: what it returns may outlive that.
fn elsewhere<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let run = || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// A file of so many MiB that was deleted.
fn deleted(path: &Path, mib: usize) -> File {
    let file = File::create_new(path).unwrap();
    fs::remove_file(path).unwrap();
    file.write_all_at(&bytes(mib << 20), 0).unwrap();
    file.sync_all().unwrap();
    file
}

/// Who was handed a file has it, wherever that was opened: by a neighbour, or by a container that has ended since.
#[test]
fn what_was_handed_on_counts_against_its_holder_if_it_is_on_the_nodes_disk() {
    let (folder, memory) = (tempfile::tempdir_in("/var/tmp").unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let at = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let (bound, root) = (at("bound"), at("root"));
    let [lower, upper, work] = ["lower", "upper", "work"].map(at);
    let layers = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    // All three mounts go with their namespace; the files keep them.
    let [on_disk, on_overlay, in_memory] = elsewhere(|| {
        mount(Some(&bound), &bound, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        mount(Some("overlay"), &root, Some("overlay"), MsFlags::empty(), Some(layers.as_str())).unwrap();
        mount(Some("memory"), &lower, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        [deleted(&bound.join("a"), 4), deleted(&root.join("b"), 8), deleted(&lower.join("c"), 16)]
    });
    let hold = |stdin: &File, stdout: &File| {
        let mut sleep = std::process::Command::new("sleep");
        sleep.arg("100").stdin(stdin.try_clone().unwrap()).stdout(stdout.try_clone().unwrap()).spawn().unwrap()
    };
    let mut children = [hold(&on_disk, &in_memory), hold(&on_disk, &on_overlay)];
    let [one, other] = [0, 1].map(|n| children[n].id());
    let mib = |containers: &[&[u32]], disk: &Path| -> Vec<u64> {
        held(containers, "no such folder", disk).iter().map(|held| held.bytes >> 20).collect()
    };
    let (disk, memory) = (folder.path(), memory.path());
    let found = [mib(&[&[one], &[other]], disk), mib(&[&[other], &[one]], disk), mib(&[&[one, other]], memory)];
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(found, [vec![4, 8], vec![12, 0], vec![8]]);
}

/// A file of known size among folders that come, go and move all the time: it is counted, once, and nothing breaks.
#[test]
fn what_changes_while_it_is_counted_breaks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("still")).unwrap();
    fs::write(at("still/file"), bytes(4 << 20)).unwrap();
    ["x", "y"].iter().for_each(|name| fs::create_dir(at(name)).unwrap());
    for n in 0..200 {
        fs::create_dir(at("x").join(n.to_string())).unwrap();
        fs::write(at("x").join(n.to_string()).join("f"), bytes(4096)).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for n in 0..200 {
                    let (x, y) = (at("x").join(n.to_string()), at("y").join(n.to_string()));
                    let _ = fs::rename(&x, &y).or_else(|_| fs::rename(&y, &x));
                    let passing = at("x").join(format!("passing-{n}"));
                    let _ = fs::create_dir(&passing).and_then(|()| fs::remove_dir(&passing));
                }
            }
        });
        for _ in 0..100 {
            let counted = count(folder.path());
            if !counted.as_ref().is_ok_and(|c| c.bytes >= 4 << 20 && c.inodes <= 640 && !c.evades) {
                stop.store(true, Ordering::Relaxed);
            }
            let counted = counted.unwrap();
            // Folders are counted once; 200 files, and the passing ones, may be where they were and where they went.
            assert!((4 << 20..(4 << 20) + 640 * 8192).contains(&counted.bytes), "{counted:?}");
            assert!(counted.inodes <= 640 && !counted.evades, "{counted:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Who moves folders deeper than anybody honest nests them hides nothing by that: the count says that it is not whole.
#[test]
fn a_deep_tree_that_moves_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir(&root).unwrap();
    nest(&root, 3000);
    let mut at = openat(CWD, &root, FOLDER, Mode::empty()).unwrap();
    for _ in 0..1500 {
        at = openat(&at, "d", FOLDER, Mode::empty()).unwrap();
    }
    let top = openat(CWD, &root, FOLDER, Mode::empty()).unwrap();
    let stop = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = renameat(&at, "d", &top, "away").and_then(|()| renameat(&top, "away", &at, "d"));
            }
        });
        let found = (0..500).any(|_| count(&root).unwrap().evades);
        stop.store(true, Ordering::Relaxed);
        found
    });
    remove_all(&root).unwrap();
    assert!(found, "no walk out of 500 noticed");
}
