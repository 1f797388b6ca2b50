//! A store whose file has rotted: every answer is right, or says that it is damaged.

use std::{collections::BTreeMap, fs, path::Path};

use podwright::store::{Change, Entry, Error, Range, Revision, Sqlite, Store};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use super::{committed, delete, put};

/// All that a store knows.
#[derive(Debug, PartialEq)]
struct Truth {
    now: Vec<Entry>,
    earlier: Vec<Entry>,
    history: Vec<Change>,
    revision: Revision,
}

const EARLIER: Revision = 330;

async fn fill(path: &Path) -> Truth {
    let store = Sqlite::open(path).unwrap();
    for n in 0..400u32 {
        let key = format!("/registry/pods/{}", n % 90);
        let txn = if n % 11 == 0 { delete(&key) } else { put(&key, vec![n as u8; (n * 37 % 6000) as usize]) };
        committed(&store, txn).await;
    }
    store.compact(200).await.unwrap();
    let truth = truth(&store).await.unwrap();
    store.close().await.unwrap();
    truth
}

async fn truth(store: &dyn Store) -> Result<Truth, Error> {
    let now = store.list(Range::default()).await?.entries;
    let earlier = store.list(Range { at: Some(EARLIER), ..Range::default() }).await?.entries;
    let (revision, mut history) = (store.revision().await?, Vec::new());
    let mut watch = store.watch("", 199).await?;
    while history.last().is_none_or(|c: &Change| c.revision < revision) {
        // The invariant: the store is not closed, so the watch goes on.
        history.extend(watch.recv().await.expect("the watch goes on")?.changes);
    }
    Ok(Truth { now, earlier, history, revision })
}

/// Spoils the file in one of the ways of bad disks.
fn spoil(file: &mut Vec<u8>, random: &mut StdRng) -> String {
    let (offset, page) = (random.random_range(0..file.len()), random.random_range(0..file.len() / 4096) * 4096);
    match random.random_range(0..5) {
        0 => {
            file[offset] ^= 1 << random.random_range(0..8);
            format!("a bit of byte {offset} flipped")
        }
        1 => {
            let end = (offset + random.random_range(1..64)).min(file.len());
            random.fill_bytes(&mut file[offset..end]);
            format!("bytes {offset}..{end} overwritten")
        }
        2 => {
            file[page..page + 4096].fill(0);
            format!("the page at {page} zeroed")
        }
        3 => {
            let other = random.random_range(0..file.len() / 4096) * 4096;
            file.copy_within(other..other + 4096, page);
            format!("the page at {page} replaced by the one at {other}")
        }
        _ => {
            file.truncate(offset);
            format!("cut to {offset} bytes")
        }
    }
}

/// Right, or reported. Returns whether it was reported.
fn judge(answer: Result<Truth, Error>, truth: &Truth, what: &str, seed: u64) -> bool {
    match answer {
        Ok(answer) => assert!(answer == *truth, "served what is not true (seed {seed}): {what}"),
        Err(Error::Damaged(_)) => return true,
        // A header that claims another version of the format.
        Err(Error::Io(message)) if message.contains("version") || message.contains("readonly") => return true,
        Err(other) => panic!("{other} (seed {seed}): {what}"),
    }
    false
}

#[tokio::test]
async fn a_store_damaged_while_closed_is_refused_or_right() {
    let folder = tempfile::tempdir().unwrap();
    let sound = folder.path().join("sound.db");
    let truth_then = fill(&sound).await;
    let sound = fs::read(&sound).unwrap();
    let first = rand::rng().next_u64() >> 16;
    let mut reported = 0;
    for seed in first..first + 200 {
        let mut file = sound.clone();
        let what = spoil(&mut file, &mut StdRng::seed_from_u64(seed));
        let path = folder.path().join("spoilt.db");
        for name in ["spoilt.db-wal", "spoilt.db-shm", "spoilt.db.lock"] {
            let _ = fs::remove_file(folder.path().join(name));
        }
        fs::write(&path, &file).unwrap();
        fs::write(folder.path().join("spoilt.db.lock"), "pid 1").unwrap();
        let answer = match Sqlite::open(&path) {
            Ok(store) => truth(&store).await,
            Err(error) => Err(error),
        };
        reported += u32::from(judge(answer, &truth_then, &what, seed));
    }
    assert!(reported > 100, "only {reported} of 200 were noticed: is anything checked at all?");
}

#[tokio::test]
async fn a_store_damaged_while_open_never_lies() {
    let folder = tempfile::tempdir().unwrap();
    let sound = folder.path().join("sound.db");
    let truth_then = fill(&sound).await;
    let first = rand::rng().next_u64() >> 16;
    let mut reported = 0;
    for seed in first..first + 60 {
        let path = folder.path().join(format!("{}.db", seed - first));
        fs::copy(&sound, &path).unwrap();
        let store = Sqlite::open(&path).unwrap();
        let mut file = fs::read(&path).unwrap();
        let mut random = StdRng::seed_from_u64(seed);
        let what: Vec<String> = (0..8).map(|_| spoil_in_place(&mut file, &mut random)).collect();
        fs::write(&path, &file).unwrap();
        reported += u32::from(judge(truth(&store).await, &truth_then, &what.join(", "), seed));
        let now: BTreeMap<&str, &Entry> = truth_then.now.iter().map(|e| (&*e.key, e)).collect();
        for n in 0..91 {
            let key = format!("/registry/pods/{n}");
            match store.get(&key).await {
                Ok(entry) => assert_eq!(entry.as_ref(), now.get(&*key).copied(), "seed {seed}: {what:?}"),
                Err(Error::Damaged(_)) => {}
                Err(other) => panic!("{other} (seed {seed}): {what:?}"),
            }
        }
    }
    assert!(reported > 20, "only {reported} of 60 were noticed: is anything checked at all?");
}

/// Reading on behind a file's end is an I/O error like any other; here it is about content.
fn spoil_in_place(file: &mut Vec<u8>, random: &mut StdRng) -> String {
    let length = file.len();
    let what = spoil(file, random);
    file.resize(length, 0);
    what
}

#[tokio::test]
async fn a_store_whose_file_is_gone_is_not_taken_for_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    fill(&path).await;
    fs::write(&path, "").unwrap();
    assert!(matches!(Sqlite::open(&path), Err(Error::Damaged(_))));
    fs::remove_file(&path).unwrap();
    assert!(matches!(Sqlite::open(&path), Err(Error::Damaged(_))));
}
