//! Rate-limits reports of repairs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{CONTESTED, Repair, TOLD};

/// What was reported, so that undoing repairs cannot fill the log.
pub struct Told {
    tell: Box<dyn FnMut(Repair) + Send>,
    /// The time of the last report, and how often it happened since.
    last: BTreeMap<String, (Instant, u32)>,
    /// Those about Pods: they have their own [back-off](super::backoff::Backoff).
    of_pods: BTreeSet<String>,
}

impl Told {
    pub fn new(tell: impl FnMut(Repair) + Send + 'static) -> Told {
        Told { tell: Box::new(tell), last: BTreeMap::new(), of_pods: BTreeSet::new() }
    }

    pub fn mended(&mut self, what: &str) {
        match self.again(what) {
            0 => (self.tell)(Repair::Mended(what.to_owned())),
            CONTESTED => (self.tell)(Repair::Contested(what.to_owned())),
            _ => {}
        }
    }

    pub fn mended_of_pod(&mut self, what: &str) {
        self.mended(what);
        self.of_pods.insert(what.to_owned());
    }

    pub fn failed(&mut self, what: &str) {
        if self.again(what) == 0 {
            (self.tell)(Repair::Failed(what.to_owned()));
        }
    }

    pub fn lost(&mut self, owner: String) {
        (self.tell)(Repair::Lost(owner));
    }

    /// Whether repairs keep being undone.
    pub fn is_contested(&self) -> bool {
        let mut nodes = self.last.iter().filter(|(what, _)| !self.of_pods.contains(*what));
        nodes.any(|(_, (at, times))| at.elapsed() < TOLD && *times >= CONTESTED)
    }

    /// How often it has happened since it was reported; 0: report it.
    fn again(&mut self, what: &str) -> u32 {
        self.last.retain(|_, (at, _)| at.elapsed() < TOLD);
        self.of_pods.retain(|what| self.last.contains_key(what));
        match self.last.get_mut(what) {
            Some((_, times)) => {
                *times += 1;
                *times
            }
            None => {
                self.last.insert(what.to_owned(), (Instant::now(), 0));
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_repair_is_told_once_and_once_more_where_somebody_undoes_it() {
        let (sender, told) = mpsc::channel();
        let mut telling = Told::new(move |repair| sender.send(repair).unwrap());
        for _ in 0..100 {
            telling.mended("table ip podwright");
            telling.failed("link pw1");
        }
        drop(telling);
        let table = "table ip podwright".to_owned();
        let expected = [Repair::Mended(table.clone()), Repair::Failed("link pw1".to_owned()), Repair::Contested(table)];
        assert_eq!(told.iter().collect::<Vec<_>>(), expected);
    }
}
