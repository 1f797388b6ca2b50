//! Which extension API servers are unavailable, under upstream's name (`kube-aggregator/pkg/controllers/status/metrics`).

use std::sync::LazyLock;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{family::Family, gauge::Gauge};

use podwright_api::instruments;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Named {
    name: String,
}

static UNAVAILABLE: LazyLock<Family<Named, Gauge>> = LazyLock::new(|| {
    let unavailable = Family::default();
    instruments::declare(|registry| {
        let help = "Gauge of APIServices which are marked as unavailable broken down by APIService name";
        registry.register("aggregator_unavailable_apiservice", help, Family::clone(&unavailable));
    });
    unavailable
});

/// Records whether one is available; it is reported until this is dropped.
pub(super) struct Told(Named);

impl Told {
    pub fn of(name: &str) -> Told {
        Told(Named { name: name.to_owned() })
    }

    pub fn set(&self, available: bool) {
        UNAVAILABLE.get_or_create(&self.0).set(i64::from(!available));
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        UNAVAILABLE.remove(&self.0);
    }
}
