//! The privileges that the shim drops at startup, and those it must keep.
//!
//! What the shim drops its children lack as well, and containers are its children: so it can only drop what no container of its Pod
//! may ever be given. That a Pod may get another container later (an ephemeral one, privileged if its namespace allows that) leaves
//! little:
//!
//! - **Capabilities**: a child's bounding set is a subset of the shim's, so the shim keeps all of the agent's. What the most
//!   powerful container may hold is not known when it starts. Only what children would get *implicitly* is dropped: the ambient and
//!   the inheritable set.
//! - **`no_new_privs`**: inherited irrevocably; setuid programs would break in every container.
//! - **seccomp**: inherited irrevocably. A filter could deny what no container and no shim needs, but there is no such call: a
//!   privileged container may load modules and kernels, set the clock, swap, trace and open by handle, and says so in its manifest.
//!   A filter for Pods without such a container would refuse the ephemeral one that comes later (`kubectl debug
//!   --profile=sysadmin`), which the shim cannot know of in advance; a second, unfiltered process to create it would hold
//!   everything that the filter denies the first, one socket away, and slow down each Pod's start. It would gain little: with
//!   mount(2), openat(2) and ptrace(2), which births need, the shim is root on its machine without any of these calls.
//! - **Landlock**: a domain that handles file access forbids mount(2) and pivot_root(2) to all processes in it: no container could
//!   be made. One that scopes signals and abstract sockets (ABI 6) cuts `hostPID` and `hostNetwork` Pods off.
//! - **A mount namespace of its own**: volumes are mounted by the agent later and must arrive; `/dev/shm` is mounted by the shim
//!   and must be found by an agent after this one. With CAP_SYS_ADMIN it would be no barrier anyway.
//! - **Resource limits**: containers inherit them, and upstream's have the runtime's.
//!
//! So the protection is *absence*. When it is executed all of the agent's descriptors except its socket and its log are closed, and
//! its environment is empty. Dropped here: the agent's session keyring (a container without a seccomp filter could read its keys:
//! if the kernel supports keys but refuses a new keyring, the shim does not start), memory that can become executable, the agent's
//! working directory. It is not dumpable. See [`crate::handshake`] for who may connect to it, and [`super::child`] for what its
//! children hold until they execute.

use podwright_sys::relinquish::{no_new_code, own_keyring};

/// Called first, while the shim has one thread and only its socket (0) and its log (1 and 2). Fails if containers would have the
/// agent's keys.
pub fn confine() -> Result<(), std::io::Error> {
    own_keyring()?;
    // Failure of these must not prevent a Pod: older kernels lack one, a host in a container may refuse another.
    let _ = no_new_code();
    for set in [caps::CapSet::Ambient, caps::CapSet::Inheritable] {
        let _ = caps::clear(None, set);
    }
    let _ = std::env::set_current_dir("/");
    Ok(())
}
