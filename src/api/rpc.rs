//! The JSON-RPC protocol: method names, results, and the sessions that a node is asked to open.
//!
//! Methods take one object of named parameters. `get`, `list`, `create`, `update`, `patch`, `apply`, `delete`, `deletecollection`
//! and `connect` take the fields of [`Request`](super::Request) except `verb`; `watch` takes the same and is a subscription
//! (`watch`, `watchEvent`, `unwatch`) of [`Event`]s. An error's `code` is the HTTP code of the `Status` in its `data`.
//! `node.sessions` is a node's subscription to the sessions that it must dial back for; it reports its resource usage with `update`
//! of the subresource `usage` (`metrics::Report`).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

/// The path of the JSON-RPC endpoint on every listener (HTTP POST and WebSocket).
pub const PATH: &str = "/rpc";
/// Streams: an HTTP/1.1 `GET /stream/<id>` with `Connection: Upgrade` and `Upgrade: podwright-stream` switches to frames.
/// The caller dials the id it got from `connect`, the node the id in its [`Session`].
pub const STREAM_PATH: &str = "/stream/";
pub const STREAM_PROTOCOL: &str = "podwright-stream";

pub const WATCH: &str = "watch";
pub const WATCH_EVENT: &str = "watchEvent";
pub const UNWATCH: &str = "unwatch";
pub const SESSIONS: &str = "node.sessions";
pub const SESSION_EVENT: &str = "node.session";
pub const UNSESSIONS: &str = "node.unsessions";

/// The result of every method except the subscriptions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Answer {
    /// The object, the list or the `Status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub created: bool,
    /// A write that would have changed nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
    /// The stream to dial, for `connect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// One event of a watch subscription.
#[derive(Debug, Serialize, Deserialize)]
pub struct Event {
    #[serde(rename = "type")]
    pub kind: super::request::EventKind,
    pub object: Box<RawValue>,
}

/// Asks a node to dial `/stream/<id>` and serve one session over it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    pub id: String,
    /// The user whose limit it counts for; "" for the superuser and the server itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(flatten)]
    pub task: Task,
}

/// The purpose of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "task", content = "options", rename_all = "camelCase")]
pub enum Task {
    Log {
        pod: PodRef,
        log: LogOptions,
    },
    Exec {
        pod: PodRef,
        exec: ExecOptions,
    },
    Attach {
        pod: PodRef,
        exec: ExecOptions,
    },
    /// One connection to a port inside the Pod's network namespace.
    PortForward {
        pod: PodRef,
        port: u16,
    },
    /// One TCP connection from within the node's network; for a Pod, only while the Pod has the address.
    Dial {
        address: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<PodRef>,
    },
    /// One HTTP request to the node's own endpoints, like a kubelet's: the request on STDIN, the response on STDOUT.
    Endpoints,
    /// `connect` on `nodes/<name>/image`: STDIN carries an archive for some operations.
    Image(ImageOptions),
    /// `connect` on `pods/<name>/inspect`: one JSON document on STDOUT.
    Inspect {
        pod: PodRef,
        #[serde(flatten)]
        options: InspectOptions,
    },
    /// `connect` on `pods/<name>/trace`: the node's journal of the Pod as JSON lines on STDOUT.
    Trace {
        pod: PodRef,
    },
}

impl Task {
    /// The Pod whose shim or records it uses. A connection to its address uses neither.
    pub fn pod(&self) -> Option<&PodRef> {
        match self {
            Task::Log { pod, .. }
            | Task::Exec { pod, .. }
            | Task::Attach { pod, .. }
            | Task::PortForward { pod, .. }
            | Task::Inspect { pod, .. }
            | Task::Trace { pod } => Some(pod),
            Task::Dial { .. } | Task::Endpoints | Task::Image(_) => None,
        }
    }
}

/// What is looked at of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InspectOptions {
    /// By what its traffic is judged, instead of all else.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub policies: bool,
    /// The way of a packet through its node, instead of all else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet: Option<PacketOptions>,
}

/// The first packet of a connection between the object of the request and a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PacketOptions {
    /// Whether the peer opens the connection.
    #[serde(default)]
    pub incoming: bool,
    pub peer: PeerRef,
    /// The port that the connection is for.
    pub port: u16,
    /// `TCP`, `UDP`, `SCTP`
    pub protocol: String,
    /// For a node: the address that the connection is for, if not one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<IpAddr>,
    /// The peer's addresses; filled in by the server.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The destinations that are shown, filled in by the server; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visible: Option<Vec<IpAddr>>,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PeerRef {
    Pod { namespace: String, name: String },
    Service { namespace: String, name: String },
    Node { name: String },
    Address(IpAddr),
}

/// The Pod of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// One control-plane step in an object's history: `get` on `pods/<name>/trace` answers `{"kind": "Trace", "items": [Step]}` ordered
/// by time, with the steps of the Pod's owners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Step {
    /// When the request came, RFC 3339 with microseconds.
    pub time: String,
    /// The time until the store's commit, in microseconds.
    pub duration_us: u64,
    /// The resulting revision.
    pub revision: u64,
    /// `create`, `update`, `patch`, `delete`.
    pub verb: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub user: String,
    /// The `fieldManager` of the request: which component it was.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub manager: String,
    /// That component's note: how the scheduler decided.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub note: String,
}

/// Upstream's `PodLogOptions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LogOptions {
    pub container: String,
    pub follow: bool,
    pub previous: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_seconds: Option<i64>,
    /// RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_time: Option<String>,
    pub timestamps: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail_lines: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<i64>,
    /// `None`: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<LogStream>,
}

/// One of the streams of a container's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogStream {
    Stdout,
    Stderr,
}

/// The valid names of log streams.
pub const LOG_STREAMS: [&str; 3] = ["All", "Stderr", "Stdout"];

impl LogStream {
    /// `Some(None)` for all streams; `None` for an invalid name.
    pub fn named(name: &str) -> Option<Option<LogStream>> {
        match name {
            "All" => Some(None),
            "Stdout" => Some(Some(LogStream::Stdout)),
            "Stderr" => Some(Some(LogStream::Stderr)),
            _ => None,
        }
    }

    /// Its name in the lines of a log.
    pub fn mark(self) -> &'static str {
        match self {
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
        }
    }
}

/// Upstream's `PodExecOptions` and `PodAttachOptions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ExecOptions {
    pub container: String,
    pub command: Vec<String>,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// The options of `connect` on `pods/<name>/portforward`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PortForwardOptions {
    pub port: u16,
}

/// An operation on a node's images. Progress and results are JSON lines on STDOUT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "camelCase")]
pub enum ImageOptions {
    /// A rootfs tar on STDIN becomes an image of one layer.
    Import {
        name: String,
    },
    /// An OCI or docker-save archive on STDIN.
    Load,
    Pull {
        name: String,
        #[serde(default)]
        username: Option<String>,
        #[serde(default)]
        password: Option<String>,
    },
    List,
    Remove {
        name: String,
    },
}

/// Converts a response's object to a `Value`.
pub fn value(raw: &RawValue) -> Value {
    // A `RawValue` is valid JSON by construction.
    serde_json::from_str(raw.get()).unwrap_or(Value::Null)
}
