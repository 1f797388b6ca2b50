//! A store or a backup whose file somebody else has written: what is not exactly ours in its schema is refused by its name.

use std::{fs, path::Path};

use podwright::server::restored;
use podwright::store::{Error, Sqlite, Store, restore};
use rusqlite::Connection;

use super::{committed, put};

fn check(key: &str, value: &[u8]) -> Result<(), String> {
    restored::check(key, value).map_err(|why| why.to_string())
}

/// A backup of a store with an object in it.
async fn backup(folder: &Path) -> std::path::PathBuf {
    let store = Sqlite::open(&folder.join("store.db")).unwrap();
    committed(&store, put("/registry/configmaps/default/a", b"{}")).await;
    let mut copy = store.backup().await.unwrap();
    let saved = folder.join("saved");
    std::io::copy(&mut copy, &mut fs::File::create(&saved).unwrap()).unwrap();
    store.close().await.unwrap();
    saved
}

/// What is done to a backup, and what the refusal says.
const FOREIGN: &[(&str, &str)] = &[
    (
        "CREATE TRIGGER t AFTER INSERT ON hole BEGIN DELETE FROM log; END",
        "trigger \"t\" of \"hole\" is in no store of podwright's: CREATE TRIGGER t AFTER INSERT ON hole",
    ),
    ("CREATE VIEW v AS SELECT * FROM log", "view \"v\" is in no store of podwright's"),
    ("CREATE INDEX i ON log (hex(key))", "index \"i\" of \"log\" is in no store of podwright's"),
    ("CREATE INDEX i ON log (key)", "index \"i\" of \"log\" is in no store of podwright's"),
    ("CREATE TABLE more (a)", "table \"more\" is in no store of podwright's"),
    ("CREATE VIRTUAL TABLE f USING fts5(a)", "table \"f"),
    ("ALTER TABLE hole ADD COLUMN g AS (hex(first)) VIRTUAL", "table \"hole\" is not as a store of podwright's has it"),
    ("ALTER TABLE log ADD COLUMN g", "table \"log\" is not as a store of podwright's has it"),
    (
        "ALTER TABLE state RENAME TO s; CREATE VIEW state AS SELECT * FROM s",
        "table \"s\" is in no store of podwright's",
    ),
    ("DROP TABLE hole", "table \"hole\" is missing"),
    (
        "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = \
         'CREATE TABLE hole (first INTEGER PRIMARY KEY, last INTEGER NOT NULL DEFAULT (randomblob(9)))' WHERE name = 'hole'",
        "table \"hole\" is not as a store of podwright's has it",
    ),
    (
        "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET rootpage = \
         (SELECT rootpage FROM sqlite_schema WHERE name = 'log') WHERE name = 'hole'",
        "share page 2",
    ),
    (
        "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET rootpage = 1 WHERE name = 'hole'",
        "malformed database schema (hole)",
    ),
    ("ANALYZE", "table \"sqlite_stat1\" is in no store of podwright's"),
];

#[tokio::test]
async fn a_backup_with_a_schema_of_somebody_elses_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let saved = backup(folder.path()).await;
    for (number, (statement, told)) in FOREIGN.iter().enumerate() {
        let (spoilt, to) = (folder.path().join(format!("{number}.bak")), folder.path().join(format!("{number}.db")));
        fs::copy(&saved, &spoilt).unwrap();
        Connection::open(&spoilt).unwrap().execute_batch(statement).unwrap();
        let Err(Error::Damaged(why)) = restore(&spoilt, &to, |_, _| Ok(()), |_, _| {}) else {
            panic!("{statement}: it is restored")
        };
        assert!(why.contains(told), "{statement}: {why}");
        assert!(!to.exists(), "{statement}: nothing is left");
        // Put in the store's place, it is not opened either.
        fs::copy(&spoilt, &to).unwrap();
        let Err(Error::Damaged(why)) = Sqlite::open(&to) else { panic!("{statement}: it is opened") };
        assert!(why.contains(told), "{statement}: {why}");
    }
    // What no row and no definition shows: the header counts a free page that there is not.
    let (spoilt, to) = (folder.path().join("free.bak"), folder.path().join("free.db"));
    let mut bytes = fs::read(&saved).unwrap();
    bytes[39] += 1;
    fs::write(&spoilt, bytes).unwrap();
    let Err(Error::Damaged(why)) = restore(&spoilt, &to, |_, _| Ok(()), |_, _| {}) else {
        panic!("a page that is none is restored")
    };
    assert!(why.contains("integrity_check: ") && !to.exists(), "{why}");
    restore(&saved, &folder.path().join("restored.db"), |_, _| Ok(()), |_, _| {}).expect("the backup itself is sound");
}

#[tokio::test]
async fn a_backup_whose_values_are_not_as_a_server_writes_them_is_refused_by_their_key() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&folder.path().join("store.db")).unwrap();
    committed(&store, put("/registry/configmaps/default/a", br#"{"data":{"x":"1"},"data":{"x":"2"}}"#)).await;
    let (mut copy, saved) = (store.backup().await.unwrap(), folder.path().join("saved"));
    std::io::copy(&mut copy, &mut fs::File::create(&saved).unwrap()).unwrap();
    let to = folder.path().join("to.db");
    let Err(Error::Damaged(why)) = restore(&saved, &to, check, |_, _| {}) else { panic!("it is restored") };
    assert_eq!(why, "the value of /registry/configmaps/default/a: the field data is there twice");
    assert!(!to.exists(), "nothing is left");
}
