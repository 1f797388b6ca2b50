//! How the containers of a Pod's earlier sandboxes ended: kept with the next sandbox, for an agent that comes later.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    observed::{Attempt, Container, Exit, Observed},
    progress::{ContainerProgress, Progress},
};
use crate::backoff::Backoff;

/// The final state of a container in an earlier sandbox.
#[derive(Serialize, Deserialize)]
struct Past {
    #[serde(default)]
    id: String,
    restart: u32,
    image: String,
    image_id: String,
    started: Option<Timestamp>,
    code: i32,
    reason: String,
    #[serde(default)]
    message: Option<String>,
    finished: Timestamp,
    backoff: String,
    #[serde(default)]
    renewing: bool,
}

/// The containers' history, to be stored with a new sandbox.
pub fn history(seen: &Observed, progress: &Progress) -> String {
    let past = seen
        .containers
        .iter()
        .filter_map(|(name, container)| Some((name, Past::of(container.attempt.as_ref()?, progress.container(name))?)));
    serde_json::to_string(&past.collect::<BTreeMap<_, _>>()).unwrap_or_default()
}

/// Takes up a [`history`]; one that cannot be decoded says nothing.
pub fn recall(history: &str, seen: &mut Observed, progress: &mut Progress) {
    let past: BTreeMap<String, Past> = serde_json::from_str(history).unwrap_or_default();
    for (name, past) in past {
        let known = ContainerProgress {
            backoff: Backoff::from_label(&past.backoff),
            renewing: past.renewing,
            ..ContainerProgress::default()
        };
        progress.containers.insert(name.clone(), known);
        seen.containers.insert(name, Container { attempt: Some(past.attempt()), ..Container::default() });
    }
}

impl Past {
    /// `None`: it has not ended.
    fn of(attempt: &Attempt, progress: &ContainerProgress) -> Option<Past> {
        let exit = attempt.exit.as_ref()?;
        Some(Past {
            id: attempt.id.clone(),
            restart: attempt.restart,
            image: attempt.image.clone(),
            image_id: attempt.image_id.clone(),
            started: attempt.started_at,
            code: exit.code,
            reason: exit.reason.clone(),
            message: exit.message.clone(),
            finished: exit.finished_at,
            backoff: progress.backoff.to_label(),
            renewing: progress.renewing,
        })
    }

    fn attempt(self) -> Attempt {
        let exit = Exit { code: self.code, reason: self.reason, message: self.message, finished_at: self.finished };
        Attempt {
            id: self.id,
            restart: self.restart,
            image: self.image,
            image_id: self.image_id,
            started_at: self.started,
            exit: Some(exit),
            current: false,
            resources: None,
        }
    }
}
