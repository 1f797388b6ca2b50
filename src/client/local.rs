//! The in-process transport: calls on an API server in the same process.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use super::{Client, Stream, Transport, metrics};
use crate::api::{Request, Response, Status, User, Verb, WatchEvent, rpc::Session};
use crate::server::Server;

struct Local {
    server: Arc<Server>,
    user: User,
    gives_way: bool,
}

/// A client of a server in the same process, acting as `system:<component>` with every right.
pub fn client(server: Arc<Server>, component: &str) -> Client {
    client_that(server, component, false)
}

/// The same for a component that writes of its own accord, and may find any amount of work: its writes leave the server to
/// others' requests.
pub fn worker(server: Arc<Server>, component: &str) -> Client {
    client_that(server, component, true)
}

fn client_that(server: Arc<Server>, component: &str, gives_way: bool) -> Client {
    let user = User::system(&format!("system:{component}"));
    Client::new(Arc::new(Local { server, user, gives_way }), component)
}

#[async_trait]
impl Transport for Local {
    async fn call(&self, mut request: Request) -> Result<Response, Status> {
        request.user = self.user.clone();
        let (verb, began) = (request.verb, Instant::now());
        let answer = match self.gives_way && request.verb.writes() {
            true => self.server.clone().handle_behind(request).await,
            false => self.server.handle(request).await,
        };
        metrics::called(verb, began, &answer);
        answer
    }
    async fn watch(&self, mut request: Request) -> Result<Receiver<WatchEvent>, Status> {
        request.user = self.user.clone();
        let began = Instant::now();
        let watch = self.server.watch(request).await;
        metrics::answered(Verb::Watch, began, watch.as_ref().map_or_else(Status::http_code, |_| 200));
        watch
    }
    async fn discovery(&self) -> Result<Value, Status> {
        Ok(self.server.discovery())
    }
    async fn dial(&self, _id: &str) -> Result<Stream, Status> {
        Err(Status::bad_request("streams need a connection to the server's socket"))
    }
    async fn sessions(&self, _node: &str) -> Result<Receiver<Session>, Status> {
        Err(Status::bad_request("node sessions need a connection to the server's socket"))
    }
}
