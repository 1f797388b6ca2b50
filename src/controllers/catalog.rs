//! The catalog: the metadata of every object of every kind, for the controllers that treat all kinds alike. Kinds that
//! CustomResourceDefinitions define come and go while it runs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::sync::mpsc;

use crate::{
    api::kinds,
    client::{Client, Definition, Informer, Key, Partial},
};

/// Resources that own nothing and are owned by nothing, and are too busy to be followed; upstream's garbage collector
/// ignores them as well.
pub const IGNORED: &[&str] = &["events"];

/// How long controllers wait at their start for custom resources: one that cannot be listed shall not keep them.
const PATIENCE: Duration = Duration::from_secs(5);

/// So many kinds that are no more are remembered.
const PAST: usize = 64;

/// One untyped informer per kind. Cheap to clone.
#[derive(Clone)]
pub struct Catalog(Arc<Shared>);

struct Shared {
    client: Client,
    definitions: Informer<Definition>,
    sections: RwLock<Arc<Vec<Arc<Section>>>>,
    /// What was defined once, the newest last: what its objects owned has yet to be judged.
    past: Mutex<VecDeque<Arc<Section>>>,
    followers: Mutex<Vec<mpsc::UnboundedSender<Arc<Section>>>>,
}

/// The objects of one kind.
pub struct Section {
    pub group: String,
    /// As objects of the kind are named to others; of a definition's versions the first that is served.
    pub api_version: String,
    pub kind: String,
    pub namespaced: bool,
    /// The resource's name in requests: `pods`, `deployments.apps`, `widgets.example.com/`.
    pub resource: String,
    pub objects: Informer<Partial>,
    /// The definition that it is of.
    definition: Option<Key>,
}

/// An object and the resource that it is of.
#[derive(Clone, Debug)]
pub struct Item {
    pub resource: String,
    pub object: Arc<Partial>,
}

impl Section {
    const BY_UID: &str = "uid";
    const BY_OWNER: &str = "owner";

    fn start(client: &Client, api_version: String, kind: &str, namespaced: bool, resource: String) -> Section {
        let uid = |o: &Partial| o.metadata.uid.iter().cloned().collect();
        let owners = |o: &Partial| o.metadata.owner_references.iter().flatten().map(|r| r.uid.clone()).collect();
        let objects = Informer::<Partial>::builder(client.clone())
            .resource(resource.clone())
            .index(Self::BY_UID, uid)
            .index(Self::BY_OWNER, owners)
            .start();
        let group = api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
        Section { group, api_version, kind: kind.into(), namespaced, resource, objects, definition: None }
    }
}

impl Section {
    /// Whether a definition defines it.
    pub fn is_custom(&self) -> bool {
        self.definition.is_some()
    }
    /// Whether an owner reference is to an object of this kind, in whatever version.
    pub fn is_of(&self, api_version: &str, kind: &str) -> bool {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.kind == kind && self.group == group
    }
}

impl Catalog {
    /// Starts the informers. Must be called inside a tokio runtime.
    pub fn start(client: &Client) -> Catalog {
        let followed = kinds::stored().filter(|kind| !IGNORED.contains(&kind.plural));
        let section = |kind: &kinds::Kind| {
            Section::start(client, kind.api_version(), kind.kind, kind.namespaced, kind.resource())
        };
        let sections = followed.map(|kind| Arc::new(section(kind))).collect();
        let catalog = Catalog(Arc::new(Shared {
            client: client.clone(),
            definitions: Informer::<Definition>::builder(client.clone()).start(),
            sections: RwLock::new(Arc::new(sections)),
            past: Mutex::default(),
            followers: Mutex::default(),
        }));
        tokio::spawn(follow(Arc::downgrade(&catalog.0), catalog.0.definitions.subscribe()));
        catalog
    }

    pub async fn synced(&self) {
        let built_in = self.sections();
        for section in built_in.iter() {
            section.objects.synced().await;
        }
        self.0.definitions.synced().await;
        self.0.definitions.list().iter().for_each(|definition| self.0.define(definition));
        let custom = async {
            for section in self.sections().iter() {
                section.objects.synced().await;
            }
        };
        if tokio::time::timeout(PATIENCE, custom).await.is_err() {
            tracing::warn!("some custom resources cannot be listed yet");
        }
    }

    pub fn sections(&self) -> Arc<Vec<Arc<Section>>> {
        self.0.sections()
    }

    /// The definitions as they are known now.
    pub fn definitions(&self) -> Vec<Arc<Definition>> {
        self.0.definitions.list()
    }

    /// All sections, and then each that is new.
    pub fn follow(&self) -> mpsc::UnboundedReceiver<Arc<Section>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut followers = self.0.followers.lock().unwrap_or_else(PoisonError::into_inner);
        for section in self.sections().iter() {
            // The receiver is in this function's hands: it cannot be gone.
            sender.send(section.clone()).ok();
        }
        followers.push(sender);
        receiver
    }

    /// The section of a kind as an owner reference names it; an empty one where the kind is no more.
    pub fn section(&self, api_version: &str, kind: &str) -> Option<Arc<Section>> {
        let is_it = |section: &&Arc<Section>| section.is_of(api_version, kind);
        let now = self.sections().iter().find(is_it).cloned();
        now.or_else(|| self.0.past.lock().unwrap_or_else(PoisonError::into_inner).iter().find(is_it).cloned())
    }

    pub fn by_uid(&self, uid: &str) -> Option<Item> {
        self.sections().iter().find_map(|section| {
            let object = section.objects.indexed(Section::BY_UID, uid).into_iter().next()?;
            Some(Item { resource: section.resource.clone(), object })
        })
    }

    /// How events name an object.
    pub fn reference(&self, item: &Item) -> ObjectReference {
        let sections = self.sections();
        let section = sections.iter().find(|section| section.resource == item.resource);
        let meta = &item.object.metadata;
        ObjectReference {
            api_version: section.map(|section| section.api_version.clone()),
            kind: section.map(|section| section.kind.clone()),
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: None,
        }
    }

    /// The resources of which the catalog may not show yet what was written before `revision`, also those whose first list
    /// is on its way. Dependents of a namespaced owner are namespaced.
    pub fn behind(&self, revision: u64, namespaced: bool) -> Vec<String> {
        let sections = self.sections();
        let behind = |section: &&Arc<Section>| {
            (section.namespaced || !namespaced) && !shows(&section.objects.resource_version(), revision)
        };
        sections.iter().filter(behind).map(|section| section.resource.clone()).collect()
    }

    /// The resources of definitions that are known, if there may be others that were defined before `revision`.
    pub fn defined(&self, revision: u64) -> Option<Vec<String>> {
        let sections = self.sections();
        let custom = sections.iter().filter(|section| section.is_custom());
        let known: Vec<String> = custom.map(|section| section.resource.clone()).collect();
        let definitions = &self.0.definitions;
        let followed = |definition: &Definition| !definition.established || known.contains(&definition.resource());
        let all = shows(&definitions.resource_version(), revision) && definitions.list().iter().all(|d| followed(d));
        (!all).then_some(known)
    }

    /// Every object with an owner reference to `uid`.
    pub fn dependents(&self, uid: &str) -> Vec<Item> {
        let mut all = Vec::new();
        for section in self.sections().iter() {
            let objects = section.objects.indexed(Section::BY_OWNER, uid);
            all.extend(objects.into_iter().map(|object| Item { resource: section.resource.clone(), object }));
        }
        all
    }
}

/// Whether an informer at this resourceVersion shows what was written up to a revision.
fn shows(at: &str, revision: u64) -> bool {
    at.parse::<u64>().is_ok_and(|at| at >= revision)
}

impl Shared {
    fn sections(&self) -> Arc<Vec<Arc<Section>>> {
        self.sections.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins to follow what a definition defines, if that is new.
    fn define(&self, definition: &Definition) {
        // Held throughout: who begins to follow meanwhile is told once.
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::of(definition);
        if !definition.established || self.sections().iter().any(|section| section.definition.as_ref() == Some(&key)) {
            return;
        }
        let resource = definition.resource();
        let version = definition.served.first().map_or("v1", |version| version.name.as_str());
        let api_version = format!("{}/{version}", definition.group);
        let section = Section::start(&self.client, api_version, &definition.kind, definition.namespaced, resource);
        let section = Arc::new(Section { definition: Some(key), ..section });
        self.change(|sections| sections.push(section.clone()));
        followers.retain(|follower| follower.send(section.clone()).is_ok());
    }

    /// A definition goes after all objects of it. Their end may not have been told yet, and nobody else will tell it.
    fn forget(&self, key: &Key) {
        let is_it = |section: &Arc<Section>| section.definition.as_ref() == Some(key);
        let Some(section) = self.sections().iter().find(|section| is_it(section)).cloned() else { return };
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        if past.len() == PAST {
            past.pop_front();
        }
        past.push_back(section.clone());
        drop(past);
        self.change(|sections| sections.retain(|section| !is_it(section)));
        section.objects.end();
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Section>>)) {
        let mut sections = self.sections.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut sections));
    }
}

/// Keeps the sections in step with the definitions, for as long as the catalog lives.
async fn follow(catalog: Weak<Shared>, mut changes: mpsc::UnboundedReceiver<crate::client::Delta<Definition>>) {
    while let Some(change) = changes.recv().await {
        let Some(catalog) = catalog.upgrade() else { return };
        match &change.new {
            Some(definition) => catalog.define(definition),
            None => catalog.forget(&change.key),
        }
    }
}
