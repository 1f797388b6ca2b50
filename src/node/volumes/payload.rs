//! What all volumes made of API objects share: how keys become files, and how many bytes a Pod's may show. Pure.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
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

/// The most bytes that all volumes of a Pod show of API objects: each such object has at most 1 MiB, but `items` may show a key
/// of one as often as they like, in as many folders, and all Pods' files are in one tmpfs. A file counts as whole pages, and so
/// does each folder on the way to it.
pub(super) const SHOWN: usize = 64 << 20;

/// What is left for a Pod's files.
#[derive(Debug)]
pub struct Room(usize);

impl Default for Room {
    fn default() -> Room {
        Room(SHOWN)
    }
}

impl Room {
    /// For a file of so many bytes at this path.
    ///
    /// # Errors
    ///
    /// The path is too deep, or there is not so much left.
    pub fn take(&mut self, path: &Path, bytes: usize) -> Result<()> {
        let depth = path.iter().count();
        if depth > DEEPEST {
            return Err(VolumeError::TooDeep(depth));
        }
        let pages = bytes.div_ceil(PAGE).max(1) + depth.saturating_sub(1);
        let left = self.0.checked_sub(pages * PAGE);
        self.0 = left.ok_or(VolumeError::TooLarge)?;
        Ok(())
    }
}

/// Picks `items` (all keys, if there are none) out of `data`.
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

/// Picks out of the object of that name, which may lack where the reference is optional. `kind`: what the object is called
/// where it lacks, and its keys where one lacks.
///
/// # Errors
///
/// The object or a key lacks that is not optional, or the Pod's files have no room left.
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
