//! Output: get in all formats, watches, explain, describe, events, discovery, raw paths, the proxy.

use std::io::{BufRead, BufReader};

use super::{Cluster, Fails, Has, Is, Lacks};

const APP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 2
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: localhost/busybox:1
        command: [sleep, infinity]
        ports: [{containerPort: 80}]
        env: [{name: A, value: '1'}]
";

#[test]
fn objects_are_shown_in_every_form() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.file("app.yaml", APP);
    cluster.drill(&[
        ("kubectl apply -f app.yaml && kubectl expose deploy app --port=80", Has(&["service/app exposed"])),
        ("kubectl rollout status deploy/app --timeout=60s", Has(&["successfully rolled out"])),
        ("kubectl get deploy", Has(&["NAME   READY   UP-TO-DATE   AVAILABLE   AGE\napp    2/2     2            2"])),
        ("kubectl get pods -o wide", Has(&["NOMINATED NODE   READINESS GATES", "10.244.0."])),
        ("kubectl get deploy,svc -o name", Is("deployment.apps/app\nservice/app\nservice/kubernetes")),
        ("kubectl get all -l app=app", Has(&["pod/app-", "replicaset.apps/app-"])),
        ("kubectl get deploy app -o yaml", Has(&["apiVersion: apps/v1\nkind: Deployment\nmetadata:"])),
        ("kubectl get deploy -o yaml", Has(&["kind: List\nmetadata:\n  resourceVersion: \"\""])),
        ("kubectl get deploy app -o json", Has(&["\"kind\": \"Deployment\""])),
        ("kubectl get deploy app -o jsonpath='{.spec.replicas} {.spec.template.spec.containers[?(@.name==\"c\")].image}'", Is("2 localhost/busybox:1")),
        ("kubectl get pods -o jsonpath='{range .items[*]}{.spec.containers[0].name}{\"\\n\"}{end}'", Is("c\nc")),
        ("kubectl get deploy -o jsonpath-as-json='{.items[*].metadata.name}'", Is("[\n    \"app\"\n]")),
        ("kubectl get pods -o go-template='{{range .items}}{{.status.phase}} {{end}}'", Is("Running Running")),
        ("kubectl get deploy -o custom-columns=NAME:.metadata.name,IMAGES:'.spec.template.spec.containers[*].image'", Is("NAME   IMAGES\napp    localhost/busybox:1")),
        ("kubectl get svc --sort-by=.metadata.name -o name", Is("service/app\nservice/kubernetes")),
        ("kubectl get svc --sort-by='{.spec.ports[0].port}' --no-headers | cut -d' ' -f1", Is("app\nkubernetes")),
        ("kubectl get pods -A --show-labels", Has(&["NAMESPACE", "app=app,pod-template-hash="])),
        ("kubectl get pods -L app --no-headers | head -1", Has(&["app"])),
        ("kubectl get pods --chunk-size=1 --no-headers | wc -l", Is("2")),
        ("kubectl get --raw '/api/v1/namespaces/default/pods?limit=1' | grep -o '\"remainingItemCount\":1'", Is("\"remainingItemCount\":1")),
        ("kubectl get pods --field-selector=status.phase=Running,spec.nodeName!= --no-headers | wc -l", Is("2")),
        ("kubectl get pods --field-selector=spec.nothing=1", Fails(1, "field label not supported: spec.nothing")),
        ("kubectl get pods -l 'a in ('", Fails(1, "unable to parse requirement")),
        ("kubectl get pods nobody --ignore-not-found", Is("")),
        ("kubectl get deploy app nobody", Fails(1, "Error from server (NotFound): deployments.apps \"nobody\" not found")),
        ("kubectl get nothing", Fails(1, "error: the server doesn't have a resource type \"nothing\"")),
        ("kubectl get pods --subresource=status -o jsonpath='{.items}'", Fails(1, "")),
        ("kubectl get pods --output-watch-events -w --request-timeout=1s --no-headers", Has(&["ADDED", "1/1"])),
        ("kubectl get pods -n nowhere", Has(&["No resources found in nowhere namespace."])),
        // Describe.
        ("kubectl describe deploy app", Has(&["Replicas:               2 desired | 2 updated | 2 total | 2 available | 0 unavailable", "NewReplicaSet:   app-", "Scaled up replica set app-"])),
        ("kubectl describe pods -l app=app", Has(&["Node:             ", "Image:         localhost/busybox:1", "QoS Class:                   BestEffort", "Successfully assigned default/app-", "Started container c"])),
        ("kubectl describe svc app", Has(&["Selector:                 app=app", "Endpoints:                10.244.0.", "Session Affinity:         None"])),
        ("kubectl describe node", Has(&["Allocatable:", "KubeletReady", "Non-terminated Pods:          (2 in total)"])),
        ("kubectl describe ns default", Has(&["Status:       Active", "No resource quota."])),
        ("kubectl create quota q --hard=pods=5 && kubectl wait --for=jsonpath='{.status.used.pods}'=2 quota/q --timeout=20s && kubectl describe quota q", Has(&["pods        2     5"])),
        ("kubectl describe rs -l app=app", Has(&["Controlled By:  Deployment/app", "Pods Status:    2 Running / 0 Waiting / 0 Succeeded / 0 Failed"])),
        ("kubectl describe sa default", Has(&["Image pull secrets:  <none>"])),
        ("kubectl describe cm kube-root-ca.crt", Has(&["ca.crt:\n----\n-----BEGIN CERTIFICATE-----"])),
        ("kubectl describe pod nobody", Fails(1, "pods \"nobody\" not found")),
        // Events.
        ("kubectl events --for deploy/app --no-headers", Has(&["ScalingReplicaSet   Deployment/app"])),
        ("kubectl events --types=Warning", Has(&["No events found in default namespace."])),
        ("kubectl get events --field-selector reason=Started -o jsonpath='{.items[*].source.component}'", Is("kubelet kubelet")),
    ]);
}

#[test]
fn a_server_tells_what_it_serves() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.drill(&[
        ("kubectl version", Has(&["Server Version: v1.35.0"])),
        ("kubectl api-versions", Has(&["apps/v1", "autoscaling/v2", "rbac.authorization.k8s.io/v1", "\nv1"])),
        ("kubectl api-resources --api-group=apps --no-headers", Has(&["deployments           deploy   apps/v1   true   Deployment"])),
        ("kubectl api-resources --verbs=list,get --namespaced=true -o name", Has(&["configmaps\n", "ingresses.networking.k8s.io"])),
        ("kubectl api-resources --verbs=list,get --namespaced=true -o name", Lacks(&["nodes\n", "tokenreviews"])),
        ("kubectl api-resources --namespaced=false --sort-by=kind --no-headers | head -1", Has(&["APIService"])),
        ("kubectl api-resources -o wide --api-group=batch", Has(&["create,delete,deletecollection,get,list,patch,update,watch   all"])),
        ("kubectl cluster-info", Has(&["Kubernetes control plane", "is running at", "https://127.0.0.1:"])),
        ("kubectl cluster-info dump --output-directory=dump && ls dump", Has(&["Cluster info dumped to dump", "nodes.json"])),
        ("kubectl config view", Has(&["name: podwright", "DATA+OMITTED"])),
        ("kubectl config current-context", Is("podwright")),
        ("kubectl get --raw /livez", Is("ok")),
        ("kubectl get --raw '/readyz?verbose'", Has(&["readyz check passed"])),
        ("kubectl get --raw /version", Has(&["\"gitVersion\":\"v1.35.0"])),
        ("kubectl get --raw /nothing", Fails(1, "Error from server (NotFound): the server could not find the requested resource")),
        ("kubectl create --raw /api/v1/namespaces -f - <<'Y'\n{\"kind\":\"Namespace\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"raw\"}}\nY", Has(&["\"name\":\"raw\""])),
        // Explain, from OpenAPI v3 and v2.
        ("kubectl explain pod", Has(&["KIND:       Pod\nVERSION:    v1", "FIELDS:\n  apiVersion\t<string>"])),
        ("kubectl explain deploy --recursive", Has(&["GROUP:      apps", "        maxSurge\t<string>"])),
        ("kubectl explain pod.spec.containers.imagePullPolicy", Has(&["FIELD: imagePullPolicy <string>", "One of Always, Never, IfNotPresent."])),
        ("kubectl explain hpa.spec.metrics --api-version=autoscaling/v2", Has(&["FIELD: metrics <[]MetricSpec>"])),
        ("kubectl explain hpa --api-version=autoscaling/v1", Has(&["VERSION:    v1"])),
        ("kubectl explain pod.spec.dnsPolicy --output=plaintext-openapiv2", Has(&["FIELD:    dnsPolicy <string>"])),
        ("kubectl explain pod.spec.nothing", Fails(1, "error: field \"nothing\" does not exist")),
        ("kubectl explain nothing", Fails(1, "the server doesn't have a resource type \"nothing\"")),
    ]);
}

#[test]
fn watches_and_the_proxy_go_on() {
    let Some(cluster) = Cluster::without_node() else { return };
    let mut watch = cluster.goes_on("kubectl get cm -w --output-watch-events --no-headers");
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap().split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    // The initial list has arrived: later changes are watched.
    assert_eq!(next(), "ADDED kube-root-ca.crt 1");
    cluster.says("kubectl create cm first --from-literal=a=1 --from-literal=b=2");
    assert_eq!(next(), "ADDED first 2");
    cluster.says("kubectl patch cm first --type=merge -p '{\"data\":{\"b\":null}}'");
    assert_eq!(next(), "MODIFIED first 1");
    cluster.says("kubectl delete cm first");
    assert_eq!(next(), "DELETED first 1");

    let mut proxy = cluster.goes_on("kubectl proxy --port=0");
    let said = BufReader::new(proxy.0.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let address = said.strip_prefix("Starting to serve on ").unwrap_or_else(|| panic!("{said}"));
    let get = |path: &str| cluster.says(&format!("curl -sS 'http://{address}{path}'"));
    assert!(get("/version").contains("\"gitVersion\": \"v1.35.0"));
    assert!(get("/api/v1/namespaces/default/configmaps/kube-root-ca.crt").contains("BEGIN CERTIFICATE"));
    let refused = get("/api/v1/namespaces/default/pods/x/exec?command=id");
    assert!(refused.contains("Forbidden"), "the proxy itself refuses: {refused}");
}
