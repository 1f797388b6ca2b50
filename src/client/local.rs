//! The in-process transport: calls on an API server in the same process.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc::Receiver;

use super::{Client, Stream, Transport};
use crate::api::{Request, Response, Status, User, WatchEvent, rpc::Session};
use crate::server::Server;

struct Local {
    server: Arc<Server>,
    user: User,
}

/// A client of a server in the same process, acting as `system:<component>` with every right.
pub fn client(server: Arc<Server>, component: &str) -> Client {
    let user = User::system(&format!("system:{component}"));
    Client::new(Arc::new(Local { server, user }), component)
}

#[async_trait]
impl Transport for Local {
    async fn call(&self, mut request: Request) -> Result<Response, Status> {
        request.user = self.user.clone();
        self.server.handle(request).await
    }
    async fn watch(&self, mut request: Request) -> Result<Receiver<WatchEvent>, Status> {
        request.user = self.user.clone();
        self.server.watch(request).await
    }
    async fn dial(&self, _id: &str) -> Result<Stream, Status> {
        Err(Status::bad_request("streams need a connection to the server's socket"))
    }
    async fn sessions(&self, _node: &str) -> Result<Receiver<Session>, Status> {
        Err(Status::bad_request("node sessions need a connection to the server's socket"))
    }
}
