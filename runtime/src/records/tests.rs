//! Tests of writing and reading records.

use std::time::Duration;

use super::*;

fn record(id: &ContainerId) -> ContainerRecord {
    ContainerRecord {
        id: id.clone(),
        created: Timestamp::UNIX_EPOCH,
        started: None,
        labels: Labels::new(),
        log: None,
        stdin: false,
        terminal: false,
        hostname: String::new(),
        devices: None,
        resources: None,
    }
}

fn folders(dir: &Path) -> Folders {
    Folders {
        state: dir.join("state"),
        copies: dir.join("copies"),
        run: dir.join("run"),
        removals: Removals::default(),
        owners: Owners::default(),
        written: Arc::default(),
    }
}

/// One at a time is restored from the other. Both: it is lost, without guessing.
#[test]
fn what_is_damaged_while_nobody_looks_is_read_of_its_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (here, id) = (folders(dir.path()), ContainerId::new("s", "c", 0));
    let spec = crate::spec::SandboxSpec::new("s", crate::spec::CgroupName::new("s"));
    let sandbox = SandboxRecord { spec, created: Timestamp::UNIX_EPOCH, stopped: false, secret: true };
    let container = ContainerRecord { started: Some(Timestamp::UNIX_EPOCH), ..record(&id) };
    let secret = Secret::make().unwrap();
    here.write_sandbox(&sandbox).unwrap();
    here.write_container(&container).unwrap();
    here.write_secret("s", &secret).unwrap();
    let all: Vec<PathBuf> = here.kept("s", [&id].into_iter()).into_iter().collect();
    assert_eq!(all.len(), 6);
    let whole = |folders: &Folders| {
        let containers = folders.container_records("s");
        let records = containers.0.len() == 1 && containers.1.is_empty() && folders.read_sandbox("s").is_some();
        records && folders.read_secret("s").is_ok_and(|read| read.as_ref() == Some(&secret))
    };
    let other = serde_json::to_vec(&ContainerRecord { id: ContainerId::new("t", "c", 0), ..record(&id) }).unwrap();
    for path in &all {
        let was = fs::read(path).unwrap();
        for damage in [None, Some(&b""[..]), Some(&was[..was.len() / 2]), Some(&other[..])] {
            match damage {
                None => fs::remove_file(path).unwrap(),
                Some(bytes) => fs::write(path, bytes).unwrap(),
            }
            // Like a starting agent: it has written nothing yet.
            assert!(whole(&folders(dir.path())), "{}", path.display());
            assert_eq!(fs::read(path).unwrap(), was, "{}", path.display());
        }
    }
    for path in &all {
        fs::write(path, "{").unwrap();
    }
    let lost = folders(dir.path());
    assert!(lost.read_sandbox("s").is_none() && lost.read_secret("s").is_err());
    assert_eq!(lost.container_records("s").1, std::slice::from_ref(&id));
    lost.remove_container(&id, &Owner::default()).unwrap();
    assert!(lost.container_records("s").1.is_empty());
    for path in lost.kept("s", std::iter::empty()) {
        fs::remove_file(path).unwrap();
    }
    assert_eq!(lost.read_secret("s").unwrap(), None);
}

#[test]
fn a_secret_that_is_there_is_told_also_where_its_copy_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let (folders, secret) = (folders(dir.path()), Secret::make().unwrap());
    folders.write_secret("s", &secret).unwrap();
    // Like a full disk: a file in place of the copy's folder.
    fs::remove_dir_all(&folders.copies).unwrap();
    fs::write(&folders.copies, "").unwrap();
    assert_eq!(folders.read_secret("s").unwrap(), Some(secret));
}

#[test]
fn a_record_that_somebody_else_changes_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (folders, id) = (folders(dir.path()), ContainerId::new("s", "c", 0));
    let path = folders.container_record(&id);
    let all = BTreeSet::from([path.clone(), dir.path().join("never written")]);
    for damage in ["", "{", "gone"] {
        folders.write_container(&record(&id)).unwrap();
        assert_eq!(folders.damaged(&all), BTreeSet::new());
        match damage {
            "gone" => fs::remove_file(&path).unwrap(),
            bytes => fs::write(&path, bytes).unwrap(),
        }
        assert_eq!(folders.damaged(&all), BTreeSet::from([path.clone()]), "{damage:?}");
    }
    assert_eq!(folders.damaged(&BTreeSet::new()), BTreeSet::new(), "what is no longer known is not missed");
}

/// A file found right after writing a record may already be someone else's: it must not be taken for the written one.
#[test]
fn a_record_that_somebody_removes_at_once_is_missed() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let (folders, id, stop) = (folders(dir.path()), ContainerId::new("s", "c", 0), AtomicBool::new(false));
    let path = folders.container_record(&id);
    let all = BTreeSet::from([path.clone()]);
    let unnoticed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::remove_file(&path);
            }
        });
        let unnoticed = (0..500).filter(|_| {
            let written = folders.write_container(&record(&id));
            while written.is_ok() && path.exists() {}
            written.is_err() || folders.damaged(&all) != all
        });
        let count = unnoticed.count();
        stop.store(true, Ordering::Relaxed);
        count
    });
    assert_eq!(unnoticed, 0);
}

#[test]
fn an_annotation_has_a_file_of_its_own_and_that_of_an_earlier_agent_gets_one() {
    let dir = tempfile::tempdir().unwrap();
    let folders = folders(dir.path());
    let (new, earlier) = (ContainerId::new("s", "new", 0), ContainerId::new("s", "earlier", 0));
    folders.write_annotation(&new, "mine").unwrap();
    folders.write_container(&record(&new)).unwrap();
    let mut json = serde_json::to_value(record(&earlier)).unwrap();
    json["annotation"] = "of old".into();
    kept::replace(&folders.container_record(&earlier), json.to_string().as_bytes()).unwrap();

    let (records, half_made) = folders.container_records("s");
    assert_eq!((records.len(), half_made.len()), (2, 0));
    for record in &records {
        assert!(!serde_json::to_string(record).unwrap().contains("annotation"), "held in memory");
        folders.write_container(record).unwrap();
    }
    folders.container_records("s");
    for (id, expected) in [(&new, "mine"), (&earlier, "of old"), (&ContainerId::new("s", "none", 0), "")] {
        assert_eq!(folders.read_annotation(id).unwrap(), expected);
        assert_eq!(fs::read_to_string(folders.annotation(id)).unwrap_or_default(), expected, "it counts as this file");
    }
}

/// The ids come from the caller that requested it, or from its files: no one else gets ids that files have.
#[tokio::test]
async fn a_sandbox_without_a_record_keeps_its_ids_until_it_is_removed() {
    let users = IdRange { host: 131_072, size: 65_536 };
    let (noted, none) = (Owner::new("team", Some(users)), Owner::new("team", None));
    // What is known of it, what is recorded, and the resulting owner.
    for (known, noted, expected) in [
        (None, Some(noted.clone()), noted.clone()),
        (Some(None), Some(noted.clone()), none.clone()),
        (Some(Some(users)), Some(none.clone()), noted),
        (Some(Some(users)), None, Owner::new("", Some(users))),
        (None, Some(none.clone()), none),
        (None, None, Owner::default()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut here = folders(dir.path());
        here.owners = Owners::new(move |id| noted.clone().filter(|_| id == "s"));
        fs::create_dir_all(here.sandbox("s").join("c/k/upper")).unwrap();
        let end = crate::removals::tests::held_back(&here.removals);
        here.forget_unrecorded("s", known, Instant::now() + Duration::from_secs(60)).unwrap();
        let name = fs::read_dir(&here.state).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
        assert!(name.ends_with(&format!(".{expected}")), "{name}");
        assert_eq!(here.removals.users(), Vec::from_iter(expected.users()));
        drop(end);
        here.removals.gone(dir.path()).await;
        assert!(here.removals.users().is_empty());
    }
}

/// No one else gets ids while it exists, and starts do not wait longer.
#[tokio::test]
async fn a_sandbox_that_there_is_no_time_to_look_at_may_have_any_ids() {
    let dir = tempfile::tempdir().unwrap();
    let here = folders(dir.path());
    fs::create_dir_all(here.sandbox("s").join("c/k/upper")).unwrap();
    let end = crate::removals::tests::held_back(&here.removals);
    here.forget_unrecorded("s", None, Instant::now()).unwrap();
    assert_eq!(here.removals.users(), [crate::removals::ALL]);
    drop(end);
    here.removals.gone(dir.path()).await;
}
