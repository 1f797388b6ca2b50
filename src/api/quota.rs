//! Resource quotas: usage by objects, checks, and counting. <https://kubernetes.io/docs/concepts/policy/resource-quotas/>

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::pod_references::MIRROR;
use super::pod_totals::{self, Amounts, quantities};
use super::quantity::Format;
use super::selector::LabelSelector;
use super::{Kind, Object, Quantity, kinds, pod, status};

/// `<class>.storageclass.storage.k8s.io/requests.storage`
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";
/// The annotation for a claim's class before there was a field.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Kinds for which more than the number of objects is counted.
fn has_content(kind: &Kind) -> bool {
    matches!(kind.built_in(), "Pod" | "Service" | "PersistentVolumeClaim")
}

/// Whether objects of a kind are also counted under their own name, beside `count/...`.
fn is_counted_by_name(kind: &Kind) -> bool {
    let named =
        ["configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services"];
    kind.group.is_empty() && named.contains(&kind.plural)
}

/// The resource that counts all objects of a kind: `count/deployments.apps`.
fn count_of(kind: &Kind) -> String {
    format!("count/{}", status::qualified(kind.plural, kind.group))
}

/// Whether a quota's resource counts objects of this kind.
pub fn counts(kind: &Kind, resource: &str) -> bool {
    if kind.built_in() == "Event" {
        // Too frequent to track, and short-lived.
        return false;
    }
    if resource == count_of(kind) || (is_counted_by_name(kind) && resource == kind.plural) {
        return true;
    }
    match kind.built_in() {
        _ if !has_content(kind) => false,
        "Pod" => {
            let compute = resource.strip_prefix("limits.").or(resource.strip_prefix("requests.")).unwrap_or(resource);
            matches!(compute, "cpu" | "memory" | "ephemeral-storage")
                || resource == "pods"
                || (compute.starts_with("hugepages-") && !resource.starts_with("limits."))
                || (resource.starts_with("requests.") && is_extended(compute))
        }
        "Service" => matches!(resource, "services.nodeports" | "services.loadbalancers"),
        _ => resource == "requests.storage" || resource.contains(OF_CLASS),
    }
}

/// Whether it is an extended resource: its name has a domain other than Kubernetes' own.
fn is_extended(resource: &str) -> bool {
    resource.contains('/') && !resource.contains("kubernetes.io/") && !resource.starts_with("count/")
}

/// Whether an object is the mirror of a static Pod. It is exempt from quotas: any node can create one in any namespace, and so use
/// up its users' quota. The static Pod runs in any case. (Upstream counts it.)
fn is_mirror(kind: &Kind, object: &Object) -> bool {
    kind.built_in() == "Pod" && object.annotation(MIRROR).is_some()
}

/// An object's usage, by the names of quotas' resources.
pub fn usage(kind: &Kind, object: &Object, now: Timestamp) -> Amounts {
    if is_mirror(kind, object) {
        return Amounts::new();
    }
    let one = || Quantity::from_units(1, Format::DecimalSi);
    let mut used = Amounts::from([(count_of(kind), one())]);
    if is_counted_by_name(kind) {
        used.insert(kind.plural.to_owned(), one());
    }
    match kind.built_in() {
        _ if !has_content(kind) => {}
        "Pod" => {
            if runs(object, now) {
                used.extend(of_pod(&pod_totals::held(&object.0)));
            }
        }
        "Service" => used.extend(of_service(&object.0["spec"])),
        _ => used.extend(of_claim(object)),
    }
    used
}

/// Whether a Pod still uses resources: it is not finished, and has not exceeded its deletion.
fn runs(pod: &Object, now: Timestamp) -> bool {
    let ended = matches!(pod.0["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let grace = pod.0["metadata"]["deletionGracePeriodSeconds"].as_i64().map(SignedDuration::from_secs);
    // Twice its grace period, as upstream: the deletion timestamp is the end of the first.
    let overdue =
        pod.deletion_timestamp().zip(grace).is_some_and(|(at, grace)| now > at.saturating_add(grace).unwrap_or(at));
    !ended && !overdue
}

fn of_pod(spec: &Value) -> Amounts {
    let mut used = Amounts::from([("pods".to_owned(), Quantity::from_units(1, Format::DecimalSi))]);
    for (name, amount) in pod_totals::with_overhead(pod_totals::requests(spec), spec, true) {
        match name.as_str() {
            "cpu" | "memory" | "ephemeral-storage" => drop(used.insert(name.clone(), amount)),
            other if other.starts_with("hugepages-") => drop(used.insert(name.clone(), amount)),
            other if is_extended(other) => {}
            _ => continue,
        }
        used.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in pod_totals::with_overhead(pod_totals::limits(spec), spec, false) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            used.insert(format!("limits.{name}"), amount);
        }
    }
    used
}

fn of_service(spec: &Value) -> Amounts {
    let ports = || spec["ports"].as_array().into_iter().flatten();
    let (node_ports, balancers) = match spec["type"].as_str() {
        Some("NodePort") => (ports().count(), 0),
        Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] == false => {
            (ports().filter(|port| port["nodePort"].as_u64().unwrap_or(0) > 0).count(), 1)
        }
        Some("LoadBalancer") => (ports().count(), 1),
        _ => (0, 0),
    };
    let amount = |n: usize| Quantity::from_units(i64::try_from(n).unwrap_or(i64::MAX), Format::DecimalSi);
    Amounts::from([
        ("services.nodeports".to_owned(), amount(node_ports)),
        ("services.loadbalancers".to_owned(), amount(balancers)),
    ])
}

fn of_claim(claim: &Object) -> Amounts {
    let class = claim.annotation(BETA_CLASS).or(claim.0["spec"]["storageClassName"].as_str()).unwrap_or("");
    let mut used = Amounts::new();
    if !class.is_empty() {
        let one = Quantity::from_units(1, Format::DecimalSi);
        used.insert(format!("{class}{OF_CLASS}persistentvolumeclaims"), one);
    }
    let asked = Quantity::from_json(&claim.0["spec"]["resources"]["requests"]["storage"]);
    let allocated = Quantity::from_json(&claim.0["status"]["allocatedResources"]["storage"]);
    if let Some(storage) = asked.max(allocated) {
        used.insert("requests.storage".to_owned(), storage);
        if !class.is_empty() {
            used.insert(format!("{class}{OF_CLASS}requests.storage"), storage);
        }
    }
    used
}

/// Whether an object matches all scopes of a quota.
fn in_scope(kind: &Kind, object: &Object, quota: &Object) -> bool {
    let spec = &quota.0["spec"];
    let plain = spec["scopes"].as_array().into_iter().flatten();
    let plain = plain.map(|scope| json!({"scopeName": scope, "operator": "Exists"}));
    let selected = spec["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten().cloned();
    plain.chain(selected).all(|expression| match has_content(kind).then_some(kind.built_in()) {
        Some("Pod") => pod_in_scope(object, &expression),
        Some("PersistentVolumeClaim") => {
            let class = object.0["spec"]["volumeAttributesClassName"].as_str();
            expression["scopeName"] == "VolumeAttributesClass" && selects(&expression, class)
        }
        _ => false,
    })
}

fn pod_in_scope(pod: &Object, expression: &Value) -> bool {
    let spec = &pod.0["spec"];
    let terminates = || spec["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0);
    let best_effort = || pod::qos_class(spec) == "BestEffort";
    match expression["scopeName"].as_str().unwrap_or("") {
        "Terminating" => terminates(),
        "NotTerminating" => !terminates(),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => selects(expression, spec["priorityClassName"].as_str()),
        "CrossNamespacePodAffinity" => has_affinity_across_namespaces(spec),
        _ => false,
    }
}

/// Whether an expression of a scope selector matches a value, which may be unset.
fn selects(expression: &Value, value: Option<&str>) -> bool {
    let scope = &expression["scopeName"];
    let one = json!({"key": scope, "operator": expression["operator"], "values": expression["values"]});
    let selector = LabelSelector::from_json(&json!({"matchExpressions": [one]}));
    selector.is_ok_and(|selector| selector.matches(|_| value.filter(|value| !value.is_empty())))
}

fn has_affinity_across_namespaces(spec: &Value) -> bool {
    let list = |value: &'static str, of: &'static str| spec["affinity"][of][value].as_array().into_iter().flatten();
    ["podAffinity", "podAntiAffinity"].into_iter().any(|of| {
        let required = list("requiredDuringSchedulingIgnoredDuringExecution", of);
        let preferred = list("preferredDuringSchedulingIgnoredDuringExecution", of).map(|it| &it["podAffinityTerm"]);
        required.chain(preferred).any(|term| {
            term["namespaces"].as_array().is_some_and(|list| !list.is_empty()) || !term["namespaceSelector"].is_null()
        })
    })
}

/// Resources that every container must specify if a quota counts them.
const EXPLICIT: &[&str] = &["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// Why a write exceeds a quota, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// Containers do not specify counted resources: which ones, by resource.
    #[error("failed quota: {quota}: must specify {}", unsaid(.silent))]
    Unsaid { quota: String, silent: BTreeMap<String, Vec<String>> },
    /// No controller has counted the usage yet.
    #[error("status unknown for quota: {quota}, resources: {}", .resources.join(","))]
    Uncounted { quota: String, resources: Vec<String> },
    /// The object's usage of this resource is negative.
    #[error("quota usage is negative for resource(s): {0}")]
    Negative(String),
    /// More than available of these resources.
    #[error("exceeded quota: {quota}, requested: {}, used: {}, limited: {}", told(.requested), told(.used), told(.limited))]
    Exceeded { quota: String, requested: Amounts, used: Amounts, limited: Amounts },
}

fn unsaid(silent: &BTreeMap<String, Vec<String>>) -> String {
    let each = silent.iter().map(|(resource, names)| format!("{resource} for: {}", names.join(",")));
    each.collect::<Vec<_>>().join("; ")
}

fn told(amounts: &Amounts) -> String {
    let each = amounts.iter().map(|(resource, amount)| format!("{resource}={amount}"));
    each.collect::<Vec<_>>().join(",")
}

/// What a Pod fails to specify for a quota's resources: the containers, by resource.
fn constraints(kind: &Kind, object: &Object, resources: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut missing = BTreeMap::new();
    if kind.built_in() != "Pod" {
        return missing;
    }
    let spec = &object.0["spec"];
    let containers =
        || ["containers", "initContainers"].into_iter().flat_map(|list| spec[list].as_array().into_iter().flatten());
    let says = |resources: &Value, resource: &str| match resource.strip_prefix("limits.") {
        Some(limit) => !resources["limits"][limit].is_null(),
        None => !resources["requests"][resource.strip_prefix("requests.").unwrap_or(resource)].is_null(),
    };
    for resource in resources.iter().filter(|resource| EXPLICIT.contains(&resource.as_str())) {
        // A Pod-level value is enough.
        if says(&spec["resources"], resource) {
            continue;
        }
        let silent = containers().filter(|container| !says(&container["resources"], resource));
        let mut names: Vec<String> =
            silent.filter_map(|container| container["name"].as_str().map(str::to_owned)).collect();
        names.sort_unstable();
        if !names.is_empty() {
            missing.insert(resource.clone(), names);
        }
    }
    missing
}

/// A quota's usage after a write; `None` if that changes nothing. The old object is that before an update.
///
/// # Errors
///
/// The quota has too little left, is not counted yet, or requires values that the object does not specify.
pub fn charge(
    quota: &Object,
    kind: &Kind,
    new: &Object,
    old: Option<&Object>,
    now: Timestamp,
) -> Result<Option<Amounts>, QuotaError> {
    let (hard, used) = (quantities(&quota.0["status"]["hard"]), quantities(&quota.0["status"]["used"]));
    // Before the first count only the spec is known.
    let wished = quantities(&quota.0["spec"]["hard"]);
    let counted = |resources: &Amounts| -> Vec<String> {
        resources.keys().filter(|resource| counts(kind, resource)).cloned().collect()
    };
    let resources = if hard.is_empty() { counted(&wished) } else { counted(&hard) };
    if resources.is_empty() || is_mirror(kind, new) || !in_scope(kind, new, quota) {
        return Ok(None);
    }
    let name = || quota.name().to_owned();
    let silent = constraints(kind, new, &resources);
    if !silent.is_empty() {
        return Err(QuotaError::Unsaid { quota: name(), silent });
    }
    if resources.iter().any(|resource| !hard.contains_key(resource) || !used.contains_key(resource)) {
        return Err(QuotaError::Uncounted { quota: name(), resources });
    }
    let mut delta = usage(kind, new, now);
    if let Some((resource, _)) = delta.iter().find(|(_, amount)| amount.is_negative()) {
        return Err(QuotaError::Negative(resource.clone()));
    }
    if let Some(old) = old {
        for (resource, amount) in usage(kind, old, now) {
            let mine = delta.entry(resource).or_default();
            *mine -= amount;
        }
    }
    delta.retain(|resource, amount| !amount.is_zero() && resources.contains(resource));
    if delta.is_empty() {
        return Ok(None);
    }
    let mut after = used.clone();
    for (resource, amount) in &delta {
        *after.entry(resource.clone()).or_default() += *amount;
    }
    let exceeds = |resource: &str| !delta[resource].is_negative() && after[resource] > hard[resource];
    let exceeded: Vec<&String> = delta.keys().filter(|resource| exceeds(resource)).collect();
    if exceeded.is_empty() {
        return Ok(Some(after));
    }
    let of = |amounts: &Amounts| -> Amounts {
        exceeded.iter().map(|resource| ((*resource).clone(), amounts[*resource])).collect()
    };
    Err(QuotaError::Exceeded { quota: name(), requested: of(&delta), used: of(&used), limited: of(&hard) })
}

/// Counts the usage of a quota, object by object.
pub struct Counter<'a> {
    quota: &'a Object,
    hard: Amounts,
    used: Amounts,
    now: Timestamp,
}

impl<'a> Counter<'a> {
    pub fn new(quota: &'a Object, now: Timestamp) -> Counter<'a> {
        let hard = quantities(&quota.0["spec"]["hard"]);
        let used = hard.keys().map(|resource| (resource.clone(), Quantity::ZERO)).collect();
        Counter { quota, hard, used, now }
    }

    /// The kinds whose objects must be counted, and whether their number is enough.
    pub fn kinds(&self) -> Vec<(&'static Kind, bool)> {
        let counted = |kind: &Kind| kind.namespaced && self.hard.keys().any(|resource| counts(kind, resource));
        kinds::stored().filter(|kind| counted(kind)).map(|kind| (kind, !has_content(kind))).collect()
    }

    /// The counted resources in addition to [`Counter::kinds`]: those of CRDs, if defined. They are always
    /// `count/widgets.example.com`.
    pub fn custom(&self) -> Vec<String> {
        let counted = self.hard.keys().filter_map(|resource| resource.strip_prefix("count/"));
        let known = |resource: &str| kinds::stored().any(|kind| kind.resource() == resource);
        counted.filter(|resource| !known(resource)).map(str::to_owned).collect()
    }

    pub fn add(&mut self, kind: &Kind, object: &Object) {
        if in_scope(kind, object, self.quota) {
            self.take(usage(kind, object, self.now));
        }
    }

    /// Adds this many objects of a kind for which only the number counts.
    pub fn add_number(&mut self, kind: &Kind, number: usize) {
        let nothing = Object(Value::Null);
        if in_scope(kind, &nothing, self.quota) {
            let number = Quantity::from_units(i64::try_from(number).unwrap_or(i64::MAX), Format::DecimalSi);
            self.take(usage(kind, &nothing, self.now).into_keys().map(|resource| (resource, number)).collect());
        }
    }

    /// Adds this many objects of a custom resource. Scopes only match Pods and claims: a quota with scopes excludes everything
    /// else.
    pub fn add_custom(&mut self, resource: &str, number: usize) {
        let spec = &self.quota.0["spec"];
        let empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
        if empty(&spec["scopes"]) && empty(&spec["scopeSelector"]["matchExpressions"]) {
            let number = Quantity::from_units(i64::try_from(number).unwrap_or(i64::MAX), Format::DecimalSi);
            self.take(Amounts::from([(format!("count/{resource}"), number)]));
        }
    }

    fn take(&mut self, used: Amounts) {
        for (resource, amount) in used {
            if let Some(mine) = self.used.get_mut(&resource) {
                *mine += amount;
            }
        }
    }

    /// The quota's `status.hard` and `status.used`.
    pub fn status(&self) -> Value {
        json!({"hard": to_json(&self.hard), "used": to_json(&self.used)})
    }

    pub fn used(&self) -> &Amounts {
        &self.used
    }
}

/// In the form of API objects.
pub fn to_json(amounts: &Amounts) -> Value {
    amounts.iter().map(|(name, amount)| (name.clone(), Value::from(amount.to_string()))).collect()
}
