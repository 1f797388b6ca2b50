//! The drivers that configure a node's network: one per interface, each applies its part of a change.
//!
//! [`crate::Network::heal`] compares their kernel state with the intended one, and repairs it.

use std::sync::Arc;

use crate::dataplane::Change;
use crate::dns::DnsServer;
use crate::forwards::{Forwards, Refused};
use crate::state::Changes;
use crate::{Network, Result};

/// The drivers of one node. Kernel state stays when they are dropped.
pub struct Drivers {
    network: Network,
    dns: Option<Arc<DnsServer>>,
    forwards: Forwards,
    /// Changes not applied yet.
    pending: Changes,
    /// Whether a predecessor's state has been replaced.
    loaded: bool,
}

/// The result of a change.
#[derive(Debug, Default)]
pub struct Applied {
    pub tables: Change,
    /// Forwards that could not listen.
    pub refused: Vec<Refused>,
}

impl Drivers {
    pub fn new(network: Network, dns: Option<Arc<DnsServer>>) -> Drivers {
        let forwards = Forwards::new(network.netns());
        Drivers { network, dns, forwards, pending: Changes::default(), loaded: false }
    }

    /// Applies changes to the network; the first call must contain everything, and replaces a predecessor's state. After an error
    /// the next call, with further changes or none, applies these as well.
    pub async fn apply(&mut self, changes: Changes) -> Result<Applied> {
        self.pending.extend(changes);
        if self.loaded && self.pending.is_empty() {
            return Ok(Applied::default());
        }
        let tables = self.apply_to_tables().await;
        // After the tables: a name resolves only once its address works.
        self.apply_to_names();
        let tables = tables?;
        self.loaded = true;
        let refused = self.forwards.apply(&self.pending.forwards).await;
        self.pending = Changes::default();
        Ok(Applied { tables, refused })
    }

    /// Waits until something refused must be retried.
    pub async fn due(&self) {
        self.forwards.due().await;
    }

    /// Retries it.
    pub async fn try_again(&mut self) {
        self.forwards.try_again().await;
    }

    async fn apply_to_tables(&self) -> Result<Change> {
        let Changes { facts, services, .. } = &self.pending;
        let services = services.clone().into_iter();
        if !self.loaded {
            let all = services.filter_map(|(key, service)| Some((key, service?))).collect();
            return self.network.load_services(facts.clone().unwrap_or_default(), all).await;
        }
        if let Some(facts) = facts {
            self.network.set_facts(facts.clone()).await?;
        }
        self.network.apply_services(services.collect()).await
    }

    fn apply_to_names(&self) {
        let (Some(dns), Changes { zone, names, .. }) = (&self.dns, &self.pending) else { return };
        match zone {
            Some(zone) => dns.replace(zone.table(names)),
            None => dns.set(names.clone()),
        }
    }
}
