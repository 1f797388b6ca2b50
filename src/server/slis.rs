//! `/metrics/slis`: results of the health checks, under upstream's names (`k8s.io/component-base/metrics/prometheus/slis`).

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};
use prometheus_client::registry::Registry;

use podwright_api::instruments::{self, Format};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Check {
    name: &'static str,
    r#type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    name: &'static str,
    r#type: &'static str,
    status: &'static str,
}

/// The metrics of one server.
pub(super) struct Slis {
    registry: Registry,
    now: Family<Check, Gauge>,
    all: Family<Outcome, Counter>,
}

impl Default for Slis {
    fn default() -> Slis {
        let mut registry = Registry::default();
        let (now, all) = (Family::<Check, Gauge>::default(), Family::<Outcome, Counter>::default());
        registry.register(
            "kubernetes_healthcheck",
            "This metric records the result of a single healthcheck",
            now.clone(),
        );
        let help = "This metric records the results of all healthcheck";
        registry.register("kubernetes_healthchecks", help, all.clone());
        Slis { registry, now, all }
    }
}

impl Slis {
    /// A check of `r#type` (`healthz`, `livez`, `readyz`) was run.
    pub fn observe(&self, name: &'static str, r#type: &'static str, is_good: bool) {
        self.now.get_or_create(&Check { name, r#type }).set(is_good.into());
        let status = if is_good { "success" } else { "error" };
        self.all.get_or_create(&Outcome { name, r#type, status }).inc();
    }

    pub fn expose(&self, others: &str, format: Format) -> String {
        instruments::expose_alone(&self.registry, others, format)
    }
}
