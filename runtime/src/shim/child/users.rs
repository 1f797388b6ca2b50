//! The user namespace of a sandbox: who is who in it, and how what is made on the host's side belongs to those inside.

use std::os::fd::BorrowedFd;
use std::path::Path;

use podwright_sys::users::IdRange;
use podwright_sys::{Kernel, SysResult, process};

/// A user namespace, and the ids of the host that it maps.
#[derive(Clone, Copy)]
pub struct Users<'a> {
    pub namespace: BorrowedFd<'a>,
    pub range: IdRange,
}

impl Users<'_> {
    /// Who `id` is on the host. That it is one of the range's was checked when the plan was made.
    pub fn host(&self, id: u32) -> u32 {
        self.range.host.saturating_add(id)
    }

    /// Joins the namespace, as its root: the rights over the host are gone, and so is the host's root who owns files there.
    pub fn enter(&self, kernel: &Kernel) -> SysResult<()> {
        kernel.setns(self.namespace, process::NEWUSER, "of the sandbox")?;
        kernel.set_user(0, 0, &[])
    }
}

/// Who `id` of a container is on the host, whether it has users of its own or not.
pub fn host_id(range: Option<IdRange>, id: u32) -> u32 {
    range.map_or(id, |range| range.host.saturating_add(id))
}

/// Says which ids of the host the users of a child's new user namespace are. A child of ours: so its number is nobody else's.
pub fn map(kernel: &Kernel, child: u32, range: IdRange) -> SysResult<()> {
    let line = format!("0 {} {}\n", range.host, range.size);
    for file in ["uid_map", "gid_map"] {
        kernel.write_proc(&Path::new(&child.to_string()).join(file), &line)?;
    }
    Ok(())
}
