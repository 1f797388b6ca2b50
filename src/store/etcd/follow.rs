//! The store's single watch on etcd, for all watchers of the store.
//!
//! It covers all keys of the store, so what it has delivered is complete: a historical watch ends at the last change that this one
//! has delivered. Others' writes also increment etcd's revision, without events here: if no event arrives up to a required
//! revision, a marker is written, whose change proves that nothing was missed. (etcd has progress requests; before 3.4.25 their
//! response may overtake changes.)

use std::{sync::Arc, time::Duration};

use etcd_client::{Event, GetOptions, WatchOptions, WatchResponse, WatchStream};
use tokio::{
    sync::mpsc::channel,
    time::{Instant, sleep, timeout},
};

use super::{
    TIMEOUT,
    calls::{Failure, Rotate},
    keys::{Keys, Span},
    shared::{Shared, entry, signed},
};
use crate::{Batch, Change, Error, Revision, Watch, closed, health::Health, hub::Watcher};

/// The delay between two attempts to watch, which doubles.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// A watch that lasted this long resets the delay.
const HELD: Duration = Duration::from_secs(10);

/// Why an etcd watch ended.
enum End {
    /// Its revision was compacted; from this revision on everything is available.
    Compacted(Revision),
    /// It may be restarted.
    Broken(String),
    Failed(Error),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> End {
        match failure {
            Failure::Transient { why, .. } => End::Broken(why),
            other => End::Failed(other.error()),
        }
    }
}

impl End {
    /// Classifies a watch event without its previous value, by reading the revision before it. etcd omits previous values that it
    /// cannot read: permanently if compacted, otherwise only at that moment.
    fn of_bare(revision: Revision, before: Result<(), Failure>) -> End {
        match before {
            Ok(()) => End::Broken(format!("etcd: the change of revision {revision} came without what was before it")),
            Err(Failure::Compacted) => End::Compacted(revision + 1),
            Err(failure) => failure.into(),
        }
    }
}

/// The changes to the store's keys in one message.
#[derive(Default)]
struct Shown {
    changes: Vec<Change>,
    /// The revision of the last change or marker.
    last: Option<Revision>,
}

impl Shown {
    /// An error has the revision of a change without the previous value, which the contract requires.
    fn of(keys: &Keys, events: &[Event]) -> Result<Shown, Revision> {
        let mut shown = Shown::default();
        for event in events {
            let Some(kv) = event.kv() else { continue };
            let revision = kv.mod_revision().unsigned_abs();
            shown.last = shown.last.max(Some(revision));
            let Some(key) = keys.inner(kv.key()) else { continue };
            let key: Arc<str> = key.into();
            // A deletion has no version.
            let now = (kv.version() > 0).then(|| entry(key.clone(), kv));
            let before = event.prev_kv().map(|kv| entry(key.clone(), kv));
            let is_new = now.as_ref().is_some_and(|entry| entry.create_revision == revision);
            if before.is_none() && !is_new {
                return Err(revision);
            }
            shown.changes.push(Change { key, revision, now, before });
        }
        shown.changes.sort_by(|a, b| (a.revision, &a.key).cmp(&(b.revision, &b.key)));
        Ok(shown)
    }
}

/// Updates all watchers, until dropped.
pub async fn run(shared: Arc<Shared>) {
    tokio::join!(follow_on(&shared), reach(&shared));
}

async fn follow_on(shared: &Shared) {
    let mut pause = RETRY.0;
    loop {
        let begun = Instant::now();
        match shared.follow().await {
            End::Compacted(oldest) => {
                tracing::warn!(oldest, "etcd has compacted revisions that the watch still needed: all watches restart");
                shared.oldest_is(oldest);
                if let Err(why) = shared.start_over(oldest).await {
                    shared.in_trouble(why);
                }
            }
            End::Broken(why) => shared.in_trouble(Error::Unavailable(why)),
            End::Failed(why) => shared.in_trouble(why),
        }
        if begun.elapsed() > HELD {
            pause = RETRY.0;
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Ensures that every required revision is reached, with a marker if necessary.
async fn reach(shared: &Shared) {
    let (mut wanted, mut seen) = (shared.wanted.subscribe(), shared.seen.subscribe());
    loop {
        let goal = *wanted.borrow_and_update();
        if timeout(shared.grace, seen.wait_for(|seen| *seen >= goal)).await.is_err() {
            match shared.mark().await {
                // It is stored in etcd: the watch delivers it whenever it resumes.
                Ok(marked) => drop(seen.wait_for(|seen| *seen >= marked).await),
                Err(why) => {
                    tracing::debug!("no marker can be written: {why}");
                    sleep(RETRY.1).await;
                    continue;
                }
            }
        }
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

impl Shared {
    /// Starts watching everything after a revision, at a member.
    async fn watch_all(&self, after: Revision) -> Result<(WatchStream, Rotate<'_>), End> {
        let all = self.keys.all();
        let options = WatchOptions::new()
            .with_range(all.end)
            .with_start_revision(signed(after + 1))
            .with_prev_key()
            .with_progress_notify();
        let (mut watcher, member) = self.calls.watcher();
        match timeout(TIMEOUT, watcher.watch(all.start, Some(options))).await {
            Ok(Ok(stream)) => Ok((stream, member)),
            Ok(Err(error)) => {
                let url = member.url().to_owned();
                member.rotate();
                Err(match End::from(Failure::from(error)) {
                    End::Broken(why) => End::Broken(format!("{url}: {why}")),
                    other => other,
                })
            }
            Err(_) => {
                let why = format!("{}: etcd: no watch within {} s", member.url(), TIMEOUT.as_secs());
                member.rotate();
                Err(End::Broken(why))
            }
        }
    }

    /// The content of a message; an error if it ends its watch.
    async fn read(
        &self,
        message: Result<Option<WatchResponse>, etcd_client::Error>,
    ) -> Result<(WatchResponse, Shown), End> {
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return Err(End::Broken("etcd: the watch has ended".to_owned())),
            Err(error) => return Err(Failure::from(error).into()),
        };
        self.calls.check(message.header()).map_err(End::Failed)?;
        match u64::try_from(message.compact_revision()) {
            Ok(revision) if revision > 0 => return Err(End::Compacted(revision + 1)),
            _ if message.canceled() => return Err(End::Broken(format!("etcd: {}", message.cancel_reason()))),
            _ => {}
        }
        match Shown::of(&self.keys, message.events()) {
            Ok(shown) => Ok((message, shown)),
            Err(bare) => {
                let marker = Span { start: self.keys.marker().into_bytes(), end: Vec::new() };
                // A change has a revision before it: that of etcd's beginning is the first.
                let before = self.range(marker, GetOptions::new().with_count_only(), bare.saturating_sub(1)).await;
                Err(End::of_bare(bare, before.map(drop)))
            }
        }
    }

    /// Continues watching after the last delivered change; returns why it must be restarted.
    async fn follow(&self) -> End {
        let seen = self.live().seen;
        let (mut stream, member) = match self.watch_all(seen).await {
            Ok(watched) => watched,
            Err(end) => return end,
        };
        loop {
            let (message, shown) = match self.read(stream.message().await).await {
                Ok(read) => read,
                Err(End::Broken(why)) => {
                    // The member may be in a minority, or about to stop.
                    let why = format!("{}: {why}", member.url());
                    member.rotate();
                    return End::Broken(why);
                }
                Err(end) => return end,
            };
            if message.created() {
                // etcd may have been restored to an older state meanwhile.
                if let Err(why) = self.ask_revision().await {
                    return End::Failed(why);
                }
                self.is_good();
                continue;
            }
            let now = message.header().map_or(0, |header| header.revision()).unsigned_abs();
            let mut live = self.live();
            match shown.last {
                Some(last) => {
                    live.last = live.last.max(last);
                    live.seen = live.seen.max(last);
                    live.hub.publish(&shown.changes, last);
                    if shown.changes.is_empty() {
                        live.hub.progress(last);
                    }
                }
                // Progress: everything up to there has been delivered.
                None if message.events().is_empty() && now > live.seen => {
                    live.seen = now;
                    live.hub.progress(now);
                }
                None => {}
            }
            self.seen.send_replace(live.seen);
        }
    }

    /// Ends all watches, as their history is gone, and continues from now.
    async fn start_over(&self, oldest: Revision) -> Result<(), Error> {
        let now = self.mark().await?;
        let mut live = self.live();
        let asked = live.seen;
        live.hub.end(&Error::Compacted { asked, oldest });
        (live.seen, live.last) = (now, now);
        self.seen.send_replace(now);
        Ok(())
    }

    fn in_trouble(&self, why: Error) {
        let lost = matches!(why, Error::Damaged(_));
        self.health.send_if_modified(|health| match health {
            Health::Lost(_) => false,
            _ if lost => {
                tracing::error!("the store has failed for good: {why}");
                *health = Health::Lost(why.clone());
                true
            }
            Health::Good => {
                tracing::warn!("lost the watch on etcd: {why}");
                *health = Health::Trouble(why.clone());
                true
            }
            Health::Trouble(_) => {
                *health = Health::Trouble(why.clone());
                true
            }
        });
    }

    fn is_good(&self) {
        self.health.send_if_modified(|health| match health {
            Health::Trouble(_) => {
                tracing::info!("resumed the watch on etcd");
                *health = Health::Good;
                true
            }
            _ => false,
        });
    }

    /// A watch from a past revision: first history, if any, then live events.
    pub fn watch(self: &Arc<Shared>, prefix: &str, after: Revision) -> Result<Watch, Error> {
        let mut live = self.live();
        if live.closed {
            return Err(closed());
        }
        // No change of ours happened between the two: the watcher gets a progress notification, as nothing may come for long.
        let (until, seen) = (live.last, live.seen);
        let (watcher, mut shown) = Watcher::new(prefix, after.max(seen));
        let progress = Batch { changes: Vec::new(), reached: seen };
        if after >= until {
            let told = if seen > after { watcher.tell(progress) } else { Some(watcher) };
            told.into_iter().for_each(|watcher| live.hub.add(watcher));
            return Ok(shown);
        }
        live.hub.add(watcher);
        drop(live);
        let (sender, watch) = channel(1);
        let mut past = Past::new(self.clone(), prefix, after, until);
        tokio::spawn(async move {
            while past.reached < until {
                let piece = past.next().await;
                let over = piece.is_err();
                if piece.as_ref().is_ok_and(|batch| batch.changes.is_empty()) {
                    continue;
                }
                if sender.send(piece).await.is_err() || over {
                    return;
                }
            }
            if sender.send(Ok(progress)).await.is_err() {
                return;
            }
            drop(past);
            loop {
                let item = tokio::select! {
                    biased;
                    () = sender.closed() => return,
                    item = shown.recv() => item,
                };
                let Some(item) = item else { return };
                let over = item.is_err();
                if sender.send(item).await.is_err() || over {
                    return;
                }
            }
        });
        Ok(watch)
    }
}

/// A historical watch, up to the revision of a change.
pub struct Past {
    shared: Arc<Shared>,
    prefix: String,
    pub reached: Revision,
    until: Revision,
    stream: Option<WatchStream>,
}

impl Past {
    pub fn new(shared: Arc<Shared>, prefix: &str, after: Revision, until: Revision) -> Past {
        Past { shared, prefix: prefix.to_owned(), reached: after, until, stream: None }
    }

    /// The next piece, which may be only progress without changes.
    pub async fn next(&mut self) -> Result<Batch, Error> {
        let (until, mut pause) = (Instant::now() + TIMEOUT, RETRY.0);
        loop {
            match self.attempt().await {
                Ok(batch) => {
                    self.reached = batch.reached;
                    return Ok(batch);
                }
                Err(End::Compacted(oldest)) => {
                    self.shared.oldest_is(oldest);
                    return Err(Error::Compacted { asked: self.reached, oldest });
                }
                Err(End::Failed(why)) => return Err(why),
                Err(End::Broken(why)) if Instant::now() + pause > until => return Err(Error::Unavailable(why)),
                Err(End::Broken(_)) => {
                    self.stream = None;
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                }
            }
        }
    }

    async fn attempt(&mut self) -> Result<Batch, End> {
        if self.reached >= self.until {
            return Ok(Batch { changes: Vec::new(), reached: self.reached });
        }
        if self.stream.is_none() {
            self.stream = Some(self.shared.watch_all(self.reached).await?.0);
        }
        loop {
            let Some(stream) = &mut self.stream else { return Err(End::Broken("etcd: no watch".to_owned())) };
            let message = timeout(TIMEOUT, stream.message()).await;
            let message = message.map_err(|_| End::Broken("etcd: the past is not shown".to_owned()))?;
            let (_, Shown { mut changes, last }) = self.shared.read(message).await?;
            let Some(last) = last else { continue };
            let reached = last.min(self.until);
            changes.retain(|change| change.revision <= reached && change.key.starts_with(&self.prefix));
            return Ok(Batch { changes, reached });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_without_what_was_before_it_ends_who_watches_only_where_that_is_compacted() {
        // Compacted at 9: the state at 9 is readable, but not the previous value of the change at 9.
        assert!(matches!(End::of_bare(9, Err(Failure::Compacted)), End::Compacted(10)));
        assert!(matches!(End::of_bare(9, Ok(())), End::Broken(_)), "it is there");
        let away = Failure::Transient { why: "no leader".to_owned(), is_unsent: false };
        assert!(matches!(End::of_bare(9, Err(away)), End::Broken(_)), "nobody knows");
    }
}
