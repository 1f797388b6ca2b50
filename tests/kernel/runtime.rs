//! Sandboxes and containers, checked by facts reported from inside.

#[path = "runtime_support.rs"]
pub mod support;

use std::time::Duration;

use podwright_runtime::{
    ContainerId, ContainerState, Error, Event, ExecSpec, ExitReason, JournalWriter, PidMode, Role, Rootfs, RunError,
    Runtime, SandboxState, StartFailure, oci,
    sys::{Kernel, mount::Holds},
};
use support::{Bed, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_what_its_spec_says() {
    let bed = Bed::new("facts").await;
    bed.sandbox("s").await;
    let script = "id -u; id -g; id -G; hostname; echo $FOO $HOME $HOSTNAME; pwd; echo pid $$; \
        grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; ls /proc/self/fd | wc -l; ls / ; \
        touch /x && echo writable; touch /proc/sys/kernel/x 2>/dev/null || echo masked; wc -c </proc/interrupts; \
        mount -t tmpfs x /tmp 2>&1; cat /etc/given; grep -c . /proc/net/dev; ls -d /dev/*; echo to-stderr >&2";
    let id = bed
        .create(
            "facts",
            script,
            &[
                ("user", "1000:1001+7"),
                ("env", "FOO=bar"),
                ("cwd", "/made/up"),
                ("caps", "none"),
                ("file", "/etc/given"),
            ],
        )
        .await;
    bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
    let exit = bed.exit(&id, Duration::from_secs(10)).await;
    let log = bed.log(&id);
    assert_eq!((exit.code, exit.reason), (0, ExitReason::Completed), "{log}");
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(&lines[..7], ["1000", "1001", "1001 7", "pod-host", "bar / pod-host", "/made/up", "pid 1"], "{log}");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(log.contains(&format!("{set}:\t0000000000000000")), "{log}");
    }
    assert!(log.contains("NoNewPrivs:\t1") && log.contains("Seccomp:\t2"), "{log}");
    // 0, 1, 2 and ls's own folder.
    assert!(log.contains("\n4\n"), "descriptors leaked: {log}");
    assert!(log.contains("masked") && log.contains("\n0\n") && !log.contains("writable"), "{log}");
    assert!(log.contains("mount: ") && log.contains("given by the host"), "{log}");
    // Two header lines and lo.
    assert!(log.contains("\n3\n"), "{log}");
    for device in ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "shm", "mqueue", "stdin"] {
        assert!(log.contains(&format!("/dev/{device}\n")), "{device}: {log}");
    }
    assert!(log.contains("to-stderr"), "{log}");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_are_told_as_they_were() {
    let bed = Bed::new("ends").await;
    bed.sandbox("s").await;
    let mut events = bed.runtime.events();
    let three = bed.run("three", "exit 3").await;
    let exit = bed.exit(&three, Duration::from_secs(10)).await;
    assert_eq!((exit.code, exit.signal, exit.reason), (3, 0, ExitReason::Error));
    let event = tokio::time::timeout(Duration::from_secs(5), events.recv()).await.unwrap().unwrap();
    assert!(format!("{event:?}").contains("three"), "{event:?}");

    let trap = bed.run("trap", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done").await;
    bed.log_has(&trap, "ready").await;
    let exit = bed
        .runtime
        .stop_container(&trap, libc::SIGTERM, Duration::from_secs(10), &JournalWriter::none())
        .await
        .unwrap();
    assert_eq!(exit.unwrap().code, 7);
    assert_eq!(bed.log(&trap), "ready\nbye\n");

    // However short-lived, it ends after its start.
    let short = bed.create("short", "", &[("argv", "/bin/true")]).await;
    let started = bed.runtime.start_container(&short, &JournalWriter::none()).await.unwrap();
    let exit = bed.exit(&short, Duration::from_secs(10)).await;
    assert!(started <= exit.finished, "{started} {exit:?}");
    assert_eq!(bed.status(&short).await.started, Some(started));

    let deaf = bed.run("deaf", "trap '' TERM; echo ready; sleep 1000 & wait; wait; sleep 1000").await;
    bed.log_has(&deaf, "ready").await;
    let exit = bed
        .runtime
        .stop_container(&deaf, libc::SIGTERM, Duration::from_millis(50), &JournalWriter::none())
        .await
        .unwrap();
    let exit = exit.unwrap();
    assert_eq!((exit.code, exit.signal), (137, 9));
    assert!(bed.runtime.processes(&deaf, usize::MAX).await.unwrap().is_empty());

    // A removed one has no exit event: it could be mistaken for its successor's.
    let mut events = bed.runtime.events();
    let gone = bed.create("again", "sleep 1000", &[]).await;
    bed.runtime.remove_container(&gone, &JournalWriter::none()).await.unwrap();
    let again = bed.run("again", "exit 5").await;
    assert_eq!(again, gone);
    let event = tokio::time::timeout(Duration::from_secs(5), events.recv()).await.unwrap().unwrap();
    assert!(matches!(&event, Event::ContainerExited { id, exit } if *id == again && exit.code == 5), "{event:?}");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_start_says_why() {
    let bed = Bed::new("why").await;
    bed.sandbox("s").await;
    for (name, arg, kind, words) in [
        (
            "a",
            "no-such-program",
            StartFailure::NotFoundInPath,
            r#"exec: "no-such-program": executable file not found in $PATH"#,
        ),
        ("b", "/no/such", StartFailure::NoSuchFile, r#"exec: "/no/such": stat /no/such: no such file or directory"#),
        ("c", "/etc/plain", StartFailure::PermissionDenied, r#"exec: "/etc/plain": permission denied"#),
        ("d", "/etc/garbage", StartFailure::ExecFailed, "exec format error"),
    ] {
        let id = bed.create(name, "", &[("argv", arg)]).await;
        match bed.runtime.start_container(&id, &JournalWriter::none()).await {
            Err(Error::Start { kind: got, message }) => {
                assert_eq!(got, kind, "{message}");
                assert!(message.contains(words), "{message}");
            }
            other => panic!("{name}: {other:?}"),
        }
        let status = bed.status(&id).await;
        let exit = status.exit.unwrap();
        assert_eq!((status.state, exit.code, exit.reason), (ContainerState::Exited, 128, ExitReason::StartError));
        assert!(exit.message.contains(words));
    }
    bed.end().await;
}

/// Created and started without a pause: it may exit before its creation is known here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_run_at_once_is_told_of_once() {
    let bed = Bed::new("at-once").await;
    bed.sandbox("s").await;
    let none = JournalWriter::none();
    let mut events = bed.runtime.events();
    for n in 0..20 {
        let spec = bed.container(&format!("c{n}"), "", &[("argv", "/bin/false")]);
        let id = spec.id.clone();
        let started = bed.runtime.run_container(spec.clone(), &none).await.unwrap();
        let event = tokio::time::timeout(Duration::from_secs(5), events.recv()).await.unwrap().unwrap();
        assert!(matches!(&event, Event::ContainerExited { id: of, exit } if *of == id && exit.code == 1), "{event:?}");
        assert_eq!(bed.status(&id).await.started, Some(started));
        let again = bed.runtime.run_container(spec, &none).await;
        assert!(matches!(again, Err(RunError::Create(Error::Conflict(_)))), "{again:?}");
    }
    assert!(events.is_empty());

    let failed = bed.runtime.run_container(bed.container("a", "", &[("argv", "/no/such")]), &none).await;
    assert!(matches!(failed, Err(RunError::Start(Error::Start { .. }))), "{failed:?}");
    assert_eq!(bed.status(&ContainerId::new("s", "a", 0)).await.exit.unwrap().reason, ExitReason::StartError);
    events = bed.runtime.events();
    let mut unborn = bed.container("b", "", &[]);
    unborn.rootfs = Rootfs::Layers(vec![bed.path("no-such-layer")]);
    let failed = bed.runtime.run_container(unborn, &none).await;
    assert!(matches!(failed, Err(RunError::Create(_))), "{failed:?}");
    assert!(bed.runtime.sandbox("s").await.unwrap().containers.iter().all(|c| c.id.name != "b"));
    assert!(events.is_empty(), "nobody hears of what was never there");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_line_is_logged_whole_and_in_order() {
    let bed = Bed::new("log").await;
    bed.sandbox("s").await;
    let script = "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; head -c 40000 /dev/zero | tr '\\0' x; \
        echo; printf end";
    let id = bed.run("log", script).await;
    bed.exit(&id, Duration::from_secs(30)).await;
    let mut expected: String = (0..5000).map(|n| format!("line {n}\n")).collect();
    expected.push_str(&"x".repeat(40_000));
    // The last word has no newline: none is added.
    expected.push_str("\nend");
    assert!(bed.log(&id) == expected, "{} against {} bytes", bed.log(&id).len(), expected.len());
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_runs_beside_the_first_process() {
    let bed = Bed::new("exec").await;
    bed.sandbox("s").await;
    let id = bed.run("main", "echo main > /mark; sleep 1000").await;
    within("the mark", || async {
        let out = bed.exec(&id, "cat /mark; echo $0 >&2; hostname; exit 5").await.unwrap();
        (out.code == 5 && out.stdout == b"main\npod-host\n" && out.stderr == b"sh\n")
            .then_some(())
            .ok_or(format!("{out:?}"))
    })
    .await;
    // A leaked descriptor would show here: 0, 1, 2 and ls's own.
    assert_eq!(bed.exec(&id, "ls /proc/self/fd | wc -l").await.unwrap().stdout, b"4\n");
    let none = JournalWriter::none();
    let missing = bed.runtime.exec_sync(&id, bed.process("", &[("argv", "nope")]), Duration::from_secs(5), &none);
    assert!(matches!(missing.await, Err(Error::Start { kind: StartFailure::NotFoundInPath, .. })));
    let slow = bed.runtime.exec_sync(&id, bed.process("sleep 1000", &[]), Duration::from_millis(200), &none);
    assert!(matches!(slow.await, Err(Error::Timeout(..))));
    within("the overdue exec to be killed", || async {
        let processes = bed.runtime.processes(&id, usize::MAX).await.unwrap();
        let left = processes.iter().filter(|p| p.pid != 0 && p.args.join(" ").contains("sleep 1000")).count();
        (left <= 1).then_some(()).ok_or(format!("{processes:?}"))
    })
    .await;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let spec = ExecSpec { stdin: true, ..bed.process("cat; exit 9", &[]) };
    let mut session = bed.runtime.exec(&id, spec, &JournalWriter::none()).await.unwrap();
    let mut stdin = tokio::net::unix::pipe::Sender::from_owned_fd(session.streams.stdin.take().unwrap()).unwrap();
    let mut stdout = tokio::net::unix::pipe::Receiver::from_owned_fd(session.streams.stdout.take().unwrap()).unwrap();
    let big = vec![b'z'; 1 << 20];
    let (sent, mut back) = (big.clone(), Vec::new());
    let writing = async move { stdin.write_all(&sent).await };
    let (wrote, read) = tokio::join!(writing, stdout.read_to_end(&mut back));
    wrote.unwrap();
    read.unwrap();
    assert!(back == big);
    assert_eq!(session.wait().await.unwrap(), 9);

    let tty = bed.process("tty; stty size; exit 4", &[("tty", "yes")]);
    let mut session =
        bed.runtime.exec(&id, ExecSpec { size: Some((100, 30)), ..tty }, &JournalWriter::none()).await.unwrap();
    let said = support::read_tty(session.streams.stdout.take().unwrap()).await;
    assert_eq!(said, "/dev/pts/0\r\n30 100\r\n");
    assert_eq!(session.wait().await.unwrap(), 4);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attach_joins_the_streams() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let bed = Bed::new("attach").await;
    bed.sandbox("s").await;
    let id = bed.create("echo", "while read line; do echo got $line; done; echo over >&2", &[("stdin", "once")]).await;
    let streams = bed.runtime.attach(&id, true).await.unwrap();
    let other = bed.runtime.attach(&id, false).await.unwrap();
    bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
    let pipe = |fd| tokio::net::unix::pipe::Receiver::from_owned_fd(fd).unwrap();
    let mut stdin = tokio::net::unix::pipe::Sender::from_owned_fd(streams.stdin.unwrap()).unwrap();
    stdin.write_all(b"one\ntwo\n").await.unwrap();
    drop(stdin);
    let (mut out, mut err, mut also) = (String::new(), String::new(), String::new());
    pipe(streams.stdout.unwrap()).read_to_string(&mut out).await.unwrap();
    pipe(streams.stderr.unwrap()).read_to_string(&mut err).await.unwrap();
    pipe(other.stdout.unwrap()).read_to_string(&mut also).await.unwrap();
    assert_eq!((out.as_str(), err.as_str(), also.as_str()), ("got one\ngot two\n", "over\n", "got one\ngot two\n"));
    assert_eq!(bed.exit(&id, Duration::from_secs(5)).await.code, 0);

    let id = bed.create("tty", "tty; stty size; read x; echo heard $x", &[("tty", "yes"), ("stdin", "yes")]).await;
    bed.runtime.resize(&id, (81, 25)).await.unwrap();
    let streams = bed.runtime.attach(&id, true).await.unwrap();
    bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
    bed.log_has(&id, "25 81").await;
    let mut stdin = tokio::net::unix::pipe::Sender::from_owned_fd(streams.stdin.unwrap()).unwrap();
    stdin.write_all(b"you\n").await.unwrap();
    assert_eq!(bed.exit(&id, Duration::from_secs(5)).await.code, 0);
    assert!(bed.log(&id).contains("heard you"), "{}", bed.log(&id));
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_agent_believes_the_shim_about_a_start() {
    let mut bed = Bed::new("noted").await;
    bed.sandbox("s").await;
    let id = bed.create("x", "exit 1", &[]).await;
    bed.forget().await;
    // As after an agent that died with the start recorded but not yet requested.
    let path = bed.dir.path().join("state/sandboxes/s/c/x.0/container.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["started"] = "2026-01-01T00:00:00Z".into();
    std::fs::write(&path, record.to_string()).unwrap();
    bed.reopen().await;
    let status = bed.status(&id).await;
    assert_eq!((status.state, status.started), (ContainerState::Created, None));
    // And as after one that died while removing a container that was never started.
    bed.runtime.stop_container(&id, libc::SIGKILL, Duration::ZERO, &JournalWriter::none()).await.unwrap();
    bed.forget().await;
    bed.reopen().await;
    let status = bed.status(&id).await;
    let exit = status.exit.unwrap();
    assert_eq!((status.state, status.started, exit.signal), (ContainerState::Exited, None, libc::SIGKILL));
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_agent_finds_everything_as_it_was() {
    let mut bed = Bed::new("again").await;
    bed.sandbox("s").await;
    let before = bed.create("long", "echo started; sleep 1000", &[]).await;
    let started = bed.runtime.start_container(&before, &JournalWriter::none()).await.unwrap();
    let ends = bed.run("ends", "read x < /go; exit 42").await;
    bed.log_has(&before, "started").await;
    let pid = bed.status(&before).await.pid;
    let pause = bed.runtime.sandbox("s").await.unwrap().pid;
    bed.forget().await;
    // It exits while no agent is running.
    std::fs::write(bed.path("go"), "now\n").unwrap();
    within("the exit record", || async {
        let record = bed.dir.path().join("state/sandboxes/s/c/ends.0/exit.json");
        record.exists().then_some(()).ok_or("no record yet".to_owned())
    })
    .await;
    bed.reopen().await;
    let sandbox = bed.runtime.sandbox("s").await.unwrap();
    assert_eq!((sandbox.state, sandbox.pid, sandbox.spec.annotation.as_str()), (SandboxState::Ready, pause, "kept"));
    let status = bed.status(&before).await;
    assert_eq!((status.state, status.pid), (ContainerState::Running, pid));
    assert_eq!(status.started, Some(started));
    assert_eq!(bed.status(&ends).await.exit.unwrap().code, 42);
    assert_eq!(bed.exec(&before, "echo hi").await.unwrap().stdout, b"hi\n");
    bed.runtime.netns("s").await.unwrap();
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_shim_takes_its_containers_with_it() {
    let mut bed = Bed::new("dead").await;
    bed.sandbox("s").await;
    let id = bed.run("long", "sleep 1000").await;
    let mut events = bed.runtime.events();
    bed.kill_shim("s");
    let exit = bed.exit(&id, Duration::from_secs(10)).await;
    assert_eq!((exit.code, exit.reason), (137, ExitReason::ContainerStatusUnknown));
    let told = tokio::time::timeout(Duration::from_secs(5), events.recv()).await.unwrap().unwrap();
    assert!(format!("{told:?}").contains("ContainerStatusUnknown"), "{told:?}");
    assert_eq!(bed.runtime.sandbox("s").await.unwrap().state, SandboxState::NotReady);

    bed.runtime.remove_sandbox("s", &JournalWriter::none()).await.unwrap();
    bed.sandbox("s").await;
    let id = bed.run("long", "sleep 1000").await;
    bed.forget().await;
    bed.kill_shim("s");
    bed.reopen().await;
    let status = bed.status(&id).await;
    assert_eq!(status.exit.unwrap().reason, ExitReason::ContainerStatusUnknown);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_over_a_sandboxs_shared_memory_when_the_agent_comes_is_not_taken_for_it() {
    let mut bed = Bed::new("covered").await;
    bed.sandbox("s").await;
    let one = bed.run("one", "echo shared > /dev/shm/x; sleep 1000").await;
    let shm = bed.path("run/s/shm");
    within("the shared file", || async { std::fs::read_to_string(shm.join("x")).map(drop) }).await;
    bed.forget().await;
    let kernel = Kernel::new(&JournalWriter::none());
    kernel.mount_tmpfs("podwright/other/shm", &shm, Holds::Data, "mode=0755").unwrap();
    std::fs::write(shm.join("x"), "others'\n").unwrap();
    bed.reopen().await;
    assert_eq!(std::fs::read_to_string(shm.join("x")).unwrap(), "shared\n");
    let two = bed.run("two", "sleep 1000").await;
    assert_eq!(bed.exec(&two, "cat /dev/shm/x").await.unwrap().stdout, b"shared\n");
    assert_eq!(bed.exec(&one, "cat /dev/shm/x").await.unwrap().stdout, b"shared\n");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_of_a_sandbox_share_what_they_should() {
    let bed = Bed::new("share").await;
    bed.sandbox_with("s", |spec| {
        spec.pid = PidMode::Sandbox;
        spec.sysctls.insert("net.ipv4.ip_unprivileged_port_start".into(), "80".into());
    })
    .await;
    let one = bed.run("one", "echo shared > /dev/shm/x; sleep 1000").await;
    let two = bed.run("two", "sleep 1000").await;
    within("the shared file", || async {
        let out = bed.exec(&two, "cat /dev/shm/x; cat /proc/sys/net/ipv4/ip_unprivileged_port_start").await.unwrap();
        (out.stdout == b"shared\n80\n").then_some(()).ok_or(format!("{out:?}"))
    })
    .await;
    let (a, b) = (
        bed.runtime.processes(&one, usize::MAX).await.unwrap(),
        bed.runtime.processes(&two, usize::MAX).await.unwrap(),
    );
    for kind in ["net", "ipc", "uts", "pid"] {
        assert_eq!(a[0].namespaces[kind], b[0].namespaces[kind], "{kind}");
    }
    assert_ne!(a[0].namespaces["mnt"], b[0].namespaces["mnt"]);
    // PID 1 is pause, inaccessible to all.
    let out = bed.exec(&two, "cat /proc/1/comm; ls /proc/1/root/ 2>&1; ps -o comm | grep -c sleep").await.unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.starts_with("pause\n") && text.ends_with("2\n") && !text.contains("etc"), "{text}");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_keep_their_promises() {
    let bed = Bed::new("mounts").await;
    bed.sandbox("s").await;
    std::fs::create_dir_all(bed.path("vol/sub")).unwrap();
    let script = "touch /ro/x 2>&1; touch /rw/y && echo wrote; touch /z 2>&1; ls -d /ro/sub; echo over";
    let volumes = [("ro", &*bed.path("vol").display().to_string()), ("rw", &*bed.path("vol").display().to_string())];
    let id = bed.create("m", script, &[volumes[0], volumes[1], ("root", "readonly")]).await;
    bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
    bed.exit(&id, Duration::from_secs(5)).await;
    let log = bed.log(&id);
    assert!(log.contains("touch: /ro/x: Read-only file system") && log.contains("wrote"), "{log}");
    assert!(log.contains("touch: /z: Read-only file system") && log.contains("/ro/sub"), "{log}");
    assert!(bed.path("vol/y").exists());
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_journal_tells_what_was_done_and_why() {
    let bed = Bed::new("journal").await;
    let path = bed.path("journal");
    let journal = JournalWriter::open(&path, Role::Agent).unwrap().about("uid-1", 42);
    bed.sandbox_by("s", &journal).await;
    let id = bed.create_by("c", "true", &[], &journal.at("spec.containers[0]")).await;
    bed.runtime.start_container(&id, &journal).await.unwrap();
    bed.exit(&id, Duration::from_secs(5)).await;
    // One that never executes is recorded too.
    let dead = bed.create_by("d", "", &[("argv", "/no/such")], &journal.at("spec.containers[1]")).await;
    assert!(bed.runtime.start_container(&dead, &journal).await.is_err());
    journal.flush();
    let records = podwright_journal::read(&path).unwrap();
    let of_the_dead = |r: &&podwright_journal::Record| r.role == Role::Init && r.field == "spec.containers[1]";
    let calls: Vec<&str> = records.iter().filter(of_the_dead).map(|r| r.call.as_str()).collect();
    assert!(calls.contains(&"pivot_root") && calls.last() == Some(&"seccomp"), "{calls:?}");
    let text: Vec<String> = records.iter().map(|r| format!("{:?} {} {}", r.role, r.call, r.args)).collect();
    for words in [
        "Agent clone3 shim",
        "Shim clone3 net ipc uts pause",
        "Init fsmount overlay lowerdir+=/",
        "Init mknodat null CharacterDevice 666 1:3, zero CharacterDevice 666 1:5, ",
        "Init symlinkat fd -> /proc/self/fd, stdin -> /proc/self/fd/0, ",
        "Init mount_setattr set 0x",
        "Init pivot_root",
        "Init setresuid uid 0, gid 0, groups []",
        "Init capset CapSets { bounding: ",
        "Init execve",
    ] {
        assert!(text.iter().any(|t| t.starts_with(words)), "{words}: {text:#?}");
    }
    assert!(records.iter().all(|r| r.subject == "uid-1" && r.revision == 42), "{records:#?}");
    assert!(records.iter().any(|r| r.field == "spec.containers[0]" && r.role == Role::Init));
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_specs_are_refused_before_anything_is_made() {
    let bed = Bed::new("refuse").await;
    bed.sandbox("s").await;
    let mut spec = bed.container("x", "true", &[]);
    spec.oci.set_process(None);
    assert!(matches!(bed.runtime.create_container(spec, &JournalWriter::none()).await, Err(Error::Invalid(_))));
    let mut spec = bed.container("x", "true", &[]);
    let bad = oci::MountBuilder::default()
        .destination("/m")
        .typ("bind")
        .source("/no/such/source")
        .options(vec!["rbind".to_owned()]);
    spec.oci.set_mounts(Some(vec![bad.build().unwrap()]));
    let failed = bed.runtime.create_container(spec, &JournalWriter::none()).await;
    assert!(
        matches!(&failed, Err(Error::Start { kind: StartFailure::Setup, message }) if message.contains("/no/such/source")),
        "{failed:?}"
    );
    assert!(bed.runtime.sandbox("s").await.unwrap().containers.is_empty());
    assert!(Runtime::open(podwright_runtime::Config { shim: "/no/such".into(), ..bed.config() }).await.is_err());
    bed.end().await;
}
