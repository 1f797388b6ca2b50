//! Descriptors of our own: poll, pipes, sockets that carry descriptors. Not recorded: nothing of a Pod is made here.

use std::io::{Error as IoError, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use rustix::pipe::PipeFlags;

use super::checked;

/// The most descriptors that one message carries.
pub const MAX_FDS: usize = 8;

/// One entry of a poll set. Its descriptor must stay open while it is polled.
#[repr(transparent)]
pub struct PollFd(libc::pollfd);

impl PollFd {
    pub fn new(fd: BorrowedFd<'_>, events: i16) -> PollFd {
        PollFd(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 })
    }

    /// Something to read, or the end of it.
    pub fn readable(&self) -> bool {
        self.0.revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
    }

    /// Room to write, or an error to find by writing.
    pub fn writable(&self) -> bool {
        self.0.revents & (libc::POLLOUT | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
    }
}

/// Waits for any of the set; -1 waits for ever. An interrupted wait gives 0.
pub fn poll(set: &mut [PollFd], timeout_ms: i32) -> Result<usize, IoError> {
    // SAFETY: PollFd is transparent over pollfd, and the slice is as long as said.
    let ready = unsafe { libc::poll(set.as_mut_ptr().cast(), set.len() as libc::nfds_t, timeout_ms) };
    match checked(ready.into()) {
        Err(e) if e.kind() == ErrorKind::Interrupted => Ok(0),
        done => done.map(|n| n as usize),
    }
}

/// A pipe (read end, write end), close-on-exec, blocking.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), IoError> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}

/// A pair of connected sockets that keep message boundaries.
pub fn message_pair() -> Result<(OwnedFd, OwnedFd), IoError> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

pub fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), IoError> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}

pub fn set_blocking(fd: BorrowedFd<'_>) -> Result<(), IoError> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags - rustix::fs::OFlags::NONBLOCK)?)
}

/// Sends bytes, with descriptors attached to the first of them. Returns how many bytes went.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, IoError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(IoError::from_raw_os_error(libc::EINVAL));
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and the descriptors that came with them; 0 bytes is the end.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize, IoError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(got.bytes)
}

/// Reads what is there, if anything: `None` when nothing is, `Some(0)` at the end (a pty's EIO is its end).
pub fn read_some(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Option<usize> {
    match rustix::io::read(fd, buffer) {
        Ok(n) => Some(n),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        Err(_) => Some(0),
    }
}

/// Writes what fits: `Some(0)` when nothing does, `None` when the other side is gone.
pub fn write_some(fd: BorrowedFd<'_>, bytes: &[u8]) -> Option<usize> {
    match rustix::io::write(fd, bytes) {
        Ok(n) => Some(n),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Some(0),
        Err(_) => None,
    }
}

/// Writes all of it to a file that blocks, without allocating: for the writer thread.
pub fn write_fully(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), IoError> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Makes `fd` the descriptor number `number`, which survives exec.
pub fn dup_to(fd: BorrowedFd<'_>, number: i32) -> Result<(), IoError> {
    if fd.as_raw_fd() == number {
        return Ok(rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?);
    }
    // SAFETY: replaces a descriptor number that no owned handle of ours refers to (0, 1, 2 in a child).
    checked(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into()).map(drop)
}

/// Takes descriptor 0, which the agent prepared.
pub fn take_stdin() -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: called once, at the start, before anything else could own it.
    unsafe { OwnedFd::from_raw_fd(0) }
}

/// Accepts a connection, non-blocking; `None` when there is none.
pub fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    rustix::net::accept_with(listener.as_fd(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()
}
