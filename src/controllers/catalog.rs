//! The catalog: the metadata of every object of every kind, for the controllers that treat all kinds alike. Kinds that
//! CustomResourceDefinitions define come and go while it runs.

use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::{
    api::{kinds, status::qualified},
    client::{Client, Definition, Informer, Key, Partial},
};

/// Resources that own nothing and are owned by nothing, and are too busy to be followed; upstream's garbage collector
/// ignores them as well.
pub const IGNORED: &[&str] = &["events"];

/// How long controllers wait at their start for custom resources: one that cannot be listed shall not keep them.
const PATIENCE: Duration = Duration::from_secs(5);

/// One untyped informer per kind. Cheap to clone.
#[derive(Clone)]
pub struct Catalog(Arc<Shared>);

struct Shared {
    client: Client,
    definitions: Informer<Definition>,
    sections: RwLock<Arc<Vec<Arc<Section>>>>,
    followers: Mutex<Vec<mpsc::UnboundedSender<Arc<Section>>>>,
}

/// The objects of one kind.
pub struct Section {
    pub group: String,
    pub kind: String,
    pub namespaced: bool,
    /// The resource's name in requests: `pods`, `deployments.apps`.
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

    fn start(client: &Client, group: &str, kind: &str, namespaced: bool, resource: String) -> Section {
        let uid = |o: &Partial| o.metadata.uid.iter().cloned().collect();
        let owners = |o: &Partial| o.metadata.owner_references.iter().flatten().map(|r| r.uid.clone()).collect();
        let objects = Informer::<Partial>::builder(client.clone())
            .resource(resource.clone())
            .index(Self::BY_UID, uid)
            .index(Self::BY_OWNER, owners)
            .start();
        Section { group: group.into(), kind: kind.into(), namespaced, resource, objects, definition: None }
    }
}

impl Catalog {
    /// Starts the informers. Must be called inside a tokio runtime.
    pub fn start(client: &Client) -> Catalog {
        let followed = kinds::stored().filter(|kind| !IGNORED.contains(&kind.plural));
        let section =
            |kind: &kinds::Kind| Section::start(client, kind.group, kind.kind, kind.namespaced, kind.resource());
        let sections = followed.map(|kind| Arc::new(section(kind))).collect();
        let catalog = Catalog(Arc::new(Shared {
            client: client.clone(),
            definitions: Informer::<Definition>::builder(client.clone()).start(),
            sections: RwLock::new(Arc::new(sections)),
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

    /// The section of a kind as an owner reference names it.
    pub fn section(&self, api_version: &str, kind: &str) -> Option<Arc<Section>> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.sections().iter().find(|s| s.kind == kind && s.group == group).cloned()
    }

    pub fn by_uid(&self, uid: &str) -> Option<Item> {
        self.sections().iter().find_map(|section| {
            let object = section.objects.indexed(Section::BY_UID, uid).into_iter().next()?;
            Some(Item { resource: section.resource.clone(), object })
        })
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
        let resource = qualified(&definition.plural, &definition.group);
        let (group, kind) = (&definition.group, &definition.kind);
        let section = Section::start(&self.client, group, kind, definition.namespaced, resource);
        let section = Arc::new(Section { definition: Some(key), ..section });
        self.change(|sections| sections.push(section.clone()));
        followers.retain(|follower| follower.send(section.clone()).is_ok());
    }

    fn forget(&self, key: &Key) {
        self.change(|sections| sections.retain(|section| section.definition.as_ref() != Some(key)));
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
