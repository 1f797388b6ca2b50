//! Threads that may block on a disk, one for logs and one for exit records, so that the loop never does.
//!
//! The shim forks with raw clone3, and the child inherits the allocator's current state: so these threads never allocate, free or
//! lock. Jobs are boxes of the main thread, whose addresses are exchanged over two pipes.

use std::ffi::CString;
use std::io::Error as IoError;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use podwright_sys::io;

/// A job, and the container (by slot) that it is for.
pub struct Job {
    pub slot: usize,
    pub work: Work,
    /// The errno of a failure, or 0.
    pub errno: i32,
}

pub enum Work {
    /// Append `bytes` to an open log.
    Append { file: OwnedFd, bytes: Vec<u8> },
    /// Durably make `bytes` the content of `name` in `folder`: written aside, synced, renamed.
    Commit { folder: OwnedFd, aside: CString, name: CString, bytes: Vec<u8> },
}

pub struct Writer {
    /// Started with the first job.
    pipes: Option<(OwnedFd, OwnedFd)>,
}

impl Writer {
    pub fn new() -> Writer {
        Writer { pipes: None }
    }

    /// Readable when jobs have finished.
    pub fn done(&self) -> Option<BorrowedFd<'_>> {
        self.pipes.as_ref().map(|(_, done)| done.as_fd())
    }

    pub fn submit(&mut self, job: Job) -> Result<(), IoError> {
        if self.pipes.is_none() {
            self.pipes = Some(start()?);
        }
        let Some((jobs, _)) = &self.pipes else { return Ok(()) };
        let address = Box::into_raw(Box::new(job)) as usize;
        io::write_fully(jobs.as_fd(), &address.to_ne_bytes())
    }

    /// A finished job, if any.
    pub fn take(&mut self) -> Option<Box<Job>> {
        let mut address = [0u8; size_of::<usize>()];
        let got = io::read_some(self.done()?, &mut address)?;
        if got != address.len() {
            return None;
        }
        // SAFETY: only the thread writes to this pipe, and only addresses that `submit` gave away, once each.
        Some(unsafe { Box::from_raw(usize::from_ne_bytes(address) as *mut Job) })
    }
}

fn start() -> Result<(OwnedFd, OwnedFd), IoError> {
    let (jobs_out, jobs_in) = io::pipe()?;
    let (done_out, done_in) = io::pipe()?;
    io::set_nonblocking(done_out.as_fd())?;
    std::thread::Builder::new().stack_size(32 << 10).spawn(move || work(jobs_out.as_fd(), done_in.as_fd()))?;
    Ok((jobs_in, done_out))
}

/// The thread. No allocation, lock or panic in here.
fn work(jobs: BorrowedFd<'_>, done: BorrowedFd<'_>) {
    let mut address = [0u8; size_of::<usize>()];
    loop {
        match rustix::io::read(jobs, &mut address) {
            Ok(n) if n == address.len() => {}
            Err(rustix::io::Errno::INTR) => continue,
            _ => return,
        }
        // SAFETY: `submit` gave the box away; it is ours until its address is sent back.
        let job = unsafe { &mut *(usize::from_ne_bytes(address) as *mut Job) };
        job.errno = match &job.work {
            Work::Append { file, bytes } => io::write_fully(file.as_fd(), bytes).err().map_or(0, errno),
            Work::Commit { folder, aside, name, bytes } => commit(folder, aside, name, bytes).err().map_or(0, errno),
        };
        if io::write_fully(done, &address).is_err() {
            return;
        }
    }
}

fn commit(folder: &OwnedFd, aside: &CString, name: &CString, bytes: &[u8]) -> Result<(), IoError> {
    // An exit without the records of its container would be removed after a power loss. Most are on disk by now.
    for record in [c"container.json", c"../../sandbox.json"] {
        if let Ok(file) = rustix::fs::openat(folder, record, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            rustix::fs::fdatasync(&file)?;
        }
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, aside.as_c_str(), flags, Mode::from_raw_mode(0o600))?;
    io::write_fully(file.as_fd(), bytes)?;
    rustix::fs::fdatasync(&file)?;
    rustix::fs::renameat(folder, aside.as_c_str(), folder, name.as_c_str())?;
    Ok(rustix::fs::fsync(folder)?)
}

fn errno(e: IoError) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}
