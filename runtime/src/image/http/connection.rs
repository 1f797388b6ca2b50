//! One connection: a request, and the head of its answer within bounds; and connections that wait for the next request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use super::{BoxError, in_time};
use crate::image::lock::lock;

/// So many informational answers (1xx) may come before the answer; one or two are what there is.
const MAX_INFORMATIONAL: usize = 16;

/// A stream of bytes to a server, whatever it goes through.
pub(super) type Io = Box<dyn Stream>;

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection to a server, which ends with it.
pub(super) struct Connection {
    requests: SendRequest<Full<Bytes>>,
    _task: AbortOnDropHandle<()>,
}

/// Why a request has no answer.
pub(super) enum Unanswered {
    /// The connection was closed before, or does not become ready: nobody has seen it.
    NotSent(Box<Request<Full<Bytes>>>),
    Failed(BoxError),
}

impl Connection {
    /// Speaks HTTP/1.1 on a stream.
    pub(super) async fn open(io: Io) -> Result<Connection, BoxError> {
        let (requests, connection) = http1::handshake(TokioIo::new(io)).await?;
        let task = tokio::spawn(async move {
            // What breaks it fails the request that is under way.
            let _ = connection.with_upgrades().await;
        });
        Ok(Connection { requests, _task: AbortOnDropHandle::new(task) })
    }

    /// Sends a request. The answer's head is all here in time, and few informational answers come before it; otherwise the
    /// connection is of no more use, and ends as it is dropped.
    pub(super) async fn exchange(
        &mut self,
        mut request: Request<Full<Bytes>>,
        patience: Duration,
    ) -> Result<Response<Incoming>, Unanswered> {
        let failed = |why: BoxError| Unanswered::Failed(why);
        let ready = async { Ok(self.requests.ready().await.is_ok()) };
        if !in_time(patience, "the connection is busy", ready).await.unwrap_or(false) {
            return Err(Unanswered::NotSent(request.into()));
        }
        let too_many = count_informational(&mut request);
        let head = async {
            tokio::select! {
                answer = self.requests.try_send_request(request) => Ok(answer),
                () = too_many.notified() => {
                    Err(format!("more than {MAX_INFORMATIONAL} informational answers came before an answer").into())
                }
            }
        };
        let answer = in_time(patience, "no answer", head).await.map_err(failed)?;
        answer.map_err(|mut why| match why.take_message() {
            Some(unsent) => Unanswered::NotSent(unsent.into()),
            None => failed(why.into_error().into()),
        })
    }
}

/// What is notified of when there are more informational answers to a request than anybody needs.
fn count_informational(request: &mut Request<Full<Bytes>>) -> Arc<Notify> {
    let too_many = Arc::new(Notify::new());
    let (came, notify) = (AtomicUsize::new(0), too_many.clone());
    hyper::ext::on_informational(request, move |_| {
        if came.fetch_add(1, Ordering::Relaxed) >= MAX_INFORMATIONAL {
            notify.notify_one();
        }
    });
    too_many
}

/// A connection that has served is used again for this long: later, something between may have forgotten it without a word.
const IDLE: Duration = Duration::from_secs(60);

/// So many wait for a next request, wherever they lead: a server that sends each question elsewhere leaves no more behind.
const MOST_IDLE: usize = 8;

/// A connection that has served, to an origin, and since when it is idle.
struct Idle<C> {
    place: String,
    since: Instant,
    connection: C,
}

/// Connections that have served, the longest idle first.
pub(super) struct Pool<C = Connection>(Mutex<VecDeque<Idle<C>>>);

impl<C> Pool<C> {
    pub(super) fn put(&self, url: &Url, connection: C) {
        let mut idle = lock(&self.0);
        idle.push_back(Idle { place: place(url), since: Instant::now(), connection });
        if idle.len() > MOST_IDLE {
            idle.pop_front();
        }
    }

    /// One that has been idle until `now`, but not for too long.
    pub(super) fn take(&self, url: &Url, now: Instant) -> Option<C> {
        let mut idle = lock(&self.0);
        idle.retain(|idle| now.saturating_duration_since(idle.since) < IDLE);
        let place = place(url);
        let last = idle.iter().rposition(|idle| idle.place == place)?;
        idle.remove(last).map(|idle| idle.connection)
    }
}

impl<C> Default for Pool<C> {
    fn default() -> Pool<C> {
        Pool(Mutex::default())
    }
}

fn place(url: &Url) -> String {
    url.origin().ascii_serialization()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_lead_everywhere_are_few() {
        let pool = Pool::<usize>::default();
        let url = |port: usize| Url::parse(&format!("https://registry.example.com:{port}/v2/")).expect("a URL");
        (1000..1100).for_each(|port| pool.put(&url(port), port));
        let now = Instant::now();
        assert_eq!(pool.take(&url(1000), now), None, "the longest idle have gone");
        let left = (1000..1100).filter(|port| pool.take(&url(*port), now).is_some()).count();
        assert_eq!(left, MOST_IDLE);
    }

    #[test]
    fn what_has_been_idle_for_long_is_not_used_again() {
        let (pool, url) = (Pool::<&str>::default(), "https://a.example/v2/".parse::<Url>().expect("a URL"));
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        let other = "http://a.example/v2/".parse::<Url>().expect("a URL");
        pool.put(&url, "first");
        pool.put(&url, "second");
        assert_eq!(pool.take(&other, later(0)), None, "of another origin");
        assert_eq!(pool.take(&url, later(59)), Some("second"));
        assert_eq!(pool.take(&url, later(61)), None);
        assert_eq!(pool.take(&url, later(0)), None, "it is closed");
    }
}
