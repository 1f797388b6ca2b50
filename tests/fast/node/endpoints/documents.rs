//! JSON documents, paths and checks.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use jiff::ToSpan;
use podwright::node::Config;
use podwright::node::endpoints::http::{self, Route};
use podwright::node::endpoints::{configz, pods, summary};
use podwright::node::pod::{Observed, SandboxState};
use podwright::node::startup::{Startup, Took};
use serde_json::{Value, json};

use super::super::{at, ended, pod, running};
use super::facts;

#[test]
fn the_summary_is_upstreams_of_what_is_known() {
    let shown = summary::render(&facts(), false);
    let node = &shown["node"];
    assert_eq!(node["nodeName"], "n");
    assert_eq!(node["cpu"]["usageNanoCores"], 300_000_000);
    assert_eq!(node["cpu"]["usageCoreNanoSeconds"], 9_000_000_000_u64);
    assert_eq!((&node["memory"]["workingSetBytes"], &node["memory"]["availableBytes"]), (&json!(5000), &json!(4000)));
    assert_eq!((&node["fs"]["usedBytes"], &node["fs"]["inodesUsed"]), (&json!(600), &json!(40)));
    assert_eq!((&node["rlimit"]["maxpid"], &node["rlimit"]["curproc"]), (&json!(32768), &json!(321)));
    assert_eq!(node["network"]["interfaces"][0]["rxBytes"], 5);
    assert!(node.get("runtime").is_none() && node.get("swap").is_none(), "{node:#}");
    let of_pod = &shown["pods"][0];
    assert_eq!(of_pod["podRef"], json!({"name": "web", "namespace": "default", "uid": "u1"}));
    assert_eq!(of_pod["cpu"]["usageNanoCores"], 500_000_000, "of both containers");
    assert_eq!(of_pod["ephemeral-storage"]["usedBytes"], 11 + 20 + 30 + 1);
    assert_eq!(of_pod["process_stats"]["process_count"], 4);
    let volumes: Vec<&Value> = of_pod["volume"].as_array().unwrap().iter().collect();
    assert_eq!((&volumes[0]["name"], &volumes[0]["usedBytes"]), (&json!("data"), &json!(400)));
    assert_eq!(volumes[0]["pvcRef"], json!({"name": "data-0", "namespace": "default"}));
    assert_eq!((&volumes[1]["name"], &volumes[1]["usedBytes"]), (&json!("scratch"), &json!(11)));
    let [c, d] = &of_pod["containers"].as_array().unwrap()[..] else { panic!("{of_pod:#}") };
    assert_eq!((&c["rootfs"]["usedBytes"], &c["logs"]["usedBytes"]), (&json!(20), &json!(30)));
    assert_eq!(c["memory"]["availableBytes"], 6000);
    assert!(d["memory"].get("availableBytes").is_none() && d.get("rootfs").is_none(), "{d:#}");
    assert!(c["memory"].get("rssBytes").is_none(), "this host does not tell");
    let shares = |total: u64| json!({"total": total, "avg10": 1.5, "avg60": 1.0, "avg300": 0.5});
    // Microseconds, as the kernel has them; an older one does not tell what stalls all, but clients find both.
    let none = json!({"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0});
    assert_eq!(c["cpu"]["psi"], json!({"some": shares(2_500_000), "full": none}));
    assert_eq!(c["io"]["psi"], json!({"some": shares(1_000_000), "full": shares(500_000)}));
    assert!(c["memory"].get("psi").is_none() && d.get("io").is_none() && d["cpu"].get("psi").is_none(), "{c:#}{d:#}");
    let system = &node["systemContainers"][0];
    assert_eq!((&system["name"], &system["cpu"]["usageCoreNanoSeconds"]), (&json!("kubelet"), &json!(70_000)));
    assert_eq!((&system["memory"]["workingSetBytes"], &system["startTime"]), (&json!(80), &json!(at(10))));
    // A container measured once has no rate yet.
    let mut young = facts();
    young.pods[0].containers[1].nanocores = None;
    let shown = summary::render(&young, false);
    assert!(shown["pods"][0]["cpu"].get("usageNanoCores").is_none(), "{shown:#}");
}

#[test]
fn the_short_summary_has_cpu_and_memory_alone() {
    let shown = summary::render(&facts(), true);
    let keys = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&shown["node"]), ["nodeName", "systemContainers", "startTime", "cpu", "memory"]);
    assert_eq!(keys(&shown["pods"][0]), ["podRef", "startTime", "containers", "cpu", "memory"]);
    assert_eq!(keys(&shown["pods"][0]["containers"][0]), ["name", "startTime", "cpu", "memory"]);
}

#[test]
fn what_evades_its_measurement_has_no_figure() {
    let mut facts = facts();
    let mut stored = (**facts.pods[0].stored.as_ref().unwrap()).clone();
    stored.usage.as_mut().unwrap().containers.get_mut("c").unwrap().layer.evades = true;
    facts.pods[0].stored = Some(Arc::new(stored));
    let shown = summary::render(&facts, false);
    assert!(shown["pods"][0].get("ephemeral-storage").is_none(), "{shown:#}");
    assert!(shown["pods"][0]["containers"][0].get("rootfs").is_none());
    assert_eq!(shown["pods"][0]["containers"][0]["logs"]["usedBytes"], 30);
}

#[test]
fn pods_are_listed_piece_by_piece() {
    let list = |count: usize| {
        let one = Arc::new(pod(json!({"containers": [{"name": "c", "image": "i"}]})));
        let all = vec![one; count];
        let pieces: Vec<_> = pods::list(all, pods::item).collect();
        (pieces.len(), serde_json::from_slice::<Value>(&pieces.concat()).unwrap())
    };
    for count in 0..3 {
        let (pieces, shown) = list(count);
        assert_eq!((&shown["kind"], &shown["apiVersion"]), (&json!("PodList"), &json!("v1")));
        assert_eq!(shown["items"].as_array().unwrap().len(), count);
        assert_eq!(pieces, count.max(1) + 1);
    }
    let item = &list(1).1["items"][0];
    assert_eq!(item["metadata"]["name"], "web");
    assert!(item.get("kind").is_none(), "{item}");
    let running = pods::running(&facts());
    assert_eq!(running[0]["metadata"], json!({"name": "web", "namespace": "default", "uid": "u1"}));
    assert_eq!(running[0]["spec"]["containers"][1]["name"], "d");
}

#[test]
fn configz_shows_what_is_in_force() {
    let mut config = Config::new("n", "/state".into(), "/run".into());
    config.pod_pids_max = Some(77);
    config.eviction_hard = "nodefs.available<5%,imagefs.available<1Gi".parse().unwrap();
    let shown = &configz::render(&config)["kubeletconfig"];
    for (field, wanted) in [
        ("maxPods", json!(110)),
        ("podPidsLimit", json!(77)),
        ("evictionHard", json!({"nodefs.available": "5%", "imagefs.available": "1Gi"})),
        ("nodeStatusUpdateFrequency", json!("10s")),
        ("nodeStatusReportFrequency", json!("5m0s")),
        ("containerLogMaxSize", json!("10Mi")),
        ("port", json!(10250)),
        ("imagePullCredentialsVerificationPolicy", json!("NeverVerifyPreloadedImages")),
    ] {
        assert_eq!(shown[field], wanted, "{field}");
    }
    assert!(shown.get("staticPodPath").is_none() && shown.get("allowedUnsafeSysctls").is_none(), "{shown:#}");
}

#[test]
fn paths_are_those_of_a_kubelet_and_no_others() {
    let place = |path| http::place(path).map(|(place, _)| place);
    for (path, wanted) in [
        ("/metrics", Some(Route::Metrics)),
        ("/metrics/cadvisor", Some(Route::Cadvisor)),
        ("/stats/summary", Some(Route::Summary)),
        ("/stats/summary/", Some(Route::Summary)),
        ("/runningpods/", Some(Route::RunningPods)),
        ("/healthz", Some(Route::Health(""))),
        ("/healthz/syncloop", Some(Route::Health("syncloop"))),
        ("/healthz/other", None),
        ("/containerLogs/ns/pod/c", Some(Route::Logs("ns/pod/c"))),
        ("/exec/ns/pod/c", Some(Route::Disabled)),
        ("/debug/pprof/heap", Some(Route::Disabled)),
        ("/execute/ns", None),
        ("/metrics/../pods", None),
        ("/metrics//", None),
        ("/", None),
        ("", None),
        ("*", None),
    ] {
        assert_eq!(place(path), wanted, "{path}");
    }
    assert_eq!(http::counted(&"BREW".parse().unwrap()), "other");
}

#[tokio::test]
async fn checks_are_told_apart() {
    let ask = async |result: Result<(), String>, only: &str, verbose: bool| {
        let checks = [("ping", Ok(())), ("syncloop", result)];
        let answer = http::health(&checks, only, verbose);
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(ask(Ok(()), "", false).await, (200, "ok".to_owned()));
    assert_eq!(ask(Ok(()), "", true).await, (200, "[+]ping ok\n[+]syncloop ok\nhealthz check passed\n".to_owned()));
    let late = || Err("late".to_owned());
    assert_eq!(ask(late(), "ping", false).await, (200, "ok".to_owned()));
    for only in ["", "syncloop"] {
        let (status, body) = ask(late(), only, false).await;
        assert!(status == 500 && body.contains("[-]syncloop failed: late\nhealthz check failed"), "{body}");
    }
}

#[test]
fn a_start_is_timed_once_without_what_images_and_init_containers_take() {
    let mut object =
        pod(json!({"containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "first", "image": "i"}]}));
    object.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
    let mut startup = Startup::new(&object, &Observed::default(), at(2));
    startup.pulled(Duration::from_secs(3));
    let mut seen = Observed::default();
    // From 1 to 5.
    seen.containers.insert("first".to_owned(), ended(0));
    seen.containers.insert("c".to_owned(), running());
    let status = |phase: &str| {
        serde_json::from_value(json!({"phase": phase, "initContainerStatuses": [
            {"name": "first", "image": "", "imageID": "", "ready": true, "restartCount": 0}]}))
        .unwrap()
    };
    assert_eq!(startup.look(&object, &status("Pending"), &seen, at(9)), None);
    let now = at(12).checked_add(500.milliseconds()).unwrap();
    let took = Took { from_sight: Duration::from_millis(10_500), own: Duration::from_millis(12_500 - 3000 - 4000) };
    assert_eq!(startup.look(&object, &status("Running"), &seen, now), Some(took));
    assert_eq!(startup.look(&object, &status("Running"), &seen, now), None, "it has been told");
    // A start by an earlier agent is not timed.
    seen.sandbox.state = SandboxState::Ready;
    assert_eq!(Startup::new(&object, &seen, at(2)).look(&object, &status("Running"), &seen, now), None);
}
