//! What is done to a cluster, as data: drawn from a seed beforehand, so that it can be told, and carried out later.

use podwright::client::Key;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

/// One operation. One that does not apply (what it names is not there, or is going) does nothing.
#[derive(Clone, Debug)]
pub enum Operation {
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
    /// The n-th of the Pods that there are.
    DeletePod(usize),
    Evict(usize),
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
    let mut all =
        vec![AddNode("n1"), AddNode("n2"), AddNode("n3"), AddNamespace("ns0".into()), AddNamespace("ns1".into())];
    // Most runs are about a few things, so that these meet.
    let mut kinds: Vec<usize> = (0..rng.random_range(1..5)).map(|_| rng.random_range(0..KINDS.len())).collect();
    if kinds.contains(&BUDGET) {
        // It is of some use where there is something to protect.
        kinds.extend([0, 1]);
    }
    for _ in 0..rng.random_range(3..8) {
        for _ in 0..rng.random_range(1..6) {
            match rng.random_range(0..10) {
                0..6 => {
                    let kind = kinds[rng.random_range(0..kinds.len())];
                    all.push(workload(&mut rng, KINDS[kind]));
                }
                _ => trouble(&mut rng, &mut all),
            }
            all.push(Wait(match rng.random_range(0..8) {
                0 => 0,
                1 => rng.random_range(0..90_000),
                _ => rng.random_range(0..4000),
            }));
        }
        all.push(Rest);
    }
    all
}

/// What is wished of one kind of workload: the resource, the initial of its names, and its spec.
type Kind = (&'static str, &'static str, fn(&mut StdRng, &str) -> Value);

const KINDS: &[Kind] = &[
    ("deployments.apps", "d", deployment),
    ("statefulsets.apps", "s", stateful_set),
    ("daemonsets.apps", "l", daemon_set),
    ("jobs.batch", "j", job),
    ("cronjobs.batch", "c", cron_job),
    ("replicationcontrollers", "r", replication_controller),
    ("poddisruptionbudgets.policy", "b", budget),
];

/// Where the budgets are among them.
const BUDGET: usize = 6;

fn workload(rng: &mut StdRng, (resource, initial, spec): Kind) -> Operation {
    let name = format!("{initial}{}", rng.random_range(0..3));
    let key = Key::new(format!("ns{}", rng.random_range(0..2)), name.clone());
    match rng.random_range(0..7) {
        0 => Delete { resource, key, policy: ["Foreground", "Background"][rng.random_range(0..2)] },
        _ => Apply { resource, key, spec: spec(rng, &name) },
    }
}

/// What goes wrong, or what somebody else does.
fn trouble(rng: &mut StdRng, all: &mut Vec<Operation>) {
    let plane = rng.random_range(0..2);
    let while_ = |rng: &mut StdRng, most: u64| Wait(rng.random_range(0..most));
    match rng.random_range(0..18) {
        0 => all.extend([Lose("n3"), while_(rng, 700_000), Find("n3")]),
        1 => all.extend([RemoveNode("n2"), while_(rng, 100_000), AddNode("n2")]),
        2 => all.push(Lose("n2")),
        3 | 4 => all.extend([Stop(plane), while_(rng, 30_000), Start(plane)]),
        5 | 6 => all.extend([Crash(plane), while_(rng, 30_000), Start(plane)]),
        7 => all.push(Crash(plane)),
        8 => all.extend([Cut(plane), while_(rng, 40_000), Mend(plane)]),
        9 | 10 => all.push(DeletePod(rng.random_range(0..100))),
        11..14 => all.extend((0..rng.random_range(1..4)).map(|_| Evict(rng.random_range(0..100)))),
        14 | 15 => all.extend(halfway(rng)),
        16 => {
            all.push(SetClock(if rng.random_bool(0.5) { rng.random_range(1..7200) } else { -rng.random_range(1..30) }))
        }
        _ => {
            let namespace = format!("ns{}", rng.random_range(0..2));
            let again = AddNamespace(namespace.clone());
            all.extend([DeleteNamespace(namespace), while_(rng, 20_000), again]);
        }
    }
}

/// A Deployment that gets stuck halfway, for a while: its Pods do not become ready, or it is paused.
fn halfway(rng: &mut StdRng) -> [Operation; 3] {
    let name = format!("d{}", rng.random_range(0..3));
    let key = Key::new(format!("ns{}", rng.random_range(0..2)), name.clone());
    let (mut stuck, again) = (deployment(rng, &name), deployment(rng, &name));
    match rng.random_bool(0.5) {
        true => stuck["template"]["spec"]["containers"][0]["image"] = "broken".into(),
        false => stuck["paused"] = true.into(),
    }
    let apply = |spec| Apply { resource: "deployments.apps", key: key.clone(), spec };
    [apply(stuck), Wait(rng.random_range(0..30_000)), apply(again)]
}

/// Pods of an image, or of any that goes on for ever.
fn template(rng: &mut StdRng, app: &str, image: Option<&str>) -> Value {
    let image = image.unwrap_or(["v0", "v1", "v2", "v3"][rng.random_range(0..4)]);
    let cpu = ["100m", "300m"][rng.random_range(0..2)];
    json!({ "metadata": { "labels": { "app": app } }, "spec": {
        "containers": [{ "name": "c", "image": image, "resources": { "requests": { "cpu": cpu } } }],
    } })
}

fn selector(name: &str) -> Value {
    json!({ "matchLabels": { "app": name } })
}

fn deployment(rng: &mut StdRng, name: &str) -> Value {
    let strategy = match rng.random_range(0..7) {
        0 => json!({ "type": "Recreate", "rollingUpdate": null }),
        n => {
            let both = [(1, 0), (0, 1), (2, 1), (3, 3)].map(|(surge, unavailable)| (json!(surge), json!(unavailable)));
            let shares = [("25%", "25%"), ("50%", "0%")].map(|(surge, unavailable)| (json!(surge), json!(unavailable)));
            let (surge, unavailable) = both.iter().chain(&shares).nth(n - 1).expect("one of six").clone();
            json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } })
        }
    };
    let template = template(rng, name, None);
    let wait = [0, 0, 5][rng.random_range(0..3)];
    json!({
        "replicas": rng.random_range(0..8), "revisionHistoryLimit": 2, "strategy": strategy,
        "minReadySeconds": wait, "paused": false, "selector": selector(name), "template": template,
    })
}

/// What may not change follows from the name.
fn stateful_set(rng: &mut StdRng, name: &str) -> Value {
    let template = template(rng, name, None);
    let mut spec = json!({
        "replicas": rng.random_range(0..5), "serviceName": name, "revisionHistoryLimit": 2,
        "selector": selector(name), "template": template,
        "podManagementPolicy": if name == "s2" { "Parallel" } else { "OrderedReady" },
    });
    if name != "s0" {
        let keeps = if name == "s1" { "Retain" } else { "Delete" };
        spec["persistentVolumeClaimRetentionPolicy"] = json!({ "whenDeleted": keeps, "whenScaled": keeps });
        spec["volumeClaimTemplates"] = json!([{ "metadata": { "name": "data" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": { "requests": { "storage": "1Gi" } },
        } }]);
    }
    spec
}

fn daemon_set(rng: &mut StdRng, name: &str) -> Value {
    let rolling = [json!({ "maxSurge": 0, "maxUnavailable": 1 }), json!({ "maxSurge": 1, "maxUnavailable": 0 })];
    let template = template(rng, name, None);
    json!({
        "selector": selector(name), "template": template, "revisionHistoryLimit": 2,
        "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": rolling[rng.random_range(0..2)] },
    })
}

fn job(rng: &mut StdRng, name: &str) -> Value {
    let mut template = template(rng, name, Some("flaky"));
    template["spec"]["restartPolicy"] = "Never".into();
    // The same each time: a Job's template does not change.
    template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100m".into();
    let mut spec = json!({
        "completions": 5, "parallelism": rng.random_range(1..4), "suspend": rng.random_bool(0.2),
        "backoffLimit": 50, "template": template,
    });
    match name {
        "j0" => spec["completionMode"] = "Indexed".into(),
        "j1" => spec["podReplacementPolicy"] = "Failed".into(),
        _ => spec["ttlSecondsAfterFinished"] = 60.into(),
    }
    spec
}

fn cron_job(rng: &mut StdRng, name: &str) -> Value {
    let policy = match name {
        "c0" => "Allow",
        "c1" => "Forbid",
        _ => "Replace",
    };
    let mut job = job(rng, "j2");
    job["completions"] = rng.random_range(1..3).into();
    let schedule = ["* * * * *", "*/2 * * * *", "*/5 * * * *", "@every 90s"][rng.random_range(0..4)];
    let deadline = [Value::Null, json!(30), json!(300)][rng.random_range(0..3)].clone();
    json!({
        "schedule": schedule, "startingDeadlineSeconds": deadline,
        "timeZone": "Etc/UTC", "concurrencyPolicy": policy, "suspend": rng.random_bool(0.2),
        "successfulJobsHistoryLimit": rng.random_range(0..4), "failedJobsHistoryLimit": rng.random_range(0..2),
        "jobTemplate": { "spec": job },
    })
}

fn replication_controller(rng: &mut StdRng, name: &str) -> Value {
    json!({ "replicas": rng.random_range(0..5), "template": template(rng, name, Some("v0")) })
}

/// One for a Deployment or a StatefulSet.
fn budget(rng: &mut StdRng, name: &str) -> Value {
    let app = format!("{}{}", ["d", "s"][rng.random_range(0..2)], &name[1..]);
    let (least, most) = match rng.random_range(0..4) {
        0 => (json!(2), Value::Null),
        1 => (json!("50%"), Value::Null),
        2 => (Value::Null, json!(1)),
        _ => (Value::Null, json!("30%")),
    };
    json!({ "selector": selector(&app), "minAvailable": least, "maxUnavailable": most })
}
