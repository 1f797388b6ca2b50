//! What NetworkPolicies allow, as upstream's documents say it: a pure function that shares nothing with the product.
//!
//! The sources: the reference of the API's fields, and <https://kubernetes.io/docs/concepts/services-networking/network-policies/>.
//! What these leave open is decided so:
//!
//! - a connection to a Service is judged by the Pod that it is led to, and by that Pod's port;
//! - "a pod cannot block access to itself", by way of a Service neither;
//! - `hostNetwork` Pods are their node: no selector is about them, blocks of addresses are;
//! - a block of addresses may be about Pods' addresses too, and a port's name then is the Pod's.

use std::{collections::BTreeMap, net::IpAddr};

use super::policy::{
    Direction, IpBlock, Labels, Operator, Peer, Policy, Port, Protocol, Requirement, Selector, Spec, Which,
};

/// Who there is.
#[derive(Clone, Debug)]
pub struct World {
    pub namespaces: BTreeMap<String, Labels>,
    pub ends: Vec<End>,
}

/// Whoever connections come from and go to.
#[derive(Clone, Debug)]
pub struct End {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    pub place: Place,
}

#[derive(Clone, Debug)]
pub enum Place {
    Pod(Pod),
    /// A node, by its name.
    Node(String),
    /// No part of the cluster.
    Outside,
}

#[derive(Clone, Debug)]
pub struct Pod {
    pub namespace: String,
    pub labels: Labels,
    pub node: String,
    pub host_network: bool,
    pub ports: Vec<NamedPort>,
}

#[derive(Clone, Debug)]
pub struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
    pub number: u16,
}

/// A connection that is opened: what its first packet says once a Service's address has been replaced.
#[derive(Clone, Copy, Debug)]
pub struct Flow<'a> {
    pub from: &'a End,
    pub source: IpAddr,
    pub to: &'a End,
    pub destination: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

impl End {
    /// The Pod that policies can select; those on their node's network cannot be told from it.
    fn pod(&self) -> Option<&Pod> {
        match &self.place {
            Place::Pod(pod) if !pod.host_network => Some(pod),
            _ => None,
        }
    }

    /// Which node it is, by itself or by its network.
    fn is_node(&self) -> Option<&str> {
        match &self.place {
            Place::Node(node) => Some(node),
            Place::Pod(pod) if pod.host_network => Some(&pod.node),
            _ => None,
        }
    }

    fn is_node_of(&self, other: &End) -> bool {
        let node = other.pod().map(|pod| pod.node.as_str()).or(other.is_node());
        self.is_node().is_some() && self.is_node() == node
    }
}

impl World {
    /// Whether the policies let a connection be opened.
    pub fn allows(&self, policies: &[Policy], flow: &Flow<'_>) -> bool {
        let itself = flow.from.name == flow.to.name;
        let by_node = flow.from.is_node_of(flow.to) || flow.to.is_node_of(flow.from);
        itself || by_node || [Direction::Egress, Direction::Ingress].iter().all(|way| self.lets(policies, *way, flow))
    }

    /// Whether it is let out of where it comes from, or into where it goes to.
    fn lets(&self, policies: &[Policy], direction: Direction, flow: &Flow<'_>) -> bool {
        let (selected, peer, address) = match direction {
            Direction::Ingress => (flow.to, flow.from, flow.source),
            Direction::Egress => (flow.from, flow.to, flow.destination),
        };
        let Some(pod) = selected.pod() else { return true };
        let about = |policy: &&Policy| policy.namespace == pod.namespace && policy.spec.is_about(direction, pod);
        let about: Vec<&Policy> = policies.iter().filter(about).collect();
        let lets = |policy: &&Policy| {
            policy.spec.rules(direction).iter().any(|rule| {
                let ports = rule.ports.as_deref().unwrap_or_default();
                (ports.is_empty() || ports.iter().any(|port| port.is_of(flow)))
                    && (rule.peers().is_empty() || rule.peers().iter().any(|it| self.is(it, policy, peer, address)))
            })
        };
        about.is_empty() || about.iter().any(lets)
    }

    fn is(&self, peer: &Peer, policy: &Policy, end: &End, address: IpAddr) -> bool {
        if let Some(block) = &peer.ip_block {
            return block.has(address);
        }
        let Some(pod) = end.pod() else { return false };
        let in_namespace = match &peer.namespace_selector {
            Some(selector) => self.namespaces.get(&pod.namespace).is_some_and(|labels| selector.matches(labels)),
            None => pod.namespace == policy.namespace,
        };
        in_namespace && peer.pod_selector.as_ref().is_none_or(|selector| selector.matches(&pod.labels))
    }
}

impl Spec {
    fn is_about(&self, direction: Direction, pod: &Pod) -> bool {
        self.types().contains(&direction)
            && self.pod_selector.as_ref().is_none_or(|selector| selector.matches(&pod.labels))
    }

    /// As the API fills it in: a policy without types is about what comes in, and about what goes out if it has rules for that.
    pub fn types(&self) -> Vec<Direction> {
        match self.policy_types.as_deref() {
            Some(types @ [_, ..]) => types.to_vec(),
            _ if self.rules(Direction::Egress).is_empty() => vec![Direction::Ingress],
            _ => vec![Direction::Ingress, Direction::Egress],
        }
    }

    fn rules(&self, direction: Direction) -> &[super::policy::Rule] {
        let rules = if direction == Direction::Ingress { &self.ingress } else { &self.egress };
        rules.as_deref().unwrap_or_default()
    }
}

impl Selector {
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().flatten().all(|requirement| requirement.is_met(labels))
    }
}

impl Requirement {
    fn is_met(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let is_in = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => is_in,
            Operator::NotIn => !is_in,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

impl IpBlock {
    fn has(&self, address: IpAddr) -> bool {
        self.cidr.contains(&address) && !self.except.iter().flatten().any(|part| part.contains(&address))
    }
}

impl Port {
    fn is_of(&self, flow: &Flow<'_>) -> bool {
        let named = |name: &str| {
            let ports = flow.to.pod().map(|pod| pod.ports.as_slice()).unwrap_or_default();
            ports.iter().any(|it| it.name == name && it.protocol == flow.protocol && it.number == flow.port)
        };
        self.protocol.unwrap_or(Protocol::Tcp) == flow.protocol
            && match (&self.port, self.end_port) {
                (None, _) => true,
                (Some(Which::Number(first)), last) => (*first..=last.unwrap_or(*first)).contains(&flow.port),
                (Some(Which::Name(name)), _) => named(name),
            }
    }
}
