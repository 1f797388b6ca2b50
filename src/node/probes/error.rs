//! Why a probe has no answer, in upstream's words.

use std::{io, net::SocketAddr};

/// Why nobody was asked, or has not answered; in upstream's words where it has any.
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
    /// No TLS came about.
    #[error(transparent)]
    Tls(io::Error),
    /// Headers of the manifest that make no request.
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
    /// No HTTP came about.
    #[error(transparent)]
    Handshake(hyper::Error),
    /// The connection has failed before there was an answer.
    #[error("{}", reason(.0))]
    Exchange(#[source] hyper::Error),
    /// The answer is too long, or has broken off.
    #[error(transparent)]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("this server does not implement the grpc health protocol")]
    Unimplemented,
    /// The server gives this code of gRPC's.
    #[error("rpc error: code = {code} {message}")]
    Rpc { code: String, message: String },
    #[error("the answer does not parse")]
    Malformed,
}

/// Why a connection has failed: what is behind "connection error".
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
