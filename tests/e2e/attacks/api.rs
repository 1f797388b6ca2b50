//! By users of the API: what is another tenant's, what raises their rights, what brings the server down or makes it dial.

use std::time::Duration;

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::{Value, json};

use super::nodes::all_refused;
use super::world::{ADMIN, BASELINE, EDIT, OURS, ROOT, SECRET, THEIRS, VIEW, World};
use super::{Attack, POD, Pod, Target, Try, Verdict, verdict};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "mirror-annotation",
        class: "identity",
        cves: &[],
        how: "a user with `edit` writes the uid of a victim's Pod as mirror annotation on a Pod of his own, of any and of the same name; then exec, logs",
        held: "identity never comes from what a user can write; the annotation is accepted from the node alone",
        attempt: Try::Code(mirror_annotation),
    },
    Attack {
        id: "mirror-annotation-path",
        class: "identity",
        cves: &[],
        how: "the same annotation with `..` parts that lead to a file of the host, then logs",
        held: "as above; and a uid that reaches a path has a uid's form",
        attempt: Try::Code(mirror_annotation_path),
    },
    Attack {
        id: "mirror-annotation-template",
        class: "identity",
        cves: &[],
        how: "a user with `edit` writes the mirror annotation, a node's name and the node as owner into the template of a ReplicaSet, whose controller may do everything",
        held: "a mirror is owned by its Node alone, and what a controller makes is the controller's",
        attempt: Try::Code(mirror_annotation_template),
    },
    Attack {
        id: "tenant-reads",
        class: "tenants",
        cves: &["CVE-2022-3162", "CVE-2019-11247"],
        how: "users with edit, admin and view in one tenant read, write, watch, exec, proxy in the other; cluster-wide lists; paths with `..`, encoded slashes, and a namespace before cluster-scoped kinds",
        held: "RBAC on the parsed path; what was decoded is a name, never a path",
        attempt: Try::Code(tenant_reads),
    },
    Attack {
        id: "view-reads-secrets",
        class: "tenants",
        cves: &[],
        how: "`view` in its own tenant: Secrets, exec, attach, port-forward, proxy, tokens, ephemeral containers, writes",
        held: "upstream's role `view`",
        attempt: Try::Code(view_reads_secrets),
    },
    Attack {
        id: "grants",
        class: "tenants",
        cves: &[],
        how: "`edit` and `admin` grant themselves more: bindings, roles with more than they have, aggregation labels, quotas, the namespace's Pod Security labels",
        held: "nobody grants what he does not have (escalate, bind)",
        attempt: Try::Code(grants),
    },
    Attack {
        id: "endpoints-write",
        class: "tenants",
        cves: &["CVE-2021-25740"],
        how: "`edit` and `admin` point Endpoints and EndpointSlices at another tenant's Pod",
        held: "the roles have no write on them, as upstream since 1.22",
        attempt: Try::Code(endpoints_write),
    },
    Attack {
        id: "endpoints-loopback",
        class: "server-side requests",
        cves: &["CVE-2021-25737", "CVE-2020-8558"],
        how: "EndpointSlices and Endpoints with loopback, link-local, unspecified and multicast addresses, in mapped and odd spellings",
        held: "refused by validation",
        attempt: Try::Code(endpoints_loopback),
    },
    Attack {
        id: "impersonation",
        class: "identity",
        cves: &[],
        how: "`Impersonate-User`, `-Group`, `-Uid` and `-Extra-*` by users who may not, twice, and without a user",
        held: "each header needs the right to impersonate just that",
        attempt: Try::Code(impersonation),
    },
    Attack {
        id: "front-proxy-headers",
        class: "identity",
        cves: &[],
        how: "`X-Remote-User: root` and `X-Remote-Group: system:masters` from anybody",
        held: "such headers are not looked at",
        attempt: Try::Code(front_proxy_headers),
    },
    Attack {
        id: "anonymous",
        class: "identity",
        cves: &["CVE-2019-11248"],
        how: "without credentials: objects, logs, metrics, profiles, JSON-RPC methods, streams of sessions, upgrades",
        held: "system:anonymous may read versions and health alone",
        attempt: Try::Code(anonymous),
    },
    Attack {
        id: "proxy-credentials",
        class: "server-side requests",
        cves: &[],
        how: "a Pod prints what the proxy sends it: Authorization, Impersonate-*, X-Remote-*, cookies of the server",
        held: "credentials and who is impersonated stay with the server",
        attempt: Try::Code(proxy_credentials),
    },
    Attack {
        id: "proxy-redirect",
        class: "server-side requests",
        cves: &["CVE-2020-8559"],
        how: "a Pod answers the proxy with a redirect to the server's loopback, and an upgrade with one",
        held: "redirects are handed to the client, never followed",
        attempt: Try::Code(proxy_redirect),
    },
    Attack {
        id: "smuggling",
        class: "HTTP",
        cves: &[],
        how: "Content-Length with Transfer-Encoding, twice, signed, with blanks; a second request hides in the body",
        held: "the HTTP library refuses such messages, and closes their connection",
        attempt: Try::Code(smuggling),
    },
    Attack {
        id: "yaml-bomb",
        class: "exhaustion",
        cves: &["CVE-2019-11253", "CVE-2019-11254"],
        how: "YAML whose aliases refer to aliases, nine times",
        held: "aliases are counted while parsing",
        attempt: Try::Code(yaml_bomb),
    },
    Attack {
        id: "json-patch-bomb",
        class: "exhaustion",
        cves: &["CVE-2019-1002100"],
        how: "a JSON patch that copies a document into itself, again and again",
        held: "operations and copied bytes have a limit",
        attempt: Try::Code(json_patch_bomb),
    },
    Attack {
        id: "ephemeral-container",
        class: "Pod Security",
        cves: &["CVE-2023-2727"],
        how: "a privileged ephemeral container in a Pod of a `baseline` namespace",
        held: "Pod Security looks at ephemeral containers too",
        attempt: Try::Code(ephemeral_container),
    },
    Attack {
        id: "mountable-secrets",
        class: "admission",
        cves: &["CVE-2023-2728", "CVE-2024-3177"],
        how: "a ServiceAccount with `kubernetes.io/enforce-mountable-secrets`: Pods that take other Secrets by volume, env, envFrom, imagePullSecrets",
        held: "the ServiceAccount plugin refuses all of them",
        attempt: Try::Code(mountable_secrets),
    },
    Attack {
        id: "legacy-token",
        class: "tenants",
        cves: &[],
        how: "a Secret of type service-account-token for the account of another tenant, by `edit`",
        held: "a token's Secret is for an account of its own namespace",
        attempt: Try::Code(legacy_token),
    },
    Attack {
        id: "certificate-masters",
        class: "identity",
        cves: &[],
        how: "an administrator's CertificateSigningRequest for the group system:masters",
        held: "CertificateSubjectRestriction",
        attempt: Try::Code(certificate_masters),
    },
    Attack {
        id: "namesakes",
        class: "tenants",
        cves: &[],
        how: "a tenant who may all in the group `evil.example`, which defines Service, Node and Secret: a Service with the ClusterIP of a victim is deleted, and the address asked for; a Node named as the real one, and sessions with it by REST and JSON-RPC; a Secret that asks for a token; specs of every shape",
        held: "built-in behaviour goes by the row of the kinds table, never by what a kind is called; a ClusterIP is freed by its owner alone",
        attempt: Try::Code(super::namesakes::namesakes),
    },
];

fn get(path: impl Into<String>) -> (&'static str, String, Value) {
    ("GET", path.into(), Value::Null)
}

fn mirror_annotation(world: &World, target: &Target) -> Verdict {
    let uid = world.get("pods", THEIRS, "victim").unwrap()["metadata"]["uid"].clone();
    let pods = format!("/api/v1/namespaces/{OURS}/pods");
    let annotation = json!({"kubernetes.io/config.mirror": uid});
    let mut seen = Vec::new();
    for name in [target.id, "victim"] {
        for from_the_start in [true, false] {
            let mut pod = world.pod(target, &Pod { script: "sleep 1000", ..POD });
            pod["metadata"] = json!({"name": name});
            if from_the_start {
                pod["metadata"]["annotations"] = annotation.clone();
            }
            let (made, said) = world.ask(EDIT, "POST", &pods, &pod);
            seen.push(format!("made: {made}"));
            if made != 201 && from_the_start {
                continue;
            }
            if made != 201 {
                return Verdict::Untried(said);
            }
            if !from_the_start {
                world.node.wait("condition=Ready", &["-n", OURS, &format!("pod/{name}")], Duration::from_secs(30));
                let change = json!({"metadata": {"annotations": annotation}});
                let (patched, _) = world.ask(EDIT, "PATCH", &format!("{pods}/{name}"), &change);
                seen.push(format!("given it: {patched}"));
            }
            // A session goes to the node once there is one.
            crate::support::eventually("it is on its node", super::PATIENCE, || {
                let pod = world.get("pods", OURS, name).unwrap_or_default();
                if pod["spec"]["nodeName"].is_string() { Ok(()) } else { Err(pod["status"].to_string()) }
            });
            let (_, log) = world.ask(EDIT, "GET", &format!("{pods}/{name}/log"), &Value::Null);
            let word = world.node.run(&["-n", OURS, "exec", name, "-c", "c", "--", "cat", "/word"]).all();
            world.delete("pods", OURS, name);
            if log.contains(SECRET) || word.contains(SECRET) {
                return Verdict::Breach(format!("{name}: its log: {log}; exec: {word}"));
            }
            crate::support::eventually("it is gone", super::PATIENCE, || match world.get("pods", OURS, name) {
                Some(pod) => Err(pod["status"].to_string()),
                None => Ok(()),
            });
        }
    }
    Verdict::Held(seen.join(", "))
}

fn mirror_annotation_path(world: &World, target: &Target) -> Verdict {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("c")).unwrap();
    std::fs::write(folder.path().join("c/0.log"), format!("2024-01-02T03:04:05.000000000Z stdout F {}\n", target.text))
        .unwrap();
    let pods = format!("/api/v1/namespaces/{OURS}/pods");
    let mut pod = world.pod(target, &Pod { script: "sleep 1000", ..POD });
    pod["metadata"] = json!({"name": target.id});
    let (code, why) = world.ask(EDIT, "POST", &pods, &pod);
    if code != 201 {
        return Verdict::Untried(why);
    }
    world.node.wait("condition=Ready", &["-n", OURS, &format!("pod/{}", target.id)], Duration::from_secs(30));
    let own = world.get("pods", OURS, target.id).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let mut said = String::new();
    for uid in [
        // There is a folder of this name, from which the way leads on.
        format!("{own}/../../../../../../../../..{}", folder.path().display()),
        format!("x/../../../../../../../..{}", folder.path().display()),
        format!("/..{}", folder.path().display()),
        folder.path().display().to_string(),
    ] {
        let annotations = json!({"kubernetes.io/config.mirror": uid});
        let mut another = pod.clone();
        another["metadata"] = json!({"name": "another", "annotations": annotations});
        said.push_str(&world.ask(EDIT, "POST", &pods, &another).1);
        let change = json!({"metadata": {"annotations": annotations}});
        said.push_str(&world.ask(EDIT, "PATCH", &format!("{pods}/{}", target.id), &change).1);
        for name in [target.id, "another"] {
            said.push_str(&world.ask(EDIT, "GET", &format!("{pods}/{name}/log"), &Value::Null).1);
            said.push_str(&world.node.run(&["-n", OURS, "exec", name, "--", "true"]).all());
        }
        world.delete("pods", OURS, "another");
    }
    world.delete("pods", OURS, target.id);
    let left = crate::support::registry::tree(folder.path());
    verdict(!said.contains(&target.text) && left == ["c", "c/0.log"], format!("{left:?} {said}"))
}

fn mirror_annotation_template(world: &World, target: &Target) -> Verdict {
    let node = world.get("nodes", "", super::world::NODE).unwrap();
    let mut template = world.pod(target, &Pod { script: "sleep 1000", ..POD });
    template["spec"]["restartPolicy"] = "Always".into();
    template["spec"]["nodeName"] = super::world::NODE.into();
    template["metadata"] = json!({
        "labels": {"app": target.id}, "annotations": {"kubernetes.io/config.mirror": node["metadata"]["uid"]},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": super::world::NODE, "uid": node["metadata"]["uid"], "controller": true}],
    });
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": target.id},
        "spec": {"selector": {"matchLabels": {"app": target.id}}, "template": template}});
    let (code, said) = world.ask(EDIT, "POST", &format!("/apis/apps/v1/namespaces/{OURS}/replicasets"), &set);
    if code != 201 {
        return Verdict::Held(said);
    }
    let mut why = String::new();
    crate::support::eventually("the controller has tried", super::PATIENCE, || {
        let set = world.get("replicasets.apps", OURS, target.id).unwrap_or_default();
        why = set["status"].to_string();
        if why.contains("FailedCreate") || set["status"]["replicas"] == 1 { Ok(()) } else { Err(why.clone()) }
    });
    let pods = world.node.run(&["-n", OURS, "get", "pods", "-l", &format!("app={}", target.id), "-o", "name"]).out;
    world.delete("replicasets.apps", OURS, target.id);
    verdict(pods.is_empty() && why.contains("owner reference"), format!("{pods} {why}"))
}

fn tenant_reads(world: &World, _: &Target) -> Verdict {
    let theirs = "/api/v1/namespaces/tenant-b";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": "root", "resourceAttributes": {"verb": "get"}}});
    let asked = [
        get(format!("{theirs}/secrets/victim")),
        get(format!("{theirs}/secrets")),
        get(format!("{theirs}/secrets?watch=1&timeoutSeconds=1")),
        get("/api/v1/secrets"),
        get("/api/v1/watch/secrets?timeoutSeconds=1"),
        get("/api/v1/watch/namespaces/tenant-b/secrets/victim?timeoutSeconds=1"),
        get("/api/v1/pods"),
        get(format!("{theirs}/pods/victim")),
        get(format!("{theirs}/pods/victim/log")),
        get(format!("{theirs}/pods/victim/proxy/")),
        get(format!("{theirs}/pods/victim:1/proxy/../../../secrets/victim")),
        get(format!("{theirs}/services/x/proxy/")),
        get(format!("{theirs}/pods/victim/exec?command=id&stdout=1")),
        ("POST", format!("{theirs}/pods/victim/exec?command=id&stdout=1"), Value::Null),
        ("POST", format!("{theirs}/pods"), pod),
        ("POST", format!("{theirs}/serviceaccounts/default/token"), json!({"spec": {}})),
        ("DELETE", format!("{theirs}/pods/victim"), Value::Null),
        ("PATCH", format!("{theirs}/secrets/victim"), json!({"data": {}})),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews".into(), review),
        get("/api/v1/namespaces/tenant-a/../tenant-b/secrets/victim"),
        get("/api/v1/namespaces/tenant-a/secrets/..%2f..%2ftenant-b%2fsecrets%2fvictim"),
        get("/api/v1/namespaces/tenant-a%2f..%2ftenant-b/secrets/victim"),
        get("/api/v1/namespaces/tenant-a/secrets%2f..%2f..%2ftenant-b%2fsecrets/victim"),
        get("/api/v1/namespaces/tenant-a/%2e%2e/tenant-b/secrets/victim"),
        get("/api/v1/namespaces//secrets"),
        get("/api/v1/namespaces/tenant-b%00/secrets/victim"),
        get("//api/v1/namespaces/tenant-b/secrets/victim"),
        get("/api/v1/namespaces/tenant-a/nodes"),
        get("/api/v1/namespaces/tenant-a/persistentvolumes"),
        get("/apis/rbac.authorization.k8s.io/v1/namespaces/tenant-a/clusterroles/cluster-admin"),
        get("/api/v1/nodes"),
        get("/api/v1/nodes/target/proxy/"),
        get("/apis/metrics.k8s.io/v1beta1/pods"),
    ];
    for token in [EDIT, ADMIN, VIEW] {
        match all_refused(world, token, &asked) {
            Verdict::Held(_) => {}
            other => return other,
        }
    }
    Verdict::Held(format!("{} requests by three users", asked.len() * 3))
}

fn view_reads_secrets(world: &World, _: &Target) -> Verdict {
    let ours = "/api/v1/namespaces/tenant-a";
    world.create("secrets", OURS, json!({"metadata": {"name": "own"}, "stringData": {"word": SECRET}})).unwrap();
    let asked = [
        get(format!("{ours}/secrets/own")),
        get(format!("{ours}/secrets")),
        get(format!("{ours}/secrets?watch=1&timeoutSeconds=1")),
        get(format!("{ours}/pods/p/exec?command=id&stdout=1")),
        ("POST", format!("{ours}/pods/p/exec?command=id&stdout=1"), Value::Null),
        get(format!("{ours}/pods/p/attach?stdout=1")),
        get(format!("{ours}/pods/p/portforward?ports=1")),
        get(format!("{ours}/pods/p/proxy/")),
        ("POST", format!("{ours}/serviceaccounts/default/token"), json!({"spec": {}})),
        ("PATCH", format!("{ours}/pods/p/ephemeralcontainers"), json!({"spec": {}})),
        ("POST", format!("{ours}/configmaps"), json!({"metadata": {"name": "x"}})),
        get("/apis/rbac.authorization.k8s.io/v1/namespaces/tenant-a/rolebindings"),
    ];
    all_refused(world, VIEW, &asked)
}

fn grants(world: &World, _: &Target) -> Verdict {
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/tenant-a";
    let binding = |role: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "more"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "tenants"}]})
    };
    let role = |rule: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "more"}, "rules": [rule]});
    let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    let impersonate =
        json!({"apiGroups": [""], "resources": ["serviceaccounts", "users"], "verbs": ["impersonate", "escalate"]});
    let cluster = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "more", "labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}, "rules": [all]});
    let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    let asked = [
        ("POST", format!("{rbac}/rolebindings"), binding("cluster-admin")),
        ("POST", format!("{rbac}/roles"), role(all.clone())),
        ("PATCH", format!("{rbac}/rolebindings/edit"), json!({"roleRef": {"name": "cluster-admin"}})),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned(), cluster),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(), binding("cluster-admin")),
        ("PATCH", "/api/v1/namespaces/tenant-a".to_owned(), labels),
        ("POST", "/api/v1/namespaces/tenant-a/resourcequotas".to_owned(), json!({"metadata": {"name": "q"}})),
    ];
    for token in [EDIT, ADMIN] {
        match all_refused(world, token, &asked) {
            Verdict::Held(_) => {}
            other => return other,
        }
    }
    // What of these an admin has himself he may grant; not more than that.
    all_refused(world, EDIT, &[("POST", format!("{rbac}/roles"), role(impersonate))])
}

fn endpoints_write(world: &World, _: &Target) -> Verdict {
    let victim = world.node.field(&["-n", THEIRS, "pod", "victim"], ".status.podIP");
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [{"addresses": [victim]}]});
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "s"}, "subsets": [{"addresses": [{"ip": victim}]}]});
    let asked = [
        ("POST", "/apis/discovery.k8s.io/v1/namespaces/tenant-a/endpointslices".to_owned(), slice),
        ("POST", "/api/v1/namespaces/tenant-a/endpoints".to_owned(), endpoints),
    ];
    match all_refused(world, EDIT, &asked) {
        Verdict::Held(_) => all_refused(world, ADMIN, &asked),
        other => other,
    }
}

fn endpoints_loopback(world: &World, _: &Target) -> Verdict {
    let mut asked = Vec::new();
    for (address, kind) in [
        ("127.0.0.1", "IPv4"),
        ("127.1.2.3", "IPv4"),
        ("169.254.169.254", "IPv4"),
        ("0.0.0.0", "IPv4"),
        ("224.0.0.1", "IPv4"),
        ("010.0.0.1", "IPv4"),
        ("::1", "IPv6"),
        ("fe80::1", "IPv6"),
        ("::", "IPv6"),
        ("ff02::1", "IPv6"),
        ("::ffff:127.0.0.1", "IPv6"),
    ] {
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s"}, "addressType": kind, "endpoints": [{"addresses": [address]}]});
        let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "s"}, "subsets": [{"addresses": [{"ip": address}]}]});
        asked.push(("POST", "/apis/discovery.k8s.io/v1/namespaces/tenant-a/endpointslices".to_owned(), slice));
        asked.push(("POST", "/api/v1/namespaces/tenant-a/endpoints".to_owned(), endpoints));
    }
    all_refused(world, ROOT, &asked)
}

/// One request with more headers; the code and all of the answer.
fn with_headers(world: &World, token: &str, path: &str, headers: &str) -> (u16, String) {
    let bearer = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let said = world.raw(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}{headers}\r\n"));
    (said.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0), said)
}

fn impersonation(world: &World, _: &Target) -> Verdict {
    let path = "/api/v1/namespaces/tenant-b/secrets/victim";
    let mut seen = Vec::new();
    for headers in [
        "Impersonate-User: root\r\n",
        "impersonate-user: system:admin\r\nImpersonate-Group: system:masters\r\n",
        "Impersonate-Group: system:masters\r\n",
        "Impersonate-User: edna\r\nImpersonate-Group: system:masters\r\n",
        "Impersonate-User: edna\r\nImpersonate-User: root\r\n",
        "Impersonate-User: system:serviceaccount:tenant-b:default\r\n",
        "Impersonate-Uid: 6\r\nImpersonate-User: edna\r\n",
        "Impersonate-User: system:node:target\r\nImpersonate-Group: system:nodes\r\n",
        "Impersonate-Extra-x: y\r\n",
    ] {
        for token in [EDIT, ADMIN, super::world::AGENT] {
            let (code, said) = with_headers(world, token, path, headers);
            if !matches!(code, 400 | 401 | 403 | 500) || said.contains("d2hhdCBvbmx5") {
                return Verdict::Breach(format!("{headers:?}: {said}"));
            }
            seen.push(code.to_string());
        }
    }
    Verdict::Held(seen.join(" "))
}

fn front_proxy_headers(world: &World, _: &Target) -> Verdict {
    let headers = "X-Remote-User: root\r\nX-Remote-Group: system:masters\r\nX-Forwarded-For: 127.0.0.1\r\nX-Original-Uri: /healthz\r\nX-HTTP-Method-Override: GET\r\n";
    let mut seen = Vec::new();
    for token in ["", EDIT] {
        let (code, said) = with_headers(world, token, "/api/v1/namespaces/tenant-b/secrets/victim", headers);
        if !matches!(code, 401 | 403) {
            return Verdict::Breach(said);
        }
        seen.push(code.to_string());
    }
    Verdict::Held(seen.join(" "))
}

fn anonymous(world: &World, _: &Target) -> Verdict {
    let call = |method: &str| json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"resource": "secrets", "namespace": THEIRS, "name": "victim", "path": "/tmp/x"}});
    let mut seen = Vec::new();
    for path in [
        "/api/v1/secrets",
        "/apis/apps/v1/deployments",
        "/metrics",
        "/debug/pprof/",
        "/debug/pprof/heap",
        "/logs/",
        "/configz",
        "/stream/1",
        "/openid/v1/x",
        "/api/v1/namespaces/tenant-b/pods/victim/log",
    ] {
        let (code, said) = world.ask("", "GET", path, &Value::Null);
        if !matches!(code, 400..=499) {
            return Verdict::Breach(format!("{path}: {said}"));
        }
        seen.push(format!("{path} {code}"));
    }
    for method in ["get", "list", "delete", "connect", "backup", "create"] {
        let (code, said) = world.ask("", "POST", "/rpc", &call(method));
        if said.contains("\"result\"") || said.contains("d2hhdCBvbmx5") {
            return Verdict::Breach(format!("{method}: {said}"));
        }
        seen.push(format!("{method} {code}"));
    }
    Verdict::Held(seen.join(", "))
}

/// A Pod of the attackers' that answers every connection with this, and prints what it got.
fn answering(world: &World, target: &Target, answer: &str) -> Result<(), String> {
    let script = format!("while true; do printf '{answer}' | nc -l -p 8080 -w 3; done");
    let mut pod = world.pod(target, &POD);
    pod["metadata"]["namespace"] = json!(OURS);
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    world.create("pods", OURS, pod)?;
    world.node.wait("condition=Ready", &["-n", OURS, &format!("pod/{}", target.id)], Duration::from_secs(30));
    Ok(())
}

/// A request through the Pod's proxy, until it listens.
fn proxied(world: &World, target: &Target, headers: &str) -> (u16, String) {
    let path = format!("/api/v1/namespaces/{OURS}/pods/{}:8080/proxy/x", target.id);
    crate::support::eventually("the Pod answers", super::PATIENCE, || match with_headers(world, ROOT, &path, headers) {
        (500..=599 | 0, said) => Err(said),
        other => Ok(other),
    })
}

fn proxy_credentials(world: &World, target: &Target) -> Verdict {
    if let Err(why) =
        answering(world, target, "HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nok")
    {
        return Verdict::Untried(why);
    }
    let headers =
        "Impersonate-User: root\r\nImpersonate-Group: system:masters\r\nX-Remote-User: root\r\nX-Honest: yes\r\n";
    let log = crate::support::eventually("it printed the request", super::PATIENCE, || {
        // It answers without reading: a request may be lost with its connection.
        let (code, said) = proxied(world, target, headers);
        let log = world.logs(target, OURS);
        if log.to_lowercase().contains("x-honest") { Ok(log) } else { Err(format!("{code} {said} {log}")) }
    });
    let lower = log.to_lowercase();
    let leaked: Vec<&str> =
        ["authorization", "impersonate", ROOT, "x-remote"].into_iter().filter(|part| lower.contains(part)).collect();
    verdict(leaked.is_empty(), format!("{leaked:?} in {log}"))
}

fn proxy_redirect(world: &World, target: &Target) -> Verdict {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = format!(
        "HTTP/1.1 302 Found\\r\\nLocation: http://127.0.0.1:{port}/\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n"
    );
    if let Err(why) = answering(world, target, &answer) {
        return Verdict::Untried(why);
    }
    let (code, said) = proxied(world, target, "");
    let (upgraded, again) = proxied(
        world,
        target,
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
    );
    verdict(listener.accept().is_err() && code == 302, format!("{code} {said}; upgrade: {upgraded} {again}"))
}

fn smuggling(world: &World, _: &Target) -> Verdict {
    let hidden = format!(
        "GET /api/v1/namespaces/tenant-b/secrets/victim HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ROOT}\r\nConnection: close\r\n\r\n"
    );
    let ask = |headers: &str| {
        world.raw(&format!("POST /api/v1/namespaces/tenant-a/configmaps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {EDIT}\r\n{headers}\r\n0\r\n\r\n{hidden}"))
    };
    let honest = ask("Transfer-Encoding: chunked\r\n");
    if honest.matches("HTTP/1.1 ").count() != 2 {
        return Verdict::Untried(format!("not even a second request that is one is answered: {honest}"));
    }
    let mut seen = Vec::new();
    for headers in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 5\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let said = ask(headers);
        let code: u16 = said.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        if code != 400 || said.matches("HTTP/1.1 ").count() != 1 {
            return Verdict::Breach(format!("{headers:?}: {said}"));
        }
        seen.push(code.to_string());
    }
    Verdict::Held(seen.join(" "))
}

fn resident(world: &World) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.node.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

/// A body of some type; the code, how long it took, and by how much the server's memory grew at most.
fn weighed(world: &World, method: &str, path: &str, kind: &str, body: &str) -> (u16, Duration, u64, String) {
    let (before, begin) = (resident(world), std::time::Instant::now());
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {EDIT}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let said = world.raw(&(head + body));
    let code = said.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (code, begin.elapsed(), resident(world).saturating_sub(before), said.chars().take(300).collect())
}

fn yaml_bomb(world: &World, _: &Target) -> Verdict {
    let mut bomb =
        String::from("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\nx:\n  a: &a [x,x,x,x,x,x,x,x,x,x]\n");
    for (from, to) in "abcdefgh".chars().zip("bcdefghi".chars()) {
        let refers = vec![format!("*{from}"); 10].join(",");
        bomb.push_str(&format!("  {to}: &{to} [{refers}]\n"));
    }
    let (code, took, grew, said) =
        weighed(world, "POST", "/api/v1/namespaces/tenant-a/configmaps", "application/yaml", &bomb);
    verdict(
        matches!(code, 400..=422) && took < Duration::from_secs(30) && grew < 300,
        format!("{code} in {took:?}, {grew} MiB more: {said}"),
    )
}

fn json_patch_bomb(world: &World, target: &Target) -> Verdict {
    world
        .create("configmaps", OURS, json!({"metadata": {"name": target.id}, "data": {"a": "x".repeat(1000)}}))
        .unwrap();
    let copies: Vec<Value> =
        (0..40).map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/c{n}")})).collect();
    let path = format!("/api/v1/namespaces/{OURS}/configmaps/{}", target.id);
    let (code, took, grew, said) =
        weighed(world, "PATCH", &path, "application/json-patch+json", &Value::Array(copies).to_string());
    verdict(
        matches!(code, 400..=422) && took < Duration::from_secs(30) && grew < 300,
        format!("{code} in {took:?}, {grew} MiB more: {said}"),
    )
}

fn ephemeral_container(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &Pod { namespace: BASELINE, script: "sleep 1000", ..POD }) {
        return Verdict::Untried(why);
    }
    let path = format!("/api/v1/namespaces/{BASELINE}/pods/{}/ephemeralcontainers", target.id);
    let container = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "localhost/attack:1", "securityContext": {"privileged": true}}]}});
    let (code, said) = world.ask(ROOT, "PATCH", &path, &container);
    verdict(code == 403, said)
}

fn mountable_secrets(world: &World, target: &Target) -> Verdict {
    let account = json!({"metadata": {"name": target.id, "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}, "secrets": [{"name": "allowed"}]});
    world.create("serviceaccounts", OURS, account).unwrap();
    let mut seen = Vec::new();
    for (number, (spec, container)) in [
        (json!({"volumes": [{"name": "v", "secret": {"secretName": "other"}}]}), json!({})),
        (json!({}), json!({"envFrom": [{"secretRef": {"name": "other"}}]})),
        (json!({}), json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "other", "key": "x"}}}]})),
        (json!({"imagePullSecrets": [{"name": "other"}]}), json!({})),
    ]
    .into_iter()
    .enumerate()
    {
        let mut pod = world.pod(target, &POD);
        pod["metadata"] = json!({"name": format!("{}-{number}", target.id)});
        pod["spec"]["serviceAccountName"] = json!(target.id);
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        pod["spec"]["containers"][0].as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let (code, said) = world.ask(EDIT, "POST", &format!("/api/v1/namespaces/{OURS}/pods"), &pod);
        if code != 403 {
            return Verdict::Breach(format!("{spec} {container}: {code} {said}"));
        }
        seen.push(said.lines().last().unwrap_or_default().to_owned());
    }
    Verdict::Held(seen.remove(0))
}

fn legacy_token(world: &World, target: &Target) -> Verdict {
    let uid = world.get("serviceaccounts", THEIRS, "default").unwrap()["metadata"]["uid"].clone();
    let mut seen = Vec::new();
    for (number, account) in ["default", "../tenant-b/default", "tenant-b:default"].iter().enumerate() {
        let name = format!("{}-{number}", target.id);
        let secret = json!({"metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": account, "kubernetes.io/service-account.uid": uid}}, "type": "kubernetes.io/service-account-token"});
        let (code, _) = world.ask(EDIT, "POST", &format!("/api/v1/namespaces/{OURS}/secrets"), &secret);
        let stored = world.get("secrets", OURS, &name).unwrap_or_default();
        seen.push(format!("{account}: {code}"));
        // One of its own tenant `edit` may have anyway.
        let token = stored["data"]["token"].as_str().map(|text| STANDARD.decode(text).unwrap()).unwrap_or_default();
        let claims = String::from_utf8_lossy(&token).split('.').nth(1).map(str::to_owned).unwrap_or_default();
        let claims = URL_SAFE_NO_PAD.decode(claims).unwrap_or_default();
        let claims = String::from_utf8_lossy(&claims).into_owned();
        if claims.contains(THEIRS) {
            return Verdict::Breach(format!("{account}: a token was made: {claims}"));
        }
    }
    Verdict::Held(seen.join(", "))
}

fn certificate_masters(world: &World, _: &Target) -> Verdict {
    let script = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout /dev/null -subj /O=system:masters/CN=x 2>/dev/null";
    let output = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
    let request = STANDARD.encode(&output.stdout);
    let csr = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "masters"},
        "spec": {"request": request, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}});
    let (code, said) = world.ask(ROOT, "POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", &csr);
    verdict(code == 403, said)
}
