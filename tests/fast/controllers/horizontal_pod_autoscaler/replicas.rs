//! How many replicas one metric recommends.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use podwright::controllers::horizontal_pod_autoscaler::{
    Goal, Need, ReplicasError, Sample, Samples, Settings, Tolerance, propose,
};
use serde_json::{Value, json};

use super::{
    super::{at, object},
    pod,
};

const TENTH: Tolerance = Tolerance { up: 0.1, down: 0.1 };
const FINE: Tolerance = Tolerance { up: 0.01, down: 0.1 };

/// Pods and the usage of each, in thousandths; None if unknown.
struct Case<'a> {
    current: i32,
    goal: Goal,
    resource: &'a str,
    container: Option<&'a str>,
    tolerance: Tolerance,
    pods: Vec<(Value, Option<i64>)>,
}

impl Case<'_> {
    /// Replicas, utilization in percent, the average in thousandths.
    fn comes_to(self) -> Result<(i32, Option<i32>, i64), ReplicasError> {
        let mut samples = Samples::new();
        for (pod, used) in &self.pods {
            let sample = used.map(|millis| Sample { millis, at: at(0), window: Duration::from_secs(30) });
            samples.extend(sample.map(|sample| (pod["metadata"]["name"].as_str().unwrap().to_owned(), sample)));
        }
        let pods: Vec<Arc<Pod>> = self.pods.into_iter().map(|(pod, _)| object(pod)).collect();
        let need = Need {
            pods: &pods.iter().map(|pod| &**pod).collect::<Vec<_>>(),
            resource: self.resource,
            container: self.container,
            current: self.current,
            goal: self.goal,
            tolerance: self.tolerance,
            settings: &Settings::default(),
            now: at(0),
        };
        propose(&need, samples).map(|it| (it.replicas, it.utilization, it.average))
    }
}

/// A Pod in a state: `ok`; `unready`, never having been ready; `hot`, just become ready; or in a phase, or `deleted`.
fn of(name: &str, state: &str) -> Value {
    let mut pod = pod(name);
    let ready = |status: &str, since: i64| json!([{ "type": "Ready", "status": status, "lastTransitionTime": at(since).to_string() }]);
    match state {
        "ok" => {}
        "unready" => pod["status"]["conditions"] = ready("False", -3590),
        "hot" => {
            pod["status"]["startTime"] = at(-60).to_string().into();
            pod["status"]["conditions"] = ready("True", -10);
        }
        "deleted" => pod["metadata"]["deletionTimestamp"] = at(-1).to_string().into(),
        phase => {
            pod["status"]["phase"] = phase.into();
            pod["status"]["conditions"] = ready("False", -3590);
        }
    }
    pod
}

/// `ok 300, unready 500, ok -`
fn pods(text: &str) -> Vec<(Value, Option<i64>)> {
    let one = |(at, text): (usize, &str)| {
        let (state, used) = text.split_once(' ').expect("a state and what is used");
        (of(&format!("p{at}"), state), used.parse().ok())
    };
    text.split(", ").enumerate().map(one).collect()
}

fn case<'a>(current: i32, goal: Goal, text: &str) -> Case<'a> {
    Case { current, goal, resource: "cpu", container: None, tolerance: TENTH, pods: pods(text) }
}

#[test]
fn utilization_comes_to_replicas() {
    for (why, current, percent, text, replicas, utilization, average) in [
        ("up", 3, 30, "ok 300, ok 500, ok 700", 5, 50, 500),
        ("up, less for one that comes up", 3, 30, "unready 300, ok 500, ok 700", 4, 60, 600),
        ("up, less for one that has just come up", 3, 30, "hot 300, ok 500, ok 700", 4, 60, 600),
        ("not up, so as not to go down", 3, 30, "ok 400, unready 500, unready 700", 3, 40, 400),
        ("ended ones are none", 2, 30, "ok 500, ok 700, Failed -, Failed -", 4, 60, 600),
        ("nor are those that have done their work", 2, 30, "ok 500, ok 700, Succeeded -, Succeeded 9000", 4, 60, 600),
        ("nor those that end", 2, 30, "ok 500, ok 700, deleted 9000, deleted -", 4, 60, 600),
        ("down", 5, 50, "ok 100, ok 300, ok 500, ok 250, ok 250", 3, 28, 280),
        ("down, by the ready ones", 5, 50, "ok 100, ok 300, ok 500, unready 250, unready 250", 2, 30, 300),
        ("down, by those that are up for long", 5, 50, "ok 100, ok 300, ok 500, hot 250, hot 250", 2, 30, 300),
        ("down, by the scheduled one", 5, 50, "ok 100, Pending -, Pending -, Pending -, Pending -", 1, 10, 100),
        ("well", 3, 100, "ok 1010, ok 1030, ok 1020", 3, 102, 1020),
        ("at the edge of well", 10, 100, "ok 1100", 10, 110, 1100),
        ("just beyond", 10, 100, "ok 1110", 2, 111, 1110),
        ("up, one unknown as idle", 4, 30, "ok 400, ok 500, ok 700, ok -", 6, 53, 533),
        ("not up, two unknown", 3, 30, "ok 400, ok -, ok -", 3, 40, 400),
        ("down, one unknown as busy", 4, 50, "ok 100, ok 100, ok 100, ok -", 3, 10, 100),
        ("down, one unknown as busy as it should be", 4, 200, "ok 100, ok 100, ok 100, ok -", 2, 10, 100),
        ("not down, most unknown", 4, 50, "ok 300, ok -, ok -, ok -", 4, 30, 300),
        ("well, by the ready ones", 3, 50, "ok 480, ok 480, unready 10", 3, 48, 480),
        ("well, one unknown", 3, 50, "ok 500, ok 500, ok -", 3, 50, 500),
        ("a Pod more than there should be does not make it more", 2, 17, "ok 100, ok 100, ok -", 2, 10, 100),
        ("up from a single one", 1, 50, "ok 1000", 2, 100, 1000),
        ("more than there are Pods yet", 6, 50, "ok 1000, ok 1000", 4, 100, 1000),
    ] {
        let found = case(current, Goal::Utilization(percent), text).comes_to();
        assert_eq!(found, Ok((replicas, Some(utilization), average)), "{why}");
    }
}

#[test]
fn amounts_come_to_replicas() {
    for (why, resource, current, goal, text, replicas, average) in [
        ("up", "memory", 3, 15_000, "ok 20000, ok 10000, ok 30000", 4, 20_000),
        ("memory of one that is not ready counts", "memory", 3, 15_000, "ok 50000, ok 10000, unready 30000", 6, 30_000),
        ("CPU of one that is not ready does not", "cpu", 3, 15_000, "ok 50000, ok 10000, unready 30000", 4, 30_000),
        ("up from a single one", "cpu", 1, 20_000, "ok 40000", 2, 40_000),
        ("down", "cpu", 5, 20_000, "ok 12000, ok 12000, ok 12000, ok 12000, ok 12000", 3, 12_000),
        ("well", "cpu", 3, 20_000, "ok 20000, ok 21000, ok 21000", 3, 20_666),
        ("unknown ones as they should be", "cpu", 5, 20_000, "ok 20000, ok 19000, ok 21000, ok -, ok -", 5, 20_000),
        (
            "a Pod more than there should be does not make it more",
            "cpu",
            2,
            17_000,
            "ok 10000, ok 10000, ok -",
            2,
            10_000,
        ),
        ("down, one unknown", "cpu", 4, 20_000, "ok 2000, ok 2000, ok 2000, ok -", 2, 2_000),
    ] {
        let found = Case { resource, ..case(current, Goal::Average(goal), text) }.comes_to();
        assert_eq!(found, Ok((replicas, None, average)), "{why}");
    }
}

#[test]
fn a_tolerance_of_its_own() {
    let text = "ok 1010, ok 1030, ok 1020";
    let with = |tolerance| Case { tolerance, ..case(3, Goal::Utilization(100), text) }.comes_to().unwrap().0;
    assert_eq!((with(TENTH), with(FINE)), (3, 4));
    let text = "ok 600, ok 600, ok 600";
    let with = |down| {
        let tolerance = Tolerance { up: 0.1, down };
        Case { tolerance, ..case(3, Goal::Utilization(100), text) }.comes_to().unwrap().0
    };
    assert_eq!((with(0.1), with(0.5)), (2, 3));
}

#[test]
fn what_a_pod_uses_while_it_comes_up_does_not_count() {
    let never = None::<(&str, i64)>;
    for (why, started, ready, window, counts) in [
        ("no word of readiness", Some(-3600), never, 30, false),
        ("no start", None, Some(("True", -60)), 30, false),
        ("in its first minutes, ready for a whole window", Some(-60), Some(("True", -30)), 30, true),
        ("in its first minutes, ready for less", Some(-60), Some(("True", -30)), 31, false),
        ("in its first minutes, unready", Some(-60), Some(("False", -50)), 30, false),
        ("later, with an old sample", Some(-301), Some(("True", -1)), 60, true),
        ("later, unready after it was ready", Some(-600), Some(("False", -569)), 30, true),
        ("later, unready since its start", Some(-600), Some(("False", -571)), 30, false),
    ] {
        let mut pod = pod("p");
        pod["status"]["startTime"] = started.map(|since| at(since).to_string()).into();
        let ready = ready.map(
            |(status, since)| json!({ "type": "Ready", "status": status, "lastTransitionTime": at(since).to_string() }),
        );
        pod["status"]["conditions"] = ready.into_iter().collect();
        let pod: Arc<Pod> = object(pod);
        let need = Need {
            pods: &[&pod],
            resource: "cpu",
            container: None,
            current: 1,
            goal: Goal::Utilization(50),
            tolerance: TENTH,
            settings: &Settings::default(),
            now: at(0),
        };
        let sample = Sample { millis: 500, at: at(0), window: Duration::from_secs(window) };
        let found = propose(&need, Samples::from([("p".to_owned(), sample)]));
        match counts {
            true => assert!(found.is_ok(), "{why}: {found:?}"),
            false => assert_eq!(found, Err(ReplicasError::NoSamples), "{why}"),
        }
    }
}

#[test]
fn what_pods_request() {
    let requests = |patch: Value| {
        let mut changed = pod("p0");
        json_patch::merge(&mut changed, &patch);
        Case { pods: vec![(changed, Some(600))], ..case(1, Goal::Utilization(50), "ok 1") }
    };
    let of = |name: &str, cpu: &str| json!({ "name": name, "resources": { "requests": { "cpu": cpu } } });
    let mut sidecar = of("log", "500m");
    sidecar["restartPolicy"] = "Always".into();
    let containers =
        json!({ "containers": [of("c", "500m"), of("d", "250m")], "initContainers": [of("first", "9"), sidecar] });
    let two = || requests(json!({ "spec": containers }));
    let found = |case: Case<'_>| case.comes_to().map(|it| it.1.unwrap());
    assert_eq!(found(two()), Ok(48), "600m of 1250m");
    assert_eq!(found(Case { container: Some("d"), ..two() }), Ok(240));
    assert_eq!(found(Case { container: Some("log"), ..two() }), Ok(120));
    let whole =
        json!({ "spec": { "resources": { "requests": { "cpu": "2" } }, "containers": containers["containers"] } });
    assert_eq!(found(requests(whole.clone())), Ok(30), "600m of what the Pod requests as a whole");
    assert_eq!(found(Case { container: Some("c"), ..requests(whole) }), Ok(120));
}

#[test]
fn what_cannot_be_told() {
    let goal = Goal::Utilization(50);
    let bare = |patch: Value| {
        let mut all = pods("ok 100, ok 100");
        json_patch::merge(&mut all[1].0, &patch);
        Case { pods: all, ..case(2, goal, "ok 1") }
    };
    let no_request =
        json!({ "spec": { "containers": [{ "name": "c", "resources": { "requests": { "memory": "1Mi" } } }] } });
    let nothing = json!([{ "name": "c", "resources": { "requests": { "cpu": "0" } } }]);
    let mut idle = pods("ok 100");
    idle[0].0["spec"]["containers"] = nothing;
    let no_samples = "did not receive metrics for targeted pods (pods might be unready)";
    for (case, why) in [
        (
            Case { pods: vec![], ..case(2, goal, "ok 1") },
            "no pods returned by selector while calculating replica count",
        ),
        (case(2, goal, "ok -, ok -"), no_samples),
        (case(2, goal, "unready 100, Pending -"), no_samples),
        (bare(no_request), "missing request for cpu in container c of Pod p1"),
        (Case { container: Some("d"), ..bare(json!({})) }, "container d not found in Pod p0"),
        (Case { pods: idle, ..case(1, goal, "ok 1") }, "no metrics returned matched known pods"),
    ] {
        assert_eq!(case.comes_to().unwrap_err().to_string(), why);
    }
}
