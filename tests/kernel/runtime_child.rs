//! What a process may still hold while entering a container, checked from inside by processes that try to exploit it.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use podwright_runtime::{
    ContainerId, ContainerSpec, Error, ExecSpec, JournalWriter, PidMode, StartFailure, default_capabilities, oci,
};

use crate::runtime::support::{Bed, within};

const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_descriptor_is_a_working_directory() {
    let bed = Bed::new("cwd").await;
    bed.sandbox("s").await;
    let folders: Vec<String> = (0..64).map(|n| format!("/proc/self/fd/{n}")).collect();
    for (n, folder) in folders.iter().enumerate() {
        symlink(folder, bed.path("layers/top").join(format!("w{n}"))).unwrap();
    }
    let main = bed.run("main", "sleep 1000").await;
    for (n, folder) in folders.iter().enumerate() {
        for cwd in [folder, &format!("/w{n}"), &format!("/proc/thread-self/fd/{n}")] {
            let asked = bed
                .runtime
                .exec_sync(&main, bed.process("pwd", &[("cwd", cwd)]), TIMEOUT, &JournalWriter::none())
                .await;
            assert!(matches!(asked, Err(Error::Start { kind: StartFailure::Setup, .. })), "{cwd}: {asked:?}");
        }
        // An image's WORKDIR is enough.
        let cwd = if n % 2 == 0 { folder.clone() } else { format!("/w{n}") };
        let spec = bed.container("first", "pwd; ls", &[("cwd", &cwd)]);
        let made = bed.runtime.create_container(spec, &JournalWriter::none()).await;
        let started = match made {
            Ok(made) => bed.runtime.start_container(&made.id, &JournalWriter::none()).await.map(drop),
            Err(e) => Err(e),
        };
        assert!(matches!(started, Err(Error::Start { kind: StartFailure::Setup, .. })), "{cwd}: {started:?}");
        bed.runtime.remove_container(&ContainerId::new("s", "first", 0), &JournalWriter::none()).await.unwrap();
    }
    bed.end().await;
}

/// Covers of procfs end with the mount namespace, unless locked; and a process sharing a PID namespace or a socket with a container
/// may have kept a descriptor in there. Nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_covered_stays_covered_when_its_container_has_ended() {
    for (name, pids) in [("alone", PidMode::Container), ("among", PidMode::Sandbox)] {
        let bed = Bed::new(name).await;
        bed.sandbox_with("s", |spec| spec.pid = pids).await;
        for (container, options) in
            [("root", &[][..]), ("somebody", &[("user", "1000:1000"), ("caps", "none"), ("cwd", "/tmp")])]
        {
            let id = bed.create(container, "pwd; sleep 1000", options).await;
            bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
            let pid = bed.status(&id).await.pid;
            let proc = fs::File::open(format!("/proc/{pid}/root/proc")).unwrap();
            let opened = || -> Vec<_> {
                let open = |path, flags| openat(&proc, path, flags | OFlags::CLOEXEC, Mode::empty());
                let settings = ["sys/kernel/core_pattern", "sys/vm/overcommit_memory"];
                let settings = settings.map(|path| open(path, OFlags::WRONLY).map(drop));
                let masked = ["interrupts", "timer_list"].map(|path| {
                    let mut text = String::new();
                    std::io::Read::read_to_string(&mut fs::File::from(open(path, OFlags::RDONLY)?), &mut text).unwrap();
                    if text.is_empty() { Err(Errno::NODATA) } else { Ok(()) }
                });
                settings.into_iter().chain(masked).collect()
            };
            let held = [vec![Err(Errno::ROFS); 2], vec![Err(Errno::NODATA); 2]].concat();
            assert_eq!(opened(), held, "{name}, {container}: while it runs");
            bed.runtime.stop_container(&id, libc::SIGKILL, TIMEOUT, &JournalWriter::none()).await.unwrap();
            bed.runtime.remove_container(&id, &JournalWriter::none()).await.unwrap();
            assert_eq!(opened(), held, "{name}, {container}: after its end");
        }
        bed.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_s_root_is_no_working_directory() {
    let bed = Bed::new("cwdroot").await;
    bed.sandbox_with("s", |spec| spec.pid = PidMode::Sandbox).await;
    let other = bed.run("other", "mkdir /secret; sleep 1000").await;
    let main = bed.run("main", "sleep 1000").await;
    within("the folder of another container", || async {
        let seen = bed.exec(&other, "ls -d /secret").await.unwrap();
        if seen.code == 0 { Ok(()) } else { Err(seen) }
    })
    .await;
    let list = "for p in /proc/[0-9]*; do [ -d $p/root/secret ] && echo $p; done; true";
    let seen = bed.exec(&other, list).await.unwrap();
    let process = String::from_utf8(seen.stdout).unwrap().lines().next().unwrap().to_owned();
    // Accessible through /proc with enough privileges, and outside the container's own root.
    let cwd = format!("{process}/root/secret");
    let asked =
        bed.runtime.exec_sync(&main, bed.process("pwd", &[("cwd", &cwd)]), TIMEOUT, &JournalWriter::none()).await;
    match asked {
        Err(Error::Start { kind: StartFailure::Setup, message }) => {
            assert!(message.contains("outside of container"), "{message}");
        }
        other => panic!("{cwd}: {other:?}"),
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_come_from_outside_and_passwd_is_a_file() {
    let bed = Bed::new("null").await;
    bed.sandbox("s").await;
    let canary = bed.path("canary");
    fs::create_dir(&canary).unwrap();
    fs::write(canary.join("file"), "alive").unwrap();
    let host = fs::metadata("/dev/null").unwrap();
    let id = bed.create("main", "sleep 1000", &[("rw", canary.to_str().unwrap())]).await;
    bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
    // What its /dev/null is must only affect the container itself.
    for replace in ["ln -s /rw/file /dev/null", "mkfifo /dev/null", "true"] {
        let out = bed.exec(&id, &format!("rm -f /dev/null; {replace}")).await.unwrap();
        assert_eq!(out.code, 0, "{out:?}");
        let out = bed.exec(&id, "echo overwritten >&0; stat -L -c '%F %t:%T' /proc/self/fd/0; cat").await.unwrap();
        assert_eq!(out.stdout, b"character special file 1:3\n", "{replace}: {out:?}");
        assert_eq!(fs::read_to_string(canary.join("file")).unwrap(), "alive", "{replace}");
    }
    // Nor does it hold the machine's null device.
    assert_eq!(bed.exec(&id, "chmod 0600 /proc/self/fd/0; chmod 0600 /proc/interrupts; true").await.unwrap().code, 0);
    use std::os::unix::fs::MetadataExt;
    assert_eq!(fs::metadata("/dev/null").unwrap().mode(), host.mode());

    let fifo = bed.exec(&id, "rm /etc/passwd; mkfifo /etc/passwd; echo made").await.unwrap();
    assert_eq!(fifo.stdout, b"made\n");
    let asked = tokio::time::timeout(TIMEOUT, bed.exec(&id, "echo $HOME")).await.expect("a FIFO for a passwd file");
    assert_eq!(asked.unwrap().stdout, b"/\n");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dev_of_somebody_else_is_not_trusted() {
    let bed = Bed::new("dev").await;
    bed.sandbox("s").await;
    let dev = bed.path("dev");
    fs::create_dir(&dev).unwrap();
    fs::write(bed.path("canary"), "alive").unwrap();
    symlink(bed.path("canary"), dev.join("null")).unwrap();
    let mut spec =
        bed.container("first", "stat -L -c %t:%T /proc/self/fd/0; echo x >&0; head -c1 /proc/interrupts | wc -c", &[]);
    let mut mounts = spec.oci.mounts().clone().unwrap();
    mounts.retain(|m| !m.destination().starts_with("/dev"));
    mounts.push(bind(&dev, "/dev"));
    spec.oci.set_mounts(Some(mounts));
    let id = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
    bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
    bed.exit(&id, TIMEOUT).await;
    assert_eq!(bed.log(&id), "1:3\n0\n");
    assert_eq!(fs::read_to_string(bed.path("canary")).unwrap(), "alive");

    // Without a devpts there is no terminal; none is made from other files.
    let mut spec = bed.container("tty", "true", &[("tty", "yes")]);
    let mut mounts = spec.oci.mounts().clone().unwrap();
    mounts.retain(|m| !m.destination().starts_with("/dev"));
    mounts.push(bind(&dev, "/dev"));
    fs::create_dir_all(dev.join("pts")).unwrap();
    symlink(bed.path("canary"), dev.join("pts/ptmx")).unwrap();
    spec.oci.set_mounts(Some(mounts));
    let made = bed.runtime.create_container(spec, &JournalWriter::none()).await;
    assert!(made.as_ref().is_err_and(|e| e.to_string().contains("no devpts is mounted")), "{made:?}");
    bed.runtime.remove_container(&ContainerId::new("s", "tty", 0), &JournalWriter::none()).await.unwrap();
    // With one, the console is mounted only on its own file.
    fs::remove_file(dev.join("pts/ptmx")).unwrap();
    symlink("/etc/passwd", dev.join("console")).unwrap();
    let mut spec = bed.container("tty", "true", &[("tty", "yes")]);
    let mut mounts = spec.oci.mounts().clone().unwrap();
    let devpts = mounts.iter().find(|m| m.destination() == Path::new("/dev/pts")).unwrap().clone();
    mounts.retain(|m| !m.destination().starts_with("/dev"));
    mounts.extend([bind(&dev, "/dev"), devpts]);
    spec.oci.set_mounts(Some(mounts));
    let again = spec.clone();
    let made = bed.runtime.create_container(spec, &JournalWriter::none()).await;
    assert!(made.as_ref().is_err_and(|e| e.to_string().contains("/dev/console")), "{made:?}");
    // Nor on what is no file.
    bed.runtime.remove_container(&ContainerId::new("s", "tty", 0), &JournalWriter::none()).await.unwrap();
    fs::remove_file(dev.join("console")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, dev.join("console"), rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    let made = bed.runtime.create_container(again, &JournalWriter::none()).await;
    let why = "/dev/console is neither a file nor a terminal";
    assert!(made.as_ref().is_err_and(|e| e.to_string().contains(why)), "{made:?}");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_mounted_over_a_part_of_proc_or_past_a_symlink() {
    let bed = Bed::new("over").await;
    bed.sandbox("s").await;
    let top = bed.path("layers/top");
    fs::create_dir_all(top.join("real")).unwrap();
    symlink("/real", top.join("linked")).unwrap();
    let refused = |spec: ContainerSpec| {
        let runtime = bed.runtime.clone();
        async move { runtime.create_container(spec, &JournalWriter::none()).await.unwrap_err().to_string() }
    };
    let folder = bed.path("folder");
    fs::create_dir(&folder).unwrap();

    for target in ["/proc/self", "/proc/sys/kernel", "/x/../proc/1"] {
        let mut spec = bed.container("a", "true", &[]);
        spec.oci.mounts_mut().as_mut().unwrap().push(bind(&folder, target));
        let why = refused(spec).await;
        assert!(why.contains("cannot be mounted because it is inside /proc"), "{target}: {why}");
    }
    let mut spec = bed.container("b", "true", &[]);
    spec.oci.mounts_mut().as_mut().unwrap().retain(|m| m.destination() != Path::new("/proc"));
    spec.oci.mounts_mut().as_mut().unwrap().push(bind(&folder, "/proc"));
    assert!(refused(spec).await.contains("because it is not of type proc"));

    let mut spec = bed.container("c", "true", &[]);
    let mut linux = spec.oci.linux().clone().unwrap();
    linux.set_masked_paths(Some(vec!["/linked".into()]));
    spec.oci.set_linux(Some(linux));
    assert!(refused(spec).await.contains("is to be covered, and is a symlink"));

    // Masks for sysfs are skipped if something else is mounted there.
    fs::create_dir_all(folder.join("virtual/powercap")).unwrap();
    let mut spec = bed.container("sys", "true", &[]);
    spec.oci.mounts_mut().as_mut().unwrap().push(bind(&folder, "/sys/devices"));
    let mut linux = spec.oci.linux().clone().unwrap();
    linux.set_masked_paths(Some(vec!["/sys/devices/virtual/powercap".into()]));
    spec.oci.set_linux(Some(linux));
    assert!(refused(spec).await.contains("is to be covered, and is not of /sys"));

    // Nor is a part of /proc masked through a symlink of the image.
    symlink("/proc/self", top.join("led")).unwrap();
    let mut spec = bed.container("led", "true", &[]);
    spec.oci.mounts_mut().as_mut().unwrap().retain(|m| m.destination() != Path::new("/proc"));
    let given = [bind(Path::new("/proc"), "/proc"), bind(&folder, "/led/task")];
    spec.oci.mounts_mut().as_mut().unwrap().extend(given);
    let why = refused(spec).await;
    assert!(why.contains("cannot be mounted because it is inside /proc"), "{why}");

    let mut spec = bed.container("d", "true", &[("cwd", "/bin/busybox")]);
    let why = refused(spec.clone()).await;
    assert!(why.contains("mkdir /bin/busybox: not a directory"), "{why}");
    spec.oci.process_mut().as_mut().unwrap().set_cwd("/".into());
    symlink("/real", top.join("proc")).unwrap();
    let why = refused(spec).await;
    assert!(why.contains(r#"filesystem "proc" must be mounted on ordinary directory"#), "{why}");
    bed.end().await;
}

/// Read-only files cannot even be opened for writing. (Nothing is written: a success would affect the machine.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_only_is_not_opened_for_writing() {
    let bed = Bed::new("readonly").await;
    bed.sandbox("s").await;
    let main = bed.run("main", "sleep 1000").await;
    let files = [
        "/proc/sys/kernel/domainname",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/irq/default_smp_affinity",
        "/proc/pressure/memory",
        "/proc/sysrq-trigger",
    ];
    for file in files.iter().filter(|file| Path::new(file).exists()) {
        let seen = bed.exec(&main, &format!("(: >> {file}) 2>&1")).await.unwrap();
        let said = String::from_utf8_lossy(&seen.stdout).into_owned();
        assert!(seen.code != 0 && said.contains("Read-only file system"), "{file}: {said}");
    }
    // Nor can anything be created in a folder's mask.
    let seen = bed.exec(&main, "touch /proc/scsi/x 2>&1; touch /sys/firmware/x 2>&1; true").await.unwrap();
    let said = String::from_utf8_lossy(&seen.stdout).into_owned();
    let folders = ["/proc/scsi", "/sys/firmware"].iter().filter(|folder| Path::new(folder).exists()).count();
    assert_eq!(said.matches("Read-only file system").count(), folders, "{said}");
    bed.end().await;
}

/// Mounts below a read-only path are read-only too, and still present.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_below_a_read_only_path_is_read_only_too() {
    let bed = Bed::new("readonly-below").await;
    bed.sandbox("s").await;
    let [outer, inner] = ["outer", "inner"].map(|name| bed.path(name));
    fs::create_dir_all(outer.join("below")).unwrap();
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("mark"), "inner").unwrap();
    let mut spec = bed.container("main", "sleep 1000", &[]);
    spec.oci.mounts_mut().as_mut().unwrap().extend([bind(&outer, "/data"), bind(&inner, "/data/below")]);
    let mut linux = spec.oci.linux().clone().unwrap();
    linux.set_readonly_paths(Some(vec!["/data".into()]));
    spec.oci.set_linux(Some(linux));
    let id = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
    bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
    let seen = bed.exec(&id, "cat /data/below/mark; for f in /data /data/below; do touch $f/x 2>&1; done; true").await;
    let said = String::from_utf8(seen.unwrap().stdout).unwrap();
    assert!(said.starts_with("inner"), "{said}");
    assert_eq!(said.matches("Read-only file system").count(), 2, "{said}");
    assert_eq!([&outer, &inner].map(|folder| folder.join("x").exists()), [false, false]);
    bed.end().await;
}

/// A created device has the spec's owner; an existing one keeps its own, like a stream not supplied by the caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_there_stays_whose_it_is() {
    use std::os::unix::fs::MetadataExt;
    let bed = Bed::new("devices-owned").await;
    bed.sandbox("s").await;
    let folder = bed.path("folder");
    fs::create_dir(&folder).unwrap();
    let there = folder.join("null");
    let node = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, &there, node, 0o600.into(), rustix::fs::makedev(1, 3)).unwrap();
    std::os::unix::fs::chown(&there, Some(7), Some(8)).unwrap();
    let device = |path: &str| {
        let device = oci::LinuxDeviceBuilder::default().path(path).typ(oci::LinuxDeviceType::C).major(1).minor(3);
        device.uid(1234u32).gid(4321u32).build().unwrap()
    };
    let mut spec = bed.container("main", "sleep 1000", &[("user", "31337:31337")]);
    spec.oci.mounts_mut().as_mut().unwrap().push(bind(&folder, "/given"));
    let mut linux = spec.oci.linux().clone().unwrap();
    linux.set_devices(Some(vec![device("/given/null"), device("/given/made")]));
    spec.oci.set_linux(Some(linux));
    let id = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
    bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
    let of = |path: &Path| fs::metadata(path).map(|found| (found.uid(), found.gid())).unwrap();
    assert_eq!((of(&there), of(&folder.join("made"))), ((7, 8), (1234, 4321)));
    assert_eq!(fs::metadata(&there).unwrap().mode() & 0o7777, 0o600);
    // Its stdin is the private null device; its output is its own.
    let look = "stat -L -c %u:%g /proc/self/fd/0 /proc/self/fd/1";
    let look = bed.process(look, &[("user", "31337:31337")]);
    let seen = bed.runtime.exec_sync(&id, look, TIMEOUT, &JournalWriter::none()).await.unwrap();
    assert_eq!(String::from_utf8(seen.stdout).unwrap(), "0:0\n31337:31337\n");
    bed.end().await;
}

/// An image may have another file in place of a device: that is not used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_is_not_made_of_what_is_there() {
    let bed = Bed::new("devices-there").await;
    bed.sandbox("s").await;
    let of = |path: &str| {
        let mut spec = bed.container("main", "true", &[]);
        let device = oci::LinuxDeviceBuilder::default().path(path).typ(oci::LinuxDeviceType::C).major(1).minor(7);
        let mut linux = spec.oci.linux().clone().unwrap();
        linux.set_devices(Some(vec![device.build().unwrap()]));
        spec.oci.set_linux(Some(linux));
        spec
    };
    let top = bed.path("layers/top");
    symlink("/etc/passwd", top.join("etc/link")).unwrap();
    let number = rustix::fs::makedev(1, 5);
    let node = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, top.join("etc/zero"), node, 0o666.into(), number).unwrap();
    for there in ["/etc/plain", "/etc/link", "/etc/zero"] {
        let made = bed.runtime.create_container(of(there), &JournalWriter::none()).await;
        assert!(
            made.as_ref().is_err_and(|e| e.to_string().contains("is there, and something else")),
            "{there}: {made:?}"
        );
        bed.runtime.remove_container(&ContainerId::new("s", "main", 0), &JournalWriter::none()).await.unwrap();
    }
    bed.runtime.create_container(of("/etc/full"), &JournalWriter::none()).await.unwrap();
    bed.end().await;
}

/// A process that can trace others finds nothing of the host in those entering its PID namespace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_born_in_sight_of_a_tracer_holds_nothing_of_the_host() {
    let bed = Bed::new("tracer").await;
    bed.sandbox_with("s", |spec| spec.pid = PidMode::Sandbox).await;
    fs::write(bed.path("only-outside"), "").unwrap();
    let outside = bed.path("only-outside");
    // Each process's descriptors, root and working directory: everything that is not a stream, a socket or a filter is reported.
    let watch = format!(
        r#"mkdir /mark; echo ready; while :; do for p in /proc/[0-9]*; do
             [ -e $p/root{0} ] && echo "ROOT $p $(cat $p/comm)";
             ls -l $p/fd $p/cwd 2>/dev/null | sed -n "s|.* -> |$p |p" | grep -vE ' (socket:|pipe:|/null$|/memfd:seccomp|/dev/|anon_inode:|/$|/proc$|/proc/)';
           done; done"#,
        outside.display()
    );
    let mut spec = bed.container("watcher", &watch, &[]);
    let capabilities: HashSet<_> = default_capabilities().into_iter().chain([oci::Capability::SysPtrace]).collect();
    let process = spec.oci.process_mut().as_mut().unwrap();
    process.set_capabilities(Some(sets(&capabilities)));
    let mut linux = spec.oci.linux().clone().unwrap();
    linux.set_seccomp(None);
    spec.oci.set_linux(Some(linux));
    let watcher = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
    bed.runtime.start_container(&watcher, &JournalWriter::none()).await.unwrap();
    bed.log_has(&watcher, "ready").await;

    // One that waits for its start can be inspected indefinitely.
    let waiting = bed.create("waiting", "sleep 1000", &[]).await;
    let look = "for p in /proc/[0-9]*; do grep -q shim $p/comm && ls -l $p/fd && ls -d $p/root/mark; done; true";
    let spec = ExecSpec {
        process: with(bed.process(look, &[]).process, &capabilities),
        seccomp: None,
        stdin: false,
        size: None,
    };
    let seen = bed.runtime.exec_sync(&watcher, spec, TIMEOUT, &JournalWriter::none()).await.unwrap();
    let seen = String::from_utf8(seen.stdout).unwrap();
    let open: Vec<&str> = seen.lines().filter_map(|l| l.split_once(" -> ").map(|(_, to)| to)).collect();
    assert!(open.len() >= 4, "the one that waits is seen: {seen}");
    let fine = |to: &&str| ["socket:", "pipe:", "/null", "/memfd:seccomp"].iter().any(|f| to.starts_with(f));
    assert!(open.iter().all(fine), "{seen}");
    bed.runtime.start_container(&waiting, &JournalWriter::none()).await.unwrap();

    for _ in 0..100 {
        assert_eq!(bed.exec(&waiting, "true").await.unwrap().code, 0);
    }
    assert_eq!(bed.log(&watcher), "ready\n", "a descriptor, folder or root of the host");
    bed.end().await;
}

fn sets(capabilities: &HashSet<oci::Capability>) -> oci::LinuxCapabilities {
    oci::LinuxCapabilitiesBuilder::default()
        .bounding(capabilities.clone())
        .effective(capabilities.clone())
        .permitted(capabilities.clone())
        .inheritable(HashSet::new())
        .ambient(HashSet::new())
        .build()
        .unwrap()
}

fn with(mut process: oci::Process, capabilities: &HashSet<oci::Capability>) -> oci::Process {
    process.set_capabilities(Some(sets(capabilities)));
    process
}

fn bind(source: &Path, target: &str) -> oci::Mount {
    let options = vec!["rbind".to_owned(), "rw".to_owned()];
    oci::MountBuilder::default().destination(target).typ("bind").source(source).options(options).build().unwrap()
}
