//! The names of the cgroups of a sandbox's own processes: its shim and its holder.

use crate::spec::CgroupName;

/// The cgroup of all shims.
pub(super) const SHIMS: &str = "shims";
/// The cgroup of the sandbox's holder process, below the sandbox's own.
pub(super) const PAUSE: &str = "pause";

/// The cgroup of a sandbox's shim: beside the sandbox's own, which may be killed as a whole.
pub(super) fn shim(id: &str) -> CgroupName {
    CgroupName::new(SHIMS).child(id)
}
