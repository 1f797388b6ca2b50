//! What happens to a Pod: at random, and at the end.

use super::*;

impl World {
    pub fn something_happens(&mut self) {
        if self.state.is_over() {
            return;
        }
        self.those_that_are_late();
        match self.random.random_range(0..24) {
            0..12 if !self.underway.is_empty() => {
                let place = self.random.random_range(0..self.underway.len());
                let work = self.underway.remove(place);
                self.comes_to_its_end(work, false);
            }
            12..15 => {
                let ids: Vec<String> = self.running.keys().cloned().collect();
                let Some(id) = ids.choose(&mut self.random).cloned() else { return };
                // The invariant: it is one of those that run.
                let container = self.running.remove(&id).unwrap();
                let exit = exit(self.random.random_range(0..2), self.now);
                self.take(PodEvent::Exited { container, id, exit });
            }
            15 if self.chance(3) => {
                if let Some(attempt) = self.sandbox {
                    self.sandbox_ends();
                    self.take(PodEvent::SandboxGone { attempt });
                }
            }
            16 => self.take(PodEvent::Resync),
            17 => {
                let running: Vec<(String, String)> = self.running.clone().into_iter().collect();
                let Some((id, container)) = running.choose(&mut self.random).cloned() else { return };
                let kind = *[Kind::Startup, Kind::Liveness, Kind::Readiness].choose(&mut self.random).unwrap();
                let verdict = *[Verdict::Good, Verdict::Bad].choose(&mut self.random).unwrap();
                self.take(PodEvent::Probe { container, id, kind, verdict });
            }
            18 if self.chance(3) => {
                let image = format!("i:{}", self.random.random_range(1..4));
                self.changes(|pod| {
                    let spec = pod.spec.as_mut().expect("a Pod has a specification");
                    spec.containers[0].image = Some(image);
                    pod.metadata.generation = pod.metadata.generation.map(|generation| generation + 1);
                });
            }
            19 if self.chance(3) => {
                let cpu = self.random.random_range(1..4).to_string();
                self.changes(|pod| {
                    let resources = json!({ "requests": { "cpu": cpu } });
                    let spec = pod.spec.as_mut().expect("a Pod has a specification");
                    spec.containers[0].resources = serde_json::from_value(resources).unwrap();
                    pod.metadata.generation = pod.metadata.generation.map(|generation| generation + 1);
                });
            }
            20 if self.chance(20) => {
                let failure = Failure { reason: "Evicted".into(), message: "too much".into() };
                let disruption = self.chance(2);
                self.take(PodEvent::Evict(Eviction { uid: "u1".into(), grace: 1, failure, disruption }));
            }
            21 if self.chance(20) => self.is_deleted(),
            22 if self.chance(4) => self.clock_is_set(),
            _ => {
                let seconds = self.random.random_range(0..20);
                self.passes(SignedDuration::from_secs(seconds));
            }
        }
        // Several things may happen before the Pod is planned.
        if !self.chance(4) {
            self.take(PodEvent::Sync);
        }
    }

    fn those_that_are_late(&mut self) {
        for pull in std::mem::take(&mut self.late) {
            self.comes_to_its_end(pull, true);
        }
    }

    fn is_deleted(&mut self) {
        let (now, grace) = (self.now, self.random.random_range(0..10));
        self.changes(|pod| {
            pod.metadata.deletion_timestamp.get_or_insert(Time(now));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
        });
    }

    /// The Pod is deleted, or is gone at once; and nothing fails any more.
    pub fn ends(&mut self) {
        if !self.state.is_over() {
            self.comes_to_an_end();
        }
        self.expect(self.state.is_over(), || "it does not come to its end".to_owned());
        let left = !self.running.is_empty() || self.sandbox.is_some() || !self.volumes.is_empty();
        self.expect(!left, || "something of it is left".to_owned());
        self.expect(self.object.is_none(), || "its object is left".to_owned());
    }

    fn comes_to_an_end(&mut self) {
        if self.chance(3) {
            self.object = None;
            self.take(PodEvent::Gone);
        } else {
            self.is_deleted();
        }
        self.take(PodEvent::Sync);
        for _ in 0..300 {
            if self.state.is_over() {
                break;
            }
            self.those_that_are_late();
            match self.underway.pop() {
                Some(work) => self.comes_to_its_end(work, true),
                None => self.passes(self.wake.unwrap_or_default().max(SignedDuration::ZERO)),
            }
            if self.chance(10) {
                self.clock_is_set();
            }
            self.take(PodEvent::Sync);
        }
    }
}
