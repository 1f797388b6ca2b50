//! Transactions of any size within etcd's limit of operations (`--max-txn-ops`).

use std::collections::{BTreeMap, BTreeSet};

use etcd_client::{Compare as Condition, CompareOp, Txn as Request, TxnOp, TxnOpResponse, TxnResponse};
use tokio::time::Instant;

use super::{
    calls::{Failure, keys_of},
    shared::{Shared, lock, signed},
};
use crate::{Entry, Error, Outcome, Revision, Txn};

/// etcd's default limit of operations in a transaction: this many conditions, and this many writes. A nested transaction may use
/// the remaining ones.
const OPERATIONS: usize = 128;
/// Beyond this many conditions they are checked first, and combined: half of the room is left for writes.
const CONDITIONS: usize = OPERATIONS / 2;
/// How often other writes may conflict in the directories of keys that must be absent.
const ATTEMPTS: usize = 64;

/// A key, and its required mod_revision; 0: absent.
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

    /// Sends one transaction; returns its revision.
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

    /// The entries read by a response, in order.
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

/// The same conditions for keys that met them at a revision. Absent keys are still absent if nothing in the range between them, in
/// their directory, was written since: one condition for each directory.
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

/// Operations beyond etcd's limit are put into nested transactions: without conditions, and at the same revision. So readers and
/// watchers see a single transaction, and keys claimed one by one can be released at once.
fn within_bounds(operations: Vec<TxnOp>, beside: usize) -> Vec<TxnOp> {
    if operations.len() <= OPERATIONS {
        return operations;
    }
    let room = |pieces: usize| OPERATIONS.saturating_sub(beside.max(pieces));
    // If it is still too large, etcd refuses it.
    let pieces = (2..OPERATIONS).find(|pieces| pieces * room(*pieces) >= operations.len()).unwrap_or(OPERATIONS / 2);
    let (size, mut left) = (operations.len().div_ceil(pieces), operations.into_iter());
    std::iter::from_fn(|| {
        let piece: Vec<TxnOp> = left.by_ref().take(size).collect();
        (!piece.is_empty()).then(|| TxnOp::txn(Request::new().and_then(piece)))
    })
    .collect()
}
