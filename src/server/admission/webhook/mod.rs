//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: external programs review writes, and may change them.
//! <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/>

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};
use serde_json::Value;

use super::policy::{self, Conditions};
use super::{matching, operation::Operation, request, review::Review};
use crate::large::BodySize;
use crate::metrics::{Decided, Half, METRICS};
use crate::webhook::{self, Tree};
use podwright_api::spans::Span;
use podwright_api::{Object, Status};

pub(crate) mod exchange;

use exchange::{AnswerError, Exchange, WebhookError};

const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";

/// One webhook of a configuration.
struct Hook {
    /// Identifies it.
    key: String,
    spec: Value,
    /// The conditions of all webhooks of the configuration, and the index of this one.
    conditions: (Arc<Vec<Conditions>>, usize),
}

impl Hook {
    fn name(&self) -> &str {
        self.spec["name"].as_str().unwrap_or("")
    }
}

/// Whether any webhooks are configured.
pub(super) fn concerns(review: &Review<'_>) -> bool {
    !matching::is_exempt(review) && [MUTATING, VALIDATING].iter().any(|resource| review.exists(resource, None))
}

/// All webhooks, in the order of their configurations' names and their order there.
fn hooks(review: &Review<'_>, resource: &str) -> Vec<Hook> {
    let mut all = Vec::new();
    for mut configuration in review.list(resource, None) {
        let name = configuration.name().to_owned();
        let conditions = review.server.programs.webhooks(&configuration);
        let Some(Value::Array(specs)) = configuration.0.get_mut("webhooks").map(Value::take) else { continue };
        all.extend(specs.into_iter().enumerate().map(|(index, spec)| {
            let conditions = (conditions.clone(), index);
            Hook { key: format!("{name}/{}", spec["name"]), spec, conditions }
        }));
    }
    all
}

/// The state of mutation: which webhooks were called, and which to call again.
#[derive(Default)]
pub(super) struct Rounds {
    invoked: Vec<String>,
    again: Vec<String>,
    /// The object after the last of them.
    left: Option<Object>,
    second: bool,
}

impl Rounds {
    /// Whether all plugins must run once more. Starts their second round.
    pub fn begin_second(&mut self) -> bool {
        self.second = self.left.is_some();
        self.second
    }
}

/// Calls the mutating webhooks one after the other. Those that want to see later changes are called again in the second round.
pub(super) async fn mutate(review: &Review<'_>, rounds: &mut Rounds, object: &mut Object) -> Result<(), Status> {
    let hooks = hooks(review, MUTATING);
    if rounds.second && rounds.left.as_ref() != Some(object) {
        // Other plugins have changed it since.
        rounds.again.clone_from(&rounds.invoked);
    }
    for (index, hook) in hooks.iter().enumerate() {
        if rounds.second && !rounds.again.contains(&hook.key) {
            continue;
        }
        let Some(exchange) = relevant(review, hook, object, true).await? else { continue };
        let patched = match answered(review, hook, &exchange, (rounds.second, index)).await? {
            Some(answer) => patched(review, hook, &exchange, answer, object).await?,
            None => None,
        };
        if let Some(patched) = patched.filter(|patched| patched != object) {
            *object = patched;
            rounds.again.clone_from(&rounds.invoked);
            rounds.left = Some(object.clone());
        }
        if hook.spec["reinvocationPolicy"] == "IfNeeded" && !rounds.second {
            rounds.invoked.push(hook.key.clone());
        }
    }
    Ok(())
}

/// The object with an answer's patch applied, within the turn of the request's user.
async fn patched(
    review: &Review<'_>,
    hook: &Hook,
    exchange: &Exchange,
    answer: Tree,
    object: &Object,
) -> Result<Option<Object>, Status> {
    let Some(patch) = exchange.patch_of(review, hook.name(), &answer.value)? else { return Ok(None) };
    let _taken = answer.leave();
    let (large, user, size) = (&review.server.large, &review.call.user, BodySize::of_json(&patch));
    let _place = large.enter_answer(user, size).await?;
    let work = async { exchange.patched(review, hook.name(), &patch, object) };
    large.run(user, size.bytes, work).await.map(Some)
}

/// Calls the validating webhooks, all at once.
pub(super) fn validate<'a>(review: &'a Review<'_>, object: &'a Object) -> BoxFuture<'a, Result<(), Status>> {
    Box::pin(async move {
        let hooks = hooks(review, VALIDATING);
        let asked = hooks.iter().enumerate().map(|(index, hook)| async move {
            match relevant(review, hook, object, false).await? {
                Some(exchange) => answered(review, hook, &exchange, (false, index)).await.map(drop),
                None => Ok(()),
            }
        });
        join_all(asked).await.into_iter().collect()
    })
}

/// What to ask a webhook, if the request concerns it.
async fn relevant(
    review: &Review<'_>,
    hook: &Hook,
    object: &Object,
    mutating: bool,
) -> Result<Option<Exchange>, Status> {
    let Some(version) = matching::by_rules(review, &hook.spec["rules"], &hook.spec["matchPolicy"]) else {
        return Ok(None);
    };
    if !matching::by_selectors(review, object, &hook.spec)? {
        return Ok(None);
    }
    let (conditions, index) = (&hook.conditions.0, hook.conditions.1);
    let conditions = conditions.get(index).map(Vec::as_slice).unwrap_or_default();
    match policy::conditions_hold(review, version, object, conditions).await? {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(_) if hook.spec["failurePolicy"] == "Ignore" => return Ok(None),
        Err(why) => return Err(review.forbidden(object, why)),
    }
    Ok(Some(Exchange::new(review, version, object, &hook.spec, mutating)))
}

/// Calls a webhook. `None` if it failed and its failure policy ignores that; a refusal is an error.
fn answered<'a>(
    review: &'a Review<'_>,
    hook: &'a Hook,
    exchange: &'a Exchange,
    place: (bool, usize),
) -> BoxFuture<'a, Result<Option<Tree>, Status>> {
    Box::pin(async move {
        let began = Instant::now();
        let name = if exchange.mutates() { "Call mutating webhook" } else { "Call validating webhook" };
        let span = Span::current().child(name);
        span.set("webhook", hook.name());
        span.set("resource", review.call.kind.plural);
        span.set("operation", review.operation.as_str());
        let answer = span.around(ask(review, hook, exchange, place)).await;
        if let Err(why) = &answer {
            span.fail(&why.message);
        }
        span.end();
        let half = if exchange.mutates() { Half::Admit } else { Half::Validate };
        let (operation, rejected) = (review.operation, answer.is_err());
        METRICS.webhook(hook.name(), Decided { half, operation, rejected, began });
        answer
    })
}

async fn ask(
    review: &Review<'_>,
    hook: &Hook,
    exchange: &Exchange,
    (second, index): (bool, usize),
) -> Result<Option<Tree>, Status> {
    let (server, user) = (review.server, &review.call.user);
    let timeout = Duration::from_secs(hook.spec["timeoutSeconds"].as_u64().unwrap_or(10));
    let call = webhook::call(server, user, &hook.spec["clientConfig"], &exchange.document, timeout);
    let answer = match server.away.wait(call).await? {
        Ok(answer) => answer.read(server, user).await,
        Err(why) => Err(why),
    };
    let answer = match answer {
        Ok(mut answer) => match exchange.read(answer.value.take()) {
            Ok(response) => {
                answer.value = response;
                Ok(answer)
            }
            Err(why) => Err(AnswerError::Response(why)),
        },
        Err(why) => match webhook::refusal(&why) {
            Some(refusal) => return Err(refusal),
            None => Err(AnswerError::Unanswered(why)),
        },
    };
    let name = hook.name();
    match answer {
        Ok(answer) => {
            exchange::take_notes(review, name, &answer.value);
            match exchange::refusal(name, &answer.value) {
                Some(refusal) => Err(refusal),
                None => Ok(Some(answer)),
            }
        }
        Err(why) if hook.spec["failurePolicy"] == "Ignore" => {
            tracing::warn!("failed calling webhook, failing open {name}: {why}");
            let (kind, round) = (exchange.phase(), usize::from(second));
            let key = format!("failed-open.{kind}.webhook.admission.k8s.io/round_{round}_index_{index}");
            review.call.notes.annotate(key, name);
            Ok(None)
        }
        Err(why) => Err(Status::internal(WebhookError { name, why })),
    }
}
