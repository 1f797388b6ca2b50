//! What an extension API server serves: its resources for discovery and its OpenAPI documents; refreshed periodically, cached by
//! their names, and bounded in size.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::connect::Fetch;
use super::openapi;
use super::table::{Registration, Remote};
use super::v3::of_v2;
use crate::Server;
use podwright_api::User;

/// How often documents are refreshed.
const EVERY: Duration = Duration::from_secs(60);
/// How long all of them may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The longest document that is read.
const LONGEST: usize = 8 << 20;
/// The most values in a document: parsed, this is some tens of megabytes.
const MOST_VALUES: usize = 300_000;
/// The most resources in a group version, with their subresources.
const MOST_RESOURCES: usize = 1_000;
const INDEX: &str = "/openapi/v3";
/// Marks a document converted here, followed by the v2 document that it was made from.
const MADE: &str = "made of ";

/// What is known of one server.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// Whether the last request was answered.
    pub fresh: bool,
    /// Its resources, in the form of aggregated discovery.
    pub resources: Arc<Vec<Value>>,
    /// Its part of the OpenAPI v2 document, and the name of that document.
    pub v2: Option<(String, Arc<Value>)>,
    /// Its OpenAPI v3 document and where it was found; [`MADE`] if converted from the v2 one.
    pub v3: Option<(String, Bytes)>,
    asked: Option<Instant>,
}

impl PartialEq for Gathered {
    /// When it was asked does not matter.
    fn eq(&self, other: &Gathered) -> bool {
        (self.fresh, &self.resources, &self.v2, &self.v3) == (other.fresh, &other.resources, &other.v2, &other.v3)
    }
}

/// The state after an attempt: `answer` is its resource list, if it answered at all.
pub(super) fn heard(registration: &Registration, mut held: Gathered, answer: Option<&Option<Value>>) -> Gathered {
    let Some(list) = answer else { return Gathered { fresh: false, asked: None, ..held } };
    held.fresh = list.is_some();
    if let Some(list) = list {
        held.resources = Arc::new(resources(list, &registration.group, &registration.version));
    }
    held
}

/// The same with its documents, for one that answered; these may take a while.
pub(super) async fn read_documents(
    server: &Server,
    registration: &Registration,
    remote: &Remote,
    mut held: Gathered,
) -> Gathered {
    if held.asked.is_some_and(|asked| asked.elapsed() < EVERY) {
        return held;
    }
    held.asked = Some(Instant::now());
    let user = User::new("system:aggregator", ["system:authenticated"]);
    let documents = async {
        let v2 = v2(server, registration, remote, &user, held.v2.as_ref()).await;
        let v3 = v3(server, registration, remote, &user, held.v3.as_ref()).await;
        (v2, v3)
    };
    let Ok((v2, v3)) = tokio::time::timeout(TIMEOUT, documents).await else {
        tracing::warn!("timed out waiting for the OpenAPI documents of {}", registration.name);
        return held;
    };
    let told = |which: &str, why: anyhow::Error| {
        tracing::warn!("failed to read the OpenAPI {which} document of {}: {why:#}", registration.name);
    };
    match v2 {
        Ok(v2) => held.v2 = v2,
        Err(why) => told("v2", why),
    }
    match v3 {
        Ok(Some(v3)) => held.v3 = Some(v3),
        // As upstream's aggregator does for servers without v3.
        Ok(None) => held.v3 = made(registration, held.v2.as_ref(), held.v3.as_ref()).await,
        Err(why) => told("v3", why),
    }
    held
}

/// A v3 document converted from a v2 one, if there is one; reuses the one from the same source.
async fn made(
    registration: &Registration,
    v2: Option<&(String, Arc<Value>)>,
    held: Option<&(String, Bytes)>,
) -> Option<(String, Bytes)> {
    let (tag, part) = v2.filter(|(_, part)| part["paths"].as_object().is_some_and(|paths| !paths.is_empty()))?;
    let at = format!("{MADE}{tag}");
    if let Some(held) = held.filter(|(known, _)| *known == at && !tag.is_empty()) {
        return Some(held.clone());
    }
    let (part, name, version) = (part.clone(), registration.name.clone(), registration.version.clone());
    let document = apart(move || Ok(Bytes::from(of_v2(&part, &name, &version)?.to_string()))).await;
    match document {
        Ok(document) => Some((at, document)),
        Err(why) => {
            tracing::warn!("failed to convert the OpenAPI v3 document of {}: {why:#}", registration.name);
            None
        }
    }
}

/// The part of its v2 document for this group version. `None`: it has none.
async fn v2(
    server: &Server,
    registration: &Registration,
    remote: &Remote,
    user: &User,
    held: Option<&(String, Arc<Value>)>,
) -> anyhow::Result<Option<(String, Arc<Value>)>> {
    let etag = held.map(|(tag, _)| tag.as_str()).filter(|tag| !tag.is_empty());
    let asked = Fetch { etag, ..Fetch::get("/openapi/v2", user) };
    let answer = server.ask_extension(remote, &asked).await?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_MODIFIED => return Ok(held.cloned()),
        StatusCode::NOT_FOUND => return Ok(None),
        other => anyhow::bail!("the answer is {other}"),
    }
    let tag = answer.etag().unwrap_or_default();
    let (bytes, group, version) =
        (answer.body(LONGEST).await?, registration.group.clone(), registration.version.clone());
    if let Err(why) = bounded(&bytes) {
        tracing::warn!("leaving out the OpenAPI v2 document of {}: {why:#}", registration.name);
        return Ok(None);
    }
    let part = apart(move || Ok(openapi::part_of(parsed(&bytes)?, &group, &version))).await?;
    Ok(Some((tag, Arc::new(part))))
}

/// Its v3 document for this group version. `None`: it has none.
async fn v3(
    server: &Server,
    registration: &Registration,
    remote: &Remote,
    user: &User,
    held: Option<&(String, Bytes)>,
) -> anyhow::Result<Option<(String, Bytes)>> {
    let asked = |path| Fetch::get(path, user);
    let answer = server.ask_extension(remote, &asked(INDEX)).await?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Ok(None),
        other => anyhow::bail!("the answer is {other}"),
    }
    let left_out = |why: anyhow::Error| {
        tracing::warn!("leaving out the OpenAPI v3 document of {}: {why:#}", registration.name);
    };
    let (bytes, of) = (answer.body(LONGEST).await?, format!("apis/{}/{}", registration.group, registration.version));
    if let Err(why) = bounded(&bytes) {
        left_out(why.context("its index"));
        return Ok(None);
    }
    let named = move || Ok(parsed(&bytes)?["paths"][&of]["serverRelativeURL"].as_str().map(str::to_owned));
    let Some(at) = apart(named).await? else { return Ok(None) };
    let at = at.as_str();
    // It may only name one of its own documents, no other path.
    ensure!(at.starts_with("/openapi/v3/"), "{at:?} is no document");
    // A document named by its hash does not change.
    if let Some(held) = held.filter(|(known, _)| known == at && at.contains("hash=")) {
        return Ok(Some(held.clone()));
    }
    let answer = server.ask_extension(remote, &asked(at)).await?;
    ensure!(answer.status() == StatusCode::OK, "{at} is answered with {}", answer.status());
    let bytes = answer.body(LONGEST).await?;
    if let Err(why) = bounded(&bytes) {
        left_out(why);
        return Ok(None);
    }
    let document = bytes.clone();
    let is_object = apart(move || Ok(parsed(&document)?.is_object())).await?;
    ensure!(is_object, "no object");
    Ok(Some((at.to_owned(), bytes)))
}

/// Bounds the values in an extension server's document: each takes tens of bytes once parsed, and as few as two in JSON. Each but
/// the first follows one of these bytes; those within strings count too.
fn bounded(bytes: &[u8]) -> anyhow::Result<()> {
    let values = bytes.iter().filter(|byte| b",:[{".contains(byte)).count();
    ensure!(values < MOST_VALUES, "it has more than {MOST_VALUES} values");
    Ok(())
}

fn parsed(bytes: &[u8]) -> anyhow::Result<Value> {
    bounded(bytes)?;
    serde_json::from_slice(bytes).context("no JSON")
}

/// Runs slow work on a document on a blocking thread, one at a time.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<T> {
    static ONE: Semaphore = Semaphore::const_new(1);
    let one = ONE.acquire().await?;
    let held = move || {
        let done = work();
        drop(one);
        done
    };
    tokio::task::spawn_blocking(held).await?
}

/// Parses a document on a blocking thread.
pub(super) async fn read(bytes: Bytes) -> anyhow::Result<Value> {
    apart(move || parsed(&bytes)).await
}

/// A resource list in the form of aggregated discovery; upstream's `ConvertGroupVersionIntoToDiscovery`. Only known fields are
/// copied.
pub fn resources(list: &Value, group: &str, version: &str) -> Vec<Value> {
    let mut all: Map<String, Value> = Map::new();
    let resources = list["resources"].as_array().map_or(&[][..], Vec::as_slice);
    if resources.len() > MOST_RESOURCES {
        let those = resources.len();
        tracing::warn!(
            "{group}/{version}: {MOST_RESOURCES} resources of its {those} are taken in, the others left out"
        );
    }
    for resource in resources.iter().take(MOST_RESOURCES) {
        let Some(name) = resource["name"].as_str().filter(|name| !name.is_empty()) else { continue };
        let or = |field: &str, other: &str| match resource[field].as_str() {
            None | Some("") => other.to_owned(),
            Some(text) => text.to_owned(),
        };
        let kind = json!({"group": or("group", group), "version": or("version", version), "kind": or("kind", "")});
        let scope = if resource["namespaced"] == true { "Namespaced" } else { "Cluster" };
        let verbs = texts(&resource["verbs"]);
        match name.split_once('/') {
            None => {
                let own = all.entry(name).or_insert_with(|| json!({}));
                own["resource"] = name.into();
                own["responseKind"] = kind;
                own["scope"] = scope.into();
                own["singularResource"] = or("singularName", "").into();
                own["verbs"] = verbs.into();
                for field in ["shortNames", "categories"] {
                    let words = texts(&resource[field]);
                    if !words.is_empty() {
                        own[field] = words.into();
                    }
                }
            }
            Some((parent, sub)) => {
                let own = all.entry(parent).or_insert_with(|| {
                    json!({"resource": parent, "responseKind": {"group": "", "version": "", "kind": ""}, "scope": scope,
                        "singularResource": "", "verbs": []})
                });
                let part = json!({"subresource": sub, "responseKind": kind, "verbs": verbs});
                match own["subresources"].as_array_mut() {
                    Some(parts) => parts.push(part),
                    None => own["subresources"] = json!([part]),
                }
            }
        }
    }
    all.into_values().collect()
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_list_becomes_what_aggregated_discovery_tells() {
        let list = json!({"kind": "APIResourceList", "resources": [
            {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get", "list"],
             "shortNames": ["th"], "evil": {"a": 1}},
            {"name": "things/scale", "namespaced": true, "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get"]},
            {"name": "lone/part", "namespaced": false, "kind": "Part", "verbs": "get"},
            {"name": 7}, 8,
        ]});
        let gvk = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
        assert_eq!(
            resources(&list, "example.com", "v1"),
            [
                json!({"resource": "things", "responseKind": gvk("example.com", "v1", "Thing"), "scope": "Namespaced",
                "singularResource": "thing", "verbs": ["get", "list"], "shortNames": ["th"], "subresources": [
                    {"subresource": "scale", "responseKind": gvk("autoscaling", "v1", "Scale"), "verbs": ["get"]}]}),
                json!({"resource": "lone", "responseKind": gvk("", "", ""), "scope": "Cluster", "singularResource": "",
                "verbs": [], "subresources": [
                    {"subresource": "part", "responseKind": gvk("example.com", "v1", "Part"), "verbs": []}]}),
            ]
        );
        assert!(resources(&json!("nonsense"), "g", "v").is_empty());
    }

    #[test]
    fn no_more_resources_are_taken_in_than_there_is_room_for() {
        let all: Vec<Value> = (0..MOST_RESOURCES + 5).map(|n| json!({"name": format!("r{n}/s")})).collect();
        assert_eq!(resources(&json!({"resources": all}), "g", "v").len(), MOST_RESOURCES);
        let all: Vec<Value> = (0..MOST_RESOURCES + 5).map(|n| json!({"name": format!("r/s{n}")})).collect();
        let one = resources(&json!({"resources": all}), "g", "v");
        assert_eq!(one[0]["subresources"].as_array().unwrap().len(), MOST_RESOURCES);
    }

    #[tokio::test]
    async fn a_document_of_many_values_is_not_read() {
        let of = |count: usize| Bytes::from(format!("[{}1]", "1,".repeat(count)));
        assert!(read(of(MOST_VALUES - 2)).await.is_ok());
        let why = read(of(MOST_VALUES)).await.unwrap_err();
        assert_eq!(why.to_string(), "it has more than 300000 values");
        assert!(read(Bytes::from_static(b"{")).await.is_err());
        for dense in ["{},", "[],", "[[]],", "{\"\":0},", "\"\","] {
            assert!(bounded(dense.repeat(MOST_VALUES).as_bytes()).is_err(), "{dense}");
        }
    }
}
