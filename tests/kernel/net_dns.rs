//! The DNS server as seen by Pods: UDP, TCP, truncation, forwarding, and invalid messages.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use podwright_net::dns::{DnsServer, Entry, Names, Table, Upstream};
use podwright_net::{NodeNetns, netlink};
use podwright_runtime::JournalWriter;
use podwright_runtime::sys::{Kernel, credentials::CapSets, shared};

use super::net_world::*;

/// capabilities(7).
const CAP_NET_RAW: u32 = 13;
pub const A: u16 = 1;
const CNAME: u16 = 5;
pub const PTR: u16 = 12;
const AAAA: u16 = 28;
const SERVFAIL: u8 = 2;
pub const NXDOMAIN: u8 = 3;

/// The parts of a response that the tests check.
#[derive(Debug, PartialEq)]
pub struct Seen {
    pub code: u8,
    truncated: bool,
    answers: u16,
    authorities: u16,
    pub bytes: Vec<u8>,
}

fn query(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(1u16.to_be_bytes());
    bytes
}

fn seen(bytes: &[u8]) -> Seen {
    let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    Seen {
        code: bytes[3] & 15,
        truncated: bytes[2] & 2 != 0,
        answers: number(6),
        authorities: number(8),
        bytes: bytes.to_vec(),
    }
}

fn server() -> SocketAddr {
    at("10.96.0.10", 53)
}

fn exchange(netns: BorrowedFd<'_>, bytes: &[u8]) -> Option<Vec<u8>> {
    let socket = netlink::in_netns(netns, || std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    socket.connect(server()).unwrap();
    socket.send(bytes).unwrap();
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).ok()?;
    Some(buffer[..length].to_vec())
}

pub fn lookup(netns: BorrowedFd<'_>, name: &str, kind: u16) -> Seen {
    seen(&exchange(netns, &query(7, name, kind)).expect("an answer"))
}

fn lookup_tcp(netns: BorrowedFd<'_>, name: &str, kind: u16) -> Seen {
    let mut stream = netlink::in_netns(netns, || TcpStream::connect(server())).unwrap().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let question = query(8, name, kind);
    stream.write_all(&(question.len() as u16).to_be_bytes()).unwrap();
    stream.write_all(&question).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).unwrap();
    seen(&answer)
}

fn table() -> Table {
    let mut table = Table::new("cluster.local", vec!["10.96.0.0/16".parse().unwrap()], vec![]);
    let addresses =
        |n: u8| Entry { addresses: (1..=n).map(|i| IpAddr::from([10, 244, 1, i])).collect(), ..Entry::default() };
    let alias = Entry { cname: Some("www.example.org".to_owned()), ..Entry::default() };
    table.set(
        "default",
        Names::from([
            ("web.default.svc.cluster.local".to_owned(), addresses(1)),
            ("some.default.svc.cluster.local".to_owned(), addresses(40)),
            ("many.default.svc.cluster.local".to_owned(), addresses(100)),
            ("out.default.svc.cluster.local".to_owned(), alias),
        ]),
    );
    table
}

/// An outside name server that returns one address for every name, and never answers names starting with `slow`.
fn upstream(node: &Node, netns: BorrowedFd<'_>) {
    let socket = netlink::in_netns(netns, || std::net::UdpSocket::bind("192.0.2.53:53")).unwrap().unwrap();
    socket.set_nonblocking(true).unwrap();
    node.wait(async {
        let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
                if buffer[13..].starts_with(b"slow") {
                    continue;
                }
                let mut answer = buffer[..length].to_vec();
                answer[2] |= 0x80;
                answer[7] = 1;
                // Below common limits, but above a small datagram's.
                if buffer[13..].starts_with(b"long") {
                    answer.resize(800, 0);
                }
                // More records than requested, which are not read: the data after the address is not a record.
                if buffer[13..].starts_with(b"much") {
                    answer.resize(3000, 0xc0);
                }
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, 80]);
                let _ = socket.send_to(&answer, client).await;
            }
        });
    });
}

/// A node with the server; `nameserver` is the line of its upstream's resolv.conf.
fn start(nameserver: &str) -> (Node, DnsServer, NodeNetns) {
    start_on(Node::single(), nameserver)
}

fn start_on(node: Node, nameserver: &str) -> (Node, DnsServer, NodeNetns) {
    let host = NodeNetns::from_fd(netlink::new_netns().unwrap()).unwrap();
    podwright_net::links::loopback_up(host.fd()).unwrap();
    run_in(host.fd(), "ip", &["addr", "add", "192.0.2.53/32", "dev", "lo"]);
    upstream(&node, host.fd());
    let resolv_conf = node.folder.path().join("resolv.conf");
    std::fs::write(&resolv_conf, nameserver).unwrap();
    let dns = node.network.config().dns.clone();
    let forward = Upstream::new(host.clone(), &resolv_conf, shared::read_linked, dns.clone());
    let server = node.wait(DnsServer::start(node.network.netns(), &dns, table(), forward)).unwrap();
    (node, server, host)
}

#[test]
fn pods_and_the_node_resolve_cluster_names() {
    let (node, server, _host) = start("");
    let pod = node.pod("client");
    for from in [pod.netns.as_fd(), node.netns()] {
        let found = lookup(from, "web.default.svc.cluster.local", A);
        assert_eq!((found.code, found.answers), (0, 1));
        assert!(found.bytes.ends_with(&[10, 244, 1, 1]));
        assert_eq!(lookup(from, "WEB.Default.svc.CLUSTER.local", A).answers, 1);
        let no_data = lookup(from, "web.default.svc.cluster.local", AAAA);
        assert_eq!((no_data.code, no_data.answers, no_data.authorities), (0, 0, 1));
        let missing = lookup(from, "nothing.default.svc.cluster.local", A);
        assert_eq!((missing.code, missing.authorities), (NXDOMAIN, 1));
        assert_eq!(lookup_tcp(from, "web.default.svc.cluster.local", A).answers, 1);
    }
    server.set([("default".to_owned(), Names::new().into())]);
    assert_eq!(lookup(pod.netns.as_fd(), "web.default.svc.cluster.local", A).code, NXDOMAIN);
}

#[test]
fn who_is_on_a_link_of_the_node_asks_by_the_operators_services_alone() {
    let (node, _server, _host) = start("");
    let outside = outsider(&node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    run_in(outside.as_fd(), "ip", &["route", "add", "10.96.0.0/16", "via", "203.0.113.1"]);
    let question = query(7, "web.default.svc.cluster.local", A);
    assert_eq!(exchange(outside.as_fd(), &question), None);
    let stream = |to| netlink::in_netns(outside.as_fd(), || TcpStream::connect_timeout(&to, Duration::from_secs(1)));
    assert!(stream(server()).unwrap().is_err());
    // A node port of the DNS Service leads there, as configured by the operator.
    let mut dns = service("10.96.0.11", &[server()]);
    dns.ports[0].node_port = Some(30053);
    node.apply("kube-system/dns", Some(dns));
    assert!(stream(at("203.0.113.1", 30053)).unwrap().is_ok());
    // Pods and the node itself can still query.
    for from in [node.pod("client").netns.as_fd(), node.netns()] {
        assert_eq!(lookup(from, "web.default.svc.cluster.local", A).answers, 1);
        assert_eq!(lookup_tcp(from, "web.default.svc.cluster.local", A).answers, 1);
    }
}

#[test]
fn what_does_not_fit_a_datagram_comes_by_stream() {
    let (node, _server, _host) = start("");
    let pod = node.pod("client");
    let cut = lookup(pod.netns.as_fd(), "many.default.svc.cluster.local", A);
    assert!(cut.truncated && cut.bytes.len() <= 512 && cut.answers > 10, "{cut:?}");
    let whole = lookup_tcp(pod.netns.as_fd(), "many.default.svc.cluster.local", A);
    assert_eq!((whole.truncated, whole.answers), (false, 100));
}

/// The same with an EDNS option: the maximum datagram size of the response (RFC 6891).
fn query_for(size: u16, id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = query(id, name, kind);
    bytes[11] = 1;
    bytes.extend([0, 0, 41]);
    bytes.extend(size.to_be_bytes());
    bytes.extend([0; 6]);
    bytes
}

#[test]
fn what_does_not_fit_the_link_comes_by_stream() {
    let (node, _server, _host) = start("nameserver 192.0.2.53\n");
    let pod = node.pod("client");
    let netns = pod.netns.as_fd();
    let of = |size, name| seen(&exchange(netns, &query_for(size, 7, name, A)).expect("an answer"));
    let whole = of(1232, "some.default.svc.cluster.local");
    assert!(!whole.truncated && whole.answers == 40 && whole.bytes.len() > 600, "{whole:?}");
    assert!(of(4096, "many.default.svc.cluster.local").bytes.len() <= 1232);
    assert!(of(700, "many.default.svc.cluster.local").bytes.len() <= 700);
    let list = run_in(node.netns(), "ip", &["-o", "link"]);
    let link = list.lines().find_map(|line| line.split([' ', '@']).find(|word| word.starts_with("pw"))).unwrap();
    run_in(node.netns(), "ip", &["link", "set", link, "mtu", "600"]);
    for name in ["some.default.svc.cluster.local", "long.example.org"] {
        let cut = of(1232, name);
        assert_eq!((cut.code, cut.truncated, cut.answers), (0, true, 0), "{name}");
        assert_eq!((&cut.bytes[..2], cut.bytes[11]), (&[0, 7][..], 1), "to the question, with EDNS");
    }
    assert_eq!(of(512, "web.default.svc.cluster.local").answers, 1);
    assert_eq!(lookup_tcp(netns, "some.default.svc.cluster.local", A).answers, 40);
}

/// An agent with fewer capabilities than root.
#[test]
fn without_raw_sockets_answers_are_plain_datagrams() {
    let node = Node::single();
    let without = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
        };
        let (permitted, effective) = (set("CapPrm"), set("CapEff") & !(1 << CAP_NET_RAW));
        let sets = CapSets { permitted, effective, ..CapSets::default() };
        Kernel::new(&JournalWriter::none()).set_capabilities(&sets).unwrap();
        netlink::packet_socket("127.0.0.1".parse().unwrap()).is_err()
    };
    // On the thread that creates the node's sockets.
    assert!(node.wait(node.network.netns().run(without)).unwrap());
    let (node, _server, _host) = start_on(node, "nameserver 192.0.2.53\n");
    let pod = node.pod("client");
    for from in [pod.netns.as_fd(), node.netns()] {
        assert_eq!(lookup(from, "web.default.svc.cluster.local", A).answers, 1);
        assert_eq!(lookup(from, "www.example.org", A).answers, 1);
        assert_eq!(lookup_tcp(from, "web.default.svc.cluster.local", A).answers, 1);
    }
}

#[test]
fn other_names_are_asked_upstream() {
    let (node, _server, _host) = start("nameserver 192.0.2.53\n");
    let pod = node.pod("client");
    let found = lookup(pod.netns.as_fd(), "www.example.org", A);
    assert_eq!((found.code, found.answers), (0, 1));
    assert!(found.bytes.ends_with(&[203, 0, 113, 80]));
    assert_eq!(found.bytes[..2], [0, 7]);
    let alias = lookup(pod.netns.as_fd(), "out.default.svc.cluster.local", A);
    assert_eq!((alias.code, alias.answers), (0, 2));
    assert_eq!(lookup(pod.netns.as_fd(), "out.default.svc.cluster.local", CNAME).answers, 1);
}

#[test]
fn an_upstream_server_that_sends_more_than_the_client_takes_is_cut() {
    let (node, _server, _host) = start("nameserver 192.0.2.53\n");
    let cut = lookup(node.netns(), "much.example.org", A);
    assert_eq!((cut.code, cut.truncated, cut.answers), (0, true, 0));
    assert_eq!(cut.bytes.len(), query(7, "much.example.org", A).len());
}

#[test]
fn without_an_upstream_server_the_answer_is_quick() {
    let (node, _server, _host) = start("# nothing\nnameserver 10.96.0.10\n");
    let started = std::time::Instant::now();
    assert_eq!(lookup(node.netns(), "www.example.org", A).code, SERVFAIL);
    // A question to an upstream server waits two seconds.
    assert!(started.elapsed() < Duration::from_millis(1900), "{:?}", started.elapsed());
}

/// A container with the host's resolv.conf as a volume may replace it, or hold a lease on it.
#[test]
fn a_resolv_conf_that_cannot_be_read_now_says_what_it_said_last() {
    let (node, _server, _host) = start("nameserver 192.0.2.53\n");
    let found = || lookup(node.netns(), "www.example.org", A).answers;
    assert_eq!(found(), 1);
    let file = node.folder.path().join("resolv.conf");
    std::fs::remove_file(&file).unwrap();
    run_in(node.netns(), "mkfifo", &[file.to_str().unwrap()]);
    assert_eq!(found(), 1, "a FIFO that nobody writes");
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "nameserver 192.0.2.53\n# again\n").unwrap();
    let held = std::fs::File::options().write(true).open(&file).unwrap();
    // SAFETY: a plain call on an open descriptor.
    assert_eq!(unsafe { libc::fcntl(held.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) }, 0);
    // SAFETY: breaking the lease sends SIGIO to this process, which would end it.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    assert_eq!(found(), 1, "a lease");
}

#[test]
fn garbage_is_survived() {
    let (node, _server, _host) = start("");
    let mut bytes = query(9, "web.default.svc.cluster.local", A);
    let socket = netlink::in_netns(node.netns(), || std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    socket.connect(server()).unwrap();
    for at in 0..bytes.len() {
        for value in [0, 0x3f, 0xc0, 0xff] {
            let before = std::mem::replace(&mut bytes[at], value);
            socket.send(&bytes).unwrap();
            socket.send(&bytes[..at]).unwrap();
            bytes[at] = before;
        }
        // Also keeps the receive buffer from overflowing.
        assert_eq!(lookup(node.netns(), "web.default.svc.cluster.local", A).answers, 1);
    }
}

/// A message of this size whose further queries are pointers to one name of 126 labels: each takes six bytes, and as much work as
/// the first.
fn dear(size: usize) -> Vec<u8> {
    let mut bytes = query(5, &["a"; 126].join("."), A);
    while bytes.len() + 6 <= size {
        bytes.extend([0xc0, 12, 0, 1, 0, 1]);
    }
    let count = 1 + (bytes.len() - 12 - 257) / 6;
    bytes[4..6].copy_from_slice(&(count as u16).to_be_bytes());
    bytes.resize(size, 0);
    bytes
}

#[test]
fn what_is_dear_to_read_is_refused_by_its_header() {
    let (node, _server, _host) = start("");
    let pod = node.pod("client");
    // Nothing of the message is read: its question is not in the response.
    let refused = [0, 5, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0];
    for size in [300, 1232, 1400] {
        assert_eq!(exchange(pod.netns.as_fd(), &dear(size)).unwrap(), refused, "{size}");
    }
    let stream = || {
        let stream = netlink::in_netns(pod.netns.as_fd(), || TcpStream::connect(server())).unwrap().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        stream
    };
    let framed = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let mut answer = [0; 14];
    let mut kept = stream();
    for _ in 0..2 {
        kept.write_all(&framed(&dear(1232))).unwrap();
        kept.read_exact(&mut answer).unwrap();
        assert_eq!(answer[2..], refused);
    }
    // Even if all of it could be one question.
    let mut long = query(5, "web.default.svc.cluster.local", A);
    long.resize(2000, 0);
    let mut ended = stream();
    ended.write_all(&framed(&long)).unwrap();
    ended.read_exact(&mut answer).unwrap();
    assert_eq!(answer[2..], refused);
    let end = ended.read(&mut answer);
    assert!(matches!(&end, Ok(0)) || end.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset), "{end:?}");
}

/// The greedy client sends this many unanswered questions, or opens as many streams: more than there are places.
const TOO_MANY: usize = 600;

#[test]
fn one_pod_does_not_take_all_places_of_forwarded_questions() {
    let (node, _server, _host) = start("nameserver 192.0.2.53\n");
    let (greedy, other) = (node.pod("greedy"), node.pod("other"));
    let socket = udp_socket(greedy.netns.as_fd());
    let to = if socket.local_addr().unwrap().is_ipv6() { at("::ffff:10.96.0.10", 53) } else { server() };
    socket.connect(to).unwrap();
    for n in 0..TOO_MANY {
        socket.send(&query(n as u16, &format!("slow{n}.example.org"), A)).unwrap();
        // Alternating: so the receive buffer has room for all.
        if n % 32 == 0 {
            lookup(other.netns.as_fd(), "web.default.svc.cluster.local", A);
        }
    }
    // Those without a place are refused first: otherwise the first result would be a timeout of the upstream servers.
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut buffer = [0; 512];
    for refused in 0..TOO_MANY - 512 {
        let length = socket.recv(&mut buffer).unwrap_or_else(|e| panic!("{refused} were refused: {e}"));
        let number = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
        assert_eq!((seen(&buffer[..length]).code, number), (SERVFAIL, 512 + refused), "more than 512 wait");
    }
    for _ in 0..3 {
        assert_eq!(lookup(other.netns.as_fd(), "www.example.org", A).answers, 1);
        assert_eq!(lookup(other.netns.as_fd(), "out.default.svc.cluster.local", A).answers, 2);
    }
}

#[test]
fn one_pod_does_not_take_all_streams() {
    let (node, _server, _host) = start("");
    let (greedy, other) = (node.pod("greedy"), node.pod("other"));
    let open = |_| netlink::in_netns(greedy.netns.as_fd(), || TcpStream::connect(server())).unwrap();
    let mut held: Vec<TcpStream> = (0..TOO_MANY).filter_map(|n| open(n).ok()).collect();
    assert!(held.len() >= 256, "{}", held.len());
    // Idle streams end in order of arrival: one that ends before an older one had no place.
    let mut ends = |n: usize, patience: u64| {
        held[n].set_read_timeout(Some(Duration::from_millis(patience))).unwrap();
        let is_silent = |e: &std::io::Error| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        !held[n].read(&mut [0]).as_ref().is_err_and(is_silent)
    };
    assert!(ends(300, 20_000) && !ends(200, 1), "more than 256 are open");
    for _ in 0..3 {
        assert_eq!(lookup_tcp(other.netns.as_fd(), "web.default.svc.cluster.local", A).answers, 1);
    }
    assert!(ends(0, 20_000) && !ends(200, 500), "the oldest one's place was taken, and it goes on");
}

/// Each stream has a cost for the accepting task, however short-lived.
#[test]
fn a_pod_opens_streams_no_faster_than_its_pace() {
    let (node, _server, _host) = start("");
    let (hasty, other) = (node.pod("hasty"), node.pod("other"));
    let started = std::time::Instant::now();
    let open = || {
        let patience = Duration::from_millis(20);
        let opens = |_: &u32| TcpStream::connect_timeout(&server(), patience).is_ok();
        (0..4000u32).take_while(|_| started.elapsed() < Duration::from_secs(3)).filter(opens).count()
    };
    let opened = netlink::in_netns(hasty.netns.as_fd(), open).unwrap();
    let seconds = started.elapsed().as_secs_f64();
    assert!((500.0..=1024.0 + 256.0 * (1.0 + seconds)).contains(&(opened as f64)), "{opened} in {seconds:.1} s");
    assert_eq!(lookup_tcp(other.netns.as_fd(), "web.default.svc.cluster.local", A).answers, 1);
}

#[test]
fn a_pod_asks_no_faster_than_its_pace() {
    let (node, _server, _host) = start("");
    let (hasty, other) = (node.pod("hasty"), node.pod("other"));
    let arrived = || {
        let snmp = run_in(node.netns(), "cat", &["/proc/thread-self/net/snmp"]);
        let line = snmp.lines().filter(|line| line.starts_with("Udp:")).nth(1).unwrap();
        // Udp: InDatagrams NoPorts InErrors
        let numbers: Vec<usize> = line.split(' ').skip(1).map(|n| n.parse().unwrap()).collect();
        numbers[0] + numbers[2]
    };
    let socket = netlink::in_netns(hasty.netns.as_fd(), || std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    socket.connect(server()).unwrap();
    let (question, before, started) =
        (query(9, "web.default.svc.cluster.local", A), arrived(), std::time::Instant::now());
    for _ in 0..40_000 {
        socket.send(&question).unwrap();
    }
    let (came, seconds) = (arrived() - before, started.elapsed().as_secs_f64());
    assert!((came as f64) < 4096.0 * (1.0 + seconds) + 100.0, "{came} in {seconds:.1} s");
    assert!((4096..40_000).contains(&came), "{came} in {seconds:.1} s");
    assert_eq!(lookup(other.netns.as_fd(), "web.default.svc.cluster.local", A).answers, 1);
}

/// One packet may be split into many datagrams on arrival (UDP_SEGMENT), and one send into hundreds.
#[test]
fn a_pod_asks_no_faster_by_having_its_packets_cut() {
    let (node, _server, _host) = start("");
    let (hasty, other) = (node.pod("hasty"), node.pod("other"));
    // The node's counters: received, dropped for lack of buffer; and its DNS's responses.
    let watch = "add table ip watch; add chain ip watch output { type filter hook output priority 0; }; \
                 add rule ip watch output udp sport 53 counter";
    run_in(node.netns(), "nft", &[watch]);
    let counters = || {
        let snmp = run_in(node.netns(), "cat", &["/proc/thread-self/net/snmp"]);
        let line = snmp.lines().filter(|line| line.starts_with("Udp:")).nth(1).unwrap();
        let numbers: Vec<usize> = line.split(' ').skip(1).map(|n| n.parse().unwrap()).collect();
        let seen = run_in(node.netns(), "nft", &["list", "table", "ip", "watch"]);
        let sent = seen.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
        (numbers[0] + numbers[2], sent.unwrap().parse::<usize>().unwrap())
    };
    let cutting = |size: usize| {
        let socket =
            netlink::in_netns(hasty.netns.as_fd(), || std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
        socket.connect(server()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        setsockopt(&socket, sockopt::UdpGsoSegment, &(size as i32)).unwrap();
        socket
    };
    // Each datagram is a separate question with an answer.
    let question = query(9, "web.default.svc.cluster.local", A);
    let socket = cutting(question.len());
    let many = 1400 / question.len();
    assert!(many * question.len() > 1300);
    socket.send(&question.repeat(many)).unwrap();
    for _ in 0..many {
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(seen(&buffer[..length]).answers, 1);
    }
    let refused = [&[0, 9, 1, 0][..], &[0; 8]].concat();
    let (socket, before, started) = (cutting(refused.len()), counters(), std::time::Instant::now());
    let packet = refused.repeat(100);
    for _ in 0..3000 {
        // A rejected answer is not an error.
        socket.send(&packet).unwrap();
    }
    assert_eq!(lookup(other.netns.as_fd(), "web.default.svc.cluster.local", A).answers, 1);
    let (after, seconds) = (counters(), started.elapsed().as_secs_f64());
    let (came, answered) = (after.0 - before.0, after.1 - before.1);
    assert!((1000..=3100).contains(&came), "{came} of 3000 packets");
    assert!((answered as f64) < 2.0 * 4096.0 * (1.0 + seconds) + 100.0, "{answered} in {seconds:.1} s");
    assert!(answered > 1000, "{answered}");
    // Anything longer than a packet does not arrive at all.
    let (socket, before) = (cutting(1200), counters());
    for _ in 0..100 {
        socket.send(&[0; 48_000]).unwrap();
    }
    assert_eq!(lookup(other.netns.as_fd(), "web.default.svc.cluster.local", A).answers, 1);
    assert!(counters().0 - before.0 < 20, "{before:?}, then {:?}", counters());
}

/// Sent datagrams are charged to their sender until received. Here they wait in a queue that is never emptied.
#[test]
fn a_pod_that_never_takes_its_answers_keeps_back_nobody_elses() {
    let (node, _server, _host) = start("nameserver 192.0.2.53\n");
    let (keeper, other) = (node.pod("keeper"), node.pod("other"));
    let inside = |program: &str, arguments: &str| {
        run_in(keeper.netns.as_fd(), program, &arguments.split(' ').collect::<Vec<_>>())
    };
    inside("ip", "link add kept type veth peer name nobody");
    inside("ip", "link set kept up");
    inside("ip", "link set nobody up");
    inside("tc", "qdisc add dev kept root tbf rate 1kbit burst 1600 limit 4m");
    inside("tc", "qdisc add dev eth0 ingress");
    let all = "protocol ip u32 match u32 0 0 action mirred egress redirect dev kept";
    inside("tc", &format!("filter add dev eth0 parent ffff: {all}"));
    let socket = netlink::in_netns(keeper.netns.as_fd(), || std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    socket.connect(server()).unwrap();
    // Alternating, so that the receive buffer has room for all.
    for n in 0..2000 {
        socket.send(&query(n, "many.default.svc.cluster.local", A)).unwrap();
        if n % 32 == 0 {
            assert_eq!(lookup(other.netns.as_fd(), "web.default.svc.cluster.local", A).answers, 1, "after {n}");
        }
    }
    assert_eq!(lookup(other.netns.as_fd(), "www.example.org", A).answers, 1);
    assert_eq!(lookup(node.netns(), "web.default.svc.cluster.local", A).answers, 1);
    // At most as many as one socket's buffer holds.
    let queue = inside("tc", "-s qdisc show dev kept");
    let kept = queue.split("backlog ").nth(1).and_then(|rest| rest.split(' ').nth(1)?.strip_suffix('p'));
    let kept: usize = kept.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{queue}"));
    assert!((50..1000).contains(&kept), "{queue}");
}

#[test]
fn a_pod_asks_no_faster_than_its_pace_by_streams_either() {
    let (node, _server, _host) = start("");
    let (hasty, other) = (node.pod("hasty"), node.pod("other"));
    let mut stream = netlink::in_netns(hasty.netns.as_fd(), || TcpStream::connect(server())).unwrap().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // Refused ones count too.
    let question = [&[0, 12][..], &[0, 9, 1, 0], &[0; 8]].concat();
    let (batch, batches) = (question.repeat(500), 16);
    let (started, mut answers) = (std::time::Instant::now(), vec![0; 14 * 500]);
    for _ in 0..batches {
        stream.write_all(&batch).unwrap();
        stream.read_exact(&mut answers).unwrap();
        assert_eq!(lookup_tcp(other.netns.as_fd(), "web.default.svc.cluster.local", A).answers, 1);
    }
    let (asked, seconds) = (500.0 * f64::from(batches), started.elapsed().as_secs_f64());
    assert!(asked <= 4096.0 * (1.0 + seconds), "{asked} in {seconds:.2} s");
}
