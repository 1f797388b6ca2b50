//! What makes a node's network be what it should: one driver an interface, each applies its part of a change.
//!
//! What they hold of the kernel is compared with it, and mended, by [`crate::Network::heal`].

use std::sync::Arc;

use crate::dataplane::Change;
use crate::dns::DnsServer;
use crate::forwards::{Forwards, Refused};
use crate::state::Changes;
use crate::{Network, Result};

/// The drivers of one node. What they have loaded into the kernel stays when they are dropped.
pub struct Drivers {
    network: Network,
    dns: Option<Arc<DnsServer>>,
    forwards: Forwards,
    /// What is wanted and not applied yet.
    pending: Changes,
    /// Whether what a predecessor has left is replaced.
    loaded: bool,
}

/// What came of a change.
#[derive(Debug, Default)]
pub struct Applied {
    pub tables: Change,
    /// What could not be listened on.
    pub refused: Vec<Refused>,
}

impl Drivers {
    pub fn new(network: Network, dns: Option<Arc<DnsServer>>) -> Drivers {
        let forwards = Forwards::new(network.netns());
        Drivers { network, dns, forwards, pending: Changes::default(), loaded: false }
    }

    /// Makes the network follow what has changed; the first call says all that there is, and replaces whatever a predecessor has
    /// left. After an error the next call, with further changes or none, applies these as well.
    pub async fn apply(&mut self, changes: Changes) -> Result<Applied> {
        self.pending.extend(changes);
        if self.loaded && self.pending.is_empty() {
            return Ok(Applied::default());
        }
        let tables = self.apply_to_tables().await;
        // Behind the tables: a name is known after its address works.
        self.apply_to_names();
        let tables = tables?;
        self.loaded = true;
        let refused = self.forwards.apply(&self.pending.forwards).await;
        self.pending = Changes::default();
        Ok(Applied { tables, refused })
    }

    /// Waits until something that was refused is to be tried again.
    pub async fn due(&self) {
        self.forwards.due().await;
    }

    /// Tries it.
    pub async fn try_again(&mut self) {
        self.forwards.try_again().await;
    }

    async fn apply_to_tables(&self) -> Result<Change> {
        let Changes { facts, services, policies, .. } = &self.pending;
        let services = services.clone().into_iter();
        // First: what is to be forbidden does not wait for anything.
        if !policies.is_empty() || !self.loaded {
            self.network.apply_policies(policies.clone()).await?;
        }
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
