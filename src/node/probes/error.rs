//! Why a probe got no response, in upstream's words.

use std::{io, net::SocketAddr};

/// Why no request was sent or no response received; in upstream's words where it has any.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("couldn't find port: {0}")]
    UnknownPort(String),
    #[error("invalid port number: {0}")]
    InvalidPort(i32),
    #[error("host {0:?} is not an address")]
    InvalidHost(String),
    #[error("the Pod has no address yet")]
    NoAddress,
    #[error("dial tcp {address}: connect: {why}", why = words(.source))]
    Dial { address: SocketAddr, source: io::Error },
    /// The TLS handshake failed.
    #[error(transparent)]
    Tls(io::Error),
    /// Headers in the manifest that are invalid.
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
    /// The HTTP handshake failed.
    #[error(transparent)]
    Handshake(hyper::Error),
    /// The connection failed before a response.
    #[error("{}", reason(.0))]
    Exchange(#[source] hyper::Error),
    /// The response is too long, or was cut off.
    #[error(transparent)]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("this server does not implement the grpc health protocol")]
    Unimplemented,
    /// The server returned this gRPC status code.
    #[error("rpc error: code = {code} {message}")]
    Rpc { code: String, message: String },
    #[error("the answer does not parse")]
    Malformed,
}

/// The cause behind "connection error".
pub(super) fn reason(error: &hyper::Error) -> String {
    match std::error::Error::source(error).and_then(|source| source.downcast_ref()) {
        Some(source) => words(source),
        None => error.to_string(),
    }
}

/// An error without Rust's "(os error 111)".
pub(super) fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}
