//! Which ids of the host Pods with users of their own have: ranges that nobody else has, also after a restart.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use podwright::node::{
    id_pool::{IDS_PER_POD, IdPool, Ids, pick},
    users::{NoFreeRange, Users, taken_by_host},
};
use podwright_runtime::{
    IdRange,
    fair_pool::{ALONE, Outcome},
    removals::{ALL, Owner, Removals},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

fn pool(text: &str) -> IdPool {
    text.parse().unwrap()
}

fn ids(range: IdRange) -> Ids {
    u64::from(range.host)..u64::from(range.host) + u64::from(range.size)
}

fn apart(a: &Ids, b: &Ids) -> bool {
    a.end <= b.start || b.end <= a.start
}

#[test]
fn a_pool_is_never_of_the_hosts_own_ids() {
    for (text, why) in [
        ("0:65536", "must be a multiple of 65536, and not 0"),
        ("1:65536", "must be a multiple of 65536, and not 0"),
        ("65536:0", "must be a multiple of 65536, and not 0"),
        ("65536:100", "must be a multiple of 65536, and not 0"),
        ("4294901760:65536", "there are no ids above 4294901759"),
        ("65536:4294901760", "there are no ids above 4294901759"),
        ("65536", "expected FIRST:COUNT"),
        ("a:b", "expected FIRST:COUNT"),
        ("-1:65536", "expected FIRST:COUNT"),
        ("65536:4294967296", "expected FIRST:COUNT"),
    ] {
        let refused = text.parse::<IdPool>().unwrap_err();
        assert!(refused.to_string().contains(why), "{text}: {refused}");
    }
    assert_eq!(IdPool::for_pods(110), pool("65536:14417920"));
    // As many as there can be, whatever number of Pods somebody writes.
    assert_eq!(IdPool::for_pods(u32::MAX), pool("65536:4294836224"));
}

#[test]
fn the_hosts_people_and_daemons_keep_theirs() {
    let subuid = "alice:100000:65536\nbroken\nbob:165536:65536\nnone:x:1\n0:300000:1\nempty:7:0\n";
    let passwd = "root:x:0:0::/root:/bin/sh\nldap:x:200001:5::/:/bin/sh\nodd:x:-1\n";
    let taken = taken_by_host(subuid, passwd);
    assert_eq!(taken, [100000..165536, 165536..231072, 300000..300001, 0..1, 200001..200002]);
    // 65536.. is alice's from 100000 on, 131072.. hers and bob's, 196608.. bob's, 262144.. has 300000.
    assert_eq!(pick(pool("65536:655360"), &taken, 0).unwrap().host, 327680);
    assert_eq!(pick(pool("65536:262144"), &taken, 0), None);
}

#[test]
fn ranges_go_round_and_are_not_at_once_anothers() {
    let users = Users::new(pool("65536:196608"), Vec::new(), [], Removals::default());
    let first = users.take("a", "a").unwrap();
    assert_eq!(first, IdRange { host: 65536, size: IDS_PER_POD });
    assert_eq!(users.take("a", "a").unwrap(), first, "a Pod keeps its own");
    users.free("a");
    let hosts = ["b", "c", "d"].map(|pod| users.take(pod, pod).unwrap().host);
    assert_eq!(hosts, [131072, 196608, 65536]);
    assert_eq!(
        users.take("e", "e").unwrap_err().to_string(),
        "create user namespace: could not find an empty slot to allocate a user namespace"
    );
    users.retain(|pod| pod != "c");
    assert_eq!(users.take("e", "e").unwrap().host, 196608);
}

/// Nothing is removed before this is dropped.
fn hold(removals: &Removals) -> mpsc::Sender<()> {
    let (end, wait) = mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    for _ in 0..ALONE {
        let wait = wait.clone();
        let job = move || {
            wait.lock().unwrap().recv().ok();
            Outcome::Done
        };
        removals.pool().push("default", Box::new(job));
    }
    end
}

/// A Pod is gone before its files are.
#[tokio::test]
async fn what_is_left_keeps_its_range_until_it_is_removed() {
    let (root, removals) = (tempfile::tempdir().unwrap(), Removals::default());
    let users = Users::new(pool("65536:131072"), Vec::new(), [], removals.clone());
    let first = users.take("a", "a").unwrap();
    let end = hold(&removals);
    std::fs::create_dir(root.path().join("a")).unwrap();
    removals.put_aside(&root.path().join("a"), &Owner::new("default", Some(first))).unwrap();
    users.free("a");
    // A static Pod's uid is the same each time.
    let second = users.take("a", "a").unwrap();
    assert_ne!(first, second);
    assert!(users.take("b", "b").is_err(), "its files are still there");
    drop(end);
    removals.gone(root.path()).await;
    assert_eq!(users.take("b", "b").unwrap(), first);
    assert_eq!(users.take("a", "a").unwrap(), second);
}

#[test]
fn a_namespace_leaves_as_many_ranges_as_it_has() {
    let removals = Removals::default();
    let users = Users::new(pool("65536:524288"), Vec::new(), [], removals.clone());
    let take = |pod: &str, namespace: &str| users.take(pod, namespace).map(|range| range.host);
    (0..4).for_each(|n| _ = take(&format!("a{n}"), "a").unwrap());
    let refused = take("a4", "a").unwrap_err().to_string();
    assert!(refused.contains("namespace a has 4 of this node's 8 ranges of ids"), "{refused}");
    take("a3", "a").unwrap();
    (0..2).for_each(|n| _ = take(&format!("b{n}"), "b").unwrap());
    take("b2", "b").unwrap_err();
    take("c0", "c").unwrap();
    take("c1", "c").unwrap_err();
    take("d0", "d").unwrap();
    // Who comes later has what others have given back.
    users.free("a0");
    take("e0", "e").unwrap();
    take("a5", "a").unwrap_err();
}

/// What other programs of the host have (`/etc/subuid`), and what was found in Pods' files, is not there to be shared.
#[test]
fn a_namespace_has_half_of_what_can_be_given() {
    // Of eight ranges the third to the sixth, and a few ids of the seventh twice.
    let foreign = vec![458753..458754, 196608..300000, 250000..458752, 458753..458760, 0..1];
    let odd = ("odd".to_owned(), IdRange { host: 65536 + 7, size: 1 });
    let users = Users::new(pool("65536:524288"), foreign, [odd], Removals::default());
    let take = |pod: &str, namespace: &str| users.take(pod, namespace).map(|range| range.host);
    assert_eq!(take("a0", "a").unwrap(), 131072);
    let refused = take("a1", "a").unwrap_err();
    assert_eq!(refused, NoFreeRange::Share { namespace: "a".to_owned(), has: 1, all: 2 });
    assert_eq!(take("b0", "b").unwrap(), 524288);
    assert_eq!(take("c0", "c").unwrap_err(), NoFreeRange::All);
    users.free("odd");
    take("a1", "a").unwrap_err();
    assert_eq!(take("c0", "c").unwrap(), 65536);
}

/// What Pods have left is their namespace's until it is removed.
#[tokio::test]
async fn what_is_left_counts_for_its_namespace() {
    let (root, removals) = (tempfile::tempdir().unwrap(), Removals::default());
    let users = Users::new(pool("65536:262144"), Vec::new(), [], removals.clone());
    let end = hold(&removals);
    for uid in ["a", "b"] {
        std::fs::create_dir(root.path().join(uid)).unwrap();
        let owner = Owner::new("team", Some(users.take(uid, "team").unwrap()));
        removals.put_aside(&root.path().join(uid), &owner).unwrap();
        users.free(uid);
    }
    assert!(matches!(users.take("c", "team"), Err(NoFreeRange::Share { has: 2, all: 4, .. })));
    users.take("d", "other").unwrap();
    assert!(removals.say_users(root.path()));
    std::fs::create_dir(root.path().join("e")).unwrap();
    removals.put_aside(&root.path().join("e"), &Owner::new("team", None)).unwrap();
    assert!(!removals.say_users(root.path()));
    drop(end);
    removals.gone(root.path()).await;
    users.take("c", "team").unwrap();
}

/// A Pod that has ended has given its range back, and the record of its sandbox is still there.
#[test]
fn what_a_pod_has_given_back_is_not_its_own_for_a_later_agent() {
    let pods = tempfile::tempdir().unwrap();
    let [first, second] = [0, 1].map(|n| IdRange { host: 3221225472 + n * IDS_PER_POD, size: IDS_PER_POD });
    for (name, users) in [("ended", None), ("lives", Some(second))] {
        std::fs::create_dir(pods.path().join(name)).unwrap();
        std::fs::write(pods.path().join(name).join("owner"), Owner::new("default", users).to_string()).unwrap();
    }
    let records = [("ended", first), ("lives", second)].map(|(uid, range)| (uid.to_owned(), Some(range)));
    let users = Users::of_host(pool("3221225472:131072"), pods.path(), records, Removals::default());
    assert_eq!((users.of("ended"), users.of("lives")), (None, Some(second)));
    assert_eq!(users.take("new", "other").unwrap(), first);
}

/// An agent was killed when a Pod had its folder, and no sandbox yet; or no sandbox any more.
#[test]
fn the_range_that_is_noted_with_a_pods_folder_is_the_pods() {
    let pods = tempfile::tempdir().unwrap();
    // Of nobody on this host.
    let pool = pool("3221225472:131072");
    let [first, second] = [0, 1].map(|n| IdRange { host: 3221225472 + n * IDS_PER_POD, size: IDS_PER_POD });
    for (name, users) in [("a", Some(first)), (".aside-1.-.", Some(second)), ("b", None)] {
        std::fs::create_dir(pods.path().join(name)).unwrap();
        let owner = Owner::new("default", users).to_string();
        std::fs::write(pods.path().join(name).join("owner"), owner).unwrap();
    }
    let users = Users::of_host(pool, pods.path(), [], Removals::default());
    assert_eq!(users.take("b", "b").unwrap(), second);
    assert!(users.take("c", "c").is_err());
    assert_eq!(users.take("a", "a").unwrap(), first);
}

/// An earlier agent has found them in the Pod's files, when nothing said whose those are.
#[test]
fn ids_that_are_noted_beside_a_pods_own_are_nobodys() {
    let pods = tempfile::tempdir().unwrap();
    let own = IdRange { host: 3221225472, size: IDS_PER_POD };
    let found = IdRange { host: own.host + IDS_PER_POD + 7, size: 1 };
    std::fs::create_dir(pods.path().join("a")).unwrap();
    std::fs::write(pods.path().join("a/owner"), format!("{}+{}.default\n{}+1.", own.host, own.size, found.host))
        .unwrap();
    let users = Users::of_host(pool("3221225472:131072"), pods.path(), [], Removals::default());
    assert_eq!((users.take("a", "a").unwrap(), users.found("a")), (own, Some(found)));
    assert_eq!(users.of("a"), Some(IdRange { host: own.host, size: IDS_PER_POD + 8 }), "it leaves both");
    assert!(users.take("b", "b").is_err());
    users.free("a");
    assert!(users.take("b", "b").is_ok());
}

/// The note is lost, as by a power cut, or damaged.
#[tokio::test]
async fn nobody_gets_ids_before_it_is_seen_which_those_have_of_whom_nothing_says_it() {
    const LONG: Duration = Duration::from_secs(60);
    let (pods, size) = (tempfile::tempdir().unwrap(), IDS_PER_POD);
    let open = |living: &[(String, Option<IdRange>)]| {
        Users::of_host(pool("3221225472:131072"), pods.path(), living.to_vec(), Removals::default())
    };
    for note in ["", "3221225472+1.default", "65536+4294901759.default", "3221225472+65537.default"] {
        std::fs::create_dir_all(pods.path().join("a/volumes/v")).unwrap();
        std::fs::write(pods.path().join("a/owner"), note).unwrap();
        let users = open(&[]);
        // There is no time to look.
        users.look(Duration::ZERO).await;
        assert!(users.take("a", "a").is_err() && users.take("b", "b").is_err());
        assert_eq!(users.of("a"), Some(ALL));
        // Its files have none but the host's own.
        users.look(LONG).await;
        assert_eq!(users.of("a"), None);
        assert_eq!(users.take("a", "a").unwrap(), IdRange { host: 3221225472, size }, "{note}");
        assert!(users.take("b", "b").is_ok());
        // Of whom a record says that he has none, or his manifest, it is believed.
        assert!(open(&[("a".to_owned(), None)]).take("b", "b").is_ok());
        let users = open(&[]);
        users.are_hosts("a");
        assert!(users.take("b", "b").is_ok());
        let users = open(&[]);
        users.retain(|_| false);
        assert!(users.take("b", "b").is_ok(), "it is gone");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_seen_in_time_is_looked_at_again() {
    let pods = tempfile::tempdir().unwrap();
    ["a", "b"].iter().for_each(|uid| std::fs::create_dir(pods.path().join(uid)).unwrap());
    let users = Users::of_host(pool("3221225472:131072"), pods.path(), [], Removals::default());
    users.look(Duration::ZERO).await;
    assert!(users.take("c", "c").is_err());
    users.look_on().await;
    assert!(users.take("c", "c").is_ok());
}

/// What somebody has who has another number of ids is nobody's; nor does he get it again.
#[test]
fn a_range_of_another_size_is_handed_to_nobody() {
    let odd = IdRange { host: 65536 + 7, size: 70000 };
    let users = Users::new(pool("65536:262144"), Vec::new(), [("a".to_owned(), odd)], Removals::default());
    assert_eq!(users.of("a"), Some(odd));
    let own = users.take("a", "a").unwrap();
    assert_eq!(own, IdRange { host: 196608, size: IDS_PER_POD });
    assert_eq!(users.of("a"), Some(IdRange { host: 65543, size: 196608 + IDS_PER_POD - 65543 }));
    assert_eq!(users.take("b", "b").unwrap().host, 262144);
    assert!(users.take("c", "c").is_err());
    users.free("a");
    assert_eq!(users.take("c", "c").unwrap().host, 65536);
}

/// Pods come and go, agents die and start, the range that was configured changes: no two Pods ever share an id, nor do a Pod
/// and the host.
#[test]
fn no_two_ever_share_an_id() {
    let seed = rand::rng().random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..200 {
        let mut foreign: Vec<Ids> = std::iter::once(0..65536).collect();
        for _ in 0..random.random_range(0..4) {
            let first = random.random_range(0..2_000_000u64);
            foreign.push(first..first + random.random_range(1..200_000u64));
        }
        let sized = |random: &mut StdRng| {
            let (first, count) = (random.random_range(1..20u32), random.random_range(1..20u32));
            pool(&format!("{}:{}", first * IDS_PER_POD, count * IDS_PER_POD))
        };
        let mut users = Users::new(sized(&mut random), foreign.clone(), [], Removals::default());
        let mut living: BTreeMap<String, IdRange> = BTreeMap::new();
        for step in 0..60 {
            match random.random_range(0..10) {
                0..6 => {
                    let pod = format!("p{step}");
                    let Ok(range) = users.take(&pod, &pod) else { continue };
                    for other in living.values().map(|r| ids(*r)).chain(foreign.clone()) {
                        assert!(apart(&other, &ids(range)), "{range:?} and {other:?}");
                    }
                    assert!(range.host >= IDS_PER_POD && range.size == IDS_PER_POD);
                    living.insert(pod, range);
                }
                6..9 => {
                    let gone = living.keys().nth(random.random_range(0..living.len().max(1))).cloned();
                    if let Some(gone) = gone {
                        users.free(&gone);
                        living.remove(&gone);
                    }
                }
                // Another agent, perhaps with another range, which knows what the sandboxes' records say.
                _ => users = Users::new(sized(&mut random), foreign.clone(), living.clone(), Removals::default()),
            }
            for (pod, range) in &living {
                assert_eq!(users.take(pod, pod).unwrap(), *range, "{pod} keeps its own");
            }
        }
    }
}
