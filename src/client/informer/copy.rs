//! An informer's copy, updated by a reflector: decodes objects, and stores them if there is room.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Key, Shared, State, Undecodable, room};
use crate::reflector::{LocalCopy, Name, Named};
use crate::{Typed, blame};
use podwright_api::{Status, request::EventKind};

/// As much is kept and told of why an object cannot be decoded.
const LONGEST_WHY: usize = 512;
/// How often it is told of what others serve.
const TELL: Duration = Duration::from_secs(10);

/// An object as the server has it.
pub(super) enum Seen<K> {
    Readable(Key, K),
    Unreadable(Undecodable),
}

impl<K: Typed> Seen<K> {
    pub fn key(&self) -> &Key {
        match self {
            Seen::Readable(key, _) => key,
            Seen::Unreadable(object) => &object.key,
        }
    }

    /// Its approximate size in memory.
    pub fn size(&self) -> usize {
        match self {
            Seen::Readable(_, object) => room::size(object.metadata()),
            Seen::Unreadable(object) => {
                let Undecodable { key, uid, resource_version, object, why } = object;
                let names = [&key.namespace, &key.name, uid, resource_version, why];
                object.len() + 2 * names.into_iter().map(String::len).sum::<usize>()
            }
        }
    }

    /// Its uid and resourceVersion.
    pub fn version(&self) -> (&str, &str) {
        match self {
            Seen::Readable(_, object) => version(object),
            Seen::Unreadable(object) => (&object.uid, &object.resource_version),
        }
    }
}

pub(super) fn version<K: Typed>(object: &K) -> (&str, &str) {
    let meta = object.metadata();
    (meta.uid.as_deref().unwrap_or_default(), meta.resource_version.as_deref().unwrap_or_default())
}

impl<K: Typed> LocalCopy for Shared<K> {
    fn revision(&self) -> Option<String> {
        self.change(|state| state.resource_version.clone())
    }

    fn replace(&self, objects: &[Box<RawValue>], revision: String) -> Result<(), Status> {
        if objects.len() > self.most {
            return Err(self.full());
        }
        let (objects, sizes) = self.decode_all(objects)?;
        let fits = self.change(|state| state.held.as_mut().is_none_or(|held| held.replace(sizes)));
        if fits == Some(false) {
            return Err(self.full());
        }
        self.change(|state| {
            state.replace(objects);
            state.resource_version = revision;
            state.is_full = false;
        });
        self.synced.set(1);
        Ok(())
    }

    fn reached(&self, revision: String) {
        self.change(|state| state.resource_version = revision);
    }

    fn changed(&self, kind: EventKind, object: &[u8]) -> Result<(), Status> {
        let seen = self.decode(object)?;
        let size = if kind == EventKind::Deleted { 0 } else { seen.size() };
        let fits = |state: &mut State<K>| {
            let (count, known) = state.knows(seen.key());
            (size == 0 || known || count < self.most)
                && state.held.as_mut().is_none_or(|held| held.set(seen.key(), size))
        };
        if self.change(fits) == Some(false) {
            return Err(self.full());
        }
        self.change(|state| {
            state.resource_version = seen.version().1.to_owned();
            match kind {
                EventKind::Deleted => state.remove(seen.key().clone()),
                _ => state.set(seen),
            }
        });
        Ok(())
    }
}

impl<K: Typed> Shared<K> {
    /// All objects, and how much each takes where there is a bound: what has no room is not decoded to its end.
    fn decode_all(&self, objects: &[Box<RawValue>]) -> Result<(Vec<Seen<K>>, HashMap<Key, usize>), Status> {
        /// How much more is decoded before it is asked again whether there is room.
        const STEP: usize = 1 << 20;
        let (mut all, mut sizes) = (Vec::with_capacity(objects.len()), HashMap::new());
        let (mut taken, mut asked) = (0, 0);
        for object in objects {
            let seen = self.decode(object.get().as_bytes())?;
            if self.most != usize::MAX {
                let size = seen.size();
                sizes.insert(seen.key().clone(), size);
                taken += size;
            }
            if taken - asked > STEP {
                asked = taken;
                let fits = |state: &mut State<K>| state.held.as_ref().is_none_or(|held| held.room.fits(taken));
                if self.change(fits) == Some(false) {
                    return Err(self.full());
                }
            }
            all.push(seen);
        }
        Ok((all, sizes))
    }

    /// There is more than is kept: it is listed anew, later.
    fn full(&self) -> Status {
        self.change(|state| state.is_full = true);
        Status::expired(format!("there are more than {} {}", self.most, self.resource))
    }
    /// Runs `f` on the state, unless the informer has ended.
    fn change<T>(&self, f: impl FnOnce(&mut State<K>) -> T) -> Option<T> {
        let mut state = self.state.write().unwrap_or_else(|p| p.into_inner());
        (!state.ended).then(|| f(&mut state))
    }

    /// Decodes an object; one that this view cannot decode is reported as such: continuing without it is better than never seeing
    /// new objects of its kind.
    fn decode(&self, bytes: &[u8]) -> Result<Seen<K>, Status> {
        match serde_json::from_slice::<K>(bytes) {
            Ok(mut object) => {
                // Managed fields are not needed here, and are often half of an object.
                object.metadata_mut().managed_fields = None;
                Ok(Seen::Readable(Key::of(&object), object))
            }
            Err(why) => self.undecodable(bytes, &why).map(Seen::Unreadable),
        }
    }

    /// Whether it is logged what cannot be decoded: of what others serve now and then.
    fn may_tell(&self) -> bool {
        if self.most == usize::MAX {
            return true;
        }
        let mut told = self.told.lock().unwrap_or_else(|p| p.into_inner());
        let is_due = told.is_none_or(|told| told.elapsed() >= TELL);
        if is_due {
            *told = Some(Instant::now());
        }
        is_due
    }

    fn undecodable(&self, bytes: &[u8], why: &serde_json::Error) -> Result<Undecodable, Status> {
        // What was not expected is quoted, and may be all of it.
        let mut why = format!("{}: {why}", blame::field(bytes, why));
        why.truncate(why.floor_char_boundary(LONGEST_WHY));
        let Name { namespace, name, uid, resource_version } = Named::read(bytes)?;
        let key = Key::new(namespace, name);
        if self.may_tell() {
            tracing::error!(resource = self.resource, %key, "failed to decode an object: {why}");
        }
        let object = if self.keep_undecodable { Bytes::copy_from_slice(bytes) } else { Bytes::new() };
        Ok(Undecodable { key, uid, resource_version, object, why })
    }
}
