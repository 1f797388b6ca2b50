//! The plugin contract: extension points and their results.
//!
//! A plugin is a file in `plugins/` and a row of [`super::plugins::PLUGINS`]. Its extension points have upstream's names:
//! PreEnqueue, PreFilter (computed once per Pod, as a closure that Filter runs for each node), Filter, PostFilter, Score (which
//! sees all feasible nodes at once, and so includes PreScore and NormalizeScore), Reserve and PreBind (what must be written, and
//! waited for, before the Pod is bound). QueueSort is the order of [`super::queue::Queue`]; Bind is the driver's write.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/scheduling-framework/>

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{core::v1::PersistentVolume, storage::v1::StorageClass};
use serde_json::Value;

use super::{
    cluster::{Cluster, NodeInfo},
    pod::PodInfo,
    search::Search,
    strict,
};
pub use super::{
    filters::{Filter, Filters, PreFilter, Reason, Refusal, Rejection},
    point::Point,
};
use podwright_api::{Env, Request, configuration::FieldError};
use podwright_client::Key;

/// A plugin prevents a Pod from using its chosen node, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("running {} plugin {plugin:?}: {why}", .point.name())]
pub struct PluginError {
    pub point: Point,
    pub plugin: &'static str,
    pub why: Reason,
}

/// The result of PostFilter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PostFilter {
    pub nomination: Nomination,
    /// Added to the nodes' reasons.
    pub message: String,
}

/// What happens to a Pod's nominated node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Nomination {
    /// It is unchanged.
    #[default]
    Keep,
    /// It is cleared.
    Clear,
    /// Make room by deleting these Pods, the most important one first.
    Preempt { node: String, victims: Vec<(Key, String)> },
}

/// Prerequisites of binding a Pod to its chosen node.
#[derive(Debug)]
pub struct PreBind {
    /// The plugin that requires them.
    pub plugin: &'static str,
    /// Written in this order, until one is refused.
    pub writes: Vec<Request>,
    /// How long the node is reserved at most until the plugin is ready.
    pub patience: Duration,
}

/// A change in the cluster that may help a parked Pod.
#[derive(Clone, Debug)]
pub enum ClusterEvent {
    NodeAdded,
    NodeRemoved,
    NodeAllocatable,
    NodeLabels,
    NodeTaints,
    NodeUnschedulable,
    /// A Pod is on a node.
    PodAdded(Arc<PodInfo>),
    /// The labels or termination of a Pod on a node changed: old and new.
    PodChanged(Arc<PodInfo>, Arc<PodInfo>),
    /// A Pod left its node, or requests less.
    PodRemoved(Arc<PodInfo>),
    /// The labels of a namespace changed.
    Namespace,
    /// A claim is new or has changed.
    Claim(Key),
    /// A volume, old and new; `None`: it is new. Also for storage classes.
    Volume(Option<Arc<PersistentVolume>>, Arc<PersistentVolume>),
    Class(Option<Arc<StorageClass>>, Arc<StorageClass>),
}

impl ClusterEvent {
    /// Upstream's name of the event.
    pub fn label(&self) -> &'static str {
        match self {
            ClusterEvent::NodeAdded => "NodeAdd",
            ClusterEvent::NodeRemoved => "NodeDelete",
            ClusterEvent::NodeAllocatable => "NodeAllocatableChange",
            ClusterEvent::NodeLabels => "NodeLabelChange",
            ClusterEvent::NodeTaints => "NodeTaintChange",
            ClusterEvent::NodeUnschedulable => "NodeSpecUnschedulableChange",
            ClusterEvent::PodAdded(_) => "AssignedPodAdd",
            ClusterEvent::PodChanged(..) => "AssignedPodUpdate",
            ClusterEvent::PodRemoved(_) => "AssignedPodDelete",
            ClusterEvent::Namespace => "NamespaceUpdate",
            ClusterEvent::Claim(_) => "PersistentVolumeClaimUpdate",
            ClusterEvent::Volume(None, _) => "PersistentVolumeAdd",
            ClusterEvent::Volume(Some(_), _) => "PersistentVolumeUpdate",
            ClusterEvent::Class(None, _) => "StorageClassAdd",
            ClusterEvent::Class(Some(_), _) => "StorageClassUpdate",
        }
    }
}

/// The kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterEventKind {
    NodeAdded,
    NodeRemoved,
    NodeAllocatable,
    NodeLabels,
    NodeTaints,
    NodeUnschedulable,
    PodAdded,
    PodChanged,
    PodRemoved,
    Namespace,
    Claim,
    Volume,
    Class,
}

impl ClusterEvent {
    pub fn kind(&self) -> ClusterEventKind {
        match self {
            ClusterEvent::NodeAdded => ClusterEventKind::NodeAdded,
            ClusterEvent::NodeRemoved => ClusterEventKind::NodeRemoved,
            ClusterEvent::NodeAllocatable => ClusterEventKind::NodeAllocatable,
            ClusterEvent::NodeLabels => ClusterEventKind::NodeLabels,
            ClusterEvent::NodeTaints => ClusterEventKind::NodeTaints,
            ClusterEvent::NodeUnschedulable => ClusterEventKind::NodeUnschedulable,
            ClusterEvent::PodAdded(_) => ClusterEventKind::PodAdded,
            ClusterEvent::PodChanged(..) => ClusterEventKind::PodChanged,
            ClusterEvent::PodRemoved(_) => ClusterEventKind::PodRemoved,
            ClusterEvent::Namespace => ClusterEventKind::Namespace,
            ClusterEvent::Claim(_) => ClusterEventKind::Claim,
            ClusterEvent::Volume(..) => ClusterEventKind::Volume,
            ClusterEvent::Class(..) => ClusterEventKind::Class,
        }
    }

    /// Whether this may invalidate the nomination of a Pod on the node where it happens: the node may be unsuitable now, or the
    /// freed room taken.
    pub fn may_end_hopes(&self) -> bool {
        use ClusterEventKind::{NodeAllocatable, NodeLabels, NodeTaints, NodeUnschedulable, PodRemoved};
        matches!(self.kind(), NodeAllocatable | NodeLabels | NodeTaints | NodeUnschedulable | PodRemoved)
    }
}

/// Whether a change may help a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueingHint {
    No,
    /// On the node where it happened, if it fits there now.
    Here,
    /// On any node.
    Anywhere,
}

impl QueueingHint {
    pub fn here(yes: bool) -> QueueingHint {
        if yes { QueueingHint::Here } else { QueueingHint::No }
    }
    pub fn anywhere(yes: bool) -> QueueingHint {
        if yes { QueueingHint::Anywhere } else { QueueingHint::No }
    }
}

/// What a plugin may request from its profile (upstream's `Handle`).
pub trait Handle {
    /// All filters of a Pod.
    ///
    /// # Errors
    ///
    /// A plugin rejected the Pod.
    fn filters<'c>(&'c self, pod: &'c PodInfo, cluster: &'c Cluster) -> Result<Filters<'c>, Refusal>;
}

/// A scheduling plugin, configured by a profile.
pub trait Plugin: Send + Sync {
    /// Why a Pod is not queued at all; `None`: it is.
    fn pre_enqueue(&self, _pod: &PodInfo) -> Option<Reason> {
        None
    }

    /// Prepares incremental indexes in the cluster for this Pod.
    fn prepare(&self, _pod: &PodInfo, _cluster: &mut Cluster) {}

    fn pre_filter<'c>(&'c self, _pod: &'c PodInfo, _cluster: &'c Cluster) -> PreFilter<'c> {
        PreFilter::Skip
    }

    /// No node fits: decides what to do about it.
    fn post_filter(&self, _: &PodInfo, _: &Cluster, _: &dyn Handle, _: &Search, _: &Env) -> Option<PostFilter> {
        None
    }

    /// Scores feasible nodes in `points`: 0..=100 each, higher is better. False: no preference.
    fn score(&self, _pod: &PodInfo, _cluster: &Cluster, _nodes: &[&NodeInfo], _points: &mut [i64]) -> bool {
        false
    }

    /// Reserves in the cluster what a Pod needs on its chosen node. With a PreBind result, the Pod is bound once that is written
    /// and `is_ready`.
    fn reserve(&self, _pod: &PodInfo, _node: &str, _: &mut Cluster) -> Result<Option<PreBind>, Reason> {
        Ok(None)
    }

    /// Whether the prerequisites are ready; an error: they never will be.
    fn is_ready(&self, _pod: &PodInfo, _: &NodeInfo, _: &Cluster) -> Result<bool, Reason> {
        Ok(true)
    }

    /// Releases a reservation: the Pod is bound, or will not be.
    fn unreserve(&self, _pod: &PodInfo, _: &mut Cluster) {}

    /// Whether a change of a registered kind may help a Pod that this plugin rejected.
    fn queueing_hint(&self, _pod: &PodInfo, _change: &ClusterEvent) -> QueueingHint {
        QueueingHint::Here
    }
}

/// A row of the table of plugins.
pub struct Row {
    /// Upstream's name.
    pub name: &'static str,
    /// The default weight of its scores.
    pub weight: i64,
    pub points: &'static [Point],
    /// The changes that may help Pods that it rejected; for all others it is not called.
    pub events_to_register: &'static [ClusterEventKind],
    /// Creates it with its `args`, null if there are none.
    pub make: fn(&Value) -> Result<Box<dyn Plugin>, FieldError>,
}

pub const MAX_SCORE: i64 = 100;

/// Scales the highest to 100, or with `reversed` to 0 (upstream's `DefaultNormalizeScore`).
pub fn normalize(points: &mut [i64], reversed: bool) {
    let highest = points.iter().copied().max().unwrap_or(0);
    for points in points.iter_mut() {
        *points = match (reversed, highest) {
            (true, 0) => MAX_SCORE,
            (false, 0) => 0,
            (true, _) => MAX_SCORE - *points * MAX_SCORE / highest,
            (false, _) => *points * MAX_SCORE / highest,
        };
    }
}

/// A plugin's arguments, strictly decoded; the defaults if there are none.
pub fn args<T>(value: &Value) -> Result<T, FieldError>
where
    T: Default + serde::Serialize + serde::de::DeserializeOwned,
{
    if value.is_null() { Ok(T::default()) } else { strict::decode(value) }
}
