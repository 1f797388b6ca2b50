//! Open connections: each counts for as long as its socket is open, with any protocol.
//!
//! Authenticated users share them: when there are no more, for one address or in total, the user with the most loses the oldest to
//! one who will have fewer. A node's agent counts as if it had only a part of its connections, and the superuser as if having none.
//! Beside these there is always room for unauthenticated connections; there a new one replaces the oldest, where most come from. So
//! nobody can lock others out, by any method and from any address (masqueraded Pods have their node's address).

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio_util::sync::CancellationToken;

use super::flow::{self, Flow};
use super::{Limits, NODE};
use podwright_api::{Status, User};

/// One of this many places is for unauthenticated connections, at least one of several.
const UNKNOWN: usize = 8;
/// The number of a superuser's connections that weigh as one: more than there ever are.
const MASTER: u64 = 1 << 40;

/// Lets connections in.
pub(crate) struct ConnectionLimiter {
    open: Arc<Mutex<Open>>,
}

/// The open connections, by numbers that increase, so that the first is the oldest.
struct Open {
    most: usize,
    most_of_address: usize,
    most_of_user: usize,
    next: u64,
    all: HashMap<u64, Connection>,
    addresses: HashMap<IpAddr, Crowd>,
    /// Unauthenticated connections, by where they come from.
    strangers: flow::Crowd,
    known: Known,
}

struct Connection {
    address: IpAddr,
    /// Set after authentication.
    holder: Option<Holder>,
    end: CancellationToken,
}

/// The connections of an address.
#[derive(Default)]
struct Crowd {
    strangers: BTreeSet<u64>,
    known: Known,
}

/// Connections shared by users.
#[derive(Default)]
struct Known {
    all: usize,
    holders: HashMap<Holder, BTreeSet<u64>>,
}

/// A user, by its accounting name; this many of its connections weigh as one.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Holder {
    user: Arc<str>,
    weight: u64,
}

/// A socket's permission to be open, which ends when dropped.
pub(crate) struct Pass(Guest);

/// The peer of a connection.
#[derive(Clone)]
pub(crate) struct Guest {
    address: IpAddr,
    number: u64,
    end: CancellationToken,
    open: Arc<Mutex<Open>>,
    /// The user who authenticated first.
    user: Arc<OnceLock<User>>,
}

impl ConnectionLimiter {
    pub fn new(limits: &Limits) -> ConnectionLimiter {
        let Limits { connections: most, connections_of_one: most_of_address, connections_of_user, .. } = *limits;
        let (next, all, addresses, strangers, known) = Default::default();
        let most_of_user = connections_of_user;
        let open = Open { most, most_of_address, most_of_user, next, all, addresses, strangers, known };
        ConnectionLimiter { open: Arc::new(Mutex::new(open)) }
    }

    /// `None`: there are no more, for its address or in total, and no unauthenticated one to replace.
    pub fn admit(&self, address: IpAddr) -> Option<Pass> {
        // An IPv4 client of an IPv6 socket counts by its IPv4 address.
        let (address, end) = (address.to_canonical(), CancellationToken::new());
        let number = locked(&self.open).admit(address, end.clone())?;
        Some(Pass(Guest { address, number, end, open: self.open.clone(), user: Arc::default() }))
    }
}

/// Each change is atomic: the state stays consistent after a panic.
fn locked(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Open {
    fn admit(&mut self, address: IpAddr, end: CancellationToken) -> Option<u64> {
        let crowd = self.addresses.get(&address);
        let loser = if crowd.is_some_and(|crowd| crowd.len() >= self.most_of_address) {
            Some(crowd.and_then(Crowd::oldest_stranger)?)
        } else if self.all.len() >= self.most {
            Some(self.stranger_for(address)?)
        } else {
            None
        };
        self.end(loser);
        let number = self.next;
        self.next += 1;
        self.all.insert(number, Connection { address, holder: None, end });
        self.addresses.entry(address).or_default().strangers.insert(number);
        self.strangers.enter(&address.into(), number);
        Some(number)
    }

    /// The unauthenticated connection to replace for one from this address: the oldest where most come from, by site, subnet and
    /// address; among many with one each, the oldest, which has had time to authenticate.
    fn stranger_for(&self, address: IpAddr) -> Option<u64> {
        self.strangers.giving_way(&Flow::from(address))?.0.first().copied()
    }

    /// A connection has authenticated; false: its user has too many.
    fn know(&mut self, number: u64, user: &User) -> bool {
        let Some(connection) = self.all.get_mut(&number).filter(|connection| connection.holder.is_none()) else {
            return true;
        };
        let holder = Holder::of(user);
        // An address has an entry as long as it has connections.
        let Some(crowd) = self.addresses.get_mut(&connection.address) else { return true };
        let may_have = holder.weight.saturating_mul(self.most_of_user as u64);
        if self.known.held(&holder) >= may_have {
            return false;
        }
        let of_address = crowd.known.giving_way(&holder, of_known(self.most_of_address));
        let of_all = self.known.giving_way(&holder, of_known(self.most));
        let (Ok(of_address), Ok(of_all)) = (of_address, of_all) else { return false };
        connection.holder = Some(holder.clone());
        crowd.strangers.remove(&number);
        self.strangers.leave(&connection.address.into(), number);
        crowd.known.enter(&holder, number);
        self.known.enter(&holder, number);
        // Leaving the address means leaving the total, too.
        self.end(of_address.or(of_all));
        true
    }

    fn end(&mut self, loser: Option<u64>) {
        let Some(connection) = loser.and_then(|number| self.leave(number)) else { return };
        let user = connection.holder.as_ref().map_or("somebody", |holder| &holder.user);
        tracing::debug!("a connection of {user} from {} has to end for another one", connection.address);
        connection.end.cancel();
    }

    fn leave(&mut self, number: u64) -> Option<Connection> {
        let connection = self.all.remove(&number)?;
        match &connection.holder {
            Some(holder) => self.known.leave(holder, number),
            None => self.strangers.leave(&connection.address.into(), number),
        }
        if let Some(crowd) = self.addresses.get_mut(&connection.address) {
            match &connection.holder {
                Some(holder) => crowd.known.leave(holder, number),
                None => drop(crowd.strangers.remove(&number)),
            }
            if crowd.len() == 0 {
                self.addresses.remove(&connection.address);
            }
        }
        Some(connection)
    }
}

/// How many of `most` may be authenticated.
fn of_known(most: usize) -> usize {
    most.saturating_sub((most / UNKNOWN).max(1)).max(1)
}

impl Crowd {
    fn len(&self) -> usize {
        self.strangers.len() + self.known.all
    }

    fn oldest_stranger(&self) -> Option<u64> {
        self.strangers.first().copied()
    }
}

/// Nobody holds more than the newcomer would.
struct Full;

impl Known {
    fn held(&self, holder: &Holder) -> u64 {
        self.holders.get(holder).map_or(0, |held| held.len() as u64)
    }

    /// Which connection must end if a holder gets one more, with a maximum of `most`.
    fn giving_way(&self, newcomer: &Holder, most: usize) -> Result<Option<u64>, Full> {
        if self.all < most {
            return Ok(None);
        }
        // By weight: whether `a` connections of one holder are more than `b` of another.
        let more = |a: u64, of: &Holder, b: u64, than: &Holder| {
            let (left, right) = (u128::from(a) * u128::from(than.weight), u128::from(b) * u128::from(of.weight));
            left.cmp(&right)
        };
        let will_hold = self.held(newcomer) + 1;
        let greedy =
            self.holders.iter().filter(|(holder, held)| more(held.len() as u64, holder, will_hold, newcomer).is_gt());
        let most = greedy.max_by(|(a, of_a), (b, of_b)| more(of_a.len() as u64, a, of_b.len() as u64, b));
        most.and_then(|(_, held)| held.first().copied()).map(Some).ok_or(Full)
    }

    fn enter(&mut self, holder: &Holder, number: u64) {
        self.all += usize::from(self.holders.entry(holder.clone()).or_default().insert(number));
    }

    fn leave(&mut self, holder: &Holder, number: u64) {
        let Some(held) = self.holders.get_mut(holder) else { return };
        self.all -= usize::from(held.remove(&number));
        if held.is_empty() {
            self.holders.remove(holder);
        }
    }
}

impl Holder {
    fn of(user: &User) -> Holder {
        let weight = match user {
            user if user.is_in("system:masters") => MASTER,
            user if user.is_in("system:nodes") => NODE as u64,
            _ => 1,
        };
        Holder { user: user.counted_as().into(), weight }
    }
}

impl Pass {
    pub fn guest(&self) -> Guest {
        self.0.clone()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        locked(&self.0.open).leave(self.0.number);
    }
}

impl Guest {
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The peer authenticated: from now on the connection counts for that user. 429 if the user has too many, or all have.
    pub fn known(&self, user: &User) -> Result<(), Status> {
        if user.is_in("system:unauthenticated") {
            return Ok(());
        }
        if locked(&self.open).know(self.number, user) {
            self.user.get_or_init(|| user.clone());
            return Ok(());
        }
        Err(Status::too_many_requests("Too many connections are open, please try again later.", 1))
    }

    /// The connection's user, after authentication.
    pub fn user(&self) -> Option<&User> {
        self.user.get()
    }

    /// Cancelled when the connection must end for another one.
    pub fn lost(&self) -> &CancellationToken {
        &self.end
    }
}

#[cfg(test)]
mod tests;
