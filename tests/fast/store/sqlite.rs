//! What only the store on disk has: the lock, crashes, backups, the order of fsync and sight.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use podwright::store::{Error, Range, Sqlite, Store, restore};

use super::{committed, delete, put, relaxed, revisions};

fn open(path: &Path) -> Arc<Sqlite> {
    Arc::new(Sqlite::open(path).unwrap())
}

#[tokio::test]
async fn a_store_in_use_is_refused_until_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = open(&path);
    let error = Sqlite::open(&path).err().unwrap().to_string();
    assert!(error.contains("in use") && error.contains("store.db"), "{error}");
    store.close().await.unwrap();
    assert!(!folder.path().join("store.db-wal").exists(), "a closed store is one file");
    open(&path);
    // A drop closes as well.
    open(&path);
}

/// Run by the test below, in a process of its own: writes until it is killed, and says what was acknowledged.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a part of another test"]
async fn write_until_killed() {
    let Ok(path) = std::env::var("STORE_TEST_FILE") else { return };
    let store = open(Path::new(&path));
    let tasks: Vec<_> = (0..8)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0u64.. {
                    let key = format!("/{writer}/{n}");
                    let txn = put(&key, vec![writer as u8; 1500]);
                    let kind = if n % 4 == 3 { "relaxed" } else { "full" };
                    let revision = committed(&*store, if kind == "relaxed" { relaxed(txn) } else { txn }).await;
                    println!("acknowledged {kind} {revision} {key}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let mut handed_out = 0;
    for round in 1..=4u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["store::sqlite::write_until_killed", "--exact", "--ignored", "--nocapture"])
            .env("STORE_TEST_FILE", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
        let mut acknowledged = Vec::new();
        for line in lines {
            let Some(line) = line.strip_prefix("acknowledged ") else { continue };
            let words: Vec<&str> = line.split(' ').collect();
            // The last line may be cut short.
            if let [_, revision, key] = words[..] {
                acknowledged.push((revision.parse::<u64>().unwrap(), key.to_owned()));
            }
            if acknowledged.len() as u64 == round * 150 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        acknowledged.pop();
        let store = open(&path);
        for (revision, key) in &acknowledged {
            let entry = store.get(key).await.unwrap().unwrap_or_else(|| panic!("{key} of revision {revision} is lost"));
            assert_eq!(entry.value.len(), 1500);
            assert!(entry.mod_revision == *revision && *revision > handed_out);
        }
        handed_out = acknowledged.iter().map(|(revision, _)| *revision).max().unwrap();
        assert!(
            store.revision().await.unwrap() > handed_out,
            "after relaxed writes, a new start is behind all that was handed out"
        );
        // So that the next round can write the same keys.
        for entry in store.list(Range::default()).await.unwrap().entries {
            committed(&*store, relaxed(delete(&entry.key))).await;
        }
        handed_out = store.revision().await.unwrap();
        store.close().await.unwrap();
    }
}

/// SQLite shows a commit to other connections after its fsync; we must not be faster.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_sees_a_revision_before_it_is_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = open(&path);
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..100 {
                    committed(&*store, put(&format!("/{writer}/{n}"), vec![0; 1000])).await;
                }
            })
        })
        .collect();
    let mut watch = store.watch("", 0).await.unwrap();
    let file = rusqlite::Connection::open(&path).unwrap();
    let in_file =
        || file.query_row("SELECT max(place) >> 16 FROM log", [], |row| row.get::<_, Option<i64>>(0)).unwrap();
    let mut watched = 0;
    while watched < 800 {
        let seen = store.revision().await.unwrap();
        assert!(in_file().unwrap_or(0) as u64 >= seen, "revision {seen} is shown, but not in the file");
        watched = watch.recv().await.unwrap().unwrap().reached;
        assert!(in_file().unwrap_or(0) as u64 >= watched, "change {watched} is shown, but not in the file");
    }
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_restores_to_a_prefix_of_history() {
    let folder = tempfile::tempdir().unwrap();
    let [path, saved, restored] = ["store.db", "saved.db", "restored.db"].map(|name| folder.path().join(name));
    let store = open(&path);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (store, stop) = (store.clone(), stop.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    committed(&*store, put(&format!("/{writer}/{}", n % 20), format!("{n}"))).await;
                }
            })
        })
        .collect();
    let mut watch = store.watch("", 0).await.unwrap();
    revisions(&mut watch, 200).await.unwrap();
    let before = store.revision().await.unwrap();
    let mut copy = store.backup().await.unwrap();
    std::io::copy(&mut copy, &mut std::fs::File::create(&saved).unwrap()).unwrap();
    let named = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!named.into_iter().any(|name| name == "store.db.backup"), "a copy that nobody asked for stays behind");
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }

    let mut told = Vec::new();
    restore(&saved, &restored, |_, _| Ok(()), |done, whole| told.push((done, whole))).unwrap();
    let length = std::fs::metadata(&saved).unwrap().len();
    assert_eq!(told.last(), Some(&(length, length)));
    assert!(restore(&saved, &restored, |_, _| Ok(()), |_, _| {}).unwrap_err().to_string().contains("exists already"));
    let copy = open(&restored);
    let page = copy.list(Range::default()).await.unwrap();
    let newest = page.entries.iter().map(|e| e.mod_revision).max().unwrap();
    assert!(newest >= before, "{newest} is older than {before}, which was visible when the backup began");
    let then = store.list(Range { at: Some(newest), ..Range::default() }).await.unwrap();
    assert_eq!(page.entries, then.entries);

    // No revision that the lost store may have handed out is used again.
    assert!(copy.revision().await.unwrap() > store.revision().await.unwrap() + 1_000_000);
    let error = copy.watch("", store.revision().await.unwrap() + 1).await.unwrap_err();
    assert!(matches!(error, Error::Compacted { .. }), "{error}");
    let mut watch = copy.watch("", newest).await.unwrap();
    let next = committed(&*copy, put("/new", "1")).await;
    assert_eq!(next, copy.revision().await.unwrap());
    assert_eq!(revisions(&mut watch, next).await.unwrap(), [next]);
}

#[tokio::test]
async fn a_file_that_is_no_backup_is_not_restored() {
    let folder = tempfile::tempdir().unwrap();
    let [saved, restored] = ["saved.db", "restored.db"].map(|name| folder.path().join(name));
    for content in [&b""[..], b"hello", &[0; 8192]] {
        fs::write(&saved, content).unwrap();
        assert!(restore(&saved, &restored, |_, _| Ok(()), |_, _| {}).is_err());
        assert!(!restored.exists());
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["saved.db"], "a failed restore leaves nothing");
}

#[tokio::test]
async fn compaction_frees_what_was_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = open(&path);
    let rows = || {
        let file = rusqlite::Connection::open(&path).unwrap();
        file.query_row("SELECT count(*) FROM log", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    for n in 0..600 {
        committed(&*store, relaxed(put(&format!("/{}", n % 10), vec![0; 2000]))).await;
    }
    for n in 0..5 {
        committed(&*store, relaxed(delete(&format!("/{n}")))).await;
    }
    assert_eq!(rows(), 605);
    let now = store.revision().await.unwrap();
    committed(&*store, put("/9", "last")).await;
    store.compact(now + 1).await.unwrap();
    assert_eq!(rows(), 4 + 1 + 1, "four old ones, the newest, and what it replaced");
    let error = store.watch("", now - 1).await.unwrap_err();
    assert!(matches!(error, Error::Compacted { oldest, .. } if oldest == now + 1), "{error}");
    let mut watch = store.watch("", now).await.unwrap();
    let change = watch.recv().await.unwrap().unwrap().changes.remove(0);
    assert_eq!(change.before.unwrap().value.len(), 2000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_write_ahead_log_stays_bounded_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = open(&path);
    let mut largest = 0;
    for n in 0..3000 {
        committed(&*store, relaxed(put(&format!("/{}", n % 50), vec![0; 30_000]))).await;
        largest = largest.max(fs::metadata(folder.path().join("store.db-wal")).unwrap().len());
        if n % 100 == 0 {
            tokio::time::sleep(Duration::ZERO).await;
        }
    }
    assert!(largest < 64 << 20, "{largest} bytes");
}

/// What was acknowledged last is in the write-ahead log alone, after an end that was none: without it the store would be of long
/// ago, and say nothing.
#[tokio::test]
async fn a_log_that_is_gone_is_missed() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(&folder.path().join("store.db"));
    committed(&*store, put("/a", b"1")).await;
    let copied = other.path().join("store.db");
    // As a power loss leaves it.
    let copy = |name: &str| {
        fs::copy(folder.path().join(name), other.path().join(name)).unwrap();
    };
    ["store.db", "store.db.lock"].into_iter().for_each(copy);
    let refused = Sqlite::open(&copied).err().expect("it is refused");
    assert!(matches!(&refused, Error::Damaged(why) if why.contains("store.db-wal is missing")), "{refused}");
    fs::write(other.path().join("store.db-wal"), "").unwrap();
    assert!(Sqlite::open(&copied).is_err(), "an empty one is none");
    copy("store.db-wal");
    assert!(open(&copied).get("/a").await.unwrap().is_some());
    // One that was closed needs none, and neither does one whose end nobody saw but who has taken everything in.
    store.close().await.unwrap();
    assert!(open(&folder.path().join("store.db")).get("/a").await.unwrap().is_some());
}
