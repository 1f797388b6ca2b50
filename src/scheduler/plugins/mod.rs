//! The rules, in the order in which they filter. One row here, one file each.

mod balanced_allocation;
mod host_ports;
mod least_allocated;
mod node_affinity;
mod node_name;
mod node_unschedulable;
mod resources_fit;
mod taint_toleration;

use super::framework::Plugin;

/// The table, with upstream's default weights.
/// <https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins>
pub static PLUGINS: &[Plugin] = &[
    node_unschedulable::PLUGIN,
    node_name::PLUGIN,
    taint_toleration::PLUGIN,
    node_affinity::PLUGIN,
    host_ports::PLUGIN,
    resources_fit::PLUGIN,
    least_allocated::PLUGIN,
    balanced_allocation::PLUGIN,
];
