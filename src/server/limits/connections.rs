//! Bytes of bodies that may lie in memory, and connections that may be open.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::Limits;

/// Bytes that may be taken.
pub(in crate::server) struct Budget {
    left: Arc<AtomicUsize>,
}

/// Bytes that were taken; given back when dropped.
pub struct Taken {
    left: Arc<AtomicUsize>,
    bytes: usize,
}

impl Budget {
    pub fn new(bytes: usize) -> Budget {
        Budget { left: Arc::new(AtomicUsize::new(bytes)) }
    }
    pub fn none(&self) -> Taken {
        Taken { left: self.left.clone(), bytes: 0 }
    }
}

impl Taken {
    /// Takes more; false: there is not so much left.
    pub fn more(&mut self, bytes: usize) -> bool {
        let taken =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok();
        self.bytes += if taken { bytes } else { 0 };
        taken
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// Counts connections, in all and by their address.
pub(in crate::server) struct Doorman {
    most: usize,
    most_of_one: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    count: Arc<AtomicUsize>,
}

/// The right of a connection to be open.
pub(in crate::server) struct Pass {
    address: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    count: Arc<AtomicUsize>,
}

impl Doorman {
    pub fn new(limits: &Limits) -> Doorman {
        let (open, count) = Default::default();
        Doorman { most: limits.connections, most_of_one: limits.connections_of_one, open, count }
    }

    /// None: there are too many.
    pub fn admit(&self, address: IpAddr) -> Option<Pass> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let mut open = self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let of_one = open.entry(address).or_default();
        if *of_one >= self.most_of_one {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        *of_one += 1;
        Some(Pass { address, open: self.open.clone(), count: self.count.clone() })
    }
}

impl Pass {
    pub fn address(&self) -> IpAddr {
        self.address
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let mut open = self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(of_one) = open.get_mut(&self.address) {
            *of_one -= 1;
            if *of_one == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_connections_are_given_back() {
        let bodies = Budget::new(10);
        let (mut one, mut two) = (bodies.none(), bodies.none());
        assert!(one.more(6) && !two.more(5) && two.more(4));
        drop(one);
        assert!(two.more(6) && !two.more(1));

        let doorman = Doorman::new(&Limits { connections: 3, connections_of_one: 2, ..Limits::default() });
        let at = |n: u8| IpAddr::from([127, 0, 0, n]);
        let (first, second) = (doorman.admit(at(1)), doorman.admit(at(1)));
        assert!(first.is_some() && second.is_some() && doorman.admit(at(1)).is_none());
        let third = doorman.admit(at(2));
        assert!(third.is_some() && doorman.admit(at(3)).is_none());
        drop((first, third));
        assert!(doorman.admit(at(3)).is_some() && doorman.admit(at(1)).is_some());
    }
}
