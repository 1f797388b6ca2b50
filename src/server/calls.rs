//! The cost of a JSON-RPC call: CPU time, whatever it does, and memory while it runs. Over HTTP these count as the request's body
//! and time; for a WebSocket they are counted here, until the response is sent. Notifications, which want no response, are
//! recognized here.

use std::sync::Arc;

use jsonrpsee::core::middleware::{Batch, BatchEntry, Notification};
use jsonrpsee::core::server::{BatchResponseBuilder, MethodResponse};
use jsonrpsee::server::middleware::rpc::RpcServiceT;
use jsonrpsee::types::error::METHOD_NOT_FOUND_CODE;
use jsonrpsee::types::{ErrorObjectOwned, Extensions, Id, Request};

use super::Server;
use super::in_flight::EACH;
use super::large::give_way;
use super::limits::BodyBytes;
use super::rpc::told::tell_unknown;
use super::rpc::wire::{MAX_RESPONSE, error, user};
use super::unread::{Unread, Working};
use podwright_api::Status;

/// Counts the calls of a service.
#[derive(Clone)]
pub(super) struct Counting {
    pub server: Arc<Server>,
}

#[derive(Clone)]
pub(super) struct Counted<S> {
    service: S,
    of: Counting,
}

impl<S> tower::Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, service: S) -> Counted<S> {
        Counted { service, of: self.clone() }
    }
}

impl<S> Counted<S> {
    /// Reserves memory for a message with this many calls and bytes; nothing over HTTP.
    fn enter(
        &self,
        ext: &Extensions,
        calls: usize,
        bytes: usize,
    ) -> Result<Option<(Working, BodyBytes)>, ErrorObjectOwned> {
        let Some(unread) = ext.get::<Arc<Unread>>() else { return Ok(None) };
        let mut taken = self.of.server.limiters.bodies.of(&user(ext));
        // The message itself is counted when it is read.
        if !taken.more(bytes + calls.saturating_sub(1) * EACH) {
            let why = "Too many requests are being read, please try again later.";
            return Err(error(Status::too_many_requests(why, 1)));
        }
        taken.whole();
        Ok(Some((unread.work(calls), taken)))
    }

    /// CPU time of a WebSocket message is measured here, as no request surrounds it.
    fn measured<F: Future>(&self, ext: &Extensions, work: F) -> impl Future<Output = F::Output> + use<S, F> {
        let by_http = ext.get::<Arc<Unread>>().is_none();
        let (cpu, user) = (self.of.server.limiters.cpu.clone(), user(ext));
        async move {
            match by_http {
                true => work.await,
                false => cpu.measured(&user, work).await,
            }
        }
    }
}

/// Answers a call; unknown methods are recorded here only.
async fn one<S>(service: &S, server: &Server, request: Request<'_>) -> MethodResponse
where
    S: RpcServiceT<MethodResponse = MethodResponse>,
{
    let (method, ext) = (request.method_name().to_owned(), request.extensions().clone());
    let answer = service.call(request).await;
    if answer.as_error_code() == Some(METHOD_NOT_FOUND_CODE) {
        tell_unknown(server, &ext, &method);
    }
    answer
}

/// Answers the entries of a batch one by one; other requests run in between.
async fn each<S>(service: S, server: Arc<Server>, batch: Batch<'_>) -> MethodResponse
where
    S: RpcServiceT<MethodResponse = MethodResponse, NotificationResponse = MethodResponse>,
{
    let mut answers = BatchResponseBuilder::new_with_limit(MAX_RESPONSE as usize);
    let mut only_notifications = false;
    for entry in batch {
        let answer = match entry {
            Ok(BatchEntry::Call(request)) => one(&service, &server, request).await,
            Ok(BatchEntry::Notification(notification)) => {
                only_notifications = true;
                service.notification(notification).await;
                give_way().await;
                continue;
            }
            Err(why) => {
                let (why, id) = why.into_parts();
                MethodResponse::error(id, why)
            }
        };
        if let Err(too_long) = answers.append(answer) {
            return too_long;
        }
        give_way().await;
    }
    match answers.is_empty() && only_notifications {
        true => MethodResponse::notification(),
        false => MethodResponse::from_batch(answers.finish()),
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
        let server = self.of.server.clone();
        let ext = request.extensions().clone();
        self.measured(&ext, async move {
            match held {
                Ok(held) => {
                    let answer = one(&service, &server, request).await;
                    held.into_iter().for_each(|(working, _)| working.done(true));
                    answer
                }
                Err(why) => MethodResponse::error(request.id, why),
            }
        })
    }

    fn batch<'a>(&self, mut batch: Batch<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let calls = batch.len();
        let params = batch.iter().flatten().filter_map(|entry| entry.params());
        let bytes = params.map(|params| params.get().len()).sum();
        let (held, service) = (self.enter(batch.extensions(), calls, bytes), self.service.clone());
        let server = self.of.server.clone();
        let ext = batch.extensions().clone();
        self.measured(&ext, async move {
            match held {
                Ok(held) => {
                    let answer = each(service, server, batch).await;
                    held.into_iter().for_each(|(working, _)| working.done(!answer.is_notification()));
                    answer
                }
                Err(why) => MethodResponse::error(Id::Null, why),
            }
        })
    }

    fn notification<'a>(&self, notification: Notification<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        if let Some(unread) = notification.extensions().get::<Arc<Unread>>() {
            unread.answered(1);
        }
        let (service, ext) = (self.service.clone(), notification.extensions().clone());
        self.measured(&ext, async move { service.notification(notification).await })
    }
}
