//! Addresses of load balancers on a link: one node answers for each, another one once it has died, and nobody can be made to by
//! whatever is sent; what comes to such an address leads to its Service, or is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_net::announce::{Announced, Announcer, Wanted};
use podwright_net::netlink::{self, Frames};
use podwright_net::{IpNet, NodeNetns};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::net_world::*;

const CLUSTER: u64 = 7;
const ADDRESSES: [&str; 4] = ["192.0.2.9", "192.0.2.77", "2001:db8::9", "2001:db8::77"];
const HEARTBEAT: u16 = 0x88b5;
/// A node of this age goes before those that have just come.
const OLD: Duration = Duration::from_secs(600);

/// A machine on the link.
struct Machine {
    netns: OwnedFd,
    mac: String,
}

/// A node that announces, until it is dropped: then it has died, and says nothing.
struct Node {
    runtime: Option<Runtime>,
    announcer: Option<Announcer>,
    announced: watch::Receiver<Announced>,
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its tasks are gone before its announcer is: it does not take its leave.
        self.runtime.take().unwrap().shutdown_background();
        drop(self.announcer.take());
    }
}

/// A link with machines: the bridge is in a namespace of its own.
struct Wire {
    between: OwnedFd,
}

impl Wire {
    fn new() -> Wire {
        let between = netlink::new_netns().unwrap();
        run_in(between.as_fd(), "ip", &["link", "add", "br0", "up", "type", "bridge"]);
        Wire { between }
    }

    fn machine(&self, number: usize) -> Machine {
        let netns = netlink::new_netns().unwrap();
        podwright_net::links::loopback_up(netns.as_fd()).unwrap();
        let port = format!("port{number}");
        let there = format!("/proc/{}/fd/{}", std::process::id(), self.between.as_raw_fd());
        let ip = |arguments: &str| run_in(netns.as_fd(), "ip", &arguments.split(' ').collect::<Vec<_>>());
        ip(&format!("link add eth0 type veth peer name {port} netns {there}"));
        ip(&format!("addr add 192.0.2.{number}/24 dev eth0"));
        ip(&format!("addr add 2001:db8::{number}/64 dev eth0 nodad"));
        ip("link set eth0 up");
        run_in(self.between.as_fd(), "ip", &["link", "set", &port, "master", "br0", "up"]);
        let link = ip("-o link show eth0");
        let mac = link.split(" link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        Machine { netns, mac }
    }
}

fn wanted(names: &[&str]) -> Wanted {
    let candidates: Arc<BTreeSet<String>> = Arc::new(names.iter().map(|name| (*name).to_owned()).collect());
    let addresses = ADDRESSES.iter().map(|address| (address.parse().unwrap(), candidates.clone())).collect();
    Wanted { cluster: CLUSTER, addresses, ..Wanted::default() }
}

impl Node {
    fn start(machine: &Machine, name: &str, wanted: Wanted) -> Node {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let netns = NodeNetns::from_fd(machine.netns.try_clone().unwrap()).unwrap();
        let announcer = {
            let _inside = runtime.enter();
            Announcer::start(netns, name)
        };
        announcer.want(wanted);
        let announced = announcer.announced();
        Node { runtime: Some(runtime), announcer: Some(announcer), announced }
    }

    fn has(&self, address: &str) -> bool {
        self.announced.borrow().contains_key(&address.parse::<IpAddr>().unwrap())
    }
}

/// Waits until each address has one node, and returns whose it is.
fn owners(nodes: &BTreeMap<&'static str, Node>) -> BTreeMap<&'static str, &'static str> {
    let who =
        |address: &str| nodes.iter().filter(|(_, node)| node.has(address)).map(|(name, _)| *name).collect::<Vec<_>>();
    let all = eventually(|| ADDRESSES.map(who), |all| all.iter().all(|who| who.len() == 1));
    ADDRESSES.into_iter().zip(all.into_iter().map(|who| who[0])).collect()
}

/// Where a machine would send packets for an address: as it knows already, or has asked.
fn neighbour(client: &Machine, address: &str, asks: bool) -> Option<String> {
    if asks {
        let any = if address.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = netlink::in_netns(client.netns.as_fd(), || std::net::UdpSocket::bind(any)).unwrap().unwrap();
        let _ = socket.send_to(b"?", at(address, 9));
    }
    let known = run_in(client.netns.as_fd(), "ip", &["neigh", "show", address]);
    known.split(" lladdr ").nth(1).map(|rest| rest.split(' ').next().unwrap_or("").to_owned())
}

fn three() -> (Wire, Vec<Machine>, Machine, BTreeMap<&'static str, Node>) {
    let wire = Wire::new();
    let machines: Vec<Machine> = (1..=3).map(|number| wire.machine(number)).collect();
    let client = wire.machine(250);
    let names = ["n1", "n2", "n3"];
    let nodes = names.into_iter().zip(&machines);
    let nodes = nodes.map(|(name, machine)| (name, Node::start(machine, name, wanted(&names)))).collect();
    (wire, machines, client, nodes)
}

fn mac_of<'a>(machines: &'a [Machine], name: &str) -> &'a str {
    &machines[name[1..].parse::<usize>().unwrap() - 1].mac
}

#[test]
fn one_node_answers_for_each_address_and_another_one_once_it_has_died() {
    let (wire, machines, client, mut nodes) = three();
    let before = owners(&nodes);
    for (address, name) in &before {
        let mac = mac_of(&machines, name);
        eventually(|| neighbour(&client, address, true), |found| found.as_deref() == Some(mac));
    }
    // 1. One dies, whose addresses the link hears to be others': without asking.
    let (lost, victim) = before.iter().next().map(|(address, name)| (*address, *name)).unwrap();
    let begin = Instant::now();
    drop(nodes.remove(victim));
    eventually(|| neighbour(&client, lost, false), |found| found.as_deref() != Some(mac_of(&machines, victim)));
    let took = begin.elapsed();
    let after = owners(&nodes);
    for (address, name) in &after {
        assert!(before[address] == *name || before[address] == victim, "{address} has moved from a node that lives");
        let mac = mac_of(&machines, name);
        eventually(|| neighbour(&client, address, true), |found| found.as_deref() == Some(mac));
    }
    println!("failover of {lost} after {took:?}");
    // 2. It comes back, and gets its own again later: until then the others have them.
    let machine = &machines[victim[1..].parse::<usize>().unwrap() - 1];
    nodes.insert(victim, Node::start(machine, victim, wanted(&["n1", "n2", "n3"])));
    eventually(|| owners(&nodes), |now| *now == before);
    eventually(|| neighbour(&client, lost, true), |found| found.as_deref() == Some(mac_of(&machines, victim)));
    // 3. One takes its leave: what it has moves at once.
    let node = nodes.get_mut(victim).unwrap();
    drop(node.announcer.take());
    eventually(|| neighbour(&client, lost, false), |found| found.as_deref() != Some(mac_of(&machines, victim)));
    // 4. The link of one is cut: it is as dead, to the others.
    let survivors: Vec<&str> = nodes.keys().copied().filter(|name| *name != victim).collect();
    let port = format!("port{}", &survivors[0][1..]);
    run_in(wire.between.as_fd(), "ip", &["link", "set", &port, "down"]);
    eventually(|| ADDRESSES.iter().all(|address| nodes[survivors[1]].has(address)), |all| *all);
    for address in ADDRESSES {
        let mac = mac_of(&machines, survivors[1]);
        eventually(|| neighbour(&client, address, true), |found| found.as_deref() == Some(mac));
    }
    // 5. It is mended, and they agree again.
    run_in(wire.between.as_fd(), "ip", &["link", "set", &port, "up"]);
    nodes.remove(victim);
    let agreed = owners(&nodes);
    for (address, name) in &agreed {
        let mac = mac_of(&machines, name);
        eventually(|| neighbour(&client, address, true), |found| found.as_deref() == Some(mac));
    }
}

/// Who may announce alone does, and what is wanted no longer is answered for by nobody.
/// Containers' links lead to no other machine: those named so, and those that have Pods' addresses alone.
#[test]
fn nothing_is_announced_on_links_of_containers() {
    let netns = netlink::new_netns().unwrap();
    let ip = |words: &str| run_in(netns.as_fd(), "ip", &words.split(' ').collect::<Vec<_>>());
    let links = [
        ("eth0", "192.168.50.1/24"),
        ("docker0", "172.17.0.1/16"),
        ("br-1f2e3d4c5b6a", "172.18.0.1/16"),
        ("br-lan", "192.168.51.1/24"),
        ("cni0", "10.88.0.1/16"),
        ("mine", "10.244.1.1/24"),
        ("both", "10.244.1.2/24"),
    ];
    for (number, (name, address)) in links.into_iter().enumerate() {
        ip(&format!("link add {name} up type veth peer name end{number}"));
        ip(&format!("link set end{number} up"));
        ip(&format!("address add {address} dev {name}"));
    }
    ip("address add 192.168.52.1/24 dev both");
    let pods: Vec<IpNet> = vec!["10.244.1.0/24".parse().unwrap()];
    let names = |pods: &[IpNet]| {
        let found = netlink::in_netns(netns.as_fd(), || netlink::uplinks(pods)).unwrap().unwrap();
        // The other ends have link-local addresses of IPv6.
        found.into_iter().map(|link| link.name).filter(|name| !name.starts_with("end")).collect::<BTreeSet<String>>()
    };
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
    eventually(|| names(&[]), |found| *found == set(&["eth0", "br-lan", "both", "mine"]));
    assert_eq!(names(&pods), set(&["eth0", "br-lan", "both"]));
}

#[test]
fn what_is_wanted_is_followed() {
    let (_wire, machines, client, nodes) = three();
    owners(&nodes);
    let only = wanted(&["n2"]);
    nodes.values().for_each(|node| node.announcer.as_ref().unwrap().want(only.clone()));
    eventually(|| owners(&nodes), |owners| owners.values().all(|name| *name == "n2"));
    eventually(|| neighbour(&client, ADDRESSES[0], true), |found| found.as_deref() == Some(mac_of(&machines, "n2")));
    // One that has lost the control plane may not know who else may: it is silent.
    let both = wanted(&["n1", "n2"]);
    nodes.values().for_each(|node| node.announcer.as_ref().unwrap().want(both.clone()));
    nodes["n2"].announcer.as_ref().unwrap().set_connected(false);
    eventually(|| owners(&nodes), |owners| owners.values().all(|name| *name == "n1"));
    let nothing = Wanted { cluster: CLUSTER, ..Wanted::default() };
    nodes.values().for_each(|node| node.announcer.as_ref().unwrap().want(nothing.clone()));
    eventually(|| nodes.values().all(|node| node.announced.borrow().is_empty()), |gone| *gone);
    run_in(client.netns.as_fd(), "ip", &["neigh", "flush", "all"]);
    assert_eq!(neighbour(&client, ADDRESSES[0], true), None);
}

fn beat(cluster: u64, name: &str, age: Duration) -> Vec<u8> {
    let head = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &HEARTBEAT.to_be_bytes(), b"podwright\x01"].concat();
    let age = u32::try_from(age.as_millis()).unwrap().to_be_bytes();
    [&head[..], &cluster.to_be_bytes(), &age, &[1, name.len() as u8], name.as_bytes()].concat()
}

/// Frames of all kinds and lengths, and heartbeats of nodes of another cluster, or of none.
#[test]
fn whatever_is_sent_on_the_link_takes_no_address_away() {
    let wire = Wire::new();
    let (machine, client) = (wire.machine(1), wire.machine(250));
    let (begin, node) = (Instant::now(), Node::start(&machine, "n1", wanted(&["n1", "n2"])));
    eventually(|| ADDRESSES.iter().all(|address| node.has(address)), |all| *all);
    let sockets = netlink::in_netns(client.netns.as_fd(), || {
        let link = netlink::uplinks(&[]).unwrap().remove(0);
        [HEARTBEAT, 0x0806].map(|kind| (kind, Frames::open(&link, kind).unwrap()))
    });
    let sockets = sockets.unwrap();
    for n in 0..4000usize {
        for (kind, socket) in &sockets {
            let noise: Vec<u8> = (0..n % 300).map(|byte| (byte * 31 + n * 7) as u8).collect();
            let head = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &kind.to_be_bytes()].concat();
            let _ = socket.send(&[head, noise].concat());
        }
        let _ = sockets[0].1.send(&beat(CLUSTER + 1, "n2", OLD));
        let _ = sockets[0].1.send(&beat(CLUSTER, &format!("stranger{n}"), OLD));
    }
    // It has read them all: one that counts comes through behind them, and has its part, while one that is as old as those before
    // would have all. (Whoever is on the link can do that, as he can by ARP.)
    let (began, mut yields) = (Instant::now(), false);
    while !yields && began.elapsed() < Duration::from_secs(10) {
        assert!(ADDRESSES.iter().any(|address| node.has(address)));
        sockets[0].1.send(&beat(CLUSTER, "n2", begin.elapsed())).unwrap();
        yields = !ADDRESSES.iter().all(|address| node.has(address));
        std::thread::yield_now();
    }
    assert!(yields, "a node of the cluster is heard");
    eventually(|| ADDRESSES.iter().all(|address| node.has(address)), |all| *all);
    for address in ADDRESSES {
        eventually(|| neighbour(&client, address, true), |found| found.as_deref() == Some(&machine.mac));
    }
    assert_eq!(neighbour(&client, "192.0.2.200", true), None, "nobody has it");
}

fn timed_out(asked: std::io::Result<(String, IpAddr)>) -> bool {
    asked.is_err_and(|error| matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock))
}

fn ask_from(netns: BorrowedFd<'_>, ip: &str, port: u16) -> std::io::Result<(String, IpAddr)> {
    ask(netns, at(ip, port))
}

/// What a node that announces an address gets for it and no Service has is refused: forwarded, it would come back.
#[test]
fn what_no_service_has_of_an_address_is_refused() {
    let node = super::net_world::Node::single();
    let pod = node.server("web");
    let client = outsider(&node, "uplink", "192.168.77.1/24", "192.168.77.2/24");
    run_in(client.as_fd(), "ip", &["route", "add", "198.51.100.7", "via", "192.168.77.1"]);
    // The way of everything else is back to where it came from.
    run_in(node.netns(), "ip", &["route", "add", "default", "via", "192.168.77.2"]);
    let mut web = service("10.96.0.7", &[pod.endpoint()]);
    web.ports[0].external_ips = vec!["198.51.100.7".parse().unwrap()];
    web.whole = web.ports[0].external_ips.clone();
    node.load(&[("a/web", web.clone())]);
    assert_eq!(ask_from(client.as_fd(), "198.51.100.7", 80).unwrap().0, "web");
    let refused = ask_from(client.as_fd(), "198.51.100.7", 81).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    // Two have it, and one remains.
    let mut other = service("10.96.0.8", &[pod.endpoint()]);
    (other.ports[0].port, other.ports[0].external_ips) = (443, web.whole.clone());
    other.whole = web.whole.clone();
    node.load(&[("a/web", web), ("a/other", other.clone())]);
    node.load(&[("a/other", other)]);
    assert_eq!(ask_from(client.as_fd(), "198.51.100.7", 443).unwrap().0, "web");
    assert_eq!(ask_from(client.as_fd(), "198.51.100.7", 80).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// Without a pool a Service has ports of the node's own address, for those whom it permits.
#[test]
fn a_nodes_own_address_leads_to_a_service_for_those_whom_it_permits() {
    let node = super::net_world::Node::single();
    let pod = node.server("web");
    let client = outsider(&node, "uplink", "192.168.77.1/24", "192.168.77.2/24");
    let with_ranges = |ranges: &[&str]| {
        let mut web = service("10.96.0.7", &[pod.endpoint()]);
        web.ports[0].host_ips = vec!["192.168.77.1".parse().unwrap()];
        web.ports[0].source_ranges = ranges.iter().map(|range| range.parse::<IpNet>().unwrap()).collect();
        node.load(&[("a/web", web)]);
    };
    with_ranges(&[]);
    let seen = ask_from(client.as_fd(), "192.168.77.1", 80).unwrap();
    assert_eq!(seen, ("web".to_owned(), "192.168.77.2".parse().unwrap()));
    with_ranges(&["192.168.77.0/24"]);
    assert_eq!(ask_from(client.as_fd(), "192.168.77.1", 80).unwrap().0, "web");
    with_ranges(&["198.51.100.0/24"]);
    assert!(timed_out(ask_from(client.as_fd(), "192.168.77.1", 80)));
}
