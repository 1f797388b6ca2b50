//! The end of every write: propose a change of the current object, run admission, settle it, compare in the store, and start over
//! if the object has changed meanwhile (upstream's `GuaranteedUpdate`).

use bytes::Bytes;

use podwright_api::spans::Span;
use podwright_api::{Object, Status};
use podwright_store::{Compare, Durability, Entry, Outcome, Txn, Write};

use super::admission::{self, Charge, operation::Operation, review::Review};
use super::encode::Current;
use super::metrics::METRICS;
use super::reservation::{self, Occupied, Reservation};
use super::resolved_request::ResolvedRequest;
use super::{Server, allocate, large, store_error, traced};

/// How often a write is retried. Each conflict means that another writer succeeded, so bad luck alone does not get here.
const ATTEMPTS: usize = 512;

/// The most bytes that an object may have in the store. (Upstream's limit is etcd's, 1.5 MiB of protobuf.) Even small patches can
/// grow an object.
const MAX_OBJECT: usize = 3 << 20;

/// What a writer wants, before admission.
pub(super) enum Proposal<'a> {
    /// Store the object in this form.
    Put(Object, Settle<'a>),
    /// The same, but admission sees a view of the object: new, then old.
    View(Object, Object, Settle<'a>),
    /// A step of a deletion.
    Remove(WritePlan),
    /// Admitted before, or exempt from admission.
    Plain(WritePlan),
}

/// Settles an admitted object: prepares it, allocates for it, and validates it. Called again with the keys that were found taken.
pub(super) type Settle<'a> =
    Box<dyn FnMut(Object, Option<&Current>, &Occupied) -> Result<WritePlan, Status> + Send + 'a>;

/// What to do with the object.
pub(super) enum Decision {
    /// It is as desired already.
    Keep,
    Put(Object),
    Delete,
    /// This change removes the last reason to keep it, so it is deleted; the response has this object.
    Finish(Object),
}

/// Makes a writer's proposal from the current object.
type Propose<'p, 'a> = dyn FnMut(Option<&Current>) -> Result<Proposal<'a>, Status> + Send + 'p;

/// The content of one transaction.
pub(super) struct WritePlan {
    pub decision: Decision,
    /// Keys that must be free, and are claimed.
    pub reservations: Vec<Reservation>,
    /// Keys that are released.
    pub releases: Vec<String>,
}

/// The result of a write.
pub(super) struct Written {
    /// The object as stored, or its last state.
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

impl From<Decision> for WritePlan {
    fn from(decision: Decision) -> WritePlan {
        WritePlan { decision, reservations: Vec::new(), releases: Vec::new() }
    }
}

/// A proposal after mutating admission; kept while only its claims are retried.
struct Pending<'a> {
    object: Object,
    /// The view that admission sees, if it is one: new, then old.
    view: Option<(Object, Object)>,
    settle: Settle<'a>,
}

/// The result of an attempt to commit.
enum Commit {
    Written(Written),
    /// The entries of the object's key and of the claimed keys.
    Refused(Vec<Option<Entry>>),
}

impl Server {
    /// An object from the store.
    pub(super) async fn fetch(&self, call: &ResolvedRequest, key: &str) -> Result<Option<Current>, Status> {
        let began = std::time::Instant::now();
        let entry = self.store.get(key).await;
        METRICS.stored("get", call.kind, began, &entry);
        let entry = entry.map_err(store_error)?;
        let head = &self.cache.resource(call.kind).head;
        entry.map(|entry| Current::of_entry(head, &entry)).transpose()
    }

    /// Writes a new object. Mutating admission has run already.
    pub(super) async fn transact_new(
        &self,
        call: &ResolvedRequest,
        key: &str,
        object: Object,
        settle: Settle<'_>,
    ) -> Result<Written, Status> {
        let pending = Pending { object, view: None, settle };
        // `settle` refuses an existing object.
        let mut never = |_: Option<&Current>| Err(call.conflict("please try again"));
        self.attempt(call, key, None, true, Some(pending), &mut never).await
    }

    /// Updates an existing object. The first attempt trusts the cache; a refusal based on that is verified.
    pub(super) async fn transact<'a>(
        &'a self,
        call: &'a ResolvedRequest,
        key: &str,
        mut propose: impl FnMut(Option<&Current>) -> Result<Proposal<'a>, Status> + Send,
    ) -> Result<Written, Status> {
        let cached = self.cache.resource(call.kind).get(key);
        // The cost of a request for one object includes it; of a request for many, each is a part.
        let size = cached.as_ref().map_or(0, |item| item.bytes.len());
        let whole = |weighed| {
            Box::pin(async move {
                match cached.filter(|_| !admission::asks_others(self, call)) {
                    Some(item) => {
                        let current = item.decode(weighed)?;
                        self.attempt(call, key, Some(current), false, None, &mut propose).await
                    }
                    None => {
                        let current = self.fetch(call, key).await?;
                        self.attempt(call, key, current, true, None, &mut propose).await
                    }
                }
            })
        };
        self.large.part(&call.user, size, whole).await?
    }

    async fn attempt<'a>(
        &self,
        call: &ResolvedRequest,
        key: &str,
        mut current: Option<Current>,
        mut certain: bool,
        mut pending: Option<Pending<'a>>,
        propose: &mut Propose<'_, 'a>,
    ) -> Result<Written, Status> {
        self.rules_open()?;
        let head = &self.cache.resource(call.kind).head;
        let mut taken = Occupied::default();
        let is_new = pending.is_some();
        for attempt in 0..ATTEMPTS {
            let decided = self.decide_on(call, current.as_ref(), &taken, &mut pending, propose).await;
            let plan = match decided {
                Err(_) | Ok(WritePlan { decision: Decision::Keep, .. }) if !certain => {
                    certain = true;
                    let found = self.fetch(call, key).await?;
                    if revision(&found) == revision(&current) {
                        decided?
                    } else {
                        (current, pending) = (found, None);
                        continue;
                    }
                }
                decided => decided?,
            };
            let entries = match self.commit(call, key, current.as_ref(), &plan, pending.is_some()).await? {
                Commit::Written(written) => return Ok(written),
                Commit::Refused(entries) => entries,
            };
            let mut entries = entries.into_iter();
            let found = entries.next().flatten();
            let unchanged = found.as_ref().map(|e| e.mod_revision) == revision(&current);
            for (claim, _) in plan.reservations.iter().zip(entries).filter(|(_, entry)| entry.is_some()) {
                match &claim.refusal {
                    Some(refusal) if unchanged => return Err(refusal.clone()),
                    Some(_) => {}
                    None => drop(taken.keys.insert(claim.key.clone())),
                }
            }
            if !unchanged && !is_new {
                pending = None;
            }
            current = found.map(|entry| Current::of_entry(head, &entry)).transpose()?;
            certain = true;
            // Repeated conflicts in a crowded range: read all taken keys before the next choice.
            if attempt >= 8 && !plan.reservations.is_empty() && !taken.complete {
                taken = self.all_taken().await?;
            }
        }
        Err(call.conflict("the object is being modified too often; please try again"))
    }

    /// Runs the proposal, mutating admission, settling, validating admission.
    async fn decide_on<'a>(
        &self,
        call: &ResolvedRequest,
        current: Option<&Current>,
        taken: &Occupied,
        pending: &mut Option<Pending<'a>>,
        propose: &mut Propose<'_, 'a>,
    ) -> Result<WritePlan, Status> {
        let old = current.map(|current| &current.object);
        let mut review = Review::new(self, call, Operation::Update, old);
        if pending.is_none() {
            *pending = Some(match propose(current)? {
                Proposal::Plain(plan) => return Ok(plan),
                Proposal::Remove(plan) => {
                    review.operation = Operation::Delete;
                    if let Some(old) = old {
                        admission::remove(&review, old).await?;
                    }
                    return Ok(plan);
                }
                Proposal::Put(mut object, settle) => {
                    admission::mutate(&review, &mut object).await?;
                    Pending { object, view: None, settle }
                }
                Proposal::View(mut object, old, settle) => {
                    admission::mutate(&Review { old: Some(&old), ..review }, &mut object).await?;
                    Pending { object: object.clone(), view: Some((object, old)), settle }
                }
            });
        }
        let Some(pending) = pending.as_mut() else { return Err(Status::internal("nothing is proposed")) };
        // Only what claims addresses is settled again, with others.
        let object = match reservation::concerns(call.kind) {
            true => pending.object.clone(),
            false => std::mem::replace(&mut pending.object, Object(serde_json::Value::Null)),
        };
        let settle = &mut pending.settle;
        let plan = self
            .large
            .part(&call.user, large::of_rules(call.rules()), |_| async move { settle(object, current, taken) })
            .await??;
        if current.is_none() {
            review.operation = Operation::Create;
        }
        match (&plan.decision, &pending.view) {
            (Decision::Put(_) | Decision::Finish(_), Some((view, old))) => {
                admission::validate(&Review { old: Some(old), ..review }, view).await?;
            }
            (Decision::Put(object) | Decision::Finish(object), None) => {
                admission::validate(&review, object).await?;
            }
            _ => {}
        }
        Ok(plan)
    }

    /// One attempt to commit a plan with its quota charges, in one transaction.
    async fn commit(
        &self,
        call: &ResolvedRequest,
        key: &str,
        current: Option<&Current>,
        plan: &WritePlan,
        admitted: bool,
    ) -> Result<Commit, Status> {
        let head = &self.cache.resource(call.kind).head;
        let started = (self.env.now(), tokio::time::Instant::now());
        let before = current.map(|c| (c.bytes.clone(), c.revision));
        let (stored, how) = match (&plan.decision, current) {
            (Decision::Put(object), None) => (Some(head.store(object)), How::Created),
            (Decision::Put(object), Some(_)) => (Some(head.store(object)), How::Updated),
            (Decision::Delete | Decision::Finish(_), _) => (None, How::Deleted),
            (Decision::Keep, _) => (None, How::Kept),
        };
        if stored.as_ref().is_some_and(|stored| stored.len() > MAX_OBJECT) {
            let why = format!("Request entity too large: the object would have more than {MAX_OBJECT} bytes");
            return Err(Status::failure(413, "RequestEntityTooLarge", why));
        }
        let finished = match &plan.decision {
            Decision::Finish(object) => before.as_ref().map(|(_, at)| head.deliver(&head.store(object), *at)),
            _ => None,
        };
        if how == How::Kept || (call.options.dry_run && stored.is_none()) {
            let (bytes, _) = before.unwrap_or_default();
            return Ok(Commit::Written(Written { bytes: finished.unwrap_or(bytes), how }));
        }
        let operation = if current.is_some() { Operation::Update } else { Operation::Create };
        let review = Review::new(self, call, operation, current.map(|current| &current.object));
        let admitted = match &plan.decision {
            Decision::Put(object) if admitted => Some(object),
            _ => None,
        };
        // Charges are serialized, so that few attempts fail.
        let mut locks = Vec::new();
        for turn in admitted.map(|object| admission::locks_of(&review, object)).unwrap_or_default() {
            locks.push(self.namespace_locks.take(&turn).await);
        }
        // An unchanged object keeps its keys until it is written, so this also holds in the transaction.
        let releases = allocate::own(self, call, &plan.releases).await?;
        for _ in 0..ATTEMPTS {
            let charges = match admitted {
                Some(object) if !locks.is_empty() => admission::charges(&review, object).await?,
                _ => Vec::new(),
            };
            if call.options.dry_run {
                let revision = before.map_or(0, |(_, revision)| revision);
                let bytes = head.deliver(&stored.unwrap_or_default(), revision);
                return Ok(Commit::Written(Written { bytes, how }));
            }
            let txn = transaction(call, key, current, stored.clone(), plan, &releases, &charges);
            let operation = match how {
                How::Created => "create",
                How::Deleted => "delete",
                How::Updated | How::Kept => "update",
            };
            if let Decision::Put(object) = &plan.decision {
                // Before anybody sees the change.
                traced::remember(call, object, how == How::Created);
            }
            let began = std::time::Instant::now();
            let committed = Span::current().part("Transaction", self.store.commit(txn)).await;
            METRICS.stored(operation, call.kind, began, &committed);
            match committed.map_err(store_error)? {
                Outcome::Committed(revision) => {
                    let subject = match &plan.decision {
                        Decision::Put(object) => Some(object),
                        _ => current.map(|c| &c.object),
                    };
                    if let Some(subject) = subject {
                        self.trace.record(call, subject, revision, started.0, started.1.elapsed());
                    }
                    if admission::is_policy(call.kind) {
                        // Objects that govern writes are in force once acknowledged. (If that takes too long, the write is
                        // acknowledged anyway.)
                        self.cache.reach(revision).await.ok();
                    }
                    let bytes = match (stored, finished) {
                        (Some(stored), _) => head.deliver(&stored, revision),
                        (None, Some(finished)) => finished,
                        // A deletion is reported with its own revision.
                        (None, None) => before.map(|(bytes, _)| head.redeliver(&bytes, revision)).unwrap_or_default(),
                    };
                    return Ok(Commit::Written(Written { bytes, how }));
                }
                Outcome::Refused(mut entries) => {
                    entries.truncate(1 + plan.reservations.len());
                    let same = entries[0].as_ref().map(|e| e.mod_revision) == current.map(|c| c.revision);
                    let only_charges = same && entries[1..].iter().all(Option::is_none) && !charges.is_empty();
                    if !only_charges {
                        return Ok(Commit::Refused(entries));
                    }
                }
            }
        }
        Err(call.conflict("its quotas are being modified too often; please try again"))
    }

    async fn all_taken(&self) -> Result<Occupied, Status> {
        let range = podwright_store::Range { prefix: allocate::ROOT.into(), ..Default::default() };
        let page = self.store.list(range).await.map_err(store_error)?;
        Ok(Occupied { keys: page.entries.into_iter().map(|entry| entry.key.to_string()).collect(), complete: true })
    }
}

fn revision(current: &Option<Current>) -> Option<podwright_store::Revision> {
    current.as_ref().map(|current| current.revision)
}

fn transaction(
    call: &ResolvedRequest,
    key: &str,
    current: Option<&Current>,
    object: Option<Bytes>,
    plan: &WritePlan,
    releases: &[String],
    charges: &[Charge],
) -> Txn {
    let mut txn = Txn { durability: durability(call), ..Txn::default() };
    txn.compares.push(match current {
        Some(current) => Compare::Unchanged(key.to_owned(), current.revision),
        None => Compare::Absent(key.to_owned()),
    });
    txn.writes.push(match object {
        Some(bytes) => Write::Put(key.to_owned(), bytes),
        None => Write::Delete(key.to_owned()),
    });
    for claim in &plan.reservations {
        txn.compares.push(Compare::Absent(claim.key.clone()));
        txn.writes.push(Write::Put(claim.key.clone(), Bytes::from(claim.owner.clone())));
    }
    txn.writes.extend(releases.iter().cloned().map(Write::Delete));
    for charge in charges {
        txn.compares.push(Compare::Unchanged(charge.key.clone(), charge.revision));
        txn.writes.push(Write::Put(charge.key.clone(), charge.value.clone()));
    }
    txn
}

/// A power failure may lose heartbeats and Events, so they do not wake the disk.
fn durability(call: &ResolvedRequest) -> Durability {
    match call.kind.built_in() {
        "Lease" | "Event" => Durability::Relaxed,
        _ => Durability::Full,
    }
}
