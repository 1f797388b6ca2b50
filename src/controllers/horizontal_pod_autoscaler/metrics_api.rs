//! The APIs for custom and external metrics.

use std::fmt;

/// One of upstream's two: for Pods and objects, or for anything. Displayed with upstream's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsApi {
    Custom,
    External,
}

impl MetricsApi {
    /// Its API group.
    pub fn group(self) -> &'static str {
        match self {
            MetricsApi::Custom => "custom.metrics.k8s.io",
            MetricsApi::External => "external.metrics.k8s.io",
        }
    }
}

impl fmt::Display for MetricsApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MetricsApi::Custom => "custom",
            MetricsApi::External => "external",
        })
    }
}
