//! What the shim gives up at its start, and what it must keep.
//!
//! Whatever the shim gives up its children do not have either, and containers are its children: it can only do without what no
//! container of its Pod may ever be given. That a Pod may get another container later (an ephemeral one, privileged if its
//! namespace allows that) leaves little:
//!
//! - **Capabilities**: a child's bounding set is cut from the shim's, so the shim has all that the agent has. What the most
//!   powerful container may hold is not known when it starts. Only what would reach a child *unasked* goes: the ambient and
//!   the inheritable set.
//! - **`no_new_privs`**: inherited for good; setuid programs would break in every container.
//! - **seccomp**: inherited for good. A filter may deny what no container and no shim does, and there is no such call: a
//!   privileged container may load modules and kernels, set the clock, swap, trace and open by handle, and says so in its
//!   manifest. A filter for Pods without such a container would refuse the ephemeral one that comes later (`kubectl debug
//!   --profile=sysadmin`), which the shim that is to bear it cannot know of; a second, unfiltered process to bear it would hold
//!   all that the filter is to keep from the first, one socket away, and cost each Pod its start. It would buy little: with
//!   mount(2), openat(2) and ptrace(2), which births need, the shim is root on its machine without any of these calls.
//! - **Landlock**: a domain that handles file access forbids mount(2) and pivot_root(2) to all in it: no container could be
//!   made. One that scopes signals and abstract sockets (ABI 6) cuts `hostPID` and `hostNetwork` Pods off.
//! - **A mount namespace of its own**: volumes are mounted by the agent later and must arrive; `/dev/shm` is mounted by the shim
//!   and must be found by an agent after this one. With CAP_SYS_ADMIN it would be no wall anyway.
//! - **Resource limits**: containers inherit them, and upstream's have the runtime's.
//!
//! So what protects is what is *not there*. When it is executed all descriptors of the agent but its socket and its log are
//! closed, and it has no environment. Here go the agent's session keyring (a container without a seccomp filter could read
//! keys in it: where the kernel has keys and grants no keyring, the shim does not begin), memory that can be made code, the folder that the agent was started in. It is not dumpable. Who may speak to it
//! is in [`crate::handshake`]; what its children hold until they execute is in [`super::child`].

use podwright_sys::relinquish::{no_new_code, own_keyring};

/// Called first of all, while the shim has one thread and nothing but its socket (0) and its log (1 and 2). Fails where
/// containers would have the agent's keys.
pub fn confine() -> Result<(), std::io::Error> {
    own_keyring()?;
    // None of these is worth a Pod: older kernels lack one, a host in a container may refuse another.
    let _ = no_new_code();
    for set in [caps::CapSet::Ambient, caps::CapSet::Inheritable] {
        let _ = caps::clear(None, set);
    }
    let _ = std::env::set_current_dir("/");
    Ok(())
}
