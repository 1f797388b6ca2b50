//! The way to the Pods of other nodes: which routes, tunnels, neighbours and forwarding entries a node should have. Pure.
//!
//! ```text
//!  peer on a link of ours   10.244.2.0/24 via 192.168.50.2 dev eth0
//!  peer elsewhere           10.244.3.0/24 via 10.244.3.1 dev podwright-vx4   (VXLAN)
//!                           neighbour 10.244.3.1 -> 0e:70:0a:f4:03:01, which the forwarding database leads to 198.51.100.7
//! ```
//!
//! All of it follows from Node objects: nothing is learned, flooded or asked for. A peer is reached at the addresses that its Node
//! reports, which is the peer's word: so an address leads nowhere but to that peer's own range, which is the control plane's word.
//! Whether two nodes share a link both decide from what both publish: one that sent by a route what the other sends through a tunnel
//! would find each answer dropped, as it comes from where no way leads back.
//! Over a tunnel a node's own packets come from the first address of its range, so that the other end finds them on the way back.
//!
//! [`Transport`] has a row for each way; an encrypted one (WireGuard) would be a further row and a further kind of tunnel.

mod accept;
mod plan;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::Serialize;

use crate::Family;

pub use plan::plan;

/// Another node, as its object says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Peer {
    pub name: String,
    /// As the node itself reports them, the preferred one first.
    pub addresses: Vec<IpAddr>,
    /// As the control plane has given them.
    pub pod_ranges: Vec<IpNet>,
    /// The addresses with the prefixes of their links, as the node publishes them.
    pub networks: Vec<IpNet>,
}

/// How nodes reach each other's Pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Transport {
    /// By routes where both nodes publish that they share a link, by VXLAN elsewhere.
    #[default]
    Auto,
    /// By routes; the network behind the node's links leads to peers that are elsewhere.
    Routes,
    /// By VXLAN.
    Vxlan,
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Transport, String> {
        match text {
            "auto" => Ok(Transport::Auto),
            "routes" => Ok(Transport::Routes),
            "vxlan" => Ok(Transport::Vxlan),
            "wireguard" => Err("WireGuard is not supported: expected auto, routes or vxlan".to_owned()),
            _ => Err("expected auto, routes or vxlan".to_owned()),
        }
    }
}

/// What the nodes of a cluster agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OverlayConfig {
    pub transport: Transport,
    pub vni: u32,
    pub port: u16,
}

impl Default for OverlayConfig {
    fn default() -> OverlayConfig {
        OverlayConfig { transport: Transport::Auto, vni: VNI, port: PORT }
    }
}

/// The tunnels' packets, told from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TunnelId {
    pub vni: u32,
    pub port: u16,
}

/// The VXLAN network identifier, "pw": other overlays of a machine have other ones.
pub const VNI: u32 = 0x7077;
/// What Linux and most overlays use.
pub const PORT: u16 = 8472;

/// The longest packet of a Pod's link: the node's rules about fragments and DNS count with it.
pub const MOST_MTU: u32 = 1500;
/// The shortest with which a link has IPv6.
pub const LEAST_MTU: u32 = 1280;

/// A link of the node's network that leads to other machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uplink {
    pub index: u32,
    pub mtu: u32,
    /// With the prefix of who is on the same link.
    pub addresses: Vec<IpNet>,
    /// Its name says that it leads to containers of this machine: its address is not the one that other machines know.
    pub is_of_containers: bool,
}

/// What a node knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// At most one a family.
    pub addresses: Vec<IpAddr>,
    pub pod_ranges: Vec<IpNet>,
    pub service_ranges: Vec<IpNet>,
    /// What the node publishes of itself, as its peers read it: not what its links say meanwhile.
    pub networks: Vec<IpNet>,
    pub uplinks: Vec<Uplink>,
}

/// What there should be for the Pods of all peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlay {
    /// By the range that each leads to.
    pub routes: BTreeMap<IpNet, Hop>,
    /// By the family of what carries them.
    pub tunnels: BTreeMap<Family, Tunnel>,
    /// Of the Pods' links.
    pub pod_mtu: u32,
    /// Who is not reached as it wants, and why.
    pub refused: Vec<String>,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    pub over: Over,
    pub gateway: IpAddr,
    /// What the node itself sends from.
    pub source: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// A link of the node's, by its index.
    Uplink(u32),
    /// The tunnel of this family.
    Tunnel(Family),
}

/// A VXLAN link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    pub vni: u32,
    pub port: u16,
    pub local: IpAddr,
    pub mtu: u32,
    pub mac: Mac,
    /// The node's own on it.
    pub addresses: Vec<IpAddr>,
    pub ends: BTreeMap<Mac, End>,
}

/// The other end of a tunnel, known by its hardware address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Where packets are sent to.
    pub remote: IpAddr,
    /// The next hops that are there.
    pub gateways: Vec<IpAddr>,
}

pub type Mac = [u8; 6];

impl Tunnel {
    /// The name of the link. None that begins with `pw`: those are Pods'.
    pub fn name(family: Family) -> &'static str {
        match family {
            Family::V4 => "podwright-vx4",
            Family::V6 => "podwright-vx6",
        }
    }

    /// The family whose tunnel a link is, by its name.
    pub fn family_of(name: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|family| Tunnel::name(*family) == name)
    }

    /// What carrying takes of a packet: the outer headers of IP, UDP, VXLAN and Ethernet.
    pub fn overhead(family: Family) -> u32 {
        match family {
            Family::V4 => 20 + 8 + 8 + 14,
            Family::V6 => 40 + 8 + 8 + 14,
        }
    }
}

/// The hardware address of a node's end of a tunnel. It follows from the node's first range, which the control plane gives and no
/// other node has; so nobody has to be told it, and nobody can claim another's.
pub fn mac_of(range: &IpNet) -> Mac {
    // Locally administered.
    match first_address(range) {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [0x0e, 0x70, a, b, c, d]
        }
        IpAddr::V6(address) => {
            let hash = crate::dataplane::ids::fnv(&address.octets()).to_be_bytes();
            [0x0e, 0x76, hash[0], hash[1], hash[2], hash[3]]
        }
    }
}

/// The first host address of a range, which no Pod gets: the node's own on a tunnel.
pub fn first_address(range: &IpNet) -> IpAddr {
    match range.network() {
        IpAddr::V4(network) => IpAddr::V4((network.to_bits() | 1).into()),
        IpAddr::V6(network) => IpAddr::V6((network.to_bits() | 1).into()),
    }
}
