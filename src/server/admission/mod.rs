//! Admission: what the server itself adds to a write, or refuses it for.
//!
//! [`PLUGINS`] is the table: one row and one file a plugin, in upstream's order. Mutating plugins run first, on the object as it
//! was received and defaulted; then it is prepared and validated as a whole; then validating plugins run. Most plugins are pure: a
//! [`Review`] (the request, and listers of what the cluster holds) and the object make a mutation or a verdict. Those that must
//! wait have an asynchronous form. <https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/>

use std::time::Instant;

use bytes::Bytes;
use futures::future::BoxFuture;

use super::Server;
use super::metrics::{Decided, Half, METRICS};
use super::resolved_request::ResolvedRequest;
use podwright_api::spans::Span;
use podwright_api::{Kind, Object, Status};
use podwright_store::Revision;

mod burdens;
mod certificates;
mod claim_resize;
mod default_ingress_class;
mod default_storage_class;
mod default_tolerations;
mod limit_ranger;
mod matching;
mod namespace;
mod namespace_locks;
mod node_restriction;
pub(super) mod operation;
mod owner_references;
mod pod_security;
mod policy;
mod priority;
mod request;
mod resource_quota;
pub(super) mod review;
mod runtime_class;
mod service_account;
mod storage_protection;
mod taint_times;
mod together;
pub(super) mod webhook;

pub use default_tolerations::TolerationSeconds;
pub(super) use namespace_locks::NamespaceLocks;
pub(super) use operation::Operation;
pub use pod_security::PodSecurity;
pub(super) use policy::Programs;
pub(super) use review::Review;

/// One plugin.
struct Plugin {
    /// Upstream's name.
    name: &'static str,
    /// Whether the plugin applies to a request: most apply to few, and are skipped entirely otherwise.
    concerns: fn(&Review<'_>) -> bool,
    mutate: Mutate,
    validate: Validate,
}

enum Mutate {
    Nothing,
    Now(fn(&Review<'_>, &mut Object) -> Result<(), Status>),
    Later(for<'a> fn(&'a Review<'_>, &'a mut Object) -> BoxFuture<'a, Result<(), Status>>),
    /// Webhooks keep track of which have been called.
    Webhooks,
}

/// For a deletion, the object is the one being deleted.
enum Validate {
    Nothing,
    Now(fn(&Review<'_>, &Object) -> Result<(), Status>),
    Later(for<'a> fn(&'a Review<'_>, &'a Object) -> BoxFuture<'a, Result<(), Status>>),
}

/// What a write charges to a quota, or records for a joint check: stored in the write's own transaction, provided that the key is
/// still at the revision that the charge was computed from (0: absent).
pub(super) struct Charge {
    pub key: String,
    pub revision: Revision,
    pub value: Bytes,
}

impl Plugin {
    fn refuses(&self, why: &Status) {
        tracing::debug!(plugin = self.name, "a write is not admitted: {why}");
    }
}

/// The table, in upstream's order.
static PLUGINS: &[Plugin] = &[
    Plugin {
        name: "NamespaceLifecycle",
        concerns: namespace::concerns,
        mutate: Mutate::Later(|review, object| Box::pin(namespace::may_create(review, object))),
        validate: Validate::Now(namespace::may_delete),
    },
    Plugin {
        name: "LimitRanger",
        concerns: limit_ranger::concerns,
        mutate: Mutate::Now(limit_ranger::mutate),
        validate: Validate::Now(limit_ranger::validate),
    },
    Plugin {
        name: "ServiceAccount",
        concerns: service_account::concerns,
        mutate: Mutate::Later(|review, object| Box::pin(service_account::mutate(review, object))),
        validate: Validate::Now(service_account::validate),
    },
    Plugin {
        name: "NodeRestriction",
        concerns: node_restriction::concerns,
        mutate: Mutate::Now(node_restriction::mutate),
        validate: Validate::Now(node_restriction::validate),
    },
    Plugin {
        name: "NodeTaintTimeAdded",
        concerns: taint_times::concerns,
        mutate: Mutate::Now(taint_times::mutate),
        validate: Validate::Nothing,
    },
    Plugin {
        name: "PodSecurity",
        concerns: pod_security::concerns,
        mutate: Mutate::Nothing,
        validate: Validate::Later(pod_security::validate),
    },
    Plugin {
        name: "Priority",
        concerns: priority::concerns,
        mutate: Mutate::Now(priority::mutate),
        validate: Validate::Now(priority::validate),
    },
    Plugin {
        name: "DefaultTolerationSeconds",
        concerns: default_tolerations::concerns,
        mutate: Mutate::Now(default_tolerations::mutate),
        validate: Validate::Nothing,
    },
    Plugin {
        name: "DefaultStorageClass",
        concerns: default_storage_class::concerns,
        mutate: Mutate::Now(default_storage_class::mutate),
        validate: Validate::Nothing,
    },
    Plugin {
        name: "StorageObjectInUseProtection",
        concerns: storage_protection::concerns,
        mutate: Mutate::Now(storage_protection::mutate),
        validate: Validate::Nothing,
    },
    Plugin {
        name: "OwnerReferencesPermissionEnforcement",
        concerns: owner_references::concerns,
        mutate: Mutate::Nothing,
        validate: Validate::Later(|review, object| Box::pin(owner_references::validate(review, object))),
    },
    Plugin {
        name: "PersistentVolumeClaimResize",
        concerns: claim_resize::concerns,
        mutate: Mutate::Nothing,
        validate: Validate::Now(claim_resize::validate),
    },
    Plugin {
        name: "RuntimeClass",
        concerns: runtime_class::concerns,
        mutate: Mutate::Now(runtime_class::mutate),
        validate: Validate::Now(runtime_class::validate),
    },
    Plugin {
        name: "CertificateApproval",
        concerns: certificates::concerns,
        mutate: Mutate::Nothing,
        validate: Validate::Now(certificates::may_approve),
    },
    Plugin {
        name: "CertificateSigning",
        concerns: certificates::concerns,
        mutate: Mutate::Nothing,
        validate: Validate::Now(certificates::may_sign),
    },
    Plugin {
        name: "CertificateSubjectRestriction",
        concerns: certificates::concerns,
        mutate: Mutate::Now(certificates::keep_reason),
        validate: Validate::Now(certificates::may_ask),
    },
    Plugin {
        name: "DefaultIngressClass",
        concerns: default_ingress_class::concerns,
        mutate: Mutate::Now(default_ingress_class::mutate),
        validate: Validate::Nothing,
    },
    Plugin {
        name: "MutatingAdmissionWebhook",
        concerns: webhook::concerns,
        mutate: Mutate::Webhooks,
        validate: Validate::Nothing,
    },
    Plugin {
        name: "ValidatingAdmissionPolicy",
        concerns: policy::concerns,
        mutate: Mutate::Nothing,
        validate: Validate::Later(policy::validate),
    },
    Plugin {
        name: "ValidatingAdmissionWebhook",
        concerns: webhook::concerns,
        mutate: Mutate::Nothing,
        validate: Validate::Later(webhook::validate),
    },
    Plugin {
        name: "ResourceQuota",
        concerns: resource_quota::concerns,
        mutate: Mutate::Nothing,
        validate: Validate::Later(resource_quota::validate),
    },
];

/// Upstream's plugins that do not exist here: they are always off, so turning them off is accepted.
const ELSEWHERE: &[&str] = &[
    "AlwaysAdmit",
    "AlwaysDeny",
    "AlwaysPullImages",
    "ClusterTrustBundleAttest",
    "DenyServiceExternalIPs",
    "EventRateLimit",
    "ExtendedResourceToleration",
    "ImagePolicyWebhook",
    "LimitPodHardAntiAffinityTopology",
    "MutatingAdmissionPolicy",
    "NamespaceAutoProvision",
    "NamespaceExists",
    "NodeDeclaredFeatureValidator",
    "PodNodeSelector",
    "PodTolerationRestriction",
    "PodTopologyLabels",
    "TaintNodesByCondition",
];

/// Why these flags cannot be applied, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginsError {
    /// The flag, without dashes, and the plugin: upstream has none of this name, or podwright does not have it.
    #[error("{flag} plugin {plugin:?} is unknown")]
    Unknown { flag: &'static str, plugin: String },
    /// These are both enabled and disabled.
    #[error("[{}] in {ENABLE} and {DISABLE} overlapped", .0.join(" "))]
    Overlap(Vec<String>),
}

const ENABLE: &str = "enable-admission-plugins";
const DISABLE: &str = "disable-admission-plugins";

/// Which plugins are off; all others are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disabled(Vec<&'static str>);

impl Disabled {
    /// Parses upstream's `--enable-admission-plugins` and `--disable-admission-plugins`.
    ///
    /// # Errors
    ///
    /// A plugin is unknown, or both enabled and disabled.
    pub fn of(enable: &[String], disable: &[String]) -> Result<Disabled, PluginsError> {
        let unknown = |flag, plugin: &String| Err(PluginsError::Unknown { flag, plugin: plugin.clone() });
        let find = |name: &String| PLUGINS.iter().map(|plugin| plugin.name).find(|known| known == name);
        if let Some(plugin) = enable.iter().find(|name| find(name).is_none()) {
            return unknown(ENABLE, plugin);
        }
        if let Some(plugin) = disable.iter().find(|name| find(name).is_none() && !ELSEWHERE.contains(&name.as_str())) {
            return unknown(DISABLE, plugin);
        }
        let both: Vec<String> = enable.iter().filter(|name| disable.contains(name)).cloned().collect();
        if !both.is_empty() {
            return Err(PluginsError::Overlap(both));
        }
        Ok(Disabled(disable.iter().filter_map(find).collect()))
    }

    pub fn names(&self) -> &[&'static str] {
        &self.0
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }
}

fn is_on(server: &Server, name: &str) -> bool {
    !server.config.disabled_admission.has(name)
}

/// The plugins that apply to a request.
fn concerned<'a>(review: &'a Review<'_>) -> impl Iterator<Item = &'static Plugin> + 'a {
    PLUGINS.iter().filter(|plugin| (plugin.concerns)(review) && is_on(review.server, plugin.name))
}

/// Kinds whose objects govern writes of others: a write to them is acknowledged once it is in force.
const POLICIES: &[&str] = &[
    "IngressClass",
    "LimitRange",
    "MutatingWebhookConfiguration",
    "Namespace",
    "PriorityClass",
    "ResourceQuota",
    "RuntimeClass",
    "StorageClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

/// Whether webhooks see the write; they should not see stale states.
pub(super) fn asks_others(server: &Server, call: &ResolvedRequest) -> bool {
    webhook::concerns(&Review::new(server, call, Operation::Update, None))
}

/// Whether objects of this kind govern writes of others.
pub(super) fn is_policy(kind: &Kind) -> bool {
    POLICIES.contains(&kind.built_in())
}

/// Counts what one plugin, or one phase as a whole, decided.
fn decided(review: &Review<'_>, half: Half, began: Instant, done: &Result<(), Status>) -> Decided {
    Decided { half, operation: review.operation, rejected: done.is_err(), began }
}

/// Runs the mutating plugins on an object; twice if a webhook changed it.
pub(super) async fn mutate(review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
    let began = Instant::now();
    let done = Span::current().part("Admit", mutate_in_rounds(review, object)).await;
    METRICS.step(decided(review, Half::Admit, began, &done));
    done
}

async fn mutate_in_rounds(review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
    let mut rounds = webhook::Rounds::default();
    for _ in 0..2 {
        for plugin in concerned(review) {
            let began = Instant::now();
            let done = match plugin.mutate {
                Mutate::Nothing => continue,
                Mutate::Now(mutate) => mutate(review, object),
                Mutate::Later(mutate) => mutate(review, object).await,
                Mutate::Webhooks => webhook::mutate(review, &mut rounds, object).await,
            };
            METRICS.plugin(plugin.name, decided(review, Half::Admit, began, &done));
            done.inspect_err(|why| plugin.refuses(why))?;
        }
        if !rounds.begin_second() {
            break;
        }
    }
    review.call.rules().drop_nulls(object);
    Ok(())
}

/// Whether an object may be deleted. (Webhooks are the only mutating plugins that look at deletions.)
pub(super) async fn remove(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    if webhook::concerns(review) && is_on(review.server, "MutatingAdmissionWebhook") {
        webhook::mutate(review, &mut webhook::Rounds::default(), &mut object.clone()).await?;
    }
    validate(review, object).await
}

/// Runs the validating plugins.
pub(super) async fn validate(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    let began = Instant::now();
    let done = Span::current().part("Validate", validate_each(review, object)).await;
    METRICS.step(decided(review, Half::Validate, began, &done));
    done
}

async fn validate_each(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    for plugin in concerned(review) {
        let began = Instant::now();
        let done = match plugin.validate {
            Validate::Nothing => continue,
            Validate::Now(validate) => validate(review, object),
            Validate::Later(validate) => validate(review, object).await,
        };
        METRICS.plugin(plugin.name, decided(review, Half::Validate, began, &done));
        done.inspect_err(|why| plugin.refuses(why))?;
    }
    Ok(())
}

fn counts_quotas(review: &Review<'_>) -> bool {
    !review.namespace().is_empty() && is_on(review.server, "ResourceQuota")
}

/// The locks that a write takes, in this order: its namespace's quotas, and the joint check that it falls under.
pub(super) fn locks_of(review: &Review<'_>, object: &Object) -> Vec<String> {
    let has_quotas = counts_quotas(review) && review.exists("resourcequotas", Some(review.namespace()));
    let quotas = has_quotas.then(|| review.namespace().to_owned());
    quotas.into_iter().chain(together::rule(review, object).map(together::Rule::turn)).collect()
}

/// What a write charges to quotas and joint checks, or a refusal if too little is left. Everything acknowledged counts. This is
/// ResourceQuota's final decision, computed again whenever others were charged meanwhile.
pub(super) async fn charges(review: &Review<'_>, object: &Object) -> Result<Vec<Charge>, Status> {
    let together = match together::rule(review, object) {
        Some(rule) => Some(rule.charge(review, object).await?),
        None => None,
    };
    review.server.cache.fresh().await?;
    let mut charges = match counts_quotas(review) {
        true => resource_quota::charge(review, object)?,
        false => Vec::new(),
    };
    charges.extend(together);
    Ok(charges)
}

/// Mutates and validates what is not stored as it is: bindings, evictions, token requests, connection options.
pub(super) async fn admit(
    server: &Server,
    call: &ResolvedRequest,
    operation: Operation,
    object: &mut Object,
) -> Result<(), Status> {
    let review = Review::new(server, call, operation, None);
    mutate(&review, object).await?;
    validate(&review, object).await
}

#[cfg(test)]
mod tests {
    use super::{Disabled, ELSEWHERE, PLUGINS};

    #[test]
    fn plugins_are_turned_off_by_name() {
        let words = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let of = |on: &[&str], off: &[&str]| Disabled::of(&words(on), &words(off));
        assert_eq!(of(&[], &[]), Ok(Disabled::default()));
        let off = of(&["NodeRestriction"], &["ServiceAccount", "TaintNodesByCondition", "Priority"]).unwrap();
        assert_eq!(off.names(), ["ServiceAccount", "Priority"]);
        let refused = [
            (of(&["X"], &[]), "enable-admission-plugins plugin \"X\" is unknown"),
            (of(&[], &["x"]), "disable-admission-plugins plugin \"x\" is unknown"),
            (of(&["AlwaysPullImages"], &[]), "enable-admission-plugins plugin \"AlwaysPullImages\" is unknown"),
            (
                of(&["Priority"], &["Priority"]),
                "[Priority] in enable-admission-plugins and disable-admission-plugins overlapped",
            ),
        ];
        for (told, why) in refused {
            assert_eq!(told.unwrap_err().to_string(), why);
        }
        assert!(PLUGINS.iter().all(|plugin| !ELSEWHERE.contains(&plugin.name)));
    }

    /// Upstream's `AllOrderedPlugins`, with one of our own in place of TaintNodesByCondition.
    const UPSTREAM: &[&str] = &[
        "NamespaceLifecycle",
        "LimitRanger",
        "ServiceAccount",
        "NodeRestriction",
        "NodeTaintTimeAdded",
        "PodSecurity",
        "Priority",
        "DefaultTolerationSeconds",
        "DefaultStorageClass",
        "StorageObjectInUseProtection",
        "OwnerReferencesPermissionEnforcement",
        "PersistentVolumeClaimResize",
        "RuntimeClass",
        "CertificateApproval",
        "CertificateSigning",
        "CertificateSubjectRestriction",
        "DefaultIngressClass",
        "MutatingAdmissionWebhook",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionWebhook",
        "ResourceQuota",
    ];

    #[test]
    fn the_plugins_stand_in_upstreams_order() {
        let mut order = UPSTREAM.iter();
        for plugin in PLUGINS {
            assert!(order.any(|name| *name == plugin.name), "{} is unknown, or not in its place", plugin.name);
        }
    }
}
