//! The kinds table: one row per kind. Everything generic (server verbs, discovery, CLI, storage keys) reads it. `kind.rs` documents
//! the fields of a row.
//!
//! To add a kind: a file in `kinds/` with its row (the k8s-openapi type that its names, scope and schema come from, short names,
//! columns) and its specifics (defaults, validation); its line in `KINDS`; its type's name in `src/api/build.rs`, which includes
//! the schema; and the merge keys of its own lists in `schema/merge_keys.rs`. Verbs, decoding, patches, selectors, watches,
//! discovery and the CLI then support it.

use std::sync::LazyLock;

pub mod api_service;
mod binding;
mod certificate_signing_request;
mod component_status;
mod config_map;
mod controller_revision;
pub mod cron_job;
mod csi_driver;
mod csi_node;
mod csi_storage_capacity;
pub mod custom;
mod custom_resource_definition;
mod daemon_set;
pub mod definition;
mod deployment;
mod dynamic_resources;
mod endpoint_slice;
mod endpoints;
mod event;
mod flow_schema;
mod horizontal_pod_autoscaler;
mod ingress;
mod ingress_class;
mod ip_address;
pub mod job;
mod kind;
mod lease;
mod limit_range;
mod metrics;
mod namespace;
mod namespace_identity;
mod network_policy;
mod node;
pub mod order;
mod persistent_volume;
mod persistent_volume_claim;
mod pod;
mod pod_disruption_budget;
mod pod_identity;
mod pod_template;
mod priority_class;
mod priority_level_configuration;
pub mod registry;
mod replica_set;
mod replication_controller;
mod resource_quota;
mod review;
mod role;
mod role_binding;
mod runtime_class;
mod scale;
mod secret;
mod service;
mod service_account;
mod service_cidr;
mod stateful_set;
pub mod storage_class;
mod validating_admission_policy;
mod volume_attachment;
mod volume_attributes_class;
mod webhook_configuration;

pub use kind::{Conversion, Kind, Scope, Source, Storage, Strategy, VERBS, View};
pub use scale::Scale;

/// The table: groups in upstream's order, each group's first version first.
pub static KINDS: &[Kind] = &[
    // core
    binding::KIND,
    component_status::KIND,
    config_map::KIND,
    endpoints::KIND,
    event::KIND,
    limit_range::KIND,
    namespace::KIND,
    node::KIND,
    persistent_volume::KIND,
    persistent_volume_claim::KIND,
    pod::KIND,
    pod_template::KIND,
    replication_controller::KIND,
    resource_quota::KIND,
    secret::KIND,
    service::KIND,
    service_account::KIND,
    // apiregistration.k8s.io
    api_service::KIND,
    // apps
    controller_revision::KIND,
    daemon_set::KIND,
    deployment::KIND,
    replica_set::KIND,
    stateful_set::KIND,
    // events.k8s.io
    event::V1,
    // autoscaling
    horizontal_pod_autoscaler::KIND,
    horizontal_pod_autoscaler::V1,
    // batch
    cron_job::KIND,
    job::KIND,
    // authentication.k8s.io, authorization.k8s.io
    review::TOKEN,
    review::SELF_SUBJECT,
    review::LOCAL_SUBJECT_ACCESS,
    review::SELF_SUBJECT_ACCESS,
    review::SELF_SUBJECT_RULES,
    review::SUBJECT_ACCESS,
    // certificates.k8s.io
    certificate_signing_request::KIND,
    // networking.k8s.io
    ingress::KIND,
    ingress_class::KIND,
    ip_address::KIND,
    network_policy::KIND,
    service_cidr::KIND,
    // policy
    pod_disruption_budget::KIND,
    // rbac.authorization.k8s.io
    role_binding::CLUSTER_ROLE_BINDING,
    role::CLUSTER_ROLE,
    role_binding::ROLE_BINDING,
    role::ROLE,
    // storage.k8s.io
    csi_driver::KIND,
    csi_node::KIND,
    csi_storage_capacity::KIND,
    storage_class::KIND,
    volume_attachment::KIND,
    volume_attributes_class::KIND,
    // admissionregistration.k8s.io
    webhook_configuration::MUTATING,
    validating_admission_policy::POLICY,
    validating_admission_policy::BINDING,
    webhook_configuration::VALIDATING,
    // apiextensions.k8s.io
    custom_resource_definition::KIND,
    // scheduling.k8s.io
    priority_class::KIND,
    // coordination.k8s.io
    lease::KIND,
    // node.k8s.io
    runtime_class::KIND,
    // discovery.k8s.io
    endpoint_slice::KIND,
    // flowcontrol.apiserver.k8s.io
    flow_schema::KIND,
    priority_level_configuration::KIND,
    // resource.k8s.io
    dynamic_resources::DEVICE_CLASS,
    dynamic_resources::RESOURCE_CLAIM,
    dynamic_resources::RESOURCE_CLAIM_TEMPLATE,
    dynamic_resources::RESOURCE_SLICE,
    // network.podwright.io
    namespace_identity::KIND,
    pod_identity::KIND,
    // metrics.k8s.io: after the core group, whose names its resources share
    metrics::NODE,
    metrics::POD,
];

/// The rows of stored objects: one per kind, whatever its versions.
pub fn stored() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|kind| kind.is_stored())
}

/// The rows whose objects are derived from those of a row.
pub fn views_of(source: &Kind) -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(move |kind| kind.view().is_some_and(|view| std::ptr::eq((view.source)(), source)))
}

/// Lower-case names with their rows: plural, singular and short names.
static NAMES: LazyLock<std::collections::HashMap<String, &'static Kind>> = LazyLock::new(|| {
    let mut names = std::collections::HashMap::new();
    for kind in KINDS {
        let own = [kind.plural, kind.singular].into_iter().chain(kind.short_names.iter().copied());
        for name in own {
            // The first row wins, like upstream's first group.
            names.entry(name.to_ascii_lowercase()).or_insert(kind);
        }
    }
    names
});

/// Finds a kind by plural, singular, short name or Kind, in any case, with or without its group: `po`, `deployments.apps`,
/// `Deployment`, `deployments.v1.apps`.
pub fn lookup(name: &str) -> Option<&'static Kind> {
    let name = name.to_ascii_lowercase();
    if let Some(kind) = NAMES.get(name.as_str()) {
        return Some(kind);
    }
    let (resource, rest) = name.split_once('.')?;
    KINDS.iter().find(|k| {
        let is_it = k.plural == resource || k.singular == resource || k.short_names.contains(&resource);
        let versioned = || match rest.strip_prefix(k.version) {
            Some("") => k.group.is_empty(),
            Some(group) => group.strip_prefix('.') == Some(k.group),
            None => false,
        };
        is_it && (rest == k.group || versioned())
    })
}

/// The row of a stored version, by a literal in the row of another version of the same kind.
fn row(api_version: &str, kind: &str) -> &'static Kind {
    // The invariant: the table contains every such literal; a test converts every row.
    of(api_version, kind).expect("a row names a row of the table")
}

/// Finds a kind by an object's `apiVersion` and `kind`.
pub fn of(api_version: &str, kind: &str) -> Option<&'static Kind> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    KINDS.iter().find(|k| k.kind == kind && k.group == group && k.version == version)
}

/// Stable versions before beta and alpha ones, higher numbers first: `v2`, `v1`, `v1beta1`.
pub fn version_rank(version: &str) -> (u8, u32, u32) {
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
    let rest = version.strip_prefix('v').unwrap_or(version);
    let major = digits(rest);
    let stage = &rest[major.len()..];
    let (level, minor) = match (stage.strip_prefix("beta"), stage.strip_prefix("alpha")) {
        (Some(minor), _) => (1, minor),
        (_, Some(minor)) => (0, minor),
        _ if stage.is_empty() => (2, ""),
        _ => (0, ""),
    };
    (level, major.parse().unwrap_or(0), minor.parse().unwrap_or(0))
}
