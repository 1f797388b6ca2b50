//! Tests whether this machine supports user namespaces for sandboxes, by trying everything needed.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::thread;

use crate::JournalWriter;
use crate::shim::child::users;
use crate::spec::IdRange;
use podwright_sys::{Kernel, SysResult, mount, process};

/// Any range: no file with its ids remains.
const RANGE: IdRange = IdRange { host: 0x7000_0000, size: 1 << 16 };

/// Tries a user namespace, and idmapped mounts of the folder `state`, a tmpfs, and an overlay of a layer in `state`. Fails with
/// what is not supported, and why.
pub fn try_users(state: &Path) -> Result<(), String> {
    let kernel = Kernel::new(&JournalWriter::none());
    let (pid, pidfd) = kernel
        .hold_namespaces_of_nobody(0, "a user namespace")
        .map_err(|e| format!("no user namespace can be made: {e}"))?;
    let tried = users::map(&kernel, pid, RANGE)
        .map_err(|e| format!("no users can be mapped: {e}"))
        .and_then(|()| process::namespace_of(pid, "user").map_err(|e| format!("no user namespace can be opened: {e}")))
        // On its own thread, which ends with the mount namespace that it creates.
        .and_then(|users| {
            thread::scope(|scope| {
                let trial = scope.spawn(|| try_mounts(&kernel, state, users.as_fd()));
                trial.join().unwrap_or_else(|_| Err("the trial failed".into()))
            })
        });
    let _ = kernel.kill(pidfd.as_fd(), libc::SIGKILL, "a user namespace");
    let _ = process::await_end(pidfd.as_fd());
    tried
}

fn try_mounts(kernel: &Kernel, state: &Path, users: BorrowedFd<'_>) -> Result<(), String> {
    kernel.unshare(process::NEWNS).map_err(|e| e.to_string())?;
    kernel.propagate_root(mount::SLAVE).map_err(|e| e.to_string())?;
    let folder = tempfile_in(state)?;
    let tried =
        try_tmpfs(kernel, users).map_err(|e| format!("no tmpfs can be shown to other users: {e}")).and_then(|()| {
            try_overlay(kernel, &folder, users)
                .map_err(|e| format!("the file system of {} cannot be shown to other users: {e}", state.display()))
        });
    let _ = fs::remove_dir_all(&folder);
    tried
}

/// Beside the sandboxes, not among them.
fn tempfile_in(state: &Path) -> Result<std::path::PathBuf, String> {
    let folder = state.with_extension(format!("users-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    for name in ["layer", "upper", "work"] {
        fs::create_dir_all(folder.join(name)).map_err(|e| format!("mkdir {}: {e}", folder.display()))?;
    }
    Ok(folder)
}

fn try_tmpfs(kernel: &Kernel, users: BorrowedFd<'_>) -> SysResult<()> {
    let tmpfs = kernel.new_fs("tmpfs", &[("size", Some("4k"))], 0)?;
    kernel.idmap(tmpfs.as_fd(), false, users, Path::new("tmpfs"))
}

fn try_overlay(kernel: &Kernel, folder: &Path, users: BorrowedFd<'_>) -> SysResult<()> {
    let layer = folder.join("layer");
    let tree = kernel.clone_tree(&layer, false)?;
    kernel.idmap(tree.as_fd(), false, users, &layer)?;
    kernel.attach_at(tree.as_fd(), &layer)?;
    kernel.overlay(&[&layer], &folder.join("upper"), &folder.join("work"), folder)?;
    kernel.detach(&layer)
}
