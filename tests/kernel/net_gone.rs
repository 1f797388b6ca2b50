//! A former Pod's connections are gone when its address is reassigned, and others' stay.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::Pid;
use podwright_journal::JournalWriter;
use podwright_net::netlink;

use super::net_world::*;

fn bound(netns: BorrowedFd<'_>, at: SocketAddr) -> UdpSocket {
    let socket = netlink::in_netns(netns, || UdpSocket::bind(at)).unwrap().unwrap_or_else(|e| panic!("{at}: {e}"));
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

/// A received datagram and its sender.
fn received(socket: &UdpSocket) -> (String, SocketAddr) {
    let mut buffer = [0; 64];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    (String::from_utf8_lossy(&buffer[..length]).into_owned(), from)
}

/// A node with a single Pod address to be reused, and others.
fn with_one_address(node: &Node) {
    node.network.set_pod_ranges(vec!["10.244.9.0/30".parse().unwrap()]);
    node.load(&[]);
}

#[test]
fn a_new_pod_gets_nothing_of_the_connections_of_the_one_before() {
    let node = Node::single();
    with_one_address(&node);
    let outside = outsider(&node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    let old = node.pod("old");
    let server = bound(outside.as_fd(), at("203.0.113.9", 7000));
    // One initiated by the Pod, with a response; one initiated by the node.
    let client = bound(old.netns.as_fd(), SocketAddr::new(old.ip(), 5000));
    client.send_to(b"hello", server.local_addr().unwrap()).unwrap();
    let (_, masqueraded) = received(&server);
    server.send_to(b"hello", masqueraded).unwrap();
    received(&client);
    let own = bound(node.netns(), at("203.0.113.1", 7000));
    own.send_to(b"mine", server.local_addr().unwrap()).unwrap();
    received(&server);
    node.wait(node.network.detach("old", &JournalWriter::none())).unwrap();
    let new = node.pod("new");
    assert_eq!(new.ips, old.ips);
    let inbox = bound(new.netns.as_fd(), SocketAddr::new(new.ip(), 5000));
    server.send_to(b"a secret", masqueraded).unwrap();
    server.send_to(b"still there", own.local_addr().unwrap()).unwrap();
    assert_eq!(received(&own).0, "still there");
    own.send_to(b"from the node", inbox.local_addr().unwrap()).unwrap();
    assert_eq!(received(&inbox).0, "from the node");
}

/// A connection through a Service, which stays tracked though the Service leads elsewhere.
#[test]
fn a_new_pod_gets_nothing_of_what_led_to_the_one_before() {
    let node = Node::single();
    let (client, other) = (node.pod("client"), node.server("other"));
    with_one_address(&node);
    let old = node.server("old");
    node.apply("default/web", Some(service("10.96.1.1", &[old.endpoint()])));
    let (line, mut held) = hold(client.netns.as_fd(), at("10.96.1.1", 80)).unwrap();
    assert!(line.starts_with("old"), "{line}");
    node.wait(node.network.detach("old", &JournalWriter::none())).unwrap();
    node.apply("default/web", Some(service("10.96.1.1", &[other.endpoint()])));
    let new = node.server("new");
    assert_eq!(new.ips, old.ips);
    let watch = "add table ip watch; add chain ip watch input { type filter hook input priority 0; }; \
                 add rule ip watch input tcp dport 8080 counter";
    run_in(new.netns.as_fd(), "nft", &[watch]);
    assert_ne!(echo(&mut held, "a secret").unwrap_or_default(), "old a secret");
    let seen = run_in(new.netns.as_fd(), "nft", &["list", "table", "ip", "watch"]);
    assert!(seen.contains("packets 0 "), "{seen}");
    assert_eq!(ask(client.netns.as_fd(), at("10.96.1.1", 80)).unwrap().0, "other");
    assert_eq!(ask(node.netns(), new.endpoint()).unwrap().0, "new");
}

/// A connection from exactly this port in the calling thread's namespace, and its first line. It is closed by a reset, so that its
/// port is free at once.
fn from_port(port: u16, to: SocketAddrV4) -> std::io::Result<(String, BufReader<TcpStream>)> {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    setsockopt(&fd, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    setsockopt(&fd, sockopt::SendTimeout, &TimeVal::seconds(5))?;
    bind(fd.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, port))?;
    let deadline = Instant::now() + Duration::from_secs(5);
    // The previous one may not have ended yet.
    while let Err(why) = connect(fd.as_raw_fd(), &SockaddrIn::from(to)) {
        if why != Errno::EADDRNOTAVAIL || Instant::now() > deadline {
            return Err(why.into());
        }
        std::thread::yield_now();
    }
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let (mut reader, mut line) = (BufReader::new(stream), String::new());
    reader.read_line(&mut line)?;
    Ok((line.split(' ').next().unwrap_or_default().to_owned(), reader))
}

/// Pins the calling thread to its first CPU: memory freed there by one connection is reused for the next.
fn stay_on_one_cpu() {
    let (this, mut one) = (Pid::from_raw(0), CpuSet::new());
    let all = sched_getaffinity(this).unwrap();
    one.set((0..CpuSet::count()).find(|cpu| all.is_set(*cpu).unwrap()).unwrap()).unwrap();
    sched_setaffinity(this, &one).unwrap();
}

/// Entries are listed, and then deleted. In between, a client may reopen a connection from the port of a closed one: another entry
/// at the same address, which leads to a live endpoint.
#[test]
fn a_connection_from_the_port_of_a_forgotten_one_stays() {
    let node = Node::single();
    let (client, other) = (node.pod("client"), node.server("other"));
    // The one remaining address is in use without the node's knowledge: attempting to assign it deletes its connections.
    node.network.set_pod_ranges(vec!["10.244.9.0/30".parse().unwrap()]);
    let gone = outsider(&node, "pw000000000000", "198.18.0.1/30", "198.18.0.2/30");
    run_in(gone.as_fd(), "ip", &["address", "add", "10.244.9.2/32", "dev", "lo"]);
    run_in(gone.as_fd(), "ip", &["route", "add", "default", "via", "198.18.0.1"]);
    run_in(node.netns(), "ip", &["route", "add", "10.244.9.2/32", "via", "198.18.0.2"]);
    node.serve(gone.as_fd(), "gone", POD_PORT);
    let no_namespace = File::open("/dev/null").unwrap();
    let forget = || {
        let journal = JournalWriter::none();
        let attached = node.network.attach("nobody", no_namespace.try_clone().unwrap().into(), &journal);
        assert!(node.wait(attached).is_err());
    };
    let call_all = || {
        let call = |port| from_port(port, "10.96.1.1:80".parse().unwrap()).unwrap_or_else(|e| panic!("{port}: {e}"));
        let all = || {
            stay_on_one_cpu();
            (41_000..41_016).map(call).collect::<Vec<_>>()
        };
        netlink::in_netns(client.netns.as_fd(), all).unwrap()
    };
    let (begun, mut rounds) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(3) {
        rounds += 1;
        node.apply("default/web", Some(service("10.96.1.1", &[at("10.244.9.2", POD_PORT)])));
        assert!(call_all().iter().all(|(who, _)| who == "gone"));
        node.apply("default/web", Some(service("10.96.1.1", &[other.endpoint()])));
        let mut calls = std::thread::scope(|scope| {
            scope.spawn(forget);
            call_all()
        });
        for (who, call) in &mut calls {
            let said = echo(call, "still there").unwrap_or_else(|e| panic!("the call of round {rounds} is lost: {e}"));
            assert_eq!((who.as_str(), said.as_str()), ("other", "other still there"), "in round {rounds}");
        }
    }
    assert!(rounds > 10, "{rounds}");
}

#[test]
fn what_is_sent_to_the_address_of_a_gone_pod_goes_nowhere() {
    let node = Node::single();
    let client = node.pod("client");
    let outside = outsider(&node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    run_in(node.netns(), "ip", &["route", "add", "default", "via", "203.0.113.9"]);
    let old = node.pod("old");
    // A host behind the default route could accept its packets.
    run_in(outside.as_fd(), "ip", &["address", "add", &format!("{}/32", old.ip()), "dev", "lo"]);
    let inbox = bound(outside.as_fd(), at("0.0.0.0", 7000));
    let socket = bound(client.netns.as_fd(), SocketAddr::new(client.ip(), 5000));
    node.wait(node.network.detach("old", &JournalWriter::none())).unwrap();
    socket.send_to(b"to the gone one", SocketAddr::new(old.ip(), 7000)).unwrap();
    socket.send_to(b"to the outside", at("203.0.113.9", 7000)).unwrap();
    assert_eq!(received(&inbox).0, "to the outside");
}

/// Many are deleted with one listing.
#[test]
fn of_all_pods_that_are_gone_nothing_is_tracked() {
    let node = Node::dual();
    let outside = outsider(&node, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    run_in(node.netns(), "ip", &["address", "add", "2001:db8:1::1/64", "dev", "uplink", "nodad"]);
    run_in(outside.as_fd(), "ip", &["address", "add", "2001:db8:1::9/64", "dev", "eth0", "nodad"]);
    let servers = [at("203.0.113.9", 7000), at("2001:db8:1::9", 7000)].map(|to| bound(outside.as_fd(), to));
    let pods = ["stays", "goes", "goes-too"].map(|uid| node.pod(uid));
    for pod in &pods {
        for (ip, server) in pod.ips.iter().zip(&servers) {
            // More than one request deletes.
            for port in 5000..5300 {
                let client = bound(pod.netns.as_fd(), SocketAddr::new(*ip, port));
                client.send_to(b"x", server.local_addr().unwrap()).unwrap();
                received(server);
            }
        }
    }
    let tracked = |pod: &Pod| {
        let table = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack");
        let table = netlink::in_netns(node.netns(), table).unwrap().unwrap();
        let of = |ip: &std::net::IpAddr| {
            let ip = match ip {
                std::net::IpAddr::V4(v4) => v4.to_string(),
                std::net::IpAddr::V6(v6) => v6.segments().map(|part| format!("{part:04x}")).join(":"),
            };
            table.lines().filter(|line| line.contains(&format!("src={ip} "))).count()
        };
        pod.ips.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(tracked(&pods[1]), [300, 300]);
    let gone = node.wait(node.network.retain(BTreeSet::from(["stays".to_owned()]))).unwrap();
    assert_eq!(gone, ["goes", "goes-too"]);
    assert_eq!([&pods[0], &pods[1], &pods[2]].map(tracked), [[300, 300], [0, 0], [0, 0]]);
    assert_eq!(
        (node.network.addresses_of("goes"), node.network.addresses_of("stays")),
        (None, Some(pods[0].ips.clone()))
    );
}
