//! Measuring a folder, whatever changes during the measurement.

use std::{
    fs::{self, File},
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt, MetadataExt, symlink},
    },
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};
use podwright_runtime::{
    JournalWriter, cgroup,
    sys::{
        Kernel,
        tree::remove_all,
        walk::{Measure, measure, settled},
    },
};
use rustix::fs::{CWD, Mode, OFlags, inotify, mkdirat, openat, renameat};

fn count(path: &Path) -> std::io::Result<Measure> {
    measure(path, Duration::from_secs(60))
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

/// `depth` nested folders, each with a file.
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

/// A file of known size among folders that constantly appear, disappear and move: it is counted, once, without errors.
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
            // Folders are counted once; 200 files, and moving ones, may be counted at their old and new places.
            assert!((4 << 20..(4 << 20) + 640 * 8192).contains(&counted.bytes), "{counted:?}");
            assert!(counted.inodes <= 640 && !counted.evades, "{counted:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Moving folders nested deeper than usual hides nothing: the result is marked incomplete.
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

/// Moves a full folder behind a walk's back: it observes its position with inotify(7).
struct Dance {
    watch: OwnedFd,
    /// What a walk visits first, later, and last.
    first: PathBuf,
    middle: i32,
    last: (PathBuf, i32),
}

impl Dance {
    fn new(root: &Path, mib: usize) -> Dance {
        for n in 0..200 {
            let pad = root.join(n.to_string());
            fs::create_dir(&pad).unwrap();
            (0..30).for_each(|file| fs::write(pad.join(file.to_string()), "").unwrap());
        }
        let order: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
        let (first, middle, last) = (&order[199], &order[180], &order[0]);
        fs::create_dir(last.join("full")).unwrap();
        fs::write(last.join("full/big"), bytes(mib << 20)).unwrap();
        File::open(last.join("full/big")).unwrap().sync_all().unwrap();
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
        let middle = inotify::add_watch(&watch, middle, inotify::WatchFlags::OPEN).unwrap();
        let end = inotify::add_watch(&watch, last, inotify::WatchFlags::CLOSE_NOWRITE).unwrap();
        Dance { watch, first: first.clone(), middle, last: (last.clone(), end) }
    }

    /// Until told to stop, while it has the floor.
    fn dance(&self, stop: &AtomicBool, floor: &Mutex<()>) {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watch, &mut buffer);
        while !stop.load(Ordering::Relaxed) {
            let Ok(event) = events.next() else {
                std::thread::yield_now();
                continue;
            };
            let (first, last) = (self.first.join("full"), self.last.0.join("full"));
            let _floor = floor.lock().unwrap();
            if event.wd() == self.middle {
                fs::rename(&last, &first).ok();
            } else if event.wd() == self.last.1 {
                fs::rename(&first, &last).ok();
            }
        }
    }
}

/// Knowing the walk's position hides nothing: processes are frozen, or the result says they were not.
#[test]
fn what_is_moved_behind_the_walks_back_is_counted() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let dance = Dance::new(folder.path(), 8);
    let (stop, floor) = (AtomicBool::new(false), Mutex::new(()));
    let most = Duration::from_secs(60);
    let is_seen = |found: &Measure| found.bytes >= 8 << 20;
    let (missed, held, free) = std::thread::scope(|scope| {
        scope.spawn(|| dance.dance(&stop, &floor));
        let missed = (0..300).any(|_| count(folder.path()).is_ok_and(|found| !is_seen(&found)));
        let held: Vec<Measure> =
            (0..5).map(|_| settled(folder.path(), most, || floor.lock().unwrap()).unwrap()).collect();
        let free: Vec<Measure> = (0..5).map(|_| settled(folder.path(), most, || ()).unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        (missed, held, free)
    });
    assert!(missed, "no walk out of 300 was fooled");
    assert!(held.iter().all(|found| is_seen(found) && !found.evades), "{held:?}");
    assert!(free.iter().all(|found| is_seen(found) || found.evades), "{free:?}");
}

/// A constantly changing folder, such as a legitimate one for temporary files, is measured all the same.
#[test]
fn what_changes_all_the_time_has_to_hold_still_for_a_moment_alone() {
    // Not on a disk that may be busy: a pause looks like no change.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::create_dir(folder.path().join("tmp")).unwrap();
    fs::write(folder.path().join("kept"), bytes(4 << 20)).unwrap();
    let (stop, floor, asked) = (AtomicBool::new(false), Mutex::new(()), AtomicBool::new(false));
    let most = Duration::from_secs(60);
    let hold = || {
        asked.store(true, Ordering::Relaxed);
        floor.lock().unwrap()
    };
    let found = std::thread::scope(|scope| {
        scope.spawn(|| {
            let path = folder.path().join("tmp/file");
            while !stop.load(Ordering::Relaxed) {
                let turn = floor.lock().unwrap();
                fs::write(&path, "").and_then(|()| fs::remove_file(&path)).unwrap();
                drop(turn);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut looks = (0..50).map(|_| settled(folder.path(), most, hold).unwrap());
        let found = looks.find(|_| asked.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        found
    });
    let found = found.expect("it held still by itself, fifty times");
    assert!((4 << 20..5 << 20).contains(&found.bytes) && !found.evades, "{found:?}");
    asked.store(false, Ordering::Relaxed);
    let again = settled(folder.path(), most, hold).unwrap();
    assert_eq!((again.bytes, again.inodes, again.evades), (found.bytes, 3, false));
    assert!(!asked.load(Ordering::Relaxed), "nobody has to hold still where nothing changes");
}

/// A cgroup with a process in it, both removed on drop.
struct Group(PathBuf, std::process::Child);

impl Group {
    fn new() -> Group {
        let path = cgroup::find_mount().unwrap().join(format!("podwright-still-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let sleep = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        fs::write(path.join("cgroup.procs"), sleep.id().to_string()).unwrap();
        Group(path, sleep)
    }

    fn is_still(&self) -> bool {
        fs::read_to_string(self.0.join("cgroup.events")).unwrap().contains("frozen 1")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.1.kill().ok();
        self.1.wait().ok();
        fs::remove_dir(&self.0).ok();
    }
}

#[test]
fn who_holds_still_goes_on_when_it_is_over_and_when_who_asked_has_died() {
    let group = Group::new();
    let keep = || Kernel::new(&JournalWriter::none()).keep_still(&group.0).unwrap();
    let still = keep();
    assert!(group.is_still());
    drop(still);
    let until = |wanted: bool| {
        let mut tries = 0..1000;
        while group.is_still() != wanted {
            assert!(tries.next().is_some(), "still: {}", !wanted);
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until(false);
    // SAFETY: the child exits here, as if killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::mem::forget(keep());
        // SAFETY: exits this process in whatever state.
        unsafe { libc::_exit(if group.is_still() { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "it was still");
    until(false);
}
