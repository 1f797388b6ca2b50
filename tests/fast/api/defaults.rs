//! Defaults and the strategies: what a small manifest is stored as.

use expect_test::{Expect, expect};
use podwright::api::{kinds, pod_totals, strategy, yaml};
use serde_json::{Value, json};

use super::{created, decode};

fn stored(text: &str, expected: Expect) {
    let (_, object) = created(text);
    expected.assert_eq(&yaml::to_string(&object.0).expect("encodes"));
}

#[test]
fn pod() {
    stored(
        "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  serviceAccount: robot
  initContainers: [{name: i, image: x}]
  containers:
  - name: c
    image: localhost:5000/x:1
    ports: [{containerPort: 80}]
    env:
    - {name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    resources: {limits: {cpu: 1, memory: 64Mi}, requests: {memory: 32Mi}}
    livenessProbe: {httpGet: {port: 80}}
    readinessProbe: {grpc: {port: 80}, periodSeconds: 3}
    lifecycle: {preStop: {httpGet: {port: 80}}}
  volumes:
  - name: none
  - {name: map, configMap: {name: m}}
  - {name: host, hostPath: {path: /a}}
  - {name: all, projected: {sources: [{serviceAccountToken: {path: t}}, {downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.name}}]}}]}}
",
        expect![[r#"
            apiVersion: v1
            kind: Pod
            metadata:
              generation: 1
              name: a
              namespace: default
            spec:
              containers:
              - env:
                - name: A
                  valueFrom:
                    fieldRef:
                      apiVersion: v1
                      fieldPath: metadata.name
                - name: B
                  valueFrom:
                    resourceFieldRef:
                      divisor: "0"
                      resource: limits.cpu
                image: localhost:5000/x:1
                imagePullPolicy: IfNotPresent
                lifecycle:
                  preStop:
                    httpGet:
                      path: /
                      port: 80
                      scheme: HTTP
                livenessProbe:
                  failureThreshold: 3
                  httpGet:
                    path: /
                    port: 80
                    scheme: HTTP
                  periodSeconds: 10
                  successThreshold: 1
                  timeoutSeconds: 1
                name: c
                ports:
                - containerPort: 80
                  protocol: TCP
                readinessProbe:
                  failureThreshold: 3
                  grpc:
                    port: 80
                    service: ""
                  periodSeconds: 3
                  successThreshold: 1
                  timeoutSeconds: 1
                resources:
                  limits:
                    cpu: "1"
                    memory: 64Mi
                  requests:
                    cpu: "1"
                    memory: 32Mi
                terminationMessagePath: /dev/termination-log
                terminationMessagePolicy: File
              dnsPolicy: ClusterFirst
              enableServiceLinks: true
              initContainers:
              - image: x
                imagePullPolicy: Always
                name: i
                resources: {}
                terminationMessagePath: /dev/termination-log
                terminationMessagePolicy: File
              restartPolicy: Always
              schedulerName: default-scheduler
              securityContext: {}
              serviceAccount: robot
              serviceAccountName: robot
              terminationGracePeriodSeconds: 30
              volumes:
              - emptyDir: {}
                name: none
              - configMap:
                  defaultMode: 420
                  name: m
                name: map
              - hostPath:
                  path: /a
                  type: ""
                name: host
              - name: all
                projected:
                  defaultMode: 420
                  sources:
                  - serviceAccountToken:
                      expirationSeconds: 3600
                      path: t
                  - downwardAPI:
                      items:
                      - fieldRef:
                          apiVersion: v1
                          fieldPath: metadata.name
                        path: p
            status:
              phase: Pending
              qosClass: Burstable
        "#]],
    );
}

#[test]
fn deployment() {
    stored(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
spec:
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {hostNetwork: true, containers: [{name: c, image: 'x@sha256:00', ports: [{containerPort: 1}], resources: {limits: {cpu: 1}}}]}}
",
        expect![[r#"
            apiVersion: apps/v1
            kind: Deployment
            metadata:
              generation: 1
              name: a
              namespace: default
            spec:
              progressDeadlineSeconds: 600
              replicas: 1
              revisionHistoryLimit: 10
              selector:
                matchLabels:
                  a: b
              strategy:
                rollingUpdate:
                  maxSurge: 25%
                  maxUnavailable: 25%
                type: RollingUpdate
              template:
                metadata:
                  labels:
                    a: b
                spec:
                  containers:
                  - image: x@sha256:00
                    imagePullPolicy: IfNotPresent
                    name: c
                    ports:
                    - containerPort: 1
                      protocol: TCP
                    resources:
                      limits:
                        cpu: "1"
                    terminationMessagePath: /dev/termination-log
                    terminationMessagePolicy: File
                  dnsPolicy: ClusterFirst
                  hostNetwork: true
                  restartPolicy: Always
                  schedulerName: default-scheduler
                  securityContext: {}
                  terminationGracePeriodSeconds: 30
            status: {}
        "#]],
    );
}

#[test]
fn service() {
    stored(
        "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: NodePort, sessionAffinity: ClientIP, ports: [{port: 80}]}}",
        expect![[r#"
            apiVersion: v1
            kind: Service
            metadata:
              name: a
              namespace: default
            spec:
              externalTrafficPolicy: Cluster
              internalTrafficPolicy: Cluster
              ports:
              - port: 80
                protocol: TCP
                targetPort: 80
              sessionAffinity: ClientIP
              sessionAffinityConfig:
                clientIP:
                  timeoutSeconds: 10800
              type: NodePort
            status:
              loadBalancer: {}
        "#]],
    );
}

#[test]
fn smaller_kinds() {
    stored(
        "{apiVersion: v1, kind: Namespace, metadata: {name: a}}",
        expect![[r#"
        apiVersion: v1
        kind: Namespace
        metadata:
          labels:
            kubernetes.io/metadata.name: a
          name: a
        spec:
          finalizers:
          - kubernetes
        status:
          phase: Active
    "#]],
    );
    stored(
        "{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {x: eA==, y: eQ==}, stringData: {y: z}}",
        expect![[r#"
            apiVersion: v1
            data:
              x: eA==
              "y": eg==
            kind: Secret
            metadata:
              name: a
              namespace: default
            type: Opaque
        "#]],
    );
    stored(
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}, addressType: IPv4, ports: [{port: 1}]}",
        expect![[r#"
            addressType: IPv4
            apiVersion: discovery.k8s.io/v1
            endpoints: []
            kind: EndpointSlice
            metadata:
              generation: 1
              name: a
              namespace: default
            ports:
            - name: ""
              port: 1
              protocol: TCP
        "#]],
    );
    stored(
        "{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}}}",
        expect![[r#"
            apiVersion: apps/v1
            kind: ReplicaSet
            metadata:
              generation: 1
              name: a
              namespace: default
            spec:
              replicas: 1
              selector:
                matchLabels:
                  a: b
              template:
                spec:
                  dnsPolicy: ClusterFirst
                  restartPolicy: Always
                  schedulerName: default-scheduler
                  securityContext: {}
                  terminationGracePeriodSeconds: 30
            status:
              replicas: 0
        "#]],
    );
}

#[test]
fn defaulting_twice_changes_nothing() {
    for text in [
        "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostNetwork: true, containers: [{name: c, image: x, ports: [{containerPort: 1}]}], volumes: [{name: v}]}}",
        "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: LoadBalancer, ports: [{port: 1}]}}",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {strategy: {type: Recreate}}}",
    ] {
        let (kind, object) = created(text);
        let mut again = object.clone();
        (kind.strategy.default)(&mut again);
        assert_eq!(again, object);
    }
}

#[test]
fn host_network_takes_the_host_port() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostNetwork: true, containers: [{name: c, image: x, ports: [{containerPort: 7}]}]}}";
    let (_, pod) = created(text);
    assert_eq!(pod.0["spec"]["containers"][0]["ports"][0]["hostPort"], 7);
}

#[test]
fn quality_of_service() {
    for (resources, class) in [
        ("{}", "BestEffort"),
        ("{requests: {cpu: 1}}", "Burstable"),
        ("{limits: {cpu: 1, memory: 1Gi}}", "Guaranteed"),
        ("{limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1000m, memory: 1024Mi}}", "Guaranteed"),
        ("{limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1}}", "Guaranteed"),
        ("{limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}", "Burstable"),
        ("{limits: {cpu: 1}}", "Burstable"),
        ("{requests: {cpu: 0}}", "BestEffort"),
        ("{requests: {ephemeral-storage: 1Gi}}", "BestEffort"),
    ] {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{containers: [{{name: c, image: x, resources: {resources}}}]}}}}"
        );
        let (_, pod) = created(&text);
        assert_eq!(pod.0["status"]["qosClass"], class, "{resources}");
    }
}

/// Pod-level resources: with limits, a missing request defaults to the sum of the containers' requests, else to the limit.
#[test]
fn a_pod_as_a_whole() {
    for (whole, container, requests, limits, class) in [
        ("{limits: {cpu: 2, memory: 4Gi}}", "{}", "{cpu: 2, memory: 4Gi}", "{cpu: 2, memory: 4Gi}", "Guaranteed"),
        (
            "{limits: {memory: 4Gi}}",
            "{requests: {cpu: 500m, memory: 1Gi}}",
            "{cpu: 1, memory: 2Gi}",
            "{memory: 4Gi}",
            "Burstable",
        ),
        ("{limits: {memory: 4Gi}}", "{limits: {memory: 1Gi}}", "{memory: 2Gi}", "{memory: 4Gi}", "Burstable"),
        (
            "{limits: {memory: 4Gi}, requests: {memory: 3Gi}}",
            "{limits: {memory: 1Gi}}",
            "{memory: 3Gi}",
            "{memory: 4Gi}",
            "Burstable",
        ),
        (
            "{limits: {memory: 4Gi}}",
            "{requests: {ephemeral-storage: 1Gi}}",
            "{memory: 4Gi}",
            "{memory: 4Gi}",
            "Burstable",
        ),
        ("{requests: {memory: 4Gi}}", "{limits: {memory: 1Gi}}", "{memory: 4Gi}", "{}", "Burstable"),
        (
            "{requests: {cpu: 1}}",
            "{limits: {cpu: 100m, hugepages-2Mi: 4Mi}}",
            "{cpu: 1, hugepages-2Mi: 8Mi}",
            "{hugepages-2Mi: 8Mi}",
            "Burstable",
        ),
        ("{}", "{limits: {cpu: 1, memory: 1Gi}}", "{}", "{}", "Guaranteed"),
    ] {
        let containers: String =
            ["a", "b"].map(|name| format!("{{name: {name}, image: x, resources: {container}}}")).join(", ");
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{resources: {whole}, containers: [{containers}]}}}}"
        );
        let (kind, mut pod) = created(&text);
        let value = |text: &str| yaml::documents(text).unwrap().remove(0);
        let (of, what) = (pod.0["spec"]["resources"].clone(), format!("{whole} {container}"));
        for (field, expected) in [("requests", requests), ("limits", limits)] {
            let amounts = pod_totals::quantities;
            assert_eq!(amounts(&of[field]), amounts(&value(expected)), "{field} of {what}");
        }
        assert_eq!(pod.0["status"]["qosClass"], class, "{what}");
        pod.set_meta("uid", json!("u"));
        strategy::validate_create(kind, &pod).unwrap_or_else(|why| panic!("{what}: {why}"));
        // A Pod stored without these stays valid, and its labels can change.
        let mut old = pod.clone();
        let mut asked = value(whole);
        for (field, amounts) in asked.as_object_mut().unwrap() {
            // In their original spelling.
            amounts.as_object_mut().unwrap().iter_mut().for_each(|(name, amount)| *amount = of[field][name].clone());
        }
        old.0["spec"]["resources"] = asked;
        pod.set_meta("labels", json!({"a": "b"}));
        strategy::validate_update(kind, &pod, &old).unwrap_or_else(|why| panic!("{what}: {why}"));
    }
}

#[test]
fn a_creator_sets_neither_status_nor_what_the_system_owns() {
    let (_, object) = created(
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, uid: x, resourceVersion: '5', generation: 7, \
         creationTimestamp: '2026-01-01T00:00:00Z', deletionTimestamp: '2026-01-01T00:00:00Z'}, status: {replicas: 4}}",
    );
    assert_eq!(object.0["metadata"], json!({"name": "a", "namespace": "default", "generation": 1}));
    assert_eq!(object.0["status"], json!({}));
    let (_, node) = created("{apiVersion: v1, kind: Node, metadata: {name: a}, status: {phase: x}}");
    assert_eq!(node.0["status"]["phase"], "x", "a Node brings its status along");
}

#[test]
fn updates_keep_status_and_status_updates_keep_the_rest() {
    let text = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, labels: {a: b}}, spec: {replicas: 1}}";
    let (kind, mut old) = created(text);
    old.set_meta("uid", Value::from("u"));
    old.0["status"] = json!({"replicas": 1});

    let (_, mut new) = decode(&text.replace("replicas: 1", "replicas: 2"));
    new.0["status"] = json!({"replicas": 9});
    strategy::prepare_update(kind, &mut new, &old);
    assert_eq!(new.0["status"], json!({"replicas": 1}));
    assert_eq!((new.generation(), new.uid()), (2, "u"));

    let mut relabelled = old.clone();
    relabelled.0["metadata"]["labels"]["c"] = "d".into();
    strategy::prepare_update(kind, &mut relabelled, &old);
    assert_eq!(relabelled.generation(), 1, "metadata does not count");

    let mut status = old.clone();
    status.0["status"] = json!({"replicas": 3});
    status.0["spec"]["replicas"] = 7.into();
    strategy::prepare_status_update(kind, &mut status, &old);
    assert_eq!((&status.0["status"]["replicas"], &status.0["spec"]["replicas"]), (&json!(3), &json!(1)));
    assert!(!strategy::is_unchanged(&status, &old) && strategy::is_unchanged(&old, &old));
}

/// Upstream's `PrepareForUpdate` of each kind's status (1.35): what it takes from the request. Most reset the spec alone; that of
/// CustomResourceDefinitions intends to keep all metadata, but compares the new object with itself.
#[test]
fn a_status_changes_what_metadata_upstream_lets_it() {
    let written = |kind: &kinds::Kind| -> Vec<&str> {
        let of = |owner: &str| {
            let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": owner}]);
            let metadata = json!({"name": "a", "labels": {"owner": owner}, "annotations": {"owner": owner},
                "finalizers": [format!("example.com/{owner}")], "ownerReferences": owners, "generateName": owner,
                "resourceVersion": owner});
            podwright::api::Object(json!({"metadata": metadata, "spec": {"a": owner}, "status": {"a": owner}}))
        };
        let (mut new, old) = (of("new"), of("old"));
        strategy::prepare_status_update(kind, &mut new, &old);
        assert_eq!((&new.0["spec"], &new.0["status"]["a"]), (&old.0["spec"], &json!("new")), "{}", kind.kind);
        let all = new.0["metadata"].as_object().unwrap().keys();
        let changed = all.filter(|field| new.0["metadata"][*field] != old.0["metadata"][*field]);
        let mut changed: Vec<&str> =
            changed.map(|field| FIELDS.iter().find(|it| *it == field).unwrap()).copied().collect();
        changed.sort_by_key(|field| FIELDS.iter().position(|it| it == field));
        changed
    };
    const FIELDS: &[&str] = &["resourceVersion", "labels", "annotations", "finalizers", "ownerReferences"];
    const NONE: &[&str] = &["resourceVersion"];
    let table: &[(&str, &[&str])] = &[
        ("APIService", NONE),
        ("CertificateSigningRequest", FIELDS),
        ("CronJob", FIELDS),
        ("CustomResourceDefinition", FIELDS),
        ("DaemonSet", FIELDS),
        ("Deployment", &["resourceVersion", "annotations", "finalizers", "ownerReferences"]),
        ("FlowSchema", NONE),
        ("HorizontalPodAutoscaler", FIELDS),
        ("Ingress", FIELDS),
        ("Job", FIELDS),
        ("Namespace", FIELDS),
        ("Node", FIELDS),
        ("PersistentVolume", FIELDS),
        ("PersistentVolumeClaim", FIELDS),
        ("Pod", &["resourceVersion", "labels", "annotations", "finalizers"]),
        ("PodDisruptionBudget", FIELDS),
        ("PriorityLevelConfiguration", NONE),
        ("ReplicaSet", FIELDS),
        ("ReplicationController", FIELDS),
        ("ResourceClaim", NONE),
        ("ResourceQuota", FIELDS),
        ("Service", FIELDS),
        ("ServiceCIDR", FIELDS),
        ("StatefulSet", FIELDS),
        ("ValidatingAdmissionPolicy", NONE),
        ("VolumeAttachment", NONE),
    ];
    let mut seen = std::collections::BTreeSet::new();
    for kind in kinds::KINDS.iter().filter(|kind| kind.has_subresource("status")) {
        let row = table.iter().find(|(name, _)| *name == kind.kind);
        let (name, wanted) = row.unwrap_or_else(|| panic!("upstream's strategy of {} is not in the table", kind.kind));
        assert_eq!(written(kind), *wanted, "{name}");
        seen.insert(*name);
    }
    assert_eq!(seen.len(), table.len());
}

#[test]
fn a_service_keeps_what_was_allocated() {
    let text = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: NodePort, ports: [{port: 80}]}}";
    let (kind, mut old) = created(text);
    old.0["spec"]["clusterIP"] = "10.0.0.1".into();
    old.0["spec"]["clusterIPs"] = json!(["10.0.0.1"]);
    old.0["spec"]["ports"][0]["nodePort"] = 30001.into();

    let (_, mut new) = decode(text);
    strategy::prepare_update(kind, &mut new, &old);
    assert!(strategy::is_unchanged(&new, &old), "{new:?}");

    // A change of the type alone, as by `kubectl patch`, is valid.
    let mut plain = old.clone();
    plain.0["spec"]["type"] = "ClusterIP".into();
    strategy::prepare_update(kind, &mut plain, &old);
    strategy::validate_update(kind, &plain, &old).unwrap();
    assert_eq!(plain.0["spec"]["ports"][0].get("nodePort"), None);
    assert_eq!(plain.0["spec"]["clusterIP"], "10.0.0.1");

    let mut external = old.clone();
    external.0["spec"]["type"] = "ExternalName".into();
    external.0["spec"]["externalName"] = "a.b".into();
    strategy::prepare_update(kind, &mut external, &old);
    strategy::validate_update(kind, &external, &old).unwrap();
    assert_eq!(external.0["spec"].get("clusterIP"), None);
}

#[test]
fn grace_periods() {
    let pods = kinds::lookup("pods").unwrap();
    let of = |spec: &str, phase: &str| {
        let (_, mut pod) = created(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{{spec}, containers: [{{name: c, image: x}}]}}}}"
        ));
        pod.0["status"]["phase"] = phase.into();
        (pods.strategy.default_grace)(&pod)
    };
    assert_eq!(of("nodeName: n1", "Running"), Some(30));
    assert_eq!(of("nodeName: n1, terminationGracePeriodSeconds: 7", "Running"), Some(7));
    assert_eq!(of("nodeName: n1, terminationGracePeriodSeconds: -7", "Running"), Some(1));
    assert_eq!(of("nodeName: n1", "Succeeded"), Some(0));
    assert_eq!(of("hostname: x", "Pending"), Some(0), "nothing runs yet");
}

#[test]
fn default_tolerations() {
    let mut spec = json!({"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]});
    podwright::api::pod::add_default_tolerations(spec.as_object_mut().unwrap(), Default::default());
    let keys: Vec<&Value> = spec["tolerations"].as_array().unwrap().iter().map(|t| &t["key"]).collect();
    assert_eq!(keys, ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]);
    assert_eq!(spec["tolerations"][1]["tolerationSeconds"], 300);
}
