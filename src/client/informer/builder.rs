//! The configuration of an informer, and its start.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, RwLock};

use super::{Held, Index, Informer, Room, Shared, State, followed::Scope};
use crate::reflector::{LocalCopy, Reflector};
use crate::{Client, Typed};
use podwright_api::{Options, Request, Watermark};

/// The configuration of an informer.
pub struct InformerBuilder<K> {
    client: Client,
    resource: String,
    scope: Scope,
    options: Options,
    indexes: HashMap<&'static str, Index<K>>,
    most: usize,
    room: Option<Room>,
    keep_undecodable: bool,
}

impl<K: Typed> InformerBuilder<K> {
    pub(super) fn new(client: Client) -> InformerBuilder<K> {
        InformerBuilder {
            client,
            resource: K::resource(),
            scope: Scope::default(),
            options: Options::default(),
            indexes: HashMap::new(),
            most: usize::MAX,
            room: None,
            keep_undecodable: false,
        }
    }
    /// Another resource than `K`'s own; for views like [`crate::Partial`] that fit every kind.
    pub fn resource(mut self, resource: impl Into<String>) -> Self {
        self.resource = resource.into();
        self
    }
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.scope.namespace = Some(namespace.to_owned());
        self
    }
    /// Only objects with this name.
    pub fn name(mut self, name: &str) -> Self {
        self.scope.name = Some(name.to_owned());
        self.options.field_selector = Some(format!("metadata.name={name}"));
        self
    }
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.scope.by_fields = true;
        self.options.field_selector = Some(selector.into());
        self
    }
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.options.label_selector = Some(selector.into());
        self
    }
    /// The maximum number of objects, which their server determines: beyond that it starts over later, and keeps its state until
    /// then.
    pub fn at_most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }
    /// A memory limit for the objects' metadata; beyond that it behaves as with [`Self::at_most`].
    pub fn within(mut self, room: Room) -> Self {
        self.room = Some(room);
        self
    }
    /// Keeps undecodable objects in their original form.
    pub fn keep_undecodable(mut self) -> Self {
        self.keep_undecodable = true;
        self
    }
    /// Adds an index for `Informer::indexed`; `keys_of` returns the values under which an object is found.
    pub fn index(mut self, name: &'static str, keys_of: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) -> Self {
        self.indexes.insert(name, Index { keys_of: Box::new(keys_of), entries: HashMap::new() });
        self
    }
    /// Starts listing and watching. Must be called inside a tokio runtime.
    pub fn start(self) -> Informer<K> {
        let state = State {
            objects: BTreeMap::new(),
            undecodable: BTreeMap::new(),
            indexes: self.indexes,
            subscribers: Vec::new(),
            resource_version: String::new(),
            ended: false,
            held: self.room.map(|room| Held { room, sizes: HashMap::new(), all: 0 }),
            is_full: false,
        };
        let shared = Arc::new(Shared {
            resource: self.resource.clone(),
            scope: self.scope.clone(),
            most: self.most,
            keep_undecodable: self.keep_undecodable,
            told: Mutex::default(),
            state: RwLock::new(state),
            synced: Watermark::default(),
            task: Mutex::new(None),
        });
        let copy: Arc<dyn LocalCopy> = shared.clone();
        let reflector = Reflector {
            client: self.client,
            request: Request {
                resource: self.resource,
                namespace: self.scope.namespace,
                options: self.options,
                ..Request::default()
            },
            copy: Arc::downgrade(&copy),
        };
        let task = tokio::spawn(reflector.run()).abort_handle();
        *shared.task.lock().unwrap_or_else(|p| p.into_inner()) = Some(task);
        Informer(shared)
    }
}
