//! The in-process transport: calls on an API server in the same process.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use super::{Client, Stream, Transport, metrics};
use podwright_api::{Request, Response, Status, User, WatchEvent, rpc::Session};
use podwright_server::Server;

/// There is no address, and it is the same server under any of its addresses.
const HOST: &str = "in-process";

struct Local {
    server: Arc<Server>,
    user: User,
    gives_way: bool,
}

/// A client of a server in the same process, acting as `system:<component>` with all rights.
pub fn client(server: Arc<Server>, component: &str) -> Client {
    client_that(server, component, false)
}

/// The same for a component that writes on its own initiative, with any amount of work: its writes yield to other requests.
pub fn worker(server: Arc<Server>, component: &str) -> Client {
    client_that(server, component, true)
}

fn client_that(server: Arc<Server>, component: &str, gives_way: bool) -> Client {
    let user = User::system(&format!("system:{component}"));
    Client::new(Arc::new(Local { server, user, gives_way }), component).counted(metrics::requested)
}

#[async_trait]
impl Transport for Local {
    async fn call(&self, mut request: Request) -> Result<Response, Status> {
        request.user = self.user.clone();
        match self.gives_way && request.verb.writes() {
            true => self.server.clone().handle_behind(request).await,
            false => self.server.handle(request).await,
        }
    }
    async fn watch(&self, mut request: Request) -> Result<Receiver<WatchEvent>, Status> {
        request.user = self.user.clone();
        self.server.watch(request).await
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
    fn encodes(&self) -> bool {
        false
    }
    fn host(&self) -> String {
        HOST.to_owned()
    }
}
