//! The shim's children between clone3 and execve, and what each of them may still hold.
//!
//! A container may be able to trace every process that it can see. So processes with privileges or descriptors of the host stay out
//! of containers' PID namespaces, and those born inside one have dropped everything before:
//!
//! ```text
//! shim ── clone3 ──▶ builder              shim ── clone3 ──▶ entrant                   shim ── clone3 ──▶ pause
//!                      │ clone3(PARENT)                         │ clone3(PARENT, FILES)
//!                      └▶ entrant                               └▶ bearer
//!                           │ clone3(PARENT)                         │ clone(PARENT)
//!                           └▶ process ── execve                     └▶ process ── execve
//!  a container that is alone in its PID namespace   an exec; likewise the entrant of a          the sandbox
//!                                                   container that is not alone there, or
//!                                                   has users of its own
//!
//! shim ── clone3 ──▶ bearer of pause ── clone3(PARENT) ──▶ pause ── execve
//!  the sandbox, if it has users of its own
//! ```
//!
//! | who | PID namespace | user and capabilities | mounts, root | descriptors |
//! |---|---|---|---|---|
//! | builder ([`container`]) | the shim's | the shim's | a copy of the host's; from `pivot_root` on the container's | 0-2, sync, filters, pidfds of `pause` and the container to join, the host's procfs; what it opens itself: the root, binds, masks |
//! | holder ([`Kernel::lock_mounts`](podwright_sys::Kernel::lock_mounts)), for a moment | the shim's | all, but only in its own user namespace | the container's, locked | none |
//! | entrant of an exec ([`exec`]) | the shim's | the shim's | the host's: it resolves no path | 0-2, sync, filters, the pidfd to join by, the terminal's master once the bearer has put it there |
//! | entrant of a container ([`container`]) | the shim's | the shim's; the process's ([`identity`]) and what entering requires before it creates one that is alone | the container's, locked | 0-2, sync, filters, the pidfd to join by, the socket for the locked mounts, the socket to the builder |
//! | bearer ([`process`]) | the shim's; its children's is the container's | the shim's, then exactly the process's, filters and no_new_privs included | the container's | the entrant's shared table: first unchanged, at the birth 0-2, sync, and the master or the socket to the builder |
//! | process among others | the container's | its own, filters and no_new_privs included | the container's | the bearer's, of which it keeps 0-2 and sync |
//! | process that is alone | the container's | its own; CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_DAC_READ_SEARCH too until it has entered its mounts, the first until its filters are loaded without no_new_privs | the builder's; the container's, locked, when it is told to go on | 0-2, sync, filters, the socket for the locked mounts |
//! | helper ([`procfs`]), before Linux 6.17 | the container's | CAP_SYS_ADMIN, and a filter that allows fsopen(2), sendmsg(2) to the builder, the one clone(2) that creates it, and exit_group(2) | an empty one | 0-2, the socket to the builder |
//! | pause ([`sandbox`]) | its own, or the shim's | the shim's, then an unprivileged user without any | the host's, then an empty one | 0-2, sync, its program (which is unreadable: that keeps it non-dumpable after execve), the node's network namespace until it has joined it |
//!
//! A sandbox with its own user namespace ([`users`]) differs as follows:
//!
//! | who | user namespace and capabilities | mounts, and the owner of their namespace |
//! |---|---|---|
//! | bearer of pause | the shim's, with all capabilities, until it has created pause | a copy of the host's, then an empty one | the host's user namespace's |
//! | pause | the sandbox's, from its birth: its root until it switches to an unprivileged user, after the shim has mapped the ids. It owns the network, IPC, UTS and PID namespaces created with it | its bearer's, empty from its birth; the host's procfs as a descriptor while it has sysctls to write | the host's user namespace's: users of the sandbox cannot mount there |
//! | builder | the shim's, with all capabilities: only it can idmap the host's layers and binds. It creates files as the mapped root ([`Kernel::make_files_as`]), while all mounts belong to the host | the host's user namespace's |
//! | entrant | the shim's, with all capabilities: it raises limits, and reports the new process. The kernel counts descriptors in flight per host user, and inside a user namespace refuses to send one when others of that user have sent many | the builder's, complete or not: it resolves no path |
//! | bearer | the sandbox's, as its root, from its first step on: without any privilege over the host | as for the process |
//! | process | the sandbox's; with the plan's capabilities | a copy of the builder's owned by the sandbox's user namespace: this locks all mounts, including masks |
//!
//! That copy must be made when the root is complete. In an existing PID namespace (the sandbox's, another container's) it is, and
//! the bearer makes the copy before the birth. In its own one the process makes the copy itself, when it is told to go on
//! ([`identity::Mounts::Own`]): until then it has CAP_SYS_ADMIN in the sandbox's user namespace, and no other process can see it.
//!
//! Mounts that cover others (masks, a read-only `/proc/sys`) are removed when the mount namespace ends, and a process that kept a
//! descriptor in there (through a shared PID namespace, or a socket) could then write the host's settings. So a container in the
//! host's user namespace that may not mount runs in a copy of the complete mounts in which everything is locked permanently, as in
//! any copy owned by another user namespace. The builder has one made in an otherwise empty user namespace, and passes it to the
//! process that will enter it: the entrant, or the container's process if the mounts are complete only when that exists
//! ([`identity::Mounts::Given`]). That one makes another copy, owned by the host's user namespace again. A container with
//! CAP_SYS_ADMIN could unmount the covers anyway, and uses the builder's own mounts; so does one that shares its PID namespace, and
//! may inspect it.
//!
//! Among others (an exec or a probe, a container in a Pod's shared PID namespace, in the host's, or in another container's) another
//! process may have CAP_SYS_PTRACE, which allows tracing a process and using its privileges. So everything is done before the
//! birth: the root is complete, the working directory entered, the program found, the filters loaded. Those must allow clone(2),
//! and then read(2) and execve(2); RuntimeDefault answers clone3(2) with ENOSYS. A container's first process in its own PID
//! namespace has no other process beside it that could trace it: until it executes only the builder and the shim know it. It loads
//! its filters last, and they only need to allow execve(2), and without no_new_privs capset(2) and prctl(2).
//!
//! The AppArmor profile of a process is chosen by the builder, or an exec's entrant, as its first act, while `/proc` is the host's
//! ([`identity::choose_profile`]): its children inherit the choice, and switch to the profile on execve(2).
//!
//! Births have a time limit ([`crate::protocol::BIRTH`]): a container can stop a process born beside it. The shim then kills it and
//! reports that.
//!
//! The first act of each is [`ChildContext::begin`]: every descriptor that is not listed is closed, by allow-list, before a path of
//! a container is resolved. *sync* is a socket to the shim, which treats its messages as hostile ([`crate::container`]); *filters*
//! are sealed memfds; 0-2 are the process's own streams, or a private null device. No journal is open: records go over *sync* too.
//! All are non-dumpable (PR_SET_DUMPABLE) until they execute; that excludes every inspector without CAP_SYS_PTRACE over the
//! machine's own user namespace. What such a container could read in the memory of a *process* is a copy of the shim's: the plans
//! of its own Pod's containers, their environments as long as they have not started, and nothing of other Pods.
//!
//! Messages on *sync*: [`BORN`], only from the builder (or an exec's entrant), with the process's pidfd and its terminal's master;
//! [`FAILED`] with a [`Failure`]; batches of the journal. The process waits for one byte, and either the socket closes by itself
//! (execve succeeded: it is close-on-exec) or a failure comes.

pub mod container;
pub mod exec;
mod executable;
mod identity;
mod process;
mod procfs;
mod root;
pub mod sandbox;
mod stdio;
pub mod users;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use podwright_journal::{JournalWriter, Role};

use crate::fork::{self, Child};
use crate::protocol::StartFailure;
use crate::protocol::{Failure, FailureKind, ProcessPlan};
use podwright_sys::{Kernel, SysResult, io, own};

pub use sandbox::PAUSE;
pub use stdio::private_null;

pub const BORN: u8 = b'b';
pub const FAILED: u8 = b'f';
/// The first byte of a journal batch.
pub const RECORDS: u8 = b'p';
/// The shim's message to a process that may go on.
pub const GO: &[u8] = b"g";

/// Everything that a child inherits.
pub struct ChildContext<'a> {
    pub child: Child,
    pub journal: JournalWriter,
    pub sync: OwnedFd,
    /// stdin, stdout, stderr; without a terminal. A missing one becomes `null`.
    pub stdio: [Option<OwnedFd>; 3],
    pub null: BorrowedFd<'a>,
    pub seccomp: &'a [OwnedFd],
}

impl ChildContext<'_> {
    /// The first step of every child: places its streams at 0, 1 and 2, and closes everything except what every child has and
    /// `also`.
    fn begin(&self, streams_of: Option<(u32, u32)>, also: &[BorrowedFd<'_>]) -> Result<Kernel, Failure> {
        own::become_child();
        own::umask(0);
        let placed = self.place_streams(streams_of);
        let kernel = self.keep(also)?;
        placed.map_err(|e| Failure::new(FailureKind::Kernel, format!("dup2(0, 1, 2): {e}")))?;
        Ok(kernel)
    }

    /// Closes everything except what every child has and `also`. Later records come from this process alone.
    fn keep(&self, also: &[BorrowedFd<'_>]) -> Result<Kernel, Failure> {
        let filters = self.seccomp.iter().map(|fd| fd.as_fd());
        self.keep_without_filters(&also.iter().copied().chain(filters).collect::<Vec<_>>())
    }

    /// [`ChildContext::keep`] for a process that has loaded the filters, or is about to.
    fn keep_without_filters(&self, also: &[BorrowedFd<'_>]) -> Result<Kernel, Failure> {
        let closed = || -> Result<(), std::io::Error> {
            own::close_to_inspection()?;
            let mut kept: Vec<BorrowedFd<'_>> = also.to_vec();
            kept.push(self.sync.as_fd());
            fork::keep_only(self.child, &kept)
        };
        closed().map_err(|e| Failure::new(FailureKind::Kernel, format!("closing descriptors: {e}")))?;
        // A limit may leave no room for another descriptor: then nothing is recorded.
        let journal = match self.sync.try_clone() {
            Ok(channel) => self.journal.for_child_over(Role::Init, channel),
            Err(_) => JournalWriter::none(),
        };
        Ok(Kernel { journal })
    }

    /// Stops recording: a call that keeps other descriptors follows.
    fn hush(&self, kernel: &mut Kernel) {
        kernel.journal.flush();
        // Only the owner closes its channel: the number may be reused afterwards.
        *kernel = Kernel { journal: JournalWriter::none() };
    }

    /// Reports the failure and exits.
    fn fail(&self, kernel: Option<&Kernel>, failure: &Failure) -> ! {
        self.report(kernel, failure);
        podwright_sys::process::exit(1)
    }

    fn report(&self, kernel: Option<&Kernel>, failure: &Failure) {
        // First: the receiver may ask for the cause.
        if let Some(kernel) = kernel {
            kernel.journal.flush();
        }
        let mut message = vec![FAILED];
        let _ = serde_json::to_writer(&mut message, failure);
        let _ = io::send(self.sync.as_fd(), &message, &[]);
    }
}

/// A child's report of the process that it has created.
fn newborn(pid: u32) -> [u8; 5] {
    let [a, b, c, d] = pid.to_le_bytes();
    [BORN, a, b, c, d]
}

fn setup(failure: impl Into<Failure>) -> Failure {
    let failure = failure.into();
    if let FailureKind::Start(_) = failure.kind {
        return failure;
    }
    let message = format!("unable to start container process: error during container init: {}", failure.message);
    Failure::new(FailureKind::Start(StartFailure::Setup), message)
}

fn refused(why: impl std::fmt::Display) -> Failure {
    Failure::new(FailureKind::Kernel, why)
}

/// Lowering it requires a privilege that an agent in a container may lack; then the journal records the refusal. Done before any
/// container mounts cover the file.
fn adjust_oom_score(kernel: &Kernel, plan: &ProcessPlan) {
    let score = plan.oom_score_adj.unwrap_or(0);
    let _ = kernel.write_proc(Path::new("self/oom_score_adj"), &score.to_string());
}

/// The root of the calling process, as an O_PATH descriptor.
fn own_root(kernel: &Kernel) -> SysResult<OwnedFd> {
    kernel.open_path(Path::new("/"))
}

/// Whether this part of `/proc` may be mounted over. runc's list, which lxcfs needs.
pub fn may_cover_proc(target: &Path) -> bool {
    const ALLOWED: [&str; 10] = [
        "cpuinfo",
        "diskstats",
        "loadavg",
        "meminfo",
        "slabinfo",
        "stat",
        "swaps",
        "sys/crypto/fips_enabled",
        "sys/kernel/ns_last_pid",
        "uptime",
    ];
    target.strip_prefix("/proc").is_ok_and(|below| ALLOWED.iter().any(|allowed| below == Path::new(allowed)))
}
