//! What a node may write of Pods, of its Node, of claims, and which tokens it gets: case by case.

use std::net::IpAddr;

use podwright::api::request::PatchType;
use podwright::api::{Object, Options, Request, Response, Status, Verb};
use podwright::server::Config;
use serde_json::{Value, json};

use super::nodes::{ask, node};
use super::{Api, pod, request};

/// Nodes `n1` and `n2`, each with its range and address, and a Pod `mine` and `other` on them.
async fn cluster() -> Api {
    filled(Api::new().await).await
}

async fn filled(api: Api) -> Api {
    for (n, name) in [(1, "mine"), (2, "other")] {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{n}")},
            "spec": {"podCIDR": format!("10.{n}.0.0/24"), "podCIDRs": [format!("10.{n}.0.0/24"), format!("fd00:{n}::/64")]},
            "status": {"addresses": [{"type": "InternalIP", "address": format!("192.0.2.{n}")}, {"type": "Hostname", "address": format!("10.9.9.{n}")}]},
        });
        api.create("nodes", node).await.unwrap();
        api.create("pods", on(name, &format!("n{n}"))).await.unwrap();
    }
    let mut on_host = on("on-host", "n1");
    on_host["spec"]["hostNetwork"] = true.into();
    api.create("pods", on_host).await.unwrap();
    api
}

fn on(name: &str, node: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = node.into();
    pod
}

/// Refused with these words, or allowed where there are none.
fn judge(what: &str, answer: Result<Response, Status>, why: &str) {
    match answer {
        Ok(_) => assert_eq!(why, "", "{what} is allowed"),
        Err(status) => {
            assert!(!why.is_empty() && status.code == 403 && status.message.ends_with(why), "{what}: {status}");
        }
    }
}

#[tokio::test]
async fn a_node_reports_addresses_that_are_its_own() {
    let api = cluster().await;
    let not_ranges = |ip: &str| format!("node \"n1\" cannot report podIP {ip:?}: it is not one of its spec.podCIDRs");
    let not_own =
        |of: &str, ip: &str| format!("node \"n1\" cannot report {of} {ip:?}: it is not one of its own addresses");
    let cases = [
        ("mine", json!({"podIP": "127.0.0.1"}), not_ranges("127.0.0.1")),
        ("mine", json!({"podIPs": [{"ip": "127.0.0.1"}]}), not_ranges("127.0.0.1")),
        ("mine", json!({"podIP": "10.2.0.5"}), not_ranges("10.2.0.5")),
        ("mine", json!({"podIP": "192.0.2.1"}), not_ranges("192.0.2.1")),
        ("mine", json!({"podIPs": [{"ip": "10.1.0.5"}, {"ip": "fd00:2::5"}]}), not_ranges("fd00:2::5")),
        ("mine", json!({"podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}, {"ip": "fd00:1::5"}]}), String::new()),
        ("mine", json!({"hostIP": "192.0.2.2"}), not_own("hostIP", "192.0.2.2")),
        ("mine", json!({"hostIP": "192.0.2.1", "hostIPs": [{"ip": "192.0.2.1"}]}), String::new()),
        ("on-host", json!({"podIP": "10.1.0.5"}), not_own("podIP", "10.1.0.5")),
        ("on-host", json!({"podIP": "192.0.2.2"}), not_own("podIP", "192.0.2.2")),
        // A name is no address of the node, whatever it looks like.
        ("on-host", json!({"podIP": "10.9.9.1"}), not_own("podIP", "10.9.9.1")),
        ("on-host", json!({"podIP": "192.0.2.1"}), String::new()),
    ];
    for (name, status, why) in cases {
        let answer = ask(&api, Verb::Patch, "pods", name, "status", json!({"status": status})).await;
        judge(&format!("{name} {status}"), answer, &why);
    }
}

#[tokio::test]
async fn a_node_changes_nothing_of_its_pods_but_how_they_are() {
    let api = cluster().await;
    let cases = [
        (
            "mine",
            json!({"metadata": {"labels": {"app": "victim"}}}),
            "node \"n1\" cannot update labels through pod status",
        ),
        ("mine", json!({"metadata": {"labels": null}}), "node \"n1\" cannot update labels through pod status"),
        (
            "mine",
            json!({"metadata": {"finalizers": ["example.com/for-ever"]}}),
            "node \"n1\" cannot update finalizers through pod status",
        ),
        (
            "mine",
            json!({"metadata": {"annotations": {"a": "b"}}}),
            "node \"n1\" cannot update annotations through pod status",
        ),
        (
            "mine",
            json!({"status": {"resourceClaimStatuses": [{"name": "r", "resourceClaimName": "other"}]}}),
            "node \"n1\" cannot update resource claim statues",
        ),
        (
            "mine",
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}]}}),
            "",
        ),
        ("mine", json!({"status": {"phase": "Running"}}), ""),
        ("other", json!({"status": {"phase": "Running"}}), "no relationship found between node 'n1' and this object"),
    ];
    for (name, patch, why) in cases {
        let answer = ask(&api, Verb::Patch, "pods", name, "status", patch.clone()).await;
        judge(&format!("{name} {patch}"), answer, why);
    }
    assert_eq!(api.get("pods", "mine").await.unwrap().0["metadata"]["ownerReferences"], Value::Null);
    let eviction = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    for (verb, name, sub, body, why) in [
        (Verb::Delete, "other", "", Value::Null, "node \"n1\" can only delete pods with spec.nodeName set to itself"),
        (
            Verb::Create,
            "other",
            "eviction",
            eviction("other"),
            "node n1 can only evict pods with spec.nodeName set to itself",
        ),
        // The request's name counts, not the one that the eviction says.
        (
            Verb::Create,
            "other",
            "eviction",
            eviction("mine"),
            "node n1 can only evict pods with spec.nodeName set to itself",
        ),
        (Verb::Create, "mine", "eviction", eviction("mine"), ""),
    ] {
        judge(&format!("{sub} {name}"), ask(&api, verb, "pods", name, sub, body).await, why);
    }
}

#[tokio::test]
async fn a_node_does_not_choose_what_it_is_trusted_with() {
    let api = cluster().await;
    let new = |name: &str, metadata: Value, spec: Value, status: Value| {
        let mut node =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status});
        node["metadata"]["name"] = name.into();
        node
    };
    let made = |metadata: Value, spec: Value| new("n3", metadata, spec, json!({}));
    let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "u"}]);
    let source = json!({"configMap": {"name": "a", "namespace": "b", "kubeletConfigKey": "c"}});
    let creates = [
        (
            made(json!({"labels": {"node-role.kubernetes.io/control-plane": ""}}), json!({})),
            "node \"n3\" is not allowed to set the following labels: node-role.kubernetes.io/control-plane",
        ),
        (made(json!({"ownerReferences": owners}), json!({})), "node \"n3\" is not allowed to modify ownerReferences"),
        (
            made(json!({}), json!({"podCIDR": "0.0.0.0/0", "podCIDRs": ["0.0.0.0/0"]})),
            "node \"n3\" is not allowed to modify podCIDR",
        ),
        (
            made(json!({}), json!({"configSource": source})),
            "node \"n3\" is not allowed to create pods with a non-nil configSource",
        ),
        (
            new("n3", json!({}), json!({}), json!({"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]})),
            "node \"n3\" cannot report the address \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ),
        (new("n4", json!({}), json!({}), json!({})), "node \"n3\" is not allowed to modify node \"n4\""),
        (
            made(json!({"labels": {"kubernetes.io/hostname": "n1"}}), json!({})),
            "node \"n3\" is not allowed to set the label kubernetes.io/hostname to \"n1\": it is not its name",
        ),
        (
            made(json!({"finalizers": ["example.com/for-ever"]}), json!({})),
            "node \"n3\" is not allowed to modify finalizers",
        ),
        (made(json!({"labels": {"kubernetes.io/hostname": "n3"}}), json!({})), ""),
    ];
    for (object, why) in creates {
        let asked = request(Verb::Create, "nodes", "", Some(object.clone()), Options::default());
        judge(&object.to_string(), api.0.handle(Request { user: node("n3"), namespace: None, ..asked }).await, why);
    }
    let updates = [
        ("", json!({"metadata": {"ownerReferences": owners}}), "node \"n1\" is not allowed to modify ownerReferences"),
        (
            "",
            json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
            "node \"n1\" is not allowed to modify taints",
        ),
        (
            "",
            json!({"spec": {"configSource": source}}),
            "node \"n1\" is not allowed to update configSource to a new non-nil configSource",
        ),
        (
            "",
            json!({"spec": {"podCIDRs": ["0.0.0.0/0"], "podCIDR": "0.0.0.0/0"}}),
            "node \"n1\" is not allowed to modify podCIDR",
        ),
        (
            "",
            json!({"metadata": {"finalizers": ["example.com/for-ever"]}}),
            "node \"n1\" is not allowed to modify finalizers",
        ),
        // Kept as it is.
        (
            "status",
            json!({"metadata": {"finalizers": ["example.com/for-ever"]}}),
            "node \"n1\" is not allowed to modify finalizers",
        ),
        (
            "status",
            json!({"metadata": {"labels": {"node-restriction.kubernetes.io/a": "b"}}}),
            "is not allowed to modify labels: node-restriction.kubernetes.io/a",
        ),
        (
            "status",
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "::1"}]}}),
            "node \"n1\" cannot report the address \"::1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ),
        ("status", json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}}), ""),
    ];
    for (sub, patch, why) in updates {
        judge(&patch.to_string(), ask(&api, Verb::Patch, "nodes", "n1", sub, patch.clone()).await, why);
    }
    assert_eq!(api.get("nodes", "n1").await.unwrap().0["metadata"]["finalizers"], Value::Null);
    let other = ask(&api, Verb::Patch, "nodes", "n2", "status", json!({"status": {"addresses": []}})).await;
    assert_eq!(other.unwrap_err().code, 403);
}

/// By its hostname label Pods ask for a node, and a cordon is what an administrator has against one.
#[tokio::test]
async fn a_node_is_asked_for_by_its_own_name_and_stays_cordoned() {
    let api = cluster().await;
    const LABEL: &str = "kubernetes.io/hostname";
    let labelled = |value: Value| json!({"metadata": {"labels": {LABEL: value}}});
    let closed = |value: Value| json!({"spec": {"unschedulable": value}});
    let not = |what: &str| format!("node \"n1\" is not allowed to {what}");
    let of_another = not("set the label kubernetes.io/hostname to \"n2\": it is not its name");
    for (sub, patch, why) in [
        ("", labelled(json!("n2")), of_another.clone()),
        ("status", labelled(json!("n2")), of_another),
        (
            "",
            labelled(json!("db.example")),
            not("set the label kubernetes.io/hostname to \"db.example\": it is not its name"),
        ),
        ("", labelled(json!("n1")), String::new()),
        ("", labelled(Value::Null), not("remove the label kubernetes.io/hostname")),
        ("", closed(json!(true)), String::new()),
        ("", closed(json!(false)), not("clear unschedulable")),
        ("", closed(Value::Null), not("clear unschedulable")),
        ("", json!({"metadata": {"labels": {"example.com/disk": "ssd"}}}), String::new()),
    ] {
        judge(&patch.to_string(), ask(&api, Verb::Patch, "nodes", "n1", sub, patch.clone()).await, &why);
    }
    // What an administrator has made of it stays, and the way back to its name is open, unless another one is asked for by that.
    api.patch("nodes", "n1", labelled(json!("db.example"))).await.unwrap();
    let other = json!({"metadata": {"labels": {"example.com/disk": "hdd"}}});
    judge("kept", ask(&api, Verb::Patch, "nodes", "n1", "", other).await, "");
    api.patch("nodes", "n2", labelled(json!("n1"))).await.unwrap();
    let back = ask(&api, Verb::Patch, "nodes", "n1", "", labelled(json!("n1"))).await;
    judge("another's", back, &not("set the label kubernetes.io/hostname to \"n1\": node \"n2\" has it"));
    api.patch("nodes", "n2", labelled(json!("n2"))).await.unwrap();
    judge("back", ask(&api, Verb::Patch, "nodes", "n1", "", labelled(json!("n1"))).await, "");
    let mut held = super::mirror("held", &api.get("nodes", "n1").await.unwrap());
    held["metadata"]["finalizers"] = json!(["example.com/for-ever"]);
    let held = ask(&api, Verb::Create, "pods", "", "", held).await;
    judge("a mirror for ever", held, &not("modify finalizers"));
}

/// Traffic goes to what a node reports to be its own.
#[tokio::test]
async fn a_node_reports_no_address_of_pods_services_or_other_nodes() {
    let ranges = |text: &str| vec![text.parse().unwrap()];
    let config = Config {
        cluster_cidrs: ranges("10.244.0.0/16"),
        service_cidrs: ranges("10.96.0.0/16"),
        load_balancer_pool: Some("203.0.113.8/29".parse().unwrap()),
        ..Config::default()
    };
    let api = filled(Api::with(config).await).await;
    let no = |why: &str| format!("node \"n1\" cannot report the address {why}");
    let cases = [
        ("10.244.3.4", no("\"10.244.3.4\": it is in the range of Pods' addresses")),
        ("10.96.0.10", no("\"10.96.0.10\": it is in the range of Services' addresses")),
        ("203.0.113.9", no("\"203.0.113.9\": it is in the pool of load balancer addresses")),
        ("203.0.113.17", String::new()),
        ("192.0.2.2", no("\"192.0.2.2\": node \"n2\" has it")),
        ("::ffff:192.0.2.2", no("\"::ffff:192.0.2.2\": must be in canonical form (\"192.0.2.2\")")),
        ("2001:db8:0::1", no("\"2001:db8:0::1\": must be in canonical form (\"2001:db8::1\")")),
        ("192.0.2.51 ", no("\"192.0.2.51 \": must be a valid IP address")),
        ("fe80::1%eth0", no("\"fe80::1%eth0\": must be a valid IP address")),
        ("255.255.255.255", no("\"255.255.255.255\": may not be the broadcast address (255.255.255.255)")),
        // The name of the other one, which looks like an address.
        ("10.9.9.2", String::new()),
        ("192.0.2.22", String::new()),
        ("2001:db8::1", String::new()),
        // As it was, and as it is.
        ("192.0.2.1", String::new()),
    ];
    for (address, why) in cases {
        let patch = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        judge(address, ask(&api, Verb::Patch, "nodes", "n1", "status", patch).await, &why);
    }
    let many: Vec<Value> =
        (0..17).map(|n| json!({"type": "InternalIP", "address": format!("198.51.100.{n}")})).collect();
    let many = ask(&api, Verb::Patch, "nodes", "n1", "status", json!({"status": {"addresses": many}})).await;
    judge("many", many, "node \"n1\" cannot report more than 16 addresses");
    let new = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3"},
        "status": {"addresses": [{"type": "ExternalIP", "address": "192.0.2.2"}]},
    });
    let asked = request(Verb::Create, "nodes", "", Some(new), Options::default());
    let answer = api.0.handle(Request { user: node("n3"), namespace: None, ..asked }).await;
    judge("a new one", answer, "node \"n3\" cannot report the address \"192.0.2.2\": node \"n2\" has it");
    // It calls from there: the machine has it, whoever has said so first.
    let taken = no("\"192.0.2.2\": node \"n2\" has it");
    for (address, reported, why) in [
        ("192.0.2.2", "192.0.2.2", ""),
        ("::ffff:192.0.2.2", "192.0.2.2", ""),
        ("192.0.2.9", "192.0.2.2", &taken),
        ("203.0.113.9", "203.0.113.9", ""),
    ] {
        let report = json!({"status": {"addresses": [{"type": "InternalIP", "address": reported}]}});
        let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
        let asked = request(Verb::Patch, "nodes", "n1", Some(report), options);
        let address = Some(address.parse::<IpAddr>().unwrap().to_canonical());
        let called = Request { user: node("n1"), subresource: Some("status".into()), address, ..asked };
        let answer = api.0.handle(called).await;
        judge("from there", answer, why);
        let back = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
        api.sub(Verb::Patch, "nodes", "n1", "status", back).await.unwrap();
    }
    // Services would lose what leads to them.
    api.create("services", super::service("web", json!({"externalIPs": ["198.51.100.20"]}))).await.unwrap();
    let balancer = super::service("lb", json!({"type": "LoadBalancer"}));
    api.create("services", balancer).await.unwrap();
    let given = json!({"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.21"}]}}});
    api.sub(Verb::Patch, "services", "lb", "status", given).await.unwrap();
    for address in ["198.51.100.20", "198.51.100.21"] {
        let patch = json!({"status": {"addresses": [{"type": "ExternalIP", "address": address}]}});
        let answer = ask(&api, Verb::Patch, "nodes", "n1", "status", patch).await;
        judge(address, answer, &no(&format!("{address:?}: it leads to a Service")));
    }
    // What was a name becomes no address by it.
    let mine = json!({"status": {"addresses": [{"type": "InternalIP", "address": "198.51.100.7"}]}});
    let typed = |of: &str| json!({"status": {"addresses": [{"type": of, "address": "198.51.100.7"}]}});
    judge("a name", ask(&api, Verb::Patch, "nodes", "n1", "status", typed("Hostname")).await, "");
    api.sub(Verb::Patch, "nodes", "n2", "status", mine).await.unwrap();
    let flipped = ask(&api, Verb::Patch, "nodes", "n1", "status", typed("InternalIP")).await;
    judge("flipped", flipped, &no("\"198.51.100.7\": node \"n2\" has it"));
    // An administrator says what he likes, and that stays.
    api.sub(
        Verb::Patch,
        "nodes",
        "n1",
        "status",
        json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.2"}]}}),
    )
    .await
    .unwrap();
    let again = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.2"}, {"type": "Hostname", "address": "n1"}]}});
    judge("kept", ask(&api, Verb::Patch, "nodes", "n1", "status", again).await, "");
}

#[tokio::test]
async fn a_node_gets_tokens_for_the_audiences_that_its_pods_want() {
    let api = cluster().await;
    let plain = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "plain"}});
    api.create("serviceaccounts", plain).await.unwrap();
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "d.example.com"},
        "spec": {"tokenRequests": [{"audience": "for-driver"}]}});
    api.create("csidrivers", driver).await.unwrap();
    let with = |name: &str, volumes: Value| {
        let mut pod = on(name, "n1");
        pod["spec"]["automountServiceAccountToken"] = false.into();
        pod["spec"]["serviceAccountName"] = "plain".into();
        pod["spec"]["volumes"] = volumes;
        pod
    };
    let token = |audience: &str| {
        let source = json!({"serviceAccountToken": {"path": "t", "audience": audience}});
        json!([{"name": "t", "projected": {"sources": [source]}}])
    };
    let csi = json!([{"name": "t", "csi": {"driver": "d.example.com"}}]);
    let mut uids = std::collections::BTreeMap::new();
    for (name, volumes) in [("bare", json!([])), ("vault", token("vault")), ("csi", csi)] {
        uids.insert(name, api.create("pods", with(name, volumes)).await.unwrap().uid().to_owned());
    }
    let not_found = |audience: &str| {
        format!(
            "audience {audience:?} not found in pod spec volume, system:node:n1 is not authorized to request tokens for this audience"
        )
    };
    let uid = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uids[name]});
    let cases = [
        (json!({"audiences": ["vault"], "boundObjectRef": uid("vault")}), String::new()),
        (json!({"audiences": ["for-driver"], "boundObjectRef": uid("csi")}), String::new()),
        (json!({"audiences": ["for-driver"], "boundObjectRef": uid("vault")}), not_found("for-driver")),
        (json!({"audiences": ["other"], "boundObjectRef": uid("vault")}), not_found("other")),
        (json!({"boundObjectRef": uid("vault")}), not_found("")),
        (json!({"boundObjectRef": uid("bare")}), not_found("")),
        (
            json!({"audiences": ["vault", "x"], "boundObjectRef": uid("vault")}),
            "node may only request 0 or 1 audiences".into(),
        ),
        (json!({"audiences": ["vault"]}), "node requested token not bound to a pod".into()),
        (
            json!({"audiences": ["vault"], "boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}}),
            "node requested token not bound to a pod".into(),
        ),
        (
            json!({"audiences": ["vault"], "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "vault"}}),
            "node requested token with a pod binding without a uid".into(),
        ),
        (
            json!({"audiences": ["vault"], "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "vault", "uid": "old"}}),
            "does not match the UID in record. The object might have been deleted and then recreated".into(),
        ),
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": other_uid(&api).await}}),
            "node requested token bound to a pod scheduled on a different node".into(),
        ),
    ];
    for (spec, why) in cases {
        let answer = ask(&api, Verb::Create, "serviceaccounts", "plain", "token", json!({"spec": spec})).await;
        judge(&spec.to_string(), answer, &why);
    }
}

async fn other_uid(api: &Api) -> String {
    api.get("pods", "other").await.unwrap().uid().to_owned()
}

#[tokio::test]
async fn a_node_reports_of_a_claim_how_far_its_growth_has_come() {
    let api = cluster().await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    api.create("persistentvolumeclaims", claim).await.unwrap();
    let mut using = on("using", "n1");
    using["spec"]["volumes"] = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
    api.create("pods", using).await.unwrap();
    let why = "node \"n1\" is not allowed to update fields other than status.capacity and status.conditions";
    for (patch, why) in [
        (json!({"status": {"capacity": {"storage": "2Gi"}}}), ""),
        (json!({"status": {"phase": "Bound"}}), why),
        (json!({"metadata": {"labels": {"a": "b"}}}), why),
        (json!({"metadata": {"annotations": {"a": "b"}}}), why),
    ] {
        let answer = ask(&api, Verb::Patch, "persistentvolumeclaims", "data", "status", patch.clone()).await;
        judge(&patch.to_string(), answer, why);
    }
}

/// Leases and CSINodes carry the names of their nodes.
#[tokio::test]
async fn a_node_keeps_its_own_lease_and_csi_node() {
    let api = cluster().await;
    let named = |api_version: &str, kind: &str, name: &str| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": {}});
    let lease = |name: &str| named("coordination.k8s.io/v1", "Lease", name);
    let mut csi = named("storage.k8s.io/v1", "CSINode", "n2");
    csi["spec"]["drivers"] = json!([]);
    let mut own = csi.clone();
    own["metadata"]["name"] = "n1".into();
    let cases = [
        (
            "leases",
            Some("kube-node-lease"),
            lease("n2"),
            "can only access node lease with the same name as the requesting node",
        ),
        ("leases", Some("kube-node-lease"), lease("n1"), ""),
        ("csinodes", None, csi, "can only access CSINode with the same name as the requesting node"),
        ("csinodes", None, own, ""),
    ];
    for (resource, namespace, object, why) in cases {
        let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
        let asked = request(Verb::Create, resource, "", Some(object.clone()), options);
        let namespace = namespace.map(str::to_owned);
        judge(&object.to_string(), api.0.handle(Request { user: node("n1"), namespace, ..asked }).await, why);
    }
    let _: Object = api.get("csinodes", "n1").await.unwrap();
}

/// Who may write an Event reads it, too.
#[tokio::test]
async fn a_node_writes_events_of_its_own_alone() {
    let api = cluster().await;
    let event = |name: &str, host: &str, instance: &str| {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "source": {"component": "kubelet", "host": host},
            "reportingComponent": "kubelet", "reportingInstance": instance,
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "mine"}})
    };
    let why = "node \"n1\" can only write events that it reports itself";
    api.create("events", event("others", "n2", "n2")).await.unwrap();
    for (verb, name, body, why) in [
        (Verb::Create, "", event("a", "n1", ""), ""),
        (Verb::Create, "", event("b", "", "n1"), ""),
        (Verb::Create, "", event("c", "n2", ""), why),
        (Verb::Create, "", event("d", "", ""), why),
        (Verb::Create, "", event("e", "n2", "n1"), why),
        (Verb::Patch, "a", json!({"message": "again"}), ""),
        (Verb::Patch, "a", json!({"source": {"host": "n2"}, "reportingInstance": "n2"}), why),
        (Verb::Patch, "others", json!({}), why),
        (Verb::Patch, "others", json!({"source": {"host": "n1"}}), why),
    ] {
        judge(&format!("{verb:?} {name} {body}"), ask(&api, verb, "events", name, "", body.clone()).await, why);
    }
}
