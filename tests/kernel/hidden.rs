//! Unlinked files: every kind of holder is found.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use podwright_runtime::sys::{
    unlinked::{Holder, unlinked},
    walk::{Measure, measure},
};

fn bytes(length: usize) -> Vec<u8> {
    vec![7; length]
}

/// Without its cost.
fn nameless(pids: &[u32], own: &str) -> Measure {
    held(&[pids], own, Path::new("/")).remove(0)
}

fn held(containers: &[&[u32]], own: &str, disk: &Path) -> Vec<Measure> {
    let containers: Vec<Holder<'_>> = containers.iter().map(|pids| of(pids)).collect();
    let found = unlinked(&containers, own, disk, Duration::from_secs(60));
    found.into_iter().map(|held| Measure { cost: Duration::ZERO, ..held }).collect()
}

#[test]
fn what_is_deleted_and_still_open_is_counted_once_where_it_is_the_pods_own() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let named = measure(folder.path(), MOST).unwrap().bytes;
    let file = deleted(&folder.path().join("big"), 4);
    // An in-memory file does not use a disk.
    let memory = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    File::from(memory.try_clone().unwrap()).write_all_at(&bytes(9 << 20), 0).unwrap();
    assert_eq!(measure(folder.path(), MOST).unwrap().bytes, named, "no walk sees it");
    // This process also holds other tests' files.
    let mut holder = Command::new("sleep");
    holder.arg("100").stdin(file.try_clone().unwrap()).stdout(file).stderr(memory);
    let mut holder = holder.spawn().unwrap();
    let pid = holder.id();
    let found = [nameless(&[pid, pid], ""), nameless(&[pid], "no such folder")];
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!((found[0].bytes >> 20, found[0].inodes), (4, 1));
    assert_eq!([found[1], nameless(&[pid], ""), nameless(&[u32::MAX], "")], <[Measure; 3]>::default());
}

/// Runs in a new mount namespace, which the result may outlive.
fn elsewhere<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let run = || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// A deleted file of this size in MiB.
fn deleted(path: &Path, mib: usize) -> File {
    let file = File::create_new(path).unwrap();
    fs::remove_file(path).unwrap();
    file.write_all_at(&bytes(mib << 20), 0).unwrap();
    file.sync_all().unwrap();
    file
}

/// A received file counts for its holder, wherever it was opened: by a neighbour, or by a container that has exited since.
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
    // All three mounts end with their namespace; the files keep them alive.
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

/// A file that was mounted and then deleted is not open anywhere, and found through the caller's mount.
#[test]
fn files_that_were_deleted_and_are_mounted_are_counted() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = |name: &str| folder.path().join(name);
    ["file", "place", "kept"].iter().for_each(|name| drop(File::create_new(at(name)).unwrap()));
    let found = elsewhere(|| {
        let file = File::options().write(true).open(at("file")).unwrap();
        file.write_all_at(&bytes(4 << 20), 0).unwrap();
        file.sync_all().unwrap();
        mount(Some(&at("file")), &at("place"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        fs::remove_file(at("file")).unwrap();
        drop(file);
        let mounted = Holder { mounted: ["place", "kept", "missing"].map(at).to_vec(), ..of(&[]) };
        unlinked(&[mounted], "no such folder", folder.path(), MOST).remove(0)
    });
    assert_eq!((found.bytes >> 20, found.inodes, found.evades), (4, 1, false), "{found:?}");
}

/// Processes created during the inspection are included.
#[test]
fn processes_are_listed_until_there_is_none_that_was_not_looked_at() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = deleted(&folder.path().join("file"), 4);
    let mut first = Command::new("sleep").arg("100").spawn().unwrap();
    let mut heir = Command::new("sleep").arg("100").stdin(file).spawn().unwrap();
    let (lists, pids) = (AtomicUsize::new(0), [first.id(), heir.id()]);
    let list = || pids[..1 + lists.fetch_add(1, Ordering::Relaxed).min(1)].to_vec();
    let holder = Holder { pids: Box::new(list), mounted: Vec::new() };
    let found = unlinked(&[holder], "", folder.path(), MOST).remove(0);
    for child in [&mut first, &mut heir] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!((found.bytes >> 20, found.evades), (4, false), "{found:?}");
    assert_eq!(lists.into_inner(), 3);
}

const MOST: Duration = Duration::from_secs(60);

fn of(pids: &[u32]) -> Holder<'_> {
    Holder { pids: Box::new(|| pids.to_vec()), mounted: Vec::new() }
}
