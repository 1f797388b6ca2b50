//! The relay: calls of the API by the Pods of a node whose network leads nowhere else, an isolated one's.
//!
//! They are accepted inside the node's network and handed on, byte for byte, from the process's own; TLS stays between the
//! Pod and the server. The proxy leads the Service `kubernetes` here.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use podwright_net::Network;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::client::Client;

/// Where it listens on each of the node's addresses, unless something else does already.
const PORT: u16 = 6443;
/// So many calls at once; who comes then waits.
const MOST: usize = 1024;
/// The server answers until then, or is not there.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);

/// A listener on one of the node's own addresses, inside its network, for calls of the API.
pub async fn api_listener(network: &Network, address: std::net::IpAddr) -> podwright_net::Result<TcpListener> {
    match network.netns().tcp_listen((address, PORT).into()).await {
        // A Pod on the node's network may have come first.
        Err(_) => network.netns().tcp_listen((address, 0).into()).await,
        listener => listener,
    }
}

/// Where the server is.
#[derive(Clone)]
pub enum Server {
    /// `HOST:PORT`
    At(String),
    /// Where it tells who wants to join, by `kube-public/cluster-info`.
    Told(Client),
}

/// A running relay; it ends when dropped, and with it what it carries.
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
    /// Listens on the node's addresses.
    pub async fn start(network: &Network, server: &Server) -> podwright_net::Result<Relay> {
        let mut relay = Relay { addresses: Vec::new(), tasks: Vec::new() };
        let room = Arc::new(Semaphore::new(MOST));
        for address in network.addresses() {
            let listener = api_listener(network, *address).await?;
            let bound = listener.local_addr();
            relay.addresses.push(bound.map_err(|e| podwright_net::Error::call("getsockname", e))?);
            relay.tasks.push(tokio::spawn(serve(listener, server.clone(), room.clone())).abort_handle());
        }
        Ok(relay)
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

async fn serve(listener: TcpListener, server: Server, room: Arc<Semaphore>) {
    // What is carried ends with this task.
    let mut carried = tokio::task::JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(place) = room.clone().acquire_owned().await else { return };
        let accepted = loop {
            tokio::select! {
                accepted = listener.accept() => break accepted,
                Some(_) = carried.join_next() => {}
            }
        };
        let Ok((pod, _)) = accepted else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let server = server.clone();
        carried.spawn(async move {
            if let Err(why) = carry(pod, &server).await {
                tracing::debug!("a Pod's call of the API: {why}");
            }
            drop(place);
        });
    }
}

async fn carry(mut pod: TcpStream, server: &Server) -> io::Result<()> {
    let slow = || io::Error::from(io::ErrorKind::TimedOut);
    let dial = async { TcpStream::connect(address(server).await?).await };
    let mut server = tokio::time::timeout(PATIENCE, dial).await.map_err(|_| slow())??;
    // Where this fails, answers come a little later.
    let _ = (pod.set_nodelay(true), server.set_nodelay(true));
    tokio::io::copy_bidirectional(&mut pod, &mut server).await.map(drop)
}

/// `HOST:PORT` of the server.
async fn address(server: &Server) -> io::Result<String> {
    let client = match server {
        Server::At(address) => return Ok(address.clone()),
        Server::Told(client) => client,
    };
    let found = client.get::<ConfigMap>(Some("kube-public"), "cluster-info").await;
    let info = found.map_err(|status| io::Error::other(status.to_string()))?;
    let text = info.data.as_ref().and_then(|data| data.get("kubeconfig")).map_or("", String::as_str);
    let url = text.lines().find_map(|line| line.trim().strip_prefix("server: https://"));
    url.map(str::to_owned).ok_or_else(|| io::Error::other("cluster-info names no server"))
}
