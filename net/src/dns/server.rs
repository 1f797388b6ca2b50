//! The sockets: datagrams and streams on the cluster's DNS addresses, inside the node's namespace.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::answer::{self, Reply, Transport};
use super::forward::Upstream;
use super::records::{Names, Table};
use crate::{NodeNetns, Result};

/// How many questions may wait for upstream servers; more get SERVFAIL at once.
const FORWARDING: usize = 512;
/// How many streams may be open, and how long one may be silent.
const STREAMS: usize = 256;
const IDLE: Duration = Duration::from_secs(10);

/// A running DNS server. It ends when dropped.
pub struct Server {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    table: RwLock<Table>,
    upstream: Upstream,
    forwarding: Semaphore,
    streams: Arc<Semaphore>,
}

impl Server {
    /// Serves `table` on port 53 of `addresses` (which the node has locally), other names by asking `upstream`. Must be
    /// called inside a tokio runtime.
    pub async fn start(netns: &NodeNetns, addresses: &[IpAddr], table: Table, upstream: Upstream) -> Result<Server> {
        let shared = Arc::new(Shared {
            table: RwLock::new(table),
            upstream,
            forwarding: Semaphore::new(FORWARDING),
            streams: Arc::new(Semaphore::new(STREAMS)),
        });
        let mut tasks = JoinSet::new();
        for address in addresses {
            let address = SocketAddr::new(*address, 53);
            let (udp, tcp) = (netns.udp_bind(address).await?, netns.tcp_listen(address).await?);
            tasks.spawn(datagrams(Arc::new(udp), shared.clone()));
            tasks.spawn(streams(tcp, shared.clone()));
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

    /// The response to what has to be asked upstream.
    async fn forward(&self, reply: Reply, transport: Transport) -> Option<Vec<u8>> {
        let (request, target) = match reply {
            Reply::Ignore => return None,
            Reply::Send(bytes) => return Some(bytes),
            Reply::Forward(request) => (request, None),
            Reply::ForwardAlias(request, target) => (request, Some(target)),
        };
        let limit = answer::limit(&request, transport);
        let Ok(_permit) = self.forwarding.try_acquire() else {
            return Some(answer::encode(&answer::respond(&request, ResponseCode::ServFail), limit));
        };
        let response = match &target {
            None => match self.upstream.ask(&request, transport).await {
                // As it came: the upstream server has already kept to the client's size.
                Some(response) => return response.to_vec().ok(),
                None => answer::respond(&request, ResponseCode::ServFail),
            },
            Some(target) => {
                let upstream = self.ask_alias(&request, target, transport).await;
                answer::aliased(&request, target, upstream.as_ref())
            }
        };
        Some(answer::encode(&response, limit))
    }

    async fn ask_alias(&self, request: &Message, target: &str, transport: Transport) -> Option<Message> {
        self.upstream.ask(&answer::alias_question(request, target)?, transport).await
    }
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
        let reply = answer::reply(&shared.table(), &buffer[..length], Transport::Udp);
        match reply {
            Reply::Ignore => {}
            Reply::Send(bytes) => drop(socket.send_to(&bytes, client).await),
            forward => {
                let (socket, shared) = (socket.clone(), shared.clone());
                forwarded.spawn(async move {
                    if let Some(bytes) = shared.forward(forward, Transport::Udp).await {
                        let _ = socket.send_to(&bytes, client).await;
                    }
                });
            }
        }
    }
}

async fn streams(listener: TcpListener, shared: Arc<Shared>) {
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        let Ok(permit) = shared.streams.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = shared.clone();
                open.spawn(async move {
                    let _ = conversation(stream, shared).await;
                    drop(permit);
                });
            }
            // Out of descriptors, most likely: let others end first.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Questions on one stream, each with its length before it, until the client is silent for too long.
async fn conversation(mut stream: TcpStream, shared: Arc<Shared>) -> std::io::Result<()> {
    loop {
        let length = timeout(IDLE, stream.read_u16()).await??;
        let mut question = vec![0; usize::from(length)];
        timeout(IDLE, stream.read_exact(&mut question)).await??;
        let reply = answer::reply(&shared.table(), &question, Transport::Tcp);
        if let Some(bytes) = shared.forward(reply, Transport::Tcp).await {
            let mut framed = (bytes.len() as u16).to_be_bytes().to_vec();
            framed.extend(bytes);
            timeout(IDLE, stream.write_all(&framed)).await??;
        }
    }
}
