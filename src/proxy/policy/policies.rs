//! What a node's policies come to: whom each of its Pods talks with, and who is of which group.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use podwright_api::selector::LabelSelector;
use podwright_client::Key;
use podwright_net::IpNet;
use podwright_net::dataplane::{Allowed, Direction, Isolated, Named, PolicyChanges, Seniority};

use super::groups::{Groups, Labels, matches};
use super::limits::{COUNTED, ELEMENTS, GROUPS, RULES, SELECTING, TooMuch};
use super::peers::Group;
use super::pod::{NamedPort, PodView};
use super::rules::{Compiled, compile};
use super::spec::{self, Spec};
use crate::compile::seniority;

/// The namespace of Pods that nobody knows.
const NOBODYS: &str = "";

/// A policy, as far as it is understood.
#[derive(Debug)]
struct Known {
    seniority: Seniority,
    said: Said,
    /// Why nothing is let through by it, though it is understood.
    left_out: Option<TooMuch>,
    /// For this node's Pods: by direction and, where names of ports have a say, what they stand for in the Pod.
    compiled: HashMap<Variant, Arc<Compiled>>,
}

/// For whom a policy is compiled: Pods alike get the same.
type Variant = (Direction, Vec<NamedPort>);

#[derive(Debug, PartialEq)]
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

impl Outcome {
    /// Adds what is other since.
    pub fn extend(&mut self, later: Outcome) {
        self.changes.extend(later.changes);
        self.troubled.extend(later.troubled);
    }
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
    /// The groups of each namespace's policies.
    groups_of: BTreeMap<String, BTreeMap<Arc<str>, Group>>,
    /// What each namespace's policies have taken.
    shares: BTreeMap<String, Share>,
    /// The namespaces whose Pods' peers are to be decided anew, the longest waiting first.
    dirty: VecDeque<String>,
    /// What has changed since it was last asked for.
    outcome: Outcome,
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
        // What it says otherwise is nothing to policies.
        let known = self.policies.get(key).map(|known| (&known.said, &known.seniority));
        if known == found.as_ref().map(|(said, seniority)| (said, seniority)) {
            return;
        }
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
        self.soil(&key.namespace);
        self.soil(NOBODYS);
    }

    /// What the Pods of this namespace talk with is to be decided anew.
    fn soil(&mut self, namespace: &str) {
        if !self.dirty.iter().any(|dirty| dirty == namespace) {
            self.dirty.push_back(namespace.to_owned());
        }
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
        let mut dirty = BTreeSet::new();
        for (uid, local) in before.iter().filter(|(uid, local)| self.locals.get(*uid) != Some(*local)) {
            local.pod.iter().for_each(|pod| self.groups.set_pod(&key(uid, pod), None));
            dirty.insert(local.namespace().to_owned());
        }
        for (uid, local) in self.locals.iter().filter(|(uid, local)| before.get(*uid) != Some(*local)) {
            let found = |pod: &Arc<PodView>| (pod.clone(), local.addresses.clone());
            local.pod.iter().for_each(|pod| self.groups.set_pod(&key(uid, pod), Some(found(pod))));
            dirty.insert(local.namespace().to_owned());
        }
        dirty.iter().for_each(|namespace| self.soil(namespace));
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
        let mut namespaces = BTreeSet::new();
        for (key, known) in &mut self.policies {
            if known.left_out.take().is_some() {
                namespaces.insert(key.namespace.to_string());
            }
        }
        namespaces.iter().for_each(|namespace| self.soil(namespace));
    }

    /// Why the policies of a Pod of this node are not in force as they were written.
    pub fn trouble(&self, uid: &str) -> Option<&str> {
        self.troubles.get(uid).map(String::as_str)
    }

    /// The namespaces that are to be decided anew, the longest waiting first.
    pub fn dirty(&self) -> impl Iterator<Item = &str> {
        self.dirty.iter().map(String::as_str)
    }

    /// Whether what is in force for this Pod of this node may be other than what is known.
    pub fn is_undecided(&self, uid: &str) -> bool {
        self.locals.get(uid).is_some_and(|local| self.dirty.iter().any(|dirty| dirty == local.namespace()))
    }

    /// Decides whom the Pods of this namespace talk with.
    pub fn decide(&mut self, namespace: &str) {
        self.dirty.retain(|dirty| dirty != namespace);
        self.bound(namespace);
        self.judge(namespace);
    }

    /// What has changed by all that was decided, and by Pods that came and went.
    pub fn settle(&mut self) -> Outcome {
        let groups = self.groups_of.values().flatten().map(|(name, group)| (name.clone(), group.clone()));
        self.groups.set_groups(groups.collect());
        let members = self.groups.settle();
        // Groups grow by Pods, too.
        if !members.is_empty() {
            let fuller = self.shares.iter().filter(|(_, share)| !share.fits(&self.groups));
            let fuller: Vec<String> = fuller.map(|(namespace, _)| namespace.clone()).collect();
            fuller.iter().for_each(|namespace| self.soil(namespace));
        }
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.changes.members = members;
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

    /// What each of this node's Pods in a namespace is let do, and the groups that it takes.
    fn judge(&mut self, namespace: &str) {
        let mut groups = BTreeMap::new();
        let mut isolated = BTreeMap::new();
        let mut troubles = BTreeMap::new();
        for (uid, local) in self.locals.iter().filter(|(_, local)| local.namespace() == namespace) {
            let Verdict { isolated: own, trouble } = match &local.pod {
                Some(pod) => judge(&self.policies, pod, local.addresses.clone(), &mut groups),
                None if self.policies.is_empty() => Verdict::default(),
                None => Verdict { isolated: Isolated::cut_off(local.addresses.clone()), trouble: None },
            };
            if own.is_isolated() {
                isolated.insert(uid.clone(), own);
            }
            troubles.extend(trouble.map(|why| (uid.clone(), why)));
        }
        self.groups_of.insert(namespace.to_owned(), groups);
        self.groups_of.retain(|_, groups| !groups.is_empty());
        // Those that have gone are of no namespace any more.
        let locals = &self.locals;
        let is_here = |uid: &String| locals.get(uid).is_none_or(|local| local.namespace() == namespace);
        let changes = &mut self.outcome.changes.isolated;
        for uid in self.isolated.keys().filter(|uid| is_here(uid) && !isolated.contains_key(*uid)) {
            changes.insert(uid.clone(), Isolated::default());
        }
        for (uid, own) in isolated.iter().filter(|(uid, own)| self.isolated.get(*uid) != Some(*own)) {
            changes.insert(uid.clone(), own.clone());
        }
        let new = troubles.iter().filter(|(uid, why)| self.troubles.get(*uid) != Some(*why));
        self.outcome.troubled.extend(new.map(|(uid, why)| (uid.clone(), why.clone())));
        self.isolated.retain(|uid, _| !is_here(uid));
        self.isolated.extend(isolated);
        self.troubles.retain(|uid, _| !is_here(uid));
        self.troubles.extend(troubles);
    }

    /// Leaves out what a namespace has no room for, its youngest policies.
    fn bound(&mut self, namespace: &str) {
        let own = self.locals.values().filter(|local| local.namespace() == namespace);
        let pods: Vec<Arc<PodView>> = own.filter_map(|local| local.pod.clone()).collect();
        let within = self.policies.range_mut(Key::new(namespace, "")..);
        let within = within.take_while(|(key, _)| *key.namespace == *namespace).map(|(_, known)| known);
        let mut own: Vec<&mut Known> = within.filter(|known| known.left_out.is_none()).collect();
        own.sort_by(|a, b| a.seniority.cmp(&b.seniority));
        let mut share = Share::default();
        for known in own {
            if let Err(why) = known.take(&pods, &mut share, &self.groups) {
                known.left_out = Some(why);
                known.compiled = HashMap::new();
            }
        }
        match share.groups.is_empty() {
            true => drop(self.shares.remove(namespace)),
            false => drop(self.shares.insert(namespace.to_owned(), share)),
        }
    }
}

impl Local {
    /// The namespace that it is decided with.
    fn namespace(&self) -> &str {
        self.pod.as_ref().map_or(NOBODYS, |pod| pod.namespace())
    }
}

/// What the policies of a namespace have taken, the oldest first.
#[derive(Clone, Debug, Default)]
struct Share {
    groups: BTreeSet<Arc<str>>,
    /// Rules, ranges and ports.
    fixed: usize,
    /// The members of the groups.
    members: usize,
    /// What it takes to find which of them select a Pod.
    selecting: usize,
    /// The groups whose members were counted, whatever became of them.
    counted: usize,
}

impl Share {
    /// Takes what a policy comes to for some Pods.
    ///
    /// # Errors
    ///
    /// There is no room.
    fn take(&mut self, compiled: &Compiled, known: &Groups) -> Result<(), TooMuch> {
        self.fixed += compiled.weight;
        let new = compiled.groups.keys().filter(|name| !self.groups.contains(*name)).count();
        self.counted += new;
        if self.groups.len() + new > GROUPS || self.counted > COUNTED {
            return Err(TooMuch::Groups);
        }
        for (name, group) in &compiled.groups {
            let Some(room) = ELEMENTS.checked_sub(self.fixed + self.members) else { return Err(TooMuch::Elements) };
            if self.groups.insert(name.clone()) {
                self.members += known.size(name, group, room + 1);
            }
        }
        if self.fixed + self.members > ELEMENTS { Err(TooMuch::Elements) } else { Ok(()) }
    }

    /// Whether there is room for it still, with the members that its groups have by now.
    fn fits(&self, known: &Groups) -> bool {
        self.fixed + self.groups.iter().map(|group| known.members(group)).sum::<usize>() <= ELEMENTS
    }
}

impl Known {
    fn selects(&self, pod: &PodView) -> bool {
        // Nobody looks whom it selects.
        self.left_out == Some(TooMuch::Selectors) || matches(self.selector(), pod.labels())
    }

    fn selector(&self) -> &LabelSelector {
        let (Said::Spec(Spec { pods, .. }) | Said::Meaningless(pods, _)) = &self.said;
        pods
    }

    /// Why it is not in force as it was written.
    fn trouble(&self) -> Option<String> {
        match &self.said {
            Said::Meaningless(_, why) => Some(why.clone()),
            Said::Spec(_) => self.left_out.map(|why| why.to_string()),
        }
    }

    /// Whether it isolates in a direction. One that is not understood does in both.
    fn isolates(&self, direction: Direction) -> bool {
        match &self.said {
            Said::Meaningless(..) => true,
            Said::Spec(spec) => of(spec, direction).is_some(),
        }
    }

    /// Compiles it for these Pods of its namespace, one after the other as long as there is room; what is of no Pod any more goes.
    ///
    /// # Errors
    ///
    /// There is no room; nothing is taken.
    fn take(&mut self, pods: &[Arc<PodView>], share: &mut Share, known: &Groups) -> Result<(), TooMuch> {
        share.selecting += self.selector().lookups().max(1);
        if share.selecting > SELECTING {
            return Err(TooMuch::Selectors);
        }
        let Said::Spec(spec) = &self.said else { return Ok(()) };
        let mut before = std::mem::take(&mut self.compiled);
        let mut with = share.clone();
        for pod in pods.iter().filter(|pod| matches(&spec.pods, pod.labels())) {
            for direction in [Direction::Ingress, Direction::Egress] {
                let Some(rules) = of(spec, direction) else { continue };
                let variant = variant(spec, direction, pod);
                if self.compiled.contains_key(&variant) {
                    continue;
                }
                let compiled = match before.remove(&variant) {
                    Some(compiled) => compiled,
                    None => Arc::new(compile(rules, direction, pod)?),
                };
                let taken = with.take(&compiled, known);
                share.counted = with.counted;
                taken?;
                self.compiled.insert(variant, compiled);
            }
        }
        *share = with;
        Ok(())
    }

    /// What it lets through to or from a Pod for which it has been compiled.
    fn compiled(&self, direction: Direction, pod: &PodView) -> Option<&Arc<Compiled>> {
        let Said::Spec(spec) = &self.said else { return None };
        of(spec, direction)?;
        self.compiled.get(&variant(spec, direction, pod))
    }
}

/// What of a Pod has a say in what a policy is for it: the ports that it calls by name, where the names are the Pod's own.
fn variant(spec: &Spec, direction: Direction, pod: &PodView) -> Variant {
    let is_named = |port: &&NamedPort| spec.names.contains(&(port.protocol, port.name.clone()));
    let own = pod.ports.iter().filter(|_| direction == Direction::Ingress).filter(is_named);
    let mut own: Vec<NamedPort> = own.cloned().collect();
    own.sort_unstable();
    (direction, own)
}

fn of(spec: &Spec, direction: Direction) -> Option<&[spec::Rule]> {
    match direction {
        Direction::Ingress => spec.ingress.as_deref(),
        Direction::Egress => spec.egress.as_deref(),
    }
}

fn judge(
    policies: &BTreeMap<Key, Known>,
    pod: &PodView,
    addresses: Vec<IpAddr>,
    groups: &mut BTreeMap<Arc<str>, Group>,
) -> Verdict {
    let mut verdict = Verdict { isolated: Isolated { addresses, ..Isolated::default() }, trouble: None };
    let within = policies.range(Key::new(pod.namespace(), "")..);
    let within = within.take_while(|(key, _)| key.namespace == pod.namespace());
    let own: Vec<(&Key, &Known)> = within.filter(|(_, known)| known.selects(pod)).collect();
    for direction in [Direction::Ingress, Direction::Egress] {
        let mut allowed: Option<Allowed> = None;
        let (mut rules, mut named) = (0, BTreeMap::new());
        for (key, known) in own.iter().filter(|(_, known)| known.isolates(direction)) {
            let allowed = allowed.get_or_insert_default();
            let policy = known.compiled(direction, pod).filter(|_| known.trouble().is_none());
            let policy = policy.map(|compiled| compiled.policy.clone());
            verdict.isolated.named.push(Named { name: key.to_string().into(), direction, policy });
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
