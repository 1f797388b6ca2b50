//! Tests of folders moved aside, and emptied in place without room for that.

use super::*;
use crate::fair_pool::ALONE;
use crate::owner::LONGEST;

const USERS: IdRange = IdRange { host: 131072, size: 65536 };

/// Keeps this many turns of the owner `a` from ending until the result is dropped.
fn held(removals: &Removals, many: usize) -> std::sync::mpsc::Sender<()> {
    held_of(removals, &["a"], many)
}

fn held_of(removals: &Removals, owners: &[&str], many: usize) -> std::sync::mpsc::Sender<()> {
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    for owner in owners.iter().flat_map(|owner| std::iter::repeat_n(owner, many)) {
        let wait = wait.clone();
        let job = move || {
            wait.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
            Outcome::Done
        };
        removals.0.pool.push(owner, Box::new(job));
    }
    end
}

/// Keeps anything of these owners from being deleted until the result is dropped.
pub(crate) fn held_back(removals: &Removals) -> std::sync::mpsc::Sender<()> {
    held_of(removals, &["", "team"], ALONE)
}

/// The disk is too full for one more name.
#[tokio::test]
async fn what_cannot_be_put_aside_on_a_full_disk_is_emptied_where_it_is() {
    let (root, removals, owner) = (tempfile::tempdir().unwrap(), Removals::default(), Owner::new("a", None));
    let folder = root.path().join("uid");
    std::fs::create_dir_all(folder.join("a/b")).unwrap();
    let end = held(&removals, ALONE);
    for code in [libc::ENOSPC, libc::EDQUOT] {
        let error = removals.or_empty(&folder, &owner, Err(io::Error::from_raw_os_error(code))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(code), "whoever wanted it tries again");
    }
    assert_eq!(removals.0.pool.of("a"), ALONE + 1, "it is emptied once");
    // It can be moved after all, and something new has its name: that must not be emptied.
    removals.put_aside(&folder, &owner).unwrap();
    std::fs::create_dir_all(folder.join("new")).unwrap();
    drop(end);
    removals.gone(root.path()).await;
    assert!(folder.join("new").exists() && std::fs::read_dir(root.path()).unwrap().count() == 1);
    assert!(removals.or_empty(&folder, &owner, Err(io::Error::from_raw_os_error(libc::EBUSY))).is_err());
    removals.gone(root.path()).await;
    assert!(folder.join("new").exists(), "nothing else is a reason to");
}

/// An agent killed between any two steps leaves the record of the ids as long as any of their files exist.
#[test]
fn what_says_whose_it_is_goes_last_where_a_folder_is_emptied() {
    let root = tempfile::tempdir().unwrap();
    let says = ["owner", "sandbox.json"].map(|name| root.path().join(name));
    says.iter().for_each(|file| std::fs::write(file, "").unwrap());
    (0..400).for_each(|n| std::fs::create_dir_all(root.path().join(format!("volumes/v{n}/in"))).unwrap());
    let folder = tree::hold(root.path()).unwrap();
    while !tree::empty_for(&folder, &LAST, Duration::from_micros(300)).unwrap() {
        let left = std::fs::read_dir(root.path()).unwrap().flatten().map(|entry| entry.path());
        let others = left.filter(|path| !says.contains(path)).count();
        assert!(others == 0 || says.iter().all(|file| file.exists()), "{others} others are left");
    }
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn what_is_being_removed_is_known_by_its_name_of_before() {
    let (root, removals) = (tempfile::tempdir().unwrap(), Removals::default());
    let (folder, owner) = (root.path().join("uid"), Owner::new("a", None));
    std::fs::create_dir(&folder).unwrap();
    let end = held(&removals, ALONE);
    removals.put_aside(&folder, &owner).unwrap();
    assert!(!folder.exists() && removals.underway() == [folder.clone()]);
    drop(end);
    removals.gone(root.path()).await;
    assert!(removals.underway().is_empty());
    std::fs::write(&folder, "").unwrap();
    removals.put_aside(&folder, &owner).unwrap();
    assert_eq!(removals.drained().await.len(), 1);
    assert!(removals.underway().is_empty(), "for what does not go nobody is to wait");
}

/// Moving aside does not wait for deletions.
#[tokio::test]
async fn who_puts_aside_waits_for_no_removal() {
    let removals = Removals::default();
    let end = held(&removals, MOST);
    let turn = tokio::time::timeout(Duration::from_secs(20), removals.in_turn("a", || 1));
    assert_eq!(turn.await.unwrap(), Some(1));
    drop(end);
}

#[test]
fn a_name_says_whose_it_is() {
    for owner in [Owner::default(), Owner::new("default", None), Owner::new("team-1", Some(USERS))] {
        let name = names(&owner).next().unwrap();
        assert!(is_aside(&name));
        assert_eq!(owner_of(&name).unwrap(), owner, "{name}");
    }
    for odd in ["../../etc", "a.b", "A", "a/b", &"a".repeat(64)] {
        assert_eq!(Owner::new(odd, Some(USERS)), Owner::new("", Some(USERS)));
    }
    let longest = Owner::new(&"a".repeat(LONGEST), Some(IdRange { host: u32::MAX, size: u32::MAX }));
    assert!(names(&longest).next().unwrap().len() < 255);
    for odd in ["uid", ".ended", ".aside-", ".aside-1", ".aside-1.x.a"] {
        assert_eq!(owner_of(odd), None, "{odd}");
    }
}

#[tokio::test]
async fn what_is_put_aside_is_removed_and_its_name_is_free_at_once() {
    let (root, removals) = (tempfile::tempdir().unwrap(), Removals::default());
    let folder = root.path().join("uid");
    removals.put_aside(&folder, &Owner::default()).unwrap();
    for _ in 0..3 {
        std::fs::create_dir_all(folder.join("a/b")).unwrap();
        removals.put_aside(&folder, &Owner::new("a", Some(USERS))).unwrap();
        assert!(!folder.exists());
    }
    std::fs::create_dir(&folder).unwrap();
    removals.gone(root.path()).await;
    assert_eq!((std::fs::read_dir(root.path()).unwrap().count(), removals.users()), (1, vec![]));
}

/// An agent was killed between the two steps.
#[tokio::test]
async fn what_an_earlier_agent_has_put_aside_keeps_its_ids_until_it_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let aside = root.path().join(names(&Owner::new("a", Some(USERS))).next().unwrap());
    std::fs::create_dir_all(aside.join("a/b")).unwrap();
    std::fs::create_dir_all(root.path().join(".aside-odd/a")).unwrap();
    std::fs::create_dir(root.path().join("uid")).unwrap();
    let removals = Removals::default();
    let end = held(&removals, ALONE);
    removals.find(root.path());
    removals.find(root.path());
    assert_eq!((removals.users(), removals.0.pool.of("a")), (vec![USERS], ALONE + 1));
    removals.gone(&root.path().join(".aside-odd")).await;
    drop(end);
    assert_eq!(removals.drained().await, [""; 0]);
    assert!(removals.users().is_empty());
    let left: Vec<_> = std::fs::read_dir(root.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["uid"]);
}

#[tokio::test]
async fn what_cannot_be_removed_is_told_and_tried_again() {
    let (root, removals) = (tempfile::tempdir().unwrap(), Removals::default());
    let file = root.path().join("no-folder");
    std::fs::write(&file, "").unwrap();
    removals.put_aside(&file, &Owner::default()).unwrap();
    let errors = removals.drained().await;
    assert!(errors.len() == 1 && errors[0].contains("Not a directory"), "{errors:?}");
    let aside = std::fs::read_dir(root.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(aside).unwrap();
    assert_eq!(removals.drained().await, [""; 0], "somebody else has removed it");
    removals.gone(root.path()).await;
}

#[tokio::test]
async fn who_has_left_too_much_waits() {
    let (root, removals) = (tempfile::tempdir().unwrap(), Removals::default());
    let end = held(&removals, MOST);
    assert!(!removals.has_room("a") && removals.has_room("b"));
    // Others do not wait for it, nor is the folder's name blocked.
    for owner in ["a", "b"] {
        std::fs::create_dir(root.path().join(owner)).unwrap();
        removals.put_aside(&root.path().join(owner), &Owner::new(owner, None)).unwrap();
    }
    removals.room("b").await;
    assert!(tokio::time::timeout(Duration::from_millis(50), removals.room("a")).await.is_err());
    drop(end);
    removals.room("a").await;
    removals.gone(root.path()).await;
}
