//! AdmissionReview: the request to a webhook, and what its answer means.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Operation, Review, request};
use crate::versions;
use crate::write_scope::{part_of, prepare};
use podwright_api::{Cause, FieldValidation, Kind, Object, Status, patch, status};

/// One request.
pub(super) struct Exchange {
    /// The AdmissionReview that is sent.
    pub document: Value,
    /// The version of its objects.
    version: &'static Kind,
    uid: String,
    mutating: bool,
}

/// A webhook call failed, in upstream's words.
#[derive(Debug, thiserror::Error)]
#[error("failed calling webhook \"{name}\": {why}")]
pub(super) struct WebhookError<'a> {
    pub name: &'a str,
    pub why: AnswerError,
}

/// Why there is no valid answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    /// The call failed, or the answer could not be read.
    #[error("failed to call webhook: {0:#}")]
    Unanswered(anyhow::Error),
    #[error("received invalid webhook response: {0}")]
    Response(ResponseError),
    #[error("unsupported patch type {0}")]
    PatchType(Value),
    #[error("response.patch: {0}")]
    PatchEncoding(base64::DecodeError),
    #[error("response.patch: {0}")]
    Patch(serde_json::Error),
}

/// Why a document does not answer a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResponseError {
    #[error("webhook response was absent")]
    Absent,
    /// It is of another kind or version; both as upstream writes them.
    #[error("expected webhook response of {expected}, got {got}")]
    Kind { expected: String, got: String },
    /// It answers another request.
    #[error("expected response.uid={expected:?}, got {got:?}")]
    Uid { expected: String, got: String },
    /// It has a patch without a type.
    #[error("webhook returned response.patch but not response.patchType")]
    NoPatchType,
    /// It has a patch type without a patch.
    #[error("webhook returned response.patchType but not response.patch")]
    NoPatch,
    /// It has what a validating webhook may not have.
    #[error("validating webhook may not return response.{0}")]
    Mutates(&'static str),
}

impl Exchange {
    pub fn new(review: &Review<'_>, version: &'static Kind, object: &Object, hook: &Value, mutating: bool) -> Exchange {
        let shown = |object: &Object| match request::is_whole(review) {
            true => versions::shown_as(version, object).0,
            false => object.0.clone(),
        };
        let (new, old) = match review.operation {
            Operation::Delete => (Value::Null, shown(object)),
            _ => (shown(object), review.old.map_or(Value::Null, shown)),
        };
        let mut request = request::describe(review, version, object);
        let uid = request["uid"].as_str().unwrap_or("").to_owned();
        request["object"] = new;
        request["oldObject"] = old;
        // The first version that both support.
        let versions = hook["admissionReviewVersions"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let spoken = versions.into_iter().find(|version| matches!(*version, "v1" | "v1beta1")).unwrap_or("v1");
        let api_version = format!("admission.k8s.io/{spoken}");
        let document = json!({"kind": "AdmissionReview", "apiVersion": api_version, "request": request});
        Exchange { document, version, uid, mutating }
    }

    pub fn mutates(&self) -> bool {
        self.mutating
    }

    /// The phase, as audit annotations name it.
    pub fn phase(&self) -> &'static str {
        if self.mutating { "mutation" } else { "validation" }
    }

    /// The `response` of an answer, if it is valid for this request.
    pub fn read(&self, answer: Value) -> Result<Value, ResponseError> {
        response_of(answer, &self.document["apiVersion"], &self.uid, self.mutating)
    }

    /// The patch of an answer, not parsed yet; `None` if it has none.
    pub fn patch_of(&self, review: &Review<'_>, name: &str, response: &Value) -> Result<Option<Vec<u8>>, Status> {
        let Some(encoded) = response["patch"].as_str().filter(|patch| !patch.is_empty()) else { return Ok(None) };
        if review.operation == Operation::Delete {
            return Err(Status::internal(format!(
                "admission webhook \"{name}\" attempted to modify the object, which is not supported for this operation"
            )));
        }
        let trouble = |why: AnswerError| Status::internal(WebhookError { name, why });
        if response["patchType"] != "JSONPatch" && !response["patchType"].is_null() {
            return Err(trouble(AnswerError::PatchType(response["patchType"].clone())));
        }
        STANDARD.decode(encoded).map(Some).map_err(|why| trouble(AnswerError::PatchEncoding(why)))
    }

    /// The object with a patch applied.
    pub fn patched(&self, review: &Review<'_>, name: &str, patch: &[u8], object: &Object) -> Result<Object, Status> {
        let trouble = |why: AnswerError| Status::internal(WebhookError { name, why });
        let operations: Value = serde_json::from_slice(patch).map_err(|why| trouble(AnswerError::Patch(why)))?;
        if !request::is_whole(review) {
            let patched = patch::json(&object.0, &operations).map_err(Status::internal)?;
            // Connection options are not read again.
            if review.operation == Operation::Connect {
                return Ok(Object(patched));
            }
            let taken = review.call.order().unwrap_or(self.version);
            let (decoded, _) = taken.decode(patched, FieldValidation::Ignore).map_err(Status::internal)?;
            return Ok(decoded);
        }
        let shown = versions::shown_as(self.version, object);
        let value = patch::json(&shown.0, &operations).map_err(Status::internal)?;
        let (mut decoded, _) = self.version.decode(value, FieldValidation::Ignore).map_err(Status::internal)?;
        if self.version.is_custom() {
            self.version.default(&mut decoded);
        }
        let mut new = versions::stored_of(self.version, decoded);
        (review.call.kind.strategy.default)(&mut new);
        // `managedFields` are for the server to write.
        new.set_meta("managedFields", object.0["metadata"].get("managedFields").cloned());
        if let Some(old) = review.old {
            prepare(review.call, part_of(review.call)?, &mut new, old);
        }
        Ok(new)
    }
}

/// The `response` of an AdmissionReview of version `wanted` for the request `uid`.
pub(crate) fn response_of(
    mut answer: Value,
    wanted: &Value,
    uid: &str,
    mutating: bool,
) -> Result<Value, ResponseError> {
    let response = answer.get_mut("response").map(Value::take).unwrap_or_default();
    if !response.is_object() {
        return Err(ResponseError::Absent);
    }
    let got = &answer["apiVersion"];
    if wanted == "admission.k8s.io/v1beta1" && got.is_null() {
        return Ok(response);
    }
    if wanted != got || answer["kind"] != "AdmissionReview" {
        let gvk = |version: &Value, kind: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
            format!("{}, Kind={}", text(version), text(kind))
        };
        let (expected, got) = (gvk(wanted, &"AdmissionReview".into()), gvk(got, &answer["kind"]));
        return Err(ResponseError::Kind { expected, got });
    }
    if response["uid"] != uid {
        let got = response["uid"].as_str().unwrap_or("").to_owned();
        return Err(ResponseError::Uid { expected: uid.to_owned(), got });
    }
    let has = |field: &str| response[field].as_str().is_some_and(|text| !text.is_empty());
    match (mutating, has("patch"), has("patchType")) {
        (true, true, false) => Err(ResponseError::NoPatchType),
        (true, false, true) => Err(ResponseError::NoPatch),
        (false, true, _) => Err(ResponseError::Mutates("patch")),
        (false, _, true) => Err(ResponseError::Mutates("patchType")),
        _ => Ok(response),
    }
}

/// Records the warnings and audit annotations of an answer.
pub(super) fn take_notes(review: &Review<'_>, name: &str, response: &Value) {
    for warning in response["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        review.call.notes.warn(warning);
    }
    for (key, value) in response["auditAnnotations"].as_object().into_iter().flatten() {
        review.call.notes.annotate(format!("{name}/{key}"), value.as_str().unwrap_or(""));
    }
}

/// The refusal in an answer, if it is one.
pub(super) fn refusal(name: &str, response: &Value) -> Option<Status> {
    if response["allowed"] == true {
        return None;
    }
    let result = &response["status"];
    let text = |field: &str| result[field].as_str().unwrap_or("").to_owned();
    let denied = format!("admission webhook \"{name}\" denied the request");
    let message = match (text("message"), text("reason")) {
        (message, _) if !message.is_empty() => format!("{denied}: {message}"),
        (_, reason) if !reason.is_empty() => format!("{denied}: {reason}"),
        _ => format!("{denied} without explanation"),
    };
    let code = result["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| *code >= 400);
    let mut refused = Status::failure(code.unwrap_or(400), &text("reason"), message);
    if result["details"].is_object() {
        let details = serde_json::from_value::<status::Details>(result["details"].clone());
        refused.details = details.ok().map(|details| status::Details { causes: causes(details.causes), ..details });
    }
    Some(refused)
}

fn causes(causes: Vec<Cause>) -> Vec<Cause> {
    causes.into_iter().filter(|cause| !cause.message.is_empty() || !cause.field.is_empty()).collect()
}
