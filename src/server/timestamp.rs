//! API timestamps.

use super::Server;

impl Server {
    /// The current time in API format, in whole seconds.
    pub(super) fn timestamp(&self) -> String {
        timestamp(self.env.now())
    }
}

/// A time in API format, in whole seconds.
pub(super) fn timestamp(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
