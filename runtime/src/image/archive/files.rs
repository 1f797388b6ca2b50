//! An archive's files, extracted below `tmp/` under generated names, and looked up by their names in the archive.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::digest::{self, HashingReader};
use super::super::disk::Inner;
use super::super::folders::Temp;
use super::super::limits::{Allowance, MAX_DOCUMENT, MAX_DOCUMENTS, MAX_NAMES};
use super::super::tarball::{Kind, TarReader, lossy};
use super::super::unpack::decompress;
use super::super::view::parts;
use super::super::{ImageError, Options, Result};

/// Where an OCI layout stores its content, by digest.
const BLOBS: &str = "blobs/sha256/";

#[derive(Default)]
pub(super) struct Files {
    files: HashMap<String, Stored>,
    /// Older docker archives link equal layers to each other.
    links: HashMap<String, String>,
    /// Total bytes of documents read.
    documents: Cell<u64>,
    /// Removed with this struct.
    _dir: Option<Temp>,
}

pub(super) struct Stored {
    path: PathBuf,
    pub digest: String,
    pub size: u64,
}

impl Files {
    pub fn read(inner: &Arc<Inner>, archive: impl Read, allowance: &Arc<Allowance>) -> Result<Files> {
        let dir = inner.temp("archive");
        fs::create_dir(dir.path()).map_err(|e| ImageError::io("mkdir", dir.path(), e))?;
        let mut files = Files::default();
        let filled = files.fill(dir.path(), archive, &inner.options, allowance);
        filled.map_err(|e| ImageError::io("read", Path::new("archive"), e))?;
        Ok(Files { _dir: Some(dir), ..files })
    }

    fn fill(
        &mut self,
        dir: &Path,
        archive: impl Read,
        options: &Options,
        allowance: &Arc<Allowance>,
    ) -> io::Result<()> {
        // An archive holds several layers, so a multiple of a layer's limit is plenty.
        let limit = options.max_layer_bytes.saturating_mul(4);
        let reader = HashingReader::new(decompress(allowance.packed(archive))?, limit);
        let mut tar = TarReader::new(BufReader::new(allowance.unpacked(reader)));
        let (mut count, mut held) = (0, 0);
        while let Some(entry) = tar.next_entry()? {
            count += 1;
            allowance.entry(entry.headers)?;
            if entry.size > limit {
                return Err(ImageError::Invalid(format!("{} has {} bytes", lossy(&entry.path), entry.size)).into());
            }
            let name = file_name(&entry.path);
            held += name.len() + entry.link.len() + size_of::<Stored>();
            if held > MAX_NAMES {
                return Err(
                    ImageError::Invalid(format!("the names of its files take more than {MAX_NAMES} bytes")).into()
                );
            }
            match entry.kind {
                Kind::File => {
                    // It is hashed completely, including holes.
                    allowance.spend(if entry.is_sparse() { entry.size } else { 0 })?;
                    let path = dir.join(count.to_string());
                    tar.copy_data(&entry, &mut File::create_new(&path)?)?;
                    let (digest, size) = HashingReader::new(File::open(&path)?, u64::MAX).finish()?;
                    self.links.remove(&name);
                    self.files.insert(name, Stored { path, digest, size });
                }
                Kind::Symlink => {
                    let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
                    let target = join_relative(folder, &lossy(&entry.link));
                    self.link(name, target)?;
                }
                Kind::Hardlink => self.link(name, file_name(&entry.link))?,
                _ => {}
            }
        }
        Ok(())
    }

    /// No tool writes links for content-addressed files, which never have two names.
    fn link(&mut self, name: String, target: String) -> Result<()> {
        if name.starts_with(BLOBS) {
            return Err(ImageError::Invalid(format!("{name} is a link in the archive, and has no content of its own")));
        }
        self.files.remove(&name);
        self.links.insert(name, target);
        Ok(())
    }

    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn get(&self, name: &str) -> Option<&Stored> {
        let mut name = name;
        for _ in 0..8 {
            match self.links.get(name) {
                Some(target) => name = target,
                None => return self.files.get(name),
            }
        }
        None
    }

    /// A file by name. A blob of an OCI layout must match its digest.
    pub fn need(&self, name: &str) -> Result<&Stored> {
        let stored = self.get(name).ok_or_else(|| ImageError::Invalid(format!("the archive lacks {name}")))?;
        if let Some(hex) = name.strip_prefix(BLOBS) {
            digest::verify(name, &format!("sha256:{hex}"), &stored.digest)?;
        }
        Ok(stored)
    }

    pub fn open(&self, name: &str) -> Result<File> {
        let stored = self.need(name)?;
        File::open(&stored.path).map_err(|e| ImageError::io("open", &stored.path, e))
    }

    /// Reads a small file. An index may refer to one repeatedly, so the total read is limited, not only the stored size.
    pub fn document(&self, name: &str) -> Result<Vec<u8>> {
        let stored = self.need(name)?;
        if stored.size > MAX_DOCUMENT {
            return Err(ImageError::Invalid(format!("{name} has {} bytes", stored.size)));
        }
        self.documents.set(self.documents.get() + stored.size);
        if self.documents.get() > MAX_DOCUMENTS {
            return Err(ImageError::Invalid(format!("more than {MAX_DOCUMENTS} bytes of manifests and configs")));
        }
        fs::read(&stored.path).map_err(|e| ImageError::io("read", &stored.path, e))
    }
}

/// `./a//b` -> `a/b`
fn file_name(path: &[u8]) -> String {
    parts(path).map(|part| lossy(&part)).collect::<Vec<_>>().join("/")
}

fn join_relative(folder: &str, target: &str) -> String {
    let mut done: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in target.split('/').filter(|p| !p.is_empty() && *p != ".") {
        match part {
            ".." => drop(done.pop()),
            _ => done.push(part),
        }
    }
    done.join("/")
}

/// The path of a digest's content in an OCI layout.
pub(super) fn blob_name(digest: &str) -> Result<String> {
    digest::check(digest)?;
    Ok(format!("{BLOBS}{}", digest::hex_of(digest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_is_what_its_name_says_whatever_leads_there() {
        let stored = |content: &[u8]| Stored { path: "/".into(), digest: digest::sha256(content), size: 1 };
        let named = |content: &[u8]| blob_name(&digest::sha256(content)).unwrap();
        let files = Files {
            files: HashMap::from([
                (named(b"true"), stored(b"true")),
                (named(b"exchanged"), stored(b"another")),
                ("evil".to_owned(), stored(b"evil")),
            ]),
            links: HashMap::from([(named(b"linked"), "evil".to_owned()), ("layer.tar".to_owned(), named(b"true"))]),
            ..Files::default()
        };
        let digest = |name: &str| files.need(name).map(|stored| stored.digest.clone());
        assert_eq!(digest(&named(b"true")).unwrap(), digest::sha256(b"true"));
        assert_eq!(digest("layer.tar").unwrap(), digest::sha256(b"true"));
        for lie in [&b"exchanged"[..], b"linked"] {
            let error = digest(&named(lie)).unwrap_err();
            assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error:?}");
        }
    }
}
