//! The rules for a PodSpec, in Pods and every kind with a Pod template.

use std::collections::{HashMap, HashSet};

use super::{At, Errors, metadata, names, selectors};

pub mod app_armor;
mod container;
mod env;
mod handlers;
mod network;
mod paths;
pub mod resize;
mod resources;
mod scheduling;
mod security;
pub mod status;
pub mod update;
mod volumes;

pub use resources::list as resource_list;
pub use scheduling::{taint_effect, toleration};

/// Context from the whole spec for its rules.
pub(super) struct Scope<'a> {
    pub spec: &'a At<'a>,
    /// It is a Pod itself, not a template.
    pub is_pod: bool,
    /// The field name of each volume's source, by the volume's name.
    volumes: HashMap<&'a str, &'a str>,
}

impl<'a> Scope<'a> {
    fn of(spec: &'a At<'a>, is_pod: bool) -> Scope<'a> {
        let mut volumes = HashMap::new();
        for volume in spec.get("volumes").items() {
            let Some(fields) = volume.value.as_object() else { continue };
            let source = fields.keys().find(|k| *k != "name").map_or("", String::as_str);
            volumes.entry(volume.get("name").str()).or_insert(source);
        }
        Scope { spec, is_pod, volumes }
    }

    /// The field name of this volume's source.
    pub fn volume_source(&self, name: &str) -> Option<&'a str> {
        self.volumes.get(name).copied()
    }
    pub fn host_network(&self) -> bool {
        self.spec.get("hostNetwork").bool()
    }
}

const RESTART_POLICIES: &[&str] = &["Always", "OnFailure", "Never"];
const DNS_POLICIES: &[&str] = &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];

/// All rules for a PodSpec.
pub fn spec(spec: &At<'_>, is_pod: bool, errs: &mut Errors) {
    let scope = Scope::of(spec, is_pod);
    volumes::all(&scope, errs);
    container::all(&scope, errs);
    errs.one_of(&spec.get("restartPolicy"), RESTART_POLICIES);
    errs.one_of(&spec.get("dnsPolicy"), DNS_POLICIES);
    selectors::label_map(&spec.get("nodeSelector"), errs);
    security::pod(&scope, errs);
    scheduling::affinity(&spec.get("affinity"), errs);
    network::dns_config(spec, errs);
    scheduling::gates(spec, errs);
    scheduling::topology_spread(&spec.get("topologySpreadConstraints"), errs);
    named(spec, errs);
    deadlines(spec, errs);
    scheduling::tolerations(&spec.get("tolerations"), errs);
    network::host_aliases(&spec.get("hostAliases"), errs);
    let policy = spec.get("preemptionPolicy");
    if policy.is_set() {
        errs.one_of(&policy, &["PreemptLowerPriority", "Never"]);
    }
    resources::list(&spec.get("overhead"), errs);
    resources::names_of_all(spec, errs);
    resources::of_pod(spec, errs);
    let os = spec.get("os");
    if os.is_set() {
        errs.one_of(&os.get("name"), &["linux", "windows"]);
    }
    resource_claims(&spec.get("resourceClaims"), errs);
}

/// Fields that must be valid names.
fn named(spec: &At<'_>, errs: &mut Errors) {
    type Check = fn(&str) -> Vec<String>;
    const NAMES: &[(&str, Check)] = &[
        ("serviceAccountName", names::dns1123_subdomain),
        ("nodeName", names::dns1123_subdomain),
        ("hostname", names::dns1123_label),
        ("hostnameOverride", names::dns1123_subdomain),
        ("subdomain", names::dns1123_label),
        ("priorityClassName", names::dns1123_subdomain),
        ("runtimeClassName", names::dns1123_subdomain),
        ("schedulerName", names::qualified_name),
    ];
    for (field, check) in NAMES {
        let at = spec.get(field);
        if !at.is_empty() {
            errs.invalid_each(&at.path, at.str(), check(at.str()));
        }
    }
}

fn deadlines(spec: &At<'_>, errs: &mut Errors) {
    let deadline = spec.get("activeDeadlineSeconds");
    if let Some(n) = deadline.int().filter(|n| !(1..=i64::from(i32::MAX)).contains(n)) {
        errs.invalid(&deadline.path, n, names::between(1, i32::MAX.into()));
    }
}

fn resource_claims(claims: &At<'_>, errs: &mut Errors) {
    let mut seen: HashSet<&str> = HashSet::new();
    for claim in claims.items() {
        let name = claim.get("name");
        if name.is_empty() {
            errs.required(&name.path, "");
        } else if seen.contains(&name.str()) {
            errs.duplicate(&name.path, name.str());
        } else {
            errs.invalid_each(&name.path, name.str(), names::dns1123_label(name.str()));
            seen.insert(name.str());
        }
        let (by_name, by_template) = (claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName"));
        match (by_name.is_empty(), by_template.is_empty()) {
            (true, true) => {
                let why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                errs.invalid_value(&claim.path, claim.value, why);
            }
            (false, false) => {
                let why = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                errs.invalid_value(&claim.path, claim.value, why);
            }
            _ => {}
        }
    }
}

/// A Pod template: labels, annotations and a spec without runtime fields.
pub fn template(template: &At<'_>, errs: &mut Errors) {
    let meta = template.get("metadata");
    metadata::labels(&meta.get("labels"), errs);
    metadata::annotations(&meta.get("annotations"), errs);
    let its_spec = template.get("spec");
    app_armor::annotations(&meta.get("annotations"), &its_spec, errs);
    spec(&its_spec, false, errs);
    if !its_spec.get("ephemeralContainers").is_empty() {
        errs.forbidden(its_spec.path("ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}
