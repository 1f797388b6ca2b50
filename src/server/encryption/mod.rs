//! Encryption at rest: [`Sealed`] is a store between the server and the real one, which encrypts the values of some resources on
//! write and decrypts them on read.
//!
//! [`config`] says what is encrypted with which key, [`seal`] encrypts one value. The store below only ever has ciphertext in its
//! files and backups. A value that cannot be decrypted is an error that names the object, never anything else. In lists and watches
//! it is returned as [`unopened`], so that others remain readable.

use std::fs::File;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::Server;
use podwright_api::Env;
use podwright_store::{
    Asked, Batch, Change, Compare, Entry, Error, Outcome, Page, Range, Revision, Store, Txn, Watch, Write,
};

mod config;
mod seal;

pub use config::Rules;
use config::{Provider, Rule};
use seal::PREFIX;

/// The prefix of all encrypted values, and of no others.
pub(super) use seal::PREFIX as SEALED;

const ROOT: &str = "/registry/";
/// The server's own keys, encrypted like Secrets.
const KEYS: &str = "keys";
const SECRETS: &str = "secrets";
/// The number of entries per page when everything is re-encrypted.
const PAGE: usize = 500;

/// The prefix of a value that could not be decrypted, followed by the reason; no object starts like this.
const UNOPENED: &[u8] = b"\0unopened ";

/// Why a value could not be decrypted, if it is one of these.
pub(super) fn unopened(value: &[u8]) -> Option<String> {
    value.strip_prefix(UNOPENED).map(|why| String::from_utf8_lossy(why).into_owned())
}

/// A store whose values are encrypted by `rules`.
pub(super) struct Sealed {
    below: Arc<dyn Store>,
    rules: Arc<Rules>,
    env: Env,
}

impl Sealed {
    pub fn over(below: Arc<dyn Store>, rules: Arc<Rules>, env: &Env) -> Sealed {
        Sealed { below, rules, env: env.clone() }
    }

    fn rule(&self, key: &str) -> Option<&Rule> {
        let (resource, _) = key.strip_prefix(ROOT)?.split_once('/')?;
        self.rules.of(if resource == KEYS { SECRETS } else { resource })
    }

    fn seal(&self, key: &str, value: Bytes) -> Result<Bytes, Error> {
        match self.rule(key).and_then(|rule| rule.providers.first()) {
            Some(Provider::Key(sealer)) => {
                sealer.seal(key, &value, &self.env).map_err(|why| Error::Io(format!("{key}: {why}")))
            }
            _ => Ok(value),
        }
    }

    fn open(&self, key: &str, value: Bytes) -> Result<Bytes, Error> {
        let providers = self.rule(key).map(|rule| rule.providers.as_slice()).unwrap_or_default();
        if !value.starts_with(PREFIX) {
            let plain = providers.is_empty() || providers.iter().any(|p| matches!(p, Provider::Identity));
            let why = "is not encrypted, and the encryption configuration has no identity provider for it";
            return if plain { Ok(value) } else { Err(Error::Io(format!("{key} {why}"))) };
        }
        let mut keys = providers.iter().filter_map(Provider::key);
        match keys.find(|sealer| sealer.made(&value)) {
            Some(sealer) => sealer.open(key, &value).ok_or_else(|| {
                let (name, provider) = (&sealer.name, sealer.cipher.name);
                Error::Damaged(format!(
                    "{key} does not open with the key {name:?} of {provider}: the key is another one of that name, or the \
                     bytes were changed, or belong to another object"
                ))
            }),
            None => {
                let (provider, name) = seal::told(&value).unwrap_or_default();
                Err(Error::Io(format!(
                    "{key} is encrypted with the key {name:?} of {provider}, which the encryption configuration does not \
                     have for it"
                )))
            }
        }
    }

    fn entry(&self, entry: Entry) -> Result<Entry, Error> {
        let value = self.open(&entry.key, entry.value)?;
        Ok(Entry { value, ..entry })
    }

    /// An entry of a list or watch.
    fn one_of_many(&self, entry: Entry) -> Entry {
        let value = self.open(&entry.key, entry.value);
        Entry { value: value.unwrap_or_else(|why| [UNOPENED, why.to_string().as_bytes()].concat().into()), ..entry }
    }

    fn change(&self, change: Change) -> Change {
        let open = |entry: Option<Entry>| entry.map(|entry| self.one_of_many(entry));
        Change { now: open(change.now), before: open(change.before), ..change }
    }

    fn batch(&self, batch: Batch) -> Batch {
        Batch { changes: batch.changes.into_iter().map(|change| self.change(change)).collect(), ..batch }
    }

    /// Whether a stored value differs from what would be written now.
    fn is_stale(&self, entry: &Entry) -> bool {
        match self.rule(&entry.key).and_then(|rule| rule.providers.first()) {
            Some(Provider::Key(sealer)) => !sealer.made(&entry.value),
            Some(Provider::Identity) => entry.value.starts_with(PREFIX),
            None => false,
        }
    }

    /// Re-encrypts everything not encrypted with the first key, in one transaction each; returns their number. A value that cannot
    /// be decrypted is an error, after all others are done.
    async fn reseal(&self) -> Result<usize, Error> {
        let (mut after, mut count, mut failed) = (None, 0, None);
        loop {
            let range = Range { prefix: ROOT.into(), after: after.take(), limit: PAGE, at: None };
            let page = self.below.list(range).await?;
            for entry in page.entries.iter().filter(|entry| self.is_stale(entry)) {
                let (key, revision) = (entry.key.to_string(), entry.mod_revision);
                let value = match self.open(&entry.key, entry.value.clone()) {
                    Ok(value) => value,
                    Err(why) => {
                        failed = Some(why);
                        continue;
                    }
                };
                let txn = Txn {
                    // A concurrent writer has encrypted it.
                    compares: vec![Compare::Unchanged(key.clone(), revision)],
                    writes: vec![Write::Put(key, value)],
                    ..Txn::default()
                };
                self.commit(txn).await?;
                count += 1;
            }
            match page.entries.last() {
                Some(last) if page.remaining > 0 => after = Some(last.key.to_string()),
                _ => return failed.map_or(Ok(count), Err),
            }
        }
    }
}

#[async_trait]
impl Store for Sealed {
    fn revision(&self) -> Asked<'_, Revision> {
        self.below.revision()
    }
    async fn oldest(&self) -> Result<Revision, Error> {
        self.below.oldest().await
    }
    async fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        self.below.get(key).await?.map(|entry| self.entry(entry)).transpose()
    }
    async fn list(&self, range: Range) -> Result<Page, Error> {
        let page = self.below.list(range).await?;
        let entries = page.entries.into_iter().map(|entry| self.one_of_many(entry)).collect();
        Ok(Page { entries, ..page })
    }
    async fn commit(&self, mut txn: Txn) -> Result<Outcome, Error> {
        for write in &mut txn.writes {
            if let Write::Put(key, value) = write {
                *value = self.seal(key, std::mem::take(value))?;
            }
        }
        match self.below.commit(txn).await? {
            Outcome::Refused(found) => {
                let open = |entry: Option<Entry>| entry.map(|entry| self.entry(entry)).transpose();
                Ok(Outcome::Refused(found.into_iter().map(open).collect::<Result<_, _>>()?))
            }
            committed => Ok(committed),
        }
    }
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, Error> {
        let mut below = self.below.watch(prefix, after).await?;
        // Batches wait in the store below, which cuts off slow watchers.
        let (sender, watch) = tokio::sync::mpsc::channel(1);
        let own = Sealed::over(self.below.clone(), self.rules.clone(), &self.env);
        tokio::spawn(async move {
            loop {
                let batch = tokio::select! {
                    biased;
                    () = sender.closed() => return,
                    batch = below.recv() => batch,
                };
                let Some(batch) = batch else { return };
                let opened = batch.map(|batch| own.batch(batch));
                let over = opened.is_err();
                if sender.send(opened).await.is_err() || over {
                    return;
                }
            }
        });
        Ok(watch)
    }
    async fn history(&self, prefix: &str, after: Revision) -> Result<Batch, Error> {
        Ok(self.batch(self.below.history(prefix, after).await?))
    }
    async fn compact(&self, keep_from: Revision) -> Result<(), Error> {
        self.below.compact(keep_from).await
    }
    async fn backup(&self) -> Result<File, Error> {
        self.below.backup().await
    }
    async fn size(&self) -> Option<u64> {
        self.below.size().await
    }
    fn trouble(&self) -> Option<Error> {
        self.below.trouble()
    }
    async fn prove(&self) -> Result<(), Error> {
        self.below.prove().await
    }
    async fn failed(&self) -> Error {
        self.below.failed().await
    }
    async fn close(&self) -> Result<(), Error> {
        self.below.close().await
    }
}

/// Whether a stored value is encrypted.
pub(super) fn is_sealed(value: &[u8]) -> bool {
    value.starts_with(PREFIX)
}

impl Rules {
    /// Whether writes below a key prefix are encrypted now.
    pub(super) fn seals(&self, prefix: &str) -> bool {
        let resource = prefix.strip_prefix(ROOT).and_then(|rest| rest.split('/').next()).unwrap_or("");
        matches!(self.of(resource).and_then(|rule| rule.providers.first()), Some(Provider::Key(_)))
    }
}

/// The key of an encrypted value in a store, if any: then encryption keys must not be generated again.
pub async fn first_sealed(store: &dyn Store) -> Result<Option<String>, Error> {
    let mut after = None;
    loop {
        let page = store.list(Range { prefix: ROOT.into(), after: after.take(), limit: PAGE, at: None }).await?;
        if let Some(entry) = page.entries.iter().find(|entry| entry.value.starts_with(PREFIX)) {
            return Ok(Some(entry.key.to_string()));
        }
        match page.entries.last() {
            Some(last) if page.remaining > 0 => after = Some(last.key.to_string()),
            _ => return Ok(None),
        }
    }
}

impl Server {
    /// Starts re-encrypting values that are unencrypted, or encrypted with another key than the first.
    pub(super) fn start_resealing(self: &Arc<Server>, sealed: Arc<Sealed>) {
        self.tasks.add(tokio::spawn(async move {
            match sealed.reseal().await {
                Ok(0) => {}
                Ok(count) => tracing::info!("re-encrypted {count} objects with the first key"),
                Err(why) => tracing::error!("failed to re-encrypt all objects: {why}"),
            }
        }));
    }
}
