//! The store on a full disk that later has space again: a real one, in a separate mount namespace.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use podwright::store::{Error, Outcome, Range, Sqlite, Store, Txn, Write as Put};

const SIZE: &str = "size=12m,mode=0700";

fn put(key: &str, bytes: usize) -> Txn {
    Txn { writes: vec![Put::Put(key.to_owned(), Bytes::from(vec![b'x'; bytes]))], ..Txn::default() }
}

fn own_disk(at: &Path) {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some(SIZE)).unwrap();
}

#[test]
fn a_disk_that_is_full_is_said_and_written_to_once_it_has_room() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_owned();
    // A namespace belongs to a thread and those it starts.
    let test = std::thread::spawn(move || {
        own_disk(&at);
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(fill(&at));
    });
    test.join().unwrap();
}

async fn fill(at: &Path) {
    let path = at.join("store.db");
    let store = Sqlite::open(&path).unwrap();
    for n in 0..20 {
        store.commit(put(&format!("/{n}"), 1000)).await.unwrap();
    }
    store.prove().await.unwrap();
    let ballast = at.join("ballast");
    let mut file = File::create(&ballast).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    // An open descriptor keeps its space.
    drop(file);

    let mut acknowledged = 20;
    let why = loop {
        match store.commit(put(&format!("/{acknowledged}"), 100_000)).await {
            Ok(_) => acknowledged += 1,
            Err(why) => break why,
        }
        assert!(acknowledged < 200, "it is never full");
    };
    assert!(matches!(&why, Error::Io(why) if why.contains("full")), "{why}");
    let why = store.prove().await.unwrap_err().to_string();
    assert!(why.contains("full"), "{why}");
    assert!(store.commit(put("/refused", 100_000)).await.is_err());
    assert_eq!(store.list(Range::default()).await.unwrap().entries.len(), acknowledged, "it is read all the while");

    fs::remove_file(&ballast).unwrap();
    for _ in 0..1500 {
        if store.prove().await.is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    store.prove().await.expect("there is room again");
    let done = store.commit(put("/after", 100_000)).await.unwrap();
    assert!(matches!(done, Outcome::Committed(_)));
    store.close().await.unwrap();
    let store = Sqlite::open(&path).unwrap();
    let keys: Vec<String> =
        store.list(Range::default()).await.unwrap().entries.iter().map(|e| e.key.to_string()).collect();
    assert_eq!(keys.len(), acknowledged + 1, "all that was acknowledged, and nothing else: {keys:?}");
    assert!(!keys.contains(&"/refused".to_owned()));
}
