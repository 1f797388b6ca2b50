//! Versions of custom resources that a webhook converts. What comes in another version than the stored one is brought into that
//! before the verbs see it, and what goes out into the one asked for: the verbs themselves know the stored one alone.
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/#webhook-conversion>

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::api::kinds::custom::{Conversion, validate};
use crate::api::request::{Body, EventKind, PatchType};
use crate::api::structural::{fill, prune};
use crate::api::{Kind, Object, Response, Status, Verb, WatchEvent, patch};
use crate::server::call::Call;
use crate::server::encode::Current;
use crate::server::update::part_of;
use crate::server::{Server, Watch, fields, webhook};

/// How long a webhook may take; upstream's.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a patch is made anew because the object has changed meanwhile.
const TURNS: usize = 8;

/// The webhook that converts the kind of a call.
pub(in crate::server) fn webhook_of(call: &Call) -> Option<Value> {
    match &call.asked().custom()?.conversion {
        Conversion::Webhook(webhook) => Some(webhook.clone()),
        Conversion::None => None,
    }
}

impl Server {
    /// A call about a kind whose versions a webhook converts.
    pub(in crate::server) async fn run_converted(&self, mut call: Call, webhook: &Value) -> Result<Response, Status> {
        let asked = call.again();
        let concerns_object = matches!(call.subresource.as_deref(), None | Some("status"));
        let mut warnings = Vec::new();
        let mut response = match call.verb {
            Verb::Patch if concerns_object => self.patch_converted(call, webhook).await?,
            Verb::Create | Verb::Update if concerns_object => {
                let body = call.take_body()?;
                let (object, told) = received(&asked, body)?;
                warnings = told;
                call.body = Some(self.converted(webhook, asked.kind, vec![object]).await?.remove(0).0);
                call.version = Some(call.kind);
                self.run(call).await?
            }
            _ => {
                call.version = Some(call.kind);
                self.run(call).await?
            }
        };
        response.warnings.extend(warnings);
        if concerns_object {
            self.answer_converted(&asked, webhook, &mut response).await?;
        }
        Ok(response)
    }

    /// A patch of the version that was asked for: of what it makes of the object as it is now, an update.
    async fn patch_converted(&self, mut call: Call, webhook: &Value) -> Result<Response, Status> {
        let body = call.take_body()?;
        let of_type = call.options.patch_type.unwrap_or(PatchType::Merge);
        for _ in 0..TURNS {
            let current = self.fetch(&call, &call.key()).await?;
            let creates = matches!(of_type, PatchType::Apply | PatchType::ThreeWay) && current.is_none();
            let live = match current {
                Some(Current { object, .. }) => {
                    Some(self.converted(webhook, call.asked(), vec![object]).await?.remove(0))
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
            let (mut object, _) = received(&call, patched)?;
            if let Some(live) = &live {
                object.set_meta("resourceVersion", Value::from(live.resource_version()));
            }
            let stored = self.converted(webhook, call.kind, vec![object]).await?.remove(0);
            let verb = if live.is_some() { Verb::Update } else { Verb::Create };
            let write = Call { verb, body: Some(stored.0), version: Some(call.kind), ..call.again() };
            self.authorize(&Call { version: call.version, ..write.again() }.attributes()).await?;
            match Box::pin(self.run(write)).await {
                Err(status) if status.is_conflict() && body["metadata"]["resourceVersion"].is_null() => {}
                Err(status) if status.is_already_exists() && live.is_none() => {}
                done => return done,
            }
        }
        Err(call.conflict("the object is being modified too often; please try again"))
    }

    async fn answer_converted(&self, asked: &Call, webhook: &Value, response: &mut Response) -> Result<(), Status> {
        let row = asked.asked();
        match &mut response.body {
            Body::Object { bytes, .. } => {
                *bytes = self.shown_converted(webhook, row, std::slice::from_ref(bytes)).await?.remove(0)
            }
            Body::List(list) => {
                list.api_version = row.api_version();
                list.items = self.shown_converted(webhook, row, &list.items).await?;
            }
            Body::Status(_) | Body::Stream { .. } => {}
        }
        Ok(())
    }

    /// Objects as they are stored, in the version of a row.
    async fn shown_converted(&self, webhook: &Value, row: &'static Kind, all: &[Bytes]) -> Result<Vec<Bytes>, Status> {
        let objects = all.iter().map(|bytes| Object::from_slice(bytes)).collect::<Result<Vec<_>, _>>()?;
        let converted = self.converted(webhook, row, objects).await?;
        Ok(converted.into_iter().map(|object| object.to_vec().into()).collect())
    }

    /// A watch in the version that was asked for; it ends with an error where an object cannot be converted.
    pub(in crate::server) fn told_converted(&self, asked: Call, webhook: Value, mut watch: Watch) -> Watch {
        let (sender, told) = tokio::sync::mpsc::channel(16);
        let server = self.me.clone();
        tokio::spawn(async move {
            while let Some(mut event) = watch.recv().await {
                let Some(server) = server.upgrade() else { return };
                if event.kind != EventKind::Error {
                    match server.shown_converted(&webhook, asked.asked(), std::slice::from_ref(&event.object)).await {
                        Ok(mut converted) => event.object = converted.remove(0),
                        Err(why) => {
                            let object = serde_json::to_vec(&why).unwrap_or_default().into();
                            event = WatchEvent { kind: EventKind::Error, object };
                        }
                    }
                }
                let last = event.kind == EventKind::Error;
                if sender.send(event).await.is_err() || last {
                    return;
                }
            }
        });
        told
    }

    /// Objects in the version of a row, pruned and defaulted as that wants it.
    async fn converted(
        &self,
        webhook: &Value,
        row: &'static Kind,
        mut all: Vec<Object>,
    ) -> Result<Vec<Object>, Status> {
        let wanted = row.api_version();
        let others: Vec<usize> = (0..all.len()).filter(|at| all[*at].api_version() != wanted).collect();
        if !others.is_empty() {
            let sent: Vec<&Value> = others.iter().map(|at| &all[*at].0).collect();
            let answers = self.ask_webhook(webhook, row, &wanted, &sent).await?;
            for (at, mut answer) in others.into_iter().zip(answers) {
                keep_metadata(&mut answer, &all[at]);
                all[at] = answer;
            }
        }
        if let Some(version) = row.custom() {
            for object in &mut all {
                prune::prune(&version.schema, &mut object.0);
                fill::defaults(&version.schema, &mut object.0);
            }
        }
        Ok(all)
    }

    async fn ask_webhook(
        &self,
        webhook: &Value,
        row: &Kind,
        wanted: &str,
        sent: &[&Value],
    ) -> Result<Vec<Object>, Status> {
        let from = sent.first().map_or("", |object| object["apiVersion"].as_str().unwrap_or(""));
        let failed =
            |why: String| Status::internal(format!("conversion webhook for {from}, Kind={} failed: {why}", row.kind));
        let uid = self.env.uid();
        let review = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": sent},
        });
        let answer = asked(self, &webhook["clientConfig"], &review).await;
        let mut answer = answer.map_err(|why| failed(format!("{why:#}")))?;
        let response = answer.get_mut("response").map(Value::take).unwrap_or_default();
        if response["uid"] != uid {
            return Err(failed(format!("expected response.uid={uid:?}, got {}", response["uid"])));
        }
        if response["result"]["status"] != "Success" {
            let why = response["result"]["message"].as_str().unwrap_or("no message");
            return Err(failed(why.to_owned()));
        }
        let objects = response["convertedObjects"].as_array().cloned().unwrap_or_default();
        if objects.len() != sent.len() {
            return Err(failed(format!("returned {} objects, expected {}", objects.len(), sent.len())));
        }
        let wrong = objects.iter().position(|object| object["apiVersion"] != wanted || object["kind"] != row.kind);
        match wrong {
            Some(at) => Err(failed(format!(
                "returned invalid converted object at index {at}: invalid groupVersion (expected {wanted}, received {})",
                objects[at]["apiVersion"]
            ))),
            None => Ok(objects.into_iter().map(Object).collect()),
        }
    }
}

/// Asks a webhook. Boxed here: one behind a Service is found by calls of our own.
fn asked<'a>(server: &'a Server, config: &'a Value, review: &'a Value) -> BoxFuture<'a, anyhow::Result<Value>> {
    Box::pin(webhook::call(server, config, review, PATIENCE))
}

/// An object of the version that was asked for, decoded, defaulted and judged by that version's schema.
fn received(call: &Call, body: Value) -> Result<(Object, Vec<String>), Status> {
    let (mut object, warnings) = call.asked().decode(body, call.options.field_validation.unwrap_or_default())?;
    call.asked().default(&mut object);
    let causes = validate(call.asked(), &object, None);
    if causes.is_empty() { Ok((object, warnings)) } else { Err(call.invalid(object.name(), causes)) }
}

/// Of metadata a webhook may change labels and annotations alone.
fn keep_metadata(converted: &mut Object, original: &Object) {
    let mut metadata = original.0["metadata"].clone();
    for field in ["labels", "annotations"] {
        match converted.0["metadata"].get(field) {
            Some(value) => metadata[field] = value.clone(),
            None => drop(metadata.as_object_mut().and_then(|map| map.shift_remove(field))),
        }
    }
    converted.0["metadata"] = metadata;
}
