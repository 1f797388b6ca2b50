//! A fingerprint of the names and kinds in a layer's top folder. Detects an emptied layer at the cost of reading one folder once.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};
use std::{fs, io};

use sha2::{Digest, Sha256};

use super::digest::sha256;
use super::lock::lock;

/// Maximum names held at a time; a layer may have millions, and many Pods may ask at once.
const HELD: usize = 512;
/// Number of cached fingerprints of larger layers.
const KNOWN: usize = 1024;
/// A folder changed this recently may change again within the same clock tick.
const SETTLED: Duration = Duration::from_secs(2);

/// Changes when names are added or removed: device, inode, change time.
type Stamp = (u64, u64, i64, i64);

/// Cached fingerprints; of those slow to compute, the most recently used.
#[derive(Default)]
pub(super) struct Tops(Mutex<VecDeque<(PathBuf, Stamp, String)>>);

impl Tops {
    /// The fingerprint of the layer in this folder. Fails if it cannot be read.
    pub(super) fn of(&self, root: &Path) -> io::Result<String> {
        self.at(root, SystemTime::now())
    }

    fn at(&self, root: &Path, now: SystemTime) -> io::Result<String> {
        let found = fs::symlink_metadata(root)?;
        let stamp = (found.dev(), found.ino(), found.ctime(), found.ctime_nsec());
        {
            let mut known = lock(&self.0);
            if let Some(place) = known.iter().position(|(path, at, _)| path == root && *at == stamp) {
                let top = known.remove(place);
                known.extend(top.clone());
                return top.map(|(_, _, top)| top).ok_or_else(|| io::ErrorKind::NotFound.into());
            }
        }
        let top = read(root)?;
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(stamp.2).unwrap_or(0));
        let is_settled = now.duration_since(changed).is_ok_and(|since| since >= SETTLED);
        if top.starts_with(MANY) && is_settled {
            self.remember(root, stamp, &top);
        }
        Ok(top)
    }

    /// Evicts the least recently used one.
    fn remember(&self, root: &Path, stamp: Stamp, top: &str) {
        let mut known = lock(&self.0);
        known.retain(|(path, ..)| path != root);
        if known.len() >= KNOWN {
            known.pop_front();
        }
        known.push_back((root.to_owned(), stamp, top.to_owned()));
    }
}

/// Whether a layer's fingerprint matches the stored one.
pub(super) fn agree(noted: &str, top: &str) -> bool {
    // One being created, or created by an earlier version, has none stored; an earlier version stored a hash of all names, however
    // many.
    noted.is_empty() || noted == top || (top.starts_with(MANY) && !noted.starts_with(MANY))
}

/// Prefix for a folder with more names than are held.
const MANY: &str = "many:";

fn read(root: &Path) -> io::Result<String> {
    let mut names = Vec::new();
    let mut many: Option<Sum> = None;
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = line(&entry.file_name(), entry.file_type()?.is_dir());
        match &mut many {
            Some(sum) => sum.add(&name),
            None if names.len() < HELD => names.push(name),
            None => {
                let sum = many.insert(Sum::default());
                names.drain(..).chain([name]).for_each(|name| sum.add(&name));
            }
        }
    }
    names.sort();
    Ok(many.map_or_else(|| sha256(&names.concat()), |sum| sum.text()))
}

fn line(name: &OsStr, is_dir: bool) -> Vec<u8> {
    let mut line = name.as_encoded_bytes().to_vec();
    line.push(if is_dir { b'/' } else { b'\0' });
    line
}

/// Independent of the names' order.
#[derive(Default)]
struct Sum {
    names: u64,
    words: [u64; 4],
}

impl Sum {
    fn add(&mut self, name: &[u8]) {
        self.names += 1;
        let hash = Sha256::digest(name);
        for (word, bytes) in self.words.iter_mut().zip(hash.chunks_exact(8)) {
            *word = bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)).wrapping_add(*word);
        }
    }

    fn text(&self) -> String {
        let Sum { names, words: [a, b, c, d] } = self;
        format!("{MANY}{names}:{a:016x}{b:016x}{c:016x}{d:016x}")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn folder(names: impl Iterator<Item = usize>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        names.for_each(|n| drop(File::create(dir.path().join(n.to_string())).unwrap()));
        dir
    }

    #[test]
    fn tops_tell_what_is_there_however_many_names_and_in_whatever_order() {
        let tops = Tops::default();
        for most in [3, HELD, HELD + 1, 3 * HELD] {
            let (one, other) = (folder(0..most), folder((0..most).rev()));
            let top = tops.of(one.path()).unwrap();
            assert_eq!(top, tops.of(other.path()).unwrap());
            assert_eq!(top.starts_with(MANY), most > HELD, "{top}");
            assert!(top.len() < 128, "{top}");
            fs::remove_file(one.path().join("1")).unwrap();
            let less = tops.of(one.path()).unwrap();
            assert!(!agree(&top, &less) && agree(&top, &top));
            fs::create_dir(one.path().join("1")).unwrap();
            assert!(!agree(&top, &tops.of(one.path()).unwrap()), "a folder in a file's place");
        }
        // As stored by an earlier version, and for an emptied folder.
        let (many, none) = (folder(0..HELD + 1), folder(0..0));
        let noted = sha256(b"all names");
        assert!(agree(&noted, &tops.of(many.path()).unwrap()) && agree("", &noted));
        assert!(!agree(&noted, &tops.of(none.path()).unwrap()));
    }

    #[test]
    fn tops_that_take_long_are_read_once_and_no_more_than_so_many_remembered() {
        let (tops, many) = (Tops::default(), folder(0..HELD + 1));
        let top = tops.of(many.path()).unwrap();
        assert!(lock(&tops.0).is_empty(), "it may be changed within this very tick");
        let later = SystemTime::now() + 2 * SETTLED;
        let of = || tops.at(many.path(), later).unwrap();
        assert_eq!(of(), top);
        lock(&tops.0)[0].2 = "many:remembered".to_owned();
        for n in 0..2 * KNOWN {
            assert_eq!(of(), "many:remembered");
            tops.remember(Path::new(&n.to_string()), (0, 0, 0, 0), "");
            assert!(lock(&tops.0).len() <= KNOWN);
        }
        File::create(many.path().join("another")).unwrap();
        assert!(of().starts_with(&format!("many:{}:", HELD + 2)));
    }
}
