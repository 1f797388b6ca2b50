//! An informer of the metadata of every kind, for the controllers that treat all kinds alike. Kinds that
//! CustomResourceDefinitions define come and go while it runs, and so do those that others serve behind the server ([`elsewhere`]).

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

/// Resources that own nothing and are owned by nothing, and are too busy to be followed; upstream's garbage collector
/// ignores them as well.
pub const IGNORED: &[&str] = &["events"];

/// How long controllers wait at their start for custom resources: one that cannot be listed shall not keep them.
const TIMEOUT: Duration = Duration::from_secs(5);

/// So many kinds that are no more are remembered.
const PAST: usize = 64;

/// How often it is asked what others serve, as long as there are others; upstream's garbage collector does so as often. Sooner while
/// some of it is not known.
const LOOK: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// So many objects of one resource are followed: who serves it says how many there are.
const MOST_OBJECTS: usize = 100_000;
/// So much of all of it is kept, in bytes; each group's version has half of what the others leave.
const MOST_BYTES: usize = 256 << 20;

/// One untyped informer per kind. Cheap to clone.
#[derive(Clone)]
pub struct MetadataInformers(Arc<Shared>);

struct Shared {
    client: Client,
    definitions: Informer<Definition>,
    services: Informer<APIService>,
    /// What others serve, as discovery has told last.
    elsewhere: RwLock<Arc<Elsewhere>>,
    /// For what is kept of it.
    rooms: Arc<Rooms>,
    informers: RwLock<Arc<Vec<Arc<MetadataInformer>>>>,
    /// What was defined once, the newest last: what its objects owned has yet to be judged.
    past: Mutex<VecDeque<Arc<MetadataInformer>>>,
    followers: Mutex<Vec<mpsc::UnboundedSender<Arc<MetadataInformer>>>>,
}

/// The objects of one kind.
pub struct MetadataInformer {
    pub group: String,
    /// As objects of the kind are named to others; of a definition's versions the first that is served.
    pub api_version: String,
    pub kind: String,
    pub namespaced: bool,
    /// The resource's name in requests: `pods`, `deployments.apps`, `widgets.example.com/`, `things.ext.example.com/v1`.
    pub resource: String,
    pub objects: Informer<Partial>,
    whose: Whose,
}

/// Who says that there is a kind.
#[derive(PartialEq)]
enum Whose {
    Table,
    Definition(Key),
    /// Somebody else, who serves it.
    Other,
}

/// An object and the resource that it is of.
#[derive(Clone, Debug)]
pub struct Item {
    pub resource: String,
    pub object: Arc<Partial>,
}

impl MetadataInformer {
    const BY_UID: &str = "uid";
    const BY_OWNER: &str = "owner";

    /// `room` is for what somebody else serves.
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
    /// Whether a definition defines it.
    pub fn is_custom(&self) -> bool {
        matches!(self.whose, Whose::Definition(_))
    }
    /// Whether somebody else serves it. Revisions of its objects are numbers of his own.
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

    /// The definitions as they are known now.
    pub fn definitions(&self) -> Vec<Arc<Definition>> {
        self.0.definitions.list()
    }

    /// All informers, and then each that is new.
    pub fn follow(&self) -> mpsc::UnboundedReceiver<Arc<MetadataInformer>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut followers = self.0.followers.lock().unwrap_or_else(PoisonError::into_inner);
        for informer in self.informers().iter() {
            // The receiver is in this function's hands: it cannot be gone.
            sender.send(informer.clone()).ok();
        }
        followers.push(sender);
        receiver
    }

    /// Whether somebody else serves a resource that is followed.
    pub fn is_elsewhere(&self, resource: &str) -> bool {
        self.informers().iter().any(|informer| informer.is_elsewhere() && informer.resource == resource)
    }

    /// What others serve, as far as that is known.
    pub fn elsewhere(&self) -> Arc<Elsewhere> {
        self.0.elsewhere.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether somebody else serves a version of a group, well or not.
    pub fn is_served_elsewhere(&self, group: &str) -> bool {
        self.0.remote().iter().any(|(of, _)| of == group)
    }

    /// What of others must be all that there is, if there may be more than is known since `revision`: the resources of namespaces.
    pub fn discovered(&self, revision: u64) -> Option<Vec<String>> {
        let known = shows(&self.0.services.resource_version(), revision) && self.0.remote().is_empty();
        (!known).then(|| self.elsewhere().namespaced().cloned().collect())
    }

    /// The informer of a kind as an owner reference names it; an empty one where the kind is no more.
    pub fn informer(&self, api_version: &str, kind: &str) -> Option<Arc<MetadataInformer>> {
        let is_it = |informer: &&Arc<MetadataInformer>| informer.is_of(api_version, kind);
        let now = self.informers().iter().find(is_it).cloned();
        now.or_else(|| self.0.past.lock().unwrap_or_else(PoisonError::into_inner).iter().find(is_it).cloned())
    }

    /// An object that somebody else serves is nobody's who has its uid here: he may give it any.
    pub fn by_uid(&self, uid: &str) -> Option<Item> {
        let informers = self.informers();
        let (others, own): (Vec<_>, Vec<_>) = informers.iter().partition(|informer| informer.is_elsewhere());
        own.into_iter().chain(others).find_map(|informer| {
            let object = informer.objects.indexed(MetadataInformer::BY_UID, uid).into_iter().next()?;
            Some(Item { resource: informer.resource.clone(), object })
        })
    }

    /// How owner references name an object; none where its kind is no more.
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

    /// How events name an object.
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

    /// The resources of which no informer may show yet what was written before `revision`, also those whose first list
    /// is on its way. Dependents of a namespaced owner are namespaced. (What others serve is as it is known, as upstream has it: they
    /// count their changes for themselves.)
    pub fn behind(&self, revision: u64, namespaced: bool) -> Vec<String> {
        let informers = self.informers();
        let behind = |informer: &&Arc<MetadataInformer>| {
            !informer.is_elsewhere()
                && (informer.namespaced || !namespaced)
                && !shows(&informer.objects.resource_version(), revision)
        };
        informers.iter().filter(behind).map(|informer| informer.resource.clone()).collect()
    }

    /// The resources of definitions that are known, if there may be others that were defined before `revision`.
    pub fn defined(&self, revision: u64) -> Option<Vec<String>> {
        let informers = self.informers();
        let custom = informers.iter().filter(|informer| informer.is_custom());
        let known: Vec<String> = custom.map(|informer| informer.resource.clone()).collect();
        let definitions = &self.0.definitions;
        let followed = |definition: &Definition| !definition.established || known.contains(&definition.resource());
        let all = shows(&definitions.resource_version(), revision) && definitions.list().iter().all(|d| followed(d));
        (!all).then_some(known)
    }

    /// Every object with an owner reference to `uid`, whatever else it says of the owner.
    pub fn dependents(&self, uid: &str) -> Vec<Item> {
        let mut all = Vec::new();
        for informer in self.informers().iter() {
            let objects = informer.objects.indexed(MetadataInformer::BY_OWNER, uid);
            all.extend(objects.into_iter().map(|object| Item { resource: informer.resource.clone(), object }));
        }
        all
    }
}

/// Whether an informer at this resourceVersion shows what was written up to a revision.
fn shows(at: &str, revision: u64) -> bool {
    at.parse::<u64>().is_ok_and(|at| at >= revision)
}

impl Shared {
    fn informers(&self) -> Arc<Vec<Arc<MetadataInformer>>> {
        self.informers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins to follow what a definition defines, if that is new.
    fn define(&self, definition: &Definition) {
        // Held throughout: who begins to follow meanwhile is told once.
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

    /// A definition goes after all objects of it. Their end may not have been told yet, and nobody else will tell it.
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

    /// The versions of groups that others serve.
    fn remote(&self) -> Vec<(String, String)> {
        let services = self.services.list();
        let remote = services.iter().filter(|service| elsewhere::is_remote(service));
        remote.map(|service| elsewhere::served(service)).map(|(g, v)| (g.to_owned(), v.to_owned())).collect()
    }

    /// Asks what others serve, and follows that, and no more what they do not serve any more. What of it is not known now is
    /// followed on, as upstream does. `true`: all of it is known.
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
        // Held throughout: who begins to follow meanwhile is told once.
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.informers();
        let others = || known.iter().filter(|informer| informer.is_elsewhere());
        for gone in others().filter(|informer| !is_followed(informer) && !is_failing(informer)) {
            // Nobody has said that its objects are gone: what hangs on them is not left without an owner.
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

/// Keeps the informers in step with the definitions, for as long as somebody holds them.
async fn follow(metadata: Weak<Shared>, mut changes: mpsc::UnboundedReceiver<Delta<Definition>>) {
    while let Some(change) = changes.recv().await {
        let Some(metadata) = metadata.upgrade() else { return };
        match &change.new {
            Some(definition) => metadata.define(definition),
            None => metadata.forget(&change.key),
        }
    }
}

/// Keeps the informers in step with what others serve: at each change of an APIService, and now and then as long as there are
/// others.
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
