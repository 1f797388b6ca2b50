//! The most expensive requests that a tenant can send, many at once: other clients are not delayed.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{TestNode, eventually, leftovers::Machine, slowness, tls};

/// Concurrent requests.
const AT_ONCE: usize = 16;
/// Total requests of one tenant.
const REQUESTS: usize = 32;
/// Time limit for other clients, however busy the machine.
const TIMEOUT: Duration = Duration::from_secs(10);

const TOKENS: &str = "token-heavy,heavy,1,tenants\ntoken-light,light,2,tenants\n";
const RIGHTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: edit}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: heavy}
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: light}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: small}, data: {a: b}}
";

struct Https<'a>(&'a TestNode);

impl Https<'_> {
    /// The response's code, and its latency.
    fn ask(&self, token: &str, method: &str, path: &str, kind: &str, body: &str) -> (u16, Duration) {
        let (address, config) = tls::client(self.0, false);
        let begun = Instant::now();
        let mut stream = tls::dial(&address, &config);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let _ = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body.as_bytes()))
            .and_then(|()| stream.flush());
        let mut answer = [0; 12];
        let read = stream.read_exact(&mut answer);
        let took = begun.elapsed();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let code = read.ok().and_then(|()| std::str::from_utf8(&answer[9..]).ok()?.parse().ok()).unwrap_or(0);
        (code, took)
    }
}

/// Bodies of almost 3 MiB with one list of maximum length: the method, the path's end, the type and the body.
fn heaviest() -> Vec<(&'static str, String, &'static str, String)> {
    let list = |n: usize, item: &dyn Fn(usize) -> Value| -> Value { (0..n).map(item).collect() };
    let spec = |field: &str, value: Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "long"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        pod["spec"][field] = value;
        pod.to_string()
    };
    let name = |i: usize| format!("n{i}");
    let finalizers = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "long",
        "finalizers": list(100_000, &|i| json!(format!("example.com/{i}")))}});
    let service = |spec: Value| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "long"}, "spec": spec}).to_string()
    };
    let owners = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "long", "ownerReferences":
        list(30_000, &|i| json!({"apiVersion": "v1", "kind": "Pod", "name": name(i), "uid": "u", "controller": true}))}});
    let json_type = "application/json";
    vec![
        (
            "PATCH",
            "configmaps/long?fieldManager=m&force=true".into(),
            "application/apply-patch+yaml",
            finalizers.to_string(),
        ),
        (
            "POST",
            "pods".into(),
            json_type,
            spec("containers", list(60_000, &|i| json!({"name": name(i), "image": "i"}))),
        ),
        (
            "POST",
            "pods".into(),
            json_type,
            spec("tolerations", list(60_000, &|i| json!({"key": name(i), "operator": "Exists"}))),
        ),
        (
            "POST",
            "pods".into(),
            json_type,
            spec("volumes", list(60_000, &|i| json!({"name": name(i), "emptyDir": {}}))),
        ),
        (
            "POST",
            "services".into(),
            json_type,
            service(json!({"type": "NodePort", "ports": list(60_000, &|i| json!({"name": name(i), "port": i + 1}))})),
        ),
        (
            "POST",
            "services".into(),
            json_type,
            service(json!({"ports": [{"port": 1}], "clusterIPs": list(200_000, &|_| json!("10.96.7.7"))})),
        ),
        ("POST", "configmaps".into(), json_type, owners.to_string()),
    ]
}

#[test]
fn nobody_waits_for_the_large_requests_of_another() {
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), TOKENS).unwrap();
    let node = TestNode::start(&["--token-auth-file", tokens.path().to_str().unwrap()]);
    let untouched = Machine::untouched(node.dir.path());
    node.apply(RIGHTS);
    let https = Https(&node);
    let namespaced = |end: &str| format!("/api/v1/namespaces/default/{end}");
    eventually("the rights are in force", Duration::from_secs(30), || {
        let (code, _) = https.ask("token-light", "GET", &namespaced("configmaps/small"), "", "");
        if code == 200 { Ok(()) } else { Err(code.to_string()) }
    });
    let bodies = heaviest();
    let (next, done, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let mut waited = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= REQUESTS || over.load(Ordering::Relaxed) {
                        return;
                    }
                    let (method, end, kind, body) = &bodies[number % bodies.len()];
                    let (code, took) = https.ask("token-heavy", method, &namespaced(end), kind, body);
                    println!("{method} {end} of {} bytes: {code} in {took:?}", body.len());
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Meanwhile, while the others are in progress:
        while done.load(Ordering::Relaxed) < REQUESTS {
            let write = json!({"data": {"a": waited.len().to_string()}}).to_string();
            for (method, path, kind, body) in [
                ("GET", "/livez".to_owned(), "", ""),
                ("GET", namespaced("configmaps/small"), "", ""),
                ("PATCH", namespaced("configmaps/small"), "application/merge-patch+json", write.as_str()),
            ] {
                let (code, took) = https.ask("token-light", method, &path, kind, body);
                if code != 200 || took > TIMEOUT * slowness() {
                    over.store(true, Ordering::Relaxed);
                    panic!(
                        "{method} {path}: {code} after {took:?}, with {} large ones answered",
                        done.load(Ordering::Relaxed)
                    );
                }
                waited.push(took);
            }
        }
    });
    waited.sort_unstable();
    println!(
        "{} answers, half of them within {:?}, the last in {:?}",
        waited.len(),
        waited[waited.len() / 2],
        waited[waited.len() - 1]
    );
    assert!(waited.len() > 3, "nobody else was served meanwhile");
    node.run(&["patch", "configmap", "long", "--type=merge", "-p", "{\"metadata\": {\"finalizers\": null}}"]);
    drop(node);
    untouched.assert_unchanged();
}
