//! Against the server itself: dialled and forwarded addresses, ambiguous messages, requests that cost more than their size.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::nodes::all_refused;
use super::world::{EDIT, OURS, ROOT, World, with_headers};
use super::{Attack, POD, Target, Try, Verdict, verdict};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "endpoints-loopback",
        class: "server-side requests",
        cves: &["CVE-2021-25737", "CVE-2020-8558"],
        how: "EndpointSlices and Endpoints with loopback, link-local, unspecified and multicast addresses, in mapped and odd spellings",
        held: "refused by validation",
        attempt: Try::Code(endpoints_loopback),
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
        id: "json-patch-nesting",
        class: "exhaustion",
        cves: &[],
        how: "a JSON patch that moves a document into another again and again, until nothing that goes through it has the stack",
        held: "each operation is refused that would nest anything too deep",
        attempt: Try::Code(json_patch_nesting),
    },
    Attack {
        id: "repeated-names",
        class: "exhaustion",
        cves: &[],
        how: "one long text that the server repeats for each of many items before it validates them: a volume's name for each container's mount, an annotation for each container, a Service's name for each port and family; a list in the refusal of each of its numbers; a key in the path of each conflict below it",
        held: "sizes are looked at before anything is made of an object; refusals show the begin of a value, and the first of many",
        attempt: Try::Code(repeated_names),
    },
    Attack {
        id: "job-without-end",
        class: "exhaustion",
        cves: &[],
        how: "Jobs and ReplicaSets of two thousand million Pods that no node takes, with templates of 100 kB; meanwhile another reads",
        held: "controllers write behind requests, few at once, no faster than reads follow; of large Pods fewer, and slowly where \
               thousands wait",
        attempt: Try::Code(job_without_end),
    },
];

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

/// A Pod of the attackers that answers every connection with this, and prints its input.
fn answering(world: &World, target: &Target, answer: &str) -> Result<(), String> {
    let script = format!("while true; do printf '{answer}' | nc -l -p 8080 -w 3; done");
    let mut pod = world.pod(target, &POD);
    pod["metadata"]["namespace"] = json!(OURS);
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    world.create("pods", OURS, pod)?;
    world.node.wait("condition=Ready", &["-n", OURS, &format!("pod/{}", target.id)], Duration::from_secs(30));
    Ok(())
}

/// A request through the Pod's proxy, repeated until it listens.
fn proxied(world: &World, target: &Target, headers: &str) -> (u16, String) {
    let path = format!("/api/v1/namespaces/{OURS}/pods/{}:8080/proxy/x", target.id);
    crate::support::eventually("the Pod answers", super::TIMEOUT, || match with_headers(world, ROOT, &path, headers) {
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
    let log = crate::support::eventually("it printed the request", super::TIMEOUT, || {
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
        world.raw(format!("POST /api/v1/namespaces/tenant-a/configmaps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {EDIT}\r\n{headers}\r\n0\r\n\r\n{hidden}"))
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

/// Sends a body of some type; returns the code, the duration, and the server's peak memory growth.
fn weighed(world: &World, method: &str, path: &str, kind: &str, body: &str) -> (u16, Duration, u64, String) {
    let (before, begin) = (resident(world), std::time::Instant::now());
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {EDIT}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let said = world.raw(head + body);
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

fn json_patch_nesting(world: &World, target: &Target) -> Verdict {
    world.create("configmaps", OURS, json!({"metadata": {"name": target.id}})).unwrap();
    let deep = (0..100).fold(json!(1), |inner, _| json!({ "a": inner }));
    let below = "/a".repeat(100);
    let pairs = (1..2000).flat_map(|n| {
        let (add, into) = (format!("/x{n}"), format!("/x{n}{below}"));
        [
            json!({"op": "add", "path": add, "value": deep}),
            json!({"op": "move", "from": format!("/x{}", n - 1), "path": into}),
        ]
    });
    let first = json!({"op": "add", "path": "/x0", "value": deep});
    let patch: Vec<Value> = std::iter::once(first).chain(pairs).collect();
    let path = format!("/api/v1/namespaces/{OURS}/configmaps/{}", target.id);
    let (code, took, grew, said) =
        weighed(world, "PATCH", &path, "application/json-patch+json", &Value::Array(patch).to_string());
    verdict(
        code == 422 && took < Duration::from_secs(30) && grew < 300,
        format!("{code} in {took:?}, {grew} MiB more: {said}"),
    )
}

fn repeated_names(world: &World, target: &Target) -> Verdict {
    let long = "x".repeat(300_000);
    let (core, batch) = (format!("/api/v1/namespaces/{OURS}"), format!("/apis/batch/v1/namespaces/{OURS}"));
    let pod = |meta: Value, spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec});
    let containers = vec![json!({"name": "x"}); 3000];
    let annotation = "container.apparmor.security.beta.kubernetes.io/x";
    let ports: Value = (0..2700).map(|n| json!({"port": n + 1, "nodePort": 30_000 + n})).collect();
    let codes: Value = (0..30_000).map(|n| (n + 1) % 2).collect();
    let rule = json!({"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": codes}});
    let service =
        |meta: Value, spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec});
    let all = [
        (
            format!("{core}/pods"),
            pod(
                json!({"name": target.id}),
                json!({"containers": containers, "volumes": [{"name": format!("kube-api-access-{long}"), "emptyDir": {}}]}),
            ),
        ),
        (
            format!("{core}/pods"),
            pod(
                json!({"name": target.id, "annotations": {annotation: format!("localhost/{long}")}}),
                json!({ "containers": containers }),
            ),
        ),
        (format!("{core}/services"), service(json!({ "name": long }), json!({ "ports": ports }))),
        (
            format!("{core}/services"),
            service(json!({ "name": long }), json!({"ipFamilies": vec!["IPv6"; 30_000], "ports": [{"port": 1}]})),
        ),
        (
            format!("{batch}/jobs"),
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": target.id}, "spec": {
                "podFailurePolicy": {"rules": [rule]}, "template": {"spec": {"restartPolicy": "Never", "containers": []}}}}),
        ),
    ];
    let mut wrong = Vec::new();
    for (path, body) in all {
        let (code, took, grew, said) = weighed(world, "POST", &path, "application/json", &body.to_string());
        if code != 422 || took > Duration::from_secs(30) || grew > 300 {
            wrong.push(format!("{path}: {code} in {took:?}, {grew} MiB more: {said:.200}"));
        }
    }
    let env = |value: &str| -> Value { (0..3000).map(|n| json!({"name": format!("e{n}"), "value": value})).collect() };
    let deployment = |value: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": target.id}, "spec": {"replicas": 0,
            "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": long, "image": "i", "env": env(value)}]}}}})
    };
    let variables: serde_json::Map<String, Value> =
        (0..3000).map(|n| (format!("k:{{\"name\":\"e{n}\"}}"), json!({"f:value": {}}))).collect();
    let fields = json!({"f:spec": {"f:template": {"f:spec": {"f:containers": {format!("k:{{\"name\":\"{long}\"}}"): {"f:env": variables}}}}}});
    let path = format!("/apis/apps/v1/namespaces/{OURS}/deployments");
    let mut owned = deployment("1");
    // A name of that length is rejected; apply computes its conflicts before that.
    owned["spec"]["template"]["spec"]["containers"][0]["name"] = "c".into();
    owned["metadata"]["managedFields"] = json!([{"manager": "one", "operation": "Apply", "apiVersion": "apps/v1",
        "fieldsType": "FieldsV1", "fieldsV1": fields}]);
    world.create("deployments.apps", OURS, owned).unwrap();
    let apply = format!("{path}/{}?fieldManager=two", target.id);
    let (code, took, grew, said) =
        weighed(world, "PATCH", &apply, "application/apply-patch+yaml", &deployment("2").to_string());
    if !matches!(code, 409 | 422) || took > Duration::from_secs(30) || grew > 300 || said.len() > 8 << 20 {
        wrong.push(format!("apply: {code} in {took:?}, {grew} MiB more, {} bytes: {said:.200}", said.len()));
    }
    verdict(wrong.is_empty(), wrong.join("\n"))
}

/// The number of sequential reads within this time; and the first failure.
fn reads(world: &World, lasting: Duration) -> (u32, Option<String>) {
    let (begun, mut asked, mut wrong) = (Instant::now(), 0, None);
    while begun.elapsed() < lasting {
        let (code, said) = world.ask(ROOT, "GET", "/api/v1/namespaces/tenant-b/secrets", &Value::Null);
        asked += 1;
        if code != 200 {
            wrong = wrong.or(Some(format!("{code} {said}")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    (asked, wrong)
}

/// The share of undisturbed reads that must still succeed: one in this many.
const FEWER: u32 = 10;

fn job_without_end(world: &World, target: &Target) -> Verdict {
    let template = json!({"metadata": {"labels": {"attack": target.id}, "annotations": {"filler": "x".repeat(100 << 10)}},
        "spec": {"restartPolicy": "Never", "nodeSelector": {"attack": "nowhere"}, "containers": [{"name": "c", "image": "i"}]}});
    let mut of_set = template.clone();
    of_set["spec"]["restartPolicy"] = "Always".into();
    let (many, labels) = (2_000_000_000, json!({"matchLabels": {"attack": target.id}}));
    let all = [
        ("batch/v1", "Job", "jobs", json!({"parallelism": many, "completions": many, "template": template})),
        ("apps/v1", "ReplicaSet", "replicasets", json!({"replicas": many, "selector": labels, "template": of_set})),
    ];
    // A third of the time.
    let (undisturbed, _) = reads(world, Duration::from_secs(5));
    for (version, kind, plural, spec) in &all {
        let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": target.id}, "spec": spec});
        let (code, said) = world.ask(EDIT, "POST", &format!("/apis/{version}/namespaces/{OURS}/{plural}"), &object);
        if code != 201 {
            return Verdict::Untried(said);
        }
    }
    let (disturbed, wrong) = reads(world, Duration::from_secs(15));
    let (_, list) = world.ask(ROOT, "GET", &format!("/api/v1/namespaces/{OURS}/pods?limit=1"), &Value::Null);
    for (_, _, plural, _) in &all {
        let resource = if *plural == "jobs" { "jobs.batch" } else { "replicasets.apps" };
        world.delete(resource, OURS, target.id);
    }
    let path = format!("/api/v1/namespaces/{OURS}/pods?labelSelector=attack%3D{}", target.id);
    crate::support::eventually("its Pods are gone", Duration::from_secs(120), || {
        let (_, left) = world.ask(ROOT, "GET", &format!("{path}&limit=1"), &Value::Null);
        if left.contains("\"items\":[]") { Ok(()) } else { Err(left.chars().take(500).collect::<String>()) }
    });
    let some = list.contains("\"items\":[{");
    let seen = format!("{disturbed} reads, of {} by itself, {wrong:?}", undisturbed * 3);
    match wrong.is_none() && disturbed > undisturbed * 3 / FEWER {
        // If nothing is answered the list of Pods is not either.
        true if !some => Verdict::Untried(format!("no Pods were made: {list}")),
        well => verdict(well, seen),
    }
}
