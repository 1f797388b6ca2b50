//! An extension server's resources wherever kinds are used: the `podwright` command, the garbage collector, namespaces and
//! autoscalers.

use super::{TIMEOUT, started, until};
use crate::kubectl::{
    Cluster,
    Expect::{Fails, Has, Is},
};
use crate::support::{contains, eventually, leftovers::Machine};

const THINGS: &str = "
apiVersion: ext.example.com/v1
kind: Thing
metadata: {name: one}
spec: {size: 1, tags: {a: x, b: y}}
";

fn says(cluster: &Cluster, args: &[&str], part: &str) {
    eventually(&args.join(" "), TIMEOUT, || contains(&cluster.node.run(args).all(), part));
}

#[test]
fn what_an_extension_server_serves_is_known_everywhere() {
    let Some(mut cluster) = started() else { return };
    let untouched = Machine::untouched(cluster.node.dir.path());
    the_command(&cluster);
    owners(&cluster);
    namespaces(&cluster);
    autoscalers(&cluster);
    assert_eq!(cluster.node.terminate().and_then(|status| status.code()), Some(0));
    untouched.assert_unchanged();
}

/// Without kubectl: discovered, created, changed and deleted.
fn the_command(cluster: &Cluster) {
    let node = &cluster.node;
    says(
        cluster,
        &["api-resources", "--api-group=ext.example.com", "-o", "wide"],
        "create,delete,get,list,patch,update,watch",
    );
    says(cluster, &["api-versions"], "ext.example.com/v1");
    // It has no v3 document of its own: one is generated from v2.
    says(cluster, &["explain", "thing.spec.size"], "How large it is.");
    assert!(contains(&cluster.says("kubectl explain thing.spec.by"), "Who has made it.").is_ok());
    let applied = |text: &str| node.run_with(&["apply", "-f", "-"], text.as_bytes()).out;
    assert_eq!(applied(THINGS), "thing.ext.example.com/one created\n");
    assert_eq!(applied(THINGS), "thing.ext.example.com/one unchanged\n");
    // What others set stays, what is removed from the manifest goes.
    node.ok(&["patch", "thing", "one", "--type=merge", "-p", r#"{"spec": {"other": 7}}"#]);
    assert_eq!(applied(&THINGS.replace("a: x, b: y", "b: z")), "thing.ext.example.com/one configured\n");
    assert_eq!(node.ok(&["get", "th", "one", "-o", "jsonpath={.spec.tags} {.spec.other}"]), "{\"b\":\"z\"} 7");
    says(cluster, &["get", "things"], "one");
    says(cluster, &["describe", "thing", "one"], "one");
    let missing = node.run(&["get", "thing", "two"]);
    assert!(missing.all().contains("things.ext.example.com \"two\" not found"), "{}", missing.all());
    assert_eq!(node.ok(&["delete", "thing", "one"]), "thing.ext.example.com \"one\" deleted\n");
    assert!(node.run(&["get", "things"]).all().contains("No resources found"));
}

/// Owners there and dependents here, and the other way round.
fn owners(cluster: &Cluster) {
    let node = &cluster.node;
    node.ok(&["create", "configmap", "owner"]);
    node.run_with(&["apply", "-f", "-"], THINGS.as_bytes());
    let uid = node.ok(&["get", "thing", "one", "-o", "jsonpath={.metadata.uid}"]);
    let of = |kind: &str, version: &str, name: &str, uid: &str| {
        format!("ownerReferences: [{{apiVersion: {version}, kind: {kind}, name: {name}, uid: {uid}}}]")
    };
    let below = format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: below, {}}}}}",
        of("Thing", "ext.example.com/v1", "one", &uid)
    );
    node.apply(&below);
    let uid = node.ok(&["get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}"]);
    let thing = THINGS.replace("{name: one}", &format!("{{name: two, {}}}", of("ConfigMap", "v1", "owner", &uid)));
    node.apply(&thing);
    std::thread::sleep(std::time::Duration::from_secs(2));
    cluster.drill(&[("kubectl get cm/below thing/two -o name", Is("configmap/below\nthing.ext.example.com/two"))]);
    node.ok(&["delete", "thing", "one"]);
    until(cluster, "kubectl get cm below", "not found");
    node.ok(&["delete", "configmap", "owner"]);
    until(cluster, "kubectl get thing two", "not found");
}

/// A deleted one removes its things; while the server cannot list its contents it stays, and reports why.
fn namespaces(cluster: &Cluster) {
    cluster.file("thing.yaml", THINGS);
    cluster.drill(&[
        ("kubectl create ns lab && kubectl create ns later", Has(&["created"])),
        ("kubectl -n lab create -f thing.yaml && kubectl -n later create -f thing.yaml", Has(&["created"])),
        ("kubectl delete ns lab --timeout=60s", Has(&["\"lab\" deleted"])),
        ("kubectl -n lab get thing one", Fails(1, "not found")),
        ("kubectl -n later get thing one -o name", Is("thing.ext.example.com/one")),
        (
            "kubectl patch apiservice v1.ext.example.com --type=merge -p '{\"spec\":{\"service\":{\"port\":444}}}'",
            Has(&["patched"]),
        ),
        (
            "kubectl wait --for=condition=Available=False apiservice/v1.ext.example.com --timeout=60s",
            Has(&["condition met"]),
        ),
        ("kubectl delete ns later --wait=false", Has(&["deleted"])),
        (
            "kubectl wait --for=condition=NamespaceDeletionDiscoveryFailure ns/later --timeout=60s",
            Has(&["condition met"]),
        ),
        (
            "kubectl get ns later -o jsonpath='{.status.conditions[?(@.reason==\"DiscoveryFailed\")].message}'",
            Has(&[
                "Discovery failed for some groups, 1 failing",
                "ext.example.com/v1: stale GroupVersion discovery: ext.example.com/v1",
            ]),
        ),
        (
            "kubectl patch apiservice v1.ext.example.com --type=merge -p '{\"spec\":{\"service\":{\"port\":443}}}'",
            Has(&["patched"]),
        ),
        ("kubectl wait --for=delete ns/later --timeout=60s", Has(&[""])),
    ]);
}

/// A metric from the extension server: a number of things for each Pod.
fn autoscalers(cluster: &Cluster) {
    let ca = cluster.says("cat tls.crt");
    cluster.file("custom.yaml", &super::registration("v1beta2", "custom.metrics.k8s.io", &ca));
    cluster.file(
        "hpa.yaml",
        "
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  maxReplicas: 4
  metrics:
  - type: Object
    object:
      metric: {name: things}
      describedObject: {apiVersion: v1, kind: Service, name: web}
      target: {type: AverageValue, averageValue: 1}
",
    );
    cluster.drill(&[
        ("kubectl create deployment web --image=localhost/busybox:1 -- sleep 600", Has(&["created"])),
        ("kubectl apply -f hpa.yaml", Has(&["created"])),
    ]);
    let condition = "kubectl get hpa web -o jsonpath='{.status.conditions[?(@.type==\"ScalingActive\")].message}'";
    until(
        cluster,
        condition,
        "the HPA was unable to compute the replica count: unable to get metric things on Service default/web: unable to fetch \
         metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered",
    );
    cluster.drill(&[
        ("for i in 1 2 3; do sed s/one/t$i/ thing.yaml | kubectl create -f -; done", Has(&["t3 created"])),
        ("kubectl apply -f custom.yaml", Has(&["created"])),
        (
            "kubectl wait --for=condition=Available apiservice/v1beta2.custom.metrics.k8s.io --timeout=60s",
            Has(&["condition met"]),
        ),
    ]);
    until(cluster, "kubectl get deployment web -o jsonpath='{.spec.replicas}'", "3");
    until(cluster, "kubectl get hpa web -o jsonpath='{.status.currentMetrics[0].object.current.averageValue}'", "1");
    cluster.drill(&[(
        "kubectl delete hpa,deployment web --timeout=60s && kubectl delete things --all",
        Has(&["deleted"]),
    )]);
}
