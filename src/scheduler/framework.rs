//! The contract of the rules: what a plugin may have a say in, and what it says.
//!
//! A plugin is a file in `plugins/` and a row of [`super::plugins::PLUGINS`]. Its extension points have upstream's names:
//! PreEnqueue, PreFilter (what is computed once per Pod, as a closure that Filter asks of each node), Filter, PostFilter,
//! Score (which sees all nodes that fit at once, so PreScore and NormalizeScore are parts of it), Reserve and PreBind (what
//! has to be written, and waited for, before the Pod is bound). QueueSort is the order of [`super::queue::Queue`]; Bind is
//! the driver's write.
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

/// A plugin has kept a Pod from a node that was chosen for it, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("running {} plugin {plugin:?}: {why}", .point.name())]
pub struct PluginError {
    pub point: Point,
    pub plugin: &'static str,
    pub why: Reason,
}

/// What PostFilter came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PostFilter {
    pub nomination: Nomination,
    /// What is told of it beside the reasons of the nodes.
    pub message: String,
}

/// What becomes of the node on which room was to be made for a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Nomination {
    /// It stays as it is.
    #[default]
    Keep,
    /// There is none any more.
    Clear,
    /// Room is to be made by deleting these Pods, the most important one first.
    Preempt { node: String, victims: Vec<(Key, String)> },
}

/// What is to be done before a Pod is bound to the node that was chosen for it.
#[derive(Debug)]
pub struct PreBind {
    /// Who has it done.
    pub plugin: &'static str,
    /// Written in this order, until one is refused.
    pub writes: Vec<Request>,
    /// The node is kept for the Pod so long at most until the plugin says that it is ready.
    pub patience: Duration,
}

/// What happened in the cluster, as far as it may help a parked Pod.
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
    /// A Pod on a node has other labels, or is being deleted: how it was and is.
    PodChanged(Arc<PodInfo>, Arc<PodInfo>),
    /// A Pod left its node, or asks for less.
    PodRemoved(Arc<PodInfo>),
    /// Labels of a namespace.
    Namespace,
    /// A claim is there, or is another.
    Claim(Key),
    /// A volume, as it was and is; none: it was not there. Likewise a class of storage.
    Volume(Option<Arc<PersistentVolume>>, Arc<PersistentVolume>),
    Class(Option<Arc<StorageClass>>, Arc<StorageClass>),
}

impl ClusterEvent {
    /// Upstream's name of such an event.
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

    /// Whether a Pod may be in want of another node if this happens where room is being made for it: the node may be out of
    /// the question now, or what became free there may have been taken.
    pub fn may_end_hopes(&self) -> bool {
        use ClusterEventKind::{NodeAllocatable, NodeLabels, NodeTaints, NodeUnschedulable, PodRemoved};
        matches!(self.kind(), NodeAllocatable | NodeLabels | NodeTaints | NodeUnschedulable | PodRemoved)
    }
}

/// Whether a change may help a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueingHint {
    No,
    /// On the node where it happened, if that fits now.
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

/// What a plugin may ask of the profile that it is a part of (upstream's `Handle`).
pub trait Handle {
    /// All filters of a Pod.
    ///
    /// # Errors
    /// A plugin has refused the Pod.
    fn filters<'c>(&'c self, pod: &'c PodInfo, cluster: &'c Cluster) -> Result<Filters<'c>, Refusal>;
}

/// A scheduling rule, as one profile has set it up.
pub trait Plugin: Send + Sync {
    /// Why a Pod is not even put in line; none: it is.
    fn pre_enqueue(&self, _pod: &PodInfo) -> Option<Reason> {
        None
    }

    /// Has the cluster keep by increments what will be asked of it for this Pod.
    fn prepare(&self, _pod: &PodInfo, _cluster: &mut Cluster) {}

    fn pre_filter<'c>(&'c self, _pod: &'c PodInfo, _cluster: &'c Cluster) -> PreFilter<'c> {
        PreFilter::Skip
    }

    /// No node fits: what can be done about it?
    fn post_filter(&self, _: &PodInfo, _: &Cluster, _: &dyn Handle, _: &Search, _: &Env) -> Option<PostFilter> {
        None
    }

    /// Ranks nodes that fit, into `points`: 0..=100 each, the higher the better. False: it makes no difference.
    fn score(&self, _pod: &PodInfo, _cluster: &Cluster, _nodes: &[&NodeInfo], _points: &mut [i64]) -> bool {
        false
    }

    /// Keeps in the cluster what a Pod needs on the node that was chosen for it, for none else to get it. With something to
    /// be done first, the Pod is bound once that is written and `is_ready`.
    fn reserve(&self, _pod: &PodInfo, _node: &str, _: &mut Cluster) -> Result<Option<PreBind>, Reason> {
        Ok(None)
    }

    /// Whether what the Pod waits for is there; an error: it will not come.
    fn is_ready(&self, _pod: &PodInfo, _: &NodeInfo, _: &Cluster) -> Result<bool, Reason> {
        Ok(true)
    }

    /// Gives back what was kept for a Pod: it is bound, or will not be.
    fn unreserve(&self, _pod: &PodInfo, _: &mut Cluster) {}

    /// Whether a change of a kind that this plugin hears of may help a Pod that it turned away.
    fn queueing_hint(&self, _pod: &PodInfo, _change: &ClusterEvent) -> QueueingHint {
        QueueingHint::Here
    }
}

/// A row of the table of plugins.
pub struct Row {
    /// Upstream's name.
    pub name: &'static str,
    /// Of its scores, by default.
    pub weight: i64,
    pub points: &'static [Point],
    /// The changes that may help Pods that it turned away; of all others these are not even asked about.
    pub events_to_register: &'static [ClusterEventKind],
    /// Sets it up with its `args`, null where there are none.
    pub make: fn(&Value) -> Result<Box<dyn Plugin>, FieldError>,
}

pub const MAX_SCORE: i64 = 100;

/// The highest becomes 100, or with `reversed` the highest becomes 0 (upstream's `DefaultNormalizeScore`).
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

/// A plugin's arguments, strictly decoded: none are its defaults.
pub fn args<T>(value: &Value) -> Result<T, FieldError>
where
    T: Default + serde::Serialize + serde::de::DeserializeOwned,
{
    if value.is_null() { Ok(T::default()) } else { strict::decode(value) }
}
