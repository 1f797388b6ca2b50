//! The store's file: one table, a log of every retained version of every key, and one row of state for the store as a whole.
//!
//! A row's id is its position in history: the revision, then the index of the change within the transaction. Each row has a
//! checksum, the position of the row that it replaced, and a mark if it is the last of a transaction: hence a gap in retained
//! history is detected. The digest, an order-independent sum over all rows, covers those from before retained history.

use std::{ops::ControlFlow, os::unix::fs::OpenOptionsExt, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use crate::{Entry, Error, Revision};

/// Bits of a position for the index within a transaction.
const CHANGE_BITS: u32 = 16;
/// The most writes in a transaction.
pub const MAX_WRITES: usize = 1 << CHANGE_BITS;

/// The position of a version in the log; negative for a deletion; 0: none.
pub type Position = i64;

pub fn position(revision: Revision, change: usize) -> Position {
    ((revision << CHANGE_BITS) | change as u64) as Position
}

pub fn revision_of(place: Position) -> Revision {
    place.unsigned_abs() >> CHANGE_BITS
}

/// One version of one key.
#[derive(Debug)]
pub struct Row {
    /// Never negative here.
    pub place: Position,
    pub prior: Position,
    pub created: Revision,
    pub last: bool,
    pub key: Arc<str>,
    pub value: Option<Bytes>,
}

impl Row {
    pub fn revision(&self) -> Revision {
        revision_of(self.place)
    }

    /// The position in references to it.
    pub fn signed_place(&self) -> Position {
        if self.value.is_some() { self.place } else { -self.place }
    }

    pub fn entry(&self) -> Option<Entry> {
        self.value.clone().map(|value| Entry {
            key: self.key.clone(),
            value,
            create_revision: self.created,
            mod_revision: self.revision(),
        })
    }

    pub fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for number in [self.place, self.prior, self.created as i64, self.last as i64, self.key.len() as i64] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(self.key.as_bytes());
        hasher.update(&[self.value.is_some() as u8]);
        hasher.update(self.value.as_deref().unwrap_or_default());
        hasher.finalize()
    }

    fn from_sql(row: &rusqlite::Row<'_>) -> Result<Row, Error> {
        let place: Position = row.get(0).map_err(sql)?;
        let read = || -> rusqlite::Result<(Row, i64)> {
            let row_read = Row {
                place,
                prior: row.get(2)?,
                created: row.get::<_, i64>(3)? as Revision,
                last: row.get::<_, i64>(4)? != 0,
                key: row.get_ref(5)?.as_str()?.into(),
                value: row.get_ref(6)?.as_blob_or_null()?.map(Bytes::copy_from_slice),
            };
            Ok((row_read, row.get(1)?))
        };
        match read() {
            Ok((row, checksum)) if i64::from(row.checksum()) == checksum => Ok(row),
            Ok((row, _)) => Err(Error::Damaged(format!("row {place}, of key {:?}: wrong checksum", row.key))),
            Err(error) => Err(Error::Damaged(format!("row {place}: {error}"))),
        }
    }

    pub fn insert(&self, db: &Connection, checksum: u32) -> Result<(), Error> {
        let value = self.value.as_deref();
        db.prepare_cached("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)")
            .and_then(|mut insert| {
                let (created, last) = (self.created as i64, self.last as i64);
                insert.execute(params![self.place, checksum, self.prior, created, last, &*self.key, value])
            })
            .map_err(sql)?;
        Ok(())
    }
}

/// The row at a position (which may be signed); `None`: there is none.
pub fn read(db: &Connection, place: Position) -> Result<Option<Row>, Error> {
    let mut query = db.prepare_cached("SELECT * FROM log WHERE place = ?").map_err(sql)?;
    let mut rows = query.query([place.abs()]).map_err(sql)?;
    rows.next().map_err(sql)?.map(Row::from_sql).transpose()
}

/// The row at a referenced position. It must exist, with this key.
pub fn resolve(db: &Connection, place: Position, key: &str) -> Result<Row, Error> {
    match read(db, place)? {
        Some(row) if &*row.key == key && row.signed_place() == place => Ok(row),
        Some(row) => Err(Error::Damaged(format!("row {place} has key {:?} instead of {key:?}", row.key))),
        None => Err(Error::Damaged(format!("row {place}, of key {key:?}, is missing"))),
    }
}

/// The parts of a row that a sweep needs.
pub struct Outline {
    pub place: Position,
    pub prior: Position,
    pub deletion: bool,
    pub key: Arc<str>,
}

/// Rows in a range of positions, without values and unverified.
pub fn outline(db: &Connection, from: Position, until: Position, limit: usize) -> Result<Vec<Outline>, Error> {
    let select =
        "SELECT place, prior, value IS NULL, key FROM log WHERE place >= ? AND place < ? ORDER BY place LIMIT ?";
    let mut query = db.prepare_cached(select).map_err(sql)?;
    let rows = query.query_map(params![from, until, limit as i64], |row| {
        Ok(Outline {
            place: row.get(0)?,
            prior: row.get(1)?,
            deletion: row.get(2)?,
            key: row.get_ref(3)?.as_str()?.into(),
        })
    });
    rows.and_then(Iterator::collect).map_err(sql)
}

/// Removes a row, if it exists; returns its contribution to the digest.
pub fn delete(db: &Connection, place: Position) -> Result<Option<u64>, Error> {
    let mut delete = db.prepare_cached("DELETE FROM log WHERE place = ? RETURNING checksum").map_err(sql)?;
    let checksum: Option<u32> = delete.query_row([place], |row| row.get(0)).optional().map_err(sql)?;
    Ok(checksum.map(|checksum| weight(place, checksum)))
}

/// All rows after a position, in order, until `visit` breaks.
pub fn scan(
    db: &Connection,
    after: Position,
    mut visit: impl FnMut(Row) -> Result<ControlFlow<()>, Error>,
) -> Result<(), Error> {
    let mut query = db.prepare_cached("SELECT * FROM log WHERE place > ? ORDER BY place").map_err(sql)?;
    let mut rows = query.query([after]).map_err(sql)?;
    let mut before = after;
    while let Some(row) = rows.next().map_err(sql)? {
        let row = Row::from_sql(row)?;
        if row.place <= before {
            return Err(Error::Damaged(format!("row {} comes behind row {before}", row.place)));
        }
        before = row.place;
        if visit(row)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// A row's contribution to the digest.
pub fn weight(place: Position, checksum: u32) -> u64 {
    mix(mix(place.unsigned_abs()) ^ u64::from(checksum))
}

/// A hole's contribution to the digest.
pub fn hole_weight(first: Revision, last: Revision) -> u64 {
    mix(mix(!first) ^ last)
}

/// The finalizer of splitmix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The state of the store as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreState {
    pub revision: Revision,
    pub oldest: Revision,
    /// The rows replaced by those before this position have been removed.
    pub swept: Position,
    /// Revisions below this one may have been handed out without being durable; 0: none was.
    pub ceiling: Revision,
    pub rows: u64,
    pub digest: u64,
}

impl StoreState {
    fn columns(&self) -> [i64; 6] {
        let [revision, oldest, ceiling] = [self.revision, self.oldest, self.ceiling].map(|n| n as i64);
        [revision, oldest, self.swept, ceiling, self.rows as i64, self.digest as i64]
    }

    fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        self.columns().iter().for_each(|column| hasher.update(&column.to_le_bytes()));
        hasher.finalize()
    }

    pub fn load(db: &Connection) -> Result<StoreState, Error> {
        let found = db
            .query_row("SELECT * FROM state WHERE id = 1", [], |row| {
                let n = |i| row.get::<_, i64>(i).map(|n| n as u64);
                let state = StoreState {
                    revision: n(1)?,
                    oldest: n(2)?,
                    swept: n(3)? as Position,
                    ceiling: n(4)?,
                    rows: n(5)?,
                    digest: n(6)?,
                };
                Ok((state, n(7)?))
            })
            .optional()
            .map_err(sql)?;
        match found {
            Some((state, checksum)) if checksum == u64::from(state.checksum()) => Ok(state),
            Some(_) => Err(Error::Damaged("the state row: wrong checksum".to_owned())),
            None => Err(Error::Damaged("the state row is missing".to_owned())),
        }
    }

    pub fn save(&self, db: &Connection) -> Result<(), Error> {
        let [revision, oldest, swept, ceiling, rows, digest] = self.columns();
        db.prepare_cached("REPLACE INTO state VALUES (1, ?, ?, ?, ?, ?, ?, ?)")
            .and_then(|mut save| save.execute(params![revision, oldest, swept, ceiling, rows, digest, self.checksum()]))
            .map_err(sql)?;
        Ok(())
    }

    pub fn add(&mut self, weight: u64) {
        self.rows += 1;
        self.digest = self.digest.wrapping_add(weight);
    }

    pub fn subtract(&mut self, weight: u64) {
        self.rows = self.rows.saturating_sub(1);
        self.digest = self.digest.wrapping_sub(weight);
    }
}

/// Revisions lost in an unclean shutdown or a restore, first and last. The last one was never used for a change, but became the
/// store's revision.
pub type Hole = (Revision, Revision);

pub fn holes(db: &Connection) -> Result<Vec<Hole>, Error> {
    let mut query = db.prepare("SELECT first, last FROM hole ORDER BY first").map_err(sql)?;
    let rows = query.query_map([], |row| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64)));
    rows.and_then(Iterator::collect).map_err(sql)
}

/// Records that revisions up to and including `last` are lost, and continues after them.
pub fn skip_to(db: &Connection, state: &mut StoreState, last: Revision) -> Result<Hole, Error> {
    let hole = (state.revision + 1, last);
    db.execute("INSERT INTO hole VALUES (?, ?)", params![hole.0 as i64, hole.1 as i64]).map_err(sql)?;
    state.add(hole_weight(hole.0, hole.1));
    state.revision = last;
    state.ceiling = 0;
    state.save(db)?;
    Ok(hole)
}

/// Removes holes before the oldest revision.
pub fn forget_holes(db: &Connection, state: &mut StoreState) -> Result<(), Error> {
    for (first, last) in holes(db)? {
        if last < state.oldest {
            db.execute("DELETE FROM hole WHERE first = ?", [first as i64]).map_err(sql)?;
            state.subtract(hole_weight(first, last));
        }
    }
    Ok(())
}

/// Opens a connection to an existing file or, with `create`, a new one.
pub fn connect(path: &Path, create: bool, cache_kib: u32) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create {
        // Private; SQLite gives the files beside it the same mode.
        let made = std::fs::File::options().write(true).create(true).truncate(false).mode(0o600).open(path);
        made.map_err(|e| Error::Io(format!("{}: {e}", path.display())))?;
    }
    let db = Connection::open_with_flags(path, flags).map_err(sql)?;
    distrust(&db).map_err(sql)?;
    db.busy_timeout(Duration::from_secs(10)).map_err(sql)?;
    db.set_prepared_statement_cache_capacity(16);
    // The writer controls checkpoints. A WAL that has grown is truncated when it restarts.
    db.execute_batch(&format!(
        "PRAGMA cache_size = -{cache_kib}; PRAGMA wal_autocheckpoint = 0; PRAGMA journal_size_limit = 33554432;"
    ))
    .map_err(sql)?;
    Ok(db)
}

/// Keeps the write-ahead log when the connection is closed: the writer removes it, and until then its absence means damage.
pub fn keep_log(db: Connection) -> Result<Connection, Error> {
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(sql)?;
    Ok(db)
}

/// Does not trust the file's author: nothing in its schema is executed, and every page is verified.
/// <https://www.sqlite.org/security.html#untrusted_sqlite_database_files>
fn distrust(db: &Connection) -> rusqlite::Result<()> {
    for (option, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
    ] {
        db.set_db_config(option, on)?;
    }
    db.execute_batch("PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;")
}

/// Lets SQLite check the file's whole structure. Must come after the schema check: it evaluates the schema.
pub fn check_integrity(db: &Connection) -> Result<(), Error> {
    let found: String = db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(sql)?;
    if found == "ok" { Ok(()) } else { Err(Error::Damaged(format!("integrity_check: {found}"))) }
}

/// Converts SQLite's error. The statements are constant: one that SQLite does not understand, or a column of the wrong type, means
/// that the file has changed.
pub fn sql(error: rusqlite::Error) -> Error {
    sql_ref(&error)
}

pub fn sql_ref(error: &rusqlite::Error) -> Error {
    use rusqlite::Error::*;
    match error {
        SqliteFailure(e, _)
            if matches!(e.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown) =>
        {
            Error::Damaged(error.to_string())
        }
        SqlInputError { .. } | FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) => {
            Error::Damaged(error.to_string())
        }
        Utf8Error(..) | InvalidColumnIndex(_) | InvalidColumnName(_) | QueryReturnedNoRows => {
            Error::Damaged(error.to_string())
        }
        _ => Error::Io(error.to_string()),
    }
}
