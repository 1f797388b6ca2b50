//! The startup of a Pod as spans, in the trace of the request that created it.
//!
//! The node asks the server for that trace once, when a Pod is new here. Nothing waits for the response: steps done meanwhile are
//! reported afterwards, with their times.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;

use super::{executor::ActionError, spec::PodExt};
use podwright_api::{
    Object, Request, Verb,
    spans::{Link, Origin, Span, TRACEPARENT, are_made},
};
use podwright_client::Client;

/// Maximum reported steps of one start; the rest is left out.
const PARTS: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(5);
/// A Pod that has not started by then is reported unfinished.
const LONGEST: Duration = Duration::from_secs(600);

/// One step of a start.
struct Part {
    name: &'static str,
    container: Option<String>,
    began: SystemTime,
    ended: SystemTime,
    failure: Option<String>,
}

/// Receives the steps of a Pod's start; does nothing without tracing.
#[derive(Clone, Default)]
pub struct StartTrace(Option<mpsc::Sender<Part>>);

impl StartTrace {
    /// Begins a Pod's startup trace. It ends when all clones are dropped.
    pub fn begin(client: &Client, pod: &Pod) -> StartTrace {
        if !are_made() {
            return StartTrace(None);
        }
        let (sender, parts) = mpsc::channel(PARTS);
        tokio::spawn(tell(client.clone(), pod.clone(), SystemTime::now(), parts));
        StartTrace(Some(sender))
    }

    /// Runs a step; `failed` extracts the error from its result.
    pub async fn step<T>(
        &self,
        name: &'static str,
        container: Option<&str>,
        work: impl Future<Output = T>,
        failed: impl Fn(&T) -> Option<String>,
    ) -> T {
        let Some(sender) = &self.0 else { return work.await };
        let began = SystemTime::now();
        let done = work.await;
        let container = container.map(str::to_owned);
        let part = Part { name, container, began, ended: SystemTime::now(), failure: failed(&done) };
        // Nothing receives it if the trace is not recorded.
        let _ = sender.try_send(part);
        done
    }
}

/// The error of a step, if any.
pub fn trouble<T>(done: &Result<T, ActionError>) -> Option<String> {
    done.as_ref().err().map(ActionError::to_string)
}

/// The trace of the request that created a Pod.
async fn cause(client: &Client, pod: &Pod) -> Option<Link> {
    let request = Request {
        verb: Verb::Get,
        resource: "pods".into(),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        subresource: Some("trace".into()),
        ..Request::default()
    };
    let told: Object = match tokio::time::timeout(TIMEOUT, client.object(request)).await {
        Ok(Ok(told)) => told,
        Ok(Err(why)) => {
            tracing::debug!(pod = %pod.full_name(), %why, "nobody tells which trace it is a part of");
            return None;
        }
        Err(_) => return None,
    };
    (told.uid() == pod.uid()).then(|| Link::parse(told.0[TRACEPARENT].as_str()?)).flatten()
}

async fn tell(client: Client, pod: Pod, began: SystemTime, mut parts: mpsc::Receiver<Part>) {
    let Some(cause) = cause(&client, &pod).await else { return };
    let span = Span::begin("SyncPod", Origin::Parent(&cause), began, false);
    span.set("k8s.pod.uid", pod.uid());
    span.set("k8s.pod", pod.metadata.name.as_deref().unwrap_or(""));
    span.set("k8s.namespace", pod.metadata.namespace.as_deref().unwrap_or(""));
    span.set("k8s.node", pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or(""));
    let mut last = None;
    let told = async {
        while let Some(Part { name, container, began, ended, failure }) = parts.recv().await {
            let part = span.child_since(name, began);
            part.set("k8s.container", container.as_deref().unwrap_or(""));
            if let Some(why) = &failure {
                part.fail(why);
            }
            part.end_at(ended);
            last = last.max(Some(ended));
        }
    };
    let _ = tokio::time::timeout(LONGEST, told).await;
    span.end_at(last.unwrap_or_else(SystemTime::now));
}
