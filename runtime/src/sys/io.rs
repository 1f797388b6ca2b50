//! Our own descriptors: poll, pipes, sockets that pass descriptors. Not recorded: nothing of a Pod is created here.

use std::io::{Error as IoError, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use rustix::pipe::PipeFlags;

use super::checked;

/// Maximum descriptors per message.
pub const MAX_FDS: usize = 8;

/// One entry of a poll set. Its descriptor must stay open while it is polled.
#[repr(transparent)]
pub struct PollFd(libc::pollfd);

impl PollFd {
    pub fn new(fd: BorrowedFd<'_>, events: i16) -> PollFd {
        PollFd(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 })
    }

    /// Readable, or at end of file.
    pub fn readable(&self) -> bool {
        self.0.revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
    }

    /// Writable, or in an error state that writing reveals.
    pub fn writable(&self) -> bool {
        self.0.revents & (libc::POLLOUT | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
    }
}

/// Waits for any of the set; -1 waits forever. An interrupted wait returns 0.
pub fn poll(set: &mut [PollFd], timeout_ms: i32) -> Result<usize, IoError> {
    // SAFETY: PollFd is transparent over pollfd, and the slice has the given length.
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

/// Sends bytes, with descriptors attached to the first of them. Returns the number of bytes sent.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, IoError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(IoError::from_raw_os_error(libc::EINVAL));
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and the descriptors sent with them; 0 bytes mean end of file.
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

/// The peer's uid on a Unix socket of ours, in our user namespace.
pub fn peer_uid(socket: BorrowedFd<'_>) -> Result<u32, IoError> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// Makes the kernel attach the sender's credentials to each received message.
pub fn tell_senders(socket: BorrowedFd<'_>) -> Result<(), IoError> {
    Ok(rustix::net::sockopt::set_socket_passcred(socket, true)?)
}

/// [`receive`] from a socket with sender credentials: returns the number of bytes, and the sender's pid, which only a process with CAP_SYS_ADMIN over our own PID namespace could forge. 0: outside our PID namespace. An empty message is valid, the end is the error UnexpectedEof.
pub fn receive_from(socket: BorrowedFd<'_>, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<(usize, u32), IoError> {
    use std::os::fd::FromRawFd;
    let mut space = [0u64; 16];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    message.msg_control = space.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&space) as _;
    // SAFETY: the header's buffers outlive the call and have the given lengths.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) };
    let got = checked(got as libc::c_long)? as usize;
    // Every message has credentials.
    if got == 0 && message.msg_controllen == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let mut sender = 0;
    // SAFETY: the kernel has filled `space` with complete headers; each is read only up to its length, and every descriptor in it
    // is new and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            let (data, length) = (libc::CMSG_DATA(header), (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    let given = (0..length / size_of::<i32>()).map(|n| data.cast::<i32>().add(n).read_unaligned());
                    fds.extend(given.map(|fd| OwnedFd::from_raw_fd(fd)));
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= size_of::<libc::ucred>() => {
                    sender = data.cast::<libc::ucred>().read_unaligned().pid as u32;
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok((got, sender))
}

/// Waits for one byte from the peer; `false` when it is gone.
pub fn await_byte(socket: BorrowedFd<'_>) -> bool {
    loop {
        match rustix::io::read(socket, &mut [0u8; 1]) {
            Err(rustix::io::Errno::INTR) => {}
            done => return done.is_ok_and(|n| n > 0),
        }
    }
}

/// Reads available data: `None` if there is none, `Some(0)` at the end (EIO on a pty).
pub fn read_some(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Option<usize> {
    match rustix::io::read(fd, buffer) {
        Ok(n) => Some(n),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        Err(_) => Some(0),
    }
}

/// Writes as much as fits: `Some(0)` if nothing does, `None` if the peer is gone.
pub fn write_some(fd: BorrowedFd<'_>, bytes: &[u8]) -> Option<usize> {
    match rustix::io::write(fd, bytes) {
        Ok(n) => Some(n),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Some(0),
        Err(_) => None,
    }
}

/// Writes everything to a blocking file, without allocating: for the writer thread.
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

/// Makes `fd` the descriptor `number`, which survives exec: 0, 1 or 2 of a child, or a reserved number.
pub fn dup_to(fd: BorrowedFd<'_>, number: i32) -> Result<(), IoError> {
    if fd.as_raw_fd() == number {
        return Ok(rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?);
    }
    // SAFETY: replaces a descriptor that no handle relies on: an unowned one (0, 1, 2 in a child), or a placeholder, whose owner
    // owns the new one.
    checked(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into()).map(drop)
}

/// Moves the listening socket, which the agent passed as descriptor 0, to another number: 0, 1 and 2 are for streams. Errors:
/// ENOTSOCK or EINVAL, it is something else.
pub fn take_stdin() -> Result<OwnedFd, IoError> {
    use rustix::net::{AddressFamily, sockopt};
    use std::os::fd::FromRawFd;
    // SAFETY: called once, at the start, before anything else could own it; it stays open until it is replaced.
    let given = unsafe { BorrowedFd::borrow_raw(0) };
    if !sockopt::socket_acceptconn(given)? || sockopt::socket_domain(given)? != AddressFamily::UNIX {
        return Err(IoError::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the kernel returns a new descriptor of ours.
    let moved = unsafe { libc::fcntl(given.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: as above.
    checked(moved.into()).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Accepts a connection, non-blocking; `None` if there is none.
pub fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    rustix::net::accept_with(listener.as_fd(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()
}
