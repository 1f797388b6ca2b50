//! Places for a relay's calls: a share for each source; when all are taken, the largest holder gives up one.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// Maximum calls of one source: a Pod needs few connections, and host network Pods share an address.
pub const SHARE: usize = 64;
/// Maximum total calls; each has two descriptors and two buffers.
const MOST: usize = 1024;

/// The current calls.
#[derive(Default)]
pub struct Room {
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    /// By source: calls in order of arrival; without a handle while being started.
    calls: HashMap<IpAddr, VecDeque<(u64, Option<AbortHandle>)>>,
    all: usize,
    next: u64,
}

/// A call's place, freed when dropped.
pub struct Slot {
    room: Arc<Room>,
    source: IpAddr,
    number: u64,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.room.seats().leave(self.source, self.number);
    }
}

impl Room {
    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a call that gets a place; false if its source has its share, or no one has more.
    pub fn admit(self: &Arc<Room>, source: IpAddr, start: impl FnOnce(Slot) -> AbortHandle) -> bool {
        let Some((number, ended)) = self.seats().take(source) else { return false };
        if let Some(ended) = ended {
            ended.abort();
        }
        let call = start(Slot { room: self.clone(), source, number });
        // Not locked until here: a call may end, and so leave, while it is started.
        let mut seats = self.seats();
        let seat = seats.calls.get_mut(&source).into_iter().flatten().find(|(known, _)| *known == number);
        match seat {
            Some((_, handle)) => *handle = Some(call),
            None => call.abort(),
        }
        true
    }
}

impl Seats {
    /// A place for a call of this source: its number, and the call that must end for it.
    fn take(&mut self, source: IpAddr) -> Option<(u64, Option<AbortHandle>)> {
        let own = self.calls.get(&source).map_or(0, VecDeque::len);
        if own >= SHARE {
            return None;
        }
        let ended = if self.all >= MOST { self.make_room(own)? } else { None };
        let number = self.next;
        self.next += 1;
        self.calls.entry(source).or_default().push_back((number, None));
        self.all += 1;
        Some((number, ended))
    }

    /// Takes a place from the oldest call of the largest holder, if that has more than the newcomer with `own` will have.
    fn make_room(&mut self, own: usize) -> Option<Option<AbortHandle>> {
        let (source, calls) = self.calls.iter().max_by_key(|(_, calls)| calls.len())?;
        let (source, oldest) = (*source, calls.front().filter(|_| calls.len() > own + 1).cloned());
        let (number, call) = oldest?;
        self.leave(source, number);
        Some(call)
    }

    fn leave(&mut self, source: IpAddr, number: u64) {
        let Some(calls) = self.calls.get_mut(&source) else { return };
        let before = calls.len();
        calls.retain(|(known, _)| *known != number);
        self.all -= before - calls.len();
        if calls.is_empty() {
            self.calls.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_has_most_gives_way_where_there_is_no_room() {
        let room = Arc::new(Room::default());
        let enter = |source: [u8; 4]| {
            room.admit(source.into(), |place| {
                let call = async move {
                    std::future::pending::<()>().await;
                    drop(place);
                };
                tokio::spawn(call).abort_handle()
            })
        };
        let count = |source: [u8; 4]| room.seats().calls.get(&IpAddr::from(source)).map_or(0, VecDeque::len);
        let crowd = u8::try_from(MOST / SHARE).unwrap();
        for n in 0..crowd {
            assert!((0..SHARE).all(|_| enter([10, 0, 0, n])));
            assert!(!enter([10, 0, 0, n]), "more than its share");
        }
        // A newcomer ends up with as many as the others, and no more.
        let got = (0..SHARE).filter(|_| enter([10, 0, 1, 0])).count();
        assert_eq!(room.seats().all, MOST);
        assert_eq!((got, count([10, 0, 1, 0])), (60, 60));
        assert!((0..crowd).all(|n| (60..=61).contains(&count([10, 0, 0, n]))));
        // Evicted calls have left; their places are not freed twice.
        tokio::task::yield_now().await;
        assert_eq!(room.seats().all, MOST);
    }
}
