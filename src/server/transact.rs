//! How every write ends: decide on what is there, compare in the store, and decide anew where it has changed meanwhile
//! (upstream's `GuaranteedUpdate`).

use std::collections::HashSet;

use bytes::Bytes;

use crate::api::{Object, Status};
use crate::store::{Compare, Durability, Outcome, Txn, Write};

use super::call::Call;
use super::encode::Current;
use super::{Server, allocate, store_error};

/// How often a write is decided anew. Each time another writer got through, so this is not reached by bad luck.
const ATTEMPTS: usize = 512;

/// What to do with the object.
pub(super) enum Decision {
    /// It is already as it should be.
    Keep,
    Put(Object),
    Delete,
}

/// What a write decides on: the object as it is, and the keys found taken.
type Decide<'a> = dyn FnMut(Option<&Current>, &Taken) -> Result<Plan, Status> + Send + 'a;

/// What to do in one transaction.
pub(super) struct Plan {
    pub decision: Decision,
    /// What else must be free and becomes ours.
    pub claims: Vec<Claim>,
    /// What else becomes free.
    pub releases: Vec<String>,
}

/// A key that must be absent and is taken, an address or a port.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub key: String,
    pub owner: String,
    /// The answer if it is taken; `None`: it was chosen, so choose another.
    pub refusal: Option<Status>,
}

/// Keys found taken while a write was tried.
#[derive(Default)]
pub(super) struct Taken {
    pub keys: HashSet<String>,
    /// Whether `keys` holds all of them.
    pub complete: bool,
}

/// How a write went.
pub(super) struct Written {
    /// The object as stored, or as it last was.
    pub bytes: Bytes,
    pub how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Created,
    Updated,
    Kept,
    Deleted,
}

impl From<Decision> for Plan {
    fn from(decision: Decision) -> Plan {
        Plan { decision, claims: Vec::new(), releases: Vec::new() }
    }
}

impl Server {
    /// An object as the store has it now.
    pub(super) async fn fetch(&self, call: &Call, key: &str) -> Result<Option<Current>, Status> {
        let entry = self.store.get(key).await.map_err(store_error)?;
        let head = &self.cache.shelf(call.kind).head;
        entry.map(|entry| Current::of_entry(head, &entry)).transpose()
    }

    /// Writes an object that should not be there yet.
    pub(super) async fn transact_new(
        &self,
        call: &Call,
        key: &str,
        mut decide: impl FnMut(Option<&Current>, &Taken) -> Result<Plan, Status> + Send,
    ) -> Result<Written, Status> {
        self.attempt(call, key, None, true, &mut decide).await
    }

    /// Changes an object that should be there. The first attempt trusts the cache; a refusal based on it is made sure of.
    pub(super) async fn transact(
        &self,
        call: &Call,
        key: &str,
        mut decide: impl FnMut(Option<&Current>, &Taken) -> Result<Plan, Status> + Send,
    ) -> Result<Written, Status> {
        let cached = self.cache.shelf(call.kind).get(key);
        match cached {
            Some(item) => self.attempt(call, key, Some(item.current()?), false, &mut decide).await,
            None => {
                let current = self.fetch(call, key).await?;
                self.attempt(call, key, current, true, &mut decide).await
            }
        }
    }

    async fn attempt(
        &self,
        call: &Call,
        key: &str,
        mut current: Option<Current>,
        mut certain: bool,
        decide: &mut Decide<'_>,
    ) -> Result<Written, Status> {
        let head = &self.cache.shelf(call.kind).head;
        let mut taken = Taken::default();
        let started = (self.env.now(), tokio::time::Instant::now());
        for attempt in 0..ATTEMPTS {
            let plan = match decide(current.as_ref(), &taken) {
                Err(_) | Ok(Plan { decision: Decision::Keep, .. }) if !certain => {
                    current = self.fetch(call, key).await?;
                    certain = true;
                    continue;
                }
                plan => plan?,
            };
            let (object, how) = match (&plan.decision, &current) {
                (Decision::Put(object), None) => (Some(head.store(object)), How::Created),
                (Decision::Put(object), Some(_)) => (Some(head.store(object)), How::Updated),
                (Decision::Delete, _) => (None, How::Deleted),
                (Decision::Keep, _) => (None, How::Kept),
            };
            let before = current.as_ref().map(|c| (c.bytes.clone(), c.revision));
            if how == How::Kept || (call.options.dry_run && object.is_none()) {
                let (bytes, _) = before.unwrap_or_default();
                return Ok(Written { bytes, how });
            }
            if call.options.dry_run {
                let revision = before.map_or(0, |(_, revision)| revision);
                let bytes = head.deliver(&object.unwrap_or_default(), revision);
                return Ok(Written { bytes, how });
            }

            let txn = transaction(call, key, current.as_ref(), object.clone(), &plan);
            let subject = match &plan.decision {
                Decision::Put(object) => Some(object),
                _ => current.as_ref().map(|c| &c.object),
            };
            match self.store.commit(txn).await.map_err(store_error)? {
                Outcome::Committed(revision) => {
                    if let Some(subject) = subject {
                        self.trace.record(call, subject, revision, started.0, started.1.elapsed());
                    }
                    let bytes = match object {
                        Some(stored) => head.deliver(&stored, revision),
                        None => before.unwrap_or_default().0,
                    };
                    return Ok(Written { bytes, how });
                }
                Outcome::Refused(entries) => {
                    let mut entries = entries.into_iter();
                    let found = entries.next().flatten();
                    let unchanged = found.as_ref().map(|e| e.mod_revision) == current.as_ref().map(|c| c.revision);
                    for (claim, _) in plan.claims.iter().zip(entries).filter(|(_, entry)| entry.is_some()) {
                        match &claim.refusal {
                            Some(refusal) if unchanged => return Err(refusal.clone()),
                            Some(_) => {}
                            None => drop(taken.keys.insert(claim.key.clone())),
                        }
                    }
                    current = found.map(|entry| Current::of_entry(head, &entry)).transpose()?;
                    certain = true;
                }
            }
            // Unlucky choices in a crowded range: look at all that is taken before the next one.
            if attempt >= 8 && !plan.claims.is_empty() && !taken.complete {
                taken = self.all_taken().await?;
            }
        }
        Err(call.conflict("the object is being modified too often; please try again"))
    }

    async fn all_taken(&self) -> Result<Taken, Status> {
        let range = crate::store::Range { prefix: allocate::ROOT.into(), ..Default::default() };
        let page = self.store.list(range).await.map_err(store_error)?;
        Ok(Taken { keys: page.entries.into_iter().map(|entry| entry.key.to_string()).collect(), complete: true })
    }
}

fn transaction(call: &Call, key: &str, current: Option<&Current>, object: Option<Bytes>, plan: &Plan) -> Txn {
    let mut txn = Txn { durability: durability(call), ..Txn::default() };
    txn.compares.push(match current {
        Some(current) => Compare::Unchanged(key.to_owned(), current.revision),
        None => Compare::Absent(key.to_owned()),
    });
    txn.writes.push(match object {
        Some(bytes) => Write::Put(key.to_owned(), bytes),
        None => Write::Delete(key.to_owned()),
    });
    for claim in &plan.claims {
        txn.compares.push(Compare::Absent(claim.key.clone()));
        txn.writes.push(Write::Put(claim.key.clone(), Bytes::from(claim.owner.clone())));
    }
    txn.writes.extend(plan.releases.iter().cloned().map(Write::Delete));
    txn
}

/// Heartbeats and Events may be lost by a power cut, and do not wake the disk.
fn durability(call: &Call) -> Durability {
    match call.kind.kind {
        "Lease" | "Event" => Durability::Relaxed,
        _ => Durability::Full,
    }
}
