//! Where a Pod waits until its policies are in force: between its link and its first process.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, oneshot};

use super::pod::PodView;

/// How long a Pod waits; then it is tried again.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the agent says of the Pods on its node, and asks.
#[derive(Clone, Debug)]
pub struct Gate(mpsc::UnboundedSender<Asked>);

/// The other end of it.
pub type Questions = mpsc::UnboundedReceiver<Asked>;

/// What is said or asked.
#[derive(Debug)]
pub enum Asked {
    /// This Pod is here, by an earlier agent.
    Adopted(Arc<PodView>),
    /// That were all of them.
    Recovered,
    /// This Pod has its addresses; whether its policies are in force.
    Admit(Arc<PodView>, oneshot::Sender<Result<(), String>>),
}

impl Gate {
    pub fn new() -> (Gate, Questions) {
        let (sender, questions) = mpsc::unbounded_channel();
        (Gate(sender), questions)
    }

    pub fn adopted(&self, pod: &Pod) {
        self.0.send(Asked::Adopted(Arc::new(PodView::of(pod)))).ok();
    }

    pub fn recovered(&self) {
        self.0.send(Asked::Recovered).ok();
    }

    /// Waits until the policies of a Pod that has its addresses are in force.
    ///
    /// # Errors
    ///
    /// They are not known yet, or cannot be put in force as they were written; in words.
    pub async fn admit(&self, pod: &Pod) -> Result<(), String> {
        let (sender, answer) = oneshot::channel();
        let unknown = || Err("its NetworkPolicies are not known yet, or not in force".to_owned());
        if self.0.send(Asked::Admit(Arc::new(PodView::of(pod)), sender)).is_err() {
            return unknown();
        }
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            _ => unknown(),
        }
    }
}
