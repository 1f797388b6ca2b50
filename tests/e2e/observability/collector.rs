//! A collector of spans: OTLP over gRPC, as far as exporters use it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

pub struct Collector {
    pub address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Collector {
    pub fn start() -> Collector {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let (address, spans) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Span>>>::default());
        let kept = spans.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let kept = kept.clone();
                let service = hyper::service::service_fn(move |request| answer(kept.clone(), request));
                let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Collector { address, spans, _runtime: runtime }
    }

    /// The received spans of a trace, in arbitrary order: a span arrives when it has ended, and a child may end before its request.
    pub fn of(&self, trace: &str) -> Vec<Span> {
        let spans = self.spans.lock().unwrap();
        let mut found: Vec<Span> = spans.iter().filter(|span| hex(&span.trace_id) == trace).cloned().collect();
        found.sort_by(|one, other| one.span_id.cmp(&other.span_id));
        found
    }

    /// The traces with received spans.
    pub fn traces(&self) -> BTreeSet<String> {
        self.spans.lock().unwrap().iter().map(|span| hex(&span.trace_id)).collect()
    }
}

async fn answer(
    kept: Arc<Mutex<Vec<Span>>>,
    request: Request<Incoming>,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, hyper::Error> {
    assert_eq!(request.uri().path(), EXPORT);
    let body = request.into_body().collect().await?.to_bytes();
    // One message: uncompressed, its length, its content.
    assert_eq!((body[0], body.len()), (0, 5 + u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize));
    let told = ExportTraceServiceRequest::decode(&body[5..]).unwrap();
    let scopes = told.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    kept.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
    let frames = [Ok(Frame::data(Bytes::from_static(&[0; 5]))), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(futures::stream::iter(frames));
    Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The span at the end of a path: `["POST ...", "Create", "Schedule"]` is nested in a request. A name alone is ambiguous: each
/// request of a trace has a `Create`, including the scheduler's.
pub fn at<'a>(spans: &'a [Span], way: &[&str]) -> Option<&'a Span> {
    let (first, rest) = way.split_first()?;
    let mut found: Vec<&Span> = spans.iter().filter(|span| span.name == *first).collect();
    for name in rest {
        let is_below = |span: &&Span| span.name == *name && found.iter().any(|it| it.span_id == span.parent_span_id);
        found = spans.iter().filter(is_below).collect();
    }
    found.first().copied()
}

/// A text or numeric attribute.
pub fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|found| found.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        _ => String::new(),
    }
}
