//! Sandboxes with user namespaces: identities on both sides, ownership of namespaces and files, and inaccessible things.

use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use podwright_runtime::{
    ContainerId, ContainerSpec, IdRange, JournalWriter, Network, PidMode, all_capabilities, default_capabilities, oci,
    sys::io,
};

use crate::runtime::support::{Bed, capability_sets, read_tty};

const SIZE: u32 = 1 << 16;
const FIRST: u32 = 0x2000_0000;
const SECOND: u32 = FIRST + SIZE;
const TIMEOUT: Duration = Duration::from_secs(10);

async fn sandbox(bed: &Bed, id: &str, host: u32, pid: PidMode) {
    bed.runtime.user_namespaces().unwrap();
    bed.sandbox_with(id, |spec| {
        spec.users = Some(IdRange { host, size: SIZE });
        spec.pid = pid;
        spec.sysctls.insert("net.ipv4.ping_group_range".into(), "0 65535".into());
        spec.sysctls.insert("kernel.msgmax".into(), "4096".into());
    })
    .await
}

/// The output of a script in a container; it must succeed.
async fn said(bed: &Bed, id: &ContainerId, script: &str) -> String {
    let out = bed.exec(id, script).await.unwrap();
    let (stdout, stderr) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert_eq!(out.code, 0, "{script}: {stdout}{stderr}");
    stdout
}

async fn start(bed: &Bed, spec: ContainerSpec) -> ContainerId {
    let id = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
    bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
    id
}

fn give_capabilities(spec: &mut ContainerSpec, capabilities: HashSet<oci::Capability>) {
    let sets = capability_sets(&capabilities);
    spec.oci.process_mut().as_mut().unwrap().set_capabilities(Some(sets));
    spec.oci.linux_mut().as_mut().unwrap().set_seccomp(None);
}

fn bind(spec: &mut ContainerSpec, source: &Path, target: &str, options: &[&str]) {
    let options: Vec<String> = options.iter().map(|o| o.to_string()).collect();
    let mount = oci::MountBuilder::default().destination(target).typ("bind").source(source).options(options).build();
    spec.oci.mounts_mut().as_mut().unwrap().push(mount.unwrap());
}

fn uids(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().filter(|l| l.starts_with("Uid:") || l.starts_with("Gid:")).map(|l| format!("{l}\n")).collect()
}

fn namespace(pid: u32, kind: &str) -> u64 {
    fs::metadata(format!("/proc/{pid}/ns/{kind}")).unwrap().ino()
}

/// The user namespace that owns a namespace of a process (ioctl_ns(2)).
pub fn owner_of(pid: u32, kind: &str) -> u64 {
    use std::os::fd::{AsRawFd, FromRawFd};
    const NS_GET_USERNS: u64 = 0xb701;
    let file = fs::File::open(format!("/proc/{pid}/ns/{kind}")).unwrap();
    // SAFETY: takes no argument and returns a new descriptor of ours.
    let fd = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_USERNS as _) };
    assert!(fd >= 0, "{kind}: {}", std::io::Error::last_os_error());
    // SAFETY: as above.
    unsafe { fs::File::from_raw_fd(fd) }.metadata().unwrap().ino()
}

/// The host user that owns a user namespace, with all capabilities over it.
fn owner_outside(pid: u32) -> u32 {
    use std::os::fd::AsRawFd;
    const NS_GET_OWNER_UID: u64 = 0xb704;
    let (file, mut owner) = (fs::File::open(format!("/proc/{pid}/ns/user")).unwrap(), 0u32);
    // SAFETY: the kernel writes a uid there.
    let asked = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_OWNER_UID as _, &raw mut owner) };
    assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
    owner
}

/// Every file below a folder: its path, owner, mode and size.
fn all_files(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, found) = (entry.path(), entry.metadata().unwrap());
        all.push(format!("{} {} {} {:o} {}", path.display(), found.uid(), found.gid(), found.mode(), found.len()));
        if found.is_dir() {
            all.extend(all_files(&path));
        }
    }
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_inside_is_nobody_outside() {
    let bed = Bed::new("users").await;
    for (id, pid) in [("s", PidMode::Container), ("shared", PidMode::Sandbox)] {
        sandbox(&bed, id, if id == "s" { FIRST } else { SECOND }, pid).await;
        let base = if id == "s" { FIRST } else { SECOND };
        let main = bed.run_in(id, "main", "echo started; sleep 1000").await;
        let map = format!("{:>10} {base:>10} {SIZE:>10}\n", 0);
        assert_eq!(
            said(&bed, &main, "id -u; id -g; cat /proc/self/uid_map /proc/self/gid_map").await,
            format!("0\n0\n{map}{map}")
        );
        let pid = bed.status(&main).await.pid;
        assert_eq!(uids(pid), format!("Uid:\t{base}\t{base}\t{base}\t{base}\nGid:\t{base}\t{base}\t{base}\t{base}\n"));
        let own = namespace(pid, "user");
        assert_ne!(own, namespace(std::process::id(), "user"));
        for kind in ["mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            assert_eq!(owner_of(pid, kind), own, "{id}: {kind}");
        }
        assert!(owner_outside(pid) >= 0xf000_0000, "root of another Pod has no power over it: {}", owner_outside(pid));
        let pause = bed.runtime.sandbox(id).await.unwrap().pid;
        assert_eq!(namespace(pause, "user"), own);
        assert!(uids(pause).contains(&format!("{}", base + 65535)), "{}", uids(pause));
        // An exec runs in the container's namespaces.
        let of_exec =
            said(&bed, &main, "for n in user mnt pid net ipc uts cgroup; do readlink /proc/self/ns/$n; done").await;
        for (kind, seen) in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"].iter().zip(of_exec.lines()) {
            assert_eq!(seen, format!("{kind}:[{}]", namespace(pid, kind)), "{id}");
        }
        assert_eq!(
            said(&bed, &main, "cat /proc/sys/net/ipv4/ping_group_range /proc/sys/kernel/msgmax; hostname").await,
            "0\t65535\n4096\npod-host\n"
        );
        // A non-root user.
        let user = bed.process(
            "id -u; id -G; touch /tmp/own && stat -c '%u %g' /tmp/own; echo x >/proc/self/fd/1",
            &[("user", "1000:3000+4000")],
        );
        fs::set_permissions(bed.path("layers/base/tmp"), PermissionsExt::from_mode(0o1777)).unwrap();
        let out = bed.runtime.exec_sync(&main, user, TIMEOUT, &JournalWriter::none()).await.unwrap();
        assert_eq!(
            String::from_utf8(out.stdout).unwrap(),
            "1000\n3000 4000\n1000 3000\nx\n",
            "{:?}",
            String::from_utf8(out.stderr)
        );
        // Its container's own output came through its pipes.
        bed.log_has(&main, "started").await;
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_share_layers_and_change_nothing_of_them() {
    let bed = Bed::new("layers").await;
    fs::write(bed.path("layers/top/etc/private"), "of the image\n").unwrap();
    fs::set_permissions(bed.path("layers/top/etc/private"), PermissionsExt::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(bed.path("layers/top/etc/garbage"), Some(1000), Some(3000)).unwrap();
    let before = all_files(&bed.path("layers"));
    for (id, base) in [("s", FIRST), ("t", SECOND)] {
        sandbox(&bed, id, base, PidMode::Container).await;
        let mut spec = bed.container("main", "sleep 1000", &[("cwd", "/made/here")]);
        spec.id.sandbox = id.into();
        let main = start(&bed, spec).await;
        let owners = "stat -c '%n %u:%g' / /bin/busybox /etc /etc/private /etc/garbage /dev /dev/null /dev/shm /dev/pts /dev/ptmx /dev/mqueue /made/here /proc/self/";
        let expected: String = "/ /bin/busybox /etc /etc/private /etc/garbage /dev /dev/null /dev/shm /dev/pts /dev/ptmx /dev/mqueue /made/here /proc/self/"
            .split(' ')
            .map(|path| format!("{path} {}\n", if path == "/etc/garbage" { "1000:3000" } else { "0:0" }))
            .collect();
        assert_eq!(said(&bed, &main, owners).await, expected);
        assert_eq!(
            said(&bed, &main, "cat /etc/private; echo more >> /etc/private; cat /etc/private; rm /etc/plain").await,
            "of the image\nof the image\nmore\n"
        );
        said(&bed, &main, "echo x > /new; echo x > /other; chown 1000:3000 /other; chmod 4755 /other; mkdir /dir; echo x > /dev/shm/x; mknod /pipe p").await;
        let upper = bed.path(&format!("state/sandboxes/{id}/c/main.0/upper"));
        for (file, uid, gid) in [
            ("new", 0, 0),
            ("other", 1000, 3000),
            ("dir", 0, 0),
            ("etc/private", 0, 0),
            ("made/here", 0, 0),
            ("pipe", 0, 0),
        ] {
            let found = fs::metadata(upper.join(file)).unwrap();
            assert_eq!((found.uid(), found.gid()), (base + uid, base + gid), "{file}");
        }
        // Only existing devices can be used: not even root can create one.
        let mut spec = bed.container("powerful", "sleep 1000", &[]);
        spec.id.sandbox = id.into();
        give_capabilities(&mut spec, all_capabilities());
        let powerful = start(&bed, spec).await;
        let refused = said(
            &bed,
            &powerful,
            "mknod /zero c 1 5 2>&1 || echo refused; echo x > /dev/null; head -c1 /dev/zero | wc -c",
        )
        .await;
        assert!(refused.contains("Operation not permitted") && refused.ends_with("refused\n1\n"), "{refused}");
    }
    assert_eq!(all_files(&bed.path("layers")), before);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binds_are_shown_as_they_are_asked_for() {
    let bed = Bed::new("binds").await;
    sandbox(&bed, "s", FIRST, PidMode::Container).await;
    for folder in ["own", "foreign"] {
        fs::create_dir(bed.path(folder)).unwrap();
        fs::write(bed.path(folder).join("canary"), "of the host\n").unwrap();
        fs::set_permissions(bed.path(folder).join("canary"), PermissionsExt::from_mode(0o600)).unwrap();
    }
    let mut spec = bed.container("main", "sleep 1000", &[]);
    bind(&mut spec, &bed.path("own"), "/own", &["rbind", "rw", "ridmap"]);
    bind(&mut spec, &bed.path("own"), "/own/below/there", &["rbind", "ro", "ridmap"]);
    bind(&mut spec, &bed.path("foreign"), "/foreign", &["rbind", "rw"]);
    give_capabilities(&mut spec, all_capabilities());
    let main = start(&bed, spec).await;
    assert_eq!(
        said(&bed, &main, "cat /own/canary; stat -c '%u %g' /own /own/canary /own/below").await,
        "of the host\n0 0\n0 0\n0 0\n"
    );
    said(&bed, &main, "umask 077; echo mine > /own/x; echo mine > /own/y; chown 1000:3000 /own/y").await;
    for (file, uid, gid, mode) in [("x", 0, 0, 0o600), ("y", 1000, 3000, 0o600), ("below", 0, 0, 0o755)] {
        let found = fs::metadata(bed.path("own").join(file)).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (uid, gid, mode), "{file}");
    }
    assert_eq!(said(&bed, &main, "stat -c '%u %g' /foreign /foreign/canary").await, "65534 65534\n65534 65534\n");
    for attempt in [
        "cat /foreign/canary",
        "chown 0:0 /foreign/canary",
        "chmod 0666 /foreign/canary",
        "echo x > /foreign/canary",
        "rm -f /foreign/canary",
        "touch /foreign/new",
        "mv /foreign/canary /foreign/moved",
        "touch /own/below/there/x",
    ] {
        let out = bed.exec(&main, attempt).await.unwrap();
        assert_ne!(out.code, 0, "{attempt}: {out:?}");
    }
    assert_eq!(fs::read_to_string(bed.path("foreign/canary")).unwrap(), "of the host\n");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_capabilities_are_over_its_own_things_alone() {
    let bed = Bed::new("power").await;
    for (id, pid) in [("s", PidMode::Container), ("shared", PidMode::Sandbox)] {
        sandbox(&bed, id, FIRST, pid).await;
        let mut spec = bed.container("main", "sleep 1000", &[]);
        spec.id.sandbox = id.into();
        give_capabilities(&mut spec, all_capabilities());
        let main = start(&bed, spec.clone()).await;
        let run = |script: &'static str| {
            let mut exec = bed.process(script, &[]);
            exec.process = spec.oci.process().clone().unwrap();
            exec.process.set_args(Some(["sh", "-c", script].map(str::to_owned).to_vec()));
            exec.seccomp = None;
            let (runtime, main) = (bed.runtime.clone(), main.clone());
            async move { runtime.exec_sync(&main, exec, TIMEOUT, &JournalWriter::none()).await.unwrap() }
        };
        for allowed in ["mount -t tmpfs x /tmp", "hostname other", "ip link set lo down || ifconfig lo down"] {
            let out = run(allowed).await;
            assert_eq!(out.code, 0, "{id}: {allowed}: {out:?}");
        }
        // Its mounts stay, and the host's objects are inaccessible.
        for refused in [
            "umount /proc/kcore",
            "umount /proc/interrupts",
            "umount -l /proc",
            "umount /dev",
            "mount -o remount,rw,bind /proc/sys",
            "mount -o remount,rw /sys",
            "cat /proc/sys/kernel/core_pattern > /tmp/p && cat /tmp/p > /proc/sys/kernel/core_pattern",
            "cat /proc/sys/vm/swappiness > /tmp/p && cat /tmp/p > /proc/sys/vm/swappiness",
            "cat /proc/kmsg",
            "dmesg",
            "mknod /x b 8 0",
        ] {
            let out = run(refused).await;
            assert_ne!(out.code, 0, "{id}: {refused}: {out:?}");
        }
        bed.runtime.remove_sandbox(id, &JournalWriter::none()).await.unwrap();
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminals_shared_processes_and_later_agents() {
    let mut bed = Bed::new("ttys").await;
    sandbox(&bed, "s", FIRST, PidMode::Sandbox).await;
    let other = bed.run("other", "sleep 1000").await;
    let main = bed
        .create(
            "main",
            "tty; stat -c '%u %t' /dev/console /dev/pts/0; test -t 0 && echo terminal; sleep 1000",
            &[("tty", "yes")],
        )
        .await;
    bed.runtime.start_container(&main, &JournalWriter::none()).await.unwrap();
    bed.log_has(&main, "terminal").await;
    assert!(bed.log(&main).replace('\r', "").contains("0 88\n0 88\n"), "{}", bed.log(&main));
    assert!(said(&bed, &main, "ps").await.contains("pause"));
    assert!(said(&bed, &other, "ls /proc/1/root; cat /proc/[0-9]*/comm").await.contains("pause"));
    for _ in 0..2 {
        for user in ["0:0", "1000:3000"] {
            let spec = bed.process("tty; stat -c %u $(tty); id -u", &[("tty", "yes"), ("user", user)]);
            let mut session = bed.runtime.exec(&main, spec, &JournalWriter::none()).await.unwrap();
            let said = read_tty(session.streams.stdout.take().unwrap()).await;
            assert_eq!(session.wait().await.unwrap(), 0, "{said}");
            let uid = user.split(':').next().unwrap();
            assert!(said.ends_with(&format!("{uid}\r\n{uid}\r\n")), "{said}");
        }
        // The next agent finds them unchanged.
        bed.forget().await;
        bed.reopen().await;
        let found = bed.runtime.sandbox("s").await.unwrap();
        assert_eq!(found.spec.users, Some(IdRange { host: FIRST, size: SIZE }));
    }
    let later = bed.run("later", "sleep 1000").await;
    let pid = bed.status(&later).await.pid;
    assert_eq!(namespace(pid, "user"), namespace(bed.status(&main).await.pid, "user"));
    assert_eq!(owner_of(pid, "mnt"), namespace(pid, "user"));
    bed.end().await;
}

/// Descriptors sent by a host user and not received, until the sockets are closed. The kernel refuses further sending when as many
/// are in flight as the user may open, unless it has privileges over the machine (unix(7), ETOOMANYREFS).
fn sent_by(uid: u32, descriptors: usize) -> (OwnedFd, OwnedFd) {
    let (ours, theirs) = io::message_pair().unwrap();
    let socket = ours.try_clone().unwrap();
    let null = OwnedFd::from(fs::File::open("/dev/null").unwrap());
    let send = move || {
        // SAFETY: plain values. The system call, unlike the function, changes this thread alone.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
        let batch = [null.as_fd(); io::MAX_FDS];
        (0..descriptors.div_ceil(batch.len())).for_each(|_| _ = io::send(socket.as_fd(), b"x", &batch).unwrap());
    };
    std::thread::spawn(send).join().unwrap();
    (ours, theirs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_many_descriptors_on_their_way_keeps_nobody_from_being_born() {
    let bed = Bed::new("inflight").await;
    let limited = |process: &mut oci::Process| {
        let files = oci::PosixRlimitBuilder::default().typ(oci::PosixRlimitType::RlimitNofile).soft(64u64).hard(64u64);
        process.set_rlimits(Some(vec![files.build().unwrap()]));
    };
    for (id, host, pid) in [("alone", FIRST, PidMode::Container), ("shared", SECOND, PidMode::Sandbox)] {
        sandbox(&bed, id, host, pid).await;
        let _sent = [sent_by(host, 200), sent_by(host + 1000, 200)];
        let mut spec = bed.container("main", "sleep 1000", &[]);
        spec.id.sandbox = id.to_owned();
        limited(spec.oci.process_mut().as_mut().unwrap());
        let main = start(&bed, spec).await;
        for (user, terminal) in [("0:0", false), ("0:0", true), ("1000:1000", false), ("1000:1000", true)] {
            let mut spec = bed.process("id -u", &[("user", user)]);
            spec.process.set_terminal(Some(terminal));
            limited(&mut spec.process);
            let mut session = bed.runtime.exec(&main, spec, &JournalWriter::none()).await.unwrap();
            let said = read_tty(session.streams.stdout.take().unwrap()).await;
            assert_eq!(session.wait().await.unwrap(), 0, "{said}");
            assert_eq!(said.trim_end(), user.split(':').next().unwrap());
        }
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_joins_another_ones_processes() {
    let bed = Bed::new("pidof").await;
    sandbox(&bed, "s", FIRST, PidMode::Container).await;
    let main = bed.run("main", "sleep 1234").await;
    let mut spec = bed.container("debugger", "sleep 1000", &[]);
    spec.pid_of = Some(main.clone());
    let debugger = start(&bed, spec).await;
    assert!(said(&bed, &debugger, "cat /proc/1/cmdline").await.starts_with("sleep\x001234"));
    let pid = bed.status(&debugger).await.pid;
    assert_eq!(owner_of(pid, "mnt"), namespace(pid, "user"));
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_had_is_refused() {
    let bed = Bed::new("refused").await;
    let users = |host, size| Some(IdRange { host, size });
    type Change = fn(&mut podwright_runtime::SandboxSpec);
    let cases: [(_, Change, &str); 6] = [
        (users(0, SIZE), |_| (), "its root"),
        (users(FIRST, 0), |_| (), "its root"),
        (users(u32::MAX - 1, 2), |_| (), "its root"),
        (users(FIRST, SIZE), |s| s.network = Network::Host, "network namespace"),
        (users(FIRST, SIZE), |s| s.pid = PidMode::Host, "PID namespace"),
        (users(FIRST, SIZE), |s| s.host_ipc = true, "IPC namespace"),
    ];
    for (users, change, why) in cases {
        let mut spec = bed.sandbox_spec("s");
        spec.users = users;
        change(&mut spec);
        let error = bed.runtime.run_sandbox(spec, &JournalWriter::none()).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    sandbox(&bed, "s", FIRST, PidMode::Container).await;
    for user in ["65536:0", "0:65536", "0:0+65536"] {
        let spec = bed.container("main", "true", &[("user", user)]);
        let error = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap_err().to_string();
        assert!(error.contains("65536 is none of the sandbox's ids"), "{error}");
    }
    let mut spec = bed.container("main", "true", &[]);
    bind(&mut spec, &bed.path("layers"), "/x", &["rbind", "rshared"]);
    let error = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap_err().to_string();
    assert!(error.contains("does not get to the host"), "{error}");
    let main = bed.run("main", "sleep 1000").await;
    let asked = bed
        .runtime
        .exec_sync(&main, bed.process("true", &[("user", "65536:0")]), TIMEOUT, &JournalWriter::none())
        .await;
    assert!(asked.unwrap_err().to_string().contains("none of the sandbox's ids"));
    assert!(!default_capabilities().contains(&oci::Capability::SysAdmin));
    bed.end().await;
}

/// Measures how long a sandbox and a container take with a user namespace and without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn times() {
    let bed = Bed::new("times").await;
    for users in [None, Some(IdRange { host: FIRST, size: SIZE }), None, Some(IdRange { host: FIRST, size: SIZE })] {
        let mut all: Vec<[Duration; 3]> = Vec::new();
        for _ in 0..40 {
            let begin = Instant::now();
            bed.sandbox_with("s", |spec| spec.users = users).await;
            let sandbox = begin.elapsed();
            let spec = bed.container("main", "sleep 1000", &[]);
            let id = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
            let created = begin.elapsed();
            bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
            all.push([sandbox, created - sandbox, begin.elapsed() - created]);
            bed.runtime.remove_sandbox("s", &JournalWriter::none()).await.unwrap();
        }
        let median = |n: usize| {
            let mut times: Vec<Duration> = all.iter().map(|t| t[n]).collect();
            times.sort();
            times[times.len() / 2]
        };
        println!("users {}: sandbox {:?}, create {:?}, start {:?}", users.is_some(), median(0), median(1), median(2));
    }
    bed.end().await;
}
