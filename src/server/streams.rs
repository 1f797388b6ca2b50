//! Raw streams: a caller's half and a node's half meet here and are spliced, byte for byte, with plain backpressure.
//!
//! `connect` returns an id to dial. Only after the caller has dialled, the node is asked (through its subscription to sessions) to
//! dial another one: sessions without a caller are never started. Both have a time limit. The bytes are `api::stream` frames, which
//! the server does not interpret.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::SinkExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::Framed;

use podwright_api::rpc::{Session, Task};
use podwright_api::stream::{Frame, FrameCodec, STATUS, STDOUT};
use podwright_api::{Env, Status};

use super::ends::Ended;
use super::sessions::OpenSession;

/// How long to wait for either half.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most requested sessions that a node has not read yet. Agents read continuously: all callers are connected already, and none
/// waits for others' sessions.
const SESSIONS: usize = 1024;
/// The most subscriptions of a node.
const SUBSCRIPTIONS: usize = 4;
const BUFFER: usize = 64 * 1024;

/// One end's connection.
pub(super) type Half = Box<dyn Duplex>;
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connected end, and what ends it: the end of the credentials that it was dialled with.
pub(super) struct Come {
    pub half: Half,
    pub ended: Ended,
}

/// The subscribed nodes, and the expected halves.
#[derive(Default)]
pub(super) struct Streams {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Each node's subscriptions, the newest last.
    nodes: HashMap<String, Vec<Subscription>>,
    awaited: HashMap<String, Awaited>,
}

/// An agent that accepts sessions.
struct Subscription {
    user: String,
    sessions: mpsc::Sender<Session>,
}

/// A half that is expected from this user only: a leaked id is useless to others.
struct Awaited {
    user: String,
    half: oneshot::Sender<Come>,
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A node's new sessions from now on; `user` is its agent, the only one that may dial them.
    pub fn subscribe(&self, node: &str, user: &str) -> mpsc::Receiver<Session> {
        let (sender, receiver) = mpsc::channel(SESSIONS);
        let mut state = self.lock();
        let subscriptions = state.nodes.entry(node.to_owned()).or_default();
        subscriptions.retain(|old| !old.sessions.is_closed());
        // An agent has one, plus some of broken connections for a while.
        if subscriptions.len() >= SUBSCRIPTIONS {
            subscriptions.remove(0);
        }
        subscriptions.push(Subscription { user: user.to_owned(), sessions: sender });
        receiver
    }

    /// The id that `user`, who requested it, must dial in time; then the node is asked for the session. It counts as open until it
    /// ends, by itself, with its caller's credentials, or when it is `withdrawn`.
    pub fn open(
        self: &Arc<Streams>,
        env: &Env,
        node: &str,
        user: &str,
        task: Task,
        counted: OpenSession,
        withdrawn: impl Future<Output = ()> + Send + 'static,
    ) -> Result<String, Status> {
        if !self.is_served(node) {
            return Err(not_connected(node));
        }
        let (caller_id, caller) = self.offer(env, user);
        let session = Session { id: id(env), user: counted.user().to_owned(), task };
        let (streams, node) = (self.clone(), node.to_owned());
        let lost = counted.lasting();
        tokio::spawn(async move {
            let _counted = counted;
            let whole = async {
                if let Some(Come { half, ended }) = caller.await {
                    tokio::select! {
                        () = streams.join(&node, session, half) => {}
                        () = ended => {}
                    }
                }
            };
            tokio::select! {
                () = whole => {}
                () = withdrawn => {}
                () = lost.cancelled() => tracing::info!("ended a session with node \"{node}\" to make room for others"),
            }
        });
        Ok(caller_id)
    }

    fn is_served(&self, node: &str) -> bool {
        self.lock().nodes.get(node).is_some_and(|all| all.iter().any(|one| !one.sessions.is_closed()))
    }

    /// Asks the node to dial, and connects it to the caller.
    async fn join(&self, node: &str, session: Session, caller: Half) {
        let _forgotten = Forgotten { streams: self, id: session.id.clone() };
        let joined = match self.ask(node, session) {
            Ok(comes) => match tokio::time::timeout(TIMEOUT, comes).await {
                // The session belongs to its caller: it outlives the agent's certificate, which may be renewed meanwhile.
                Ok(Ok(Come { half, .. })) => Ok(half),
                _ => Err(Status::timeout(format!("the agent of node \"{node}\" did not open the stream in time"))),
            },
            Err(why) => Err(why),
        };
        match joined {
            Ok(half) => splice(caller, half).await,
            Err(why) => refuse(caller, &why).await,
        }
    }

    /// Asks one of the node's agents, the newest first: after a broken connection the new subscription exists beside the dead one.
    fn ask(&self, node: &str, session: Session) -> Result<oneshot::Receiver<Come>, Status> {
        let (half, comes) = oneshot::channel();
        let mut state = self.lock();
        let subscriptions = state.nodes.entry(node.to_owned()).or_default();
        subscriptions.retain(|one| !one.sessions.is_closed());
        if subscriptions.is_empty() {
            state.nodes.remove(node);
            return Err(not_connected(node));
        }
        let taken = subscriptions.iter().rev().find(|one| one.sessions.try_send(session.clone()).is_ok());
        let Some(agent) = taken.map(|one| one.user.clone()) else {
            let why = format!("the agent of node \"{node}\" has too many sessions to open, please try again later");
            return Err(Status::too_many_requests(why, 1));
        };
        state.awaited.insert(session.id, Awaited { user: agent, half });
        Ok(comes)
    }

    /// Expects `user` only, for data that the server itself sends: returns the id to dial, and the connection that dials it in
    /// time.
    pub fn offer(self: &Arc<Streams>, env: &Env, user: &str) -> (String, impl Future<Output = Option<Come>> + use<>) {
        let id = id(env);
        let (half, comes) = oneshot::channel();
        self.lock().awaited.insert(id.clone(), Awaited { user: user.to_owned(), half });
        let forgotten = Forgotten { streams: self.clone(), id: id.clone() };
        let waiting = async move {
            let _forgotten = forgotten;
            tokio::time::timeout(TIMEOUT, comes).await.ok()?.ok()
        };
        (id, waiting)
    }

    /// Takes this id if it is expected from this user: the half must follow.
    pub fn take(&self, id: &str, user: &str) -> Option<oneshot::Sender<Come>> {
        let mut state = self.lock();
        state.awaited.get(id).filter(|awaited| awaited.user == user)?;
        state.awaited.remove(id).map(|awaited| awaited.half)
    }
}

/// Removes an expected id when dropped, however the wait ends.
struct Forgotten<S: Deref<Target = Streams>> {
    streams: S,
    id: String,
}

impl<S: Deref<Target = Streams>> Drop for Forgotten<S> {
    fn drop(&mut self) {
        self.streams.lock().awaited.remove(&self.id);
    }
}

/// An unguessable id.
fn id(env: &Env) -> String {
    let mut bytes = [0u8; 16];
    env.fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn not_connected(node: &str) -> Status {
    Status::unavailable(format!("the agent of node \"{node}\" is not connected to this server"))
}

/// Sends an error to a connected caller.
pub(super) async fn refuse(caller: Half, why: &Status) {
    // A Status always encodes.
    let payload = serde_json::to_vec(why).unwrap_or_default().into();
    // Best effort: the caller may not read, or be gone.
    let told = async { Framed::new(caller, FrameCodec).send(Frame { channel: STATUS, payload }).await };
    let _ = tokio::time::timeout(TIMEOUT, told).await;
}

/// Sends a whole file, and the result.
pub(super) async fn send_file(to: Half, file: std::fs::File) {
    let (mut to, mut file) = (Framed::new(to, FrameCodec), tokio::fs::File::from_std(file));
    let mut buffer = vec![0; BUFFER];
    let ended = loop {
        match file.read(&mut buffer).await {
            Ok(0) => break Status::success(),
            Ok(count) => {
                let payload = bytes::Bytes::copy_from_slice(&buffer[..count]);
                if to.send(Frame { channel: STDOUT, payload }).await.is_err() {
                    // The receiver may be gone.
                    return;
                }
            }
            Err(why) => break Status::internal(why),
        }
    };
    let payload = serde_json::to_vec(&ended).unwrap_or_default().into();
    let _ = to.send(Frame { channel: STATUS, payload }).await;
    let _ = to.close().await;
}

/// Copies both ways until the node's side ends; the caller's end is passed on, but does not end the node's output.
async fn splice(caller: Half, node: Half) {
    let (from_caller, mut to_caller) = tokio::io::split(caller);
    let (from_node, mut to_node) = tokio::io::split(node);
    let up = async {
        let _ = tokio::io::copy_buf(&mut BufReader::with_capacity(BUFFER, from_caller), &mut to_node).await;
        let _ = to_node.shutdown().await;
        std::future::pending::<()>().await;
    };
    let down = async {
        let _ = tokio::io::copy_buf(&mut BufReader::with_capacity(BUFFER, from_node), &mut to_caller).await;
        let _ = to_caller.shutdown().await;
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::never;
    use crate::sessions::{SessionLimits, Sessions, With};
    use futures::StreamExt;
    use podwright_api::User;
    use podwright_api::rpc::ImageOptions;

    fn come(half: tokio::io::DuplexStream) -> Come {
        Come { half: Box::new(half), ended: never() }
    }

    fn list() -> Task {
        Task::Image(ImageOptions::List)
    }

    fn open(streams: &Arc<Streams>, env: &Env) -> Result<String, Status> {
        let counted = Sessions::new(SessionLimits::default()).uncounted();
        streams.open(env, "n", "jane", list(), counted, never())
    }

    #[tokio::test]
    async fn a_half_is_awaited_for_no_longer_than_its_session_is() {
        let (streams, env) = (Arc::new(Streams::default()), Env::simulated(jiff::Timestamp::UNIX_EPOCH, 1));
        let mut sessions = streams.subscribe("n", "system:node:n");
        let (withdraw, withdrawn) = oneshot::channel::<()>();
        let counted = Sessions::new(SessionLimits::default()).uncounted();
        let withdrawn = async move { drop(withdrawn.await) };
        let id = streams.open(&env, "n", "jane", list(), counted, withdrawn).unwrap();
        let (mut ours, theirs) = tokio::io::duplex(1024);
        assert!(streams.take(&id, "jane").unwrap().send(come(theirs)).is_ok());
        let asked = sessions.recv().await.unwrap();
        assert!(streams.lock().awaited.contains_key(&asked.id));
        withdraw.send(()).unwrap();
        assert_eq!(ours.read(&mut [0]).await.unwrap(), 0);
        assert!(streams.lock().awaited.is_empty(), "the node's half");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_whose_node_never_dials_is_told_so() {
        let (streams, env) = (Arc::new(Streams::default()), Env::system());
        assert_eq!(open(&streams, &env).unwrap_err().code, 503);
        let mut sessions = streams.subscribe("n", "system:node:n");
        let id = open(&streams, &env).unwrap();
        let (ours, theirs) = tokio::io::duplex(1024);
        assert!(streams.take(&id, "system:node:n").is_none(), "the agent is not the caller");
        assert!(streams.take(&id, "jane").unwrap().send(come(theirs)).is_ok());
        assert!(streams.take(&id, "jane").is_none(), "an id is good for once");
        let asked = sessions.recv().await.unwrap();
        assert!(streams.take(&asked.id, "system:node:other").is_none(), "another node answers for none but itself");
        let mut frames = Framed::new(ours, FrameCodec);
        let told = frames.next().await.unwrap().unwrap();
        let status: Status = serde_json::from_slice(&told.payload).unwrap();
        assert_eq!((told.channel, status.code), (STATUS, 504));
        assert!(frames.next().await.is_none());
        assert!(streams.take(&asked.id, "system:node:n").is_none(), "too late");
        let late = open(&streams, &env).unwrap();
        drop(sessions);
        assert_eq!(open(&streams, &env).unwrap_err().code, 503);
        let (ours, theirs) = tokio::io::duplex(1024);
        assert!(streams.take(&late, "jane").unwrap().send(come(theirs)).is_ok());
        let told = Framed::new(ours, FrameCodec).next().await.unwrap().unwrap();
        assert_eq!(serde_json::from_slice::<Status>(&told.payload).unwrap().code, 503, "it has gone meanwhile");
    }

    #[tokio::test]
    async fn a_node_has_few_subscriptions_and_loses_the_oldest() {
        let streams = Streams::default();
        let mut all: Vec<_> = (0..=SUBSCRIPTIONS).map(|_| streams.subscribe("n", "system:node:n")).collect();
        let mut other = streams.subscribe("m", "system:node:m");
        assert!(all[0].try_recv().is_err_and(|why| why == mpsc::error::TryRecvError::Disconnected));
        for kept in all.iter_mut().skip(1).chain([&mut other]) {
            assert!(kept.try_recv().is_err_and(|why| why == mpsc::error::TryRecvError::Empty));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_started_for_who_does_not_come_and_his_session_ends() {
        let (streams, env) = (Arc::new(Streams::default()), Env::system());
        let mut asked = streams.subscribe("n", "system:node:n");
        let limits = SessionLimits { of_user_with_object: 2, ..SessionLimits::default() };
        let (sessions, jane) = (Sessions::new(limits), User::new("jane", Vec::<String>::new()));
        let enter = || sessions.enter(&jane, With { namespace: "", object: "nodes/n", shared: false });
        let ids = [enter(), enter()]
            .map(|counted| streams.open(&env, "n", "jane", list(), counted.unwrap(), never()).unwrap());
        assert_eq!(enter().map(drop).unwrap_err().code, 429);
        tokio::time::sleep(TIMEOUT * 2).await;
        assert!(asked.try_recv().is_err(), "the node is asked for nothing that nobody waits for");
        assert!(streams.lock().awaited.is_empty());
        assert!(ids.iter().all(|id| streams.take(id, "jane").is_none()), "and he has come too late");
        assert!(streams.lock().awaited.is_empty() && enter().is_ok());
    }
}
