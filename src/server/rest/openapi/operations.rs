//! The paths of OpenAPI documents: operations and their parameters. Descriptions are upstream's, generated from the kind and the
//! subresource as upstream does.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::{BINDING, DELETE_OPTIONS, EVICTION, Edition, META, SCALE, TOKEN_REQUEST};
use crate::rest::discovery::{self, Subresource};
use podwright_api::schema::openapi;
use podwright_api::{Kind, Verb};

const MEDIA: [&str; 2] = ["application/json", "application/yaml"];
const PATCH_MEDIA: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// One operation, independent of the edition.
struct Operation {
    method: &'static str,
    action: &'static str,
    id: String,
    description: String,
    /// The definitions of the body, if there is one, and of the response.
    takes: Option<String>,
    gives: String,
    parameters: &'static [Parameter],
    /// The object that it acts on: kind, group, version.
    gvk: (String, &'static str, &'static str),
    tag: String,
    /// Whether strategic merge patches are supported: not for custom resources.
    strategic: bool,
}

/// A query parameter: its name, type and description. A field of DeleteOptions with the same name has precedence.
type Parameter = (&'static str, &'static str, &'static str);

const DRY_RUN: Parameter = ("dryRun", "string", "");
const MANAGER: Parameter = (
    "fieldManager",
    "string",
    "fieldManager is a name associated with the actor or entity that is making these changes. The value must be less than or 128 \
     characters long, and only contain printable characters, as defined by https://golang.org/pkg/unicode/#IsPrint.",
);
const VALIDATION: Parameter = (
    "fieldValidation",
    "string",
    "fieldValidation instructs the server on how to handle unknown or duplicate fields. Valid values are: Ignore, Warn, Strict.",
);
const FORCE: Parameter = (
    "force",
    "boolean",
    "Force is going to \"force\" Apply requests. It means user will re-acquire conflicting fields owned by other people. Force \
     flag must be unset for non-apply patch requests.",
);
const PRETTY: Parameter = (
    "pretty",
    "string",
    "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line \
     HTTP tool (curl and wget).",
);
const LIST: &[Parameter] = &[
    (
        "labelSelector",
        "string",
        "A selector to restrict the list of returned objects by their labels. Defaults to everything.",
    ),
    (
        "fieldSelector",
        "string",
        "A selector to restrict the list of returned objects by their fields. Defaults to everything.",
    ),
    ("limit", "integer", "limit is a maximum number of responses to return for a list call."),
    ("continue", "string", "The continue option should be set when retrieving more results from the server."),
    (
        "resourceVersion",
        "string",
        "resourceVersion sets a constraint on what resource versions a request may be served from.",
    ),
    ("resourceVersionMatch", "string", "resourceVersionMatch determines how resourceVersion is applied to list calls."),
    (
        "watch",
        "boolean",
        "Watch for changes to the described resources and return them as a stream of add, update, and remove notifications. \
         Specify resourceVersion.",
    ),
    ("allowWatchBookmarks", "boolean", "allowWatchBookmarks requests watch events with type \"BOOKMARK\"."),
    (
        "sendInitialEvents",
        "boolean",
        "If sendInitialEvents is true, the watch begins with synthetic events that produce the current state of the objects.",
    ),
    (
        "timeoutSeconds",
        "integer",
        "Timeout for the list/watch call. This limits the duration of the call, regardless of any activity or inactivity.",
    ),
];
const WRITE: &[Parameter] = &[DRY_RUN, MANAGER, VALIDATION];
const PATCH: &[Parameter] = &[DRY_RUN, MANAGER, VALIDATION, FORCE];
const DELETE: &[Parameter] = &[
    DRY_RUN,
    ("gracePeriodSeconds", "integer", ""),
    ("propagationPolicy", "string", ""),
    ("orphanDependents", "boolean", ""),
];

/// The fields of DeleteOptions.
static DELETE_FIELDS: LazyLock<Value> = LazyLock::new(|| {
    let mut definitions = openapi::definitions([&DELETE_OPTIONS], "", false);
    let own = definitions.get_mut(&openapi::name_of(&DELETE_OPTIONS));
    own.map(|definition| definition["properties"].take()).unwrap_or_default()
});

/// The description of a parameter.
fn meaning((name, _, said): &Parameter) -> &'static str {
    if said.is_empty() { DELETE_FIELDS[*name]["description"].as_str().unwrap_or_default() } else { said }
}

pub(super) fn paths(edition: Edition, kinds: &[&'static Kind]) -> Map<String, Value> {
    let mut all = Map::new();
    for kind in kinds {
        let root = match kind.group {
            "" => format!("/api/{}", kind.version),
            group => format!("/apis/{group}/{}", kind.version),
        };
        let scoped = if kind.namespaced { format!("{root}/namespaces/{{namespace}}") } else { root.clone() };
        if kind.namespaced && kind.verbs.contains(&Verb::List) {
            all.insert(format!("{root}/{}", kind.plural), item(edition, &collection(kind, true), false, None));
        }
        let path = format!("{scoped}/{}", kind.plural);
        all.insert(path.clone(), item(edition, &collection(kind, false), kind.namespaced, None));
        let path = format!("{path}/{{name}}");
        let operations = object(kind);
        if !operations.is_empty() {
            all.insert(path.clone(), item(edition, &operations, kind.namespaced, Some(kind.kind)));
        }
        for sub in discovery::subresources(kind).into_iter().filter(|sub| sub.name != "proxy") {
            all.insert(
                format!("{path}/{}", sub.name),
                item(edition, &part(kind, &sub), kind.namespaced, Some(&sub.of.0)),
            );
        }
    }
    all
}

/// `AppsV1`, the beginning of upstream's operation ids.
fn group_version(kind: &Kind) -> String {
    let group = kind.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
    capital(group) + &capital(kind.version)
}

fn capital(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

/// `NamespacedDeployment`, their next part.
fn scoped(kind: &Kind, all_namespaces: bool) -> String {
    let scope = if kind.namespaced && !all_namespaces { "Namespaced" } else { "" };
    let suffix = if all_namespaces { "ForAllNamespaces" } else { "" };
    format!("{scope}{}{suffix}", kind.kind)
}

fn titled(kind: &Kind, all_namespaces: bool) -> String {
    group_version(kind) + &scoped(kind, all_namespaces)
}

/// ` a Pod`, ` an Event`, ` Endpoints`: a plural has no article.
fn one(kind: &str) -> String {
    if kind.ends_with('s') && !kind.ends_with("ss") {
        return format!(" {kind}");
    }
    let is_vowel = kind.starts_with(|first: char| "aeiou".contains(first.to_ascii_lowercase()));
    format!(" {} {kind}", if is_vowel { "an" } else { "a" })
}

/// The description of an operation, as upstream. `of`: the subresource.
fn words(kind: &Kind, action: &str, of: Option<&str>) -> String {
    let name = kind.kind;
    match (action, of) {
        ("list", _) if kind.verbs.contains(&Verb::Watch) => format!("list or watch objects of kind {name}"),
        ("list", _) => format!("list objects of kind {name}"),
        ("deletecollection", _) => format!("delete collection of {name}"),
        ("post", None) => format!("create{}", one(name)),
        ("post", Some(of)) => format!("create {of} of{}", one(name)),
        ("delete", _) => format!("delete{}", one(name)),
        (action, of) => {
            let verb = match action {
                "get" => "read",
                "put" => "replace",
                _ => "partially update",
            };
            let of = of.map(|of| format!("{of} of ")).unwrap_or_default();
            format!("{verb} {of}the specified {name}")
        }
    }
}

/// The operations that the kind serves.
fn served(kind: &Kind, operations: Vec<(Verb, Operation)>) -> Vec<Operation> {
    operations.into_iter().filter(|(verb, _)| kind.verbs.contains(verb)).map(|(_, operation)| operation).collect()
}

fn operation(kind: &Kind, method: &'static str, action: &'static str, id: String) -> Operation {
    let tag = match kind.group {
        "" => format!("core_{}", kind.version),
        group => format!("{}_{}", group.split('.').next().unwrap_or(group), kind.version),
    };
    let gives = openapi::name_of(&kind.schema);
    let gvk = (kind.kind.to_owned(), kind.group, kind.version);
    let (description, strategic) = (words(kind, action, None), !kind.is_custom());
    Operation { method, action, id, description, takes: None, gives, parameters: &[], gvk, tag, strategic }
}

fn collection(kind: &Kind, all_namespaces: bool) -> Vec<Operation> {
    let id = titled(kind, all_namespaces);
    let (own, status) = (openapi::name_of(&kind.schema), format!("{META}.Status"));
    let list = Operation {
        gives: format!("{own}List"),
        parameters: LIST,
        ..operation(kind, "get", "list", format!("list{id}"))
    };
    if all_namespaces {
        return served(kind, vec![(Verb::List, list)]);
    }
    let create = Operation {
        takes: Some(own.clone()),
        parameters: WRITE,
        ..operation(kind, "post", "post", format!("create{id}"))
    };
    let delete = Operation {
        takes: Some(format!("{META}.DeleteOptions")),
        gives: status,
        parameters: DELETE,
        ..operation(kind, "delete", "deletecollection", format!("deleteCollection{id}"))
    };
    served(kind, vec![(Verb::List, list), (Verb::Create, create), (Verb::DeleteCollection, delete)])
}

fn object(kind: &'static Kind) -> Vec<Operation> {
    let id = titled(kind, false);
    let own = openapi::name_of(&kind.schema);
    let put = Operation {
        takes: Some(own.clone()),
        parameters: WRITE,
        ..operation(kind, "put", "put", format!("replace{id}"))
    };
    let patch = Operation {
        takes: Some(format!("{META}.Patch")),
        parameters: PATCH,
        ..operation(kind, "patch", "patch", format!("patch{id}"))
    };
    let delete = Operation {
        takes: Some(format!("{META}.DeleteOptions")),
        gives: if kind.stored().strategy.returns_deleted { own.clone() } else { format!("{META}.Status") },
        parameters: DELETE,
        ..operation(kind, "delete", "delete", format!("delete{id}"))
    };
    let get = operation(kind, "get", "get", format!("read{id}"));
    served(kind, vec![(Verb::Get, get), (Verb::Update, put), (Verb::Patch, patch), (Verb::Delete, delete)])
}

/// The operations of a subresource.
fn part(kind: &Kind, sub: &Subresource) -> Vec<Operation> {
    let own = capital(sub.name);
    let of = match sub.of.0.as_str() {
        "Scale" => openapi::name_of(&SCALE),
        "Eviction" => openapi::name_of(&EVICTION),
        "Binding" => openapi::name_of(&BINDING),
        "TokenRequest" => openapi::name_of(&TOKEN_REQUEST),
        _ => openapi::name_of(&kind.schema),
    };
    // A session handles every method in the same way.
    let row = |verb: &&'static str| {
        let (method, action, name, takes, parameters) = match *verb {
            "get" => ("get", "get", "read", None, &[] as &[Parameter]),
            "create" if sub.connects => ("post", "post", "create", None, &[] as &[Parameter]),
            "create" => ("post", "post", "create", Some(of.clone()), WRITE),
            "update" => ("put", "put", "replace", Some(of.clone()), WRITE),
            "patch" => ("patch", "patch", "patch", Some(format!("{META}.Patch")), PATCH),
            _ => return None,
        };
        let (action, id, description) = match sub.connects {
            true => (
                "connect",
                format!("connect{}{}{}{own}", group_version(kind), capital(method), scoped(kind, false)),
                format!("connect {} requests to {} of {}", method.to_uppercase(), sub.name, kind.kind),
            ),
            false => (action, format!("{name}{}{own}", titled(kind, false)), words(kind, action, Some(sub.name))),
        };
        let gvk = sub.of.clone();
        Some(Operation {
            description,
            takes,
            gives: of.clone(),
            parameters,
            gvk,
            ..operation(kind, method, action, id)
        })
    };
    sub.verbs.iter().filter_map(row).collect()
}

/// A path with its operations and their common parameters. `named`: the kind whose name is in it.
fn item(edition: Edition, operations: &[Operation], namespaced: bool, named: Option<&str>) -> Value {
    let mut item = Map::new();
    for operation in operations {
        item.insert(operation.method.to_owned(), written(edition, operation));
    }
    let in_path = |name: &str, of: &str| match edition {
        Edition::V2 => {
            json!({"name": name, "in": "path", "required": true, "type": "string", "description": of, "uniqueItems": true})
        }
        Edition::V3 => json!({
            "name": name, "in": "path", "required": true, "description": of,
            "schema": {"type": "string", "uniqueItems": true},
        }),
    };
    let name = named.map(|kind| in_path("name", &format!("name of the {kind}")));
    let namespace =
        namespaced.then(|| in_path("namespace", "object name and auth scope, such as for teams and projects"));
    let shared: Vec<Value> = name.into_iter().chain(namespace).chain([in_query(edition, &PRETTY)]).collect();
    item.insert("parameters".into(), shared.into());
    item.into()
}

fn in_query(edition: Edition, parameter: &Parameter) -> Value {
    let ((name, of, _), description) = (parameter, meaning(parameter));
    match edition {
        Edition::V2 => {
            json!({"name": name, "in": "query", "description": description, "type": of, "uniqueItems": true})
        }
        Edition::V3 => json!({
            "name": name, "in": "query", "description": description, "schema": {"type": of, "uniqueItems": true},
        }),
    }
}

fn written(edition: Edition, operation: &Operation) -> Value {
    let (kind, group, version) = &operation.gvk;
    let mut parameters: Vec<Value> = operation.parameters.iter().map(|p| in_query(edition, p)).collect();
    let patches: Vec<&str> =
        PATCH_MEDIA.into_iter().filter(|media| operation.strategic || !media.contains("strategic")).collect();
    let media: &[&str] = if operation.method == "patch" { &patches } else { &MEDIA };
    let content = |name: &str, media: &[&str]| -> Value {
        let each = media.iter().map(|media| ((*media).to_owned(), json!({"schema": edition.refer(name)})));
        Value::Object(each.collect())
    };
    let mut out = json!({
        "description": operation.description, "tags": [operation.tag], "operationId": operation.id,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    });
    let answers: &[&str] = if operation.method == "post" { &["200", "201"] } else { &["200"] };
    let mut responses = json!({"401": {"description": "Unauthorized"}});
    for code in answers {
        responses[code] = match edition {
            Edition::V2 => json!({"description": "OK", "schema": edition.refer(&operation.gives)}),
            Edition::V3 => json!({"description": "OK", "content": content(&operation.gives, &MEDIA)}),
        };
    }
    match (edition, &operation.takes) {
        (_, None) => {}
        (Edition::V3, Some(name)) => {
            out["requestBody"] = json!({"content": content(name, media), "required": operation.method != "delete"})
        }
        (Edition::V2, Some(name)) => {
            out["consumes"] = media.into();
            parameters.push(json!({
                "name": "body", "in": "body", "required": operation.method != "delete", "schema": edition.refer(name),
            }));
        }
    }
    if edition == Edition::V2 {
        out["produces"] = (&MEDIA[..]).into();
        out["schemes"] = json!(["https"]);
    }
    out["parameters"] = parameters.into();
    out["responses"] = responses;
    out
}
