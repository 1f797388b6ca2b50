//! Pods of several nodes reach each other: by routes on one link, by VXLAN across a router; what is damaged is mended, what is
//! forged is not heard.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use podwright_journal::JournalWriter;
use podwright_net::dataplane::{NodeFacts, Service};
use podwright_net::overlay::{OverlayConfig, PORT, Peer, Transport, VNI};
use podwright_net::{IpNet, NodeNetns, links, netlink};

use super::net_world::*;

const VIP: &str = "10.96.1.1";

/// Nodes with one Pod each, which answers.
struct Cluster {
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    /// The bridge or router.
    _between: OwnedFd,
}

fn ranges(number: usize) -> [String; 2] {
    [format!("10.244.{number}.0/24"), format!("fd00:244:{number}::/64")]
}

/// The address of a node, with the prefix of its link.
type Place = fn(usize) -> [String; 2];

fn on_one_link(number: usize) -> [String; 2] {
    [format!("192.168.50.{number}/24"), format!("fd00:50::{number}/64")]
}

fn each_on_its_own(number: usize) -> [String; 2] {
    [format!("198.18.{number}.2/24"), format!("fd00:9:{number}::2/64")]
}

impl Cluster {
    fn on_one_link(count: usize, transport: Transport) -> Cluster {
        let between = netlink::new_netns().unwrap();
        run_in(between.as_fd(), "ip", &["link", "add", "br0", "up", "type", "bridge"]);
        let port = |name: &str, _: usize, between: BorrowedFd<'_>, _: BorrowedFd<'_>| {
            run_in(between, "ip", &["link", "set", name, "master", "br0", "up"]);
        };
        Cluster::start(count, transport, between, on_one_link, port)
    }

    fn across_a_router(count: usize, transport: Transport) -> Cluster {
        let between = netlink::new_netns().unwrap();
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";
        run_in(between.as_fd(), "sh", &["-c", forward]);
        let port = |name: &str, number: usize, between: BorrowedFd<'_>, node: BorrowedFd<'_>| {
            let routers = [format!("198.18.{number}.1"), format!("fd00:9:{number}::1")];
            for (router, length) in routers.iter().zip(["24", "64"]) {
                run_in(between, "ip", &["address", "add", &format!("{router}/{length}"), "dev", name, "nodad"]);
            }
            run_in(between, "ip", &["link", "set", name, "up"]);
            for router in &routers {
                run_in(node, "ip", &["route", "add", "default", "via", router]);
            }
        };
        Cluster::start(count, transport, between, each_on_its_own, port)
    }

    fn start(
        count: usize,
        transport: Transport,
        between: OwnedFd,
        place: Place,
        port: impl Fn(&str, usize, BorrowedFd<'_>, BorrowedFd<'_>),
    ) -> Cluster {
        let nodes: Vec<Node> = (1..=count)
            .map(|number| {
                let folder = tempfile::tempdir().unwrap();
                let netns = NodeNetns::create_or_open(&folder.path().join("netns")).unwrap();
                let (name, there) =
                    (format!("node{number}"), format!("/proc/{}/fd/{}", std::process::id(), between.as_raw_fd()));
                run_in(
                    netns.fd(),
                    "ip",
                    &["link", "add", "eth0", "type", "veth", "peer", "name", &name, "netns", &there],
                );
                for address in place(number) {
                    run_in(netns.fd(), "ip", &["address", "add", &address, "dev", "eth0", "nodad"]);
                }
                run_in(netns.fd(), "ip", &["link", "set", "eth0", "up"]);
                // As strict as it gets.
                run_in(netns.fd(), "sh", &["-c", "echo 1 > /proc/sys/net/ipv4/conf/eth0/rp_filter"]);
                port(&name, number, between.as_fd(), netns.fd());
                let addresses = place(number).map(|net| net.split('/').next().unwrap().to_owned());
                let (pods, config) = (ranges(number), OverlayConfig { transport, ..OverlayConfig::default() });
                let services = ["10.96.0.0/16", "fd00:96::/112"];
                let texts = |all: &[String; 2]| [all[0].clone(), all[1].clone()];
                let (pods, addresses) = (texts(&pods), texts(&addresses));
                let number = u8::try_from(number).unwrap();
                Node::without_facts(
                    folder,
                    number,
                    &[&pods[0], &pods[1]],
                    &services,
                    &[&addresses[0], &addresses[1]],
                    config,
                )
            })
            .collect();
        let cluster = Cluster { nodes, pods: Vec::new(), _between: between };
        (0..count).for_each(|n| cluster.tell(n, &cluster.peers_of(n)));
        let pods = cluster.nodes.iter().enumerate().map(|(n, node)| node.server(&format!("pod{n}"))).collect();
        Cluster { pods, ..cluster }
    }

    fn peers_of(&self, own: usize) -> Vec<Peer> {
        let peer = |(n, node): (usize, &Node)| Peer {
            name: format!("node{}", n + 1),
            addresses: node.network.addresses().to_vec(),
            pod_ranges: ranges(n + 1).iter().map(|range| range.parse().unwrap()).collect(),
            networks: node.wait(node.network.networks()).unwrap(),
        };
        self.nodes.iter().enumerate().filter(|(n, _)| *n != own).map(peer).collect()
    }

    /// What a node knows of itself, and of these peers.
    fn facts(&self, n: usize, peers: &[Peer]) -> NodeFacts {
        let node = &self.nodes[n].network;
        let of_peers = peers.iter().flat_map(|peer| peer.pod_ranges.iter().copied());
        let own = node.addresses().iter().map(|address| IpNet::from(*address));
        NodeFacts {
            pod_ranges: node.pod_ranges(),
            cluster_ranges: of_peers.chain(node.pod_ranges()).chain(own).collect(),
            other_nodes: peers.iter().flat_map(|peer| &peer.addresses).map(|address| IpNet::from(*address)).collect(),
            service_ranges: node.config().service_ranges.clone(),
            networks: self.nodes[n].wait(node.networks()).unwrap(),
            peers: peers.to_vec(),
            ..NodeFacts::default()
        }
    }

    fn tell(&self, n: usize, peers: &[Peer]) {
        let services = BTreeMap::<String, Arc<Service>>::new();
        self.nodes[n].wait(self.nodes[n].network.load_services(self.facts(n, peers), services)).unwrap();
    }

    /// Each Pod and each node reaches each Pod of both families; Pods are seen by their own addresses.
    fn all_reach_all(&self) {
        for (m, to) in self.pods.iter().enumerate() {
            for (n, from) in self.pods.iter().enumerate() {
                for (family, endpoint) in [to.endpoint(), to.endpoint6()].into_iter().enumerate() {
                    let seen = eventually(|| ask(from.netns.as_fd(), endpoint), Result::is_ok).unwrap();
                    assert_eq!(seen, (format!("pod{m}"), from.ips[family]), "{n} to {m}");
                    let (name, _) = eventually(|| ask(self.nodes[n].netns(), endpoint), Result::is_ok).unwrap();
                    assert_eq!(name, format!("pod{m}"), "node {n} to {m}");
                }
            }
        }
    }

    /// A long answer comes through, whatever a link can carry at once.
    fn carries_much(&self) {
        let (_, mut held) = hold(self.pods[0].netns.as_fd(), self.pods[1].endpoint()).unwrap();
        let line = "x".repeat(60_000);
        assert_eq!(echo(&mut held, &line).unwrap(), format!("pod1 {line}"));
    }

    /// All that the kernel has on a node for its peers.
    fn shown(&self, n: usize) -> String {
        let show = |words: &str| run_in(self.nodes[n].netns(), "sh", &["-c", words]);
        let tunnels = "for l in podwright-vx4 podwright-vx6; do ip -d -o link show $l; ip -br addr show $l; bridge fdb show dev $l; \
                       ip neigh show dev $l; done 2>/dev/null | grep -v 33:33 | sed 's/ *used [0-9/]*//' | sort";
        show("ip route show proto 112; ip -6 route show proto 112") + &show(tunnels)
    }

    fn mtu_of_pods(&self) -> Vec<u32> {
        self.nodes.iter().flat_map(|node| node.wait(node.network.list()).unwrap()).map(|link| link.mtu).collect()
    }
}

#[test]
fn nodes_on_one_link_have_routes_to_each_others_pods() {
    let cluster = Cluster::on_one_link(3, Transport::Auto);
    cluster.all_reach_all();
    cluster.carries_much();
    let shown = cluster.shown(0);
    assert!(shown.contains("10.244.2.0/24 via 192.168.50.2 dev eth0"), "{shown}");
    assert!(shown.contains("fd00:244:3::/64 via fd00:50::3 dev eth0"), "{shown}");
    assert!(!shown.contains("vxlan"), "{shown}");
    assert_eq!(cluster.mtu_of_pods(), [1500; 3]);
    // A Service, and a node port's way, to an endpoint on another node.
    let endpoint = cluster.pods[1].endpoint();
    cluster.nodes[0].apply("default/web", Some(service(VIP, &[endpoint])));
    for from in [cluster.pods[0].netns.as_fd(), cluster.nodes[0].netns()] {
        assert_eq!(ask(from, at(VIP, 80)).unwrap().0, "pod1");
    }
}

#[test]
fn nodes_behind_a_router_reach_each_other_by_vxlan() {
    let cluster = Cluster::across_a_router(3, Transport::Auto);
    cluster.all_reach_all();
    cluster.carries_much();
    let shown = cluster.shown(0);
    for part in [
        "10.244.2.0/24 via 10.244.2.1 dev podwright-vx4",
        "id 28791",
        "nolearning",
        "0e:70:0a:f4:02:01 dst 198.18.2.2",
        "10.244.3.1 lladdr 0e:70:0a:f4:03:01",
        "mtu 1450",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    assert_eq!(cluster.mtu_of_pods(), [1450; 3]);
    let pods = cluster.pods.iter().map(|pod| run_in(pod.netns.as_fd(), "cat", &["/proc/net/dev"]));
    assert_eq!(pods.count(), 3);
    let eth0 = run_in(cluster.pods[0].netns.as_fd(), "ip", &["link", "show", "eth0"]);
    assert!(eth0.contains("mtu 1450"), "{eth0}");
    let endpoint = cluster.pods[1].endpoint();
    cluster.nodes[0].apply("default/web", Some(service(VIP, &[endpoint])));
    for from in [cluster.pods[0].netns.as_fd(), cluster.nodes[0].netns()] {
        assert_eq!(ask(from, at(VIP, 80)).unwrap().0, "pod1");
    }
}

#[test]
fn a_tunnel_is_used_on_one_link_where_it_is_asked_for() {
    let cluster = Cluster::on_one_link(2, Transport::Vxlan);
    cluster.all_reach_all();
    assert!(cluster.shown(0).contains("10.244.2.0/24 via 10.244.2.1 dev podwright-vx4"), "{}", cluster.shown(0));
}

#[test]
fn what_is_damaged_is_mended_and_who_leaves_is_forgotten() {
    for transport in [Transport::Routes, Transport::Vxlan] {
        let cluster = Cluster::on_one_link(2, transport);
        cluster.all_reach_all();
        let node = &cluster.nodes[0];
        let _healing = node.network.heal(|_| ()).unwrap();
        let before = cluster.shown(0);
        let damages = match transport {
            Transport::Routes => vec!["ip route flush proto 112", "ip -6 route flush proto 112"],
            _ => vec![
                "ip link del podwright-vx4",
                "ip link set podwright-vx4 down",
                "ip route flush proto 112",
                "bridge fdb del 0e:70:0a:f4:02:01 dev podwright-vx4 dst 192.168.50.2 self",
                "ip neigh del 10.244.2.1 dev podwright-vx4",
                "bridge fdb add 0e:70:0a:f4:63:01 dev podwright-vx4 dst 192.168.50.99 self",
                "ip link set podwright-vx4 mtu 1300",
                "ip address add 10.99.0.1/32 dev podwright-vx4",
                "nft flush set ip podwright tunnels-v4",
            ],
        };
        for damage in damages {
            run_in(node.netns(), "sh", &["-c", damage]);
            let differs = |now: &String| without_index(now) == without_index(&before);
            eventually(|| cluster.shown(0), differs);
            cluster.all_reach_all();
        }
        // The peer's Node has gone.
        node.wait(node.network.set_facts(cluster.facts(0, &[]))).unwrap();
        assert_eq!(cluster.shown(0), "");
        assert!(ask(cluster.pods[0].netns.as_fd(), cluster.pods[1].endpoint()).is_err());
        cluster.tell(0, &cluster.peers_of(0));
        cluster.all_reach_all();
    }
}

/// Without rules that guard it a tunnel would let anybody in.
#[test]
fn no_way_leads_to_a_peer_of_whom_the_rules_do_not_know() {
    let cluster = Cluster::on_one_link(2, Transport::Vxlan);
    let (node, peers) = (&cluster.nodes[0], cluster.peers_of(0));
    node.wait(node.network.set_facts(cluster.facts(0, &[]))).unwrap();
    assert_eq!(cluster.shown(0), "");
    for family in ["ip", "ip6"] {
        run_in(node.netns(), "nft", &["delete", "table", family, "podwright"]);
    }
    for attempt in 1..=2 {
        let told = node.wait(node.network.set_facts(cluster.facts(0, &peers)));
        assert!(told.is_err(), "attempt {attempt}: what was refused is no less news then");
        assert_eq!(cluster.shown(0), "", "attempt {attempt}");
    }
    cluster.tell(0, &peers);
    cluster.all_reach_all();
}

/// The same at a node's end, of which the kernel may let others see each step.
#[test]
fn tunnels_go_before_the_rules_that_guard_them() {
    let mut cluster = Cluster::on_one_link(1, Transport::Vxlan);
    let peers: Vec<Peer> = (1..=500u16)
        .map(|n| Peer {
            name: format!("peer{n}"),
            addresses: vec!["192.168.51.1".parse().unwrap()],
            pod_ranges: vec![format!("10.{}.{}.0/24", 100 + (n >> 8), n & 255).parse().unwrap()],
            networks: Vec::new(),
        })
        .collect();
    cluster.tell(0, &peers);
    let netns = cluster.nodes[0].netns().try_clone_to_owned().unwrap();
    assert!(cluster.shown(0).contains("podwright-vx4"), "{}", cluster.shown(0));
    let watched = std::thread::spawn(move || {
        let rules = || run_in(netns.as_fd(), "sh", &["-c", "nft list chain ip podwright tunnels-in 2>&1 || true"]);
        eventually(rules, |shown| !shown.contains("accept"));
        run_in(netns.as_fd(), "cat", &["/proc/self/net/dev"])
    });
    cluster.pods.clear();
    let mut node = cluster.nodes.remove(0);
    node.remove();
    let links = watched.join().unwrap();
    assert!(links.contains("lo:") && !links.contains("podwright-vx4"), "{links}");
}

#[test]
fn a_node_has_tunnels_of_the_families_of_its_rules_alone() {
    let between = netlink::new_netns().unwrap();
    run_in(between.as_fd(), "ip", &["link", "add", "br0", "up", "type", "bridge"]);
    let folder = tempfile::tempdir().unwrap();
    let netns = NodeNetns::create_or_open(&folder.path().join("netns")).unwrap();
    for command in [
        "link add eth0 type veth peer name other",
        "address add fd00:50::1/64 dev eth0 nodad",
        "link set eth0 up",
        "link set other up",
    ] {
        run_in(netns.fd(), "ip", &command.split(' ').collect::<Vec<_>>());
    }
    let config = OverlayConfig { transport: Transport::Vxlan, ..OverlayConfig::default() };
    let node = Node::without_facts(folder, 1, &["10.244.1.0/24"], &["10.96.0.0/16"], &["fd00:50::1"], config);
    let peer = Peer {
        name: "b".to_owned(),
        addresses: vec!["fd00:50::2".parse().unwrap()],
        pod_ranges: vec!["10.244.2.0/24".parse().unwrap()],
        networks: Vec::new(),
    };
    let cluster = Cluster { nodes: vec![node], pods: Vec::new(), _between: between };
    cluster.tell(0, &[peer]);
    assert_eq!(cluster.shown(0), "", "there is no table of IPv6 that would guard it");
}

/// A link that was made anew has another number.
fn without_index(shown: &str) -> Vec<String> {
    let mut lines: Vec<String> = shown
        .lines()
        .map(|line| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':').to_owned())
        .collect();
    lines.sort();
    lines
}

#[test]
fn a_restart_changes_nothing_and_the_mtu_stays() {
    let mut cluster = Cluster::across_a_router(2, Transport::Auto);
    cluster.all_reach_all();
    let before = cluster.shown(0);
    let (_, mut held) = hold(cluster.pods[0].netns.as_fd(), cluster.pods[1].endpoint()).unwrap();
    cluster.nodes[0].restart();
    let healing = cluster.nodes[0].network.heal(|_| ()).unwrap();
    let netns = cluster.pods[0].netns.try_clone().unwrap();
    cluster.nodes[0].network.adopt("pod0", netns, &JournalWriter::none()).unwrap();
    // The peers are not known yet: a server that is away takes nothing.
    std::thread::sleep(Duration::from_millis(800));
    assert_eq!((cluster.shown(0), cluster.mtu_of_pods()), (before.clone(), vec![1450; 2]));
    cluster.tell(0, &cluster.peers_of(0));
    assert_eq!(cluster.shown(0), before);
    assert_eq!(echo(&mut held, "still").unwrap(), "pod1 still");
    // A smaller uplink: Pods that are there follow.
    run_in(cluster.nodes[0].netns(), "ip", &["link", "set", "eth0", "mtu", "1400"]);
    eventually(|| cluster.mtu_of_pods(), |mtu| mtu == &[1350, 1450]);
    let eth0 = || run_in(cluster.pods[0].netns.as_fd(), "ip", &["link", "show", "eth0"]);
    eventually(eth0, |shown| shown.contains("mtu 1350"));
    drop(healing);
    cluster.nodes[0].remove();
}

/// A datagram in a frame in VXLAN: what a tunnel's other end sends.
fn forged(from: Ipv4Addr, to: Ipv4Addr, port: u16, text: &[u8]) -> Vec<u8> {
    let mut udp =
        [&1234u16.to_be_bytes()[..], &port.to_be_bytes(), &(8 + text.len() as u16).to_be_bytes(), &[0, 0]].concat();
    udp.extend_from_slice(text);
    let length = (20 + udp.len() as u16).to_be_bytes();
    let mut ip = [&[0x45, 0][..], &length, &[0, 1, 0, 0, 64, 17, 0, 0], &from.octets(), &to.octets()].concat();
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !(((sum >> 16) + (sum & 0xffff)) as u16);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let vni = VNI.to_be_bytes();
    let vxlan = [0x08, 0, 0, 0, vni[1], vni[2], vni[3], 0];
    let frame = [&[0x0e, 0x70, 10, 244, 1, 1, 0x0e, 0x70, 10, 244, 3, 1][..], &[0x08, 0x00]].concat();
    [&vxlan[..], &frame, &ip, &udp].concat()
}

fn v4(address: IpAddr) -> Ipv4Addr {
    let IpAddr::V4(address) = address else { panic!("{address} is no address of IPv4") };
    address
}

#[test]
fn a_packet_from_another_nodes_range_is_not_heard() {
    let cluster = Cluster::across_a_router(3, Transport::Auto);
    cluster.all_reach_all();
    let victim = &cluster.pods[0];
    let inbox = netlink::in_netns(victim.netns.as_fd(), || UdpSocket::bind("0.0.0.0:9999")).unwrap().unwrap();
    inbox.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let heard = || {
        let mut buffer = [0; 64];
        inbox
            .recv_from(&mut buffer)
            .ok()
            .map(|(length, from)| (String::from_utf8_lossy(&buffer[..length]).into_owned(), from.ip()))
    };
    let tunnel = SocketAddr::new(cluster.nodes[0].network.addresses()[0], PORT);
    let send = |netns: BorrowedFd<'_>, from: IpAddr, text: &str| {
        let socket = netlink::in_netns(netns, || UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
        let _ = socket.send_to(&forged(v4(from), v4(victim.ip()), 9999, text.as_bytes()), tunnel);
    };
    let evil = &cluster.nodes[2];
    let own = cluster.pods[2].ip();
    send(evil.netns(), own, "its own");
    assert_eq!(heard(), Some(("its own".to_owned(), own)), "so the frame is right");
    for (from, text) in [
        (cluster.pods[1].ip(), "another node's Pod"),
        (victim.ip(), "the victim itself"),
        (cluster.nodes[1].network.addresses()[0], "another node"),
        ("10.96.0.10".parse().unwrap(), "a Service"),
        ("203.0.113.1".parse().unwrap(), "anybody"),
    ] {
        send(evil.netns(), from, text);
        assert_eq!(heard(), None, "{text}");
    }
    // A Pod's own frames would leave as its node's.
    send(cluster.pods[2].netns.as_fd(), own, "a Pod");
    assert_eq!(heard(), None);
    // The same node's packets on another number are not ours to judge; what is genuine still comes.
    send(evil.netns(), own, "again");
    assert_eq!(heard(), Some(("again".to_owned(), own)));
    // Ranges of several lengths: the rest of what would be a longer one is another node's, and its way back leads through the tunnel.
    let mut peers = cluster.peers_of(0);
    peers[0].pod_ranges.push("10.244.3.128/25".parse().unwrap());
    peers[1].pod_ranges = vec!["10.244.3.0/25".parse().unwrap()];
    cluster.tell(0, &peers);
    let others: IpAddr = "10.244.3.200".parse().unwrap();
    send(evil.netns(), others, "the other half's");
    assert_eq!(heard(), None);
    send(cluster.nodes[1].netns(), others, "its own half");
    assert_eq!(heard(), Some(("its own half".to_owned(), others)), "who has it may send from it");
    send(evil.netns(), own, "still");
    assert_eq!(heard(), Some(("still".to_owned(), own)));
}

#[test]
fn a_source_that_leads_elsewhere_is_not_heard_on_a_shared_link() {
    let cluster = Cluster::on_one_link(2, Transport::Auto);
    cluster.all_reach_all();
    // The machine is not strict by itself.
    run_in(cluster.nodes[0].netns(), "sh", &["-c", "echo 0 > /proc/sys/net/ipv4/conf/eth0/rp_filter"]);
    // A machine on the link, with the address of a Pod of the node that it sends to.
    let evil = cluster.nodes[1].netns();
    for address in ["10.244.1.99/32", "fd00:244:1::99/128"] {
        run_in(evil, "ip", &["address", "add", address, "dev", "lo", "nodad"]);
    }
    let inbox = netlink::in_netns(cluster.pods[0].netns.as_fd(), || UdpSocket::bind("[::]:9999")).unwrap().unwrap();
    inbox.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let froms =
        [("10.244.1.99:0", false), ("192.168.50.2:0", true), ("[fd00:244:1::99]:0", false), ("[fd00:50::2]:0", true)];
    for (from, comes) in froms {
        let to = SocketAddr::new(cluster.pods[0].ips[usize::from(from.starts_with('['))], 9999);
        let socket = netlink::in_netns(evil, || UdpSocket::bind(from)).unwrap().unwrap();
        socket.send_to(b"!", to).unwrap();
        assert_eq!(inbox.recv_from(&mut [0; 8]).is_ok(), comes, "{from}");
    }
}

#[test]
fn a_link_of_the_node_is_not_mistaken_for_a_pods() {
    assert!(!links::is_pod_link("podwright-vx4"));
}
