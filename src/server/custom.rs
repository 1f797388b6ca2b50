//! CustomResourceDefinitions: accepts their names and deletes their objects.
//!
//! The watch cache reads definitions first and so knows their kinds (`cache`). Here is what upstream's controllers of the
//! extensions server do: names are accepted if unused, and the kind becomes established ([`names`]); deleting a definition deletes
//! its objects ([`cleanup`]).

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::{Value, json};

use podwright_api::{Kind, Object, Options, Request, Status, User, Verb, kinds};

use super::Server;
use super::resolved_request::ResolvedRequest;
use super::retries::Backoff;

mod cleanup;
pub(crate) mod conversion_review;
mod convert;
mod names;

pub(super) use cleanup::begin;
pub(super) use convert::{own_fields, webhook_of};

const RESOURCE: &str = "customresourcedefinitions.apiextensions.k8s.io";
/// The delay before a failure is retried.
const AGAIN: Duration = Duration::from_secs(1);

/// A kind whose definition is being deleted accepts no new objects.
pub(super) fn may_create(call: &ResolvedRequest) -> Result<(), Status> {
    if call.kind.custom().is_some_and(|version| version.terminating) {
        let why = format!(
            "create not allowed while custom resource definition is terminating: {}.{}",
            call.kind.plural, call.kind.group
        );
        return Err(Status::failure(405, "MethodNotAllowed", why).with_details(call.kind.plural, call.kind.group, ""));
    }
    Ok(())
}

/// The warning for users of a deprecated version.
pub(super) fn warning(call: &ResolvedRequest) -> Option<String> {
    call.asked().custom()?.warning.clone()
}

fn definitions() -> Result<&'static Kind, Status> {
    kinds::lookup(RESOURCE).ok_or_else(|| Status::internal("no kind CustomResourceDefinition"))
}

/// Sets a condition of an object. `true`: it changed.
pub(super) fn set_condition(
    object: &mut Object,
    of: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: &str,
) -> bool {
    let new = json!({
        "type": of, "status": status, "lastTransitionTime": now, "reason": reason, "message": message,
    });
    let conditions = &mut object.0["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(all) = conditions.as_array_mut() else { return false };
    match all.iter_mut().find(|condition| condition["type"] == of) {
        Some(old) => {
            let same = |field: &str| old[field] == new[field];
            if same("status") && same("reason") && same("message") {
                return false;
            }
            let since = if same("status") { old["lastTransitionTime"].clone() } else { now.into() };
            *old = new;
            old["lastTransitionTime"] = since;
        }
        None => all.push(new),
    }
    true
}

/// What a pass over all definitions leaves for the next one.
#[derive(Default)]
struct Looked {
    /// A definition waits for something that no event of a definition reports.
    waits: bool,
    /// A definition could not be written.
    failed: bool,
}

impl Looked {
    fn failed(&mut self, definition: &Object, why: &Status) {
        tracing::warn!("failed to serve the CustomResourceDefinition {}: {why}", definition.name());
        self.failed = true;
    }
}

impl Server {
    /// Starts the loop that reconciles definitions.
    pub(super) fn start_definitions(self: &Arc<Server>) {
        self.tasks.add(tokio::spawn(run(Arc::downgrade(self))));
    }

    /// Reconciles all definitions. One that cannot be written does not affect others: it is retried.
    async fn look_after_definitions(&self) -> Result<Looked, Status> {
        let items: Vec<_> = self.cache.resource(definitions()?).read().items.values().cloned().collect();
        let mut all: Vec<Object> = items.iter().filter_map(|item| Object::from_slice(&item.bytes).ok()).collect();
        // The oldest definition gets the names.
        all.sort_by_key(|o| {
            (o.0["metadata"]["creationTimestamp"].as_str().unwrap_or("").to_owned(), o.name().to_owned())
        });
        let mut looked = Looked::default();
        for at in 0..all.len() {
            if all[at].is_terminating() {
                match self.clean_up(&all[at]).await {
                    Ok(waits) => looked.waits |= waits,
                    Err(why) => looked.failed(&all[at], &why),
                }
            }
            if let Some(changed) = names::accept(&all[at], &all, &self.timestamp()) {
                all[at] = match self.write_definition(&changed, Some("status")).await {
                    Ok(written) => written.unwrap_or(changed),
                    Err(why) => {
                        looked.failed(&changed, &why);
                        changed
                    }
                };
            }
        }
        Ok(looked)
    }

    /// Updates a definition; `None` on a conflict, which triggers another pass.
    async fn write_definition(&self, definition: &Object, part: Option<&str>) -> Result<Option<Object>, Status> {
        let request = Request {
            verb: Verb::Update,
            resource: RESOURCE.into(),
            name: Some(definition.name().to_owned()),
            subresource: part.map(str::to_owned),
            body: Some(definition.0.clone()),
            options: Options { field_manager: Some("kube-apiserver".into()), ..Options::default() },
            user: User::system("system:apiserver"),
            ..Request::default()
        };
        match self.handle(request).await {
            Ok(response) => match response.body {
                podwright_api::request::Body::Object { bytes, .. } => Object::from_slice(&bytes).map(Some),
                _ => Ok(None),
            },
            Err(why) if why.is_conflict() || why.is_not_found() => Ok(None),
            Err(why) => Err(why),
        }
    }
}

/// Reconciles whenever a definition has changed, and periodically while one is being cleaned up or cannot be written.
async fn run(server: Weak<Server>) {
    let mut backoff = Backoff::default();
    loop {
        let Some(strong) = server.upgrade() else { return };
        let request =
            Request { resource: RESOURCE.into(), user: User::system("system:apiserver"), ..Request::default() };
        let watch = strong.watch(request).await;
        let mut outcome = strong.look_after_definitions().await;
        drop(strong);
        if let Ok(mut events) = watch {
            while let Ok(Looked { waits, failed }) = outcome {
                let patience = match (failed, waits) {
                    (true, _) => backoff.next(),
                    (false, true) => AGAIN / 5,
                    (false, false) => Duration::MAX,
                };
                if !failed {
                    backoff = Backoff::default();
                }
                match tokio::time::timeout(patience, events.recv()).await {
                    Ok(None) => break,
                    Ok(Some(_)) => while events.try_recv().is_ok() {},
                    Err(_) => {}
                }
                let Some(strong) = server.upgrade() else { return };
                outcome = strong.look_after_definitions().await;
            }
        }
        if let Err(why) = outcome {
            tracing::warn!("failed to read the CustomResourceDefinitions: {why}");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The strings of a list.
fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}
