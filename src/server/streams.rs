//! Raw streams: a caller's half and a node's half meet here and are spliced, byte for byte, with plain backpressure.
//!
//! `connect` asks the node (through its subscription to sessions) to dial one id and tells the caller another; whoever
//! comes first waits a while for the other. The bytes are `api::stream` frames, which the server does not look into.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::SinkExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::Framed;

use crate::api::rpc::{Session, Task};
use crate::api::stream::{Frame, FrameCodec, STATUS, STDOUT};
use crate::api::{Env, Status};

/// How long one half waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many sessions a node may be asked for before it has read the first.
const SESSIONS: usize = 256;
const BUFFER: usize = 64 * 1024;

/// One end's connection.
pub(super) type Half = Box<dyn Duplex>;
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// The nodes that can be asked, and the halves that are awaited.
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

/// An agent that takes sessions.
struct Subscription {
    user: String,
    sessions: mpsc::Sender<Session>,
}

/// A half that is awaited, of this user alone: who has learnt an id of others' gets nothing by it.
struct Awaited {
    user: String,
    half: oneshot::Sender<Half>,
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The sessions that a node shall serve from now on; `user` is its agent, who alone may dial them.
    pub fn subscribe(&self, node: &str, user: &str) -> mpsc::Receiver<Session> {
        let (sender, receiver) = mpsc::channel(SESSIONS);
        let mut state = self.lock();
        let subscriptions = state.nodes.entry(node.to_owned()).or_default();
        subscriptions.retain(|old| !old.sessions.is_closed());
        subscriptions.push(Subscription { user: user.to_owned(), sessions: sender });
        receiver
    }

    /// Asks a node for a session: the id that `user`, who called for it, shall dial.
    pub fn open(self: &Arc<Streams>, env: &Env, node: &str, user: &str, task: Task) -> Result<String, Status> {
        let (caller_id, node_id) = (id(env), id(env));
        let (caller, caller_comes) = oneshot::channel();
        let (nodes, node_comes) = oneshot::channel();
        {
            let mut state = self.lock();
            let session = Session { id: node_id.clone(), task };
            let subscriptions = state.nodes.entry(node.to_owned()).or_default();
            subscriptions.retain(|one| !one.sessions.is_closed());
            // The newest first: an agent that came back after a cut has a new one beside the dead.
            let taken = subscriptions.iter().rev().find(|one| one.sessions.try_send(session.clone()).is_ok());
            let Some(agent) = taken.map(|one| one.user.clone()) else {
                let why = format!("the agent of node \"{node}\" is not connected to this server");
                return Err(Status::unavailable(why));
            };
            state.awaited.insert(caller_id.clone(), Awaited { user: user.to_owned(), half: caller });
            state.awaited.insert(node_id.clone(), Awaited { user: agent, half: nodes });
        }
        let (streams, ids, node) = (self.clone(), [caller_id.clone(), node_id], node.to_owned());
        tokio::spawn(async move {
            meet(&node, caller_comes, node_comes).await;
            let mut state = streams.lock();
            ids.iter().for_each(|id| drop(state.awaited.remove(id)));
        });
        Ok(caller_id)
    }

    /// Waits for `user` alone, for what the server itself sends: the id to dial, and whoever dials it in time.
    pub fn offer(self: &Arc<Streams>, env: &Env, user: &str) -> (String, impl Future<Output = Option<Half>> + use<>) {
        let (id, streams) = (id(env), self.clone());
        let (half, comes) = oneshot::channel();
        self.lock().awaited.insert(id.clone(), Awaited { user: user.to_owned(), half });
        let awaited = id.clone();
        let waiting = async move {
            let come = tokio::time::timeout(PATIENCE, comes).await;
            streams.lock().awaited.remove(&awaited);
            come.ok()?.ok()
        };
        (id, waiting)
    }

    /// Whether this id is awaited from this user. It is then taken: the half has to follow.
    pub fn take(&self, id: &str, user: &str) -> Option<oneshot::Sender<Half>> {
        let mut state = self.lock();
        state.awaited.get(id).filter(|awaited| awaited.user == user)?;
        state.awaited.remove(id).map(|awaited| awaited.half)
    }
}

/// An id that cannot be guessed.
fn id(env: &Env) -> String {
    let mut bytes = [0u8; 16];
    env.fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn meet(node: &str, caller: oneshot::Receiver<Half>, from_node: oneshot::Receiver<Half>) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let Ok(Ok(caller)) = tokio::time::timeout_at(deadline, caller).await else { return };
    match tokio::time::timeout_at(deadline, from_node).await {
        Ok(Ok(node)) => splice(caller, node).await,
        _ => {
            let status = Status::timeout(format!("the agent of node \"{node}\" did not open the stream in time"));
            // A Status always encodes; a caller that is gone needs no answer.
            let payload = serde_json::to_vec(&status).unwrap_or_default().into();
            let _ = Framed::new(caller, FrameCodec).send(Frame { channel: STATUS, payload }).await;
        }
    }
}

/// Sends all of a file, and how that went.
pub(super) async fn send_file(to: Half, file: std::fs::File) {
    let (mut to, mut file) = (Framed::new(to, FrameCodec), tokio::fs::File::from_std(file));
    let mut buffer = vec![0; BUFFER];
    let ended = loop {
        match file.read(&mut buffer).await {
            Ok(0) => break Status::success(),
            Ok(count) => {
                let payload = bytes::Bytes::copy_from_slice(&buffer[..count]);
                if to.send(Frame { channel: STDOUT, payload }).await.is_err() {
                    // Who has gone need not be told.
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

/// Copies both ways until the node's side ends; the caller's end is passed on, but does not end the node's answer.
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
    use crate::api::rpc::ImageOptions;
    use futures::StreamExt;

    fn list() -> Task {
        Task::Image(ImageOptions::List)
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_whose_node_never_dials_is_told_so() {
        let (streams, env) = (Arc::new(Streams::default()), Env::system());
        assert_eq!(streams.open(&env, "n", "jane", list()).unwrap_err().code, 503);
        let mut sessions = streams.subscribe("n", "system:node:n");
        let id = streams.open(&env, "n", "jane", list()).unwrap();
        let asked = sessions.recv().await.unwrap();
        let (ours, theirs) = tokio::io::duplex(1024);
        assert!(streams.take(&id, "system:node:n").is_none(), "the agent is not the caller");
        assert!(streams.take(&asked.id, "system:node:other").is_none(), "another node answers for none but itself");
        assert!(streams.take(&id, "jane").unwrap().send(Box::new(theirs)).is_ok());
        assert!(streams.take(&id, "jane").is_none(), "an id is good for once");
        let mut frames = Framed::new(ours, FrameCodec);
        let told = frames.next().await.unwrap().unwrap();
        let status: Status = serde_json::from_slice(&told.payload).unwrap();
        assert_eq!((told.channel, status.code), (STATUS, 504));
        assert!(frames.next().await.is_none());
        tokio::task::yield_now().await;
        assert!(streams.take(&asked.id, "system:node:n").is_none(), "too late");
        drop(sessions);
        assert_eq!(streams.open(&env, "n", "jane", list()).unwrap_err().code, 503);
    }
}
