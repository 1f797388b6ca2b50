//! OpenAPI documents, generated from the kinds table: v3 with one document per group version, v2 with a single one.

use std::sync::Arc;

use hyper::header::{self, HeaderValue};
use serde_json::{Map, Value, json};

mod custom;
mod operations;

use super::discovery;
use super::gnostic;
use super::negotiate::Clause;
use super::reply::{self, Reply};
use super::served::Served;
use crate::aggregator::listing::{Group, Listed};
use crate::{Server, aggregator, documents::Document};
use podwright_api::kinds::Source;
use podwright_api::schema::openapi;
use podwright_api::{Kind, Status, User};

/// The differences between OpenAPI versions.
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
static DELETE_OPTIONS: Source = Source::of_type::<k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions>();
static OBJECT_META: Source = Source::of_type::<k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>();
static STATUS: Source = Source::of_type::<k8s_openapi::apimachinery::pkg::apis::meta::v1::Status>();
static LIST_META: Source = Source::of_type::<k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta>();
static SCALE: Source = Source::of_type::<k8s_openapi::api::autoscaling::v1::Scale>();
static EVICTION: Source = Source::of_type::<k8s_openapi::api::policy::v1::Eviction>();
static BINDING: Source = Source::of_type::<k8s_openapi::api::core::v1::Binding>();
static TOKEN_REQUEST: Source = Source::of_type::<k8s_openapi::api::authentication::v1::TokenRequest>();

/// The path of a group version's v3 document.
fn path_of(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The v3 document of a group version, local or remote. `None`: it has none.
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

/// All versions with their groups.
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

/// `/openapi/v3/apis/apps/v1`, if the group exists.
pub async fn v3(server: &Server, user: &User, served: &Served, of: &str) -> Result<Option<Arc<Document>>, Status> {
    match versions(served).find(|(group, listed)| path_of(&group.name, &listed.version) == of) {
        Some(found) => v3_of(server, user, served, found).await,
        None => Ok(None),
    }
}

/// Lets clients cache for good what they requested by its hash.
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
    // The first supported one; JSON without a preference.
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
        "paths": operations::paths(Edition::V3, kinds),
        "components": {"schemas": definitions(Edition::V3, kinds)},
    })
}

fn v2_document(kinds: &[&'static Kind]) -> Value {
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": super::health::version()["gitVersion"]},
        "paths": operations::paths(Edition::V2, kinds),
        "definitions": definitions(Edition::V2, kinds),
    })
}

/// The kinds' definitions with those of their lists, and everything that they refer to.
fn definitions(edition: Edition, kinds: &[&'static Kind]) -> Map<String, Value> {
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
            let definition = list_definition(edition, kind, &all, &name, gvk(&kind.list_kind()));
            all.insert(list, definition);
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

/// The definition of a list of objects. Common fields use the descriptions of its own kind.
fn list_definition(edition: Edition, kind: &Kind, own: &Map<String, Value>, name: &str, gvk: Value) -> Value {
    let as_own = |field: &str| {
        let own = own.get(name).and_then(|definition| definition["properties"].get(field));
        own.cloned().unwrap_or_else(|| json!({"type": "string"}))
    };
    json!({
        "description": format!("{} is a list of {}.", kind.list_kind(), kind.kind),
        "type": "object", "required": ["items"],
        "properties": {
            "apiVersion": as_own("apiVersion"),
            "items": {"type": "array", "description": format!("items is a list of {}.", kind.kind), "items": edition.refer(name)},
            "kind": as_own("kind"),
            "metadata": {
                "description": "Standard list metadata. More info: \
                    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds",
                "allOf": [edition.refer(&format!("{META}.ListMeta"))],
            },
        },
        "x-kubernetes-group-version-kind": gvk,
    })
}
