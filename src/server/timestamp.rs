//! Times as the API writes them.

use super::Server;

impl Server {
    /// Now, as the API writes times: in whole seconds.
    pub(super) fn timestamp(&self) -> String {
        timestamp(self.env.now())
    }
}

/// A time as the API writes it: in whole seconds.
pub(super) fn timestamp(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
