//! The room in which the node puts fragments together, so that no Pod fills it for all others.
//!
//! Conntrack puts together whatever passes through the node, in a budget of the network namespace's (`ipfrag_high_thresh`, 4 MiB
//! by default). What does not become whole stays for `ipfrag_time` (30 s), and since Linux 4.17 nothing is thrown out for others:
//! 1,700 first halves are enough. So the budget is larger here, the time shorter, and each Pod's link has a pace
//! ([`super::base`]), such that less than half of the budget is one Pod's whatever it sends.

use podwright_journal::JournalWriter;

use crate::{NodeNetns, Result, netlink};

/// How many fragments a Pod may send in a second, 50 Mb/s of them; and at once, some 40 datagrams of the largest size.
pub const PACE: &str = "4096";
pub const BURST: &str = "2048";
/// The longest packet of a Pod's link: the MTU of every veth. A longer "fragment" comes from who asks the kernel to cut it
/// (PACKET_VNET_HDR), and takes as much room as it is long.
pub const POD_MTU: &str = "1500";

/// The budget: 4096 * 2 s + 2048 fragments, each 2.5 KiB with what the kernel keeps about it, are 25 MiB.
const ROOM: u64 = 64 << 20;
/// How long the rest of a datagram is waited for, in seconds: what comes at all comes right away.
const TIMEOUT_SECS: u64 = 2;

/// `(sysctl, value, whether a larger one may stay)`; those of IPv6 are conntrack's own.
const SETTINGS: [(&str, u64, bool); 4] = [
    ("net/ipv4/ipfrag_high_thresh", ROOM, true),
    ("net/ipv4/ipfrag_time", TIMEOUT_SECS, false),
    ("net/netfilter/nf_conntrack_frag6_high_thresh", ROOM, true),
    ("net/netfilter/nf_conntrack_frag6_timeout", TIMEOUT_SECS, false),
];

/// Sets budget and time of a namespace, where they are not better already. A kernel without IPv6 has no settings for it.
pub fn give_room(netns: &NodeNetns) -> Result<()> {
    netlink::in_netns(netns.fd(), || -> Result<()> {
        for (name, ours, larger) in SETTINGS {
            let Ok(now) = netlink::read_sysctl(name) else { continue };
            let now: u64 = now.parse().unwrap_or_default();
            let good = if larger { now >= ours } else { (1..=ours).contains(&now) };
            if !good {
                netlink::sysctl(&JournalWriter::none(), name, &ours.to_string())?;
            }
        }
        Ok(())
    })?
}
