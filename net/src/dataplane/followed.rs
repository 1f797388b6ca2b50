//! Pods' journals that record changes of their addresses' elements.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use podwright_journal::{Clock, JournalWriter};

use super::elements::{self, ElementKey, Key, Value};
use crate::Result;

/// The followed addresses, each with the journal that records table changes for it.
#[derive(Default)]
pub struct Followed(Mutex<HashMap<IpAddr, JournalWriter>>);

impl Followed {
    pub fn add(&self, addresses: &[IpAddr], journal: &JournalWriter) {
        self.lock().extend(addresses.iter().map(|address| (*address, journal.clone())));
    }

    pub fn remove(&self, addresses: &[IpAddr]) {
        let mut followed = self.lock();
        addresses.iter().for_each(|address| drop(followed.remove(address)));
    }

    /// Records a transaction that began at `started` in the journals of all addresses whose elements changed: as the equivalent nft
    /// commands. `changes`: `delete` or `add`, and an element.
    pub(super) fn tell<'a>(
        &self,
        started: Clock,
        changes: impl Iterator<Item = (&'static str, &'a ElementKey, &'a Value)>,
        done: &Result<()>,
    ) {
        let followed = self.lock();
        if followed.is_empty() {
            return;
        }
        let mut told: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
        for (verb, place, value) in changes {
            if let Some(address) = address(place, value).filter(|address| followed.contains_key(address)) {
                told.entry(address).or_default().push(format!("{verb} element {}", elements::text(place, value)));
            }
        }
        for (address, commands) in told {
            if let Some(journal) = followed.get(&address) {
                journal.record(started, "nft", &commands.join("; "), done.as_ref().err().map(|e| e.to_string()));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, JournalWriter>> {
        // The state is consistent even after a panic: each change is atomic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The Pod's address that an element concerns, if any.
fn address(place: &ElementKey, value: &Value) -> Option<IpAddr> {
    match (&place.key, value) {
        (_, Value::Endpoint(endpoint)) => Some(endpoint.ip()),
        (Key::Own(address) | Key::Address(address) | Key::Endpoint(address, _), _) => Some(*address),
        _ => None,
    }
}
