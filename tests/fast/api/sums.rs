//! A Pod's total requests: the sums over its containers, typed for scheduler and node, untyped for limits and quotas.

use k8s_openapi::api::core::v1::Pod;
use podwright::api::{
    pod_resources::{self, Amounts},
    pod_totals,
};
use serde_json::{Value, json};

use crate::work::grows_with_its_lists;

/// A container that requests the given amount of each resource.
fn asking(name: String, amounts: &[(String, u32)]) -> Value {
    let requests: Value = amounts.iter().map(|(name, amount)| (name.clone(), json!(amount.to_string()))).collect();
    json!({ "name": name, "image": "i:1", "resources": { "requests": requests } })
}

fn pod(init: &[Value], containers: &[Value], statuses: &[Value]) -> Pod {
    let object = json!({ "metadata": { "name": "a" }, "spec": { "initContainers": init, "containers": containers },
        "status": { "containerStatuses": statuses } });
    serde_json::from_value(object).unwrap()
}

fn sidecar(mut container: Value) -> Value {
    container["restartPolicy"] = json!("Always");
    container
}

fn of(name: &str, amount: u32) -> (String, u32) {
    (name.to_owned(), amount)
}

#[test]
fn an_init_container_counts_beside_the_sidecars_before_it() {
    let init = [
        sidecar(asking("s".to_owned(), &[of("cpu", 1), of("x/a", 1)])),
        asking("i".to_owned(), &[of("x/a", 2), of("x/b", 3), of("memory", 7)]),
        sidecar(asking("t".to_owned(), &[of("x/c", 4)])),
    ];
    let pod = pod(&init, &[asking("c".to_owned(), &[of("memory", 5)])], &[]);
    let sum = pod_resources::requests(&pod);
    let named = ["cpu", "memory", "x/a", "x/b", "x/c"].map(|name| sum.get(name));
    assert_eq!(named, [1000, 7, 3, 3, 4]);
    let sum = pod_totals::requests(&serde_json::to_value(&pod.spec).unwrap());
    let named: Vec<String> = sum.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    assert_eq!(named, ["cpu=1", "memory=7", "x/a=3", "x/b=3", "x/c=4"]);
}

/// Pods come and go, and their authors choose the resource names.
#[test]
fn what_is_given_back_leaves_no_name_behind() {
    let requests = |n: usize| {
        let amounts = [of("cpu", 1), of(&format!("x/r{n}"), 1), of(&format!("x/none{n}"), 0)];
        pod_resources::requests(&pod(&[], &[asking("c".to_owned(), &amounts)], &[]))
    };
    let mut sum = Amounts::default();
    (0..10).for_each(|n| sum.add(&requests(n)));
    assert_eq!(sum.others.len(), 10, "{sum:?}");
    (0..10).for_each(|n| sum.subtract(&requests(n)));
    assert_eq!(sum, Amounts::default());
}

/// The author of a Pod chooses the number of containers, and may give each a resource name of its own.
#[test]
fn sums_take_as_much_work_as_there_are_containers() {
    let with = |n: usize| {
        let init = |i: usize| asking(format!("i{i}"), &[of("cpu", 1)]);
        let all =
            (0..n).map(|i| sidecar(asking(format!("s{i}"), &[of(&format!("x/r{i}"), 1)]))).chain((0..n).map(init));
        let main: Vec<Value> = (0..n).map(|i| asking(format!("c{i}"), &[of("cpu", 1)])).collect();
        let statuses: Vec<Value> = (0..n)
            .map(|i| {
                json!({ "name": format!("c{i}"), "ready": true, "restartCount": 0,
            "image": "i:1", "imageID": "", "allocatedResources": { "cpu": "2" } })
            })
            .collect();
        pod(&all.collect::<Vec<_>>(), &main, &statuses)
    };
    let (few, many) = (with(250), with(4000));
    grows_with_its_lists("requests", &few, &many, pod_resources::requests);
    grows_with_its_lists("held", &few, &many, pod_resources::held);
    let untyped = |pod: &Pod| serde_json::to_value(pod.spec.as_ref()).unwrap();
    grows_with_its_lists("untyped", &untyped(&few), &untyped(&many), pod_totals::requests);
}
