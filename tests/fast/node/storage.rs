//! Who is evicted for what is on the disks, in upstream's words; when a disk is too full, and who goes for it.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use podwright::node::storage::{
    ContainerUsage, Disks, Space, Thresholds, Usage,
    limits::{exceeded, is_limited},
    pressure::{DEFAULT, ISOLATED, Resource, admit, message, rank, shortage},
};
use podwright_runtime::sys::walk::Measure;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

fn pod(spec: Value) -> Pod {
    let metadata = json!({ "name": "web", "namespace": "default", "uid": "u" });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

fn container(name: &str, limit: Option<&str>) -> Value {
    match limit {
        Some(limit) => json!({ "name": name, "resources": { "limits": { "ephemeral-storage": limit } } }),
        None => json!({ "name": name }),
    }
}

fn mib(n: u64) -> Measure {
    Measure { bytes: n * MIB, inodes: n, ..Measure::default() }
}

fn evades() -> Measure {
    Measure { evades: true, ..mib(1) }
}

/// `volumes`, `containers` (layer, logs), the rest.
fn usage(volumes: &[(&str, Measure)], containers: &[(&str, u64, u64)], rest: u64) -> Usage {
    let containers = containers
        .iter()
        .map(|(name, layer, logs)| (name.to_string(), ContainerUsage { layer: mib(*layer), logs: mib(*logs) }));
    Usage {
        volumes: volumes.iter().map(|(name, measure)| (name.to_string(), *measure)).collect(),
        containers: containers.collect(),
        rest: mib(rest),
    }
}

#[test]
fn who_has_more_than_his_limits_allow_is_evicted_in_upstreams_words() {
    let limited = |limit: &str| json!({ "containers": [container("c", Some(limit))] });
    let with_volume = |source: Value| json!({ "containers": [container("c", None)], "volumes": [{ "name": "v", "emptyDir": source }] });
    let several = |init: Value, main: Value| json!({ "initContainers": init, "containers": main });
    let free = json!({ "containers": [container("c", None)] });
    let sidecar =
        json!({ "name": "s", "restartPolicy": "Always", "resources": { "limits": { "ephemeral-storage": "4Mi" } } });
    let pod_limit =
        |n: &str| Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {n}. "));
    let own = |c: &str, n: &str| Some(format!("Container {c} exceeded its local ephemeral storage limit \"{n}\". "));
    let volume = |n: &str| Some(format!("Usage of EmptyDir volume \"v\" exceeds the limit \"{n}\". "));
    let table = [
        // Nothing is limited.
        (free.clone(), usage(&[("v", mib(900))], &[("c", 900, 900)], 900), None),
        (free, usage(&[("v", evades())], &[], 0), None),
        // An emptyDir: at its limit it stays.
        (with_volume(json!({ "sizeLimit": "8Mi" })), usage(&[("v", mib(8))], &[], 0), None),
        (with_volume(json!({ "sizeLimit": "8Mi" })), usage(&[("v", mib(9))], &[], 0), volume("8Mi")),
        (with_volume(json!({ "sizeLimit": "8192Ki" })), usage(&[("v", mib(9))], &[], 0), volume("8Mi")),
        (with_volume(json!({ "sizeLimit": "1M" })), usage(&[("v", mib(1))], &[], 0), volume("1M")),
        (with_volume(json!({ "sizeLimit": "0" })), usage(&[("v", mib(9))], &[], 0), None),
        (with_volume(json!({ "sizeLimit": "900Gi" })), usage(&[("v", evades())], &[], 0), volume("900Gi")),
        // Layer, logs, volumes and what the kubelet writes count together.
        (limited("10Mi"), usage(&[("v", mib(3))], &[("c", 3, 3)], 1), None),
        (limited("10Mi"), usage(&[("v", mib(3))], &[("c", 3, 3)], 2), pod_limit("10Mi")),
        (limited("10Mi"), usage(&[("v", mib(11))], &[], 0), pod_limit("10Mi")),
        (limited("10Mi"), usage(&[("v", evades())], &[], 0), pod_limit("10Mi")),
        (limited("10M"), usage(&[], &[("c", 10, 0)], 0), pod_limit("10M")),
        // One limit bounds all; a container is held to its own.
        (
            several(json!([]), json!([container("c", Some("4Mi")), container("d", None)])),
            usage(&[], &[("d", 5, 0)], 0),
            pod_limit("4Mi"),
        ),
        (
            several(json!([]), json!([container("c", Some("4Mi")), container("d", Some("9Mi"))])),
            usage(&[], &[("c", 3, 2)], 0),
            own("c", "4Mi"),
        ),
        (
            several(json!([]), json!([container("c", Some("4Mi")), container("d", Some("9Mi"))])),
            usage(&[], &[("c", 4, 0), ("d", 9, 0)], 0),
            None,
        ),
        // Init containers raise the Pod's limit, sidecars add to it; each is held to its own.
        (
            several(json!([container("i", Some("20Mi"))]), json!([container("c", Some("4Mi"))])),
            usage(&[("v", mib(15))], &[], 0),
            None,
        ),
        (
            several(json!([container("i", Some("2Mi"))]), json!([container("c", Some("4Mi"))])),
            usage(&[], &[("i", 3, 0)], 0),
            own("i", "2Mi"),
        ),
        (several(json!([sidecar]), json!([container("c", Some("4Mi"))])), usage(&[("v", mib(8))], &[], 0), None),
        (
            several(json!([sidecar]), json!([container("c", Some("4Mi"))])),
            usage(&[("v", mib(9))], &[], 0),
            pod_limit("8Mi"),
        ),
    ];
    for (spec, usage, wanted) in table {
        assert_eq!(exceeded(&pod(spec.clone()), &usage), wanted, "{spec} {usage:?}");
    }
}

fn disks(free: u64, inodes_free: u64) -> Disks {
    let space = Space { bytes: 1000 * MIB, bytes_free: free * MIB, inodes: 1000, inodes_free };
    Disks { nodefs: Some(space), imagefs: Some(space), shared: true }
}

#[test]
fn thresholds_are_read_as_kubelet_reads_them_and_what_is_none_is_refused() {
    for good in [DEFAULT, ISOLATED, "", "nodefs.available<1Gi", " nodefs.available<0% , imagefs.inodesFree<100%"] {
        good.parse::<Thresholds>().unwrap();
    }
    for (bad, part) in [
        ("nodefs.available", "expected SIGNAL<QUANTITY"),
        ("memory.available<100Mi", "this node knows the signals nodefs.available, "),
        ("nodefs.available<101%", "percentage"),
        ("nodefs.available<NaN%", "percentage"),
        ("nodefs.available<-1Gi", "quantity"),
        ("nodefs.available<much", "quantity"),
        ("nodefs.available<1Gi,nodefs.available<2Gi", "twice"),
    ] {
        let why = bad.parse::<Thresholds>().unwrap_err();
        assert!(why.to_string().contains(part), "{bad}: {why}");
    }
}

#[test]
fn a_disk_is_too_full_below_its_threshold_alone() {
    let short = |thresholds: &str, disks: &Disks| {
        let found = shortage(&thresholds.parse().unwrap(), disks);
        found.map(|s| format!("{} {} {} {}", s.resource, s.threshold, s.available, s.of_pods))
    };
    assert_eq!(short(DEFAULT, &disks(150, 50)), None);
    assert_eq!(short(DEFAULT, &disks(149, 50)).unwrap(), "ephemeral-storage 150Mi 149Mi true");
    assert_eq!(short("nodefs.available<10%", &disks(99, 50)).unwrap(), "ephemeral-storage 100Mi 99Mi true");
    assert_eq!(short("nodefs.available<64Mi", &disks(63, 50)).unwrap(), "ephemeral-storage 64Mi 63Mi true");
    assert_eq!(short(DEFAULT, &disks(500, 49)).unwrap(), "inodes 50 49 true");
    assert_eq!(short("", &disks(0, 0)), None);
    assert_eq!(short(DEFAULT, &Disks::default()), None);
    // A file system that makes inodes as they are needed lacks none.
    let endless = Space { inodes: 0, inodes_free: 0, ..disks(500, 0).nodefs.unwrap() };
    assert_eq!(short(DEFAULT, &Disks { nodefs: Some(endless), imagefs: None, shared: false }), None);
    // Pods are not evicted for a disk that is not theirs.
    let apart = Disks { nodefs: disks(500, 500).nodefs, ..Disks { shared: false, ..disks(1, 500) } };
    assert_eq!(short(DEFAULT, &apart).unwrap(), "ephemeral-storage 150Mi 1Mi false");
    // On a machine that is nearly full an isolated node goes on.
    let nearly = Space { bytes: 252 << 30, bytes_free: 287 << 20, inodes: 1 << 24, inodes_free: 1 << 20 };
    assert_eq!(short(ISOLATED, &Disks { nodefs: Some(nearly), imagefs: Some(nearly), shared: true }), None);
}

#[test]
fn what_is_to_stay_free_is_not_allocatable() {
    let reserved = |text: &str| text.parse::<Thresholds>().unwrap().reserved(1000);
    assert_eq!((reserved(DEFAULT), reserved("nodefs.available<300"), reserved("")), (100, 300, 0));
    assert_eq!(reserved("nodefs.available<1Gi"), 1000);
}

#[test]
fn the_pod_goes_first_that_exceeds_its_request_matters_least_and_exceeds_it_most() {
    let ranked = |name: &str, priority: i32, request: &str, used: Option<u64>| {
        let mut pod = pod(json!({ "priority": priority, "containers": [
            { "name": "c", "resources": { "requests": { "ephemeral-storage": request } } },
        ] }));
        pod.metadata.name = Some(name.to_owned());
        (Arc::new(pod), used.map(|used| usage(&[("v", mib(used))], &[], 0)))
    };
    let mut fixed = ranked("static", 0, "0", Some(999));
    Arc::make_mut(&mut fixed.0).metadata.annotations =
        Some(BTreeMap::from([("kubernetes.io/config.source".to_owned(), "file".to_owned())]));
    let mut system = ranked("system", 2_000_000_000, "0", Some(999));
    Arc::make_mut(&mut system.0).metadata.namespace = Some("kube-system".to_owned());
    let pods = vec![
        fixed,
        system.clone(),
        // Anybody may write a system's priority: it says who goes first, as others do, and exempts nobody.
        ranked("proud", 2_000_001_000, "0", Some(999)),
        ranked("modest", 0, "100Mi", Some(90)),
        ranked("important", 10, "0", Some(900)),
        ranked("some", 0, "0", Some(10)),
        ranked("much", 0, "100Mi", Some(300)),
        ranked("unknown", 0, "0", None),
    ];
    let names: Vec<String> =
        rank(pods, Resource::Storage).into_iter().map(|(pod, _)| pod.metadata.name.clone().unwrap()).collect();
    assert_eq!(names, ["unknown", "much", "some", "important", "proud", "modest"]);

    let (pod, _) = ranked("web", 0, "10Mi", None);
    let full = shortage(&DEFAULT.parse().unwrap(), &disks(1, 500)).unwrap();
    let said = message(&full, &pod, Some(&usage(&[], &[("c", 30, 1)], 0)));
    assert_eq!(
        said,
        "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 1Mi. \
         Container c was using 31Mi, request is 10Mi, has larger consumption of ephemeral-storage. "
    );

    assert_eq!(admit(&pod, false), Ok(()));
    let refused = admit(&pod, true).unwrap_err();
    assert_eq!(refused.reason, "Evicted");
    assert_eq!(refused.message, "Pod was rejected: The node had condition: [DiskPressure]. ");
    assert_eq!(admit(&system.0, true), Ok(()));
    assert!(admit(&ranked("proud", 2_000_001_000, "0", None).0, true).is_err());
}

#[test]
fn who_is_held_to_limits_is_not_for_tenants_to_say() {
    let limited = json!({ "priority": 2_000_001_000, "containers": [container("c", Some("1Mi"))] });
    let of = |namespace: &str, annotations: Value, version: Value, spec: &Value| -> Pod {
        let metadata =
            json!({ "name": "p", "namespace": namespace, "annotations": annotations, "resourceVersion": version });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    };
    let (file, mirror) =
        (json!({ "kubernetes.io/config.source": "file" }), json!({ "kubernetes.io/config.mirror": "x" }));
    let modest = json!({ "containers": [container("c", Some("1Mi"))] });
    for (namespace, annotations, version, spec, held) in [
        ("default", json!({}), json!("1"), &limited, true),
        ("kube-system", json!({}), json!("1"), &limited, false),
        ("kube-system", json!({}), json!("1"), &modest, true),
        // Of the node's own folder, and what only says so.
        ("default", file.clone(), Value::Null, &modest, false),
        ("default", file, json!("1"), &limited, true),
        ("default", mirror, json!("1"), &limited, true),
    ] {
        let pod = of(namespace, annotations, version, spec);
        assert_eq!(is_limited(&pod), held, "{pod:?}");
        let oom = podwright::node::qos::oom_score_adj(&pod, &pod.spec.as_ref().unwrap().containers[0], 8 << 30);
        assert_eq!(oom == -997, !held, "{oom} {pod:?}");
    }
}
