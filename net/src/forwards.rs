//! Forwards ports of the node's loopback to Pods: accepted here, inside the node's network, and relayed. They exist while the agent
//! runs.
//!
//! The kernel's tables cannot do this: it treats a packet with a loopback source on any other link as forged.

mod udp;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::dataplane::Protocol;
use crate::{Error, NodeNetns, Result};

/// Maximum connections per port; further ones wait to be accepted.
const MOST: usize = 512;
/// Timeout for connecting to a Pod.
const TIMEOUT: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);
/// Retry interval for ports that could not be listened on: at least the duration, or this multiple of the last attempt's.
const REST: (Duration, u32) = (Duration::from_secs(1), 20);
/// Maximum retries at a time: users who write Pods choose the number of ports.
const TRIED: usize = 256;

/// A forward: from a port of the node's loopback to a Pod's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    pub protocol: Protocol,
    pub at: SocketAddr,
    pub to: SocketAddr,
}

/// A forward that could not listen.
#[derive(Debug)]
pub struct Refused {
    pub owner: String,
    pub forward: Forward,
    pub error: Error,
}

/// The driver of forwards: listens exactly on what owners request. All end when it is dropped.
pub struct Forwards {
    netns: NodeNetns,
    /// By owner.
    running: BTreeMap<String, Vec<Running>>,
    /// Those that could not listen, in retry order.
    refused: VecDeque<(String, Forward)>,
    /// The time of the next retry.
    again: Instant,
}

impl Forwards {
    pub fn new(netns: &NodeNetns) -> Forwards {
        let (running, refused) = (BTreeMap::new(), VecDeque::new());
        Forwards { netns: netns.clone(), running, refused, again: Instant::now() }
    }

    /// Makes each of these owners have exactly these forwards; returns those that could not listen. They are retried when
    /// [due](Forwards::due).
    pub async fn apply(&mut self, wanted: &BTreeMap<String, Vec<Forward>>) -> Vec<Refused> {
        self.refused.retain(|(owner, _)| !wanted.contains_key(owner));
        // Old ones are ended first, completely: a new one may need the port.
        for (owner, wanted) in wanted {
            let known = self.running.remove(owner).unwrap_or_default();
            let (kept, gone): (Vec<_>, Vec<_>) = known.into_iter().partition(|port| wanted.contains(&port.forward));
            for port in gone {
                port.end().await;
                // It may be what a refused one waits for.
                self.again = Instant::now();
            }
            if !kept.is_empty() {
                self.running.insert(owner.clone(), kept);
            }
        }
        let mut refused = Vec::new();
        for (owner, wanted) in wanted {
            for forward in wanted {
                if self.is_running(owner, forward) {
                    continue;
                }
                if let Err(error) = self.start(owner.clone(), *forward).await {
                    refused.push(Refused { owner: owner.clone(), forward: *forward, error });
                }
            }
        }
        refused
    }

    /// Waits until a retry is due; forever without refused ones.
    pub async fn due(&self) {
        match self.refused.is_empty() {
            true => std::future::pending().await,
            false => tokio::time::sleep_until(self.again).await,
        }
    }

    /// Retries refused ones. Those refused again queue at the end.
    pub async fn try_again(&mut self) {
        let begun = Instant::now();
        for _ in 0..self.refused.len().min(TRIED) {
            let Some((owner, forward)) = self.refused.pop_front() else { break };
            if self.start(owner, forward).await.is_ok() {
                tracing::info!(at = %forward.at, to = %forward.to, "listening on a port that was refused before");
            }
        }
        self.again = Instant::now() + REST.0.max(begun.elapsed() * REST.1);
    }

    /// Starts one; on failure it is queued for retries.
    async fn start(&mut self, owner: String, forward: Forward) -> Result<()> {
        match Running::start(&self.netns, forward).await {
            Ok(port) => {
                self.running.entry(owner).or_default().push(port);
                Ok(())
            }
            Err(error) => {
                self.refused.push_back((owner, forward));
                Err(error)
            }
        }
    }

    fn is_running(&self, owner: &str, forward: &Forward) -> bool {
        self.running.get(owner).is_some_and(|running| running.iter().any(|port| port.forward == *forward))
    }
}

/// A listening port; dropping it ends it with its connections.
struct Running {
    forward: Forward,
    /// Dropping it ends the task.
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    /// Listens and relays.
    async fn start(netns: &NodeNetns, forward: Forward) -> Result<Running> {
        let (netns, Forward { protocol, at, to }) = (netns.clone(), forward);
        let (stop, stopped) = oneshot::channel();
        let task = match protocol {
            Protocol::Udp => tokio::spawn(udp::serve(netns.udp_bind(at).await?, netns, to, stopped)),
            Protocol::Tcp | Protocol::Sctp => tokio::spawn(serve(netns.tcp_listen(at).await?, netns, to, stopped)),
        };
        Ok(Running { forward, stop, task })
    }

    /// Ends it; returns when the port is free.
    async fn end(self) {
        drop(self.stop);
        // If it failed, its sockets are closed too.
        let _ = self.task.await;
    }
}

/// Runs until stopped.
async fn serve(listener: TcpListener, netns: NodeNetns, to: SocketAddr, stopped: oneshot::Receiver<()>) {
    tokio::select! {
        () = accept(listener, netns, to) => {}
        _ = stopped => {}
    }
}

async fn accept(listener: TcpListener, netns: NodeNetns, to: SocketAddr) {
    let room = Arc::new(Semaphore::new(MOST));
    // Connections end with this task.
    let mut carried = JoinSet::new();
    loop {
        // It is never closed.
        let Ok(place) = room.clone().acquire_owned().await else { return };
        let accepted = loop {
            tokio::select! {
                accepted = listener.accept() => break accepted,
                Some(_) = carried.join_next() => {}
            }
        };
        let Ok((caller, _)) = accepted else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let netns = netns.clone();
        carried.spawn(async move {
            if let Err(why) = carry(caller, &netns, to).await {
                tracing::debug!(%to, "a connection to a host port on loopback: {why}");
            }
            drop(place);
        });
    }
}

async fn carry(mut caller: TcpStream, netns: &NodeNetns, to: SocketAddr) -> io::Result<()> {
    let dialled = tokio::time::timeout(TIMEOUT, netns.tcp_connect(to)).await;
    let mut pod = dialled.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map_err(io::Error::other)?;
    // Failure only delays answers slightly.
    let _ = (caller.set_nodelay(true), pod.set_nodelay(true));
    copy_bidirectional(&mut caller, &mut pod).await.map(drop)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_port_is_of_one_owner_until_that_one_wants_it_no_more() {
        let Ok(netns) = NodeNetns::of_process() else { return println!("left out: it needs root") };
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = free.local_addr().unwrap();
        drop(free);
        let forward = Forward { protocol: Protocol::Udp, at, to: "127.0.0.1:9".parse().unwrap() };
        let mut forwards = Forwards::new(&netns);
        let wanted = |all: &[(&str, bool)]| {
            let one = |(owner, wants): &(&str, bool)| ((*owner).to_owned(), vec![forward; usize::from(*wants)]);
            all.iter().map(one).collect::<BTreeMap<_, _>>()
        };
        let refused = forwards.apply(&wanted(&[("a", true), ("b", true)])).await;
        assert_eq!(refused.iter().map(|one| (one.owner.as_str(), one.forward)).collect::<Vec<_>>(), [("b", forward)]);
        assert_eq!(refused[0].error.errno(), Some(libc::EADDRINUSE));
        // In one call, whatever the order.
        assert!(forwards.apply(&wanted(&[("a", true)])).await.is_empty(), "it has it");
        assert!(forwards.apply(&wanted(&[("a", false), ("b", true)])).await.is_empty());
        assert!(forwards.apply(&wanted(&[("a", true), ("b", false)])).await.is_empty());
    }

    /// The port's owner may release it at any time, without notification.
    #[tokio::test]
    async fn what_was_refused_is_tried_again() {
        let Ok(netns) = NodeNetns::of_process() else { return println!("left out: it needs root") };
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = other.local_addr().unwrap();
        let forward = |to: &str| Forward { protocol: Protocol::Udp, at, to: to.parse().unwrap() };
        let (first, second) = (forward("127.0.0.1:9"), forward("127.0.0.1:10"));
        let wanted = |owner: &str, all: &[Forward]| BTreeMap::from([(owner.to_owned(), all.to_vec())]);
        let mut forwards = Forwards::new(&netns);
        let is_due = async |forwards: &Forwards| tokio::time::timeout(REST.0 * 3, forwards.due()).await.is_ok();
        assert!(forwards.due().now_or_never().is_none(), "nothing was refused");
        assert_eq!(forwards.apply(&wanted("a", &[first])).await.len(), 1);
        assert_eq!(forwards.apply(&wanted("b", &[second])).await.len(), 1);
        // While it is in use, from time to time.
        for _ in 0..2 {
            assert!(is_due(&forwards).await);
            forwards.try_again().await;
            assert!(!forwards.is_running("a", &first) && !forwards.is_running("b", &second));
            assert!(forwards.again > Instant::now(), "not at once");
        }
        drop(other);
        assert!(is_due(&forwards).await);
        forwards.try_again().await;
        assert!(forwards.is_running("a", &first) && !forwards.is_running("b", &second), "in their order");
        // When one of ours is removed, at once.
        forwards.apply(&wanted("a", &[])).await;
        assert!(forwards.again <= Instant::now());
        forwards.try_again().await;
        assert!(forwards.is_running("b", &second));
        assert!(forwards.refused.is_empty(), "all have theirs");
    }

    /// A forward no longer requested is not retried.
    #[tokio::test]
    async fn what_is_wanted_no_more_is_not_tried_again() {
        let Ok(netns) = NodeNetns::of_process() else { return println!("left out: it needs root") };
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = other.local_addr().unwrap();
        let forward = Forward { protocol: Protocol::Udp, at, to: "127.0.0.1:9".parse().unwrap() };
        let mut forwards = Forwards::new(&netns);
        forwards.apply(&BTreeMap::from([("a".to_owned(), vec![forward])])).await;
        forwards.apply(&BTreeMap::from([("a".to_owned(), Vec::new())])).await;
        drop(other);
        forwards.try_again().await;
        assert!(!forwards.is_running("a", &forward));
    }

    /// The next owner needs the port at once: it is free, with all its connections, when the end has been awaited.
    #[tokio::test]
    async fn a_port_is_free_once_its_end_has_been_awaited() {
        let Ok(netns) = NodeNetns::of_process() else { return println!("left out: it needs root") };
        let to = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let accepts = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for _ in 0..20 {
            let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let forward =
                Forward { protocol: Protocol::Udp, at: socket.local_addr().unwrap(), to: to.local_addr().unwrap() };
            let (stop, stopped) = oneshot::channel();
            let task = tokio::spawn(udp::serve(socket, netns.clone(), forward.to, stopped));
            let port = Running { forward, stop, task };
            // A relayed caller, whose task also holds the socket.
            let caller = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            caller.send_to(b"x", forward.at).unwrap();
            let mut byte = [0];
            to.set_nonblocking(true).unwrap();
            while to.recv_from(&mut byte).is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            port.end().await;
            std::net::UdpSocket::bind(forward.at).expect("the port is free");

            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let forward = Forward {
                protocol: Protocol::Tcp,
                at: listener.local_addr().unwrap(),
                to: accepts.local_addr().unwrap(),
            };
            let (stop, stopped) = oneshot::channel();
            let task = tokio::spawn(serve(listener, netns.clone(), forward.to, stopped));
            let port = Running { forward, stop, task };
            port.end().await;
            // Without SO_REUSEADDR, which is less strict.
            assert!(std::net::TcpStream::connect(forward.at).is_err(), "nobody listens any more");
        }
    }
}
