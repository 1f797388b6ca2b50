//! Memory for responses: how many bytes are held, in pieces, and for how long a client may leave them unread.
//!
//! A client may read as slowly as it likes while its connection is alive, so nothing here cuts it off (see `sent`). What is stuck,
//! or read too slowly (`pace`), keeps its room until others need it; then it is ended.

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

/// The most that is handed to a connection at once, which holds it until the client reads it.
pub(super) const PIECE: usize = 64 << 10;

/// Bounds the bytes of responses in memory, of all users and of each. One response of any size is admitted while others leave room
/// for the most that one user counts for: that is less than the total, so other users always find some.
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
    /// What counts: at most this share of the room for each user.
    bytes: usize,
    share: usize,
    users: HashMap<String, OfUser>,
    /// Numbers stuck responses.
    stuck: u64,
}

#[derive(Default)]
struct OfUser {
    bytes: usize,
    waiting: usize,
    /// The stuck or slowly read part, by id, and how to end each.
    left: usize,
    stuck: BTreeMap<u64, (usize, CancellationToken)>,
}

/// A response's share of memory, released when dropped.
pub(super) struct Room {
    answers: Arc<Answers>,
    user: String,
    bytes: usize,
    /// The stuck response that it belongs to, if any.
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

    /// Room for a response of this size, if available now. Superusers always get it, as they do seats.
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

    /// The same bytes, holding room for as long as they are referenced: they count for their reader, not only for their first
    /// writer. `None`: no room.
    pub fn charged(self: &Arc<Answers>, user: &User, bytes: Bytes) -> Option<Bytes> {
        if user.is_in("system:masters") {
            return Some(bytes);
        }
        let _room = self.try_enter(user, bytes.len())?;
        Some(Bytes::from_owner(Charged { bytes, _room }))
    }

    /// Empty room, for a streamed response.
    pub fn none_yet(self: &Arc<Answers>, user: &User) -> Room {
        let user = if user.is_in("system:masters") { "" } else { user.counted_as() };
        Room { answers: self.clone(), user: user.to_owned(), bytes: 0, stuck: None }
    }

    /// Waits for room; 429 if none becomes free in time, or too many of this user's requests wait already.
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

    /// Records that this much of a user's is unread, and is freed when `end` is cancelled. `None`: nothing, or not counted.
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
        // Counters stay consistent across a panic: each is changed in one step.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Room {
    /// Takes more for the same response; false if there is no room beside others of the user or of all. A single response may have
    /// any size.
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

    /// Merges another room of the same user.
    fn join(&mut self, mut other: Room) {
        if self.bytes == 0 {
            std::mem::swap(self, &mut other);
        }
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Records bytes that are in memory already, whether there is room or not.
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

    /// Marks it as stuck or read too slowly: it is ended when room is needed, also by those waiting already. This frees another
    /// `beside` bytes in other rooms of its user.
    pub fn stuck(&mut self, beside: usize, end: &CancellationToken) -> Option<Stuck> {
        let stuck = self.answers.left_unread(&self.user, self.bytes + beside, end)?;
        self.stuck = Some(stuck.number);
        Some(stuck)
    }

    /// Returns what the finished response does not need.
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

/// The rooms of one HTTP response, until it is complete.
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

    /// Room for a response of this size; a single further piece needs none.
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
    /// How much a user holds.
    fn of(&self, user: &str) -> usize {
        self.users.get(user).map_or(0, |of_user| of_user.bytes)
    }

    /// What would count if a user held this much more.
    fn with(&self, user: &str, more: usize) -> usize {
        let had = self.of(user);
        self.bytes - had.min(self.share) + had.saturating_add(more).min(self.share)
    }

    /// What to end to make room: of the user itself if over its limit, else of the user with the most unread.
    fn give_way(&mut self, user: &str, fits_him: bool) -> impl Iterator<Item = CancellationToken> + use<> {
        let gives_way = if fits_him { self.most_stuck() } else { self.users.get_mut(user) };
        gives_way.map(OfUser::give_way).into_iter().flatten()
    }

    fn take(&mut self, user: &str, more: usize) {
        self.bytes = self.with(user, more);
        self.users.entry(user.to_owned()).or_default().bytes += more;
    }

    /// Frees part of a room, which may belong to something stuck.
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

    /// The user with the most stuck bytes. The rest of theirs is being read.
    fn most_stuck(&mut self) -> Option<&mut OfUser> {
        self.users.values_mut().filter(|of_user| of_user.left > 0).max_by_key(|of_user| of_user.left)
    }
}

impl OfUser {
    /// What to end to make room: everything stuck or read too slowly.
    fn give_way(&mut self) -> impl Iterator<Item = CancellationToken> + use<> {
        self.left = 0;
        let stuck = std::mem::take(&mut self.stuck);
        stuck.into_values().filter(|(lies, _)| *lies > 0).map(|(_, end)| end)
    }
}

/// Something of a user's that is stuck, until it is not.
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

/// A waiter for room, which may give up at any moment.
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
