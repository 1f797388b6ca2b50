//! THE door: every system call of the runtime that creates, joins or limits something, and nearly all `unsafe` code.
//!
//! Each operation goes through [`Kernel`], which records it in its journal and describes its error: the call, its arguments, the
//! errno. One file per part of the kernel; the plumbing that concerns only our own process (poll, descriptors of sockets and pipes,
//! signals, the heap) is in [`io`] and [`own`] and not recorded.

pub mod app_armor;
pub mod arguments;
pub mod beneath;
pub mod birth;
pub mod bpf;
pub mod credentials;
pub mod fs;
pub mod ids;
pub mod io;
pub mod kept;
pub mod locked;
pub mod mount;
pub mod own;
pub mod owner;
pub mod process;
pub mod quota;
pub mod relinquish;
pub mod shared;
pub mod still;
pub mod tree;
pub mod trusted;
pub mod tty;
pub mod unlinked;
pub mod users;
pub mod walk;

use std::fmt;
use std::io::Error as IoError;

use podwright_journal::{Args, JournalWriter, Telling};

/// A failed system call.
#[derive(Debug)]
pub struct SysError {
    pub call: &'static str,
    pub args: String,
    pub source: IoError,
}

impl SysError {
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(0)
    }
}

impl fmt::Display for SysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({}): {}", self.call, self.args, self.source)
    }
}

impl std::error::Error for SysError {}

/// For callers that also handle file errors: keeps the message and the kind.
impl From<SysError> for IoError {
    fn from(error: SysError) -> IoError {
        IoError::new(error.source.kind(), error)
    }
}

pub type SysResult<T> = Result<T, SysError>;

/// The kernel interface for one caller and cause.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub journal: JournalWriter,
}

impl Kernel {
    pub fn new(journal: &JournalWriter) -> Kernel {
        Kernel { journal: journal.clone() }
    }

    /// Runs one operation, recorded, with a descriptive error.
    pub fn op<T>(
        &self,
        call: &'static str,
        args: impl for<'a> Fn(Args<'a>) -> Args<'a>,
        act: impl FnOnce() -> Result<T, IoError>,
    ) -> SysResult<T> {
        self.journal.call(call, &args, act).map_err(|source| failed(call, &args, source))
    }

    /// [`Kernel::op`] for an operation that may have nothing to do: `None` is not recorded.
    pub fn op_if<T>(
        &self,
        call: &'static str,
        args: impl for<'a> Fn(Args<'a>) -> Args<'a>,
        act: impl FnOnce() -> Result<Option<T>, IoError>,
    ) -> SysResult<Option<T>> {
        self.journal.call_if(call, &args, act).map_err(|source| failed(call, &args, source))
    }
}

#[cold]
fn failed(call: &'static str, args: Telling<'_>, source: IoError) -> SysError {
    SysError { call, args: Args::worded(args), source }
}

/// The result of a raw system call: errno if it returned -1.
pub(crate) fn checked(returned: libc::c_long) -> Result<libc::c_long, IoError> {
    if returned == -1 { Err(IoError::last_os_error()) } else { Ok(returned) }
}
