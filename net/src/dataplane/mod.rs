//! Services as elements of one nftables table per family, named `podwright`.
//!
//! [`base`] is the fixed part; Services are elements ([`elements`]) that [`mod@compile`] makes. The kernel's state is mirrored in memory: a change is the difference between two compilations of the changed Services, sent as one netlink transaction. If a transaction is refused everything is loaded again, and external changes are detected and repaired ([`check`]).
//!
//! Our cost of a change is the same with 10 Services as with 10,000. The kernel's is too, while lists keep their lengths: another
//! length is another verdict in `services`, and after a new verdict the kernel validates the table, walking that whole map
//! (`nft_lookup_validate`: 60 ns per Service).
//!
//! A restarted agent finds its predecessor's table. Ids and affinity slots are derived from names, so they stay the same: one
//! transaction empties and refills the maps, established connections keep their conntrack entries and clients their endpoints. Only
//! a table of another version of the fixed part is replaced as a whole, again in one step.

mod base;
mod carriers;
mod chains;
mod check;
mod claims;
mod compile;
mod conflicting_tables;
mod conntrack;
mod difference;
mod elements;
mod fixed;
mod followed;
mod fragments;
pub mod ids;
mod judged;
mod lookups;
mod model;
mod policies;
mod policy;
mod ports;
mod shares;
pub mod speed;
mod table;
mod tally;
mod tunnels;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_journal::{Clock, JournalWriter};

pub(crate) use conntrack::{forget, load as load_conntrack};

pub use base::{script, source_count};
pub use carriers::{Carrier, ask};
pub use check::Commits;
pub use conflicting_tables::{Conflict, conflicting_tables};
pub use followed::Followed;
pub use judged::{Chain, Judged, judged};
pub use lookups::{element_at, is_interval};
pub use model::{Backends, Empty, Lost, NodeFacts, Protocol, Seniority, Service, ServicePort};
pub use policy::{Allowed, Direction, Isolated, Member, Named, Peers, Policy, PolicyChanges, Ports, Rule};
pub use shares::{Keeper, PERIOD, QUIET, Relief};
pub use table::{TABLE, nft_family};

use crate::netlink::{self, Socket};
use crate::{Family, NodeNetns, Result};
use chains::{Chains, Shared};
use claims::{Claims, Contested, Holder};
use compile::{Compiled, compile};
use conntrack::Stale;
use difference::Difference;
use elements::{Batch, ElementKey, Map, Value};
use ids::{Ids, PartIds};
use policy::Policies;

/// The tables of one node. Its methods block on the kernel: call them off the runtime's threads.
pub struct Dataplane {
    netns: NodeNetns,
    socket: Socket,
    families: Vec<Family>,
    facts: NodeFacts,
    ids: Ids,
    part_ids: PartIds,
    services: HashMap<String, Compiled>,
    claims: Claims,
    chains: Chains,
    policies: Policies,
    /// Tracked connections that are to be forgotten.
    stale: Stale,
    /// Whether the kernel's state equals memory.
    loaded: bool,
    /// Whether it is to have that: Services and policies are known.
    is_to_be_loaded: bool,
    commits: Commits,
    seen: check::Seen,
    wanted: check::Wanted,
    followed: Arc<Followed>,
}

/// The cost and result of one change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub added: usize,
    pub deleted: usize,
    /// Whether everything had to be loaded.
    pub full: bool,
    pub took: Duration,
    /// Claims of the changed Services that are held by more senior ones.
    pub lost: Vec<Lost>,
}

impl Dataplane {
    /// Prepares the tables of the given families. Changes nothing before [`Dataplane::load`]. Fails if the namespace's socket
    /// cannot be opened.
    pub fn new(netns: &NodeNetns, families: &[Family], journal: &JournalWriter) -> Result<Dataplane> {
        let mut socket = Socket::open_in(netns.fd())?;
        socket.set_journal(journal.clone());
        Ok(Dataplane {
            netns: netns.clone(),
            socket,
            families: families.to_vec(),
            facts: NodeFacts::default(),
            ids: Ids::default(),
            part_ids: PartIds::default(),
            services: HashMap::new(),
            claims: Claims::default(),
            chains: Chains::default(),
            policies: Policies::new(families),
            stale: Stale::default(),
            loaded: false,
            is_to_be_loaded: false,
            commits: Commits::default(),
            seen: check::Seen::default(),
            wanted: check::Wanted::default(),
            followed: Arc::default(),
        })
    }

    /// For other writers to the node's ruleset.
    pub fn commits(&self) -> Commits {
        self.commits.clone()
    }

    /// The addresses whose changes are recorded.
    pub fn followed(&self) -> &Arc<Followed> {
        &self.followed
    }

    /// The node facts in the tables.
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// Makes the tables contain exactly these Services: an agent's first call, once it knows them all. Fails if the kernel refuses.
    pub fn load(&mut self, facts: NodeFacts, services: &BTreeMap<String, Arc<Service>>) -> Result<Change> {
        self.is_to_be_loaded = true;
        self.facts = facts;
        self.claim_anew();
        let gone: Vec<String> = self.services.keys().filter(|k| !services.contains_key(*k)).cloned().collect();
        let changes = gone.into_iter().map(|key| (key, None));
        let changes = changes.chain(services.iter().map(|(key, service)| (key.clone(), Some(service.clone()))));
        self.loaded = false;
        let change = self.apply(changes.collect())?;
        // Conntrack is loaded now, including its IPv6 reassembly.
        fragments::give_room(&self.netns)?;
        Ok(change)
    }

    /// Replaces (or, with `None`, removes) Services in one transaction. After an error the desired state stays in memory; the next
    /// call loads everything.
    pub fn apply(&mut self, changes: Vec<(String, Option<Arc<Service>>)>) -> Result<Change> {
        let started = Instant::now();
        let (difference, lost) = self.decide(changes);
        let (added, deleted) = (difference.add.len(), difference.delete.len());
        let mut change = Change { added, deleted, lost, ..Change::default() };
        let incremental = self.loaded && self.commit(&difference).inspect_err(report_refusal).is_ok();
        if !incremental {
            self.loaded = false;
            self.reload()?;
            self.loaded = true;
            change.full = true;
        }
        self.flush_stale()?;
        self.remove_left_over();
        change.took = started.elapsed();
        Ok(change)
    }

    /// Entries not forgotten because of an error are kept for the next time.
    fn flush_stale(&mut self) -> Result<()> {
        if self.stale.has_node_ports() {
            let own = self.addresses_of_node_ports().inspect_err(|error| {
                tracing::warn!(%error, "failed to read the node's addresses: checking flows to other ports too");
            });
            self.stale.set_own(own.ok());
        }
        conntrack::flush(&mut self.socket, &self.stale)?;
        self.stale = Stale::default();
        Ok(())
    }

    /// The addresses with node ports, according to the rules: the namespace's own except loopback and the cluster's DNS.
    fn addresses_of_node_ports(&self) -> Result<Vec<IpAddr>> {
        let mut own = crate::links::addresses_in(self.netns.fd())?;
        let services = &self.facts.service_ranges;
        own.retain(|address| !address.is_loopback() && !services.iter().any(|range| range.contains(address)));
        Ok(own)
    }

    /// Updates the node facts in the tables; before these are loaded for the first time, they are loaded together. Fails if the kernel
    /// refuses; asked for again, the facts are news again.
    pub fn set_facts(&mut self, facts: NodeFacts) -> Result<()> {
        let is_behind = self.is_to_be_loaded && !self.loaded;
        if facts == self.facts && !is_behind {
            return Ok(());
        }
        let moved = facts.pod_ranges != self.facts.pod_ranges;
        let before = std::mem::replace(&mut self.facts, facts);
        if !self.is_to_be_loaded {
            return Ok(());
        }
        if moved || is_behind {
            // Which endpoints are local depends on the node's ranges.
            self.claim_anew();
            self.loaded = false;
            self.reload()?;
            self.loaded = true;
            return Ok(());
        }
        let script: String = self.families.iter().map(|f| base::facts_script(&self.facts, *f)).collect();
        let told = self.nft(script);
        if told.is_err() {
            self.facts = before;
        }
        told
    }

    /// Every element, as nft text in order: for tests and for reading.
    pub fn dump(&self) -> String {
        let all = self.everything();
        all.iter().fold(String::new(), |mut text, (place, value)| {
            let _ = writeln!(text, "{}", elements::text(place, value));
            text
        })
    }

    /// Removes the tables. Idempotent.
    pub fn remove(&mut self) -> Result<()> {
        self.loaded = false;
        self.is_to_be_loaded = false;
        remove(&self.netns)
    }

    /// Compiles the changes and stores them in memory; returns the differences, and the claims that were lost.
    fn decide(&mut self, changes: Vec<(String, Option<Arc<Service>>)>) -> (Difference, Vec<Lost>) {
        let mut difference = Difference::default();
        let mut contested = Contested::new();
        let mut changed = BTreeSet::new();
        for (key, service) in changes {
            let before = self.services.remove(&key).unwrap_or_default();
            let after = match &service {
                Some(service) => compile(&key, service, Some(&before), &mut self.ids),
                None => Compiled::default(),
            };
            let own = |place: &&ElementKey| !place.map.is_shared();
            for (place, value) in before.elements.iter().filter(|(p, _)| own(p)) {
                if after.elements.get(place) != Some(value) {
                    difference.delete.insert(*place, *value);
                }
            }
            for (place, value) in after.elements.iter().filter(|(p, _)| own(p)) {
                if before.elements.get(place) != Some(value) {
                    difference.add.insert(*place, *value);
                }
            }
            self.claims.take(&before, &after, &self.facts, &mut contested);
            self.chains.lead(&before, &after);
            self.stale.add(&before, &after);
            for id in before.lists.keys().filter(|id| !after.lists.contains_key(id)) {
                self.ids.give_back(*id);
            }
            if service.is_some() {
                changed.insert(key.clone());
                self.services.insert(key, after);
            }
        }
        let lost = self.lost(&contested, &changed);
        for (place, before) in contested {
            let (before, after) = (before.map(|(_, value)| value), self.claims.holder(&place).map(|(_, value)| value));
            if before != after {
                difference.delete.extend(before.map(|value| (place, value)));
                difference.add.extend(after.map(|value| (place, value)));
            }
        }
        (difference, lost)
    }

    /// The claims that were not granted, or are no longer held.
    fn lost(&self, contested: &Contested, changed: &BTreeSet<String>) -> Vec<Lost> {
        let of = |(place, before): (&ElementKey, &Option<Holder>)| self.claims.lost(place, changed, before.as_ref());
        let beside =
            contested.iter().filter_map(|(place, before)| self.claims.lost_beside(place, changed, before.as_ref()));
        // Elsewhere a host port is like an external address, which has no node ports.
        let beside = beside.filter(|lost| lost.address.is_some_and(|address| self.facts.is_node(&address)));
        contested.iter().flat_map(of).chain(beside).collect()
    }

    fn claim_anew(&mut self) {
        self.claims = Claims::default();
        let nothing = Compiled::default();
        for compiled in self.services.values() {
            self.claims.take(&nothing, compiled, &self.facts, &mut Contested::new());
        }
    }

    /// Sends a difference as one transaction, after creating the chains it needs.
    fn commit(&mut self, difference: &Difference) -> Result<()> {
        let named = difference.add.iter().filter_map(|(place, value)| match value {
            Value::Goto(chain) | Value::Jump(chain) => Some((place.family, *chain)),
            _ => None,
        });
        let named: BTreeSet<Shared> = named.collect();
        self.make_chains(&named)?;
        if difference.delete.is_empty() && difference.add.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.delete(difference.delete.iter());
        batch.add(difference.add.iter());
        let what = format!("nft: delete {} elements, add {}", difference.delete.len(), difference.add.len());
        let started = Clock::read();
        let done = self.commits.note(self.socket.transaction(&what, batch.finish()));
        let deleted = difference.delete.iter().map(|(place, value)| ("delete", place, value));
        let added = difference.add.iter().map(|(place, value)| ("add", place, value));
        self.followed.tell(started, deleted.chain(added), &done);
        done
    }

    /// Creates missing chains.
    fn make_chains(&mut self, named: &BTreeSet<Shared>) -> Result<()> {
        let missing = self.chains.missing(named);
        if missing.is_empty() {
            return Ok(());
        }
        self.nft(missing.iter().map(|(family, chain)| base::chain_script(*chain, *family)).collect())?;
        self.chains.add_made(missing);
        Ok(())
    }

    /// Removes unused chains, once there are many. Failure is harmless.
    fn remove_left_over(&mut self) {
        let left = self.chains.left_over(&self.families);
        if left.is_empty() {
            return;
        }
        match self.nft(self.chains.removal(&left)) {
            Ok(()) => self.chains.forget(&left).into_iter().for_each(|share| self.ids.give_back(share)),
            Err(error) => tracing::warn!(%error, "failed to remove unused chains"),
        }
    }

    /// The same for a predecessor's.
    fn remove_strangers(&mut self) -> Result<()> {
        let mut script = String::new();
        for family in self.families.clone() {
            let (chains, sets) = fixed::names(&mut self.socket, family)?;
            script += &self.chains.removal_of_strangers(family, &chains, &sets);
            script += &self.policies.removal_of_strangers(family, &chains, &sets);
        }
        if script.is_empty() { Ok(()) } else { self.nft(script) }
    }

    /// Makes the tables equal memory, whatever their state.
    fn reload(&mut self) -> Result<()> {
        let started = Clock::read();
        let done = self.fill();
        let all = self.everything();
        self.followed.tell(started, all.iter().map(|(place, value)| ("add", place, value)), &done);
        done
    }

    fn fill(&mut self) -> Result<()> {
        let families = self.families.clone();
        if families.into_iter().all(|family| self.has_base(family)) {
            match self.refill() {
                Ok(()) => return Ok(()),
                Err(error) => report_refusal(&error),
            }
        }
        self.replace()
    }

    /// Blocks the family that the kernel has and the node has not.
    fn closed(&self) -> String {
        let open = self.families.contains(&Family::V6) || !crate::links::ipv6_available();
        if open { String::new() } else { base::closed(Family::V6) }
    }

    fn has_base(&mut self, family: Family) -> bool {
        self.socket.dump("nft: get set", elements::get_set(family, &base::marker(family))).is_ok()
    }

    /// Keeps the fixed part, and with it remembered clients; all maps are emptied and refilled in one transaction.
    fn refill(&mut self) -> Result<()> {
        let facts: String = self.families.iter().map(|f| base::facts_script(&self.facts, *f)).collect();
        self.nft(facts + &self.closed())?;
        self.chains.set_made(Chains::of_base(&self.families));
        self.make_chains(&self.chains.needed())?;
        self.policies.forget_made();
        self.make_policies()?;
        let all = self.everything();
        let mut batch = Batch::new();
        for family in &self.families {
            for map in Map::ALL {
                batch.flush(*family, map);
            }
        }
        for (family, map) in self.policies.sets() {
            batch.flush(family, map);
        }
        batch.add(all.iter());
        self.commits.note(self.socket.transaction(&format!("nft: fill {} elements", all.len()), batch.finish()))?;
        self.remove_strangers()
    }

    /// Recreates the tables. An existing table is replaced with fixed part and elements in one transaction; without one nothing can
    /// be interrupted, and a faster way is used for the elements.
    fn replace(&mut self) -> Result<()> {
        let mut existing = false;
        for family in &self.families {
            existing |= self.socket.dump("nft: get set", elements::get_set(*family, &Map::Services.name())).is_ok();
        }
        self.chains.set_made(Chains::of_base(&self.families));
        let further = self.chains.missing(&self.chains.needed());
        let mut script = self.closed();
        for family in &self.families {
            script += &base::script(*family);
            script += &base::facts_script(&self.facts, *family);
        }
        script.extend(further.iter().map(|(family, chain)| base::chain_script(*chain, *family)));
        let all = self.everything();
        let elements = match existing {
            true => {
                all.iter().map(|(place, value)| format!("add element {}\n", elements::text(place, value))).collect()
            }
            false => String::new(),
        };
        self.replace_with_policies(&script, &elements)?;
        self.chains.add_made(further);
        if !existing && !all.is_empty() {
            let mut batch = Batch::new();
            batch.add(all.iter());
            self.commits.note(self.socket.transaction(&format!("nft: fill {} elements", all.len()), batch.finish()))?;
        }
        Ok(())
    }

    /// All elements that the kernel should have.
    fn everything(&self) -> BTreeMap<ElementKey, Value> {
        let own = self.services.values().flat_map(|c| c.elements.iter()).filter(|(p, _)| !p.map.is_shared());
        let own = own.map(|(place, value)| (*place, *value));
        own.chain(self.claims.winners()).chain(self.policies.elements()).collect()
    }

    fn nft(&self, script: String) -> Result<()> {
        // Not on the namespace's shared thread: `nft` takes milliseconds, and probes need that thread for their sockets.
        let journal = self.socket.journal();
        self.commits.note(netlink::in_netns(self.netns.fd(), || netlink::nft(journal, &["-f", "-"], &script))?)?;
        Ok(())
    }
}

fn report_refusal(error: &crate::Error) {
    tracing::warn!(%error, "the kernel refused a change of the tables; loading them anew");
}

/// Removes our tables from a namespace. Idempotent. Fails if the kernel refuses.
pub fn remove(netns: &NodeNetns) -> Result<()> {
    let script: String = Family::ALL
        .into_iter()
        .filter(|family| *family == Family::V4 || crate::links::ipv6_available())
        .map(|family| {
            let ip = table::nft_family(family);
            format!("add table {ip} {TABLE}\ndelete table {ip} {TABLE}\n")
        })
        .collect();
    netlink::in_netns(netns.fd(), || netlink::nft(&JournalWriter::none(), &["-f", "-"], &script))??;
    Ok(())
}
