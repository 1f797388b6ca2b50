//! Live reads: the server's responses for one reconcile that needs data without an informer.

use std::collections::HashMap;

use futures::future::join_all;

use super::patience::Patience;
use podwright_api::{Options, Request, Status, Verb, request::Body};
use podwright_client::Client;

/// The requests and their responses, kept until the reconcile ends.
#[derive(Debug, Default)]
pub struct LiveReads(HashMap<What, Vec<(Options, Result<Body, Status>)>>);

/// The subject of a request.
#[derive(Debug, PartialEq, Eq, Hash)]
struct What {
    verb: Verb,
    resource: String,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
}

impl LiveReads {
    /// The response to a request; the request itself, if it was not sent yet.
    pub fn to(&self, request: Request) -> Result<Result<&Body, &Status>, Request> {
        let mut said = self.0.get(&What::of(&request)).into_iter().flatten();
        match said.find(|(options, _)| *options == request.options) {
            Some((_, answer)) => Ok(answer.as_ref()),
            None => Err(request),
        }
    }

    /// Sends the requests on behalf of an account.
    pub(super) async fn seek(&mut self, client: &Client, patience: &Patience, of: &str, live_reads: Vec<Request>) {
        let ask = |question: &Request| {
            let (question, call) = (question.clone(), client.call(question.clone()));
            async move {
                let asked = (question.verb, question.resource.as_str());
                patience.wait(of, question.namespace.as_deref(), asked, call).await
            }
        };
        let answers = join_all(live_reads.iter().map(ask)).await;
        for (question, answer) in live_reads.into_iter().zip(answers) {
            self.take(question, answer.map(|response| response.body));
        }
    }

    pub(super) fn take(&mut self, question: Request, answer: Result<Body, Status>) {
        self.0.entry(What::of(&question)).or_default().push((question.options, answer));
    }
}

impl What {
    fn of(request: &Request) -> What {
        let Request { verb, resource, namespace, name, subresource, .. } = request.clone();
        What { verb, resource, namespace, name, subresource }
    }
}
