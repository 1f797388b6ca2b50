//! `rpc.discover`: what the JSON-RPC face offers, as an OpenRPC document.

use serde_json::{Value, json};

use podwright_api::kinds::registry::Kinds;

/// A method: its name, what it does, its parameters by name, and whether it is a subscription.
type Method = (&'static str, &'static str, &'static [&'static str]);

const OBJECT: &[&str] = &["resource", "namespace", "name", "subresource", "options"];
const WITH_BODY: &[&str] = &["resource", "namespace", "name", "subresource", "body", "options"];
const COLLECTION: &[&str] = &["resource", "namespace", "options"];

const METHODS: &[Method] = &[
    ("get", "Reads one object, or its subresource status, scale or trace", OBJECT),
    ("list", "Reads the objects that the options' selectors match, page by page with limit and continue", COLLECTION),
    ("create", "Creates an object, or a subresource: binding, eviction, token", WITH_BODY),
    ("update", "Replaces an object, or its subresource status, scale or finalize", WITH_BODY),
    ("patch", "Changes an object by the patch in body, of the type in options.patchType", WITH_BODY),
    (
        "apply",
        "Creates the object in body, or merges it with what was applied last and what is there; by managers if serverSide",
        WITH_BODY,
    ),
    ("delete", "Deletes an object, with grace period, propagation policy and preconditions of the options", OBJECT),
    ("deletecollection", "Deletes the objects that the options' selectors match", COLLECTION),
    ("connect", "Asks for a stream to a node: log, exec, attach, portforward, inspect, trace, image, dial", WITH_BODY),
    ("watch", "Subscription: tells changes as watchEvent notifications, from options.resourceVersion on", COLLECTION),
    ("unwatch", "Ends a watch", &["subscription"]),
    ("node.sessions", "Subscription of a node's agent: the streams that it shall dial, as node.session", &["node"]),
    ("node.unsessions", "Ends node.sessions", &["subscription"]),
    (
        "backup",
        "Asks for a stream of a consistent copy of the store, made while serving; Secrets in it stay encrypted",
        &[],
    ),
    (
        "health",
        "Runs the checks of healthz, livez or readyz (of; readyz if not said) but those that exclude lists, as the paths of these \
         names do",
        &["of", "exclude"],
    ),
    ("protections", "Tells which protections of the server are in force", &[]),
    ("rpc.discover", "This document", &[]),
];

fn parameter(kinds: &Kinds, name: &str) -> Value {
    let (required, schema) = match name {
        "resource" => (true, json!({"type": "string", "enum": resources(kinds)})),
        "node" => (true, json!({"type": "string"})),
        "subscription" => (true, json!({"type": ["integer", "string"]})),
        "of" => (false, json!({"enum": ["healthz", "livez", "readyz"]})),
        "exclude" => (false, json!({"type": "array", "items": {"type": "string"}})),
        "body" => (false, json!({"description": "an object, a patch, or the subresource's options"})),
        "options" => (false, json!({"$ref": "#/components/schemas/Options"})),
        _ => (false, json!({"type": "string"})),
    };
    json!({"name": name, "required": required, "schema": schema})
}

fn resources(kinds: &Kinds) -> Vec<String> {
    kinds.all().map(|kind| kind.resource()).collect()
}

/// Upstream's query parameters, by type.
fn options() -> Value {
    let of = |names: &[&str], schema: Value| -> Vec<(String, Value)> {
        names.iter().map(|name| (name.to_string(), schema.clone())).collect()
    };
    let fields: serde_json::Map<String, Value> = [
        of(
            &["labelSelector", "fieldSelector", "metricLabelSelector", "continue", "resourceVersion", "fieldManager"],
            json!({"type": "string"}),
        ),
        of(&["resourceVersionMatch"], json!({"enum": ["Exact", "NotOlderThan"]})),
        of(&["limit", "timeoutSeconds", "gracePeriodSeconds"], json!({"type": "integer"})),
        of(&["sendInitialEvents", "allowWatchBookmarks", "dryRun", "force", "serverSide"], json!({"type": "boolean"})),
        of(&["fieldValidation"], json!({"enum": ["Strict", "Warn", "Ignore"]})),
        of(
            &["patchType"],
            json!({"enum": ["application/json-patch+json", "application/merge-patch+json",
                "application/strategic-merge-patch+json", "application/apply-patch+yaml",
                "application/vnd.podwright.three-way+json"]}),
        ),
        of(&["propagationPolicy"], json!({"enum": ["Background", "Foreground", "Orphan"]})),
        of(
            &["preconditions"],
            json!({"type": "object", "properties": {"uid": {"type": "string"}, "resourceVersion": {"type": "string"}}}),
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    json!({"type": "object", "properties": fields, "additionalProperties": false})
}

/// The document.
pub(super) fn document(kinds: &Kinds) -> Value {
    let method = |(name, summary, params): &Method| {
        json!({
            "name": name, "summary": summary, "paramStructure": "by-name",
            "params": params.iter().map(|name| parameter(kinds, name)).collect::<Vec<_>>(),
            "result": {"name": "answer", "schema": {"$ref": "#/components/schemas/Answer"}},
        })
    };
    json!({
        "openrpc": "1.3.2",
        "info": {
            "title": "podwright API server", "version": env!("CARGO_PKG_VERSION"),
            "description": "Kubernetes objects over JSON-RPC. An error's code is the HTTP code of the v1.Status in its data.",
        },
        "methods": METHODS.iter().map(method).collect::<Vec<_>>(),
        "components": {"schemas": {
            "Options": options(),
            "Answer": {"type": "object", "properties": {
                "object": {"description": "the object, the list or the v1.Status"},
                "created": {"type": "boolean"},
                "stream": {"type": "string", "description": "dial GET /stream/<id> with Upgrade: podwright-stream"},
                "warnings": {"type": "array", "items": {"type": "string"}},
            }},
        }},
    })
}
