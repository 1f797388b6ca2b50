//! The server's sockets: UDP and TCP on the cluster's DNS addresses, inside the node's namespace.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::answer::{self, MAX_DATAGRAM, Reply, Transport};
use super::fair_lock::FairLock;
use super::forward::Upstream;
use super::header::MAX_QUESTION;
use super::pace::Pace;
use super::records::{Names, Table};
use super::senders::{Sender, Senders};
use super::slots::{Slot, Slots};
use crate::{Error, NodeNetns, Result};

/// Maximum questions of all clients waiting for upstream servers; without a place the answer is SERVFAIL.
const FORWARDING: usize = 512;
/// Maximum open streams of all clients; without a place a stream is closed. A node has fewer Pods (110) than places.
const STREAMS: usize = 256;
/// Questions per second that each client may ask by TCP; by UDP as many (`dataplane::base::QUESTIONS`).
const QUESTIONS: u32 = 4096;
/// Delay after a listener could not be recreated.
const AGAIN: Duration = Duration::from_secs(1);
/// The maximum size of a piece with several datagrams. Each datagram is checked separately.
const MAX_PIECE: usize = u16::MAX as usize;
/// The idle timeout of a stream.
const IDLE: Duration = Duration::from_secs(10);

/// A running DNS server. It ends when dropped.
pub struct DnsServer {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    table: RwLock<Table>,
    upstream: Upstream,
    forwarding: Arc<Slots>,
    streams: Arc<Slots>,
    /// The rate of questions by TCP, and of those after the first in one piece; the node's tables limit the rate of pieces.
    pace: Pace,
    /// For answers longer than a datagram: thousands of records take milliseconds.
    long: FairLock,
}

impl DnsServer {
    /// Serves `table` on port 53 of `addresses` (which are local to the node), and other names through `upstream`. Must be called
    /// inside a tokio runtime. Fails if a socket cannot be opened.
    pub async fn start(netns: &NodeNetns, addresses: &[IpAddr], table: Table, upstream: Upstream) -> Result<DnsServer> {
        let shared = Arc::new(Shared {
            table: RwLock::new(table),
            upstream,
            forwarding: Slots::new(FORWARDING),
            streams: Slots::new(STREAMS),
            pace: Pace::new(QUESTIONS),
            long: FairLock::default(),
        });
        let mut tasks = JoinSet::new();
        for address in addresses {
            let address = SocketAddr::new(*address, 53);
            let (udp, tcp) = (netns.udp_bind(address).await?, netns.tcp_listen(address).await?);
            whole_pieces(&udp).map_err(|e| Error::call(format!("setsockopt(UDP_GRO) {address}/udp"), e))?;
            with_links(&udp, address).map_err(|e| Error::call(format!("setsockopt(IP_PKTINFO) {address}/udp"), e))?;
            let udp = Arc::new(udp);
            let senders = Senders::open(netns.clone(), &udp, address).await?;
            tasks.spawn(datagrams(udp, senders, shared.clone()));
            tasks.spawn(streams(tcp, netns.clone(), address, shared.clone()));
        }
        Ok(DnsServer { shared, _tasks: tasks })
    }

    /// Replaces the names of some owners, atomically for clients; an empty set withdraws an owner.
    pub fn set(&self, changes: impl IntoIterator<Item = (String, Arc<Names>)>) {
        let mut table = self.shared.table.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (owner, names) in changes {
            table.set(&owner, names);
        }
    }

    /// Replaces the whole table.
    pub fn replace(&self, table: Table) {
        *self.shared.table.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = table;
    }
}

impl Shared {
    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The immediate answer to a datagram, if possible.
    fn reply(&self, bytes: &[u8], client: IpAddr) -> Step {
        let request = match answer::read(bytes) {
            Ok(request) => request,
            Err(refusal) => return Step::Done(refusal),
        };
        let reply = self.answer(&request, answer::limit(&request, Transport::Udp));
        self.step(request, reply, client, Transport::Udp)
    }

    /// The same for a question by TCP. An answer longer than a datagram waits for its turn, as it takes time.
    async fn reply_to_stream(&self, bytes: &[u8], client: IpAddr) -> Step {
        let request = match answer::read(bytes) {
            Ok(request) => request,
            Err(refusal) => return Step::Done(refusal),
        };
        let mut reply = self.answer(&request, MAX_DATAGRAM.into());
        if answer::is_cut(&reply) {
            let _turn = self.long.take(client).await;
            reply = self.answer(&request, answer::limit(&request, Transport::Tcp));
        }
        self.step(request, reply, client, Transport::Tcp)
    }

    /// A writer of the table waits for readers, and blocks later ones: so only this is done while holding the lock.
    fn answer(&self, request: &Message, limit: usize) -> Reply {
        let found = answer::look_up(&self.table(), request, limit);
        answer::reply(request, found, limit)
    }

    fn step(&self, request: Message, reply: Reply, client: IpAddr, transport: Transport) -> Step {
        let target = match reply {
            Reply::Send(bytes) => return Step::Done(Some(bytes)),
            Reply::Forward => None,
            Reply::ForwardAlias(target) => Some(target),
        };
        match self.forwarding.take(client) {
            Some(slot) => Step::Forward(Box::new(Waiting { request, target, client, transport, slot })),
            None => Step::Done(Some(failure(&request, transport))),
        }
    }

    /// The response to a question for upstream servers.
    async fn forward(&self, waiting: Waiting) -> Vec<u8> {
        let Waiting { request, target, client, transport, slot } = waiting;
        let limit = answer::limit(&request, transport);
        let asked = async {
            match &target {
                None => match self.upstream.ask(&request, transport).await {
                    Some(response) => answer::forwarded(&request, response, limit),
                    None => failure(&request, transport),
                },
                Some(target) => {
                    let upstream = self.ask_alias(&request, target, transport).await;
                    // Long answers take turns, as those from the table.
                    let _turn = match upstream.as_ref().is_some_and(|bytes| bytes.len() > MAX_DATAGRAM.into()) {
                        true => Some(self.long.take(client).await),
                        false => None,
                    };
                    let upstream = upstream.and_then(|bytes| answer::read_answers(&bytes));
                    answer::encode(&answer::aliased(&request, target, upstream.as_ref()), limit)
                }
            }
        };
        slot.keep(asked).await.unwrap_or_else(|| failure(&request, transport))
    }

    async fn ask_alias(&self, request: &Message, target: &str, transport: Transport) -> Option<Vec<u8>> {
        self.upstream.ask(&answer::alias_question(request, target)?, transport).await
    }
}

/// The state of a question.
enum Step {
    /// The answer, if any.
    Done(Option<Vec<u8>>),
    Forward(Box<Waiting>),
}

/// A question for upstream servers, and its client's place.
struct Waiting {
    request: Message,
    /// The target of the requested alias.
    target: Option<String>,
    client: IpAddr,
    transport: Transport,
    slot: Slot,
}

fn failure(request: &Message, transport: Transport) -> Vec<u8> {
    answer::encode(&answer::respond(request, ResponseCode::ServFail), answer::limit(request, transport))
}

/// Receives datagrams that were sent in one piece (UDP_SEGMENT) in one piece: one packet may be split into more than a hundred
/// datagrams of a few bytes, but the node's tables count packets. Otherwise the kernel would split it here, and one packet would
/// use the memory and time of a hundred.
fn whole_pieces(socket: &UdpSocket) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::UdpGroSegment, &true)?)
}

/// Makes the kernel report the link on which a question arrived.
fn with_links(socket: &UdpSocket, address: SocketAddr) -> io::Result<()> {
    match address {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?,
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?,
    }
    Ok(())
}

/// A received piece.
struct Came {
    length: usize,
    client: SocketAddr,
    /// The link's index.
    link: u32,
    /// The size of each datagram in it.
    size: usize,
}

async fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Came> {
    let mut read = || {
        let mut control = nix::cmsg_space!(libc::c_int, libc::in6_pktinfo);
        let mut parts = [IoSliceMut::new(buffer)];
        let message =
            recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())?;
        let client = message.address.as_ref().and_then(socket_address).ok_or(io::ErrorKind::InvalidData)?;
        let mut came = Came { length: message.bytes, client, link: 0, size: message.bytes.max(1) };
        for part in message.cmsgs()? {
            match part {
                ControlMessageOwned::UdpGroSegments(size) => came.size = usize::try_from(size).unwrap_or(0).max(1),
                ControlMessageOwned::Ipv4PacketInfo(info) => came.link = info.ipi_ifindex.unsigned_abs(),
                ControlMessageOwned::Ipv6PacketInfo(info) => came.link = info.ipi6_ifindex,
                _ => {}
            }
        }
        Ok(came)
    };
    socket.async_io(Interest::READABLE, &mut read).await
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddrV4::from(*v4).into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into()))
}

/// Answers from the table are sent at once; forwarded questions wait in their own tasks. A client without buffer space delays no
/// one.
async fn datagrams(socket: Arc<UdpSocket>, mut senders: Senders, shared: Arc<Shared>) {
    let mut buffer = vec![0; MAX_PIECE];
    let mut forwarded = JoinSet::new();
    loop {
        while forwarded.try_join_next().is_some() {}
        let Ok(Came { length, client, link, size }) = receive(&socket, &mut buffer).await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        // Probably out of descriptors: the client will retry.
        let Ok(sender) = senders.of(link, client.ip()).await else { continue };
        for (number, question) in buffer[..length].chunks(size).enumerate() {
            if number > 0 && !shared.pace.may(client.ip(), Instant::now()) {
                break;
            }
            match shared.reply(question, client.ip()) {
                Step::Done(None) => {}
                Step::Done(Some(bytes)) => send(&sender, question, &bytes, client),
                Step::Forward(waiting) => {
                    let (sender, shared, question) = (sender.clone(), shared.clone(), question.to_vec());
                    forwarded.spawn(async move { send(&sender, &question, &shared.forward(*waiting).await, client) });
                }
            }
        }
    }
}

/// Sends an answer; if it is too long for the client's link, a truncated one that makes the client retry by TCP.
fn send(sender: &Sender, question: &[u8], answer: &[u8], client: SocketAddr) {
    if !sender.send(answer, client)
        && let Some(cut) = answer::cut(question)
    {
        sender.send(&cut, client);
    }
}

async fn streams(mut listener: TcpListener, netns: NodeNetns, address: SocketAddr, shared: Arc<Shared>) {
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, client)) => {
                let Some(slot) = shared.streams.take(client.ip()) else { continue };
                let conversation = conversation(stream, client.ip(), shared.clone());
                open.spawn(async move { drop(slot.keep(conversation).await) });
            }
            // The socket was shut down (`ss --kill`): it no longer listens, and will never accept again.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => match netns.tcp_listen(address).await {
                Ok(another) => listener = another,
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a stream for the cluster DNS");
                    tokio::time::sleep(AGAIN).await;
                }
            },
            // Probably out of descriptors: let others end first.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Questions on one stream, each with a length prefix, until the client is idle for too long or sends an oversized one, which is
/// not even read.
async fn conversation(mut stream: TcpStream, client: IpAddr, shared: Arc<Shared>) -> std::io::Result<()> {
    loop {
        let length = usize::from(timeout(IDLE, stream.read_u16()).await??);
        let mut question = vec![0; length.min(MAX_QUESTION + 1)];
        timeout(IDLE, stream.read_exact(&mut question)).await??;
        let wait = shared.pace.wait(client, Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let answer = match shared.reply_to_stream(&question, client).await {
            Step::Done(answer) => answer,
            Step::Forward(waiting) => Some(shared.forward(*waiting).await),
        };
        if let Some(bytes) = answer {
            let mut framed = (bytes.len() as u16).to_be_bytes().to_vec();
            framed.extend(bytes);
            timeout(IDLE, stream.write_all(&framed)).await??;
        }
        if length > MAX_QUESTION {
            return Ok(());
        }
    }
}
