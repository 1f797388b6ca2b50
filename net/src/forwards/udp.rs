//! UDP forwarding: a socket towards the Pod for each caller, while either of the two sends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::NodeNetns;

/// Maximum callers per port; a further one replaces the one idle longest.
const MOST: usize = 512;
/// The idle timeout of a caller: longer than the kernel tracks UDP.
const IDLE: Duration = Duration::from_secs(180);
/// The maximum datagram size.
const LARGEST: usize = 64 << 10;
const AGAIN: Duration = Duration::from_millis(100);

/// One caller's socket towards the Pod.
struct Carried {
    socket: UdpSocket,
    last: Mutex<Instant>,
}

impl Carried {
    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn ends(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) + IDLE
    }
}

type Callers = HashMap<SocketAddr, (Arc<Carried>, AbortHandle)>;
type Answers = JoinSet<(SocketAddr, Arc<Carried>)>;

/// Runs until stopped: then the socket is closed, with everything relayed.
pub async fn serve(socket: UdpSocket, netns: NodeNetns, to: SocketAddr, stopped: oneshot::Receiver<()>) {
    let mut answers = JoinSet::new();
    tokio::select! {
        () = carry(Arc::new(socket), netns, to, &mut answers) => {}
        _ = stopped => {}
    }
    // Each of them holds the socket.
    answers.shutdown().await;
}

async fn carry(socket: Arc<UdpSocket>, netns: NodeNetns, to: SocketAddr, answers: &mut Answers) {
    let mut callers = Callers::new();
    let mut buffer = vec![0; LARGEST];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            Some(ended) = answers.join_next() => {
                // A caller that was evicted and has a new socket keeps that.
                if let Ok((caller, carried)) = ended
                    && callers.get(&caller).is_some_and(|(now, _)| Arc::ptr_eq(now, &carried))
                {
                    callers.remove(&caller);
                }
                continue;
            }
        };
        let Ok((length, caller)) = received else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        if !callers.contains_key(&caller) {
            let Ok(towards) = netns.udp_connect(to).await else { continue };
            if callers.len() >= MOST {
                end_most_silent(&mut callers);
            }
            let carried = Arc::new(Carried { socket: towards, last: Mutex::new(Instant::now()) });
            let task = answers.spawn(answer(socket.clone(), carried.clone(), caller));
            callers.insert(caller, (carried, task));
        }
        let Some((carried, _)) = callers.get(&caller) else { continue };
        carried.touch();
        // A datagram may be lost, also because of the Pod's end.
        let _ = carried.socket.send(&buffer[..length]).await;
    }
}

/// Makes room for another caller.
fn end_most_silent(callers: &mut Callers) {
    let most_silent = callers.iter().min_by_key(|(_, (carried, _))| carried.ends()).map(|(caller, _)| *caller);
    if let Some((_, task)) = most_silent.and_then(|caller| callers.remove(&caller)) {
        task.abort();
    }
}

/// Relays the Pod's datagrams to its caller, until both are idle or the port is closed; returns the caller.
async fn answer(socket: Arc<UdpSocket>, carried: Arc<Carried>, caller: SocketAddr) -> (SocketAddr, Arc<Carried>) {
    let mut buffer = vec![0; LARGEST];
    loop {
        let ends = carried.ends();
        tokio::select! {
            received = carried.socket.recv(&mut buffer) => match received {
                Ok(length) => {
                    carried.touch();
                    let _ = socket.send_to(&buffer[..length], caller).await;
                }
                // Nothing listens: the next datagram starts over.
                Err(_) => return (caller, carried),
            },
            () = tokio::time::sleep_until(ends) => {
                if Instant::now() >= carried.ends() {
                    return (caller, carried);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_has_been_silent_longest_makes_room() {
        let (mut callers, mut answers, now) = (Callers::new(), Answers::new(), Instant::now());
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        for (port, silent) in [(1, 5), (2, 9), (3, 3)] {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let carried = Arc::new(Carried { socket, last: Mutex::new(now - Duration::from_millis(silent)) });
            let task = answers.spawn(std::future::pending());
            callers.insert(at(port), (carried, task));
        }
        // One that sends again is no longer idle longest.
        callers[&at(2)].0.touch();
        for (left, gone) in [(2, 1), (1, 3)] {
            end_most_silent(&mut callers);
            assert!(callers.len() == left && !callers.contains_key(&at(gone)));
            assert!(answers.join_next().await.unwrap().is_err_and(|why| why.is_cancelled()));
        }
    }
}
