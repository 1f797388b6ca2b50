//! The fixed part of the ruleset as data: maps, chains and rules in nft syntax, the same for both families.
//!
//! Each endpoint list has an id, kept in the conntrack mark. A frontend (ClusterIP, external address, node port) maps to an id, an
//! id to a shared chain by its number of endpoints, id and slot to an endpoint. So a Service consists of elements only, without
//! chains of its own.
//!
//! ```text
//! 10.96.0.7 . tcp . 80 --@cluster-ips--> id --@services--> goto lb-3 --random 0..2--> id . 1 --@endpoints--> dnat
//! ```
//!
//! The rules are nft text instead of the `nftables` crate's JSON: that cannot declare a verdict map or express `typeof`, nor read
//! them back. Elements are sent as our own netlink messages ([`super::elements`]).
//!
//! `IP` stands for `ip` or `ip6`, `ADDR` for the type of an address, `CLIENT` for the key of a remembered client: its address, or
//! for IPv6 the lower half of it (a dynamic map's key of more than 16 bytes is silently corrupted by nft 1.0.6).

use std::fmt::Write;
use std::net::IpAddr;

use ipnet::IpNet;

use super::elements::Chain;
use super::fragments;
use super::ids::fnv;
use super::model::NodeFacts;
use super::table::{TABLE, nft_family};
use super::tunnels;
use crate::Family;

/// `(name, declaration)`.
const MAPS: &[(&str, &str)] = &[
    ("cluster-ips", "map { type ADDR . inet_proto . inet_service : mark; }"),
    ("external-ips", "map { type ADDR . inet_proto . inet_service : mark; }"),
    // of the node's own addresses
    ("host-ports", "map { type ADDR . inet_proto . inet_service : mark; }"),
    // load balancers' addresses: nothing but Services is there
    ("balancers", "set { type ADDR; }"),
    ("node-ports", "map { type inet_proto . inet_service : mark; }"),
    // id -> the id for callers outside the cluster
    ("outside", "map { type mark : mark; }"),
    ("services", "map { type mark : verdict; }"),
    // ids without endpoints
    ("refused", "set { type mark; }"),
    ("endpoints", "map { type mark . mark : ADDR . inet_service; }"),
    // ids that only some outside sources may use, and those sources: id . prefix length . network. Not as intervals, since tenants
    // write them: removing an element from a multi-field interval set takes time proportional to its size
    ("restricted", "set { type mark; }"),
    (SOURCES, "set { type mark . mark . ADDR; }"),
    // affinity: id -> pick-N; id . 0..N-1 -> stable slot; id . slot -> endpoint. Each tenant has its own map for id . client ->
    // slot ([`affinity_map`])
    ("picks", "map { type mark : verdict; }"),
    ("slots", "map { type mark . mark : mark; }"),
    ("sticky", "map { type mark . mark : ADDR . inet_service; }"),
    // this node's endpoints, each paired with itself: a Pod that reaches itself through a Service
    ("own", "set { type ADDR . ADDR; }"),
    ("local-pods", "set { type ADDR; flags interval; auto-merge; }"),
    // those of them that plugins may have attached, to links of any name
    ("plugged", "set { type ADDR; flags interval; auto-merge; }"),
    ("cluster-net", "set { type ADDR; flags interval; auto-merge; }"),
    ("other-nodes", "set { type ADDR; flags interval; auto-merge; }"),
    ("servers", "set { type ADDR; flags interval; auto-merge; }"),
    ("service-net", "set { type ADDR; flags interval; auto-merge; }"),
    // the Pods that open connections, each rate-limited; those that exceed their share of the table (`super::shares`)
    ("pace", "set { type ADDR; flags dynamic,timeout; size 65535; timeout 1m; }"),
    ("greedy", "set { type ADDR; flags timeout; }"),
    // the Pods that query the cluster's DNS, each rate-limited
    ("questions", "set { type ADDR; flags dynamic,timeout; size 65535; timeout 1m; }"),
    // the same for opening streams to it
    ("streams", "set { type ADDR; flags dynamic,timeout; size 65535; timeout 1m; }"),
    // the Pods' links that send fragments, each rate-limited (`super::fragments`)
    ("fragments", "set { type iface_index; flags dynamic,timeout; size 65535; timeout 1m; }"),
    // the next hops that have responded on connections before; other recently used ones, which are not charged again for a while;
    // and the Pods that want new ones, each rate-limited
    ("hops", "set { type ADDR; flags dynamic,timeout; size 65535; timeout 1m; }"),
    ("asked", "set { type ADDR; flags dynamic,timeout; size 65535; timeout 1s; }"),
    ("strangers", "set { type ADDR; flags dynamic,timeout; size 65535; timeout 1m; }"),
    // the outside networks whose clients want new ones, each rate-limited
    ("sites", "set { type ADDR; flags dynamic,timeout; size 65535; timeout 1m; }"),
    // the Pods that send ICMP errors about connections, each paired with itself
    ("selves", "set { type ADDR . ADDR; flags dynamic,timeout; size 65535; timeout 1m; }"),
    // who is isolated, each with itself: in either direction, from others, to others (`super::policy`)
    ("isolated", "set { type ADDR . ADDR; }"),
    ("ingress", "map { type ADDR : verdict; }"),
    ("egress", "map { type ADDR : verdict; }"),
    // how many connections have been given a port of the node's (`super::ports`)
    (MASQUERADED, "counter { }"),
];

/// The sets that packets fill with their senders: `(name, whether each is paired with itself)`.
pub const SENDERS: [(&str, bool); 6] = [
    ("pace", false),
    ("greedy", false),
    ("questions", false),
    ("streams", false),
    ("strangers", false),
    ("selves", true),
];

/// `(name, hook, rules)`; chains used in verdicts come before their users.
const CHAINS: &[(&str, &str, &[&str])] = &[
    // A packet from a Pod must have the Pod's own address as its source. For IPv4 the link's rp_filter checks this, IPv6 has no
    // equivalent. This also drops router advertisements and redirects, whose sources are link-local. Packets from the unspecified
    // address to a multicast group pass `fib`, and would be tracked without an owner. Both ends of a link know each other:
    // unsolicited neighbour messages (IPv6) of a Pod would fill the node's table if the machine accepts them. This runs before
    // conntrack reassembles fragments (-400): a piece longer than a Pod's link MTU is not a real fragment, but an attempt to use up
    // memory.
    (
        "pod-sources",
        BEFORE_REASSEMBLY,
        &[
            "iifname \"pw*\" NOBODY drop",
            "iifname \"pw*\" icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } drop",
            "iifname \"pw*\" fib saddr . iif oif missing drop",
            "IS_FRAGMENT iifname \"pw*\" meta length > POD_MTU drop",
            "IS_FRAGMENT iifname \"pw*\" add @fragments { iif limit rate over FRAGMENTS/second burst FRAGMENT_BURST packets } drop",
            // Of other nodes' Pods comes what has a way back there, and from a tunnel nothing else.
            "iifname \"podwright-vx*\" IP saddr != @cluster-net drop",
            "iifname != \"pw*\" iifname != \"lo\" IP saddr @cluster-net fib saddr . iif oif missing drop",
        ],
    ),
    ("balance", "", &["ct mark vmap @services"]),
    (
        "external",
        "",
        &["IP saddr != @local-pods fib saddr type != local ct mark set ct mark map @outside", "goto balance"],
    ),
    // Permitted sources: one rule per prefix length ([`source_rules`]).
    (SOURCES, "", &[]),
    ("external-address", "", &["ct mark @restricted goto sources", "goto external"]),
    (
        "service",
        "",
        &[
            "ct mark set IP daddr . meta l4proto . th dport map @cluster-ips goto balance",
            // Users who can write a Service may claim any address: those of Pods, nodes, servers and other Services are excluded.
            "IP daddr != @cluster-net IP daddr != @other-nodes IP daddr != @servers IP daddr != @service-net ct mark set IP daddr . meta l4proto . th dport map @external-ips goto external-address",
            // Whatever a Pod specifies as its hostIP: other nodes' addresses are excluded.
            "IP daddr != LOOPBACK IP daddr != @service-net fib daddr type local ct mark set IP daddr . meta l4proto . th dport map @host-ports goto external-address",
            // The cluster's DNS is on an address of the node, but does not expose the node's ports.
            "IP daddr != LOOPBACK IP daddr != @service-net fib daddr type local ct mark set meta l4proto . th dport map @node-ports goto external",
        ],
    ),
    ("refuse", "", &["meta l4proto tcp reject with tcp reset", "reject with ICMP port-unreachable"]),
    // A Service address without endpoints, or an unclaimed port of it. The node that announces a load balancer's address is where
    // its packets come to: forwarded to a router, they would come back, until their hops are used up.
    (
        "refuse-service",
        "",
        &[
            "ct mark @refused ct status & dnat != dnat goto refuse",
            "IP daddr @service-net fib daddr type != local goto refuse",
            "IP daddr @balancers IP daddr != @cluster-net IP daddr != @other-nodes IP daddr != @servers goto refuse",
        ],
    ),
    ("nat-prerouting", "type nat hook prerouting priority dstnat;", &["goto service"]),
    ("nat-output", "type nat hook output priority -100;", &["goto service"]),
    // Low ports are few, and those below 1024 imply that root sent the packet; up to 32767 are the node's own servers and node
    // ports, whose packets must not be captured by occupying such a port first. Where no port can be chosen, such as a ping's id,
    // it is up to the kernel.
    (
        "as-node",
        "",
        &[
            "counter name masqueraded",
            "meta l4proto { tcp, udp, sctp } masquerade to :LOWEST-65535 fully-random",
            "masquerade fully-random",
        ],
    ),
    // A Pod to the outside. Packets without ports or ids (ESP, GRE, ...) look as if the node itself had sent them, and so do the
    // responses. The Pod gets an error (`forward`); packets that still reach this point are dropped.
    ("to-outside", "", &["meta l4proto != { tcp, udp, sctp, ICMP } drop", "goto as-node"]),
    (
        "nat-postrouting",
        "type nat hook postrouting priority srcnat;",
        &[
            // a Pod to itself
            "IP saddr . IP daddr @own masquerade fully-random",
            "IP saddr @local-pods IP daddr != @cluster-net goto to-outside",
            // from outside or this node to an endpoint on another node: the response must return here
            "ct status dnat IP saddr != @local-pods IP daddr != @local-pods goto as-node",
        ],
    ),
    // ICMP errors about a connection, from its ends and routers between them: from a Pod only if the Pod is an end of it. Otherwise
    // any Pod could break others' connections, or shrink their packets. Comparing two fields needs a set of equal pairs.
    (
        "errors-of-pods",
        "",
        &[
            "update @selves { IP saddr . IP saddr }",
            "IP saddr . ct original IP saddr @selves accept",
            "IP saddr . ct reply IP saddr @selves accept",
            "drop",
        ],
    ),
    // Rejected before routing: IPv6 reports routes over `lo` by itself, in another way. Packets dropped here are not yet in the
    // conntrack table; later they would be confirmed: one-way datagrams stay new forever.
    //
    // Packets that conntrack calls invalid belong to no connection: from a Pod, an error about a packet that was never sent, which
    // would shrink the node's own packets to an address of the Pod's choice; or a response that would leave with the Pod's address
    // instead of the Service's. Neighbour discovery is untracked, and fragments are reassembled: they are not invalid.
    //
    // A TCP connection lost by conntrack would become new again with its next segment (nf_conntrack_tcp_loose), and be charged to
    // that segment's sender: a server would pay for connections that others have opened to it. Instead it is reset, for both sides.
    (
        "prerouting",
        "type filter hook prerouting priority -90;",
        &[
            "ct state established accept",
            "iifname \"pw*\" ct state related goto errors-of-pods",
            "ct state related accept",
            "iifname \"pw*\" ct state invalid drop",
            "iifname \"pw*\" meta l4proto tcp ct state new tcp flags & (fin | syn | rst | ack) != syn goto refuse",
            "ct status & confirmed != confirmed IP saddr @greedy drop",
            "iifname \"pw*\" ct status & confirmed != confirmed add @pace { IP saddr limit rate over PACE/second burst PACE packets } drop",
            "goto refuse-service",
        ],
    ),
    // The cluster's DNS reads all datagrams in order, and its buffer is limited. No question is longer than a packet: longer ones
    // are many in one piece (UDP_SEGMENT), or use the memory of many. It serves Pods and the node's own programs. Other hosts on
    // the node's links cannot be rate-limited, as they can use any number of addresses; they have no access except through a
    // Service of the operator.
    (
        "input",
        "type filter hook input priority filter;",
        &[
            "iifname != \"pw*\" iifname != \"lo\" IP saddr != @plugged IP daddr @service-net meta l4proto { tcp, udp } th dport 53 ct status & dnat != dnat drop",
            "iifname \"pw*\" udp dport 53 IP daddr @service-net meta length > POD_MTU drop",
            "iifname \"pw*\" udp dport 53 IP daddr @service-net add @questions { IP saddr limit rate over QUESTIONS/second burst QUESTIONS packets } drop",
            "iifname \"pw*\" tcp dport 53 IP daddr @service-net ct state new add @streams { IP saddr limit rate over STREAMS/second burst STREAM_BURST packets } drop",
        ],
    ),
    // The kernel has room for 1,024 neighbours being resolved, in all network namespaces together (gc_thresh3), and resolves for
    // three seconds, again for each later packet: unassigned addresses of the node's own links. Behind a gateway all have one next
    // hop. Next hops that have responded exist, and cost nothing. A sender without a place in the set has no rate, and gets no
    // resolution.
    (
        "next-hops",
        "",
        &[
            "rt IP nexthop @hops accept",
            "rt IP nexthop != @asked add @strangers { IP saddr limit rate over STRANGERS/second burst STRANGER_BURST packets } drop",
            "rt IP nexthop != @asked IP saddr != @strangers drop",
            "add @asked { rt IP nexthop }",
        ],
    ),
    // All others share one rate: an outside client can use many addresses. Those it can use without forging belong to one network,
    // which gets only a part of that rate, so that other clients can still reach endpoints on other nodes that have not responded
    // for a minute. If the set is full only the common rate remains. To other nodes all callers may come through one load balancer:
    // its network can use the whole rate, but no more, as it is only its claim.
    (
        "next-hops-of-others",
        "",
        &[
            "rt IP nexthop @hops accept",
            "rt IP nexthop != @asked rt IP nexthop != @other-nodes add @sites { SITE limit rate over SITE_STRANGERS/second burst SITE_BURST packets } drop",
            "rt IP nexthop != @asked limit rate over STRANGERS/second burst STRANGER_BURST packets drop",
            "add @asked { rt IP nexthop }",
        ],
    ),
    // Pods' ICMP errors about connections cause resolutions as well, of addresses that may never have responded. So do packets
    // through a Service, whose owner chooses the endpoints. What would be dropped on its way outside (`to-outside`) is rejected, so
    // that the sender gets an error.
    (
        "forward",
        "type filter hook forward priority filter;",
        &[
            // An address of this node's Pods without a link is unassigned: packets to it would be tracked, and delivered to its
            // next owner.
            "oifname != \"pw*\" IP daddr @local-pods IP daddr != @plugged drop",
            "ct state established ct direction original oifname != \"pw*\" rt IP nexthop != @hops add @hops { rt IP nexthop }",
            "ct state established accept",
            "IP saddr @local-pods IP daddr != @cluster-net meta l4proto != { tcp, udp, sctp, ICMP } reject with ICMP admin-prohibited",
            "iifname \"pw*\" oifname != \"pw*\" goto next-hops",
            "ct status dnat ct mark != 0 oifname != \"pw*\" goto next-hops-of-others",
        ],
    ),
    // What no policy lets through. A connection that was let through until now ends for both sides.
    ("forbid", "", &["ct state established meta l4proto tcp reject with tcp reset", "drop"]),
    // What belongs to no connection is judged by no policy: to and from who is isolated nothing of it goes.
    ("strays", "", &["IP saddr . IP saddr @isolated drop", "IP daddr . IP daddr @isolated drop"]),
    // Policies are asked about each packet, before all that lets it through for its connection's sake; those of the sender first, then
    // those of whom it is for. A node reaches its Pods, and they reach it: what is between them is not judged.
    (
        "egress-forward",
        "type filter hook forward priority -20;",
        &["ct state invalid,untracked goto strays", "ct original IP saddr vmap @egress"],
    ),
    ("ingress-forward", "type filter hook forward priority -10;", &["ct reply IP saddr vmap @ingress"]),
    // The cluster's DNS, which others have Pods for, is served by each node itself: to policies it is such a Pod. One that asked from an
    // address of its link alone would be judged by no policy; nobody there answers it.
    (
        "egress-dns",
        "",
        &[
            "iifname \"pw*\" ip6 saddr fe80::/10 drop",
            "ct state invalid,untracked goto strays",
            "ct original IP saddr vmap @egress",
        ],
    ),
    // The node itself is reached by its Pods, whatever their policies say, as upstream has it. Of Services' addresses it has none but
    // that of DNS: the others have been translated by now.
    ("egress-input", "type filter hook input priority -20;", &["IP daddr @service-net goto egress-dns"]),
    (
        "output",
        "type filter hook output priority filter;",
        &["ct state established,related accept", "goto refuse-service"],
    ),
];

/// Connections that a Pod may open per second, and in a burst: a sixteenth of the entries that most machines track (262,144), so
/// that several Pods need seconds to fill the reserve, and the agent notices. Legitimate Pods open fewer.
pub const PACE: &str = "16384";

/// Datagrams that a Pod may send to the cluster's DNS per second, and in a burst: much more than it needs, and a part of what one
/// thread can answer.
pub const QUESTIONS: &str = "4096";

/// Streams that a Pod may open to the cluster's DNS per second, and in a burst: each is accepted, given a place and closed, by the
/// single accepting thread. Clients using streams keep one open.
const STREAMS: &str = "256";
const STREAM_BURST: &str = "1024";

/// The counter of connections that got one of the node's ports.
pub const MASQUERADED: &str = "masqueraded";

/// The lowest source port for Pods' connections out of the node: the start of the kernel's ephemeral range.
pub const LOWEST: &str = "32768";

/// Neighbours that a Pod, or all other senders together, may have the node resolve per second, and in a burst: each takes three
/// seconds, charged for the first one, so less than half of the kernel's room is in use at any time.
const STRANGERS: &str = "60";
const STRANGER_BURST: &str = "256";

/// How many of those the clients of one outside network may have: a quarter.
const SITE_STRANGERS: &str = "15";
const SITE_BURST: &str = "64";

/// The set of permitted outside sources, and the chain that checks it.
const SOURCES: &str = "sources";

/// Before conntrack reassembles fragments.
const BEFORE_REASSEMBLY: &str = "type filter hook prerouting priority -450;";

/// Maps of remembered clients: one per tenant, since a tenant with many clients fills it. Each has this capacity.
const AFFINITY: &str = "{ CLIENTS; flags dynamic,timeout; size 65536; timeout 3h; }";

/// Chains for lists of up to this many endpoints exist from the start; others are created when a list grows.
pub const BLOCK: u32 = 16;

/// The numbers in rules.
const NUMBERS: [(&str, &str); 12] = [
    ("PACE", PACE),
    ("QUESTIONS", QUESTIONS),
    ("STREAMS", STREAMS),
    ("STREAM_BURST", STREAM_BURST),
    ("FRAGMENTS", fragments::PACE),
    ("FRAGMENT_BURST", fragments::BURST),
    ("POD_MTU", fragments::POD_MTU),
    ("SITE_STRANGERS", SITE_STRANGERS),
    ("SITE_BURST", SITE_BURST),
    ("STRANGERS", STRANGERS),
    ("STRANGER_BURST", STRANGER_BURST),
    ("LOWEST", LOWEST),
];

fn words(family: Family) -> [(&'static str, &'static str); 9] {
    match family {
        Family::V4 => [
            ("IS_FRAGMENT", "ip frag-off & 0x3fff != 0"),
            ("CLIENTS", "type mark . ipv4_addr : mark"),
            ("CLIENT", "ip saddr"),
            ("SITE", "ip saddr & 255.255.255.0"),
            ("ADDR", "ipv4_addr"),
            ("LOOPBACK", "127.0.0.0/8"),
            ("NOBODY", "ip saddr 0.0.0.0/8"),
            ("ICMP", "icmp"),
            ("IP", "ip"),
        ],
        Family::V6 => [
            ("IS_FRAGMENT", "exthdr frag exists"),
            ("CLIENTS", "typeof ct mark . @nh,128,64 : meta mark"),
            ("CLIENT", "@nh,128,64"),
            ("SITE", "ip6 saddr & ffff:ffff:ffff::"),
            ("ADDR", "ipv6_addr"),
            ("LOOPBACK", "::1"),
            ("NOBODY", "ip6 saddr ::"),
            ("ICMP", "icmpv6"),
            ("IP", "ip6"),
        ],
    }
}

fn expand(text: &str, family: Family) -> String {
    let words = words(family);
    let words = NUMBERS.iter().chain(&words);
    words.fold(text.to_owned(), |text, (word, meaning)| text.replace(word, meaning))
}

/// Whether a rule is one of this family: what names ICMPv6 or IPv6 is IPv6's alone.
fn applies(rule: &str, family: Family) -> bool {
    family == Family::V6 || !(rule.contains("icmpv6") || rule.contains("ip6"))
}

/// The whole fixed part for one family; replaces an older table in the same transaction.
pub fn script(family: Family) -> String {
    let ip = nft_family(family);
    let mut text = format!("add table {ip} {TABLE}\ndelete table {ip} {TABLE}\ntable {ip} {TABLE} {{\n");
    for (name, declaration) in MAPS.iter().chain(&tunnels::SETS) {
        let (kind, body) = declaration.split_once(' ').unwrap_or((declaration, ""));
        let _ = writeln!(text, "  {kind} {name} {}", expand(body, family));
    }
    for (name, hook) in tunnels::CHAINS {
        let _ = writeln!(text, "  chain {name} {{\n    {hook}\n  }}");
    }
    let _ = writeln!(text, "  set {} {{ type mark; }}", marker(family));
    for chain in (1..=BLOCK).map(Chain::Lb) {
        let _ = writeln!(text, "  chain {chain} {{\n{}  }}", indent(&rules_of(chain, family)));
    }
    for (name, hook, rules) in CHAINS {
        let hook = if hook.is_empty() { String::new() } else { format!("    {hook}\n") };
        let rules = match *name {
            SOURCES => source_rules(family),
            _ => rules.iter().filter(|rule| applies(rule, family)).map(|rule| expand(rule, family)).collect(),
        };
        let _ = writeln!(text, "  chain {name} {{\n{hook}{}  }}", indent(&rules));
    }
    text + "}\n"
}

/// Replaces the fixed part of a family that the node does not have: drops everything of it from Pods. Otherwise, since the machine
/// still handles that family, a Pod could become its router by one advertisement, and reach its link-local ports.
pub fn closed(family: Family) -> String {
    let ip = nft_family(family);
    let chain = format!("  chain pod-sources {{\n    {BEFORE_REASSEMBLY}\n    iifname \"pw*\" drop\n  }}\n");
    format!("add table {ip} {TABLE}\ndelete table {ip} {TABLE}\ntable {ip} {TABLE} {{\n{chain}}}\n")
}

/// An empty set whose name identifies the version of a table's fixed part.
pub fn marker(family: Family) -> String {
    let lb: Vec<String> = (1..=BLOCK).flat_map(|n| rules_of(Chain::Lb(n), family)).collect();
    let aff = chain_script(Chain::Affinity { share: 1, seconds: 1 }, family);
    let sources = source_rules(family);
    let (sets, chains) = (tunnels::SETS, tunnels::CHAINS);
    format!(
        "base-{:016x}",
        fnv(format!("{MAPS:?}{CHAINS:?}{NUMBERS:?}{lb:?}{aff}{sources:?}{sets:?}{chains:?}").as_bytes())
    )
}

/// The map of a share's remembered clients.
pub fn affinity_map(share: u32) -> String {
    format!("{AFFINITY_MAP}{share:x}")
}

/// The prefix of such maps' names.
pub const AFFINITY_MAP: &str = "affinity-";

/// Creates or recreates a shared chain; an affinity map with its clients is kept.
pub fn chain_script(chain: Chain, family: Family) -> String {
    let ip = nft_family(family);
    let mut text = match chain {
        Chain::Affinity { share, .. } => {
            format!("add map {ip} {TABLE} {} {}\n", affinity_map(share), expand(AFFINITY, family))
        }
        Chain::Lb(_) | Chain::Pick(_) => String::new(),
    };
    let _ = write!(text, "add chain {ip} {TABLE} {chain}\nflush chain {ip} {TABLE} {chain}\n");
    for rule in rules_of(chain, family) {
        let _ = writeln!(text, "add rule {ip} {TABLE} {chain} {rule}");
    }
    text
}

/// Prefix lengths used to look up sources are multiples of this: each costs half a microsecond per lookup, and outside senders can
/// trigger all of them per packet. A prefix of another length is split into up to eight longer ones.
const SOURCE_STEP: u8 = 4;

/// The networks that represent a range of sources.
pub fn source_networks(range: IpNet) -> impl Iterator<Item = IpNet> {
    // The next length is at most that of an address, so there are such subnets.
    range.subnets(range.prefix_len().next_multiple_of(SOURCE_STEP)).into_iter().flatten()
}

/// The number of these networks.
pub fn source_count(range: IpNet) -> usize {
    1 << (range.prefix_len().next_multiple_of(SOURCE_STEP) - range.prefix_len())
}

/// Looks up a source's network by each length, longest first. Only reached by the first packets of connections from outside to a
/// restricted Service.
fn source_rules(family: Family) -> Vec<String> {
    let any = if family == Family::V4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let lengths = (1..=family.bits() / SOURCE_STEP).rev().map(|n| n * SOURCE_STEP);
    let rule = |net: IpNet| {
        let (length, mask) = (net.prefix_len(), net.netmask());
        format!("meta mark set {length} ct mark . meta mark . IP saddr & {mask} @{SOURCES} goto external")
    };
    let rules = lengths.filter_map(|length| IpNet::new(any, length).ok()).map(rule);
    rules.chain(["drop".to_owned()]).map(|rule| expand(&rule, family)).collect()
}

/// The rules of a shared chain.
fn rules_of(chain: Chain, family: Family) -> Vec<String> {
    const PORTS: &str = "meta l4proto { tcp, udp, sctp }";
    let rules = match chain {
        Chain::Lb(n) => {
            let pick =
                format!("{PORTS} meta mark set numgen random mod {n} dnat to ct mark . meta mark map @endpoints");
            // A packet that straddles a commit may pick a slot that is gone; slot 0 exists while any does.
            if n == 1 { vec![pick] } else { vec![pick, "goto lb-1".to_owned()] }
        }
        Chain::Pick(n) => vec![
            format!("meta mark set numgen random mod {n}"),
            "meta mark set ct mark . meta mark map @slots".to_owned(),
        ],
        Chain::Affinity { share, seconds } => {
            let map = affinity_map(share);
            let remember = format!("update @{map} {{ ct mark . CLIENT timeout {seconds}s : meta mark }}");
            let go = format!("{PORTS} dnat to ct mark . meta mark map @sticky");
            vec![
                "meta mark set 0".to_owned(),
                format!("meta mark set ct mark . CLIENT map @{map}"),
                format!("meta mark != 0 {remember} {go}"),
                // Its endpoint is gone: forget it and pick another.
                format!("meta mark != 0 delete @{map} {{ ct mark . CLIENT : meta mark }}"),
                "ct mark vmap @picks".to_owned(),
                remember,
                go,
            ]
        }
    };
    rules.iter().map(|rule| expand(rule, family)).collect()
}

/// Replaces the node facts in the table.
pub fn facts_script(facts: &NodeFacts, family: Family) -> String {
    let ip = nft_family(family);
    let mut text = String::new();
    let sets = [
        ("local-pods", &facts.pod_ranges),
        ("cluster-net", &facts.cluster_ranges),
        ("plugged", &facts.plugged),
        ("other-nodes", &facts.other_nodes),
        ("servers", &facts.servers),
        ("service-net", &facts.service_ranges),
    ];
    for (set, ranges) in sets {
        let _ = writeln!(text, "flush set {ip} {TABLE} {set}");
        let ranges = ranges.iter().filter(|r| Family::of_net(r) == family).copied().collect();
        for range in IpNet::aggregate(&ranges) {
            let _ = writeln!(text, "add element {ip} {TABLE} {set} {{ {range} }}");
        }
    }
    text + &tunnels::script(facts, family)
}

fn indent(rules: &[String]) -> String {
    rules.iter().map(|rule| format!("    {rule}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel keeps intervals of several fields in a structure (pipapo) that is copied for each transaction and walked for each
    /// removed element: tens of thousands of them block all of nf_tables for minutes.
    #[test]
    fn no_set_of_intervals_has_more_than_one_field() {
        for (name, declaration) in MAPS {
            let key = declaration.split([';', ':']).next().unwrap_or_default();
            assert!(!(key.contains(" . ") && declaration.contains("interval")), "{name}: {declaration}");
        }
    }

    #[test]
    fn a_range_is_found_by_few_lookups() {
        let rules = source_rules(Family::V4);
        assert_eq!(rules.len(), 9);
        assert_eq!(rules[5], "meta mark set 12 ct mark . meta mark . ip saddr & 255.240.0.0 @sources goto external");
        let rules = source_rules(Family::V6);
        assert_eq!(rules.len(), 33);
        assert!(rules[16].starts_with("meta mark set 64 ct mark . meta mark . ip6 saddr & ffff:ffff:ffff:ffff:: "));
        assert_eq!(rules[32], "drop");
        for (range, expected) in [
            ("203.0.113.9/32", vec!["203.0.113.9/32"]),
            ("10.0.0.0/8", vec!["10.0.0.0/8"]),
            ("10.0.0.0/7", vec!["10.0.0.0/8", "11.0.0.0/8"]),
            ("192.0.2.128/30", vec!["192.0.2.128/32", "192.0.2.129/32", "192.0.2.130/32", "192.0.2.131/32"]),
            ("fd00::/127", vec!["fd00::/128", "fd00::1/128"]),
        ] {
            let range: IpNet = range.parse().unwrap();
            let networks: Vec<String> = source_networks(range).map(|network| network.to_string()).collect();
            assert_eq!(networks, expected);
        }
        for length in 0..=128 {
            let range = IpNet::new(IpAddr::from([0; 16]), length).unwrap();
            assert_eq!(source_networks(range).count(), source_count(range), "{range}");
            assert!(source_count(range) <= 8);
        }
    }
}
