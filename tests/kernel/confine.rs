//! What a process of ours has given up it does not get back: files, system calls, capabilities, its user.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use podwright_runtime::sys::relinquish;

const OPEN: &str = "CONFINE_OPEN";
const CLOSED: &str = "CONFINE_CLOSED";

/// Gives everything up, as a server does, then tries. It is never run but by the next one, in a process of its own.
#[test]
#[ignore = "a part of another test"]
fn a_process_that_gives_up_everything() {
    let folder = |name: &str| PathBuf::from(std::env::var_os(name).expect("given by the other test"));
    let (open, closed) = (folder(OPEN), folder(CLOSED));
    let read = ["/proc", "/usr", "/lib", "/etc"].map(PathBuf::from);
    let landlock = relinquish::confine_files(&read, std::slice::from_ref(&open)).unwrap();
    relinquish::drop_bounding_set().unwrap();
    relinquish::become_user(65534, 65534).unwrap();
    relinquish::drop_capabilities().unwrap();
    relinquish::close_to_others().unwrap();
    relinquish::deny(&[libc::SYS_unshare, libc::SYS_ptrace, libc::SYS_execve, libc::SYS_setns]).unwrap();

    let status = fs::read_to_string("/proc/self/status").unwrap();
    let thread = fs::read_to_string("/proc/thread-self/status").unwrap();
    for (text, line) in [
        (&status, "Uid:\t65534\t65534\t65534\t65534"),
        (&thread, "CapEff:\t0000000000000000"),
        (&thread, "CapPrm:\t0000000000000000"),
        (&thread, "CapBnd:\t0000000000000000"),
        (&thread, "NoNewPrivs:\t1"),
        (&thread, "Seccomp:\t2"),
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    fs::write(open.join("own"), "x").unwrap();
    // Everybody may read it, but for Landlock.
    let read = fs::read_to_string(closed.join("canary"));
    assert_eq!(read.is_err(), landlock, "{read:?}");
    assert!(nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER).is_err());
    let ran = Command::new("/bin/true").status();
    assert_eq!(ran.unwrap_err().raw_os_error(), Some(libc::EPERM));
    // Nor by the numbers of another ABI, whose filter it is that says EPERM: the kernel has ENOSYS, or takes them.
    #[cfg(target_arch = "x86_64")]
    for call in [libc::SYS_clone, libc::SYS_clone3, libc::SYS_unshare, libc::SYS_getpid] {
        // SAFETY: null pointers and no flags; it is refused.
        let did = unsafe { libc::syscall(call | 0x4000_0000, 0, 0, 0, 0, 0) };
        let why = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((did, why), (-1, Some(libc::EPERM)), "x32's {call}");
    }
    // Threads are begun all the same.
    assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    println!("all of it is gone (Landlock: {landlock})");
}

#[test]
fn what_is_given_up_is_gone() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let (open, closed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    chown(open.path(), Some(65534), Some(65534)).unwrap();
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
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("all of it is gone"), "{said}");
}
