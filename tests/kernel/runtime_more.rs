//! Less common requests of Pods: privileges, the host's namespaces, propagation; and invalid logs.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::Duration;

use podwright_runtime::sys::Kernel;
use podwright_runtime::{
    ContainerId, ContainerSpec, Error, JournalWriter, Network, PidMode, Resources, Rootfs, all_capabilities,
    default_devices, oci, seccomp,
};

use super::runtime::support::{Bed, within};

async fn log_of(bed: &Bed, id: &ContainerId) -> String {
    bed.runtime.start_container(id, &JournalWriter::none()).await.unwrap();
    bed.exit(id, Duration::from_secs(10)).await;
    bed.log(id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn privileges_are_those_asked_for() {
    let bed = Bed::new("privileges").await;
    bed.sandbox("s").await;
    let script = "grep -E '^(CapEff|NoNewPrivs|Seccomp|Seccomp_filters):' /proc/self/status; id -u";
    // Escalation allowed: the filters are loaded while the process still may, before it changes its user.
    let mut spec = bed.container("escalating", script, &[("user", "1000:1000")]);
    let mut process = spec.oci.process().clone().unwrap();
    process.set_no_new_privileges(Some(false));
    spec.oci.set_process(Some(process.clone()));
    let id = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
    let log = log_of(&bed, &id).await;
    let expected = "CapEff:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t2\n1000\n";
    assert_eq!(log, expected);

    let mut spec = bed.container("privileged", &format!("{script}; mount -t tmpfs x /tmp && echo mounted"), &[]);
    let all = all_capabilities();
    let sets = oci::LinuxCapabilitiesBuilder::default();
    let sets = sets.bounding(all.clone()).effective(all.clone()).permitted(all).inheritable([]).ambient([]);
    process.set_capabilities(Some(sets.build().unwrap())).set_user(oci::User::default());
    process.set_args(Some(
        ["sh", "-c", &format!("{script}; mount -t tmpfs x /tmp && echo mounted")].map(str::to_owned).to_vec(),
    ));
    spec.oci.set_process(Some(process)).set_linux(Some(oci::LinuxBuilder::default().build().unwrap()));
    let id = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
    let log = log_of(&bed, &id).await;
    assert!(log.contains("Seccomp:\t0") && log.contains("mounted"), "{log}");
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let bounding = own.lines().find_map(|l| l.strip_prefix("CapBnd:\t")).unwrap();
    assert!(log.contains(&format!("CapEff:\t{bounding}")), "{log}");
    bed.end().await;
}

/// A container that may use all devices.
fn all_devices(bed: &Bed, script: &str) -> ContainerSpec {
    let mut spec = bed.container("privileged", script, &[]);
    let all = oci::LinuxResourcesBuilder::default().devices(default_devices(true)).build().unwrap();
    let mut linux = spec.oci.linux().clone().unwrap();
    linux.set_resources(Some(all));
    spec.oci.set_linux(Some(linux));
    spec
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_privileged_open_the_hosts_devices() {
    let bed = Bed::new("devices").await;
    assert_eq!(bed.runtime.cgroups().devices_refused, None);
    bed.sandbox("s").await;
    // The kernel's log, which can be opened for writing without a capability, and a disk, if we may open one.
    let disks = std::fs::read_dir("/dev").unwrap().flatten().filter(|e| e.file_type().unwrap().is_block_device());
    let disk = disks.filter_map(|e| std::fs::File::open(e.path()).ok()?.metadata().ok()).map(|m| m.rdev()).next();
    let number = disk.unwrap_or(rustix::fs::makedev(8, 0));
    let number = format!("{} {}", rustix::fs::major(number), rustix::fs::minor(number));
    let script = format!(
        "mknod /log c 1 11 && mknod /disk b {number} && echo made; (echo > /dev/null) && echo null; \
         (true > /log) 2>&1 && echo log; (true < /disk) 2>&1 && echo disk"
    );
    let refused =
        "made\nnull\nsh: can't create /log: Operation not permitted\nsh: can't open /disk: Operation not permitted\n";
    let plain = bed.create("plain", &script, &[]).await;
    assert_eq!(log_of(&bed, &plain).await, refused);
    let long = bed.run("long", "sleep 1000").await;
    assert_eq!(String::from_utf8_lossy(&bed.exec(&long, &script).await.unwrap().stdout), refused);

    let id = bed.runtime.create_container(all_devices(&bed, &script), &JournalWriter::none()).await.unwrap().id;
    let log = log_of(&bed, &id).await;
    assert!(log.starts_with("made\nnull\nlog\n"), "{log}");
    assert!(disk.is_none() || log.ends_with("disk\n"), "{log}");
    bed.end().await;
}

/// Denies bpf(2) to this thread and those it starts, permanently.
fn refuse_bpf() {
    let profile = serde_json::json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": ["bpf"], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::EPERM }],
    });
    let kernel = Kernel::new(&JournalWriter::none());
    for program in seccomp::compile(&serde_json::from_value(profile).unwrap(), !0, false).unwrap() {
        kernel.seccomp(&program.bytes, program.flags).unwrap();
    }
}

#[test]
fn where_device_programs_are_refused_nobody_makes_nodes() {
    let test = async {
        let bed = Bed::new("no-bpf").await;
        assert!(bed.runtime.cgroups().devices_refused.as_ref().is_some_and(|why| why.contains("BPF_PROG_LOAD")));
        bed.sandbox("s").await;
        let node = bed.path("layers/top/log");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &node,
            rustix::fs::FileType::CharacterDevice,
            0o666.into(),
            rustix::fs::makedev(1, 11),
        )
        .unwrap();
        let script =
            "grep CapBnd /proc/self/status; mknod /own c 1 11 2>&1; (true > /log) 2>&1; true > /dev/null && echo null";
        let refused = "CapBnd:\t00000000a00425fb\nmknod: /own: Operation not permitted\n\
            sh: can't create /log: Permission denied\nnull\n";
        let plain = bed.create("plain", script, &[]).await;
        assert_eq!(log_of(&bed, &plain).await, refused);
        let long = bed.run("long", "sleep 1000").await;
        assert_eq!(String::from_utf8_lossy(&bed.exec(&long, script).await.unwrap().stdout), refused);
        let privileged =
            bed.runtime.create_container(all_devices(&bed, script), &JournalWriter::none()).await.unwrap().id;
        assert_eq!(log_of(&bed, &privileged).await, "CapBnd:\t00000000a80425fb\nnull\n");
        bed.end().await;
    };
    let thread = std::thread::spawn(|| {
        refuse_bpf();
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test)
    });
    thread.join().unwrap();
}

fn inode(path: &str) -> u64 {
    std::fs::metadata(path).unwrap().ino()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_of_the_host_are_the_hosts() {
    let bed = Bed::new("host").await;
    bed.sandbox_with("s", |spec| {
        (spec.network, spec.pid, spec.host_ipc) = (Network::Host, PidMode::Host, true);
        spec.hostname.clear();
    })
    .await;
    let id = bed.run("c", "sleep 1000 & sleep 1000").await;
    let process = bed.runtime.processes(&id, usize::MAX).await.unwrap().remove(0);
    for kind in ["net", "pid", "ipc", "uts"] {
        assert_eq!(process.namespaces[kind], inode(&format!("/proc/self/ns/{kind}")), "{kind}");
    }
    for kind in ["mnt", "cgroup"] {
        assert_ne!(process.namespaces[kind], inode(&format!("/proc/self/ns/{kind}")), "{kind}");
    }
    let out = bed.exec(&id, "echo $$ $(cat /proc/self/comm)").await.unwrap();
    assert!(String::from_utf8_lossy(&out.stdout).ends_with(" cat\n"), "{out:?}");
    // Without its own PID namespace, only its cgroup tells what else belongs to it.
    bed.runtime.stop_container(&id, libc::SIGKILL, Duration::from_secs(5), &JournalWriter::none()).await.unwrap();
    within("the end of its other process", || async {
        let left = bed.runtime.processes(&id, usize::MAX).await.unwrap();
        left.is_empty().then_some(()).ok_or(left)
    })
    .await;
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_can_join_a_network() {
    let bed = Bed::new("join").await;
    bed.sandbox("node").await;
    let pause = bed.runtime.sandbox("node").await.unwrap().pid;
    let path = format!("/proc/{pause}/ns/net");
    bed.sandbox_with("s", |spec| spec.network = Network::Path(path.clone().into())).await;
    let id = bed.run("c", "sleep 1000").await;
    let processes = bed.runtime.processes(&id, usize::MAX).await.unwrap();
    assert_eq!(processes[0].namespaces["net"], inode(&path));
    let netns = std::fs::File::from(bed.runtime.netns("s").await.unwrap());
    assert_eq!(netns.metadata().unwrap().ino(), inode(&path));
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_mounts_reach_the_host_and_others_do_not() {
    use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
    let bed = Bed::new("shared").await;
    bed.sandbox("s").await;
    let volume = bed.path("volume");
    std::fs::create_dir(&volume).unwrap();
    mount("volume", &volume, "tmpfs", MountFlags::empty(), None).unwrap();
    mount_change(&volume, MountPropagationFlags::SHARED).unwrap();
    let all = all_capabilities();
    for (name, option, seen) in [("two-way", "rshared", true), ("one-way", "rslave", false)] {
        let script = format!(
            "mkdir /v/{name} && mount -t tmpfs inner /v/{name} && touch /v/{name}/file && echo done; sleep 1000"
        );
        let mut spec = bed.container(name, &script, &[]);
        let mut process = spec.oci.process().clone().unwrap();
        let sets = oci::LinuxCapabilitiesBuilder::default().bounding(all.clone()).effective(all.clone());
        process.set_capabilities(Some(sets.permitted(all.clone()).build().unwrap()));
        let options = vec!["rbind".to_owned(), option.to_owned()];
        let bind = oci::MountBuilder::default().destination("/v").typ("bind").source(&volume).options(options);
        let mut mounts = spec.oci.mounts().clone().unwrap();
        mounts.push(bind.build().unwrap());
        spec.oci.set_process(Some(process)).set_mounts(Some(mounts));
        spec.oci.set_linux(Some(oci::LinuxBuilder::default().build().unwrap()));
        let id = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
        bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
        bed.log_has(&id, "done").await;
        assert_eq!(volume.join(name).join("file").exists(), seen, "{name}");
        bed.runtime.remove_container(&id, &JournalWriter::none()).await.unwrap();
    }
    let _ = unmount(volume.join("two-way"), UnmountFlags::DETACH);
    unmount(&volume, UnmountFlags::DETACH).unwrap();
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_folder_can_be_the_root() {
    let bed = Bed::new("plain").await;
    bed.sandbox("s").await;
    let mut spec = bed.container("c", "touch /made && ls /", &[]);
    spec.rootfs = Rootfs::Dir(bed.path("layers/base"));
    let id = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
    assert!(log_of(&bed, &id).await.contains("made\n"));
    assert!(bed.path("layers/base/made").exists());
    bed.end().await;
}

/// A process that may write to the log folder could otherwise block the shim on a pipe, or redirect it by a symlink.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_no_plain_file_is_refused_and_holds_up_nothing_else() {
    let bed = Bed::new("oddlog").await;
    bed.sandbox("s").await;
    let path = bed.path("logs/odd/0.log");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let elsewhere = bed.path("elsewhere");
    std::fs::write(&elsewhere, "").unwrap();
    for link in [false, true] {
        match link {
            false => rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap(),
            true => std::os::unix::fs::symlink(&elsewhere, &path).unwrap(),
        }
        let spec = bed.container("odd", "echo said; sleep 1000", &[]);
        let refused = bed.runtime.create_container(spec, &JournalWriter::none()).await;
        assert!(matches!(&refused, Err(Error::Kernel(why)) if why.contains("0.log")), "{refused:?}");
        std::fs::remove_file(&path).unwrap();
        let _ = bed.runtime.remove_container(&ContainerId::new("s", "odd", 0), &JournalWriter::none()).await;
    }
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "");
    let beside = bed.run("beside", "exit 6").await;
    assert_eq!(bed.exit(&beside, Duration::from_secs(5)).await.code, 6);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sandboxes_come_and_go_at_once() {
    let bed = Bed::new("many").await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let (runtime, mut spec) = (bed.runtime.clone(), bed.container("c", "echo hello; sleep 1000", &[]));
        let sandbox = bed.sandbox_spec(&format!("s{n}"));
        spec.id.sandbox = sandbox.id.clone();
        spec.log.as_mut().unwrap().path = bed.path("logs").join(&sandbox.id).join("0.log");
        tasks.spawn(async move {
            let none = JournalWriter::none();
            runtime.run_sandbox(sandbox, &none).await?;
            let id = runtime.create_container(spec, &none).await?.id;
            runtime.start_container(&id, &none).await?;
            runtime.stop_container(&id, libc::SIGKILL, Duration::from_secs(20), &none).await?;
            runtime.remove_sandbox(&id.sandbox, &none).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_that_hangs_holds_up_no_start_of_the_node() {
    let mut bed = Bed::new("hung").await;
    for sandbox in ["hangs", "lives"] {
        bed.sandbox(sandbox).await;
    }
    let hangs = bed.run_in("hangs", "long", "sleep 1000").await;
    let lives = bed.run_in("lives", "long", "sleep 1000").await;
    bed.forget().await;
    bed.signal_shim("hangs", rustix::process::Signal::STOP);
    tokio::time::timeout(Duration::from_secs(60), bed.reopen()).await.expect("the runtime opens");
    let exit = bed.status(&hangs).await.exit.expect("it counts as ended");
    assert_eq!(exit.reason, podwright_runtime::ExitReason::ContainerStatusUnknown);
    assert_eq!(bed.status(&lives).await.exit, None);
    within("the death of all its processes", || async {
        let left = bed.processes_of("hangs");
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    })
    .await;
    bed.end().await;
}

/// A hanging shim (stopped, or stuck in the kernel) is given up: requests to it end, and so do its processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_that_hangs_holds_up_neither_a_stop_nor_an_exec_nor_a_removal() {
    let bed = Bed::new("stuck").await;
    let mut events = bed.runtime.events();
    for sandbox in ["stop", "exec", "remove"] {
        bed.sandbox(sandbox).await;
        bed.run_in(sandbox, "long", "sleep 1000").await;
        bed.signal_shim(sandbox, rustix::process::Signal::STOP);
    }
    let (id, none) = (|sandbox: &str| podwright_runtime::ContainerId::new(sandbox, "long", 0), JournalWriter::none());
    let limit = |seconds: u64, what: &'static str| (Duration::from_secs(seconds), what);
    let stopped = async {
        let (patience, what) = limit(30, "the stop ends");
        let stop = id("stop");
        let stopped = bed.runtime.stop_container(&stop, libc::SIGTERM, Duration::from_secs(1), &none);
        let exit = tokio::time::timeout(patience, stopped).await.expect(what).unwrap().expect("it was there");
        assert_eq!(exit.reason, podwright_runtime::ExitReason::ContainerStatusUnknown);
    };
    let executed = async {
        let (patience, what) = limit(40, "the exec ends");
        let exec = id("exec");
        tokio::time::timeout(patience, bed.exec(&exec, "true")).await.expect(what).unwrap_err();
    };
    let removed = async {
        let (patience, what) = limit(60, "the removal ends");
        let _ = tokio::time::timeout(patience, bed.runtime.remove_sandbox("remove", &none)).await.expect(what);
    };
    tokio::join!(stopped, executed, removed);
    let mut gone = std::collections::BTreeSet::new();
    while let Ok(Ok(event)) = tokio::time::timeout(Duration::from_secs(10), events.recv()).await {
        if let podwright_runtime::Event::SandboxGone { id } = event {
            gone.insert(id);
        }
        if gone.contains("stop") && gone.contains("exec") {
            break;
        }
    }
    assert!(gone.contains("stop") && gone.contains("exec"), "their loss is told: {gone:?}");
    for sandbox in ["stop", "exec", "remove"] {
        within("the death of all its processes", || async {
            let left = bed.processes_of(sandbox);
            left.is_empty().then_some(()).ok_or(format!("{sandbox}: {left:?}"))
        })
        .await;
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_sandboxes_without_a_record_is_swept_away() {
    let mut bed = Bed::new("stray").await;
    for sandbox in ["stray", "known"] {
        bed.sandbox(sandbox).await;
    }
    bed.run_in("stray", "long", "sleep 1000").await;
    let known = bed.run_in("known", "long", "sleep 1000").await;
    bed.forget().await;
    // Its shim is gone: the rest is unmanaged.
    bed.kill_shim("stray");
    std::fs::remove_dir_all(bed.path("state/sandboxes/stray")).unwrap();
    std::fs::create_dir(bed.path("run/nobody")).unwrap();
    bed.reopen().await;
    assert_eq!(bed.processes_of("stray"), Vec::<u32>::new());
    assert_eq!(bed.status(&known).await.exit, None);
    // Remains of the stray's folders would be found here.
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ephemeral_container_joins_the_processes_of_another() {
    let bed = Bed::new("target").await;
    bed.sandbox("s").await;
    let target = bed.run("web", "echo up; exec sleep 1000").await;
    bed.log_has(&target, "up").await;
    let script = "tr '\\0' ' ' < /proc/1/cmdline; echo; hostname; exec sleep 1000";
    let mut spec = bed.container("debug", script, &[]);
    spec.pid_of = Some(target.clone());
    let id = bed.runtime.create_container(spec.clone(), &JournalWriter::none()).await.unwrap().id;
    bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
    bed.log_has(&id, "sleep 1000").await;
    let mut namespaces = Vec::new();
    for id in [&id, &target] {
        namespaces.push(std::fs::read_link(format!("/proc/{}/ns/pid", bed.status(id).await.pid)).unwrap());
    }
    assert_eq!(namespaces[0], namespaces[1]);
    let seen = bed.exec(&id, "ps").await.unwrap();
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert_eq!(seen.matches("sleep 1000").count(), 2, "an exec into it sees both: {seen}");
    // The kernel ends a PID namespace with its first process.
    bed.runtime.stop_container(&target, libc::SIGKILL, Duration::ZERO, &JournalWriter::none()).await.unwrap();
    let exit = bed.exit(&id, Duration::from_secs(10)).await;
    assert_eq!(exit.code, 137);
    spec.id = ContainerId::new("s", "late", 0);
    let refused = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap_err();
    assert!(refused.to_string().contains("container web.0 is not running"), "{refused}");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_for_a_sandbox_whose_turn_to_go_was_first() {
    let bed = Bed::new("gone").await;
    let none = JournalWriter::none();
    for _ in 0..5 {
        bed.sandbox("s").await;
        let resources = Resources { memory_max: Some(64 << 20), ..Resources::default() };
        let (removed, updated, noted) = tokio::join!(
            biased;
            bed.runtime.remove_sandbox("s", &none),
            bed.runtime.update_sandbox("s", &resources, &none),
            bed.runtime.annotate_sandbox("s", "later".to_owned()),
        );
        removed.unwrap();
        assert!(matches!(updated, Err(Error::NotFound(_))), "{updated:?}");
        assert!(matches!(noted, Err(Error::NotFound(_))), "{noted:?}");
    }
    // Later writes would be found here.
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_may_forbid_to_ask_who_one_is() {
    let bed = Bed::new("filter").await;
    let path = bed.path("journal");
    let journal = JournalWriter::open(&path, podwright_journal::Role::Agent).unwrap().about("uid-1", 1);
    bed.sandbox_by("s", &journal).await;
    // It executes nothing, so everything after the filter is our own code: writing records, and reporting the failure.
    let mut spec = bed.container("c", "", &[("argv", "/no/such")]);
    let filter = serde_json::json!({ "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{ "names": ["getpid", "gettid"], "action": "SCMP_ACT_KILL_PROCESS" }] });
    let mut linux = spec.oci.linux().clone().unwrap();
    linux.set_seccomp(Some(serde_json::from_value(filter).unwrap()));
    spec.oci.set_linux(Some(linux));
    let id = bed.runtime.create_container(spec, &journal).await.unwrap().id;
    let failed = bed.runtime.start_container(&id, &journal).await.unwrap_err();
    assert!(matches!(&failed, Error::Start { message, .. } if message.contains("no such file")), "{failed:?}");
    journal.flush();
    let records = podwright_journal::read(&path).unwrap();
    let last = records.iter().rfind(|record| record.role == podwright_journal::Role::Init);
    assert_eq!(last.map(|record| record.call.as_str()), Some("seccomp"), "{records:#?}");
    bed.end().await;
}
