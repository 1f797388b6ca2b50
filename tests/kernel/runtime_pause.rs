//! `pause` runs beside the containers, possibly as the same user: it gives access to nothing that a container is refused.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use podwright_runtime::{IdRange, JournalWriter, PidMode};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::runtime::support::Bed;
use crate::runtime_users::owner_of;

/// The files of a process, each accessible with the right to inspect it (ptrace(2), `PTRACE_MODE_READ`).
const LOOK: &str = r#"
    for file in environ maps auxv; do cat /proc/1/$file >/dev/null 2>&1 && echo "READ $file"; done
    for link in root cwd exe ns/net fd/0; do readlink /proc/1/$link >/dev/null 2>&1 && echo "FOLLOWED $link"; done
    ls /proc/1/root/ /proc/1/fd/ >/dev/null 2>&1 && echo LISTED
    echo done"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_the_same_user_as_pause_cannot_look_into_it() {
    let bed = Bed::new("samepause").await;
    bed.sandbox_with("s", |spec| spec.pid = PidMode::Sandbox).await;
    for user in ["65535:65535", "0:0"] {
        let name = format!("u{}", user.len());
        let mut spec = bed.container(&name, LOOK, &[("user", user), ("caps", "none")]);
        spec.oci.linux_mut().as_mut().unwrap().set_seccomp(None);
        let id = bed.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
        bed.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
        bed.log_has(&id, "done").await;
        assert_eq!(bed.log(&id), "done\n", "user {user}");
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gets_hold_of_pause_gets_no_call_no_device_and_no_file() {
    for mode in [PidMode::Sandbox, PidMode::Container, PidMode::Host] {
        let bed = Bed::new("heldpause").await;
        bed.sandbox_with("s", |spec| spec.pid = mode).await;
        let pause = pause_of(&bed);
        let status = fs::read_to_string(format!("/proc/{pause}/status")).unwrap();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap();
        assert_eq!((field("Seccomp:"), field("NoNewPrivs:")), ("2", "1"), "{mode:?}");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), "0000000000000000", "{mode:?} {set}");
        }
        let root: Vec<PathBuf> =
            fs::read_dir(format!("/proc/{pause}/root")).unwrap().flatten().map(|e| e.path()).collect();
        assert_eq!(root, Vec::<PathBuf>::new(), "{mode:?}");

        // A device without a driver: ENXIO means access was allowed, EPERM that the cgroup's program denied it.
        let device = bed.path("device");
        let node = Mode::from_raw_mode(0o666);
        mknodat(CWD, &device, FileType::CharacterDevice, node, makedev(511, 255)).unwrap();
        fs::set_permissions(&device, fs::Permissions::from_mode(0o666)).unwrap();
        let outside = OpenOptions::new().read(true).open(&device).unwrap_err();
        assert_eq!(outside.raw_os_error(), Some(libc::ENXIO), "{outside}");
        let cgroup = fs::read_to_string(format!("/proc/{pause}/cgroup")).unwrap();
        let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
        let procs = podwright_runtime::cgroup::find_mount().unwrap().join(cgroup).join("cgroup.procs");
        let script = format!("echo $$ >{} && exec cat {}", procs.display(), device.display());
        let mut inside = Command::new("sh");
        let said = inside.args(["-c", &script]).env("LC_ALL", "C").stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains("Operation not permitted"), "{mode:?}: {said}");
        #[cfg(target_arch = "x86_64")]
        for call in [libc::SYS_wait4, libc::SYS_getpid] {
            let own = call == libc::SYS_wait4;
            let said = std::thread::spawn(move || calls(pause as i32, call)).join().unwrap();
            assert_eq!(said, if own { None } else { Some(libc::SIGSYS) }, "{mode:?}: call {call}");
        }
        bed.end().await;
    }
}

/// `pause` with a user namespace, from its birth on: it sees no mount of the host, in a mount namespace not owned by those users.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_of_a_pods_own_have_no_mount_of_the_host() {
    let bed = Bed::new("emptyroot").await;
    bed.runtime.user_namespaces().unwrap();
    for n in 0..20 {
        let (id, done) = (format!("s{n}"), Arc::new(AtomicBool::new(false)));
        let (cgroup, told) = (bed.cgroup_of(&id), done.clone());
        let watcher = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while !told.load(Ordering::Acquire) {
                let born = podwright_runtime::cgroup::procs(&cgroup).into_iter().filter(|pid| has_own_users(*pid));
                seen.extend(born.map(mounts).filter(|mounts| !mounts.is_empty()));
            }
            seen
        });
        bed.sandbox_with(&id, |spec| {
            spec.users = Some(IdRange { host: 0x2000_0000, size: 1 << 16 });
            spec.pid = if n % 2 == 0 { PidMode::Container } else { PidMode::Sandbox };
            spec.sysctls.insert("net.ipv4.ping_group_range".into(), "0 65535".into());
        })
        .await;
        let pause = bed.runtime.sandbox(&id).await.unwrap().pid;
        let namespaces = ["mnt", "net", "ipc", "uts", "pid"].map(|kind| (kind, owner_of(pause, kind)));
        done.store(true, Ordering::Release);
        let seen = watcher.join().unwrap();
        let empty = |mounts: &Vec<String>| {
            mounts.len() == 1 && mounts[0].contains(" / / ro,nosuid,nodev,noexec") && mounts[0].contains(" - tmpfs ")
        };
        assert_eq!(seen.iter().find(|mounts| !empty(mounts)), None, "sandbox {n}, of {} looks", seen.len());
        assert!(empty(&mounts(pause)), "{:?}", mounts(pause));
        let (ours, its) = (inode_of(std::process::id(), "user"), inode_of(pause, "user"));
        for (kind, owner) in namespaces {
            let shared = inode_of(pause, kind) == inode_of(std::process::id(), kind);
            assert_eq!(owner, if kind == "mnt" || shared { ours } else { its }, "{kind} of sandbox {n}");
        }
        bed.runtime.remove_sandbox(&id, &JournalWriter::none()).await.unwrap();
    }
    bed.end().await;
}

fn inode_of(pid: u32, kind: &str) -> u64 {
    fs::metadata(format!("/proc/{pid}/ns/{kind}")).map_or(0, |found| found.ino())
}

fn has_own_users(pid: u32) -> bool {
    ![0, inode_of(std::process::id(), "user")].contains(&inode_of(pid, "user"))
}

/// The mounts visible to a process; none for an exited one.
fn mounts(pid: u32) -> Vec<String> {
    let all = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    all.lines().map(str::to_owned).collect()
}

/// Makes a process execute a system call, as a tracer can; returns the signal that kills it, if any.
#[cfg(target_arch = "x86_64")]
fn calls(pid: i32, call: libc::c_long) -> Option<i32> {
    const TRAP: i32 = libc::SIGTRAP | 0x80;
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: a tracer's calls for a process waiting in a system call; `regs` and `status` outlive them.
    unsafe {
        let wait = || {
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &mut status, libc::__WALL), pid, "{}", std::io::Error::last_os_error());
            status
        };
        let seized = libc::ptrace(libc::PTRACE_SEIZE, pid, none, libc::PTRACE_O_TRACESYSGOOD as usize);
        assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
        assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, pid, none, none), 0);
        wait();
        let mut before: libc::user_regs_struct = std::mem::zeroed();
        assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, pid, none, &raw mut before), 0);
        // It is right after its own two-byte `syscall`. WNOHANG: does not block.
        let mut regs = libc::user_regs_struct { rip: before.rip - 2, rax: call as u64, orig_rax: u64::MAX, ..before };
        (regs.rdi, regs.rsi, regs.rdx, regs.r10) = (u64::MAX, 0, libc::WNOHANG as u64, 0);
        assert_eq!(libc::ptrace(libc::PTRACE_SETREGS, pid, none, &raw const regs), 0);
        // Its entry, and then its exit.
        for _ in 0..2 {
            assert_eq!(libc::ptrace(libc::PTRACE_SYSCALL, pid, none, none), 0);
            let status = wait();
            if libc::WIFSIGNALED(status) {
                return Some(libc::WTERMSIG(status));
            }
            assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == TRAP, "{status:x}");
        }
        // As if interrupted by a signal. A denied process dies when it continues.
        let after = libc::user_regs_struct { rax: -i64::from(libc::EINTR) as u64, orig_rax: u64::MAX, ..before };
        assert_eq!(libc::ptrace(libc::PTRACE_SETREGS, pid, none, &raw const after), 0);
        assert_eq!(libc::ptrace(libc::PTRACE_SYSCALL, pid, none, none), 0);
        let status = wait();
        if libc::WIFSIGNALED(status) {
            return Some(libc::WTERMSIG(status));
        }
        assert_eq!(libc::ptrace(libc::PTRACE_DETACH, pid, none, none), 0);
        None
    }
}

/// It briefly has no name.
fn pause_of(bed: &Bed) -> u32 {
    let is_pause = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "pause");
    let begun = Instant::now();
    loop {
        match bed.processes_of("s").into_iter().find(is_pause) {
            Some(pause) => return pause,
            None => assert!(begun.elapsed() < Duration::from_secs(10), "there is no pause"),
        }
    }
}
