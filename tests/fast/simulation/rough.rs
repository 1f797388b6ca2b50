//! A rough way to the server: calls take their time and sometimes fail, watches lag behind, and all of it may be cut.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use podwright::{
    api::{Env, Request, Response, Status, User, Verb, WatchEvent, rpc::Session},
    client::{Client, Key, Stream, Transport, elector::NAMESPACE},
    server::Server,
};
use tokio::sync::mpsc::{Receiver, channel};

use super::{history::Recorded, planes::SCHEDULER, world::Step};

/// How a way is disturbed.
#[derive(Default)]
pub struct Wire {
    /// Calls fail after a while; what is watched still comes through, so that there is every reason to act.
    pub cut: AtomicBool,
    /// Who used it is no more: nothing of it goes either way.
    pub dead: AtomicBool,
}

/// Who it is that must be the leader where it writes.
pub struct Elected {
    pub part: &'static str,
    pub identity: String,
    pub store: Arc<Recorded>,
}

/// A way to a server.
pub struct Rough {
    pub server: Arc<Server>,
    pub env: Env,
    pub wire: Arc<Wire>,
    pub elected: Option<Elected>,
}

impl Rough {
    /// A client whose calls and watches are late by random times, each of its own.
    pub fn client(self, component: &'static str) -> Client {
        Client::new(Arc::new(self), component)
    }

    fn note(&self, request: &Request) {
        let Some(Elected { part, identity, store }) = &self.elected else { return };
        let reads = matches!(request.verb, Verb::Get | Verb::List);
        let own = request.resource == "leases.coordination.k8s.io" && request.namespace.as_deref() == Some(NAMESPACE);
        if !reads && !own && request.resource != "events" {
            store.step(Step::Writes { part, plane: identity.clone() });
            if request.subresource.as_deref() == Some("scale") && request.resource == "deployments.apps" {
                let replicas = request.body.as_ref().and_then(|body| body["spec"]["replicas"].as_i64()).unwrap_or(-1);
                let target =
                    Key::new(request.namespace.clone().unwrap_or_default(), request.name.clone().unwrap_or_default());
                store.step(Step::Scales { target, replicas: i32::try_from(replicas).unwrap_or(-1) });
            }
            if request.verb == Verb::Delete && request.resource == "pods" && *part == SCHEDULER {
                let pod =
                    Key::new(request.namespace.clone().unwrap_or_default(), request.name.clone().unwrap_or_default());
                let uid = request.options.preconditions.as_ref().and_then(|only| only.uid.clone());
                store.step(Step::Preempts { pod, uid });
            }
        }
    }
}

/// Mostly at once, sometimes late.
async fn lag(env: &Env, most: u64) {
    if env.below(3) == 0 {
        tokio::time::sleep(Duration::from_millis(env.below(most))).await;
    }
}

/// As long as somebody is there to wait.
async fn alive(wire: &Wire) {
    if wire.dead.load(Relaxed) {
        std::future::pending::<()>().await;
    }
}

#[async_trait]
impl Transport for Rough {
    async fn call(&self, mut request: Request) -> Result<Response, Status> {
        request.user = User::system("system:controllers");
        lag(&self.env, 60).await;
        alive(&self.wire).await;
        if self.wire.cut.load(Relaxed) {
            tokio::time::sleep(Duration::from_secs(3)).await;
            return Err(Status::unavailable("cut off"));
        }
        if self.env.below(50) == 0 {
            return Err(Status::unavailable("the simulation refuses this one"));
        }
        self.note(&request);
        let answer = self.server.handle(request).await;
        lag(&self.env, 60).await;
        alive(&self.wire).await;
        answer
    }
    async fn watch(&self, mut request: Request) -> Result<Receiver<WatchEvent>, Status> {
        request.user = User::system("system:controllers");
        alive(&self.wire).await;
        let mut events = self.server.watch(request).await?;
        let (sender, late) = channel(16);
        let (env, wire) = (self.env.clone(), self.wire.clone());
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                lag(&env, 200).await;
                // A watch that breaks now and then is resumed.
                if wire.dead.load(Relaxed) || env.below(300) == 0 || sender.send(event).await.is_err() {
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
