//! `Status`: the API's only error type, in upstream's form, with upstream's reasons, codes and wording.

use serde::{Deserialize, Serialize};

/// A `v1.Status`, used as an error and as the response of operations without an object.
/// <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/>
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default = "kind")]
    pub kind: String,
    #[serde(default = "api_version")]
    pub api_version: String,
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// `Success` or `Failure`.
    pub status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The machine-readable reason: `NotFound`, `Conflict`, `Invalid`, ...
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
    /// The HTTP status code; 0 if unspecified.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code: u16,
    /// Accompanying warnings, as Warning headers.
    #[serde(skip)]
    pub warnings: Vec<String>,
    /// Whether a client created it, for lack of a response.
    #[serde(skip)]
    pub unanswered: bool,
}

/// The subject of a `Status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
}

/// One cause: for `Invalid`, one field and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// `FieldValueRequired`, `FieldValueInvalid`, `FieldValueNotSupported`, ...
    pub reason: String,
    pub message: String,
    /// The field's path: `spec.containers[0].name`.
    pub field: String,
}

fn kind() -> String {
    "Status".into()
}
fn api_version() -> String {
    "v1".into()
}
fn is_zero(code: &u16) -> bool {
    *code == 0
}

/// The name that errors use for a resource: `pods` or `deployments.apps`.
pub fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

impl Status {
    pub fn failure(code: u16, reason: &str, message: impl Into<String>) -> Status {
        Status {
            kind: kind(),
            api_version: api_version(),
            metadata: Default::default(),
            status: "Failure".into(),
            message: message.into(),
            reason: reason.into(),
            details: None,
            code,
            warnings: Vec::new(),
            unanswered: false,
        }
    }
    pub fn success() -> Status {
        Status { status: "Success".into(), code: 200, ..Status::failure(200, "", "") }
    }
    /// Marks it as created by a client that got no response.
    pub fn unanswered(self) -> Status {
        Status { unanswered: true, ..self }
    }
    pub fn with_details(mut self, resource: &str, group: &str, name: &str) -> Status {
        let details = self.details.get_or_insert_default();
        details.kind = resource.into();
        details.group = group.into();
        details.name = name.into();
        self
    }
    pub fn with_causes(mut self, causes: Vec<Cause>) -> Status {
        self.details.get_or_insert_default().causes = causes;
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::failure(400, "BadRequest", message)
    }
    pub fn unauthorized(message: impl Into<String>) -> Status {
        Status::failure(401, "Unauthorized", message)
    }
    pub fn forbidden(resource: &str, group: &str, name: &str, why: impl std::fmt::Display) -> Status {
        let q = qualified(resource, group);
        let message = match name {
            "" => format!("{q} is forbidden: {why}"),
            name => format!("{q} \"{name}\" is forbidden: {why}"),
        };
        Status::failure(403, "Forbidden", message).with_details(resource, group, name)
    }
    pub fn not_found(resource: &str, group: &str, name: &str) -> Status {
        let q = qualified(resource, group);
        Status::failure(404, "NotFound", format!("{q} \"{name}\" not found")).with_details(resource, group, name)
    }
    pub fn method_not_allowed(resource: &str, group: &str, verb: &str) -> Status {
        let q = qualified(resource, group);
        Status::failure(405, "MethodNotAllowed", format!("{verb} is not supported on resources of kind \"{q}\""))
            .with_details(resource, group, "")
    }
    pub fn already_exists(resource: &str, group: &str, name: &str) -> Status {
        let q = qualified(resource, group);
        Status::failure(409, "AlreadyExists", format!("{q} \"{name}\" already exists"))
            .with_details(resource, group, name)
    }
    pub fn conflict(resource: &str, group: &str, name: &str, why: impl std::fmt::Display) -> Status {
        let q = qualified(resource, group);
        Status::failure(409, "Conflict", format!("Operation cannot be fulfilled on {q} \"{name}\": {why}"))
            .with_details(resource, group, name)
    }
    /// The conflict of a write whose resourceVersion is not the newest.
    pub fn modified(resource: &str, group: &str, name: &str) -> Status {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Status::conflict(resource, group, name, why)
    }
    /// `Invalid` (422), worded from its causes as upstream does. `kind` is `Pod`, `Deployment`, ...
    pub fn invalid(kind: &str, group: &str, name: &str, causes: Vec<Cause>) -> Status {
        let each: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        let all = if each.len() == 1 { each[0].clone() } else { format!("[{}]", each.join(", ")) };
        let q = qualified(kind, group);
        Status::failure(422, "Invalid", format!("{q} \"{name}\" is invalid: {all}"))
            .with_details(kind, group, name)
            .with_causes(causes)
    }
    pub fn expired(message: impl Into<String>) -> Status {
        Status::failure(410, "Expired", message)
    }
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Status {
        let mut status = Status::failure(429, "TooManyRequests", message);
        status.details.get_or_insert_default().retry_after_seconds = Some(retry_after_seconds);
        status
    }
    pub fn internal(message: impl std::fmt::Display) -> Status {
        Status::failure(500, "InternalError", format!("Internal error occurred: {message}"))
    }
    pub fn unavailable(message: impl Into<String>) -> Status {
        Status::failure(503, "ServiceUnavailable", message)
    }
    pub fn timeout(message: impl Into<String>) -> Status {
        Status::failure(504, "Timeout", message)
    }

    /// The status code of its response.
    pub fn http_code(&self) -> u16 {
        if self.code == 0 { 200 } else { self.code }
    }

    pub fn is_not_found(&self) -> bool {
        self.reason == "NotFound"
    }
    pub fn is_conflict(&self) -> bool {
        self.reason == "Conflict"
    }
    pub fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }
    /// A watch or continue token is too old: list again.
    pub fn is_gone(&self) -> bool {
        self.code == 410
    }
    /// Worth retrying unchanged: the server was unreachable, overloaded or too slow.
    pub fn is_retriable(&self) -> bool {
        matches!(self.code, 429 | 500 | 503 | 504)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}
