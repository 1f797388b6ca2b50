//! ValidatingAdmissionPolicy: the cluster's own rules in CEL, bound to resources and parameters.
//! <https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/>

use futures::future::BoxFuture;
use serde_json::{Value as Json, json};

use super::review::decoded;
use super::{matching, review::Review};
use crate::large::steps_of;
use podwright_api::cel::{self, Budget, CompileError, SharedBudget, Value};
use podwright_api::kinds::Storage;
use podwright_api::policy::{Expression, Policy, Validation};
use podwright_api::{Cause, Kind, Object, Status};

mod pace;
mod params;
mod programs;
mod values;

use pace::{Halt, Pace, paced};
pub(super) use programs::Conditions;
pub(crate) use programs::Programs;
use values::Seen;

const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";
const FAILURES: &str = "validation.policy.admission.k8s.io/validation_failure";
/// Upstream's limit for a message from an expression.
const LONGEST_MESSAGE: usize = 5 * 1024;

/// Why an expression has no value, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExpressionError {
    #[error("compilation error: {0}")]
    Compile(CompileError),
    /// In an expression of a policy, which is named.
    #[error("expression '{text}' resulted in error: compilation error: {why}")]
    CompileOf { text: String, why: CompileError },
    #[error("expression '{text}' resulted in error: {why}")]
    Evaluate { text: String, why: cel::Error },
    /// The cost budget of one object is exhausted.
    #[error("validation failed due to running out of cost budget, no further validation rules will be run")]
    Budget,
}

/// Conditions that could not be evaluated, with the error of each.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ExpressionError::to_string).collect::<Vec<_>>().join(", "))]
pub(super) struct Undecided(Vec<ExpressionError>);

/// What one policy with one binding finds in a request.
struct Finding {
    policy: String,
    binding: String,
    /// The failed validation; `None` if the policy could not be evaluated.
    index: Option<usize>,
    message: String,
    reason: String,
    actions: Vec<String>,
}

/// Reviews are exempt from policies, as upstream: access questions must be answered in any case.
pub(super) fn concerns(review: &Review<'_>) -> bool {
    let is_review = matches!(review.call.kind.storage, Storage::Nowhere);
    !is_review && !matching::is_exempt(review) && review.exists(POLICIES, None)
}

pub(super) fn validate<'a>(review: &'a Review<'_>, object: &'a Object) -> BoxFuture<'a, Result<(), Status>> {
    Box::pin(async move {
        // Parameters are read as they were acknowledged.
        review.server.cache.fresh().await?;
        let findings = paced(review, |pace| decide(review, object, pace)).await?;
        report(review, object, &findings)
    })
}

async fn decide(review: &Review<'_>, object: &Object, mut pace: Pace) -> Result<Vec<Finding>, Halt> {
    let bindings = review.list(BINDINGS, None);
    let mut findings = Vec::new();
    for policy in review.list(POLICIES, None) {
        let bound: Vec<&Object> =
            bindings.iter().filter(|binding| binding.0["spec"]["policyName"] == policy.name()).collect();
        let constraints = &policy.0["spec"]["matchConstraints"];
        let Some(version) = matching::by_resources(review, object, constraints, true)? else { continue };
        for binding in bound {
            if matching::by_resources(review, object, &binding.0["spec"]["matchResources"], false)?.is_none() {
                continue;
            }
            findings.extend(Case { review, object, version, policy: &policy, binding }.findings(&mut pace).await?);
        }
    }
    Ok(findings)
}

/// A policy with a binding, and a request.
struct Case<'a> {
    review: &'a Review<'a>,
    object: &'a Object,
    version: &'static Kind,
    policy: &'a Object,
    binding: &'a Object,
}

impl Case<'_> {
    fn finding(&self, index: Option<usize>, message: String, reason: &str) -> Finding {
        let actions = self.binding.0["spec"]["validationActions"].as_array().into_iter().flatten();
        Finding {
            policy: self.policy.name().to_owned(),
            binding: self.binding.name().to_owned(),
            index,
            message,
            reason: reason.to_owned(),
            actions: actions.filter_map(|action| action.as_str().map(str::to_owned)).collect(),
        }
    }

    /// The result if something could not be evaluated: a refusal, unless the policy says otherwise.
    fn trouble(&self, index: Option<usize>, why: impl std::fmt::Display) -> Vec<Finding> {
        match self.policy.0["spec"]["failurePolicy"].as_str() {
            Some("Ignore") => Vec::new(),
            // A binding's actions cannot soften a failure: it is denied whatever they are.
            _ => vec![Finding { actions: vec!["Deny".into()], ..self.finding(index, why.to_string(), "") }],
        }
    }

    async fn findings(&self, pace: &mut Pace) -> Result<Vec<Finding>, Halt> {
        let params = match params::of(self.review, self.policy, self.binding) {
            Ok(params) => params,
            Err(why) => return Ok(self.trouble(None, format!("failed to configure binding: {why}"))),
        };
        let policy = self.review.server.programs.policy(self.policy);
        pace.rest().await;
        let seen = Seen::new(self.review, self.version, self.object);
        let mut findings = Vec::new();
        for params in params {
            let params = match params {
                Some(item) => {
                    pace.rest().await;
                    pace.take(steps_of(item.bytes.len()))?;
                    let Some(params) = decoded(&item) else {
                        let why = "failed to configure binding: a parameter cannot be decoded".to_owned();
                        return Ok(self.trouble(None, why));
                    };
                    Value::from_json(&params.0)
                }
                None => Value::Null,
            };
            let budget = pace.budget(Budget::PER_OBJECT);
            let seen = seen.with(params, &policy, &budget);
            let given = budget.left();
            findings
                .extend(Evaluation { case: self, policy: &policy, seen, budget: budget.clone() }.findings(pace).await);
            pace.took(given, &budget)?;
        }
        Ok(findings)
    }
}

/// A case with one parameter object.
struct Evaluation<'a> {
    case: &'a Case<'a>,
    policy: &'a Policy,
    seen: Seen,
    /// Its variables draw on it, too.
    budget: SharedBudget,
}

impl Evaluation<'_> {
    /// The value of an expression.
    fn value(&self, expression: &Expression) -> Result<Value, ExpressionError> {
        let text = || expression.text.trim().to_owned();
        let program = match &expression.program {
            Ok(program) => program,
            Err(why) => return Err(ExpressionError::CompileOf { text: text(), why: why.clone() }),
        };
        let value = self.budget.spend(|own| program.evaluate(&self.seen, own));
        value.map_err(|why| match why {
            Some(why) => ExpressionError::Evaluate { text: text(), why },
            None => ExpressionError::Budget,
        })
    }

    async fn findings(&self, pace: &Pace) -> Vec<Finding> {
        match holds(&self.policy.conditions, pace, |expression| self.value(expression)).await {
            Ok(true) => {}
            Ok(false) => return Vec::new(),
            Err(why) => return self.case.trouble(None, why),
        }
        let mut findings = Vec::new();
        for (index, validation) in self.policy.validations.iter().enumerate() {
            pace.rest().await;
            match self.value(&validation.expression) {
                Ok(Value::Bool(true)) => {}
                Ok(_) => findings.push(self.case.finding(Some(index), self.message(validation), &validation.reason)),
                Err(why) => findings.extend(self.case.trouble(Some(index), why)),
            }
        }
        for (key, expression) in &self.policy.audits {
            match self.value(expression) {
                Ok(Value::String(text)) if !text.trim().is_empty() => {
                    let key = format!("{}/{key}", self.case.policy.name());
                    self.case.review.call.notes.annotate(key, text.trim());
                }
                Ok(_) => {}
                Err(why) => findings.extend(self.case.trouble(None, why)),
            }
        }
        findings
    }

    /// The message for a failed validation.
    fn message(&self, validation: &Validation) -> String {
        if let Some(expression) = &validation.message_expression
            && let Ok(Value::String(text)) = self.value(expression)
        {
            let text = text.trim();
            if !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n') {
                return text.to_owned();
            }
        }
        match validation.message.as_str() {
            "" => format!("failed expression: {}", validation.expression.text.trim()),
            message => message.to_owned(),
        }
    }
}

/// Whether all conditions hold. One that does not counts for more than one that cannot be found out.
async fn holds(
    conditions: &[(String, Expression)],
    pace: &Pace,
    value: impl Fn(&Expression) -> Result<Value, ExpressionError>,
) -> Result<bool, Undecided> {
    let mut troubles = Vec::new();
    for (_, condition) in conditions {
        pace.rest().await;
        match value(condition) {
            Ok(Value::Bool(true)) => {}
            Ok(_) => return Ok(false),
            Err(why) => troubles.push(why),
        }
    }
    if troubles.is_empty() { Ok(true) } else { Err(Undecided(troubles)) }
}

/// Refuses, warns and audits, as the bindings say.
fn report(review: &Review<'_>, object: &Object, findings: &[Finding]) -> Result<(), Status> {
    let with =
        |action: &'static str| findings.iter().filter(move |finding| finding.actions.iter().any(|a| a == action));
    for Finding { policy, binding, message, .. } in with("Warn") {
        let what = "Validation failed for ValidatingAdmissionPolicy";
        review.call.notes.warn(format!("{what} '{policy}' with binding '{binding}': {message}"));
    }
    let audited: Vec<Json> = with("Audit")
        .map(|finding| {
            json!({"message": finding.message, "policy": finding.policy, "binding": finding.binding,
                "expressionIndex": finding.index.unwrap_or(0), "validationActions": finding.actions})
        })
        .collect();
    if !audited.is_empty() {
        review.call.notes.annotate(FAILURES, Json::from(audited).to_string());
    }
    let Some(Finding { policy, binding, message, reason, .. }) = with("Deny").next() else { return Ok(()) };
    let why = format!("ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {message}");
    let mut refused = review.forbidden(object, &why);
    let reason = if reason.is_empty() { "Invalid" } else { reason };
    refused.reason = reason.to_owned();
    refused.code = match reason {
        "Forbidden" => 403,
        "Unauthorized" => 401,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    Err(refused.with_causes(vec![Cause { message: why, ..Cause::default() }]))
}

/// Whether a webhook's conditions let a request through to it.
pub(super) async fn conditions_hold(
    review: &Review<'_>,
    version: &'static Kind,
    object: &Object,
    conditions: &[(String, Expression)],
) -> Result<Result<bool, Undecided>, Status> {
    if conditions.is_empty() {
        return Ok(Ok(true));
    }
    let seen = Seen::new(review, version, object);
    paced(review, |pace| hold_at(pace, &seen, conditions)).await
}

async fn hold_at(
    mut pace: Pace,
    seen: &Seen,
    conditions: &[(String, Expression)],
) -> Result<Result<bool, Undecided>, Halt> {
    let mut troubles = Vec::new();
    for (_, condition) in conditions {
        let budget = pace.budget(Budget::PER_CALL);
        let given = budget.left();
        let held = condition_holds(condition, seen, &budget);
        pace.took(given, &budget)?;
        match held {
            Ok(true) => pace.rest().await,
            Ok(false) => return Ok(Ok(false)),
            Err(why) => troubles.push(why),
        }
    }
    Ok(if troubles.is_empty() { Ok(true) } else { Err(Undecided(troubles)) })
}

fn condition_holds(condition: &Expression, seen: &Seen, budget: &SharedBudget) -> Result<bool, ExpressionError> {
    let program = condition.program.as_ref().map_err(|why| ExpressionError::Compile(why.clone()))?;
    let value = budget.spend(|own| program.evaluate(seen, own)).map_err(|why| ExpressionError::Evaluate {
        text: condition.text.trim().to_owned(),
        why: why.unwrap_or_else(cel::Error::exhausted),
    })?;
    Ok(matches!(value, Value::Bool(true)))
}
