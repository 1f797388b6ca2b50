//! NetworkPolicies by the dozen, and every connection between all that there is: what a node does with them is what upstream says.
//!
//! - [`policy`]: a policy as it is written; [`model`]: what it means, by upstream's documents; [`world`]: who there is.
//! - [`documented`]: upstream's cases, for the model and for a node; [`generate`]: policies by chance; [`wrong_readings`]: proof that
//!   these tell a right reading from wrong ones.
//! - [`cluster`], [`nodes`], [`station`], [`sctp`]: the same world on one node or several, and whoever opens connections there;
//!   [`compare`]: what differs; [`newborns`]: Pods that start under a policy; [`why`]: what `podwright why` says of some of them.
//!
//! The sockets are the test's own, in the network namespaces of real Pods: what is filtered there is filtered for the Pods' programs.
//!
//! `PODWRIGHT_POLICY_SEED` repeats a run, `PODWRIGHT_POLICIES` says how many policies it has: a few hundred take some minutes.

mod cluster;
mod compare;
mod documented;
mod generate;
mod model;
mod newborns;
mod nodes;
mod policy;
mod sctp;
mod station;
mod why;
mod world;
mod wrong_readings;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use self::{
    cluster::{Cluster, Probe},
    compare::{Trial, report},
    model::{Flow, World},
    policy::{Policy, Protocol},
};
use crate::{
    chaos::Dice,
    support::{cluster::Layout, contains, slowness},
};

/// How many policies a usual run has.
const POLICIES: usize = 40;
/// When a change is in force.
const IN_FORCE: Duration = Duration::from_secs(1);
/// Of how many connections `podwright why` is asked each time, and how often it has been.
const WHYS: usize = 12;
static ASKED: AtomicUsize = AtomicUsize::new(0);
/// How long it takes until Services lead to Pods that have just started.
const SETTLED: Duration = Duration::from_secs(30);

/// Every connection between any two, each to itself too, in the families that both have.
fn flows(world: &World) -> impl Iterator<Item = Flow<'_>> {
    let pairs = world.ends.iter().flat_map(|from| world.ends.iter().map(move |to| (from, to)));
    let kinds = || Protocol::ALL.into_iter().flat_map(|protocol| world::PORTS.map(|port| (protocol, port)));
    pairs.flat_map(move |(from, to)| {
        let families = from.addresses.iter().filter_map(|source| {
            let destination = to.addresses.iter().find(|ip| ip.is_ipv4() == source.is_ipv4())?;
            Some((*source, *destination))
        });
        families.flat_map(move |(source, destination)| {
            kinds().map(move |(protocol, port)| Flow { from, source, to, destination, protocol, port })
        })
    })
}

/// Which of the connections have been opened. Whoever answers must be who was meant.
fn opened(cluster: &Cluster, probes: &[Probe<'_>]) -> Vec<bool> {
    let meant = |probe: &Probe<'_>| station::answer(&probe.flow.to.name, probe.flow.port);
    let answers = cluster.ask(probes);
    let wrong =
        probes.iter().zip(&answers).find(|(probe, answer)| answer.as_ref().is_some_and(|it| *it != meant(probe)));
    assert!(wrong.is_none(), "somebody else answers: {wrong:?}");
    answers.into_iter().map(|answer| answer.is_some()).collect()
}

/// Waits until all is as the policies say, for as long as a change may take; then tries all of it once more.
fn check(cluster: &Cluster, policies: &[Policy], patience: Duration) -> Result<(), String> {
    let (written, world) = (Instant::now(), &cluster.world);
    let probes = cluster.probes(world);
    let wanted = |probe: &Probe<'_>| world.allows(policies, &probe.flow);
    let mut open: Vec<Probe<'_>> = probes.clone();
    while !open.is_empty() && written.elapsed() < patience * slowness() {
        let seen = opened(cluster, &open);
        open = open.iter().zip(seen).filter(|(probe, seen)| wanted(probe) != *seen).map(|(probe, _)| *probe).collect();
    }
    // What was so all along may be otherwise by a change that comes late.
    std::thread::sleep(IN_FORCE.saturating_sub(written.elapsed()));
    let mut seen = opened(cluster, &probes);
    // Packets get lost on a machine that is at its end: what is silent is asked again, what is open is open.
    let begun = Instant::now();
    loop {
        let silent = |(at, probe): (usize, &Probe<'_>)| (wanted(probe) && !seen[at]).then_some(at);
        let silent: Vec<usize> = probes.iter().enumerate().filter_map(silent).collect();
        if silent.is_empty() || begun.elapsed() > IN_FORCE * slowness() {
            break;
        }
        let again = opened(cluster, &silent.iter().map(|at| probes[*at]).collect::<Vec<_>>());
        silent.into_iter().zip(again).for_each(|(at, now)| seen[at] = now);
    }
    let trials = probes.iter().zip(&seen).map(|(probe, seen)| Trial {
        flow: probe.flow,
        by_service: probe.question.by_service,
        wanted: wanted(probe),
        seen: *seen,
    });
    match report(&trials.collect::<Vec<_>>()) {
        text if text.is_empty() => {}
        text => return Err(text),
    }
    // Others each time.
    let first = ASKED.fetch_add(1, Ordering::Relaxed) * 7;
    why::agrees(cluster, &probes, &seen, first, probes.len().div_ceil(WHYS).max(1))
}

/// For who looks at a difference.
fn told(world: &World, policies: &[Policy]) -> String {
    let labels = |end: &model::End| match &end.place {
        model::Place::Pod(pod) => format!("{:?}", pod.labels),
        _ => String::new(),
    };
    let ends = world.ends.iter().map(|end| format!("{} {:?} {}\n", end.name, end.addresses, labels(end)));
    let policies = policies.iter().map(|policy| match serde_saphyr::to_string(&policy.manifest()) {
        Ok(yaml) => format!("---\n{yaml}"),
        Err(_) => format!("---\n{}\n", policy.manifest()),
    });
    ends.chain(world.namespaces.iter().map(|(name, labels)| format!("{name} {labels:?}\n"))).chain(policies).collect()
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn without_policies_everybody_reaches_everybody() {
    let cluster = Cluster::start();
    check(&cluster, &[], SETTLED).unwrap_or_else(|differences| panic!("{}\n{differences}", told(&cluster.world, &[])));
    // Proof that a difference is found: of policies that nobody has written, nothing is in force.
    let case = documented::CASES.iter().find(|case| case.name == "default-deny-all").expect("it is documented");
    let found = check(&cluster, &case.policies(&cluster.world), IN_FORCE).unwrap_err();
    for part in
        ["x/a (", ") -> x/b (", "TCP 80, IPv4, directly: is allowed and must not be", "UDP 81, IPv4, by Service"]
    {
        contains(&found, part).unwrap();
    }
    cluster.end();
}

#[test]
fn what_upstream_documents_is_so_on_a_node() {
    let mut cluster = Cluster::start();
    check(&cluster, &[], SETTLED).unwrap_or_else(|differences| panic!("without policies: {differences}"));
    documented(&mut cluster);
    newborns::reach_nobody(&mut cluster);
    cluster.end();
}

#[test]
fn policies_by_chance_mean_what_the_model_says() {
    let mut cluster = Cluster::start();
    check(&cluster, &[], SETTLED).unwrap_or_else(|differences| panic!("without policies: {differences}"));
    by_chance(&mut cluster);
    cluster.end();
}

/// Nodes that have joined by TLS know of other nodes' Pods who they are, and no more: that is all that policies go by.
#[test]
fn several_nodes_do_as_one_does() {
    let mut cluster = Cluster::start_on(3, Layout::OneLink);
    check(&cluster, &[], SETTLED).unwrap_or_else(|differences| panic!("without policies: {differences}"));
    documented(&mut cluster);
    newborns::reach_nobody(&mut cluster);
    by_chance(&mut cluster);
    cluster.end();
}

/// All of upstream's cases.
fn documented(cluster: &mut Cluster) {
    let is_dual = cluster.world.ends.iter().all(|end| end.addresses.len() == 2);
    let mut wrong = String::new();
    for case in documented::CASES.iter().filter(|case| is_dual || !case.is_of_both_families()) {
        let policies = case.policies(&cluster.world);
        cluster.write(&policies);
        if let Err(differences) = check(cluster, &policies, IN_FORCE) {
            wrong += &format!("## {}\n{}\n{differences}\n", case.name, told(&cluster.world, &policies));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// As many policies as are wished for, some at a time, with other labels now and then; in the end none.
fn by_chance(cluster: &mut Cluster) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    let seed = setting("PODWRIGHT_POLICY_SEED").unwrap_or_else(now);
    let most = setting("PODWRIGHT_POLICIES").unwrap_or(POLICIES as u64) as usize;
    println!("PODWRIGHT_POLICY_SEED={seed} PODWRIGHT_POLICIES={most}");
    let (mut dice, begun) = (Dice(seed), Instant::now());
    let (mut count, mut rounds) = (0, 0);
    while count < most {
        let mut world = cluster.world.clone();
        if dice.roll(3) == 0 {
            generate::relabel(&mut dice, &mut world);
        }
        let policies = generate::policies(&mut dice, &world);
        cluster.write(&policies);
        cluster.label(&world);
        (count, rounds) = (count + policies.len(), rounds + 1);
        check(cluster, &policies, IN_FORCE).unwrap_or_else(|differences| {
            let run = format!("PODWRIGHT_POLICY_SEED={seed} PODWRIGHT_POLICIES={most}, round {rounds}");
            panic!("{run}\n{}\n{differences}", told(&world, &policies))
        });
    }
    println!("{count} policies in {rounds} rounds, {:.0?}", begun.elapsed());
    cluster.write(&[]);
    check(cluster, &[], IN_FORCE).unwrap_or_else(|differences| panic!("without policies again: {differences}"));
}
