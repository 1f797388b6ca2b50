//! Identities: annotations, headers and certificates with unverified claims.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::world::{ADMIN, EDIT, OURS, ROOT, SECRET, THEIRS, World, with_headers};
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
        held: "system:anonymous may read versions, health and cluster-info alone",
        attempt: Try::Code(anonymous),
    },
    Attack {
        id: "certificate-masters",
        class: "identity",
        cves: &[],
        how: "an administrator's CertificateSigningRequest for the group system:masters",
        held: "CertificateSubjectRestriction",
        attempt: Try::Code(certificate_masters),
    },
];

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
            // A session goes to the node once the Pod is assigned.
            crate::support::eventually("it is on its node", super::TIMEOUT, || {
                let pod = world.get("pods", OURS, name).unwrap_or_default();
                if pod["spec"]["nodeName"].is_string() { Ok(()) } else { Err(pod["status"].to_string()) }
            });
            let (_, log) = world.ask(EDIT, "GET", &format!("{pods}/{name}/log"), &Value::Null);
            let word = world.node.run(&["-n", OURS, "exec", name, "-c", "c", "--", "cat", "/word"]).all();
            world.delete("pods", OURS, name);
            if log.contains(SECRET) || word.contains(SECRET) {
                return Verdict::Breach(format!("{name}: its log: {log}; exec: {word}"));
            }
            crate::support::eventually("it is gone", super::TIMEOUT, || match world.get("pods", OURS, name) {
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
        // A folder of this name exists, from which the path continues.
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
    crate::support::eventually("the controller has tried", super::TIMEOUT, || {
        let set = world.get("replicasets.apps", OURS, target.id).unwrap_or_default();
        why = set["status"].to_string();
        if why.contains("FailedCreate") || set["status"]["replicas"] == 1 { Ok(()) } else { Err(why.clone()) }
    });
    let pods = world.node.run(&["-n", OURS, "get", "pods", "-l", &format!("app={}", target.id), "-o", "name"]).out;
    world.delete("replicasets.apps", OURS, target.id);
    verdict(pods.is_empty() && why.contains("owner reference"), format!("{pods} {why}"))
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

fn certificate_masters(world: &World, _: &Target) -> Verdict {
    let script = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout /dev/null -subj /O=system:masters/CN=x 2>/dev/null";
    let output = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
    let request = STANDARD.encode(&output.stdout);
    let csr = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "masters"},
        "spec": {"request": request, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}});
    let (code, said) = world.ask(ROOT, "POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", &csr);
    verdict(code == 403, said)
}
