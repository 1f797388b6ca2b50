//! Transactions of any size, as etcd takes them: it has a bound on the operations of one (`--max-txn-ops`).

use std::collections::{BTreeMap, BTreeSet};

use etcd_client::{Compare as Condition, CompareOp, Txn as Request, TxnOp, TxnOpResponse, TxnResponse};
use tokio::time::Instant;

use super::{
    calls::{Failure, keys_of},
    shared::{Shared, lock, signed},
};
use crate::{Entry, Error, Outcome, Revision, Txn};

/// How many operations etcd takes in a transaction, where nobody tells it otherwise: as many conditions, as many writes. A
/// transaction within a transaction may have as many as are left of them.
const OPERATIONS: usize = 128;
/// More conditions than these are looked at first, and put together: half of the room is left for writes.
const CONDITIONS: usize = OPERATIONS / 2;
/// How often others may write beside the keys that have to be absent.
const ATTEMPTS: usize = 64;

/// A key, and the revision of its last change that it must have; 0: it is absent.
type Wanted = (String, Revision);

impl Shared {
    pub async fn commit(&self, txn: Txn) -> Result<Outcome, Error> {
        let mut wanted = Vec::with_capacity(txn.compares.len());
        for compare in &txn.compares {
            let (key, revision) = compare.parts();
            wanted.push((self.key(key)?, revision));
        }
        let mut writes = Vec::with_capacity(txn.writes.len());
        for (key, value) in txn.net_writes() {
            let key = self.key(&key)?;
            writes.push(match value {
                Some(value) => TxnOp::put(key, value, None),
                None => TxnOp::delete(key, None),
            });
        }
        let is_write = !writes.is_empty();
        if wanted.len() <= CONDITIONS {
            let conditions = wanted.iter().map(|(key, revision)| is_at(key, *revision)).collect();
            let (answer, revision) = self.send(conditions, writes, gets(&wanted), is_write).await?;
            return Ok(match answer.succeeded() {
                true => Outcome::Committed(revision),
                false => Outcome::Refused(self.found(&answer)),
            });
        }
        for _ in 0..ATTEMPTS {
            let (answer, at) = self.send(Vec::new(), gets(&wanted), Vec::new(), false).await?;
            let found = self.found(&answer);
            let mut pairs = wanted.iter().zip(&found);
            if !pairs.all(|((_, wanted), found)| found.as_ref().map_or(0, |entry| entry.mod_revision) == *wanted) {
                return Ok(Outcome::Refused(found));
            }
            let (answer, revision) = self.send(together(&wanted, at), writes.clone(), Vec::new(), is_write).await?;
            if answer.succeeded() {
                return Ok(Outcome::Committed(revision));
            }
        }
        Err(Error::Unavailable("others write to etcd beside what has to be absent, all the time".to_owned()))
    }

    /// One transaction; the revision at which it was.
    async fn send(
        &self,
        conditions: Vec<Condition>,
        then: Vec<TxnOp>,
        otherwise: Vec<TxnOp>,
        is_write: bool,
    ) -> Result<(TxnResponse, Revision), Error> {
        let operations = conditions.len().max(otherwise.len());
        let request = Request::new().when(conditions).and_then(within_bounds(then, operations)).or_else(otherwise);
        let least = self.newest.load(std::sync::atomic::Ordering::SeqCst);
        let call = |client: etcd_client::Client| {
            let request = request.clone();
            async move { keys_of(&client).txn(request).await }
        };
        let answer = if is_write { self.calls.write(call).await } else { self.calls.read(call).await };
        let answer = answer.map_err(Failure::error)?;
        let revision = self.note(answer.header(), least)?;
        if is_write && answer.succeeded() {
            *lock(&self.proven) = Some(Instant::now());
        }
        Ok((answer, revision))
    }

    /// What an answer has read, in order.
    fn found(&self, answer: &TxnResponse) -> Vec<Option<Entry>> {
        let of = |response| match response {
            TxnOpResponse::Get(answer) => vec![self.entries(&answer).pop()],
            TxnOpResponse::Txn(answer) => self.found(&answer),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) => Vec::new(),
        };
        answer.op_responses().into_iter().flat_map(of).collect()
    }
}

fn is_at(key: &str, revision: Revision) -> Condition {
    Condition::mod_revision(key, CompareOp::Equal, signed(revision))
}

fn gets(wanted: &[Wanted]) -> Vec<TxnOp> {
    wanted.iter().map(|(key, _)| TxnOp::get(key.as_str(), None)).collect()
}

/// The same conditions for keys that met them at a revision. Those that were absent still are if nothing between them, in their
/// folder, has been written since: one condition for all of a folder.
fn together(wanted: &[Wanted], at: Revision) -> Vec<Condition> {
    let mut conditions = Vec::new();
    let mut absent: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (key, revision) in wanted {
        match revision {
            0 => {
                let folder = key.rsplit_once('/').map_or("", |(folder, _)| folder);
                absent.entry(folder).or_default().insert(key);
            }
            _ => conditions.push(is_at(key, *revision)),
        }
    }
    conditions.extend(absent.values().filter_map(|keys| {
        let (first, last) = (keys.first()?, keys.last()?);
        Some(match first == last {
            true => is_at(first, 0),
            false => Condition::mod_revision(*first, CompareOp::Less, signed(at + 1)).with_range(format!("{last}\0")),
        })
    }));
    conditions
}

/// More operations than etcd takes are in transactions of their own within the one: they have no conditions, and all happen at one
/// revision. So they are no more to who reads or watches, and what is claimed piece by piece can be given back at once.
fn within_bounds(operations: Vec<TxnOp>, beside: usize) -> Vec<TxnOp> {
    if operations.len() <= OPERATIONS {
        return operations;
    }
    let room = |pieces: usize| OPERATIONS.saturating_sub(beside.max(pieces));
    // What is too much all the same etcd refuses.
    let pieces = (2..OPERATIONS).find(|pieces| pieces * room(*pieces) >= operations.len()).unwrap_or(OPERATIONS / 2);
    let (size, mut left) = (operations.len().div_ceil(pieces), operations.into_iter());
    std::iter::from_fn(|| {
        let piece: Vec<TxnOp> = left.by_ref().take(size).collect();
        (!piece.is_empty()).then(|| TxnOp::txn(Request::new().and_then(piece)))
    })
    .collect()
}
