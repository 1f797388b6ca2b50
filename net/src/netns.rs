//! A node's network namespace, and sockets opened inside it from any task.
//!
//! A socket belongs to the namespace of the thread that opened it, wherever it is used afterwards. So one thread inside the
//! namespace opens sockets for everyone: DNS, probes, dialling, netlink.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use nix::sys::socket::SockType;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::oneshot;

use crate::netlink;
use crate::{Error, Family, Result};

type Job = Box<dyn FnOnce() + Send>;

/// A thread inside a network namespace that runs jobs in order. It ends with its last handle.
#[derive(Clone)]
pub struct NetnsThread {
    jobs: Sender<Job>,
}

impl NetnsThread {
    /// Starts a thread that enters `netns`.
    pub fn start(netns: BorrowedFd<'_>) -> Result<NetnsThread> {
        let netns = netns.try_clone_to_owned().map_err(|e| Error::call("dup", e))?;
        let (jobs, inbox) = channel::<Job>();
        let (entered, ready) = channel();
        let inside = move || {
            let result = netlink::enter(netns.as_fd());
            let failed = result.is_err();
            let _ = entered.send(result);
            if failed {
                return;
            }
            while let Ok(job) = inbox.recv() {
                // A panic in one job must not end the thread; its caller gets `ThreadGone`.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            }
        };
        std::thread::Builder::new()
            .name("podwright-netns".to_owned())
            .spawn(inside)
            .map_err(|e| Error::call("spawn a thread", e))?;
        ready.recv().map_err(|_| Error::ThreadGone)??;
        Ok(NetnsThread { jobs })
    }

    /// Runs `f` inside the namespace and waits for it. `f` should be short: it delays other jobs.
    pub async fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (answer, waiting) = oneshot::channel();
        self.submit(move || drop(answer.send(f())))?;
        waiting.await.map_err(|_| Error::ThreadGone)
    }

    /// [`NetnsThread::run`] for callers outside a runtime.
    pub fn run_blocking<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (answer, waiting) = channel();
        self.submit(move || drop(answer.send(f())))?;
        waiting.recv().map_err(|_| Error::ThreadGone)
    }

    fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<()> {
        self.jobs.send(Box::new(job)).map_err(|_| Error::ThreadGone)
    }
}

/// The network namespace with a node's links, routes, tables and sockets. Cheap to clone.
#[derive(Clone)]
pub struct NodeNetns(Arc<Inner>);

struct Inner {
    fd: OwnedFd,
    thread: NetnsThread,
    pinned: Option<PathBuf>,
}

impl NodeNetns {
    /// The namespace of this process: a node on the host's network.
    pub fn of_process() -> Result<NodeNetns> {
        NodeNetns::from_fd(netlink::current_netns()?)
    }

    /// An isolated node's own namespace, pinned by a bind mount at `path`: the existing one, else a new one. Its `lo` is up.
    pub fn create_or_open(path: &Path) -> Result<NodeNetns> {
        let fd = match netlink::open_pinned(path)? {
            Some(fd) => fd,
            None => {
                if let Some(folder) = path.parent() {
                    std::fs::create_dir_all(folder)
                        .map_err(|e| Error::call(format!("mkdir {}", folder.display()), e))?;
                }
                let fd = netlink::new_netns()?;
                netlink::pin(fd.as_fd(), path)?;
                fd
            }
        };
        crate::links::loopback_up(fd.as_fd())?;
        NodeNetns::start(fd, Some(path.to_owned()))
    }

    /// The namespace that somebody else has made for a node, at `path`. It is marked as this node's, and pinned at `pin` too, so that
    /// it stays as long as the node does. Its `lo` is up.
    ///
    /// # Errors
    ///
    /// There is no network namespace, it is this process's or the machine's, another node's, or this node has another one.
    pub fn take(path: &Path, pin: &Path) -> Result<NodeNetns> {
        let fd = netlink::open_netns(path)?.ok_or_else(|| Error::NotNetns(path.to_owned()))?;
        let inode = netlink::inode(fd.as_fd())?;
        for own in [Path::new("/proc/1/ns/net"), Path::new("/proc/thread-self/ns/net")] {
            // That of the first process cannot be seen from inside a container, where it is not to be had either.
            let Ok(Some(own)) = netlink::open_netns(own) else { continue };
            if netlink::inode(own.as_fd())? == inode {
                return Err(Error::OwnNetns(path.to_owned()));
            }
        }
        let pinned = netlink::open_pinned(pin)?;
        if let Some(pinned) = &pinned
            && netlink::inode(pinned.as_fd())? != inode
        {
            return Err(Error::OtherNetns(path.to_owned()));
        }
        crate::links::take_netns(fd.as_fd(), &mark(pin), |folder| Path::new(folder).exists())?;
        if pinned.is_none() {
            netlink::pin(fd.as_fd(), pin)?;
        }
        crate::links::loopback_up(fd.as_fd())?;
        NodeNetns::start(fd, Some(pin.to_owned()))
    }

    /// Takes the node's mark from a namespace that somebody else has made.
    ///
    /// # Errors
    ///
    /// The kernel refuses it.
    pub fn give_up(&self) -> Result<()> {
        self.pinned().map_or(Ok(()), |pin| crate::links::give_up_netns(self.fd(), &mark(pin)))
    }

    /// A namespace somebody else made, known by its descriptor.
    pub fn from_fd(fd: OwnedFd) -> Result<NodeNetns> {
        NodeNetns::start(fd, None)
    }

    /// Unpins the namespace at `path`; it ends with the last process and descriptor in it. Idempotent.
    pub fn remove(path: &Path) -> Result<()> {
        netlink::unpin(path)
    }

    fn start(fd: OwnedFd, pinned: Option<PathBuf>) -> Result<NodeNetns> {
        let thread = NetnsThread::start(fd.as_fd())?;
        Ok(NodeNetns(Arc::new(Inner { fd, thread, pinned })))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
    /// The inode number that identifies it in `/proc/*/ns/net`.
    pub fn inode(&self) -> Result<u64> {
        netlink::inode(self.fd())
    }
    /// The path where it is pinned, if it is the node's own.
    pub fn pinned(&self) -> Option<&Path> {
        self.0.pinned.as_deref()
    }

    /// Runs something short inside the namespace.
    pub async fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        self.0.thread.run(f).await
    }
    /// [`NodeNetns::run`] for callers outside a runtime.
    pub fn run_blocking<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        self.0.thread.run_blocking(f)
    }

    /// Connects to `peer` inside the namespace: probes, port-forward, the server's `dial`. Without a time limit.
    pub async fn tcp_connect(&self, peer: SocketAddr) -> Result<TcpStream> {
        let family = Family::of(&peer.ip());
        let fd = self.run(move || netlink::inet_socket(family, SockType::Stream)).await??;
        connect(fd, peer).await
    }

    /// Listens on `address` inside the namespace; connections in TIME_WAIT do not block the address.
    pub async fn tcp_listen(&self, address: SocketAddr) -> Result<TcpListener> {
        let family = Family::of(&address.ip());
        let fd = self.run(move || netlink::inet_socket(family, SockType::Stream)).await??;
        let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(fd));
        let listen = || {
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(1024)
        };
        listen().map_err(|e| Error::call(format!("listen {address}/tcp"), e))
    }

    /// A UDP socket bound to `address` inside the namespace.
    pub async fn udp_bind(&self, address: SocketAddr) -> Result<UdpSocket> {
        let bound = self.run(move || std::net::UdpSocket::bind(address)).await?;
        let register = |socket: std::net::UdpSocket| {
            socket.set_nonblocking(true)?;
            UdpSocket::from_std(socket)
        };
        bound.and_then(register).map_err(|e| Error::call(format!("bind {address}/udp"), e))
    }

    /// A UDP socket inside the namespace connected to `peer`.
    pub async fn udp_connect(&self, peer: SocketAddr) -> Result<UdpSocket> {
        let any: IpAddr = match Family::of(&peer.ip()) {
            Family::V4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = self.udp_bind(SocketAddr::new(any, 0)).await?;
        socket.connect(peer).await.map_err(|e| Error::call(format!("connect {peer}/udp"), e))?;
        Ok(socket)
    }
}

/// Who a node is that has its namespace pinned there: its folder. An alias is no longer than 255 bytes.
fn mark(pin: &Path) -> String {
    let folder = pin.parent().unwrap_or(pin);
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned()).display().to_string();
    if folder.len() <= 200 {
        folder
    } else {
        format!("/proc/self/{:016x}", crate::dataplane::ids::fnv(folder.as_bytes()))
    }
}

/// Connects to `peer` inside any namespace, a Pod's for instance: what listens on its 127.0.0.1 is reached so.
pub async fn tcp_connect_in(netns: BorrowedFd<'_>, peer: SocketAddr) -> Result<TcpStream> {
    let fd = netlink::in_netns(netns, || netlink::inet_socket(Family::of(&peer.ip()), SockType::Stream))??;
    connect(fd, peer).await
}

async fn connect(fd: OwnedFd, peer: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(fd));
    socket.connect(peer).await.map_err(|e| Error::call(format!("connect {peer}/tcp"), e))
}
