//! Answers on their way out: how many bytes of them lie in memory, in pieces, and for how long a client may leave them unread.
//!
//! A client may take an answer as slowly as it likes while its connection is alive, so nothing below cuts it off (see `sent`).
//! What is stuck, or taken too slowly (`pace`), keeps its room; where that is wanted, it ends.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::limits::Limits;
use podwright_api::{Status, User};

mod pace;
mod sent;

pub(super) use pace::Pace;
pub(super) use sent::{Patience, sent};

/// The most that is handed to a connection at once: it keeps that until its client takes it.
pub(super) const PIECE: usize = 64 << 10;

/// How many bytes of answers may lie in memory, of all users and of one. One answer is let through, however large, while others
/// have left it room for the most that one user counts for: that is less than there is, so that somebody else always finds some.
pub(super) struct Answers {
    most: usize,
    most_of_one: usize,
    queue: usize,
    wait: Duration,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Default)]
struct State {
    /// What counts: of each user no more than this share of the room.
    bytes: usize,
    share: usize,
    users: HashMap<String, OfUser>,
    /// Counts what gets stuck.
    stuck: u64,
}

#[derive(Default)]
struct OfUser {
    bytes: usize,
    waiting: usize,
    /// How much of that is stuck, or taken too slowly; each, and the end of it.
    left: usize,
    stuck: BTreeMap<u64, (usize, CancellationToken)>,
}

/// The right of an answer to lie in memory; it ends when dropped.
pub(super) struct Room {
    answers: Arc<Answers>,
    user: String,
    bytes: usize,
    /// Which of what is stuck it is for, since it is.
    stuck: Option<u64>,
}

/// Bytes with their room.
struct Charged {
    bytes: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Answers {
    pub fn new(limits: &Limits) -> Arc<Answers> {
        let Limits { answers: most, answers_of_one, queue, wait, .. } = *limits;
        let share = most - most / 4;
        let state = Mutex::new(State { share, ..State::default() });
        Arc::new(Answers { most, most_of_one: answers_of_one.min(share), queue, wait, state, freed: Notify::new() })
    }

    /// Room for an answer of this size, if there is any now. The superuser's have it always, as he has a seat.
    pub fn try_enter(self: &Arc<Answers>, user: &User, bytes: usize) -> Option<Room> {
        if bytes == 0 || user.is_in("system:masters") {
            return Some(self.none_yet(user));
        }
        let mut state = self.lock();
        let of_user = state.of(user.counted_as());
        let fits_him = of_user == 0 || of_user.saturating_add(bytes) <= self.most_of_one;
        if !fits_him || state.with(user.counted_as(), bytes) > self.most {
            let ends = state.give_way(user.counted_as(), fits_him);
            drop(state);
            ends.for_each(|end| end.cancel());
            return None;
        }
        state.take(user.counted_as(), bytes);
        Some(Room { answers: self.clone(), user: user.counted_as().to_owned(), bytes, stuck: None })
    }

    /// The same bytes, which keep their room for as long as anybody has them: so they are on their reader's account, not only on
    /// that of whoever wrote them first. `None`: there is no room.
    pub fn charged(self: &Arc<Answers>, user: &User, bytes: Bytes) -> Option<Bytes> {
        if user.is_in("system:masters") {
            return Some(bytes);
        }
        let _room = self.try_enter(user, bytes.len())?;
        Some(Bytes::from_owner(Charged { bytes, _room }))
    }

    /// None yet, of an answer that is told bit by bit.
    pub fn none_yet(self: &Arc<Answers>, user: &User) -> Room {
        let user = if user.is_in("system:masters") { "" } else { user.counted_as() };
        Room { answers: self.clone(), user: user.to_owned(), bytes: 0, stuck: None }
    }

    /// Waits for room; 429 when none becomes free in time, or too many of this user wait already.
    pub async fn enter(self: &Arc<Answers>, user: &User, bytes: usize) -> Result<Room, Status> {
        if let Some(room) = self.try_enter(user, bytes) {
            return Ok(room);
        }
        let _waiting = Waiting::of(self, user.counted_as()).ok_or_else(full)?;
        let room = async {
            loop {
                let mut freed = std::pin::pin!(self.freed.notified());
                freed.as_mut().enable();
                if let Some(room) = self.try_enter(user, bytes) {
                    return room;
                }
                freed.await;
            }
        };
        tokio::time::timeout(self.wait, room).await.map_err(|_| full())
    }

    /// So much of a user's is left unread, and is free once something has ended. `None`: that is nothing, or not counted.
    pub fn left_unread(self: &Arc<Answers>, user: &str, bytes: usize, end: &CancellationToken) -> Option<Stuck> {
        let mut state = self.lock();
        state.stuck += 1;
        let number = state.stuck;
        let of_user = state.users.get_mut(user).filter(|_| bytes > 0)?;
        of_user.left += bytes;
        of_user.stuck.insert(number, (bytes, end.clone()));
        drop(state);
        self.freed.notify_waiters();
        Some(Stuck { answers: self.clone(), user: user.to_owned(), number })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Counters that a panic left behind are whole: each is changed in one step.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Room {
    /// Takes so much more for the same answer; false: there is no room, beside others of the user or of all. One answer may have any
    /// length.
    pub fn grow(&mut self, user: &User, bytes: usize) -> bool {
        if user.is_in("system:masters") {
            return true;
        }
        let (most, most_of_one) = (self.answers.most, self.answers.most_of_one);
        let mut state = self.answers.lock();
        let of_user = state.of(user.counted_as());
        let fits_him = of_user == self.bytes || of_user.saturating_add(bytes) <= most_of_one;
        if !fits_him || state.with(user.counted_as(), bytes) > most {
            let ends = state.give_way(user.counted_as(), fits_him);
            drop(state);
            ends.for_each(|end| end.cancel());
            return false;
        }
        state.take(user.counted_as(), bytes);
        drop(state);
        self.user = user.counted_as().to_owned();
        self.bytes += bytes;
        true
    }

    /// Takes another one of the same user into it.
    fn join(&mut self, mut other: Room) {
        if self.bytes == 0 {
            std::mem::swap(self, &mut other);
        }
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Has room for so much, which lies in memory, whether there is any or not.
    fn hold(&mut self, bytes: usize) {
        self.shrink(bytes);
        let more = bytes - self.bytes;
        if more == 0 || self.user.is_empty() {
            return;
        }
        let mut state = self.answers.lock();
        state.take(&self.user, more);
        self.bytes = bytes;
    }

    /// What it is for is stuck, or taken too slowly: it ends when the room is wanted, also by who waits for some already. It frees
    /// so much `beside` then, in other rooms of its user.
    pub fn stuck(&mut self, beside: usize, end: &CancellationToken) -> Option<Stuck> {
        let stuck = self.answers.left_unread(&self.user, self.bytes + beside, end)?;
        self.stuck = Some(stuck.number);
        Some(stuck)
    }

    /// Gives back what the answer, now that it is made, does not need.
    pub fn shrink(&mut self, bytes: usize) {
        let free = self.bytes.saturating_sub(bytes);
        if free == 0 {
            return;
        }
        self.bytes -= free;
        self.answers.lock().free(&self.user, free, self.stuck);
        self.answers.freed.notify_waiters();
    }
}

/// The rooms of what is answered by one reply of HTTP, until it is made.
#[derive(Default)]
pub(super) struct Rooms(Mutex<Option<Room>>);

impl Rooms {
    pub fn add(&self, room: Room) {
        let mut all = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match &mut *all {
            Some(all) => all.join(room),
            None => *all = Some(room),
        }
    }

    /// Room for the reply of so many bytes; a piece more than was told needs none.
    pub fn of_reply(&self, answers: &Arc<Answers>, user: &User, bytes: usize) -> Result<Room, Status> {
        let told = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let mut room = match told {
            Some(room) => room,
            None => return answers.try_enter(user, bytes).ok_or_else(full),
        };
        let more = bytes.saturating_sub(room.bytes);
        if more > PIECE {
            room.join(answers.try_enter(user, more).ok_or_else(full)?);
        }
        room.shrink(bytes);
        Ok(room)
    }
}

impl State {
    /// How much a user has.
    fn of(&self, user: &str) -> usize {
        self.users.get(user).map_or(0, |of_user| of_user.bytes)
    }

    /// What would count if a user had so much more.
    fn with(&self, user: &str, more: usize) -> usize {
        let had = self.of(user);
        self.bytes - had.min(self.share) + had.saturating_add(more).min(self.share)
    }

    /// What ends so that there is room: a user's own where he has too much, else of whom most is left unread.
    fn give_way(&mut self, user: &str, fits_him: bool) -> impl Iterator<Item = CancellationToken> + use<> {
        let gives_way = if fits_him { self.most_stuck() } else { self.users.get_mut(user) };
        gives_way.map(OfUser::give_way).into_iter().flatten()
    }

    fn take(&mut self, user: &str, more: usize) {
        self.bytes = self.with(user, more);
        self.users.entry(user.to_owned()).or_default().bytes += more;
    }

    /// So much of a room is free, which may be for something that is stuck.
    fn free(&mut self, user: &str, bytes: usize, stuck: Option<u64>) {
        if let Some(of_user) = self.users.get_mut(user) {
            self.bytes -= of_user.bytes.min(self.share);
            of_user.bytes -= bytes;
            self.bytes += of_user.bytes.min(self.share);
            if let Some((lies, _)) = stuck.and_then(|number| of_user.stuck.get_mut(&number)) {
                *lies -= bytes;
                of_user.left -= bytes;
            }
        }
        self.forget(user);
    }

    fn forget(&mut self, user: &str) {
        if self.users.get(user).is_some_and(|of_user| of_user.bytes == 0 && of_user.waiting == 0) {
            self.users.remove(user);
        }
    }

    /// Of whom most is stuck. What he has beside that goes out.
    fn most_stuck(&mut self) -> Option<&mut OfUser> {
        self.users.values_mut().filter(|of_user| of_user.left > 0).max_by_key(|of_user| of_user.left)
    }
}

impl OfUser {
    /// What ends so that there is room: all that is stuck, or taken too slowly.
    fn give_way(&mut self) -> impl Iterator<Item = CancellationToken> + use<> {
        self.left = 0;
        let stuck = std::mem::take(&mut self.stuck);
        stuck.into_values().filter(|(lies, _)| *lies > 0).map(|(_, end)| end)
    }
}

/// Something of a user that is stuck, until it is not.
pub(super) struct Stuck {
    answers: Arc<Answers>,
    user: String,
    number: u64,
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let mut state = self.answers.lock();
        let of_user = state.users.get_mut(&self.user);
        let gone = of_user.and_then(|of_user| {
            let (lies, end) = of_user.stuck.remove(&self.number)?;
            of_user.left -= lies;
            Some(end)
        });
        drop((state, gone));
    }
}

pub(super) fn full() -> Status {
    Status::too_many_requests("Too many answers are being sent, please try again later.", 1)
}

/// One who waits for room, and may give up at any moment.
struct Waiting<'a> {
    answers: &'a Answers,
    user: &'a str,
}

impl<'a> Waiting<'a> {
    fn of(answers: &'a Answers, user: &'a str) -> Option<Waiting<'a>> {
        let mut state = answers.lock();
        let of_user = state.users.entry(user.to_owned()).or_default();
        if of_user.waiting >= answers.queue {
            return None;
        }
        of_user.waiting += 1;
        Some(Waiting { answers, user })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.answers.lock();
        if let Some(of_user) = state.users.get_mut(self.user) {
            of_user.waiting -= 1;
        }
        state.forget(self.user);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests;
