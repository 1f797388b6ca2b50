//! Which connections are admitted, and which must end.

use super::*;

fn limiter(connections: usize, connections_of_one: usize, connections_of_user: usize) -> ConnectionLimiter {
    ConnectionLimiter::new(&Limits { connections, connections_of_one, connections_of_user, ..Limits::default() })
}

fn user(name: &str, group: &str) -> User {
    User::new(name, [group])
}

/// A connection from the address 127.0.0.`n`.
fn stranger(limiter: &ConnectionLimiter, n: u8) -> Option<Pass> {
    limiter.admit(IpAddr::from([127, 0, 0, n]))
}

/// The same, authenticated as a user; `None`: refused as too many.
fn known(limiter: &ConnectionLimiter, n: u8, user: &User) -> Option<Pass> {
    let pass = stranger(limiter, n)?;
    pass.guest().known(user).ok()?;
    Some(pass)
}

fn many(limiter: &ConnectionLimiter, n: u8, user: &User, wanted: usize) -> Vec<Pass> {
    (0..wanted).filter_map(|_| known(limiter, n, user)).collect()
}

fn lost(passes: &[Pass]) -> Vec<usize> {
    let lost = passes.iter().enumerate().filter(|(_, pass)| pass.guest().lost().is_cancelled());
    lost.map(|(index, _)| index).collect()
}

fn held(limiter: &ConnectionLimiter) -> usize {
    let open = locked(&limiter.open);
    assert_eq!(open.all.len(), open.addresses.values().map(Crowd::len).sum::<usize>());
    assert_eq!(open.known.all, open.addresses.values().map(|crowd| crowd.known.all).sum::<usize>());
    assert_eq!(open.all.values().filter(|it| it.holder.is_none()).count(), open.strangers.count());
    open.all.len()
}

#[test]
fn connections_are_given_back() {
    let (limiter, ann) = (limiter(4, 3, 9), user("ann", ""));
    let (first, second) = (known(&limiter, 1, &ann).unwrap(), known(&limiter, 1, &ann).unwrap());
    let waiting = stranger(&limiter, 1).unwrap();
    assert!(waiting.guest().known(&ann).is_err_and(|why| why.code == 429), "nobody holds more than she would");
    drop(first);
    assert!(waiting.guest().known(&ann).is_ok());
    // Its user is fixed.
    assert!(waiting.guest().known(&user("bob", "")).is_ok());
    drop((waiting, second));
    assert!(held(&limiter) == 0 && locked(&limiter.open).addresses.is_empty());
    assert!(locked(&limiter.open).known.holders.is_empty());
}

#[test]
fn who_has_shown_nothing_gives_way_to_the_next() {
    let (limiter, ann) = (limiter(4, 3, 9), user("ann", ""));
    let of_ann = known(&limiter, 1, &ann).unwrap();
    let strangers = [stranger(&limiter, 1).unwrap(), stranger(&limiter, 1).unwrap(), stranger(&limiter, 2).unwrap()];
    let third = stranger(&limiter, 3).unwrap();
    assert_eq!(lost(&strangers), [0], "the oldest of the address that has most");
    // Dropping the ended one releases nothing further.
    assert_eq!(held(&limiter), 4);
    let fourth = stranger(&limiter, 4).unwrap();
    assert_eq!(lost(&strangers), [0, 1], "of those who have one each, the oldest");
    let own = [stranger(&limiter, 3).unwrap(), stranger(&limiter, 3).unwrap()];
    assert_eq!(lost(&own).len() + lost(&[third, fourth]).len() + lost(&strangers[2..]).len(), 2);
    assert!(!of_ann.guest().lost().is_cancelled(), "he has shown who he is");
    assert!(of_ann.guest().known(&user("system:anonymous", "system:unauthenticated")).is_ok());
}

#[test]
fn strangers_of_one_address_leave_room_for_each_other_alone() {
    let (limiter, ann) = (limiter(100, 16, 100), user("ann", ""));
    let of_ann = many(&limiter, 1, &ann, 20);
    assert_eq!((of_ann.len(), lost(&of_ann)), (14, vec![]), "of 16 of an address two are for strangers");
    let strangers: Vec<_> = (0..10).map(|_| stranger(&limiter, 1).unwrap()).collect();
    assert_eq!(lost(&strangers), Vec::from_iter(0..8));
    assert!(lost(&of_ann).is_empty());
    drop(strangers);
    let _stays = many(&limiter, 2, &ann, 3);
    assert!(lost(&of_ann).is_empty(), "another address has its own");
}

/// 5,000 idle connections of one account locked its address out: the other Pods of its node, and the agent.
#[test]
fn of_one_address_whoever_holds_most_loses_his_oldest() {
    let limiter = limiter(100, 16, 12);
    let (ann, bob) = (user("system:serviceaccount:a:x", ""), user("system:serviceaccount:b:x", ""));
    let of_ann = many(&limiter, 1, &ann, 20);
    assert_eq!(of_ann.len(), 12, "a user has so many, and is told so");
    assert!(
        known(&limiter, 2, &user("system:serviceaccount:a:y", "")).is_none(),
        "the accounts of a namespace are one"
    );
    let of_bob = many(&limiter, 1, &bob, 20);
    assert_eq!((of_bob.len(), lost(&of_ann)), (7, Vec::from_iter(0..5)), "both have one half");
    let others = [known(&limiter, 1, &user("carl", "")), known(&limiter, 1, &user("system:node:n", "system:nodes"))];
    assert_eq!((lost(&of_ann), lost(&of_bob)), (Vec::from_iter(0..6), vec![0]), "whoever has most");
    assert!(lost(&others.map(Option::unwrap)).is_empty());
    assert_eq!(held(&limiter), 6 + 6);
}

#[test]
fn of_all_whoever_holds_most_loses_his_oldest_wherever_he_comes_from() {
    let limiter = limiter(16, 8, 100);
    let ann = user("ann", "");
    let (here, there) = (many(&limiter, 1, &ann, 7), many(&limiter, 2, &ann, 7));
    let bob = many(&limiter, 3, &user("bob", ""), 3);
    assert_eq!((bob.len(), lost(&here), lost(&there)), (3, vec![0, 1, 2], vec![]));
    assert!(lost(&bob).is_empty());
}

#[test]
fn nodes_and_the_superuser_last_and_no_node_has_all() {
    let (node, root) = (user("system:node:n", "system:nodes"), user("root", "system:masters"));
    let full = limiter(8, 8, 3);
    let users: Vec<_> = (0..7).map(|n| known(&full, 1, &user(&format!("u{n}"), "")).unwrap()).collect();
    assert!(known(&full, 1, &user("one-more", "")).is_none(), "each has one");
    let (agent, of_root) = (many(&full, 1, &node, 2), many(&full, 1, &root, 1));
    assert_eq!((agent.len(), of_root.len(), lost(&users).len()), (2, 1, 3), "they come in");
    assert!(lost(&agent).is_empty() && lost(&of_root).is_empty(), "and stay");

    let greedy = limiter(100, 33, 3);
    let of_node = many(&greedy, 1, &node, 40);
    assert_eq!(of_node.len(), 29, "ten times as many as a user, where there are so many");
    let of_ann = many(&greedy, 1, &user("ann", ""), 3);
    assert_eq!((of_ann.len(), lost(&of_node)), (2, vec![0, 1]), "ten of a node's weigh as one");
    assert!(lost(&of_ann).is_empty());
    assert_eq!(many(&limiter(100, 100, 3), 1, &node, 40).len(), 30);
    assert_eq!(many(&limiter(100, 100, 3), 1, &root, 200).len(), 88, "so many as there are");
}

/// A network (/48) has 65,536 subnets, each with any number of addresses.
#[test]
fn a_site_keeps_no_other_out_with_its_addresses() {
    let limiter = limiter(16, 8, 9);
    let from = |address: String| limiter.admit(address.parse().unwrap()).unwrap();
    let others = [from("10.0.0.1".into()), from("2001:db8:1::1".into())];
    let site: Vec<_> = (0..40).map(|n| from(format!("2001:db8:0:{n:x}::1"))).collect();
    assert!(lost(&others).is_empty(), "the site's own oldest went");
    assert_eq!(lost(&site), Vec::from_iter(0..26));
    let subnet: Vec<_> = (0..20).map(|n| from(format!("2001:db8:0:ffff::{n:x}"))).collect();
    assert_eq!(lost(&others), [0; 0]);
    assert!(site.len() - lost(&site).len() >= 6, "a subnet leaves some to its neighbours");
    drop((others, site, subnet));
    assert_eq!(held(&limiter), 0);
}

#[test]
fn an_address_is_the_same_however_it_is_written() {
    let limiter = limiter(9, 2, 9);
    let ann = user("ann", "");
    let mapped = || limiter.admit(std::net::Ipv4Addr::new(127, 0, 0, 1).to_ipv6_mapped().into()).unwrap();
    let (first, second) = (known(&limiter, 1, &ann).unwrap(), mapped());
    assert_eq!(first.guest().address(), second.guest().address());
    let third = mapped();
    assert!(second.guest().lost().is_cancelled(), "the address has two");
    drop((first, second, third));
    assert!(locked(&limiter.open).addresses.is_empty());
}
