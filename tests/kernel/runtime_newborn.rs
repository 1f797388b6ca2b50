//! Processes being created in a container's PID namespace: they never have more privileges than the container, nor stay forever.
//! Checked by others in there.

use std::collections::HashSet;
use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use podwright_runtime::{
    ContainerId, ContainerSpec, Error, ExecSpec, JournalWriter, PidMode, StartFailure, default_capabilities,
    default_seccomp, oci,
};
use serde_json::json;

use crate::runtime::support::{Bed, capability_sets, within};

const TIMEOUT: Duration = Duration::from_secs(10);

/// What the shell alone sees of each process except `pause`: its privileges, and whether it is still one of the runtime's.
const WATCH: &str = r#"
    look() {
        name= prm= eff= bnd= amb= sec=
        while read -r key value; do case $key in
            Name:) name=$value ;; CapPrm:) prm=$value ;; CapEff:) eff=$value ;; CapBnd:) bnd=$value ;; CapAmb:) amb=$value ;;
            Seccomp:) sec=$value ;;
        esac; done 2>/dev/null <$1/status
    }
    look /proc/self; own=$eff; told=
    echo ready
    while :; do for p in /proc/[0-9]*; do
        [ $p = /proc/1 ] && continue
        look $p
        [ -z "$sec" ] && continue
        # Before Linux 6.17: the helper that opens procfs, whose filter leaves it next to nothing.
        [ "$prm $eff $amb $sec" = "0000000000200000 0000000000200000 0000000000000000 2" ] && continue
        [ "$prm $eff $bnd $amb $sec" = "$own $own $own 0000000000000000 2" ] || echo "MORE $p $name: $prm $eff $bnd $amb $sec"
        case $name in shim*) [ -z "$told" ] && { echo seen; told=yes; } ;; esac
    done; done"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_born_has_the_rights_of_the_container_from_the_first_moment_on() {
    for no_new_privs in [true, false] {
        let bed = Bed::new("newborn").await;
        bed.sandbox_with("s", |spec| spec.pid = PidMode::Sandbox).await;
        let watcher =
            bed.runtime.create_container(tracer(&bed, "watcher", WATCH), &JournalWriter::none()).await.unwrap().id;
        bed.runtime.start_container(&watcher, &JournalWriter::none()).await.unwrap();
        bed.log_has(&watcher, "ready").await;

        // One that waits for its start can be inspected indefinitely.
        let mut waiting = tracer(&bed, "waiting", "exec sleep 1000");
        waiting.oci.process_mut().as_mut().unwrap().set_no_new_privileges(Some(no_new_privs));
        let waiting = bed.runtime.create_container(waiting, &JournalWriter::none()).await.unwrap().id;
        bed.log_has(&watcher, "seen").await;
        bed.runtime.start_container(&waiting, &JournalWriter::none()).await.unwrap();

        for _ in 0..150 {
            let mut spec = ExecSpec { seccomp: Some(default_seccomp(&tracing())), ..bed.process("true", &[]) };
            spec.process = with(spec.process, &tracing());
            spec.process.set_no_new_privileges(Some(no_new_privs));
            let done = bed.runtime.exec_sync(&waiting, spec, TIMEOUT, &JournalWriter::none()).await.unwrap();
            assert_eq!(done.code, 0, "{done:?}");
        }
        assert_eq!(bed.log(&watcher), "ready\nseen\n", "no_new_privs {no_new_privs}");
        bed.end().await;
    }
}

/// Without CAP_SYS_PTRACE a future neighbour cannot be inspected, even by the same user with the same privileges: while waiting it
/// has a copy of the shim's memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_to_be_started_is_closed_to_inspection() {
    for user in ["0:0", "31337:31337"] {
        let bed = Bed::new("closed").await;
        bed.sandbox_with("s", |spec| spec.pid = PidMode::Sandbox).await;
        let options = [("user", user), ("caps", if user == "0:0" { "default" } else { "none" })];
        let waiting = bed.create("waiting", "sleep 1000", &options).await;
        let looker = bed.create("looker", "sleep 1000", &options).await;
        bed.runtime.start_container(&looker, &JournalWriter::none()).await.unwrap();
        // For each process of the sandbox: its name, and whatever private data is accessible.
        let look = "for p in /proc/[0-9]*; do read -r name <$p/comm || continue; echo \"$name:\" $(for f in environ maps auxv; do
            head -c 1 $p/$f >/dev/null 2>&1 && echo $f; done; for l in exe cwd root ns/mnt fd/0; do
            readlink $p/$l >/dev/null 2>&1 && echo $l; done); done";
        let look = async || {
            let done = bed
                .runtime
                .exec_sync(&looker, bed.process(look, &options), TIMEOUT, &JournalWriter::none())
                .await
                .unwrap();
            String::from_utf8(done.stdout).unwrap()
        };
        let seen = look().await;
        let of_shim: Vec<&str> = seen.lines().filter(|line| line.starts_with("shim")).collect();
        assert_eq!(of_shim.len(), 1, "the one that waits is there: {seen}");
        assert!(of_shim[0].ends_with(':'), "user {user}: {seen}");
        // Once started it is an ordinary process of its user.
        bed.runtime.start_container(&waiting, &JournalWriter::none()).await.unwrap();
        let seen = look().await;
        let open = seen.lines().filter(|line| line.ends_with(": environ maps auxv exe cwd root ns/mnt fd/0")).count();
        assert!(open >= 2, "both sleep, and both are seen: {seen}");
        bed.end().await;
    }
}

/// A process created among others already has its filters, so they must allow its creation; one that is alone does not need that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_that_forbids_births_is_named() {
    let bed = Bed::new("noclone").await;
    bed.sandbox("s").await;
    for action in ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL_PROCESS"] {
        let filter = json!({ "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
            "syscalls": [{ "names": ["clone", "clone3", "fork", "vfork"], "action": action }] });
        let filter: oci::LinuxSeccomp = serde_json::from_value(filter).unwrap();
        let mut spec = bed.container("main", "exec sleep 1000", &[]);
        let mut linux = spec.oci.linux().clone().unwrap();
        linux.set_seccomp(Some(filter.clone()));
        spec.oci.set_linux(Some(linux));
        let main = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
        bed.runtime.start_container(&main, &JournalWriter::none()).await.unwrap();
        let spec = ExecSpec { seccomp: Some(filter), ..bed.process("true", &[]) };
        match bed.runtime.exec_sync(&main, spec, TIMEOUT, &JournalWriter::none()).await {
            Err(Error::Start { kind: StartFailure::Setup, message }) => {
                assert!(message.contains("a seccomp profile must allow clone(2)"), "{action}: {message}");
            }
            other => panic!("{action}: {other:?}"),
        }
        bed.runtime.stop_container(&main, libc::SIGKILL, TIMEOUT, &JournalWriter::none()).await.unwrap();
        bed.runtime.remove_container(&main, &JournalWriter::none()).await.unwrap();
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_of_the_shim_is_no_program_of_a_container() {
    let bed = Bed::new("self").await;
    bed.sandbox("s").await;
    let script = bed.path("layers/top").join("self");
    fs::write(&script, "#!/proc/self/exe\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();

    let itself = bed.create("itself", "", &[("argv", "/proc/self/exe")]).await;
    let failed = bed.runtime.start_container(&itself, &JournalWriter::none()).await;
    assert!(matches!(failed, Err(Error::Start { kind: StartFailure::PermissionDenied, .. })), "{failed:?}");

    let by_script = bed.create("script", "", &[("argv", "/self")]).await;
    bed.runtime.start_container(&by_script, &JournalWriter::none()).await.unwrap();
    assert_eq!(bed.exit(&by_script, TIMEOUT).await.code, 1);
    assert!(bed.log(&by_script).contains("not started by an agent"), "{}", bed.log(&by_script));

    let main = bed.run("main", "sleep 1000").await;
    let by_exec =
        bed.runtime.exec_sync(&main, bed.process("", &[("argv", "/self")]), TIMEOUT, &JournalWriter::none()).await;
    let by_exec = by_exec.unwrap();
    assert_eq!(by_exec.code, 1, "{by_exec:?}");
    assert!(String::from_utf8_lossy(&by_exec.stderr).contains("not started by an agent"), "{by_exec:?}");
    bed.end().await;
}

/// A container can stop a future neighbour: this is not waited for forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_stopped_before_it_executes_is_killed() {
    let bed = Bed::with_births_within("stopped", Duration::from_secs(2)).await;
    bed.sandbox_with("s", |spec| spec.pid = PidMode::Sandbox).await;
    let stop = r#"echo ready; while :; do for p in /proc/[0-9]*; do
        name=; read -r name <$p/comm; case $name in shim*) kill -STOP ${p#/proc/} && echo stopped; ;; esac
    done 2>/dev/null; done"#;
    let stopper = bed.run("stopper", stop).await;
    bed.log_has(&stopper, "ready").await;
    let waiting = bed.create("waiting", "sleep 1000", &[]).await;
    bed.log_has(&stopper, "stopped").await;
    let begun = Instant::now();
    let failed = tokio::time::timeout(TIMEOUT, bed.runtime.start_container(&waiting, &JournalWriter::none())).await;
    let failed = failed.expect("nobody waits for ever");
    match failed {
        Err(Error::Start { kind: StartFailure::Setup, message }) => {
            assert!(message.contains("not executed within 2 s"), "{message}");
        }
        other => panic!("after {:?}: {other:?}", begun.elapsed()),
    }
    assert_eq!(bed.exit(&waiting, TIMEOUT).await.code, 128);
    bed.runtime.remove_container(&waiting, &JournalWriter::none()).await.unwrap();

    // A stopped exec is killed too; a faster one has run.
    for _ in 0..1000 {
        match tokio::time::timeout(
            TIMEOUT,
            bed.runtime.exec(&stopper, bed.process("true", &[]), &JournalWriter::none()),
        )
        .await
        {
            // One stopped right after it has executed belongs to the container.
            Ok(Ok(session)) => {
                if let Ok(code) = tokio::time::timeout(Duration::from_secs(1), session.wait()).await {
                    assert_eq!(code.unwrap(), 0);
                }
            }
            Ok(Err(Error::Start { message, .. })) => {
                assert!(message.contains("not executed within 2 s"), "{message}");
                bed.end().await;
                return;
            }
            other => panic!("{:?}", other.map(|done| done.map(drop))),
        }
    }
    panic!("none of a thousand was stopped");
}

/// The kernel counts descriptors in flight (SCM_RIGHTS) per user, and another Pod's may belong to the same user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_of_the_same_user_hold_keeps_nobody_from_being_born() {
    const USER: u32 = 31_337;
    let held = std::thread::spawn(|| descriptors_on_their_way(USER)).join().unwrap();
    for pids in [PidMode::Container, PidMode::Sandbox] {
        let bed = Bed::new("inflight").await;
        bed.sandbox_with("s", |spec| spec.pid = pids).await;
        let options = [("user", "31337:31337"), ("caps", "none")];
        let main = bed.create("main", "echo born; sleep 1000", &options).await;
        bed.runtime.start_container(&main, &JournalWriter::none()).await.unwrap();
        bed.log_has(&main, "born").await;
        let done =
            bed.runtime.exec_sync(&main, bed.process("true", &options), TIMEOUT, &JournalWriter::none()).await.unwrap();
        assert_eq!(done.code, 0, "{done:?}");
        bed.end().await;
    }
    drop(held);
}

/// As many as the kernel allows a user, in sockets that are never read.
fn descriptors_on_their_way(user: u32) -> Vec<OwnedFd> {
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
        socketpair,
    };
    // Only for this thread.
    let user = rustix::process::Uid::from_raw(user);
    rustix::thread::set_thread_res_uid(user, user, user).unwrap();
    let null = fs::File::open("/dev/null").unwrap();
    let given = [null.as_fd(); 250];
    let mut held = Vec::new();
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
        for _ in 0..10 {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&given)));
            match sendmsg(&ours, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()) {
                Ok(_) => {}
                Err(rustix::io::Errno::TOOMANYREFS) => return held,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(e) => panic!("{e}"),
            }
        }
        held.extend([ours, theirs]);
    }
}

/// One tenant's Pod would exhaust a user's limit for another's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_has_no_limit_that_counts_for_all_of_its_user() {
    const SYS_RESOURCE: u64 = 1 << 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    if u64::from_str_radix(held, 16).unwrap() & SYS_RESOURCE == 0 {
        return crate::missing::here("this root may raise no limits");
    }
    let bed = Bed::new("limits").await;
    bed.sandbox("s").await;
    let show = "grep -E 'processes|pending|msgqueue' /proc/self/limits; echo told; sleep 1000";
    let main = bed.create("main", show, &[("user", "31337:31337"), ("caps", "none")]).await;
    bed.runtime.start_container(&main, &JournalWriter::none()).await.unwrap();
    bed.log_has(&main, "told").await;
    let log = bed.log(&main);
    let unlimited = |line: &&str| line.matches("unlimited").count() == 2;
    assert_eq!(log.lines().filter(|line| line.starts_with("Max")).filter(unlimited).count(), 3, "{log}");
    bed.end().await;
}

fn tracing() -> HashSet<oci::Capability> {
    default_capabilities().into_iter().chain([oci::Capability::SysPtrace]).collect()
}

/// A container that may trace other processes.
fn tracer(bed: &Bed, name: &str, script: &str) -> ContainerSpec {
    let mut spec = bed.container(name, script, &[]);
    let process = spec.oci.process().clone().unwrap();
    spec.oci.set_process(Some(with(process, &tracing())));
    let mut linux = spec.oci.linux().clone().unwrap();
    linux.set_seccomp(Some(default_seccomp(&tracing())));
    spec.oci.set_linux(Some(linux));
    spec.id = ContainerId::new("s", name, 0);
    spec
}

fn with(mut process: oci::Process, capabilities: &HashSet<oci::Capability>) -> oci::Process {
    process.set_capabilities(Some(capability_sets(capabilities)));
    process
}

/// A later container has a copy of the shim's memory until it is executed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_forgets_the_environment_of_who_runs() {
    let bed = Bed::new("forgets").await;
    bed.sandbox("s").await;
    let word = format!("secret-{}-{}", std::process::id(), "w".repeat(40));
    let id = bed.create("main", "sleep 1000", &[("env", &format!("WORD={word}"))]).await;
    let is_shim =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("shim:"));
    let shim = bed.processes_of("s").into_iter().find(is_shim).unwrap();
    let knows = || {
        use std::os::unix::fs::FileExt;
        let memory = fs::File::open(format!("/proc/{shim}/mem")).unwrap();
        let maps = fs::read_to_string(format!("/proc/{shim}/maps")).unwrap();
        let regions = maps.lines().filter(|line| line.contains(" rw-p ")).filter_map(|line| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
        });
        regions.into_iter().any(|(from, to)| {
            let mut bytes = vec![0; (to - from) as usize];
            memory.read_exact_at(&mut bytes, from).is_ok()
                && bytes.windows(word.len()).any(|part| part == word.as_bytes())
        })
    };
    assert!(knows(), "it has to give it to who is to be started");
    bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
    within("nothing is left", || async { if knows() { Err("it is still there") } else { Ok(()) } }).await;
    bed.end().await;
}
