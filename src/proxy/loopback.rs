//! Host ports on the node's loopback: accepted here, inside the node's network, and carried to the Pod. They are there while the
//! agent is.

mod udp;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use podwright_net::dataplane::Protocol;
use podwright_net::{Network, NodeNetns};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};

/// So many connections of one port at once; further ones wait to be accepted.
const MOST: usize = 512;
/// A Pod answers until then, or is not there.
const TIMEOUT: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);

/// What is carried: from where on the node's loopback, and to which Pod's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carriage {
    pub protocol: Protocol,
    pub at: SocketAddr,
    pub to: SocketAddr,
}

/// A port that is listened on; it ends when dropped, and with it what it carries.
pub struct Loopback {
    carries: Carriage,
    /// Dropped, it ends the task.
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Loopback {
    /// Listens, and carries what comes.
    pub async fn start(network: &Network, carries: Carriage) -> podwright_net::Result<Loopback> {
        let (netns, Carriage { protocol, at, to }) = (network.netns().clone(), carries);
        let (stop, stopped) = oneshot::channel();
        let task = match protocol {
            Protocol::Udp => tokio::spawn(udp::serve(netns.udp_bind(at).await?, netns, to, stopped)),
            Protocol::Tcp | Protocol::Sctp => tokio::spawn(serve(netns.tcp_listen(at).await?, netns, to, stopped)),
        };
        Ok(Loopback { carries, stop, task })
    }

    /// Ends it; returns when the port is free for another.
    pub async fn end(self) {
        drop(self.stop);
        // Where it has failed, its sockets are closed too.
        let _ = self.task.await;
    }

    pub fn carries(&self) -> Carriage {
        self.carries
    }
}

/// Until it is stopped.
async fn serve(listener: TcpListener, netns: NodeNetns, to: SocketAddr, stopped: oneshot::Receiver<()>) {
    tokio::select! {
        () = accept(listener, netns, to) => {}
        _ = stopped => {}
    }
}

async fn accept(listener: TcpListener, netns: NodeNetns, to: SocketAddr) {
    let room = Arc::new(Semaphore::new(MOST));
    // What is carried ends with this task.
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
    // Where this fails, answers come a little later.
    let _ = (caller.set_nodelay(true), pod.set_nodelay(true));
    copy_bidirectional(&mut caller, &mut pod).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever comes next wants the port at once: it is free when the end has been awaited, with all that was carried.
    #[tokio::test]
    async fn a_port_is_free_once_its_end_has_been_awaited() {
        let Ok(netns) = NodeNetns::of_process() else { return println!("left out: it needs root") };
        let to = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let accepts = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for _ in 0..20 {
            let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let carries =
                Carriage { protocol: Protocol::Udp, at: socket.local_addr().unwrap(), to: to.local_addr().unwrap() };
            let (stop, stopped) = oneshot::channel();
            let task = tokio::spawn(udp::serve(socket, netns.clone(), carries.to, stopped));
            let port = Loopback { carries, stop, task };
            // Somebody is carried, whose task has the socket as well.
            let caller = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            caller.send_to(b"x", carries.at).unwrap();
            let mut byte = [0];
            to.set_nonblocking(true).unwrap();
            while to.recv_from(&mut byte).is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            port.end().await;
            std::net::UdpSocket::bind(carries.at).expect("the port is free");

            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let carries = Carriage {
                protocol: Protocol::Tcp,
                at: listener.local_addr().unwrap(),
                to: accepts.local_addr().unwrap(),
            };
            let (stop, stopped) = oneshot::channel();
            let task = tokio::spawn(serve(listener, netns.clone(), carries.to, stopped));
            let port = Loopback { carries, stop, task };
            port.end().await;
            // Without SO_REUSEADDR, which would take less for free.
            assert!(std::net::TcpStream::connect(carries.at).is_err(), "nobody listens any more");
        }
    }
}
