//! Spans of OpenTelemetry traces, for all effects of a request: the server's pipeline, the scheduler, the node.
//!
//! Without a tracer ([`install`]) calls only check that there is none. An object's trace context is kept in memory beside it
//! ([`remember`]), under its server-generated uid: objects do not contain it, and users cannot join anything to others' traces by
//! what they write or send.

use std::collections::{HashMap, VecDeque};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use futures::FutureExt as _;
use futures::future::Either;
use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::{
    FutureExt as _, Link as OtherSpan, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
    TraceState, Tracer,
};
use opentelemetry::{Context, KeyValue};

/// The header with a trace context, and the field in a node's response: W3C's Trace Context.
pub const TRACEPARENT: &str = "traceparent";
/// The longest string attribute, in bytes.
const LONGEST: usize = 1024;
/// How many recent objects are remembered.
const OBJECTS: usize = 4096;

static TRACER: OnceLock<BoxedTracer> = OnceLock::new();

/// Enables spans from now on. Only the first tracer of a process is used.
pub fn install(tracer: BoxedTracer) -> bool {
    TRACER.set(tracer).is_ok()
}

/// Whether spans are enabled.
pub fn are_made() -> bool {
    TRACER.get().is_some()
}

/// A span's identity for other processes.
#[derive(Clone, Debug, PartialEq)]
pub struct Link(SpanContext);

impl Link {
    /// Parses a `traceparent`; later versions may append fields.
    pub fn parse(text: &str) -> Option<Link> {
        let (text, more) = text.split_at_checked(55)?;
        let mut parts = text.split('-');
        let mut hex = |length: usize| {
            let part = parts.next().filter(|part| part.len() == length)?;
            part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some(part)
        };
        let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let fits = match version {
            "00" => more.is_empty(),
            "ff" => false,
            _ => more.is_empty() || more.starts_with('-'),
        };
        let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & TraceFlags::SAMPLED.to_u8());
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        let context = SpanContext::new(trace, span, flags, true, TraceState::NONE);
        (fits && context.is_valid()).then_some(Link(context))
    }

    /// Formats a `traceparent`.
    pub fn traceparent(&self) -> String {
        let Link(context) = self;
        let flags = context.trace_flags().to_u8();
        format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id())
    }
}

/// A recorded span, or none. It ends with [`Span::end`], or when its last clone is dropped.
#[derive(Clone, Default)]
pub struct Span(Option<Context>);

impl std::fmt::Debug for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "a span" } else { "no span" })
    }
}

/// The parent of a new span.
pub enum Origin<'a> {
    /// A child of another span, local or remote, which decides on sampling.
    Parent(&'a Link),
    /// The first span of a trace, with a link to the span that the client named.
    New(Option<&'a Link>),
}

impl Span {
    /// A span with this start time, for a request (or an effect of one).
    pub fn begin(
        name: impl Into<std::borrow::Cow<'static, str>>,
        origin: Origin<'_>,
        at: SystemTime,
        serves: bool,
    ) -> Span {
        let Some(tracer) = TRACER.get() else { return Span(None) };
        let kind = if serves { SpanKind::Server } else { SpanKind::Internal };
        let mut builder = tracer.span_builder(name).with_kind(kind).with_start_time(at);
        let parent = match origin {
            Origin::Parent(Link(context)) => Context::new().with_remote_span_context(context.clone()),
            Origin::New(None) => Context::new(),
            Origin::New(Some(Link(context))) => {
                builder = builder.with_links(vec![OtherSpan::with_context(context.clone())]);
                Context::new()
            }
        };
        Span::recorded(builder.start_with_context(tracer, &parent))
    }

    fn recorded(span: impl opentelemetry::trace::Span + Send + Sync + 'static) -> Span {
        Span(span.is_recording().then(|| Context::new().with_span(span)))
    }

    /// The span of this task.
    pub fn current() -> Span {
        match TRACER.get() {
            None => Span(None),
            Some(_) => Span(Context::map_current(|context| context.has_active_span().then(|| context.clone()))),
        }
    }

    /// A child span from now on.
    pub fn child(&self, name: &'static str) -> Span {
        if self.0.is_some() { self.child_since(name, SystemTime::now()) } else { Span(None) }
    }

    /// A child span with this start time.
    pub fn child_since(&self, name: &'static str, at: SystemTime) -> Span {
        let (Some(context), Some(tracer)) = (&self.0, TRACER.get()) else { return Span(None) };
        Span::recorded(tracer.span_builder(name).with_start_time(at).start_with_context(tracer, context))
    }

    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    pub fn rename(&self, name: impl FnOnce() -> String) {
        if let Some(context) = &self.0 {
            context.span().update_name(name());
        }
    }

    pub fn set(&self, key: &'static str, value: &str) {
        if let Some(context) = &self.0 {
            context.span().set_attribute(KeyValue::new(key, cut(value).to_owned()));
        }
    }

    pub fn set_number(&self, key: &'static str, value: i64) {
        if let Some(context) = &self.0 {
            context.span().set_attribute(KeyValue::new(key, value));
        }
    }

    /// Marks it as failed.
    pub fn fail(&self, why: &dyn std::fmt::Display) {
        if let Some(context) = &self.0 {
            context.span().set_status(Status::error(cut(&why.to_string()).to_owned()));
        }
    }

    pub fn end(&self) {
        if let Some(context) = &self.0 {
            context.span().end();
        }
    }

    pub fn end_at(&self, at: SystemTime) {
        if let Some(context) = &self.0 {
            context.span().end_with_timestamp(at);
        }
    }

    pub fn link(&self) -> Option<Link> {
        self.0.as_ref().map(|context| Link(context.span().span_context().clone()))
    }

    /// Runs work in this span: spans started within are its children.
    pub fn around<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        match &self.0 {
            None => Either::Left(work),
            Some(context) => Either::Right(work.with_context(context.clone())),
        }
    }

    /// Runs work in a child span, which fails if the work does.
    pub fn part<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(
        &self,
        name: &'static str,
        work: F,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, F> {
        let part = self.child(name);
        part.around(work).map(move |done| {
            if let Err(why) = &done {
                part.fail(why);
            }
            part.end();
            done
        })
    }
}

/// The beginning of a string attribute.
fn cut(text: &str) -> &str {
    let end = (0..=LONGEST.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// The trace contexts of objects' origins.
#[derive(Default)]
struct Causes {
    by_uid: HashMap<String, Link>,
    /// In order of insertion.
    order: VecDeque<String>,
}

static CAUSES: LazyLock<Mutex<Causes>> = LazyLock::new(Mutex::default);

/// Remembers an object's trace context, until too many others have followed.
pub fn remember(uid: &str, link: Link) {
    let mut causes = CAUSES.lock().unwrap_or_else(PoisonError::into_inner);
    if causes.by_uid.insert(uid.to_owned(), link).is_some() {
        return;
    }
    causes.order.push_back(uid.to_owned());
    if causes.order.len() > OBJECTS
        && let Some(oldest) = causes.order.pop_front()
    {
        causes.by_uid.remove(&oldest);
    }
}

/// An object's trace context, if it is traced.
pub fn cause_of(uid: &str) -> Option<Link> {
    TRACER.get()?;
    CAUSES.lock().unwrap_or_else(PoisonError::into_inner).by_uid.get(uid).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparents_are_read_as_w3c_writes_them() {
        assert_eq!(Link::parse(TEXT).unwrap().traceparent(), TEXT);
        // Only one flag is defined; later versions may define more.
        assert_eq!(Link::parse(&TEXT.replace("-01", "-ff")).unwrap().traceparent(), TEXT);
        assert_eq!(Link::parse(&format!("01{}-more", &TEXT[2..])).unwrap().traceparent(), TEXT);
        let bad = [
            "".to_owned(),
            format!("{TEXT}-"),
            format!("ff{}", &TEXT[2..]),
            format!("01{}more", &TEXT[2..]),
            TEXT.to_uppercase(),
            TEXT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            TEXT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            TEXT.replace('4', "+"),
            "é".repeat(28),
            "0".repeat(1 << 20),
        ];
        for text in bad {
            assert_eq!(Link::parse(&text), None, "{:.80}", text);
        }
    }

    #[test]
    fn without_a_tracer_there_are_no_spans_and_the_oldest_causes_are_forgotten() {
        let link = Link::parse(TEXT).unwrap();
        let span = Span::begin("x", Origin::Parent(&link), SystemTime::now(), true);
        assert!(!span.is_recorded() && !span.child("y").is_recorded() && span.link().is_none());
        for i in 0..OBJECTS + 10 {
            remember(&format!("uid-{i}"), link.clone());
            remember("uid-9", link.clone());
        }
        let causes = CAUSES.lock().unwrap();
        assert_eq!((causes.by_uid.len(), causes.order.len()), (OBJECTS, OBJECTS));
        assert!(!causes.by_uid.contains_key("uid-0") && causes.by_uid.contains_key("uid-4000"));
    }
}
