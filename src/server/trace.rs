//! The control plane's part of `podwright trace`: the accepted writes of recent objects, with time and author.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use podwright_api::rpc::Step;
use podwright_api::spans;
use podwright_api::{Object, Response, Status};

use super::authorize::{attributes::MASTERS, node::node_of};
use super::resolved_request::ResolvedRequest;
use super::{Server, get, traced};

/// The number of most recently created objects that are remembered, and of the steps of each: its first ones, which show how it was
/// created, and its latest.
const OBJECTS: usize = 1024;
const FIRST: usize = 12;
const LATEST: usize = 8;
/// The longest note that is kept, in bytes: clients may send one.
const NOTE: usize = 1 << 10;
/// The longest chain of owners.
const OWNERS: usize = 4;

/// A bounded history of accepted writes.
#[derive(Default)]
pub(super) struct Trace(Mutex<State>);

#[derive(Default)]
struct State {
    by_uid: HashMap<String, Story>,
    /// The uids in order of their first step.
    order: VecDeque<String>,
}

#[derive(Default)]
struct Story {
    first: Vec<Step>,
    latest: VecDeque<Step>,
    /// The uid of the controlling owner.
    owner: Option<String>,
}

impl Trace {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Records an accepted write of a Pod, or of an object that creates Pods from a template; others are irrelevant for a Pod's
    /// history.
    pub fn record(&self, call: &ResolvedRequest, object: &Object, revision: u64, came: Timestamp, took: Duration) {
        if !traced::makes_pods(call, object) {
            return;
        }
        let step = Step {
            time: came.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
            duration_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            revision,
            verb: format!("{:?}", call.verb).to_lowercase(),
            subresource: call.subresource.clone().unwrap_or_default(),
            kind: call.kind.kind.to_owned(),
            namespace: object.namespace().unwrap_or("").to_owned(),
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
            user: call.user.name.clone(),
            manager: call.options.field_manager.clone().unwrap_or_default(),
            note: call.options.note.as_deref().map_or("", short).to_owned(),
        };
        let mut state = self.lock();
        if !state.by_uid.contains_key(&step.uid) {
            if state.order.len() == OBJECTS
                && let Some(oldest) = state.order.pop_front()
            {
                state.by_uid.remove(&oldest);
            }
            state.order.push_back(step.uid.clone());
        }
        let story = state.by_uid.entry(step.uid.clone()).or_default();
        story.owner = object.controller().map(|owner| owner.uid).or(story.owner.take());
        if story.first.len() < FIRST {
            story.first.push(step);
            return;
        }
        if story.latest.len() == LATEST {
            story.latest.pop_front();
        }
        story.latest.push_back(step);
    }

    /// The steps of an object and of its owners, in order. Owners are looked up in its own namespace only: the object's writer
    /// chooses the uids, and may not be allowed to read everywhere.
    fn steps(&self, namespace: &str, uid: &str) -> Vec<Step> {
        let state = self.lock();
        let is_near = |story: &&Story| story.first.iter().all(|step| step.namespace == namespace);
        let mut steps = Vec::new();
        let mut next = Some(uid);
        for _ in 0..OWNERS {
            let Some(story) = next.and_then(|uid| state.by_uid.get(uid)).filter(is_near) else { break };
            steps.extend(story.first.iter().chain(&story.latest).cloned());
            next = story.owner.as_deref();
        }
        steps.sort_by_key(|step| step.revision);
        steps
    }
}

/// The beginning of a note, as far as it is kept.
fn short(note: &str) -> &str {
    let ends = note.char_indices().map(|(at, c)| at + c.len_utf8());
    &note[..ends.take_while(|end| *end <= NOTE).last().unwrap_or(0)]
}

impl Server {
    /// The steps of a Pod, for `podwright trace`; including those before it was scheduled.
    pub(super) async fn get_trace(&self, call: &ResolvedRequest) -> Result<Response, Status> {
        self.cache.fresh().await?;
        let item = self.cache.resource(call.kind).get(&call.key()).ok_or_else(|| call.not_found())?;
        // A node gets the trace that its Pod's start belongs to; other users get the history.
        let is_node = node_of(&call.user).is_some();
        let steps = if is_node { Vec::new() } else { self.trace.steps(call.within(), item.uid()) };
        let mut trace = json!({
            "apiVersion": "podwright/v1", "kind": "Trace",
            "metadata": {"name": item.name(), "namespace": call.within(), "uid": item.uid()},
            "items": steps,
        });
        if (is_node || call.user.is_in(MASTERS))
            && let Some(link) = spans::cause_of(item.uid())
        {
            trace[spans::TRACEPARENT] = link.traceparent().into();
        }
        Ok(get::object(trace.to_string().into(), false))
    }
}
