//! A group commit: consecutive transactions, each based on the previous ones' writes.

use std::{collections::HashMap, sync::Arc};

use rusqlite::Connection;

use crate::{
    Change, Compare, Entry, Error, Outcome, Txn,
    sqlite::{
        Shared,
        log::{self, Position, Row, StoreState, revision_of},
    },
};

/// A group commit in progress.
pub struct Group {
    pub(super) state: StoreState,
    /// Keys changed in the group: the future position of their newest version, and its value.
    pub(super) newest: HashMap<Arc<str>, (Position, Option<Entry>)>,
    pub(super) changes: Vec<Change>,
    pub(super) bytes: usize,
}

impl Group {
    pub(super) fn new(state: StoreState) -> Group {
        Group { state, newest: HashMap::new(), changes: Vec::new(), bytes: 0 }
    }

    /// Executes one transaction's writes. The outer error affects the whole group, the inner one only the transaction.
    pub(super) fn apply(
        &mut self,
        shared: &Shared,
        db: &Connection,
        txn: Txn,
    ) -> Result<Result<Outcome, Error>, Error> {
        let holds = txn.compares.iter().all(|compare| {
            let (key, wanted) = compare.parts();
            self.place(shared, key).map_or(0, revision_of) == wanted
        });
        if !holds {
            let entry = |compare: &Compare| self.entry(shared, db, compare.parts().0);
            return Ok(txn.compares.iter().map(entry).collect::<Result<_, _>>().map(Outcome::Refused));
        }
        let writes = txn.net_writes();
        if writes.len() > log::MAX_WRITES {
            return Ok(Err(Error::Io(format!("{} writes in one transaction", writes.len()))));
        }
        // Everything that may fail for this transaction alone comes before the first write.
        let mut planned = Vec::with_capacity(writes.len());
        for (key, value) in writes {
            let before = match self.entry(shared, db, &key) {
                Ok(before) => before,
                Err(error) => return Ok(Err(error)),
            };
            if before.is_some() || value.is_some() {
                planned.push((key, value, before));
            }
        }
        if planned.is_empty() {
            return Ok(Ok(Outcome::Committed(self.state.revision)));
        }
        self.state.revision += 1;
        let count = planned.len();
        for (change, (key, value, before)) in planned.into_iter().enumerate() {
            let key: Arc<str> = before.as_ref().map_or_else(|| key.into(), |e| e.key.clone());
            let row = Row {
                place: log::position(self.state.revision, change),
                prior: self.newest_place(shared, &key),
                created: before.as_ref().map_or(self.state.revision, |e| e.create_revision),
                last: change + 1 == count,
                key,
                value,
            };
            self.append(db, row, before)?;
        }
        Ok(Ok(Outcome::Committed(self.state.revision)))
    }

    fn append(&mut self, db: &Connection, row: Row, before: Option<Entry>) -> Result<(), Error> {
        let checksum = row.checksum();
        row.insert(db, checksum)?;
        self.state.add(log::weight(row.place, checksum));
        self.bytes += row.key.len() + row.value.as_ref().map_or(0, |v| v.len());
        let now = row.entry();
        self.newest.insert(row.key.clone(), (row.signed_place(), now.clone()));
        self.changes.push(Change { key: row.key, revision: self.state.revision, now, before });
        Ok(())
    }

    /// The position of the newest version or deletion (negative); 0: unknown key.
    fn newest_place(&self, shared: &Shared, key: &str) -> Position {
        match self.newest.get(key) {
            Some(&(place, _)) => place,
            None => shared.index().keys.get(key).copied().unwrap_or(0),
        }
    }

    fn place(&self, shared: &Shared, key: &str) -> Option<Position> {
        Some(self.newest_place(shared, key)).filter(|&place| place > 0)
    }

    fn entry(&self, shared: &Shared, db: &Connection, key: &str) -> Result<Option<Entry>, Error> {
        if let Some((_, entry)) = self.newest.get(key) {
            return Ok(entry.clone());
        }
        let place = shared.index().place(key);
        place.map_or(Ok(None), |place| Ok(log::resolve(db, place, key)?.entry()))
    }
}
