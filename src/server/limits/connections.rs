//! Connections that may be open.
//!
//! They are shared: when there are no more, whoever has most loses its oldest to who has fewer. First of those by which
//! nobody has shown who he is yet; so peers who are not authenticated keep nobody out, wherever they come from, be it one address
//! (Pods that are masqueraded have their node's).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::Limits;

/// Counts connections, in all and by their address.
pub(in crate::server) struct Doorman {
    most: usize,
    most_of_one: usize,
    open: Arc<Mutex<Open>>,
}

/// Who has which connections. Their numbers rise, so that the first is the oldest.
#[derive(Default)]
struct Open {
    next: u64,
    all: usize,
    of: HashMap<IpAddr, Crowd>,
}

/// The connections of an address, each with what ends it when it is dropped.
#[derive(Default)]
struct Crowd {
    /// By which nobody has shown who he is.
    strangers: BTreeMap<u64, oneshot::Sender<()>>,
    known: BTreeMap<u64, oneshot::Sender<()>>,
}

/// The right of a connection to be open.
pub(in crate::server) struct Pass {
    address: IpAddr,
    number: u64,
    open: Arc<Mutex<Open>>,
}

/// Resolves when the right is another's.
pub(in crate::server) type Lost = oneshot::Receiver<()>;

impl Doorman {
    pub fn new(limits: &Limits) -> Doorman {
        Doorman { most: limits.connections, most_of_one: limits.connections_of_one, open: Arc::default() }
    }

    /// None: its address has too many whose peers are known, or there are too many, and nobody who has more.
    pub fn admit(&self, address: IpAddr) -> Option<(Pass, Lost)> {
        let mut open = locked(&self.open);
        let own = open.of.get(&address).map_or(0, Crowd::len);
        let has_room = match own >= self.most_of_one {
            true => open.make_room_at(address),
            false => open.all < self.most || open.make_room(own),
        };
        if !has_room {
            return None;
        }
        let (end, lost) = oneshot::channel();
        let number = open.next;
        open.next += 1;
        open.all += 1;
        open.of.entry(address).or_default().strangers.insert(number, end);
        Some((Pass { address, number, open: self.open.clone() }, lost))
    }
}

/// Each change is whole at once: what a panic left behind is sound.
fn locked(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crowd {
    fn len(&self) -> usize {
        self.strangers.len() + self.known.len()
    }
}

impl Open {
    /// Ends the oldest connection of an address by which nobody has shown who he is; false where there is none.
    fn make_room_at(&mut self, address: IpAddr) -> bool {
        let stranger = self.of.get(&address).and_then(|crowd| crowd.strangers.keys().next().copied());
        stranger.inspect(|number| self.leave(address, *number)).is_some()
    }

    /// Ends one connection for who has `own` of them; false where all others have no more.
    fn make_room(&mut self, own: usize) -> bool {
        let greedy = || self.of.iter().filter(move |(_, crowd)| crowd.len() >= own + 2);
        let first = |of: &BTreeMap<u64, oneshot::Sender<()>>| of.keys().next().copied();
        let most = greedy().max_by_key(|(_, crowd)| crowd.strangers.len());
        let stranger = most.and_then(|(address, crowd)| Some((*address, first(&crowd.strangers)?)));
        // Of many who have one each, the oldest: who means to ask has asked by then.
        let oldest = || {
            let strangers = self.of.iter().filter_map(|(address, crowd)| Some((*address, first(&crowd.strangers)?)));
            strangers.min_by_key(|(_, number)| *number)
        };
        let known = || {
            let (address, crowd) = greedy().max_by_key(|(_, crowd)| crowd.len())?;
            Some((*address, first(&crowd.known)?))
        };
        let Some((address, number)) = stranger.or_else(oldest).or_else(known) else { return false };
        self.leave(address, number);
        true
    }

    fn leave(&mut self, address: IpAddr, number: u64) {
        let Some(crowd) = self.of.get_mut(&address) else { return };
        if crowd.strangers.remove(&number).or_else(|| crowd.known.remove(&number)).is_some() {
            self.all -= 1;
        }
        if crowd.len() == 0 {
            self.of.remove(&address);
        }
    }
}

impl Pass {
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Somebody has shown who he is.
    pub fn known(&self) {
        let mut open = locked(&self.open);
        if let Some(crowd) = open.of.get_mut(&self.address)
            && let Some(end) = crowd.strangers.remove(&self.number)
        {
            crowd.known.insert(self.number, end);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        locked(&self.open).leave(self.address, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_given_back() {
        let doorman = Doorman::new(&Limits { connections: 3, connections_of_one: 2, ..Limits::default() });
        let at = |n: u8| doorman.admit(IpAddr::from([127, 0, 0, n]));
        let (first, second) = (at(1).unwrap(), at(1).unwrap());
        first.0.known();
        second.0.known();
        assert!(at(1).is_none());
        drop(first);
        drop(at(1).unwrap());
        drop(second);
        assert!(locked(&doorman.open).of.is_empty() && locked(&doorman.open).all == 0);
    }

    fn is_over(lost: &mut Lost) -> bool {
        lost.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn who_has_shown_nothing_gives_way_when_there_are_no_more() {
        let doorman = Doorman::new(&Limits { connections: 4, connections_of_one: 3, ..Limits::default() });
        let at = |n: u8| doorman.admit(IpAddr::from([127, 0, 0, n]));
        let (mut known, mut stranger, mut other) = (at(1).unwrap(), at(1).unwrap(), at(1).unwrap());
        known.0.known();
        let (mut alone, newcomer) = (at(2).unwrap(), at(3).unwrap());
        assert!(
            is_over(&mut stranger.1) && !is_over(&mut known.1) && !is_over(&mut other.1),
            "the oldest of who has most"
        );
        newcomer.0.known();
        // The one who has gone gives nothing back.
        drop(stranger);
        assert_eq!(locked(&doorman.open).all, 4);
        let mut second = at(3).unwrap();
        assert!(is_over(&mut other.1), "nobody has more than he will have: the oldest stranger");
        second.0.known();
        let mut third = at(3).unwrap();
        assert!(is_over(&mut alone.1) && !is_over(&mut second.1));
        let fourth = at(3).unwrap();
        assert!(is_over(&mut third.1) && !is_over(&mut second.1), "the stranger of its own address");
        fourth.0.known();
        assert!(at(3).is_none(), "an address has so many");
    }

    #[test]
    fn among_the_known_whoever_has_most_gives_way() {
        let doorman = Doorman::new(&Limits { connections: 4, connections_of_one: 4, ..Limits::default() });
        let at = |n: u8| {
            let admitted = doorman.admit(IpAddr::from([127, 0, 0, n]))?;
            admitted.0.known();
            Some(admitted)
        };
        let mut held: Vec<_> = (0..4).map(|_| at(1).unwrap()).collect();
        let two = [at(2).unwrap(), at(2).unwrap()];
        assert_eq!(held.iter_mut().map(|(_, lost)| is_over(lost)).collect::<Vec<_>>(), [true, true, false, false]);
        assert!(at(2).is_none(), "he has his part");
        drop((held, two));
        assert_eq!(locked(&doorman.open).all, 0);
    }
}
