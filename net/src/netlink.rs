//! The crate's one door to the kernel: netlink sockets, namespaces, mounts, sysctls and the `nft` program.
//!
//! Links and routes go through `rtnetlink` ([`Route`]), nf_tables and conntrack through messages of our own ([`Socket`]).
//! Operations on behalf of a Pod are recorded through the given [`JournalWriter`].

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::Builder;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, recv, setsockopt,
    socket, sockopt,
};

use podwright_journal::JournalWriter;
use rtnetlink::sys::protocols::NETLINK_NETFILTER;

use crate::message::{self, Writer};
use crate::{Error, Result};

mod count;
mod new_netns;
mod packet;
mod route;
mod watch;

pub use count::has_more_than;
pub use new_netns::new_netns;
pub use packet::{Discovery, Frames, LONGEST, Received, Uplink, leads_to_containers, uplinks};
pub use route::Route;
pub use watch::Watch;

/// A netfilter socket. It stays in the network namespace of the thread that opened it.
pub struct Socket {
    socket: rtnetlink::sys::Socket,
    seq: u32,
    buffer: Vec<u8>,
    journal: JournalWriter,
}

/// A received message, owned.
#[derive(Clone, Debug)]
pub struct Answer {
    pub kind: u16,
    pub payload: Vec<u8>,
}

/// No kernel sends larger datagrams in a dump; error responses may include the request.
const RECEIVE_BUFFER: usize = 256 * 1024;
/// A transaction is one datagram: 10,000 Services with 3 endpoints are about 8 MiB.
const SEND_BUFFER: usize = 64 << 20;
/// Maximum size of a listing of foreign rules, and the time limit of `nft` for it.
pub const LISTING: usize = 64 << 20;
const LISTING_TIMEOUT: Duration = Duration::from_secs(20);

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Socket> {
        let failed = |e| Error::call("socket(AF_NETLINK, NETLINK_NETFILTER)", e);
        let socket = rtnetlink::sys::Socket::new(NETLINK_NETFILTER).map_err(failed)?;
        socket.set_cap_ack(true).map_err(failed)?;
        // Without the privilege the default sizes stay, and a large transaction fails with EMSGSIZE.
        let _ = setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER);
        let _ = setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20));
        Ok(Socket { socket, seq: 1, buffer: vec![0; RECEIVE_BUFFER], journal: JournalWriter::none() })
    }

    /// Records later operations of the socket in this journal.
    pub fn set_journal(&mut self, journal: JournalWriter) {
        self.journal = journal;
    }
    pub fn journal(&self) -> &JournalWriter {
        &self.journal
    }

    /// Opens a socket inside `netns`, from any thread.
    pub fn open_in(netns: BorrowedFd<'_>) -> Result<Socket> {
        in_netns(netns, Socket::open)?
    }

    /// Sends messages that each request an acknowledgement and waits for all of them. They are applied in order; returns the first
    /// error, while later ones are still applied.
    pub fn request(&mut self, what: &str, request: Writer) -> Result<()> {
        self.journal.clone().call(
            "netlink",
            |a| a.text(what),
            || {
                let (first, last) = self.send(what, request)?;
                let mut failure = None;
                let mut expected = first;
                while expected != last.wrapping_add(1) {
                    self.receive(what, |seq, answer| {
                        if let Acknowledged::Ack(result) = acknowledged(&answer)
                            && seq == expected
                        {
                            expected = expected.wrapping_add(1);
                            failure = failure.take().or(result.err());
                        }
                        Ok(())
                    })?;
                }
                failure.map_or(Ok(()), |e| Err(Error::call(what, e)))
            },
        )
    }

    /// Sends one message flagged `NLM_F_DUMP` (or a get without it, which has one response and an acknowledgement) and collects the
    /// responses.
    pub fn dump(&mut self, what: &str, request: Writer) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        self.dump_each(what, request, |answer| answers.push(answer))?;
        Ok(answers)
    }

    /// The same, passing on the responses one by one.
    pub fn dump_each(&mut self, what: &str, request: Writer, mut see: impl FnMut(Answer)) -> Result<()> {
        self.journal.clone().call(
            "netlink",
            |a| a.text(what),
            || {
                let (_, last) = self.send(what, request)?;
                let mut done = None;
                while done.is_none() {
                    self.receive(what, |seq, answer| {
                        if seq != last {
                            return Ok(());
                        }
                        match acknowledged(&answer) {
                            Acknowledged::Ack(result) => done = Some(result),
                            Acknowledged::Done(result) => done = Some(result),
                            Acknowledged::Data => see(answer),
                        }
                        Ok(())
                    })?;
                }
                match done {
                    Some(Err(e)) => Err(Error::call(what, e)),
                    _ => Ok(()),
                }
            },
        )
    }

    /// Sends messages that each query one object and request an acknowledgement; passes on what is found with the index of its
    /// message. Missing objects (ENOENT) are skipped.
    pub fn get_each(&mut self, what: &str, request: Writer, mut see: impl FnMut(usize, Answer)) -> Result<()> {
        self.journal.clone().call(
            "netlink",
            |a| a.text(what),
            || {
                let (first, last) = self.send(what, request)?;
                let count = last.wrapping_sub(first) as usize + 1;
                let (mut answered, mut failure) = (0, None);
                while answered < count {
                    self.receive(what, |seq, answer| {
                        let number = seq.wrapping_sub(first) as usize;
                        if number >= count {
                            return Ok(());
                        }
                        match acknowledged(&answer) {
                            Acknowledged::Ack(result) => {
                                answered += 1;
                                let refused = result.err().filter(|e| e.raw_os_error() != Some(libc::ENOENT));
                                failure = failure.take().or(refused);
                            }
                            Acknowledged::Done(_) => {}
                            Acknowledged::Data => see(number, answer),
                        }
                        Ok(())
                    })?;
                }
                failure.map_or(Ok(()), |e| Err(Error::call(what, e)))
            },
        )
    }

    /// Sends an nfnetlink batch: all of its messages or none are applied. The last message before the batch's end must request an
    /// acknowledgement; `batch` includes begin and end.
    pub fn transaction(&mut self, what: &str, batch: Writer) -> Result<()> {
        self.journal.clone().call(
            "netlink",
            |a| a.text(what),
            || {
                let (first, last) = self.send(what, batch)?;
                // The kernel acknowledges where requested and reports each failure; a refused commit is reported for the batch's
                // begin.
                let acked = last.wrapping_sub(1);
                let mut outcome: Option<io::Result<()>> = None;
                let mut failure = None;
                while outcome.is_none() {
                    self.receive(what, |seq, answer| {
                        if let Acknowledged::Ack(result) = acknowledged(&answer)
                            && seq.wrapping_sub(first) <= last.wrapping_sub(first)
                        {
                            if seq == acked || seq == first || seq == last {
                                outcome = Some(Ok(()));
                            }
                            failure = failure.take().or(result.err());
                        }
                        Ok(())
                    })?;
                }
                failure.map_or(Ok(()), |e| Err(Error::call(what, e)))
            },
        )
    }

    fn send(&mut self, what: &str, request: Writer) -> Result<(u32, u32)> {
        let first = self.seq;
        let (bytes, last) = request.finish(first);
        self.seq = last.wrapping_add(1);
        self.socket.send(&bytes, 0).map_err(|e| Error::call(format!("send {what}"), e))?;
        Ok((first, last))
    }

    /// Receives one datagram and passes on its messages.
    fn receive(&mut self, what: &str, mut each: impl FnMut(u32, Answer) -> Result<()>) -> Result<()> {
        let length = loop {
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(n) => break n,
                Err(Errno::EINTR) => continue,
                Err(e) => return Err(Error::call(format!("receive {what}"), e.into())),
            }
        };
        for m in message::messages(&self.buffer[..length]) {
            each(m.seq, Answer { kind: m.kind, payload: m.payload.to_vec() })?;
        }
        Ok(())
    }
}

enum Acknowledged {
    /// An error or acknowledgement message.
    Ack(io::Result<()>),
    /// The end of a dump.
    Done(io::Result<()>),
    Data,
}

fn acknowledged(answer: &Answer) -> Acknowledged {
    let code = || match message::u32_at(&answer.payload, 0) as i32 {
        0 => Ok(()),
        negative => Err(io::Error::from_raw_os_error(negative.wrapping_neg())),
    };
    match i32::from(answer.kind) {
        libc::NLMSG_ERROR => Acknowledged::Ack(code()),
        libc::NLMSG_DONE => Acknowledged::Done(code()),
        _ => Acknowledged::Data,
    }
}

/// Runs `f` on a new thread inside `netns`, and waits for it. About 60 us; sockets and namespaces that `f` opens stay valid after
/// the thread is gone. Fails if no thread can be created.
pub fn in_netns<T: Send>(netns: BorrowedFd<'_>, f: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let inside = move || {
            enter(netns)?;
            Ok(f())
        };
        let inside = Builder::new().spawn_scoped(scope, inside).map_err(no_thread)?;
        inside.join().unwrap_or(Err(Error::ThreadGone))
    })
}

fn no_thread(error: io::Error) -> Error {
    Error::call("spawn a thread", error)
}

/// Moves the calling thread into a network namespace. Only for our own threads.
pub fn enter(netns: BorrowedFd<'_>) -> Result<()> {
    setns(netns, CloneFlags::CLONE_NEWNET).map_err(|e| Error::call("setns(CLONE_NEWNET)", e.into()))
}

/// The network namespace of the calling thread.
pub fn current_netns() -> Result<OwnedFd> {
    open_file(Path::new("/proc/thread-self/ns/net"))
}

/// Pins a namespace by a bind mount over an empty file at `path`.
pub fn pin(netns: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let call = || format!("mount --bind <netns> {}", path.display());
    File::create(path).map_err(|e| Error::call(format!("create {}", path.display()), e))?;
    let source = format!("/proc/self/fd/{}", netns.as_raw_fd());
    mount(Some(source.as_str()), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|e| Error::call(call(), e.into()))
}

/// Undoes [`pin`], also a partial one; succeeds if nothing is there.
pub fn unpin(path: &Path) -> Result<()> {
    while path.exists() {
        match umount2(path, MntFlags::MNT_DETACH) {
            Ok(()) => continue,
            Err(Errno::EINVAL | Errno::ENOENT) => break,
            Err(e) => return Err(Error::call(format!("umount {}", path.display()), e.into())),
        }
    }
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::call(format!("unlink {}", path.display()), e)),
        _ => Ok(()),
    }
}

/// The pinned namespace at `path`; `None` if there is no file, or a file that is not a namespace (after a crash between creating it
/// and mounting over it).
pub fn open_pinned(path: &Path) -> Result<Option<OwnedFd>> {
    const NSFS_MAGIC: i64 = 0x6e73_6673;
    if !path.exists() {
        return Ok(None);
    }
    let fd = open_file(path)?;
    let kind = nix::sys::statfs::fstatfs(fd.as_fd()).map_err(|e| Error::call("fstatfs", e.into()))?;
    Ok((kind.filesystem_type().0 as i64 == NSFS_MAGIC).then_some(fd))
}

/// The network namespace at `path`; `None` where something else is.
///
/// # Errors
///
/// It cannot be opened.
pub fn open_netns(path: &Path) -> Result<Option<OwnedFd>> {
    let failed = |e| Error::call(format!("open {}", path.display()), e);
    // A pipe or a device is not to be waited for.
    let place = fs::symlink_metadata(path).map_err(failed)?;
    let found = if place.is_symlink() { fs::metadata(path).map_err(failed)? } else { place };
    if !found.is_file() {
        return Ok(None);
    }
    let Some(fd) = open_pinned(path)? else { return Ok(None) };
    // It is entered by a thread of its own, which ends with it.
    let entered = in_netns(fd.as_fd(), || ());
    Ok(entered.is_ok().then_some(fd))
}

/// Kills a process group whose leader has not been waited for yet.
pub fn kill_group(leader: u32) {
    if let Ok(leader) = i32::try_from(leader) {
        nix::sys::signal::killpg(nix::unistd::Pid::from_raw(leader), nix::sys::signal::Signal::SIGKILL).ok();
    }
}

/// The inode number that names a namespace in `/proc/*/ns`.
pub fn inode(netns: BorrowedFd<'_>) -> Result<u64> {
    let stat = nix::sys::stat::fstat(netns).map_err(|e| Error::call("fstat", e.into()))?;
    Ok(stat.st_ino)
}

/// Writes a sysctl (`net/ipv4/ip_forward`) of the calling thread's network namespace.
pub fn sysctl(journal: &JournalWriter, name: &str, value: &str) -> Result<()> {
    let failed = |e| Error::call(format!("write {value} to /proc/sys/{name}"), e);
    let write = || fs::write(format!("/proc/sys/{name}"), value).map_err(failed);
    journal.call("sysctl", |a| a.text(name).text(" = ").text(value), write)
}

/// Reads a sysctl of the calling thread's network namespace.
pub fn read_sysctl(name: &str) -> Result<String> {
    let text = fs::read_to_string(format!("/proc/sys/{name}"))
        .map_err(|e| Error::call(format!("read /proc/sys/{name}"), e))?;
    Ok(text.trim().to_owned())
}

/// Runs `nft` with these arguments in the calling thread's network namespace, with `script` as input; returns its output. A script
/// given by `-f -` is one transaction.
pub fn nft(journal: &JournalWriter, arguments: &[&str], script: &str) -> Result<String> {
    journal.call(
        "nft",
        |a| a.format(format_args!("{}: {} lines", arguments.join(" "), script.lines().count())),
        || {
            let failed = |e| Error::call("spawn nft", e);
            let mut child = Command::new("nft")
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .map_err(failed)?;
            // nft reads all input before it writes anything, so this cannot deadlock.
            if let Some(mut stdin) = child.stdin.take() {
                let _ = stdin.write_all(script.as_bytes());
            }
            let output = child.wait_with_output().map_err(failed)?;
            if output.status.success() {
                return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
            }
            Err(Error::Nft(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
        },
    )
}

/// A listing of `nft` in the calling thread's network namespace, up to this size; foreign rules may be of any number. `input` is
/// short: a command for `-f -`, or empty.
pub fn nft_listing(arguments: &[&str], input: &str, most: usize) -> Result<String> {
    let failed = |e| Error::call("spawn nft", e);
    let mut command = Command::new("nft");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    // It fits into a pipe. If nft exits without reading it, its status reports why.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let listed = read_listing(&mut child, most);
    if listed.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    let listed = listed.map_err(|e| Error::call(format!("nft {}", arguments.join(" ")), e))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&listed).into_owned()),
        false => Err(Error::Nft(format!("nft {}: {status}", arguments.join(" ")))),
    }
}

fn read_listing(child: &mut Child, most: usize) -> io::Result<Vec<u8>> {
    let (deadline, mut listed, mut part) = (Instant::now() + LISTING_TIMEOUT, Vec::new(), vec![0; 64 << 10]);
    let Some(mut output) = child.stdout.take() else { return Ok(listed) };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(output.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(e.into()),
            Ok(_) => {}
        }
        match output.read(&mut part)? {
            0 => return Ok(listed),
            n if listed.len() + n > most => return Err(io::ErrorKind::FileTooLarge.into()),
            n => listed.extend_from_slice(&part[..n]),
        }
    }
}

fn open_file(path: &Path) -> Result<OwnedFd> {
    File::open(path).map(OwnedFd::from).map_err(|e| Error::call(format!("open {}", path.display()), e))
}

/// A stream or datagram socket in the calling thread's network namespace, non-blocking, close-on-exec.
pub fn inet_socket(family: crate::Family, kind: SockType) -> Result<OwnedFd> {
    let domain = match family {
        crate::Family::V4 => AddressFamily::Inet,
        crate::Family::V6 => AddressFamily::Inet6,
    };
    socket(domain, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)
        .map_err(|e| Error::call(format!("socket({domain:?}, {kind:?})"), e.into()))
}

/// A raw socket in the calling thread's network namespace that sends packets including headers, from an address of the namespace;
/// non-blocking, close-on-exec. It only receives packets from that same address, not others'.
pub fn packet_socket(from: IpAddr) -> Result<OwnedFd> {
    let domain = match from {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let make = || {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(domain, SockType::Raw, flags, SockProtocol::Raw)?;
        let own = SockaddrStorage::from(SocketAddr::new(from, 0));
        bind(fd.as_raw_fd(), &own)?;
        connect(fd.as_raw_fd(), &own)?;
        Ok(fd)
    };
    make().map_err(|e: nix::errno::Errno| Error::call(format!("socket({domain:?}, Raw) of {from}"), e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: &str = "PODWRIGHT_TEST_WITHOUT_THREADS";

    /// In a separate process, which cannot create threads.
    #[test]
    fn without_a_thread_there_is_an_error() {
        if std::env::var_os(ALONE).is_none() {
            let name = "netlink::tests::without_a_thread_there_is_an_error";
            let mut again = Command::new(std::env::current_exe().unwrap());
            let output = again.args(["--exact", name, "--test-threads=1"]).env(ALONE, "1").output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        let here = current_netns().unwrap();
        // No room for a stack.
        let own = std::process::id().to_string();
        assert!(Command::new("prlimit").args(["--as=1:", "--pid", &own]).status().unwrap().success());
        let of_none = |error: Error| error.to_string().starts_with("spawn a thread");
        let (entered, made) = (in_netns(here.as_fd(), || ()), new_netns());
        assert!(entered.is_err_and(of_none));
        assert!(made.is_err_and(of_none));
    }
}
