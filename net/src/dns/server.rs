//! The sockets: datagrams and streams on the cluster's DNS addresses, inside the node's namespace.

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

/// How many questions of all clients together may wait for upstream servers; who has no place for one gets SERVFAIL at once.
const FORWARDING: usize = 512;
/// How many streams of all clients together may be open; one without a place is closed. A node has fewer Pods (110) than places.
const STREAMS: usize = 256;
/// How many questions a second each client may ask by streams; by datagrams as many (`dataplane::base::QUESTIONS`).
const QUESTIONS: u32 = 4096;
/// After a listener could not be made again.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest piece that datagrams come in. Each of them is judged by its own length.
const MAX_PIECE: usize = u16::MAX as usize;
/// How long a stream may be silent.
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
    /// Of questions by streams, and of those behind the first one of what came in one piece; the node's tables hold the pieces to
    /// theirs.
    pace: Pace,
    /// Of answers that are longer than a datagram's: thousands of records take milliseconds.
    long: FairLock,
}

impl DnsServer {
    /// Serves `table` on port 53 of `addresses` (which the node has locally), other names by asking `upstream`. Must be
    /// called inside a tokio runtime.
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

    /// Replaces the names of some owners, in one step for whoever asks; no names withdraws an owner.
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

    /// What is known of the answer to a datagram at once.
    fn reply(&self, bytes: &[u8], client: IpAddr) -> Step {
        let request = match answer::read(bytes) {
            Ok(request) => request,
            Err(refusal) => return Step::Done(refusal),
        };
        let reply = self.answer(&request, answer::limit(&request, Transport::Udp));
        self.step(request, reply, client, Transport::Udp)
    }

    /// The same for a question that came by a stream. An answer that is longer than a datagram's takes its turn, as it takes its
    /// time.
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

    /// Who wants to write the table waits for a look into it, and keeps all others waiting: nothing else is done meanwhile.
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

    /// The response to what has to be asked upstream.
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
                    // As long answers from the table.
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

/// How far a question has come.
enum Step {
    /// The answer, if there is to be one.
    Done(Option<Vec<u8>>),
    Forward(Box<Waiting>),
}

/// A question for upstream servers, and the place that its client has for it.
struct Waiting {
    request: Message,
    /// What the name that was asked for is an alias of.
    target: Option<String>,
    client: IpAddr,
    transport: Transport,
    slot: Slot,
}

fn failure(request: &Message, transport: Transport) -> Vec<u8> {
    answer::encode(&answer::respond(request, ResponseCode::ServFail), answer::limit(request, transport))
}

/// Has the kernel hand over in one piece what came in one piece. Whoever sends may have a packet be cut into many datagrams
/// (UDP_SEGMENT), more than a hundred of a few bytes each; it is the packets that the node's tables count. Else the kernel cuts it
/// here, and one packet takes the room and the time of a hundred.
fn whole_pieces(socket: &UdpSocket) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::UdpGroSegment, &true)?)
}

/// Has the kernel say by which link a question has come.
fn with_links(socket: &UdpSocket, address: SocketAddr) -> io::Result<()> {
    match address {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?,
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?,
    }
    Ok(())
}

/// What came.
struct Came {
    length: usize,
    client: SocketAddr,
    /// The link's index.
    link: u32,
    /// How long each datagram in it is.
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

/// What is answered from the table is answered on the spot; what is forwarded waits in a task of its own. Nobody waits for who has no
/// room for an answer.
async fn datagrams(socket: Arc<UdpSocket>, mut senders: Senders, shared: Arc<Shared>) {
    let mut buffer = vec![0; MAX_PIECE];
    let mut forwarded = JoinSet::new();
    loop {
        while forwarded.try_join_next().is_some() {}
        let Ok(Came { length, client, link, size }) = receive(&socket, &mut buffer).await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        // Out of descriptors, most likely: the client asks again.
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

/// Sends an answer; where it is too long for the client's link, one that has the client ask by a stream.
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
            // Somebody has ended it (`ss --kill`): no longer a listener, it never accepts again.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => match netns.tcp_listen(address).await {
                Ok(another) => listener = another,
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a stream for the cluster DNS");
                    tokio::time::sleep(AGAIN).await;
                }
            },
            // Out of descriptors, most likely: let others end first.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Questions on one stream, each with its length before it, until the client is silent for too long or sends what is too long for
/// a question: the rest of that is not even taken.
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
