//! The driver: takes keys from a controller's queue, reconciles them, and executes the plans. All I/O is here.
//!
//! A key is reconciled only when the informers show everything that its last plan wrote. The store numbers all changes with a
//! single revision, so this is one comparison per resource; it replaces upstream's counted expectations, and ensures that a
//! ReplicaSet never creates a Pod twice.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::stream::{self, StreamExt, TryStreamExt};
use futures::{FutureExt, future::join_all};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::ObjectMeta, kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};

use super::{
    Context, Failure, Item, LiveReads, Row, World, Writes,
    aside::Lately,
    coordinates::Coordinates,
    metadata_informers::elsewhere,
    pace,
    plan::Plan,
    queue::{Queue, account},
    write::{Guard, Note, Write},
    writes::Awaited,
};
use podwright_api::{Env, Object, Options, Request, Response, Status, Verb, request::Body};
use podwright_client::{Client, Definition, Key, Partial, Recorder, Typed};

mod claim_users;

use claim_users::UnusedClaims;

/// How many guards of one write are checked concurrently.
const GUARDS: usize = 16;

/// The time limit for all guards of one write.
const CHECKED: Duration = Duration::from_secs(60);

/// How long a key waits for the informers before it checks again; they wake it themselves, except when the expected change is to an
/// object that no longer concerns the key.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Runs one controller.
pub(super) struct Driver {
    pub row: &'static Row,
    pub world: Arc<World>,
    pub client: Client,
    pub env: Env,
    pub recorder: Recorder,
    pub queue: Queue,
    /// The state of keys that are not settled.
    pub memory: Mutex<HashMap<Key, Memory>>,
    /// How long its recent plans took.
    pub lately: Lately,
    pub unused: UnusedClaims,
}

/// The state of a key between reconciles.
#[derive(Default)]
pub(super) struct Memory {
    awaited: Vec<Awaited>,
    failures: Vec<Failure>,
    /// Where its last plan stopped, and whether a write was refused since that round began.
    left_off: Option<(Item, bool)>,
}

impl Driver {
    /// One worker.
    pub async fn work(self: Arc<Self>, shutdown: CancellationToken) {
        let reconcile = |key: Key| {
            let driver = self.clone();
            async move { driver.reconcile(&key).await }
        };
        self.queue.work(self.row.name, &shutdown, reconcile).await;
    }

    async fn reconcile(&self, key: &Key) {
        let Some(known) = self.ready(key) else { return self.queue.add_after(key.clone(), LOOK_AGAIN) };
        let mut plan = self.plan(key, &known).await;
        self.pace(&key.namespace, &mut plan);
        let (requeue_after, left_off) = (plan.requeue_after, plan.left_off.take());
        let (awaited, refused) = self.execute(account(key), plan).await;
        for Refusal { status, .. } in &refused {
            tracing::debug!(controller = self.row.name, %key, %status, "a write was refused");
        }
        let is_refused = !refused.is_empty() || known.left_off.is_some_and(|(_, before)| before);
        match (&left_off, is_refused) {
            (Some(_), _) => self.queue.add(key.clone()),
            (None, false) => self.queue.forget(key),
            (None, true) => self.queue.add_rate_limited(key.clone()),
        }
        // Other due times do not wait for the back-off of a refused write; an immediate requeue does.
        if let Some(delay) = requeue_after.filter(|delay| !is_refused || !delay.is_zero()) {
            self.queue.add_after(key.clone(), delay);
        }
        // The object may be gone by then, so nothing would wake the key: its state is removed then.
        if !awaited.is_empty() && matches!(self.row.writes, Writes::AnySeenByMetadata) {
            self.queue.add_after(key.clone(), LOOK_AGAIN);
        }
        let failures = refused.into_iter().filter_map(|refusal| refusal.failure).collect();
        self.remember(key, Memory { awaited, failures, left_off: left_off.map(|item| (item, is_refused)) });
    }

    fn remember(&self, key: &Key, new: Memory) {
        let mut memory = self.memory();
        match new.awaited.is_empty() && new.failures.is_empty() && new.left_off.is_none() {
            true => memory.remove(key),
            false => memory.insert(key.clone(), new),
        };
    }

    /// Plans the key, once its questions are answered.
    async fn plan(&self, key: &Key, known: &Memory) -> Plan {
        let mut live_reads = LiveReads::default();
        loop {
            let context = Context {
                world: &self.world,
                now: self.env.now(),
                failures: &known.failures,
                left_off: known.left_off.as_ref().map(|(item, _)| item),
                live_reads: &live_reads,
            };
            let mut plan =
                self.world.aside.run(&self.lately, &key.namespace, || (self.row.reconcile)(&context, key)).await;
            if plan.live_reads.is_empty() {
                return plan;
            }
            let asked = std::mem::take(&mut plan.live_reads);
            live_reads.seek(&self.client, &self.world.patience, account(key), asked).await;
        }
    }

    /// Drops Pods for which their namespace has no room now, and those of owners whose last ones failed too soon.
    fn pace(&self, namespace: &str, plan: &mut Plan) {
        let wanted = plan.work.slow().filter(|write| makes_pod(&write.request)).count();
        if wanted == 0 {
            return;
        }
        let short_lives = &self.world.short_lives;
        if let Some(wait) = plan.maker.as_ref().and_then(|maker| short_lives.wait(maker)) {
            plan.notes.extend(wait.news);
            plan.work.cut(&mut 0);
            return plan.hold(wait.left);
        }
        let granted = self.world.paces.grant(namespace, wanted, self.world.room(namespace));
        if let Some(maker) = plan.maker.as_ref().filter(|_| granted > 0) {
            short_lives.make(maker);
        }
        let mut left = granted;
        if plan.work.cut(&mut left) > 0 {
            match granted {
                0 => plan.hold(pace::LOOK_AGAIN),
                _ => plan.requeue(pace::LOOK_AGAIN),
            }
        }
    }

    /// The state of `key`, once the informers show what was written for it.
    fn ready(&self, key: &Key) -> Option<Memory> {
        let mut memory = self.memory();
        let Some(known) = memory.get_mut(key) else { return Some(Memory::default()) };
        known.awaited.retain(|awaited| !awaited.is_shown());
        let Memory { awaited, failures, left_off } = known;
        let ready = || Memory { awaited: Vec::new(), failures: failures.clone(), left_off: left_off.clone() };
        awaited.is_empty().then(ready)
    }

    /// Executes a plan on behalf of a namespace: returns what the informers must show before the key's next one, and what was
    /// refused.
    async fn execute(&self, of: &str, mut plan: Plan) -> (Vec<Awaited>, Vec<Refusal>) {
        for note in std::mem::take(&mut plan.notes) {
            self.tell(note, "");
        }
        let outcomes = plan.into_work().carry_out(&|write| self.write(of, write).boxed()).await;
        let (mut awaited, mut refused) = (Vec::new(), Vec::new());
        for outcome in outcomes {
            match outcome {
                Ok(more) => awaited.extend(more),
                Err(refusal) => refused.push(refusal),
            }
        }
        (awaited, refused)
    }

    /// Executes one write: returns what the informers must show of it.
    async fn write(&self, of: &str, write: Write) -> Result<Option<Awaited>, Refusal> {
        let Write { request, guards, done, failed, reported, never_passes } = write;
        if !self.row.writes.include(&request.resource) {
            // A bug in its row.
            let (controller, resource) = (self.row.name, &request.resource);
            tracing::error!(
                controller,
                resource,
                "a write was refused: the controller does not say that it writes this"
            );
            let message = format!("controller {controller:?} does not say that it writes {resource:?}");
            return Err(Refusal { status: Status::internal(message), failure: None });
        }
        // Objects have any number of owners: their guards are checked in batches, until one refuses.
        let checks: Vec<_> = guards.iter().map(|guard| self.check(of, guard)).collect();
        let checked = stream::iter(checks).buffered(GUARDS).try_collect();
        let late = |_| Err(Status::timeout("what the write depends on was not known in time"));
        let checked: Result<(), Status> = tokio::time::timeout(CHECKED, checked).await.unwrap_or_else(late);
        let outcome = match checked {
            Ok(()) => self.call(of, request.clone()).await,
            Err(status) => Err(status),
        };
        match outcome {
            Ok(response) => {
                let answer = answer(&response);
                if let Some(pod) = answer.as_ref().filter(|_| makes_pod(&request)) {
                    self.world.short_lives.made(&metadata(pod));
                }
                for note in done {
                    self.tell(note, answer.as_ref().map_or(request.name.as_deref().unwrap_or(""), |o| o.name()));
                }
                Ok(match self.row.writes {
                    Writes::AnySeenByMetadata => Awaited::by_metadata(&self.world.metadata, &request, answer),
                    Writes::Any | Writes::Of(_) => Awaited::after(&self.world.informers, &request, answer),
                })
            }
            // The object to delete is already gone. (A conflict is different: the object has changed, or was replaced by another of
            // the same name; the next event leads to a new decision.)
            Err(status) if request.verb == Verb::Delete && status.is_not_found() => Ok(None),
            // Its namespace is terminating, and its content with it.
            Err(status) if request.verb == Verb::Create && is_ending(&status) => Ok(None),
            Err(status) => {
                let passing = status.is_conflict() || status.is_already_exists() || status.is_not_found();
                let stays = never_passes || !passing;
                let reason = failed.as_ref().map(|note| note.reason).or(reported).filter(|_| stays);
                let failure = reason.map(|reason| Failure { reason, message: status.message.clone() });
                if let Some(note) = failed.filter(|_| stays) {
                    self.tell(note, &status.message);
                }
                Err(Refusal { status, failure })
            }
        }
    }

    async fn check(&self, of: &str, guard: &Guard) -> Result<(), Status> {
        match guard {
            Guard::Absent { resource, key, uid } => match self.look(of, resource, key).await? {
                Some(found) if uid.as_ref().is_none_or(|uid| uid == found.uid()) => {
                    Err(Status::conflict(resource, "", &key.name, "it does exist"))
                }
                _ => Ok(()),
            },
            Guard::Alive { resource, key, uid } => match self.look(of, resource, key).await? {
                Some(found) if found.uid() == uid && !found.is_terminating() => Ok(()),
                _ => Err(Status::conflict(resource, "", &key.name, "it is gone or being deleted")),
            },
            Guard::Empty { namespace, resources } => {
                let all = resources.iter().map(|resource| self.must_be_empty(of, resource, namespace));
                join_all(all).await.into_iter().collect()
            }
            Guard::Defined { resources } => {
                let request = Request { resource: <Definition as Typed>::resource(), ..Request::default() };
                let all = self.client.collection::<Definition>(request).await?.items;
                let is_new = |d: &&Definition| d.established && !resources.contains(&d.resource());
                match all.iter().find(is_new) {
                    None => Ok(()),
                    Some(new) => Err(Status::conflict("", "", &new.resource(), "it is defined, and not followed yet")),
                }
            }
            Guard::Discovered { resources } => self.must_be_discovered(resources).await,
            Guard::Childless { owner, blocking, resources } => {
                for resource in resources {
                    self.must_be_childless(of, owner, *blocking, resource).await?;
                }
                Ok(())
            }
            Guard::Finalizers { resource, namespace, finalizer, held, free } => {
                let holders = self.holders(resource, namespace, finalizer).await?;
                let wrong = held.iter().find(|uid| !holders.contains(*uid));
                match wrong.or_else(|| free.iter().find(|uid| holders.contains(*uid))) {
                    None => Ok(()),
                    Some(uid) => Err(Status::conflict(resource, "", uid, "its finalizers are not as they were seen")),
                }
            }
            Guard::Unused { claim } => self.must_be_unused(claim).await,
        }
    }

    /// Succeeds if the namespaced resources of other servers are known, and all are in `resources`.
    async fn must_be_discovered(&self, resources: &[String]) -> Result<(), Status> {
        let request = Request { resource: <APIService as Typed>::resource(), ..Request::default() };
        let services = self.client.collection::<APIService>(request).await?.items;
        let served = services.iter().filter(|it| elsewhere::is_remote(it)).map(elsewhere::served);
        let remote: Vec<_> = served.map(|(group, version)| (group.to_owned(), version.to_owned())).collect();
        if remote.is_empty() {
            return Ok(());
        }
        let versions = self.client.discovery().await?.unwrap_or_default();
        let found = elsewhere::sorted(&versions, &remote);
        if !found.failing.is_empty() {
            return Err(Status::unavailable(elsewhere::failure(&found.failing, &[])));
        }
        match found.namespaced().find(|resource| !resources.contains(resource)) {
            None => Ok(()),
            Some(new) => Err(Status::conflict("", "", new, "it is served, and not followed yet")),
        }
    }

    /// The uids of the objects with a finalizer.
    async fn holders(&self, resource: &str, namespace: &str, finalizer: &str) -> Result<HashSet<String>, Status> {
        let request = Request {
            verb: Verb::List,
            resource: resource.to_owned(),
            namespace: Some(namespace.to_owned()),
            ..Request::default()
        };
        let mut holders = HashSet::new();
        let look = |Partial { metadata }: Partial| -> Option<()> {
            let is_held = metadata.finalizers.iter().flatten().any(|held| held == finalizer);
            holders.extend(metadata.uid.filter(|_| is_held));
            None
        };
        self.client.find(request, look).await?;
        Ok(holders)
    }

    async fn must_be_childless(
        &self,
        of: &str,
        owner: &Coordinates,
        blocking: bool,
        resource: &str,
    ) -> Result<(), Status> {
        let request = Request {
            verb: Verb::List,
            resource: resource.to_owned(),
            namespace: owner.namespace.clone(),
            ..Request::default()
        };
        let is_child = |Partial { metadata }: Partial| {
            let is_one = if blocking { owner.waits_for(&metadata) } else { owner.owns(&metadata) };
            is_one.then(|| metadata.name.unwrap_or_default())
        };
        let asked = self.client.find(request, is_child);
        match self.world.patience.wait(of, owner.namespace.as_deref(), (Verb::List, resource), asked).await {
            Ok(None) => Ok(()),
            Ok(Some(child)) => {
                Err(Status::conflict(resource, "", &child, "its owner is about to go, and it is not seen yet"))
            }
            // The kind no longer exists.
            Err(status) if status.is_not_found() => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// The object as the server has it now.
    async fn look(&self, of: &str, resource: &str, key: &Key) -> Result<Option<Object>, Status> {
        let request = Request {
            verb: Verb::Get,
            resource: resource.to_owned(),
            namespace: key.namespace().map(str::to_owned),
            name: Some(key.name.clone()),
            ..Request::default()
        };
        match self.call(of, request).await {
            Ok(response) => Ok(answer(&response)),
            // A missing resource says nothing about another server's, or one that existed a moment ago.
            Err(status) if status.is_not_found() && (names_it(&status) || !elsewhere::is_others(resource)) => Ok(None),
            Err(status) => Err(status),
        }
    }

    async fn must_be_empty(&self, of: &str, resource: &str, namespace: &str) -> Result<(), Status> {
        let request = Request {
            verb: Verb::List,
            resource: resource.to_owned(),
            namespace: Some(namespace.to_owned()),
            options: Options { limit: Some(1), ..Options::default() },
            ..Request::default()
        };
        match self.call(of, request).await?.body {
            Body::List(list) if list.items.is_empty() => Ok(()),
            _ => Err(Status::conflict("namespaces", "", namespace, format!("it still holds {resource}"))),
        }
    }

    /// A request on behalf of an account, with a short timeout for other servers' resources.
    async fn call(&self, of: &str, request: Request) -> Result<Response, Status> {
        let (verb, resource, namespace) = (request.verb, request.resource.clone(), request.namespace.clone());
        let answer = self.client.call(request);
        self.world.patience.wait(of, namespace.as_deref(), (verb, &resource), answer).await
    }

    fn tell(&self, note: Note, what: &str) {
        let message = note.message.replacen("{}", what, 1);
        match note.warning {
            true => self.recorder.warning(note.about, note.reason, message),
            false => self.recorder.normal(note.about, note.reason, message),
        }
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<Key, Memory>> {
        self.memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn makes_pod(request: &Request) -> bool {
    request.verb == Verb::Create && request.resource == "pods"
}

/// An object's metadata, as far as it can be parsed.
fn metadata(object: &Object) -> ObjectMeta {
    ObjectMeta::deserialize(&object.0["metadata"]).unwrap_or_default()
}

/// Whether it reports that an object was not found.
fn names_it(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

/// Why a write failed.
struct Refusal {
    status: Status,
    /// Passed to the next reconcile, for failures that the controller reports.
    failure: Option<Failure>,
}

fn is_ending(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    { causes }.any(|cause| cause.reason == "NamespaceTerminating")
}

fn answer(response: &Response) -> Option<Object> {
    match &response.body {
        Body::Object { bytes, .. } => Object::from_slice(bytes).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
