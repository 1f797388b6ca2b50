//! What is wished of each kind of workload, drawn.

use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};

/// What is wished of one kind of workload: the resource, the initial of its names, and its spec.
pub type Kind = (&'static str, &'static str, fn(&mut StdRng, &str) -> Value);

pub const KINDS: &[Kind] = &[
    ("deployments.apps", "d", deployment),
    ("statefulsets.apps", "s", stateful_set),
    ("daemonsets.apps", "l", daemon_set),
    ("jobs.batch", "j", job),
    ("cronjobs.batch", "c", cron_job),
    ("replicationcontrollers", "r", replication_controller),
    ("poddisruptionbudgets.policy", "b", budget),
    ("horizontalpodautoscalers.autoscaling", "h", autoscaler),
];

/// Where Deployments, budgets and autoscalers are among them.
pub const DEPLOYMENT: usize = 0;
pub const BUDGET: usize = 6;
pub const AUTOSCALER: usize = 7;

/// Pods of an image, or of any that goes on for ever.
fn template(rng: &mut StdRng, app: &str, image: Option<&str>) -> Value {
    let image = image.unwrap_or(["v0", "v1", "v2", "v3"][rng.random_range(0..4)]);
    let requests = [json!({ "cpu": "100m" }), json!({ "cpu": "300m" }), json!({ "cpu": "100m", "memory": "700Mi" })];
    let requests = &requests[rng.random_range(0..requests.len())];
    json!({ "metadata": { "labels": { "app": app } }, "spec": {
        "priorityClassName": class(rng.random_range(0..8)),
        "containers": [{ "name": "c", "image": image, "resources": { "requests": requests } }],
    } })
}

/// The PriorityClasses that there are: name, value, preemption policy.
pub const CLASSES: [(&str, i32, &str); 4] = [
    ("high", 1000, "PreemptLowerPriority"),
    ("mid", 10, "PreemptLowerPriority"),
    ("polite", 1000, "Never"),
    ("low", -10, "PreemptLowerPriority"),
];

/// One of them, or none, as most have.
fn class(n: usize) -> Option<&'static str> {
    CLASSES.get(n).map(|(name, ..)| *name)
}

fn selector(name: &str) -> Value {
    json!({ "matchLabels": { "app": name } })
}

pub fn deployment(rng: &mut StdRng, name: &str) -> Value {
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
    template["spec"]["containers"][0]["resources"]["requests"] = json!({ "cpu": "100m" });
    template["spec"]["priorityClassName"] = match name {
        "j0" => json!("mid"),
        "j1" => json!("low"),
        _ => Value::Null,
    };
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
    // Without a zone it is the controllers' own.
    let zone = [Value::Null, json!("UTC")][rng.random_range(0..2)].clone();
    json!({
        "schedule": schedule, "startingDeadlineSeconds": deadline,
        "timeZone": zone, "concurrencyPolicy": policy, "suspend": rng.random_bool(0.2),
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

/// One for a Deployment.
fn autoscaler(rng: &mut StdRng, name: &str) -> Value {
    let least = rng.random_range(1..4);
    let goal = [
        json!({ "type": "Utilization", "averageUtilization": 50 }),
        json!({ "type": "Utilization", "averageUtilization": 80 }),
        json!({ "type": "AverageValue", "averageValue": "150m" }),
    ];
    let goal = &goal[rng.random_range(0..3)];
    let behavior = match rng.random_range(0..3) {
        0 => Value::Null,
        1 => json!({ "scaleUp": direction(rng), "scaleDown": null }),
        _ => json!({ "scaleUp": direction(rng), "scaleDown": direction(rng) }),
    };
    json!({
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": format!("d{}", &name[1..]) },
        "minReplicas": least, "maxReplicas": least + rng.random_range(0..8),
        "metrics": [{ "type": "Resource", "resource": { "name": "cpu", "target": goal } }],
        "behavior": behavior,
    })
}

/// How an autoscaler may go one way.
fn direction(rng: &mut StdRng) -> Value {
    let policies = [
        json!({ "type": "Pods", "value": 1, "periodSeconds": 30 }),
        json!({ "type": "Pods", "value": 3, "periodSeconds": 60 }),
        json!({ "type": "Percent", "value": 50, "periodSeconds": 15 }),
    ];
    let (one, other) = (rng.random_range(0..3), rng.random_range(0..3));
    let window = [0, 60, 300][rng.random_range(0..3)];
    let select = ["Max", "Min", "Max", "Disabled"][rng.random_range(0..4)];
    json!({
        "stabilizationWindowSeconds": window, "selectPolicy": select,
        "policies": [policies[one], policies[other]],
    })
}
