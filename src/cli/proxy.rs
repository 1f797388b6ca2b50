//! `proxy`: serves the API over plain HTTP on this machine, with the user's permissions.
//!
//! Upstream: `kubectl proxy`, with its filters. In addition, requests from a browser's page (`Origin`) must come from an accepted
//! host, as pages elsewhere could access this machine as well.

use std::{convert::Infallible, net::IpAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{HOST, ORIGIN},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use regex::Regex;
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional},
    net::{TcpListener, UnixListener, UnixStream},
    sync::Semaphore,
};
use tokio_util::task::AbortOnDropHandle;

use super::{Outcome, Session, error::Failure};

/// The most concurrent connections; further ones wait.
const CONNECTIONS: usize = 256;
/// The time limit for the head of a request.
const HEAD: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub struct Args {
    /// The port on which to run the proxy; 0 to pick a free port
    #[arg(long, short = 'p', default_value_t = 8001)]
    port: u16,
    /// The IP address on which to serve
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
    /// Unix socket on which to run the proxy, instead of a port
    #[arg(long, short = 'u', value_name = "PATH", conflicts_with_all = ["port", "address"])]
    unix_socket: Option<PathBuf>,
    /// Regular expressions for hosts that the proxy should accept
    #[arg(long, default_value = r"^localhost$,^127\.0\.0\.1$,^\[::1\]$", value_name = "REGEXPS")]
    accept_hosts: String,
    /// Regular expressions for paths that the proxy should accept
    #[arg(long, default_value = "^.*", value_name = "REGEXPS")]
    accept_paths: String,
    /// Regular expressions for paths that the proxy should reject; they take precedence over accepted ones
    #[arg(long, default_value = "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach", value_name = "REGEXPS")]
    reject_paths: String,
    /// Regular expressions for HTTP methods that the proxy should reject
    #[arg(long, default_value = "^$", value_name = "REGEXPS")]
    reject_methods: String,
    /// Disable request filtering in the proxy. This is dangerous, and can leave you vulnerable to attacks when used
    /// with an accessible port
    #[arg(long)]
    disable_filter: bool,
}

/// Which requests are accepted.
struct Filter {
    hosts: Vec<Regex>,
    paths: Vec<Regex>,
    rejected_paths: Vec<Regex>,
    rejected_methods: Vec<Regex>,
}

impl Filter {
    fn of(args: &Args) -> Result<Option<Filter>, Failure> {
        if args.disable_filter {
            return Ok(None);
        }
        let all = |text: &str| -> Result<Vec<Regex>, Failure> {
            let each = |one: &str| Regex::new(one).map_err(|e| Failure::usage(format!("{one:?}: {e}")));
            text.split(',').filter(|one| !one.is_empty()).map(each).collect()
        };
        Ok(Some(Filter {
            hosts: all(&args.accept_hosts)?,
            paths: all(&args.accept_paths)?,
            rejected_paths: all(&args.reject_paths)?,
            rejected_methods: all(&args.reject_methods)?,
        }))
    }

    fn accepts(&self, method: &str, path: &str, host: &str, origin: Option<&str>) -> bool {
        let any = |all: &[Regex], text: &str| all.iter().any(|one| one.is_match(text));
        let from = |origin: &str| origin.split_once("://").is_some_and(|(_, host)| any(&self.hosts, bare(host)));
        !any(&self.rejected_methods, method)
            && !any(&self.rejected_paths, path)
            && any(&self.paths, path)
            && any(&self.hosts, bare(host))
            && origin.is_none_or(from)
    }
}

/// A host without its port.
fn bare(host: &str) -> &str {
    match host.rfind(':') {
        Some(at) if !host[at..].contains(']') => &host[..at],
        _ => host,
    }
}

/// Shared by all connections.
struct Proxy {
    filter: Option<Filter>,
    server: PathBuf,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let proxy = Arc::new(Proxy { filter: Filter::of(&args)?, server: session.socket().to_owned() });
    match &args.unix_socket {
        Some(path) => {
            let listener = UnixListener::bind(path)
                .map_err(|e| Failure::usage(format!("listening on {}: {e}", path.display())))?;
            outln!("Starting to serve on {}", path.display());
            serve(proxy, || async { Ok(listener.accept().await?.0) }).await
        }
        None => {
            let address = std::net::SocketAddr::from((args.address, args.port));
            let listener =
                TcpListener::bind(address).await.map_err(|e| Failure::usage(format!("listening on {address}: {e}")))?;
            outln!("Starting to serve on {}", listener.local_addr()?);
            serve(proxy, || async { Ok(listener.accept().await?.0) }).await
        }
    }
}

/// Serves until the process ends.
async fn serve<S, F>(proxy: Arc<Proxy>, mut accept: impl FnMut() -> F) -> Outcome
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    F: Future<Output = std::io::Result<S>>,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(ExitCode::SUCCESS) };
        let stream = match accept().await {
            Ok(stream) => stream,
            // Not a problem of the listener: too many descriptors, or a client that disconnected.
            Err(error) => {
                errln!("error: accepting a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let proxy = proxy.clone();
        tokio::spawn(async move {
            let _place = place;
            let each = service_fn(|request| {
                let proxy = proxy.clone();
                async move { Ok::<_, Infallible>(proxy.answer(request).await) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD);
            // Disconnecting clients are ignored.
            server.serve_connection(TokioIo::new(stream), each).with_upgrades().await.ok();
        });
    }
}

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

fn words(code: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed());
    *answer.status_mut() = code;
    answer
}

impl Proxy {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let header = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
        let (method, path) = (request.method().as_str(), request.uri().path());
        let host = header(HOST).unwrap_or_default();
        let accepted = self.filter.as_ref().is_none_or(|filter| filter.accepts(method, path, host, header(ORIGIN)));
        // It is a proxy for a single server: requests for others are refused.
        if !accepted || request.uri().authority().is_some() {
            return words(StatusCode::FORBIDDEN, "Forbidden\n".to_owned());
        }
        match self.forward(request).await {
            Ok(answer) => answer,
            Err(why) => words(StatusCode::BAD_GATEWAY, format!("the server at {}: {why}\n", self.server.display())),
        }
    }

    /// Each request has a connection of its own, which may be upgraded.
    async fn forward(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TokioIo::new(UnixStream::connect(&self.server).await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        let connection = AbortOnDropHandle::new(tokio::spawn(connection.with_upgrades()));
        let upgraded = hyper::upgrade::on(&mut request);
        let mut answer = sender.send_request(request).await?;
        connection.detach();
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let server = hyper::upgrade::on(&mut answer);
            tokio::spawn(async move {
                let (Ok(client), Ok(server)) = tokio::join!(upgraded, server) else { return };
                copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await.ok();
            });
        }
        Ok(answer.map(BodyExt::boxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served_and_no_page_from_elsewhere() {
        let filter = Filter::of(&crate::flags([])).expect("regular expressions").expect("a filter");
        let pods = "/api/v1/namespaces/default/pods";
        assert!(filter.accepts("GET", pods, "localhost:8001", None));
        assert!(filter.accepts("POST", pods, "127.0.0.1:8001", Some("http://localhost:8001")));
        assert!(filter.accepts("GET", pods, "[::1]:8001", None));
        assert!(!filter.accepts("GET", pods, "example.com", None), "a name that leads here");
        assert!(!filter.accepts("POST", pods, "localhost:8001", Some("https://example.com")));
        assert!(!filter.accepts("POST", pods, "localhost:8001", Some("null")));
        assert!(!filter.accepts("POST", &format!("{pods}/x/exec"), "localhost", None));
        assert_eq!([bare("a:1"), bare("[::1]"), bare("[::1]:2"), bare("a")], ["a", "[::1]", "[::1]", "a"]);
    }
}
