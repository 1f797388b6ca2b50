//! What is done to a cluster, as data: drawn from a seed beforehand, so that it can be told, and carried out later.

use podwright::client::Key;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;

use super::{
    machines::Room,
    workloads::{AUTOSCALER, BUDGET, CLASSES, DEPLOYMENT, KINDS, Kind, deployment},
};

/// One operation. One that does not apply (what it names is not there, or is going) does nothing.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A PriorityClass: its name, value and preemption policy.
    AddClass((&'static str, i32, &'static str)),
    /// What nodes have that come from now on.
    SetRoom(Room),
    /// The zone of the machines, in seconds east of Greenwich.
    SetZone(i32),
    AddNamespace(String),
    DeleteNamespace(String),
    /// Creates an object, or has it be so.
    Apply {
        resource: &'static str,
        key: Key,
        spec: Value,
    },
    Delete {
        resource: &'static str,
        key: Key,
        policy: &'static str,
    },
    /// Somebody sets a Deployment's size.
    Scale(Key, i64),
    /// So many thousandths of a CPU are wanted of the Pods of an app.
    Load(Key, u64),
    /// The n-th of the Pods that there are.
    DeletePod(usize),
    Evict(usize),
    /// The n-th Pod ceases to be ready for so many milliseconds.
    Sicken(usize, u64),
    Lose(&'static str),
    Find(&'static str),
    RemoveNode(&'static str),
    AddNode(&'static str),
    Stop(usize),
    Crash(usize),
    Start(usize),
    Cut(usize),
    Mend(usize),
    /// Sets everybody's clock by so many seconds.
    SetClock(i64),
    /// Milliseconds.
    Wait(u64),
    /// Everything that is down comes back, and all comes to rest.
    Rest,
}

use Operation::*;

/// The operations of a seed.
pub fn draw(seed: u64) -> Vec<Operation> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut all: Vec<Operation> = CLASSES.map(AddClass).into();
    // Amsterdam's, until 1937: no schedule comes at the same time there as in Greenwich.
    all.push(SetZone([0, 1172][rng.random_range(0..2)]));
    let is_tight = rng.random_bool(0.4);
    if is_tight {
        all.push(SetRoom(small(&mut rng)));
    }
    all.extend([AddNode("n1"), AddNode("n2"), AddNode("n3"), AddNamespace("ns0".into()), AddNamespace("ns1".into())]);
    // Most runs are about a few things, so that these meet.
    let mut kinds: Vec<usize> = (0..rng.random_range(1..5)).map(|_| rng.random_range(0..KINDS.len())).collect();
    if kinds.contains(&BUDGET) {
        // It is of some use where there is something to protect.
        kinds.extend([DEPLOYMENT, 1]);
    }
    if is_tight {
        // Somebody has to be in somebody's way.
        kinds.extend([DEPLOYMENT, DEPLOYMENT]);
    }
    let scales = kinds.contains(&AUTOSCALER);
    if scales {
        kinds.extend([DEPLOYMENT, AUTOSCALER]);
    }
    // An autoscaler is of use where its target is, and a load.
    let names = if scales { 1 } else { 3 };
    for _ in 0..rng.random_range(3..8) {
        for _ in 0..rng.random_range(1..6) {
            match rng.random_range(0..10) {
                0..3 if scales => all.push(Load(a_deployment(&mut rng, names), rng.random_range(0..2000))),
                0..6 => {
                    let kind = kinds[rng.random_range(0..kinds.len())];
                    all.push(workload(&mut rng, KINDS[kind], names));
                }
                _ => trouble(&mut rng, &mut all, names),
            }
            all.push(Wait(match rng.random_range(0..8) {
                0 => 0,
                1 => rng.random_range(0..90_000),
                _ => rng.random_range(0..4000),
            }));
        }
        all.push(Rest);
        // Nothing may come of it.
        all.push(Wait([0, 120_000][rng.random_range(0..2)]));
    }
    all
}

/// Nodes that are soon full, in one way or another.
fn small(rng: &mut StdRng) -> Room {
    let cpu = ["500m", "1", "10"][rng.random_range(0..3)];
    let memory = ["1Gi", "2Gi", "32Gi"][rng.random_range(0..3)];
    Room { cpu, memory, pods: ["4", "7", "110"][rng.random_range(0..3)] }
}

fn workload(rng: &mut StdRng, (resource, initial, spec): Kind, names: u32) -> Operation {
    let name = format!("{initial}{}", rng.random_range(0..names));
    let key = Key::new(format!("ns{}", rng.random_range(0..2)), name.clone());
    match rng.random_range(0..7) {
        0 => Delete { resource, key, policy: ["Foreground", "Background"][rng.random_range(0..2)] },
        _ => Apply { resource, key, spec: spec(rng, &name) },
    }
}

/// What goes wrong, or what somebody else does.
fn trouble(rng: &mut StdRng, all: &mut Vec<Operation>, names: u32) {
    let plane = rng.random_range(0..2);
    let while_ = |rng: &mut StdRng, most: u64| Wait(rng.random_range(0..most));
    match rng.random_range(0..23) {
        0 => all.extend([Lose("n3"), while_(rng, 700_000), Find("n3")]),
        1 => all.extend([RemoveNode("n2"), while_(rng, 100_000), AddNode("n2")]),
        2 => all.push(Lose("n2")),
        3 | 4 => all.extend([Stop(plane), while_(rng, 30_000), Start(plane)]),
        5 | 6 => all.extend([Crash(plane), while_(rng, 30_000), Start(plane)]),
        7 => all.push(Crash(plane)),
        8 => all.extend([Cut(plane), while_(rng, 40_000), Mend(plane)]),
        9 | 10 => all.push(DeletePod(rng.random_range(0..100))),
        11..14 => all.extend((0..rng.random_range(1..4)).map(|_| Evict(rng.random_range(0..100)))),
        14 | 15 => all.extend(halfway(rng, names)),
        16..19 => sicken(rng, all),
        19 | 20 => all.push(Scale(a_deployment(rng, names), rng.random_range(0..9))),
        21 => {
            all.push(SetClock(if rng.random_bool(0.5) { rng.random_range(1..7200) } else { -rng.random_range(1..30) }))
        }
        _ => {
            let namespace = format!("ns{}", rng.random_range(0..2));
            let again = AddNamespace(namespace.clone());
            all.extend([DeleteNamespace(namespace), while_(rng, 20_000), again]);
        }
    }
}

fn a_deployment(rng: &mut StdRng, names: u32) -> Key {
    Key::new(format!("ns{}", rng.random_range(0..2)), format!("d{}", rng.random_range(0..names)))
}

/// Several Pods cease to be ready, for moments or minutes, and not all at once.
fn sicken(rng: &mut StdRng, all: &mut Vec<Operation>) {
    let longest = [3000, 20_000, 120_000][rng.random_range(0..3)];
    for _ in 0..rng.random_range(1..8) {
        all.push(Sicken(rng.random_range(0..100), rng.random_range(0..longest)));
        all.push(Wait(rng.random_range(0..longest / 2)));
    }
}

/// A Deployment that gets stuck halfway, for a while: its Pods do not become ready, or it is paused.
fn halfway(rng: &mut StdRng, names: u32) -> [Operation; 3] {
    let key = a_deployment(rng, names);
    let name = key.name.clone();
    let (mut stuck, again) = (deployment(rng, &name), deployment(rng, &name));
    match rng.random_bool(0.5) {
        true => stuck["template"]["spec"]["containers"][0]["image"] = "broken".into(),
        false => stuck["paused"] = true.into(),
    }
    let apply = |spec| Apply { resource: "deployments.apps", key: key.clone(), spec };
    [apply(stuck), Wait(rng.random_range(0..30_000)), apply(again)]
}
