//! Node IPAM: assigns every Node its Pod CIDRs, once.
//!
//! There is no in-memory allocator: the Nodes themselves show what is taken. There is a single key, the cluster, so that no range
//! is chosen before the previous choice is visible in the Nodes; and each choice is conditional on the Node's state without a
//! range.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use k8s_openapi::api::core::v1::Node;

use super::{
    Config, Context, Plan, Row, Writes, meta,
    write::{Note, Write},
};
use podwright_client::{Key, reference};

pub const ROW: Row = Row {
    name: "node-ipam-controller",
    workers: 1,
    writes: Writes::Of(&["nodes"]),
    watch: |watches| {
        let nodes = &watches.world.informers.nodes.clone();
        watches.on(nodes, |_, queue, change| {
            let lacks = change.new.as_ref().is_some_and(|node| taken(node).is_empty());
            if lacks || change.new.is_none() {
                queue.add(Key::default());
            }
        });
    },
    reconcile: |context: &Context<'_>, _: &Key| plan(&context.world.informers.nodes.list(), &context.world.config),
};

/// The CIDRs of a Node.
fn taken(node: &Node) -> Vec<IpNet> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let all = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    all.filter_map(|cidr| cidr.parse().ok()).collect()
}

/// Assigns CIDRs to all Nodes without any, lowest first.
pub fn plan(nodes: &[Arc<Node>], config: &Config) -> Plan {
    let mut plan = Plan::default();
    if !config.allocate_node_cidrs {
        return plan;
    }
    let mut used = Used::default();
    for cidr in nodes.iter().flat_map(|node| taken(node)).chain(config.service_cidrs.iter().copied()) {
        used.add(cidr);
    }
    let mut writes = Vec::new();
    for node in nodes.iter().filter(|node| taken(node).is_empty() && !meta::is_terminating(&node.metadata)) {
        let cidrs: Option<Vec<IpNet>> = config
            .cluster_cidrs
            .iter()
            .map(|from| {
                let length = if from.addr().is_ipv4() { config.node_mask_v4 } else { config.node_mask_v6 };
                used.take(*from, length)
            })
            .collect();
        match cidrs {
            Some(cidrs) if !cidrs.is_empty() => writes.extend(give(node, &cidrs)),
            Some(_) => {}
            None => {
                let message = format!("Node {} status is now: CIDRNotAvailable", meta::name(&node.metadata));
                plan.notes.push(Note::normal(reference(&**node), "CIDRNotAvailable", message));
            }
        }
    }
    plan.then(writes);
    plan
}

fn give(node: &Arc<Node>, cidrs: &[IpNet]) -> Option<Write> {
    let mut new = Node::clone(node);
    let spec = new.spec.get_or_insert_default();
    spec.pod_cidr = cidrs.first().map(IpNet::to_string);
    spec.pod_cidrs = Some(cidrs.iter().map(IpNet::to_string).collect());
    Write::change(&**node, &new)
}

/// Ranges in use, from first to last address. Adjacent ones are merged, so that the nearest one at or before an address decides,
/// and a full block is skipped at once.
#[derive(Default)]
struct Used(BTreeMap<IpAddr, IpAddr>);

impl Used {
    fn add(&mut self, cidr: IpNet) {
        let (mut first, mut last) = (cidr.network(), cidr.broadcast());
        while let Some((from, to)) = self.nearest(next(last).unwrap_or(last)) {
            if next(to).unwrap_or(to) < first || from.is_ipv4() != first.is_ipv4() {
                break;
            }
            self.0.remove(&from);
            (first, last) = (first.min(from), last.max(to));
        }
        self.0.insert(first, last);
    }

    fn nearest(&self, address: IpAddr) -> Option<(IpAddr, IpAddr)> {
        self.0.range(..=address).next_back().map(|(from, to)| (*from, *to))
    }

    /// The last address of what overlaps `cidr`.
    fn overlap(&self, cidr: IpNet) -> Option<IpAddr> {
        let (_, to) = self.nearest(cidr.broadcast())?;
        (to >= cidr.network() && to.is_ipv4() == cidr.addr().is_ipv4()).then_some(to)
    }

    /// The lowest free range of `length` bits in `from`, if any.
    fn take(&mut self, from: IpNet, length: u8) -> Option<IpNet> {
        if length < from.prefix_len() {
            return None;
        }
        let mut candidate = net(from.network(), length)?;
        loop {
            match self.overlap(candidate) {
                None => break,
                Some(last) => candidate = net(next(last.max(candidate.broadcast()))?, length)?,
            }
            if !from.contains(&candidate) {
                return None;
            }
        }
        self.add(candidate);
        Some(candidate)
    }
}

/// The range of `length` bits that contains `address`.
fn net(address: IpAddr, length: u8) -> Option<IpNet> {
    match address {
        IpAddr::V4(address) => Ipv4Net::new(address, length).ok().map(|net| net.trunc().into()),
        IpAddr::V6(address) => Ipv6Net::new(address, length).ok().map(|net| net.trunc().into()),
    }
}

fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => u32::from(address).checked_add(1).map(|n| IpAddr::V4(n.into())),
        IpAddr::V6(address) => u128::from(address).checked_add(1).map(|n| IpAddr::V6(n.into())),
    }
}
