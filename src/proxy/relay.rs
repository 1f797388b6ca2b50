//! The relay: forwards Pods' calls of the API on a node without external network, an isolated one.
//!
//! Calls are accepted inside the node's network and forwarded, byte for byte, from the process's own; TLS stays end to end between
//! Pod and server. The proxy points the Service `kubernetes` here.
//!
//! No Pod can exclude others: each source has a share ([`room`]), and silent connections are closed.

mod room;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use podwright_net::Network;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use podwright_client::Client;
use room::Room;

/// Its port on each of the node's addresses, unless it is in use.
const PORT: u16 = 6443;
/// Timeout for the server's connection, and for the Pod's first bytes.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The idle timeout of a call: longer than live watches and sessions are silent.
const IDLE: Duration = Duration::from_secs(3600);
/// Bytes relayed at once, in either direction.
const CHUNK: usize = 8 << 10;
const AGAIN: Duration = Duration::from_millis(100);

/// A listener on one of the node's own addresses, inside its network, for calls of the API. Fails if no socket can be opened.
pub async fn api_listener(network: &Network, address: std::net::IpAddr) -> podwright_net::Result<TcpListener> {
    match network.netns().tcp_listen((address, PORT).into()).await {
        // A host network Pod may already use it.
        Err(_) => network.netns().tcp_listen((address, 0).into()).await,
        listener => listener,
    }
}

/// The server's address.
#[derive(Clone)]
pub enum ServerAddress {
    /// `HOST:PORT`
    At(String),
    /// As published in `kube-public/cluster-info` for joining nodes.
    Told(Client),
}

/// A running relay; dropping it ends it with its connections.
pub struct Relay {
    addresses: Vec<SocketAddr>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Relay {
    /// Listens on the node's addresses. Fails if it cannot.
    pub async fn start(network: &Network, server: &ServerAddress) -> podwright_net::Result<Relay> {
        let mut relay = Relay { addresses: Vec::new(), tasks: Vec::new() };
        let room = Arc::new(Room::default());
        for address in network.addresses() {
            let listener = api_listener(network, *address).await?;
            let bound = listener.local_addr();
            relay.addresses.push(bound.map_err(|e| podwright_net::Error::call("getsockname", e))?);
            relay.tasks.push(tokio::spawn(serve(listener, server.clone(), room.clone())).abort_handle());
        }
        Ok(relay)
    }

    /// The addresses it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

async fn serve(listener: TcpListener, server: ServerAddress, room: Arc<Room>) {
    // Connections end with this task.
    let mut carried = tokio::task::JoinSet::new();
    loop {
        let accepted = loop {
            tokio::select! {
                accepted = listener.accept() => break accepted,
                Some(_) = carried.join_next() => {}
            }
        };
        let Ok((pod, source)) = accepted else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let server = server.clone();
        let admitted = room.admit(source.ip(), |place| {
            carried.spawn(async move {
                if let Err(why) = carry(pod, &server).await {
                    tracing::debug!("a Pod's call of the API: {why}");
                }
                drop(place);
            })
        });
        if !admitted {
            tracing::debug!("{source} has its share of calls of the API");
        }
    }
}

async fn carry(mut pod: TcpStream, server: &ServerAddress) -> io::Result<()> {
    // Before it costs the server anything. Readiness may be spurious.
    within(pod.peek(&mut [0])).await?;
    let mut server = within(async { TcpStream::connect(address(server).await?).await }).await?;
    // Failure only delays answers slightly.
    let _ = (pod.set_nodelay(true), server.set_nodelay(true));
    let ((from_pod, to_pod), (from_server, to_server)) = (pod.split(), server.split());
    let heard = Heard::now();
    tokio::select! {
        carried = async { tokio::try_join!(pump(from_pod, to_server, &heard), pump(from_server, to_pod, &heard)) } => {
            carried.map(drop)
        }
        () = heard.nothing_for(IDLE) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(TIMEOUT, work).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Copies bytes one way until the end, which is passed on.
async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, heard: &Heard) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = from.read(&mut chunk).await?;
        heard.again();
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..length]).await?;
    }
}

/// The time of the last activity.
struct Heard {
    begin: Instant,
    /// Milliseconds after `begin`.
    last: AtomicU64,
}

impl Heard {
    fn now() -> Heard {
        Heard { begin: Instant::now(), last: AtomicU64::new(0) }
    }

    fn again(&self) {
        self.last.store(u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns after being idle for this long.
    async fn nothing_for(&self, idle: Duration) {
        loop {
            let until = self.begin + Duration::from_millis(self.last.load(Ordering::Relaxed)) + idle;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// `HOST:PORT` of the server.
async fn address(server: &ServerAddress) -> io::Result<String> {
    let client = match server {
        ServerAddress::At(address) => return Ok(address.clone()),
        ServerAddress::Told(client) => client,
    };
    let found = client.get::<ConfigMap>(Some("kube-public"), "cluster-info").await;
    let info = found.map_err(|status| io::Error::other(status.to_string()))?;
    let text = info.data.as_ref().and_then(|data| data.get("kubeconfig")).map_or("", String::as_str);
    let url = text.lines().find_map(|line| line.trim().strip_prefix("server: https://"));
    url.map(str::to_owned).ok_or_else(|| io::Error::other("cluster-info names no server"))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// A relay on loopback, with an echo server behind it.
    async fn started() -> SocketAddr {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = ServerAddress::At(server.local_addr().unwrap().to_string());
        tokio::spawn(async move {
            while let Ok((mut caller, _)) = server.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = caller.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, at, Arc::default()));
        address
    }

    async fn call(to: SocketAddr, source: [u8; 4]) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// Whether bytes pass both ways.
    async fn speaks(call: &mut TcpStream) -> bool {
        let mut answer = [0; 2];
        let asked = async {
            call.write_all(b"hi").await?;
            call.read_exact(&mut answer).await
        };
        let asked = tokio::time::timeout(Duration::from_secs(5), asked).await;
        matches!(asked, Ok(Ok(_))) && answer == *b"hi"
    }

    #[tokio::test]
    async fn one_pod_keeps_no_other_out() {
        let relay = started().await;
        let mut greedy = Vec::new();
        for _ in 0..room::SHARE {
            let mut call = call(relay, [127, 0, 0, 2]).await;
            assert!(speaks(&mut call).await);
            greedy.push(call);
        }
        let mut beyond = call(relay, [127, 0, 0, 2]).await;
        assert!(!speaks(&mut beyond).await, "more than its share");
        assert!(speaks(&mut call(relay, [127, 0, 0, 3]).await).await, "another Pod");
        assert!(speaks(&mut greedy[0]).await);
        // Ended ones make room.
        greedy.pop();
        let mut next = call(relay, [127, 0, 0, 2]).await;
        while !speaks(&mut next).await {
            next = call(relay, [127, 0, 0, 2]).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_not_kept() {
        let mut silent = call(started().await, [127, 0, 0, 2]).await;
        let begin = Instant::now();
        assert_eq!(silent.read(&mut [0; 1]).await.unwrap_or(0), 0);
        assert!(begin.elapsed() >= TIMEOUT && begin.elapsed() < 2 * TIMEOUT, "{:?}", begin.elapsed());

        let heard = Heard::now();
        let begin = Instant::now();
        let (speaking, silence) = (Duration::from_secs(50), Duration::from_secs(60));
        tokio::join!(heard.nothing_for(silence), async {
            for _ in 0..3 {
                tokio::time::sleep(speaking).await;
                heard.again();
            }
        });
        assert_eq!(begin.elapsed(), 3 * speaking + silence);

        // Nor is one that sends nothing more. Until then real time is used.
        tokio::time::resume();
        let mut quiet = call(started().await, [127, 0, 0, 2]).await;
        assert!(speaks(&mut quiet).await);
        tokio::time::pause();
        let begin = Instant::now();
        let ended = tokio::time::timeout(3 * IDLE, quiet.read(&mut [0; 1])).await;
        assert_eq!(ended.expect("it is kept for ever").unwrap_or(0), 0);
        assert!(begin.elapsed() >= IDLE - TIMEOUT && begin.elapsed() < 2 * IDLE, "{:?}", begin.elapsed());
    }
}
