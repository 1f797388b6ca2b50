//! A transport with a deadline for responses.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use super::{Stream, Transport};
use podwright_api::{Request, Response, Status, WatchEvent, rpc};

pub struct Deadline {
    pub inner: Arc<dyn Transport>,
    /// For each response, including dialling.
    pub time: Duration,
}

impl Deadline {
    async fn wait<T>(&self, answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let late = |_| {
            let why = format!("the server did not answer within {:?}", self.time);
            Err(Status::timeout(why).unanswered())
        };
        tokio::time::timeout(self.time, answer).await.unwrap_or_else(late)
    }
}

#[async_trait]
impl Transport for Deadline {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        self.wait(self.inner.call(request)).await
    }

    async fn watch(&self, request: Request) -> Result<Receiver<WatchEvent>, Status> {
        self.wait(self.inner.watch(request)).await
    }

    async fn method(&self, name: &'static str, params: Value) -> Result<Value, Status> {
        self.wait(self.inner.method(name, params)).await
    }

    async fn raw(&self, path: &str) -> Result<bytes::Bytes, Status> {
        self.wait(self.inner.raw(path)).await
    }

    async fn discovery(&self) -> Result<Value, Status> {
        self.wait(self.inner.discovery()).await
    }

    async fn dial(&self, id: &str) -> Result<Stream, Status> {
        self.wait(self.inner.dial(id)).await
    }

    async fn sessions(&self, node: &str) -> Result<Receiver<rpc::Session>, Status> {
        self.wait(self.inner.sessions(node)).await
    }

    fn encodes(&self) -> bool {
        self.inner.encodes()
    }

    fn host(&self) -> String {
        self.inner.host()
    }
}
