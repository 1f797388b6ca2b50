//! `--tracing-config-file`: upstream's TracingConfiguration, and the export of spans to a collector, OTLP over gRPC.
//!
//! Nothing waits for the collector: spans go through a bounded queue, which drops what does not fit, and a separate thread sends
//! them with a time limit.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use hyper_util::rt::TokioIo;
use opentelemetry::{KeyValue, global::BoxedTracer, trace::TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanLimits},
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::api::{spans, yaml};

/// The default collector: OTLP's own port.
const USUAL: &str = "localhost:4317";
const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];
const MILLION: i64 = 1_000_000;
/// The most queued spans, and spans per batch; a full queue has some megabytes.
const QUEUE: usize = 2048;
const TOGETHER: usize = 512;
const EVERY: Duration = Duration::from_secs(1);
/// The time limit for each batch.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the process waits at its end for unsent spans.
const AT_THE_END: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default, clap::Args)]
pub struct TracingArgs {
    /// Upstream's TracingConfiguration (YAML): the collector that spans are sent to, and how many of them
    #[arg(long, value_name = "FILE")]
    pub tracing_config_file: Option<PathBuf>,
}

/// Sends the remaining spans when dropped.
pub struct Tracing(SdkTracerProvider);

impl Drop for Tracing {
    fn drop(&mut self) {
        if let Err(why) = self.0.shutdown_with_timeout(AT_THE_END) {
            tracing::warn!(%why, "dropping spans that could not be sent");
        }
    }
}

impl TracingArgs {
    /// Enables and exports spans, if configured. `service`: upstream's name of the component.
    pub fn start(&self, service: &'static str) -> anyhow::Result<Option<Tracing>> {
        let Some(file) = &self.tracing_config_file else { return Ok(None) };
        let start = || provider(&read(file)?, service);
        let provider = start().with_context(|| format!("--tracing-config-file {}", file.display()))?;
        spans::install(BoxedTracer::new(Box::new(provider.tracer("podwright"))));
        Ok(Some(Tracing(provider)))
    }
}

/// The parsed configuration.
#[derive(Debug, PartialEq)]
struct Config {
    collector: Collector,
    per_million: i64,
}

#[derive(Debug, PartialEq)]
enum Collector {
    /// Host and port.
    Address(String),
    Socket(PathBuf),
}

fn read(file: &Path) -> anyhow::Result<Config> {
    parse(&std::fs::read_to_string(file)?)
}

/// Upstream's rules, with its error messages.
fn parse(text: &str) -> anyhow::Result<Config> {
    let documents = yaml::documents(text).map_err(anyhow::Error::msg)?;
    let config = documents.first().context("the file is empty")?;
    let version = config["apiVersion"].as_str().unwrap_or("");
    if config["kind"] != "TracingConfiguration" || !VERSIONS.contains(&version) {
        bail!("no kind {} is registered for version {version:?}", config["kind"]);
    }
    let known = ["apiVersion", "kind", "endpoint", "samplingRatePerMillion"];
    if let Some(unknown) =
        config.as_object().and_then(|fields| fields.keys().find(|key| !known.contains(&key.as_str())))
    {
        bail!("strict decoding error: unknown field {unknown:?}");
    }
    let rate = &config["samplingRatePerMillion"];
    let per_million = match rate.as_i64() {
        None if rate.is_null() => 0,
        None => bail!("samplingRatePerMillion: {rate} is not a number"),
        Some(rate) if rate < 0 => {
            bail!("samplingRatePerMillion: Invalid value: {rate}: sampling rate must be positive")
        }
        Some(rate) if rate > MILLION => bail!(
            "samplingRatePerMillion: Invalid value: {rate}: sampling rate per million must be less than or equal to one million"
        ),
        Some(rate) => rate,
    };
    let endpoint = config["endpoint"].as_str().unwrap_or(USUAL);
    Ok(Config { collector: collector(endpoint)?, per_million })
}

/// gRPC's target names, as far as upstream accepts them.
fn collector(endpoint: &str) -> anyhow::Result<Collector> {
    let refused = |why: &str| anyhow::anyhow!("endpoint: Invalid value: {endpoint:?}: {why}");
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("dns", endpoint));
    match scheme {
        "dns" => {
            // dns:///host:port; the authority would be a name server, for which the host's is used here.
            let address = rest.rsplit('/').next().unwrap_or("");
            let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok() && !address.contains(['@', '?', '#'])
            });
            match has_port {
                true => Ok(Collector::Address(address.to_owned())),
                false => Err(refused("expected HOST:PORT")),
            }
        }
        "unix" => Ok(Collector::Socket(rest.into())),
        "unix-abstract" => Err(refused("abstract sockets are not supported")),
        other => Err(refused(&format!(
            "unsupported scheme: {other}.  Options are none, dns, unix, or unix-abstract.  See \
             https://github.com/grpc/grpc/blob/master/doc/naming.md"
        ))),
    }
}

/// A channel that connects on demand, and reconnects.
fn channel(collector: &Collector) -> anyhow::Result<Channel> {
    Ok(match collector {
        Collector::Address(address) => Endpoint::from_shared(format!("http://{address}"))
            .context("endpoint")?
            .connect_timeout(TIMEOUT)
            .connect_lazy(),
        Collector::Socket(path) => {
            let path = path.clone();
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            }))
        }
    })
}

fn provider(config: &Config, service: &'static str) -> anyhow::Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_channel(channel(&config.collector)?)
        .with_timeout(TIMEOUT)
        .build()
        .context("the exporter of spans")?;
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE)
        .with_max_export_batch_size(TOGETHER)
        .with_scheduled_delay(EVERY)
        .build();
    // As upstream: the first span of a trace is sampled randomly, and others follow it.
    let root = match config.per_million {
        0 => Sampler::AlwaysOff,
        rate => Sampler::TraceIdRatioBased(rate as f64 / MILLION as f64),
    };
    let limits = SpanLimits { max_attributes_per_span: 32, max_links_per_span: 4, ..SpanLimits::default() };
    let host = nix::unistd::gethostname().context("gethostname")?.to_string_lossy().into_owned();
    let about =
        [KeyValue::new("service.instance.id", host), KeyValue::new("process.pid", i64::from(std::process::id()))];
    Ok(SdkTracerProvider::builder()
        .with_sampler(Sampler::ParentBased(Box::new(root)))
        .with_span_limits(limits)
        .with_resource(Resource::builder().with_service_name(service).with_attributes(about).build())
        .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(batches).build())
        .build())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n";

    #[test]
    fn a_configuration_is_upstreams() {
        let of = |rest: &str| parse(&format!("{HEAD}{rest}"));
        let at = |address: &str| Collector::Address(address.to_owned());
        assert_eq!(of("").unwrap(), Config { collector: at("localhost:4317"), per_million: 0 });
        let told = of("endpoint: dns:///collector:4000\nsamplingRatePerMillion: 100").unwrap();
        assert_eq!(told, Config { collector: at("collector:4000"), per_million: 100 });
        assert_eq!(of("endpoint: '[::1]:7'").unwrap().collector, at("[::1]:7"));
        assert_eq!(of("endpoint: unix:///run/c.sock").unwrap().collector, Collector::Socket("/run/c.sock".into()));
        let v1 = HEAD.replace("v1beta1", "v1");
        assert!(parse(&v1).is_ok());
        for (text, why) in [
            (format!("{HEAD}samplingRatePerMillion: -1"), "sampling rate must be positive"),
            (format!("{HEAD}samplingRatePerMillion: 1000001"), "must be less than or equal to one million"),
            (format!("{HEAD}endpoint: http://c:1"), "unsupported scheme: http."),
            (format!("{HEAD}endpoint: c"), "expected HOST:PORT"),
            (format!("{HEAD}endpoint: 'a@b:1'"), "expected HOST:PORT"),
            (format!("{HEAD}sampling: 1"), "unknown field \"sampling\""),
            (HEAD.replace("v1beta1", "v7"), "is registered"),
            (String::new(), "empty"),
        ] {
            let found = parse(&text).unwrap_err().to_string();
            assert!(found.contains(why), "{text}: {found}");
        }
    }
}
