//! A machine and a server for one Pod, in memory: they do its effects as a seed has it, and hold it to its promises.

mod drawn;
mod happenings;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Pod, PodStatus, ResourceRequirements},
    apimachinery::pkg::apis::meta::v1::Time,
};
use podwright::{
    api::Status,
    node::{
        backoff::LONGEST,
        executor::{ActionError, ExecutorError, Pulled, Reason, Resized, Running, Started},
        hooks::HookError,
        plan,
        pod::{ActionResult, Effect, Eviction, Exit, Failure, PodEvent, PodState, Work, next},
        probes::{Kind, Verdict},
        resize::{Allocation, Allotment},
        spec::PodExt,
        status::Host,
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};

use super::{at, pod};
use drawn::{VOLUMES, spec};

pub fn exit(code: i32, finished_at: Timestamp) -> Exit {
    let reason = if code == 0 { "Completed" } else { "Error" };
    Exit { code, reason: reason.into(), message: None, finished_at }
}

/// The subject of work: at most one work per subject at a time.
fn subject(work: &Work) -> String {
    match work {
        Work::MountVolume { volume } => format!("volume {volume}"),
        Work::ReleaseVolumes => "volumes".to_owned(),
        Work::RefreshVolumes { .. } => "files".to_owned(),
        Work::StartSandbox { .. } | Work::StopSandbox { .. } | Work::RemoveSandbox { .. } => "sandbox".to_owned(),
        Work::Pull { container, .. } | Work::Start { container, .. } | Work::Stop { container, .. } => {
            format!("container {container}")
        }
        Work::PostStart { id, .. } => format!("hook of {id}"),
        Work::Note { id, .. } => format!("note with {id}"),
        Work::Resize { .. } => "resources".to_owned(),
        Work::Remove { .. } => "all".to_owned(),
        Work::WriteStatus { .. } | Work::ReadStatus { .. } | Work::DeleteObject { .. } => "object".to_owned(),
    }
}

/// An event in short.
fn short(event: &PodEvent) -> String {
    let answer = |result: &Result<Pod, Status>| match result {
        Ok(pod) => format!("revision {:?}", pod.metadata.resource_version),
        Err(status) => status.to_string(),
    };
    match event {
        PodEvent::Wanted(pod, _) => {
            let (meta, image) = (&pod.metadata, &pod.spec.as_ref().expect("a specification").containers[0].image);
            format!("wanted: {:?} {image:?} {:?}", meta.resource_version, meta.deletion_timestamp)
        }
        PodEvent::Done(ActionResult::Written(result)) => format!("written: {}", answer(result)),
        PodEvent::Done(ActionResult::Read(result)) => format!("read: {}", answer(result)),
        other => format!("{other:?}"),
    }
}

pub struct World {
    seed: u64,
    random: StdRng,
    now: Timestamp,
    /// How much time has passed, however the clock was set.
    passed: SignedDuration,
    state: PodState,
    underway: Vec<Work>,
    /// Pulls that were cancelled when they had come to their ends already.
    late: Vec<Work>,
    /// The running containers, by id.
    running: BTreeMap<String, String>,
    /// The current sandbox.
    sandbox: Option<u32>,
    /// The mounted volumes.
    volumes: BTreeSet<String>,
    /// The server's object, until it is deleted.
    object: Option<Pod>,
    /// How long there is nothing to do.
    wake: Option<SignedDuration>,
    history: Vec<String>,
    pub starts: u32,
    pub restarts: u32,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut random = StdRng::seed_from_u64(seed);
        let mut object = pod(spec(&mut random));
        (object.metadata.resource_version, object.metadata.generation) = (Some("1".into()), Some(1));
        let pod = Arc::new(object.clone());
        let allotment = Allotment::new(&pod, Allocation::of(&pod));
        let state = PodState::new(pod, &allotment, Default::default(), Host::default(), at(0));
        let mut world = World {
            seed,
            random,
            now: at(0),
            passed: SignedDuration::ZERO,
            state,
            underway: Vec::new(),
            late: Vec::new(),
            running: BTreeMap::new(),
            sandbox: None,
            volumes: BTreeSet::new(),
            object: Some(object),
            wake: None,
            history: Vec::new(),
            starts: 0,
            restarts: 0,
        };
        world.take(PodEvent::Start);
        world.take(PodEvent::Sync);
        world
    }

    fn fail(&self, why: &str) -> ! {
        panic!("POD_SEED={}: {why}\n{}\n{:#?}", self.seed, self.history.join("\n"), self.state.inputs());
    }

    fn expect(&self, holds: bool, why: impl Fn() -> String) {
        if !holds {
            self.fail(&why());
        }
    }

    /// Whether no container of the Pod uses this volume.
    fn lacks(&self, volume: &str) -> bool {
        !self.state.wanted.pod.parts().iter().any(|part| part.volumes().any(|used| used == volume))
    }

    fn chance(&mut self, of: u32) -> bool {
        self.random.random_range(0..of) == 0
    }

    /// An event, and what is done about it. What comes of one is the same each time, and nothing is left to do after `Sync`.
    fn take(&mut self, event: PodEvent) {
        self.history.push(format!("{} s: {}", self.now.duration_since(at(0)).as_secs(), short(&event)));
        let is_sync = matches!(event, PodEvent::Sync);
        let is_compared = is_sync && self.chance(8);
        let (state, effects) = next(self.state.clone(), event, self.now);
        if is_compared {
            let (again, same) = next(self.state.clone(), PodEvent::Sync, self.now);
            let told = format!("{state:?}{effects:?}");
            self.expect(told == format!("{again:?}{same:?}"), || "the same gives something else".to_owned());
        }
        if is_sync {
            let rest = plan::plan(&state.wanted.pod, state.inputs(), self.now).actions;
            self.expect(rest.is_empty(), || format!("there is more to do: {rest:?}"));
        }
        self.state = state;
        if is_sync {
            self.is_ended_in_time();
        }
        effects.into_iter().for_each(|effect| self.act(effect));
        let quiet = self.running.is_empty() && !self.underway.iter().any(|w| matches!(w, Work::Start { .. }));
        self.expect(quiet || !self.state.has_ended(), || "it says that it has ended, and runs".to_owned());
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Begin(_, work) => {
                let told = match &work {
                    Work::WriteStatus { status, .. } => format!("write {}", status["phase"]),
                    Work::StartSandbox { attempt, .. } => format!("sandbox {attempt}"),
                    Work::ReadStatus { .. } | Work::DeleteObject { .. } => subject(&work),
                    work => format!("{work:?}"),
                };
                self.history.push(format!("    begins {told}"));
                self.may_begin(&work);
                self.underway.push(work);
            }
            Effect::CancelPull(name) => {
                let found =
                    self.underway.iter().position(|w| matches!(w, Work::Pull { container, .. } if *container == name));
                let Some(place) = found else { self.fail("a pull is cancelled that is not under way") };
                let pull = self.underway.remove(place);
                if self.chance(2) {
                    self.late.push(pull);
                }
            }
            Effect::Shorten { container: name, deadline } => {
                self.is_soon(deadline);
                let is_it = |w: &Work| matches!(w, Work::Stop { container, .. } if *container == name);
                self.expect(self.underway.iter().any(is_it), || format!("no stop of {name} is under way"));
            }
            Effect::Wake(at) => self.waits(at),
            Effect::GiveUp(why) => self.fail(&why),
            _ => {}
        }
    }

    /// Nothing waits for long but for the end of the time that a Pod may be active.
    fn waits(&mut self, until: Option<Timestamp>) {
        self.wake = until.map(|at| at.duration_since(self.now));
        let seconds = self.state.wanted.pod.spec().active_deadline_seconds;
        let deadline =
            seconds.zip(self.state.observed.active_since).map(|(seconds, start)| plan::after(start, seconds));
        let is_timed = deadline.is_some() && until == deadline;
        let is_long = self.wake.is_some_and(|wait| wait > SignedDuration::try_from(LONGEST).expect("minutes"));
        self.expect(!is_long || is_timed, || format!("it waits for {:?}", self.wake));
    }

    /// All that a Pod is given to end is short here.
    fn is_soon(&self, deadline: Timestamp) {
        let left = deadline.duration_since(self.now).as_secs();
        self.expect(left <= 10, || format!("an end takes {left} s"));
    }

    /// The clock is set, by hours or by a little.
    fn clock_is_set(&mut self) {
        let most = *[30, 7200].choose(&mut self.random).unwrap();
        let step = self.random.random_range(-most..=most);
        self.history.push(format!("    the clock is set by {step} s"));
        let by = SignedDuration::from_secs(step);
        self.now += by;
        self.take(PodEvent::ClockSet(by));
    }

    fn passes(&mut self, time: SignedDuration) {
        self.now += time;
        self.passed += time;
    }

    /// A Pod is ended after the time that it may be active, and no earlier, whatever the clock says.
    fn is_ended_in_time(&self) {
        let Some(seconds) = self.state.wanted.pod.spec().active_deadline_seconds else { return };
        let is_over = self.passed >= SignedDuration::from_secs(seconds);
        let failure = self.state.intent.stop().and_then(|stop| stop.failure.as_ref());
        let is_ended = failure.is_some_and(|failure| failure.reason == "DeadlineExceeded");
        let holds = if is_ended { is_over } else { !is_over || !self.state.intent.is_run() };
        self.expect(holds, || {
            format!("after {:?} of {seconds} s it {} ended", self.passed, if is_ended { "is" } else { "is not" })
        });
    }

    fn may_begin(&mut self, work: &Work) {
        let about = subject(work);
        let other = self.underway.iter().find(|other| subject(other) == about);
        self.expect(other.is_none(), || format!("{work:?} while {other:?}"));
        match work {
            Work::Start { container, order } => {
                let alive = self.running.values().any(|running| running == container);
                self.expect(!alive, || format!("{container} runs already"));
                let sandbox = self.state.observed.sandbox.attempt == order.sandbox;
                let has_volumes = VOLUMES.iter().all(|name| self.volumes.contains(*name) || self.lacks(name));
                self.expect(sandbox && has_volumes, || format!("{container} lacks sandbox or volumes"));
                self.restarts += u32::from(order.restart > 0);
            }
            Work::StopSandbox { .. } | Work::RemoveSandbox { .. } | Work::Remove { .. } | Work::ReleaseVolumes => {
                let of_container = |w: &&Work| subject(w).starts_with("container");
                let busy = self.underway.iter().find(of_container);
                self.expect(busy.is_none(), || format!("{work:?} while {busy:?}"));
                let writes = |w: &&Work| {
                    matches!(w, Work::MountVolume { .. } | Work::RefreshVolumes { .. } | Work::ReleaseVolumes)
                };
                let writes = self.underway.iter().find(writes);
                let unmounts = matches!(work, Work::ReleaseVolumes | Work::Remove { .. });
                self.expect(writes.is_none() || !unmounts, || format!("{work:?} while {writes:?}"));
            }
            Work::Stop { deadline, .. } => self.is_soon(*deadline),
            Work::MountVolume { volume } => {
                self.expect(!self.volumes.contains(volume), || format!("{volume} is mounted already"));
                self.expect(!self.lacks(volume), || format!("{volume} is mounted for nobody"));
            }
            Work::RefreshVolumes { volumes } => {
                let mounted = volumes.iter().all(|volume| self.volumes.contains(volume));
                self.expect(mounted, || format!("not all of {volumes:?} are mounted"));
            }
            Work::DeleteObject { .. } => {
                let left = !self.running.is_empty() || self.sandbox.is_some() || !self.volumes.is_empty();
                self.expect(!left, || "the object goes, and something of it is left".to_owned());
            }
            Work::WriteStatus { status, .. } => {
                let phase = self.object.as_ref().and_then(|o| o.status.as_ref()).and_then(|s| s.phase.clone());
                let is_terminal = phase.as_deref().is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase));
                let stays = !is_terminal || status["phase"].as_str() == phase.as_deref();
                self.expect(stays, || format!("{phase:?} becomes {}", status["phase"]));
            }
            _ => {}
        }
    }

    /// Work ends, well or not, and the machine is as it is then.
    fn comes_to_its_end(&mut self, work: Work, well: bool) {
        let trouble = |reason| ActionError::new(reason, "no luck");
        let fails = !well && self.chance(3);
        let result = match work {
            Work::MountVolume { volume } if fails => {
                ActionResult::VolumeMounted { volume, result: Err(trouble(Reason::FailedMount)) }
            }
            Work::MountVolume { volume } => {
                self.volumes.insert(volume.clone());
                ActionResult::VolumeMounted { volume, result: Ok(()) }
            }
            Work::RefreshVolumes { .. } if fails => ActionResult::VolumesRefreshed(vec![trouble(Reason::FailedMount)]),
            Work::RefreshVolumes { .. } => ActionResult::VolumesRefreshed(Vec::new()),
            Work::ReleaseVolumes if fails => {
                ActionResult::VolumesReleased(Err(ExecutorError::Failed("no luck".into())))
            }
            Work::ReleaseVolumes => {
                self.volumes.clear();
                ActionResult::VolumesReleased(Ok(()))
            }
            Work::StartSandbox { .. } if fails => ActionResult::Sandbox(Err(trouble(Reason::FailedCreatePodSandBox))),
            Work::StartSandbox { attempt, .. } => {
                self.sandbox = Some(attempt);
                ActionResult::Sandbox(Ok(vec!["10.0.0.7".parse().unwrap()]))
            }
            Work::StopSandbox { .. } if fails => {
                ActionResult::SandboxStopped(Err(ExecutorError::Failed("no luck".into())))
            }
            Work::StopSandbox { .. } => {
                self.sandbox_ends();
                ActionResult::SandboxStopped(Ok(()))
            }
            Work::RemoveSandbox { .. } if fails => {
                ActionResult::SandboxRemoved(Err(ExecutorError::Failed("no luck".into())))
            }
            Work::RemoveSandbox { .. } => {
                self.sandbox_ends();
                ActionResult::SandboxRemoved(Ok(()))
            }
            Work::Pull { container, image } => {
                let reason = *[Reason::ErrImagePull, Reason::InvalidImageName].choose(&mut self.random).unwrap();
                let pulled = Pulled { id: format!("sha256:{image}"), pulled: None, size: 1 };
                let result = if fails { Err(trouble(reason)) } else { Ok(pulled) };
                ActionResult::Pulled { container, image, result }
            }
            Work::Start { container, order } => {
                let (restart, id) = (order.restart, format!("u1_{}/{container}.{}", order.sandbox, order.restart));
                let reason = *[Reason::StartError, Reason::CreateContainerError].choose(&mut self.random).unwrap();
                let result = match self.sandbox {
                    Some(there) if there == order.sandbox && !fails => Ok(Started { id: id.clone(), at: self.now }),
                    _ => Err(trouble(reason)),
                };
                if result.is_ok() {
                    self.starts += 1;
                    if self.chance(8) {
                        // It ends faster than anybody tells of its start.
                        let (container, exit) = (container.clone(), exit(1, self.now));
                        self.take(PodEvent::Exited { container, id, exit });
                    } else {
                        self.running.insert(id, container.clone());
                    }
                }
                let resources = self.given(&container);
                ActionResult::Started { container, restart, resources, result }
            }
            Work::PostStart { container, id, .. } => {
                let result = if fails { Err(HookError::GraceOver) } else { Ok(()) };
                ActionResult::PostStart { container, id, result }
            }
            Work::Stop { container, id, .. } if fails => {
                ActionResult::Stopped { container, id, result: Err(ExecutorError::Failed("no luck".into())) }
            }
            Work::Stop { container, id, .. } => {
                let code = self.random.random_range(0..2) * 137;
                let there = self.running.remove(&id).map(|_| exit(code, self.now));
                ActionResult::Stopped { container, id, result: Ok(there) }
            }
            Work::Note { .. } => ActionResult::Noted,
            Work::Resize { containers, .. } => {
                let result = if fails { Err(ExecutorError::Failed("no luck".into())) } else { Ok(()) };
                let has =
                    |c: &Running| if fails { c.has.clone() } else { self.given(&c.container).unwrap_or_default() };
                ActionResult::Resized(Resized {
                    has: containers.iter().map(|c| (c.id.clone(), has(c))).collect(),
                    result,
                })
            }
            Work::Remove { .. } if fails => ActionResult::Removed(Err(ExecutorError::Failed("no luck".into()))),
            Work::Remove { .. } => {
                self.sandbox_ends();
                self.volumes.clear();
                ActionResult::Removed(Ok(()))
            }
            Work::WriteStatus { status, .. } => ActionResult::Written(Box::new(self.writes(status, fails))),
            Work::ReadStatus { .. } => {
                ActionResult::Read(Box::new(self.object.clone().ok_or_else(|| Status::not_found("pods", "", "web"))))
            }
            Work::DeleteObject { .. } if fails => ActionResult::Deleted(Err(Status::internal("no luck"))),
            Work::DeleteObject { .. } => {
                self.object = None;
                ActionResult::Deleted(Ok(()))
            }
        };
        self.take(PodEvent::Done(result));
    }

    /// The resources that a container should have now.
    fn given(&self, container: &str) -> Option<ResourceRequirements> {
        self.state.wanted.pod.part(container).and_then(|part| part.container.resources.clone())
    }

    fn writes(&mut self, status: Value, fails: bool) -> Result<Pod, Status> {
        if fails {
            return Err(match self.random.random_range(0..3) {
                0 => Status::conflict("pods", "", "web", "somebody was faster"),
                1 => Status::forbidden("pods", "", "web", "not yet"),
                _ => Status::internal("no luck"),
            });
        }
        let Some(object) = &mut self.object else { return Err(Status::not_found("pods", "", "web")) };
        let status: PodStatus = serde_json::from_value(status).expect("a status");
        object.status = Some(status);
        bump(object);
        Ok(object.clone())
    }

    fn sandbox_ends(&mut self) {
        self.sandbox = None;
        self.running.clear();
    }

    /// The server's object changes, and the node is notified.
    fn changes(&mut self, change: impl FnOnce(&mut Pod)) {
        let Some(object) = &mut self.object else { return };
        change(object);
        bump(object);
        let pod = Arc::new(object.clone());
        let allotment =
            Allotment { allocated: Allocation::of(&pod), pending: None, generation: pod.metadata.generation };
        self.take(PodEvent::Wanted(pod, allotment));
    }
}

fn bump(pod: &mut Pod) {
    let revision = pod.metadata.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
    pod.metadata.resource_version = Some((revision + 1).to_string());
}
