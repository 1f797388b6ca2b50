//! A disk that fails and comes back: what is acknowledged stays, what is unknown is found out, and who asks hears of it.
//!
//! The faults are SQLite's files' own: its door to the system is wrapped, for files below a folder whose name says so.

use std::{
    ffi::{CStr, c_int, c_void},
    path::{Path, PathBuf},
    ptr::null_mut,
    sync::{
        Arc, LazyLock, Mutex, Once,
        atomic::{AtomicBool, AtomicI64, Ordering::SeqCst},
    },
    time::Duration,
};

use podwright::store::{Error, Outcome, Range, Sqlite, Store};
use rusqlite::ffi;

use super::{committed, put, relaxed, revisions};

/// What a disk does.
#[derive(Default)]
struct Disk {
    folder: PathBuf,
    /// So many fsyncs, and so many writes, fail from now on.
    syncs_to_fail: AtomicI64,
    writes_to_fail: AtomicI64,
    /// An fsync that fails loses the write-ahead log, as if nothing of it had ever come to the disk.
    loses_log: AtomicBool,
    synced: AtomicI64,
}

static DISKS: LazyLock<Mutex<Vec<Arc<Disk>>>> = LazyLock::new(Mutex::default);

impl Disk {
    fn new(folder: &Path) -> Arc<Disk> {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(register);
        let disk = Arc::new(Disk { folder: folder.to_owned(), ..Disk::default() });
        DISKS.lock().unwrap().push(disk.clone());
        disk
    }

    /// Takes one of the failures that are due.
    fn fails(due: &AtomicI64) -> bool {
        due.fetch_update(SeqCst, SeqCst, |n| (n > 0).then_some(n - 1)).is_ok()
    }
}

/// SQLite's methods of a file, with the disk that it lies on.
#[repr(C)]
struct Methods {
    ours: ffi::sqlite3_io_methods,
    theirs: *const ffi::sqlite3_io_methods,
    disk: Arc<Disk>,
}

/// Makes a copy of the default VFS the default, which differs in how it opens files.
fn register() {
    // SAFETY: the default VFS is there for ever, and so is the copy. Nothing of it is changed once it is registered.
    unsafe {
        ffi::sqlite3_initialize();
        let vfs = Box::leak(Box::new(std::ptr::read(ffi::sqlite3_vfs_find(std::ptr::null()))));
        vfs.xOpen = Some(open);
        (vfs.zName, vfs.pNext) = (c"faulty".as_ptr(), null_mut());
        assert_eq!(ffi::sqlite3_vfs_register(vfs, 1), ffi::SQLITE_OK);
    }
}

/// SAFETY: as SQLite's own, which it calls; the methods that it puts in begin as those that SQLite expects.
unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    // SAFETY: the arguments are SQLite's, and the VFS "unix" is what was copied.
    unsafe {
        let unix = ffi::sqlite3_vfs_find(c"unix".as_ptr());
        let code = (*unix).xOpen.unwrap()(unix, name, file, flags, flags_out);
        if code != ffi::SQLITE_OK || name.is_null() {
            return code;
        }
        let path = PathBuf::from(CStr::from_ptr(name).to_str().unwrap());
        let disk = DISKS.lock().unwrap().iter().find(|disk| path.starts_with(&disk.folder)).cloned();
        if let Some(disk) = disk {
            let theirs = (*file).pMethods;
            let mut ours = std::ptr::read(theirs);
            ours.xSync = Some(sync);
            ours.xWrite = Some(write);
            // A file has it until it is closed; a few bytes of a test are not given back.
            (*file).pMethods = &Box::leak(Box::new(Methods { ours, theirs, disk })).ours;
        }
        code
    }
}

/// SAFETY: to be called with a file that `open` has given its methods.
unsafe fn methods<'a>(file: *mut ffi::sqlite3_file) -> &'a Methods {
    // SAFETY: `ours` is the first field.
    unsafe { &*(*file).pMethods.cast::<Methods>() }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: only files of `open` have this method.
    let methods = unsafe { methods(file) };
    methods.disk.synced.fetch_add(1, SeqCst);
    if Disk::fails(&methods.disk.syncs_to_fail) {
        if methods.disk.loses_log.load(SeqCst) {
            for entry in std::fs::read_dir(&methods.disk.folder).unwrap() {
                let path = entry.unwrap().path();
                if path.to_string_lossy().ends_with("-wal") {
                    std::fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap();
                }
            }
        }
        return ffi::SQLITE_IOERR_FSYNC;
    }
    // SAFETY: SQLite's own method with SQLite's own arguments.
    unsafe { (*methods.theirs).xSync.unwrap()(file, flags) }
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, bytes: *const c_void, length: c_int, at: i64) -> c_int {
    // SAFETY: as in `sync`.
    let methods = unsafe { methods(file) };
    match Disk::fails(&methods.disk.writes_to_fail) {
        true => ffi::SQLITE_IOERR_WRITE,
        // SAFETY: as in `sync`.
        false => unsafe { (*methods.theirs).xWrite.unwrap()(file, bytes, length, at) },
    }
}

struct World {
    folder: tempfile::TempDir,
    disk: Arc<Disk>,
    store: Sqlite,
}

impl World {
    /// A store with something in it.
    async fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(folder.path());
        let store = Sqlite::open(&folder.path().join("store.db")).unwrap();
        for n in 0..10 {
            committed(&store, put(&format!("/{n}"), format!("{n}"))).await;
        }
        World { folder, disk, store }
    }

    async fn eventually(&self, what: &str, holds: impl AsyncFn(&Sqlite) -> bool) {
        for _ in 0..1500 {
            if holds(&self.store).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{what}: not within 30 s; {:?}", self.store.trouble());
    }

    /// What is in the store is what a new start finds, and what a watcher has seen since the first ten.
    async fn ends_well(self, mut watch: podwright::store::Watch) {
        let World { folder, store, .. } = self;
        let last = committed(&store, put("/last", "last")).await;
        let seen = revisions(&mut watch, last).await.unwrap();
        assert_eq!(seen, (11..=last).collect::<Vec<_>>(), "each change is told once, in order");
        let now = store.list(Range::default()).await.unwrap().entries;
        store.close().await.unwrap();
        let store = Sqlite::open(&folder.path().join("store.db")).unwrap();
        assert_eq!(store.list(Range::default()).await.unwrap().entries, now);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_failed_fsync_is_gone_after_it() {
    let world = World::new().await;
    let watch = world.store.watch("", 10).await.unwrap();
    world.disk.syncs_to_fail.store(1, SeqCst);
    // Its bytes are there: it is found to have happened, and said so.
    committed(&world.store, put("/after", "1")).await;
    assert!(world.store.trouble().is_none());
    world.store.prove().await.unwrap();
    assert_eq!(world.store.get("/after").await.unwrap().unwrap().value, "1");
    committed(&world.store, relaxed(put("/relaxed", "1"))).await;
    world.ends_well(watch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_failed_write_is_gone_after_it() {
    let world = World::new().await;
    let watch = world.store.watch("", 10).await.unwrap();
    world.disk.writes_to_fail.store(1, SeqCst);
    world.store.commit(put("/after", "1")).await.unwrap_err();
    assert!(world.store.trouble().is_none());
    assert_eq!(world.store.get("/after").await.unwrap(), None);
    committed(&world.store, put("/after", "2")).await;
    world.ends_well(watch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_for_a_while_is_told_of_and_found_again() {
    let world = World::new().await;
    let watch = world.store.watch("", 10).await.unwrap();
    committed(&world.store, relaxed(put("/relaxed", "1"))).await;
    world.disk.syncs_to_fail.store(i64::MAX, SeqCst);
    world.store.commit(put("/after", "1")).await.unwrap_err();
    assert!(world.store.trouble().is_some());
    assert!(world.store.prove().await.is_err());
    world.store.commit(put("/more", "1")).await.unwrap_err();
    assert_eq!(world.store.get("/3").await.unwrap().unwrap().value, "3", "it is read all the while");
    assert_eq!(world.store.list(Range::default()).await.unwrap().entries.len(), 11);
    world.disk.syncs_to_fail.store(0, SeqCst);
    world.eventually("it is written to again", async |store| store.prove().await.is_ok()).await;
    // Who wrote it was told that nobody knows; now everybody does.
    assert_eq!(world.store.get("/after").await.unwrap().unwrap().value, "1");
    assert_eq!(world.store.get("/more").await.unwrap(), None, "what was refused did not happen");
    world.ends_well(watch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_has_lost_what_was_acknowledged_ends_the_store() {
    let world = World::new().await;
    committed(&world.store, relaxed(put("/relaxed", "1"))).await;
    world.disk.loses_log.store(true, SeqCst);
    world.disk.syncs_to_fail.store(1, SeqCst);
    world.store.commit(put("/after", "1")).await.unwrap_err();
    let why = tokio::time::timeout(Duration::from_secs(30), world.store.failed()).await.expect("it says so");
    assert!(matches!(&why, Error::Damaged(_)), "{why}");
    assert!(world.store.trouble().is_some() && world.store.prove().await.is_err());
    world.store.commit(put("/more", "1")).await.unwrap_err();
    // And its end is not told to be a good one.
    world.store.close().await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_again_and_again_whether_it_can_write_costs_one_fsync() {
    let world = World::new().await;
    let before = world.disk.synced.load(SeqCst);
    for _ in 0..100 {
        world.store.prove().await.unwrap();
    }
    assert!(world.disk.synced.load(SeqCst) <= before + 1);
    // The last write shows it, if that was a moment ago; one that failed shows the contrary.
    let seen = world.store.revision().await.unwrap();
    world.disk.syncs_to_fail.store(i64::MAX, SeqCst);
    assert!(world.store.commit(put("/x", "1")).await.is_err());
    assert!(world.store.prove().await.is_err());
    world.disk.syncs_to_fail.store(0, SeqCst);
    world.eventually("it is good again", async |store| store.prove().await.is_ok()).await;
    assert!(world.store.revision().await.unwrap() >= seen);
    assert!(matches!(world.store.commit(put("/x", "2")).await.unwrap(), Outcome::Committed(_)));
}

/// A backup is a long read: who waits for readers lets it go on, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn many_readers_at_work_do_not_keep_a_store_from_its_recovery() {
    let world = World::new().await;
    let store = &world.store;
    let stop = AtomicBool::new(false);
    let read = async {
        while !stop.load(SeqCst) {
            let page = store.list(Range::default()).await.unwrap();
            assert!(page.entries.len() >= 10);
        }
    };
    let write = async {
        for n in 0..5 {
            world.disk.syncs_to_fail.store(1, SeqCst);
            committed(store, put("/x", format!("{n}"))).await;
        }
        stop.store(true, SeqCst);
    };
    tokio::join!(read, async { tokio::join!(read_more(store, &stop), write) });
}

async fn read_more(store: &Sqlite, stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        store.get("/1").await.unwrap();
    }
}
