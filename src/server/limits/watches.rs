//! Counts watches and their selector requirements, in total and by user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Limits, NODE, full};
use podwright_api::{Status, User};

/// The open watches.
pub(crate) struct WatchLimiter {
    most: usize,
    most_of_one: usize,
    watched_of_one: usize,
    state: Mutex<Watching>,
}

#[derive(Default)]
struct Watching {
    open: usize,
    /// By user: how many, and the requirements of their selectors.
    users: HashMap<String, (usize, usize)>,
}

/// A watch's permission to be open, which ends when dropped.
pub(crate) struct Watched {
    watches: Arc<WatchLimiter>,
    /// `None`: not counted.
    user: Option<String>,
    requirements: usize,
}

impl WatchLimiter {
    pub fn new(limits: &Limits) -> Arc<WatchLimiter> {
        let Limits { watches: most, watches_of_one: most_of_one, watched_of_one, .. } = *limits;
        Arc::new(WatchLimiter { most, most_of_one, watched_of_one, state: Mutex::default() })
    }

    /// Admits a watch with this many requirements, or refuses it. The superuser's are not counted.
    pub fn enter(self: &Arc<WatchLimiter>, user: &User, requirements: usize) -> Result<Watched, Status> {
        let watches = self.clone();
        if user.is_in("system:masters") {
            return Ok(Watched { watches, user: None, requirements: 0 });
        }
        let times = if user.is_in("system:nodes") { NODE } else { 1 };
        let mut state = self.lock();
        let (open, watched) = state.users.get(user.counted_as()).copied().unwrap_or_default();
        let fits = watched + requirements <= times * self.watched_of_one;
        if state.open >= self.most || open >= times * self.most_of_one || !fits {
            return Err(full());
        }
        state.open += 1;
        state.users.insert(user.counted_as().to_owned(), (open + 1, watched + requirements));
        Ok(Watched { watches, user: Some(user.counted_as().to_owned()), requirements })
    }

    fn lock(&self) -> MutexGuard<'_, Watching> {
        // Counters stay consistent: nothing between their changes panics.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let Some(user) = &self.user else { return };
        let mut state = self.watches.lock();
        state.open -= 1;
        if let Some((open, watched)) = state.users.get_mut(user) {
            *open -= 1;
            *watched -= self.requirements;
            if *open == 0 {
                state.users.remove(user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_counted_by_user_and_in_all() {
        let limits = Limits { watches: 25, watches_of_one: 2, watched_of_one: 10, ..Limits::default() };
        let watches = WatchLimiter::new(&limits);
        let user = |name: &str, groups: &[&str]| User::new(name, groups.iter().copied());
        let (a, b) = (user("a", &[]), user("b", &[]));
        let refused = |outcome: Result<Watched, Status>| outcome.is_err_and(|why| why.code == 429);
        let first = watches.enter(&a, 9).unwrap();
        assert!(refused(watches.enter(&a, 2)), "more requirements than all his watches may have");
        let second = watches.enter(&a, 1).unwrap();
        assert!(refused(watches.enter(&a, 0)), "a third");
        let other = watches.enter(&b, 10).unwrap();
        let node = user("system:node:n", &["system:nodes"]);
        let mut of_node: Vec<_> = (0..20).map(|_| watches.enter(&node, 5).unwrap()).collect();
        assert!(refused(watches.enter(&node, 0)));
        let masters: Vec<_> =
            (0..50).map(|_| watches.enter(&user("root", &["system:masters"]), 100).unwrap()).collect();
        let (c, d) = (user("c", &[]), user("d", &[]));
        let more = [watches.enter(&c, 0).unwrap(), watches.enter(&c, 0).unwrap()];
        assert!(refused(watches.enter(&d, 0)), "that is all that there may be");
        of_node.pop();
        drop(watches.enter(&d, 0).unwrap());
        drop((first, second, other, of_node, masters, more));
        assert!(watches.lock().users.is_empty() && watches.lock().open == 0);
    }
}
