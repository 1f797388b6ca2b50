//! Bytes of requests in memory: of all users together, and of each.
//!
//! When there are no more, the user who holds most loses the oldest request still being sent, to a user who will hold less. So
//! nobody can block others, under however many names and however slowly. A small request of a user who holds nothing else always
//! fits.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::Limits;
use podwright_api::User;

/// A user's share has this many parts; one of them is available even when all others have used everything (64 KiB of 64 MiB).
const PARTS: usize = 1024;

/// Memory held by requests.
pub(crate) struct Bodies {
    most: usize,
    most_of_one: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    next: u64,
    bytes: usize,
    users: HashMap<String, OfUser>,
}

/// A user's requests by increasing numbers: the first is the oldest.
#[derive(Default)]
struct OfUser {
    bytes: usize,
    all: BTreeMap<u64, Body>,
}

struct Body {
    bytes: usize,
    /// Ends it; `None` once it was received completely.
    end: Option<CancellationToken>,
}

/// The bytes of one request, released when dropped.
pub(crate) struct BodyBytes {
    bodies: Arc<Bodies>,
    /// `None`: not counted.
    user: Option<String>,
    /// Set once it has any bytes.
    number: Option<u64>,
    /// Cancelled when it made room for others, which happens once.
    lost: CancellationToken,
    waits: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Bodies {
    pub fn new(limits: &Limits) -> Arc<Bodies> {
        let Limits { bodies: most, bodies_of_one: most_of_one, .. } = *limits;
        Arc::new(Bodies { most, most_of_one, kept: Mutex::default() })
    }

    /// A user's request before its first byte. The superuser's is not counted.
    pub fn of(self: &Arc<Bodies>, user: &User) -> BodyBytes {
        let user = (!user.is_in("system:masters")).then(|| user.counted_as().to_owned());
        BodyBytes { bodies: self.clone(), user, number: None, lost: CancellationToken::new(), waits: None }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Each change is atomic: the state stays consistent after a panic.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Ends requests of users who hold more than `own`, until there is room.
    fn make_room(&mut self, bytes: usize, own: usize, most: usize) -> bool {
        while self.bytes + bytes > most {
            let oldest = |of_user: &OfUser| {
                let mut coming = of_user.all.iter().filter(|(_, body)| body.end.is_some() && body.bytes > 0);
                coming.next().map(|(number, _)| *number)
            };
            let greedy = self.users.iter().filter(|(_, of_user)| of_user.bytes > own);
            let losing = greedy.filter_map(|(user, of_user)| Some((of_user.bytes, user, oldest(of_user)?)));
            let Some((_, user, number)) = losing.max() else { return false };
            let user = user.clone();
            let end = self.leave(&user, number).and_then(|body| body.end);
            end.inspect(CancellationToken::cancel);
        }
        true
    }

    fn leave(&mut self, user: &str, number: u64) -> Option<Body> {
        let of_user = self.users.get_mut(user)?;
        let left = of_user.all.remove(&number);
        if let Some(body) = &left {
            of_user.bytes -= body.bytes;
            self.bytes -= body.bytes;
        }
        if of_user.all.is_empty() {
            self.users.remove(user);
        }
        left
    }
}

impl BodyBytes {
    /// Takes more; false if its user has too little left, or if it made room for another.
    pub fn more(&mut self, bytes: usize) -> bool {
        let (Some(user), true) = (&self.user, bytes > 0) else { return true };
        let (most, most_of_one) = (self.bodies.most, self.bodies.most_of_one);
        let mut kept = self.bodies.lock();
        let number = match self.number {
            Some(number) => number,
            None => {
                let number = kept.next;
                kept.next += 1;
                let body = Body { bytes: 0, end: Some(self.lost.clone()) };
                kept.users.entry(user.clone()).or_default().all.insert(number, body);
                self.number = Some(number);
                number
            }
        };
        let own = kept.users.get(user).filter(|of_user| of_user.all.contains_key(&number));
        let Some(own) = own.map(|of_user| of_user.bytes + bytes) else { return false };
        if own > most_of_one || (!kept.make_room(bytes, own, most) && own > most_of_one / PARTS) {
            return false;
        }
        kept.bytes += bytes;
        if let Some(of_user) = kept.users.get_mut(user)
            && let Some(body) = of_user.all.get_mut(&number)
        {
            of_user.bytes += bytes;
            body.bytes += bytes;
        }
        true
    }

    /// Releases some of its bytes.
    pub fn less(&mut self, bytes: usize) {
        let (Some(user), Some(number)) = (&self.user, self.number) else { return };
        let mut kept = self.bodies.lock();
        let Some(of_user) = kept.users.get_mut(user) else { return };
        if let Some(body) = of_user.all.get_mut(&number) {
            body.bytes -= bytes;
            of_user.bytes -= bytes;
            kept.bytes -= bytes;
        }
    }

    /// It was received completely: it no longer makes room for others.
    pub fn whole(&mut self) {
        let (Some(user), Some(number)) = (&self.user, self.number) else { return };
        let mut kept = self.bodies.lock();
        if let Some(body) = kept.users.get_mut(user).and_then(|of_user| of_user.all.get_mut(&number)) {
            body.end = None;
        }
    }

    /// Resolves when it has made room for others.
    pub fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let waits = self.waits.get_or_insert_with(|| Box::pin(self.lost.clone().cancelled_owned()));
        waits.as_mut().poll(context)
    }

    /// Cancelled when it has made room for others: for holders of its bytes that read no more of it.
    pub fn lost(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Releases everything.
    pub fn clear(&mut self) {
        if let (Some(user), Some(number)) = (&self.user, self.number.take()) {
            self.bodies.lock().leave(user, number);
        }
    }
}

impl Drop for BodyBytes {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(bodies: usize, bodies_of_one: usize) -> Arc<Bodies> {
        Bodies::new(&Limits { bodies, bodies_of_one, ..Limits::default() })
    }

    fn user(name: &str) -> User {
        User::new(name, Vec::<String>::new())
    }

    async fn is_lost(taken: &mut BodyBytes) -> bool {
        futures::poll!(std::future::poll_fn(|context| taken.poll_lost(context))).is_ready()
    }

    #[test]
    fn bytes_are_counted_by_user_and_given_back() {
        let bodies = bodies(100, 10);
        let (mut one, mut two, mut other) = (bodies.of(&user("a")), bodies.of(&user("a")), bodies.of(&user("b")));
        assert!(one.more(6) && !two.more(5) && two.more(4) && other.more(10));
        assert!(bodies.of(&User::new("root", ["system:masters"])).more(1000), "the superuser's are not counted");
        one.clear();
        assert!(two.more(6) && !two.more(1) && !one.more(1));
        two.less(4);
        assert!(one.more(4) && !one.more(1));
        drop((one, two, other));
        assert!(bodies.lock().users.is_empty() && bodies.lock().bytes == 0);
    }

    #[test]
    fn who_holds_nothing_else_has_a_little_in_any_case() {
        let bodies = bodies(4 * PARTS, 2 * PARTS);
        let mut worked_on: Vec<BodyBytes> = ["a", "b"].iter().map(|name| bodies.of(&user(name))).collect();
        for taken in &mut worked_on {
            assert!(taken.more(2 * PARTS));
            taken.whole();
        }
        let mut polite = bodies.of(&user("c"));
        assert!(polite.more(2) && !polite.more(1) && !worked_on[0].more(1));
        drop((worked_on, polite));
        assert_eq!(bodies.lock().bytes, 0);
    }

    /// Incomplete bodies under several names, up to the last byte.
    #[tokio::test]
    async fn who_holds_most_gives_way_to_who_holds_less() {
        let bodies = bodies(40, 20);
        let mut held: Vec<BodyBytes> = ["a", "a", "b", "b"].iter().map(|name| bodies.of(&user(name))).collect();
        assert!(held.iter_mut().all(|taken| taken.more(10)));
        // Complete requests are being processed.
        held[0].whole();
        held[2].whole();
        let mut polite = bodies.of(&user("c"));
        assert!(polite.more(5));
        let mut lost = Vec::new();
        for taken in &mut held {
            lost.push(is_lost(taken).await);
        }
        assert_eq!(lost, [false, false, false, true], "one of them, that is still being sent");
        assert!(!held[3].more(1), "it does not go on");
        assert!(polite.more(10) && !is_lost(&mut polite).await);
        assert!(!bodies.of(&user("d")).more(20), "he would hold as much as anybody");
        assert!(bodies.of(&user("d")).more(5), "there was room");
        drop((held, polite));
        assert!(bodies.lock().users.is_empty() && bodies.lock().bytes == 0);
    }
}
