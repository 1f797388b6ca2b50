//! Probes: one task per container and kind sends requests (`http`, `grpc`) in its turn (`pace`, `share`), counts results
//! (`verdict`), and sends the verdict to the Pod's worker.

pub mod address;
pub mod attempt;
pub mod error;
pub mod grpc;
pub mod http;
mod pace;
mod share;
pub(crate) mod verdict;

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Pod, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use tokio::{sync::mpsc, task::AbortHandle, time::Instant};

use super::{
    Shared,
    counters::table::{PROBES_DURATION, PROBES_TOTAL, PROBES_WAIT},
    events,
    executor::ExecutorError,
    panics,
    pod::event::PodEvent,
    spec::PodExt,
};

pub use address::address;
use attempt::Attempt;
pub use error::ProbeError;
use pace::Patience;
pub use pace::{PLACES, Pace};
pub use share::Share;
pub use verdict::{Counter, Finding, Kind, Verdict, spec};

/// A running container, as its probes see it.
#[derive(Clone)]
pub struct Target {
    pub shared: Arc<Shared>,
    pub pod: Arc<Pod>,
    pub container: Container,
    pub id: String,
    pub ips: Vec<IpAddr>,
    pub started_at: Timestamp,
}

/// The probes of one Pod.
#[derive(Default)]
pub struct Probes {
    tasks: HashMap<(String, Kind), AbortHandle>,
    /// Containers whose startup probe has not succeeded yet: the other probes wait.
    gated: HashMap<String, (Target, mpsc::UnboundedSender<PodEvent>)>,
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Probes {
    pub fn start(&mut self, target: Target, started: bool, inbox: mpsc::UnboundedSender<PodEvent>) {
        let name = target.container.name.clone();
        self.stop(&name, false);
        if !started {
            self.spawn(target.clone(), Kind::Startup, inbox.clone());
            self.gated.insert(name, (target, inbox));
            return;
        }
        self.spawn(target.clone(), Kind::Liveness, inbox.clone());
        self.spawn(target, Kind::Readiness, inbox);
    }

    /// The startup probe has succeeded: starts the others.
    pub fn started(&mut self, container: &str) {
        if let Some((target, inbox)) = self.gated.remove(container) {
            self.start(target, true, inbox);
        }
    }

    pub fn stop(&mut self, container: &str, keep_readiness: bool) {
        self.gated.remove(container);
        self.tasks.retain(|(name, kind), task| {
            let keep = name != container || (keep_readiness && *kind == Kind::Readiness);
            if !keep {
                task.abort();
            }
            keep
        });
    }

    /// A terminating Pod is no longer killed by probes, but still reports readiness.
    pub fn keep_readiness_only(&mut self) {
        let names: Vec<String> = self.tasks.keys().map(|(name, _)| name.clone()).collect();
        for name in names {
            self.stop(&name, true);
        }
    }

    pub fn clear(&mut self) {
        self.gated.clear();
        for (_, task) in self.tasks.drain() {
            task.abort();
        }
    }

    fn spawn(&mut self, target: Target, kind: Kind, inbox: mpsc::UnboundedSender<PodEvent>) {
        let Some(probe) = spec(&target.container, kind).cloned() else { return };
        let key = (target.container.name.clone(), kind);
        let task = tokio::spawn(async move {
            if let Err(why) = panics::caught(watch(target, kind, probe, inbox.clone())).await {
                inbox.send(PodEvent::Broken(why)).ok();
            }
        });
        let task = task.abort_handle();
        if let Some(old) = self.tasks.insert(key, task) {
            old.abort();
        }
    }
}

/// Probes until aborted, or until a final verdict: any of a startup probe, a bad one of a liveness probe.
async fn watch(target: Target, kind: Kind, probe: Probe, inbox: mpsc::UnboundedSender<PodEvent>) {
    let seconds =
        |n: Option<i32>, default: i32, least: i32| Duration::from_secs(n.unwrap_or(default).max(least) as u64);
    let (delay, period) = (seconds(probe.initial_delay_seconds, 0, 0), seconds(probe.period_seconds, 10, 1));
    let limit = seconds(probe.timeout_seconds, 1, 1);
    let age = Duration::try_from(target.shared.env.now().duration_since(target.started_at)).unwrap_or_default();
    tokio::time::sleep(delay.saturating_sub(age)).await;
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut counter, mut told, mut patience) = (Counter::new(&probe), None, Patience::default());
    loop {
        ticks.tick().await;
        let turn = turn(&target, kind, &probe, &mut patience).await;
        let attempt = turn.attempt();
        let finding = attempt.cost.clone().of(async {
            // The timeout starts here: waiting for a turn must not fail a probe.
            let begin = Instant::now();
            let finding = probe_once(&target, &probe, limit, &attempt).await;
            count(&target, kind, &finding, begin.elapsed());
            tell(&target, kind, &finding);
            finding
        });
        let finding = finding.await;
        drop(turn);
        let Some(verdict) = counter.count(&finding) else { continue };
        if told == Some(verdict) {
            continue;
        }
        told = Some(verdict);
        let (container, id) = (target.container.name.clone(), target.id.clone());
        if inbox.send(PodEvent::Probe { container, id, kind, verdict }).is_err() {
            return;
        }
        match (kind, verdict) {
            (Kind::Startup, _) | (Kind::Liveness, Verdict::Bad) => return,
            _ => {}
        }
    }
}

/// A turn that limits the probe's cost: process creation, or network traffic and its processing.
enum Turn {
    Command { _turn: pace::Turn },
    Asking(share::Turn),
}

impl Turn {
    fn attempt(&self) -> Attempt {
        match self {
            Turn::Command { .. } => Attempt::default(),
            Turn::Asking(turn) => turn.attempt(),
        }
    }
}

/// Waits for a turn; the Pod's events report long delays.
async fn turn(target: &Target, kind: Kind, probe: &Probe, patience: &mut Patience) -> Turn {
    let (begun, container) = (Instant::now(), target.container.name.as_str());
    let why = match probe.exec {
        Some(_) => "too many commands of probes are running, or hang",
        None => "too many probes wait for answers, or take too much of the node's CPUs",
    };
    let tell = |waited: Duration| {
        if patience.is_news(waited) {
            let waited = events::duration(Duration::from_secs(waited.as_secs()));
            let message = format!("{} probe has waited {waited} for its turn: {why}", kind.title());
            target.shared.recorder.warning(target.pod.about(Some(container)), "ProbeDelayed", message);
        }
    };
    let (shared, namespace) = (&target.shared, target.pod.namespace());
    let turn = match probe.exec {
        Some(_) => Turn::Command { _turn: shared.pace.take(namespace, tell).await },
        None => Turn::Asking(shared.share.take(namespace, tell).await),
    };
    let waited = begun.elapsed();
    patience.ends(waited);
    let labels = [kind.title(), container, target.pod.name(), target.pod.namespace()];
    target.shared.counters.observe(&PROBES_WAIT, &labels, waited);
    turn
}

fn count(target: &Target, kind: Kind, finding: &Finding, took: Duration) {
    let (counters, pod, container) = (&target.shared.counters, &target.pod, target.container.name.as_str());
    let (kind, result) = (kind.title(), if matches!(finding, Finding::Failure(_)) { "failed" } else { "successful" });
    counters.add(&PROBES_TOTAL, &[kind, result, container, pod.name(), pod.namespace(), pod.uid()]);
    counters.observe(&PROBES_DURATION, &[kind, container, pod.name(), pod.namespace()], took);
}

fn tell(target: &Target, kind: Kind, finding: &Finding) {
    let about = || target.pod.about(Some(&target.container.name));
    match finding {
        Finding::Success => {}
        Finding::Warning(why) => {
            let message = format!("{} probe warning: {why}", kind.title());
            target.shared.recorder.warning(about(), "ProbeWarning", message);
        }
        Finding::Failure(why) => {
            let message = format!("{} probe failed: {why}", kind.title());
            target.shared.recorder.warning(about(), "Unhealthy", message);
        }
    }
}

async fn probe_once(target: &Target, probe: &Probe, limit: Duration, attempt: &Attempt) -> Finding {
    let work = async {
        if let Some(exec) = &probe.exec {
            return exec_probe(target, exec.command.as_deref().unwrap_or_default(), limit).await;
        }
        if let Some(get) = &probe.http_get {
            let executor = target.shared.executor.as_ref();
            return http::probe(executor, get, &target.container, &target.ips, attempt).await;
        }
        if let Some(tcp) = &probe.tcp_socket {
            let address = match address(tcp.host.as_deref(), &tcp.port, &target.container, &target.ips) {
                Ok(address) => address,
                Err(why) => return Finding::Failure(why.to_string()),
            };
            return match target.shared.executor.connect(address).await {
                Ok(_) => Finding::Success,
                Err(source) => Finding::Failure(ProbeError::Dial { address, source }.to_string()),
            };
        }
        if let Some(call) = &probe.grpc {
            let service = call.service.as_deref().unwrap_or_default();
            let port = IntOrString::Int(call.port);
            return match address(None, &port, &target.container, &target.ips) {
                Ok(address) => grpc::probe(target.shared.executor.as_ref(), address, service, attempt).await,
                Err(why) => Finding::Failure(why.to_string()),
            };
        }
        Finding::Failure("missing probe handler".to_owned())
    };
    match tokio::time::timeout(limit, work).await {
        Ok(finding) => finding,
        Err(_) if probe.exec.is_some() => Finding::Failure(ExecutorError::TimedOut(limit).to_string()),
        Err(_) => Finding::Failure("context deadline exceeded (timed out while awaiting an answer)".to_owned()),
    }
}

async fn exec_probe(target: &Target, command: &[String], limit: Duration) -> Finding {
    match target.shared.executor.run(&target.pod, &target.id, command, limit).await {
        Ok(ran) if ran.code == 0 => Finding::Success,
        Ok(ran) => Finding::Failure(ran.output),
        Err(why) => Finding::Failure(why.to_string()),
    }
}
