//! A Job's policies: whether a failed Pod counts, and whether the succeeded indexes suffice.
//!
//! Upstream: `pkg/controller/job/{pod_failure_policy,success_policy}.go`.

use k8s_openapi::api::{
    batch::v1::{
        PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern, SuccessPolicy,
    },
    core::v1::{ContainerStatus, Pod, PodStatus},
};

use super::{super::meta, indexes::Indexes};

/// The effect of a Pod's failure on its Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does not count.
    Ignore,
    /// It counts towards the limits.
    Count,
    /// It counts, and its index is not retried.
    FailIndex,
    /// The Job has failed, with this reason.
    FailJob(String),
}

/// The first rule that matches decides; without one the failure counts.
pub fn judge(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Verdict {
    let status = pod.status.clone().unwrap_or_default();
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    for (at, rule) in rules.iter().enumerate() {
        let matched = match (&rule.on_exit_codes, &rule.on_pod_conditions) {
            (Some(codes), _) => exit_code(&status, codes),
            (None, Some(patterns)) => condition(&status, patterns),
            (None, None) => None,
        };
        let Some(what) = matched else { continue };
        return match rule.action.as_str() {
            "Ignore" => Verdict::Ignore,
            "FailIndex" => Verdict::FailIndex,
            "FailJob" => {
                let (namespace, name) = (meta::namespace(&pod.metadata), meta::name(&pod.metadata));
                Verdict::FailJob(what.told(&format!("{namespace}/{name}"), at))
            }
            _ => Verdict::Count,
        };
    }
    Verdict::Count
}

/// What a rule matched.
enum Matched<'a> {
    ExitCode { container: &'a str, code: i32 },
    Condition(&'a str),
}

impl Matched<'_> {
    fn told(&self, pod: &str, rule: usize) -> String {
        match self {
            Matched::ExitCode { container, code } => format!(
                "Container {container} for pod {pod} failed with exit code {code} matching FailJob rule at index {rule}"
            ),
            Matched::Condition(kind) => {
                format!("Pod {pod} has condition {kind} matching FailJob rule at index {rule}")
            }
        }
    }
}

fn exit_code<'a>(status: &'a PodStatus, rule: &PodFailurePolicyOnExitCodesRequirement) -> Option<Matched<'a>> {
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let matched = |container: &'a ContainerStatus| {
        let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
        let named = rule.container_name.as_ref().is_none_or(|name| *name == container.name);
        let listed = rule.values.contains(&code);
        let fits = match rule.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        (named && code != 0 && fits).then_some(Matched::ExitCode { container: &container.name, code })
    };
    { all }.find_map(matched)
}

fn condition<'a>(status: &'a PodStatus, patterns: &[PodFailurePolicyOnPodConditionsPattern]) -> Option<Matched<'a>> {
    let mut all = status.conditions.iter().flatten();
    let matched = all.find(|condition| {
        let fits = |pattern: &PodFailurePolicyOnPodConditionsPattern| {
            pattern.type_ == condition.type_ && pattern.status.as_deref().unwrap_or("True") == condition.status
        };
        patterns.iter().any(fits)
    });
    matched.map(|condition| Matched::Condition(&condition.type_))
}

/// The message of the first satisfied rule.
pub fn success(policy: Option<&SuccessPolicy>, completions: i32, succeeded: &Indexes) -> Option<String> {
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    if succeeded.is_empty() {
        return None;
    }
    let met = rules.iter().position(|rule| match &rule.succeeded_indexes {
        Some(text) => {
            let wanted = Indexes::parse(text, completions);
            let there = wanted.common(succeeded);
            !wanted.is_empty()
                && (there == wanted.count() || rule.succeeded_count.is_some_and(|enough| there >= enough))
        }
        None => rule.succeeded_count.is_some_and(|enough| succeeded.count() >= enough),
    });
    met.map(|at| format!("Matched rules at index {at}"))
}
