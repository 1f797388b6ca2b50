//! The schema versions of the store's file, and the migrations between them.
//!
//! A new version is another row in [`LAYOUTS`]: its whole schema, and the migration from the previous one. Each migration is one
//! transaction that also sets the version number, so that a crash leaves one version or the other, and the next start continues
//! from there. A file with an unknown version was written by a newer program, and is refused unchanged.

use rusqlite::Connection;

use podwright_version::PROGRAM;

use super::log::{StoreState, sql};
use crate::Error;

/// "PodW", in the file's header.
const APPLICATION_ID: i32 = 0x506f_6457;

/// One schema version; the first has number 1.
struct Layout {
    /// All of its tables.
    schema: &'static [&'static str],
    /// Migrates from the previous version, inside a transaction. The first has none.
    step: fn(&Connection) -> rusqlite::Result<()>,
}

/// All versions so far, in order. They exist in files, so rows are only added, never changed.
const LAYOUTS: &[Layout] = &[
    Layout { schema: &[FIRST], step: |_| Ok(()) },
    // Programs for version 1 do not know newer kinds, fields and finalizers, and would drop them when writing such an object. From
    // version 2 on a refused program can report whose store it is.
    Layout {
        schema: &[FIRST, WRITER],
        step: |db| db.execute_batch(WRITER).and_then(|()| db.execute_batch("INSERT INTO writer VALUES (1, '')")),
    },
];

/// `value` is the last column, so that the others can be read without its overflow pages.
const FIRST: &str = "
    CREATE TABLE log (
        place INTEGER PRIMARY KEY,
        checksum INTEGER NOT NULL,
        prior INTEGER NOT NULL,
        created INTEGER NOT NULL,
        last INTEGER NOT NULL,
        key TEXT NOT NULL,
        value BLOB
    );
    CREATE TABLE hole (first INTEGER PRIMARY KEY, last INTEGER NOT NULL);
    CREATE TABLE state (
        id INTEGER PRIMARY KEY,
        revision INTEGER NOT NULL,
        oldest INTEGER NOT NULL,
        swept INTEGER NOT NULL,
        ceiling INTEGER NOT NULL,
        rows INTEGER NOT NULL,
        digest INTEGER NOT NULL,
        checksum INTEGER NOT NULL
    );";

/// One row: the program that uses the store, or used it last.
const WRITER: &str = "CREATE TABLE writer (id INTEGER PRIMARY KEY, program TEXT NOT NULL);";

/// Creates the tables of a new file, migrates an older one, records this program, and refuses other files.
pub fn prepare(db: &Connection) -> Result<(), Error> {
    prepare_as(db, LAYOUTS)?;
    let empty = is_empty(db)?;
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;").map_err(sql)?;
    if empty {
        let newest = LAYOUTS.len();
        let header = format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {newest};");
        let schema = LAYOUTS[newest - 1].schema.concat();
        db.execute_batch(&format!("BEGIN; {header} {schema} INSERT INTO writer VALUES (1, '');")).map_err(sql)?;
        StoreState::default().save(db)?;
        db.execute_batch("COMMIT").map_err(sql)?;
    }
    sign(db)
}

/// Records the program that uses the store. Restarts of the same program write nothing.
fn sign(db: &Connection) -> Result<(), Error> {
    let damaged = |why| Error::Damaged(format!("who has written the store: {why}"));
    if writer(db).map_err(damaged)? != PROGRAM {
        // Informational only: a full disk may still be read.
        if let Err(error) = db.execute("UPDATE writer SET program = ? WHERE id = 1", [PROGRAM]) {
            tracing::warn!(%error, "failed to record which program wrote the store");
        }
    }
    Ok(())
}

fn writer(db: &Connection) -> rusqlite::Result<String> {
    db.query_row("SELECT program FROM writer WHERE id = 1", [], |row| row.get(0))
}

/// The program that wrote a store of an unknown version, if recorded in the known way. Informational only: anybody could write this
/// into a file.
fn writer_of_unknown(db: &Connection) -> Option<String> {
    let ours = Connection::open_in_memory().ok()?;
    ours.execute_batch(WRITER).ok()?;
    let (ours, found) = (schema_of(&ours).ok()?, schema_of(db).ok()?);
    if !ours.iter().all(|table| found.contains(table)) {
        return None;
    }
    let told = writer(db).ok()?;
    let told: String = told.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(100).collect();
    (!told.is_empty()).then_some(told)
}

/// The same for a file that was a store a moment ago: one without tables has lost them.
pub fn prepare_again(db: &Connection) -> Result<(), Error> {
    if is_empty(db)? {
        return Err(Error::Damaged("the disk lost the store's tables".to_owned()));
    }
    prepare(db)
}

fn pragma(db: &Connection, name: &str) -> Result<i32, Error> {
    db.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0)).map_err(sql)
}

/// A crash may have come before the tables were created.
fn is_empty(db: &Connection) -> Result<bool, Error> {
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(sql)?;
    Ok(tables == 0 && pragma(db, "application_id")? == 0)
}

/// 1. it is a store, 2. of a known version, 3. with exactly that version's tables, 4. which are migrated to the newest, step by
///    step.
fn prepare_as(db: &Connection, layouts: &[Layout]) -> Result<(), Error> {
    if is_empty(db)? {
        return Ok(());
    }
    if pragma(db, "application_id")? != APPLICATION_ID {
        return Err(Error::Damaged("not a store of podwright's, or its first page is damaged".to_owned()));
    }
    let (version, newest) = (pragma(db, "user_version")?, layouts.len());
    let known = usize::try_from(version).ok().filter(|version| (1..=newest).contains(version));
    let Some(version) = known else {
        let by = writer_of_unknown(db).unwrap_or_else(|| "a newer one".to_owned());
        return Err(Error::Io(format!(
            "the store's layout has version {version}, and this podwright knows 1 to {newest}: {by} has written it. Start that \
             one again; or go back for good: move store.db and the files beside it away, and start with --restore and a backup that \
             an older podwright has made"
        )));
    };
    check_schema(db, layouts[version - 1].schema)?;
    for (number, layout) in layouts.iter().enumerate().skip(version) {
        migrate(db, number + 1, layout)?;
    }
    Ok(())
}

/// Migrates the file to version `number`, the next one: completely, or not at all.
fn migrate(db: &Connection, number: usize, layout: &Layout) -> Result<(), Error> {
    tracing::info!("migrating the store's file to layout {number}");
    // Rolls back if dropped before the commit.
    let transaction = db.unchecked_transaction().map_err(sql)?;
    (layout.step)(&transaction).map_err(sql)?;
    check_schema(&transaction, layout.schema)?;
    transaction.pragma_update(None, "user_version", number as i64).map_err(sql)?;
    transaction.commit().map_err(sql)
}

/// A row of `sqlite_schema`: type, name, table, definition.
type Definition = (String, String, String, String);

fn schema_of(db: &Connection) -> Result<Vec<Definition>, Error> {
    let select = "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema ORDER BY type, name";
    let mut query = db.prepare(select).map_err(sql)?;
    let rows = query.query_map([], |row| {
        let text: String = row.get(3)?;
        // Indentation by one of our versions makes no difference.
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, text.split_whitespace().collect::<Vec<_>>().join(" ")))
    });
    rows.and_then(Iterator::collect).map_err(sql)
}

/// Refuses a schema that differs from this version's. A trigger, a view, a generated column or an index on an expression is code by
/// the file's author.
fn check_schema(db: &Connection, schema: &[&str]) -> Result<(), Error> {
    let ours = Connection::open_in_memory().map_err(sql)?;
    ours.execute_batch(&schema.concat()).map_err(sql)?;
    let (ours, found) = (schema_of(&ours)?, schema_of(db)?);
    let what = |(of_type, name, table, _): &Definition| match name == table {
        true => format!("{of_type} {name:?}"),
        false => format!("{of_type} {name:?} of {table:?}"),
    };
    let is_named = |one: &Definition, other: &Definition| (&one.0, &one.1) == (&other.0, &other.1);
    if let Some(foreign) = found.iter().find(|found| !ours.contains(found)) {
        let why = match ours.iter().any(|ours| is_named(ours, foreign)) {
            true => "is not as a store of podwright's has it",
            false => "is in no store of podwright's",
        };
        return Err(Error::Damaged(format!("the schema: {} {why}: {:.200}", what(foreign), foreign.3)));
    }
    match ours.iter().find(|ours| !found.contains(ours)) {
        Some(missing) => Err(Error::Damaged(format!("the schema: {} is missing", what(missing)))),
        None if found.len() != ours.len() => Err(Error::Damaged("the schema: a definition is there twice".to_owned())),
        None => check_roots(db),
    }
}

/// Refuses tables that share their root page: writes to one would appear in the other. (SQLite detects that when it checks a whole
/// file, but not on open.)
fn check_roots(db: &Connection) -> Result<(), Error> {
    let mut query = db.prepare("SELECT name, rootpage FROM sqlite_schema ORDER BY rootpage").map_err(sql)?;
    let rows = query.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)));
    let roots: Vec<(String, i64)> = rows.and_then(Iterator::collect).map_err(sql)?;
    match roots.windows(2).find(|pair| pair[0].1 == pair[1].1) {
        Some([(one, page), (other, _)]) => {
            Err(Error::Damaged(format!("the schema: tables {one:?} and {other:?} share page {page}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: &[&str] = &["CREATE TABLE log (a, b);", "CREATE TABLE note (text);"];
    const THIRD: &[&str] = &[SECOND[0], SECOND[1], "CREATE INDEX notes ON note (text);"];

    fn versions() -> Vec<Layout> {
        vec![
            Layout { schema: &["CREATE TABLE log (a);"], step: |_| Ok(()) },
            Layout {
                schema: SECOND,
                step: |db| {
                    // The way to change a table: recreate it with its content.
                    db.execute_batch(
                        "ALTER TABLE log RENAME TO was; CREATE TABLE log (a, b); INSERT INTO log SELECT a, a * 2 FROM was;
                         DROP TABLE was; CREATE TABLE note (text);",
                    )
                },
            },
            Layout { schema: THIRD, step: |db| db.execute_batch("CREATE INDEX notes ON note (text)") },
        ]
    }

    fn store_of(path: &std::path::Path, version: usize) -> Connection {
        let db = Connection::open(path).unwrap();
        let schema = versions()[version - 1].schema.concat();
        db.execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version}; {schema}"
        ))
        .unwrap();
        db.execute("INSERT INTO log (a) VALUES (21)", []).unwrap();
        db
    }

    fn found(db: &Connection) -> (i32, i64) {
        (pragma(db, "user_version").unwrap(), db.query_row("SELECT b FROM log", [], |row| row.get(0)).unwrap())
    }

    #[test]
    fn an_older_store_becomes_one_of_today_step_by_step() {
        let folder = tempfile::tempdir().unwrap();
        let db = store_of(&folder.path().join("1"), 1);
        prepare_as(&db, &versions()).unwrap();
        assert_eq!(found(&db), (3, 42));
        prepare_as(&db, &versions()).unwrap();
        assert_eq!(found(&db), (3, 42), "and stays so");
        let db = store_of(&folder.path().join("2"), 2);
        db.execute("UPDATE log SET b = 7", []).unwrap();
        prepare_as(&db, &versions()).unwrap();
        assert_eq!(found(&db), (3, 7), "a step that is behind it is not done again");
    }

    /// The file after a crash during a migration: written to, but not committed.
    #[test]
    fn a_crash_in_the_middle_of_a_step_leaves_the_version_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        drop(store_of(&path, 1));
        let mut layouts = versions();
        layouts[2].step = |db| {
            // Its pages are in the log already when it ends.
            db.execute_batch("PRAGMA cache_size = 1; CREATE INDEX notes ON note (text); UPDATE log SET b = 0")?;
            db.cache_flush()?;
            let from = std::path::PathBuf::from(db.path().unwrap());
            for tail in ["", "-wal"] {
                let name = |stem: &str| from.with_file_name(format!("{stem}.db{tail}"));
                std::fs::copy(name("store"), name("copy")).unwrap();
            }
            Err(rusqlite::Error::InvalidQuery)
        };
        let db = Connection::open(&path).unwrap();
        prepare_as(&db, &layouts).unwrap_err();
        // The state after a power loss at that moment, and after the error.
        for name in ["copy.db", "store.db"] {
            let after = Connection::open(folder.path().join(name)).unwrap();
            assert_eq!(found(&after), (2, 42), "the first step is done, of the second nothing");
            check_schema(&after, SECOND).unwrap();
            prepare_as(&after, &versions()).unwrap();
            assert_eq!(found(&after), (3, 42));
        }
    }

    #[test]
    fn a_step_that_makes_something_else_than_its_version_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let db = store_of(&folder.path().join("1"), 1);
        let mut layouts = versions();
        layouts[1].step = |db| db.execute_batch("CREATE TABLE note (text)");
        prepare_as(&db, &layouts).unwrap_err();
        check_schema(&db, layouts[0].schema).unwrap();
        assert_eq!(pragma(&db, "user_version").unwrap(), 1);
    }

    #[test]
    fn a_newer_store_is_refused_with_a_way_out_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let db = store_of(&folder.path().join("3"), 3);
        let why = prepare_as(&db, &versions()[..2]).unwrap_err().to_string();
        for told in ["has version 3", "knows 1 to 2", "Start that one again", "--restore"] {
            assert!(why.contains(told), "{told}: {why}");
        }
        assert!(why.contains("a newer one has written it"), "{why}");
        check_schema(&db, THIRD).unwrap();
        let told = |db: &Connection| prepare_as(db, &versions()[..2]).unwrap_err().to_string();
        db.execute_batch(&format!("{WRITER} INSERT INTO writer VALUES (1, 'podwright 9.9' || char(10, 27))")).unwrap();
        assert!(told(&db).contains(": podwright 9.9 has written it"), "{}", told(&db));
        // Only our own table is queried: others may be code.
        db.execute_batch("DROP TABLE writer; CREATE VIEW writer AS SELECT 1 AS id, 'podwright 9.9' AS program")
            .unwrap();
        assert!(told(&db).contains("a newer one has written it"), "{}", told(&db));
        db.execute_batch("PRAGMA user_version = 0").unwrap();
        prepare_as(&db, &versions()).unwrap_err();
    }

    #[test]
    fn what_somebody_has_put_into_an_older_store_is_refused_before_any_step() {
        let folder = tempfile::tempdir().unwrap();
        let db = store_of(&folder.path().join("1"), 1);
        db.execute_batch("CREATE TRIGGER t AFTER INSERT ON log BEGIN DELETE FROM log; END").unwrap();
        assert!(matches!(prepare_as(&db, &versions()), Err(Error::Damaged(_))));
        assert_eq!(pragma(&db, "user_version").unwrap(), 1);
    }

    #[test]
    fn a_store_of_the_first_version_becomes_one_of_today_and_is_signed() {
        let folder = tempfile::tempdir().unwrap();
        let db = Connection::open(folder.path().join("store.db")).unwrap();
        let header = format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1;");
        db.execute_batch(&format!("PRAGMA journal_mode = WAL; {header} {FIRST}")).unwrap();
        db.execute("INSERT INTO log VALUES (65537, 7, 0, 1, 0, '/registry/a', x'00')", []).unwrap();
        db.execute("INSERT INTO hole VALUES (3, 9)", []).unwrap();
        prepare(&db).unwrap();
        assert_eq!(pragma(&db, "user_version").unwrap() as usize, LAYOUTS.len());
        assert_eq!(writer(&db).unwrap(), PROGRAM);
        let row = |sql| db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(row("SELECT place + checksum + length(key) + length(value) FROM log"), 65537 + 7 + 11 + 1);
        assert_eq!(row("SELECT first + last FROM hole"), 12);
        // The next user is recorded; the same one writes nothing.
        db.execute("UPDATE writer SET program = 'podwright 0.0'", []).unwrap();
        prepare(&db).unwrap();
        assert_eq!(writer(&db).unwrap(), PROGRAM);
        // Nor does it fail if the file is not writable.
        db.execute_batch("UPDATE writer SET program = 'podwright 0.0'; PRAGMA query_only = 1").unwrap();
        prepare(&db).unwrap();
        assert_eq!(writer(&db).unwrap(), "podwright 0.0");
        db.execute_batch("PRAGMA query_only = 0").unwrap();
        prepare(&db).unwrap();
        let before = db.total_changes();
        prepare(&db).unwrap();
        assert_eq!(db.total_changes(), before);
        db.execute("DELETE FROM writer", []).unwrap();
        assert!(matches!(prepare(&db), Err(Error::Damaged(_))));
    }

    /// Existing files must match this table forever: changing a row would make every store a foreign one.
    #[test]
    fn layouts_that_are_in_files_do_not_change() {
        let words = |parts: &[&str]| parts.concat().split_whitespace().collect::<Vec<_>>().join(" ");
        let sums: Vec<u32> = LAYOUTS.iter().map(|layout| crc32fast::hash(words(layout.schema).as_bytes())).collect();
        assert_eq!(sums, [0x4b8d01d8, 0x9a0ffb3b]);
    }
}
