//! A NetworkPolicy, read: whom it selects, and what its rules say, in upstream's meaning.
//!
//! | of a rule | missing or empty | else |
//! |---|---|---|
//! | `from`, `to` | everybody | any of the peers |
//! | `ports` | all traffic, ICMP too | any of the ports, of these protocols alone |
//!
//! | of a peer | |
//! |---|---|
//! | `podSelector` | Pods of the policy's namespace |
//! | `namespaceSelector` | all Pods of the namespaces |
//! | both | those Pods of those namespaces |
//! | `ipBlock` | addresses, whosever they are |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podwright_api::selector::LabelSelector;
use podwright_net::IpNet;
use podwright_net::dataplane::Protocol;

use super::limits::{GROUPS, LOOKUPS, PAIRS};
use super::peers::{NamedPods, Namespaces, Pods};
use super::ranges::{self, Range};
use crate::compile::protocol;

/// What a policy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    pub pods: LabelSelector,
    /// `None`: it isolates nobody in this direction.
    pub ingress: Option<Vec<Rule>>,
    pub egress: Option<Vec<Rule>>,
    /// The ports that its rules for ingress call by name.
    pub names: BTreeSet<(Protocol, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// None: everybody.
    pub peers: Vec<Peer>,
    /// None: all traffic.
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    Pods(NamedPods),
    Ranges(Vec<Range>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub protocol: Protocol,
    pub number: Number,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Number {
    Range(u16, u16),
    Name(String),
}

/// Why a policy has no meaning here, or is too large to have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaningless(pub String);

impl fmt::Display for Meaningless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Spec {
    /// Reads a policy.
    ///
    /// # Errors
    ///
    /// What it says has no meaning, as validation refuses it: another version may have let it in. Or it is too large
    /// ([`super::limits`]).
    pub fn read(policy: &NetworkPolicy) -> Result<Spec, Meaningless> {
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        let spec = policy.spec.clone().unwrap_or_default();
        let (ingress, egress) = (spec.ingress.unwrap_or_default(), spec.egress.unwrap_or_default());
        let types = spec.policy_types.unwrap_or_default();
        let has = |name: &str| types.iter().any(|kind| kind == name);
        if let Some(unknown) = types.iter().find(|kind| !matches!(kind.as_str(), "Ingress" | "Egress")) {
            return Err(Meaningless(format!("policyTypes: {unknown:?} is unknown")));
        }
        let pairs = |peers: &Option<Vec<_>>, ports: &Option<Vec<_>>| {
            peers.as_ref().map_or(1, Vec::len).max(1).saturating_mul(ports.as_ref().map_or(1, Vec::len).max(1))
        };
        let of_ingress: usize = ingress.iter().map(|rule| pairs(&rule.from, &rule.ports)).sum();
        let of_egress: usize = egress.iter().map(|rule| pairs(&rule.to, &rule.ports)).sum();
        if of_ingress.max(of_egress) > PAIRS {
            return Err(Meaningless(format!("its rules have more than {PAIRS} pairs of a peer and a port")));
        }
        let mut groups = BTreeMap::new();
        let mut rule = |peers: &Option<Vec<_>>, ports: &Option<Vec<_>>| rule(namespace, peers, ports, &mut groups);
        let of_ingress = |NetworkPolicyIngressRule { from, ports }: &_| rule(from, ports);
        let isolates = (types.is_empty() || has("Ingress"), has("Egress") || types.is_empty() && !egress.is_empty());
        let ingress: Option<Result<_, _>> = isolates.0.then(|| ingress.iter().map(of_ingress).collect());
        let of_egress = |NetworkPolicyEgressRule { to, ports }: &_| rule(to, ports);
        let egress: Option<Result<_, _>> = isolates.1.then(|| egress.iter().map(of_egress).collect());
        let (ingress, egress): (Option<Vec<Rule>>, _) = (ingress.transpose()?, egress.transpose()?);
        let ports = ingress.iter().flatten().flat_map(|rule| &rule.ports);
        let name = |port: &Port| match &port.number {
            Number::Name(name) => Some((port.protocol, name.clone())),
            Number::Range(..) => None,
        };
        Ok(Spec { names: ports.filter_map(name).collect(), pods: Spec::selected(policy)?, ingress, egress })
    }

    /// Whom a policy selects, whatever else it says.
    ///
    /// # Errors
    ///
    /// As [`Spec::read`].
    pub fn selected(policy: &NetworkPolicy) -> Result<LabelSelector, Meaningless> {
        let pods = policy.spec.as_ref().and_then(|spec| spec.pod_selector.as_ref());
        pods.map_or(Ok(LabelSelector::default()), |pods| selector("spec.podSelector", pods))
    }
}

/// `groups`: those that the policy has named so far. With more than a namespace may have it is not read on.
fn rule(
    namespace: &str,
    peers: &Option<Vec<NetworkPolicyPeer>>,
    ports: &Option<Vec<NetworkPolicyPort>>,
    groups: &mut BTreeMap<Arc<str>, NamedPods>,
) -> Result<Rule, Meaningless> {
    let mut peer = |peer: &NetworkPolicyPeer| {
        let peer = match self::peer(namespace, peer)? {
            Peer::Pods(named) => Peer::Pods(groups.entry(named.name.clone()).or_insert(named).clone()),
            ranges => ranges,
        };
        match groups.len() {
            0..=GROUPS => Ok(peer),
            _ => Err(Meaningless(format!("its rules name more than {GROUPS} groups of Pods"))),
        }
    };
    Ok(Rule {
        peers: peers.iter().flatten().map(&mut peer).collect::<Result<_, _>>()?,
        ports: ports.iter().flatten().map(port).collect::<Result<_, _>>()?,
    })
}

fn peer(namespace: &str, peer: &NetworkPolicyPeer) -> Result<Peer, Meaningless> {
    let NetworkPolicyPeer { ip_block, namespace_selector, pod_selector } = peer;
    if let Some(block) = ip_block {
        if namespace_selector.is_some() || pod_selector.is_some() {
            return Err(Meaningless("a peer is an ipBlock and Pods".to_owned()));
        }
        let except: Vec<IpNet> = block.except.iter().flatten().map(|part| cidr(part)).collect::<Result<_, _>>()?;
        return Ok(Peer::Ranges(ranges::block(cidr(&block.cidr)?, &except)));
    }
    let namespaces = match namespace_selector {
        Some(namespaces) => Namespaces::Of(selector("namespaceSelector", namespaces)?),
        None if pod_selector.is_some() => Namespaces::One(namespace.to_owned()),
        None => return Err(Meaningless("a peer is nobody".to_owned())),
    };
    let pods = pod_selector.as_ref().map_or(Ok(LabelSelector::default()), |pods| selector("podSelector", pods))?;
    Ok(Peer::Pods(NamedPods::new(Pods { namespaces, pods })))
}

fn port(port: &NetworkPolicyPort) -> Result<Port, Meaningless> {
    let no = |what: &str| Meaningless(format!("a port has {what}"));
    let protocol = protocol(port.protocol.as_deref()).ok_or_else(|| no("an unknown protocol"))?;
    let number = |number: i32| u16::try_from(number).ok().filter(|number| *number > 0).ok_or_else(|| no("no number"));
    let number = match (&port.port, port.end_port) {
        (None, None) => Number::Range(0, u16::MAX),
        (Some(IntOrString::Int(first)), None) => Number::Range(number(*first)?, number(*first)?),
        (Some(IntOrString::Int(first)), Some(last)) if last >= *first => Number::Range(number(*first)?, number(last)?),
        (Some(IntOrString::String(name)), None) => Number::Name(name.clone()),
        _ => return Err(no("an end before its beginning, or no beginning")),
    };
    Ok(Port { protocol, number })
}

fn selector(field: &str, selector: &v1::LabelSelector) -> Result<LabelSelector, Meaningless> {
    let selector =
        LabelSelector::of(selector).ok_or_else(|| Meaningless(format!("{field}: an operator is unknown")))?;
    match selector.lookups() {
        0..=LOOKUPS => Ok(selector),
        _ => Err(Meaningless(format!("{field}: it has more than {LOOKUPS} labels and values"))),
    }
}

fn cidr(text: &str) -> Result<IpNet, Meaningless> {
    text.parse().map_err(|_| Meaningless(format!("ipBlock: {text:?} is no CIDR")))
}
