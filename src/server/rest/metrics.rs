//! `/metrics`: the REST face's metrics under upstream's names (`k8s.io/apiserver/pkg/endpoints/metrics`), together with stored
//! objects, the process, and what its other parts declare.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use podwright_api::instruments::{self, Format, LATENCIES, Maker, exponential};
use podwright_api::{Kind, process, status::qualified, version};

/// The labels of request series. All values come from tables, so clients cannot create series.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Series {
    pub verb: &'static str,
    pub dry_run: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    pub resource: &'static str,
    pub subresource: &'static str,
    pub scope: &'static str,
    pub component: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    verb: &'static str,
    dry_run: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
    component: &'static str,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfKind {
    request_kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Watched {
    group: &'static str,
    version: &'static str,
    resource: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Stored {
    resource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfResource {
    group: &'static str,
    resource: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfStore {
    storage_cluster_id: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Terminated {
    verb: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
    component: &'static str,
    code: u16,
}

/// Non-resource paths, by their handlers.
const PATHS: [&str; 14] = [
    "/api",
    "/apis",
    PROFILES,
    "/flagz",
    "/healthz",
    "/livez",
    "/metrics",
    "/metrics/slis",
    "/openapi/v2",
    "/openapi/v3",
    "/readyz",
    "/statusz",
    "/version",
    "/.well-known",
];

/// These take as long as requested.
const PROFILES: &str = "/debug/pprof";

/// Verbs by their names in upstream's metrics.
const VERBS: [(&str, &str); 9] = [
    ("get", "GET"),
    ("list", "LIST"),
    ("watch", "WATCH"),
    ("create", "POST"),
    ("update", "PUT"),
    ("patch", "PATCH"),
    ("delete", "DELETE"),
    ("deletecollection", "DELETECOLLECTION"),
    ("connect", "CONNECT"),
];

/// Subresources that lead to a node or Pod, which the kinds table does not list.
const SESSIONS: [&str; 6] = ["attach", "exec", "log", "portforward", "proxy", "scale"];

impl Series {
    /// A resource request; `verb` is the pipeline's.
    pub fn of(kind: &Kind, verb: &str, subresource: Option<&str>, scope: &'static str) -> Series {
        let known = kind.subresources.iter().chain(&SESSIONS);
        Series {
            verb: VERBS.iter().find(|(own, _)| *own == verb).map_or("OTHER", |(_, theirs)| theirs),
            dry_run: "",
            group: kind.group,
            version: kind.version,
            resource: kind.plural,
            subresource: subresource.map_or("", |name| known.copied().find(|known| *known == name).unwrap_or("other")),
            scope,
            component: "apiserver",
        }
    }

    /// A non-resource request.
    pub fn path(method: &hyper::Method, path: &str) -> Series {
        let begins =
            |known: &&&str| path.strip_prefix(**known).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        // The longest match.
        let place = PATHS.iter().filter(begins).max_by_key(|known| known.len()).copied().unwrap_or("");
        let verb = match method.as_str() {
            "GET" => "GET",
            "HEAD" => "HEAD",
            "POST" => "POST",
            _ => "OTHER",
        };
        Series { verb, subresource: place, component: "apiserver", ..Series::default() }
    }
}

fn histogram() -> Histogram {
    Histogram::new(LATENCIES)
}

/// Without the first two buckets, as upstream's.
fn sli() -> Histogram {
    Histogram::new(LATENCIES.into_iter().skip(2))
}

fn event_sizes() -> Histogram {
    Histogram::new(exponential(1024.0, 2.0, 8))
}

fn sizes() -> Histogram {
    Histogram::new(exponential(1000.0, 10.0, 7))
}

pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    seconds: Family<Series, Histogram>,
    sli: Family<Series, Histogram>,
    sizes: Family<Series, Histogram>,
    running: Family<OfKind, Gauge>,
    long: Family<Series, Gauge>,
    events: Family<Watched, Counter>,
    event_sizes: Family<Watched, Histogram>,
    terminations: Family<Terminated, Counter>,
    stored: Family<Stored, Gauge>,
    objects: Family<OfResource, Gauge>,
    store_size: Family<OfStore, Gauge>,
    /// The length of the last exposition.
    size: AtomicUsize,
}

/// The status code of requests refused as too many.
const TOO_MANY: u16 = 429;

/// Counts the events of one watch.
#[derive(Clone)]
pub struct Told {
    events: Counter,
    sizes: Histogram,
}

impl Told {
    pub fn events(&self, sizes: impl ExactSizeIterator<Item = usize>) {
        self.events.inc_by(sizes.len() as u64);
        sizes.for_each(|size| self.sizes.observe(size as f64));
    }
}

/// Counts a request as running while this exists.
pub struct Running(Gauge);

impl Running {
    fn begin(gauge: Gauge) -> Running {
        gauge.inc();
        Running(gauge)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut registry = Registry::default();
        let mut make = Maker(&mut registry);
        let metrics = Metrics {
            requests: make.counters(
                "apiserver_request",
                "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, \
                 and HTTP response code",
            ),
            seconds: make.seconds(
                "apiserver_request_duration",
                "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, \
                 scope and component, watches and sessions left out",
                histogram,
            ),
            sli: make.seconds(
                "apiserver_request_sli_duration",
                "Response latency distribution in seconds as in apiserver_request_duration_seconds, time in webhooks included",
                sli,
            ),
            sizes: make.histograms(
                "apiserver_response_sizes",
                "Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component",
                sizes,
            ),
            running: make.gauges(
                "apiserver_current_inflight_requests",
                "Number of requests that run now, by what they are: mutating or readOnly",
            ),
            long: make.gauges(
                "apiserver_longrunning_requests",
                "Gauge of all active long-running apiserver requests (watches) broken out by verb, group, version, resource, scope \
                 and component",
            ),
            events: make.counters(
                "apiserver_watch_events",
                "Number of events sent in watch clients, broken out by group, version and resource",
            ),
            event_sizes: make.histograms(
                "apiserver_watch_events_sizes",
                "Watch event size distribution in bytes, broken out by group, version and resource",
                event_sizes,
            ),
            terminations: make.counters(
                "apiserver_request_terminations",
                "Number of requests which apiserver terminated in self-defense",
            ),
            stored: make.gauges(
                "apiserver_storage_objects",
                "Number of stored objects at the time of last check split by kind",
            ),
            objects: make.gauges(
                "apiserver_resource_objects",
                "Number of stored objects at the time of last check split by kind",
            ),
            store_size: make.gauges_of_bytes(
                "apiserver_storage_size",
                "Size of the storage database file physically allocated in bytes",
            ),
            size: AtomicUsize::new(0),
            registry: Registry::default(),
        };
        let labels: Vec<(String, String)> =
            version::labels().into_iter().map(|(label, value)| (label.to_owned(), value)).collect();
        // An Info metric would be suffixed with _info: this one is a gauge of 1.
        let built: Family<Vec<(String, String)>, Gauge> = Family::default();
        built.get_or_create(&labels).set(1);
        let help = "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build \
            date, compiler, and platform from which Kubernetes was built, and platform on which it is running";
        registry.register("kubernetes_build_info", help, built);
        Metrics { registry, ..metrics }
    }

    pub fn begin(&self, verb: &str) -> Running {
        let mutating = !matches!(verb, "get" | "list" | "watch" | "connect" | "");
        let request_kind = if mutating { "mutating" } else { "readOnly" };
        Running::begin(self.running.get_or_create_owned(&OfKind { request_kind }))
    }

    /// A watch started: returns its gauge and its event counter.
    pub fn watch(&self, series: &Series) -> (Running, Told) {
        let Series { group, version, resource, .. } = *series;
        let watched = Watched { group, version, resource };
        let events = self.events.get_or_create_owned(&watched);
        let sizes = self.event_sizes.get_or_create_owned(&watched);
        (Running::begin(self.long.get_or_create_owned(series)), Told { events, sizes })
    }

    /// A request was answered; with its response size if known by then.
    pub fn end(&self, series: &Series, code: u16, took: Duration, bytes: usize) {
        if !matches!(series.verb, "WATCH" | "CONNECT") && series.subresource != PROFILES {
            let took = took.as_secs_f64();
            self.seconds.get_or_create(series).observe(took);
            self.sli.get_or_create(series).observe(took);
            self.sizes.get_or_create(series).observe(bytes as f64);
        }
        let Series { verb, dry_run, group, version, resource, subresource, scope, component } = *series;
        let answered = Answered { verb, dry_run, group, version, resource, subresource, scope, component, code };
        self.requests.get_or_create(&answered).inc();
        if code == TOO_MANY {
            let ended = Terminated { verb, group, version, resource, subresource, scope, component, code };
            self.terminations.get_or_create(&ended).inc();
        }
    }

    /// The exposition; `stored` has the number of objects by kind, `size` the bytes on disk.
    pub fn expose(&self, stored: Vec<(&'static Kind, usize)>, size: Option<u64>, format: Format) -> String {
        self.stored.clear();
        self.objects.clear();
        for (kind, count) in stored {
            let (group, resource, count) = (kind.group, kind.plural, i64::try_from(count).unwrap_or(i64::MAX));
            self.stored.get_or_create(&Stored { resource: qualified(resource, group) }).set(count);
            self.objects.get_or_create(&OfResource { group, resource }).set(count);
        }
        if let Some(size) = size {
            // Named like etcd's only member upstream.
            let store = self.store_size.get_or_create_owned(&OfStore { storage_cluster_id: "etcd-0" });
            store.set(i64::try_from(size).unwrap_or(i64::MAX));
        }
        let out = instruments::expose(&self.registry, &process::metrics(), format);
        self.size.store(out.len(), Ordering::Relaxed);
        out
    }

    /// The approximate length of the exposition.
    pub fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }
}
