//! What children of the shim do between clone3 and execve, and what each of them may still hold.
//!
//! A container may be able to trace what it can see. So whatever has rights or descriptors of the host stays out of containers'
//! PID namespaces, and what is born inside of one has given up everything before:
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
//! | builder ([`container`]) | the shim's | the shim's | a copy of the host's; from `pivot_root` on the container's | 0-2, sync, filters, pidfds of `pause` and the container to join, the host's procfs as a place; what it opens itself: the root, binds, masks |
//! | holder ([`Kernel::lock_mounts`](podwright_sys::Kernel::lock_mounts)), for a moment | the shim's | all, in a user namespace of its own alone | the container's, locked | none |
//! | entrant of an exec ([`exec`]) | the shim's | the shim's | the host's: it resolves no path | 0-2, sync, filters, the pidfd to join by, the terminal's master once the bearer has put it there |
//! | entrant of a container ([`container`]) | the shim's | the shim's; the process's ([`identity`]) and what entering takes before it bears one that is alone | the container's, locked | 0-2, sync, filters, the pidfd to join by, where the locked mounts come from, the way to the builder |
//! | bearer ([`process`]) | the shim's; its children's is the container's | the shim's, then exactly the process's, filters and no_new_privs included | the container's | the entrant's own table: first as that has it, at the birth 0-2, sync, and the master or the way to the builder |
//! | process among others | the container's | its own, filters and no_new_privs included | the container's | what the bearer has, of which it keeps 0-2 and sync |
//! | process that is alone | the container's | its own; CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_DAC_READ_SEARCH too until it has entered its mounts, the first until its filters are loaded without no_new_privs | the builder's; the container's, locked, when it is told to go on | 0-2, sync, filters, where the locked mounts come from |
//! | helper ([`procfs`]), before Linux 6.17 | the container's | CAP_SYS_ADMIN, and a filter that allows fsopen(2), sendmsg(2) to the builder, the one clone(2) that bears it, and exit_group(2) | an empty one | 0-2, the way to the builder |
//! | pause ([`sandbox`]) | its own, or the shim's | the shim's, then nobody's and none | the host's, then an empty one | 0-2, sync, its program (which nobody can read: that keeps it closed to inspection after execve), the node's network namespace until it has joined it |
//!
//! With users of its own ([`users`]) a sandbox has a user namespace, in which all this is the same but:
//!
//! | who | user namespace and capabilities | mounts, and whose they are |
//! |---|---|---|
//! | bearer of pause | the shim's, with all rights, until it has borne | a copy of the host's, then an empty one | the host's user namespace's |
//! | pause | the sandbox's, from its birth: its root until it is nobody, after the shim has mapped who that is. It owns the network, IPC, UTS and PID namespaces that are born with it | its bearer's, empty from its birth; the host's procfs as a place while it has sysctls to write | the host's user namespace's: those of the sandbox may mount nothing there |
//! | builder | the shim's, with all rights: only it can show the host's layers and binds through the mapping. From the first thing that it makes on, its files are the mapped root's ([`Kernel::make_files_as`]), and all that is mounted is the host's | the host's user namespace's |
//! | entrant | the shim's, with all rights: it raises limits, and tells of who was born. The kernel counts descriptors on their way by the user of the host, and keeps who is inside of a user namespace from sending one when others of that user have sent many | the builder's, complete or not: it resolves no path |
//! | bearer | the sandbox's, as its root, before anything else that it does: nothing over the host is left | as for the process |
//! | process | the sandbox's; what it may there is the plan's | a copy of the builder's that the sandbox's user namespace owns: by that all mounts, masks too, are locked |
//!
//! That copy must be made when the root is complete. In a PID namespace that is there already (the sandbox's, another
//! container's) it is, and the bearer makes the copy before the birth. In one of its own the process makes the copy itself, when
//! it is told to go on ([`identity::Mounts::Own`]): until then it has CAP_SYS_ADMIN in the sandbox's user namespace, and nobody is
//! there who could see it.
//!
//! What covers a mount (masks, a read-only `/proc/sys`) falls off it when the mount namespace ends, and whoever has kept a
//! descriptor in there (by a shared PID namespace, by a socket) would have the host's settings to write. So a container that has
//! the host's users and may not mount lives in a copy of the complete mounts in which all is locked for good, as any copy is that
//! another user namespace owns. The builder has one made in a user namespace that nobody is in, and gives it to whoever is to
//! enter it: the entrant, or the process if the mounts are complete only when that is there ([`identity::Mounts::Given`]). That one
//! makes another one of it, which the host's user namespace owns again. A container with CAP_SYS_ADMIN could unmount what covers,
//! and has the builder's own mounts; so has who shares its PID namespace, and may look into it.
//!
//! Among others (an exec or a probe, a container of a Pod that shares its PID namespace, one with the host's, one that joins
//! another's) somebody may have CAP_SYS_PTRACE, whom nothing keeps from tracing a process and doing by it what that may. So all
//! is done before the birth: the root is complete, the working directory entered, the program found, the filters loaded. Those
//! must allow clone(2), and then read(2) and execve(2); RuntimeDefault answers clone3(2) with ENOSYS. A container's first process
//! in a PID namespace of its own has nobody beside it who could trace it: until it executes only the builder and the shim know
//! it. It loads its filters last, and they need not allow anything but execve(2), and without no_new_privs capset(2) and
//! prctl(2).
//!
//! The AppArmor profile of a process is chosen by the builder, or an exec's entrant, as its first act, while `/proc` is the
//! host's ([`identity::choose_profile`]): whoever is born of it inherits the choice, and goes over to the profile by execve(2).
//!
//! No birth lasts for ever ([`crate::protocol::BIRTH`]): a container can stop who is born beside it. The shim kills it then, and says so.
//!
//! The first act of each is [`ChildContext::begin`]: every descriptor that is not listed is closed, by allow-list, before a path of
//! a container is resolved. *sync* is a socket to the shim, which takes what comes over it for hostile
//! ([`crate::container`]); *filters* are sealed memfds; 0-2 are the process's own streams, or a null device that nobody
//! else has. No journal is open: records go over *sync* too. All are closed to inspection (PR_SET_DUMPABLE) until they execute;
//! that keeps out everybody but who has CAP_SYS_PTRACE over the machine's own user namespace. What such a container reads in the
//! memory of a *process* is a copy of the shim's: the plans of its own Pod's containers, their environments as long as they have
//! not started, and nothing of other Pods.
//!
//! What goes over *sync*: [`BORN`], from the builder (or an exec's entrant) alone, with the process's pidfd and its terminal's
//! master; [`FAILED`] with a [`Failure`]; batches of the journal. The process waits for one byte, and either the socket closes by
//! itself (execve succeeded: it is close-on-exec) or a failure comes.

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
/// The first byte of a batch of the journal.
pub const RECORDS: u8 = b'p';
/// What the shim says to a process that may go on.
pub const GO: &[u8] = b"g";

/// Everything that a child takes with it.
pub struct ChildContext<'a> {
    pub child: Child,
    pub journal: JournalWriter,
    pub sync: OwnedFd,
    /// stdin, stdout, stderr; without a terminal. A missing one is `null`.
    pub stdio: [Option<OwnedFd>; 3],
    pub null: BorrowedFd<'a>,
    pub seccomp: &'a [OwnedFd],
}

impl ChildContext<'_> {
    /// The first act of every child: 0, 1 and 2 are its streams, and all else is closed but what every child has and `also`.
    fn begin(&self, streams_of: Option<(u32, u32)>, also: &[BorrowedFd<'_>]) -> Result<Kernel, Failure> {
        own::become_child();
        own::umask(0);
        let placed = self.place_streams(streams_of);
        let kernel = self.keep(also)?;
        placed.map_err(|e| Failure::new(FailureKind::Kernel, format!("dup2(0, 1, 2): {e}")))?;
        Ok(kernel)
    }

    /// Closes all but what every child has and `also`. What records from now on is of this process alone.
    fn keep(&self, also: &[BorrowedFd<'_>]) -> Result<Kernel, Failure> {
        let filters = self.seccomp.iter().map(|fd| fd.as_fd());
        self.keep_without_filters(&also.iter().copied().chain(filters).collect::<Vec<_>>())
    }

    /// [`ChildContext::keep`] for who has loaded the filters, or is about to.
    fn keep_without_filters(&self, also: &[BorrowedFd<'_>]) -> Result<Kernel, Failure> {
        let closed = || -> Result<(), std::io::Error> {
            own::close_to_inspection()?;
            let mut kept: Vec<BorrowedFd<'_>> = also.to_vec();
            kept.push(self.sync.as_fd());
            fork::keep_only(self.child, &kept)
        };
        closed().map_err(|e| Failure::new(FailureKind::Kernel, format!("closing descriptors: {e}")))?;
        // A limit may leave no room for one more: then nothing is recorded.
        let journal = match self.sync.try_clone() {
            Ok(channel) => self.journal.for_child_over(Role::Init, channel),
            Err(_) => JournalWriter::none(),
        };
        Ok(Kernel { journal })
    }

    /// Records nothing from now on: all that keeps other descriptors than these comes next.
    fn hush(&self, kernel: &mut Kernel) {
        kernel.journal.flush();
        // Its channel is closed by its owner alone: the number may be another's afterwards.
        *kernel = Kernel { journal: JournalWriter::none() };
    }

    /// Reports why it could not be done, and ends.
    fn fail(&self, kernel: Option<&Kernel>, failure: &Failure) -> ! {
        self.report(kernel, failure);
        podwright_sys::process::exit(1)
    }

    fn report(&self, kernel: Option<&Kernel>, failure: &Failure) {
        // First: whoever learns of it may ask how it came.
        if let Some(kernel) = kernel {
            kernel.journal.flush();
        }
        let mut message = vec![FAILED];
        let _ = serde_json::to_writer(&mut message, failure);
        let _ = io::send(self.sync.as_fd(), &message, &[]);
    }
}

/// What a child reports of the process that it has borne.
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

/// Lowering it needs a privilege that an agent in a container may lack; then the journal has the refusal. Done before anything of
/// a container is mounted where it is written.
fn adjust_oom_score(kernel: &Kernel, plan: &ProcessPlan) {
    let score = plan.oom_score_adj.unwrap_or(0);
    let _ = kernel.write_proc(Path::new("self/oom_score_adj"), &score.to_string());
}

/// The root of the calling process, as a place alone.
fn own_root(kernel: &Kernel) -> SysResult<OwnedFd> {
    kernel.open_path(Path::new("/"))
}

/// May something be mounted over this part of `/proc`? runc's list, which lxcfs needs.
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
