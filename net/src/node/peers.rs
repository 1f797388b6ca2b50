//! The way to other nodes' Pods, kept as the peers and the node's links have it.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ipnet::IpNet;

use super::{Inner, lock};
use crate::dataplane::NodeFacts;
use crate::overlay::{Own, Peer, Transport, TunnelId, plan};
use crate::{Family, Result};

/// What is known of the cluster's nodes. Locked behind the links.
#[derive(Default)]
pub(super) struct Peers {
    known: Mutex<Option<Known>>,
    /// Whether the kernel has refused something of it: it is tried again.
    failed: AtomicBool,
    /// What the log says already.
    told: Mutex<BTreeSet<String>>,
}

#[derive(Clone)]
struct Known {
    pod_ranges: Vec<IpNet>,
    networks: Vec<IpNet>,
    peers: Vec<Peer>,
}

impl Inner {
    /// The facts, with how tunnels' packets are known, and who is attached by plugins.
    pub(super) fn with_tunnel(&self, facts: NodeFacts) -> NodeFacts {
        let config = &self.config.overlay;
        let tunnel = TunnelId { vni: config.vni, port: config.port };
        let plugged = if self.config.cni.conf_dir.is_some() { facts.pod_ranges.clone() } else { Vec::new() };
        NodeFacts { tunnel: (config.transport != Transport::Routes).then_some(tunnel), plugged, ..facts }
    }

    /// From now on these are the peers. What cannot be done about it is tried again: Services do not wait for it.
    pub(super) fn follow_peers(&self, facts: &NodeFacts) {
        let known = Known {
            pod_ranges: facts.pod_ranges.clone(),
            networks: facts.networks.clone(),
            peers: facts.peers.clone(),
        };
        *lock(&self.peers.known) = Some(known);
        if let Err(error) = self.mend_overlay() {
            tracing::warn!(%error, "failed to set up the way to other nodes' Pods: retrying");
        }
    }

    /// Whether something has failed at the last attempt.
    pub(super) fn is_overlay_due(&self) -> bool {
        self.peers.failed.load(Ordering::Relaxed)
    }

    /// Makes the way to other nodes' Pods as it should be; what was not, in words. Until the peers are known all stays as it is.
    ///
    /// # Errors
    ///
    /// The first thing that the kernel refuses; the rest is done.
    pub(super) fn mend_overlay(&self) -> Result<Vec<String>> {
        let mended = self.make_overlay();
        self.peers.failed.store(mended.is_err(), Ordering::Relaxed);
        mended
    }

    fn make_overlay(&self) -> Result<Vec<String>> {
        let mut links = lock(&self.links);
        let Some(Known { pod_ranges, networks, peers }) = lock(&self.peers.known).clone() else {
            return Ok(Vec::new());
        };
        if self.removed.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let dns = self.config.dns.iter().copied().map(IpNet::from);
        // Only tables guard tunnels, and there is one for each of these.
        let families = super::families(&self.config);
        let own = Own {
            addresses: self.addresses.iter().filter(|at| families.contains(&Family::of(at))).copied().collect(),
            pod_ranges,
            networks,
            service_ranges: self.config.service_ranges.iter().copied().chain(dns).collect(),
            uplinks: links.uplinks()?,
        };
        let mut overlay = plan(&own, &peers, &self.config.overlay);
        if lock(&self.presence).is_away() {
            // Of the link that has lost its address nothing is known until it is back; what Pods send each other stays as it is.
            overlay.pod_mtu = links.pod_mtu;
        }
        let mended = links.set_overlay(&overlay);
        let grown = std::mem::replace(&mut links.pod_mtu, overlay.pod_mtu) != overlay.pod_mtu;
        drop(links);
        if grown {
            self.set_pod_mtu(overlay.pod_mtu);
        }
        self.tell_refused(overlay.refused);
        mended
    }

    /// Gives the Pods that are there the MTU that those to come will have.
    fn set_pod_mtu(&self, mtu: u32) {
        tracing::info!(mtu, "the MTU of Pods' links follows the node's links");
        let owners: Vec<String> = lock(&self.attached).keys().cloned().collect();
        for owner in owners {
            // Who looks after the links does what fails here.
            if let Err(error) = self.mend_pod(&owner) {
                tracing::warn!(%error, owner, "failed to change the MTU of a Pod's link");
            }
        }
    }

    fn tell_refused(&self, refused: Vec<String>) {
        let mut told = lock(&self.peers.told);
        let refused: BTreeSet<String> = refused.into_iter().collect();
        for why in refused.difference(&told) {
            tracing::warn!("Pods of another node are not reached: {why}");
        }
        *told = refused;
    }
}
