//! A transport to a server that may be older than this program: the server's responses show how it names custom resources.
//!
//! A current server knows the unambiguous name `widgets.example.com/v1`. An older one only knows `widgets.v1.example.com`, and
//! reports the other as an unknown resource; it is then asked again, and by the older name from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use super::{Stream, Transport};
use podwright_api::{Request, Response, Status, WatchEvent, rpc};

pub struct Older {
    inner: Arc<dyn Transport>,
    /// Whether the server is known to be an older one.
    is_older: AtomicBool,
}

/// A resource's name on older servers: `widgets.v1.example.com`, `widgets.example.com`. `None`: it has no other.
pub fn older_name(resource: &str) -> Option<String> {
    let (named, version) = resource.split_once('/')?;
    if version.is_empty() {
        return Some(named.to_owned());
    }
    let (plural, group) = named.split_once('.')?;
    Some(format!("{plural}.{version}.{group}"))
}

/// Whether a server reports an unknown resource; for a missing object it names the object.
fn is_unknown(status: &Status, resource: &str) -> bool {
    let details = status.details.as_ref();
    status.is_not_found() && details.is_some_and(|details| details.kind == resource && details.name.is_empty())
}

impl Older {
    pub fn over(inner: Arc<dyn Transport>) -> Older {
        Older { inner, is_older: AtomicBool::new(false) }
    }

    async fn ask<T, F: Future<Output = Result<T, Status>>>(
        &self,
        request: Request,
        ask: impl Fn(Request) -> F,
    ) -> Result<T, Status> {
        let Some(older) = older_name(&request.resource) else { return ask(request).await };
        let renamed = Request { resource: older, ..request.clone() };
        if self.is_older.load(Ordering::Relaxed) {
            return ask(renamed).await;
        }
        let resource = request.resource.clone();
        match ask(request).await {
            Err(status) if is_unknown(&status, &resource) => {
                let (older, again) = (renamed.resource.clone(), ask(renamed).await);
                match &again {
                    // It knows neither: the first error is about the intended name.
                    Err(why) if is_unknown(why, &older) => Err(status),
                    _ => {
                        self.is_older.store(true, Ordering::Relaxed);
                        again
                    }
                }
            }
            answer => answer,
        }
    }
}

#[async_trait]
impl Transport for Older {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        self.ask(request, |request| self.inner.call(request)).await
    }

    async fn watch(&self, request: Request) -> Result<Receiver<WatchEvent>, Status> {
        self.ask(request, |request| self.inner.watch(request)).await
    }

    async fn method(&self, name: &'static str, params: Value) -> Result<Value, Status> {
        self.inner.method(name, params).await
    }

    async fn raw(&self, path: &str) -> Result<bytes::Bytes, Status> {
        self.inner.raw(path).await
    }

    async fn discovery(&self) -> Result<Value, Status> {
        self.inner.discovery().await
    }

    async fn dial(&self, id: &str) -> Result<Stream, Status> {
        self.inner.dial(id).await
    }

    async fn sessions(&self, node: &str) -> Result<Receiver<rpc::Session>, Status> {
        self.inner.sessions(node).await
    }

    fn encodes(&self) -> bool {
        self.inner.encodes()
    }

    fn host(&self) -> String {
        self.inner.host()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_servers_know_a_resource_by_the_name_that_it_had_then() {
        assert_eq!(older_name("widgets.example.com/v1").as_deref(), Some("widgets.v1.example.com"));
        assert_eq!(older_name("widgets.example.com/").as_deref(), Some("widgets.example.com"));
        assert_eq!(older_name("pods"), None);
        assert_eq!(older_name("deployments.apps"), None);
    }

    #[test]
    fn that_there_is_no_such_resource_is_not_that_there_is_no_such_object() {
        let of = |kind: &str, name: &str| Status::failure(404, "NotFound", "").with_details(kind, "", name);
        assert!(is_unknown(&of("widgets.example.com/v1", ""), "widgets.example.com/v1"));
        assert!(!is_unknown(&of("widgets", "x"), "widgets.example.com/v1"));
        assert!(!is_unknown(&of("widgets.example.com/v1", "x"), "widgets.example.com/v1"));
        assert!(!is_unknown(&Status::failure(404, "NotFound", ""), "widgets.example.com/v1"));
        assert!(!is_unknown(&Status::unauthorized(""), "widgets.example.com/v1"));
    }
}
