//! Webhook conversion of custom resource versions. Input in another version is converted to the stored one before the verbs see it,
//! and output to the requested one: the verbs only know the stored version.
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/#webhook-conversion>

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::conversion_review::{ConversionError, keep_metadata, objects_of};
use crate::encode::Current;
use crate::large::of_rules;
use crate::resolved_request::ResolvedRequest;
use crate::webhook::{Answer, Tree};
use crate::write_scope::part_of;
use crate::{Server, Watch, fields, webhook};
use podwright_api::kinds::{custom::Conversion, definition::validate};
use podwright_api::request::{Body, EventKind, PatchType};
use podwright_api::selector::FieldSelector;
use podwright_api::structural::{fill, prune};
use podwright_api::{Kind, Object, Response, Status, User, Verb, WatchEvent, patch};

/// How long a webhook may take; upstream's.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How often a patch is retried because the object has changed meanwhile.
const MAX_RETRIES: usize = 8;

/// The conversion webhook for a call's kind.
pub(crate) fn webhook_of(call: &ResolvedRequest) -> Option<Value> {
    match &call.asked().custom()?.conversion {
        Conversion::Webhook(webhook) => Some(webhook.clone()),
        Conversion::None => None,
    }
}

impl Server {
    /// Like [`judged`], in the turns of large requests if the rules may take long.
    async fn received(&self, call: &ResolvedRequest, body: Value) -> Result<(Object, Vec<String>), Status> {
        let judging = async move { judged(call, body) };
        self.large.part(&call.user, of_rules(call.asked()), |_| judging).await?
    }

    /// Runs a call on a kind with a conversion webhook.
    pub(crate) async fn run_converted(&self, mut call: ResolvedRequest, webhook: &Value) -> Result<Response, Status> {
        let asked = call.again();
        let concerns_object = matches!(call.subresource.as_deref(), None | Some("status"));
        let fields = own_fields(&mut call)?;
        let mut warnings = Vec::new();
        let mut response = match call.verb {
            Verb::Patch if concerns_object => self.patch_converted(call, webhook).await?,
            Verb::Create | Verb::Update if concerns_object => {
                let body = call.take_body()?;
                let (object, told) = self.received(&asked, body).await?;
                warnings = told;
                call.body = Some(self.converted(&asked.user, webhook, asked.kind, vec![object]).await?.remove(0).0);
                call.version = Some(call.kind);
                self.run(call).await?
            }
            Verb::DeleteCollection if !fields.0.is_empty() => return self.delete_selected(asked, webhook).await,
            _ => {
                if !fields.0.is_empty() {
                    // Matches are known only after conversion: all of them come on one page.
                    (call.options.limit, call.options.continue_token) = (None, None);
                }
                call.version = Some(call.kind);
                self.run(call).await?
            }
        };
        response.warnings.extend(warnings);
        if concerns_object {
            self.answer_converted(&asked, webhook, &mut response).await?;
        }
        if let Body::List(list) = &mut response.body
            && !fields.0.is_empty()
        {
            list.items.retain(|bytes| fits(&asked, &fields, bytes));
        }
        Ok(response)
    }

    /// Deletes by a selector that applies to converted objects only.
    async fn delete_selected(&self, asked: ResolvedRequest, webhook: &Value) -> Result<Response, Status> {
        let list = ResolvedRequest { verb: Verb::List, ..asked.again() };
        let found = Box::pin(self.run_converted(list, webhook)).await?;
        let Body::List(list) = &found.body else { return Ok(found) };
        for bytes in &list.items {
            let object = Object::from_slice(bytes)?;
            let one = ResolvedRequest {
                verb: Verb::Delete,
                version: Some(asked.kind),
                namespace: object.namespace().map(str::to_owned),
                name: Some(object.name().to_owned()),
                ..asked.again()
            };
            match Box::pin(self.run(one)).await {
                Err(status) if status.is_not_found() => {}
                done => drop(done?),
            }
        }
        Ok(found)
    }

    /// A patch in the requested version: an update with what it makes of the current object.
    async fn patch_converted(&self, mut call: ResolvedRequest, webhook: &Value) -> Result<Response, Status> {
        let body = call.take_body()?;
        let of_type = call.options.patch_type.unwrap_or(PatchType::Merge);
        for _ in 0..MAX_RETRIES {
            let current = self.fetch(&call, &call.key()).await?;
            let creates = matches!(of_type, PatchType::Apply | PatchType::ThreeWay) && current.is_none();
            let live = match current {
                Some(Current { object, .. }) => {
                    Some(self.converted(&call.user, webhook, call.asked(), vec![object]).await?.remove(0))
                }
                None if creates && call.subresource.is_none() => None,
                None => return Err(call.not_found()),
            };
            let patched = match (of_type, &live) {
                (PatchType::Apply, live) => {
                    let validation = call.options.field_validation.unwrap_or_default();
                    let (mut config, _) = call.asked().decode(body.clone(), validation)?;
                    call.align_namespace(&mut config)?;
                    call.align_name(&mut config)?;
                    fields::applied(&call, part_of(&call)?, live.as_ref(), &config, &self.timestamp())?.0
                }
                (_, None) => patch::apply::annotated(&body)?,
                (_, Some(live)) => patch::patch(call.asked(), of_type, live, &body)?,
            };
            let (mut object, _) = self.received(&call, patched).await?;
            if let Some(live) = &live {
                object.set_meta("resourceVersion", Value::from(live.resource_version()));
            }
            let stored = self.converted(&call.user, webhook, call.kind, vec![object]).await?.remove(0);
            let verb = if live.is_some() { Verb::Update } else { Verb::Create };
            let write = ResolvedRequest { verb, body: Some(stored.0), version: Some(call.kind), ..call.again() };
            self.authorize(&ResolvedRequest { version: call.version, ..write.again() }.attributes()).await?;
            match Box::pin(self.run(write)).await {
                Err(status) if status.is_conflict() && body["metadata"]["resourceVersion"].is_null() => {}
                Err(status) if status.is_already_exists() && live.is_none() => {}
                Err(status) => return Err(status),
                Ok(mut done) => {
                    let live = live.filter(|_| of_type == PatchType::ThreeWay);
                    done.warnings.extend(live.and_then(|live| patch::apply::unapplied(call.kind.plural, &live)));
                    return Ok(done);
                }
            }
        }
        Err(call.conflict("the object is being modified too often; please try again"))
    }

    async fn answer_converted(
        &self,
        asked: &ResolvedRequest,
        webhook: &Value,
        response: &mut Response,
    ) -> Result<(), Status> {
        let row = asked.asked();
        match &mut response.body {
            Body::Object { bytes, .. } => {
                *bytes = self.shown_converted(&asked.user, webhook, row, std::slice::from_ref(bytes)).await?.remove(0)
            }
            Body::List(list) => {
                list.api_version = row.api_version();
                list.items = self.shown_converted(&asked.user, webhook, row, &list.items).await?;
            }
            Body::Status(_) | Body::Stream { .. } => {}
        }
        Ok(())
    }

    /// Stored objects, converted to the version of a row.
    async fn shown_converted(
        &self,
        user: &User,
        webhook: &Value,
        row: &'static Kind,
        all: &[Bytes],
    ) -> Result<Vec<Bytes>, Status> {
        let objects = all.iter().map(|bytes| Object::from_slice(bytes)).collect::<Result<Vec<_>, _>>()?;
        let converted = self.converted(user, webhook, row, objects).await?;
        Ok(converted.into_iter().map(|object| object.to_vec().into()).collect())
    }

    /// A watch in the requested version; it ends with an error if an object cannot be converted.
    pub(crate) fn told_converted(
        &self,
        asked: ResolvedRequest,
        webhook: Value,
        fields: FieldSelector,
        mut watch: Watch,
    ) -> Watch {
        let (sender, told) = tokio::sync::mpsc::channel(16);
        let server = self.me.clone();
        let mut fitting = Fitting::new(&asked, fields);
        tokio::spawn(async move {
            while let Some(event) = watch.recv().await {
                let Some(server) = server.upgrade() else { return };
                let size = event.object.len();
                let work = async {
                    let converted = server.event_converted(&asked, &webhook, event).await;
                    converted.map(|event| fitting.judge(&asked, event))
                };
                // It is not part of a request.
                let work = server.large.run(&asked.user, size, work);
                let event = match server.limiters.cpu.measured(&asked.user, work).await {
                    Ok(event) => event,
                    Err(why) => {
                        let object = serde_json::to_vec(&why).unwrap_or_default().into();
                        Some(WatchEvent { kind: EventKind::Error, object })
                    }
                };
                let Some(event) = event else { continue };
                let last = event.kind == EventKind::Error;
                if sender.send(event).await.is_err() || last {
                    return;
                }
            }
        });
        told
    }

    async fn event_converted(
        &self,
        asked: &ResolvedRequest,
        webhook: &Value,
        event: WatchEvent,
    ) -> Result<WatchEvent, Status> {
        let object = match event.kind {
            EventKind::Error => event.object,
            // It has only a revision, nothing to convert.
            EventKind::Bookmark => {
                let mut bookmark = Object::from_slice(&event.object)?;
                bookmark.0["apiVersion"] = asked.asked().api_version().into();
                bookmark.to_vec().into()
            }
            _ => self
                .shown_converted(&asked.user, webhook, asked.asked(), std::slice::from_ref(&event.object))
                .await?
                .remove(0),
        };
        Ok(WatchEvent { kind: event.kind, object })
    }

    /// Objects converted to the version of a row, pruned and defaulted by its schema.
    async fn converted(
        &self,
        user: &User,
        webhook: &Value,
        row: &'static Kind,
        mut all: Vec<Object>,
    ) -> Result<Vec<Object>, Status> {
        let wanted = row.api_version();
        let others: Vec<usize> = (0..all.len()).filter(|at| all[*at].api_version() != wanted).collect();
        if others.is_empty() {
            fit(row, &mut all);
            return Ok(all);
        }
        let sent: Vec<&Value> = others.iter().map(|at| &all[*at].0).collect();
        let from = sent[0]["apiVersion"].as_str().unwrap_or("").to_owned();
        // The room of the response is held until everything is built from it.
        let (uid, answer) = self.ask_webhook(user, webhook, row, &wanted, &sent).await?;
        let (answer, size, _held) = answer.split();
        let made = async {
            let answers =
                objects_of(answer, &uid, row.kind, &wanted, others.len()).map_err(|why| failed(&from, row, &why))?;
            for (at, mut answer) in others.into_iter().zip(answers) {
                keep_metadata(&mut answer, &all[at])
                    .map_err(|why| failed(&from, row, &ConversionError::Metadata(why)))?;
                all[at] = answer;
            }
            fit(row, &mut all);
            Ok::<_, Status>(all)
        };
        // The webhook determines its size, whatever the request's was.
        self.large.run(user, size, made).await
    }

    /// Calls the webhook; returns its answer and the request's uid.
    async fn ask_webhook(
        &self,
        user: &User,
        webhook: &Value,
        row: &Kind,
        wanted: &str,
        sent: &[&Value],
    ) -> Result<(String, Tree), Status> {
        let from = sent.first().map_or("", |object| object["apiVersion"].as_str().unwrap_or(""));
        let uid = self.env.uid();
        let review = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": sent},
        });
        let trouble = |why: anyhow::Error| match webhook::refusal(&why) {
            Some(refusal) => refusal,
            None => failed(from, row, &ConversionError::Unanswered(why)),
        };
        let answer = self.away.wait(asked(self, user, &webhook["clientConfig"], &review)).await?;
        let answer = answer.map_err(trouble)?.read(self, user).await.map_err(trouble)?;
        Ok((uid, answer))
    }
}

/// Prunes and defaults objects by their version's schema.
fn fit(row: &Kind, all: &mut [Object]) {
    let Some(version) = row.custom() else { return };
    for object in all {
        prune::prune(&version.schema, &mut object.0);
        fill::defaults(&version.schema, &mut object.0);
    }
}

/// Removes fields from a call's selector that only the requested version has: they are evaluated after conversion.
pub(crate) fn own_fields(call: &mut ResolvedRequest) -> Result<FieldSelector, Status> {
    let none = Ok(FieldSelector::default());
    if std::ptr::eq(call.asked(), call.kind) || webhook_of(call).is_none() {
        return none;
    }
    let Some(text) = call.options.field_selector.take() else { return none };
    let all = FieldSelector::parse(&text)?;
    all.check(call.asked())?;
    let of_all = |path: &str| path.starts_with("metadata.");
    let (common, own): (Vec<_>, Vec<_>) = all.0.into_iter().partition(|(path, ..)| of_all(path));
    call.options.field_selector = Some(FieldSelector(common).to_string());
    Ok(FieldSelector(own))
}

fn fits(asked: &ResolvedRequest, fields: &FieldSelector, bytes: &[u8]) -> bool {
    Object::from_slice(bytes).is_ok_and(|object| fields.matches_object(asked.asked(), &object))
}

/// Which objects of a watch match a selector that is evaluated after conversion.
struct Fitting {
    fields: FieldSelector,
    /// By uid, whether each matched.
    known: HashMap<String, bool>,
    /// Whether objects may have been sent before the watch began.
    resumed: bool,
}

impl Fitting {
    fn new(asked: &ResolvedRequest, fields: FieldSelector) -> Fitting {
        let revision = asked.options.resource_version.as_deref().unwrap_or("");
        let resumed = !matches!(revision, "" | "0") && !asked.options.send_initial_events;
        Fitting { fields, known: HashMap::new(), resumed }
    }

    /// What to send for an event: an object that no longer matches is deleted.
    fn judge(&mut self, asked: &ResolvedRequest, event: WatchEvent) -> Option<WatchEvent> {
        let about_object = !matches!(event.kind, EventKind::Error | EventKind::Bookmark);
        if self.fields.0.is_empty() || !about_object {
            return Some(event);
        }
        let object = Object::from_slice(&event.object).ok()?;
        let fits = self.fields.matches_object(asked.asked(), &object);
        let gone = event.kind == EventKind::Deleted;
        let before = match gone {
            true => self.known.remove(object.uid()),
            false => self.known.insert(object.uid().to_owned(), fits),
        };
        let before = before.unwrap_or(self.resumed && event.kind != EventKind::Added);
        let kind = match (before, fits && !gone) {
            (false, true) => EventKind::Added,
            (true, true) => EventKind::Modified,
            (true, false) => EventKind::Deleted,
            (false, false) => return None,
        };
        Some(WatchEvent { kind, ..event })
    }
}

/// Calls a webhook. Boxed here: a webhook behind a Service is looked up by requests of our own.
fn asked<'a>(
    server: &'a Server,
    user: &'a User,
    config: &'a Value,
    review: &'a Value,
) -> BoxFuture<'a, anyhow::Result<Answer>> {
    Box::pin(webhook::call(server, user, config, review, TIMEOUT))
}

/// An object in the requested version, decoded, defaulted and validated by that version's schema.
fn judged(call: &ResolvedRequest, body: Value) -> Result<(Object, Vec<String>), Status> {
    let (mut object, warnings) = call.asked().decode(body, call.options.field_validation.unwrap_or_default())?;
    call.asked().default(&mut object);
    let causes = validate(call.asked(), &object, None);
    if causes.is_empty() { Ok((object, warnings)) } else { Err(call.invalid(object.name(), causes)) }
}

fn failed(from: &str, row: &Kind, why: &ConversionError) -> Status {
    Status::internal(format!("conversion webhook for {from}, Kind={} failed: {why}", row.kind))
}
