//! Common definitions of the JSON-RPC face: message sizes, the caller, and `Status` errors.

use jsonrpsee::core::server::Extensions;
use jsonrpsee::types::ErrorObjectOwned;

use podwright_api::{Status, User};

/// The largest message, in both directions; for a batch, all its answers together.
pub(crate) const MAX_REQUEST: u32 = 4 << 20;
pub(crate) const MAX_RESPONSE: u32 = 256 << 20;
/// Calls of one message.
pub(crate) const MAX_BATCH: u32 = 100;

/// The caller; if the face did not set one, nobody.
pub(crate) fn user(ext: &Extensions) -> User {
    ext.get::<User>().cloned().unwrap_or_default()
}

/// A `Status` as a JSON-RPC error.
pub(crate) fn error(status: Status) -> ErrorObjectOwned {
    ErrorObjectOwned::owned(i32::from(status.code), status.message.clone(), Some(status))
}
