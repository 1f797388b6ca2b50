//! gRPC probes: `grpc.health.v1.Health/Check`, whose two messages are small enough to be written by hand.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::{Finding, words};
use crate::node::executor::Executor;

/// Asks once.
pub async fn probe(executor: &dyn Executor, address: SocketAddr, service: &str) -> Finding {
    let tcp = match executor.connect(address).await {
        Ok(tcp) => tcp,
        Err(e) => {
            let why = words(&e);
            return Finding::Failure(format!("timeout: failed to connect service \"{address}\": connect: {why}"));
        }
    };
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await;
    let (mut sender, connection) = match handshake {
        Ok(both) => both,
        Err(e) => return Finding::Failure(format!("service unhealthy: {e}")),
    };
    let connection = tokio::spawn(connection);
    let result = check(&mut sender, address, service).await;
    connection.abort();
    match result {
        Ok(SERVING) => Finding::Success,
        Ok(status) => Finding::Failure(format!("service unhealthy (responded with \"{}\")", name(status))),
        Err(why) => Finding::Failure(format!("service unhealthy: {why}")),
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
) -> Result<u64, String> {
    let request = Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.35")
        .body(Full::new(Bytes::from(message(service))))
        .map_err(|e| e.to_string())?;
    let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
    let headers = response.headers().clone();
    let body = Limited::new(response.into_body(), 4096).collect().await.map_err(|e| e.to_string())?;
    let of =
        |headers: &hyper::HeaderMap, name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let trailer = |name: &str| body.trailers().and_then(|t| of(t, name)).or_else(|| of(&headers, name));
    match trailer("grpc-status").as_deref() {
        Some("0") | None => {}
        Some("12") => return Err("this server does not implement the grpc health protocol".to_owned()),
        Some(code) => return Err(format!("rpc error: code = {code} {}", trailer("grpc-message").unwrap_or_default())),
    }
    status(&body.to_bytes()).ok_or_else(|| "the answer does not parse".to_owned())
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

/// The `status` (field 1, an enum) of a framed `HealthCheckResponse`; 0 if it is left out.
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
    use super::*;

    #[test]
    fn frames_are_those_of_the_health_protocol() {
        assert_eq!(message(""), [0, 0, 0, 0, 0]);
        assert_eq!(message("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(status(&[0, 0, 0, 0, 2, 8, 1]), Some(SERVING));
        assert_eq!(status(&[0, 0, 0, 0, 0]), Some(0));
        assert_eq!(status(&[0, 0, 0, 0, 9, 8]), None);
    }
}
