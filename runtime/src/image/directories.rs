//! State of a layer's directories until the end of unpacking: their attributes, and which of them are opaque.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::ImageError;
use super::attributes::Attributes;

/// Limit for the total memory.
const MAX_HELD: usize = 64 << 20;
/// Overhead of a path or an xattr besides its text.
const OVERHEAD: usize = 128;

/// Directories by canonical path.
#[derive(Default)]
pub(super) struct Directories {
    attributes: BTreeMap<Vec<u8>, Attributes>,
    opaque: BTreeSet<Vec<u8>>,
    /// Total bytes of both.
    held: usize,
}

fn size(path: &[u8], attributes: &Attributes) -> usize {
    let xattrs = attributes.xattrs.iter().map(|(name, value)| name.len() + value.len() + OVERHEAD);
    path.len() + OVERHEAD + xattrs.sum::<usize>()
}

impl Directories {
    /// Stores a directory's attributes for the end, replacing earlier ones. Fails above the limit.
    pub(super) fn remember(&mut self, path: Vec<u8>, attributes: Attributes) -> io::Result<()> {
        if let Some((path, before)) = self.attributes.remove_entry(&path) {
            self.held -= size(&path, &before);
        }
        self.hold(size(&path, &attributes))?;
        self.attributes.insert(path, attributes);
        Ok(())
    }

    /// Records that a directory is opaque: hides the contents of the layers below.
    pub(super) fn hide_below(&mut self, path: &[u8]) -> io::Result<()> {
        if !self.opaque.contains(path) {
            self.hold(path.len() + OVERHEAD)?;
            self.opaque.insert(path.to_vec());
        }
        Ok(())
    }

    fn hold(&mut self, bytes: usize) -> io::Result<()> {
        if self.held + bytes > MAX_HELD {
            return Err(ImageError::Invalid("too many directories and attributes".into()).into());
        }
        self.held += bytes;
        Ok(())
    }

    /// Whether a directory above `path` is opaque.
    pub(super) fn is_hidden(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        let mut above = std::iter::once(0).chain(ends).map(|end| &path[..end]);
        !path.is_empty() && !self.opaque.is_empty() && above.any(|above| self.opaque.contains(above))
    }

    /// Drops a removed directory with everything below. Returns the number of paths visited: only the dropped ones, however many
    /// others there are.
    pub(super) fn forget(&mut self, path: &[u8]) -> usize {
        // The byte after `/` bounds the names that begin with `path/`; the directory itself sorts before them, and names in between
        // (`path-x`) do not belong to it.
        let below = [path, b"/"].concat()..[path, b"0"].concat();
        let itself = path.to_vec()..[path, b"\0"].concat();
        let ranges = [itself, below];
        let known = ranges.iter().flat_map(|range| self.attributes.range(range.clone()).map(|(path, _)| path.clone()));
        let known: Vec<Vec<u8>> = known.collect();
        let opaque: Vec<Vec<u8>> = ranges.iter().flat_map(|range| self.opaque.range(range.clone()).cloned()).collect();
        for path in &known {
            let attributes = self.attributes.remove(path);
            self.held -= attributes.map_or(0, |attributes| size(path, &attributes));
        }
        for path in &opaque {
            self.opaque.remove(path);
            self.held -= path.len() + OVERHEAD;
        }
        known.len() + opaque.len()
    }

    pub(super) fn attributes(&self) -> impl Iterator<Item = (&Vec<u8>, &Attributes)> {
        self.attributes.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgetting_looks_at_what_goes_and_at_nothing_else() {
        let mut directories = Directories::default();
        for number in 0..1000 {
            directories.remember(format!("d{number}").into_bytes(), Attributes::plain()).unwrap();
            directories.hide_below(format!("o{number}").as_bytes()).unwrap();
        }
        let held = directories.held;
        let tree: [&[u8]; 4] = [b"a", b"a/b", b"a/b/c", b"a/z"];
        let beside: [&[u8]; 4] = [b"a!", b"a-b", b"a0", b"aa/b"];
        for path in tree.iter().chain(&beside) {
            directories.remember(path.to_vec(), Attributes::plain()).unwrap();
        }
        directories.hide_below(b"a/b").unwrap();
        assert_eq!(directories.forget(b"x"), 0, "nothing is there");
        assert_eq!(directories.forget(b"a"), 5);
        assert!(tree.iter().all(|path| !directories.attributes.contains_key(*path)));
        assert!(beside.iter().all(|path| directories.attributes.contains_key(*path)));
        assert!(!directories.is_hidden(b"a/b/c") && directories.is_hidden(b"o7/c/d") && !directories.is_hidden(b"o7"));
        assert_eq!(beside.iter().map(|path| directories.forget(path)).sum::<usize>(), 4);
        assert_eq!(directories.held, held);
        directories.hide_below(b"").unwrap();
        assert!(directories.is_hidden(b"x") && !directories.is_hidden(b""));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut directories = Directories::default();
        let attributes = |bytes| Attributes { xattrs: vec![("user.a".into(), vec![0; bytes])], ..Attributes::plain() };
        let kept = (0..4).filter(|n| directories.remember(vec![b'a' + n], attributes(MAX_HELD / 4)).is_ok()).count();
        assert_eq!(kept, 3);
        // Replacing needs no more memory; many small ones count individually.
        (0..9).for_each(|_| directories.remember(b"a".to_vec(), attributes(MAX_HELD / 4)).unwrap());
        let crowd =
            Attributes { xattrs: vec![(String::new(), Vec::new()); MAX_HELD / OVERHEAD], ..Attributes::plain() };
        assert!(Directories::default().remember(b"a".to_vec(), crowd).is_err());
    }
}
