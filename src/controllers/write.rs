//! One write, as a value: the request, its guards, and the events about its result.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim};
use serde_json::{Value, json};

use super::coordinates::Coordinates;
use podwright_api::{
    Options, Request, Verb,
    object::length,
    patch::difference,
    request::{PatchType, Preconditions},
};
use podwright_client::{Key, Typed};

/// The total size of objects that are created for one key at a time.
pub const BURST_BYTES: usize = 8 << 20;

/// One request to the server and its events.
#[derive(Clone, Debug)]
pub struct Write {
    pub request: Request,
    /// What must hold at the server when the write starts; otherwise it fails without being sent.
    pub guards: Vec<Guard>,
    /// Events after success; `{}` in a message is the object's name as the server chose it.
    pub done: Vec<Note>,
    /// The event after a failure; `{}` in the message is the error. The next reconcile gets the reason and the error.
    pub failed: Option<Note>,
    /// The reason with which only the next reconcile gets the error.
    pub reported: Option<&'static str>,
    /// Whether a conflict, an existing or a missing object is a failure to report; otherwise it is transient, and leads to a new
    /// decision.
    pub never_passes: bool,
}

/// A fact that a cache may not know yet, checked at the server right before a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Guard {
    /// No object of this name (and, if given, uid) exists.
    Absent { resource: String, key: Key, uid: Option<String> },
    /// The object exists, with this uid, and is not terminating.
    Alive { resource: String, key: Key, uid: String },
    /// No object of any of these resources is in the namespace.
    Empty { namespace: String, resources: Vec<String> },
    /// There are no other CRDs than those of these resources.
    Defined { resources: Vec<String> },
    /// Discovery of extension API servers is complete, and their namespaced resources are all among these.
    Discovered { resources: Vec<String> },
    /// The owner owns no object of any of these resources; or, with `blocking`, none that its deletion must wait for.
    Childless { owner: Box<Coordinates>, blocking: bool, resources: Vec<String> },
    /// In the namespace, all objects of the resource with the uids `held` have the finalizer; none with the uids `free` does.
    Finalizers { resource: String, namespace: String, finalizer: String, held: Vec<String>, free: Vec<String> },
    /// No Pod uses the claim.
    Unused { claim: Box<PersistentVolumeClaim> },
}

/// An event to be recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    pub about: ObjectReference,
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Note {
    pub fn normal(about: ObjectReference, reason: &'static str, message: impl Into<String>) -> Note {
        Note { about, warning: false, reason, message: message.into() }
    }
    pub fn warning(about: ObjectReference, reason: &'static str, message: impl Into<String>) -> Note {
        Note { about, warning: true, reason, message: message.into() }
    }
}

impl Write {
    pub fn new(request: Request) -> Write {
        Write { request, guards: Vec::new(), done: Vec::new(), failed: None, reported: None, never_passes: false }
    }

    pub fn create<K: Typed>(object: &K) -> Write {
        let meta = object.metadata();
        Write::new(Request {
            verb: Verb::Create,
            resource: K::resource(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            body: Some(value(object)),
            ..Request::default()
        })
    }

    /// A merge patch from `old` to `new`, refused if the object has changed since `old`; `None` if they are equal. Fields unknown
    /// to our types are preserved.
    pub fn change<K: Typed>(old: &K, new: &K) -> Option<Write> {
        let patch = difference(&value(old), &value(new))?;
        let revision = old.metadata().resource_version.clone();
        Some(Write::merge::<K>(&Key::of(old), locked(patch, revision)))
    }

    /// The same for the status only. A status has one writer and is computed from scratch each time: it is conditional on the uid,
    /// not the revision, so that a new object of the same name never gets it.
    pub fn status<K: Typed>(old: &K, new: &K) -> Option<Write> {
        let (old_value, new_value) = (value(old), value(new));
        let status = difference(&old_value["status"], &new_value["status"])?;
        let mut write =
            Write::merge::<K>(&Key::of(old), json!({ "metadata": { "uid": old.metadata().uid }, "status": status }));
        write.request.subresource = Some("status".into());
        Some(write)
    }

    /// The same for a status with several writers: refused if the object has changed since `old`.
    pub fn shared_status<K: Typed>(old: &K, new: &K) -> Option<Write> {
        let mut write = Write::status(old, new)?;
        let revision = old.metadata().resource_version.clone();
        write.request.body = write.request.body.map(|patch| locked(patch, revision));
        Some(write)
    }

    pub fn merge<K: Typed>(key: &Key, patch: Value) -> Write {
        Write::patch(K::resource(), key, patch)
    }

    /// A merge patch on an object of any kind.
    pub fn patch(resource: String, key: &Key, patch: Value) -> Write {
        Write::new(Request {
            verb: Verb::Patch,
            resource,
            namespace: key.namespace().map(str::to_owned),
            name: Some(key.name.clone()),
            body: Some(patch),
            options: Options { patch_type: Some(PatchType::Merge), ..Options::default() },
            ..Request::default()
        })
    }

    /// Deletes exactly this object.
    pub fn delete<K: Typed>(object: &K) -> Write {
        Write::remove(K::resource(), &Key::of(object), object.metadata().uid.clone())
    }

    /// Deletes an object of any kind; with `uid` only that one.
    pub fn remove(resource: String, key: &Key, uid: Option<String>) -> Write {
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None });
        Write::new(Request {
            verb: Verb::Delete,
            resource,
            namespace: key.namespace().map(str::to_owned),
            name: Some(key.name.clone()),
            options: Options { preconditions, ..Options::default() },
            ..Request::default()
        })
    }

    /// How many times this is written for one key at a time, at most `most`: all of them are in memory, and the manifest's author
    /// chooses their size.
    pub fn burst(&self, most: usize) -> usize {
        (BURST_BYTES / self.size().max(1)).clamp(1, most)
    }

    /// The size of its object.
    pub fn size(&self) -> usize {
        self.request.body.as_ref().map_or(0, length)
    }

    pub fn guarded(mut self, guard: Guard) -> Write {
        self.guards.push(guard);
        self
    }
    pub fn done(mut self, note: Note) -> Write {
        self.done.push(note);
        self
    }
    pub fn failed(mut self, note: Note) -> Write {
        self.failed = Some(note);
        self
    }
    pub fn reported(mut self, reason: &'static str) -> Write {
        self.reported = Some(reason);
        self
    }
    pub fn never_passes(mut self) -> Write {
        self.never_passes = true;
        self
    }
}

/// An object as JSON, with its `apiVersion` and `kind`.
fn value<K: Typed>(object: &K) -> Value {
    // The invariant: API types have string keys and no failing serializers.
    serde_json::to_value(object).expect("API types are representable in JSON")
}

fn locked(mut patch: Value, resource_version: Option<String>) -> Value {
    patch["metadata"]["resourceVersion"] = resource_version.into();
    patch
}
