//! The store in a real etcd (3.4 and later), for a control plane of which several servers can have the same state.
//!
//! ```text
//!   get, list, commit ----- one call each, to one member, another where it fails -----> etcd
//!   revision -------------- one linearizable read for all who ask meanwhile ----------> etcd
//!   watch <--- Hub <------- one watch of everything, taken up again where it broke ---- etcd
//!         <--- the past ---- a watch of its own, up to where the one above is --------- etcd
//! ```
//!
//! etcd's revisions are the store's: they never go back, whoever ends or is killed. Other prefixes of the same etcd count in them, so
//! between two transactions there may be more than one step. What etcd acknowledges is on the disks of most of its members:
//! `Durability::Relaxed` makes no difference. An etcd that was restored from an older snapshot, or is another one, is found out by
//! its revision or its cluster's id, and is `Damaged`: this process is to end, and start anew from what there is.
//!
//! What has to be compacted up to a revision is compacted up to the one before: so every change that a watch still shows comes with
//! what was before it.

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

/// A write so long ago shows that another one can be made: who asks again and again whether it can costs etcd no write each time.
const PROVEN: Duration = Duration::from_secs(15);
/// How long what comes piece by piece may stand still. (etcd looks after watches of the past every 100 ms.)
const TIMEOUT: Duration = Duration::from_secs(10);

/// See the module. Share it with `Arc`.
pub struct Etcd {
    shared: Arc<Shared>,
    follower: AbortHandle,
}

impl Etcd {
    /// Connects, and writes a marker: so a store that opens can be written to.
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
                // Between two of its pages, which are of one revision.
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
        // Behind the last change there is none.
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
                // It was already, by us or by another server.
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

    /// What etcd's file has on the disk of the member that is asked.
    async fn size(&self) -> Option<u64> {
        let shared = self.open_shared().ok()?;
        let status = shared.calls.read(|client| async move { client.maintenance_client().status().await });
        // A figure among others is not worth more.
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
