//! Forged ICMP errors from a Pod, about connections that it is not an end of, and about packets that were never sent.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use super::network::{ip, ip_of, two};
use super::world::{NODE, OPEN, THEIRS, World};
use super::{Attack, TIMEOUT, Target, Try, Verdict, verdict};
use crate::support::{
    eventually,
    netns::{Server, at, within},
};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "errors-of-a-third",
        class: "spoofing",
        cves: &[],
        how: "a Pod tells another one by ICMP that its datagrams to a third one are too large, or that nobody is there; about a call to itself the same is believed",
        held: "errors about a connection come from its ends, as far as they come from Pods",
        attempt: Try::Code(of_a_third),
    },
    Attack {
        id: "errors-unsent",
        class: "spoofing",
        cves: &[],
        how: "a Pod tells its node the same about the node's call to a Service, and about answers to pings that the node has never sent, to addresses of the Pod's choice",
        held: "what conntrack calls invalid is dropped where it comes from a Pod",
        attempt: Try::Code(unsent),
    },
];

/// Where the attacker listens: errors about calls to it are accepted.
const OWN_PORT: u16 = 7002;

/// A Pod that sends errors.
struct Liar<'a> {
    world: &'a World,
    target: &'a Target,
    own: SocketAddr,
    _listener: UdpSocket,
}

impl<'a> Liar<'a> {
    fn new(world: &'a World, target: &'a Target, own: &str) -> Liar<'a> {
        let own = at(own, OWN_PORT);
        let listener = within(&world.node.netns_in(OPEN, target.id), || UdpSocket::bind(own).unwrap());
        Liar { world, target, own, _listener: listener }
    }

    /// Sends `from` an error about its packets to `to`.
    fn complain(&self, kind: &str, from: SocketAddr, to: SocketAddr) -> Result<(), String> {
        let [source, port] = [from.ip().to_string(), from.port().to_string()];
        let [destination, its_port] = [to.ip().to_string(), to.port().to_string()];
        let command = ["attack", "complain", kind, &source, &port, &destination, &its_port];
        let said = self.world.inside(self.target, OPEN, &command);
        if said.contains("sent 5") { Ok(()) } else { Err(said) }
    }

    /// Sends an error about a call to itself, and waits until the caller gets it: earlier ones have arrived, too.
    fn is_believed(&self, netns: &Path, from: SocketAddr) -> Result<(), String> {
        let socket = connected(netns, from, self.own);
        socket.send(b"?").map_err(|e| e.to_string())?;
        self.complain("port", from, self.own)?;
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if socket.take_error().unwrap().is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err("not even an error about a call to the attacker itself comes".to_owned())
    }
}

fn connected(netns: &Path, from: SocketAddr, to: SocketAddr) -> UdpSocket {
    within(netns, || {
        let socket = UdpSocket::bind(from).unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket
    })
}

fn talk(socket: &UdpSocket) -> Result<(), String> {
    socket.send(b"?").and_then(|_| socket.recv(&mut [0; 90])).map(drop).map_err(|e| e.to_string())
}

/// A caller's error on its call, after the attacker's message.
fn heard(liar: &Liar<'_>, netns: &Path, from: SocketAddr, to: SocketAddr) -> Result<Verdict, String> {
    let honest = SocketAddr::new(from.ip(), from.port() + 1);
    liar.is_believed(netns, honest)?;
    let socket = connected(netns, from, to);
    eventually("who is called answers", TIMEOUT, || talk(&socket));
    for kind in ["port", "large"] {
        liar.complain(kind, from, to)?;
    }
    liar.is_believed(netns, honest)?;
    let (error, again) = (socket.take_error().unwrap(), talk(&socket));
    let way = ip(netns, &["route", "get", &to.ip().to_string()]);
    let held = error.is_none() && again.is_ok() && !way.contains("mtu");
    Ok(verdict(held, format!("{error:?}, {again:?}, {way}")))
}

fn of_a_third(world: &World, target: &Target) -> Verdict {
    let (own, victim, netns) = match two(world, target) {
        Ok(two) => two,
        Err(why) => return Verdict::Untried(why),
    };
    let liar = Liar::new(world, target, &own);
    let _third = Server::start(&world.node.netns_in(THEIRS, "victim"), "third", 7003);
    let to = at(&ip_of(world, THEIRS, "victim"), 7003);
    heard(&liar, &netns, at(&victim, 6001), to).unwrap_or_else(Verdict::Untried)
}

fn unsent(world: &World, target: &Target) -> Verdict {
    let (own, ..) = match two(world, target) {
        Ok(two) => two,
        Err(why) => return Verdict::Untried(why),
    };
    let liar = Liar::new(world, target, &own);
    let _served = Server::start(&world.node.netns_in(THEIRS, "victim"), "served", 7004);
    let service = json!({"metadata": {"name": target.id}, "spec": {"selector": {"app": "victim"}, "ports": [{"port": 7004, "protocol": "UDP"}]}});
    let made = world.create("services", THEIRS, service).unwrap();
    let address = made["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    let verdict = from_node(world, &liar, &address).unwrap_or_else(Verdict::Untried);
    world.delete("services", THEIRS, target.id);
    verdict
}

fn from_node(world: &World, liar: &Liar<'_>, service: &str) -> Result<Verdict, String> {
    let node = world.node.field(&["node", NODE], ".status.addresses[?(@.type==\"InternalIP\")].address");
    let netns: PathBuf = world.node.netns();
    let from = at(&node, 6011);
    let heard = heard(liar, &netns, from, at(service, 7004))?;
    if !matches!(heard, Verdict::Held(_)) {
        return Ok(heard);
    }
    let mut seen = heard.seen().to_owned();
    // Everything routed by the node: a nonexistent Service, a Pod.
    for to in ["10.96.0.77", &ip_of(world, THEIRS, "victim")] {
        liar.complain("answer", from, at(to, 0))?;
        liar.is_believed(&netns, SocketAddr::new(from.ip(), from.port() + 1))?;
        seen += &ip(&netns, &["route", "get", to]);
    }
    Ok(verdict(!seen.contains("mtu"), seen))
}
