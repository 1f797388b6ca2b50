//! The privileges that `podwright server` drops at its start, before it has any threads: root, access to other files, and system
//! calls that a server never makes. `up` cannot do so: its node, in the same process, needs them.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::unistd::User;
use podwright_runtime::sys::{own::umask, relinquish as kernel};

use super::{
    paths::Paths,
    private::{self, Owner},
};
use crate::server::Confinement;

/// Files that every process reads to resolve names, verify certificates, and determine the machine and the time.
const READ: &[&str] =
    &["/etc", "/usr", "/lib", "/lib64", "/proc", "/sys", "/run/systemd/resolve", "/dev/random", "/dev/urandom"];
const WRITE: &[&str] = &["/dev/null"];

/// System calls that affect other places, processes, the kernel, or the clock: a server needs none of them.
const DENIED: &[i64] = &[
    // File systems.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_quotactl,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_fanotify_init,
    // Namespaces and other processes.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_personality,
    // The kernel itself.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    // The machine's name and clock.
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    // What a file's owner may do to it, which Landlock does not restrict: uid 0 owns everything.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
    FILE_SETATTR,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_utimensat,
    // What a process may do to others of its user.
    libc::SYS_tkill,
    libc::SYS_pidfd_send_signal,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
];

/// The same for calls that the server itself needs: their first argument names a process.
const DENIED_ON_OTHERS: &[i64] =
    &[libc::SYS_kill, libc::SYS_tgkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo, libc::SYS_prlimit64];

// Newer than the C library's headers; the same on all architectures.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const FILE_SETATTR: i64 = 469;

/// The files that a server may read and write, besides its own directories.
#[derive(Clone, Debug, Default)]
pub struct Files {
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
}

/// 1. Gives its files to its user.
/// 2. Restricts access to other files, and to other processes by signals and sockets.
/// 3. Switches to that user,
/// 4. without capabilities,
/// 5. prevents ptrace and core dumps,
/// 6. and filters system calls.
///
/// Threads may be started only after that.
pub fn confine(user: Option<&str>, paths: &Paths, files: &Files) -> anyhow::Result<Confinement> {
    let owner = owner(user)?;
    let node = [paths.images(), paths.runtime(), paths.network()].into_iter().find(|folder| folder.exists());
    if let (Some(name), Some(node)) = (user, node) {
        bail!(
            "--user {name}: {} is a node's, which {name} must not own: give --state-dir another folder",
            node.display()
        );
    }
    umask(0o077);
    for folder in [&paths.state, &paths.run] {
        private::give(folder, owner)?;
    }
    private::tighten(paths, Some(owner))?;
    // Profiles read function names from the program itself.
    let program = std::env::current_exe().ok();
    let named = files.read.iter().cloned().chain(program);
    let read: Vec<PathBuf> = READ.iter().map(PathBuf::from).chain(named).collect();
    let own = [&paths.state, &paths.run].map(|folder| folder.to_path_buf());
    let write: Vec<PathBuf> = WRITE.iter().map(PathBuf::from).chain(own).chain(files.write.iter().cloned()).collect();
    let landlock = kernel::confine_files(&read, &write).context("Landlock")?;
    if !landlock {
        tracing::warn!("the kernel has no Landlock: the server is not confined to its own files");
    }
    // A service manager may expect readiness notifications on an abstract socket.
    kernel::confine_reach(!super::notify::by_abstract_socket()).context("Landlock")?;
    kernel::drop_bounding_set().context("giving up capabilities")?;
    if owner != Owner::here() {
        kernel::become_user(owner.uid, owner.gid).with_context(|| format!("--user {}", user.unwrap_or_default()))?;
    }
    kernel::drop_capabilities().context("giving up capabilities")?;
    kernel::close_to_others().context("prctl")?;
    kernel::deny(DENIED, DENIED_ON_OTHERS).context("refusing system calls")?;
    Ok(Confinement { runs_node: false, landlock })
}

/// The user that a server switches to: the named one, or the current one.
pub fn owner(user: Option<&str>) -> anyhow::Result<Owner> {
    Ok(user.map(owner_of).transpose()?.unwrap_or(Owner::here()))
}

fn owner_of(name: &str) -> anyhow::Result<Owner> {
    let found = User::from_name(name).with_context(|| format!("--user {name}"))?;
    let user = found.with_context(|| format!("--user {name}: there is no such user (useradd --system {name})"))?;
    Ok(Owner { uid: user.uid.as_raw(), gid: user.gid.as_raw() })
}

/// The directory of a file that is replaced by renaming, so that the rule applies to its replacement.
pub fn folder_of(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_path_buf()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{
            linux::net::SocketAddrExt,
            unix::{
                fs::PermissionsExt,
                net::{SocketAddr, UnixListener, UnixStream},
            },
        },
        process::Command,
    };

    use nix::errno::Errno;
    use nix::sys::signal::kill;
    use nix::unistd::{Pid, getpid, getppid};

    use super::*;

    /// The other test's abstract socket.
    const SOCKET: &str = "CONFINE_SOCKET";

    #[test]
    #[ignore = "a part of another test"]
    fn a_server_that_reaches_for_others() {
        let (other, own) = (getppid(), getpid());
        let signal = |pid: Pid| kill(pid, None);
        let socket = SocketAddr::from_abstract_name(std::env::var(SOCKET).expect("given by the other test")).unwrap();
        assert_eq!(signal(other), Ok(()), "of the same user");
        UnixStream::connect_addr(&socket).unwrap();
        let (place, parent) = (rustix::process::Pid::from_raw(other.as_raw()), rustix::process::getppid());
        let held =
            rustix::process::pidfd_open(parent.expect("a parent"), rustix::process::PidfdFlags::empty()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mode = || fs::metadata(folder.path()).unwrap().permissions().mode() & 0o7777;
        let before = mode();

        let scoped = kernel::confine_reach(true).unwrap();
        assert_eq!(signal(other), if scoped { Err(Errno::EPERM) } else { Ok(()) }, "by Landlock");
        let refused = UnixStream::connect_addr(&socket).err().and_then(|why| why.raw_os_error());
        assert_eq!(refused, scoped.then_some(libc::EPERM), "by Landlock");

        kernel::deny(DENIED, DENIED_ON_OTHERS).unwrap();
        for pid in [other, Pid::from_raw(0), Pid::from_raw(-1)] {
            assert_eq!(signal(pid), Err(Errno::EPERM), "kill {pid}");
        }
        assert_eq!(signal(own), Ok(()));
        use rustix::process::{Resource, Rlimit, Signal, pidfd_send_signal, prlimit, setpriority_process};
        // A limit that is always allowed, and a signal without effect on a running process.
        let same = || Rlimit { current: Some(0), maximum: Some(0) };
        let refused = [
            pidfd_send_signal(&held, Signal::CONT).err(),
            prlimit(place, Resource::Core, same()).err(),
            setpriority_process(place, 0).err(),
        ];
        assert_eq!(refused, [Some(rustix::io::Errno::PERM); 3]);
        prlimit(None, Resource::Core, same()).unwrap();
        let file = fs::File::open(folder.path()).unwrap();
        let open = fs::Permissions::from_mode(0o777);
        for done in [fs::set_permissions(folder.path(), open.clone()), file.set_permissions(open)] {
            assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        let given = std::os::unix::fs::chown(folder.path(), None, Some(nix::unistd::getgid().as_raw()));
        assert_eq!(given.unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!(mode(), before);
        println!("others are out of reach (Landlock: {scoped})");
    }

    #[test]
    fn a_server_reaches_no_other_process_and_changes_no_modes() {
        let name = format!("podwright-test-{}", uuid::Uuid::new_v4());
        let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let test = "cmd::confine::tests::a_server_that_reaches_for_others";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"])
            .env(SOCKET, name)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("others are out of reach"), "{said}");
    }
}
