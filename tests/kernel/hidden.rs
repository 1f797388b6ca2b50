//! Files without a name: whoever holds them is seen, however he does.

use std::{
    fs::{self, File},
    io::IoSlice,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use podwright_runtime::sys::{
    unlinked::{Holder, unlinked},
    walk::{Measure, measure},
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

fn bytes(length: usize) -> Vec<u8> {
    vec![7; length]
}

/// What it costs is left out.
fn nameless(pids: &[u32], own: &str) -> Measure {
    held(&[pids], own, Path::new("/")).remove(0)
}

fn held(containers: &[&[u32]], own: &str, disk: &Path) -> Vec<Measure> {
    let holder = |pids: &&[u32]| Holder { pids: pids.to_vec(), ..Holder::default() };
    let containers: Vec<Holder> = containers.iter().map(holder).collect();
    let found = unlinked(&containers, own, disk, Duration::from_secs(60));
    found.into_iter().map(|held| Measure { cost: Duration::ZERO, ..held }).collect()
}

#[test]
fn what_is_deleted_and_still_open_is_counted_once_where_it_is_the_pods_own() {
    let folder = tempfile::tempdir().unwrap();
    let me = [std::process::id()];
    let path = folder.path().join("big");
    let named = measure(folder.path(), MOST).unwrap().bytes;
    let before = nameless(&me, "").bytes;
    let file = File::create(&path).unwrap();
    let _again = file.try_clone().unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all_at(&bytes(4 << 20), 0).unwrap();
    file.sync_all().unwrap();
    // A file in memory is no use of a disk.
    let memory = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    File::from(memory.try_clone().unwrap()).write_all_at(&bytes(9 << 20), 0).unwrap();
    assert_eq!(measure(folder.path(), MOST).unwrap().bytes, named, "no walk sees it");
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

/// A process that has these and no others.
fn holding(stdin: impl AsFd) -> Child {
    Command::new("sleep").arg("100").stdin(stdin.as_fd().try_clone_to_owned().unwrap()).spawn().unwrap()
}

fn hand_over(socket: &UnixStream, file: &File) {
    let (fds, mut room) = ([file.as_fd()], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut message = SendAncillaryBuffer::new(&mut room);
    assert!(message.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(socket, &[IoSlice::new(b"x")], &mut message, SendFlags::empty()).unwrap();
}

/// What is sent and not received yet is open to nobody; how many descriptors wait is known all the same.
#[test]
fn descriptors_that_nobody_receives_are_counted() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("socket");
    let file = deleted(&folder.path().join("file"), 4);
    let (one, other) = UnixStream::pair().unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let waiting = UnixStream::connect(&path).unwrap();
    hand_over(&one, &file);
    hand_over(&one, &file);
    hand_over(&waiting, &file);
    drop((file, one, waiting));
    // Of a connection that is still to be accepted, too; whoever has sent has nothing.
    let (received, accepted) = (OwnedFd::from(other), OwnedFd::from(listener));
    let mut children = [holding(&received), holding(&accepted), holding(File::open("/dev/null").unwrap())];
    drop((received, accepted));
    let pids = [0, 1, 2].map(|n| children[n].id());
    let found = held(&pids.each_ref().map(std::slice::from_ref), "no such folder", folder.path());
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let seen: Vec<(u64, u64)> = found.iter().map(|held| (held.in_flight, held.bytes)).collect();
    assert_eq!(seen, [(2, 0), (1, 0), (0, 0)]);
}

/// Mounts a file that is then deleted, and is open to nobody.
#[test]
fn files_that_were_deleted_and_are_mounted_are_counted() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = |name: &str| folder.path().join(name);
    ["a", "b", "on a", "on b"].iter().for_each(|name| drop(File::create_new(at(name)).unwrap()));
    let own = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
    let (seen, covered, told, elsewhere) = elsewhere(|| {
        let bind = |what: &str, place: &str| {
            mount(Some(&at(what)), &at(place), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        };
        for (name, mib, place) in [("a", 4, "on a"), ("b", 8, "on b")] {
            let file = File::options().write(true).open(at(name)).unwrap();
            file.write_all_at(&bytes(mib << 20), 0).unwrap();
            file.sync_all().unwrap();
            bind(name, place);
            fs::remove_file(at(name)).unwrap();
        }
        let mut child = holding(File::open("/dev/null").unwrap());
        let look = || held(&[&[child.id()]], &own, folder.path()).remove(0);
        let seen = look();
        // What is below is still there.
        bind("on a", "on b");
        let covered = look();
        umount2(&at("on b"), MntFlags::empty()).unwrap();
        // Nobody's process, but somebody's mount.
        let mounted = Holder { mounted: vec![at("on a"), at("on b"), at("missing")], ..Holder::default() };
        let told = unlinked(&[mounted], "no such folder", folder.path(), MOST).remove(0);
        let elsewhere = held(&[&[child.id()]], "no such folder", folder.path()).remove(0);
        child.kill().unwrap();
        child.wait().unwrap();
        (seen, covered, told, elsewhere)
    });
    assert_eq!((seen.bytes >> 20, seen.inodes, seen.evades), (12, 2, false), "{seen:?}");
    assert!(covered.evades, "{covered:?}");
    assert_eq!((told.bytes >> 20, told.inodes, told.evades), (12, 2, false), "{told:?}");
    assert_eq!(elsewhere, Measure::default());
}

const MOST: Duration = Duration::from_secs(60);
