//! An executor that counts and times its operations under the names of upstream's CRI metrics.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use tokio::{net::TcpStream, sync::mpsc, time::Instant};

use super::{
    counters::{
        Counters,
        table::{
            OPERATIONS_DURATION, OPERATIONS_ERRORS, OPERATIONS_TOTAL, STARTED_CONTAINERS, STARTED_CONTAINERS_ERRORS,
            STARTED_PODS, STARTED_PODS_ERRORS,
        },
    },
    executor::{
        ActionError, Executor, ExecutorError, PullProgress, Pulled, Ran, RecoveredPod, Resized, Running, RuntimeEvent,
        StartOrder, Started,
    },
    pod::observed::{Attempt, Exit},
    spec::{ContainerRef, Role},
    storage::{Disks, Thresholds, Usage},
    usage::meter::Sample,
};

pub struct Counted {
    inner: Arc<dyn Executor>,
    counters: Arc<Counters>,
}

impl Counted {
    pub fn new(inner: Arc<dyn Executor>, counters: Arc<Counters>) -> Counted {
        Counted { inner, counters }
    }

    async fn operation<T, E>(&self, name: &str, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let begin = Instant::now();
        let result = work.await;
        self.count(name, begin, result.is_ok());
        result
    }

    fn count(&self, name: &str, begin: Instant, good: bool) {
        self.counters.add(&OPERATIONS_TOTAL, &[name]);
        self.counters.observe(&OPERATIONS_DURATION, &[name], begin.elapsed());
        if !good {
            self.counters.add(&OPERATIONS_ERRORS, &[name]);
        }
    }
}

/// Upstream's metric label for the container's role.
fn container_type(role: Role) -> &'static str {
    match role {
        Role::Init | Role::Sidecar => "init_container",
        Role::Main => "container",
        Role::Ephemeral => "ephemeral_container",
    }
}

#[async_trait]
impl Executor for Counted {
    async fn tidy(&self) {
        self.inner.tidy().await;
    }
    async fn find(&self) -> Vec<RecoveredPod> {
        self.inner.find().await
    }
    async fn find_one(&self, uid: &str) -> Option<RecoveredPod> {
        self.inner.find_one(uid).await
    }
    fn runtime_events(&self) -> mpsc::UnboundedReceiver<RuntimeEvent> {
        self.inner.runtime_events()
    }
    async fn sweep(&self, living: Vec<String>) -> Vec<String> {
        self.inner.sweep(living).await
    }
    async fn mount_volume(&self, pod: &Arc<Pod>, volume: &str) -> Result<(), ActionError> {
        self.inner.mount_volume(pod, volume).await
    }
    async fn refresh_volumes(&self, pod: &Arc<Pod>, volumes: &[String]) -> Vec<ActionError> {
        self.inner.refresh_volumes(pod, volumes).await
    }
    async fn release_volumes(&self, pod: &Pod) -> Result<(), ExecutorError> {
        self.inner.release_volumes(pod).await
    }

    async fn start_sandbox(&self, pod: &Arc<Pod>, attempt: u32, history: &str) -> Result<Vec<IpAddr>, ActionError> {
        self.counters.add(&STARTED_PODS, &[]);
        let started = self.operation("run_podsandbox", self.inner.start_sandbox(pod, attempt, history)).await;
        if started.is_err() {
            self.counters.add(&STARTED_PODS_ERRORS, &[]);
        }
        started
    }
    async fn stop_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError> {
        self.operation("stop_podsandbox", self.inner.stop_sandbox(pod, attempt)).await
    }
    async fn remove_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError> {
        self.operation("remove_podsandbox", self.inner.remove_sandbox(pod, attempt)).await
    }
    async fn remove(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError> {
        self.operation("remove_podsandbox", self.inner.remove(pod, attempt)).await
    }

    async fn pull(
        &self,
        pod: &Arc<Pod>,
        part: &ContainerRef<'_>,
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Pulled, ActionError> {
        // An image that is already present involves no registry operation.
        let (begin, pulling) = (Instant::now(), AtomicBool::new(false));
        let told = |happened: PullProgress| {
            pulling.fetch_or(matches!(happened, PullProgress::Pulling), Ordering::Relaxed);
            progress(happened);
        };
        let result = self.inner.pull(pod, part, &told).await;
        if pulling.load(Ordering::Relaxed) {
            self.count("pull_image", begin, result.is_ok());
        }
        result
    }

    async fn start(&self, pod: &Arc<Pod>, part: &ContainerRef<'_>, order: StartOrder) -> Result<Started, ActionError> {
        let kind = container_type(part.role);
        self.counters.add(&STARTED_CONTAINERS, &[kind]);
        let started = self.operation("start_container", self.inner.start(pod, part, order)).await;
        if let Err(trouble) = &started {
            self.counters.add(&STARTED_CONTAINERS_ERRORS, &[kind, trouble.reason.as_str()]);
        }
        started
    }
    async fn resize(&self, pod: &Arc<Pod>, sandbox: u32, containers: Vec<Running>) -> Resized {
        let begin = Instant::now();
        let resized = self.inner.resize(pod, sandbox, containers).await;
        self.count("update_container", begin, resized.result.is_ok());
        resized
    }
    async fn renews(&self, pod: &Pod, id: &str, yes: bool) -> Result<(), ExecutorError> {
        self.inner.renews(pod, id, yes).await
    }
    async fn stop(
        &self,
        pod: &Pod,
        id: &str,
        signal: Option<&str>,
        grace: Duration,
    ) -> Result<Option<Exit>, ExecutorError> {
        self.operation("stop_container", self.inner.stop(pod, id, signal, grace)).await
    }
    async fn forget(&self, pod: &Pod, attempt: &Attempt) {
        let begin = Instant::now();
        self.inner.forget(pod, attempt).await;
        self.count("remove_container", begin, true);
    }
    async fn run(&self, pod: &Pod, id: &str, command: &[String], timeout: Duration) -> Result<Ran, ExecutorError> {
        self.operation("exec_sync", self.inner.run(pod, id, command, timeout)).await
    }
    async fn connect(&self, address: SocketAddr) -> std::io::Result<TcpStream> {
        self.inner.connect(address).await
    }
    async fn usage(&self, pods: &[Arc<Pod>]) -> Sample {
        self.inner.usage(pods).await
    }
    async fn storage(&self, pod: &Pod, most: Duration) -> Option<Usage> {
        self.inner.storage(pod, most).await
    }
    async fn disks(&self) -> Disks {
        self.inner.disks().await
    }
    async fn leaving(&self) -> HashSet<String> {
        self.inner.leaving().await
    }
    async fn reclaim(&self, thresholds: &Thresholds) {
        self.inner.reclaim(thresholds).await;
    }
    fn shortcomings(&self, pod: &Pod) -> Vec<String> {
        self.inner.shortcomings(pod)
    }
}
