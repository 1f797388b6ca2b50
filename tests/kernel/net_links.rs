//! Pod links: addresses, routes and neighbours that carry packets, and their removal.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use podwright_journal::JournalWriter;
use podwright_net::cni::CniConfig;
use podwright_net::overlay::OverlayConfig;
use podwright_net::{Network, NetworkConfig, links, netlink};

use super::net_world::*;

#[test]
fn pods_reach_each_other_and_their_node() {
    let node = Node::dual();
    let (a, b) = (node.server("pod-a"), node.server("pod-b"));
    let node_ip = node.network.addresses()[0];
    assert_eq!(ask(a.netns.as_fd(), b.endpoint()).unwrap(), ("pod-b".to_owned(), a.ip()));
    assert_eq!(ask(a.netns.as_fd(), b.endpoint6()).unwrap(), ("pod-b".to_owned(), a.ips[1]));
    assert_eq!(ask(node.netns(), b.endpoint()).unwrap(), ("pod-b".to_owned(), node_ip));
    assert_eq!(ask(node.netns(), b.endpoint6()).unwrap(), ("pod-b".to_owned(), node.network.addresses()[1]));
    node.serve(node.netns(), "node", 9000);
    assert_eq!(ask(a.netns.as_fd(), SocketAddr::new(node_ip, 9000)).unwrap(), ("node".to_owned(), a.ip()));
}

#[test]
fn pods_on_two_nodes_reach_each_other_with_their_own_addresses() {
    let (one, two) = Node::two();
    let (a, b) = (one.server("pod-a"), two.server("pod-b"));
    assert_eq!(ask(a.netns.as_fd(), b.endpoint()).unwrap(), ("pod-b".to_owned(), a.ip()));
    assert_eq!(ask_udp(b.netns.as_fd(), a.endpoint()).unwrap(), ("pod-a".to_owned(), b.ip()));
    assert_eq!(ask(one.netns(), b.endpoint()).unwrap().1, "192.168.50.1".parse::<IpAddr>().unwrap());
}

#[test]
fn a_pod_to_the_outside_has_the_nodes_address() {
    let (one, _two) = Node::two();
    let outside = outsider(&one, "uplink", "203.0.113.1/24", "203.0.113.9/24");
    one.serve(outside.as_fd(), "internet", 443);
    let pod = one.pod("pod-a");
    let seen = ask(pod.netns.as_fd(), at("203.0.113.9", 443)).unwrap();
    assert_eq!(seen, ("internet".to_owned(), "203.0.113.1".parse().unwrap()));
}

/// Datagrams with another source than the Pod's own do not arrive: another Pod's, the node's, of either family, with any
/// `conf.all.rp_filter` (the larger value counts; 2 is the loose check).
#[test]
fn a_pod_cannot_lie_about_its_address() {
    let node = Node::dual();
    let (liar, victim, other) = (node.pod("liar"), node.pod("victim"), node.pod("other"));
    netlink::in_netns(node.netns(), || std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "2")).unwrap().unwrap();
    let lies = other.ips.iter().chain(node.network.addresses()).copied().chain(["fe80::1".parse().unwrap()]);
    for lie in lies.collect::<Vec<IpAddr>>() {
        let to = victim.ips[usize::from(lie.is_ipv6())];
        let bound = |netns: BorrowedFd<'_>, at: SocketAddr| {
            netlink::in_netns(netns, || UdpSocket::bind(at)).unwrap().unwrap_or_else(|e| panic!("{at}: {e}"))
        };
        let inbox = bound(victim.netns.as_fd(), SocketAddr::new(to, 0));
        inbox.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let honest = bound(liar.netns.as_fd(), SocketAddr::new(liar.ips[usize::from(lie.is_ipv6())], 0));
        let net = format!("{lie}/{}", if lie.is_ipv6() { 128 } else { 32 });
        let flag: &[&str] = if lie.is_ipv6() { &["nodad"] } else { &[] };
        run_in(liar.netns.as_fd(), "ip", &[&["addr", "add", &net, "dev", "eth0"], flag].concat());
        let from = match lie {
            IpAddr::V6(lie) if lie.is_unicast_link_local() => SocketAddrV6::new(lie, 0, 0, eth0_index(&liar)).into(),
            lie => SocketAddr::new(lie, 0),
        };
        let lying = bound(liar.netns.as_fd(), from);
        for (socket, what) in [(&lying, "a lie"), (&honest, "the truth")] {
            socket.send_to(what.as_bytes(), inbox.local_addr().unwrap()).unwrap();
        }
        let mut buffer = [0; 64];
        let length = inbox.recv(&mut buffer).unwrap_or_else(|e| panic!("as {lie}: {e}"));
        assert_eq!(String::from_utf8_lossy(&buffer[..length]), "the truth", "as {lie}");
    }
}

pub fn eth0_index(pod: &Pod) -> u32 {
    let shown = run_in(pod.netns.as_fd(), "ip", &["-o", "link", "show", "eth0"]);
    shown.split(':').next().and_then(|index| index.trim().parse().ok()).expect("ip shows a link's index first")
}

/// Each destination in fe80::/64 would take an entry in the kernel's single neighbour table: so there is no route.
#[test]
fn a_pods_link_has_no_addresses_but_the_pods_own() {
    for node in [Node::single(), Node::dual()] {
        let pod = node.pod("pod-a");
        let net = |arguments: &[&str]| run_in(pod.netns.as_fd(), "ip", arguments);
        assert_eq!(net(&["-6", "address", "show", "dev", "eth0", "scope", "link"]), "");
        assert_eq!(net(&["-6", "route", "show", "table", "all", "fe80::/64"]), "");
        let send = || {
            let socket = UdpSocket::bind("[::]:0").unwrap();
            for host in 100..200 {
                let to = std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host);
                let _ = socket.send_to(b"x", SocketAddrV6::new(to, 9, 0, eth0_index(&pod)));
            }
        };
        netlink::in_netns(pod.netns.as_fd(), send).unwrap();
        let known = net(&["-6", "neighbour", "show", "dev", "eth0"]);
        assert!(known.lines().all(|line| line.starts_with("fe80::1 ") && line.contains("PERMANENT")), "{known}");
    }
}

/// Without privileges a process can make its kernel treat each address as on-link (SO_BINDTODEVICE, SO_DONTROUTE). With resolution
/// each keeps an entry in the single neighbour table; without, it is evicted when needed.
#[test]
fn a_pod_has_its_own_kernel_ask_for_no_neighbours() {
    let node = Node::dual();
    let pod = node.server("pod-a");
    let send = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        setsockopt(&socket, sockopt::BindToDevice, &"eth0".into()).unwrap();
        setsockopt(&socket, sockopt::DontRoute, &true).unwrap();
        (0..200).filter(|host| socket.send_to(b"x", (Ipv4Addr::new(198, 18, 0, *host), 9)).is_ok()).count()
    };
    assert_eq!(netlink::in_netns(pod.netns.as_fd(), send).unwrap(), 200);
    let known = run_in(pod.netns.as_fd(), "ip", &["neighbour", "show", "nud", "all", "dev", "eth0"]);
    let kept = |line: &&str| line.contains("INCOMPLETE") || line.contains("FAILED");
    assert_eq!(known.lines().filter(kept).count(), 0, "{known}");
    assert!(known.lines().filter(|line| line.contains("NOARP")).count() >= 200, "{known}");
    assert!(ask(node.netns(), pod.endpoint()).is_ok() && ask(node.netns(), pod.endpoint6()).is_ok());
}

#[test]
fn attaching_twice_keeps_the_link_and_its_connections() {
    let node = Node::single();
    let (client, server) = (node.pod("client"), node.server("server"));
    let before = node.wait(node.network.list()).unwrap();
    let (_, mut held) = hold(client.netns.as_fd(), server.endpoint()).unwrap();
    for pod in [&client, &server] {
        let journal = JournalWriter::none();
        let again = node.network.attach(&pod.uid, pod.netns.try_clone().unwrap(), &journal);
        assert_eq!(node.wait(again).unwrap().addresses, pod.ips);
    }
    assert_eq!(node.wait(node.network.list()).unwrap(), before);
    assert_eq!(echo(&mut held, "still here").unwrap(), "server still here");
}

#[test]
fn an_interrupted_attach_is_finished() {
    let node = Node::single();
    let server = node.server("server");
    let pod = node.pod("pod-a");
    // As if the agent had died after creating the pair, and again in a new sandbox of the same Pod.
    run_in(pod.netns.as_fd(), "ip", &["addr", "flush", "dev", "eth0"]);
    run_in(pod.netns.as_fd(), "ip", &["link", "set", "eth0", "down"]);
    node.wait(node.network.attach("pod-a", pod.netns.try_clone().unwrap(), &JournalWriter::none())).unwrap();
    assert!(ask(pod.netns.as_fd(), server.endpoint()).is_ok());
    let fresh = netlink::new_netns().unwrap();
    node.wait(node.network.attach("pod-a", fresh.try_clone().unwrap(), &JournalWriter::none())).unwrap();
    assert_eq!(ask(fresh.as_fd(), server.endpoint()).unwrap().1, pod.ip());
    assert_eq!(links::pod_details(pod.netns.as_fd()).unwrap(), None);
}

#[test]
fn a_restarted_agent_finds_its_pods_and_removes_the_dead() {
    let mut node = Node::single();
    let (kept, _dead) = (node.server("kept"), node.pod("dead"));
    let inode = node.network.netns().inode().unwrap();
    node.restart();
    assert_eq!(node.network.netns().inode().unwrap(), inode);
    let removed = node.wait(node.network.retain(BTreeSet::from(["kept".to_owned()]))).unwrap();
    assert_eq!(removed, ["dead"]);
    let left: Vec<_> = node.wait(node.network.list()).unwrap().into_iter().map(|l| l.owner).collect();
    assert_eq!(left, ["kept"]);
    assert_eq!(node.network.addresses_of("kept"), Some(kept.ips.clone()));
    assert_eq!(node.network.addresses_of("dead"), None);
    assert!(ask(node.netns(), kept.endpoint()).is_ok());
}

#[test]
fn inspection_shows_both_ends() {
    let node = Node::dual();
    let pod = node.pod("11f2c3d4-5566-4788-99aa-bbccddeeff00");
    let seen = node.wait(node.network.inspect(&pod.uid, Some(pod.netns.try_clone().unwrap()))).unwrap();
    let (host, inside) = (seen.host.unwrap(), seen.pod.unwrap());
    assert_eq!((host.name.as_str(), host.peer_index), ("pw11f2c3d45566", inside.index));
    assert_eq!((inside.name.as_str(), inside.peer_index), ("eth0", host.index));
    assert!(host.routes.contains(&format!("{} src {}", pod.ip(), node.network.addresses()[0])), "{:?}", host.routes);
    assert!(inside.routes.contains(&"default via 169.254.1.1".to_owned()), "{:?}", inside.routes);
    assert!(inside.routes.contains(&"default via fe80::1".to_owned()), "{:?}", inside.routes);
    assert!(inside.addresses.iter().any(|a| a.addr() == pod.ips[1]), "{:?}", inside.addresses);
}

#[test]
fn nothing_is_left_of_a_detached_pod_and_of_a_removed_node() {
    let mut node = Node::single();
    let pod = node.pod("pod-a");
    let links_before = run_in(node.netns(), "ip", &["-o", "link"]).lines().count();
    for _ in 0..2 {
        node.wait(node.network.detach("pod-a", &JournalWriter::none())).unwrap();
    }
    assert_eq!(run_in(node.netns(), "ip", &["-o", "link"]).lines().count(), links_before - 1);
    assert!(!run_in(node.netns(), "ip", &["route"]).contains(&pod.ip().to_string()));
    assert_eq!(node.network.addresses_of("pod-a"), None);
    assert_eq!(links::pod_details(pod.netns.as_fd()).unwrap(), None);
    let pin = node.folder.path().join("netns");
    let netns = node.netns().try_clone_to_owned().unwrap();
    node.remove();
    assert!(!pin.exists());
    assert_eq!(run_in(netns.as_fd(), "nft", &["list", "tables"]), "");
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(pin.to_str().unwrap()));
}

#[test]
fn the_journal_tells_what_was_done_for_a_pod() {
    let node = Node::single();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let journal = JournalWriter::open(&path, podwright_journal::Role::Net).unwrap().about("uid-1", 7);
    let netns = netlink::new_netns().unwrap();
    node.wait(node.network.attach("uid-1", netns, &journal)).unwrap();
    journal.flush();
    let records = podwright_journal::read(&path).unwrap();
    assert!(records.iter().all(|r| r.subject == "uid-1" && r.revision == 7));
    let told: Vec<_> = records.iter().map(|r| r.args.as_str()).collect();
    assert!(told.iter().any(|a| a.starts_with("add link pw")), "{told:?}");
}

#[test]
fn thirty_pods_at_once() {
    let node = Node::single();
    let pods: Vec<_> = (0..30).map(|n| (format!("pod-{n}"), netlink::new_netns().unwrap())).collect();
    let journal = JournalWriter::none();
    let started = std::time::Instant::now();
    let attached = node.wait(async {
        let all = pods.iter().map(|(uid, ns)| node.network.attach(uid, ns.try_clone().unwrap(), &journal));
        futures::future::join_all(all).await
    });
    let attaching = started.elapsed();
    let addresses: BTreeSet<_> = attached.into_iter().map(|a| a.unwrap().addresses[0]).collect();
    assert_eq!(addresses.len(), 30);
    let started = std::time::Instant::now();
    let detached = node.wait(async {
        futures::future::join_all(pods.iter().map(|(uid, _)| node.network.detach(uid, &journal))).await
    });
    assert!(detached.into_iter().all(|d| d.is_ok()));
    println!("30 attached in {attaching:?}, detached in {:?}", started.elapsed());
    assert_eq!(node.wait(node.network.list()).unwrap(), []);
}

#[test]
fn the_first_datagram_to_a_new_pod_arrives() {
    for _ in 0..5 {
        let node = Node::single();
        let pod = node.server("first");
        assert_eq!(ask_udp(node.netns(), pod.endpoint()).unwrap().0, "first");
        assert_eq!(ask_udp(pod.netns.as_fd(), pod.endpoint()).unwrap().0, "first");
    }
}

/// A node following one whose links used ARP disables it while Pods run. The kernel then drops all neighbours of the link, and the
/// Pod may have altered its own side.
#[test]
fn a_running_pod_is_not_cut_off_by_a_link_that_is_made_deaf() {
    let node = Node::dual();
    let pod = node.server("pod-a");
    let name = links::link_name("pod-a");
    run_in(node.netns(), "ip", &["link", "set", &name, "arp", "on"]);
    let shown = run_in(pod.netns.as_fd(), "ip", &["-o", "link", "show", "eth0"]);
    let mac = shown.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    for ip in &pod.ips {
        run_in(node.netns(), "ip", &["neighbour", "replace", &ip.to_string(), "dev", &name, "lladdr", mac]);
    }
    assert_eq!(ask(node.netns(), pod.endpoint()).unwrap().0, "pod-a");
    // Its own side cannot be completed: IPv6 addresses are rejected.
    let off = || std::fs::write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1");
    netlink::in_netns(pod.netns.as_fd(), off).unwrap().unwrap();
    let netns = pod.netns.try_clone().unwrap();
    node.wait(async { node.network.attach("pod-a", netns, &JournalWriter::none()).await }).unwrap_err();
    let link = run_in(node.netns(), "ip", &["-o", "link", "show", &name]);
    assert!(link.contains("NOARP"), "{link}");
    assert_eq!(ask(node.netns(), pod.endpoint()).unwrap().0, "pod-a");
}

#[test]
fn the_address_of_dns_is_not_the_nodes_own() {
    let folder = tempfile::tempdir().unwrap();
    let own = "192.0.2.7".parse().unwrap();
    let config = NetworkConfig {
        node: "node1".to_owned(),
        folder: folder.path().to_owned(),
        isolated: true,
        netns: None,
        addresses: vec![own],
        service_ranges: vec!["10.96.0.0/16".parse().unwrap()],
        dns: vec![own],
        conntrack_max: None,
        overlay: OverlayConfig::default(),
        cni: CniConfig::default(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let refused = runtime.block_on(Network::up(config)).err().map(|error| error.to_string());
    podwright_net::NodeNetns::remove(&folder.path().join("netns")).unwrap();
    assert_eq!(refused.as_deref(), Some("DNS (--cluster-dns) cannot be on 192.0.2.7: that is the node's own address"));
}

/// Removing a node on the host's network works without knowing its flags.
#[test]
fn what_was_put_on_loopback_goes_whoever_removes_the_node() {
    let (folder, netns) = (tempfile::tempdir().unwrap(), netlink::new_netns().unwrap());
    links::loopback_up(netns.as_fd()).unwrap();
    let config = |ranges: &[&str], dns: &str, address: &[&str]| NetworkConfig {
        node: "node".to_owned(),
        folder: folder.path().to_owned(),
        isolated: false,
        netns: None,
        addresses: address.iter().map(|address| address.parse().unwrap()).collect(),
        service_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        dns: vec![dns.parse().unwrap()],
        conntrack_max: None,
        overlay: OverlayConfig::default(),
        cni: CniConfig::default(),
    };
    let look = || {
        let all = ["ip address show dev lo", "ip route", "ip -6 route show dev lo"].map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            run_in(netns.as_fd(), words[0], &words[1..])
        });
        all.join("")
    };
    // Someone else's, which the node only uses.
    run_in(netns.as_fd(), "ip", &["address", "add", "198.51.100.7/32", "dev", "lo"]);
    let before = look();
    // The process of such a node is in the namespace itself.
    let inside = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let first = config(&["10.50.0.0/16", "fd00:50::/112"], "10.50.0.10", &["192.0.2.7"]);
        let second = config(&["fd00:60::/112"], "fd00:60::a", &["198.51.100.7", "2001:db8::7"]);
        for started in [first, second] {
            drop(runtime.block_on(Network::up(started)).unwrap());
        }
        let made = look();
        let others = config(&["10.96.0.0/16"], "10.96.0.10", &[]);
        let network = runtime.block_on(Network::open_to_remove(others)).unwrap();
        let errors = runtime.block_on(network.remove());
        assert!(errors.is_empty(), "{errors:?}");
        made
    };
    let made = netlink::in_netns(netns.as_fd(), inside).unwrap();
    for what in ["10.50.0.10/32", "192.0.2.7/32", "10.50.0.0/16", "fd00:60::a/128", "2001:db8::7/128", "fd00:60::/112"]
    {
        assert!(made.contains(what), "{what}: {made}");
    }
    assert_eq!(look(), before);
}
