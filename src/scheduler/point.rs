//! The extension points of plugins.

/// Upstream's; the names are the fields of a profile's `plugins`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    PreEnqueue,
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    PreBind,
    Bind,
}

impl Point {
    /// Upstream's name.
    pub fn name(self) -> &'static str {
        match self {
            Point::PreEnqueue => "PreEnqueue",
            Point::QueueSort => "QueueSort",
            Point::PreFilter => "PreFilter",
            Point::Filter => "Filter",
            Point::PostFilter => "PostFilter",
            Point::PreScore => "PreScore",
            Point::Score => "Score",
            Point::Reserve => "Reserve",
            Point::PreBind => "PreBind",
            Point::Bind => "Bind",
        }
    }
}
