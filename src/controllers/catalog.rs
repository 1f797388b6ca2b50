//! The catalog: the metadata of every object of every kind, for the controllers that treat all kinds alike.

use std::sync::Arc;

use crate::{
    api::{Kind, kinds},
    client::{Client, Informer, Partial},
};

/// Resources that own nothing and are owned by nothing, and are too busy to be followed; upstream's garbage collector
/// ignores them as well.
pub const IGNORED: &[&str] = &["events"];

/// One untyped informer per kind. Cheap to clone.
#[derive(Clone)]
pub struct Catalog(Arc<Vec<Section>>);

/// The objects of one kind.
pub struct Section {
    pub kind: &'static Kind,
    /// The resource's name in requests: `pods`, `deployments.apps`.
    pub resource: String,
    pub objects: Informer<Partial>,
}

/// An object and the resource that it is of.
#[derive(Clone, Debug)]
pub struct Item {
    pub resource: String,
    pub object: Arc<Partial>,
}

impl Catalog {
    const BY_UID: &str = "uid";
    const BY_OWNER: &str = "owner";

    /// Starts the informers. Must be called inside a tokio runtime.
    pub fn start(client: &Client) -> Catalog {
        let uid = |o: &Partial| o.metadata.uid.iter().cloned().collect();
        let owners = |o: &Partial| o.metadata.owner_references.iter().flatten().map(|r| r.uid.clone()).collect();
        let section = |kind: &'static Kind| {
            let resource = kind.resource();
            let objects = Informer::<Partial>::builder(client.clone())
                .resource(resource.clone())
                .index(Self::BY_UID, uid)
                .index(Self::BY_OWNER, owners)
                .start();
            Section { kind, resource, objects }
        };
        Catalog(Arc::new(kinds::stored().filter(|kind| !IGNORED.contains(&kind.plural)).map(section).collect()))
    }

    pub async fn synced(&self) {
        for section in self.0.iter() {
            section.objects.synced().await;
        }
    }

    pub fn sections(&self) -> &[Section] {
        &self.0
    }

    /// The section of a kind as an owner reference names it.
    pub fn section(&self, api_version: &str, kind: &str) -> Option<&Section> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.0.iter().find(|s| s.kind.kind == kind && s.kind.group == group)
    }

    pub fn by_uid(&self, uid: &str) -> Option<Item> {
        self.0.iter().find_map(|section| {
            let object = section.objects.indexed(Self::BY_UID, uid).into_iter().next()?;
            Some(Item { resource: section.resource.clone(), object })
        })
    }

    /// Every object with an owner reference to `uid`.
    pub fn dependents(&self, uid: &str) -> Vec<Item> {
        let mut all = Vec::new();
        for section in self.0.iter() {
            let objects = section.objects.indexed(Self::BY_OWNER, uid);
            all.extend(objects.into_iter().map(|object| Item { resource: section.resource.clone(), object }));
        }
        all
    }
}
