//! Jobs in a CronJob's status that no informer shows yet.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use podwright::{
    api::{
        Env, Object, Options, Request, Response, Status, User, Verb, WatchEvent,
        request::{Body, PatchType},
        rpc::Session,
    },
    client::{Client, Informers, Stream, Transport, local},
    controllers,
    server::{Config, Server},
    store::Memory,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver};
use tokio_util::sync::CancellationToken;

/// A client to the server on which no Job is ever seen.
struct Blind {
    client: Client,
    /// Silent watches stay open as long as a sender exists.
    silent: mpsc::Sender<mpsc::Sender<WatchEvent>>,
}

#[async_trait]
impl Transport for Blind {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        let is_blind = request.verb == Verb::List && request.resource == "jobs.batch";
        let mut response = self.client.call(request).await?;
        if let Body::List(list) = &mut response.body
            && is_blind
        {
            list.items.clear();
        }
        Ok(response)
    }
    async fn watch(&self, request: Request) -> Result<Receiver<WatchEvent>, Status> {
        if request.resource != "jobs.batch" {
            return self.client.watch(request).await;
        }
        let (sender, watch) = mpsc::channel(1);
        self.silent.send(sender).await.map_err(Status::internal)?;
        Ok(watch)
    }
    async fn dial(&self, id: &str) -> Result<Stream, Status> {
        self.client.dial(id).await
    }
    async fn sessions(&self, node: &str) -> Result<Receiver<Session>, Status> {
        self.client.sessions(node).await
    }
}

fn of(verb: Verb, resource: &str, name: Option<&str>, body: Option<Value>) -> Request {
    let (resource, namespace) = (resource.to_owned(), Some("default".to_owned()));
    Request { verb, resource, namespace, name: name.map(str::to_owned), body, ..Request::default() }
}

async fn ask(server: &Server, request: Request) -> Object {
    match server.handle(Request { user: User::system("test"), ..request }).await.unwrap().body {
        Body::Object { bytes, .. } => Object::from_slice(&bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Creates the Job of a name, controlled by `owner`.
async fn make(server: &Server, name: &str, owner: Option<&Object>) -> Object {
    let owner = owner.map(|owner| {
        json!({ "apiVersion": "batch/v1", "kind": "CronJob", "name": owner.name(), "uid": owner.uid(), "controller": true })
    });
    let template = json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i:1" }] } });
    let body = json!({
        "apiVersion": "batch/v1", "kind": "Job", "spec": { "template": template },
        "metadata": { "name": name, "ownerReferences": owner.into_iter().collect::<Value>() },
    });
    ask(server, of(Verb::Create, "jobs.batch", None, Some(body))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_is_asked_before_an_active_job_is_given_up() {
    let server = Server::open(Arc::new(Memory::new()), Env::system(), Config::default()).await.unwrap();
    let client = local::client(server.clone(), "test");
    let (silent, _open) = mpsc::channel(16);
    let stop = CancellationToken::new();
    let informers = Informers::start(Client::new(Arc::new(Blind { client: client.clone(), silent }), "test"));
    let config = controllers::Config::default();
    tokio::spawn(controllers::run(client, Env::system(), informers, config, stop.clone()));
    let _ends = stop.drop_guard();

    let template = json!({ "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i:1" }] } } } });
    let cron = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "report" },
        "spec": { "schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": template },
    });
    let cron = ask(&server, of(Verb::Create, "cronjobs.batch", None, Some(cron))).await;
    let reference =
        |name: &str, uid: &str| json!({ "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid });
    let live = make(&server, "live", Some(&cron)).await;
    make(&server, "namesake", Some(&cron)).await;
    let taken = make(&server, "taken", None).await;
    let active = json!([
        reference("live", live.uid()),
        reference("lost", "4cb1d9f2-0000-4000-8000-000000000000"),
        reference("namesake", "4cb1d9f2-0000-4000-8000-000000000001"),
        reference("taken", taken.uid()),
    ]);
    let mut told = of(Verb::Patch, "cronjobs.batch", Some("report"), Some(json!({ "status": { "active": active } })));
    told.subresource = Some("status".into());
    told.options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
    ask(&server, told).await;

    let mut last = Value::Null;
    for _ in 0..1500 {
        let cron = ask(&server, of(Verb::Get, "cronjobs.batch", Some("report"), None)).await;
        last = cron.0["status"]["active"].clone();
        if last == json!([reference("live", live.uid())]) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{last}");
}
