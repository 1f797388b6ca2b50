//! With a node's credential: access to what is not its own.

use base64::Engine;
use serde_json::{Value, json};

use super::world::{AGENT, NODE, OTHER, OURS, ROOT, SECRET, THEIRS, World};
use super::{Attack, POD, Target, Try, Verdict, verdict};
use crate::support::eventually;

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "node-mirror-reads",
        class: "node credential",
        cves: &["CVE-2025-4563"],
        how: "mirror Pods that refer to a Secret in every way there is (env, envFrom, volumes, projected, imagePullSecrets, storage) and to ResourceClaims; then reads it",
        held: "NodeRestriction refuses references of mirror Pods; the graph counts none of them",
        attempt: Try::Code(mirror_reads),
    },
    Attack {
        id: "node-mirror-status",
        class: "node credential",
        cves: &[],
        how: "a mirror Pod without references; its mirror annotation is removed by `/status`; and metadata of others' Pods is changed",
        held: "status updates keep annotations, labels, finalizers and owners as they are",
        attempt: Try::Code(mirror_status),
    },
    Attack {
        id: "node-pod-ip",
        class: "node credential",
        cves: &["CVE-2020-8562", "CVE-2022-3294"],
        how: "`podIP: 127.0.0.1` (and link-local, unspecified) by `/status`; an administrator then asks the Pod's proxy",
        held: "such addresses are refused, and not dialled",
        attempt: Try::Code(pod_ip),
    },
    Attack {
        id: "node-address",
        class: "node credential",
        cves: &["CVE-2022-3294", "CVE-2020-8562"],
        how: "a node says its address is 127.0.0.1; an administrator asks its proxy; a listener on the server's loopback waits",
        held: "loopback and link-local are not dialled, and nodes are dialled from inside their own network",
        attempt: Try::Code(node_address),
    },
    Attack {
        id: "node-address-range",
        class: "node credential",
        cves: &[],
        how: "a node says that its address is a Pod's, a Service's, the cluster's DNS, or another node's, in several spellings",
        held: "NodeRestriction: the ranges are the cluster's, and one address is one node's",
        attempt: Try::Code(address_range),
    },
    Attack {
        id: "node-others",
        class: "node credential",
        cves: &[],
        how: "reads, writes and deletes what is another node's or nobody's: Secrets, Pods, Nodes, Leases, CSINodes, tokens, exec, proxy, roles",
        held: "the Node authorizer and NodeRestriction",
        attempt: Try::Code(others),
    },
    Attack {
        id: "node-volumes",
        class: "node credential",
        cves: &[],
        how: "a node makes PersistentVolumes, reads and follows others', takes finalizers of others' and of living ones, draws a volume to itself, changes where its own is",
        held: "a node follows the volumes that it keeps, by their label; NodeRestriction lets it take one finalizer from one of them that is being deleted",
        attempt: Try::Code(volumes),
    },
    Attack {
        id: "node-certificate-of-another",
        class: "identity",
        cves: &[],
        how: "the holder of a bootstrap token asks for the certificates of nodes that there are, and of one with an impossible name",
        held: "only a request for a node that there is not yet is approved by itself; names of nodes are checked",
        attempt: Try::Code(certificate_of_another),
    },
    Attack {
        id: "node-self",
        class: "node credential",
        cves: &["CVE-2025-5187", "CVE-2023-5408"],
        how: "gives itself owners (to be collected with them), taints, reserved labels, deletes itself",
        held: "NodeRestriction",
        attempt: Try::Code(itself),
    },
    Attack {
        id: "node-token",
        class: "node credential",
        cves: &[],
        how: "asks for tokens of ServiceAccounts: unbound, bound to another Pod, of an account that no Pod of its has",
        held: "a token is for the account of a Pod that the node runs, bound to it",
        attempt: Try::Code(token),
    },
    Attack {
        id: "node-certificate",
        class: "node credential",
        cves: &[],
        how: "a CertificateSigningRequest for another node, for `system:masters`, and approves it",
        held: "only a node's own renewal is signed by itself",
        attempt: Try::Code(certificate),
    },
];

const VICTIM: &str = "/api/v1/namespaces/tenant-b/secrets/victim";

fn mirror(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": THEIRS, "annotations": {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"},
            "ownerReferences": [],
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "localhost/attack:1", "command": ["sleep", "1"]}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// Whether the node's credential can read the Secret.
fn reads(world: &World) -> Option<String> {
    let (code, said) = world.ask(AGENT, "GET", VICTIM, &Value::Null);
    (code == 200 || said.contains("d2hhdCBvbmx5")).then_some(said)
}

fn mirror_reads(world: &World, target: &Target) -> Verdict {
    if let Some(said) = reads(world) {
        return Verdict::Untried(format!("it reads it anyway: {said}"));
    }
    // Set by upstream's agents: NodeRestriction requires the node as owner.
    let uid = world.get("nodes", "", NODE).unwrap()["metadata"]["uid"].clone();
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": true}]);
    let container = |more: Value| {
        let mut container = json!({"name": "c", "image": "localhost/attack:1"});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([container])
    };
    let volume = |source: Value| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        json!({"volumes": [volume]})
    };
    let secret = json!({"secretRef": {"name": "victim"}});
    let key = json!({"name": "X", "valueFrom": {"secretKeyRef": {"name": "victim", "key": "word"}}});
    let reference = json!({"name": "victim"});
    let tries = [
        json!({"containers": container(json!({"envFrom": [secret]}))}),
        json!({"containers": container(json!({"env": [key]}))}),
        json!({"initContainers": [{"name": "i", "image": "localhost/attack:1", "envFrom": [secret]}]}),
        volume(json!({"secret": {"secretName": "victim"}})),
        volume(json!({"projected": {"sources": [{"secret": {"name": "victim"}}]}})),
        volume(json!({"csi": {"driver": "d", "nodePublishSecretRef": reference}})),
        volume(json!({"cephfs": {"monitors": ["x"], "secretRef": reference}})),
        volume(json!({"rbd": {"monitors": ["x"], "image": "x", "secretRef": reference}})),
        volume(
            json!({"iscsi": {"targetPortal": "x", "iqn": "iqn.2001-04.com.example:x", "lun": 0, "chapAuthSession": true, "secretRef": reference}}),
        ),
        volume(json!({"azureFile": {"secretName": "victim", "shareName": "x"}})),
        volume(json!({"flexVolume": {"driver": "a/b", "secretRef": reference}})),
        volume(json!({"scaleIO": {"gateway": "x", "system": "x", "volumeName": "x", "secretRef": reference}})),
        volume(json!({"storageos": {"volumeName": "x", "secretRef": reference}})),
        volume(
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}}}}}),
        ),
        volume(json!({"persistentVolumeClaim": {"claimName": "victim"}})),
        volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})),
        volume(json!({"projected": {"sources": [{"configMap": {"name": "victim"}}]}})),
        json!({"imagePullSecrets": [reference]}),
        json!({"serviceAccountName": "default"}),
        json!({"resourceClaims": [{"name": "r", "resourceClaimName": "victim"}]}),
        json!({"ephemeralContainers": [{"name": "e", "image": "localhost/attack:1", "envFrom": [secret]}]}),
    ];
    let (mut seen, mut accepted) = (Vec::new(), Vec::new());
    for (number, spec) in tries.iter().enumerate() {
        let name = format!("{}-{number}", target.id);
        let mut pod = mirror(&name, spec.clone());
        pod["metadata"]["ownerReferences"] = owner.clone();
        let (code, said) = world.ask(AGENT, "POST", &format!("/api/v1/namespaces/{THEIRS}/pods"), &pod);
        let read = reads(world);
        world.delete("pods", THEIRS, &name);
        if let Some(said) = read {
            return Verdict::Breach(format!("with {spec} it reads {said}"));
        }
        if (200..300).contains(&code) {
            accepted.push(spec.to_string());
        }
        seen.push(format!("{code} {}", said.lines().last().unwrap_or_default()));
    }
    verdict(accepted.is_empty(), format!("accepted: {accepted:?}; {}", seen.join("; ")))
}

fn mirror_status(world: &World, target: &Target) -> Verdict {
    let pods = format!("/api/v1/namespaces/{THEIRS}/pods");
    // A Pod of its own that refers to the Secret by a name which is only effective without the annotation.
    let uid = world.get("nodes", "", NODE).unwrap()["metadata"]["uid"].clone();
    let mut pod = mirror(target.id, json!({}));
    pod["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": true}]);
    let (code, said) = world.ask(AGENT, "POST", &pods, &pod);
    if code != 201 {
        return Verdict::Untried(format!("a mirror Pod of nothing: {code} {said}"));
    }
    for name in [target.id, "victim"] {
        // The agent removes mirror Pods that it did not create.
        let Some(before) = world.get("pods", THEIRS, name) else { continue };
        for change in [
            json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": null, "x": "y"}}}),
            json!({"metadata": {"labels": {"app": "stolen", "x": "y"}}}),
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}]}}),
            json!({"metadata": {"finalizers": ["x/y"]}}),
            json!({"spec": {"serviceAccountName": "x"}}),
        ] {
            world.ask(AGENT, "PATCH", &format!("{pods}/{name}/status"), &change);
            let Some(after) = world.get("pods", THEIRS, name) else { break };
            for part in ["annotations", "labels", "ownerReferences", "finalizers"] {
                if after["metadata"][part] != before["metadata"][part] {
                    return Verdict::Breach(format!("{name}: {part} became {}", after["metadata"][part]));
                }
            }
        }
    }
    world.delete("pods", THEIRS, target.id);
    Verdict::Held("nothing of the metadata changed".into())
}

fn pod_ip(world: &World, target: &Target) -> Verdict {
    let mut pod = world.pod(target, &POD);
    pod["metadata"]["namespace"] = json!(OURS);
    pod["spec"]["containers"][0]["command"] = json!(["sleep", "1000"]);
    world.create("pods", OURS, pod).unwrap();
    world.node.wait("condition=Ready", &["-n", OURS, &format!("pod/{}", target.id)], super::TIMEOUT);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut seen = Vec::new();
    for address in ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1", "::ffff:127.0.0.1", "224.0.0.1"] {
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        let path = format!("/api/v1/namespaces/{OURS}/pods/{}", target.id);
        let (code, said) = world.ask(AGENT, "PATCH", &format!("{path}/status"), &status);
        let kept = world.get("pods", OURS, target.id).unwrap()["status"]["podIP"] == *address;
        let (proxied, answer) = world.ask(ROOT, "GET", &format!("{path}:{port}/proxy/"), &Value::Null);
        if listener.accept().is_ok() {
            return Verdict::Breach(format!("{address} was dialled from the server"));
        }
        if kept {
            return Verdict::Breach(format!("podIP is {address}: {code} {said}; its proxy: {proxied} {answer}"));
        }
        seen.push(format!("{address}: {code}"));
    }
    Verdict::Held(seen.join(", "))
}

fn node_address(world: &World, _: &Target) -> Verdict {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut seen = Vec::new();
    for address in ["127.0.0.1", "169.254.169.254", "::1", "0.0.0.0"] {
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        let (code, said) = world.ask(OTHER, "PATCH", "/api/v1/nodes/other/status", &status);
        if code != 200 {
            seen.push(format!("{address}: {code}"));
            continue;
        }
        let (proxied, answer) = world.ask(ROOT, "GET", &format!("/api/v1/nodes/other:{port}/proxy/"), &Value::Null);
        if listener.accept().is_ok() {
            return Verdict::Breach(format!("the server dialled {address}: {said}"));
        }
        if proxied < 400 {
            return Verdict::Breach(format!("{address}: {proxied} {answer}"));
        }
        seen.push(format!("{address}: proxy {proxied}"));
    }
    Verdict::Held(seen.join(", "))
}

/// Sends all requests; each must be refused.
pub fn all_refused(world: &World, token: &str, asked: &[(&str, String, Value)]) -> Verdict {
    let mut seen = Vec::new();
    for (method, path, body) in asked {
        let (code, said) = world.ask(token, method, path, body);
        if said.contains(SECRET) || said.contains("d2hhdCBvbmx5") || !matches!(code, 400..=409 | 415 | 422) {
            return Verdict::Breach(format!("{method} {path}: {code} {said}"));
        }
        seen.push(format!("{method} {path} {code}"));
    }
    Verdict::Held(format!("{} refused; {}", seen.len(), seen.join(", ")))
}

fn others(world: &World, _: &Target) -> Verdict {
    let get = |path: &str| ("GET", path.to_owned(), Value::Null);
    let delete = |path: &str| ("DELETE", path.to_owned(), Value::Null);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "stolen"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "victim", "namespace": THEIRS}});
    let asked = [
        get(VICTIM),
        get("/api/v1/secrets"),
        get("/api/v1/namespaces/tenant-b/secrets"),
        get("/api/v1/namespaces/tenant-b/secrets?fieldSelector=metadata.name%3Dvictim"),
        get("/api/v1/namespaces/tenant-b/secrets?watch=1&fieldSelector=metadata.name%3Dvictim&timeoutSeconds=1"),
        get("/api/v1/namespaces/kube-system/secrets"),
        get("/api/v1/pods"),
        get("/api/v1/pods?fieldSelector=spec.nodeName%3Dtarget"),
        get("/api/v1/namespaces/tenant-b/pods/victim"),
        get("/api/v1/namespaces/tenant-b/pods/victim/log"),
        get("/api/v1/namespaces/tenant-b/pods/victim/exec?command=id&stdout=1"),
        get("/api/v1/nodes/target/proxy/"),
        ("PATCH", "/api/v1/nodes/target".into(), json!({"metadata": {"annotations": {"x": "y"}}})),
        ("PATCH", "/api/v1/nodes/target/status".into(), json!({"status": {"conditions": []}})),
        delete("/api/v1/nodes/target"),
        delete("/api/v1/namespaces/tenant-b/pods/victim"),
        ("PATCH", "/api/v1/namespaces/tenant-b/pods/victim/status".into(), json!({"status": {"phase": "Failed"}})),
        ("PATCH", "/api/v1/namespaces/tenant-b/pods/victim".into(), json!({"spec": {"activeDeadlineSeconds": 1}})),
        ("POST", "/api/v1/namespaces/tenant-b/pods/victim/eviction".into(), eviction),
        ("POST", "/api/v1/namespaces/tenant-b/pods".into(), pod),
        (
            "PATCH",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/target".into(),
            json!({"spec": {"holderIdentity": "x"}}),
        ),
        get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"),
        get("/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin"),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".into(), role),
        delete("/api/v1/namespaces/tenant-b"),
    ];
    all_refused(world, OTHER, &asked)
}

fn volumes(world: &World, target: &Target) -> Verdict {
    let volume = |name: &str, node: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": name, "labels": {"podwright.dev/node": node}, "finalizers": ["x.io/stays", "podwright.dev/local-volume"],
                "annotations": {"pv.kubernetes.io/provisioned-by": "podwright.dev/local"}},
            "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "none", "local": {"path": target.canary},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": [node]}]}]}}}})
    };
    for (name, node) in [("pvc-theirs", NODE), ("pvc-own", "other")] {
        if let Err(why) = world.create("persistentvolumes", "", volume(name, node)) {
            return Verdict::Untried(why);
        }
    }
    let free = || json!({"metadata": {"finalizers": ["x.io/stays"]}});
    let list = |query: &str| ("GET", format!("/api/v1/persistentvolumes?{query}"), Value::Null);
    let of = |name: &str, body: Value| ("PATCH", format!("/api/v1/persistentvolumes/{name}"), body);
    let asked = [
        list(""),
        list("labelSelector=podwright.dev/node%3Dtarget"),
        list("labelSelector=podwright.dev/node"),
        list("watch=1&timeoutSeconds=1&labelSelector=podwright.dev/node%20in%20(other,target)"),
        ("GET", "/api/v1/persistentvolumes/pvc-theirs".into(), Value::Null),
        ("POST", "/api/v1/persistentvolumes".into(), volume("pvc-made", "other")),
        ("DELETE", "/api/v1/persistentvolumes/pvc-own".into(), Value::Null),
        ("DELETE", "/api/v1/persistentvolumes/pvc-theirs".into(), Value::Null),
        of("pvc-theirs", free()),
        of("pvc-theirs", json!({"metadata": {"labels": {"podwright.dev/node": "other"}}})),
        of("pvc-own", free()),
        of("pvc-own", json!({"spec": {"claimRef": {"namespace": THEIRS, "name": "victim"}}})),
        ("PATCH", "/api/v1/persistentvolumes/pvc-own/status".into(), json!({"status": {"phase": "Available"}})),
    ];
    let held = all_refused(world, OTHER, &asked);
    for name in ["pvc-theirs", "pvc-own"] {
        let none = json!({"metadata": {"finalizers": null}});
        let params = json!({"resource": "persistentvolumes", "name": name, "body": none, "options": {"patchType": "application/merge-patch+json"}});
        let _ = crate::support::api::call(&world.node.socket(), "patch", params);
        world.delete("persistentvolumes", "", name);
    }
    held
}

fn itself(world: &World, _: &Target) -> Verdict {
    let path = || format!("/api/v1/nodes/{NODE}");
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}]);
    let asked = [
        ("PATCH", path(), json!({"metadata": {"labels": {"node-restriction.kubernetes.io/zone": "trusted"}}})),
        ("PATCH", path(), json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}})),
        (
            "PATCH",
            format!("{}/status", path()),
            json!({"metadata": {"labels": {"node-restriction.kubernetes.io/zone": "trusted"}}}),
        ),
        ("PATCH", path(), json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}})),
        ("DELETE", path(), Value::Null),
        ("PATCH", path(), json!({"metadata": {"ownerReferences": owner}})),
    ];
    let verdict = all_refused(world, AGENT, &asked);
    // A Node that has owners all the same must not be collected with them.
    world.ask(ROOT, "PATCH", &path(), &json!({"metadata": {"ownerReferences": null}}));
    verdict
}

fn token(world: &World, target: &Target) -> Verdict {
    let uid = world.get("pods", THEIRS, "victim").unwrap()["metadata"]["uid"].clone();
    let request = |bound: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}});
    let bound = |name: &str, uid: &Value| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    world.create("serviceaccounts", THEIRS, json!({"metadata": {"name": target.id}})).unwrap();
    let of = |namespace: &str, account: &str| format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let asked = [
        ("POST", of(THEIRS, "default"), request(Value::Null)),
        ("POST", of(THEIRS, target.id), request(bound("victim", &uid))),
        ("POST", of("kube-system", "default"), request(bound("victim", &uid))),
        ("POST", of(THEIRS, "default"), request(bound("victim", &json!("another")))),
        ("POST", of(THEIRS, "default"), request(json!({"apiVersion": "v1", "kind": "Secret", "name": "victim"}))),
    ];
    all_refused(world, AGENT, &asked)
}

fn address_range(world: &World, _: &Target) -> Verdict {
    let addresses = |address: &str| json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
    let other = "/api/v1/nodes/other/status";
    let (code, said) = world.ask(ROOT, "PATCH", other, &addresses("192.0.2.77"));
    if code != 200 {
        return Verdict::Untried(said);
    }
    let own = "/api/v1/nodes/target/status";
    let asked = ["10.244.0.7", "10.96.0.1", "10.96.0.10", "::ffff:10.96.0.1", "192.0.2.77", "::ffff:192.0.2.77"]
        .map(|address| ("PATCH", own.to_owned(), addresses(address)));
    all_refused(world, AGENT, &asked)
}

/// A bootstrap token requests certificates of an existing node, of one with an impossible name, and of a new one.
fn certificate_of_another(world: &World, target: &Target) -> Verdict {
    let token = json!({"metadata": {"name": "bootstrap-token-attack"}, "type": "bootstrap.kubernetes.io/token", "stringData": {
        "token-id": "attack", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}});
    world.create("secrets", "kube-system", token).unwrap();
    let csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let names = ["target", "other", "No_Name", target.id];
    for (number, name) in names.iter().enumerate() {
        let csr = request_for(name, &format!("{}-{number}", target.id));
        let (code, said) = world.ask("attack.0123456789abcdef", "POST", csrs, &csr);
        if code != 201 {
            return Verdict::Untried(said);
        }
    }
    let status = |number: usize| {
        let name = format!("{}-{number}", target.id);
        world.get("certificatesigningrequests", "", &name).unwrap_or_default()["status"].clone()
    };
    // Handled in this order, so the others were once the last one is signed.
    eventually("the new node gets its certificate", super::TIMEOUT, || {
        if status(3)["certificate"].is_string() { Ok(()) } else { Err(status(3).to_string()) }
    });
    world.delete("secrets", "kube-system", "bootstrap-token-attack");
    let signed: Vec<&str> = (0..3)
        .filter(|number| !status(*number).is_null() && status(*number) != json!({}))
        .map(|number| names[number])
        .collect();
    verdict(signed.is_empty(), format!("approved for {signed:?}"))
}

fn certificate(world: &World, target: &Target) -> Verdict {
    let csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let mut seen = Vec::new();
    for (number, (name, group, signer)) in [
        ("system:node:target", "system:nodes", "kubernetes.io/kube-apiserver-client-kubelet"),
        ("root", "system:masters", "kubernetes.io/kube-apiserver-client"),
        ("system:node:other", "system:masters", "kubernetes.io/kube-apiserver-client-kubelet"),
    ]
    .into_iter()
    .enumerate()
    {
        let csr_name = format!("{}-{number}", target.id);
        let csr = signing_request(&format!("/O={group}/CN={name}"), signer, &csr_name);
        let (code, said) = world.ask(OTHER, "POST", csrs, &csr);
        if code != 201 {
            seen.push(format!("{name} {group}: {code}"));
            continue;
        }
        let approval =
            json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "x", "message": "x"}]}});
        let (approved, _) = world.ask(OTHER, "PATCH", &format!("{csrs}/{csr_name}/approval"), &approval);
        if approved < 400 {
            return Verdict::Breach(format!("it approves its own: {said}"));
        }
        // Controllers have handled it once they have handled a later one that they approve or refuse; approvals are immediate.
        let stored = world.get("certificatesigningrequests", "", &csr_name).unwrap_or_default();
        if stored["status"]["certificate"].is_string() || stored["status"]["conditions"][0]["type"] == "Approved" {
            return Verdict::Breach(format!("signed: {stored}"));
        }
        seen.push(format!("{name} {group}: waits"));
    }
    Verdict::Held(seen.join(", "))
}

const OF_NODES: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// A CertificateSigningRequest of this name, for the certificate of a node.
pub fn request_for(node: &str, name: &str) -> Value {
    signing_request(&format!("/O=system:nodes/CN=system:node:{node}"), OF_NODES, name)
}

fn signing_request(subject: &str, signer: &str, name: &str) -> Value {
    let script = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout /dev/null -subj \"$0\" 2>/dev/null";
    let output = std::process::Command::new("sh").args(["-c", script, subject]).output().unwrap();
    let request = base64::engine::general_purpose::STANDARD.encode(&output.stdout);
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": request, "signerName": signer, "usages": ["digital signature", "client auth"]}})
}
