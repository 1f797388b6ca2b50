//! One Pod as a pure function: `(PodState, PodEvent, now) -> (PodState, Vec<Effect>)`. The worker feeds it events and executes its
//! effects.
//!
//! ```text
//!                       events                       next()                              effects
//!  pods.rs    Wanted, Gone, Mirror, Evict --.    .-- wishes.rs      what should happen      --.    Begin(Work) -> executor, server
//!  runtime    Exited, SandboxGone ----------|--->|-- containers.rs  each container's course   |    Probes, Record, CancelPull, Shorten
//!  probes     Probe ------------------------|    |-- results.rs     ends of work              |--> Wake: send `Sync` then
//!  worker.rs  Start, Sync (nothing more for |    |-- resize.rs      resources                 |
//!             now, or it is time), ClockSet,|    '-- actions.rs     Sync: plan.rs, report.rs -'
//!             Done -------------------------'
//!        ^                                                                                    |
//!        '------------------- Done(ActionResult): each Work that was begun ends in one -------'
//! ```
//!
//! [`PodState`] separates the desired state from the Pod's sources ([`Wanted`]), the node's intent ([`Intent`]), the observed
//! state ([`Observed`]), what is in hand: work under way, retries and back-offs ([`Progress`]), and the status reported to the
//! server ([`Report`]). Volumes are mounted independently ([`PodVolumes`]): a failing one holds up the containers, but no other
//! volume. Events change these; only `Sync` plans: while the plan has actions, each marks what it begins, and becomes effects.
//! Every wait (back-off, a deadline, a held write) is a time in the state, and `Wake` names the next one. No wait exceeds the
//! maximum of its kind, even if the clock is changed; the active deadline counts elapsed time.
//!
//! Nothing here reads a clock, asks the machine or the server, or knows what executes the effects: a real node, a hollow one and
//! the simulated ones run the same function.

mod actions;
mod containers;
pub(crate) mod effect;
pub(crate) mod event;
mod flapping;
pub(crate) mod history;
pub(crate) mod inputs;
pub(crate) mod intent;
pub(crate) mod observed;
pub(crate) mod progress;
pub(crate) mod report;
mod resize;
mod results;
pub mod start;
pub(crate) mod state;
pub(crate) mod step;
pub(crate) mod volumes;
pub(crate) mod wanted;
mod wishes;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::spec::PodExt;

pub use crate::resize::progress::{Resize, ResizeProgress};
pub use effect::{Effect, ProbeChange, ProbedContainer, Record, Work};
pub use event::{ActionResult, PodEvent};
pub use inputs::Inputs;
pub use intent::{Eviction, Failure, Intent, Stop};
pub use observed::{Attempt, Container, Exit, Image, Observed, Sandbox, SandboxState, Unhealthy};
pub use progress::{Busy, ContainerProgress, Progress, Refresh, SandboxProgress};
pub use report::{Report, Standing, shares_conditions};
pub use state::PodState;
pub use step::Step;
pub use volumes::{PodVolumes, VolumeState, VolumeStates};
pub use wanted::Wanted;

/// Applies an event to a Pod; returns its new state and the effects, in order.
pub fn next(mut state: PodState, event: PodEvent, now: Timestamp) -> (PodState, Vec<Effect>) {
    let mut turn = Turn { state: &mut state, now, effects: Vec::new() };
    turn.keep_to_grace();
    turn.take(event);
    let effects = turn.effects;
    (state, effects)
}

/// The processing of one event.
struct Turn<'a> {
    state: &'a mut PodState,
    now: Timestamp,
    effects: Vec<Effect>,
}

impl Turn<'_> {
    fn take(&mut self, event: PodEvent) {
        match event {
            PodEvent::Start => self.begins(),
            PodEvent::Sync => self.sync(),
            PodEvent::ClockSet(by) => self.clock_set(by),
            PodEvent::Wanted(pod, allotment) => self.wanted(pod, allotment),
            PodEvent::Mirror(mirror) => self.state.report.shown_by(mirror),
            PodEvent::Gone => {
                self.state.wanted.gone = true;
                self.apply_deletion();
            }
            PodEvent::Exited { container, id, exit } => self.exited(&container, &id, exit),
            PodEvent::SandboxGone { attempt } => self.sandbox_gone(attempt),
            PodEvent::Resync => self.resync(),
            PodEvent::Evict(eviction) => {
                // A Pod that has ended by itself is not evicted.
                self.sync();
                self.evict(eviction);
            }
            PodEvent::Probe { container, id, kind, verdict } => self.probed(&container, &id, kind, verdict),
            PodEvent::Done(result) => self.done(result),
            PodEvent::Broken(why) => self.effects.push(Effect::GiveUp(why)),
        }
    }

    fn pod(&self) -> &Arc<Pod> {
        &self.state.wanted.pod
    }

    fn begin(&mut self, work: Work) {
        self.effects.push(Effect::Begin(self.pod().clone(), work));
    }

    fn probes(&mut self, change: ProbeChange) {
        self.effects.push(Effect::Probes(change));
    }

    fn normal(&mut self, container: Option<&str>, reason: &str, message: impl Into<String>) {
        self.record(false, container, reason, message.into());
    }

    fn warning(&mut self, container: Option<&str>, reason: &str, message: impl Into<String>) {
        self.record(true, container, reason, message.into());
    }

    fn record(&mut self, warning: bool, container: Option<&str>, reason: &str, message: String) {
        let about = self.pod().about(container);
        self.effects.push(Effect::Record(Record { about, warning, reason: reason.to_owned(), message }));
    }
}
