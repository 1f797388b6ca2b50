//! The common request and response of the API server, for all faces and transports.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::spans::{Link, Span};

/// The operation on a resource; upstream's request verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    #[default]
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// Opens a byte stream to the node: the subresources `log`, `exec`, `attach`, `portforward`.
    Connect,
}

impl Verb {
    /// Whether it changes stored objects.
    pub const fn writes(self) -> bool {
        matches!(self, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection)
    }

    /// The name in rules and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Connect => "connect",
        }
    }
}

/// A request to the API server, through any face.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Request {
    pub verb: Verb,
    /// The resource: `pods`, `deployments.apps`; any name for `kinds::lookup`.
    pub resource: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `status`, `scale`, `binding`, `log`, `exec`, `attach`, `portforward`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subresource: Option<String>,
    /// The object of create and update, the patch of patch, the options object of connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    pub options: Options,
    /// Duplicate fields of `body`, as the face found them in the text. Strict decoding refuses them.
    #[serde(skip)]
    pub duplicates: Vec<String>,
    /// The user. Set by the face that authenticated the caller, never taken from the wire.
    #[serde(skip)]
    pub user: User,
    /// The peer address of its connection, from the kernel; `None`: a local socket, or this process.
    #[serde(skip)]
    pub address: Option<IpAddr>,
    /// Its origin at a face; `None`: this process.
    #[serde(skip)]
    pub origin: Option<Arc<Origin>>,
    /// The trace context within this process, if any.
    #[serde(skip)]
    pub part_of: Option<Link>,
}

/// The origin of a request; logged by the audit log.
#[derive(Default)]
pub struct Origin {
    /// `Audit-ID`.
    pub id: String,
    pub received: Timestamp,
    /// Path and query, as received; may be empty.
    pub uri: String,
    /// Its source addresses: those from proxies' headers, then the connection's.
    pub sources: Vec<String>,
    /// Some were dropped.
    pub more_sources: bool,
    pub user_agent: String,
    /// The authenticated user; differs from the request's user with impersonation.
    pub caller: OnceLock<User>,
    /// Its trace context; for a connection with many requests, that of each.
    pub link: Option<Link>,
    /// Its span, once the caller is authenticated.
    pub span: OnceLock<Span>,
    /// See [`Origin::is_told`] and [`Origin::hold`].
    pub told: AtomicBool,
    pub held: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Origin {
    /// Records that the pipeline logs it.
    pub fn told(&self) {
        self.told.store(true, Ordering::Relaxed);
    }
    pub fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }
    /// Keeps something until the response is complete: then it is dropped.
    pub fn hold(&self, what: Box<dyn Any + Send>) {
        *self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(what);
    }
}

impl std::fmt::Debug for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "request {}", self.id)
    }
}

/// Upstream's query parameters for all verbs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_selector: Option<String>,
    /// For custom metrics of objects: selects a metric's series.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_label_selector: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    pub continue_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// `Exact` or `NotOlderThan`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version_match: Option<String>,
    /// Watch: start with ADDED events for existing objects, followed by a bookmark annotated `k8s.io/initial-events-end: "true"`
    /// (KEP-3157).
    #[serde(skip_serializing_if = "is_false")]
    pub send_initial_events: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub allow_watch_bookmarks: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    pub dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_validation: Option<FieldValidation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_manager: Option<String>,
    /// Server-side apply: take over the fields of other managers.
    #[serde(skip_serializing_if = "is_false")]
    pub force: bool,
    /// The JSON-RPC method `apply` performs server-side apply.
    #[serde(skip_serializing_if = "is_false")]
    pub server_side: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_type: Option<PatchType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    /// `Background`, `Foreground` or `Orphan`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
    /// A component's note about this write for the object's trace; stored nowhere else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

fn is_false(b: &bool) -> bool {
    !*b
}

/// How unknown fields are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FieldValidation {
    /// Refuse the request; the default for clients.
    #[default]
    Strict,
    /// Drop them with a warning in `Response::warnings`.
    Warn,
    /// Drop them silently; for agents of another version.
    Ignore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PatchType {
    /// RFC 6902.
    #[serde(rename = "application/json-patch+json")]
    Json,
    /// RFC 7386.
    #[serde(rename = "application/merge-patch+json")]
    Merge,
    /// Server-side apply: create the object, or merge by field ownership (`managedFields`).
    #[serde(rename = "application/apply-patch+yaml")]
    Apply,
    /// Client-side `kubectl apply`, done by the server: create the object, or three-way merge with the
    /// `kubectl.kubernetes.io/last-applied-configuration` annotation, merging lists by their keys.
    #[serde(rename = "application/vnd.podwright.three-way+json")]
    ThreeWay,
    #[serde(rename = "application/strategic-merge-patch+json")]
    Strategic,
}

/// Preconditions of a delete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Preconditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// An authenticated caller; upstream's `UserInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct User {
    #[serde(rename = "username", skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Extra information from the authenticator: `authentication.kubernetes.io/pod-name`, ...
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
    /// The impersonating user, unless it is the superuser: the work counts for them.
    #[serde(skip)]
    pub impersonator: Option<String>,
    /// The address of an unauthenticated user, which limits count by.
    #[serde(skip)]
    pub address: Option<IpAddr>,
}

impl User {
    /// The server's own loops, and root on the Unix socket: upstream's cluster-admin group.
    pub fn system(name: &str) -> User {
        User::new(name, ["system:masters", "system:authenticated"])
    }

    pub fn new<G: Into<String>>(name: impl Into<String>, groups: impl IntoIterator<Item = G>) -> User {
        User { name: name.into(), groups: groups.into_iter().map(Into::into).collect(), ..User::default() }
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// The account name for limits. Names that users can choose share one account: impersonated users count as the impersonator,
    /// and the ServiceAccounts of a namespace, of which users create any number, as the namespace. (Except for `kube-system`, whose
    /// accounts the administrator creates.)
    pub fn counted_as(&self) -> &str {
        const ACCOUNTS: &str = "system:serviceaccount:";
        let name = self.impersonator.as_deref().unwrap_or(&self.name);
        match name.strip_prefix(ACCOUNTS).and_then(|rest| rest.split_once(':')) {
            Some((namespace, _)) if namespace != "kube-system" => &name[..ACCOUNTS.len() + namespace.len()],
            _ => name,
        }
    }
}

/// The response of every verb but watch. Objects are encoded JSON, shared and never re-encoded.
#[derive(Clone, Debug)]
pub struct Response {
    pub body: Body,
    /// Upstream's Warning headers.
    pub warnings: Vec<String>,
    /// A write that would have changed nothing: the object is as it was.
    pub unchanged: bool,
}

impl From<Body> for Response {
    fn from(body: Body) -> Response {
        Response { body, warnings: Vec::new(), unchanged: false }
    }
}

#[derive(Clone, Debug)]
pub enum Body {
    /// One object; `created` selects 201 instead of 200.
    Object {
        bytes: Bytes,
        created: bool,
    },
    List(List),
    Status(Box<Status>),
    /// A raw stream is available under this id: dial `/stream/<id>` (see `api::stream` for its frames).
    Stream {
        id: String,
    },
}

use super::status::Status;

/// A page of a list.
#[derive(Clone, Debug, Default)]
pub struct List {
    /// The kind of the list: `PodList`.
    pub kind: String,
    pub api_version: String,
    pub resource_version: String,
    pub continue_token: String,
    pub remaining_item_count: Option<u64>,
    pub items: Vec<Bytes>,
}

/// One event of a watch.
#[derive(Clone, Debug)]
pub struct WatchEvent {
    pub kind: EventKind,
    /// The object, encoded once and shared by all watchers; for `Error` a `Status`, for `Bookmark` an object with only its type and
    /// `metadata.resourceVersion`.
    pub object: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}
