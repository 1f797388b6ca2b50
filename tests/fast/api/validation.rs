//! Every rule of validation has one invalid example here: a fragment, and the field, reason and words it earns.

use podwright::api::kinds::Storage;
use podwright::api::{Cause, FieldValidation, Kind, Object, Status, kinds, patch, strategy, yaml};
use serde_json::Value;

use super::manifests::MANIFESTS;

pub fn value(text: &str) -> Value {
    let mut all = yaml::documents(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    all.remove(0)
}

/// The base with a fragment merged in. `spec` stands for a Pod's spec, `container` for its first container.
pub fn merged(base: &str, fragment: &str) -> Value {
    let (base, path) = match base {
        "spec" => ("pod", "/spec"),
        "container" => ("pod", "/spec/containers/0"),
        "template" => ("deployment", "/spec/template/spec"),
        other => (other, ""),
    };
    let (_, text) = MANIFESTS.iter().find(|(name, _)| *name == base).unwrap_or_else(|| panic!("no base {base}"));
    let mut object = value(text);
    let target = object.pointer_mut(path).expect("the base has it");
    *target = patch::merge(target, &value(fragment));
    object
}

/// The stored version of a manifest.
pub fn decoded(manifest: Value) -> (&'static Kind, Object) {
    let kind = kinds::of(manifest["apiVersion"].as_str().unwrap(), manifest["kind"].as_str().unwrap()).unwrap();
    let shown = manifest.to_string();
    let (mut object, _) = kind.decode(manifest, FieldValidation::Strict).unwrap_or_else(|e| panic!("{shown}: {e}"));
    if let Storage::As(conversion) = kind.storage {
        (conversion.to_stored)(&mut object);
        (object.0["apiVersion"], object.0["kind"]) = (kind.stored().api_version().into(), kind.stored().kind.into());
    }
    (kind.stored(), object)
}

pub fn created(base: &str, fragment: &str) -> (&'static Kind, Object) {
    let (kind, mut object) = decoded(merged(base, fragment));
    strategy::prepare_create(kind, &mut object);
    object.set_meta("uid", Value::from("u"));
    (kind.strategy.identify)(&mut object);
    (kind, object)
}

/// What is missing of an expected cause.
pub fn unmet(outcome: Result<(), Status>, what: &str, field: &str, reason: &str, words: &str) -> Option<String> {
    let Err(status) = outcome else { return Some(format!("{what}\n  should earn {field}: {reason}, but is valid")) };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    let causes: Vec<Cause> = status.details.map(|d| d.causes).unwrap_or_default();
    let found = causes
        .iter()
        .any(|c| c.field == field && c.reason == format!("FieldValue{reason}") && c.message.contains(words));
    (!found).then(|| format!("{what}\n  should earn {field}: {reason}: {words}\n  but got {causes:#?}"))
}

/// Each case is a manifest that may not be created.
pub fn refused_at_creation(cases: &[Case]) {
    let mut wrong = Vec::new();
    for (base, fragment, field, reason, words) in cases {
        let (kind, object) = created(base, fragment);
        let outcome = strategy::validate_create(kind, &object);
        wrong.extend(unmet(outcome, &format!("{base} {fragment}"), field, reason, words));
    }
    report(wrong);
}

pub fn report(unmet: Vec<String>) {
    assert!(unmet.is_empty(), "{} rules do not hold:\n{}", unmet.len(), unmet.join("\n"));
}

#[test]
fn the_bases_are_valid() {
    for (name, _) in MANIFESTS {
        let (kind, object) = created(name, "{}");
        strategy::validate_create(kind, &object).unwrap_or_else(|e| panic!("{name}: {e}"));
        strategy::validate_update(kind, &object, &object).unwrap_or_else(|e| panic!("{name}: {e}"));
        strategy::validate_status_update(kind, &object, &object).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

pub type Case = (&'static str, &'static str, &'static str, &'static str, &'static str);

#[rustfmt::skip]
const CREATE: &[Case] = &[
    // metadata
    ("pod", "{metadata: {name: ~}}", "metadata.name", "Required", "name or generateName is required"),
    ("pod", "{metadata: {name: A_b}}", "metadata.name", "Invalid", "a lowercase RFC 1123 subdomain must consist of"),
    ("pod", "{metadata: {generateName: A_}}", "metadata.generateName", "Invalid", "a lowercase RFC 1123 subdomain"),
    ("pod", "{metadata: {namespace: ~}}", "metadata.namespace", "Required", "Required value"),
    ("pod", "{metadata: {namespace: A}}", "metadata.namespace", "Invalid", "a lowercase RFC 1123 label"),
    ("node", "{metadata: {namespace: d}}", "metadata.namespace", "Forbidden", "not allowed on this type"),
    ("namespace", "{metadata: {name: a.b}}", "metadata.name", "Invalid", "a lowercase RFC 1123 label must consist of"),
    ("service", "{metadata: {name: 1a}}", "metadata.name", "Invalid", "a DNS-1035 label must consist of"),
    ("pod", "{metadata: {labels: {'a b': c}}}", "metadata.labels", "Invalid", "name part must consist of"),
    ("pod", "{metadata: {labels: {'/b': c}}}", "metadata.labels", "Invalid", "prefix part must be non-empty"),
    ("pod", "{metadata: {labels: {'A/b': c}}}", "metadata.labels", "Invalid", "prefix part a lowercase RFC 1123 subdomain"),
    ("pod", "{metadata: {labels: {a: 'b c'}}}", "metadata.labels", "Invalid", "a valid label must be an empty string or consist of"),
    ("pod", "{metadata: {annotations: {'a b': c}}}", "metadata.annotations", "Invalid", "name part must consist of"),
    ("pod", "{metadata: {finalizers: ['a b']}}", "metadata.finalizers", "Invalid", "name part must consist of"),
    ("pod", "{metadata: {finalizers: [orphan, foregroundDeletion]}}", "metadata.finalizers", "Invalid", "cannot be both set"),
    ("pod", "{metadata: {ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: a}]}}", "metadata.ownerReferences[0].uid", "Invalid", "uid must not be empty"),
    ("pod", "{metadata: {ownerReferences: [{kind: ConfigMap, name: a, uid: u}]}}", "metadata.ownerReferences[0].apiVersion", "Invalid", "version must not be empty"),
    ("pod", "{metadata: {ownerReferences: [{apiVersion: v1, kind: Event, name: a, uid: u}]}}", "metadata.ownerReferences", "Invalid", "is disallowed from being an owner"),
    ("pod", "{metadata: {ownerReferences: [{apiVersion: v1, kind: A, name: a, uid: u, controller: true}, {apiVersion: v1, kind: A, name: b, uid: v, controller: true}]}}", "metadata.ownerReferences", "Invalid", "Only one reference can have Controller set to true"),
    // PodSpec
    ("spec", "{containers: []}", "spec.containers", "Required", "Required value"),
    ("spec", "{restartPolicy: Sometimes}", "spec.restartPolicy", "NotSupported", "Unsupported value: \"Sometimes\": supported values: \"Always\", \"Never\", \"OnFailure\""),
    ("spec", "{dnsPolicy: X}", "spec.dnsPolicy", "NotSupported", "supported values: \"ClusterFirst\", \"ClusterFirstWithHostNet\", \"Default\", \"None\""),
    ("spec", "{nodeSelector: {a: 'b c'}}", "spec.nodeSelector", "Invalid", "a valid label"),
    ("spec", "{resources: {requests: {cpu: 2}, limits: {cpu: 1}}}", "spec.resources.requests", "Invalid", "must be less than or equal to cpu limit of 1"),
    ("container", "{volumeMounts: [{name: v, mountPath: /a}], volumeDevices: [{name: v, devicePath: /b}]}", "spec.containers[0].volumeMounts[0].name", "Invalid", "must not already exist in volumeDevices"),
    ("spec", "{preemptionPolicy: X}", "spec.preemptionPolicy", "NotSupported", "\"Never\", \"PreemptLowerPriority\""),
    ("spec", "{overhead: {cpu: '-1'}}", "spec.overhead[cpu]", "Invalid", "must be greater than or equal to 0"),
    ("spec", "{os: {name: beos}}", "spec.os.name", "NotSupported", "\"linux\", \"windows\""),
    ("spec", "{serviceAccountName: A}", "spec.serviceAccountName", "Invalid", "RFC 1123 subdomain"),
    ("spec", "{nodeName: A}", "spec.nodeName", "Invalid", "RFC 1123 subdomain"),
    ("spec", "{hostname: a.b}", "spec.hostname", "Invalid", "RFC 1123 label"),
    ("spec", "{hostnameOverride: a_b}", "spec.hostnameOverride", "Invalid", "RFC 1123 subdomain"),
    ("spec", "{subdomain: a.b}", "spec.subdomain", "Invalid", "RFC 1123 label"),
    ("spec", "{priorityClassName: A}", "spec.priorityClassName", "Invalid", "RFC 1123 subdomain"),
    ("spec", "{runtimeClassName: A}", "spec.runtimeClassName", "Invalid", "RFC 1123 subdomain"),
    ("spec", "{schedulerName: 'a b'}", "spec.schedulerName", "Invalid", "name part"),
    ("spec", "{activeDeadlineSeconds: 0}", "spec.activeDeadlineSeconds", "Invalid", "must be between 1 and 2147483647, inclusive"),
    ("spec", "{resourceClaims: [{name: a}]}", "spec.resourceClaims[0]", "Invalid", "must specify one of"),
    ("spec", "{resourceClaims: [{name: a, resourceClaimName: b, resourceClaimTemplateName: c}]}", "spec.resourceClaims[0]", "Invalid", "at most one of"),
    ("spec", "{resourceClaims: [{name: a, resourceClaimName: b}, {name: a, resourceClaimName: b}]}", "spec.resourceClaims[1].name", "Duplicate", "\"a\""),
    ("spec", "{ephemeralContainers: [{name: e, image: i}]}", "spec.ephemeralContainers", "Forbidden", "cannot be set on create"),
    // containers
    ("container", "{name: ~}", "spec.containers[0].name", "Required", ""),
    ("container", "{name: A}", "spec.containers[0].name", "Invalid", "RFC 1123 label"),
    ("spec", "{containers: [{name: a, image: i}, {name: a, image: i}]}", "spec.containers[1].name", "Duplicate", "Duplicate value: \"a\""),
    ("spec", "{initContainers: [{name: c, image: i}]}", "spec.initContainers[0].name", "Duplicate", "Duplicate value: \"c\""),
    ("container", "{image: ~}", "spec.containers[0].image", "Required", ""),
    ("container", "{image: ' i'}", "spec.containers[0].image", "Invalid", "must not have leading or trailing whitespace"),
    ("container", "{restartPolicy: Always}", "spec.containers[0].restartPolicy", "Forbidden", "may not be set for non-init containers"),
    ("container", "{terminationMessagePolicy: X}", "spec.containers[0].terminationMessagePolicy", "NotSupported", "\"FallbackToLogsOnError\", \"File\""),
    ("container", "{imagePullPolicy: X}", "spec.containers[0].imagePullPolicy", "NotSupported", "\"Always\", \"IfNotPresent\", \"Never\""),
    ("container", "{ports: [{}]}", "spec.containers[0].ports[0].containerPort", "Required", ""),
    ("container", "{ports: [{containerPort: 70000}]}", "spec.containers[0].ports[0].containerPort", "Invalid", "must be between 1 and 65535, inclusive"),
    ("container", "{ports: [{containerPort: 1, hostPort: 70000}]}", "spec.containers[0].ports[0].hostPort", "Invalid", "must be between 1 and 65535"),
    ("container", "{ports: [{containerPort: 1, name: A}]}", "spec.containers[0].ports[0].name", "Invalid", "must contain only alpha-numeric characters"),
    ("container", "{ports: [{containerPort: 1, name: '12'}]}", "spec.containers[0].ports[0].name", "Invalid", "must contain at least one letter"),
    ("container", "{ports: [{containerPort: 1, name: a--b}]}", "spec.containers[0].ports[0].name", "Invalid", "must not contain consecutive hyphens"),
    ("container", "{ports: [{containerPort: 1, name: a-}]}", "spec.containers[0].ports[0].name", "Invalid", "must not begin or end with a hyphen"),
    ("container", "{ports: [{containerPort: 1, name: a234567890123456}]}", "spec.containers[0].ports[0].name", "Invalid", "must be no more than 15 characters"),
    ("container", "{ports: [{containerPort: 1, name: a}, {containerPort: 2, name: a}]}", "spec.containers[0].ports[1].name", "Duplicate", "\"a\""),
    ("container", "{ports: [{containerPort: 1, protocol: X}]}", "spec.containers[0].ports[0].protocol", "NotSupported", "\"SCTP\", \"TCP\", \"UDP\""),
    ("container", "{ports: [{containerPort: 1, hostIP: x}]}", "spec.containers[0].ports[0].hostIP", "Invalid", "must be a valid IP address"),
    ("container", "{ports: [{containerPort: 1, hostPort: 9}, {containerPort: 2, hostPort: 9}]}", "spec.containers[0].ports[1].hostPort", "Duplicate", "TCP//9"),
    ("spec", "{hostNetwork: true, containers: [{name: c, image: i, ports: [{containerPort: 1, hostPort: 2}]}]}", "spec.containers[0].ports[0].hostPort", "Invalid", "must match `containerPort` when `hostNetwork` is true"),
    ("spec", "{restartPolicy: Never, containers: [{name: c, image: i, resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]}]}", "spec.containers[0].resizePolicy", "Invalid", "Invalid value: \"RestartContainer\": must be 'NotRequired' when `restartPolicy` is 'Never'"),
    ("container", "{resizePolicy: [{resourceName: disk, restartPolicy: NotRequired}]}", "spec.containers[0].resizePolicy[0].resourceName", "NotSupported", "\"cpu\", \"memory\""),
    ("spec", "{initContainers: [{name: i, image: i, restartPolicy: Never}]}", "spec.initContainers[0].restartPolicy", "NotSupported", "\"Always\""),
    ("spec", "{initContainers: [{name: i, image: i, livenessProbe: {exec: {command: [a]}}}]}", "spec.initContainers[0].livenessProbe", "Forbidden", "may not be set for init containers without restartPolicy=Always"),
    ("spec", "{initContainers: [{name: i, image: i, lifecycle: {preStop: {exec: {command: [a]}}}}]}", "spec.initContainers[0].lifecycle", "Forbidden", "may not be set for init containers"),
    // env
    ("container", "{env: [{value: a}]}", "spec.containers[0].env[0].name", "Required", ""),
    ("container", "{env: [{name: 'a=b'}]}", "spec.containers[0].env[0].name", "Invalid", "a valid environment variable name must consist only of printable ASCII"),
    ("container", "{env: [{name: a, valueFrom: {}}]}", "spec.containers[0].env[0].valueFrom", "Invalid", "must specify one of"),
    ("container", "{env: [{name: a, value: b, valueFrom: {secretKeyRef: {name: a, key: b}}}]}", "spec.containers[0].env[0].valueFrom", "Invalid", "may not be specified when `value` is not empty"),
    ("container", "{env: [{name: a, valueFrom: {secretKeyRef: {name: a, key: b}, configMapKeyRef: {name: a, key: b}}}]}", "spec.containers[0].env[0].valueFrom", "Invalid", "may not have more than one field specified at a time"),
    ("container", "{env: [{name: a, valueFrom: {secretKeyRef: {name: a}}}]}", "spec.containers[0].env[0].valueFrom.secretKeyRef.key", "Required", ""),
    ("container", "{env: [{name: a, valueFrom: {configMapKeyRef: {key: a}}}]}", "spec.containers[0].env[0].valueFrom.configMapKeyRef.name", "Required", ""),
    ("container", "{env: [{name: a, valueFrom: {configMapKeyRef: {name: a, key: a/b}}}]}", "spec.containers[0].env[0].valueFrom.configMapKeyRef.key", "Invalid", "a valid config key must consist of"),
    ("container", "{env: [{name: a, valueFrom: {fieldRef: {fieldPath: status.phase}}}]}", "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath", "NotSupported", "\"metadata.name\""),
    ("container", "{env: [{name: a, valueFrom: {fieldRef: {fieldPath: spec.nonsense}}}]}", "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath", "Invalid", "error converting fieldPath: field label not supported: spec.nonsense"),
    ("container", "{env: [{name: a, valueFrom: {fieldRef: {}}}]}", "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath", "Required", ""),
    ("container", "{env: [{name: a, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['a b']\"}}}]}", "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath", "Invalid", "name part must consist of"),
    ("container", "{env: [{name: a, valueFrom: {fieldRef: {fieldPath: \"spec.x['a']\"}}}]}", "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath", "Invalid", "does not support subscript"),
    ("container", "{env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.disk}}}]}", "spec.containers[0].env[0].valueFrom.resourceFieldRef.resource", "NotSupported", "\"limits.cpu\""),
    ("container", "{env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1Mi}}}]}", "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor", "Invalid", "only divisor's values 1m and 1 are supported with the cpu resource"),
    ("container", "{env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1m}}}]}", "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor", "Invalid", "are supported with the memory resource"),
    ("container", "{env: [{name: a, valueFrom: {fileKeyRef: {volumeName: v, path: p}}}]}", "spec.containers[0].env[0].valueFrom.fileKeyRef.key", "Required", ""),
    ("container", "{envFrom: [{}]}", "spec.containers[0].envFrom", "Invalid", "must specify one of: `configMapRef` or `secretRef`"),
    ("container", "{envFrom: [{configMapRef: {name: a}, secretRef: {name: a}}]}", "spec.containers[0].envFrom", "Invalid", "may not have more than one field"),
    ("container", "{envFrom: [{configMapRef: {}}]}", "spec.containers[0].envFrom[0].configMapRef.name", "Required", ""),
    ("container", "{envFrom: [{prefix: 'a=', secretRef: {name: a}}]}", "spec.containers[0].envFrom[0].prefix", "Invalid", "environment variable name"),
    // mounts
    ("container", "{volumeMounts: [{name: v, mountPath: /a}]}", "spec.containers[0].volumeMounts[0].name", "NotFound", "Not found: \"v\""),
    ("container", "{volumeMounts: [{mountPath: /a}]}", "spec.containers[0].volumeMounts[0].name", "Required", ""),
    ("container", "{volumeMounts: [{name: v}]}", "spec.containers[0].volumeMounts[0].mountPath", "Required", ""),
    ("container", "{volumeMounts: [{name: v, mountPath: /a}, {name: v, mountPath: /a}]}", "spec.containers[0].volumeMounts[1].mountPath", "Invalid", "must be unique"),
    ("container", "{volumeMounts: [{name: v, mountPath: /a}], volumeDevices: [{name: v, devicePath: /a}]}", "spec.containers[0].volumeMounts[0].mountPath", "Invalid", "must not already exist as a path in volumeDevices"),
    ("container", "{volumeMounts: [{name: v, mountPath: /a, subPath: /b}]}", "spec.containers[0].volumeMounts[0].subPath", "Invalid", "must be a relative path"),
    ("container", "{volumeMounts: [{name: v, mountPath: /a, subPath: b/../c}]}", "spec.containers[0].volumeMounts[0].subPath", "Invalid", "must not contain '..'"),
    ("container", "{volumeMounts: [{name: v, mountPath: /a, subPath: b, subPathExpr: c}]}", "spec.containers[0].volumeMounts[0].subPathExpr", "Invalid", "mutually exclusive"),
    ("container", "{volumeMounts: [{name: v, mountPath: /a, mountPropagation: X}]}", "spec.containers[0].volumeMounts[0].mountPropagation", "NotSupported", "\"Bidirectional\", \"HostToContainer\", \"None\""),
    ("container", "{volumeMounts: [{name: v, mountPath: /a, mountPropagation: Bidirectional}]}", "spec.containers[0].volumeMounts[0].mountPropagation", "Forbidden", "available only to privileged containers"),
    ("container", "{volumeMounts: [{name: v, mountPath: /a, recursiveReadOnly: Enabled}]}", "spec.containers[0].volumeMounts[0].recursiveReadOnly", "Forbidden", "may only be specified when readOnly is true"),
    ("spec", "{volumes: [{name: v}], containers: [{name: c, image: i, volumeDevices: [{name: v, devicePath: /a}]}]}", "spec.containers[0].volumeDevices[0].name", "Invalid", "can only use volume source type of PersistentVolumeClaim or Ephemeral"),
    ("container", "{volumeDevices: [{name: v}]}", "spec.containers[0].volumeDevices[0].devicePath", "Required", ""),
    // resources
    ("container", "{resources: {limits: {disk: 1}}}", "spec.containers[0].resources.limits[disk]", "Invalid", "must be a standard resource type or fully qualified"),
    ("container", "{resources: {limits: {pods: 1}}}", "spec.containers[0].resources.limits[pods]", "Invalid", "must be a standard resource for containers"),
    ("container", "{resources: {requests: {cpu: -1}}}", "spec.containers[0].resources.requests[cpu]", "Invalid", "must be greater than or equal to 0"),
    ("container", "{resources: {requests: {cpu: 2}, limits: {cpu: 1}}}", "spec.containers[0].resources.requests", "Invalid", "Invalid value: \"2\": must be less than or equal to cpu limit of 1"),
    ("container", "{resources: {limits: {'a.com/x': 500m}}}", "spec.containers[0].resources.limits[a.com/x]", "Invalid", "must be an integer"),
    ("container", "{resources: {requests: {'a.com/x': 1}, limits: {'a.com/x': 2}}}", "spec.containers[0].resources.requests", "Invalid", "must be equal to a.com/x limit of 2"),
    ("container", "{resources: {requests: {'a.com/x': 1}}}", "spec.containers[0].resources.limits", "Required", "Limit must be set for non overcommitable resources"),
    ("container", "{resources: {limits: {hugepages-2Mi: 2Mi}}}", "spec.containers[0].resources", "Forbidden", "HugePages require cpu or memory"),
    // probes and hooks
    ("container", "{livenessProbe: {}}", "spec.containers[0].livenessProbe", "Required", "must specify a handler type"),
    ("container", "{livenessProbe: {exec: {command: [a]}, tcpSocket: {port: 1}}}", "spec.containers[0].livenessProbe.tcpSocket", "Forbidden", "may not specify more than 1 handler type"),
    ("container", "{livenessProbe: {exec: {}}}", "spec.containers[0].livenessProbe.exec.command", "Required", ""),
    ("container", "{livenessProbe: {tcpSocket: {port: 0}}}", "spec.containers[0].livenessProbe.tcpSocket.port", "Invalid", "must be between 1 and 65535"),
    ("container", "{livenessProbe: {httpGet: {port: A}}}", "spec.containers[0].livenessProbe.httpGet.port", "Invalid", "alpha-numeric"),
    ("container", "{livenessProbe: {httpGet: {port: 1, scheme: FTP}}}", "spec.containers[0].livenessProbe.httpGet.scheme", "NotSupported", "\"HTTP\", \"HTTPS\""),
    ("container", "{livenessProbe: {httpGet: {port: 1, httpHeaders: [{name: 'a b', value: c}]}}}", "spec.containers[0].livenessProbe.httpGet.httpHeaders", "Invalid", "a valid HTTP header"),
    ("container", "{livenessProbe: {grpc: {port: 70000}}}", "spec.containers[0].livenessProbe.grpc.port", "Invalid", "must be between 1 and 65535"),
    ("container", "{livenessProbe: {tcpSocket: {port: 1}, periodSeconds: -1}}", "spec.containers[0].livenessProbe.periodSeconds", "Invalid", "must be greater than or equal to 0"),
    ("container", "{livenessProbe: {tcpSocket: {port: 1}, successThreshold: 2}}", "spec.containers[0].livenessProbe.successThreshold", "Invalid", "must be 1"),
    ("container", "{startupProbe: {tcpSocket: {port: 1}, successThreshold: 2}}", "spec.containers[0].startupProbe.successThreshold", "Invalid", "must be 1"),
    ("container", "{readinessProbe: {tcpSocket: {port: 1}, terminationGracePeriodSeconds: 1}}", "spec.containers[0].readinessProbe.terminationGracePeriodSeconds", "Invalid", "must not be set for readinessProbes"),
    ("container", "{livenessProbe: {tcpSocket: {port: 1}, terminationGracePeriodSeconds: 0}}", "spec.containers[0].livenessProbe.terminationGracePeriodSeconds", "Invalid", "must be greater than 0"),
    ("container", "{lifecycle: {postStart: {}}}", "spec.containers[0].lifecycle.postStart", "Required", "must specify a handler type"),
    ("container", "{lifecycle: {preStop: {sleep: {seconds: 99}}}}", "spec.containers[0].lifecycle.preStop.sleep.seconds", "Invalid", "less than terminationGracePeriodSeconds (30)"),
    ("container", "{lifecycle: {stopSignal: HUP}}", "spec.containers[0].lifecycle.stopSignal", "Invalid", "must be the name of a signal"),
    // security
    ("spec", "{securityContext: {runAsUser: -1}}", "spec.securityContext.runAsUser", "Invalid", "must be between 0 and 2147483647, inclusive"),
    ("spec", "{securityContext: {fsGroup: -1}}", "spec.securityContext.fsGroup", "Invalid", "must be between 0"),
    ("spec", "{securityContext: {supplementalGroups: [-1]}}", "spec.securityContext.supplementalGroups[0]", "Invalid", "must be between 0"),
    ("spec", "{shareProcessNamespace: true, hostPID: true}", "spec.securityContext.shareProcessNamespace", "Invalid", "ShareProcessNamespace and HostPID cannot both be enabled"),
    ("spec", "{securityContext: {sysctls: [{name: 'A b', value: c}]}}", "spec.securityContext.sysctls[0].name", "Invalid", "must have at most 253 characters and match regex"),
    ("spec", "{securityContext: {sysctls: [{value: c}]}}", "spec.securityContext.sysctls[0].name", "Required", ""),
    ("spec", "{securityContext: {sysctls: [{name: a.b, value: c}, {name: a.b, value: c}]}}", "spec.securityContext.sysctls[1].name", "Duplicate", "\"a.b\""),
    ("spec", "{hostNetwork: true, securityContext: {sysctls: [{name: net.a, value: c}]}}", "spec.securityContext.sysctls[0].name", "Invalid", "may not be specified when 'hostNetwork' is true"),
    ("spec", "{hostIPC: true, securityContext: {sysctls: [{name: kernel.shmmax, value: c}]}}", "spec.securityContext.sysctls[0].name", "Invalid", "may not be specified when 'hostIPC' is true"),
    ("spec", "{securityContext: {fsGroupChangePolicy: X}}", "spec.securityContext.fsGroupChangePolicy", "NotSupported", "\"Always\", \"OnRootMismatch\""),
    ("spec", "{securityContext: {supplementalGroupsPolicy: X}}", "spec.securityContext.supplementalGroupsPolicy", "NotSupported", "\"Merge\", \"Strict\""),
    ("spec", "{securityContext: {seLinuxChangePolicy: X}}", "spec.securityContext.seLinuxChangePolicy", "NotSupported", "\"MountOption\", \"Recursive\""),
    ("spec", "{securityContext: {seccompProfile: {type: X}}}", "spec.securityContext.seccompProfile.type", "NotSupported", "\"Localhost\", \"RuntimeDefault\", \"Unconfined\""),
    ("spec", "{securityContext: {seccompProfile: {type: Localhost}}}", "spec.securityContext.seccompProfile.localhostProfile", "Required", "must be set when seccomp type is Localhost"),
    ("spec", "{securityContext: {seccompProfile: {type: Unconfined, localhostProfile: a}}}", "spec.securityContext.seccompProfile.localhostProfile", "Invalid", "can only be set when seccomp type is Localhost"),
    ("spec", "{securityContext: {seccompProfile: {type: Localhost, localhostProfile: /a}}}", "spec.securityContext.seccompProfile.localhostProfile", "Invalid", "must be a relative path"),
    ("container", "{securityContext: {appArmorProfile: {type: Localhost}}}", "spec.containers[0].securityContext.appArmorProfile.localhostProfile", "Required", "must be set when AppArmor type is Localhost"),
    ("spec", "{hostUsers: false, hostNetwork: true}", "spec.hostNetwork", "Forbidden", "when `hostUsers` is false"),
    ("container", "{securityContext: {runAsGroup: -1}}", "spec.containers[0].securityContext.runAsGroup", "Invalid", "must be between 0"),
    ("container", "{securityContext: {procMount: X}}", "spec.containers[0].securityContext.procMount", "NotSupported", "\"Default\", \"Unmasked\""),
    ("container", "{securityContext: {procMount: Unmasked}}", "spec.containers[0].securityContext.procMount", "Invalid", "`hostUsers` must be false to use `Unmasked`"),
    ("container", "{securityContext: {allowPrivilegeEscalation: false, privileged: true}}", "spec.containers[0].securityContext", "Invalid", "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"),
    ("container", "{securityContext: {allowPrivilegeEscalation: false, capabilities: {add: [CAP_SYS_ADMIN]}}}", "spec.containers[0].securityContext", "Invalid", "CAP_SYS_ADMIN"),
    // network
    ("spec", "{dnsPolicy: None}", "spec.dnsConfig", "Required", "must provide `dnsConfig` when `dnsPolicy` is None"),
    ("spec", "{dnsPolicy: None, dnsConfig: {searches: [a]}}", "spec.dnsConfig.nameservers", "Required", "must provide at least one DNS nameserver"),
    ("spec", "{dnsConfig: {nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]}}", "spec.dnsConfig.nameservers", "Invalid", "must not have more than 3 nameservers"),
    ("spec", "{dnsConfig: {nameservers: [x]}}", "spec.dnsConfig.nameservers[0]", "Invalid", "must be a valid IP address"),
    ("spec", "{dnsConfig: {searches: ['a b']}}", "spec.dnsConfig.searches[0]", "Invalid", "RFC 1123 subdomain"),
    ("spec", "{dnsConfig: {options: [{value: a}]}}", "spec.dnsConfig.options[0]", "Required", "must not be empty"),
    ("spec", "{hostAliases: [{ip: x}]}", "spec.hostAliases[0].ip", "Invalid", "must be a valid IP address"),
    ("spec", "{hostAliases: [{ip: 1.1.1.1, hostnames: ['a b']}]}", "spec.hostAliases[0].hostnames[0]", "Invalid", "RFC 1123 subdomain"),
    // scheduling
    ("spec", "{tolerations: [{operator: Equal}]}", "spec.tolerations[0].operator", "Invalid", "operator must be Exists when `key` is empty"),
    ("spec", "{tolerations: [{key: a, operator: X}]}", "spec.tolerations[0].operator", "NotSupported", "\"Equal\", \"Exists\""),
    ("spec", "{tolerations: [{key: a, operator: Exists, value: b}]}", "spec.tolerations[0].operator", "Invalid", "value must be empty when `operator` is 'Exists'"),
    ("spec", "{tolerations: [{key: a, value: 'b c'}]}", "spec.tolerations[0].operator", "Invalid", "a valid label"),
    ("spec", "{tolerations: [{key: a, effect: X}]}", "spec.tolerations[0].effect", "NotSupported", "\"NoExecute\", \"NoSchedule\", \"PreferNoSchedule\""),
    ("spec", "{tolerations: [{key: a, effect: NoSchedule, tolerationSeconds: 1}]}", "spec.tolerations[0].effect", "Invalid", "effect must be 'NoExecute' when `tolerationSeconds` is set"),
    ("spec", "{tolerations: [{key: 'a b', operator: Exists}]}", "spec.tolerations[0].key", "Invalid", "name part"),
    ("spec", "{readinessGates: [{conditionType: 'a b'}]}", "spec.readinessGates[0].conditionType", "Invalid", "name part"),
    ("spec", "{schedulingGates: [{name: a}, {name: a}]}", "spec.schedulingGates[1]", "Duplicate", "\"a\""),
    ("spec", "{schedulingGates: [{name: a}], nodeName: n1}", "spec.nodeName", "Forbidden", "cannot be set until all schedulingGates have been cleared"),
    ("spec", "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}}", "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms", "Required", "must have at least one node selector term"),
    ("spec", "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In}]}]}}}}", "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values", "Required", "must be specified when `operator` is 'In' or 'NotIn'"),
    ("spec", "{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, preference: {matchExpressions: [{key: a, operator: Exists}]}}]}}}", "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight", "Invalid", "must be in the range 1-100"),
    ("spec", "{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]}}}", "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values", "Forbidden", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
    ("spec", "{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: Gt, values: ['1', '2']}]}}]}}}", "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values", "Required", "must be specified single value when `operator` is 'Lt' or 'Gt'"),
    ("spec", "{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: X}]}}]}}}", "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].operator", "Invalid", "not a valid selector operator"),
    ("spec", "{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchFields: [{key: a, operator: In, values: [b]}]}}]}}}", "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchFields[0].key", "Invalid", "not a valid field selector key"),
    ("spec", "{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchFields: [{key: metadata.name, operator: In}]}}]}}}", "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchFields[0].values", "Required", "must be only one value"),
    ("spec", "{affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{labelSelector: {}}]}}}", "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey", "Required", "can not be empty"),
    ("spec", "{affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a, namespaces: [A]}]}}}", "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaces[0]", "Invalid", "RFC 1123 label"),
    ("spec", "{affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: a, labelSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}}]}}}", "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector.matchExpressions[0].values", "Forbidden", "may not be specified"),
    ("spec", "{topologySpreadConstraints: [{maxSkew: 0, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}", "spec.topologySpreadConstraints[0].maxSkew", "Invalid", "must be greater than zero"),
    ("spec", "{topologySpreadConstraints: [{maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]}", "spec.topologySpreadConstraints[0].topologyKey", "Required", "can not be empty"),
    ("spec", "{topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: X}]}", "spec.topologySpreadConstraints[0].whenUnsatisfiable", "NotSupported", "\"DoNotSchedule\", \"ScheduleAnyway\""),
    ("spec", "{topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}", "spec.topologySpreadConstraints[1].{topologyKey, whenUnsatisfiable}", "Duplicate", "{a, DoNotSchedule}"),
    ("spec", "{topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway, minDomains: 1}]}", "spec.topologySpreadConstraints[0].minDomains", "Invalid", "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway"),
    ("spec", "{topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: X}]}", "spec.topologySpreadConstraints[0].nodeTaintsPolicy", "NotSupported", "\"Honor\", \"Ignore\""),
    // volumes
    ("spec", "{volumes: [{emptyDir: {}}]}", "spec.volumes[0].name", "Required", ""),
    ("spec", "{volumes: [{name: A, emptyDir: {}}]}", "spec.volumes[0].name", "Invalid", "RFC 1123 label"),
    ("spec", "{volumes: [{name: v}, {name: v}]}", "spec.volumes[1].name", "Duplicate", "\"v\""),
    ("spec", "{volumes: [{name: v, emptyDir: {}, hostPath: {path: /a}}]}", "spec.volumes[0].hostPath", "Forbidden", "may not specify more than 1 volume type"),
    ("spec", "{volumes: [{name: v, emptyDir: {sizeLimit: -1}}]}", "spec.volumes[0].emptyDir.sizeLimit", "Forbidden", "SizeLimit field must be a valid resource quantity"),
    ("spec", "{volumes: [{name: v, hostPath: {}}]}", "spec.volumes[0].hostPath.path", "Required", ""),
    ("spec", "{volumes: [{name: v, hostPath: {path: /a/../b}}]}", "spec.volumes[0].hostPath.path", "Invalid", "must not contain '..'"),
    ("spec", "{volumes: [{name: v, hostPath: {path: /a, type: X}}]}", "spec.volumes[0].hostPath.type", "NotSupported", "\"DirectoryOrCreate\""),
    ("spec", "{volumes: [{name: v, secret: {}}]}", "spec.volumes[0].secret.secretName", "Required", ""),
    ("spec", "{volumes: [{name: v, configMap: {}}]}", "spec.volumes[0].configMap.name", "Required", ""),
    ("spec", "{volumes: [{name: v, configMap: {name: m, defaultMode: 01000}}]}", "spec.volumes[0].configMap.defaultMode", "Invalid", "must be a number between 0 and 0777 (octal), both inclusive"),
    ("spec", "{volumes: [{name: v, configMap: {name: m, items: [{path: a}]}}]}", "spec.volumes[0].configMap.items[0].key", "Required", ""),
    ("spec", "{volumes: [{name: v, configMap: {name: m, items: [{key: a}]}}]}", "spec.volumes[0].configMap.items[0].path", "Required", ""),
    ("spec", "{volumes: [{name: v, configMap: {name: m, items: [{key: a, path: ..a}]}}]}", "spec.volumes[0].configMap.items[0].path", "Invalid", "must not start with '..'"),
    ("spec", "{volumes: [{name: v, secret: {secretName: m, items: [{key: a, path: b, mode: 512}]}}]}", "spec.volumes[0].secret.items[0].mode", "Invalid", "both inclusive"),
    ("spec", "{volumes: [{name: v, persistentVolumeClaim: {}}]}", "spec.volumes[0].persistentVolumeClaim.claimName", "Required", ""),
    ("spec", "{volumes: [{name: v, nfs: {server: a, path: b}}]}", "spec.volumes[0].nfs.path", "Invalid", "must be an absolute path"),
    ("spec", "{volumes: [{name: v, image: {reference: a, pullPolicy: X}}]}", "spec.volumes[0].image.pullPolicy", "NotSupported", "\"Always\", \"IfNotPresent\", \"Never\""),
    ("spec", "{volumes: [{name: v, csi: {}}]}", "spec.volumes[0].csi.driver", "Required", ""),
    ("spec", "{volumes: [{name: v, gitRepo: {repository: a, directory: /b}}]}", "spec.volumes[0].gitRepo.directory", "Invalid", "must be a relative path"),
    ("spec", "{volumes: [{name: v, downwardAPI: {items: [{path: a}]}}]}", "spec.volumes[0].downwardAPI.items[0]", "Required", "one of fieldRef and resourceFieldRef is required"),
    ("spec", "{volumes: [{name: v, downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}, resourceFieldRef: {containerName: c, resource: limits.cpu}}]}}]}", "spec.volumes[0].downwardAPI.items[0]", "Invalid", "can not be specified simultaneously"),
    ("spec", "{volumes: [{name: v, downwardAPI: {items: [{path: a, fieldRef: {fieldPath: status.podIP}}]}}]}", "spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath", "NotSupported", "\"metadata.labels\""),
    ("spec", "{volumes: [{name: v, downwardAPI: {items: [{path: a, resourceFieldRef: {resource: limits.cpu}}]}}]}", "spec.volumes[0].downwardAPI.items[0].resourceFieldRef.containerName", "Required", ""),
    ("spec", "{volumes: [{name: v, projected: {sources: [{}]}}]}", "spec.volumes[0].projected.sources[0]", "Required", "must specify one of"),
    ("spec", "{volumes: [{name: v, projected: {sources: [{secret: {name: a}, configMap: {name: b}}]}}]}", "spec.volumes[0].projected.sources[0].configMap", "Forbidden", "may not specify more than 1 volume type per source"),
    ("spec", "{volumes: [{name: v, projected: {sources: [{secret: {}}]}}]}", "spec.volumes[0].projected.sources[0].secret.name", "Required", ""),
    ("spec", "{volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: a, expirationSeconds: 5}}]}}]}", "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds", "Invalid", "may not specify a duration less than 10 minutes"),
    ("spec", "{volumes: [{name: v, projected: {sources: [{serviceAccountToken: {}}]}}]}", "spec.volumes[0].projected.sources[0].serviceAccountToken.path", "Required", ""),
    ("spec", "{volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: a}}, {secret: {name: s, items: [{key: a, path: a}]}}]}}]}", "spec.volumes[0].projected.sources[1].secret", "Invalid", "conflicting duplicate paths"),
    // templates
    ("template", "{restartPolicy: Never}", "spec.template.spec.restartPolicy", "NotSupported", "Unsupported value: \"Never\": supported values: \"Always\""),
    ("template", "{activeDeadlineSeconds: 5}", "spec.template.spec.activeDeadlineSeconds", "Forbidden", "activeDeadlineSeconds in Deployment is not Supported"),
    ("template", "{ephemeralContainers: [{name: e, image: i}]}", "spec.template.spec.ephemeralContainers", "Forbidden", "ephemeral containers not allowed in pod template"),
    ("deployment", "{spec: {template: {metadata: {labels: {a: 'b c'}}}}}", "spec.template.metadata.labels", "Invalid", "a valid label"),
    // workloads
    ("deployment", "{spec: {selector: ~}}", "spec.selector", "Required", ""),
    ("deployment", "{spec: {selector: {matchLabels: ~}}}", "spec.selector", "Invalid", "empty selector is invalid for deployment"),
    ("deployment", "{spec: {selector: {matchLabels: {a: c}}}}", "spec.template.metadata.labels", "Invalid", "`selector` does not match template `labels`"),
    ("deployment", "{spec: {replicas: -1}}", "spec.replicas", "Invalid", "must be greater than or equal to 0"),
    ("deployment", "{spec: {strategy: {type: X}}}", "spec.strategy.type", "NotSupported", "\"Recreate\", \"RollingUpdate\""),
    ("deployment", "{spec: {strategy: {type: Recreate, rollingUpdate: {}}}}", "spec.strategy.rollingUpdate", "Forbidden", "may not be specified when strategy `type` is 'Recreate'"),
    ("deployment", "{spec: {strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0}}}}", "spec.strategy.rollingUpdate.maxUnavailable", "Invalid", "may not be 0 when `maxSurge` is 0"),
    ("deployment", "{spec: {strategy: {rollingUpdate: {maxUnavailable: 101%}}}}", "spec.strategy.rollingUpdate.maxUnavailable", "Invalid", "must not be greater than 100%"),
    ("deployment", "{spec: {strategy: {rollingUpdate: {maxSurge: a}}}}", "spec.strategy.rollingUpdate.maxSurge", "Invalid", "a valid percent string must be a numeric string"),
    ("deployment", "{spec: {minReadySeconds: 700}}", "spec.progressDeadlineSeconds", "Invalid", "must be greater than minReadySeconds"),
    ("deployment", "{spec: {revisionHistoryLimit: -1}}", "spec.revisionHistoryLimit", "Invalid", "must be greater than or equal to 0"),
    ("replicaset", "{spec: {selector: {matchLabels: {a: c}}}}", "spec.template.metadata.labels", "Invalid", "`selector` does not match template `labels`"),
    ("replicaset", "{spec: {replicas: -1}}", "spec.replicas", "Invalid", "must be greater than or equal to 0"),
    // Service
    ("service", "{spec: {ports: []}}", "spec.ports", "Required", ""),
    ("service", "{spec: {type: X}}", "spec.type", "NotSupported", "\"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\""),
    ("service", "{spec: {type: NodePort, clusterIP: None}}", "spec.clusterIPs[0]", "Invalid", "may not be set to 'None' for NodePort services"),
    ("service", "{spec: {type: LoadBalancer, clusterIP: None}}", "spec.clusterIPs[0]", "Invalid", "may not be set to 'None' for LoadBalancer services"),
    ("service", "{spec: {type: ExternalName}}", "spec.externalName", "Required", ""),
    ("service", "{spec: {type: ExternalName, externalName: 'a b'}}", "spec.externalName", "Invalid", "RFC 1123 subdomain"),
    ("service", "{spec: {type: ExternalName, externalName: a.b, clusterIP: 10.0.0.1}}", "spec.clusterIPs", "Forbidden", "may not be set for ExternalName services"),
    ("service", "{spec: {ports: [{port: 1}, {port: 2}]}}", "spec.ports[0].name", "Required", ""),
    ("service", "{spec: {ports: [{name: a, port: 1}, {name: a, port: 2}]}}", "spec.ports[1].name", "Duplicate", "\"a\""),
    ("service", "{spec: {ports: [{name: A, port: 1}]}}", "spec.ports[0].name", "Invalid", "RFC 1123 label"),
    ("service", "{spec: {ports: [{port: 0}]}}", "spec.ports[0].port", "Invalid", "must be between 1 and 65535"),
    ("service", "{spec: {ports: [{port: 1, protocol: X}]}}", "spec.ports[0].protocol", "NotSupported", "\"SCTP\", \"TCP\", \"UDP\""),
    ("service", "{spec: {ports: [{port: 1, targetPort: 70000}]}}", "spec.ports[0].targetPort", "Invalid", "must be between 1 and 65535"),
    ("service", "{spec: {ports: [{port: 1, targetPort: A_}]}}", "spec.ports[0].targetPort", "Invalid", "alpha-numeric"),
    ("service", "{spec: {ports: [{port: 1, appProtocol: 'a b'}]}}", "spec.ports[0].appProtocol", "Invalid", "name part"),
    ("service", "{spec: {ports: [{name: a, port: 1}, {name: b, port: 1}]}}", "spec.ports[1]", "Duplicate", "\"port\":1"),
    ("service", "{spec: {ports: [{port: 1, nodePort: 30000}]}}", "spec.ports[0].nodePort", "Forbidden", "may not be used when `type` is 'ClusterIP'"),
    ("service", "{spec: {type: NodePort, ports: [{name: a, port: 1, nodePort: 30000}, {name: b, port: 2, nodePort: 30000}]}}", "spec.ports[1].nodePort", "Duplicate", "30000"),
    ("service", "{spec: {selector: {a: 'b c'}}}", "spec.selector", "Invalid", "a valid label"),
    ("service", "{spec: {sessionAffinity: X}}", "spec.sessionAffinity", "NotSupported", "\"ClientIP\", \"None\""),
    ("service", "{spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}}}", "spec.sessionAffinityConfig.clientIP.timeoutSeconds", "Invalid", "must be greater than 0 and less than 86400"),
    ("service", "{spec: {clusterIP: x}}", "spec.clusterIP", "Invalid", "must be a valid IP address"),
    ("service", "{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.2]}}", "spec.clusterIPs", "Invalid", "first value must match `clusterIP`"),
    ("service", "{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1, 10.0.0.2]}}", "spec.clusterIPs", "Invalid", "may specify no more than one IP for each IP family"),
    ("service", "{spec: {clusterIP: None, clusterIPs: [None, 10.0.0.2]}}", "spec.clusterIPs", "Invalid", "'None' must be the first and only value"),
    ("service", "{spec: {externalIPs: [x]}}", "spec.externalIPs[0]", "Invalid", "must be a valid IP address"),
    ("service", "{spec: {type: LoadBalancer, loadBalancerSourceRanges: [x]}}", "spec.loadBalancerSourceRanges[0]", "Invalid", "must be a valid CIDR value"),
    ("service", "{spec: {externalTrafficPolicy: Local}}", "spec.externalTrafficPolicy", "Invalid", "may only be set for externally-accessible services"),
    ("service", "{spec: {type: NodePort, externalTrafficPolicy: X}}", "spec.externalTrafficPolicy", "NotSupported", "\"Cluster\", \"Local\""),
    ("service", "{spec: {internalTrafficPolicy: X}}", "spec.internalTrafficPolicy", "NotSupported", "\"Cluster\", \"Local\""),
    ("service", "{spec: {healthCheckNodePort: 30000}}", "spec.healthCheckNodePort", "Invalid", "may only be set when `type` is 'LoadBalancer'"),
    ("service", "{spec: {trafficDistribution: X}}", "spec.trafficDistribution", "NotSupported", "\"PreferClose\""),
    ("service", "{spec: {loadBalancerClass: a/b}}", "spec.loadBalancerClass", "Forbidden", "may only be used when `type` is 'LoadBalancer'"),
    ("service", "{spec: {ipFamilies: [IPv5]}}", "spec.ipFamilies[0]", "NotSupported", "\"IPv4\", \"IPv6\""),
    ("service", "{spec: {ipFamilies: [IPv4, IPv4]}}", "spec.ipFamilies[1]", "Duplicate", "\"IPv4\""),
    ("service", "{spec: {ipFamilyPolicy: X}}", "spec.ipFamilyPolicy", "NotSupported", "\"PreferDualStack\", \"RequireDualStack\", \"SingleStack\""),
    // others
    ("configmap", "{data: {a/b: c}}", "data[a/b]", "Invalid", "a valid config key must consist of"),
    ("configmap", "{data: {..a: c}}", "data[..a]", "Invalid", "must not start with '..'"),
    ("configmap", "{binaryData: {k: dg==}}", "data[k]", "Invalid", "duplicate of key present in binaryData"),
    ("secret", "{data: {a/b: dg==}}", "data[a/b]", "Invalid", "a valid config key must consist of"),
    ("secret", "{type: kubernetes.io/tls}", "data[tls.crt]", "Required", ""),
    ("secret", "{type: kubernetes.io/ssh-auth}", "data[ssh-privatekey]", "Required", ""),
    ("secret", "{type: kubernetes.io/basic-auth}", "data[username]", "Required", ""),
    ("secret", "{type: kubernetes.io/dockerconfigjson}", "data[.dockerconfigjson]", "Required", ""),
    ("secret", "{type: kubernetes.io/dockerconfigjson, data: {.dockerconfigjson: dg==}}", "data[.dockerconfigjson]", "Invalid", "<secret contents redacted>"),
    ("secret", "{type: kubernetes.io/service-account-token}", "metadata.annotations[kubernetes.io/service-account.name]", "Required", ""),
    ("event", "{involvedObject: {namespace: other}}", "involvedObject.namespace", "Invalid", "does not match event.namespace"),
    ("event", "{eventTime: '2026-01-01T00:00:00Z'}", "reportingController", "Required", ""),
    ("lease", "{spec: {leaseDurationSeconds: 0}}", "spec.leaseDurationSeconds", "Invalid", "must be greater than 0"),
    ("lease", "{spec: {leaseTransitions: -1}}", "spec.leaseTransitions", "Invalid", "must be greater than or equal to 0"),
    ("namespace", "{spec: {finalizers: [a]}}", "spec.finalizers[0]", "Invalid", "name is neither a standard finalizer name nor is it fully qualified"),
    ("node", "{spec: {taints: [{key: a, effect: X}]}}", "spec.taints[0].effect", "NotSupported", "\"NoExecute\""),
    ("node", "{spec: {taints: [{key: a}]}}", "spec.taints[0].effect", "Required", ""),
    ("node", "{spec: {taints: [{key: 'a b', effect: NoSchedule}]}}", "spec.taints[0].key", "Invalid", "name part"),
    ("node", "{spec: {taints: [{key: a, effect: NoSchedule}, {key: a, effect: NoSchedule}]}}", "spec.taints[1]", "Duplicate", ""),
    ("node", "{spec: {podCIDRs: [x]}}", "spec.podCIDRs[0]", "Invalid", "must be a valid CIDR value"),
    ("node", "{spec: {podCIDRs: [10.0.0.0/24, 10.0.1.0/24]}}", "spec.podCIDRs", "Invalid", "may specify no more than one CIDR for each IP family"),
    ("slice", "{addressType: ~}", "addressType", "Required", ""),
    ("slice", "{addressType: X}", "addressType", "NotSupported", "\"FQDN\", \"IPv4\", \"IPv6\""),
    ("slice", "{endpoints: [{addresses: []}]}", "endpoints[0].addresses", "Required", "must contain at least 1 address"),
    ("slice", "{endpoints: [{addresses: ['::1']}]}", "endpoints[0].addresses[0]", "Invalid", "must be an IPv4 address"),
    ("slice", "{endpoints: [{addresses: [127.0.0.1]}]}", "endpoints[0].addresses[0]", "Invalid", "may not be in the loopback range"),
    ("slice", "{endpoints: [{addresses: [10.0.0.1], hostname: A}]}", "endpoints[0].hostname", "Invalid", "RFC 1123 label"),
    ("slice", "{ports: [{port: 1}, {port: 2}]}", "ports[1].name", "Duplicate", "\"\""),
    ("slice", "{ports: [{port: 70000}]}", "ports[0].port", "Invalid", "must be between 1 and 65535"),
    ("slice", "{ports: [{port: 1, protocol: X}]}", "ports[0].protocol", "NotSupported", "\"TCP\""),
];

#[test]
fn what_is_too_large() {
    let long = |n: usize| "x".repeat(n);
    let many =
        |n: usize| (0..n).map(|i| format!("{{addresses: [10.0.{}.{}]}}", i / 250, i % 250 + 1)).collect::<Vec<_>>();
    let mut wrong = Vec::new();
    for (base, fragment, field, reason, words) in [
        (
            "pod",
            format!("{{metadata: {{annotations: {{a: {}}}}}}}", long(256 * 1024)),
            "metadata.annotations",
            "TooLong",
            "may not be more than 262144 bytes",
        ),
        (
            "pod",
            format!("{{metadata: {{labels: {{a: {}}}}}}}", long(64)),
            "metadata.labels",
            "Invalid",
            "must be no more than 63 characters",
        ),
        (
            "pod",
            format!("{{metadata: {{labels: {{{}: a}}}}}}", long(64)),
            "metadata.labels",
            "Invalid",
            "name part must be no more than 63 characters",
        ),
        (
            "pod",
            format!("{{metadata: {{name: {}}}}}", long(254)),
            "metadata.name",
            "Invalid",
            "must be no more than 253 characters",
        ),
        (
            "service",
            format!("{{metadata: {{name: {}}}}}", long(64)),
            "metadata.name",
            "Invalid",
            "must be no more than 63 characters",
        ),
        (
            "configmap",
            format!("{{data: {{a: {}}}}}", long(1024 * 1024)),
            "[]",
            "TooLong",
            "may not be more than 1048576 bytes",
        ),
        (
            "secret",
            format!("{{stringData: {{a: {}}}}}", long(1024 * 1024)),
            "data",
            "TooLong",
            "may not be more than 1048576 bytes",
        ),
        (
            "slice",
            format!("{{endpoints: [{}]}}", many(1001).join(", ")),
            "endpoints",
            "TooMany",
            "must have at most 1000 items",
        ),
        (
            "slice",
            format!("{{endpoints: [{{addresses: [{}]}}]}}", vec!["10.0.0.1"; 101].join(", ")),
            "endpoints[0].addresses",
            "TooMany",
            "must have at most 100 items",
        ),
        (
            "spec",
            format!("{{dnsConfig: {{searches: [{}]}}}}", vec!["a"; 33].join(", ")),
            "spec.dnsConfig.searches",
            "Invalid",
            "must not have more than 32 search paths",
        ),
        (
            "spec",
            format!("{{dnsConfig: {{searches: [{}]}}}}", vec![long(200); 11].join(", ")),
            "spec.dnsConfig.searches",
            "Invalid",
            "must not have more than 2048 characters",
        ),
        (
            "service",
            "{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1, 'fd::1', 10.0.0.2]}}".into(),
            "spec.clusterIPs",
            "Invalid",
            "may only hold up to 2 values",
        ),
    ] {
        let (kind, object) = created(base, &fragment);
        let outcome = strategy::validate_create(kind, &object);
        let what = format!("{base} {}", &fragment[..fragment.len().min(80)]);
        wrong.extend(unmet(outcome, &what, field, reason, words).map(|e| e.chars().take(600).collect::<String>()));
    }
    report(wrong);
}

#[test]
fn each_rule_of_creation() {
    refused_at_creation(CREATE);
}

/// Base, what the old object has beside it, what the new one changes of that.
type Change = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

#[rustfmt::skip]
const UPDATE: &[Change] = &[
    ("pod", "{}", "{metadata: {name: b}}", "metadata.name", "Invalid", "Invalid value: \"b\": field is immutable"),
    ("pod", "{}", "{metadata: {uid: x}}", "metadata.uid", "Invalid", "field is immutable"),
    ("pod", "{metadata: {deletionTimestamp: '2026-01-01T00:00:00Z'}}", "{metadata: {finalizers: [a/b]}}", "metadata.finalizers", "Forbidden", "no new finalizers can be added if the object is being deleted"),
    ("spec", "{}", "{hostname: b}", "spec", "Forbidden", "pod updates may not change fields other than"),
    ("spec", "{}", "{containers: [{name: c, image: i}, {name: d, image: i}]}", "spec.containers", "Forbidden", "pod updates may not add or remove containers"),
    ("spec", "{}", "{containers: [{name: c, image: 'i:1', command: [x]}]}", "spec", "Forbidden", "changed: containers"),
    ("spec", "{}", "{containers: [{name: c, image: ''}]}", "spec.containers[0].image", "Required", ""),
    ("spec", "{activeDeadlineSeconds: 5}", "{activeDeadlineSeconds: 6}", "spec.activeDeadlineSeconds", "Invalid", "must be less than or equal to previous value"),
    ("spec", "{activeDeadlineSeconds: 5}", "{activeDeadlineSeconds: ~}", "spec.activeDeadlineSeconds", "Invalid", "must not update from a positive integer to nil value"),
    ("spec", "{tolerations: [{key: a}]}", "{tolerations: []}", "spec.tolerations", "Forbidden", "existing toleration can not be modified except its tolerationSeconds"),
    ("spec", "{}", "{schedulingGates: [{name: a}]}", "spec.schedulingGates[0].name", "Forbidden", "only deletion is allowed, but found new scheduling gate 'a'"),
    ("deployment", "{}", "{spec: {selector: {matchLabels: {c: d}}, template: {metadata: {labels: {c: d}}}}}", "spec.selector", "Invalid", "field is immutable"),
    ("replicaset", "{}", "{spec: {selector: {matchLabels: {c: d}}, template: {metadata: {labels: {c: d}}}}}", "spec.selector", "Invalid", "field is immutable"),
    ("service", "{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1]}}", "{spec: {clusterIP: 10.0.0.2, clusterIPs: [10.0.0.2]}}", "spec.clusterIPs[0]", "Invalid", "Invalid value: [\"10.0.0.2\"]: may not change once set"),
    ("service", "{spec: {ipFamilies: [IPv4]}}", "{spec: {ipFamilies: [IPv6]}}", "spec.ipFamilies[0]", "Invalid", "may not change once set"),
    ("configmap", "{immutable: true}", "{data: {k: w}}", "data", "Forbidden", "field is immutable when `immutable` is set"),
    ("configmap", "{immutable: true}", "{immutable: false}", "immutable", "Forbidden", "field is immutable when `immutable` is set"),
    ("secret", "{immutable: true}", "{data: {k: dw==}}", "data", "Forbidden", "field is immutable when `immutable` is set"),
    ("secret", "{type: a/b}", "{type: c/d}", "type", "Invalid", "field is immutable"),
    ("slice", "{}", "{addressType: IPv6, endpoints: [{addresses: ['fd00::1']}]}", "addressType", "Invalid", "field is immutable"),
    ("node", "{spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.0.0/24]}}", "{spec: {podCIDR: 10.0.1.0/24, podCIDRs: [10.0.1.0/24]}}", "spec.podCIDRs", "Forbidden", "node updates may not change podCIDR except from \"\" to valid"),
    ("node", "{spec: {providerID: a}}", "{spec: {providerID: b}}", "spec.providerID", "Forbidden", "node updates may not change providerID"),
];

#[test]
fn each_rule_of_updates() {
    let mut wrong = Vec::new();
    for (base, before, change, field, reason, words) in UPDATE {
        let (_, mut old) = created(base, before);
        // What creation drops, a stored object may have.
        let raw = merged(base, before);
        if let Some(time) = raw["metadata"].get("deletionTimestamp") {
            old.set_meta("deletionTimestamp", time.clone());
        }
        old.set_meta("uid", Value::from("u"));
        let (base_name, path) = match *base {
            "spec" => ("pod", "/spec"),
            other => (other, ""),
        };
        let mut manifest = merged(base_name, "{}");
        let target = manifest.pointer_mut(path).unwrap();
        *target = patch::merge(&patch::merge(target, &value(before)), &value(change));
        let (kind, mut new) = decoded(manifest);
        strategy::prepare_update(kind, &mut new, &old);
        let outcome = strategy::validate_update(kind, &new, &old);
        wrong.extend(unmet(outcome, &format!("{base} {before} -> {change}"), field, reason, words));
    }
    report(wrong);
}

#[rustfmt::skip]
const STATUS: &[Change] = &[
    ("pod", "{status: {qosClass: BestEffort}}", "{status: {qosClass: Guaranteed}}", "status.qosClass", "Invalid", "field is immutable"),
    ("pod", "{}", "{status: {podIPs: [{ip: x}]}}", "status.podIPs[0].ip", "Invalid", "must be a valid IP address"),
    ("pod", "{}", "{status: {nominatedNodeName: A}}", "status.nominatedNodeName", "Invalid", "RFC 1123 subdomain"),
    ("pod", "{spec: {restartPolicy: Never}, status: {containerStatuses: [{name: c, state: {terminated: {exitCode: 1}}}]}}", "{status: {containerStatuses: [{name: c, state: {running: {}}}]}}", "status.containerStatuses[0].state", "Forbidden", "may not be transitioned to non-terminated state"),
    ("deployment", "{}", "{status: {replicas: -1}}", "status.replicas", "Invalid", "must be greater than or equal to 0"),
    ("deployment", "{}", "{status: {replicas: 1, readyReplicas: 2}}", "status.readyReplicas", "Invalid", "cannot be greater than status.replicas"),
    ("deployment", "{status: {collisionCount: 2}}", "{status: {collisionCount: 1}}", "status.collisionCount", "Invalid", "cannot be decremented"),
    ("replicaset", "{}", "{status: {replicas: 2, readyReplicas: 1, availableReplicas: 2}}", "status.availableReplicas", "Invalid", "cannot be greater than readyReplicas"),
    ("namespace", "{}", "{status: {phase: Terminating}}", "status.phase", "Invalid", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
    ("node", "{}", "{status: {addresses: [{type: a, address: b}, {type: a, address: b}]}}", "status.addresses[1]", "Duplicate", ""),
    ("node", "{}", "{status: {capacity: {cpu: -1}}}", "status.capacity[cpu]", "Invalid", "must be greater than or equal to 0"),
];

#[test]
fn each_rule_of_status_updates() {
    let mut wrong = Vec::new();
    for (base, before, change, field, reason, words) in STATUS {
        let (kind, mut old) = created(base, before);
        if let Some(status) = merged(base, before).get("status") {
            old.0["status"] = status.clone();
        }
        let (_, mut new) = decoded(merged(base, change));
        strategy::prepare_status_update(kind, &mut new, &old);
        let outcome = strategy::validate_status_update(kind, &new, &old);
        wrong.extend(unmet(outcome, &format!("{base} {before} -> {change}"), field, reason, words));
    }
    report(wrong);
}

#[test]
fn the_message_is_upstreams() {
    let (kind, pod) = created("container", "{image: ~, ports: [{containerPort: 0}]}");
    let status = strategy::validate_create(kind, &pod).unwrap_err();
    assert_eq!(
        status.message,
        "Pod \"a\" is invalid: [spec.containers[0].image: Required value, \
         spec.containers[0].ports[0].containerPort: Required value]"
    );
    let (kind, it) = created("deployment", "{spec: {replicas: -1}}");
    let status = strategy::validate_create(kind, &it).unwrap_err();
    assert_eq!(
        status.message,
        "Deployment.apps \"a\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"
    );
}

#[test]
fn what_a_pod_may_change() {
    let (kind, mut old) = created("spec", "{terminationGracePeriodSeconds: -5, schedulingGates: [{name: a}]}");
    old.set_meta("uid", Value::from("u"));
    let fragment = "{terminationGracePeriodSeconds: 1, nodeSelector: {a: b}, activeDeadlineSeconds: 5, \
                    tolerations: [{key: a}], containers: [{name: c, image: 'i:2', imagePullPolicy: IfNotPresent}]}";
    let (_, mut new) = decoded(merged("spec", fragment));
    strategy::prepare_update(kind, &mut new, &old);
    strategy::validate_update(kind, &new, &old).unwrap();
    assert_eq!(new.generation(), 2);
}
