//! The drivers that configure a node's network: one per interface, each applies its part of a change.
//!
//! [`crate::Network::heal`] compares their kernel state with the intended one, and repairs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::dataplane::Change;
use crate::dns::DnsServer;
use crate::forwards::{Forwards, Refused};
use crate::state::Changes;
use crate::{Network, Result};

/// When a policy that the kernel has refused is tried again.
const AGAIN: Duration = Duration::from_secs(60);

/// The drivers of one node. What they have loaded into the kernel stays when they are dropped.
pub struct Drivers {
    network: Network,
    dns: Option<Arc<DnsServer>>,
    forwards: Forwards,
    /// Changes not applied yet.
    pending: Changes,
    /// Whether a predecessor's state has been replaced.
    loaded: bool,
    /// Who is judged by a policy that the kernel has refused, and when that is tried again.
    closed: BTreeMap<String, String>,
    policies_due: Option<Instant>,
}

/// The result of a change.
#[derive(Debug, Default)]
pub struct Applied {
    pub tables: Change,
    /// Forwards that could not listen.
    pub refused: Vec<Refused>,
    /// Who is judged by a policy that the kernel has refused, and so is let through by less than was written; and why.
    pub closed: BTreeMap<String, String>,
}

impl Drivers {
    pub fn new(network: Network, dns: Option<Arc<DnsServer>>) -> Drivers {
        let forwards = Forwards::new(network.netns());
        Drivers {
            network,
            dns,
            forwards,
            pending: Changes::default(),
            loaded: false,
            closed: BTreeMap::new(),
            policies_due: None,
        }
    }

    /// Applies changes to the network; the first call must contain everything, and replaces a predecessor's state. After an error
    /// the next call, with further changes or none, applies these as well.
    pub async fn apply(&mut self, changes: Changes) -> Result<Applied> {
        self.pending.extend(changes);
        let again = self.policies_due.is_some_and(|due| due <= Instant::now());
        if self.loaded && self.pending.is_empty() && !again {
            return Ok(Applied { closed: self.closed.clone(), ..Applied::default() });
        }
        let tables = self.apply_to_tables(again).await;
        self.look_at_policies(again).await?;
        // Behind the tables: a name is known after its address works.
        self.apply_to_names();
        let tables = tables?;
        self.loaded = true;
        let refused = self.forwards.apply(&self.pending.forwards).await;
        self.pending = Changes::default();
        Ok(Applied { tables, refused, closed: self.closed.clone() })
    }

    /// Waits until something refused must be retried.
    pub async fn due(&self) {
        let policies = async {
            match self.policies_due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.forwards.due() => {}
            () = policies => {}
        }
    }

    /// Tries it. Whether [`Drivers::apply`] is to be called, too.
    pub async fn try_again(&mut self) -> bool {
        self.forwards.try_again().await;
        self.policies_due.is_some_and(|due| due <= Instant::now())
    }

    /// Services wait for no policy: what is wrong with one is told when both have been tried.
    async fn apply_to_tables(&self, again: bool) -> Result<Change> {
        // First: what is to be forbidden does not wait for anything.
        let policies = self.apply_policies(again).await;
        let services = self.apply_services().await?;
        policies.map(|()| services)
    }

    async fn apply_policies(&self, again: bool) -> Result<()> {
        let policies = &self.pending.policies;
        if !policies.is_empty() || !self.loaded {
            self.network.apply_policies(policies.clone()).await?;
        }
        if again { self.network.try_policies_again().await } else { Ok(()) }
    }

    async fn apply_services(&self) -> Result<Change> {
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

    /// Notes what the kernel has refused of policies.
    async fn look_at_policies(&mut self, again: bool) -> Result<()> {
        self.closed = self.network.closed_owners().await?;
        self.policies_due = match self.policies_due.filter(|_| !again) {
            _ if self.closed.is_empty() => None,
            Some(due) => Some(due),
            None => Some(Instant::now() + AGAIN),
        };
        Ok(())
    }

    fn apply_to_names(&self) {
        let (Some(dns), Changes { zone, names, .. }) = (&self.dns, &self.pending) else { return };
        match zone {
            Some(zone) => dns.replace(zone.table(names)),
            None => dns.set(names.clone()),
        }
    }
}
