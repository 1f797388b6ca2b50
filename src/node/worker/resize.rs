//! What a worker makes of the node's decisions about its Pod's resources.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceRequirements;

use super::{ActionResult, Worker};
use crate::{
    executor::{Resized, Running},
    pod_state::Step,
    resize::{self, Allotment, Progress, is_behind},
    spec::{ContainerRef, PodExt},
    volumes::kinds::shows_pod,
};

impl Worker {
    /// The node has decided: what is allocated becomes the Pod's spec, and is brought to its cgroups.
    pub(super) fn allot(&mut self, allotment: Allotment) {
        let Allotment { allocated, pending, generation } = allotment;
        if pending != self.seen.resize.pending {
            if let Some(pending) = &pending {
                let wish = self.wish.clone();
                let message = resize::message(&pending.reason, &wish, pending.generation, Some(&pending.message));
                self.warning(None, &format!("Resize{}", pending.reason), message);
            }
            self.seen.resize.pending = pending;
        }
        if allocated == self.allocated {
            return;
        }
        let now = allocated.overlay(self.pod.clone());
        let before = std::mem::replace(&mut self.pod, now);
        self.allocated = allocated;
        self.normal(None, "ResizeStarted", resize::message("started", &self.pod, generation, None));
        self.seen.resize.progress = Some(Progress { generation, ..Progress::default() });
        if self.shared.executor.shortcomings(&before).is_empty() {
            for shortcoming in self.shared.executor.shortcomings(&self.pod) {
                self.warning(None, "LimitsNotEnforced", shortcoming);
            }
        }
        if shows_pod(&self.pod) {
            self.resync();
        }
    }

    /// An attempt has been started with these resources.
    pub(super) fn started_with(&mut self, container: &str, restart: u32, resources: Option<ResourceRequirements>) {
        let attempt = self.seen.container_mut(container).attempt.as_mut();
        if let Some(attempt) = attempt.filter(|a| a.restart == restart && a.current) {
            attempt.resources = Some(resources.unwrap_or_default());
        }
    }

    pub(super) fn resize(&mut self, containers: &[String]) {
        self.seen.resize.busy = true;
        if let Some(progress) = &mut self.seen.resize.progress {
            self.publisher.resize_tries = progress.step.failures();
            progress.step = Step::Doing;
        }
        let running = containers.iter().filter_map(|name| {
            let attempt = self.seen.container(name).attempt.as_ref()?;
            let has = attempt.resources.clone().unwrap_or_default();
            Some(Running { container: name.clone(), id: attempt.id.clone(), has })
        });
        let running: Vec<Running> = running.collect();
        let (shared, pod, sandbox) = (self.shared.clone(), self.pod.clone(), self.seen.sandbox.attempt);
        self.spawn(async move { ActionResult::Resized(shared.executor.resize(&pod, sandbox, running).await) });
    }

    pub(super) fn resized(&mut self, Resized { has, result }: Resized, now: Timestamp) {
        self.seen.resize.busy = false;
        let mut has: BTreeMap<String, _> = has.into_iter().collect();
        for attempt in self.seen.containers.values_mut().filter_map(|c| c.attempt.as_mut()) {
            if let Some(has) = has.remove(&attempt.id) {
                attempt.resources = Some(has);
            }
        }
        let tries = self.publisher.resize_tries;
        let Some(progress) = &mut self.seen.resize.progress else { return };
        if progress.step != Step::Doing {
            // Meanwhile something else was allocated.
            return;
        }
        // Who was not there to be told has ended, and the event of it is on its way.
        let missed =
            |part: &ContainerRef<'_>| self.seen.containers.get(part.name()).is_some_and(|c| is_behind(part, c));
        match result {
            Ok(()) if self.pod.parts().iter().any(missed) => progress.step = Step::failed(tries, now),
            Ok(()) => (progress.step, progress.error) = (Step::Done, None),
            Err(why) => {
                progress.step = Step::failed(tries, now);
                let generation = progress.generation;
                if progress.error.as_ref() != Some(&why) {
                    progress.error = Some(why.clone());
                    tracing::info!(pod = %self.pod.full_name(), why, "a Pod was not resized");
                    let message = resize::message("error", &self.pod, generation, Some(&why));
                    self.warning(None, "ResizeError", message);
                }
            }
        }
    }

    /// All that was allocated has come to the containers.
    pub(super) fn resize_completed(&mut self) {
        let Some(progress) = self.seen.resize.progress.take() else { return };
        self.normal(None, "ResizeCompleted", resize::message("completed", &self.pod, progress.generation, None));
    }
}
