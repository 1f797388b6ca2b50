//! Admission policies: their status says what is wrong with their expressions about the kinds that they are for.
//!
//! Upstream: `pkg/controller/validatingadmissionpolicystatus`. A policy works all the same; the warnings are for its author.

use k8s_openapi::api::admissionregistration::v1::{
    ExpressionWarning, TypeChecking, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyStatus,
};

use super::{Context, Plan, Row, plan::Write};
use crate::{
    api::{Object, policy::type_check},
    client::Key,
};

pub const ROW: Row = Row {
    name: "validatingadmissionpolicy-status-controller",
    workers: 1,
    wire: |wires| {
        let policies = &wires.world.informers.admission_policies.clone();
        wires.own(policies);
    },
    reconcile: |context: &Context<'_>, key: &Key| match context.world.informers.admission_policies.get(key) {
        Some(policy) => plan(&policy),
        None => Plan::default(),
    },
};

/// Checks each generation once.
pub fn plan(policy: &ValidatingAdmissionPolicy) -> Plan {
    let mut plan = Plan::default();
    let observed = policy.status.as_ref().and_then(|status| status.observed_generation);
    if observed.is_some() && observed == policy.metadata.generation {
        return plan;
    }
    let Ok(object) = Object::from_typed(policy) else { return plan };
    let warning = |(field_ref, warning): (String, String)| ExpressionWarning { field_ref, warning };
    let warnings: Vec<ExpressionWarning> = type_check(&object.0["spec"]).into_iter().map(warning).collect();
    let mut new = policy.clone();
    new.status = Some(ValidatingAdmissionPolicyStatus {
        observed_generation: policy.metadata.generation,
        type_checking: Some(TypeChecking { expression_warnings: Some(warnings).filter(|all| !all.is_empty()) }),
        ..policy.status.clone().unwrap_or_default()
    });
    plan.then(Write::status(policy, &new).into_iter().collect());
    plan
}
