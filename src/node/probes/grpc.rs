//! gRPC probes: `grpc.health.v1.Health/Check`; its two messages are small enough to encode by hand.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
};

use super::{
    attempt::{Attempt, Cost},
    error::{ProbeError, reason, words},
    verdict::Finding,
};
use crate::executor::Executor;
use podwright_api::bounded::Bounded;

/// Sends one request.
pub async fn probe(executor: &dyn Executor, address: SocketAddr, service: &str, attempt: &Attempt) -> Finding {
    let tcp = match executor.connect(address).await {
        Ok(tcp) => tcp,
        Err(e) => {
            let why = words(&e);
            return Finding::Failure(format!("timeout: failed to connect service \"{address}\": connect: {why}"));
        }
    };
    over(tcp, address, service, attempt).await
}

/// Sends the request over a stream; leaves no task behind.
async fn over<S>(stream: S, address: SocketAddr, service: &str, attempt: &Attempt) -> Finding
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let tasks = Arc::new(Mutex::new(JoinSet::new()));
    let driver = Driver { tasks: Arc::downgrade(&tasks), cost: attempt.cost.clone() };
    let stream = TokioIo::new(Bounded::within(stream, attempt.bound.clone()));
    let (mut sender, connection) = match hyper::client::conn::http2::handshake(driver.clone(), stream).await {
        Ok(both) => both,
        Err(e) => return Finding::Failure(format!("service unhealthy: {}", reason(&e))),
    };
    driver.run(connection);
    match check(&mut sender, address, service).await {
        Ok(SERVING) => Finding::Success,
        Ok(status) => Finding::Failure(format!("service unhealthy (responded with \"{}\")", name(status))),
        Err(why) => Finding::Failure(format!("service unhealthy: {why}")),
    }
}

/// Runs a connection's tasks. Dropping the driver aborts them all, however a probe ends: otherwise a connection would wait to send
/// to a server that does not read.
#[derive(Clone)]
struct Driver {
    tasks: Weak<Mutex<JoinSet<()>>>,
    cost: Cost,
}

impl Driver {
    fn run(&self, task: impl Future<Output: Send> + Send + 'static) {
        if let Some(tasks) = self.tasks.upgrade() {
            let task = self.cost.clone().of(task);
            tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(async move { drop(task.await) });
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Driver {
    fn execute(&self, task: F) {
        self.run(task);
    }
}

const SERVING: u64 = 1;

fn name(status: u64) -> &'static str {
    match status {
        0 => "UNKNOWN",
        SERVING => "SERVING",
        2 => "NOT_SERVING",
        _ => "SERVICE_UNKNOWN",
    }
}

async fn check(
    sender: &mut hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    address: SocketAddr,
    service: &str,
) -> Result<u64, ProbeError> {
    let request = Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.35")
        .body(Full::new(Bytes::from(message(service))))?;
    let response = sender.send_request(request).await.map_err(ProbeError::Exchange)?;
    let headers = response.headers().clone();
    let body = Limited::new(response.into_body(), 4096).collect().await.map_err(ProbeError::Body)?;
    let of =
        |headers: &hyper::HeaderMap, name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let trailer = |name: &str| body.trailers().and_then(|t| of(t, name)).or_else(|| of(&headers, name));
    match trailer("grpc-status").as_deref() {
        Some("0") | None => {}
        Some("12") => return Err(ProbeError::Unimplemented),
        Some(code) => {
            let message = trailer("grpc-message").unwrap_or_default();
            return Err(ProbeError::Rpc { code: code.to_owned(), message });
        }
    }
    status(&body.to_bytes()).ok_or(ProbeError::Malformed)
}

/// A gRPC frame with `HealthCheckRequest { service = 1 }`.
fn message(service: &str) -> Vec<u8> {
    let mut proto = Vec::new();
    if !service.is_empty() {
        proto.push(0x0a);
        varint(&mut proto, service.len() as u64);
        proto.extend_from_slice(service.as_bytes());
    }
    let mut frame = vec![0];
    frame.extend_from_slice(&(proto.len() as u32).to_be_bytes());
    frame.extend(proto);
    frame
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The `status` (field 1, an enum) of a framed `HealthCheckResponse`; 0 if missing.
pub fn status(frame: &[u8]) -> Option<u64> {
    let length = u32::from_be_bytes(frame.get(1..5)?.try_into().ok()?) as usize;
    let message = frame.get(5..5 + length)?;
    match message {
        [] => Some(0),
        [0x08, value, ..] => Some(u64::from(*value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

    use super::*;

    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    #[tokio::test]
    async fn a_probe_that_is_over_leaves_no_connection_to_a_server_that_does_not_read() {
        let (ours, mut server) = tokio::io::duplex(512);
        server.write_all(&SETTINGS).await.unwrap();
        let (address, service) = (([127, 0, 0, 1], 1).into(), "s".repeat(4096));
        let attempt = Attempt::default();
        let probe = over(ours, address, &service, &attempt);
        let (mut from, mut to) = split(server);
        let pings = tokio::spawn(async move { while to.write_all(&PING).await.is_ok() {} });
        tokio::time::timeout(Duration::from_millis(50), probe).await.expect_err("nobody answers");
        tokio::time::timeout(Duration::from_secs(10), pings).await.expect("the connection is closed").unwrap();
        from.read_to_end(&mut Vec::new()).await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_has_nothing_but_pings_fails_the_probe() {
        let (ours, mut server) = tokio::io::duplex(64 << 10);
        server.write_all(&SETTINGS).await.unwrap();
        let (mut from, mut to) = split(server);
        tokio::spawn(async move { while to.write_all(&PING).await.is_ok() {} });
        tokio::spawn(async move { from.read_to_end(&mut Vec::new()).await });
        let attempt = Attempt::default();
        let probe = over(ours, ([127, 0, 0, 1], 1).into(), "", &attempt);
        let finding = tokio::time::timeout(Duration::from_secs(10), probe).await.expect("it ends by itself");
        assert!(matches!(&finding, Finding::Failure(why) if why.contains("exceeded 262144 bytes")), "{finding:?}");
    }

    #[test]
    fn frames_are_those_of_the_health_protocol() {
        assert_eq!(message(""), [0, 0, 0, 0, 0]);
        assert_eq!(message("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(status(&[0, 0, 0, 0, 2, 8, 1]), Some(SERVING));
        assert_eq!(status(&[0, 0, 0, 0, 0]), Some(0));
        assert_eq!(status(&[0, 0, 0, 0, 9, 8]), None);
    }
}
