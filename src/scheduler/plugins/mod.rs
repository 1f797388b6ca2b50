//! The plugins, in filter order. One row here, one file each.

mod balanced_allocation;
mod default_binder;
mod default_preemption;
mod host_ports;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_name;
mod node_unschedulable;
mod pod_topology_spread;
pub mod priority_sort;
mod resource_scores;
mod resources_fit;
mod scheduling_gates;
mod taint_toleration;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

use super::framework::{ClusterEvent, ClusterEventKind, Row};
pub use default_preemption::REASON as PREEMPTED;
use podwright_api::configuration::{FieldError, Problem};

/// The table, with upstream's default weights.
/// <https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins>
pub static PLUGINS: &[Row] = &[
    scheduling_gates::ROW,
    priority_sort::ROW,
    node_unschedulable::ROW,
    node_name::ROW,
    taint_toleration::ROW,
    node_affinity::ROW,
    host_ports::ROW,
    resources_fit::ROW,
    volume_restrictions::ROW,
    volume_binding::ROW,
    volume_zone::ROW,
    pod_topology_spread::ROW,
    inter_pod_affinity::ROW,
    default_preemption::ROW,
    balanced_allocation::ROW,
    image_locality::ROW,
    default_binder::ROW,
];

/// Used as the plugin name if there were no nodes at all.
pub const NOBODY: &str = "";

/// Whether a change may help any Pod that this plugin rejected.
pub fn is_registered(plugin: &str, change: &ClusterEvent) -> bool {
    if plugin == NOBODY {
        return change.kind() == ClusterEventKind::NodeAdded;
    }
    PLUGINS.iter().any(|row| row.name == plugin && row.events_to_register.contains(&change.kind()))
}

/// Creates a plugin without arguments.
fn plain<P: super::framework::Plugin + Default + 'static>(
    args: &serde_json::Value,
) -> Result<Box<dyn super::framework::Plugin>, FieldError> {
    match args.as_object().and_then(|fields| fields.keys().next()) {
        Some(field) => Err(FieldError::new(field, Problem::Unknown)),
        None => Ok(Box::new(P::default())),
    }
}
