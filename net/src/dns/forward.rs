//! Forwards names outside the cluster to the machine's own name servers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use hickory_proto::op::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::answer::Transport;
use super::header;
use crate::NodeNetns;

/// Timeout per server, and number of rounds over all of them.
const TIMEOUT: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;

/// Maximum bytes read of a `resolv.conf`.
const MOST: usize = 64 << 10;
/// Maximum number of its servers used, as in libc: bounds a question's waiting time.
const SERVERS: usize = 3;

/// Reads at most this many first bytes of a file.
pub type Read = fn(&Path, usize) -> io::Result<Vec<u8>>;

/// The upstream servers: those of a `resolv.conf`, reread when it changes.
pub struct Upstream {
    /// The namespace from which questions are sent: the process's own, not the node's.
    netns: NodeNetns,
    path: PathBuf,
    read: Read,
    /// Our own addresses, to avoid loops.
    exclude: Vec<IpAddr>,
    known: Mutex<(Option<SystemTime>, Vec<SocketAddr>)>,
}

impl Upstream {
    /// `read` must not block: a container may have the file as a volume.
    pub fn new(netns: NodeNetns, resolv_conf: &Path, read: Read, exclude: Vec<IpAddr>) -> Upstream {
        Upstream { netns, path: resolv_conf.to_owned(), read, exclude, known: Mutex::new((None, Vec::new())) }
    }

    /// Asks the servers in order; `None` if none answers. The response is unchanged, with the request's id.
    pub async fn ask(&self, request: &Message, transport: Transport) -> Option<Vec<u8>> {
        let servers = self.servers();
        for _ in 0..ROUNDS {
            for server in &servers {
                let asked = async {
                    match transport {
                        Transport::Udp => over_udp(&self.netns, *server, request).await,
                        Transport::Tcp => over_tcp(&self.netns, *server, request).await,
                    }
                };
                if let Ok(Ok(response)) = timeout(TIMEOUT, asked).await {
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
                // It is temporarily unreadable: keeps the previous servers.
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
    servers.take(SERVERS).map(|address| SocketAddr::new(address, 53)).collect()
}

async fn over_udp(netns: &NodeNetns, server: SocketAddr, request: &Message) -> io::Result<Vec<u8>> {
    // A new socket per question: the kernel's random port, together with the random id, protects against forged answers.
    let socket = netns.udp_connect(server).await.map_err(io::Error::other)?;
    let sent = renumbered(request)?;
    socket.send(&sent).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(response) = header::accept(&sent, request.metadata.id, buffer[..length].to_vec()) {
            return Ok(response);
        }
    }
}

async fn over_tcp(netns: &NodeNetns, server: SocketAddr, request: &Message) -> io::Result<Vec<u8>> {
    let mut stream = netns.tcp_connect(server).await.map_err(io::Error::other)?;
    let sent = renumbered(request)?;
    stream.write_all(&(sent.len() as u16).to_be_bytes()).await?;
    stream.write_all(&sent).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    header::accept(&sent, request.metadata.id, answer).ok_or_else(|| io::Error::other("an answer to another question"))
}

/// The same question with an unpredictable id.
fn renumbered(request: &Message) -> io::Result<Vec<u8>> {
    let mut sent = request.clone();
    sent.metadata.id = Message::query().metadata.id;
    sent.to_vec().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_read_as_the_libc_does() {
        let text = "# comment\nsearch a b\nnameserver 192.0.2.53\nnameserver\t2001:db8::1\nnameserver 10.96.0.10\nnameserver x\n";
        let servers = nameservers(text, &["10.96.0.10".parse().unwrap()]);
        assert_eq!(servers, ["192.0.2.53:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]);
        let many: String = (1..=100).map(|n| format!("nameserver 192.0.2.{n}\n")).collect();
        assert_eq!(nameservers(&many, &["192.0.2.1".parse().unwrap()]), [2, 3, 4].map(|n| ([192, 0, 2, n], 53).into()));
    }
}
