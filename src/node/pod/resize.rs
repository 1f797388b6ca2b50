//! Applies the node's decisions about a Pod's resources to its containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;

use super::{
    Turn,
    effect::{Effect, Work},
    step::Step,
};
use crate::{
    executor::{Resized, Running},
    resize::{self, allocation::Allotment, is_behind, progress::ResizeProgress},
    spec::{ContainerRef, PodExt},
    volumes::kinds::shows_pod,
};

impl Turn<'_> {
    /// The node has decided: the allocation becomes the Pod's spec and is applied to its cgroups.
    pub(super) fn allot(&mut self, allotment: Allotment) {
        let Allotment { allocated, pending, generation } = allotment;
        if pending != self.state.progress.resize.pending {
            if let Some(pending) = &pending {
                let wish = self.state.wanted.wish.clone();
                let message = resize::message(&pending.reason, &wish, pending.generation, Some(&pending.message));
                self.warning(None, &format!("Resize{}", pending.reason), message);
            }
            self.state.progress.resize.pending = pending;
        }
        if allocated == self.state.wanted.allocated {
            return;
        }
        let pod = allocated.overlay(self.pod().clone());
        let before = std::mem::replace(&mut self.state.wanted.pod, pod.clone());
        self.state.wanted.allocated = allocated;
        self.normal(None, "ResizeStarted", resize::message("started", &pod, generation, None));
        self.state.progress.resize.progress = Some(ResizeProgress { generation, ..ResizeProgress::default() });
        let is_shown = shows_pod(&pod);
        self.effects.push(Effect::WarnOfShortcomings { pod, unless_of: Some(before) });
        if is_shown {
            self.resync();
        }
    }

    /// An attempt has been started with these resources.
    pub(super) fn started_with(&mut self, container: &str, restart: u32, resources: Option<ResourceRequirements>) {
        let attempt = self.state.observed.container_mut(container).attempt.as_mut();
        if let Some(attempt) = attempt.filter(|a| a.restart == restart && a.current) {
            attempt.resources = Some(resources.unwrap_or_default());
        }
    }

    pub(super) fn resize(&mut self, containers: &[String]) {
        let (seen, resize) = (&self.state.observed, &mut self.state.progress.resize);
        resize.busy = true;
        if let Some(progress) = &mut resize.progress {
            progress.step.begin();
        }
        let running = containers.iter().filter_map(|name| {
            let attempt = seen.container(name).attempt.as_ref()?;
            let has = attempt.resources.clone().unwrap_or_default();
            Some(Running { container: name.clone(), id: attempt.id.clone(), has })
        });
        let work = Work::Resize { containers: running.collect(), sandbox: seen.sandbox.attempt };
        self.begin(work);
    }

    pub(super) fn resized(&mut self, Resized { has, result }: Resized) {
        let (now, pod) = (self.now, self.state.wanted.pod.clone());
        let (seen, resize) = (&mut self.state.observed, &mut self.state.progress.resize);
        resize.busy = false;
        let mut has: BTreeMap<String, _> = has.into_iter().collect();
        for attempt in seen.containers.values_mut().filter_map(|c| c.attempt.as_mut()) {
            if let Some(has) = has.remove(&attempt.id) {
                attempt.resources = Some(has);
            }
        }
        let Some(progress) = &mut resize.progress else { return };
        if !progress.step.is_doing() {
            // Something else was allocated meanwhile.
            return;
        }
        // A container that no longer existed has exited, and its event is on its way.
        let missed = |part: &ContainerRef<'_>| seen.containers.get(part.name()).is_some_and(|c| is_behind(part, c));
        match result {
            Ok(()) if pod.parts().iter().any(missed) => progress.step.fail(now),
            Ok(()) => (progress.step, progress.error) = (Step::Done, None),
            Err(error) => {
                progress.step.fail(now);
                let (generation, why) = (progress.generation, error.to_string());
                // A known error is not reported again.
                if progress.error.as_ref() != Some(&why) {
                    progress.error = Some(why.clone());
                    self.warning(None, "ResizeError", resize::message("error", &pod, generation, Some(&why)));
                }
            }
        }
    }

    /// The containers have their whole allocation.
    pub(super) fn resize_completed(&mut self) {
        let Some(progress) = self.state.progress.resize.progress.take() else { return };
        let message = resize::message("completed", self.pod(), progress.generation, None);
        self.normal(None, "ResizeCompleted", message);
    }
}
