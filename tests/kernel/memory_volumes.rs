//! In-memory emptyDirs of ended Pods: what is truncated, and what is not.

use std::{
    fs,
    os::{fd::AsFd, unix::fs::FileTypeExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use nix::mount::{MsFlags, mount};
use podwright::node::{spec::PodExt, translate::env::Facts};
use podwright_runtime::{
    JournalWriter,
    kept::Kept,
    removals::Removals,
    sys::{Kernel, mount::Holds},
};
use rustix::{
    fs::{CWD, FileType, Mode, inotify, makedev, mknodat},
    io::Errno,
};
use serde_json::{Value, json};

use super::volumes::{apart, opened_with, set_up};

fn in_memory() -> Value {
    json!({
        "containers": [{ "name": "c", "image": "i:1" }],
        "volumes": [{ "name": "v", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }],
    })
}

fn tmpfs(at: &Path) {
    fs::create_dir_all(at).unwrap();
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
}

/// A container with CAP_MKNOD could make the agent open a device with side effects, such as rewinding a tape.
#[test]
fn emptying_a_volume_opens_no_device_that_a_container_has_made_there() {
    apart(false, devices);
}

async fn devices(folder: PathBuf) {
    let (_server, volumes, pod) = opened_with(&folder, in_memory(), Removals::default()).await;
    set_up(&volumes, &pod, &Facts::default()).await.unwrap();
    let own = volumes.folder(&pod).join("volumes/v");
    fs::write(own.join("file"), "text").unwrap();
    // That of /dev/null, and a FIFO without a reader.
    mknodat(CWD, own.join("device"), FileType::CharacterDevice, Mode::RWXU, makedev(1, 3)).unwrap();
    assert!(fs::metadata(own.join("device")).unwrap().file_type().is_char_device());
    let open = fs::File::open(own.join("file")).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, &own, inotify::WatchFlags::OPEN).unwrap();
    volumes.release(&pod, &JournalWriter::none()).await.unwrap();
    assert_eq!(open.metadata().unwrap().len(), 0);
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    let mut opened = Vec::new();
    loop {
        match events.next() {
            Ok(event) => opened.extend(event.file_name().map(|name| name.to_str().unwrap().to_owned())),
            Err(Errno::AGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(opened, ["file"]);
    volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
}

/// Somebody may mount over it before the agent has noted what it has mounted.
#[test]
fn what_is_kept_is_what_was_mounted_whatever_lies_over_it() {
    apart(false, mounted_over);
}

async fn mounted_over(folder: PathBuf) {
    let (kernel, own, others) = (Kernel::new(&JournalWriter::none()), folder.join("own"), folder.join("memory"));
    [&own, &others].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let mounted = kernel.mount_tmpfs("tmpfs", &own, Holds::Anything, "mode=0777,size=1048576").unwrap();
    fs::write(own.join("file"), "ours").unwrap();
    let open = fs::File::open(own.join("file")).unwrap();
    tmpfs(&others);
    fs::write(others.join("file"), "text").unwrap();
    mount(Some(&others), &own, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let kept = Kept::of_mount(&kernel, &own, mounted.as_fd()).unwrap();
    kept.wipe(&kernel, Duration::from_secs(10)).unwrap();
    assert_eq!(fs::read_to_string(others.join("file")).unwrap(), "text");
    assert_eq!(open.metadata().unwrap().len(), 0);
    drop((open, mounted));
    for _ in 0..2 {
        nix::mount::umount(&own).unwrap();
    }
}

/// Both are the node's own, and of the same namespace.
#[test]
fn another_pods_memory_that_lies_over_a_pods_own_is_not_emptied_with_it() {
    apart(false, anothers_over);
}

async fn anothers_over(folder: PathBuf) {
    let item = json!({ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } });
    let spec = json!({
        "containers": [{ "name": "c", "image": "i:1" }],
        "volumes": [{ "name": "v", "downwardAPI": { "items": [item] } }],
    });
    let (_server, volumes, pod) = opened_with(&folder, spec, Removals::default()).await;
    let mut other = Pod::clone(&pod);
    other.metadata.uid = Some("0ther000-2233-4000-8000-000000000000".to_owned());
    let other = Arc::new(other);
    for pod in [&pod, &other] {
        set_up(&volumes, pod, &Facts::default()).await.unwrap();
    }
    let of = |pod: &Pod| folder.join("memory").join(pod.uid());
    let (own, others) = (of(&pod), of(&other));
    let named = || fs::read_to_string(others.join("v/name")).unwrap();
    assert_eq!(named(), "web");
    mount(Some(&others), &own, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
    assert_eq!((named().as_str(), own.exists()), ("web", false));
    volumes.remove(&other, None, &JournalWriter::none()).await.unwrap();
    assert!(!others.exists());
}

/// An agent that starts finds what is mounted there, and cannot tell who has done that.
#[test]
fn what_somebody_mounted_over_a_volume_before_the_agent_came_is_not_emptied() {
    apart(false, mounted_before);
}

async fn mounted_before(folder: PathBuf) {
    let (server, volumes, pod) = opened_with(&folder, in_memory(), Removals::default()).await;
    set_up(&volumes, &pod, &Facts::default()).await.unwrap();
    let own = volumes.folder(&pod).join("volumes/v");
    drop((volumes, server));
    let others = folder.join("others");
    tmpfs(&others);
    fs::write(others.join("file"), "text").unwrap();
    mount(Some(&others), &own, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    for ends_by_itself in [true, false] {
        let (_server, volumes, _) = opened_with(&folder, in_memory(), Removals::default()).await;
        set_up(&volumes, &pod, &Facts::default()).await.unwrap();
        if ends_by_itself {
            volumes.release(&pod, &JournalWriter::none()).await.unwrap();
        }
        volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
        assert_eq!(fs::read_to_string(others.join("file")).unwrap(), "text");
        // The same for a deleted Pod.
        fs::create_dir_all(&own).unwrap();
        tmpfs(&own);
        mount(Some(&others), &own, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    }
    for at in [&own, &own, &others] {
        nix::mount::umount(at).unwrap();
    }
}

/// What is kept comes back whenever it is gone.
#[test]
fn what_lies_over_a_volume_when_the_agent_comes_is_not_kept_for_it() {
    apart(false, covered);
}

async fn covered(folder: PathBuf) {
    let start = async || {
        let (server, volumes, pod) = opened_with(&folder, in_memory(), Removals::default()).await;
        set_up(&volumes, &pod, &Facts::default()).await.unwrap();
        (server, volumes, pod)
    };
    let (server, volumes, pod) = start().await;
    let file = volumes.folder(&pod).join("volumes/v/file");
    let own = file.parent().unwrap().to_owned();
    let shown = || fs::read_to_string(&file).unwrap_or_default();
    fs::write(&file, "ours").unwrap();
    drop((volumes, server));
    // What is there as it was is kept by the next agent.
    let (server, volumes, _) = start().await;
    nix::mount::umount(&own).unwrap();
    assert_eq!((volumes.mend().await.len(), shown().as_str()), (1, "ours"));
    drop((volumes, server));
    tmpfs(&own);
    fs::write(&file, "others'").unwrap();
    let (_server, volumes, _) = start().await;
    nix::mount::umount(&own).unwrap();
    assert_eq!((volumes.mend().await.len(), shown().as_str()), (0, "ours"));
    volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
    assert!(!own.exists());
}

/// Agents before gave their mounts no name: such a one is kept, unless something lies over it.
#[test]
fn a_volume_of_an_older_agent_is_kept() {
    apart(false, of_older);
}

async fn of_older(folder: PathBuf) {
    for covered in [false, true] {
        let (_server, volumes, pod) = opened_with(&folder, in_memory(), Removals::default()).await;
        let file = volumes.folder(&pod).join("volumes/v/file");
        let own = file.parent().unwrap().to_owned();
        tmpfs(&own);
        fs::write(&file, "older").unwrap();
        if covered {
            tmpfs(&own);
        }
        set_up(&volumes, &pod, &Facts::default()).await.unwrap();
        nix::mount::umount(&own).unwrap();
        let mended = volumes.mend().await.len();
        let shown = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!((mended, shown.as_str()), (usize::from(!covered), "older"), "{covered}");
        volumes.remove(&pod, None, &JournalWriter::none()).await.unwrap();
        assert!(!own.exists());
    }
}
