//! A transport that tells of each request how it was answered, as upstream's `rest_client_requests_total` counts them.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use super::{Stream, Transport};
use crate::api::{Request, Response, Status, Verb, WatchEvent, request::Body, rpc};

/// Is told the code of an answer, the server's host and the method.
pub type Tell = Arc<dyn Fn(&str, &str, &str) + Send + Sync>;

pub struct Counted {
    pub inner: Arc<dyn Transport>,
    pub tell: Tell,
}

impl Counted {
    fn told<T>(&self, method: &str, result: Result<T, Status>, code: impl Fn(&T) -> u16) -> Result<T, Status> {
        let code = result.as_ref().map_or_else(|status| status.code, code);
        (self.tell)(&code.to_string(), &self.inner.host(), method);
        result
    }
}

/// As REST has it.
fn method(verb: Verb) -> &'static str {
    match verb {
        Verb::Get | Verb::List | Verb::Watch => "GET",
        Verb::Create | Verb::Connect => "POST",
        Verb::Update => "PUT",
        Verb::Patch => "PATCH",
        Verb::Delete | Verb::DeleteCollection => "DELETE",
    }
}

#[async_trait]
impl Transport for Counted {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        let method = method(request.verb);
        let answer = self.inner.call(request).await;
        self.told(
            method,
            answer,
            |answer| if matches!(answer.body, Body::Object { created: true, .. }) { 201 } else { 200 },
        )
    }

    async fn watch(&self, request: Request) -> Result<Receiver<WatchEvent>, Status> {
        let events = self.inner.watch(request).await;
        self.told("GET", events, |_| 200)
    }

    async fn method(&self, name: &'static str, params: Value) -> Result<Value, Status> {
        self.inner.method(name, params).await
    }

    async fn raw(&self, path: &str) -> Result<bytes::Bytes, Status> {
        let answer = self.inner.raw(path).await;
        self.told("GET", answer, |_| 200)
    }

    async fn discovery(&self) -> Result<Value, Status> {
        let answer = self.inner.discovery().await;
        self.told("GET", answer, |_| 200)
    }

    async fn dial(&self, id: &str) -> Result<Stream, Status> {
        self.inner.dial(id).await
    }

    async fn sessions(&self, node: &str) -> Result<Receiver<rpc::Session>, Status> {
        self.inner.sessions(node).await
    }

    fn host(&self) -> String {
        self.inner.host()
    }
}
