//! Priority: a Pod's number and preemption policy from its PriorityClass; at most one class is the default.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/>

use serde_json::Value;

use super::{operation::Operation, review::Review};
use podwright_api::{Object, Status};

const CLASSES: &str = "priorityclasses";
/// If the class does not say, or there is none.
const POLICY: &str = "PreemptLowerPriority";

pub(super) fn concerns(review: &Review<'_>) -> bool {
    let writes = matches!(review.operation, Operation::Create | Operation::Update);
    writes && (review.is_about("Pod") || review.is_about("PriorityClass"))
}

pub(super) fn mutate(review: &Review<'_>, pod: &mut Object) -> Result<(), Status> {
    match review.old {
        _ if !review.is_about("Pod") => Ok(()),
        Some(old) => {
            // Updates may omit what was filled in.
            for field in ["priority", "preemptionPolicy"] {
                if pod.at("spec").is_some_and(|spec| spec[field].is_null())
                    && let Some(was) = old.0["spec"].get(field)
                {
                    pod.0["spec"][field] = was.clone();
                }
            }
            Ok(())
        }
        None => resolve(review, pod),
    }
}

fn resolve(review: &Review<'_>, pod: &mut Object) -> Result<(), Status> {
    let (class, value, policy) = computed(review, pod)?;
    let spec = &mut pod.0["spec"];
    if let Some(class) = class {
        spec["priorityClassName"] = class.into();
    }
    spec["priority"] = Value::from(value);
    spec["preemptionPolicy"] = policy.into();
    Ok(())
}

/// The name of a Pod's class, and its number and policy; a refusal if the Pod sets others.
fn computed(review: &Review<'_>, pod: &Object) -> Result<(Option<String>, i64, String), Status> {
    let name = pod.0["spec"]["priorityClassName"].as_str().unwrap_or("").to_owned();
    let class = if name.is_empty() {
        default_class(review)
    } else {
        let class = review.get(CLASSES, None, &name);
        let missing = || review.forbidden(pod, format!("no PriorityClass with name {name} was found"));
        Some(class.ok_or_else(missing)?)
    };
    let value = class.as_ref().and_then(|class| class.0["value"].as_i64()).unwrap_or(0);
    let policy = class.as_ref().and_then(|class| class.0["preemptionPolicy"].as_str()).unwrap_or(POLICY).to_owned();
    if let Some(given) = pod.0["spec"]["priority"].as_i64().filter(|given| *given != value) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {value} from the given PriorityClass name"
        );
        return Err(review.forbidden(pod, why));
    }
    if let Some(given) = pod.0["spec"]["preemptionPolicy"].as_str().filter(|given| *given != policy) {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
             controller computed {policy} from the given PriorityClass name"
        );
        return Err(review.forbidden(pod, why));
    }
    Ok((class.map(|class| class.name().to_owned()), value, policy))
}

/// The class of Pods that name none. Of several (created concurrently) the one with the lowest value.
fn default_class(review: &Review<'_>) -> Option<Object> {
    let classes = review.list(CLASSES, None).into_iter().filter(|class| class.0["globalDefault"] == true);
    classes.min_by_key(|class| class.0["value"].as_i64())
}

/// The final check of new Pods, after all webhooks, and of the default class.
pub(super) fn validate(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    match review.is("Pod", Operation::Create) {
        true => computed(review, object).map(drop),
        false => only_default(review, object),
    }
}

fn only_default(review: &Review<'_>, class: &Object) -> Result<(), Status> {
    if !review.is_about("PriorityClass") || class.0["globalDefault"] != true {
        return Ok(());
    }
    match default_class(review) {
        Some(other) if review.operation == Operation::Create || other.name() != class.name() => {
            let other = other.name();
            let why = format!("PriorityClass {other} is already marked as default. Only one default can exist");
            Err(review.forbidden(class, why))
        }
        _ => Ok(()),
    }
}
