//! Aggregation: group versions served by others behind a Service; upstream's kube-aggregator.
//!
//! An APIService says who serves a group version ([`table`]). Those that this server serves itself have one too, kept by [`local`];
//! the others are probed ([`available`]), and their resources and documents are collected ([`gather`]) and merged with what is
//! served here ([`listing`], [`openapi`]). The REST face passes requests on (`rest::aggregated`), the pipeline those of JSON-RPC
//! and of this process' own components ([`pass`]), over connections from [`connect`]; [`trust`] tells extension servers whom to
//! believe.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use podwright_api::{Kind, Request, Status, User, kinds};

use super::Server;
use super::documents::{Document, Stamp};

mod ask;
mod available;
pub(super) mod connect;
mod gather;
pub(super) mod listing;
mod local;
mod metrics;
pub(super) mod openapi;
mod pass;
mod sessions;
pub(super) mod table;
mod trust;
mod v3;
mod wire;

use gather::Gathered;
use table::{Remote, Table};

const RESOURCE: &str = "apiservices.apiregistration.k8s.io";
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
/// The group of APIServices themselves, which cannot be delegated.
pub(super) const OWN_GROUP: &str = "apiregistration.k8s.io";
/// The delay before a failure is retried.
const AGAIN: Duration = Duration::from_secs(1);

fn kind() -> Result<&'static Kind, Status> {
    kinds::lookup(RESOURCE).ok_or_else(|| Status::internal("no kind APIService"))
}

/// The server's state of aggregation.
#[derive(Default)]
pub(super) struct Aggregator {
    table: RwLock<Arc<Table>>,
    /// What is known of each remote one, by its name.
    gathered: RwLock<Arc<AllGathered>>,
    documents: Mutex<HashMap<String, (Stamp, Arc<Document>)>>,
}

/// What has been collected from all, and how often that has changed.
#[derive(Clone, Default)]
pub(super) struct AllGathered {
    changes: u64,
    by_name: BTreeMap<String, Arc<Gathered>>,
}

impl AllGathered {
    pub fn get(&self, name: &str) -> Option<&Arc<Gathered>> {
        self.by_name.get(name)
    }
}

impl Aggregator {
    pub fn gathered(&self) -> Arc<AllGathered> {
        self.gathered.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores what is known of one; `None` removes it.
    fn gather(&self, name: &str, new: Option<Gathered>) {
        // Compared outside the lock: documents are large, and discovery waits for the lock. No other task writes this name.
        if self.gathered().get(name).map(|known| &**known) == new.as_ref() {
            return;
        }
        let mut held = self.gathered.write().unwrap_or_else(PoisonError::into_inner);
        let mut all = AllGathered::clone(&held);
        match new {
            Some(new) => drop(all.by_name.insert(name.to_owned(), Arc::new(new))),
            None => drop(all.by_name.remove(name)),
        }
        all.changes += 1;
        *held = Arc::new(all);
    }

    /// A cached document from the same sources.
    pub fn document(&self, of: &str, stamp: Stamp) -> Option<Arc<Document>> {
        let documents = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        documents.get(of).filter(|(made, _)| *made == stamp).map(|(_, document)| document.clone())
    }

    /// Caches a document; obsolete ones are dropped.
    pub fn keep(&self, of: &str, stamp: Stamp, document: Document) -> Arc<Document> {
        let document = Arc::new(document);
        let mut documents = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        documents.retain(|_, (made, _)| *made == stamp);
        documents.insert(of.to_owned(), (stamp, document.clone()));
        document
    }
}

impl Server {
    /// The APIServices in the watch cache.
    pub(super) fn registrations(&self) -> Arc<Table> {
        let Ok(kind) = kind() else { return Arc::default() };
        let resource = self.cache.resource(kind);
        let known = self.aggregator.table.read().unwrap_or_else(PoisonError::into_inner).clone();
        let state = resource.read();
        if known.revision == state.revision {
            return known;
        }
        let items: Vec<_> = state.items.values().cloned().collect();
        let revision = state.revision;
        drop(state);
        let objects = items.iter().filter_map(|item| podwright_api::Object::from_slice(&item.bytes).ok());
        let table = Arc::new(Table::of(revision, objects, &known));
        *self.aggregator.table.write().unwrap_or_else(PoisonError::into_inner) = table.clone();
        table
    }

    /// The sources of merged documents at this moment.
    pub(super) fn stamp(&self, table: &Table, gathered: &AllGathered) -> Stamp {
        (self.kinds().generation, table.generation, gathered.changes)
    }

    /// Starts the loops that maintain local APIServices, watch remote ones, and tell extension servers whom to believe.
    pub(super) fn start_aggregator(self: &Arc<Server>) {
        self.tasks.add(tokio::spawn(run(Arc::downgrade(self))));
        self.tasks.add(tokio::spawn(trust::run(Arc::downgrade(self))));
    }

    fn watched_as_server(&self, resource: &str) -> impl Future<Output = Result<super::Watch, Status>> + Send {
        let request =
            Request { resource: resource.to_owned(), user: User::system("system:apiserver"), ..Request::default() };
        self.watch(request)
    }
}

/// The watcher of each remote one. They stop when this is dropped.
type Watchers = BTreeMap<String, (Arc<Remote>, AbortOnDropHandle<()>)>;

/// Reconciles all APIServices whenever one of them or the set of kinds changes.
async fn run(server: Weak<Server>) {
    let mut watchers = Watchers::new();
    loop {
        let Some(strong) = server.upgrade() else { return };
        let watches = tokio::join!(strong.watched_as_server(RESOURCE), strong.watched_as_server(DEFINITIONS));
        let mut outcome = look(&strong, &mut watchers).await;
        drop(strong);
        if let (Ok(mut services), Ok(mut definitions)) = watches {
            while outcome.is_ok() {
                let told = tokio::select! {
                    told = services.recv() => told,
                    told = definitions.recv() => told,
                };
                if told.is_none() {
                    break;
                }
                while services.try_recv().is_ok() || definitions.try_recv().is_ok() {}
                let Some(strong) = server.upgrade() else { return };
                outcome = look(&strong, &mut watchers).await;
            }
        }
        if let Err(why) = outcome {
            tracing::warn!("failed to read the APIServices: {why}");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn look(server: &Arc<Server>, watchers: &mut Watchers) -> Result<(), Status> {
    let table = server.registrations();
    let remote = |name: &String| table.get(name).and_then(|registration| registration.remote.clone());
    watchers.retain(|name, (known, _)| remote(name).is_some_and(|now| Arc::ptr_eq(&now, known)));
    for gone in server.aggregator.gathered().by_name.keys().filter(|name| remote(name).is_none()) {
        server.aggregator.gather(gone, None);
    }
    for registration in table.all() {
        let Some(remote) = &registration.remote else { continue };
        watchers.entry(registration.name.clone()).or_insert_with(|| {
            let watcher = tokio::spawn(available::watch(Arc::downgrade(server), registration.clone(), remote.clone()));
            (remote.clone(), AbortOnDropHandle::new(watcher))
        });
    }
    local::keep(server).await
}
