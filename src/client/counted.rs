//! A transport that reports the result of each request, like upstream's client for its metrics (`k8s.io/client-go/tools/metrics`).

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use super::{Stream, Transport};
use podwright_api::{
    Request, Response, Status, Verb, WatchEvent,
    request::{Body, List},
    rpc,
};

/// The code of an unanswered request.
const UNANSWERED: &str = "<error>";

/// A completed request.
pub struct Told<'a> {
    /// The status code of its response; `<error>` without one.
    pub code: &'a str,
    /// The server.
    pub host: &'a str,
    /// The corresponding REST method.
    pub method: &'static str,
    /// Not for watches, whose response has no end.
    pub measured: Option<Measured>,
}

/// The duration and sizes of a request.
pub struct Measured {
    pub took: Duration,
    /// The size of its body in JSON. `None`: it is sent to a server in the same process without encoding. Encoding it only for its
    /// size would cost more than the information is worth, so upstream's metric has no sizes for that host.
    pub sent: Option<usize>,
    /// The size of the response's objects in JSON. `None`: there was no response, no objects, or no encoding.
    pub received: Option<usize>,
}

/// Called for each request.
pub type Tell = Arc<dyn Fn(&Told<'_>) + Send + Sync>;

pub struct Counted {
    pub inner: Arc<dyn Transport>,
    pub tell: Tell,
}

/// A request in progress. It is reported when dropped, so that cancelled ones count, too.
struct Asked<'a> {
    by: &'a Counted,
    method: &'static str,
    began: Instant,
    /// Not for a watch.
    is_measured: bool,
    sent: Option<usize>,
    code: Option<u16>,
    received: Option<usize>,
}

impl Counted {
    fn ask(&self, method: &'static str, body: Option<&Value>) -> Asked<'_> {
        let sent = self.inner.encodes().then(|| body.map_or(0, size));
        Asked { by: self, method, began: Instant::now(), is_measured: true, sent, code: None, received: None }
    }
}

impl Asked<'_> {
    /// `read` extracts the code and size of a response.
    fn answered<T>(
        mut self,
        result: Result<T, Status>,
        read: impl Fn(&T) -> (u16, Option<usize>),
    ) -> Result<T, Status> {
        match &result {
            Ok(answer) => {
                let (code, received) = read(answer);
                (self.code, self.received) = (Some(code), received);
            }
            Err(status) if status.unanswered => {}
            Err(status) => (self.code, self.received) = (Some(status.http_code()), Some(size(status))),
        }
        result
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        // Whatever a server returns, the number of HTTP codes is limited.
        let code = self.code.filter(|code| (100..600).contains(code)).map(|code| code.to_string());
        let (sent, received) = (self.sent, self.received);
        let measured = self.is_measured.then(|| Measured { took: self.began.elapsed(), sent, received });
        let (code, host) = (code.as_deref().unwrap_or(UNANSWERED), self.by.inner.host());
        (self.by.tell)(&Told { code, host: &host, method: self.method, measured });
    }
}

/// The REST method.
fn method(verb: Verb) -> &'static str {
    match verb {
        Verb::Get | Verb::List | Verb::Watch => "GET",
        Verb::Create | Verb::Connect => "POST",
        Verb::Update => "PUT",
        Verb::Patch => "PATCH",
        Verb::Delete | Verb::DeleteCollection => "DELETE",
    }
}

/// The size of a value in JSON, without storing it.
fn size(of: &impl Serialize) -> usize {
    struct Length(usize);
    impl io::Write for Length {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut length = Length(0);
    // A value that does not serialize is not sent either; the size so far counts.
    let _ = serde_json::to_writer(&mut length, of);
    length.0
}

fn read(answer: &Response) -> (u16, Option<usize>) {
    match &answer.body {
        Body::Object { bytes, created } => (if *created { 201 } else { 200 }, Some(bytes.len())),
        Body::List(List { items, .. }) => (200, Some(items.iter().map(bytes::Bytes::len).sum())),
        Body::Status(status) => (status.http_code(), Some(size(status))),
        Body::Stream { .. } => (200, None),
    }
}

#[async_trait]
impl Transport for Counted {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        let asked = self.ask(method(request.verb), request.body.as_ref());
        let answer = self.inner.call(request).await;
        asked.answered(answer, read)
    }

    async fn watch(&self, request: Request) -> Result<Receiver<WatchEvent>, Status> {
        let mut asked = self.ask("GET", None);
        asked.is_measured = false;
        let events = self.inner.watch(request).await;
        asked.answered(events, |_| (200, None))
    }

    async fn method(&self, name: &'static str, params: Value) -> Result<Value, Status> {
        self.inner.method(name, params).await
    }

    async fn raw(&self, path: &str) -> Result<bytes::Bytes, Status> {
        let asked = self.ask("GET", None);
        let answer = self.inner.raw(path).await;
        asked.answered(answer, |bytes| (200, Some(bytes.len())))
    }

    async fn discovery(&self) -> Result<Value, Status> {
        let asked = self.ask("GET", None);
        let answer = self.inner.discovery().await;
        asked.answered(answer, |document| (200, self.inner.encodes().then(|| size(document))))
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
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use crate::Client;

    /// Responds by the requested name.
    struct Server {
        encodes: bool,
    }

    #[async_trait]
    impl Transport for Server {
        async fn call(&self, request: Request) -> Result<Response, Status> {
            let object = |created| Body::Object { bytes: "{\"kind\":1}".into(), created };
            let body = match request.name.as_deref() {
                Some("new") => object(true),
                Some("old") => object(false),
                Some("done") => Body::Status(Box::new(Status::success())),
                Some("gone") => return Err(Status::not_found("pods", "", "gone")),
                Some("odd") => return Err(Status::failure(65000, "Odd", "")),
                Some("busy") => return Err(Status::unavailable("try later")),
                Some("away") => return Err(Status::unavailable("refused").unanswered()),
                Some(_) => std::future::pending().await,
                None => Body::List(List { items: vec!["{}".into(), "{}".into()], ..List::default() }),
            };
            Ok(body.into())
        }
        async fn watch(&self, _: Request) -> Result<Receiver<WatchEvent>, Status> {
            Ok(tokio::sync::mpsc::channel(1).1)
        }
        async fn dial(&self, _: &str) -> Result<Stream, Status> {
            Err(Status::bad_request(""))
        }
        async fn sessions(&self, _: &str) -> Result<Receiver<rpc::Session>, Status> {
            Err(Status::bad_request(""))
        }
        async fn discovery(&self) -> Result<Value, Status> {
            Ok(json!({}))
        }
        fn encodes(&self) -> bool {
            self.encodes
        }
        fn host(&self) -> String {
            "10.0.0.1:6443".to_owned()
        }
    }

    fn request(verb: Verb, name: &str) -> Request {
        let name = (!name.is_empty()).then(|| name.to_owned());
        Request { verb, resource: "pods".to_owned(), name, ..Request::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn each_request_is_told_of_once_as_upstream_tells_of_it() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let kept = told.clone();
        let client = Client::new(Arc::new(Server { encodes: true }), "").counted(move |told| {
            assert_eq!(told.host, "10.0.0.1:6443");
            let sizes = told.measured.as_ref().map(|measured| (measured.sent.unwrap(), measured.received));
            kept.lock().unwrap().push((told.method, told.code.to_owned(), sizes));
        });
        let last = || told.lock().unwrap().pop().unwrap();
        let of = |method, code: &str, sizes| (method, code.to_owned(), sizes);

        client.call(Request { body: Some(json!({"a": 1})), ..request(Verb::Create, "new") }).await.unwrap();
        assert_eq!(last(), of("POST", "201", Some((7, Some(10)))));
        client.call(request(Verb::Update, "old")).await.unwrap();
        assert_eq!(last(), of("PUT", "200", Some((0, Some(10)))));
        client.call(request(Verb::List, "")).await.unwrap();
        assert_eq!(last(), of("GET", "200", Some((0, Some(4)))));
        client.watch(request(Verb::Watch, "")).await.unwrap();
        assert_eq!(last(), of("GET", "200", None));
        client.call(request(Verb::Delete, "done")).await.unwrap();
        assert_eq!((last().1.as_str(), told.lock().unwrap().len()), ("200", 0));
        let status = client.call(request(Verb::Get, "gone")).await.unwrap_err();
        let length = serde_json::to_vec(&status).unwrap().len();
        assert_eq!(last(), of("GET", "404", Some((0, Some(length)))));

        // A server's response is distinguished from having none.
        assert_eq!(client.call(request(Verb::Patch, "busy")).await.unwrap_err().code, 503);
        assert_eq!(last().1, "503");
        assert_eq!(client.call(request(Verb::Patch, "away")).await.unwrap_err().code, 503);
        assert_eq!(last(), of("PATCH", UNANSWERED, Some((0, None))));
        client.call(request(Verb::Get, "odd")).await.unwrap_err();
        assert_eq!(last().1, UNANSWERED);
        // A cancelled one.
        let late = client.within(Duration::from_secs(1)).call(request(Verb::Get, "slow")).await.unwrap_err();
        assert_eq!((late.code, late.unanswered), (504, true));
        assert_eq!(last(), of("GET", UNANSWERED, Some((0, None))));
        assert!(told.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn what_is_not_written_out_is_not_counted_by_its_size() {
        let told = Arc::new(Mutex::new(Vec::new()));
        for encodes in [true, false] {
            let kept = told.clone();
            // With any transports in between.
            let client = Client::new(Arc::new(Server { encodes }), "").within(Duration::from_secs(60)).counted(|_| {});
            let client = client.counted(move |told| {
                kept.lock().unwrap().push(told.measured.as_ref().map(|measured| (measured.sent, measured.received)));
            });
            client.call(Request { body: Some(json!({"a": 1})), ..request(Verb::Create, "new") }).await.unwrap();
            client.transport.discovery().await.unwrap();
            client.watch(request(Verb::Watch, "")).await.unwrap();
        }
        let written = [Some((Some(7), Some(10))), Some((Some(0), Some(2))), None];
        let passed_on = [Some((None, Some(10))), Some((None, None)), None];
        assert_eq!(*told.lock().unwrap(), [written, passed_on].concat());
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_has_answered_nothing() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let (kept, folder) = (told.clone(), tempfile::tempdir().unwrap());
        let client = rpc_client(folder.path().join("api.sock"));
        let client = client.counted(move |told| kept.lock().unwrap().push((told.method, told.code.to_owned())));
        assert_eq!(client.call(request(Verb::Get, "x")).await.unwrap_err().code, 503);
        client.watch(request(Verb::Watch, "")).await.unwrap_err();
        client.raw("/healthz").await.unwrap_err();
        assert_eq!(*told.lock().unwrap(), vec![("GET", UNANSWERED.to_owned()); 3]);
    }

    fn rpc_client(path: std::path::PathBuf) -> Client {
        crate::rpc::client(crate::rpc::Address(path), "")
    }
}
