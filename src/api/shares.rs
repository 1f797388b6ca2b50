//! Slots shared by all users, for long-running things: when all are taken, the user with the most loses the oldest to one with
//! fewer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// A number of slots.
pub struct Shares {
    most: usize,
    kept: Mutex<Kept>,
}

/// The users' slots, by increasing numbers: the first is the oldest.
#[derive(Default)]
struct Kept {
    next: u64,
    all: usize,
    users: HashMap<String, BTreeMap<u64, Option<CancellationToken>>>,
}

/// One slot, released when dropped.
pub struct Slot {
    shares: Arc<Shares>,
    user: String,
    number: u64,
}

impl Shares {
    pub fn new(most: usize) -> Arc<Shares> {
        Arc::new(Shares { most, kept: Mutex::default() })
    }

    /// A slot for a user with fewer than `most_of_one`; `None`: the user has that many, or all are taken and nobody with more can
    /// lose one.
    pub fn enter(self: &Arc<Shares>, user: &str, most_of_one: usize) -> Option<Slot> {
        let mut kept = self.lock();
        let own = kept.users.get(user).map_or(0, BTreeMap::len);
        if own >= most_of_one || (kept.all >= self.most && !kept.make_room(own)) {
            return None;
        }
        let number = kept.next;
        kept.next += 1;
        kept.all += 1;
        kept.users.entry(user.to_owned()).or_default().insert(number, None);
        Some(Slot { shares: self.clone(), user: user.to_owned(), number })
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Each change is atomic: the state stays consistent after a panic.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Ends one for a user who has `own` slots; false if nobody with more can lose one.
    fn make_room(&mut self, own: usize) -> bool {
        let greedy = self.users.iter().filter(|(_, of_user)| of_user.len() >= own + 2);
        let losing = greedy.filter_map(|(user, of_user)| {
            let (number, _) = of_user.iter().find(|(_, end)| end.is_some())?;
            Some((of_user.len(), user, *number))
        });
        let Some((_, user, number)) = losing.max() else { return false };
        let user = user.clone();
        self.leave(&user, number).inspect(CancellationToken::cancel);
        true
    }

    fn leave(&mut self, user: &str, number: u64) -> Option<CancellationToken> {
        let of_user = self.users.get_mut(user)?;
        let end = of_user.remove(&number)?;
        self.all -= 1;
        if of_user.is_empty() {
            self.users.remove(user);
        }
        end
    }
}

impl Slot {
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Allows others to take the slot: then this is cancelled. Short-lived users of a slot need not call it.
    pub fn lasting(&self) -> CancellationToken {
        let mut kept = self.shares.lock();
        let mine = kept.users.get_mut(&self.user).and_then(|of_user| of_user.get_mut(&self.number));
        match mine {
            Some(end) => end.get_or_insert_default().clone(),
            None => {
                let over = CancellationToken::new();
                over.cancel();
                over
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shares.lock().leave(&self.user, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_most_loses_his_oldest() {
        let shares = Shares::new(6);
        let enter = |user: &str| shares.enter(user, 4);
        let of_a: Vec<_> = (0..4).map(|_| enter("a").unwrap()).collect();
        assert!(enter("a").is_none(), "so many of one");
        let of_b = [enter("b").unwrap(), enter("b").unwrap()];
        assert!(enter("c").is_none(), "none of them could lose one");
        // The first ends by itself.
        let lost: Vec<_> = of_a[1..].iter().map(Slot::lasting).collect();
        let others: Vec<_> = of_b.iter().map(Slot::lasting).collect();
        let is_lost = |all: &[CancellationToken]| all.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>();
        let one = enter("c").unwrap();
        assert_eq!((is_lost(&lost), is_lost(&others)), (vec![true, false, false], vec![false, false]));
        let two = enter("d").unwrap();
        assert_eq!((is_lost(&lost), is_lost(&others)), (vec![true, true, false], vec![false, false]));
        assert!(enter("c").is_none(), "he would have as many as anybody");
        assert!(of_a[1].lasting().is_cancelled(), "it is over");
        // Dropping lost ones releases nothing further.
        drop(of_a);
        let more = [enter("c").unwrap(), enter("c").unwrap()];
        assert!(shares.lock().all == 6);
        drop((of_b, one, two, more));
        assert!(shares.lock().all == 0 && shares.lock().users.is_empty());
    }
}
