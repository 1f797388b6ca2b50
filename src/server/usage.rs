//! The resource metrics API (`metrics.k8s.io`): the last report of each node, in memory only.
//!
//! A node's agent puts its report to `nodes/<name>/usage`: the node authorizer restricts it to its own, and a Pod's metrics are
//! only ever those from the node that it is bound to. Old reports, and those of deleted nodes, are neither shown nor kept.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use podwright_api::metrics::{ContainerUsage, GROUP, NodeUsage, PodUsage, Report};
use podwright_api::request::{Body, List};
use podwright_api::{Kind, Response, Status, Verb, duration, kinds};

use super::cache::item::Item;
use super::resolved_request::ResolvedRequest;
use super::timestamp::timestamp;
use super::watch::selection::Selection;
use super::{Server, get, list};

/// How long a report is valid: agents report every 15 s.
const FRESH: SignedDuration = SignedDuration::from_secs(60);
/// How often invalid reports are removed.
const PURGE_EVERY: SignedDuration = SignedDuration::from_secs(30);
/// The most containers of one Pod, and the longest name of one (a DNS label).
const MOST_CONTAINERS: usize = 1024;
const LONGEST_NAME: usize = 63;
/// The longest window that a report may claim.
const LONGEST_WINDOW_MS: u64 = 3_600_000;
/// How far a node's clock may be off before its times are replaced.
const MOST_SKEW: SignedDuration = SignedDuration::from_hours(1);

/// The last report of each node.
#[derive(Default)]
pub(super) struct Usages(RwLock<Kept>);

#[derive(Default)]
struct Kept {
    by_node: HashMap<String, Node>,
    purged: Timestamp,
}

/// One node's report.
struct Node {
    /// By the server's clock.
    received: Timestamp,
    /// By the node's clock.
    time: Timestamp,
    node: Option<NodeUsage>,
    /// By namespace and name, as in the Pods' keys.
    pods: HashMap<String, PodUsage>,
}

impl Node {
    fn is_fresh(&self, now: Timestamp) -> bool {
        now.duration_since(self.received) < FRESH
    }
}

impl Usages {
    fn put(&self, name: &str, node: Node, is_there: impl Fn(&str) -> bool) {
        let now = node.received;
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        kept.by_node.insert(name.to_owned(), node);
        if now.duration_since(kept.purged) >= PURGE_EVERY {
            kept.purged = now;
            kept.by_node.retain(|name, node| node.is_fresh(now) && is_there(name));
        }
    }

    /// The node's last report, if it is valid.
    fn read<T>(&self, node: &str, now: Timestamp, of: impl FnOnce(&Node) -> Option<T>) -> Option<T> {
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        kept.by_node.get(node).filter(|node| node.is_fresh(now)).and_then(of)
    }
}

/// What metrics contain of their object.
#[derive(Deserialize)]
struct Described {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    labels: Value,
}

impl Metadata {
    fn of(item: &Item) -> Option<Metadata> {
        // Stored objects always parse.
        serde_json::from_slice::<Described>(&item.bytes).ok().map(|described| described.metadata)
    }
}

/// `pods` and `nodes` of the core group, the kinds with metrics.
fn core(plural: &str) -> Result<&'static Kind, Status> {
    kinds::lookup(plural).ok_or_else(|| Status::internal(format!("no {plural}")))
}

impl Server {
    /// Accepts a node's report. Pods that are not bound to the node are dropped: its information may be older than the server's.
    pub(super) async fn take_usage(&self, mut call: ResolvedRequest) -> Result<Response, Status> {
        let body = call.take_body()?;
        let report = Report::deserialize(body).map_err(|why| Status::bad_request(format!("usage: {why}")))?;
        let strange = |c: &ContainerUsage| c.name.is_empty() || c.name.len() > LONGEST_NAME;
        if let Some(pod) =
            report.pods.iter().find(|p| p.containers.len() > MOST_CONTAINERS || p.containers.iter().any(strange))
        {
            return Err(Status::bad_request(format!("usage: {}/{} has no such containers", pod.namespace, pod.name)));
        }
        let windows = report.pods.iter().map(|pod| pod.window_ms).chain(report.node.iter().map(|node| node.window_ms));
        if let Some(long) = windows.max().filter(|window| *window > LONGEST_WINDOW_MS) {
            return Err(Status::bad_request(format!("usage: windowMs: {long}: must be at most {LONGEST_WINDOW_MS}")));
        }
        self.cache.fresh().await?;
        let name = call.name().to_owned();
        let pods = core("pods")?;
        if !self.has_node(&name) {
            return Err(call.not_found());
        }
        let resource = self.cache.resource(pods);
        let own = |pod: &PodUsage| {
            let item = resource.get(&pods.key(Some(&pod.namespace), &pod.name));
            item.is_some_and(|item| item.field(pods, "spec.nodeName") == name)
        };
        let kept = report.pods.into_iter().filter(own);
        let by_name = kept.map(|pod| (format!("{}/{}", pod.namespace, pod.name), pod)).collect();
        if call.options.dry_run {
            return Ok(get::status(Status::success()));
        }
        let now = self.env.now();
        // If the node's clock is far off, the time of receipt is used.
        let is_near = now.duration_since(report.time).abs() < MOST_SKEW;
        let time = if is_near { report.time } else { now };
        let node = Node { received: now, time, node: report.node, pods: by_name };
        self.usages.put(&name, node, |node| self.has_node(node));
        Ok(get::status(Status::success()))
    }

    /// `get` and `list` of PodMetrics and NodeMetrics.
    pub(super) async fn read_usage(&self, call: &ResolvedRequest) -> Result<Response, Status> {
        let subject = core(call.kind.plural)?;
        self.cache.fresh().await?;
        if call.verb == Verb::Get {
            let key = subject.key(call.namespace.as_deref(), call.name());
            let missing = || Status::not_found(subject.plural, subject.group, call.name());
            let item = self.cache.resource(subject).get(&key).ok_or_else(missing)?;
            let shown = self.metrics_of(call.kind, subject, &item);
            return shown.map(|bytes| get::object(bytes, false)).ok_or_else(|| no_metrics(call));
        }
        let selection = Selection::of(call)?;
        let resource = self.cache.resource(subject);
        let all = resource.read().range(&list::prefix(subject, &selection), None).cloned().collect();
        let selected = self.matching(call, subject, &selection, all, usize::MAX).await?;
        let items = selected.iter().filter_map(|item| self.metrics_of(call.kind, subject, item)).collect();
        let (kind, api_version) = (call.kind.list_kind(), call.kind.api_version());
        Ok(Body::List(List { kind, api_version, items, ..List::default() }).into())
    }

    pub(super) fn has_node(&self, name: &str) -> bool {
        core("nodes").is_ok_and(|nodes| self.cache.resource(nodes).get(&nodes.key(None, name)).is_some())
    }

    /// The metrics of one Pod or Node, if there are any.
    fn metrics_of(&self, kind: &Kind, subject: &Kind, item: &Item) -> Option<Bytes> {
        let now = self.env.now();
        let (described, time, window, (field, usage)) = if kind.namespaced {
            let name = format!("{}/{}", item.namespace(subject), item.name());
            let reported = |node: &Node| Some((node.time, node.pods.get(&name)?.clone()));
            let node = item.field(subject, "spec.nodeName");
            let (time, pod) = self.usages.read(node, now, reported).filter(|_| self.has_node(node))?;
            // An earlier Pod may have had this name a moment ago.
            let described = Metadata::of(item).filter(|metadata| metadata.uid == pod.uid)?;
            let container = |c: &ContainerUsage| json!({"name": c.name, "usage": c.usage.quantities()});
            (described, time, pod.window_ms, ("containers", pod.containers.iter().map(container).collect::<Value>()))
        } else {
            let reported = |node: &Node| Some((node.time, node.node.clone()?));
            let (time, node) = self.usages.read(item.name(), now, reported)?;
            (Metadata::of(item)?, time, node.window_ms, ("usage", json!(node.usage.quantities())))
        };
        let mut metadata = json!({"name": item.name(), "creationTimestamp": timestamp(now)});
        if kind.namespaced {
            metadata["namespace"] = item.namespace(subject).into();
        }
        if described.labels.is_object() {
            metadata["labels"] = described.labels;
        }
        let shown = json!({
            "apiVersion": kind.api_version(), "kind": kind.kind, "metadata": metadata,
            "timestamp": timestamp(time), "window": duration::go(Duration::from_millis(window)), field: usage,
        });
        Some(shown.to_string().into())
    }
}

/// The object exists without metrics: in metrics-server's words.
fn no_metrics(call: &ResolvedRequest) -> Status {
    let (resource, name) = match &call.namespace {
        Some(namespace) => ("podmetrics", format!("{namespace}/{}", call.name())),
        None => ("nodemetrics", call.name().to_owned()),
    };
    Status::not_found(resource, GROUP, &name)
}
