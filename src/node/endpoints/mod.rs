//! The node's endpoints, as of a kubelet: read through `nodes/NAME/proxy`, over a session that the agent dials.
//!
//! ```text
//!  the server's proxy --Task::Endpoints--> http.rs (pure: paths)  --> cadvisor.rs, resource.rs, kubelet.rs  text.rs   pure
//!                                            |                        summary.rs, configz.rs                 JSON     pure
//!                                            '-- gather.rs, disk.rs --Facts-->    '    counters: what is counted as it happens
//! ```
//!
//! The agent opens no listening socket: the server authenticates and authorizes the user (`nodes/proxy`), and the agent serves HTTP
//! over the stream that it dialled. Unknown values are left out; expensive ones are cached for a while.

pub mod cadvisor;
pub mod configz;
pub mod disk;
pub mod facts;
mod gather;
pub mod http;
pub mod kubelet;
pub mod logs;
pub mod pods;
pub mod resource;
pub mod summary;
pub mod text;

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::stream;
use hyper::{Method, Request, StatusCode, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::core::v1::NodeSystemInfo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{
    Config,
    counters::{
        Counters,
        table::{HTTP_DURATION, HTTP_REQUESTS},
    },
    machine::Machine,
    residents::Residents,
    usage::Used,
};
use gather::Gatherer;
use http::{Answer, Route, answer, health, not_allowed, not_found, streamed, text};
use podwright_api::{instruments, process, version};

/// How long the sync loop may be stalled; the same as upstream.
const SYNC: Duration = Duration::from_secs(120);
/// Responses built and sent at the same time; logs are streamed and count as sessions.
const AT_ONCE: usize = 16;
/// How long a request may wait for its turn, and how long it may take in all.
const TURN: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(60);
/// Time and size limits for the head of a request.
const HEAD: Duration = Duration::from_secs(10);
const MAX_HEAD: usize = 64 << 10;

const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

pub struct Endpoints {
    config: Config,
    machine: Arc<Machine>,
    residents: Arc<Residents>,
    counters: Arc<Counters>,
    gatherer: Gatherer,
    turns: Arc<Semaphore>,
}

impl Endpoints {
    pub fn new(
        config: Config,
        machine: Arc<Machine>,
        residents: Arc<Residents>,
        counters: Arc<Counters>,
        used: Arc<Used>,
        info: NodeSystemInfo,
    ) -> Arc<Endpoints> {
        let gatherer = Gatherer::new(machine.clone(), residents.clone(), used, config.name.clone(), info);
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        Arc::new(Endpoints { config, machine, residents, counters, gatherer, turns })
    }

    /// Serves one request that arrives on a stream.
    pub async fn serve(self: &Arc<Self>, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let exchange = Arc::new(Exchange::default());
        let service = service_fn(|request| {
            let (this, exchange) = (self.clone(), exchange.clone());
            async move { Ok::<_, Infallible>(this.answer(request, &exchange).await) }
        });
        let mut connection = http1::Builder::new();
        connection.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(MAX_HEAD);
        let late = async {
            tokio::time::sleep(LONGEST).await;
            if exchange.lasts.load(Ordering::Relaxed) {
                std::future::pending().await
            }
        };
        tokio::select! {
            ended = connection.serve_connection(TokioIo::new(stream), service) => if let Err(why) = ended {
                tracing::debug!("a request for the node's endpoints broke: {why}");
            },
            () = late => tracing::debug!("a request for the node's endpoints took longer than {LONGEST:?}"),
        }
    }

    async fn answer(&self, request: Request<Incoming>, exchange: &Exchange) -> Answer {
        let (begin, method, uri) = (Instant::now(), request.method().clone(), request.uri().clone());
        let (answer, counted) = match http::place(uri.path()) {
            None => (not_found(), "other"),
            Some((place, counted)) => {
                let query = pairs(uri.query().unwrap_or(""));
                (self.at(place, &method, &query, exchange).await, counted)
            }
        };
        let labels = [http::counted(&method), counted, "readwrite", "false"];
        self.counters.add(&HTTP_REQUESTS, &labels);
        self.counters.observe(&HTTP_DURATION, &labels, begin.elapsed());
        answer
    }

    async fn at(&self, place: Route<'_>, method: &Method, query: &[(String, String)], exchange: &Exchange) -> Answer {
        if place == Route::Disabled {
            return text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n");
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            return not_allowed();
        }
        if let Route::Logs(path) = place {
            exchange.lasts.store(true, Ordering::Relaxed);
            return logs::serve(&self.machine, &self.residents, path, query).await;
        }
        let Ok(Ok(turn)) = tokio::time::timeout(TURN, self.turns.clone().acquire_owned()).await else {
            return text(
                StatusCode::TOO_MANY_REQUESTS,
                "too many requests for this node's endpoints, try again later\n",
            );
        };
        // Held until the response has been sent.
        *exchange.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(turn);
        self.made(place, query).await
    }

    async fn made(&self, place: Route<'_>, query: &[(String, String)]) -> Answer {
        let facts = async || self.gatherer.facts().await;
        let on = |key: &str| query.iter().any(|(name, value)| name == key && value != "false" && value != "0");
        let exposition = |text: String| answer(StatusCode::OK, EXPOSITION, text);
        match place {
            Route::Metrics => {
                let process = instruments::plain(&process::metrics());
                exposition(kubelet::render(&*facts().await, &self.counters, &version::labels(), &process))
            }
            Route::Cadvisor => exposition(cadvisor::render(&*facts().await)),
            Route::Resource => exposition(resource::render(&*facts().await)),
            Route::Probes => {
                let process = instruments::plain(&process::metrics());
                let start = process.lines().filter(|line| line.contains("process_start_time_seconds"));
                let start: String = start.map(|line| format!("{line}\n")).collect();
                exposition(kubelet::probes(&self.counters, &start))
            }
            Route::Summary => {
                let shown = summary::render(&*facts().await, on("only_cpu_and_memory"));
                answer(StatusCode::OK, JSON, shown.to_string())
            }
            Route::Pods => {
                let pieces = pods::list(self.residents.all(), pods::item);
                streamed(JSON, stream::iter(pieces.map(Ok)))
            }
            Route::RunningPods => {
                let running = pods::running(&*facts().await);
                let pieces = pods::list(running, |shown| shown);
                answer(StatusCode::OK, JSON, pieces.flatten().collect::<Bytes>())
            }
            Route::Configz => answer(StatusCode::OK, JSON, configz::render(&self.config).to_string()),
            Route::Health(only) => health(&self.checks(), only, query.iter().any(|(name, _)| name == "verbose")),
            Route::Logs(_) | Route::Disabled => not_found(),
        }
    }

    fn checks(&self) -> [http::Checked; 3] {
        let loops = match self.counters.since_turn() {
            Some(away) if away > SYNC => Err(format!("sync Loop took longer than expected: {away:?}")),
            _ => Ok(()),
        };
        // The log goes to standard error, unbuffered: nothing in it can hang.
        [("ping", Ok(())), ("log", Ok(())), ("syncloop", loops)]
    }
}

/// One request and its response.
#[derive(Default)]
struct Exchange {
    turn: Mutex<Option<OwnedSemaphorePermit>>,
    /// Set for responses without a time limit.
    lasts: AtomicBool,
}

/// The parameters of a query, decoded.
fn pairs(query: &str) -> Vec<(String, String)> {
    // The host is a placeholder; what does not parse has no parameters.
    let url = url::Url::parse(&format!("http://node/?{query}"));
    url.map(|url| url.query_pairs().into_owned().collect()).unwrap_or_default()
}
