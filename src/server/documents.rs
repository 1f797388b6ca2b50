//! Documents about the kinds (OpenAPI, discovery, `rpc.discover`): anyone may read them, so each is built once per set of kinds, as
//! a large request, and cached with its compressed form.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::Server;
use super::large::LARGE;
use super::rest::reply;
use podwright_api::kinds::custom::Version;
use podwright_api::{Kind, Status, User};

/// One document.
pub(super) struct Document {
    pub bytes: Bytes,
    /// A hex digest of its content; clients cache by it.
    pub hash: String,
    zipped: OnceCell<Bytes>,
}

impl Document {
    pub fn of(bytes: Bytes) -> Document {
        let hash = Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02X}")).collect();
        Document { bytes, hash, zipped: OnceCell::new() }
    }
}

/// The version of a merged document's sources: the kinds, the APIServices and the collected documents.
pub(super) type Stamp = (u64, u64, u64);

/// The slot of a document that is built, or being built.
struct Slot {
    parts: Vec<Part>,
    made: OnceCell<Arc<Document>>,
}

/// A source of a document: a built-in row never changes; a definition's version is compared by address, which is unique while it is
/// held here.
struct Part(&'static Kind, Option<Arc<Version>>);

impl PartialEq for Part {
    fn eq(&self, other: &Part) -> bool {
        let same = match (&self.1, &other.1) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        std::ptr::eq(self.0, other.0) && same
    }
}

/// The documents by name: of each only the newest is kept.
#[derive(Default)]
pub struct Slots(Mutex<HashMap<String, Arc<Slot>>>);

/// Those to which no definition contributes: there is one of each, whichever server of the process is asked.
static BUILT_IN: LazyLock<Slots> = LazyLock::new(Slots::default);

/// The most documents that are kept: groups of definitions come and go.
const KEPT: usize = 512;

impl Slots {
    fn slot(&self, of: &str, parts: Vec<Part>) -> Arc<Slot> {
        let mut slots = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if slots.len() > KEPT {
            slots.clear();
        }
        match slots.get(of) {
            Some(slot) if slot.parts == parts => slot.clone(),
            _ => {
                let slot = Arc::new(Slot { parts, made: OnceCell::new() });
                slots.insert(of.to_owned(), slot.clone());
                slot
            }
        }
    }
}

impl Server {
    /// The document of this name about these kinds; `make` builds it if necessary.
    pub(super) async fn document(
        &self,
        of: &str,
        kinds: &[&'static Kind],
        user: &User,
        make: impl FnOnce() -> Bytes,
    ) -> Result<Arc<Document>, Status> {
        let parts: Vec<Part> = kinds.iter().map(|kind| Part(kind, kind.custom())).collect();
        let is_custom = parts.iter().any(|part| part.1.is_some());
        let slot = if is_custom { &self.documents } else { &BUILT_IN }.slot(of, parts);
        if let Some(made) = slot.made.get() {
            return Ok(made.clone());
        }
        let _place = self.large.enter_part(user, LARGE).await?;
        let making = slot.made.get_or_init(|| async { Arc::new(Document::of(make())) });
        Ok(self.large.run(user, LARGE, making).await.clone())
    }

    /// The document of this name that includes other servers' resources, for the sources in `stamp`.
    pub(super) async fn document_of(
        &self,
        of: &str,
        stamp: Stamp,
        user: &User,
        make: impl FnOnce() -> Bytes,
    ) -> Result<Arc<Document>, Status> {
        if let Some(made) = self.aggregator.document(of, stamp) {
            return Ok(made);
        }
        let _place = self.large.enter_part(user, LARGE).await?;
        let making = async { self.aggregator.keep(of, stamp, Document::of(make())) };
        Ok(self.large.run(user, LARGE, making).await)
    }

    /// A document compressed for clients that accept gzip.
    pub(super) async fn zipped(&self, document: &Document, user: &User) -> Result<Bytes, Status> {
        if let Some(zipped) = document.zipped.get() {
            return Ok(zipped.clone());
        }
        let size = document.bytes.len();
        let _place = self.large.enter_part(user, size).await?;
        let zipping = document.zipped.get_or_init(|| async { reply::gzip(&document.bytes) });
        Ok(self.large.run(user, size, zipping).await.clone())
    }
}
