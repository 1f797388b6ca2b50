//! What a node's policies come to: whom each of its Pods talks with, and who is of which group.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use podwright_api::selector::LabelSelector;
use podwright_client::Key;
use podwright_net::IpNet;
use podwright_net::dataplane::{Allowed, Direction, Isolated, PolicyChanges, Seniority};

use super::groups::{Groups, Labels, matches};
use super::limits::{ELEMENTS, GROUPS, RULES};
use super::pod::{NamedPort, PodView};
use super::rules::{Compiled, Group, compile};
use super::spec::{self, Spec};
use crate::compile::seniority;

/// A policy, as far as it is understood.
#[derive(Debug)]
struct Known {
    seniority: Seniority,
    said: Said,
    /// Why nothing is let through by it, though it is understood.
    left_out: Option<String>,
    /// By direction and, where a name of a port has a say, the ports of the Pod.
    compiled: HashMap<(Direction, Vec<NamedPort>), Arc<Compiled>>,
}

#[derive(Debug)]
enum Said {
    Spec(Spec),
    /// Whom it selects, and why nothing else is known of it.
    Meaningless(LabelSelector, String),
}

/// A Pod of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Local {
    /// `None`: nobody knows whose addresses these are.
    pub pod: Option<Arc<PodView>>,
    pub addresses: Vec<IpAddr>,
}

/// What is other than before.
#[derive(Debug, Default)]
pub struct Outcome {
    pub changes: PolicyChanges,
    /// Pods of this node, by uid, whose policies are not in force as they were written, and why: since this change.
    pub troubled: Vec<(String, String)>,
}

/// What is wanted of this node's policies. Pure.
#[derive(Debug, Default)]
pub struct Policies {
    node: String,
    policies: BTreeMap<Key, Known>,
    locals: BTreeMap<String, Local>,
    /// Pods of other nodes.
    peers: BTreeMap<Key, Arc<PodView>>,
    /// The ranges of each node's Pods.
    nodes: HashMap<String, Vec<IpNet>>,
    groups: Groups,
    isolated: BTreeMap<String, Isolated>,
    troubles: BTreeMap<String, String>,
    /// Whether whom this node's Pods talk with is to be decided anew.
    is_dirty: bool,
}

/// What one Pod's policies come to.
#[derive(Default)]
struct Verdict {
    isolated: Isolated,
    trouble: Option<String>,
}

impl Policies {
    /// `node`: this node; `dns`: where it answers DNS itself. To policies that is the Pod that others run for it: `kube-dns` of `kube-system`.
    pub fn new(node: &str, dns: &[IpAddr]) -> Policies {
        let mut policies = Policies { node: node.to_owned(), ..Policies::default() };
        if !dns.is_empty() {
            let pod = Arc::new(PodView::of_dns());
            // No Pod has such a name.
            policies.groups.set_pod(&Key::new(pod.namespace(), "(dns)"), Some((pod, dns.to_vec())));
        }
        policies
    }

    /// Whether there are no policies.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    pub fn set_policy(&mut self, key: &Key, policy: Option<&NetworkPolicy>) {
        let said = policy.map(|policy| match Spec::read(policy) {
            Ok(spec) => Said::Spec(spec),
            Err(why) => Said::Meaningless(Spec::selected(policy).unwrap_or_default(), why.to_string()),
        });
        self.say(key, said.zip(policy.map(|policy| seniority(&policy.metadata))));
    }

    /// There is a policy that cannot be read: whom it selects, nobody knows.
    pub fn set_undecodable(&mut self, key: &Key, why: &str) {
        let said = Said::Meaningless(LabelSelector::default(), why.to_owned());
        self.say(key, Some((said, Seniority::default())));
    }

    fn say(&mut self, key: &Key, found: Option<(Said, Seniority)>) {
        // What there is room for may be others now.
        let others = self.policies.range_mut(Key::new(&*key.namespace, "")..);
        others.take_while(|(other, _)| other.namespace == key.namespace).for_each(|(_, known)| known.left_out = None);
        match found {
            Some((said, seniority)) => {
                let known = Known { seniority, said, left_out: None, compiled: HashMap::new() };
                self.policies.insert(key.clone(), known);
            }
            None => drop(self.policies.remove(key)),
        }
        self.is_dirty = true;
    }

    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        self.groups.set_namespace(name, labels);
    }

    /// A Pod of any node, as the API tells of it: those of this node are its [`Policies::set_locals`], whatever is told.
    pub fn set_peer(&mut self, key: &Key, pod: Option<Arc<PodView>>) {
        match pod.filter(|pod| pod.node != self.node) {
            Some(pod) => drop(self.peers.insert(key.clone(), pod)),
            None if self.peers.remove(key).is_none() => return,
            None => {}
        }
        self.place(key);
    }

    /// The ranges of the Pods of all nodes, as the control plane has given them.
    pub fn set_nodes(&mut self, nodes: HashMap<String, Vec<IpNet>>) {
        if nodes == self.nodes {
            return;
        }
        let is_other = |node: &str| nodes.get(node) != self.nodes.get(node);
        let moved: Vec<Key> =
            self.peers.iter().filter(|(_, pod)| is_other(&pod.node)).map(|(key, _)| key.clone()).collect();
        self.nodes = nodes;
        moved.iter().for_each(|key| self.place(key));
    }

    /// All Pods that have addresses on this node, by uid.
    pub fn set_locals(&mut self, locals: BTreeMap<String, Local>) {
        if locals == self.locals {
            return;
        }
        let before = std::mem::replace(&mut self.locals, locals);
        // No Pod has such a name: one of another node may have this one's by now.
        let key = |uid: &str, pod: &PodView| Key::new(pod.namespace(), format!("({uid})"));
        for (uid, local) in before.iter().filter(|(uid, local)| self.locals.get(*uid) != Some(*local)) {
            local.pod.iter().for_each(|pod| self.groups.set_pod(&key(uid, pod), None));
        }
        for (uid, local) in self.locals.iter().filter(|(uid, local)| before.get(*uid) != Some(*local)) {
            let found = |pod: &Arc<PodView>| (pod.clone(), local.addresses.clone());
            local.pod.iter().for_each(|pod| self.groups.set_pod(&key(uid, pod), Some(found(pod))));
        }
        self.is_dirty = true;
    }

    pub fn locals(&self) -> &BTreeMap<String, Local> {
        &self.locals
    }

    /// Whether there are policies that there was no room for.
    pub fn has_left_out(&self) -> bool {
        self.policies.values().any(|known| known.left_out.is_some())
    }

    /// Looks for room once more: there may be fewer Pods than when it was looked for last.
    pub fn reconsider(&mut self) {
        self.is_dirty |= self.has_left_out();
        self.policies.values_mut().for_each(|known| known.left_out = None);
    }

    /// Why the policies of a Pod of this node are not in force as they were written.
    pub fn trouble(&self, uid: &str) -> Option<&str> {
        self.troubles.get(uid).map(String::as_str)
    }

    /// Compiles what has changed.
    pub fn update(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        if std::mem::take(&mut self.is_dirty) {
            self.bound();
            self.decide(&mut outcome);
        }
        outcome.changes.members = self.groups.settle();
        // Groups grow by Pods, too.
        if !outcome.changes.members.is_empty() && self.bound() {
            self.decide(&mut outcome);
            outcome.changes.members.extend(self.groups.settle());
        }
        outcome
    }

    /// Says where a Pod of another node is: an address is believed if it is of the range of the Pod's node, which is not that node's
    /// word.
    fn place(&mut self, key: &Key) {
        let found = self.peers.get(key).map(|pod| {
            let ranges = self.nodes.get(&pod.node).map(Vec::as_slice).unwrap_or_default();
            let is_its = |address: &&IpAddr| ranges.iter().any(|range| range.contains(*address));
            (pod.clone(), pod.addresses.iter().filter(is_its).copied().collect())
        });
        self.groups.set_pod(key, found);
    }

    /// What each of this node's Pods is let do, and the groups that it takes.
    fn decide(&mut self, outcome: &mut Outcome) {
        let mut groups = BTreeMap::new();
        let mut isolated = BTreeMap::new();
        let mut troubles = BTreeMap::new();
        for (uid, local) in &self.locals {
            let Verdict { isolated: own, trouble } = match &local.pod {
                Some(pod) => judge(&mut self.policies, pod, local.addresses.clone(), &mut groups),
                None if self.policies.is_empty() => Verdict::default(),
                None => Verdict { isolated: Isolated::cut_off(local.addresses.clone()), trouble: None },
            };
            if own.is_isolated() {
                isolated.insert(uid.clone(), own);
            }
            troubles.extend(trouble.map(|why| (uid.clone(), why)));
        }
        self.groups.set_groups(groups);
        for uid in self.isolated.keys().filter(|uid| !isolated.contains_key(*uid)) {
            outcome.changes.isolated.insert(uid.clone(), Isolated::default());
        }
        for (uid, own) in isolated.iter().filter(|(uid, own)| self.isolated.get(*uid) != Some(*own)) {
            outcome.changes.isolated.insert(uid.clone(), own.clone());
        }
        let new = troubles.iter().filter(|(uid, why)| self.troubles.get(*uid) != Some(*why));
        outcome.troubled.extend(new.map(|(uid, why)| (uid.clone(), why.clone())));
        (self.isolated, self.troubles) = (isolated, troubles);
    }

    /// Leaves out what a namespace has no room for, its youngest policies; whether there was one that it had room for until now.
    fn bound(&mut self) -> bool {
        let mut locals: BTreeMap<String, Vec<Arc<PodView>>> = BTreeMap::new();
        for pod in self.locals.values().filter_map(|local| local.pod.clone()) {
            locals.entry(pod.namespace().to_owned()).or_default().push(pod);
        }
        let mut any = false;
        for (namespace, pods) in locals {
            let within = self.policies.range_mut(Key::new(&*namespace, "")..);
            let within = within.take_while(|(key, _)| key.namespace == namespace).map(|(_, known)| known);
            let mut own: Vec<&mut Known> = within.filter(|known| known.left_out.is_none()).collect();
            own.sort_by(|a, b| a.seniority.cmp(&b.seniority));
            let mut share = Share::default();
            for known in own {
                known.left_out = share.take(known.wanted(&pods), &self.groups).err();
                any |= known.left_out.is_some();
            }
        }
        any
    }
}

/// What the policies of a namespace have taken, the oldest first.
#[derive(Default)]
struct Share {
    groups: BTreeSet<Arc<str>>,
    weight: usize,
}

impl Share {
    /// Takes these groups and so much beside them.
    ///
    /// # Errors
    ///
    /// There is no room; in words.
    fn take(&mut self, (groups, weight): (BTreeMap<Arc<str>, Group>, usize), known: &Groups) -> Result<(), String> {
        let no_room = |most: usize, what: &str| {
            Err(format!(
                "with what is older in its namespace it takes more than {most} {what}: it lets nothing through"
            ))
        };
        let new: Vec<_> = groups.into_iter().filter(|(name, _)| !self.groups.contains(name)).collect();
        if self.groups.len() + new.len() > GROUPS {
            return no_room(GROUPS, "groups of Pods");
        }
        let mut sum = self.weight + weight;
        for (name, group) in &new {
            if sum > ELEMENTS {
                break;
            }
            sum += known.size(name, group, ELEMENTS - sum + 1);
        }
        if sum > ELEMENTS {
            return no_room(ELEMENTS, "addresses, ranges and ports");
        }
        self.weight = sum;
        self.groups.extend(new.into_iter().map(|(name, _)| name));
        Ok(())
    }
}

impl Known {
    fn selects(&self, pod: &PodView) -> bool {
        let (Said::Spec(Spec { pods, .. }) | Said::Meaningless(pods, _)) = &self.said;
        matches(pods, pod.labels())
    }

    /// Why it is not in force as it was written.
    fn trouble(&self) -> Option<&str> {
        match &self.said {
            Said::Meaningless(_, why) => Some(why),
            Said::Spec(_) => self.left_out.as_deref(),
        }
    }

    /// Whether it isolates in a direction. One that is not understood does in both.
    fn isolates(&self, direction: Direction) -> bool {
        match &self.said {
            Said::Meaningless(..) => true,
            Said::Spec(spec) => of(spec, direction).is_some(),
        }
    }

    /// The groups that it takes for these Pods of its namespace, and what beside them.
    fn wanted(&mut self, pods: &[Arc<PodView>]) -> (BTreeMap<Arc<str>, Group>, usize) {
        let mut all: BTreeMap<*const Compiled, Arc<Compiled>> = BTreeMap::new();
        for pod in pods {
            if !self.selects(pod) {
                continue;
            }
            let both = [Direction::Ingress, Direction::Egress];
            let compiled = both.into_iter().filter_map(|direction| self.compiled(direction, pod)).collect::<Vec<_>>();
            all.extend(compiled.into_iter().map(|compiled| (Arc::as_ptr(&compiled), compiled)));
        }
        let weight = all.values().map(|compiled| compiled.weight()).sum();
        (all.into_values().flat_map(|compiled| compiled.groups.clone()).collect(), weight)
    }

    /// What it lets through to or from a Pod.
    fn compiled(&mut self, direction: Direction, pod: &PodView) -> Option<Arc<Compiled>> {
        let Said::Spec(spec) = &self.said else { return None };
        let rules = of(spec, direction)?;
        let has_name = |rule: &spec::Rule| rule.ports.iter().any(|port| matches!(port.number, spec::Number::Name(_)));
        let ports = match direction == Direction::Ingress && rules.iter().any(has_name) {
            true => pod.ports.clone(),
            false => Vec::new(),
        };
        let new = || Arc::new(compile(rules, direction, pod));
        Some(self.compiled.entry((direction, ports)).or_insert_with(new).clone())
    }
}

fn of(spec: &Spec, direction: Direction) -> Option<&[spec::Rule]> {
    match direction {
        Direction::Ingress => spec.ingress.as_deref(),
        Direction::Egress => spec.egress.as_deref(),
    }
}

fn judge(
    policies: &mut BTreeMap<Key, Known>,
    pod: &PodView,
    addresses: Vec<IpAddr>,
    groups: &mut BTreeMap<Arc<str>, Group>,
) -> Verdict {
    let mut verdict = Verdict { isolated: Isolated { addresses, ..Isolated::default() }, trouble: None };
    let within = policies.range_mut(Key::new(pod.namespace(), "")..);
    let within = within.take_while(|(key, _)| key.namespace == pod.namespace());
    let mut own: Vec<(&Key, &mut Known)> = within.filter(|(_, known)| known.selects(pod)).collect();
    for direction in [Direction::Ingress, Direction::Egress] {
        let mut allowed: Option<Allowed> = None;
        let (mut rules, mut named) = (0, BTreeMap::new());
        for (key, known) in own.iter_mut().filter(|(_, known)| known.isolates(direction)) {
            let allowed = allowed.get_or_insert_default();
            if let Some(why) = known.trouble() {
                verdict.trouble = Some(format!("NetworkPolicy {}: {why}", key.name));
                continue;
            }
            let Some(compiled) = known.compiled(direction, pod) else { continue };
            rules += compiled.policy.rules.len();
            if allowed.insert(compiled.policy.clone()) {
                named.extend(compiled.groups.clone());
            }
        }
        if rules > RULES {
            verdict.trouble = Some(format!(
                "its NetworkPolicies have {rules} rules together, of which {RULES} are compared with each packet at most: \
                 nothing is let through"
            ));
            allowed = Some(Allowed::new());
            named.clear();
        }
        groups.extend(named);
        match direction {
            Direction::Ingress => verdict.isolated.ingress = allowed,
            Direction::Egress => verdict.isolated.egress = allowed,
        }
    }
    verdict
}
