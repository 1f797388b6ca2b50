//! A node whose machine panics, whose disk is full or whose Pods exceed its limits, and one that receives Pods which it cannot
//! decode.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Event, Pod};
use podwright::{
    api::{Env, Options},
    node::{
        Hollow,
        executor::{
            ActionError, Executor, ExecutorError, PullProgress, Pulled, Ran, RecoveredPod, Resized, Running,
            RuntimeEvent, StartOrder, Started,
        },
        pod::{Attempt, Exit},
        probes::PLACES,
        spec::{ContainerRef, PodExt},
        storage::{Disks, Space, Thresholds, Usage},
        usage::meter::Sample,
    },
    store::{Store, Txn, Write},
};
use podwright_runtime::sys::walk::Measure;
use serde_json::{Value, json};
use tokio::{net::TcpStream, sync::mpsc};

use super::hollow::{Cluster, cluster_over, spec, until};

/// A hollow machine that records its actions, and can be made to panic.
struct Fragile {
    hollow: Hollow,
    /// The actions to panic in, and how often.
    panics: Mutex<BTreeMap<&'static str, u32>>,
    diary: Mutex<Vec<String>>,
    found: Mutex<Vec<RecoveredPod>>,
    /// No container can be stopped.
    is_stuck: AtomicBool,
    /// Containers ignore their signals, and end when they are killed.
    is_deaf: AtomicBool,
    /// The disk is full, and removing things frees nothing.
    is_full: AtomicBool,
    left: Mutex<HashSet<String>>,
    /// There is something unused to collect on it.
    has_rubbish: AtomicBool,
    /// Running commands, and the most that ran at a time.
    commands: AtomicUsize,
    most_commands: AtomicUsize,
}

impl Fragile {
    fn new(env: Env, ranges: Vec<IpNet>) -> Fragile {
        let hollow = Hollow::new(env, ranges);
        Fragile {
            hollow,
            panics: Mutex::default(),
            diary: Mutex::default(),
            found: Mutex::default(),
            is_stuck: AtomicBool::default(),
            is_deaf: AtomicBool::default(),
            is_full: AtomicBool::default(),
            left: Mutex::default(),
            has_rubbish: AtomicBool::default(),
            commands: AtomicUsize::default(),
            most_commands: AtomicUsize::default(),
        }
    }

    fn note(&self, what: &'static str, pod: &Pod) {
        self.diary.lock().unwrap().push(format!("{what} {}", pod.name()));
        let mut panics = self.panics.lock().unwrap();
        if let Some(left) = panics.get_mut(what).filter(|left| **left > 0) {
            *left -= 1;
            drop(panics);
            panic!("no {what} today");
        }
    }

    fn did(&self, what: &str) -> usize {
        self.diary.lock().unwrap().iter().filter(|line| *line == what).count()
    }
}

#[async_trait]
impl Executor for Fragile {
    async fn tidy(&self) {
        self.diary.lock().unwrap().push("tidy".to_owned());
    }
    async fn find(&self) -> Vec<RecoveredPod> {
        self.diary.lock().unwrap().push("find".to_owned());
        self.found.lock().unwrap().clone()
    }
    fn runtime_events(&self) -> mpsc::UnboundedReceiver<RuntimeEvent> {
        self.diary.lock().unwrap().push("listen".to_owned());
        self.hollow.runtime_events()
    }
    async fn sweep(&self, living: Vec<String>) -> Vec<String> {
        self.hollow.sweep(living).await
    }
    async fn mount_volume(&self, pod: &Arc<Pod>, volume: &str) -> Result<(), ActionError> {
        self.hollow.mount_volume(pod, volume).await
    }
    async fn refresh_volumes(&self, pod: &Arc<Pod>, volumes: &[String]) -> Vec<ActionError> {
        self.hollow.refresh_volumes(pod, volumes).await
    }
    async fn release_volumes(&self, pod: &Pod) -> Result<(), ExecutorError> {
        self.hollow.release_volumes(pod).await
    }
    async fn start_sandbox(
        &self,
        pod: &Arc<Pod>,
        attempt: u32,
        history: &str,
    ) -> Result<Vec<std::net::IpAddr>, ActionError> {
        self.hollow.start_sandbox(pod, attempt, history).await
    }
    async fn stop_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError> {
        self.note("stop", pod);
        self.hollow.stop_sandbox(pod, attempt).await
    }
    async fn remove_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError> {
        self.note("remove", pod);
        self.hollow.remove_sandbox(pod, attempt).await
    }
    async fn remove(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError> {
        self.note("remove", pod);
        if self.is_full.load(Ordering::Relaxed) {
            self.left.lock().unwrap().insert(pod.uid().to_owned());
        }
        self.hollow.remove(pod, attempt).await
    }
    async fn storage(&self, pod: &Pod, _most: Duration) -> Option<Usage> {
        let bytes = BTreeMap::from([("big", 500), ("middle", 100)]).get(pod.name()).copied().unwrap_or(1);
        Some(Usage { rest: Measure { bytes, ..Measure::default() }, ..Usage::default() })
    }
    async fn disks(&self) -> Disks {
        let bytes_free = if self.is_full.load(Ordering::Relaxed) { 10 } else { 900 };
        let nodefs = Some(Space { bytes: 1000, bytes_free, inodes: 0, inodes_free: 0 });
        Disks { nodefs, ..Disks::default() }
    }
    async fn reclaim(&self, _thresholds: &Thresholds) {
        self.diary.lock().unwrap().push("reclaim".to_owned());
        if self.has_rubbish.swap(false, Ordering::Relaxed) {
            self.is_full.store(false, Ordering::Relaxed);
        }
    }
    async fn leaving(&self) -> HashSet<String> {
        self.left.lock().unwrap().clone()
    }
    async fn pull(
        &self,
        pod: &Arc<Pod>,
        part: &ContainerRef<'_>,
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Pulled, ActionError> {
        self.hollow.pull(pod, part, progress).await
    }
    async fn start(&self, pod: &Arc<Pod>, part: &ContainerRef<'_>, order: StartOrder) -> Result<Started, ActionError> {
        self.note("start", pod);
        self.hollow.start(pod, part, order).await
    }
    async fn usage(&self, pods: &[Arc<Pod>]) -> Sample {
        self.hollow.usage(pods).await
    }
    async fn resize(&self, pod: &Arc<Pod>, sandbox: u32, containers: Vec<Running>) -> Resized {
        self.note("resize", pod);
        self.hollow.resize(pod, sandbox, containers).await
    }
    async fn renews(&self, pod: &Pod, _id: &str, yes: bool) -> Result<(), ExecutorError> {
        self.note(if yes { "renews" } else { "keeps" }, pod);
        Ok(())
    }
    async fn stop(
        &self,
        pod: &Pod,
        id: &str,
        signal: Option<&str>,
        grace: Duration,
    ) -> Result<Option<Exit>, ExecutorError> {
        if self.is_stuck.load(Ordering::Relaxed) {
            return Err(ExecutorError::Failed("it cannot be stopped".into()));
        }
        if self.is_deaf.load(Ordering::Relaxed) {
            self.diary.lock().unwrap().push(format!("wait {} s", grace.as_secs_f64().round()));
            // The paused clock advances by itself when all tasks are idle: to the next timer.
            if grace > Duration::from_secs(10) {
                return std::future::pending().await;
            }
        }
        self.hollow.stop(pod, id, signal, grace).await
    }
    async fn forget(&self, pod: &Pod, attempt: &Attempt) {
        self.hollow.forget(pod, attempt).await;
    }
    async fn run(&self, pod: &Pod, id: &str, command: &[String], timeout: Duration) -> Result<Ran, ExecutorError> {
        if command == ["hang"] {
            return std::future::pending().await;
        }
        let running = self.commands.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_commands.fetch_max(running, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.commands.fetch_sub(1, Ordering::Relaxed);
        self.hollow.run(pod, id, command, timeout).await
    }
    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.hollow.connect(address).await
    }
    fn shortcomings(&self, pod: &Pod) -> Vec<String> {
        self.note("look", pod);
        self.hollow.shortcomings(pod)
    }
}

/// A node with such a machine, prepared by `prepare`.
async fn fragile(prepare: impl FnOnce(&Fragile) + Send + 'static) -> (Cluster, Arc<Fragile>) {
    let (tell, told) = tokio::sync::oneshot::channel();
    let cluster = cluster_over(move |env, ranges| {
        let machine = Arc::new(Fragile::new(env, ranges));
        prepare(&machine);
        tell.send(machine.clone()).ok();
        machine
    });
    (cluster.await, told.await.unwrap())
}

async fn events(cluster: &Cluster, reason: &str) -> Vec<String> {
    let all = cluster.client.list::<Event>(Some("default"), Options::default()).await.unwrap().items;
    all.into_iter().filter(|e| e.reason.as_deref() == Some(reason)).filter_map(|e| e.message).collect()
}

#[tokio::test(start_paused = true)]
async fn ends_of_what_is_tidied_away_are_not_heard() {
    let (cluster, machine) = fragile(|_| ()).await;
    cluster.create("web", spec()).await;
    cluster.until_phase("web", "Running").await;
    assert_eq!(machine.diary.lock().unwrap()[..3], ["tidy", "listen", "find"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_worker_panics_is_taken_up_again() {
    for what in ["look", "start"] {
        let (cluster, machine) = fragile(move |m| m.panics.lock().unwrap().extend([(what, 2)])).await;
        cluster.create("web", spec()).await;
        cluster.create("other", spec()).await;
        cluster.until_phase("web", "Running").await;
        cluster.until_phase("other", "Running").await;
        assert!(machine.did(&format!("{what} web")) + machine.did(&format!("{what} other")) >= 4);
        let told = events(&cluster, "FailedSync").await;
        let words = format!("its worker panicked: no {what} today");
        assert!(!told.is_empty() && told.iter().all(|message| message.ends_with(&words)), "{told:?}");
        cluster.client.delete::<Pod>(Some("default"), "web", None, Options::default()).await.unwrap();
        until("the Pod is gone", || async { cluster.get("web").await.is_none() }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_while_its_worker_is_broken_goes_away() {
    let (cluster, machine) = fragile(|m| m.panics.lock().unwrap().extend([("start", 1)])).await;
    cluster.create("web", spec()).await;
    until("the worker panics", || async { !events(&cluster, "FailedSync").await.is_empty() }).await;
    let now = Options { grace_period_seconds: Some(0), ..Options::default() };
    cluster.client.delete::<Pod>(Some("default"), "web", None, now).await.unwrap();
    until("all of it is removed", || async { machine.did("remove web") > 0 }).await;
}

/// The scheduler sends the next Pod as soon as the server has deleted the object, whatever is left on the node.
#[tokio::test(start_paused = true)]
async fn a_pod_that_was_deleted_by_force_takes_no_place() {
    let (cluster, machine) = fragile(|m| m.is_stuck.store(true, Ordering::Relaxed)).await;
    let mut large = spec();
    large["containers"][0]["resources"] = json!({ "requests": { "cpu": "20" } });
    cluster.create("web", large.clone()).await;
    cluster.until_phase("web", "Running").await;
    let now = Options { grace_period_seconds: Some(0), ..Options::default() };
    cluster.client.delete::<Pod>(Some("default"), "web", None, now).await.unwrap();
    cluster.create("next", large).await;
    cluster.until_phase("next", "Running").await;
    assert_eq!(machine.did("remove web"), 0);
}

/// However often less grace is given: else a container that hears no signal is there until the longest is over, and the Pod's object
/// may have been gone since.
#[tokio::test(start_paused = true)]
async fn each_shorter_grace_is_heard() {
    let (cluster, machine) = fragile(|m| m.is_deaf.store(true, Ordering::Relaxed)).await;
    let mut slow = spec();
    slow["terminationGracePeriodSeconds"] = 1_000_000.into();
    cluster.create("web", slow).await;
    cluster.until_phase("web", "Running").await;
    for grace in [1_000_000, 100_000, 50_000, 1] {
        let options = Options { grace_period_seconds: Some(grace), ..Options::default() };
        cluster.client.delete::<Pod>(Some("default"), "web", None, options).await.unwrap();
        let words = format!("wait {grace} s");
        until(&words, || async { machine.did(&words) > 0 }).await;
    }
    until("the Pod is gone", || async { cluster.get("web").await.is_none() }).await;
}

/// What is noted with a container for a later agent is true also when a stop fails and its reason goes away.
#[tokio::test(start_paused = true)]
async fn a_container_that_cannot_be_stopped_is_kept_when_its_resize_is_taken_back() {
    let (cluster, machine) = fragile(|m| m.is_stuck.store(true, Ordering::Relaxed)).await;
    let mut slow = spec();
    slow["restartPolicy"] = "OnFailure".into();
    slow["containers"][0]["resources"] = json!({ "requests": { "cpu": "1" } });
    slow["containers"][0]["resizePolicy"] = json!([{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }]);
    cluster.create("web", slow).await;
    cluster.until_phase("web", "Running").await;
    cluster.resize("web", json!({ "requests": { "cpu": "2" } })).await;
    until("it shall start anew", || async { machine.did("renews web") > 0 }).await;
    assert_eq!(machine.did("keeps web"), 0);
    cluster.resize("web", json!({ "requests": { "cpu": "1" } })).await;
    until("it shall go on", || async { machine.did("keeps web") > 0 }).await;
    // It ends for another reason then.
    let told = machine.did("renews web");
    let now = Options { grace_period_seconds: Some(0), ..Options::default() };
    machine.is_stuck.store(false, Ordering::Relaxed);
    cluster.client.delete::<Pod>(Some("default"), "web", None, now).await.unwrap();
    until("the Pod is gone", || async { cluster.get("web").await.is_none() }).await;
    assert_eq!((machine.did("renews web"), machine.did("keeps web")), (told, 1));
}

impl Cluster {
    /// Writes to the store what no server of this version would, past it.
    async fn spoil(&self, name: &str) {
        let key = format!("/registry/pods/default/{name}");
        let entry = self.store.get(&key).await.unwrap().unwrap();
        let mut object: Value = serde_json::from_slice(&entry.value).unwrap();
        object["spec"]["containers"][0]["ports"] = json!([{ "containerPort": "eighty" }]);
        let writes = vec![Write::Put(key, object.to_string().into())];
        let txn = Txn { writes, ..Txn::default() };
        self.store.commit(txn).await.unwrap();
    }
}

const FIELD: &str = "spec.containers[0].ports[0].containerPort: ";

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_read_any_more_goes_on() {
    let (cluster, machine) = fragile(|_| ()).await;
    cluster.create("web", spec()).await;
    cluster.until_phase("web", "Running").await;
    cluster.spoil("web").await;
    until("the field is named", || async {
        let told = events(&cluster, "FailedDecode").await;
        told.iter().any(|m| m.contains("goes on as it is") && m.contains(FIELD))
    })
    .await;
    assert_eq!((machine.did("stop web"), machine.did("remove web")), (0, 0));
    // It can be deleted as usual.
    cluster.client.delete::<Pod>(Some("default"), "web", None, Options::default()).await.unwrap();
    let key = "/registry/pods/default/web";
    until("it is deleted", || async { cluster.store.get(key).await.unwrap().is_none() }).await;
    assert!(machine.did("remove web") > 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_read_is_kept_over_a_restart() {
    let (first, _) = fragile(|_| ()).await;
    first.create("web", spec()).await;
    first.until_phase("web", "Running").await;
    let pod = first.get("web").await.unwrap();
    first.spoil("web").await;
    // Another agent over the same store finds the Pod as it was admitted.
    let mut known = super::ready();
    let mut container = super::running();
    container.attempt.as_mut().unwrap().image = "example.com/a:1".into();
    known.put("a", container);
    let found = RecoveredPod { pod, seen: known.seen, progress: known.progress };
    let (tell, told) = tokio::sync::oneshot::channel();
    let second = first.restarted(move |env, ranges| {
        let machine = Arc::new(Fragile::new(env, ranges));
        machine.found.lock().unwrap().push(found);
        tell.send(machine.clone()).ok();
        machine
    });
    let second = second.await;
    let machine = told.await.unwrap();
    until("the field is named", || async {
        let told = events(&second, "FailedDecode").await;
        told.iter().any(|m| m.contains("goes on as it is") && m.contains(FIELD))
    })
    .await;
    assert_eq!((machine.did("stop web"), machine.did("remove web"), machine.did("start web")), (0, 0, 0));
    let now = Options { grace_period_seconds: Some(0), ..Options::default() };
    second.client.delete::<Pod>(Some("default"), "web", None, now).await.unwrap();
    until("it is removed", || async { machine.did("remove web") > 0 }).await;
}

/// While a Pod is about to free its resources no other is evicted, but only for a limited time.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_while_it_is_evicted_is_waited_for() {
    let (cluster, machine) = fragile(|m| m.is_stuck.store(true, Ordering::Relaxed)).await;
    for name in ["big", "small"] {
        cluster.create(name, spec()).await;
        cluster.until_phase(name, "Running").await;
    }
    machine.is_full.store(true, Ordering::Relaxed);
    until("the Pod with the most is evicted", || async { events(&cluster, "Evicted").await.len() == 1 }).await;
    let now = Options { grace_period_seconds: Some(0), ..Options::default() };
    cluster.client.delete::<Pod>(Some("default"), "big", None, now).await.unwrap();
    machine.is_stuck.store(false, Ordering::Relaxed);
    until("it is gone", || async { machine.did("remove big") == 1 && cluster.get("big").await.is_none() }).await;
    let wait = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    wait(15).await;
    assert_eq!(cluster.status("small").await["phase"], "Running", "files of the other are still being removed");
    wait(20).await;
    until("the next one is evicted", || async { cluster.status("small").await["reason"] == "Evicted" }).await;
}

/// A Pod that does not go is not evicted again, and another one is.
#[tokio::test(start_paused = true)]
async fn whoever_was_evicted_and_does_not_go_is_not_evicted_again() {
    let (cluster, machine) = fragile(|m| m.is_stuck.store(true, Ordering::Relaxed)).await;
    for name in ["big", "middle", "small"] {
        cluster.create(name, spec()).await;
        cluster.until_phase(name, "Running").await;
    }
    machine.is_full.store(true, Ordering::Relaxed);
    for many in 1..=3 {
        until("one after the other is evicted", || async { events(&cluster, "Evicted").await.len() == many }).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(events(&cluster, "Evicted").await.len(), many, "each has its time");
    }
}

/// What is always about to go gives back nothing in the end.
#[tokio::test(start_paused = true)]
async fn a_disk_that_is_full_again_and_again_is_made_room_on_though_somebody_always_leaves() {
    let (cluster, machine) = fragile(|m| m.left.lock().unwrap().extend(["somebody".to_owned()])).await;
    cluster.create("big", spec()).await;
    cluster.until_phase("big", "Running").await;
    for second in 0..40 {
        machine.is_full.store(second % 6 < 3, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(cluster.status("big").await["reason"], "Evicted");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_needs_goes_before_anybody_is_waited_for() {
    let (cluster, machine) = fragile(|m| m.left.lock().unwrap().extend(["somebody".to_owned()])).await;
    cluster.create("big", spec()).await;
    cluster.until_phase("big", "Running").await;
    machine.has_rubbish.store(true, Ordering::Relaxed);
    machine.is_full.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(machine.did("reclaim") == 1 && !machine.is_full.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(cluster.status("big").await["phase"], "Running");
}

/// Whoever has them waits himself, and hears of it.
#[tokio::test(start_paused = true)]
async fn probes_that_hang_are_in_nobody_elses_way() {
    let (cluster, _machine) = fragile(|_| ()).await;
    let probe = |word: &str| json!({ "exec": { "command": [word] }, "timeoutSeconds": 100_000 });
    let mut hangs = spec();
    hangs["containers"][0]["readinessProbe"] = probe("hang");
    hangs["containers"][0]["livenessProbe"] = probe("hang");
    for n in 0..80 {
        cluster.create(&format!("p{n}"), hangs.clone()).await;
    }
    until("it is told that probes wait", || async { !events(&cluster, "ProbeDelayed").await.is_empty() }).await;
    let told = events(&cluster, "ProbeDelayed").await;
    let words = "probe has waited 10s for its turn: too many commands of probes are running, or hang";
    assert!(told.iter().all(|message| message.ends_with(words)) && told.len() <= 160 - 128, "{told:?}");
    let mut fine = spec();
    fine["containers"][0]["readinessProbe"] = probe("true");
    let pod = json!({ "metadata": { "name": "fine", "namespace": "kube-system" }, "spec": fine });
    cluster.client.create(&serde_json::from_value::<Pod>(pod).unwrap()).await.unwrap();
    let begun = tokio::time::Instant::now();
    until("a Pod of another namespace is ready", || async {
        let pod: Pod = cluster.client.get(Some("kube-system"), "fine").await.unwrap();
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
    })
    .await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// Each has its time from its turn on.
#[tokio::test(start_paused = true)]
async fn many_probes_run_a_few_commands_at_a_time_and_none_fails_for_it() {
    let (cluster, machine) = fragile(|_| ()).await;
    let mut probed = spec();
    probed["containers"][0]["readinessProbe"] = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
    for n in 0..80 {
        cluster.create(&format!("p{n}"), probed.clone()).await;
    }
    for n in 0..80 {
        let name = format!("p{n}");
        let is_ready = || async {
            let status = cluster.status(&name).await;
            status["conditions"]
                .as_array()
                .is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
        };
        until("it is ready", is_ready).await;
    }
    assert_eq!(machine.most_commands.load(Ordering::Relaxed), PLACES);
    assert_eq!(events(&cluster, "Unhealthy").await, [""; 0]);
}
