//! Audit logging of calls that are not resource requests.

use std::sync::Arc;

use jsonrpsee::core::server::Extensions;

use podwright_api::Status;
use podwright_api::request::Origin;

use super::wire::user;
use crate::Server;
use crate::audit::Facts;
use crate::rest::origin;

/// The longest path in the audit log.
const TOLD: usize = 1024;

/// Records a call outside the pipeline, under the path that it is authorized as.
pub(crate) fn tell<T>(server: &Server, ext: &Extensions, verb: &str, path: &str, outcome: &Result<T, Status>) {
    tell_of(server, ext, verb, path, outcome.as_ref().err());
}

pub(crate) fn tell_of(server: &Server, ext: &Extensions, verb: &str, path: &str, failure: Option<&Status>) {
    let (Some(audit), Some(connection)) = (&server.config.audit, ext.get::<Arc<Origin>>()) else { return };
    // A part of it may be user-controlled.
    let path = &path.chars().take(TOLD).collect::<String>();
    let (mut origin, user) = (origin::again(&server.env, connection), user(ext));
    if let Some(origin) = Arc::get_mut(&mut origin) {
        origin.uri = path.to_owned();
    }
    let facts = Facts { user: Some(origin.caller.get().unwrap_or(&user)), verb, path, ..Facts::default() };
    audit.face(&origin, &facts, failure.map_or(200, |why| why.code), failure);
}

/// Records a call of an unknown method.
pub(crate) fn tell_unknown(server: &Server, ext: &Extensions, method: &str) {
    let why = Status::failure(404, "NotFound", "the server has no such method");
    tell_of(server, ext, "post", &format!("/rpc/{method}"), Some(&why));
}
