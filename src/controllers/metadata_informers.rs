//! A metadata informer for every kind, for controllers that handle all kinds alike. Custom resources come and go at run time, and
//! so do the resources of extension API servers ([`elsewhere`]).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::coordinates::{self, Coordinates};
use podwright_api::kinds;
use podwright_client::{Client, Definition, Delta, Informer, Key, Partial, Room, Rooms};

pub mod elsewhere;

use elsewhere::{Elsewhere, Followed};

/// Resources without owners or dependents that are too busy to watch; upstream's garbage collector ignores them as well.
pub const IGNORED: &[&str] = &["events"];

/// How long controllers wait for custom resources at their start: one that cannot be listed must not block them.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How many removed kinds are remembered.
const PAST: usize = 64;

/// How often discovery of extension API servers is repeated, if there are any, like upstream's garbage collector. More often while
/// some of it fails.
const LOOK: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The most objects of one remote resource: its server determines their number.
const MOST_OBJECTS: usize = 100_000;
/// The most bytes of remote metadata in total; each group version may use half of what the others leave.
const MOST_BYTES: usize = 256 << 20;

/// One untyped informer per kind. Cheap to clone.
#[derive(Clone)]
pub struct MetadataInformers(Arc<Shared>);

struct Shared {
    client: Client,
    definitions: Informer<Definition>,
    services: Informer<APIService>,
    /// What extension API servers serve, according to the last discovery.
    elsewhere: RwLock<Arc<Elsewhere>>,
    /// Accounts for its memory.
    rooms: Arc<Rooms>,
    informers: RwLock<Arc<Vec<Arc<MetadataInformer>>>>,
    /// Removed kinds, the newest last: dependents of their objects are still to be judged.
    past: Mutex<VecDeque<Arc<MetadataInformer>>>,
    followers: Mutex<Vec<mpsc::UnboundedSender<Arc<MetadataInformer>>>>,
}

/// The objects of one kind.
pub struct MetadataInformer {
    pub group: String,
    /// The apiVersion in references; for a CRD the first served version.
    pub api_version: String,
    pub kind: String,
    pub namespaced: bool,
    /// The resource's name in requests: `pods`, `deployments.apps`, `widgets.example.com/`, `things.ext.example.com/v1`.
    pub resource: String,
    pub objects: Informer<Partial>,
    whose: Whose,
}

/// The origin of a kind.
#[derive(PartialEq)]
enum Whose {
    Table,
    Definition(Key),
    /// An extension API server.
    Other,
}

/// An object and its resource.
#[derive(Clone, Debug)]
pub struct Item {
    pub resource: String,
    pub object: Arc<Partial>,
}

impl MetadataInformer {
    const BY_UID: &str = "uid";
    const BY_OWNER: &str = "owner";

    /// `room` is for remote resources.
    fn start(client: &Client, of: Followed, whose: Whose, room: Option<Room>) -> MetadataInformer {
        let Followed { api_version, kind, namespaced, resource } = of;
        let uid = |o: &Partial| o.metadata.uid.iter().cloned().collect();
        let owners = |o: &Partial| o.metadata.owner_references.iter().flatten().map(|r| r.uid.clone()).collect();
        let mut objects = Informer::<Partial>::builder(client.clone())
            .resource(resource.clone())
            .index(Self::BY_UID, uid)
            .index(Self::BY_OWNER, owners);
        if let Some(room) = room {
            objects = objects.at_most(MOST_OBJECTS).within(room);
        }
        let objects = objects.start();
        let group = coordinates::group(&api_version).to_owned();
        MetadataInformer { group, api_version, kind, namespaced, resource, objects, whose }
    }
}

impl MetadataInformer {
    /// Whether a CRD defines it.
    pub fn is_custom(&self) -> bool {
        matches!(self.whose, Whose::Definition(_))
    }
    /// Whether an extension API server serves it, with its own revisions.
    pub fn is_elsewhere(&self) -> bool {
        self.whose == Whose::Other
    }
    /// Whether nobody knows what there is of it: it could not be listed yet, or there is more than is kept.
    pub fn is_blind(&self) -> bool {
        self.is_elsewhere() && (self.objects.is_full() || !self.objects.is_synced())
    }
    /// Whether an owner reference is to an object of this kind, in whatever version.
    pub fn is_of(&self, api_version: &str, kind: &str) -> bool {
        self.kind == kind && self.group == coordinates::group(api_version)
    }
}

impl MetadataInformers {
    /// Starts the informers. Must be called inside a tokio runtime.
    pub fn start(client: &Client) -> MetadataInformers {
        let followed = kinds::stored().filter(|kind| !IGNORED.contains(&kind.plural));
        let informer = |kind: &kinds::Kind| {
            let of = Followed {
                api_version: kind.api_version(),
                kind: kind.kind.to_owned(),
                namespaced: kind.namespaced,
                resource: kind.resource(),
            };
            MetadataInformer::start(client, of, Whose::Table, None)
        };
        let informers = followed.map(|kind| Arc::new(informer(kind))).collect();
        let metadata = MetadataInformers(Arc::new(Shared {
            client: client.clone(),
            definitions: Informer::<Definition>::builder(client.clone()).start(),
            services: Informer::<APIService>::builder(client.clone()).start(),
            elsewhere: RwLock::default(),
            rooms: Rooms::new(MOST_BYTES),
            informers: RwLock::new(Arc::new(informers)),
            past: Mutex::default(),
            followers: Mutex::default(),
        }));
        tokio::spawn(follow(Arc::downgrade(&metadata.0), metadata.0.definitions.subscribe()));
        tokio::spawn(follow_others(Arc::downgrade(&metadata.0), metadata.0.services.subscribe()));
        metadata
    }

    pub async fn synced(&self) {
        let built_in = self.informers();
        for informer in built_in.iter() {
            informer.objects.synced().await;
        }
        self.0.services.synced().await;
        self.0.definitions.synced().await;
        self.0.definitions.list().iter().for_each(|definition| self.0.define(definition));
        let custom = async {
            for informer in self.informers().iter().filter(|informer| !informer.is_elsewhere()) {
                informer.objects.synced().await;
            }
        };
        if tokio::time::timeout(TIMEOUT, custom).await.is_err() {
            tracing::warn!("failed to list some custom resources");
        }
    }

    pub fn informers(&self) -> Arc<Vec<Arc<MetadataInformer>>> {
        self.0.informers()
    }

    /// The current CRDs.
    pub fn definitions(&self) -> Vec<Arc<Definition>> {
        self.0.definitions.list()
    }

    /// All informers, followed by each new one.
    pub fn follow(&self) -> mpsc::UnboundedReceiver<Arc<MetadataInformer>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut followers = self.0.followers.lock().unwrap_or_else(PoisonError::into_inner);
        for informer in self.informers().iter() {
            // The receiver is owned by this function, so sending succeeds.
            sender.send(informer.clone()).ok();
        }
        followers.push(sender);
        receiver
    }

    /// Whether a followed resource is served by an extension API server.
    pub fn is_elsewhere(&self, resource: &str) -> bool {
        self.informers().iter().any(|informer| informer.is_elsewhere() && informer.resource == resource)
    }

    /// The current result of discovery.
    pub fn elsewhere(&self) -> Arc<Elsewhere> {
        self.0.elsewhere.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether an extension API server is registered for the group, available or not.
    pub fn is_served_elsewhere(&self, group: &str) -> bool {
        self.0.remote().iter().any(|(of, _)| of == group)
    }

    /// The remote namespaced resources that must be complete, if there may be more since `revision`.
    pub fn discovered(&self, revision: u64) -> Option<Vec<String>> {
        let known = shows(&self.0.services.resource_version(), revision) && self.0.remote().is_empty();
        (!known).then(|| self.elsewhere().namespaced().cloned().collect())
    }

    /// The informer of a kind in an owner reference; an empty one if the kind was removed.
    pub fn informer(&self, api_version: &str, kind: &str) -> Option<Arc<MetadataInformer>> {
        let is_it = |informer: &&Arc<MetadataInformer>| informer.is_of(api_version, kind);
        let now = self.informers().iter().find(is_it).cloned();
        now.or_else(|| self.0.past.lock().unwrap_or_else(PoisonError::into_inner).iter().find(is_it).cloned())
    }

    /// Remote objects are excluded: their servers choose the uids.
    pub fn by_uid(&self, uid: &str) -> Option<Item> {
        let informers = self.informers();
        let (others, own): (Vec<_>, Vec<_>) = informers.iter().partition(|informer| informer.is_elsewhere());
        own.into_iter().chain(others).find_map(|informer| {
            let object = informer.objects.indexed(MetadataInformer::BY_UID, uid).into_iter().next()?;
            Some(Item { resource: informer.resource.clone(), object })
        })
    }

    /// The coordinates of an object in owner references; `None` if its kind was removed.
    pub fn coordinates(&self, item: &Item) -> Option<Coordinates> {
        let informers = self.informers();
        let informer = informers.iter().find(|informer| informer.resource == item.resource)?;
        let meta = &item.object.metadata;
        Some(Coordinates {
            group: informer.group.clone(),
            kind: informer.kind.clone(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
        })
    }

    /// The reference of an object in events.
    pub fn reference(&self, item: &Item) -> ObjectReference {
        let informers = self.informers();
        let informer = informers.iter().find(|informer| informer.resource == item.resource);
        let meta = &item.object.metadata;
        ObjectReference {
            api_version: informer.map(|informer| informer.api_version.clone()),
            kind: informer.map(|informer| informer.kind.clone()),
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: None,
        }
    }

    /// The resources whose informers may not show everything written before `revision` yet, including those whose first list is
    /// pending. Dependents of a namespaced owner are namespaced. (Remote resources are taken as they are, as upstream: they have
    /// their own revisions.)
    pub fn behind(&self, revision: u64, namespaced: bool) -> Vec<String> {
        let informers = self.informers();
        let behind = |informer: &&Arc<MetadataInformer>| {
            !informer.is_elsewhere()
                && (informer.namespaced || !namespaced)
                && !shows(&informer.objects.resource_version(), revision)
        };
        informers.iter().filter(behind).map(|informer| informer.resource.clone()).collect()
    }

    /// The resources of known CRDs, if there may be others defined before `revision`.
    pub fn defined(&self, revision: u64) -> Option<Vec<String>> {
        let informers = self.informers();
        let custom = informers.iter().filter(|informer| informer.is_custom());
        let known: Vec<String> = custom.map(|informer| informer.resource.clone()).collect();
        let definitions = &self.0.definitions;
        let followed = |definition: &Definition| !definition.established || known.contains(&definition.resource());
        let all = shows(&definitions.resource_version(), revision) && definitions.list().iter().all(|d| followed(d));
        (!all).then_some(known)
    }

    /// Every object with an owner reference to `uid`, whatever the rest of the reference.
    pub fn dependents(&self, uid: &str) -> Vec<Item> {
        let mut all = Vec::new();
        for informer in self.informers().iter() {
            let objects = informer.objects.indexed(MetadataInformer::BY_OWNER, uid);
            all.extend(objects.into_iter().map(|object| Item { resource: informer.resource.clone(), object }));
        }
        all
    }
}

/// Whether an informer at this resourceVersion shows everything up to a revision.
fn shows(at: &str, revision: u64) -> bool {
    at.parse::<u64>().is_ok_and(|at| at >= revision)
}

impl Shared {
    fn informers(&self) -> Arc<Vec<Arc<MetadataInformer>>> {
        self.informers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts following a CRD's resource, if it is new.
    fn define(&self, definition: &Definition) {
        // Held throughout, so that concurrent followers are notified exactly once.
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::of(definition);
        let whose = Whose::Definition(key);
        if !definition.established || self.informers().iter().any(|informer| informer.whose == whose) {
            return;
        }
        let resource = definition.resource();
        let version = definition.served.first().map_or("v1", |version| version.name.as_str());
        let api_version = format!("{}/{version}", definition.group);
        let (kind, namespaced) = (definition.kind.clone(), definition.namespaced);
        let informer =
            MetadataInformer::start(&self.client, Followed { resource, api_version, kind, namespaced }, whose, None);
        let informer = Arc::new(informer);
        self.change(|informers| informers.push(informer.clone()));
        followers.retain(|follower| follower.send(informer.clone()).is_ok());
    }

    /// A CRD is deleted after all its objects. Their deletion events may still be missing, and will not come from anywhere else.
    fn forget(&self, key: &Key) {
        let is_it = |informer: &Arc<MetadataInformer>| matches!(&informer.whose, Whose::Definition(own) if own == key);
        let Some(informer) = self.informers().iter().find(|informer| is_it(informer)).cloned() else { return };
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        if past.len() == PAST {
            past.pop_front();
        }
        past.push_back(informer.clone());
        drop(past);
        self.change(|informers| informers.retain(|informer| !is_it(informer)));
        informer.objects.end();
    }

    /// The group versions of extension API servers.
    fn remote(&self) -> Vec<(String, String)> {
        let services = self.services.list();
        let remote = services.iter().filter(|service| elsewhere::is_remote(service));
        remote.map(|service| elsewhere::served(service)).map(|(g, v)| (g.to_owned(), v.to_owned())).collect()
    }

    /// Runs discovery, and updates the followed resources. Those that are unknown now remain followed, as upstream. `true`:
    /// discovery was complete.
    async fn discover(&self) -> bool {
        let remote = self.remote();
        let versions = match remote.is_empty() {
            true => Vec::new(),
            false => match self.client.discovery().await {
                Ok(versions) => versions.unwrap_or_default(),
                Err(why) => {
                    tracing::debug!("discovery failed: {why}");
                    return false;
                }
            },
        };
        let found = elsewhere::sorted(&versions, &remote);
        let is_failing = |informer: &MetadataInformer| found.failing.contains(&informer.api_version);
        let is_followed =
            |informer: &MetadataInformer| found.followed.iter().any(|it| it.resource == informer.resource);
        // Held throughout, so that concurrent followers are notified exactly once.
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.informers();
        let others = || known.iter().filter(|informer| informer.is_elsewhere());
        for gone in others().filter(|informer| !is_followed(informer) && !is_failing(informer)) {
            // Nothing reported that its objects are deleted: their dependents are not orphaned.
            self.change(|informers| informers.retain(|informer| !Arc::ptr_eq(informer, gone)));
        }
        for new in found.followed.iter().filter(|it| !others().any(|known| known.resource == it.resource)) {
            let room = self.rooms.of(&new.api_version);
            let informer = Arc::new(MetadataInformer::start(&self.client, new.clone(), Whose::Other, Some(room)));
            self.change(|informers| informers.push(informer.clone()));
            followers.retain(|follower| follower.send(informer.clone()).is_ok());
        }
        let all = found.failing.is_empty();
        *self.elsewhere.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(found);
        all
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<MetadataInformer>>)) {
        let mut informers = self.informers.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut informers));
    }
}

/// Keeps the informers in sync with the CRDs, as long as they are in use.
async fn follow(metadata: Weak<Shared>, mut changes: mpsc::UnboundedReceiver<Delta<Definition>>) {
    while let Some(change) = changes.recv().await {
        let Some(metadata) = metadata.upgrade() else { return };
        match &change.new {
            Some(definition) => metadata.define(definition),
            None => metadata.forget(&change.key),
        }
    }
}

/// Keeps the informers in sync with extension API servers: at each change of an APIService, and periodically while there are any.
async fn follow_others(metadata: Weak<Shared>, mut changes: mpsc::UnboundedReceiver<Delta<APIService>>) {
    let mut due: Option<Instant> = None;
    loop {
        let look = async {
            match due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            change = changes.recv() => if change.is_none() { return },
            () = look => {}
        }
        while changes.try_recv().is_ok() {}
        let Some(metadata) = metadata.upgrade() else { return };
        let all = metadata.discover().await;
        due = match (metadata.remote().is_empty(), all) {
            (true, true) => None,
            (_, all) => Some(Instant::now() + if all { LOOK } else { LOOK_AGAIN }),
        };
    }
}
