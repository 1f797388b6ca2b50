//! What a process has dropped it cannot regain: files, system calls, capabilities, its user.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use podwright_runtime::sys::relinquish;

const OPEN: &str = "CONFINE_OPEN";
const CLOSED: &str = "CONFINE_CLOSED";
/// The user to switch to; without it the process stays root, as a server without `--user`.
const USER: &str = "CONFINE_USER";

/// Drops everything, like a server, then tries to use it. Only run by the next test, in a separate process.
#[test]
#[ignore = "a part of another test"]
fn a_process_that_gives_up_everything() {
    let folder = |name: &str| PathBuf::from(std::env::var_os(name).expect("given by the other test"));
    let (open, closed) = (folder(OPEN), folder(CLOSED));
    let read = ["/proc", "/usr", "/lib", "/etc"].map(PathBuf::from);
    let landlock = relinquish::confine_files(&read, std::slice::from_ref(&open)).unwrap();
    relinquish::drop_bounding_set().unwrap();
    // As for a manually started server: groups, and a dumpable process.
    nix::unistd::setgroups(&[4.into(), 24.into()]).unwrap();
    let user: Option<u32> = std::env::var(USER).ok().map(|uid| uid.parse().unwrap());
    if let Some(uid) = user {
        relinquish::become_user(uid, uid).unwrap();
    }
    relinquish::drop_capabilities().unwrap();
    nix::sys::prctl::set_dumpable(true).unwrap();
    relinquish::close_to_others().unwrap();
    let scoped = relinquish::confine_reach(true).unwrap();
    let other = nix::unistd::getppid();
    // Root may signal root's processes without any capability.
    let signalled = nix::sys::signal::kill(other, None);
    assert_eq!(signalled.is_err(), scoped || user.is_some(), "{signalled:?}");
    let calls = [libc::SYS_unshare, libc::SYS_ptrace, libc::SYS_execve, libc::SYS_setns];
    relinquish::deny(&calls, &[libc::SYS_kill]).unwrap();
    assert_eq!(nix::sys::signal::kill(other, None), Err(nix::errno::Errno::EPERM));
    nix::sys::signal::kill(nix::unistd::getpid(), None).unwrap();

    let status = fs::read_to_string("/proc/self/status").unwrap();
    let thread = fs::read_to_string("/proc/thread-self/status").unwrap();
    let uid = user.unwrap_or(0);
    for (text, line) in [
        (&status, &*format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}")),
        (&thread, "CapEff:\t0000000000000000"),
        (&thread, "CapPrm:\t0000000000000000"),
        (&thread, "CapBnd:\t0000000000000000"),
        (&thread, "NoNewPrivs:\t1"),
        (&thread, "Seccomp:\t2"),
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
    assert_eq!(groups.trim(), if user.is_some() { "" } else { "4 24" }, "groups of who started it");
    assert!(!nix::sys::prctl::get_dumpable().unwrap(), "others of the user may look into it");
    fs::write(open.join("own"), "x").unwrap();
    // Readable by all, except for Landlock.
    let read = fs::read_to_string(closed.join("canary"));
    assert_eq!(read.is_err(), landlock, "{read:?}");
    assert!(nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER).is_err());
    for (call, errno) in [(libc::SYS_clone, libc::EPERM), (libc::SYS_clone3, libc::ENOSYS)] {
        // SAFETY: a fork without shared memory, which exits at once if permitted; clone3's arguments are too short to be valid.
        let did = unsafe { libc::syscall(call, libc::CLONE_NEWUSER | libc::SIGCHLD, 0, 0, 0, 0) };
        let why = std::io::Error::last_os_error().raw_os_error();
        if did == 0 {
            // SAFETY: the child only does this.
            unsafe { libc::_exit(0) };
        }
        assert_eq!((did, why), (-1, Some(errno)), "call {call} with a new user namespace");
    }
    let ran = Command::new("/bin/true").status();
    assert_eq!(ran.unwrap_err().raw_os_error(), Some(libc::EPERM));
    // Nor by another ABI's numbers: EPERM comes from the filter, while the kernel returns ENOSYS or accepts them.
    #[cfg(target_arch = "x86_64")]
    for call in [libc::SYS_clone, libc::SYS_clone3, libc::SYS_unshare, libc::SYS_getpid] {
        // SAFETY: null pointers and no flags; it is refused.
        let did = unsafe { libc::syscall(call | 0x4000_0000, 0, 0, 0, 0, 0) };
        let why = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((did, why), (-1, Some(libc::EPERM)), "x32's {call}");
    }
    // Threads can still be started.
    assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    println!("all of it is gone (Landlock: {landlock})");
}

#[test]
fn what_is_given_up_is_gone() {
    use std::os::unix::fs::{PermissionsExt, chown};
    for user in [Some(65534), None] {
        let (open, closed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        chown(open.path(), user, user).unwrap();
        fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(closed.path().join("canary"), "x").unwrap();
        fs::set_permissions(closed.path().join("canary"), fs::Permissions::from_mode(0o644)).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "confine::a_process_that_gives_up_everything",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(OPEN, open.path())
            .env(CLOSED, closed.path())
            .envs(user.map(|uid| (USER, uid.to_string())))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("all of it is gone"), "{user:?}: {said}");
    }
}
