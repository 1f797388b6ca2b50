//! The sockets: datagrams and streams on the cluster's DNS addresses, inside the node's namespace.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::answer::{self, Reply, Transport};
use super::forward::Upstream;
use super::places::{Place, Places};
use super::records::{Names, Table};
use super::turns::Turns;
use crate::{NodeNetns, Result};

/// How many questions of all clients together may wait for upstream servers; who has no place for one gets SERVFAIL at once.
const FORWARDING: usize = 512;
/// How many streams of all clients together may be open; one without a place is closed. A node has fewer Pods (110) than places.
const STREAMS: usize = 256;
/// After a listener could not be made again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a stream may be silent.
const IDLE: Duration = Duration::from_secs(10);

/// A running DNS server. It ends when dropped.
pub struct Server {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    table: RwLock<Table>,
    upstream: Upstream,
    forwarding: Arc<Places>,
    streams: Arc<Places>,
    /// Of answers that are longer than a datagram's: thousands of records take milliseconds.
    long: Turns,
}

impl Server {
    /// Serves `table` on port 53 of `addresses` (which the node has locally), other names by asking `upstream`. Must be
    /// called inside a tokio runtime.
    pub async fn start(netns: &NodeNetns, addresses: &[IpAddr], table: Table, upstream: Upstream) -> Result<Server> {
        let shared = Arc::new(Shared {
            table: RwLock::new(table),
            upstream,
            forwarding: Places::new(FORWARDING),
            streams: Places::new(STREAMS),
            long: Turns::default(),
        });
        let mut tasks = JoinSet::new();
        for address in addresses {
            let address = SocketAddr::new(*address, 53);
            let (udp, tcp) = (netns.udp_bind(address).await?, netns.tcp_listen(address).await?);
            tasks.spawn(datagrams(Arc::new(udp), shared.clone()));
            tasks.spawn(streams(tcp, netns.clone(), address, shared.clone()));
        }
        Ok(Server { shared, _tasks: tasks })
    }

    /// Replaces the names of some owners, in one step for whoever asks; no names withdraws an owner.
    pub fn set(&self, changes: impl IntoIterator<Item = (String, Names)>) {
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
        let reply = answer::reply(&self.table(), bytes, Transport::Udp);
        self.step(reply, client, Transport::Udp)
    }

    /// The same for a question that came by a stream.
    async fn reply_to_stream(&self, bytes: &[u8], client: IpAddr) -> Step {
        let short = answer::short_reply(&self.table(), bytes);
        let reply = match short {
            Some(reply) => reply,
            None => {
                let _turn = self.long.take(client).await;
                answer::reply(&self.table(), bytes, Transport::Tcp)
            }
        };
        self.step(reply, client, Transport::Tcp)
    }

    fn step(&self, reply: Reply, client: IpAddr, transport: Transport) -> Step {
        let (request, target) = match reply {
            Reply::Ignore => return Step::Done(None),
            Reply::Send(bytes) => return Step::Done(Some(bytes)),
            Reply::Forward(request) => (request, None),
            Reply::ForwardAlias(request, target) => (request, Some(target)),
        };
        match self.forwarding.take(client) {
            Some(place) => Step::Forward(Waiting { request, target, transport, place }),
            None => Step::Done(Some(failure(&request, transport))),
        }
    }

    /// The response to what has to be asked upstream.
    async fn forward(&self, waiting: Waiting) -> Option<Vec<u8>> {
        let Waiting { request, target, transport, place } = waiting;
        let asked = async {
            match &target {
                None => match self.upstream.ask(&request, transport).await {
                    // As it came: the upstream server has already kept to the client's size.
                    Some(response) => response.to_vec().ok(),
                    None => Some(failure(&request, transport)),
                },
                Some(target) => {
                    let upstream = self.ask_alias(&request, target, transport).await;
                    let response = answer::aliased(&request, target, upstream.as_ref());
                    Some(answer::encode(&response, answer::limit(&request, transport)))
                }
            }
        };
        place.keep(asked).await.unwrap_or_else(|| Some(failure(&request, transport)))
    }

    async fn ask_alias(&self, request: &Message, target: &str, transport: Transport) -> Option<Message> {
        self.upstream.ask(&answer::alias_question(request, target)?, transport).await
    }
}

/// How far a question has come.
enum Step {
    /// The answer, if there is to be one.
    Done(Option<Vec<u8>>),
    Forward(Waiting),
}

/// A question for upstream servers, and the place that its client has for it.
struct Waiting {
    request: Box<Message>,
    /// What the name that was asked for is an alias of.
    target: Option<String>,
    transport: Transport,
    place: Place,
}

fn failure(request: &Message, transport: Transport) -> Vec<u8> {
    answer::encode(&answer::respond(request, ResponseCode::ServFail), answer::limit(request, transport))
}

/// What is answered from the table is answered on the spot; what is forwarded waits in a task of its own.
async fn datagrams(socket: Arc<UdpSocket>, shared: Arc<Shared>) {
    let mut buffer = vec![0; 4096];
    let mut forwarded = JoinSet::new();
    loop {
        while forwarded.try_join_next().is_some() {}
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        match shared.reply(&buffer[..length], client.ip()) {
            Step::Done(None) => {}
            Step::Done(Some(bytes)) => drop(socket.send_to(&bytes, client).await),
            Step::Forward(waiting) => {
                let (socket, shared) = (socket.clone(), shared.clone());
                forwarded.spawn(async move {
                    if let Some(bytes) = shared.forward(waiting).await {
                        let _ = socket.send_to(&bytes, client).await;
                    }
                });
            }
        }
    }
}

async fn streams(mut listener: TcpListener, netns: NodeNetns, address: SocketAddr, shared: Arc<Shared>) {
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, client)) => {
                let Some(place) = shared.streams.take(client.ip()) else { continue };
                let conversation = conversation(stream, client.ip(), shared.clone());
                open.spawn(async move { drop(place.keep(conversation).await) });
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

/// Questions on one stream, each with its length before it, until the client is silent for too long.
async fn conversation(mut stream: TcpStream, client: IpAddr, shared: Arc<Shared>) -> std::io::Result<()> {
    loop {
        let length = timeout(IDLE, stream.read_u16()).await??;
        let mut question = vec![0; usize::from(length)];
        timeout(IDLE, stream.read_exact(&mut question)).await??;
        let answer = match shared.reply_to_stream(&question, client).await {
            Step::Done(answer) => answer,
            Step::Forward(waiting) => shared.forward(waiting).await,
        };
        if let Some(bytes) = answer {
            let mut framed = (bytes.len() as u16).to_be_bytes().to_vec();
            framed.extend(bytes);
            timeout(IDLE, stream.write_all(&framed)).await??;
        }
    }
}
