//! The fields of a kind's `scale` view.

/// The dotted paths of a `scale` view.
#[derive(Clone, Copy, Debug)]
pub struct Scale<S = &'static str> {
    pub spec_replicas: S,
    pub status_replicas: S,
    /// The path of a `LabelSelector` (or of a plain map of labels).
    pub selector: S,
}
