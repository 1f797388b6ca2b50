//! The one request and response of the API server, as every face and both transports carry them.

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

/// What is asked of a resource; upstream's request verbs.
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
    /// Whether it changes what is stored.
    pub const fn writes(self) -> bool {
        matches!(self, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection)
    }

    /// As rules and messages name it.
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

/// A request to the API server, whatever face it came through.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Request {
    pub verb: Verb,
    /// The resource: `pods`, `deployments.apps`; any name that `kinds::lookup` knows.
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
    /// Where `body` named a field twice, as the face found it in the text. Strict decoding refuses it.
    #[serde(skip)]
    pub duplicates: Vec<String>,
    /// Who asks. Set by the face that authenticated the caller, never taken from the wire.
    #[serde(skip)]
    pub user: User,
    /// The other end of the connection that it came by, as the kernel knows it; none: a socket of this machine, or this process.
    #[serde(skip)]
    pub address: Option<IpAddr>,
    /// How it came, by a face; none: from this process.
    #[serde(skip)]
    pub origin: Option<Arc<Origin>>,
    /// What in this process it is a part of, where that is traced.
    #[serde(skip)]
    pub part_of: Option<Link>,
}

/// How a request came; what the audit log tells of it beside what it asks.
#[derive(Default)]
pub struct Origin {
    /// `Audit-ID`.
    pub id: String,
    pub received: Timestamp,
    /// Path and query, as they came; empty where there are none.
    pub uri: String,
    /// The addresses that it came by: those that proxies tell, then the connection's.
    pub sources: Vec<String>,
    /// There were more.
    pub more_sources: bool,
    pub user_agent: String,
    /// Who was recognized; the request's user is another, if he asks as somebody else.
    pub caller: OnceLock<User>,
    /// What it says that it is a part of; of a connection that carries many requests, what each of them is.
    pub link: Option<Link>,
    /// Of the trace that it is a part of, once it is known who asks.
    pub span: OnceLock<Span>,
    /// See [`Origin::is_told`] and [`Origin::hold`].
    pub told: AtomicBool,
    pub held: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Origin {
    /// Notes that the pipeline tells of it.
    pub fn told(&self) {
        self.told.store(true, Ordering::Relaxed);
    }
    pub fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }
    /// Keeps what shall end with the answer: this is dropped when that is over.
    pub fn hold(&self, what: Box<dyn Any + Send>) {
        *self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(what);
    }
}

impl std::fmt::Debug for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "request {}", self.id)
    }
}

/// Upstream's query parameters of all verbs, in one bag.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_selector: Option<String>,
    /// Of the custom metrics of objects: which of a metric's series are meant.
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
    /// Watch: start with ADDED events for what exists, closed by a bookmark annotated
    /// `k8s.io/initial-events-end: "true"` (KEP-3157).
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
    /// The JSON-RPC method `apply` shall be a server-side one.
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
    /// What a component wants told in the object's trace about this write; kept nowhere else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

fn is_false(b: &bool) -> bool {
    !*b
}

/// What to do with fields that the schema does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FieldValidation {
    /// Refuse the request; what people get.
    #[default]
    Strict,
    /// Drop them and say so in `Response::warnings`.
    Warn,
    /// Drop them in silence; for agents of another version.
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
    /// What `kubectl apply` does on the client's side, done by the server: create the object, or merge three ways with the
    /// `kubectl.kubernetes.io/last-applied-configuration` annotation, lists of named things by their keys.
    #[serde(rename = "application/vnd.podwright.three-way+json")]
    ThreeWay,
    #[serde(rename = "application/strategic-merge-patch+json")]
    Strategic,
}

/// What must hold of the object for a delete to go on.
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
    /// What else its authenticator knows: `authentication.kubernetes.io/pod-name`, ...
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
    /// Who impersonates this user, if anybody but the superuser does: whatever the name, the work is for him.
    #[serde(skip)]
    pub impersonator: Option<String>,
    /// Where one comes from who is not known: limits count him by that.
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

    /// By which name limits count him. Names that a user gives himself are one: those that he impersonates are he, and the
    /// ServiceAccounts of a namespace, of which he makes as many as he likes, are the namespace's. (Not those of `kube-system`,
    /// which the administrator makes.)
    pub fn counted_as(&self) -> &str {
        const ACCOUNTS: &str = "system:serviceaccount:";
        let name = self.impersonator.as_deref().unwrap_or(&self.name);
        match name.strip_prefix(ACCOUNTS).and_then(|rest| rest.split_once(':')) {
            Some((namespace, _)) if namespace != "kube-system" => &name[..ACCOUNTS.len() + namespace.len()],
            _ => name,
        }
    }
}

/// The answer of every verb but watch. Objects are encoded JSON, shared and never re-encoded on the way out.
#[derive(Clone, Debug)]
pub struct Response {
    pub body: Body,
    /// Upstream's Warning headers.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug)]
pub enum Body {
    /// One object; `created` tells 201 from 200.
    Object {
        bytes: Bytes,
        created: bool,
    },
    List(List),
    Status(Box<Status>),
    /// A raw stream waits under this id: dial `/stream/<id>` (see `api::stream` for its frames).
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
    /// The object, encoded once and shared by all watchers; for `Error` a `Status`, for `Bookmark` an object with
    /// nothing but its type and `metadata.resourceVersion`.
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
