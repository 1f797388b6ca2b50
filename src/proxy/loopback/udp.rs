//! What is carried by UDP: for each caller a socket of its own towards the Pod, as long as one of the two says something.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use podwright_net::NodeNetns;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// So many callers of one port at once; what further ones send is lost.
const MOST: usize = 512;
/// A caller and a Pod that say nothing for so long have nothing more to say: longer than what the kernel tracks of UDP lasts.
const IDLE: Duration = Duration::from_secs(180);
/// No datagram is larger.
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

pub async fn serve(socket: UdpSocket, netns: NodeNetns, to: SocketAddr) {
    let socket = Arc::new(socket);
    let mut callers: HashMap<SocketAddr, Arc<Carried>> = HashMap::new();
    // What is carried ends with this task.
    let mut answers = JoinSet::new();
    let mut buffer = vec![0; LARGEST];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            Some(ended) = answers.join_next() => {
                // The invariant: an answering task does not panic, and it is not aborted before this one.
                let caller: SocketAddr = ended.expect("it ends by itself");
                callers.remove(&caller);
                continue;
            }
        };
        let Ok((length, caller)) = received else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        if !callers.contains_key(&caller) {
            if callers.len() >= MOST {
                continue;
            }
            let Ok(towards) = netns.udp_connect(to).await else { continue };
            let carried = Arc::new(Carried { socket: towards, last: Mutex::new(Instant::now()) });
            callers.insert(caller, carried.clone());
            answers.spawn(answer(socket.clone(), carried, caller));
        }
        let Some(carried) = callers.get(&caller) else { continue };
        carried.touch();
        // A datagram may be lost, by its Pod's end too.
        let _ = carried.socket.send(&buffer[..length]).await;
    }
}

/// Carries what the Pod says to its caller, until both are silent or nobody is there; then says whose it was.
async fn answer(socket: Arc<UdpSocket>, carried: Arc<Carried>, caller: SocketAddr) -> SocketAddr {
    let mut buffer = vec![0; LARGEST];
    loop {
        let ends = carried.ends();
        tokio::select! {
            received = carried.socket.recv(&mut buffer) => match received {
                Ok(length) => {
                    carried.touch();
                    let _ = socket.send_to(&buffer[..length], caller).await;
                }
                // Nobody listens: the next datagram begins anew.
                Err(_) => return caller,
            },
            () = tokio::time::sleep_until(ends) => {
                if Instant::now() >= carried.ends() {
                    return caller;
                }
            }
        }
    }
}
