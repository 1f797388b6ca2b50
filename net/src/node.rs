//! [`Network`]: a node's whole network, as an agent uses it.

mod addresses;
mod healing;
mod made;
mod peers;
mod settings;
mod together;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ipnet::IpNet;
use podwright_journal::JournalWriter;
use serde::Serialize;
use tokio::sync::Notify;

use crate::cni::{BANDWIDTH, Cni, CniConfig, PORT_MAPPINGS, Request};
use crate::dataplane::{self, Carrier, Change, Dataplane, Followed, Keeper, NodeFacts, PolicyChanges, Relief, Service};
use crate::ipam::Ipam;
use crate::links::{self, LinkDetails, LinkState, Links, PodLink};
use crate::netlink::Socket;
use crate::netns::NodeNetns;
use crate::overlay::{Overlay, OverlayConfig};
use crate::why::{Entry, Packet, Walk};
use crate::{Error, Family, Result};
use addresses::{Presence, node_addresses, service_routes};
use healing::Attached;
pub use healing::{Healing, Repair};
use made::Made;
use peers::Peers;
use settings::Settings;
use together::Together;

/// The layout of a node's network.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// The node's name, part of all labels.
    pub node: String,
    /// The folder of `netns` (the pinned namespace of an isolated node), `ipam.json` and `loopback.json`.
    pub folder: PathBuf,
    /// Whether the node has its own network namespace.
    pub isolated: bool,
    /// One that somebody else has made for it, with the links that lead to other machines; else an isolated node makes its own.
    pub netns: Option<PathBuf>,
    /// The node's addresses, at most one a family. Those that no link has are put on `lo`, but not, at first, in a namespace that
    /// somebody else has made. Empty: an isolated node gets 192.0.2.1 (and 2001:db8::1 where a Service range is IPv6), another one
    /// the sources of its default routes, or the first addresses of its links.
    pub addresses: Vec<IpAddr>,
    /// The ClusterIP ranges; they also determine the node's families.
    pub service_ranges: Vec<IpNet>,
    /// Addresses on which this node serves DNS, inside the Service ranges or not.
    pub dns: Vec<IpAddr>,
    /// The assumed size of the conntrack table; `None`: the kernel's limit (`nf_conntrack_max`).
    pub conntrack_max: Option<usize>,
    /// How other nodes' Pods are reached.
    pub overlay: OverlayConfig,
    /// Plugins that make Pods' interfaces and addresses, in place of this crate.
    pub cni: CniConfig,
}

/// A Pod's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodNetwork {
    /// One per family, in the order of the node's Pod ranges.
    pub addresses: Vec<IpAddr>,
    /// None where a plugin has made it.
    pub link: Option<PodLink>,
}

/// The kernel's state for one Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodInspection {
    pub addresses: Vec<IpAddr>,
    /// The node's end.
    pub host: Option<LinkDetails>,
    /// The Pod's end, if its namespace was given.
    pub pod: Option<LinkDetails>,
}

/// The network of one node. Cheap to clone; everything blocking runs off the caller's thread.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    config: NetworkConfig,
    addresses: Vec<IpAddr>,
    netns: NodeNetns,
    links: Mutex<Links>,
    ipam: Mutex<Ipam>,
    dataplane: Mutex<Dataplane>,
    followed: Arc<Followed>,
    keeper: Mutex<Keeper>,
    /// The Pods whose links must be kept. Locked after `links`, and before `ipam`.
    attached: Mutex<BTreeMap<String, Attached>>,
    /// Where the node's addresses are. Locked after `links`.
    presence: Mutex<Presence>,
    peers: Peers,
    cni: Option<Cni>,
    /// Everything is being removed: nothing is to be mended any more.
    removed: AtomicBool,
    /// Links of owners that are being detached.
    detaching: Together<String>,
    /// Addresses whose connections are being forgotten, by removed owner.
    forgetting: Together<Vec<IpAddr>>,
    written_by_others: Notify,
    /// Owners have given back their addresses.
    released: Notify,
    /// Held while foreign rules are listed, by the listing task: a caller that stops waiting does not release it.
    listing: Arc<tokio::sync::Mutex<()>>,
}

impl Network {
    /// Opens (or creates) the node's namespace and brings its own network up: loopback, forwarding, the node's address, the Service
    /// route, the DNS address. Idempotent: a restarted agent finds everything unchanged. Fails if the kernel refuses something.
    pub async fn up(config: NetworkConfig) -> Result<Network> {
        blocking(move || Network::open(config, true)).await
    }

    /// The existing parts of a node's network, for [`Network::remove`]: creates and changes nothing, in particular in a shared
    /// namespace.
    pub async fn open_to_remove(config: NetworkConfig) -> Result<Network> {
        blocking(move || Network::open(config, false)).await
    }

    fn open(config: NetworkConfig, make: bool) -> Result<Network> {
        // 1. The namespace.
        let pin = config.folder.join("netns");
        let netns = match (config.isolated, &config.netns) {
            (true, Some(path)) if make => NodeNetns::take(path, &pin)?,
            (true, _) => NodeNetns::create_or_open(&pin)?,
            (false, _) => NodeNetns::of_process()?,
        };
        // 2. Forwarding, without redirects.
        if make {
            let settings = Settings::of(&config);
            netns.run_blocking(move || settings.apply())??;
        }
        // 3. The node's own addresses.
        let mut links = Links::open(&config.node, netns.fd())?;
        let mut made = Made::open(&config.folder);
        let addresses = if make { node_addresses(&config, &mut links, &mut made)? } else { config.addresses.clone() };
        links.sources = addresses.clone();
        links.pod_mtu = links.former_pod_mtu(&addresses)?;
        // 4. Service addresses have a route, so that the node itself may call them; the DNS address is local.
        if make {
            made.note(&config.dns, &config.service_ranges)?;
            let networks = addresses::networks(&addresses, &mut links, &made)?;
            made.remember(networks.into_iter().collect())?;
            let (addresses, routes) = (config.dns.clone(), service_routes(&config, &addresses));
            links.set_own(&LinkState { addresses, routes, ..LinkState::default() })?;
        }
        // 5. The allocated addresses: from the record, and from links and routes.
        let mut ipam = Ipam::open(&config.folder.join("ipam.json"));
        if make {
            ipam.learn(links.routed()?)?;
        }
        let folder = config.folder.join("cni");
        let has_cni = config.cni.conf_dir.is_some() || Cni::was_used(&folder);
        let cni = has_cni.then(|| Cni::open(config.cni.clone(), &folder, netns.fd())).transpose()?;
        if let Some(cni) = &cni {
            ipam.learn(cni.addresses()?)?;
        }
        let dataplane = Dataplane::new(&netns, &families(&config), &JournalWriter::none())?;
        let followed = dataplane.followed().clone();
        // 6. Conntrack. On a machine that has just booted nothing has used it yet: its first question has the kernel load it, with
        //    its settings.
        if make {
            dataplane::load_conntrack(&mut Socket::open_in(netns.fd())?)?;
            netns.run_blocking(settings::keep_half_closed)??;
        }
        let keeper = Mutex::new(Keeper::new(&netns, config.conntrack_max, dataplane.commits())?);
        let (links, ipam, dataplane) = (Mutex::new(links), Mutex::new(ipam), Mutex::new(dataplane));
        Ok(Network(Arc::new(Inner {
            config,
            addresses,
            netns,
            links,
            ipam,
            dataplane,
            followed,
            keeper,
            attached: Mutex::default(),
            presence: Mutex::new(Presence::new(made)),
            peers: Peers::default(),
            cni,
            removed: AtomicBool::new(false),
            detaching: Together::default(),
            forgetting: Together::default(),
            written_by_others: Notify::new(),
            released: Notify::new(),
            listing: Arc::default(),
        })))
    }

    /// The namespace, for sockets inside it: probes, port-forward, dial.
    pub fn netns(&self) -> &NodeNetns {
        &self.0.netns
    }
    /// The node's addresses, at most one per family.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.0.addresses
    }
    /// Those of the node's addresses that a link has, or has lost, with its prefix: who is on the same link.
    ///
    /// # Errors
    ///
    /// The kernel does not list them.
    pub async fn networks(&self) -> Result<Vec<IpNet>> {
        let inner = self.0.clone();
        blocking(move || {
            let mut links = lock(&inner.links);
            addresses::networks(&inner.addresses, &mut links, &lock(&inner.presence).made)
        })
        .await
    }
    pub fn config(&self) -> &NetworkConfig {
        &self.0.config
    }

    /// Sets the ranges of this node's Pods, once the control plane has assigned them.
    pub fn set_pod_ranges(&self, ranges: Vec<IpNet>) {
        lock(&self.0.ipam).set_ranges(ranges);
    }
    pub fn pod_ranges(&self) -> Vec<IpNet> {
        lock(&self.0.ipam).ranges().to_vec()
    }

    /// Sets up a Pod's addresses and link. `pod` is the Pod's network namespace; operations are recorded in `journal`. Idempotent
    /// for the same owner and namespace; safe for a running Pod.
    ///
    /// # Errors
    ///
    /// No address is free, the kernel refuses, or a plugin fails.
    pub async fn attach(&self, owner: &str, pod: OwnedFd, journal: &JournalWriter) -> Result<PodNetwork> {
        self.attach_asking(owner, pod, &Request::default(), journal).await
    }

    /// [`Network::attach`] with what plugins are asked for, where there are plugins.
    ///
    /// # Errors
    ///
    /// As [`Network::attach`].
    pub async fn attach_asking(
        &self,
        owner: &str,
        pod: OwnedFd,
        request: &Request,
        journal: &JournalWriter,
    ) -> Result<PodNetwork> {
        let (inner, owner, request, journal) = (self.0.clone(), owner.to_owned(), request.clone(), journal.clone());
        blocking(move || {
            if let Some(cni) = inner.cni.as_ref().filter(|_| inner.config.cni.conf_dir.is_some()) {
                let addresses = cni.add(&owner, pod.as_fd(), &request, &journal)?;
                lock(&inner.ipam).assign(&owner, &addresses)?;
                return Ok(PodNetwork { addresses, link: None });
            }
            let (addresses, new) = {
                let mut ipam = lock(&inner.ipam);
                let new = ipam.addresses(&owner).is_none();
                (ipam.allocate(&owner)?, new)
            };
            match inner.wire(&owner, pod, &addresses, &journal) {
                Ok(link) => Ok(PodNetwork { addresses, link: Some(link) }),
                Err(error) => {
                    // Without a link there must be no addresses either: otherwise it would count as connected.
                    if new {
                        let removed = inner.remove_link(links::link_name(&owner), &journal);
                        let undone = removed.and_then(|()| inner.give_back(&owner));
                        if let Err(error) = undone {
                            tracing::warn!(%error, owner, "failed to release the addresses of a Pod without a link");
                        }
                    }
                    Err(error)
                }
            }
        })
        .await
    }

    /// Removes a Pod's link, then releases its addresses. An unknown owner is not an error.
    pub async fn detach(&self, owner: &str, journal: &JournalWriter) -> Result<()> {
        let (inner, owner, journal) = (self.0.clone(), owner.to_owned(), journal.clone());
        blocking(move || {
            lock(&inner.attached).remove(&owner);
            inner.remove_link(links::link_name(&owner), &journal)?;
            if let Some(cni) = &inner.cni {
                cni.del(&owner, &journal)?;
            }
            inner.followed.remove(lock(&inner.ipam).addresses(&owner).unwrap_or_default());
            inner.give_back(&owner)
        })
        .await
    }

    /// Records table changes for a Pod's addresses in `journal`, until it is detached.
    pub fn follow(&self, owner: &str, journal: &JournalWriter) {
        self.0.followed.add(lock(&self.0.ipam).addresses(owner).unwrap_or_default(), journal);
    }

    /// A Pod's allocated addresses, if any.
    pub fn addresses_of(&self, owner: &str) -> Option<Vec<IpAddr>> {
        lock(&self.0.ipam).addresses(owner).map(<[IpAddr]>::to_vec)
    }

    /// The addresses of all who have been given some.
    pub fn owners(&self) -> BTreeMap<String, Vec<IpAddr>> {
        lock(&self.0.ipam).owners().map(|(owner, has)| (owner.to_owned(), has.to_vec())).collect()
    }

    /// Every Pod link of this node.
    pub async fn list(&self) -> Result<Vec<PodLink>> {
        let inner = self.0.clone();
        blocking(move || lock(&inner.links).list()).await
    }

    /// Removes links and addresses of owners that are not among the living; returns those removed. Call it once the living are
    /// completely known.
    pub async fn retain(&self, living: BTreeSet<String>) -> Result<Vec<String>> {
        let inner = self.0.clone();
        blocking(move || {
            let mut removed = inner.remove_links_but(&living)?;
            // Those that plugins have not taken back keep their addresses until a retry.
            let (mut living, mut untaken) = (living, None);
            if let Some(cni) = &inner.cni {
                let (gone, failed) = cni.retain(&living);
                let owners = lock(&inner.ipam).owners().map(|(owner, _)| owner.to_owned()).collect::<Vec<_>>();
                living.extend(owners.into_iter().filter(|owner| !gone.contains(owner) && cni.has(owner)));
                removed.extend(gone);
                untaken = failed.into_iter().next();
            }
            let gone: BTreeMap<String, Vec<IpAddr>> = {
                let ipam = lock(&inner.ipam);
                let gone = ipam.owners().filter(|(owner, _)| !living.contains(*owner));
                gone.map(|(owner, has)| (owner.to_owned(), has.to_vec())).collect()
            };
            let failed = inner.forget(gone.values().flatten())?;
            let is_free = |owner: &str| {
                let has = gone.get(owner).map(|has| has.iter().map(Family::of));
                has.is_some_and(|mut has| has.all(|family| failed.iter().all(|(of, _)| *of != family)))
            };
            {
                let mut ipam = lock(&inner.ipam);
                // Owners added meanwhile keep what they have.
                let stay = ipam.owners().map(|(owner, _)| owner.to_owned()).filter(|owner| !is_free(owner)).collect();
                removed.extend(ipam.retain(&stay)?);
            }
            inner.released.notify_one();
            // An owner with remains keeps its addresses until a retry.
            first(failed)?;
            untaken.map_or_else(|| Ok(removed.into_iter().collect()), |error| Err(error.into()))
        })
        .await
    }

    /// Whether plugins make Pods' interfaces.
    pub fn has_plugins(&self) -> bool {
        self.0.config.cni.conf_dir.is_some()
    }

    /// Whether plugins have made a Pod's interface.
    pub fn is_attached_by_plugins(&self, owner: &str) -> bool {
        self.0.cni.as_ref().is_some_and(|cni| cni.has(owner))
    }

    /// Whether plugins map the node's ports to Pods.
    pub fn plugins_map_ports(&self) -> bool {
        self.plugins_are_capable(PORT_MAPPINGS)
    }

    /// Whether plugins limit Pods' traffic.
    pub fn plugins_limit_bandwidth(&self) -> bool {
        self.plugins_are_capable(BANDWIDTH)
    }

    /// Whether a plugin of the network that the next Pod is attached to declares this capability.
    fn plugins_are_capable(&self, of: &str) -> bool {
        let network = self.0.cni.as_ref().and_then(|cni| cni.network().ok());
        network.is_some_and(|network| network.is_capable(of))
    }

    /// Whether Pods can be attached.
    ///
    /// # Errors
    ///
    /// The plugins are not ready, or there are none.
    pub async fn check_plugins(&self) -> Result<()> {
        let inner = self.0.clone();
        blocking(move || Ok(inner.cni.as_ref().map_or(Ok(()), Cni::status)?)).await
    }

    /// Whether a Pod's attachment is as it should be, where plugins have made it.
    ///
    /// # Errors
    ///
    /// A plugin finds that it is not.
    pub async fn check_attachment(&self, owner: &str, journal: &JournalWriter) -> Result<()> {
        let (inner, owner, journal) = (self.0.clone(), owner.to_owned(), journal.clone());
        blocking(move || Ok(inner.cni.as_ref().map_or(Ok(()), |cni| cni.check(&owner, &journal))?)).await
    }

    /// The kernel's state for one Pod; pass its namespace to include its own end.
    pub async fn inspect(&self, owner: &str, pod: Option<OwnedFd>) -> Result<PodInspection> {
        let (inner, owner) = (self.0.clone(), owner.to_owned());
        blocking(move || {
            let addresses = lock(&inner.ipam).addresses(&owner).unwrap_or_default().to_vec();
            let host = lock(&inner.links).details(&links::link_name(&owner))?;
            let pod = pod.map(|ns| links::pod_details(ns.as_fd())).transpose()?.flatten();
            Ok(PodInspection { addresses, host, pod })
        })
        .await
    }

    /// Makes the tables contain exactly these Services; once an agent knows them all.
    pub async fn load_services(&self, facts: NodeFacts, services: BTreeMap<String, Arc<Service>>) -> Result<Change> {
        let inner = self.0.clone();
        blocking(move || {
            let facts = inner.with_tunnel(facts);
            let loaded = lock(&inner.dataplane).load(facts.clone(), &services)?;
            // Only behind the rules that guard it.
            inner.follow_peers(&facts);
            Ok(loaded)
        })
        .await
    }
    /// Replaces or removes some Services in one transaction.
    pub async fn apply_services(&self, changes: Vec<(String, Option<Arc<Service>>)>) -> Result<Change> {
        let inner = self.0.clone();
        blocking(move || lock(&inner.dataplane).apply(changes)).await
    }
    /// Changes who is isolated, by what, and who is of which group. Until the Services have been loaded for the first time it is
    /// kept, and what a predecessor has loaded stays; it is loaded together with them.
    ///
    /// # Errors
    ///
    /// The kernel refuses it; it is kept, and the next change loads everything. That it refuses one policy is no error
    /// ([`Network::closed_owners`]).
    pub async fn apply_policies(&self, changes: PolicyChanges) -> Result<Change> {
        let inner = self.0.clone();
        blocking(move || lock(&inner.dataplane).apply_policies(changes)).await
    }
    /// Who is judged by a policy that the kernel has refused, and so is let through by less than was written; and why.
    pub async fn closed_owners(&self) -> Result<BTreeMap<String, String>> {
        let inner = self.0.clone();
        blocking(move || Ok(lock(&inner.dataplane).closed_owners())).await
    }
    /// Tries what the kernel has refused of policies once more.
    ///
    /// # Errors
    ///
    /// The kernel takes nothing at all. What it refuses again is none.
    pub async fn try_policies_again(&self) -> Result<()> {
        let inner = self.0.clone();
        blocking(move || lock(&inner.dataplane).try_policies_again()).await
    }
    /// What is new about the node and its cluster.
    pub async fn set_facts(&self, facts: NodeFacts) -> Result<()> {
        let inner = self.0.clone();
        blocking(move || {
            let facts = inner.with_tunnel(facts);
            lock(&inner.dataplane).set_facts(facts.clone())?;
            inner.follow_peers(&facts);
            Ok(())
        })
        .await
    }
    /// The table elements that carry traffic of these addresses, as in the kernel: at most `most`, and their total number.
    pub async fn carriers(&self, addresses: Vec<IpAddr>, most: usize) -> Result<(Vec<Carrier>, usize)> {
        let inner = self.0.clone();
        blocking(move || {
            let (wanted, all) = lock(&inner.dataplane).carriers(&addresses, most);
            // With a separate socket: changes are not delayed.
            Ok((dataplane::ask(&mut Socket::open_in(inner.netns.fd())?, &wanted)?, all))
        })
        .await
    }
    /// By what the traffic of these addresses is judged, as in the kernel. Listings wait for each other.
    ///
    /// # Errors
    ///
    /// The kernel cannot be asked.
    pub async fn judged(&self, addresses: Vec<IpAddr>) -> Result<Vec<dataplane::Judged>> {
        let turn = self.0.listing.clone().lock_owned().await;
        let inner = self.0.clone();
        blocking(move || {
            let found = dataplane::judged(&inner.netns, &mut Socket::open_in(inner.netns.fd())?, &addresses);
            drop(turn);
            found
        })
        .await
    }

    /// The ways of a packet through this node, as the kernel would have it go: one for each endpoint that may be chosen. Listings
    /// wait for each other.
    ///
    /// # Errors
    ///
    /// The kernel cannot be asked.
    pub async fn why(&self, packet: Packet, entry: Entry) -> Result<Vec<Walk>> {
        let turn = self.0.listing.clone().lock_owned().await;
        let inner = self.0.clone();
        blocking(move || {
            let mut walks = crate::why::read(&inner.netns, &packet, &entry)?;
            drop(turn);
            let dataplane = lock(&inner.dataplane);
            for step in walks.iter_mut().flat_map(|walk| &mut walk.steps) {
                dataplane.explain(step);
            }
            Ok(walks)
        })
        .await
    }

    /// Foreign tables that would drop Pods' traffic. A listing does not block the node's own work, only other listings: it may take
    /// long, and much memory.
    pub async fn conflicting_tables(&self) -> Result<Vec<dataplane::Conflict>> {
        let turn = self.0.listing.clone().lock_owned().await;
        let inner = self.0.clone();
        let ranges = self.pod_ranges();
        let look = move || {
            let found = dataplane::conflicting_tables(&inner.netns, &ranges, &inner.families());
            drop(turn);
            found
        };
        blocking(look).await
    }

    /// Waits until others may have written to the ruleset since the last call: detected by [`Network::heal`].
    pub async fn written_by_others(&self) {
        self.0.written_by_others.notified().await;
    }

    /// Waits until owners may have given back addresses since the last call.
    pub async fn released(&self) {
        self.0.released.notified().await;
    }

    /// Checks once whether the conntrack table is filling up, and takes entries from Pods above their share; `None` if there is
    /// nothing to do.
    pub async fn keep_shares(&self) -> Result<Option<Relief>> {
        let inner = self.0.clone();
        blocking(move || {
            let facts = lock(&inner.dataplane).facts().clone();
            lock(&inner.keeper).look(&facts)
        })
        .await
    }

    /// Does so forever, and logs whose connections were too many.
    pub async fn keep_shares_for_ever(self) {
        let (mut told, mut failed) = (BTreeSet::new(), None);
        loop {
            tokio::time::sleep(dataplane::PERIOD).await;
            let looked = self.keep_shares().await;
            // Each error once: otherwise a Pod could fill the log.
            let failure = looked.as_ref().err().map(Error::to_string);
            if let Some(error) = failure.as_ref().filter(|_| failure != failed) {
                tracing::warn!(%error, "failed to read the node's tracked connections");
            }
            failed = failure;
            let Ok(Some(Relief { entries, lost, crowded })) = looked else { continue };
            for (source, lost) in lost.iter().filter(|(source, _)| !told.contains(*source)) {
                let what = "this Pod had more than its share of the node's tracked connections, or of its ports to the crowded";
                tracing::warn!(%source, lost, entries, ?crowded, "{what}");
            }
            told = lost.into_keys().collect();
        }
    }

    /// Removes everything this node created: Pod links, its routes and addresses, its namespace. Continues past errors and returns
    /// them all.
    pub async fn remove(self) -> Vec<Error> {
        let inner = self.0;
        let work = move || {
            let mut errors = Vec::new();
            inner.removed.store(true, Ordering::Relaxed);
            let mut links = lock(&inner.links);
            lock(&inner.attached).clear();
            match links.list() {
                Ok(all) => {
                    let names = all.into_iter().map(|l| l.name).collect();
                    errors.extend(links.detach_all(&names, &JournalWriter::none()).err());
                }
                Err(e) => errors.push(e),
            }
            if let Some(cni) = &inner.cni {
                errors.extend(cni.retain(&BTreeSet::new()).1.into_iter().map(Error::from));
            }
            // Before the tables that guard it.
            errors.extend(links.set_overlay(&Overlay::default()).err());
            errors.extend(lock(&inner.dataplane).remove().err());
            // From the current configuration, and from earlier ones.
            let made = &lock(&inner.presence).made;
            let routes: BTreeSet<IpNet> = inner.config.service_ranges.iter().copied().chain(made.routes()).collect();
            for range in &routes {
                errors.extend(links.remove_route(range, "lo").err());
            }
            let own = inner.config.addresses.iter().filter(|_| !inner.config.isolated);
            let addresses: BTreeSet<IpAddr> =
                inner.config.dns.iter().chain(own).copied().chain(made.addresses()).collect();
            for address in &addresses {
                errors.extend(links.remove_address("lo", &IpNet::from(*address)).err());
            }
            if inner.config.isolated {
                errors.extend(inner.netns.give_up().err());
                errors.extend(NodeNetns::remove(&inner.config.folder.join("netns")).err());
            }
            if errors.is_empty() {
                errors.extend(made.remove().err());
            }
            Ok(errors)
        };
        blocking(work).await.unwrap_or_else(|e| vec![e])
    }
}

impl Inner {
    fn families(&self) -> Vec<Family> {
        families(&self.config)
    }

    /// Creates a Pod's link, which is maintained from then on.
    fn wire(&self, owner: &str, pod: OwnedFd, addresses: &[IpAddr], journal: &JournalWriter) -> Result<PodLink> {
        let mut links = lock(&self.links);
        let link = links.attach(owner, pod.as_fd(), addresses, journal)?;
        lock(&self.attached).insert(owner.to_owned(), Attached::new(pod, journal)?);
        Ok(link)
    }

    /// Releases the addresses of an owner whose link is gone. Their tracked connections are deleted first: otherwise the next owner
    /// would receive their packets.
    fn give_back(&self, owner: &str) -> Result<()> {
        let addresses = lock(&self.ipam).addresses(owner).unwrap_or_default().to_vec();
        if !addresses.is_empty() {
            self.forgetting.run(addresses, |all| first(self.forget(all.iter().flatten())?))?;
        }
        lock(&self.ipam).release(owner)?;
        self.released.notify_one();
        Ok(())
    }

    /// Deletes the tracked connections of these addresses, except the node's own; returns the families where some may be left.
    fn forget<'a>(&self, addresses: impl Iterator<Item = &'a IpAddr>) -> Result<Vec<(Family, Error)>> {
        let addresses: BTreeSet<IpAddr> =
            addresses.filter(|address| !self.addresses.contains(address)).copied().collect();
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let open = || Socket::open_in(self.netns.fd());
        Ok(dataplane::forget(&mut open()?, &mut open()?, &addresses))
    }

    /// Removes the links of all but the living; returns their owners.
    fn remove_links_but(&self, living: &BTreeSet<String>) -> Result<BTreeSet<String>> {
        let mut links = lock(&self.links);
        lock(&self.attached).retain(|owner, _| living.contains(owner));
        let dead: Vec<PodLink> = links.list()?.into_iter().filter(|l| !living.contains(&l.owner)).collect();
        links.detach_all(&dead.iter().map(|l| l.name.clone()).collect(), &JournalWriter::none())?;
        Ok(dead.into_iter().map(|l| l.owner).collect())
    }

    /// Removes a link, together with others being removed at the same time.
    fn remove_link(&self, name: String, journal: &JournalWriter) -> Result<()> {
        self.detaching.run(name, |all| lock(&self.links).detach_all(&all.iter().cloned().collect(), journal))
    }
}

/// The node's families: those of the Service ranges.
fn families(config: &NetworkConfig) -> Vec<Family> {
    let wanted = |family: &Family| config.service_ranges.iter().any(|r| Family::of_net(r) == *family);
    let possible = |family: &Family| *family == Family::V4 || links::ipv6_available();
    Family::ALL.into_iter().filter(wanted).filter(possible).collect()
}

/// The first failure, if any.
fn first(failed: Vec<(Family, Error)>) -> Result<()> {
    failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// Runs blocking kernel work off the runtime's threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::ThreadGone)?
}

/// The state is consistent even after a panic: every change is made in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
