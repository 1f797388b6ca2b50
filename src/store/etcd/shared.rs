//! The state and calls shared by the store and its watch task.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use etcd_client::{GetOptions, GetResponse, KeyValue, ResponseHeader, WatchOptions};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, timeout},
};

use super::{
    TIMEOUT,
    calls::{Calls, Config, Failure, keys_of},
    keys::{Keys, Span},
};
use crate::{Entry, Error, PAGE_BYTES, Page, Range, Revision, closed, health::Health, hub::Hub};

/// The size of the first page; later ones are sized to about [`PAGE_BYTES`].
const PAGE: usize = 500;

/// The state shared by the store and its watch task.
pub struct Shared {
    pub calls: Calls,
    pub keys: Keys,
    pub scratch: PathBuf,
    pub grace: Duration,
    pub live: Mutex<Live>,
    /// Like `Live::seen`, for waiting.
    pub seen: watch::Sender<Revision>,
    /// The revision that must be reached.
    pub wanted: watch::Sender<Revision>,
    /// The newest revision known from etcd.
    pub newest: AtomicU64,
    /// The oldest revision known to be readable.
    pub oldest: AtomicU64,
    pub health: watch::Sender<Health>,
    /// The time of the last write.
    pub proven: Mutex<Option<Instant>>,
    pub asking: Mutex<Asking>,
}

/// The live watchers, and what they have received.
#[derive(Default)]
pub struct Live {
    pub hub: Hub,
    /// Everything up to this revision was delivered.
    pub seen: Revision,
    /// The last change of it: one of ours, or a marker.
    pub last: Revision,
    pub closed: bool,
}

/// Callers that wait for the newest revision.
#[derive(Default)]
pub struct Asking {
    /// Those that no request was sent for yet.
    waiting: Vec<oneshot::Sender<Result<Revision, Error>>>,
    is_asked: bool,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The protected data is changed in steps that cannot panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A revision in etcd's type, which all its revisions fit.
pub fn signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// An etcd entry under its key in the store.
pub fn entry(key: Arc<str>, kv: &KeyValue) -> Entry {
    Entry {
        key,
        value: kv.value().to_vec().into(),
        create_revision: kv.create_revision().unsigned_abs(),
        mod_revision: kv.mod_revision().unsigned_abs(),
    }
}

/// Raises a number that never decreases.
fn raise(number: &watch::Sender<Revision>, to: Revision) {
    number.send_if_modified(|now| {
        let rises = to > *now;
        *now = to.max(*now);
        rises
    });
}

impl Shared {
    pub async fn new(config: Config) -> Result<Shared, Error> {
        Ok(Shared {
            calls: Calls::new(&config).await?,
            keys: Keys::new(&config.root, &config.prefix),
            scratch: config.scratch,
            grace: config.grace,
            live: Mutex::default(),
            seen: watch::Sender::default(),
            wanted: watch::Sender::default(),
            newest: AtomicU64::new(0),
            oldest: AtomicU64::new(0),
            health: watch::Sender::default(),
            proven: Mutex::default(),
            asking: Mutex::default(),
        })
    }

    /// Determines etcd's revision with a marker: watches start after it.
    pub async fn begin(&self) -> Result<(), Error> {
        // Reads are retried, and report why they fail.
        self.ask_revision().await?;
        self.find_oldest().await?;
        let now = self.mark().await?;
        {
            let mut live = self.live();
            (live.seen, live.last) = (now, now);
        }
        self.seen.send_replace(now);
        Ok(())
    }

    pub fn live(&self) -> MutexGuard<'_, Live> {
        lock(&self.live)
    }

    pub fn key(&self, key: &str) -> Result<String, Error> {
        self.keys.outer(key).ok_or_else(|| Error::Io(format!("the key {key:?} is not below the store's root")))
    }

    pub fn oldest_is(&self, revision: Revision) {
        self.oldest.fetch_max(revision, SeqCst);
    }

    /// Records the revision of a response that reflects everything acknowledged at `least`.
    pub fn note(&self, header: Option<&ResponseHeader>, least: Revision) -> Result<Revision, Error> {
        let noted = self.calls.check(header).and_then(|revision| match revision < least {
            true => Err(Error::Damaged(format!(
                "etcd is at revision {revision}, and was at {least}: it has lost writes, or was restored from an older snapshot"
            ))),
            false => Ok(revision),
        });
        match &noted {
            Ok(revision) => drop(self.newest.fetch_max(*revision, SeqCst)),
            Err(why @ Error::Damaged(_)) => drop(self.health.send_replace(Health::Lost(why.clone()))),
            Err(_) => {}
        }
        noted
    }

    /// Reads part of a span, at a revision (0: now), which includes everything acknowledged before.
    pub async fn range(&self, span: Span, options: GetOptions, at: Revision) -> Result<GetResponse, Failure> {
        let least = self.newest.load(SeqCst);
        let options = options.with_range(span.end).with_revision(signed(at));
        let answer = self.calls.read(|client| {
            let (start, options) = (span.start.clone(), options.clone());
            async move { keys_of(&client).get(start, Some(options)).await }
        });
        let answer = answer.await?;
        self.note(answer.header(), least).map_err(Failure::Other)?;
        Ok(answer)
    }

    /// etcd's newest revision.
    pub async fn ask_revision(&self) -> Result<Revision, Error> {
        let least = self.newest.load(SeqCst);
        let answer = self.calls.read(|client| {
            let marker = self.keys.marker();
            async move { keys_of(&client).get(marker, Some(GetOptions::new().with_count_only())).await }
        });
        let revision = self.note(answer.await.map_err(Failure::error)?.header(), least)?;
        raise(&self.wanted, revision);
        Ok(revision)
    }

    /// The same, with a single request for all concurrent callers.
    pub async fn revision(self: &Arc<Shared>) -> Result<Revision, Error> {
        let (answer, answered) = oneshot::channel();
        let is_asked = {
            let mut asking = lock(&self.asking);
            asking.waiting.push(answer);
            std::mem::replace(&mut asking.is_asked, true)
        };
        if !is_asked {
            tokio::spawn(ask_for_all(self.clone()));
        }
        answered.await.map_err(|_| closed())?
    }

    /// Writes the marker, a change without effect; returns its revision.
    pub async fn mark(&self) -> Result<Revision, Error> {
        let least = self.newest.load(SeqCst);
        let answer = self.calls.write(|client| {
            let marker = self.keys.marker();
            async move { keys_of(&client).put(marker, "", None).await }
        });
        let revision = self.note(answer.await.map_err(Failure::error)?.header(), least + 1)?;
        *lock(&self.proven) = Some(Instant::now());
        Ok(revision)
    }

    /// The oldest revision whose changes have previous values.
    pub async fn find_oldest(&self) -> Result<Revision, Error> {
        let oldest = self.oldest.load(SeqCst).max(1);
        let marker = Span { start: self.keys.marker().into_bytes(), end: Vec::new() };
        match self.range(marker, GetOptions::new().with_count_only(), oldest).await {
            Ok(_) => self.oldest_is(oldest),
            Err(Failure::Compacted) => self.oldest_is(self.ask_compacted().await? + 1),
            Err(failure) => return Err(failure.error()),
        }
        Ok(self.oldest.load(SeqCst))
    }

    /// etcd's compaction revision: etcd only reports it to a watch from the beginning.
    async fn ask_compacted(&self) -> Result<Revision, Error> {
        let (mut watcher, _) = self.calls.watcher();
        let ask = async {
            let options = WatchOptions::new().with_start_revision(1);
            let mut stream = watcher.watch(self.keys.marker(), Some(options)).await?;
            while let Some(message) = stream.message().await? {
                if message.compact_revision() > 0 {
                    return Ok::<_, etcd_client::Error>(message.compact_revision().unsigned_abs());
                }
            }
            Ok(0)
        };
        match timeout(TIMEOUT, ask).await {
            Ok(found) => found.map_err(|error| Failure::from(error).error()),
            Err(_) => Err(Error::Unavailable("etcd does not say up to where it is compacted".to_owned())),
        }
    }

    /// Translates a failed read of a revision to the contract's errors.
    async fn no_revision(&self, failure: Failure, asked: Revision) -> Error {
        let found = match failure {
            Failure::Compacted => self.find_oldest().await.map(|oldest| Error::Compacted { asked, oldest }),
            Failure::Future => self.ask_revision().await.map(|now| Error::Future { asked, now }),
            other => Ok(other.error()),
        };
        found.unwrap_or_else(|why| why)
    }

    pub fn entries(&self, answer: &GetResponse) -> Vec<Entry> {
        let entry = |kv| Some(entry(self.keys.inner(KeyValue::key(kv))?.into(), kv));
        answer.kvs().iter().filter_map(entry).collect()
    }

    pub async fn list(&self, range: &Range) -> Result<Page, Error> {
        let mut span = self.keys.below(&range.prefix, range.after.as_deref());
        let mut page = Page { revision: range.at.unwrap_or(0), ..Page::default() };
        let oldest = self.oldest.load(SeqCst);
        if let Some(asked) = range.at.filter(|at| *at < oldest.max(1)) {
            return Err(Error::Compacted { asked, oldest });
        }
        if span.is_empty() {
            // Reads nothing, only checks that the revision exists.
            span.end = span.start.clone();
            span.end.push(0);
        }
        let (mut wanted, mut gathered) = (PAGE, 0);
        loop {
            let left = if range.limit == 0 { usize::MAX } else { range.limit - page.entries.len() };
            let options = GetOptions::new().with_limit(i64::try_from(left.min(wanted)).unwrap_or(i64::MAX));
            let answer = match self.range(span.clone(), options, page.revision).await {
                Ok(answer) => answer,
                Err(failure) => return Err(self.no_revision(failure, page.revision).await),
            };
            if page.revision == 0 {
                page.revision = self.calls.check(answer.header())?;
            }
            let entries = self.entries(&answer);
            let bytes: usize = entries.iter().map(|entry| entry.value.len()).sum();
            wanted = (PAGE_BYTES / (bytes / entries.len().max(1)).max(1)).clamp(1, 20 * PAGE);
            page.remaining = answer.count().unsigned_abs().saturating_sub(answer.kvs().len() as u64);
            if let Some(last) = answer.kvs().last() {
                span.start = last.key().to_vec();
                span.start.push(0);
            }
            page.entries.extend(entries);
            gathered += bytes;
            let is_full = range.limit > 0 && (page.entries.len() >= range.limit || gathered >= PAGE_BYTES);
            if is_full || page.remaining == 0 || answer.kvs().is_empty() {
                return Ok(page);
            }
        }
    }

    /// Waits until everything up to a revision was delivered; returns the last change, and the delivered revision.
    pub async fn shown(&self, revision: Revision) -> Result<(Revision, Revision), Error> {
        let mut seen = self.seen.subscribe();
        let reached = timeout(TIMEOUT, seen.wait_for(|seen| *seen >= revision)).await;
        match reached {
            Ok(Ok(_)) => {
                let live = self.live();
                Ok((live.last, live.seen))
            }
            _ => Err(self.trouble().unwrap_or_else(|| Error::Unavailable("etcd's changes do not come".to_owned()))),
        }
    }

    pub fn trouble(&self) -> Option<Error> {
        self.health.borrow().trouble()
    }

    /// Checks whether a watch may start after a revision; returns the newest one.
    pub async fn known(self: &Arc<Shared>, after: Revision) -> Result<Revision, Error> {
        let now = self.revision().await?;
        let oldest = self.oldest.load(SeqCst);
        match after {
            _ if after > now => Err(Error::Future { asked: after, now }),
            _ if after + 1 < oldest => Err(Error::Compacted { asked: after, oldest }),
            _ => Ok(now),
        }
    }
}

/// Sends one request for all callers that arrived during the last one.
async fn ask_for_all(shared: Arc<Shared>) {
    loop {
        let waiting = {
            let mut asking = lock(&shared.asking);
            if asking.waiting.is_empty() {
                asking.is_asked = false;
                return;
            }
            std::mem::take(&mut asking.waiting)
        };
        let answer = shared.ask_revision().await;
        for one in waiting {
            // The caller may have given up.
            let _ = one.send(answer.clone());
        }
    }
}
