//! Randomly drawn Pods.

use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};

/// What a Pod may have.
pub const VOLUMES: [&str; 6] = ["u", "v", "w", "x", "y", "z"];

pub fn spec(random: &mut StdRng) -> Value {
    let mut one = |name: &str| {
        let mut container = json!({ "name": name, "image": "i:1", "volumeMounts": [] });
        let mut chance = |of: u32| random.random_range(0..of) == 0;
        let probe = json!({ "exec": { "command": ["true"] } });
        for kind in ["startupProbe", "livenessProbe", "readinessProbe"] {
            if name != "i" && chance(4) {
                container[kind] = probe.clone();
            }
        }
        if chance(3) {
            container["lifecycle"] = json!({ "postStart": { "exec": { "command": ["true"] } } });
        }
        if chance(3) {
            container["resizePolicy"] = json!([{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }]);
        }
        container
    };
    let (mut inits, mut mains) = (vec![one("i"), one("s")], vec![one("a"), one("b")]);
    inits[1]["restartPolicy"] = "Always".into();
    inits.truncate(random.random_range(0..=2));
    mains.truncate(random.random_range(1..=2));
    let volumes = random.random_range(0..=VOLUMES.len());
    for name in &VOLUMES[..volumes] {
        // Some are nobody's.
        if random.random_range(0..4) > 0 {
            let mount = json!({ "name": name, "mountPath": format!("/{name}") });
            mains[0]["volumeMounts"].as_array_mut().expect("a list").push(mount);
        }
    }
    let volumes: Vec<Value> = VOLUMES[..volumes].iter().map(|name| json!({ "name": name, "emptyDir": {} })).collect();
    let policy = ["Always", "OnFailure", "Never"][random.random_range(0..3)];
    let mut spec = json!({ "restartPolicy": policy, "containers": mains, "initContainers": inits, "volumes": volumes,
        "terminationGracePeriodSeconds": random.random_range(0..10) });
    if random.random_range(0..4) == 0 {
        spec["activeDeadlineSeconds"] = random.random_range(1..600).into();
    }
    spec
}
