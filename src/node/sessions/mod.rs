//! Sessions that the server asks this node to open. Each dials a stream back and serves frames over it.

mod ahead;
mod exec;
mod forward;
pub mod frames;
mod image;
mod inspect;
mod plain;
mod why;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use futures::SinkExt;
use podwright_runtime::{ContainerId, ContainerState};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::{codec::Framed, sync::CancellationToken};

use super::{disk, endpoints::Endpoints, logs, machine::Machine, residents::Residents, spec::PodExt};
use frames::{Frames, receive, send};
use podwright_api::{
    Status,
    rpc::{InspectOptions, PodRef, Session, Task},
    shares::{Shares, Slot},
    stream::{Frame, FrameCodec, STATUS, STDOUT},
};
use podwright_client::Client;

const RECONNECT: Duration = Duration::from_millis(500);
/// Maximum concurrent sessions of this node, and with one Pod, whose shim has its own descriptor limit. The servers also limit them
/// by user; but there may be several servers, and they do not limit superusers.
const SESSIONS: usize = 2048;
const WITH_POD: usize = 256;

pub struct Sessions {
    pub(super) machine: Arc<Machine>,
    pub(super) endpoints: Arc<Endpoints>,
    pub(super) residents: Arc<Residents>,
    pub(super) client: Client,
    pub(super) node: String,
    pub(super) open: Open,
}

/// The output may be large: one Pod at a time is inspected, for a limited time.
static INSPECTING: Semaphore = Semaphore::const_new(1);
const INSPECTION: Duration = Duration::from_secs(30);
/// A journal is small but grows as JSON: also one at a time, which is quick.
static TRACING: Semaphore = Semaphore::const_new(1);
/// Time limit for reading the output, and the total KiB of outputs waiting to be read.
static SEEN: Semaphore = Semaphore::const_new(KIBIBYTES as usize);
const KIBIBYTES: u32 = 32 << 10;
const READING: Duration = Duration::from_secs(30);

/// Open sessions: in total, by user, and by Pod uid.
#[derive(Clone)]
pub(super) struct Open {
    all: Arc<Shares>,
    with_pods: Arc<Mutex<HashMap<String, usize>>>,
}

/// Counts one open session until dropped.
struct Counted {
    open: Open,
    pod: Option<String>,
    place: Slot,
}

impl Default for Open {
    fn default() -> Open {
        Open { all: Shares::new(SESSIONS), with_pods: Arc::default() }
    }
}

impl Open {
    /// Counts one more; 429 if a limit is exceeded. If all places are taken, the user with the most sessions loses the oldest one.
    fn enter(&self, user: &str, pod: Option<&str>) -> Result<Counted, Status> {
        let too_many = |most: usize, what: &str| {
            let why = format!("Too many sessions are open ({most} with this {what}), please try again later.");
            Status::too_many_requests(why, 1)
        };
        let mut with_pods = self.lock();
        if pod.is_some_and(|uid| with_pods.get(uid).is_some_and(|open| *open >= WITH_POD)) {
            return Err(too_many(WITH_POD, "Pod"));
        }
        let place = self.all.enter(user, SESSIONS).ok_or_else(|| too_many(SESSIONS, "node"))?;
        if let Some(uid) = pod {
            *with_pods.entry(uid.to_owned()).or_default() += 1;
        }
        Ok(Counted { open: self.clone(), pod: pod.map(str::to_owned), place })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        // Nothing panics while the maps are changed.
        self.with_pods.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut with_pods = self.open.lock();
        if let Some(uid) = &self.pod
            && let Some(count) = with_pods.get_mut(uid)
        {
            *count -= 1;
            if *count == 0 {
                with_pods.remove(uid);
            }
        }
    }
}

impl Sessions {
    /// Accepts sessions until `shutdown`; subscribes again when the connection breaks.
    pub async fn serve(self, shutdown: CancellationToken) {
        let this = Arc::new(self);
        let work = async {
            loop {
                match this.client.sessions(&this.node).await {
                    Ok(mut sessions) => {
                        while let Some(session) = sessions.recv().await {
                            tokio::spawn(this.clone().open(session));
                        }
                    }
                    Err(status) => tracing::debug!(%status, "no sessions"),
                }
                tokio::time::sleep(RECONNECT).await;
            }
        };
        tokio::select! {
            () = work => {}
            () = shutdown.cancelled() => {}
        }
    }

    async fn open(self: Arc<Sessions>, session: Session) {
        let stream = match self.client.dial(&session.id).await {
            Ok(stream) => stream,
            Err(status) => return tracing::warn!(%status, "failed to open the stream of a session"),
        };
        let mut frames = Framed::new(stream, FrameCodec);
        let result = match self.open.enter(&session.user, session.task.pod().map(|pod| pod.uid.as_str())) {
            Ok(counted) => self.counted(&mut frames, session.task, &counted).await,
            Err(full) => Err(full),
        };
        let status = result.err().unwrap_or_else(Status::success);
        let payload = Bytes::from(serde_json::to_vec(&status).unwrap_or_default());
        // A client that hung up does not receive the status.
        frames.send(Frame { channel: STATUS, payload }).await.ok();
        frames.close().await.ok();
    }

    /// Runs a session until it ends, or must make room for others.
    async fn counted(&self, frames: &mut Frames, task: Task, counted: &Counted) -> Result<(), Status> {
        let lasts = matches!(
            task,
            Task::Log { .. } | Task::Exec { .. } | Task::Attach { .. } | Task::PortForward { .. } | Task::Dial { .. }
        );
        // Operations on the node itself are never interrupted.
        let lost = if lasts { counted.place.lasting() } else { CancellationToken::new() };
        tokio::select! {
            result = self.run(frames, task) => result,
            () = lost.cancelled() => {
                let why = "the session had to end for those of others, who have fewer with this node";
                Err(Status::too_many_requests(why, 1))
            }
        }
    }

    async fn run(&self, frames: &mut Frames, task: Task) -> Result<(), Status> {
        let machine = &self.machine;
        match task {
            Task::Log { pod, log } => {
                let pod = self.resident(&pod, Some(&log.container)).await?;
                logs::serve::log(machine, frames, &pod, log).await
            }
            Task::Exec { pod, exec } => {
                let pod = self.resident(&pod, Some(&exec.container)).await?;
                exec::exec(machine, frames, &pod, exec).await
            }
            Task::Attach { pod, exec } => {
                let pod = self.resident(&pod, Some(&exec.container)).await?;
                exec::attach(machine, frames, &pod, exec).await
            }
            Task::PortForward { pod, port } => {
                forward::port(machine, frames, &self.resident(&pod, None).await?, port).await
            }
            Task::Endpoints => plain::carry(frames, |stream| self.endpoints.serve(stream)).await,
            Task::Dial { address, pod } => {
                let pod = match pod {
                    Some(pod) => Some(self.residents.sought(&pod).await?),
                    None => None,
                };
                forward::dial(machine, frames, &address, pod.as_deref()).await
            }
            Task::Image(options) => image::serve(machine, frames, options).await,
            Task::Inspect { pod, options } => {
                let (found, _room) = self.inspected(&pod, options).await?;
                show(frames, found).await
            }
            Task::Trace { pod } => {
                let (found, _room) = trace(machine, &self.resident(&pod, None).await?).await?;
                show(frames, found).await
            }
        }
    }

    /// Inspects a Pod; returns the output and reserves its space until it is read.
    async fn inspected(
        &self,
        pod: &PodRef,
        options: InspectOptions,
    ) -> Result<(Bytes, SemaphorePermit<'static>), Status> {
        let is_node = options.packet.is_some() && pod.uid.is_empty();
        let pod = if is_node { pod.clone() } else { self.resident(pod, None).await? };
        // Neither is ever closed.
        let _place = INSPECTING.acquire().await.map_err(Status::internal)?;
        let look = async {
            match options {
                InspectOptions { packet: Some(packet), .. } => why::why(self, &pod, &packet).await,
                InspectOptions { policies: true, .. } => inspect::policies(&self.machine, &pod).await,
                _ => inspect::inspect(&self.machine, &pod).await,
            }
        };
        let looked = tokio::time::timeout(INSPECTION, look).await;
        let found = looked.map_err(|_| Status::timeout("the Pod could not be looked at in time"))??.to_string();
        let room = room_for(found.len())?;
        Ok((Bytes::from(found), room))
    }

    /// The Pod of a session, looked up in this node's own table, with the node's uid for it. Checks the container name, as it
    /// becomes part of paths.
    async fn resident(&self, object: &PodRef, container: Option<&str>) -> Result<PodRef, Status> {
        let pod = self.residents.sought(object).await?;
        if let Some(container) = container.filter(|name| pod.part(name).is_none()) {
            let why = format!("container {container} is not valid for pod {}", pod.name());
            return Err(Status::bad_request(why));
        }
        Ok(PodRef { uid: pod.uid().to_owned(), ..object.clone() })
    }
}

/// The Pod's journal as JSON lines, ordered by time, with reserved space until they are read.
async fn trace(machine: &Machine, pod: &PodRef) -> Result<(Bytes, SemaphorePermit<'static>), Status> {
    // Never closed.
    let _place = TRACING.acquire().await.map_err(Status::internal)?;
    let path = machine.places.journals.join(&pod.uid);
    let read = move || {
        podwright_journal::flush();
        let records = podwright_journal::read(&path).map_err(|e| format!("the Pod's journal: {e}"))?;
        let mut lines = Vec::new();
        for record in records {
            serde_json::to_writer(&mut lines, &record).map_err(|e| e.to_string())?;
            lines.push(b'\n');
        }
        Ok(lines)
    };
    let lines = disk::work(read).await.flatten().map_err(Status::internal)?;
    let room = room_for(lines.len())?;
    Ok((Bytes::from(lines), room))
}

/// Reserves space for this many bytes of output.
fn room_for(bytes: usize) -> Result<SemaphorePermit<'static>, Status> {
    let kibibytes = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).min(KIBIBYTES);
    SEEN.try_acquire_many(kibibytes).map_err(|_| {
        let why = "Too much that was seen of Pods waits for its readers, please try again later.";
        Status::too_many_requests(why.to_owned(), 1)
    })
}

/// Sends the output if it is read in time.
async fn show(frames: &mut Frames, seen: Bytes) -> Result<(), Status> {
    let sent = tokio::time::timeout(READING, send(frames, STDOUT, seen)).await;
    sent.map_err(|_| Status::timeout("what was seen of the Pod was not read in time"))?
}

/// The running attempt of a container.
async fn running(machine: &Machine, pod: &PodRef, container: &str) -> Result<ContainerId, Status> {
    let missing = || Status::not_found("pods", "", &pod.name);
    let sandbox = machine.newest_sandbox(&pod.uid).await.ok_or_else(missing)?;
    let is_it = |id: &ContainerId| container.is_empty() || id.name == container;
    let found = sandbox.containers.iter().rev().find(|c| is_it(&c.id) && c.state == ContainerState::Running);
    match found {
        Some(status) => Ok(status.id.clone()),
        None => {
            let why = format!("container {container} is not running in pod {}", pod.name);
            Err(Status::bad_request(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pods_sessions_leave_room_for_others_and_all_have_a_bound() {
        let open = Open::default();
        let fill = |pod| std::iter::from_fn(|| open.enter("a", pod).ok()).take(SESSIONS * 2).collect::<Vec<_>>();
        let first = fill(Some("a"));
        let refused = open.enter("b", Some("a")).map(drop).unwrap_err();
        assert_eq!((first.len(), refused.code, refused.reason.as_str()), (WITH_POD, 429, "TooManyRequests"));
        let rest = fill(None);
        assert_eq!(rest.len(), SESSIONS - WITH_POD);
        assert!(open.enter("a", Some("b")).is_err());
        drop((first, rest));
        assert!(open.lock().is_empty() && fill(None).len() == SESSIONS);
    }

    #[test]
    fn two_users_do_not_keep_others_from_a_node() {
        let open = Open::default();
        let users = ["t", "v"].into_iter().cycle();
        let held: Vec<_> = users.take(SESSIONS).map(|user| open.enter(user, None).ok().unwrap()).collect();
        let lasting: Vec<_> = held.iter().map(|one| one.place.lasting()).collect();
        let mut others = vec![open.enter("w", Some("p")).expect("others have more")];
        others.push(open.enter("", Some("p")).expect("the superuser, whom no server counts"));
        let lost: Vec<_> = (0..SESSIONS).filter(|i| lasting[*i].is_cancelled()).collect();
        assert_eq!(lost, [0, 1], "the oldest of who has most");
        assert!(open.enter("t", None).is_err(), "he has most himself");
    }
}
