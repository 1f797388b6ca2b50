//! Who is born in a container's PID namespace: never more than the container, and not for ever. Judged by others in there.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use podwright_runtime::{
    ContainerId, ContainerSpec, Error, ExecSpec, PidMode, Scribe, StartFailure, default_capabilities, default_seccomp,
    oci,
};
use serde_json::json;

use crate::runtime::support::{Bed, capability_sets};

const TIMEOUT: Duration = Duration::from_secs(10);

/// What is seen of each process but `pause`, by nothing but the shell: its rights, and whether it is one of the runtime's still.
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
        let watcher = bed.runtime.create_container(tracer(&bed, "watcher", WATCH), &Scribe::none()).await.unwrap().id;
        bed.runtime.start_container(&watcher, &Scribe::none()).await.unwrap();
        bed.log_has(&watcher, "ready").await;

        // One that waits for its start can be looked at for as long as one likes.
        let mut waiting = tracer(&bed, "waiting", "exec sleep 1000");
        waiting.oci.process_mut().as_mut().unwrap().set_no_new_privileges(Some(no_new_privs));
        let waiting = bed.runtime.create_container(waiting, &Scribe::none()).await.unwrap().id;
        bed.log_has(&watcher, "seen").await;
        bed.runtime.start_container(&waiting, &Scribe::none()).await.unwrap();

        for _ in 0..150 {
            let mut spec = ExecSpec { seccomp: Some(default_seccomp(&tracing())), ..bed.process("true", &[]) };
            spec.process = with(spec.process, &tracing());
            spec.process.set_no_new_privileges(Some(no_new_privs));
            let done = bed.runtime.exec_sync(&waiting, spec, TIMEOUT, &Scribe::none()).await.unwrap();
            assert_eq!(done.code, 0, "{done:?}");
        }
        assert_eq!(bed.log(&watcher), "ready\nseen\n", "no_new_privs {no_new_privs}");
        bed.end().await;
    }
}

/// Who is born among others has its filters already, so they must allow the birth; who is alone needs nothing of that.
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
        let main = bed.runtime.create_container(spec, &Scribe::none()).await.unwrap().id;
        bed.runtime.start_container(&main, &Scribe::none()).await.unwrap();
        let spec = ExecSpec { seccomp: Some(filter), ..bed.process("true", &[]) };
        match bed.runtime.exec_sync(&main, spec, TIMEOUT, &Scribe::none()).await {
            Err(Error::Start { kind: StartFailure::Setup, message }) => {
                assert!(message.contains("a seccomp profile must allow clone(2)"), "{action}: {message}");
            }
            other => panic!("{action}: {other:?}"),
        }
        bed.runtime.stop_container(&main, libc::SIGKILL, TIMEOUT, &Scribe::none()).await.unwrap();
        bed.runtime.remove_container(&main, &Scribe::none()).await.unwrap();
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
    let failed = bed.runtime.start_container(&itself, &Scribe::none()).await;
    assert!(matches!(failed, Err(Error::Start { kind: StartFailure::PermissionDenied, .. })), "{failed:?}");

    let by_script = bed.create("script", "", &[("argv", "/self")]).await;
    bed.runtime.start_container(&by_script, &Scribe::none()).await.unwrap();
    assert_eq!(bed.runtime.wait_container(&by_script, TIMEOUT).await.unwrap().code, 1);
    assert!(bed.log(&by_script).contains("not started by an agent"), "{}", bed.log(&by_script));

    let main = bed.run("main", "sleep 1000").await;
    let by_exec = bed.runtime.exec_sync(&main, bed.process("", &[("argv", "/self")]), TIMEOUT, &Scribe::none()).await;
    let by_exec = by_exec.unwrap();
    assert_eq!(by_exec.code, 1, "{by_exec:?}");
    assert!(String::from_utf8_lossy(&by_exec.stderr).contains("not started by an agent"), "{by_exec:?}");
    bed.end().await;
}

/// A container can stop what is about to become its neighbour: nobody waits for that for ever.
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
    let failed = tokio::time::timeout(TIMEOUT, bed.runtime.start_container(&waiting, &Scribe::none())).await;
    let failed = failed.expect("nobody waits for ever");
    match failed {
        Err(Error::Start { kind: StartFailure::Setup, message }) => {
            assert!(message.contains("not executed within 2 s"), "{message}");
        }
        other => panic!("after {:?}: {other:?}", begun.elapsed()),
    }
    assert_eq!(bed.runtime.wait_container(&waiting, TIMEOUT).await.unwrap().code, 128);
    bed.runtime.remove_container(&waiting, &Scribe::none()).await.unwrap();

    // An exec that is stopped is killed too; one that was faster has run.
    for _ in 0..1000 {
        match tokio::time::timeout(TIMEOUT, bed.runtime.exec(&stopper, bed.process("true", &[]), &Scribe::none())).await
        {
            // Who is stopped right after it has executed is a process of the container's own.
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

fn tracing() -> HashSet<oci::Capability> {
    default_capabilities().into_iter().chain([oci::Capability::SysPtrace]).collect()
}

/// A container that may trace whom it sees.
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
