//! Nodes, Pods and outside hosts for the network tests: their own namespaces, real links, real sockets.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_journal::JournalWriter;
use podwright_net::cni::CniConfig;
use podwright_net::dataplane::{Backends, Empty, NodeFacts, Protocol, Service, ServicePort};
use podwright_net::overlay::OverlayConfig;
use podwright_net::{Family, IpNet, Network, NetworkConfig, NodeNetns, netlink};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

pub const POD_PORT: u16 = 8080;

/// One node with its folder; removed with everything on it when dropped.
pub struct Node {
    pub network: Network,
    pub folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    removed: bool,
}

/// A Pod: a namespace with an attached link.
pub struct Pod {
    pub uid: String,
    pub netns: OwnedFd,
    pub ips: Vec<IpAddr>,
}

impl Node {
    /// A single node, only IPv4, Pods in 10.244.1.0/24.
    pub fn single() -> Node {
        Node::start_in(tempfile::tempdir().unwrap(), 1, &["10.244.1.0/24"], &["10.96.0.0/16"], &[])
    }

    /// Sets the assumed conntrack size of the node, which must be new.
    pub fn set_conntrack_max(&mut self, max: usize) {
        let config = NetworkConfig { conntrack_max: Some(max), ..self.network.config().clone() };
        let ranges = self.network.pod_ranges();
        self.network = self.wait(Network::up(config)).unwrap();
        self.network.set_pod_ranges(ranges);
        self.load(&[]);
    }

    /// A single node with both families.
    pub fn dual() -> Node {
        let (pods, services) = (["10.244.1.0/24", "fd00:244:1::/64"], ["10.96.0.0/16", "fd00:96::/112"]);
        Node::start_in(tempfile::tempdir().unwrap(), 1, &pods, &services, &[])
    }

    /// Two nodes on one link, 192.168.50.1 and .2, with routes to each other's Pods.
    pub fn two() -> (Node, Node) {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let wired = folders.each_ref().map(|f| NodeNetns::create_or_open(&f.path().join("netns")).unwrap());
        join(wired[0].fd(), "wire", "192.168.50.1/24", wired[1].fd(), "wire", "192.168.50.2/24");
        let [first, second] = folders;
        let one = Node::start_in(first, 1, &["10.244.1.0/24"], &["10.96.0.0/16"], &["192.168.50.1"]);
        let two = Node::start_in(second, 2, &["10.244.2.0/24"], &["10.96.0.0/16"], &["192.168.50.2"]);
        run_in(one.netns(), "ip", &["route", "add", "10.244.2.0/24", "via", "192.168.50.2"]);
        run_in(two.netns(), "ip", &["route", "add", "10.244.1.0/24", "via", "192.168.50.1"]);
        (one, two)
    }

    fn start_in(folder: tempfile::TempDir, number: u8, pods: &[&str], services: &[&str], addresses: &[&str]) -> Node {
        let node = Node::without_facts(folder, number, pods, services, addresses, OverlayConfig::default());
        node.load(&[]);
        node
    }

    /// A node in the namespace of its folder, which knows nothing of a cluster yet.
    pub fn without_facts(
        folder: tempfile::TempDir,
        number: u8,
        pods: &[&str],
        services: &[&str],
        addresses: &[&str],
        overlay: OverlayConfig,
    ) -> Node {
        let config = NetworkConfig {
            node: format!("node{number}"),
            folder: folder.path().to_owned(),
            isolated: true,
            netns: None,
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            service_ranges: services.iter().map(|r| r.parse().unwrap()).collect(),
            dns: vec!["10.96.0.10".parse().unwrap()],
            conntrack_max: None,
            overlay,
            cni: CniConfig::default(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let network = runtime.block_on(Network::up(config)).unwrap();
        network.set_pod_ranges(pods.iter().map(|r| r.parse().unwrap()).collect());
        Node { network, folder, runtime, removed: false }
    }

    /// The agent ends and starts again: a new `Network` on the same folder.
    pub fn restart(&mut self) {
        let ranges = self.network.pod_ranges();
        self.network = self.wait(Network::up(self.network.config().clone())).unwrap();
        self.network.set_pod_ranges(ranges);
    }

    pub fn netns(&self) -> BorrowedFd<'_> {
        self.network.netns().fd()
    }
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn facts(&self) -> NodeFacts {
        let mut cluster: Vec<IpNet> = vec!["10.244.0.0/16".parse().unwrap(), "fd00:244::/32".parse().unwrap()];
        cluster.extend(self.network.addresses().iter().map(|a| IpNet::from(*a)));
        NodeFacts {
            pod_ranges: self.network.pod_ranges(),
            cluster_ranges: cluster,
            other_nodes: vec![IpNet::from("192.168.50.2".parse::<IpAddr>().unwrap())],
            servers: Vec::new(),
            service_ranges: self.network.config().service_ranges.clone(),
            ..NodeFacts::default()
        }
    }

    pub fn load(&self, services: &[(&str, Service)]) {
        let services: BTreeMap<_, _> = services.iter().map(|(k, s)| ((*k).to_owned(), Arc::new(s.clone()))).collect();
        self.wait(self.network.load_services(self.facts(), services)).unwrap();
    }
    pub fn apply(&self, key: &str, service: Option<Service>) -> podwright_net::dataplane::Change {
        self.wait(self.network.apply_services(vec![(key.to_owned(), service.map(Arc::new))])).unwrap()
    }

    /// A Pod without listeners.
    pub fn pod(&self, uid: &str) -> Pod {
        let netns = netlink::new_netns().unwrap();
        let attached = self.wait(self.network.attach(uid, netns.try_clone().unwrap(), &JournalWriter::none())).unwrap();
        Pod { uid: uid.to_owned(), netns, ips: attached.addresses }
    }

    /// A Pod that serves TCP and UDP on 8080: it responds `<uid> <client's address>`, then echoes lines.
    pub fn server(&self, uid: &str) -> Pod {
        let pod = self.pod(uid);
        self.serve(pod.netns.as_fd(), uid, POD_PORT);
        pod
    }

    /// Serves in any namespace.
    pub fn serve(&self, netns: BorrowedFd<'_>, name: &str, port: u16) {
        let any = if std::path::Path::new("/proc/sys/net/ipv6").exists() { "[::]" } else { "0.0.0.0" };
        let address = format!("{any}:{port}");
        let bind = || (TcpListener::bind(&address).unwrap(), UdpSocket::bind(&address).unwrap());
        let (tcp, udp) = netlink::in_netns(netns, bind).unwrap();
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        let _inside = self.runtime.enter();
        self.runtime.spawn(serve_tcp(tokio::net::TcpListener::from_std(tcp).unwrap(), name.to_owned()));
        self.runtime.spawn(serve_udp(tokio::net::UdpSocket::from_std(udp).unwrap(), name.to_owned()));
    }

    pub fn remove(&mut self) {
        if !std::mem::replace(&mut self.removed, true) {
            let errors = self.runtime.block_on(self.network.clone().remove());
            assert!(errors.is_empty(), "left behind: {errors:?}");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.remove();
        } else {
            let _ = self.runtime.block_on(self.network.clone().remove());
        }
    }
}

impl Pod {
    pub fn ip(&self) -> IpAddr {
        self.ips[0]
    }
    pub fn endpoint(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), POD_PORT)
    }
    pub fn endpoint6(&self) -> SocketAddr {
        SocketAddr::new(self.ips[1], POD_PORT)
    }
}

async fn serve_tcp(listener: tokio::net::TcpListener, name: String) {
    while let Ok((stream, peer)) = listener.accept().await {
        let name = name.clone();
        tokio::spawn(async move {
            let (read, mut write) = stream.into_split();
            let hello = format!("{name} {}\n", peer.ip().to_canonical());
            let mut lines = tokio::io::BufReader::new(read).lines();
            let mut sent = write.write_all(hello.as_bytes()).await;
            while let (Ok(()), Ok(Some(line))) = (&sent, lines.next_line().await) {
                sent = write.write_all(format!("{name} {line}\n").as_bytes()).await;
            }
        });
    }
}

async fn serve_udp(socket: tokio::net::UdpSocket, name: String) {
    let mut buffer = [0; 512];
    while let Ok((_, peer)) = socket.recv_from(&mut buffer).await {
        let _ = socket.send_to(format!("{name} {}", peer.ip().to_canonical()).as_bytes(), peer).await;
    }
}

/// The server of a TCP connection from inside `netns`, and the client address it sees.
pub fn ask(netns: BorrowedFd<'_>, to: impl Into<SocketAddr>) -> io::Result<(String, IpAddr)> {
    let (line, _) = hold(netns, to)?;
    answer(&line)
}

/// A connection that stays open, and its first line.
pub fn hold(netns: BorrowedFd<'_>, to: impl Into<SocketAddr>) -> io::Result<(String, BufReader<TcpStream>)> {
    let to = to.into();
    let stream = netlink::in_netns(netns, || TcpStream::connect_timeout(&to, Duration::from_secs(2))).unwrap()?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    Ok((line, reader))
}

/// Sends a line on a held connection and returns the echo.
pub fn echo(connection: &mut BufReader<TcpStream>, line: &str) -> io::Result<String> {
    connection.get_mut().write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    connection.read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

/// The server answering a datagram from a new socket.
pub fn ask_udp(netns: BorrowedFd<'_>, to: impl Into<SocketAddr>) -> io::Result<(String, IpAddr)> {
    ask_on(&udp_socket(netns), to.into())
}

pub fn udp_socket(netns: BorrowedFd<'_>) -> UdpSocket {
    let socket = netlink::in_netns(netns, || UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0")));
    let socket = socket.unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    socket
}

pub fn ask_on(socket: &UdpSocket, to: SocketAddr) -> io::Result<(String, IpAddr)> {
    send_to(socket, to)?;
    answer_on(socket)
}

/// The question of [`ask_on`] alone.
pub fn send_to(socket: &UdpSocket, to: SocketAddr) -> io::Result<()> {
    let to = match (to, socket.local_addr()?.is_ipv6()) {
        (SocketAddr::V4(v4), true) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        _ => to,
    };
    socket.connect(to)?;
    socket.send(b"?").map(drop)
}

/// The answer.
pub fn answer_on(socket: &UdpSocket) -> io::Result<(String, IpAddr)> {
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer)?;
    answer(&String::from_utf8_lossy(&buffer[..length]))
}

fn answer(line: &str) -> io::Result<(String, IpAddr)> {
    let parse = |line: &str| {
        let (name, address) = line.trim().split_once(' ')?;
        Some((name.to_owned(), address.parse().ok()?))
    };
    parse(line).ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, format!("answer {line:?}")))
}

/// How many of `times` connections each server answers.
pub fn tally(netns: BorrowedFd<'_>, to: SocketAddr, times: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..times {
        *counts.entry(ask(netns, to).unwrap().0).or_default() += 1;
    }
    counts
}

/// A namespace with one link into a node's: a client or server outside the cluster.
pub fn outsider(node: &Node, name: &str, node_address: &str, address: &str) -> OwnedFd {
    let netns = netlink::new_netns().unwrap();
    podwright_net::links::loopback_up(netns.as_fd()).unwrap();
    join(node.netns(), name, node_address, netns.as_fd(), "eth0", address);
    netns
}

fn join(one: BorrowedFd<'_>, name: &str, address: &str, two: BorrowedFd<'_>, other: &str, other_address: &str) {
    let there = format!("/proc/{}/fd/{}", std::process::id(), two.as_raw_fd());
    run_in(one, "ip", &["link", "add", name, "type", "veth", "peer", "name", other, "netns", &there]);
    for (netns, name, address) in [(one, name, address), (two, other, other_address)] {
        run_in(netns, "ip", &["addr", "add", address, "dev", name]);
        run_in(netns, "ip", &["link", "set", name, "up"]);
    }
}

/// Runs a program inside a namespace and returns its output.
pub fn run_in(netns: BorrowedFd<'_>, program: &str, arguments: &[&str]) -> String {
    let output = netlink::in_netns(netns, || Command::new(program).args(arguments).output()).unwrap().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A Service with one TCP port, 80 at `ip`.
pub fn service(ip: &str, endpoints: &[SocketAddr]) -> Service {
    service_of(ip, Protocol::Tcp, endpoints)
}

pub fn service_of(ip: &str, protocol: Protocol, endpoints: &[SocketAddr]) -> Service {
    Service { ports: vec![port(ip, protocol, endpoints)], ..Service::default() }
}

pub fn port(ip: &str, protocol: Protocol, endpoints: &[SocketAddr]) -> ServicePort {
    let ip: IpAddr = ip.parse().unwrap();
    ServicePort {
        name: "web".to_owned(),
        family: Family::of(&ip),
        protocol,
        port: 80,
        cluster_ips: vec![ip],
        external_ips: Vec::new(),
        host_ips: Vec::new(),
        node_port: None,
        internal: backends(endpoints),
        external: None,
        outside: None,
        affinity: None,
        source_ranges: Vec::new(),
    }
}

pub fn backends(endpoints: &[SocketAddr]) -> Backends {
    Backends { endpoints: endpoints.to_vec(), empty: Empty::Refuse }
}

pub fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Waits until `condition` holds; on failure the last state is in the message.
pub fn eventually<T: std::fmt::Debug>(mut state: impl FnMut() -> T, condition: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let now = state();
        if condition(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "still {now:?}");
        std::thread::yield_now();
    }
}
