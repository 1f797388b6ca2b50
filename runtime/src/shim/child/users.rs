//! The user namespace of a sandbox: its id mapping, and the ownership of files created from the host's side.

use std::os::fd::BorrowedFd;
use std::path::Path;

use podwright_sys::users::IdRange;
use podwright_sys::{Kernel, SysResult, process};

/// A user namespace, and the host ids that it maps.
#[derive(Clone, Copy)]
pub struct Users<'a> {
    pub namespace: BorrowedFd<'a>,
    pub range: IdRange,
}

impl Users<'_> {
    /// The host's id of `id`. It was checked to be in range when the plan was made.
    pub fn host(&self, id: u32) -> u32 {
        self.range.host.saturating_add(id)
    }

    /// Joins the namespace as its root: privileges over the host, and file ownership by the host's root, are gone.
    pub fn enter(&self, kernel: &Kernel) -> SysResult<()> {
        kernel.setns(self.namespace, process::NEWUSER, "of the sandbox")?;
        kernel.set_user(0, 0, &[])
    }
}

/// The host's id of a container's `id`, with or without a user namespace.
pub fn host_id(range: Option<IdRange>, id: u32) -> u32 {
    range.map_or(id, |range| range.host.saturating_add(id))
}

/// Maps the ids of a child's new user namespace. It is our own child, so its pid cannot be reused.
pub fn map(kernel: &Kernel, child: u32, range: IdRange) -> SysResult<()> {
    let line = format!("0 {} {}\n", range.host, range.size);
    for file in ["uid_map", "gid_map"] {
        kernel.write_proc(&Path::new(&child.to_string()).join(file), &line)?;
    }
    Ok(())
}
