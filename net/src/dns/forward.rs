//! Names that are not the cluster's: asked of the machine's own name servers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use hickory_proto::op::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::answer::Transport;
use crate::NodeNetns;

/// How long one server may take, and how often all of them are tried.
const PATIENCE: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;

/// Of a `resolv.conf` so many bytes are read.
const MOST: usize = 64 << 10;

/// Gives the first bytes of a file, so many at most.
pub type Read = fn(&Path, usize) -> io::Result<Vec<u8>>;

/// The upstream servers: those of a `resolv.conf`, read again whenever it changes.
pub struct Upstream {
    /// Where the questions leave from: the process's own namespace, whatever the node's is.
    netns: NodeNetns,
    path: PathBuf,
    read: Read,
    /// Our own addresses: a question must not come round.
    exclude: Vec<IpAddr>,
    known: Mutex<(Option<SystemTime>, Vec<SocketAddr>)>,
}

impl Upstream {
    /// `read` waits for nobody: a container may have the file as a volume.
    pub fn new(netns: NodeNetns, resolv_conf: &Path, read: Read, exclude: Vec<IpAddr>) -> Upstream {
        Upstream { netns, path: resolv_conf.to_owned(), read, exclude, known: Mutex::new((None, Vec::new())) }
    }

    /// Asks the servers in turn; `None` when none of them answers. The response carries the request's id.
    pub async fn ask(&self, request: &Message, transport: Transport) -> Option<Message> {
        let servers = self.servers();
        for _ in 0..ROUNDS {
            for server in &servers {
                let asked = async {
                    match transport {
                        Transport::Udp => over_udp(&self.netns, *server, request).await,
                        Transport::Tcp => over_tcp(&self.netns, *server, request).await,
                    }
                };
                if let Ok(Ok(response)) = timeout(PATIENCE, asked).await {
                    return Some(response);
                }
            }
        }
        None
    }

    fn servers(&self) -> Vec<SocketAddr> {
        let changed = std::fs::metadata(&self.path).and_then(|m| m.modified()).ok();
        let mut known = self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if changed.is_none() || known.0 != changed {
            match (self.read)(&self.path, MOST) {
                Ok(bytes) => *known = (changed, nameservers(&String::from_utf8_lossy(&bytes), &self.exclude)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => *known = (changed, Vec::new()),
                // Somebody keeps it from being read: what it said last holds.
                Err(_) => {}
            }
        }
        known.1.clone()
    }
}

/// The name servers of a `resolv.conf`, in order.
fn nameservers(text: &str, exclude: &[IpAddr]) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|w| *w == "nameserver").and(words.next())?;
        address.parse::<IpAddr>().ok()
    };
    let servers = text.lines().filter_map(server).filter(|a| !exclude.contains(a));
    servers.map(|address| SocketAddr::new(address, 53)).collect()
}

async fn over_udp(netns: &NodeNetns, server: SocketAddr, request: &Message) -> io::Result<Message> {
    // A socket of its own per question: the kernel's random port guards against forged answers, with the random id.
    let socket = netns.udp_connect(server).await.map_err(io::Error::other)?;
    let sent = renumbered(request);
    socket.send(&encode(&sent)?).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(response) = accept(&sent, request, &buffer[..length]) {
            return Ok(response);
        }
    }
}

async fn over_tcp(netns: &NodeNetns, server: SocketAddr, request: &Message) -> io::Result<Message> {
    let mut stream = netns.tcp_connect(server).await.map_err(io::Error::other)?;
    let sent = renumbered(request);
    let bytes = encode(&sent)?;
    stream.write_all(&(bytes.len() as u16).to_be_bytes()).await?;
    stream.write_all(&bytes).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    accept(&sent, request, &answer).ok_or_else(|| io::Error::other("an answer to another question"))
}

/// The same question under an id that nobody can guess.
fn renumbered(request: &Message) -> Message {
    let mut sent = request.clone();
    sent.metadata.id = Message::query().metadata.id;
    sent
}

/// The response, if it answers what was sent, under the client's id.
fn accept(sent: &Message, request: &Message, bytes: &[u8]) -> Option<Message> {
    let mut response = Message::from_vec(bytes).ok()?;
    let same = response.metadata.id == sent.metadata.id
        && response.queries.first().map(|q| (q.name.to_lowercase(), q.query_type))
            == sent.queries.first().map(|q| (q.name.to_lowercase(), q.query_type));
    response.metadata.id = request.metadata.id;
    response.queries = request.queries.clone();
    same.then_some(response)
}

fn encode(message: &Message) -> io::Result<Vec<u8>> {
    message.to_vec().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_read_as_the_libc_does() {
        let text = "# comment\nsearch a b\nnameserver 192.0.2.53\nnameserver\t2001:db8::1\nnameserver 10.96.0.10\nnameserver x\n";
        let servers = nameservers(text, &["10.96.0.10".parse().unwrap()]);
        assert_eq!(servers, ["192.0.2.53:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]);
    }
}
