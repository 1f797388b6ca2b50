//! The store in a real etcd (3.4 and later), for a control plane with several servers.
//!
//! ```text
//!   get, list, commit ----- one call each, to one member, another where it fails -----> etcd
//!   revision -------------- one linearizable read for all who ask meanwhile ----------> etcd
//!   watch <--- Hub <------- one watch of everything, taken up again where it broke ---- etcd
//!         <--- the past ---- a watch of its own, up to where the one above is --------- etcd
//! ```
//!
//! The store uses etcd's revisions: they never decrease, whatever crashes. Writes to other prefixes of the same etcd increment
//! them, too, so consecutive transactions may differ by more than one. Acknowledged writes are on the disks of a majority of
//! members: `Durability::Relaxed` makes no difference. An etcd that was restored from an older snapshot, or replaced, is detected
//! by its revision or cluster id, and is `Damaged`: this process must exit, and start again from the current state.
//!
//! Compaction stops one revision before the requested one, so that every change in a watch has its previous value.

mod calls;
mod commit;
mod dial;
mod follow;
mod keys;
mod shared;
mod snapshot;

use std::{fs::File, sync::Arc, time::Duration};

use async_trait::async_trait;
use etcd_client::{CompactionOptions, GetOptions};
use futures::future::Either;
use tokio::{task::AbortHandle, time::timeout};

use self::{
    calls::{Failure, keys_of},
    follow::Past,
    keys::Span,
    shared::{Shared, lock, signed},
};
use super::{
    Asked, Batch, Entry, Error, Outcome, Page, Range, Revision, Store, Txn, Watch, closed,
    health::{Health, lost},
};

pub use calls::Config;
pub use dial::Tls;

/// A write this recent proves that others are possible: frequent health checks do not cost etcd a write each time.
const PROVEN: Duration = Duration::from_secs(15);
/// How long a stream of pieces may stall. (etcd serves historical watches every 100 ms.)
const TIMEOUT: Duration = Duration::from_secs(10);

/// See the module. Share it with `Arc`.
pub struct Etcd {
    shared: Arc<Shared>,
    follower: AbortHandle,
}

impl Etcd {
    /// Connects, and writes a marker: so an opened store is writable.
    pub async fn open(config: Config) -> Result<Etcd, Error> {
        let shared = Arc::new(Shared::new(config).await?);
        shared.begin().await?;
        let follower = tokio::spawn(follow::run(shared.clone())).abort_handle();
        Ok(Etcd { shared, follower })
    }

    fn open_shared(&self) -> Result<&Arc<Shared>, Error> {
        if self.shared.live().closed { Err(closed()) } else { Ok(&self.shared) }
    }
}

#[async_trait]
impl Store for Etcd {
    fn revision(&self) -> Asked<'_, Revision> {
        Either::Right(Box::pin(async { self.open_shared()?.revision().await }))
    }

    async fn oldest(&self) -> Result<Revision, Error> {
        self.open_shared()?.find_oldest().await
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        let shared = self.open_shared()?;
        let span = Span { start: shared.key(key)?.into_bytes(), end: Vec::new() };
        let answer = shared.range(span, GetOptions::new(), 0).await.map_err(Failure::error)?;
        Ok(shared.entries(&answer).pop())
    }

    async fn list(&self, range: Range) -> Result<Page, Error> {
        let shared = self.open_shared()?;
        loop {
            match shared.list(&range).await {
                // Between two pages of the same revision.
                Err(Error::Compacted { .. }) if range.at.is_none() => continue,
                listed => return listed,
            }
        }
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, Error> {
        let shared = self.open_shared()?;
        if txn.compares.is_empty() && txn.writes.is_empty() {
            return Ok(Outcome::Committed(shared.revision().await?));
        }
        shared.commit(txn).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, Error> {
        let shared = self.open_shared()?;
        shared.known(after).await?;
        shared.watch(prefix, after)
    }

    async fn history(&self, prefix: &str, after: Revision) -> Result<Batch, Error> {
        let shared = self.open_shared()?;
        let now = shared.known(after).await?;
        let (last, seen) = shared.shown(now).await?;
        let batch = match after < last {
            true => Past::new(shared.clone(), prefix, after, last).next().await?,
            false => Batch { changes: Vec::new(), reached: after },
        };
        // There is none after the last change.
        let reached = if batch.reached >= last { batch.reached.max(seen) } else { batch.reached };
        Ok(Batch { reached, ..batch })
    }

    async fn compact(&self, keep_from: Revision) -> Result<(), Error> {
        let shared = self.open_shared()?;
        let now = shared.revision().await?;
        if keep_from > now {
            return Err(Error::Future { asked: keep_from, now });
        }
        if keep_from > 1 {
            let upto = signed(keep_from - 1);
            let compacted = shared.calls.read(|client| async move {
                keys_of(&client).compact(upto, Some(CompactionOptions::new().with_physical())).await
            });
            match compacted.await {
                // It was compacted already, here or by another server.
                Ok(_) | Err(Failure::Compacted) => {}
                Err(failure) => return Err(failure.error()),
            }
        }
        shared.oldest_is(keep_from);
        Ok(())
    }

    async fn backup(&self) -> Result<File, Error> {
        self.open_shared()?.backup().await
    }

    /// The size of etcd's file on the current member's disk.
    async fn size(&self) -> Option<u64> {
        let shared = self.open_shared().ok()?;
        let status = shared.calls.read(|client| async move { client.maintenance_client().status().await });
        // A metric is not worth a longer wait.
        let status = timeout(Duration::from_secs(2), status).await.ok()?;
        u64::try_from(status.ok()?.db_size()).ok()
    }

    fn trouble(&self) -> Option<Error> {
        self.shared.trouble()
    }

    async fn prove(&self) -> Result<(), Error> {
        let shared = self.open_shared()?;
        if let Health::Lost(why) = &*shared.health.borrow() {
            return Err(why.clone());
        }
        let proven = *lock(&shared.proven);
        match proven {
            Some(at) if at.elapsed() < PROVEN => Ok(()),
            _ => shared.mark().await.map(drop),
        }
    }

    async fn failed(&self) -> Error {
        lost(&self.shared.health).await
    }

    async fn close(&self) -> Result<(), Error> {
        let mut live = self.shared.live();
        if live.closed {
            return Err(closed());
        }
        live.closed = true;
        live.hub.clear();
        self.follower.abort();
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.follower.abort();
    }
}
