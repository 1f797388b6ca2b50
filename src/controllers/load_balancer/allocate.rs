//! The allocation: which Service has which addresses of the pool, given what each has now. Pure.
//!
//! Services' statuses are the only record. Who has an address keeps it while it may; addresses that somebody gives up are free only
//! once his status shows it, so that none is in two statuses at any time. Among those that want something, older ones come first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use podwright_api::load_balancer::{Cursor, Pool, Range};

use super::request::{self, Request, Sharing, external_ips, held, is_balanced, is_ours, is_to_decide};
use crate::meta;

/// How many addresses of the pool a namespace has at most. What it may have of them is a quota's to say (`services.loadbalancers`);
/// this bounds what nodes announce.
const OF_NAMESPACE: usize = 1024;

/// What a Service gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The addresses of its status, in the order of its families.
    pub addresses: Vec<IpAddr>,
    /// Why it has none, or not all.
    pub failure: Option<String>,
    /// It may have more once others' statuses show what they give up.
    pub waits: bool,
}

/// Addresses that no Service may have, though they may be in the pool: those of nodes and servers, and the ranges of Pods and
/// Services.
#[derive(Clone, Debug, Default)]
pub struct Reserved {
    pub addresses: BTreeSet<IpAddr>,
    pub ranges: Vec<Range>,
}

impl Reserved {
    fn has(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address) || self.ranges.iter().any(|range| range.contains(address))
    }
}

/// The outcome of each Service that is ours or was, in the order of `services`; `None` for others'.
pub fn allocate(pool: &Pool, reserved: &Reserved, services: &[Arc<Service>]) -> Vec<Option<Outcome>> {
    let mut allocation = Allocation::new(pool, reserved);
    let mut order: Vec<usize> = (0..services.len()).collect();
    order.sort_by_cached_key(|n| seniority(&services[*n]));
    // 1. What others have, or name.
    let (ours, others): (Vec<usize>, Vec<usize>) = order.into_iter().partition(|n| is_to_decide(&services[*n]));
    for service in others.iter().map(|n| &services[*n]) {
        held(service).into_iter().for_each(|address| allocation.occupy(address));
    }
    for service in services {
        external_ips(service).for_each(|address| allocation.occupy(address));
    }
    // 2. What ours have and keep.
    let mut wishes = BTreeMap::new();
    for n in &ours {
        let service = &services[*n];
        let has_right = is_balanced(service) && is_ours(service);
        let wish = (has_right && !meta::is_terminating(&service.metadata)).then(|| request::request(service));
        let kept = match &wish {
            Some(Ok(request)) => allocation.keep(request, held(service)),
            // It stays as it is for as long as it is there.
            None if has_right => held(service).into_iter().inspect(|ip| allocation.occupy(*ip)).collect(),
            _ => Vec::new(),
        };
        wishes.insert(*n, (wish, kept));
    }
    // 3. What they give up.
    for n in &ours {
        held(&services[*n]).into_iter().for_each(|address| allocation.give_up(address));
    }
    // 4. What they get.
    let mut outcomes = vec![None; services.len()];
    for n in ours {
        outcomes[n] = wishes.remove(&n).map(|(wish, kept)| match wish {
            Some(Ok(request)) => allocation.complete(&request, kept),
            Some(Err(failure)) => Outcome { failure: Some(failure), ..Outcome::default() },
            None => Outcome { addresses: kept, ..Outcome::default() },
        });
    }
    outcomes
}

/// Older Services first; of those of one second, the uid decides, which nobody chooses.
pub fn seniority(service: &Service) -> (jiff::Timestamp, String) {
    (meta::created(&service.metadata), service.metadata.uid.clone().unwrap_or_default())
}

struct Allocation<'a> {
    pool: &'a Pool,
    reserved: &'a Reserved,
    /// Who has an address; `None`: somebody who shares it with nobody of ours.
    holders: BTreeMap<IpAddr, Option<Sharing>>,
    /// Everything that is not free.
    taken: BTreeSet<IpAddr>,
    /// Held in a status, and not any more in the next one.
    given_up: BTreeSet<IpAddr>,
    /// The addresses that are shared, by namespace and key.
    shared: BTreeMap<(String, String), Vec<IpAddr>>,
    /// How many each namespace has.
    counts: BTreeMap<String, usize>,
    /// Of IPv6 and of IPv4.
    cursors: [Cursor; 2],
}

impl<'a> Allocation<'a> {
    fn new(pool: &'a Pool, reserved: &'a Reserved) -> Allocation<'a> {
        let taken = reserved.addresses.iter().copied().filter(|address| pool.contains(address)).collect();
        Allocation {
            pool,
            reserved,
            holders: BTreeMap::new(),
            taken,
            given_up: BTreeSet::new(),
            shared: BTreeMap::new(),
            counts: BTreeMap::new(),
            cursors: Default::default(),
        }
    }

    fn occupy(&mut self, address: IpAddr) {
        self.holders.insert(address, None);
        self.taken.insert(address);
    }

    fn give_up(&mut self, address: IpAddr) {
        if !self.holders.contains_key(&address) {
            self.given_up.insert(address);
            self.taken.insert(address);
        }
    }

    /// Why a Service may not have an address; `Ok`: it may.
    fn may_have(&self, address: &IpAddr, sharing: &Sharing) -> Result<(), String> {
        if !self.pool.contains(address) {
            return Err(format!("{address} is not in the pool"));
        }
        if self.reserved.has(address) {
            return Err(format!("{address} is the address of a node or server, or in a range of Pods or Services"));
        }
        match self.holders.get(address) {
            None if self.given_up.contains(address) => Err(format!("{address} is not free yet")),
            None => Ok(()),
            Some(Some(other)) if other.fits(sharing) => Ok(()),
            // Not whose it is: it may be another tenant's.
            Some(_) => Err(format!("{address} is in use")),
        }
    }

    fn take(&mut self, address: IpAddr, sharing: &Sharing) {
        self.taken.insert(address);
        if let Some(key) = &sharing.key {
            let all = self.shared.entry((sharing.namespace.clone(), key.clone())).or_default();
            if !all.contains(&address) {
                all.push(address);
            }
        }
        match self.holders.get_mut(&address) {
            Some(Some(other)) => other.ports.extend(sharing.ports.iter().cloned()),
            _ => {
                *self.counts.entry(sharing.namespace.clone()).or_default() += 1;
                self.holders.insert(address, Some(sharing.clone()));
            }
        }
    }

    /// What a Service keeps of what it has: one of each of its families, those that it asks for if it does.
    fn keep(&mut self, request: &Request, held: Vec<IpAddr>) -> Vec<IpAddr> {
        let mut kept: Vec<IpAddr> = Vec::new();
        for address in held {
            let family = address.is_ipv4();
            let is_wanted = request.families.contains(&family)
                && wish(request, family).is_none_or(|wish| wish == address)
                && kept.iter().all(|other| other.is_ipv4() != family);
            if is_wanted && self.may_have(&address, &request.sharing).is_ok() {
                self.take(address, &request.sharing);
                kept.push(address);
            }
        }
        kept
    }

    /// All that a Service has in the end: what it keeps, and what it gets for the other families.
    fn complete(&mut self, request: &Request, kept: Vec<IpAddr>) -> Outcome {
        let (mut found, mut failures, mut waits) = (kept.clone(), Vec::new(), false);
        for family in &request.families {
            if kept.iter().any(|address| address.is_ipv4() == *family) {
                continue;
            }
            match self.find(request, *family) {
                Ok(address) => found.push(address),
                Err(failure) => {
                    // Of a Service that takes what there is, another family is enough.
                    let is_fatal = request.wants_all || wish(request, *family).is_some();
                    failures.extend((is_fatal || self.pool.has_family(*family)).then_some(failure));
                    waits |= wish(request, *family).is_some_and(|wish| self.given_up.contains(&wish));
                    waits |= wish(request, *family).is_none() && !self.given_up.is_empty();
                    if is_fatal {
                        found.clone_from(&kept);
                        break;
                    }
                }
            }
        }
        if found.is_empty() && failures.is_empty() {
            failures.push(format!(
                "the pool has no addresses of the Service's families ({})",
                request::named(&request.families)
            ));
        }
        for address in found.iter().filter(|address| !kept.contains(address)) {
            self.take(*address, &request.sharing);
        }
        let place = |address: &IpAddr| request.families.iter().position(|family| *family == address.is_ipv4());
        found.sort_by_key(place);
        Outcome { addresses: found, failure: (!failures.is_empty()).then(|| failures.join("; ")), waits }
    }

    fn find(&mut self, request: &Request, family: bool) -> Result<IpAddr, String> {
        if let Some(wish) = wish(request, family) {
            self.may_have(&wish, &request.sharing)?;
            let is_shared = self.holders.contains_key(&wish);
            return if is_shared { Ok(wish) } else { self.may_grow(&request.sharing.namespace).map(|()| wish) };
        }
        if let Some(shared) = self.shared_with(&request.sharing, family) {
            return Ok(shared);
        }
        self.may_grow(&request.sharing.namespace)?;
        let cursor = &mut self.cursors[usize::from(family)];
        let free = self.pool.free(family, cursor, &self.taken, &self.reserved.ranges);
        free.ok_or_else(|| match self.pool.has_family(family) {
            true => format!("no {} address of the pool is free", request::named(&[family])),
            false => format!("the pool has no {} addresses", request::named(&[family])),
        })
    }

    fn may_grow(&self, namespace: &str) -> Result<(), String> {
        match self.counts.get(namespace) {
            Some(&count) if count >= OF_NAMESPACE => Err(format!(
                "namespace {namespace} has {OF_NAMESPACE} addresses of the pool, the most that one can have"
            )),
            _ => Ok(()),
        }
    }

    /// An address that Services with the same key have, and that has room for these ports.
    fn shared_with(&self, sharing: &Sharing, family: bool) -> Option<IpAddr> {
        let all = self.shared.get(&(sharing.namespace.clone(), sharing.key.clone()?))?;
        let mut of_family = all.iter().filter(|address| address.is_ipv4() == family);
        of_family.find(|address| self.may_have(address, sharing).is_ok()).copied()
    }
}

/// The address of a family that a Service asks for, if it does.
fn wish(request: &Request, family: bool) -> Option<IpAddr> {
    request.addresses.iter().find(|address| address.is_ipv4() == family).copied()
}
