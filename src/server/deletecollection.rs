//! The deletecollection verb: deletes the selected objects one by one.

use futures::stream::{self, StreamExt, TryStreamExt};

use podwright_api::{Response, Status, Verb, request};

use super::Server;
use super::resolved_request::ResolvedRequest;

/// How many deletes run at once; they share commits.
const AT_ONCE: usize = 32;

impl Server {
    pub(super) async fn delete_collection(&self, call: &ResolvedRequest) -> Result<Response, Status> {
        let items = self.select(call).await?;
        let revision = self.cache.revision();
        let one = |item: std::sync::Arc<super::cache::Item>| {
            let namespace = Some(item.namespace(call.kind).to_owned()).filter(|ns| !ns.is_empty());
            let call = ResolvedRequest {
                verb: Verb::Delete,
                namespace,
                name: Some(item.name().to_owned()),
                body: None,
                ..call.again()
            };
            async move {
                match self.delete(&call).await {
                    // Another client was faster.
                    Err(status) if status.is_not_found() => Ok(None),
                    Err(status) => Err(status),
                    Ok(_) => Ok(Some(item.bytes.clone())),
                }
            }
        };
        let deleted: Vec<_> = stream::iter(items.into_iter().map(one)).buffered(AT_ONCE).try_collect().await?;
        let list = request::List {
            kind: call.kind.list_kind(),
            api_version: call.kind.api_version(),
            resource_version: revision.to_string(),
            items: deleted.into_iter().flatten().collect(),
            ..Default::default()
        };
        Ok(request::Body::List(list).into())
    }
}
