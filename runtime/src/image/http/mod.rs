//! The HTTP/1.1 client that registries are asked with: every part of an answer is bounded, and no redirect is followed unseen.
//!
//! By hand on hyper: an answer's head is what [`Connection::exchange`] waits for, informational answers (103 Early Hints) before it included.
//! Clients that exist wait for each byte, for as long as one comes, and count none of them.

mod connect;
mod connection;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderMap, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Method, Request, StatusCode, http};
use url::{Position, Url};

use super::guard::{Guard, shown};
use super::{ImageError, Result};
use connect::Connector;
use connection::{Connection, Pool, Unanswered};

const MAX_REDIRECTS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const AGENT: HeaderValue = HeaderValue::from_static(concat!("podwright/", env!("CARGO_PKG_VERSION")));

type BoxError = Box<dyn Error + Send + Sync>;

/// Asks one registry, and those that it leads to.
pub(super) struct Client {
    guard: Guard,
    connector: Connector,
    idle: Arc<Pool>,
    /// An answer's head is here by then, and after it each next part of its body.
    patience: Duration,
}

/// An answer whose head is here.
pub(super) struct Response {
    url: Url,
    head: http::response::Parts,
    body: Incoming,
    patience: Duration,
    /// Goes back when the answer is dropped: hyper reads what is left of a short body, and closes the connection of a longer one.
    connection: Option<Connection>,
    idle: Arc<Pool>,
}

impl Client {
    /// Reads the authorities of this machine, and what its environment says of proxies. Errors: there are no authorities.
    pub(super) fn new(guard: &Guard, patience: Duration) -> Result<Client> {
        let connector = Connector::new(guard.clone(), patience)?;
        Ok(Client { guard: guard.clone(), connector, idle: Arc::default(), patience })
    }

    /// What is at a URL, or where that leads: a few redirects on, each of them allowed by the guard. Who is on another host or port
    /// gets no credentials. Errors: the registry cannot be reached, does not answer in time, or leads where it must not.
    pub(super) async fn get(&self, url: &Url, mut headers: HeaderMap) -> Result<Response> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.ask(Method::GET, &url, headers.clone(), Bytes::new()).await?;
            let Some(next) = response.redirects_to() else { return Ok(response) };
            self.guard.check(&next).map_err(|why| failed(&url, &format!("redirect refused: {why}")))?;
            headers = carried(headers, &url, &next);
            url = next;
        }
        Err(failed(&url, "too many redirects"))
    }

    /// Sends a body to a URL and nowhere else: a redirect is the answer. Errors: as [`Client::get`].
    pub(super) async fn post(&self, url: &Url, headers: HeaderMap, body: Bytes) -> Result<Response> {
        self.ask(Method::POST, url, headers, body).await
    }

    async fn ask(&self, method: Method, url: &Url, headers: HeaderMap, body: Bytes) -> Result<Response> {
        let wrong = |why: BoxError| failed(url, &chain(&*why));
        let request = request(method, url, headers, body).map_err(wrong)?;
        let (connection, answer) = self.answer(url, request).await.map_err(wrong)?;
        let (head, body) = answer.into_parts();
        let (url, patience, idle) = (url.clone(), self.patience, self.idle.clone());
        Ok(Response { url, head, body, patience, connection: Some(connection), idle })
    }

    /// The answer to a request, by a connection that has served before where there is one.
    async fn answer(
        &self,
        url: &Url,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Connection, http::Response<Incoming>), BoxError> {
        while let Some(mut connection) = self.idle.take(url, std::time::Instant::now()) {
            match connection.exchange(request, self.patience).await {
                Ok(answer) => return Ok((connection, answer)),
                // Its other end has closed it meanwhile.
                Err(Unanswered::NotSent(unsent)) => request = *unsent,
                Err(Unanswered::Failed(why)) => return Err(why),
            }
        }
        let connecting = self.connector.connect(url);
        let mut connection = in_time(CONNECT_TIMEOUT, "not connected", connecting).await?;
        match connection.exchange(request, self.patience).await {
            Ok(answer) => Ok((connection, answer)),
            Err(Unanswered::NotSent(_)) => Err("the connection was closed at once".into()),
            Err(Unanswered::Failed(why)) => Err(why),
        }
    }
}

impl Response {
    pub(super) fn status(&self) -> StatusCode {
        self.head.status
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Who has answered: not who was asked, where that one has led elsewhere.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// The next part of the body; `None` at its end. Errors: it does not come in time, or the connection broke.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>> {
        loop {
            let frame = async { Ok(self.body.frame().await.transpose()?) };
            let frame = in_time(self.patience, "no more of the answer", frame).await;
            match frame.map_err(|why: BoxError| failed(&self.url, &chain(&*why)))? {
                None => return Ok(None),
                // What is no data is a trailer.
                Some(frame) => match frame.into_data() {
                    Ok(data) => return Ok(Some(data)),
                    Err(_) => continue,
                },
            }
        }
    }

    fn redirects_to(&self) -> Option<Url> {
        // 300 has no one place, 304 none, 305 and 306 are nobody's any more.
        if !matches!(self.head.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return None;
        }
        self.url.join(self.head.headers.get(LOCATION)?.to_str().ok()?).ok()
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.idle.put(&self.url, connection);
        }
    }
}

/// What goes along with a redirect: credentials to nobody but who was asked.
fn carried(mut headers: HeaderMap, from: &Url, to: &Url) -> HeaderMap {
    if from.origin() != to.origin() {
        headers.remove(AUTHORIZATION);
    }
    headers
}

/// A request in the form that origins take: the path alone, the host in a header. Errors: the path is longer than a URI may be.
fn request(method: Method, url: &Url, headers: HeaderMap, body: Bytes) -> Result<Request<Full<Bytes>>, BoxError> {
    let mut request = Request::builder().method(method).uri(&url[Position::BeforePath..Position::AfterQuery]);
    request = request.header(HOST, &url[Position::BeforeHost..Position::AfterPort]).header(USER_AGENT, AGENT);
    if !headers.contains_key(ACCEPT) {
        request = request.header(ACCEPT, "*/*");
    }
    let mut request = request.body(Full::new(body))?;
    request.headers_mut().extend(headers);
    Ok(request)
}

async fn in_time<T>(
    patience: Duration,
    late: &str,
    work: impl Future<Output = Result<T, BoxError>>,
) -> Result<T, BoxError> {
    let ended = tokio::time::timeout(patience, work).await;
    ended.unwrap_or_else(|_| Err(format!("{late} after {} s", patience.as_secs()).into()))
}

/// A request that got no answer, or half of one. The URL may be one that the registry has led to.
fn failed(url: &Url, why: &str) -> ImageError {
    ImageError::Network(format!("failed to do request: {}: {why}", shown(url)))
}

/// An error with its causes, which carry what matters ("connection refused").
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
