//! The way to a server: past the guard, through the operator's proxy where there is one, and by TLS.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HOST, PROXY_AUTHORIZATION, USER_AGENT};
use hyper::{Request, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use tower::ServiceExt;
use url::{Position, Url};

use super::connection::{Connection, Io, Unanswered};
use super::{AGENT, BoxError, CONNECT_TIMEOUT, chain};
use crate::image::guard::Guard;
use crate::image::{ImageError, Result};

/// Makes connections.
pub(super) struct Connector {
    guard: Guard,
    tls: TlsConnector,
    /// Loopback is never reached through a proxy.
    proxies: Option<Matcher>,
    /// A proxy has answered by then.
    patience: Duration,
}

impl Connector {
    /// Reads the authorities of this machine, and what its environment says of proxies. Errors: there are no authorities.
    pub(super) fn new(guard: Guard, patience: Duration) -> Result<Connector> {
        Connector::through(guard, patience, Matcher::from_env())
    }

    /// The same, with these proxies. Errors: as [`Connector::new`].
    pub(super) fn through(guard: Guard, patience: Duration, proxies: Matcher) -> Result<Connector> {
        let tls = podwright_tls::trusting_system().map_err(|why| ImageError::Network(why.to_string()))?;
        let proxies = (!guard.is_loopback()).then_some(proxies);
        Ok(Connector { guard, tls: Arc::new(tls).into(), proxies, patience })
    }

    /// Connects to where a URL is. Errors: nobody is there, or the guard refuses its address, or its certificate is not for it.
    pub(super) async fn connect(&self, url: &Url) -> Result<Connection, BoxError> {
        let uri: Uri = url[..Position::BeforePath].parse()?;
        let io = match self.proxies.as_ref().and_then(|proxies| proxies.intercept(&uri)) {
            Some(proxy) => self.tunnel(&proxy, &uri).await?,
            None => self.reach(&uri).await?,
        };
        Connection::open(self.secure(io, &uri).await?).await
    }

    /// A stream through a proxy to a server.
    async fn tunnel(&self, proxy: &Intercept, to: &Uri) -> Result<Io, BoxError> {
        let via = proxy.uri();
        if !matches!(via.scheme_str(), Some("http" | "https")) {
            return Err("the proxy that the environment names speaks no HTTP".into());
        }
        let io = self.secure(self.reach(via).await?, via).await?;
        let authority = format!("{}:{}", to.host().unwrap_or_default(), to.port_u16().unwrap_or(443));
        let mut request = Request::connect(&authority).header(HOST, &authority).header(USER_AGENT, AGENT);
        if let Some(credentials) = proxy.basic_auth() {
            request = request.header(PROXY_AUTHORIZATION, credentials);
        }
        let mut connection = Connection::open(io).await?;
        let answer = match connection.exchange(request.body(Full::<Bytes>::default())?, self.patience).await {
            Ok(answer) => answer,
            Err(Unanswered::NotSent(_)) => return Err("the proxy closed the connection".into()),
            Err(Unanswered::Failed(why)) => return Err(format!("proxy: {}", chain(&*why)).into()),
        };
        if !answer.status().is_success() {
            return Err(format!("the proxy answers {}", answer.status()).into());
        }
        Ok(Box::new(TokioIo::new(hyper::upgrade::on(answer).await?)))
    }

    /// A stream to one of a host's addresses, each of which the guard has seen.
    async fn reach(&self, uri: &Uri) -> Result<Io, BoxError> {
        let guard = self.guard.clone();
        let resolver = tower::service_fn(move |name: Name| {
            let guard = guard.clone();
            async move { guard.addresses(name.as_str()).await.map(Vec::into_iter) }
        });
        let mut tcp = HttpConnector::new_with_resolver(resolver);
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(Duration::from_secs(15)));
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Ok(Box::new(tcp.oneshot(uri.clone()).await?.into_inner()))
    }

    /// Speaks TLS on a stream, where the scheme says so.
    async fn secure(&self, io: Io, uri: &Uri) -> Result<Io, BoxError> {
        if uri.scheme_str() != Some("https") {
            return Ok(io);
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned())?;
        Ok(Box::new(self.tls.connect(name, io).await?))
    }
}
