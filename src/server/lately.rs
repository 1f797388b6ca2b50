//! A cache of recently converted objects, mainly for watches: later requests for the same result share it, like the object itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// The most bytes that are kept.
const MOST: usize = 16 << 20;
/// Shorter results are computed as fast as looked up.
const LEAST: usize = 512;
/// The overhead of an entry.
const ENTRY: usize = 192;

/// What an entry was made by: a row of the table of kinds, and one of several conversions.
pub(super) type Maker = (usize, u8);

pub(super) struct Lately<T>(Mutex<State<T>>);

struct State<T> {
    made: HashMap<Key, Made<T>>,
    /// Oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

/// An object by its address, which is unique while it is held here.
type Key = (usize, usize, Maker);

struct Made<T> {
    _of: Bytes,
    it: T,
    bytes: usize,
}

impl<T> Default for Lately<T> {
    fn default() -> Lately<T> {
        Lately(Mutex::new(State { made: HashMap::new(), order: VecDeque::new(), bytes: 0 }))
    }
}

impl<T: Clone> Lately<T> {
    /// The result for an object, from the cache or computed now; `bytes` is its size.
    pub fn get_or<E>(
        &self,
        of: &Bytes,
        by: Maker,
        make: impl FnOnce() -> Result<T, E>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Result<T, E> {
        let key = (of.as_ptr() as usize, of.len(), by);
        if let Some(made) = self.state().made.get(&key) {
            return Ok(made.it.clone());
        }
        let it = make()?;
        if of.len() >= LEAST {
            let bytes = of.len() + bytes(&it) + ENTRY;
            self.state().keep(key, Made { _of: of.clone(), it: it.clone(), bytes });
        }
        Ok(it)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State<T>> {
        // No panic can occur between its changes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    fn keep(&mut self, key: Key, made: Made<T>) {
        self.bytes += made.bytes;
        match self.made.insert(key, made) {
            // Two threads computed the same.
            Some(old) => self.bytes -= old.bytes,
            None => self.order.push_back(key),
        }
        while self.bytes > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= self.made.remove(&oldest).map_or(0, |made| made.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_made_once_and_the_oldest_go_when_there_are_too_many_bytes() {
        let (lately, mut times) = (Lately::<Bytes>::default(), 0);
        let mut get = |of: &Bytes, by: u8| {
            let made = || {
                times += 1;
                Ok::<_, ()>(Bytes::from(vec![by; of.len()]))
            };
            assert_eq!(lately.get_or(of, (1, by), made, Bytes::len).unwrap()[0], by);
            times
        };
        let objects: Vec<Bytes> = (0..20).map(|_| Bytes::from(vec![b' '; 1 << 20])).collect();
        assert_eq!([get(&objects[0], 1), get(&objects[0].clone(), 1), get(&objects[0], 2)], [1, 1, 2]);
        // Another object with the same content is a different one.
        assert_eq!(get(&objects[1], 1), 3);
        for of in &objects[2..] {
            get(of, 1);
        }
        assert_eq!([get(&objects[19], 1), get(&objects[0], 1)], [21, 22]);
        let small = Bytes::from_static(b"{}");
        assert_eq!([get(&small, 1), get(&small, 1)], [23, 24]);
        let state = lately.state();
        assert!(state.bytes <= MOST && state.order.len() == state.made.len());
    }
}
