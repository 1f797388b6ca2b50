//! The APIs by which others tell metrics.

use std::fmt;

/// One of upstream's two: of Pods and objects, or of anything at all. It is shown by the word that upstream has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsApi {
    Custom,
    External,
}

impl MetricsApi {
    /// The group of its resources.
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
