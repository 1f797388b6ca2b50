//! Eviction: deletes a Pod if its disruption budget allows.
//!
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/>. Upstream: `pkg/registry/core/pod/storage/eviction.go`.
//! One conditional write of the budget decrements its allowed disruptions and records the Pod, before the Pod is touched: of two
//! evictions that see the last allowed disruption only one gets it.

use serde_json::{Value, json};

use podwright_api::request::Preconditions;
use podwright_api::selector::LabelSelector;
use podwright_api::{Cause, Object, Options, Response, Status, User, Verb, kinds};

use super::admission::{self, operation::Operation};
use super::delete::{check_preconditions, check_propagation};
use super::encode::Current;
use super::large::{LARGE, Weighed, give_way};
use super::resolved_request::ResolvedRequest;
use super::timestamp::timestamp;
use super::transact::{Decision, Proposal};
use super::{Server, get};

const BUDGETS: &str = "poddisruptionbudgets.policy";
/// The most evictions that the budget's controller has not confirmed yet.
const MOST_DISRUPTED: usize = 2000;
/// How often an eviction is retried after a conflicting write.
const ATTEMPTS: usize = 20;

impl Server {
    pub(super) async fn evict(&self, mut call: ResolvedRequest) -> Result<Response, Status> {
        let (mut body, warnings) = call.take_order()?;
        admission::admit(self, &call, Operation::Create, &mut body).await?;
        if !body.name().is_empty() && body.name() != call.name() {
            return Err(Status::bad_request("name in URL does not match name in Eviction object"));
        }
        let options = delete_options(&call.options, &body.0)?;
        // Checks what the deletion would refuse, before anything is spent or written.
        check_propagation(&options)?;
        let call = ResolvedRequest { verb: Verb::Delete, subresource: None, evicts: true, options, ..call.again() };
        for _ in 0..ATTEMPTS {
            if self.evict_once(call.again()).await? {
                return Ok(Response { warnings, ..get::status(Status { code: 201, ..Status::success() }) });
            }
        }
        Err(call.conflict("it is being modified too often; please try again"))
    }

    /// Whether it is done; `false`: the Pod has changed meanwhile, and must be judged again.
    async fn evict_once(&self, mut call: ResolvedRequest) -> Result<bool, Status> {
        // Budgets are read from the cache, which must include everything acknowledged.
        self.cache.fresh().await?;
        let pod = self.fetch(&call, &call.key()).await?.ok_or_else(|| call.not_found())?.object;
        check_preconditions(&call, &pod)?;
        // The deletion applies to the judged Pod only, not to a recreated one of the same name.
        let preconditions = call.options.preconditions.get_or_insert_with(Preconditions::default);
        preconditions.uid.get_or_insert_with(|| pod.uid().to_owned());
        if has_ended(&pod) {
            return match self.delete(&call).await {
                Err(status) if status.is_conflict() => Ok(false),
                done => done.map(|_| true),
            };
        }
        let pending = is_pending(&pod);
        let budgets = if pending { Vec::new() } else { self.budgets_of(&call, &pod).await? };
        let uncounted = match budgets.as_slice() {
            [] => pending,
            [budget] if may_ignore(budget, &pod) => true,
            [budget] => self.spend(&call, budget.name()).await.map(|()| false)?,
            _ => {
                let why =
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                return Err(Status::failure(500, "", why));
            }
        };
        let pinned = call.options.preconditions.as_ref().is_some_and(|p| p.resource_version.is_some());
        if uncounted && !pinned {
            // It must not become ready meanwhile: then it would count.
            let preconditions = call.options.preconditions.get_or_insert_with(Preconditions::default);
            preconditions.resource_version = Some(pod.resource_version().to_owned());
        }
        let done = match self.mark(&mut call).await {
            Ok(()) => self.delete(&call).await.map(drop),
            Err(status) => Err(status),
        };
        match done {
            Ok(()) => Ok(true),
            Err(status) if !uncounted || pinned || !status.is_conflict() => Err(status),
            Err(status) => match budgets.first() {
                Some(budget) => Err(still_processed(budget.name())),
                None if pending => Ok(false),
                None => Err(status),
            },
        }
    }

    /// The budgets that select a Pod, from the cache at this eviction's turn.
    async fn budgets_of(&self, call: &ResolvedRequest, pod: &Object) -> Result<Vec<Object>, Status> {
        let Some(kind) = kinds::lookup(BUDGETS) else { return Ok(Vec::new()) };
        let prefix = kind.key(pod.namespace(), "");
        let resource = self.cache.resource(kind);
        let size: usize = resource.read().range(&prefix, None).map(|item| item.bytes.len()).sum();
        let selecting = |weighed| async move {
            // Includes changes made while it waited.
            let items: Vec<_> = resource.read().range(&prefix, None).cloned().collect();
            let (mut budgets, mut looked) = (Vec::new(), 0);
            for item in items {
                let budget = item.decode(weighed)?.object;
                let selector = LabelSelector::from_optional_json(budget.at("spec.selector"));
                // An invalid selector matches nothing.
                if selector.ok().flatten().is_some_and(|selector| selector.matches_labels(pod.labels())) {
                    budgets.push(budget);
                }
                looked += item.bytes.len();
                if looked >= LARGE {
                    looked = 0;
                    give_way().await;
                }
            }
            Ok::<_, Status>(budgets)
        };
        self.judge(&call.user, pod.namespace().unwrap_or(""), size, selecting).await?
    }

    /// Runs work on a namespace's budgets of this size when it is its turn: users who evict in all namespaces, as a drain does, are
    /// not held up by namespaces with many budgets.
    ///
    /// The turn always comes before the place for large requests: a holder of a place releases it while waiting for a turn, so
    /// whoever has a turn gets a place.
    async fn judge<F: Future>(
        &self,
        user: &User,
        namespace: &str,
        size: usize,
        work: impl FnOnce(Weighed) -> F,
    ) -> Result<F::Output, Status> {
        let _turn = match size < LARGE {
            true => None,
            false => Some(self.away.wait_for_turn(self.limiters.enter_to_judge(user, namespace)).await??),
        };
        self.large.part(user, size, work).await
    }

    /// Takes one of a budget's allowed disruptions.
    async fn spend(&self, call: &ResolvedRequest, budget: &str) -> Result<(), Status> {
        let Some(kind) = kinds::lookup(BUDGETS) else { return Ok(()) };
        let options = Options { dry_run: call.options.dry_run, ..Options::default() };
        let (name, subresource) = (Some(budget.to_owned()), Some("status".to_owned()));
        let mine =
            ResolvedRequest { verb: Verb::Update, kind, version: None, name, subresource, options, ..call.again() };
        let propose = |current: Option<&Current>| {
            // A deleted budget forbids nothing.
            let Some(current) = current else { return Ok(Proposal::Plain(Decision::Keep.into())) };
            let spent = spent(&current.object, call.name(), &timestamp(self.env.now()))?;
            Ok(Proposal::Plain(Decision::Put(spent).into()))
        };
        self.transact(&mine, &mine.key(), propose).await.map(drop)
    }

    /// Sets the Pod's disruption condition before it is deleted. A precondition on its revision then applies to the marked Pod.
    async fn mark(&self, call: &mut ResolvedRequest) -> Result<(), Status> {
        if call.options.dry_run {
            return Ok(());
        }
        let mine = &ResolvedRequest { verb: Verb::Update, subresource: Some("status".into()), ..call.again() };
        let propose = |current: Option<&Current>| {
            let current = current.ok_or_else(|| mine.not_found())?;
            check_preconditions(mine, &current.object)?;
            if current.object.is_terminating() {
                return Ok(Proposal::Plain(Decision::Keep.into()));
            }
            let marked = marked(&current.object, &timestamp(self.env.now()));
            Ok(Proposal::Plain(Decision::Put(marked).into()))
        };
        let written = self.transact(mine, &mine.key(), propose).await?;
        let revision = Object::from_slice(&written.bytes)?.resource_version().to_owned();
        if let Some(wanted) = call.options.preconditions.as_mut().and_then(|p| p.resource_version.as_mut()) {
            *wanted = revision;
        }
        Ok(())
    }
}

/// The delete options of the eviction.
fn delete_options(asked: &Options, eviction: &Value) -> Result<Options, Status> {
    let mut options = asked.clone();
    let Some(given) = eviction.get("deleteOptions").filter(|v| !v.is_null()) else { return Ok(options) };
    options.grace_period_seconds = given["gracePeriodSeconds"].as_i64().or(options.grace_period_seconds);
    options.dry_run |= given["dryRun"].as_array().is_some_and(|stages| stages.iter().any(|stage| stage == "All"));
    if let Some(policy) = given["propagationPolicy"].as_str() {
        options.propagation_policy = Some(policy.to_owned());
    }
    if let Some(preconditions) = given.get("preconditions").filter(|v| !v.is_null()) {
        let parsed = serde_json::from_value(preconditions.clone());
        options.preconditions = Some(parsed.map_err(|e| Status::bad_request(e.to_string()))?);
    }
    Ok(options)
}

fn phase(pod: &Object) -> &str {
    pod.0["status"]["phase"].as_str().unwrap_or("")
}

/// It is finished or terminating, so evicting it disrupts nothing more.
fn has_ended(pod: &Object) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed") || pod.is_terminating()
}

/// It has not started, so there is nothing to disrupt.
fn is_pending(pod: &Object) -> bool {
    phase(pod) == "Pending"
}

/// Whether an unready Pod may be evicted without counting: always, or while enough Pods are healthy.
fn may_ignore(budget: &Object, pod: &Object) -> bool {
    let conditions = pod.0["status"]["conditions"].as_array();
    if conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True") {
        return false;
    }
    let (healthy, desired) = (count(budget, "currentHealthy"), count(budget, "desiredHealthy"));
    budget.0["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" || (healthy >= desired && desired > 0)
}

fn count(budget: &Object, field: &str) -> i64 {
    budget.0["status"][field].as_i64().unwrap_or(0)
}

/// The budget with one disruption less, and the Pod recorded; upstream's `checkAndDecrement`.
fn spent(old: &Object, pod: &str, now: &str) -> Result<Object, Status> {
    let name = old.name();
    let (observed, allowed) = (count(old, "observedGeneration"), count(old, "disruptionsAllowed"));
    let forbidden = |why: &str| Status::forbidden("poddisruptionbudgets", "policy", name, why);
    if observed < old.generation() {
        return Err(still_processed(name));
    }
    if allowed < 0 {
        return Err(forbidden("pdb disruptions allowed is negative"));
    }
    if old.0["status"]["disruptedPods"].as_object().is_some_and(|pods| pods.len() > MOST_DISRUPTED) {
        return Err(forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller"));
    }
    if allowed == 0 {
        let conditions = old.0["status"]["conditions"].as_array();
        let failed = conditions
            .into_iter()
            .flatten()
            .find(|c| c["type"] == "DisruptionAllowed" && c["status"] == "False" && c["reason"] == "SyncFailed");
        return Err(violated(&match failed {
            Some(condition) => format!(
                "The disruption budget {name} does not allow evicting pods currently because it failed sync: {}",
                condition["message"].as_str().unwrap_or("")
            ),
            None => format!(
                "The disruption budget {name} needs {} healthy pods and has {} currently",
                count(old, "desiredHealthy"),
                count(old, "currentHealthy")
            ),
        }));
    }
    let mut new = old.clone();
    let status = &mut new.0["status"];
    status["disruptionsAllowed"] = (allowed - 1).into();
    status["disruptedPods"][pod] = now.into();
    let condition = { status["conditions"].as_array_mut() }
        .and_then(|all| all.iter_mut().find(|c| c["type"] == "DisruptionAllowed" && c["status"] == "True"));
    if let Some(condition) = condition.filter(|_| allowed == 1) {
        condition["status"] = "False".into();
        condition["reason"] = "InsufficientPods".into();
        condition["lastTransitionTime"] = now.into();
        condition["observedGeneration"] = observed.into();
    }
    Ok(new)
}

/// The Pod with its condition `DisruptionTarget`.
fn marked(old: &Object, now: &str) -> Object {
    let mut pod = old.clone();
    let generation = old.generation();
    let conditions = &mut pod.0["status"]["conditions"];
    let mut all = conditions.as_array().cloned().unwrap_or_default();
    let since = all.iter().find(|c| c["type"] == "DisruptionTarget" && c["status"] == "True");
    let since = since.and_then(|c| c["lastTransitionTime"].as_str()).unwrap_or(now).to_owned();
    all.retain(|c| c["type"] != "DisruptionTarget");
    all.push(json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": since,
        "observedGeneration": generation,
    }));
    *conditions = all.into();
    pod
}

/// The budget forbids it: the client should retry.
fn violated(why: &str) -> Status {
    let cause = Cause { reason: "DisruptionBudget".into(), message: why.into(), field: String::new() };
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let mut status = Status::failure(429, "TooManyRequests", message);
    status.details.get_or_insert_default().causes.push(cause);
    status
}

/// The budget's status is not known yet.
fn still_processed(budget: &str) -> Status {
    let mut status = violated(&format!("The disruption budget {budget} is still being processed by the server."));
    status.details.get_or_insert_default().retry_after_seconds = Some(10);
    status
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::time::Instant;

    use super::*;
    use crate::Config;
    use crate::limits::{Held, InflightLimiter, Limits};
    use podwright_api::Env;
    use podwright_store::Memory;

    /// Large evictions hold all places, small ones all turns, and each needs what the others hold.
    #[tokio::test(start_paused = true)]
    async fn large_and_small_evictions_do_not_wait_for_each_other() {
        let server = &Server::open(Arc::new(Memory::new()), Env::system(), Config::default()).await.unwrap();
        let seats = &InflightLimiter::new(100, &Limits::default());
        let tenants = &["a", "b"].map(|name| User::new(name, Vec::<String>::new()));
        let look = |_| tokio::time::sleep(Duration::from_millis(10));
        let mut all = Vec::new();
        for n in 0..4 {
            let user = &tenants[n % 2];
            let held = Held::new(user, Some(seats.enter(user).await.unwrap()), None);
            let judged = async move { held.within(server.judge(user, &user.name, LARGE, look)).await };
            all.push(judged.boxed_local());
        }
        for n in 0..server.large.places() {
            let user = &tenants[n % 2];
            let place = server.large.enter(user, LARGE).now_or_never().expect("a place is free").unwrap();
            let held = Held::new(user, Some(seats.enter(user).await.unwrap()), place);
            let work = server.judge(user, &user.name, LARGE, look);
            let judged = async move { held.within(server.large.run(user, LARGE, work)).await };
            all.push(judged.boxed_local());
        }
        let begun = Instant::now();
        let outcomes = futures::future::join_all(all).await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    }

    /// A user who holds all turns does not make others wait forever.
    #[tokio::test(start_paused = true)]
    async fn an_eviction_waits_for_its_turn_as_long_as_requests_wait() {
        let server = &Server::open(Arc::new(Memory::new()), Env::system(), Config::default()).await.unwrap();
        let user = &User::new("a", Vec::<String>::new());
        let mut taken = Vec::new();
        while let Some(turn) = server.limiters.enter_to_judge(user, "a").now_or_never() {
            taken.push(turn.unwrap());
        }
        let begun = Instant::now();
        let refused = server.judge(user, "a", LARGE, |_| async {}).await.unwrap_err();
        assert_eq!((refused.code, begun.elapsed().as_secs()), (429, Limits::default().wait.as_secs()));
    }
}
