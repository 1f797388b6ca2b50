//! OpenAPI documents, generated from the kinds table: v3 one group version each, v2 all in one.

use std::sync::Arc;

use hyper::header::{self, HeaderValue};
use serde_json::{Map, Value, json};

use super::custom;
use super::discovery::{self, Subresource};
use super::gnostic;
use super::negotiate::Clause;
use super::reply::{self, Reply};
use super::served::Served;
use crate::api::schema::{self, openapi};
use crate::api::{Kind, Status, User, Verb};
use crate::server::aggregator::listing::{Group, Listed};
use crate::server::{Server, aggregator, documents::Document};

/// How documents of one OpenAPI version differ from the other's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Edition {
    V2,
    V3,
}

impl Edition {
    fn prefix(self) -> &'static str {
        match self {
            Edition::V2 => "#/definitions/",
            Edition::V3 => "#/components/schemas/",
        }
    }
    fn refer(self, name: &str) -> Value {
        json!({"$ref": format!("{}{name}", self.prefix())})
    }
}

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const MEDIA: [&str; 2] = ["application/json", "application/yaml"];
const PATCH_MEDIA: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

static DELETE_OPTIONS: schema::Source =
    schema::of_type::<k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions>();
static OBJECT_META: schema::Source = schema::of_type::<k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>();
static STATUS: schema::Source = schema::of_type::<k8s_openapi::apimachinery::pkg::apis::meta::v1::Status>();
static LIST_META: schema::Source = schema::of_type::<k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta>();
static SCALE: schema::Source = schema::of_type::<k8s_openapi::api::autoscaling::v1::Scale>();
static EVICTION: schema::Source = schema::of_type::<k8s_openapi::api::policy::v1::Eviction>();
static BINDING: schema::Source = schema::of_type::<k8s_openapi::api::core::v1::Binding>();
static TOKEN_REQUEST: schema::Source = schema::of_type::<k8s_openapi::api::authentication::v1::TokenRequest>();

/// The path of a version's v3 document.
fn path_of(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The v3 document of a group's version, whoever serves it. None: that one has none.
async fn v3_of(
    server: &Server,
    user: &User,
    served: &Served,
    (group, listed): (&Group, &Listed),
) -> Result<Option<Arc<Document>>, Status> {
    if let Some(registration) = &listed.remote {
        return served.openapi_v3(server, user, registration).await;
    }
    let of: Vec<&'static Kind> = discovery::kinds_of(&served.kinds, &group.name, &listed.version).collect();
    let make = || v3_document(&of).to_string().into();
    let path = path_of(&group.name, &listed.version);
    server.document(&format!("openapi v3 {path}"), &of, user, make).await.map(Some)
}

/// All versions, with their groups.
fn versions(served: &Served) -> impl Iterator<Item = (&Group, &Listed)> {
    served.groups.iter().flat_map(|group| group.versions.iter().map(move |listed| (group, listed)))
}

/// `/openapi/v3`
pub async fn v3_index(server: &Server, user: &User, served: &Served) -> Result<Value, Status> {
    let mut all = Map::new();
    for (group, listed) in versions(served) {
        let Some(document) = v3_of(server, user, served, (group, listed)).await? else { continue };
        let path = path_of(&group.name, &listed.version);
        let url = format!("/openapi/v3/{path}?hash={}", document.hash);
        all.insert(path, json!({"serverRelativeURL": url}));
    }
    Ok(json!({"paths": all}))
}

/// `/openapi/v3/apis/apps/v1`, where there is such a group.
pub async fn v3(server: &Server, user: &User, served: &Served, of: &str) -> Result<Option<Arc<Document>>, Status> {
    match versions(served).find(|(group, listed)| path_of(&group.name, &listed.version) == of) {
        Some(found) => v3_of(server, user, served, found).await,
        None => Ok(None),
    }
}

/// Has clients keep for good what they asked for by its hash.
pub fn kept_for_good(reply: &mut Reply) {
    let forever = HeaderValue::from_static("public, immutable, max-age=31536000");
    reply.headers_mut().insert(header::CACHE_CONTROL, forever);
}

/// `/openapi/v2`, and its media type.
pub async fn v2(
    server: &Server,
    user: &User,
    served: &Served,
    clauses: &[Clause],
) -> Result<(Arc<Document>, &'static str), Status> {
    // The first that we have; who wants nothing in particular gets JSON.
    let protobuf = clauses.iter().find_map(|clause| match clause.form() {
        Some(_) => Some(false),
        None => [gnostic::WANTED, gnostic::MEDIA_TYPE].contains(&&*clause.media).then_some(true),
    });
    let own = served.local();
    let whole = || {
        let mut document = v2_document(&own);
        for part in served.remote().filter_map(|it| served.gathered.get(&it.name)?.v2.as_ref()) {
            aggregator::openapi::merge(&mut document, &part.1);
        }
        document
    };
    match protobuf {
        None if !clauses.is_empty() => {
            let why = format!("OpenAPI v2 is served as application/json and {}", gnostic::WANTED);
            Err(Status::failure(406, "NotAcceptable", why))
        }
        Some(true) => {
            let make = || gnostic::encode(&whole());
            let made = served.document(server, user, "openapi v2 protobuf", &own, make).await?;
            Ok((made, gnostic::MEDIA_TYPE))
        }
        _ => {
            let make = || whole().to_string().into();
            Ok((served.document(server, user, "openapi v2", &own, make).await?, reply::JSON))
        }
    }
}

fn v3_document(kinds: &[&'static Kind]) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": super::health::version()["gitVersion"]},
        "paths": all_paths(Edition::V3, kinds),
        "components": {"schemas": all_definitions(Edition::V3, kinds)},
    })
}

fn v2_document(kinds: &[&'static Kind]) -> Value {
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": super::health::version()["gitVersion"]},
        "paths": all_paths(Edition::V2, kinds),
        "definitions": all_definitions(Edition::V2, kinds),
    })
}

/// The kinds' definitions with those of their lists, and all that they refer to.
fn all_definitions(edition: Edition, kinds: &[&'static Kind]) -> Map<String, Value> {
    let common = [&OBJECT_META, &DELETE_OPTIONS, &STATUS, &LIST_META, &SCALE, &EVICTION, &BINDING, &TOKEN_REQUEST];
    let sources = kinds.iter().map(|kind| &kind.schema).chain(common);
    let mut all = openapi::definitions(sources, edition.prefix(), edition == Edition::V3);
    all.insert(format!("{META}.Patch"), json!({
        "type": "object", "description": "Patch is provided to give a concrete name and type to the Kubernetes PATCH request body.",
    }));
    let refs = custom::Refs { v2: edition == Edition::V2, to: &|name| edition.refer(name) };
    for kind in kinds {
        let name = openapi::name_of(&kind.schema);
        let gvk = |kind_name: &str| json!([{"group": kind.group, "version": kind.version, "kind": kind_name}]);
        let (of, list) = (name.clone(), format!("{name}List"));
        let Some(version) = kind.custom() else {
            all.insert(list, list_definition(edition, kind, &name, gvk(&kind.list_kind())));
            if let Some(definition) = all.get_mut(&name) {
                definition["x-kubernetes-group-version-kind"] = gvk(kind.kind);
            }
            continue;
        };
        let own = custom::definition(&version, refs);
        let of_list = custom::list(kind.kind, &kind.list_kind(), kind.plural, edition.refer(&name), refs);
        for (name, kind_name, mut definition) in [(of, kind.kind, own), (list, &kind.list_kind(), of_list)] {
            definition["x-kubernetes-group-version-kind"] = gvk(kind_name);
            if !kind.selectable.is_empty() {
                let fields = kind.selectable.iter().map(|path| json!({"fieldPath": path}));
                definition["x-kubernetes-selectable-fields"] = fields.collect();
            }
            all.insert(name, definition);
        }
    }
    all
}

fn list_definition(edition: Edition, kind: &Kind, name: &str, gvk: Value) -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    json!({
        "description": format!("{} is a list of {}.", kind.list_kind(), kind.kind),
        "type": "object", "required": ["items"],
        "properties": {
            "apiVersion": text("APIVersion defines the versioned schema of this representation of an object."),
            "items": {"type": "array", "description": "items is the list of objects", "items": edition.refer(name)},
            "kind": text("Kind is a string value representing the REST resource this object represents."),
            "metadata": {"description": "Standard list metadata.", "allOf": [edition.refer(&format!("{META}.ListMeta"))]},
        },
        "x-kubernetes-group-version-kind": gvk,
    })
}

/// One operation, before it is written in either edition.
struct Operation {
    method: &'static str,
    action: &'static str,
    id: String,
    /// The definition of the body, if there is one, and of the answer.
    takes: Option<String>,
    gives: String,
    parameters: &'static [Parameter],
    /// What it acts on: kind, group, version.
    gvk: (String, &'static str, &'static str),
    tag: String,
    /// Whether a patch may be a strategic one: of custom resources none may.
    strategic: bool,
}

/// A query parameter: its name, its type, what it means.
type Parameter = (&'static str, &'static str, &'static str);

const DRY_RUN: Parameter = ("dryRun", "string", "`All`: everything is done but the writing.");
const MANAGER: Parameter = ("fieldManager", "string", "Who makes these changes.");
const VALIDATION: Parameter =
    ("fieldValidation", "string", "Unknown and duplicate fields: `Ignore`, `Warn`, or `Strict`.");
const FORCE: Parameter = ("force", "boolean", "Take over fields that others manage; for apply.");
const SELECT: [Parameter; 6] = [
    ("labelSelector", "string", "Restrict to objects by their labels."),
    ("fieldSelector", "string", "Restrict to objects by their fields."),
    ("limit", "integer", "The most items of one page."),
    ("continue", "string", "The next page of an earlier list."),
    ("resourceVersion", "string", "From which state on."),
    ("resourceVersionMatch", "string", "`Exact` or `NotOlderThan`."),
];
const LIST: &[Parameter] = &[
    SELECT[0],
    SELECT[1],
    SELECT[2],
    SELECT[3],
    SELECT[4],
    SELECT[5],
    ("watch", "boolean", "Tell changes from now on."),
    ("allowWatchBookmarks", "boolean", "Tell idle watchers how far they are."),
    ("sendInitialEvents", "boolean", "Begin with what is there."),
    ("timeoutSeconds", "integer", "How long at most."),
];
const WRITE: &[Parameter] = &[DRY_RUN, MANAGER, VALIDATION];
const PATCH: &[Parameter] = &[DRY_RUN, MANAGER, VALIDATION, FORCE];
const DELETE: &[Parameter] = &[
    DRY_RUN,
    ("gracePeriodSeconds", "integer", "How long to wait before it is gone."),
    ("propagationPolicy", "string", "`Orphan`, `Background`, or `Foreground`."),
    ("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
];

fn all_paths(edition: Edition, kinds: &[&'static Kind]) -> Map<String, Value> {
    let mut all = Map::new();
    for kind in kinds {
        let root = match kind.group {
            "" => format!("/api/{}", kind.version),
            group => format!("/apis/{group}/{}", kind.version),
        };
        let scoped = if kind.namespaced { format!("{root}/namespaces/{{namespace}}") } else { root.clone() };
        if kind.namespaced && kind.verbs.contains(&Verb::List) {
            all.insert(format!("{root}/{}", kind.plural), item(edition, &collection(kind, true), false, false));
        }
        let path = format!("{scoped}/{}", kind.plural);
        all.insert(path.clone(), item(edition, &collection(kind, false), kind.namespaced, false));
        let path = format!("{path}/{{name}}");
        let operations = object(kind);
        if !operations.is_empty() {
            all.insert(path.clone(), item(edition, &operations, kind.namespaced, true));
        }
        for sub in discovery::subresources(kind).into_iter().filter(|sub| sub.name != "proxy") {
            all.insert(format!("{path}/{}", sub.name), item(edition, &part(kind, &sub), kind.namespaced, true));
        }
    }
    all
}

/// `AppsV1NamespacedDeployment`, as upstream's operation ids have it.
fn titled(kind: &Kind, all_namespaces: bool) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    let group = kind.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
    let scope = if kind.namespaced && !all_namespaces { "Namespaced" } else { "" };
    let suffix = if all_namespaces { "ForAllNamespaces" } else { "" };
    format!("{}{}{scope}{}{suffix}", capital(group), capital(kind.version), kind.kind)
}

/// Those operations that the kind serves.
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
    Operation { method, action, id, takes: None, gives, parameters: &[], gvk, tag, strategic: !kind.is_custom() }
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
    let id = titled(kind, false) + &sub.name[..1].to_uppercase() + &sub.name[1..];
    let of = match sub.of.0.as_str() {
        "Scale" => openapi::name_of(&SCALE),
        "Eviction" => openapi::name_of(&EVICTION),
        "Binding" => openapi::name_of(&BINDING),
        "TokenRequest" => openapi::name_of(&TOKEN_REQUEST),
        _ => openapi::name_of(&kind.schema),
    };
    let row = |verb: &&'static str| {
        let (method, action, name, takes, parameters) = match *verb {
            "get" => ("get", "get", "read", None, &[] as &[Parameter]),
            "create" => ("post", "post", "create", Some(of.clone()), WRITE),
            "update" => ("put", "put", "replace", Some(of.clone()), WRITE),
            "patch" => ("patch", "patch", "patch", Some(format!("{META}.Patch")), PATCH),
            _ => return None,
        };
        let gvk = sub.of.clone();
        let operation = operation(kind, method, action, format!("{name}{id}"));
        Some(Operation { takes, gives: of.clone(), parameters, gvk, ..operation })
    };
    sub.verbs.iter().filter_map(row).collect()
}

/// A path with its operations and the parameters that they share.
fn item(edition: Edition, operations: &[Operation], namespaced: bool, named: bool) -> Value {
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
    let shared = [(named, "name", "name of the object"), (namespaced, "namespace", "its namespace")];
    let mut shared: Vec<Value> = shared.iter().filter(|(is, ..)| *is).map(|(_, name, of)| in_path(name, of)).collect();
    shared.push(in_query(edition, &("pretty", "string", "Write the answer for people.")));
    item.insert("parameters".into(), shared.into());
    item.into()
}

fn in_query(edition: Edition, (name, of, description): &Parameter) -> Value {
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
        "tags": [operation.tag], "operationId": operation.id,
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
