//! Encryption at rest: between the server and its store lies [`Sealed`], a store whose values of some resources are sealed
//! before they are handed down, and opened when they come up.
//!
//! [`config`] says what is sealed with which key, [`seal`] seals one value. The store below knows nothing of it: its files and
//! backups hold sealed bytes alone. What does not open is an error that names the object; nothing else is ever told instead. Among
//! others it comes up as [`unopened`], so that it stops nobody who asks for them.

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

/// What sealed values begin with, and no others.
pub(super) use seal::PREFIX as SEALED;

const ROOT: &str = "/registry/";
/// The server's own keys; they are sealed as Secrets are.
const KEYS: &str = "keys";
const SECRETS: &str = "secrets";
/// So many entries are looked at together when all are sealed anew.
const PAGE: usize = 500;

/// What a value that does not open comes up as, before the reason; no object begins so.
const UNOPENED: &[u8] = b"\0unopened ";

/// Why a value has not been opened, if it is one of these.
pub(super) fn unopened(value: &[u8]) -> Option<String> {
    value.strip_prefix(UNOPENED).map(|why| String::from_utf8_lossy(why).into_owned())
}

/// A store whose values are sealed by `rules`.
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

    /// An entry among others.
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

    /// Whether a stored value is not as it would be written now.
    fn is_stale(&self, entry: &Entry) -> bool {
        match self.rule(&entry.key).and_then(|rule| rule.providers.first()) {
            Some(Provider::Key(sealer)) => !sealer.made(&entry.value),
            Some(Provider::Identity) => entry.value.starts_with(PREFIX),
            None => false,
        }
    }

    /// Writes anew what is not sealed with the first key, one transaction each; how many there were. What does not open is the
    /// error, once all others are done.
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
                    // Whoever has changed it meanwhile has sealed it.
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
        // Batches wait below: there who is too slow is cut off.
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

/// Whether a value lies sealed in its store.
pub(super) fn is_sealed(value: &[u8]) -> bool {
    value.starts_with(PREFIX)
}

impl Rules {
    /// Whether what is written below a prefix of keys is sealed now.
    pub(super) fn seals(&self, prefix: &str) -> bool {
        let resource = prefix.strip_prefix(ROOT).and_then(|rest| rest.split('/').next()).unwrap_or("");
        matches!(self.of(resource).and_then(|rule| rule.providers.first()), Some(Provider::Key(_)))
    }
}

/// A sealed value in a store, if there is any: then its keys must not be made anew.
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
    /// Starts to seal anew what lies there unsealed, or sealed with another key than the first.
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
