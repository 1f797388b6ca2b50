//! What `podwright server` gives up when it starts, before it has any thread: root's rights, files that are not its own, and the
//! system calls that a server never makes. `up` cannot: its node, in the same process, needs them.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::unistd::User;
use podwright_runtime::sys::{own::umask, relinquish as kernel};

use super::{
    paths::Paths,
    private::{self, Owner},
};
use crate::server::Confinement;

/// What every process reads to resolve names, to check certificates, and to know its machine and the time.
const READ: &[&str] =
    &["/etc", "/usr", "/lib", "/lib64", "/proc", "/sys", "/run/systemd/resolve", "/dev/random", "/dev/urandom"];
const WRITE: &[&str] = &["/dev/null"];

/// What lets a process reach out of where it is, or into others, the kernel, the clock: none of it is a server's business.
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
];

/// What a server was told to read and to write, beside its own folders.
#[derive(Clone, Debug, Default)]
pub struct Files {
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
}

/// 1. its files become its user's, 2. other files are out of reach, 3. it becomes that user, 4. without capabilities, 5. and
/// nobody looks in, 6. and system calls are refused. From then on threads may begin.
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
    // Its own program tells a profile the names of its functions.
    let program = std::env::current_exe().ok();
    let named = files.read.iter().cloned().chain(program);
    let read: Vec<PathBuf> = READ.iter().map(PathBuf::from).chain(named).collect();
    let own = [&paths.state, &paths.run].map(|folder| folder.to_path_buf());
    let write: Vec<PathBuf> = WRITE.iter().map(PathBuf::from).chain(own).chain(files.write.iter().cloned()).collect();
    let landlock = kernel::confine_files(&read, &write).context("Landlock")?;
    if !landlock {
        tracing::warn!("the kernel has no Landlock: the server is not confined to its files");
    }
    kernel::drop_bounding_set().context("giving up capabilities")?;
    if owner != Owner::here() {
        kernel::become_user(owner.uid, owner.gid).with_context(|| format!("--user {}", user.unwrap_or_default()))?;
    }
    kernel::drop_capabilities().context("giving up capabilities")?;
    kernel::close_to_others().context("prctl")?;
    kernel::deny(DENIED).context("refusing system calls")?;
    Ok(Confinement { runs_node: false, landlock })
}

/// Who a server becomes: the user of that name, or who starts it.
pub fn owner(user: Option<&str>) -> anyhow::Result<Owner> {
    Ok(user.map(owner_of).transpose()?.unwrap_or(Owner::here()))
}

fn owner_of(name: &str) -> anyhow::Result<Owner> {
    let found = User::from_name(name).with_context(|| format!("--user {name}"))?;
    let user = found.with_context(|| format!("--user {name}: there is no such user (useradd --system {name})"))?;
    Ok(Owner { uid: user.uid.as_raw(), gid: user.gid.as_raw() })
}

/// The folder of a file that is replaced by renaming: the rule then holds for its successor.
pub fn folder_of(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_path_buf()
}
