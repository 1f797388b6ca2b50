//! Damage while no agent runs: it never kills live containers.

use std::fs;
use std::path::{Path, PathBuf};

use podwright_runtime::{ContainerId, ContainerState, Error, JournalWriter, Runtime, SandboxState};
use rustix::process::Signal;

use super::runtime::support::{Bed, within};

/// Damages a file in each possible way.
const RUINS: [(&str, fn(&Path)); 3] = [
    ("removed", |path| fs::remove_file(path).unwrap()),
    ("emptied", |path| fs::write(path, "").unwrap()),
    ("garbage", |path| fs::write(path, "\0{ garbage").unwrap()),
];

/// A running container with data in its writable layer, left by an agent.
async fn left(name: &str) -> (Bed, ContainerId, Vec<u32>) {
    let mut bed = Bed::new(name).await;
    bed.sandbox("s").await;
    let id = bed.run("c", "echo kept > /note; echo up; exec sleep 1000").await;
    bed.log_has(&id, "up").await;
    bed.forget().await;
    let processes = all_three(&bed).await;
    (bed, id, processes)
}

/// The shim, `pause` and the container's process: their creators may still be exiting.
async fn all_three(bed: &Bed) -> Vec<u32> {
    within("all three live", || async {
        let all = bed.processes_of("s");
        if all.len() == 3 { Ok(()) } else { Err(all) }
    })
    .await;
    bed.processes_of("s")
}

async fn is_whole(bed: &Bed, id: &ContainerId, processes: &[u32], what: &str) {
    assert_eq!(bed.processes_of("s"), processes, "{what}: nobody was killed");
    assert_eq!(bed.runtime.sandbox("s").await.unwrap().state, SandboxState::Ready, "{what}");
    let status = bed.status(id).await;
    assert_eq!((status.state, status.exit), (ContainerState::Running, None), "{what}");
    assert!(status.log.is_some() && status.started.is_some(), "{what}");
    assert_eq!(bed.exec(id, "cat /note").await.unwrap().stdout, b"kept\n", "{what}: its writable layer is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_secrets_and_sockets_that_are_damaged_while_nobody_looks_cost_nothing() {
    let (mut bed, id, processes) = left("damage").await;
    let files = [
        "state/sandboxes/s/sandbox.json",
        "state/sandboxes/s/secret",
        "state/sandboxes/s/c/c.0/container.json",
        "state/copies/s/sandbox",
        "state/copies/s/secret",
        "state/copies/s/c/c.0",
        "run/s/s",
    ]
    .map(|file| bed.path(file));
    for path in &files {
        for (how, ruin) in RUINS {
            let what = format!("{}, {how}", path.display());
            if how != "removed" && path.ends_with("run/s/s") {
                fs::remove_file(path).unwrap();
                fs::write(path, "").unwrap();
            }
            ruin(path);
            bed.reopen().await;
            assert!(bed.runtime.lost().is_empty(), "{what}: {:?}", bed.runtime.lost());
            is_whole(&bed, &id, &processes, &what).await;
            assert!(path.exists(), "{what}: it is there again");
            bed.forget().await;
        }
    }
    // The whole folder of one kind.
    for folder in ["state/copies", "run/s"].map(|folder| bed.path(folder)) {
        // Mounts in it belong to the containers.
        for entry in fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path()) {
            let _ = rustix::mount::unmount(&entry, rustix::mount::UnmountFlags::DETACH);
        }
        fs::remove_dir_all(&folder).unwrap();
        bed.reopen().await;
        is_whole(&bed, &id, &processes, &folder.display().to_string()).await;
        bed.forget().await;
    }
    bed.reopen().await;
    bed.end().await;
}

/// Both a container's record and its copy: the shim knows what it runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_of_which_only_its_shim_knows_runs_on() {
    let (mut bed, id, processes) = left("known").await;
    for (how, ruin) in RUINS {
        for file in ["state/sandboxes/s/c/c.0/container.json", "state/copies/s/c/c.0"] {
            ruin(&bed.path(file));
        }
        bed.reopen().await;
        is_whole(&bed, &id, &processes, how).await;
        bed.forget().await;
    }
    bed.reopen().await;
    bed.end().await;
}

/// Two agents briefly manage a sandbox, as in an upgrade: one does not know the other's containers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_an_agent_does_not_know_is_not_removed_for_its_namesake() {
    let bed = Bed::new("namesake").await;
    bed.sandbox("s").await;
    let other = Runtime::open(bed.config()).await.unwrap();
    let id = bed.run("c", "echo kept > /note; echo up; exec sleep 1000").await;
    bed.log_has(&id, "up").await;
    let processes = all_three(&bed).await;
    let namesake = bed.container("c", "exec sleep 1", &[]);
    let refused = other.create_container(namesake, &JournalWriter::none()).await.unwrap_err();
    assert!(matches!(refused, Error::Conflict(_)), "{refused}");
    drop(other);
    is_whole(&bed, &id, &processes, "its namesake is refused").await;
    bed.end().await;
}

/// Everything known about a sandbox is lost: it runs on, that is reported, no other one is created in its place, and it ends when
/// it is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_of_which_nothing_is_known_any_more_runs_on_until_it_is_removed() {
    let all = |bed: &Bed, name: &str, copy: &str| -> Vec<PathBuf> {
        vec![bed.path("state/sandboxes/s").join(name), bed.path("state/copies/s").join(copy)]
    };
    for (name, copy, what) in [("sandbox.json", "sandbox", "record"), ("secret", "secret", "secret")] {
        for (how, ruin) in RUINS {
            let (mut bed, _, processes) = left("lost").await;
            all(&bed, name, copy).iter().for_each(|path| ruin(path));
            bed.reopen().await;
            let lost = bed.runtime.lost();
            assert!(lost["s"].contains(what), "{what} {how}: {lost:?}");
            assert!(bed.runtime.sandbox("s").await.is_none());
            assert_eq!(bed.processes_of("s"), processes, "{what} {how}: nobody was killed");
            let refused = bed.runtime.run_sandbox(bed.sandbox_spec("s"), &JournalWriter::none()).await.unwrap_err();
            assert!(matches!(&refused, Error::Conflict(why) if why.contains("still runs")), "{refused}");
            bed.runtime.remove_sandbox("s", &JournalWriter::none()).await.unwrap();
            assert!(bed.runtime.lost().is_empty() && bed.processes_of("s").is_empty());
            bed.end().await;
        }
    }
}

/// A shim restores its socket's name as soon as its agent is gone; while connected, when the agent checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_listens_again_where_its_name_is_gone() {
    let mut bed = Bed::new("name").await;
    bed.sandbox("s").await;
    let socket = bed.path("run/s/s");
    let connects = || std::os::unix::net::UnixStream::connect(&socket).map(drop).map_err(|e| e.to_string());
    for (how, ruin) in RUINS {
        fs::remove_file(&socket).unwrap();
        fs::write(&socket, "").unwrap();
        ruin(&socket);
        assert!(connects().is_err());
        assert_eq!(bed.runtime.mend_records().await, [socket.clone()], "{how}");
        connects().unwrap();
    }
    fs::remove_file(&socket).unwrap();
    bed.forget().await;
    within("the shim listens", || async { connects() }).await;
    // A hanging one must not block forever, and its queue fills up.
    bed.signal_shim("s", Signal::STOP);
    let waiting: Vec<_> = std::iter::repeat_with(|| {
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let unix = rustix::net::AddressFamily::UNIX;
        let stream = rustix::net::socket_with(unix, rustix::net::SocketType::STREAM, flags, None).unwrap();
        let address = rustix::net::SocketAddrUnix::new(&socket).unwrap();
        rustix::net::connect(&stream, &address).map(|()| stream)
    })
    .take_while(|connected| connected.is_ok())
    .collect();
    assert!(!waiting.is_empty());
    let begun = std::time::Instant::now();
    bed.reopen().await;
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    within("the death of all its processes", || async {
        let left = bed.processes_of("s");
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    })
    .await;
    bed.end().await;
}

/// It would be waited for ten seconds on each check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_that_hangs_holds_up_no_repair_of_others() {
    let bed = Bed::new("held-up").await;
    for id in ["a", "b", "c"] {
        bed.sandbox(id).await;
    }
    bed.signal_shim("b", Signal::STOP);
    fs::remove_file(bed.path("run/b/s")).unwrap();
    let records = ["a", "c"].map(|id| bed.path(&format!("state/sandboxes/{id}/sandbox.json")));
    records.iter().for_each(|record| fs::remove_file(record).unwrap());
    let mended = tokio::time::timeout(std::time::Duration::from_secs(5), bed.runtime.mend_records()).await;
    let mut mended = mended.expect("nobody waits for the one that hangs");
    mended.sort();
    assert_eq!(mended, records);
    assert!(records.iter().all(|record| record.exists()));
    bed.signal_shim("b", Signal::CONT);
    within("the shim listens", || async {
        bed.runtime.mend_records().await;
        if bed.path("run/b/s").exists() { Ok(()) } else { Err("no socket") }
    })
    .await;
    bed.end().await;
}

/// An unreachable shim is left alone if it holds processes; otherwise it is killed, and its sandbox treated as if the shim had
/// died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_that_holds_nothing_and_cannot_be_spoken_to_is_ended() {
    let (mut bed, _, processes) = left("hollow").await;
    let socket = bed.path("run/s/s");
    for pid in processes {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    within("nothing runs in it", || async {
        let left = bed.processes_of("s");
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    // Both are well-formed, and neither is the shim's.
    for file in ["state/sandboxes/s/secret", "state/copies/s/secret"].map(|file| bed.path(file)) {
        let other: Vec<u8> =
            fs::read(&file).unwrap().into_iter().map(|byte| if byte == b'0' { b'1' } else { b'0' }).collect();
        fs::write(file, other).unwrap();
    }
    let begun = std::time::Instant::now();
    bed.reopen().await;
    println!("opened after {:?}: {:?}", begun.elapsed(), bed.runtime.lost());
    assert!(bed.runtime.lost().is_empty(), "{:?}", bed.runtime.lost());
    assert_ne!(bed.runtime.sandbox("s").await.unwrap().state, SandboxState::Ready);
    within("its shim is gone", || async {
        match std::os::unix::net::UnixStream::connect(&socket) {
            Ok(_) => Err("somebody listens"),
            Err(_) => Ok(()),
        }
    })
    .await;
    bed.runtime.remove_sandbox("s", &JournalWriter::none()).await.unwrap();
    bed.end().await;
}

/// Containers may nest cgroups with any names, including the agent's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_container_nests_is_taken_for_no_sandbox() {
    let (mut bed, id, _) = left("nested").await;
    let nested = bed.cgroup_of("s").join(id.key()).join("x").join("pause");
    fs::create_dir_all(&nested).unwrap();
    let mut own = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(nested.join("cgroup.procs"), own.id().to_string()).unwrap();
    let processes = bed.processes_of("s");
    bed.reopen().await;
    let is_left = own.try_wait().unwrap().is_none() && nested.exists();
    own.kill().unwrap();
    own.wait().unwrap();
    assert!(is_left, "it is the container's");
    assert!(processes.iter().filter(|pid| **pid != own.id()).all(|pid| bed.processes_of("s").contains(pid)));
    bed.end().await;
}
