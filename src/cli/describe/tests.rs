//! Descriptions in kubectl's layout.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;
use podwright_api::kinds::registry::Registry;

fn check(kind: &str, object: Value, related: Related, wanted: Expect) {
    let now = "2026-11-20T12:00:00Z".parse().expect("a time");
    wanted.assert_eq(&page(kind, &Object(object), &related, now).to_string());
}

#[test]
fn a_running_pod() {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "labels": {"run": "web"}},
        "spec": {
            "nodeName": "n1", "serviceAccountName": "default",
            "containers": [{
                "name": "web", "image": "localhost/busybox:1", "command": ["httpd", "-f"], "ports": [{"containerPort": 80}],
                "resources": {"limits": {"memory": "16Mi"}},
                "env": [{"name": "A", "value": "b"}],
                "readinessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}},
                "volumeMounts": [{"name": "work", "mountPath": "/work"}],
            }],
            "volumes": [{"name": "work", "emptyDir": {}}],
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        },
        "status": {
            "phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.244.0.2", "podIPs": [{"ip": "10.244.0.2"}],
            "startTime": "2026-11-20T11:59:00Z", "qosClass": "Burstable",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{
                "name": "web", "ready": true, "restartCount": 0, "containerID": "podwright://1", "imageID": "sha256:2",
                "state": {"running": {"startedAt": "2026-11-20T11:59:01Z"}},
            }],
        },
    });
    let event = json!({
        "type": "Normal", "reason": "Scheduled", "message": "Successfully assigned default/web to n1",
        "source": {"component": "default-scheduler"}, "count": 2,
        "firstTimestamp": "2026-11-20T11:59:00Z", "lastTimestamp": "2026-11-20T11:59:30Z",
    });
    let related = Related { events: Some(vec![Object(event)]), ..Related::default() };
    check(
        "Pod",
        pod,
        related,
        expect![[r#"
        Name:             web
        Namespace:        default
        Priority:         0
        Service Account:  default
        Node:             n1/10.0.0.1
        Start Time:       Fri, 20 Nov 2026 11:59:00 +0000
        Labels:           run=web
        Annotations:      <none>
        Status:           Running
        IP:               10.244.0.2
        IPs:
          IP:  10.244.0.2
        Containers:
          web:
            Container ID:  podwright://1
            Image:         localhost/busybox:1
            Image ID:      sha256:2
            Port:          80/TCP
            Host Port:     0/TCP
            Command:
              httpd
              -f
            State:          Running
              Started:      Fri, 20 Nov 2026 11:59:01 +0000
            Ready:          True
            Restart Count:  0
            Limits:
              memory:   16Mi
            Readiness:  http-get http://:80/ delay=0s timeout=1s period=10s #success=1 #failure=3
            Environment:
              A:  b
            Mounts:
              /work from work (rw)
        Conditions:
          Type    Status
          Ready   True 
        Volumes:
          work:
            Type:        EmptyDir (a temporary directory that shares a pod's lifetime)
            Medium:      
            SizeLimit:   <unset>
        QoS Class:       Burstable
        Node-Selectors:  <none>
        Tolerations:     k:NoExecute op=Exists for 300s
        Events:
          Type    Reason     Age                From               Message
          ----    ------     ----               ----               -------
          Normal  Scheduled  30s (x2 over 60s)  default-scheduler  Successfully assigned default/web to n1
    "#]],
    );
}

#[test]
fn a_service_with_a_node_port() {
    let service = json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "selector": {"app": "web"},
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster",
            "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP", "nodePort": 30080}],
        },
    });
    let slice = json!({
        "ports": [{"name": "", "port": 8080}],
        "endpoints": [
            {"addresses": ["10.244.0.2"], "conditions": {"ready": true}},
            {"addresses": ["10.244.0.3"], "conditions": {"ready": false}},
        ],
    });
    let related = Related { events: Some(Vec::new()), slices: vec![Object(slice)], ..Related::default() };
    check(
        "Service",
        service,
        related,
        expect![[r#"
        Name:                     web
        Namespace:                default
        Labels:                   <none>
        Annotations:              <none>
        Selector:                 app=web
        Type:                     NodePort
        IP Family Policy:         SingleStack
        IP Families:              IPv4
        IP:                       10.96.0.9
        IPs:                      10.96.0.9
        Port:                     <unset>  80/TCP
        TargetPort:               8080/TCP
        NodePort:                 <unset>  30080/TCP
        Endpoints:                10.244.0.2:8080
        Session Affinity:         None
        External Traffic Policy:  Cluster
        Internal Traffic Policy:  Cluster
        Events:                   <none>
    "#]],
    );
}

#[test]
fn a_deployment() {
    let deployment = json!({
        "metadata": {
            "name": "web", "namespace": "default", "creationTimestamp": "2026-11-20T11:00:00Z",
            "annotations": {"deployment.kubernetes.io/revision": "1"},
        },
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "localhost/busybox:1"}]},
            },
        },
        "status": {
            "replicas": 2, "updatedReplicas": 2, "availableReplicas": 1, "unavailableReplicas": 1,
            "conditions": [{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}],
        },
    });
    let set = json!({
        "metadata": {"name": "web-1", "annotations": {"deployment.kubernetes.io/revision": "1"}},
        "spec": {"replicas": 2}, "status": {"replicas": 2},
    });
    let related = Related { sets: vec![Object(set)], ..Related::default() };
    check(
        "Deployment",
        deployment,
        related,
        expect![[r#"
        Name:                   web
        Namespace:              default
        CreationTimestamp:      Fri, 20 Nov 2026 11:00:00 +0000
        Labels:                 <none>
        Annotations:            deployment.kubernetes.io/revision: 1
        Selector:               app=web
        Replicas:               2 desired | 2 updated | 2 total | 1 available | 1 unavailable
        StrategyType:           RollingUpdate
        MinReadySeconds:        0
        RollingUpdateStrategy:  25% max unavailable, 25% max surge
        Pod Template:
          Labels:  app=web
          Containers:
           web:
            Image:         localhost/busybox:1
            Port:          <none>
            Host Port:     <none>
            Environment:   <none>
            Mounts:        <none>
          Volumes:         <none>
          Node-Selectors:  <none>
          Tolerations:     <none>
        Conditions:
          Type           Status  Reason
          ----           ------  ------
          Available      True    MinimumReplicasAvailable
        OldReplicaSets:  <none>
        NewReplicaSet:   web-1 (2/2 replicas created)
    "#]],
    );
}

#[test]
fn an_autoscaler() {
    let target = |name: &str, target: Value| json!({"type": "Resource", "resource": {"name": name, "target": target}});
    let current = json!({"averageUtilization": 60, "averageValue": "6m"});
    let policy = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    let it = json!({
        "metadata": {"name": "web", "namespace": "default", "creationTimestamp": "2026-11-20T11:59:00Z"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "minReplicas": 1, "maxReplicas": 10,
            "metrics": [
                target("cpu", json!({"type": "Utilization", "averageUtilization": 50})),
                target("memory", json!({"type": "AverageValue", "averageValue": "64Mi"})),
                {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "log",
                    "target": {"type": "Utilization", "averageUtilization": 80}}},
                {"type": "Pods", "pods": {"metric": {"name": "qps"}, "target": {"type": "AverageValue", "averageValue": "1k"}}},
                {"type": "Object", "object": {"metric": {"name": "rps"}, "describedObject": {"kind": "Service", "name": "s"},
                    "target": {"type": "Value", "value": "10"}}},
                {"type": "External", "external": {"metric": {"name": "jobs"}, "target": {"type": "AverageValue", "averageValue": "5"}}},
            ],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [policy]},
                "scaleDown": {"selectPolicy": "Disabled", "policies": [policy]},
            },
        },
        "status": {
            "currentReplicas": 2, "desiredReplicas": 3,
            "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu", "current": current}}, {"type": ""}],
            "conditions": [{"type": "AbleToScale", "status": "True", "reason": "ReadyForNewScale", "message": "it is well"}],
        },
    });
    check(
        "HorizontalPodAutoscaler",
        it,
        Related::default(),
        expect![[r#"
        Name:                                                                     web
        Namespace:                                                                default
        Labels:                                                                   <none>
        Annotations:                                                              <none>
        CreationTimestamp:                                                        Fri, 20 Nov 2026 11:59:00 +0000
        Reference:                                                                Deployment/web
        Metrics:                                                                  ( current / target )
          resource cpu on pods  (as a percentage of request):                     60% (6m) / 50%
          resource memory on pods:                                                <unknown> / 64Mi
          resource cpu of container "log" on pods  (as a percentage of request):  <unknown> / 80%
          "qps" on pods:                                                          <unknown> / 1k
          "rps" on Service/s (target value):                                      <unknown> / 10
          "jobs" (target average value):                                          <unknown> / 5
        Min replicas:                                                             1
        Max replicas:                                                             10
        Behavior:
          Scale Up:
            Stabilization Window: 0 seconds
            Select Policy: Max
            Policies:
              - Type: Pods  Value: 4  Period: 15 seconds
          Scale Down:
            Select Policy: Disabled
            Policies:
              - Type: Pods  Value: 4  Period: 15 seconds
        Deployment pods:    2 current / 3 desired
        Conditions:
          Type         Status  Reason            Message
          ----         ------  ------            -------
          AbleToScale  True    ReadyForNewScale  it is well
    "#]],
    );
}

/// A custom resource shows all its fields, even with a built-in kind's name, whose description does not apply.
#[test]
fn a_namesake_of_a_kind_of_ours() {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "nodes.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster", "names": {"plural": "nodes", "singular": "node", "kind": "Node"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
        "status": {"conditions": [{"type": "Established", "status": "True"}]},
    });
    let registry = Registry::default();
    registry.put(&Object(definition));
    let kinds = registry.now();
    let kind = |word: &str| kinds.lookup(word).expect("it is known");
    assert_eq!([own_page(kind("nodes.example.com")), own_page(kind("nodes"))], ["", "Node"]);
    let thing =
        json!({"apiVersion": "example.com/v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {"petals": 5}});
    let page = page(own_page(kind("nodes.example.com")), &Object(thing), &Related::default(), Timestamp::UNIX_EPOCH);
    assert!(page.to_string().contains("Petals:  5"), "{page}");
}
