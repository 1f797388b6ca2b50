//! Whether an extension API server is available: its Service, the port, endpoints, and the answer to a discovery request. Upstream:
//! `remote_available_controller.go`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::Value;

use super::connect::Fetch;
use super::gather::{self, Gathered};
use super::table::{Registration, Remote};
use super::{RESOURCE, kind};
use crate::custom::set_condition;
use crate::large::Weighed;
use crate::retries::Backoff;
use crate::{Server, Watch};
use podwright_api::kinds::api_service::AVAILABLE;
use podwright_api::{Object, Options, Request, Status, User, Verb};

/// How often an available one is probed; upstream's resync.
const EVERY: Duration = Duration::from_secs(30);
/// How long to wait for further changes, to handle them together.
const SETTLE: Duration = Duration::from_millis(100);
/// How many attempts may fail before this is reported, and how long each may take.
const ATTEMPTS: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(6);
/// How often a conflicting status write is retried.
const WRITES: usize = 5;
/// The longest resource list that is read.
const LONGEST: usize = 2 << 20;

/// What the condition says if something is wrong.
#[derive(Debug, PartialEq)]
struct Verdict {
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// The Service and its slices.
struct Found {
    service: Result<Option<Object>, Status>,
    slices: Result<Vec<Object>, Status>,
}

/// What is wrong before any request is sent.
fn judge(remote: &Remote, found: &Found) -> Result<(), Verdict> {
    let at = format!("service/{} in {:?}", remote.service, remote.namespace);
    let no = |reason, message| Err(Verdict { status: "False", reason, message });
    let unknown = |reason, why: &Status| {
        Err(Verdict { status: "Unknown", reason, message: format!("{at} cannot be checked due to: {}", why.message) })
    };
    let service = match &found.service {
        Ok(Some(service)) => service,
        Ok(None) => return no("ServiceNotFound", format!("{at} is not present")),
        Err(why) => return unknown("ServiceAccessError", why),
    };
    // Others have no endpoints that are known here.
    if service.at("spec.type").is_some_and(|of| of != "ClusterIP") {
        return Ok(());
    }
    let ports = service.at("spec.ports").and_then(Value::as_array).into_iter().flatten();
    let Some(port) = ports.into_iter().find(|port| port["port"].as_u64() == Some(remote.port.into())) else {
        return no("ServicePortError", format!("{at} is not listening on port {}", remote.port));
    };
    let name = port["name"].as_str().unwrap_or("");
    let slices = match &found.slices {
        Ok(slices) if slices.is_empty() => {
            return no("EndpointsNotFound", format!("cannot find endpointslices for {at}"));
        }
        Ok(slices) => slices,
        Err(why) => return unknown("EndpointsAccessError", why),
    };
    let serves = |slice: &&Object| {
        let ports = slice.0["ports"].as_array().into_iter().flatten();
        let ready = |endpoint: &Value| endpoint["conditions"]["ready"].as_bool().unwrap_or(true);
        ports.into_iter().any(|port| port["name"].as_str().unwrap_or("") == name)
            && slice.0["endpoints"].as_array().into_iter().flatten().any(ready)
    };
    match slices.iter().any(|slice| serves(&slice)) {
        true => Ok(()),
        false => no("MissingEndpoints", format!("endpoints for {at} have no addresses with port name {name:?}")),
    }
}

/// Notifications of changes to the Service and its slices.
#[derive(Default)]
struct Changes {
    service: Option<Watch>,
    slices: Option<Watch>,
}

impl Changes {
    /// Starts watches that are missing. What cannot be watched is checked periodically.
    async fn follow(&mut self, server: &Server, remote: &Remote) {
        if self.service.is_none() {
            self.service = server.watch(service_of(remote, Verb::Watch)).await.ok();
        }
        if self.slices.is_none() {
            self.slices = server.watch(slices_of(remote, Verb::Watch)).await.ok();
        }
    }

    /// Resolves at the next change.
    async fn next(&mut self) {
        async fn told(watch: &mut Option<Watch>) {
            match watch {
                Some(events) => {
                    let ended = events.recv().await.is_none();
                    while events.try_recv().is_ok() {}
                    if ended {
                        *watch = None;
                    }
                }
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = told(&mut self.service) => {}
            () = told(&mut self.slices) => {}
        }
    }
}

fn service_of(remote: &Remote, verb: Verb) -> Request {
    let named = Some(remote.service.clone()).filter(|_| verb == Verb::Get);
    let selector = Some(format!("metadata.name={}", remote.service)).filter(|_| verb != Verb::Get);
    Request {
        verb,
        resource: "services".into(),
        namespace: Some(remote.namespace.clone()),
        name: named,
        options: Options { field_selector: selector, ..Options::default() },
        user: User::system("system:apiserver"),
        ..Request::default()
    }
}

fn slices_of(remote: &Remote, verb: Verb) -> Request {
    let selector = Some(format!("kubernetes.io/service-name={}", remote.service));
    Request {
        verb,
        resource: "endpointslices.discovery.k8s.io".into(),
        namespace: Some(remote.namespace.clone()),
        options: Options { label_selector: selector, ..Options::default() },
        user: User::system("system:apiserver"),
        ..Request::default()
    }
}

/// Watches one server for as long as this task runs.
pub(super) async fn watch(server: Weak<Server>, registration: Arc<Registration>, remote: Arc<Remote>) {
    let (mut changes, mut backoff, mut gathered) = (Changes::default(), Backoff::default(), Gathered::default());
    let told = super::metrics::Told::of(&registration.name);
    loop {
        let Some(strong) = server.upgrade() else { return };
        changes.follow(&strong, &remote).await;
        let asked = look(&strong, &registration, &remote).await;
        let verdict = asked.as_ref().err();
        told.set(verdict.is_none());
        // Clients that see it available also see its resources.
        gathered = gather::heard(&registration, gathered, asked.as_ref().ok());
        strong.aggregator.gather(&registration.name, Some(gathered.clone()));
        let written = write(&strong, &registration, verdict).await;
        if let Err(why) = &written {
            tracing::warn!("failed to check the APIService {}: {why}", registration.name);
        }
        if asked.is_ok() {
            gathered = gather::read_documents(&strong, &registration, &remote, gathered).await;
            strong.aggregator.gather(&registration.name, Some(gathered.clone()));
        }
        drop(strong);
        let patience = match asked.is_ok() && written.is_ok() {
            true => {
                backoff = Backoff::default();
                EVERY
            }
            false => backoff.next().min(EVERY),
        };
        tokio::select! {
            () = tokio::time::sleep(patience) => {}
            () = changes.next() => {
                tokio::time::sleep(SETTLE).await;
                backoff = Backoff::default();
            }
        }
    }
}

/// The resource list that it answered with, or what is wrong with it.
async fn look(server: &Server, registration: &Registration, remote: &Remote) -> Result<Option<Value>, Verdict> {
    let service = match server.read_as_server(service_of(remote, Verb::Get), |service| service).await {
        Ok(service) => Ok(Some(service)),
        Err(why) if why.is_not_found() => Ok(None),
        Err(why) => Err(why),
    };
    let found = Found { service, slices: server.list_as_server(slices_of(remote, Verb::List)).await };
    judge(remote, &found)?;
    // One attempt, if that is enough; otherwise the rest all at once: each may reach another endpoint.
    let failed = match ask(server, registration, remote).await {
        Ok(answer) => return Ok(answer),
        Err(why) => why,
    };
    let mut last = failed;
    let mut others: FuturesUnordered<_> = (1..ATTEMPTS).map(|_| ask(server, registration, remote)).collect();
    while let Some(asked) = others.next().await {
        match asked {
            Ok(answer) => return Ok(answer),
            Err(why) => last = why,
        }
    }
    Err(Verdict { status: "False", reason: "FailedDiscoveryCheck", message: last.to_string() })
}

/// Why an extension API server did not answer properly, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum DiscoveryError {
    #[error("failing or missing response from {url}: Get {url:?}: {why:#}")]
    Unanswered { url: String, why: anyhow::Error },
    /// It answered with this status code.
    #[error("failing or missing response from {url}: bad status from {url}: {code}")]
    Refused { url: String, code: u16 },
    #[error("timed out waiting for {url}")]
    Late { url: String },
}

async fn ask(server: &Server, registration: &Registration, remote: &Remote) -> Result<Option<Value>, DiscoveryError> {
    let path = format!("/apis/{}/{}", registration.group, registration.version);
    let url = format!("https://{}{path}", remote.authority());
    let user = User { groups: vec!["system:masters".into()], ..User::new("system:kube-aggregator", [""; 0]) };
    let asked = Fetch::get(&path, &user);
    let asking = async {
        let answer = match server.ask_extension(remote, &asked).await {
            Ok(answer) => answer,
            Err(why) => return Err(DiscoveryError::Unanswered { url: url.clone(), why }),
        };
        let status = answer.status();
        if !status.is_success() {
            return Err(DiscoveryError::Refused { url: url.clone(), code: status.as_u16() });
        }
        // An answer is enough. The body is used if it can be read in time.
        let read = async { gather::read(answer.body(LONGEST).await?).await };
        match tokio::time::timeout(TIMEOUT / 2, read).await {
            Ok(Ok(list)) => Ok(Some(list)),
            Ok(Err(why)) => {
                tracing::warn!("leaving out the resources of {url}: {why:#}");
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    };
    match tokio::time::timeout(TIMEOUT, asking).await {
        Ok(asked) => asked,
        Err(_) => Err(DiscoveryError::Late { url }),
    }
}

/// Writes the condition if it changed.
async fn write(server: &Server, registration: &Registration, verdict: Option<&Verdict>) -> Result<(), Status> {
    let (status, reason, message) = match verdict {
        Some(verdict) => (verdict.status, verdict.reason, verdict.message.as_str()),
        None => ("True", "Passed", "all checks passed"),
    };
    let kind = kind()?;
    for _ in 0..WRITES {
        let Some(item) = server.cache.resource(kind).get(&kind.key(None, &registration.name)) else { return Ok(()) };
        let mut object = item.decode(Weighed::own())?.object;
        if !set_condition(&mut object, AVAILABLE, status, reason, message, &server.timestamp()) {
            return Ok(());
        }
        let request = Request {
            verb: Verb::Update,
            resource: RESOURCE.into(),
            name: Some(registration.name.clone()),
            subresource: Some("status".into()),
            body: Some(object.0),
            options: Options { field_manager: Some("kube-apiserver".into()), ..Options::default() },
            user: User::system("system:apiserver"),
            ..Request::default()
        };
        match server.handle(request).await {
            Err(why) if why.is_conflict() => server.cache.fresh().await?,
            Err(why) if why.is_not_found() => return Ok(()),
            other => return other.map(drop),
        }
    }
    // The other writer's change triggers another attempt.
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::table::Table;
    use super::*;

    fn remote() -> Arc<Remote> {
        let object = Object(json!({"metadata": {"name": "v1.example.com"}, "spec": {
            "group": "example.com", "version": "v1", "service": {"namespace": "ns", "name": "ext", "port": 443},
        }}));
        let table = Table::of(1, [object].into_iter(), &Table::default());
        table.get("v1.example.com").unwrap().remote.clone().unwrap()
    }

    fn service(of: &str, port: u16) -> Result<Option<Object>, Status> {
        Ok(Some(Object(json!({"spec": {"type": of, "ports": [{"name": "https", "port": port}]}}))))
    }

    fn slice(port: &str, ready: bool) -> Object {
        Object(json!({
            "ports": [{"name": port, "port": 6443}],
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}],
        }))
    }

    #[test]
    fn what_is_missing_is_told_in_upstreams_words() {
        let at = "service/ext in \"ns\"";
        let trouble = || Status::internal("trouble");
        for (service, slices, told) in [
            (Ok(None), Ok(vec![]), format!("False ServiceNotFound {at} is not present")),
            (
                Err(trouble()),
                Ok(vec![]),
                format!("Unknown ServiceAccessError {at} cannot be checked due to: {}", trouble().message),
            ),
            (service("ClusterIP", 80), Ok(vec![]), format!("False ServicePortError {at} is not listening on port 443")),
            (
                service("ClusterIP", 443),
                Ok(vec![]),
                format!("False EndpointsNotFound cannot find endpointslices for {at}"),
            ),
            (
                service("ClusterIP", 443),
                Ok(vec![slice("https", false), slice("http", true)]),
                format!("False MissingEndpoints endpoints for {at} have no addresses with port name \"https\""),
            ),
            (service("ClusterIP", 443), Ok(vec![slice("https", true)]), "well".to_owned()),
            (service("ExternalName", 80), Ok(vec![]), "well".to_owned()),
        ] {
            let verdict = judge(&remote(), &Found { service, slices });
            let shown = match verdict {
                Ok(()) => "well".to_owned(),
                Err(Verdict { status, reason, message }) => format!("{status} {reason} {message}"),
            };
            assert_eq!(shown, told);
        }
    }
}
