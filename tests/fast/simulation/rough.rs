//! A rough way to the server: calls take their time and sometimes fail, watches lag behind.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use podwright::{
    api::{Env, Request, Response, Status, User, WatchEvent, rpc::Session},
    client::{Client, Stream, Transport},
    server::Server,
};
use tokio::sync::mpsc::{Receiver, channel};

struct Rough {
    server: Arc<Server>,
    env: Env,
    user: User,
}

/// A client whose calls and watches are late by random times, each of its own.
pub fn client(server: Arc<Server>, env: Env) -> Client {
    Client::new(Arc::new(Rough { server, env, user: User::system("system:controllers") }), "controllers")
}

/// Mostly at once, sometimes late.
async fn lag(env: &Env, most: u64) {
    if env.below(3) == 0 {
        tokio::time::sleep(Duration::from_millis(env.below(most))).await;
    }
}

#[async_trait]
impl Transport for Rough {
    async fn call(&self, mut request: Request) -> Result<Response, Status> {
        request.user = self.user.clone();
        lag(&self.env, 60).await;
        if self.env.below(50) == 0 {
            return Err(Status::unavailable("the simulation refuses this one"));
        }
        let answer = self.server.handle(request).await;
        lag(&self.env, 60).await;
        answer
    }
    async fn watch(&self, mut request: Request) -> Result<Receiver<WatchEvent>, Status> {
        request.user = self.user.clone();
        let mut events = self.server.watch(request).await?;
        let (sender, late) = channel(16);
        let env = self.env.clone();
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                lag(&env, 200).await;
                // A watch that breaks now and then is resumed.
                if env.below(300) == 0 || sender.send(event).await.is_err() {
                    return;
                }
            }
        });
        Ok(late)
    }
    async fn dial(&self, _: &str) -> Result<Stream, Status> {
        Err(Status::bad_request("no streams here"))
    }
    async fn sessions(&self, _: &str) -> Result<Receiver<Session>, Status> {
        Err(Status::bad_request("no sessions here"))
    }
}
