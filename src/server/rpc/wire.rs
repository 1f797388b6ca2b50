//! What the whole face of JSON-RPC agrees on: how large messages are, whose a call is, how it carries a `Status`.

use jsonrpsee::core::server::Extensions;
use jsonrpsee::types::ErrorObjectOwned;

use podwright_api::{Status, User};

/// The largest message that is taken in, and sent out; of a batch, all its answers together.
pub(crate) const MAX_REQUEST: u32 = 4 << 20;
pub(crate) const MAX_RESPONSE: u32 = 256 << 20;
/// Calls of one message.
pub(crate) const MAX_BATCH: u32 = 100;

/// The caller; without the face's word on who that is, nobody.
pub(crate) fn user(ext: &Extensions) -> User {
    ext.get::<User>().cloned().unwrap_or_default()
}

/// A `Status` as JSON-RPC carries it.
pub(crate) fn error(status: Status) -> ErrorObjectOwned {
    ErrorObjectOwned::owned(i32::from(status.code), status.message.clone(), Some(status))
}
