//! Damage to the kernel's state of the node's network: tables, routes, links, addresses, neighbours, settings, sockets.

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use super::{Row, TIMEOUT, World, timely};
use crate::support::{contains, eventually, netns::within};

/// The network namespace for a command; or the Pod's IPC namespace.
#[derive(Clone, Copy)]
enum Of {
    Node,
    Pod,
    PodIpc,
}
use Of::{Node, Pod, PodIpc};

/// The expected output after the repair.
#[derive(Clone, Copy)]
enum Shows {
    Has(&'static str),
    Lacks(&'static str),
}
use Shows::{Has, Lacks};

/// What is damaged, where, by which command, and which one shows it. `{ip}` and `{link}` are a Pod's, `{vip}` its Service's,
/// `{dns}` the cluster's name server.
const DAMAGE: &[(&str, Of, &str, &str, Shows)] = &[
    ("table", Node, "nft delete table ip podwright", "nft list map ip podwright cluster-ips", Has("{vip}")),
    ("map", Node, "nft flush map ip podwright services", "nft list map ip podwright services", Has("goto")),
    (
        "element",
        Node,
        "nft delete element ip podwright cluster-ips { {vip} . tcp . 80 }",
        "nft list map ip podwright cluster-ips",
        Has("{vip} . tcp . 80"),
    ),
    (
        "foreign element",
        Node,
        "nft add element ip podwright cluster-ips { 10.96.250.250 . tcp . 80 : 0x7 }",
        "nft list map ip podwright cluster-ips",
        Lacks("10.96.250.250"),
    ),
    ("rule", Node, "nft flush chain ip podwright service", "nft list chain ip podwright service", Has("goto balance")),
    ("route of a Pod, deleted", Node, "ip route del {ip}", "ip route show {ip}", Has("{link}")),
    ("route of a Pod, changed", Node, "ip route replace {ip} dev lo", "ip route show {ip}", Has("{link}")),
    ("neighbour", Node, "ip neigh del {ip} dev {link}", "ip neigh show {ip} nud permanent", Has("lladdr")),
    ("veth, deleted", Node, "ip link del {link}", "ip route show {ip}", Has("{link}")),
    ("veth, down", Node, "ip link set {link} down", "ip route show {ip}", Has("{link}")),
    ("veth, another MTU", Node, "ip link set {link} mtu 576", "ip link show {link}", Has("mtu 1500")),
    ("veth, another alias", Node, "ip link set {link} alias mine", "ip link show {link}", Has("alias podwright/")),
    ("loopback, down", Node, "ip link set lo down", "ip link show lo", Has("UP")),
    ("address in the Pod", Pod, "ip addr del {ip}/32 dev eth0", "ip addr show eth0", Has("{ip}")),
    ("route in the Pod", Pod, "ip route del default", "ip route", Has("default")),
    (
        "neighbour in the Pod",
        Pod,
        "ip neigh del 169.254.1.1 dev eth0",
        "ip neigh show 169.254.1.1 nud permanent",
        Has("lladdr"),
    ),
    ("link in the Pod, down", Pod, "ip link set eth0 down", "ip route", Has("default")),
    ("link in the Pod, deleted", Pod, "ip link del eth0", "ip route", Has("default")),
    ("sysctl ip_forward", Node, "SYSCTL net/ipv4/ip_forward 0", "SYSCTL net/ipv4/ip_forward", Has("1")),
    (
        "sysctl rp_filter of all",
        Node,
        "SYSCTL net/ipv4/conf/all/rp_filter 2",
        "SYSCTL net/ipv4/conf/all/rp_filter",
        Has("0"),
    ),
    (
        "sysctl rp_filter of a link",
        Node,
        "SYSCTL net/ipv4/conf/{link}/rp_filter 0",
        "SYSCTL net/ipv4/conf/{link}/rp_filter",
        Has("1"),
    ),
    (
        "sysctl forwarding of a link",
        Node,
        "SYSCTL net/ipv4/conf/{link}/forwarding 0",
        "SYSCTL net/ipv4/conf/{link}/forwarding",
        Has("1"),
    ),
    (
        "sysctl of a Pod",
        Pod,
        "SYSCTL net/ipv4/ip_unprivileged_port_start 1024",
        "SYSCTL net/ipv4/ip_unprivileged_port_start",
        Has("80"),
    ),
    (
        "sysctl of a Pod, of two numbers",
        Pod,
        "SYSCTL net/ipv4/ping_group_range 5 7",
        "SYSCTL net/ipv4/ping_group_range",
        Has("1000"),
    ),
    (
        "sysctl of a Pod, not of its network",
        PodIpc,
        "SYSCTL kernel/shm_rmid_forced 0",
        "SYSCTL kernel/shm_rmid_forced",
        Has("1"),
    ),
    ("address of the DNS", Node, "ip addr del {dns}/32 dev lo", "ip addr show lo", Has("{dns}")),
    ("DNS listener, ended", Node, "ss -K -ltn sport = :53", "ss -ltn sport = :53", Has("{dns}:53")),
];

impl World {
    fn filled(&self, text: &str) -> String {
        let vip = self.service.ip().to_string();
        [("{ip}", self.ip.as_str()), ("{link}", self.link.as_str()), ("{vip}", vip.as_str()), ("{dns}", &self.dns)]
            .iter()
            .fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    /// Runs a command of the table: `SYSCTL NAME [VALUE]` reads or writes a file that depends on the opener's namespace.
    fn at(&self, of: Of, command: &str) -> Result<String, String> {
        let netns = match of {
            Node => self.node.netns(),
            Pod => self.pod.clone(),
            PodIpc => format!("/proc/{}/ns/ipc", self.pid).into(),
        };
        let Some(sysctl) = command.strip_prefix("SYSCTL ") else { return self.inside(&netns, command) };
        let (name, value) = sysctl.split_once(' ').map_or((sysctl, None), |(name, value)| (name, Some(value)));
        let path = format!("/proc/sys/{name}");
        let done = within(&netns, || match value {
            Some(value) => std::fs::write(&path, value).map(|()| String::new()),
            None => std::fs::read_to_string(&path),
        });
        done.map_err(|e| format!("{path}: {e}"))
    }

    /// A name of the cluster is resolved for a Pod.
    pub fn resolves(&self) -> Result<(), String> {
        let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in ["web", "default", "svc", "cluster", "local"] {
            // Each is shorter than 64 bytes.
            question.push(label.len() as u8);
            question.extend(label.bytes());
        }
        question.extend([0, 0, 1, 0, 1]);
        let asked = within(&self.client, || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_read_timeout(Some(Duration::from_millis(500)))?;
            socket.send_to(&question, (self.dns.as_str(), 53))?;
            let mut answer = [0; 512];
            socket.recv(&mut answer).map(|length| answer[..length].to_vec())
        });
        let answer = asked.map_err(|e| format!("{}: {e}", self.dns))?;
        let std::net::IpAddr::V4(wanted) = self.service.ip() else { return Err("an IPv4 Service".into()) };
        if answer.ends_with(&wanted.octets()) { Ok(()) } else { Err(format!("{answer:?}")) }
    }
}

#[test]
fn the_network_is_mended() {
    let world = World::new();
    let rows = DAMAGE.iter().map(|(what, of, damage, shown, shows)| {
        let (of, damage, shown) = (*of, world.filled(damage), world.filled(shown));
        let wanted = match shows {
            Has(text) | Lacks(text) => world.filled(text),
        };
        let is_to_have = matches!(shows, Has(_));
        let sound = move |world: &World| {
            let found = world.at(of, &shown)?;
            match (contains(&found, &wanted), is_to_have) {
                (Ok(()), false) => Err(format!("{wanted:?} is in:\n{found}")),
                (Err(why), true) => Err(why),
                _ => Ok(()),
            }
        };
        let what = (*what).to_owned();
        Row::new(what, move |world| drop(world.at(of, &damage).unwrap()), sound)
    });
    let rows = rows.collect();
    world.heals(rows);
    // A UDP socket that was shut down stays, and its next receive fails: this cannot be observed.
    let begun = Instant::now();
    world.at(Node, "ss -K -uan sport = :53").unwrap();
    eventually("names are resolved", TIMEOUT, || world.resolves());
    timely("DNS socket, ended", begun.elapsed());
    world.end(&["NetworkRestored"]);
}
