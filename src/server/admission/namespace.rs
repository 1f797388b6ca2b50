//! NamespaceLifecycle: nothing new in a Namespace that is not there or going; the first ones cannot be deleted.

use crate::api::{Cause, Object, Status, kinds};
use crate::server::Server;
use crate::server::call::Call;

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(super) async fn may_create(server: &Server, call: &Call, object: &Object) -> Result<(), Status> {
    let Some(namespace) = call.namespace.as_deref() else { return Ok(()) };
    let kind = kinds::lookup("namespaces").ok_or_else(|| Status::internal("no kind Namespace"))?;
    let key = kind.key(None, namespace);
    let shelf = server.cache.shelf(kind);
    let item = match shelf.get(&key) {
        Some(item) => item,
        None => {
            // It may have been created just now.
            server.cache.fresh().await?;
            shelf.get(&key).ok_or_else(|| Status::not_found("namespaces", "", namespace))?
        }
    };
    if item.field(kind, "status.phase") != "Terminating" {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let cause = Cause {
        reason: "NamespaceTerminating".into(),
        message: format!("namespace {namespace} is being terminated"),
        field: "metadata.namespace".into(),
    };
    let status = Status::forbidden(call.kind.plural, call.kind.group, object.name(), why);
    Err(status.with_causes(vec![cause]))
}

pub(super) fn may_delete(call: &Call) -> Result<(), Status> {
    if call.kind.kind == "Namespace" && IMMORTAL.contains(&call.name()) {
        return Err(call.forbidden("this namespace may not be deleted"));
    }
    Ok(())
}
