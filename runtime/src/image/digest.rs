//! sha256 digests: of bytes, of streams, and the chainIDs that name stacked layers.

use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::{ImageError, Result};

/// `sha256:<hex>` of some bytes.
pub(super) fn sha256(bytes: &[u8]) -> String {
    text(&Sha256::digest(bytes))
}

fn text(hash: &[u8]) -> String {
    use std::fmt::Write;
    hash.iter().fold(String::from("sha256:"), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Whether `text` is a well-formed sha256 digest; only those are used in paths.
pub(super) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
}

/// Rejects digests that are not well-formed sha256, before any use.
pub(super) fn check(digest: &str) -> Result<()> {
    if is_digest(digest) { Ok(()) } else { Err(ImageError::Unsupported(format!("unsupported digest {digest:?}"))) }
}

pub(super) fn verify(what: &str, expected: &str, actual: &str) -> Result<()> {
    if expected == actual {
        return Ok(());
    }
    Err(ImageError::DigestMismatch { what: what.into(), expected: expected.into(), actual: actual.into() })
}

/// The hex digits of a digest that `is_digest` accepts.
pub(super) fn hex_of(digest: &str) -> &str {
    digest.rsplit(':').next().unwrap_or(digest)
}

/// The digest that a file is named after.
pub(super) fn of_path(path: &Path) -> String {
    format!("sha256:{}", path.file_name().unwrap_or_default().to_string_lossy())
}

/// The chainID of each layer, from itself and all below it (OCI image spec, "Layer ChainID").
pub(super) fn chain_ids(diff_ids: &[String]) -> Vec<String> {
    let mut chain: Vec<String> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        chain.push(chain_id(chain.last().map(String::as_str), diff_id));
    }
    chain
}

pub(super) fn chain_id(below: Option<&str>, diff_id: &str) -> String {
    below.map_or_else(|| diff_id.to_owned(), |below| sha256(format!("{below} {diff_id}").as_bytes()))
}

/// An incremental sha256.
#[derive(Clone, Default)]
pub(super) struct Hasher(Sha256);

impl Hasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> String {
        text(&self.0.finalize())
    }
}

/// Hashes and counts what is read through it; fails beyond `limit` bytes.
pub(super) struct HashingReader<R> {
    inner: R,
    hasher: Hasher,
    count: u64,
    limit: u64,
}

impl<R: Read> HashingReader<R> {
    pub(super) fn new(inner: R, limit: u64) -> HashingReader<R> {
        HashingReader { inner, hasher: Hasher::default(), count: 0, limit }
    }

    /// Reads the rest (padding after a tar's end counts too) and returns digest and length.
    pub(super) fn finish(mut self) -> io::Result<(String, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((self.hasher.finish(), self.count))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count += read as u64;
        if self.count > self.limit {
            let limit = self.limit;
            return Err(ImageError::Invalid(format!("larger than the {limit} bytes that are allowed")).into());
        }
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_ids_follow_the_spec() {
        let ids: Vec<String> = ["a", "b", "c"].iter().map(|t| sha256(t.as_bytes())).collect();
        let chain = chain_ids(&ids);
        assert_eq!(chain[0], ids[0]);
        assert_eq!(chain[1], sha256(format!("{} {}", ids[0], ids[1]).as_bytes()));
        assert_eq!(chain[2], sha256(format!("{} {}", chain[1], ids[2]).as_bytes()));
    }

    #[test]
    fn only_wellformed_digests_pass() {
        assert!(is_digest(&sha256(b"")));
        for bad in ["", "sha256:", "sha256:../../etc/passwd", "sha512:00", &"sha256:".to_string().repeat(9)] {
            assert!(!is_digest(bad), "{bad}");
        }
    }

    #[test]
    fn a_reader_past_its_limit_fails() {
        let (digest, count) = HashingReader::new(&b"abc"[..], 3).finish().unwrap();
        assert_eq!((digest, count), (sha256(b"abc"), 3));
        assert!(HashingReader::new(&b"abcd"[..], 3).finish().is_err());
    }
}
