//! Common parts of volumes made of API objects: how keys become files, and the size limit of a Pod's files.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::api::core::v1::KeyToPath;

use super::{
    DEEPEST,
    atomic::{File, PAGE, Payload},
    error::{Result, VolumeError},
};

const DEFAULT_MODE: i32 = 0o644;

/// A source's mode: its own, the volume's, 0644.
pub fn mode(own: Option<i32>, default: Option<i32>) -> u32 {
    own.or(default).unwrap_or(DEFAULT_MODE) as u32 & 0o7777
}

/// Maximum bytes of API objects in all volumes of a Pod: each object has at most 1 MiB, but `items` may repeat a key any number of
/// times, in as many folders, and all Pods' files share one tmpfs. Files and folders count as whole pages.
pub(super) const SHOWN: usize = 64 << 20;

/// The size of each volume's files, by Pod uid and volume name. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Rooms(Arc<Mutex<HashMap<String, BTreeMap<String, usize>>>>);

impl Rooms {
    /// For the new content of a Pod's volume. Other volumes of the Pod may be written at the same time: it gets what they leave.
    pub fn of(&self, pod: &str, volume: &str) -> Room {
        let had = self.lock().entry(pod.to_owned()).or_default().insert(volume.to_owned(), 0).unwrap_or(0);
        Room { rooms: self.clone(), pod: pod.to_owned(), volume: volume.to_owned(), had }
    }

    /// The Pod's volumes are gone.
    pub fn forget(&self, pod: &str) {
        self.lock().remove(pod);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, BTreeMap<String, usize>>> {
        // Each change is atomic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A volume's share of its Pod's limit: on drop the previous value is restored, unless it is [kept](Room::keep).
#[derive(Debug)]
pub struct Room {
    rooms: Rooms,
    pod: String,
    volume: String,
    had: usize,
}

impl Default for Room {
    fn default() -> Room {
        Rooms::default().of("", "")
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // The Pod may be forgotten by now.
        if let Some(taken) = self.rooms.lock().get_mut(&self.pod).and_then(|volumes| volumes.get_mut(&self.volume)) {
            *taken = self.had;
        }
    }
}

impl Room {
    /// Keeps the reservation: the volume shows these files.
    pub fn keep(mut self) {
        let taken = self.rooms.lock().get(&self.pod).and_then(|volumes| volumes.get(&self.volume)).copied();
        self.had = taken.unwrap_or(0);
    }

    /// Reserves space for a file of this size at this path.
    ///
    /// # Errors
    ///
    /// The path is too deep, or the limit is exceeded.
    pub fn take(&mut self, path: &Path, bytes: usize) -> Result<()> {
        let depth = path.iter().count();
        if depth > DEEPEST {
            return Err(VolumeError::TooDeep(depth));
        }
        let pages = bytes.div_ceil(PAGE).max(1) + depth.saturating_sub(1);
        let mut rooms = self.rooms.lock();
        let volumes = rooms.entry(self.pod.clone()).or_default();
        if volumes.values().sum::<usize>() + pages * PAGE > SHOWN {
            return Err(VolumeError::TooLarge(SHOWN));
        }
        *volumes.entry(self.volume.clone()).or_default() += pages * PAGE;
        Ok(())
    }
}

/// Selects `items` (all keys, if empty) from `data`.
fn pick(
    data: &BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    default_mode: Option<i32>,
    optional: bool,
    kind: &'static str,
    room: &mut Room,
) -> Result<Payload> {
    let items = items.unwrap_or_default();
    if items.is_empty() {
        let whole = |(key, data): (&String, &Vec<u8>)| {
            room.take(Path::new(key), data.len())?;
            Ok((PathBuf::from(key), File { data: data.clone(), mode: mode(None, default_mode), uid: None }))
        };
        return data.iter().map(whole).collect();
    }
    let mut payload = Payload::new();
    for item in items {
        match data.get(&item.key) {
            Some(bytes) => {
                room.take(Path::new(&item.path), bytes.len())?;
                let file = File { data: bytes.clone(), mode: mode(item.mode, default_mode), uid: None };
                payload.insert(PathBuf::from(&item.path), file);
            }
            None if optional => {}
            None => return Err(VolumeError::NoSuchKey { kind, key: item.key.clone() }),
        }
    }
    Ok(payload)
}

/// Selects from the object of that name, which may be missing if the reference is optional. `kind`: its kind in error messages.
///
/// # Errors
///
/// A required object or key is missing, or the Pod's files exceed their limit.
pub fn found(
    data: Option<BTreeMap<String, Vec<u8>>>,
    items: Option<&[KeyToPath]>,
    default_mode: Option<i32>,
    optional: Option<bool>,
    (kind, keys): (&'static str, &'static str),
    name: &str,
    room: &mut Room,
) -> Result<Payload> {
    let optional = optional == Some(true);
    match data {
        Some(data) => pick(&data, items, default_mode, optional, keys, room),
        None if optional => Ok(Payload::new()),
        None => Err(VolumeError::NotFound { kind, name: name.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_volumes_of_a_pod_share_its_room_and_one_that_fails_has_what_it_had() {
        let (rooms, half) = (Rooms::default(), SHOWN / 2);
        let taken = |pod: &str, volume: &str, bytes: usize| {
            let mut room = rooms.of(pod, volume);
            room.take(Path::new("f"), bytes).map(|()| room)
        };
        let first = taken("a", "first", half).unwrap();
        taken("a", "second", half + 1).unwrap_err();
        taken("a", "second", half).unwrap().keep();
        taken("b", "first", SHOWN).unwrap().keep();
        // It was never shown.
        drop(first);
        taken("a", "third", half).unwrap().keep();
        // A volume's new files replace its old ones.
        taken("a", "third", half + 1).unwrap_err();
        taken("a", "fourth", 1).unwrap_err();
        taken("a", "third", 1).unwrap().keep();
        taken("a", "fourth", 1).unwrap();
        rooms.forget("a");
        taken("a", "fourth", SHOWN).unwrap();
    }
}
