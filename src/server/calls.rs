//! What a JSON-RPC call keeps in memory while it is worked on. By HTTP its bytes are a body's; a WebSocket's are counted here,
//! and nothing that it answers is forgotten meanwhile. What wants no answer is known here.

use std::sync::Arc;

use jsonrpsee::core::middleware::{Batch, Notification};
use jsonrpsee::core::server::MethodResponse;
use jsonrpsee::server::middleware::rpc::RpcServiceT;
use jsonrpsee::types::{ErrorObjectOwned, Extensions, Id, Request};

use super::in_flight::EACH;
use super::limits::{Bodies, Taken};
use super::rpc::{error, user};
use super::unread::{Unread, Working};
use crate::api::Status;

/// Counts the calls of a service.
#[derive(Clone)]
pub(super) struct Counting(pub Arc<Bodies>);

#[derive(Clone)]
pub(super) struct Counted<S> {
    service: S,
    bodies: Arc<Bodies>,
}

impl<S> tower::Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, service: S) -> Counted<S> {
        Counted { service, bodies: self.0.clone() }
    }
}

impl<S> Counted<S> {
    /// What a message of so many calls and bytes holds; nothing by HTTP.
    fn enter(
        &self,
        ext: &Extensions,
        calls: usize,
        bytes: usize,
    ) -> Result<Option<(Working, Taken)>, ErrorObjectOwned> {
        let Some(unread) = ext.get::<Arc<Unread>>() else { return Ok(None) };
        let mut taken = self.bodies.of(&user(ext));
        // The message itself is counted when it is read.
        if !taken.more(bytes + calls.saturating_sub(1) * EACH) {
            let why = "Too many requests are being read, please try again later.";
            return Err(error(Status::too_many_requests(why, 1)));
        }
        taken.whole();
        Ok(Some((unread.work(calls), taken)))
    }
}

impl<S> RpcServiceT for Counted<S>
where
    S: RpcServiceT<
            MethodResponse = MethodResponse,
            BatchResponse = MethodResponse,
            NotificationResponse = MethodResponse,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    type MethodResponse = MethodResponse;
    type NotificationResponse = MethodResponse;
    type BatchResponse = MethodResponse;

    fn call<'a>(&self, request: Request<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let bytes = request.params.as_ref().map_or(0, |params| params.get().len());
        let (held, service) = (self.enter(request.extensions(), 1, bytes), self.service.clone());
        async move {
            match held {
                Ok(held) => {
                    let answer = service.call(request).await;
                    held.into_iter().for_each(|(working, _)| working.done(true));
                    answer
                }
                Err(why) => MethodResponse::error(request.id, why),
            }
        }
    }

    fn batch<'a>(&self, mut batch: Batch<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let calls = batch.len();
        let params = batch.iter().flatten().filter_map(|entry| entry.params());
        let bytes = params.map(|params| params.get().len()).sum();
        let (held, service) = (self.enter(batch.extensions(), calls, bytes), self.service.clone());
        async move {
            match held {
                Ok(held) => {
                    let answer = service.batch(batch).await;
                    held.into_iter().for_each(|(working, _)| working.done(!answer.is_notification()));
                    answer
                }
                Err(why) => MethodResponse::error(Id::Null, why),
            }
        }
    }

    fn notification<'a>(&self, notification: Notification<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        if let Some(unread) = notification.extensions().get::<Arc<Unread>>() {
            unread.answered(1);
        }
        let service = self.service.clone();
        async move { service.notification(notification).await }
    }
}
