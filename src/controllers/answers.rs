//! Answers: what the server says to the questions of one reconcile, where no informer follows what it has to know.

use futures::future::join_all;

use crate::{
    api::{Request, Status, request::Body},
    client::Client,
};

/// What was asked, and what was said. They are forgotten when the reconcile is over.
#[derive(Debug, Default)]
pub struct Answers(Vec<(Request, Result<Body, Status>)>);

impl Answers {
    /// What was said to a request; the request, if it has not been asked.
    pub fn to(&self, request: Request) -> Result<Result<&Body, &Status>, Request> {
        match self.0.iter().find(|(asked, _)| are_same(asked, &request)) {
            Some((_, answer)) => Ok(answer.as_ref()),
            None => Err(request),
        }
    }

    pub(super) async fn seek(&mut self, client: &Client, questions: Vec<Request>) {
        let answers = join_all(questions.iter().map(|question| client.call(question.clone()))).await;
        let answers = answers.into_iter().map(|answer| answer.map(|response| response.body));
        self.0.extend(questions.into_iter().zip(answers));
    }
}

fn are_same(a: &Request, b: &Request) -> bool {
    let what =
        |it: &Request| (it.verb, it.resource.clone(), it.namespace.clone(), it.name.clone(), it.subresource.clone());
    what(a) == what(b) && a.options == b.options
}
