//! Admission policies: type-checks their expressions against the kinds that they match, and reports warnings in their status.
//!
//! Upstream: `pkg/controller/validatingadmissionpolicystatus`. A policy works in any case; the warnings are for its author.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{
    ExpressionWarning, TypeChecking, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyStatus,
};

use super::{Context, Plan, Row, Writes, write::Write};
use podwright_api::{
    Object,
    policy::{Custom, type_check},
};
use podwright_client::{Definition, Key, definition::Version};

pub const ROW: Row = Row {
    name: "validatingadmissionpolicy-status-controller",
    workers: 1,
    writes: Writes::Of(&["validatingadmissionpolicies.admissionregistration.k8s.io"]),
    watch: |watches| {
        let policies = &watches.world.informers.admission_policies.clone();
        watches.own(policies);
        // A kind that a policy matches may be defined later.
        watches.on_defined(|world, queue, _| {
            world.informers.admission_policies.list().iter().for_each(|policy| queue.add(Key::of(&**policy)));
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| match context.world.informers.admission_policies.get(key) {
        Some(policy) => plan(&policy, &custom(context)),
        None => Plan::default(),
    },
};

/// The served versions of established CRDs.
fn custom(context: &Context<'_>) -> Vec<Custom> {
    let definitions = context.world.metadata.definitions();
    let established = definitions.iter().filter(|definition| definition.established);
    let versions = established.flat_map(|of| of.served.iter().map(move |version| (of, version)));
    let kind = |(of, version): (&Arc<Definition>, &Version)| Custom {
        group: of.group.clone(),
        version: version.name.clone(),
        plural: of.plural.clone(),
        kind: of.kind.clone(),
        schema: version.schema.clone(),
    };
    versions.map(kind).collect()
}

/// Writes the result, unless the status has it already.
pub fn plan(policy: &ValidatingAdmissionPolicy, custom: &[Custom]) -> Plan {
    let mut plan = Plan::default();
    let Ok(object) = Object::from_typed(policy) else { return plan };
    let warning = |(field_ref, warning): (String, String)| ExpressionWarning { field_ref, warning };
    let warnings: Vec<ExpressionWarning> = type_check(&object.0["spec"], custom).into_iter().map(warning).collect();
    let mut new = policy.clone();
    new.status = Some(ValidatingAdmissionPolicyStatus {
        observed_generation: policy.metadata.generation,
        type_checking: Some(TypeChecking { expression_warnings: Some(warnings).filter(|all| !all.is_empty()) }),
        ..policy.status.clone().unwrap_or_default()
    });
    plan.then(Write::status(policy, &new).into_iter().collect());
    plan
}
