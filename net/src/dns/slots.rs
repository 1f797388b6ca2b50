//! A bounded number of places (streams, waiting questions) shared by sources, so that none can exclude others.
//!
//! Free places are given to anyone. Otherwise a source takes one from the largest holder, if that has at least two more; so each
//! source can get its equal share, whatever the others request.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The places.
pub struct Slots {
    limit: usize,
    held: Mutex<Held>,
}

/// Holders of places: numbers increase, so a source's first is its oldest.
#[derive(Default)]
struct Held {
    next: u64,
    taken: usize,
    by_source: HashMap<IpAddr, BTreeMap<u64, oneshot::Sender<()>>>,
}

/// One place, freed when dropped.
pub struct Slot {
    slots: Arc<Slots>,
    source: IpAddr,
    number: u64,
    lost: oneshot::Receiver<()>,
}

impl Slots {
    pub fn new(limit: usize) -> Arc<Slots> {
        Arc::new(Slots { limit, held: Mutex::default() })
    }

    /// A place for `source`; `None` if all are taken, and no one has more than it.
    pub fn take(self: &Arc<Slots>, source: IpAddr) -> Option<Slot> {
        let source = source.to_canonical();
        let mut held = self.held();
        if held.taken >= self.limit {
            let victim = held.greediest(source)?;
            held.evict(victim);
        }
        let (sender, lost) = oneshot::channel();
        let number = held.next;
        held.next += 1;
        held.taken += 1;
        held.by_source.entry(source).or_default().insert(number, sender);
        Some(Slot { slots: self.clone(), source, number, lost })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // The state is consistent even after a panic: each change is atomic.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// The largest holder, if it would still hold no less than `source` after passing on one.
    fn greediest(&self, source: IpAddr) -> Option<IpAddr> {
        let has = self.by_source.get(&source).map_or(0, BTreeMap::len);
        let (victim, most) = self.by_source.iter().max_by_key(|(_, slots)| slots.len())?;
        (most.len() >= has + 2).then_some(*victim)
    }

    /// Takes the oldest place from a source.
    fn evict(&mut self, victim: IpAddr) {
        let oldest = self.by_source.get(&victim).and_then(|slots| slots.keys().next().copied());
        if let Some(sender) = oldest.and_then(|number| self.remove(victim, number)) {
            // A receiver that no longer waits has just released it.
            let _ = sender.send(());
        }
    }

    fn remove(&mut self, source: IpAddr, number: u64) -> Option<oneshot::Sender<()>> {
        let slots = self.by_source.get_mut(&source)?;
        let sender = slots.remove(&number)?;
        self.taken -= 1;
        if slots.is_empty() {
            self.by_source.remove(&source);
        }
        Some(sender)
    }
}

impl Slot {
    /// Does `work`, unless the place is lost to a source with fewer: `None`.
    pub async fn keep<T>(mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            _ = &mut self.lost => None,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.held().remove(self.source, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn source(n: u8) -> IpAddr {
        IpAddr::from([10, 244, 1, n])
    }

    fn lost(slot: &mut Slot) -> bool {
        slot.lost.try_recv().is_ok()
    }

    #[test]
    fn one_source_has_all_while_nobody_else_wants_any_and_its_oldest_go_first() {
        let slots = Slots::new(4);
        let mut held: Vec<Slot> = (0..4).map(|_| slots.take(source(1)).unwrap()).collect();
        assert!(slots.take(source(1)).is_none(), "no more than there are");
        let second = [slots.take(source(2)).unwrap(), slots.take(source(2)).unwrap()];
        assert!(slots.take(source(2)).is_none(), "an equal part, no more");
        assert_eq!(held.iter_mut().map(lost).collect::<Vec<_>>(), [true, true, false, false]);
        drop(second);
        assert!(slots.take(source(1)).is_some());
        drop(held);
        assert_eq!(slots.held().taken, 0);
        assert!(slots.held().by_source.is_empty());
    }

    #[tokio::test]
    async fn who_loses_its_place_stops() {
        let slots = Slots::new(2);
        let [first, _second] = [slots.take(source(1)).unwrap(), slots.take(source(1)).unwrap()];
        let mut work = std::pin::pin!(first.keep(std::future::pending::<()>()));
        assert!(futures::poll!(work.as_mut()).is_pending());
        let other = slots.take(source(2)).unwrap();
        assert_eq!(futures::poll!(work.as_mut()), std::task::Poll::Ready(None));
        assert_eq!(other.keep(std::future::ready(7)).await, Some(7));
    }

    #[test]
    fn an_address_is_one_source_however_it_is_written() {
        let slots = Slots::new(4);
        let mapped = IpAddr::from(std::net::Ipv4Addr::new(10, 244, 1, 1).to_ipv6_mapped());
        let held: Vec<Slot> = [source(1), mapped, source(1), mapped].map(|from| slots.take(from).unwrap()).into();
        assert_eq!(slots.held().by_source.len(), 1);
        let others = [slots.take(source(2)).unwrap(), slots.take(source(2)).unwrap()];
        assert!(slots.take(mapped).is_none(), "it has its equal part");
        drop((held, others));
    }

    proptest! {
        /// However many the others hold, a newcomer gets a place as long as there are as many as sources.
        #[test]
        fn whoever_has_none_gets_one(asked in prop::collection::vec(0u8..15, 0..400)) {
            let slots = Slots::new(16);
            let mut held = Vec::new();
            for n in asked {
                held.extend(slots.take(source(n)));
                held.retain_mut(|slot| !lost(slot));
                prop_assert!(held.len() <= 16);
                prop_assert_eq!(held.len(), slots.held().taken);
            }
            prop_assert!(slots.take(source(200)).is_some());
        }
    }
}
