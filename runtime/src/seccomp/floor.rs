//! What no profile gives away: calls by which who has no capability gets into namespaces that are another's, or looks into them.
//!
//! A user namespace belongs to the user that has made it, and whoever is that user outside of it has every capability in it
//! (user_namespaces(7)): root's are root's in every Pod that has the host's users. What keeps Pods out of each other's, and out of
//! those of the host's users, is that none can be named. So a profile that a Pod chooses does not get it there either.

use caps::Capability;
use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompAction};
use seccompiler::SeccompAction;

use super::{FIRST_FOREIGN, Program, Rules, program};
use crate::Result;

/// A call, its number, with which capability it is given, and what it fails with without.
struct Row {
    name: &'static str,
    number: i64,
    needs: Capability,
    errno: i32,
}

const FLOOR: &[Row] = &[
    // Namespaces have file handles (Linux 6.18), and their numbers are small. Older kernels ask for this capability.
    Row {
        name: "open_by_handle_at",
        number: libc::SYS_open_by_handle_at,
        needs: Capability::CAP_DAC_READ_SEARCH,
        errno: libc::EPERM,
    },
    Row { name: "setns", number: libc::SYS_setns, needs: Capability::CAP_SYS_ADMIN, errno: libc::EPERM },
    // They take the number of any mount namespace; libc and util-linux do without where a kernel does not have them.
    Row { name: "statmount", number: 457, needs: Capability::CAP_SYS_ADMIN, errno: libc::ENOSYS },
    Row { name: "listmount", number: 458, needs: Capability::CAP_SYS_ADMIN, errno: libc::ENOSYS },
    // Lists namespaces of whomever the caller is (Linux 6.19).
    Row { name: "listns", number: 470, needs: Capability::CAP_SYS_ADMIN, errno: libc::ENOSYS },
];

/// The filters to load beside those of `profile`, for a process with this bounding set: none where it refuses all of it by itself.
pub(super) fn floor(profile: &LinuxSeccomp, bounding: u64, flags: u32) -> Result<Vec<Program>> {
    let lacking = || FLOOR.iter().filter(|row| bounding & row.needs.bitmask() == 0);
    if !lacking().any(|row| lets_pass(profile, row.name)) {
        return Ok(Vec::new());
    }
    let mut programs = Vec::new();
    for errno in [libc::EPERM, libc::ENOSYS] {
        let rules: Rules = lacking().filter(|row| row.errno == errno).map(|row| (row.number, Vec::new())).collect();
        if !rules.is_empty() {
            let refused = SeccompAction::Errno(errno as u32);
            programs.push(program(rules, SeccompAction::Allow, refused, flags, FIRST_FOREIGN)?);
        }
    }
    Ok(programs)
}

/// Whether a profile lets a call through, be it with some arguments alone.
fn lets_pass(profile: &LinuxSeccomp, name: &str) -> bool {
    let passes = |action| {
        use LinuxSeccompAction::*;
        matches!(action, ScmpActAllow | ScmpActLog | ScmpActTrace | ScmpActNotify)
    };
    let mut rules = profile.syscalls().iter().flatten();
    passes(profile.default_action())
        || rules.any(|rule| passes(rule.action()) && rule.names().iter().any(|n| n == name))
}
