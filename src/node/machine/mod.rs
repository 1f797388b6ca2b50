//! The executor of a real node: `podwright-runtime`, its images, and `podwright-net`, below one set of folders.

mod adopt;
mod error;
pub mod file_systems;
mod healing;
pub mod image_gc;
pub mod images;
mod managed;
mod own_users;
pub(crate) mod places;
mod qos_cgroups;
pub mod quota;
mod resize;
pub(crate) mod start;
pub mod storage;
mod termination;
mod usage;

pub use places::Places;
pub use start::Inside;

use std::{
    collections::{HashMap, HashSet},
    fmt::Display,
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use podwright_net::{Network, cni::Request};
use podwright_proxy::Gate;
use podwright_runtime::{
    ContainerId, Error as RuntimeError, ExecSpec, JournalWriter, Labels, Resources, Role, Runtime, SandboxStatus,
    image::ImageStore, removals::Owner, sys::Kernel,
};
use tokio::{net::TcpStream, sync::mpsc};

use super::{
    admission::protections::Protections,
    disk,
    executor::{
        ActionError, Executor, ExecutorError, PullProgress, Pulled, Ran, Reason, RecoveredPod, Resized, Running,
        RuntimeEvent, StartOrder, Started,
    },
    labels, logs,
    objects::Objects,
    pod::observed::{Attempt, Exit},
    spec::{self, ContainerRef, PodExt, revision},
    storage::{Disks, Thresholds, Usage},
    translate::{
        self,
        env::Facts,
        files::{self, Names},
        sandbox_id, split_sandbox_id,
    },
    usage::meter::Sample,
    users::Users,
    verification::VerificationPolicy,
    volumes::Volumes,
};
use error::{Error, all};
use image_gc::ImageGc;
use podwright_api::{Env, signal};
use qos_cgroups::QosCgroups;
use quota::Quotas;

/// The default stop signal.
const SIGTERM: (&str, i32) = ("SIGTERM", 15);

pub struct Machine {
    pub runtime: Runtime,
    pub images: ImageStore,
    /// Which images every Pod may use.
    pub verification: VerificationPolicy,
    pub network: Network,
    /// Where Pods wait until their policies are in force.
    pub gate: Gate,
    pub objects: Arc<Objects>,
    pub volumes: Arc<Volumes>,
    pub env: Env,
    pub places: Places,
    pub names: Names,
    /// The node's allocatable resources.
    pub facts: Facts,
    pub pids_max: Option<u64>,
    /// The host ids of the Pods' users.
    pub users: Users,
    /// What Pods may request.
    pub protections: Protections,
    /// cgroup v2 controllers that this host does not have.
    pub missing_controllers: Vec<String>,
    pub journals: Mutex<HashMap<String, JournalWriter>>,
    pub qos_cgroups: QosCgroups,
    /// Which Pods' quotas are trusted.
    pub quotas: Quotas,
    /// Layers without an image, to be deleted once unused.
    pub image_gc: Arc<ImageGc>,
}

fn sandbox_error(error: impl Display) -> ActionError {
    ActionError::new(Reason::FailedCreatePodSandBox, error)
}

impl Machine {
    /// The Pod's journal, labelled with its current revision.
    pub fn journal(&self, pod: &Pod) -> JournalWriter {
        if !self.places.journal || pod.annotation(spec::JOURNAL) == Some("off") {
            return JournalWriter::none();
        }
        let mut journals = self.journals.lock().unwrap_or_else(|p| p.into_inner());
        let journal = journals.entry(pod.uid().to_owned()).or_insert_with(|| {
            JournalWriter::open_soon(&self.places.journals.join(pod.uid()), Role::Agent, |path, error| {
                tracing::warn!(%error, path = %path.display(), "failed to open the journal of kernel operations");
            })
        });
        journal.about(pod.uid(), revision(pod))
    }

    /// Sets the CPU weight of each QoS class's cgroup to the sum of its Pods' requests, as upstream does.
    pub fn weigh(&self, pod: &Pod, present: bool) {
        self.qos_cgroups.count(pod, present, |class, weight| {
            let resources = Resources { cpu_weight: Some(weight), ..Resources::default() };
            let journal = self.journal(pod).at("status.qosClass");
            if let Err(error) = self.runtime.make_cgroup(&translate::class_cgroup(class), &resources, &journal) {
                tracing::warn!(%error, class = class.as_str(), "failed to set the weight of a QoS class cgroup");
            }
        });
    }

    /// Makes the Pod's journal include its elements in the Services' tables, selected by its labels.
    fn follow(&self, pod: &Pod) {
        self.network.follow(pod.uid(), &self.journal(pod).at("metadata.labels"));
    }

    /// Whether an address currently is the Pod's: of its own network, or the node's for host network Pods.
    pub fn has_address(&self, pod: &Pod, ip: IpAddr) -> bool {
        match pod.host_network() {
            true => self.facts.host_ips.contains(&ip),
            false => self.network.addresses_of(pod.uid()).is_some_and(|ips| ips.contains(&ip)),
        }
    }

    pub fn facts(&self, ips: &[IpAddr]) -> Facts {
        Facts { pod_ips: ips.to_vec(), ..self.facts.clone() }
    }

    /// The newest sandbox of a Pod.
    pub async fn newest_sandbox(&self, uid: &str) -> Option<SandboxStatus> {
        let all = self.runtime.list().await;
        all.into_iter().filter(|s| split_sandbox_id(&s.spec.id).0 == uid).max_by_key(|s| split_sandbox_id(&s.spec.id).1)
    }

    /// The Pod's running sandboxes that cannot be used any more, and why.
    fn lost(&self, pod: &Pod) -> impl Iterator<Item = (String, String)> {
        self.runtime.lost().into_iter().filter(|(id, _)| split_sandbox_id(id).0 == pod.uid())
    }
}

#[async_trait]
impl Executor for Machine {
    async fn find(&self) -> Vec<RecoveredPod> {
        let found = adopt::find(self, None).await;
        found.iter().for_each(|found| self.gate.adopted(&found.pod));
        self.gate.recovered();
        found
    }

    async fn tidy(&self) {
        adopt::tidy(self, None).await;
    }

    async fn find_one(&self, uid: &str) -> Option<RecoveredPod> {
        adopt::tidy(self, Some(uid)).await;
        let found = adopt::find(self, Some(uid)).await.pop();
        found.iter().for_each(|found| self.gate.adopted(&found.pod));
        found
    }

    fn runtime_events(&self) -> mpsc::UnboundedReceiver<RuntimeEvent> {
        let (sender, receiver) = mpsc::unbounded_channel();
        termination::forward(&self.runtime, self.volumes_root(), sender.clone());
        healing::look_after(&self.runtime, &self.volumes, sender.clone());
        healing::start(&self.network, &self.runtime, sender);
        receiver
    }

    async fn sweep(&self, living: Vec<String>) -> Vec<String> {
        let errors = adopt::sweep(self, living).await;
        images::collect_soon(self);
        errors
    }

    async fn mount_volume(&self, pod: &Arc<Pod>, volume: &str) -> Result<(), ActionError> {
        // Invariant: the volumes of a Pod never change.
        let Some(volume) = pod.volume(volume) else { return Ok(()) };
        let ips = self.network.addresses_of(pod.uid()).unwrap_or_default();
        Ok(self.volumes.set_up(pod, volume, &self.facts(&ips), &self.journal(pod)).await?)
    }

    async fn refresh_volumes(&self, pod: &Arc<Pod>, volumes: &[String]) -> Vec<ActionError> {
        let facts = self.facts(&self.network.addresses_of(pod.uid()).unwrap_or_default());
        let mut failed = Vec::new();
        for volume in volumes.iter().filter_map(|name| pod.volume(name)) {
            failed.extend(
                self.volumes.refresh(pod, volume, &facts, &self.journal(pod)).await.err().map(ActionError::from),
            );
        }
        failed
    }

    async fn release_volumes(&self, pod: &Pod) -> Result<(), ExecutorError> {
        self.volumes.release(pod, &self.journal(pod)).await.map_err(Error::from)?;
        storage::clear(self, pod).await?;
        Ok(own_users::give_back(self, pod).await?)
    }

    /// 1. the sandbox itself, 2. its link and addresses, 3. its policies, which are in force before anything of the Pod runs.
    async fn start_sandbox(&self, pod: &Arc<Pod>, attempt: u32, history: &str) -> Result<Vec<IpAddr>, ActionError> {
        if !pod.has_own_users() {
            self.users.are_hosts(pod.uid());
        }
        if let Some((id, why)) = self.lost(pod).next() {
            return Err(sandbox_error(Error::SandboxLost { id, why }));
        }
        places::check(&self.log_dir(pod)).map_err(sandbox_error)?;
        let hostname = files::hostname(pod, &self.names.domain);
        let mut spec = translate::sandbox(pod, attempt, &hostname, self.places.network.as_deref(), self.pids_max);
        spec.annotation = serde_json::to_value(&**pod).map_err(sandbox_error)?.to_string();
        spec.labels.insert(labels::HISTORY.to_owned(), history.to_owned());
        spec.users = match pod.has_own_users() {
            true => Some(self.users.take(pod.uid(), pod.namespace()).map_err(sandbox_error)?),
            false => None,
        };
        let (volumes, of, users, found) = (self.volumes.clone(), pod.clone(), spec.users, self.users.found(pod.uid()));
        let noted = disk::work(move || volumes.note_owner(&of, users, found)).await.map_err(sandbox_error)?;
        noted.map_err(sandbox_error)?;
        self.weigh(pod, true);
        let journal = self.journal(pod);
        let id = spec.id.clone();
        self.runtime.run_sandbox(spec, &journal.at("spec")).await.map_err(sandbox_error)?;
        if pod.host_network() {
            return Ok(self.facts.host_ips.clone());
        }
        let netns = self.runtime.netns(&id).await.map_err(sandbox_error)?;
        let journal = journal.at("spec.hostNetwork");
        let request = match self.network.has_plugins() {
            true => translate::network::request(pod, &id).map_err(sandbox_error)?,
            false => Request::default(),
        };
        let network = self.network.attach_asking(pod.uid(), netns, &request, &journal);
        let network = network.await.map_err(sandbox_error)?;
        self.follow(pod);
        self.gate.admit(pod).await.map_err(sandbox_error)?;
        Ok(network.addresses)
    }

    async fn stop_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError> {
        let stopped = self.runtime.stop_sandbox(&sandbox_id(pod.uid(), attempt), &self.journal(pod)).await;
        let detached = self.network.detach(pod.uid(), &self.journal(pod)).await;
        Ok(all([stopped.map_err(Error::from), detached.map_err(Error::from)])?)
    }

    async fn remove_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError> {
        Ok(self.end_sandbox(pod, attempt).await?)
    }

    /// A Pod that leaves much data waits until less remains: otherwise short-lived Pods would fill the disk with data waiting for
    /// deletion.
    async fn remove(&self, pod: &Pod, attempt: u32) -> Result<(), ExecutorError> {
        self.take_apart(pod, attempt).await?;
        self.runtime.removals().room(pod.namespace()).await;
        Ok(())
    }

    async fn pull(
        &self,
        pod: &Arc<Pod>,
        part: &ContainerRef<'_>,
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Pulled, ActionError> {
        images::pull(self, pod, part, progress).await
    }

    async fn start(&self, pod: &Arc<Pod>, part: &ContainerRef<'_>, order: StartOrder) -> Result<Started, ActionError> {
        if order.restart > 0 && !self.runtime.removals().has_room(pod.namespace()) {
            let why = "too much that containers of the namespace have left is still being removed";
            return Err(ActionError::new(Reason::CreateContainerError, why));
        }
        // An agent may have ended between a sandbox and its policies, and its successor has found the sandbox.
        if order.restart == 0 && !pod.host_network() {
            let refused = |why| ActionError::new(Reason::CreateContainerError, why);
            self.gate.admit(pod).await.map_err(refused)?;
        }
        self.start_container(pod, part, order).await
    }

    async fn usage(&self, _pods: &[Arc<Pod>]) -> Sample {
        usage::sample(self).await
    }

    async fn storage(&self, pod: &Pod, most: Duration) -> Option<Usage> {
        storage::usage(self, pod, most, true).await
    }

    async fn disks(&self) -> Disks {
        file_systems::disks(self)
    }

    async fn leaving(&self) -> HashSet<String> {
        storage::leaving(self)
    }

    async fn reclaim(&self, thresholds: &Thresholds) {
        storage::reclaim(self, thresholds).await;
    }

    async fn resize(&self, pod: &Arc<Pod>, sandbox: u32, containers: Vec<Running>) -> Resized {
        resize::resize(self, pod, sandbox, containers).await
    }

    async fn renews(&self, pod: &Pod, id: &str, yes: bool) -> Result<(), ExecutorError> {
        let id: ContainerId = id.parse().map_err(Error::from)?;
        let note = Labels::from([(labels::RENEWS.to_owned(), yes.to_string())]);
        match self.runtime.update_container(&id, &Resources::default(), note, &self.journal(pod)).await {
            // It exited by itself meanwhile: nothing to stop.
            Ok(_) | Err(RuntimeError::NotFound(_) | RuntimeError::Conflict(_)) => Ok(()),
            Err(other) => Err(Error::from(other).into()),
        }
    }

    async fn stop(
        &self,
        pod: &Pod,
        id: &str,
        asked: Option<&str>,
        grace: Duration,
    ) -> Result<Option<Exit>, ExecutorError> {
        let id: ContainerId = id.parse().map_err(Error::from)?;
        let own = match pod.part(&id.name).and_then(|part| part.container.image.clone()) {
            Some(image) => images::stop_signal(self, image).await,
            None => None,
        };
        let asked = asked.or(own.as_deref()).unwrap_or(SIGTERM.0);
        let signal = signal::of_image(asked).unwrap_or_else(|| {
            tracing::warn!(%id, asked, "unknown stop signal: sending SIGTERM");
            SIGTERM.1
        });
        let exit = match self.runtime.stop_container(&id, signal, grace, &self.journal(pod)).await {
            Err(RuntimeError::NotFound(_) | RuntimeError::ShimGone(_)) => None,
            other => other.map_err(Error::from)?,
        };
        Ok(match exit {
            Some(exit) => Some(termination::exit(&self.runtime, &self.volumes_root(), &id, &exit).await),
            None => None,
        })
    }

    async fn forget(&self, pod: &Pod, attempt: &Attempt) {
        let Ok(id) = attempt.id.parse::<ContainerId>() else { return };
        if let Err(error) = self.runtime.remove_container(&id, &self.journal(pod)).await {
            tracing::warn!(%error, %id, "failed to remove an earlier attempt of a container");
        }
        // Like kubelet, keeps the logs of the last and the current attempt.
        if let Some(older) = id.attempt.checked_sub(1) {
            for file in logs::files::of_attempt(&self.log(pod, &id.name, older)) {
                std::fs::remove_file(file).ok();
            }
        }
    }

    async fn run(&self, pod: &Pod, id: &str, command: &[String], timeout: Duration) -> Result<Ran, ExecutorError> {
        Ok(self.exec(pod, id, command, timeout).await?)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.network.netns().tcp_connect(address).await.map_err(|e| match e {
            podwright_net::Error::Call { source, .. } => source,
            other => io::Error::other(other),
        })
    }

    fn shortcomings(&self, pod: &Pod) -> Vec<String> {
        let limited = pod.parts().iter().any(|p| {
            p.container.resources.as_ref().and_then(|r| r.limits.as_ref()).is_some_and(|limits| !limits.is_empty())
        });
        let missing = self.missing_controllers.join(", ");
        let message = format!("Resource limits are not enforced: this host lacks the cgroup v2 controllers {missing}");
        let resources = (limited && !missing.is_empty()).then_some(message);
        let traffic = translate::network::unlimited(pod, self.network.plugins_limit_bandwidth());
        resources.into_iter().chain(traffic).collect()
    }
}

impl Machine {
    /// Runs a command inside a container until it ends.
    async fn exec(&self, pod: &Pod, id: &str, command: &[String], timeout: Duration) -> error::Result<Ran> {
        let id: ContainerId = id.parse()?;
        let Inside { mut process, seccomp } = self.inside(&id).await?;
        process.set_args(Some(command.to_vec()));
        process.set_terminal(Some(false));
        let spec = ExecSpec { process, seccomp, stdin: false, size: None };
        match self.runtime.exec_sync(&id, spec, timeout, &self.journal(pod)).await {
            Ok(output) => {
                let both = [output.stdout, output.stderr].concat();
                Ok(Ran { code: output.code, output: String::from_utf8_lossy(&both).into_owned() })
            }
            Err(RuntimeError::Timeout(..)) => Err(Error::TimedOut(timeout)),
            Err(other) => Err(other.into()),
        }
    }

    /// Removes a sandbox with everything in it, and its Pod's link.
    async fn end_sandbox(&self, pod: &Pod, attempt: u32) -> error::Result<()> {
        let removed = self.runtime.remove_sandbox(&sandbox_id(pod.uid(), attempt), &self.journal(pod)).await;
        let detached = self.network.detach(pod.uid(), &self.journal(pod)).await;
        all([removed.map_err(Error::from), detached.map_err(Error::from)])
    }

    /// Stops everything of a Pod and moves its data on disk aside.
    async fn take_apart(&self, pod: &Pod, attempt: u32) -> error::Result<()> {
        let mut sandbox = self.end_sandbox(pod, attempt).await;
        for (id, _) in self.lost(pod) {
            let removed = self.runtime.remove_sandbox(&id, &self.journal(pod)).await;
            sandbox = all([sandbox, removed.map_err(Error::from)]);
        }
        self.weigh(pod, false);
        images::collect_soon(self);
        let volumes = self.volumes.remove(pod, self.users.of(pod.uid()), &self.journal(pod)).await.map_err(Error::from);
        let (logs, removals) = (self.log_dir(pod), self.runtime.removals().clone());
        let owner = Owner::new(pod.namespace(), None);
        let logs = disk::work(move || places::remove_logs(&logs, &removals, &owner)).await;
        let logs = logs.map_err(Error::Panicked).flatten();
        let journal = self.journals.lock().unwrap_or_else(|p| p.into_inner()).remove(pod.uid());
        let journal = match journal {
            Some(journal) => journal.remove(),
            None => podwright_journal::remove(&self.places.journals.join(pod.uid())),
        };
        let journal = journal.map_err(Error::Journal);
        self.quotas.forget(pod.uid());
        // Until then only this records which ids its users have.
        if sandbox.is_ok() && volumes.is_ok() {
            self.users.free(pod.uid());
        }
        all([sandbox, volumes, logs, journal])
    }

    /// Stops and removes every Pod, and unmounts the agent's own mounts. Returns all errors as text.
    pub async fn teardown(&self) -> Vec<String> {
        let mut errors = Vec::new();
        // Containers that were starting while the workers ended appear a moment later.
        for _ in 0..3 {
            let found = self.find().await;
            let removals = found.iter().map(|f| self.take_apart(&f.pod, f.seen.sandbox.attempt));
            let removed = futures::future::join_all(removals).await;
            errors = removed.into_iter().filter_map(|removed| Some(removed.err()?.to_string())).collect();
            if found.is_empty() {
                break;
            }
        }
        errors.extend(adopt::sweep(self, Vec::new()).await);
        let collected = images::collect(&self.runtime, &self.images, &self.image_gc).await;
        errors.extend(collected.err().map(|e| format!("images: {e}")));
        errors.extend(self.runtime.removals().drained().await);
        errors.extend(self.volumes.close().err().map(|error| error.to_string()));
        let journals = &self.places.journals;
        errors.extend(Kernel::new(&JournalWriter::none()).unmount_all(journals).err().map(|e| e.to_string()));
        errors.extend(self.runtime.remove_root(&JournalWriter::none()).await.err().map(|e| e.to_string()));
        errors
    }

    fn volumes_root(&self) -> PathBuf {
        self.volumes.root().to_owned()
    }
}
