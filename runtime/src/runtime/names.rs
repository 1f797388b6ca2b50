//! What the cgroups of a sandbox's own processes are called: its shim's, and that of what holds it.

use crate::spec::CgroupName;

/// The cgroup of all shims.
pub(super) const SHIMS: &str = "shims";
/// The cgroup of the process that holds a sandbox, below the sandbox's own.
pub(super) const PAUSE: &str = "pause";

/// The cgroup of a sandbox's shim: beside the sandbox's own, which may be killed whole.
pub(super) fn shim(id: &str) -> CgroupName {
    CgroupName::new(SHIMS).child(id)
}
