//! Aggregation with a real extension API server, run as a Pod behind a Service, driven by kubectl: its resources work like built-in
//! ones, and attacks by it or its users fail.

mod everywhere;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::kubectl::{
    Cluster,
    Expect::{Fails, Has, Is, Lacks},
};
use crate::support::{Answer, contains, eventually, leftovers::Machine, missing, slowness, tls};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The extension server: Python and its libraries come from the host, below an image without either.
const MANIFEST: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: ext}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: extension, namespace: ext}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: extension, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: extension, namespace: ext}]
---
apiVersion: v1
kind: Service
metadata: {name: extension, namespace: ext}
spec:
  selector: {app: extension}
  ports: [{name: https, port: 443, targetPort: 6443}]
---
apiVersion: v1
kind: Pod
metadata: {name: extension, namespace: ext, labels: {app: extension}}
spec:
  serviceAccountName: extension
  terminationGracePeriodSeconds: 0
  containers:
  - name: extension
    image: localhost/busybox:1
    command: [/usr/bin/python3, /program/extension.py]
    readinessProbe: {tcpSocket: {port: 6443}, periodSeconds: 1}
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
    - {name: program, mountPath: /program}
    - {name: tls, mountPath: /tls}
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: lib, hostPath: {path: /usr/lib}}
  - {name: lib64, hostPath: {path: /usr/lib64}}
  - {name: program, configMap: {name: program}}
  - {name: tls, secret: {secretName: tls}}
"#;

const THING: &str = "{apiVersion: ext.example.com/v1, kind: Thing, metadata: {name: NAME}, spec: {size: 3}}";

/// A cluster with the extension server, and an APIService for it: none if kubectl or Python is missing.
fn started() -> Option<Cluster> {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        missing::client("there is no /usr/bin/python3 here");
        return None;
    }
    let cluster = Cluster::start()?;
    let made = rcgen::generate_simple_self_signed(["extension.ext.svc".to_owned()]).unwrap();
    cluster.file("tls.crt", &made.cert.pem());
    cluster.file("tls.key", &made.signing_key.serialize_pem());
    cluster.file("extension.py", include_str!("extension.py"));
    cluster.file("extension.yaml", MANIFEST);
    cluster.file("apiservice.yaml", &registration("v1", "ext.example.com", &made.cert.pem()));
    cluster.file("metrics.yaml", &registration("v1beta1", "metrics.k8s.io", &made.cert.pem()));
    cluster.drill(&[
        ("kubectl apply -f apiservice.yaml", Has(&["apiservice.apiregistration.k8s.io/v1.ext.example.com created"])),
        ("kubectl wait --for=jsonpath='{.status.conditions[0].reason}'=ServiceNotFound apiservice/v1.ext.example.com", Has(&["met"])),
        ("kubectl get apiservice v1.ext.example.com", Has(&["ext/extension", "False (ServiceNotFound)"])),
        ("kubectl get things", Fails(1, "things")),
        ("kubectl get --raw /apis/ext.example.com/v1", Fails(1, "the server is currently unable to handle the request")),
        ("kubectl create ns ext && kubectl -n ext create cm program --from-file=extension.py && \
          kubectl -n ext create secret tls tls --cert=tls.crt --key=tls.key", Has(&["secret/tls created"])),
        ("kubectl apply -f extension.yaml 2>/dev/null", Has(&["pod/extension created"])),
        ("kubectl -n ext wait --for=condition=Ready pod/extension --timeout=60s", Has(&["condition met"])),
        ("kubectl wait --for=condition=Available apiservice/v1.ext.example.com --timeout=60s", Has(&["condition met"])),
    ]);
    Some(cluster)
}

fn registration(version: &str, group: &str, ca: &str) -> String {
    format!(
        "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: {version}.{group}}}\nspec:\n  \
         group: {group}\n  version: {version}\n  groupPriorityMinimum: 1500\n  versionPriority: 15\n  \
         caBundle: {}\n  service: {{namespace: ext, name: extension}}\n",
        STANDARD.encode(ca)
    )
}

fn until(cluster: &Cluster, line: &str, part: &str) {
    eventually(line, TIMEOUT, || contains(&cluster.sh(line).all(), part));
}

#[test]
fn what_an_extension_server_serves_is_served() {
    let Some(mut cluster) = started() else { return };
    let untouched = Machine::untouched(cluster.node.dir.path());
    cluster.file("one.yaml", &THING.replace("NAME", "one"));
    let ann = "--as=ann --as-group=devs --as-user-extra=scopes=some";
    until(&cluster, "kubectl explain thing.spec", "How large it is.");
    cluster.drill(&[
        ("kubectl get apiservice v1.ext.example.com --no-headers | tr -s ' ' | cut -d' ' -f2,3", Is("ext/extension True")),
        ("kubectl describe apiservice v1.ext.example.com", Has(&["all checks passed", "Passed", "443"])),
        ("kubectl get apiservice v1.apps v1.ext.example.com -o jsonpath='{.items[*].status.conditions[*].message}'",
         Is("Local APIServices are always available all checks passed")),
        ("kubectl api-resources --api-group=ext.example.com --no-headers | tr -s ' '", Is("things th ext.example.com/v1 true Thing")),
        ("kubectl api-versions", Has(&["ext.example.com/v1"])),
        ("kubectl explain thing", Has(&["Thing is served by somebody else.", "What the thing is to be."])),
        ("kubectl get --raw /openapi/v2", Has(&["com.example.ext.v1.Thing", "io.k8s.api.core.v1.Pod", "ObjectMeta_v2"])),
        ("kubectl create -f one.yaml", Is("thing.ext.example.com/one created")),
        ("kubectl create -f one.yaml", Fails(1, "things.ext.example.com \"one\" already exists")),
        ("kubectl get things", Has(&["NAME", "one"])),
        ("kubectl get th one -o jsonpath='{.spec.by} {.spec.size} {.spec.secrets}'", Is("kubernetes-admin 3 []")),
        ("kubectl get th one -o jsonpath='{.spec.groups}'", Is(r#"["system:masters","system:authenticated"]"#)),
        ("kubectl get things -A", Has(&["default", "one"])),
        // Unauthorized users are refused.
        ("kubectl get things --as=ann", Fails(1, "things.ext.example.com is forbidden: User \"ann\" cannot list resource \"things\" in API group \"ext.example.com\" in the namespace \"default\"")),
        ("kubectl create role things --verb=get,list,watch,create --resource=things.ext.example.com && \
          kubectl create rolebinding things --role=things --user=ann", Has(&["created"])),
        (&format!("sed s/one/two/ one.yaml | kubectl create --validate=false {ann} -f -"), Is("thing.ext.example.com/two created")),
        ("kubectl get th two -o jsonpath='{.spec.by} {.spec.groups} {.spec.extra} {.spec.secrets}'",
         Is(r#"ann ["devs","system:authenticated"] {"x-remote-extra-scopes":"some"} []"#)),
        ("kubectl delete thing two --as=ann", Fails(1, "cannot delete resource \"things\"")),
        ("kubectl delete thing two --as=ann --as-group=system:masters", Has(&["\"two\" deleted"])),
    ]);
    watches_and_sessions(&cluster);
    misbehaviour(&cluster);
    comes_and_goes(&cluster);
    takes_the_place_of_ours(&cluster);
    assert_eq!(cluster.node.terminate().and_then(|status| status.code()), Some(0));
    untouched.assert_unchanged();
}

/// Changes arrive as they happen, and connections can be upgraded.
fn watches_and_sessions(cluster: &Cluster) {
    let watched = std::thread::scope(|scope| {
        let watch = scope.spawn(|| cluster.sh("timeout 8 kubectl get things -w -o name"));
        std::thread::sleep(Duration::from_secs(2));
        cluster
            .drill(&[("sed s/one/late/ one.yaml | kubectl create -f - && kubectl delete th late", Has(&["deleted"]))]);
        watch.join().unwrap()
    });
    assert!(contains(&watched.out, "late").is_ok(), "{}", watched.all());
    let (address, config) = tls::client(&cluster.node, true);
    let mut stream = tls::dial(&address, &config);
    write!(
        stream,
        "POST /apis/ext.example.com/v1/namespaces/default/things/one/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\
         Upgrade: shout\r\n\r\n"
    )
    .unwrap();
    let mut heard = String::new();
    while !heard.contains("\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{heard}");
        heard.push(char::from(byte[0]));
    }
    assert!(heard.starts_with("HTTP/1.1 101"), "{heard}");
    stream.write_all(b"hello").unwrap();
    let mut shouted = [0; 5];
    stream.read_exact(&mut shouted).unwrap();
    assert_eq!(&shouted, b"HELLO");
}

/// A raw request without kubectl: the head of the response, and how much of the body arrived in time.
fn raw(cluster: &Cluster, path: &str, headers: &str, most: usize) -> (String, usize) {
    let (address, config) = tls::client(&cluster.node, true);
    let mut stream = tls::dial(&address, &config);
    stream.sock.set_read_timeout(Some(Duration::from_secs(100) * slowness())).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    while answer.len() < most {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
        }
    }
    let text = String::from_utf8_lossy(&answer[..answer.len().min(8 << 10)]).into_owned();
    (text, answer.len())
}

fn misbehaviour(cluster: &Cluster) {
    const THINGS: &str = "/apis/ext.example.com/v1/namespaces/default/things";
    // A client's own identity headers are ignored.
    let forged = "X-Remote-User: root\r\nX-Remote-Group: system:masters\r\nX-Remote-Extra-Scopes: all\r\n";
    cluster.drill(&[(
        "curl -sk -H 'X-Remote-User: root' -H 'X-Remote-Group: system:masters' \
         -H \"Authorization: Bearer $(kubectl create token default)\" \
         $(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}')/apis/ext.example.com/v1/namespaces/default/things",
        Has(&["system:serviceaccount:default:default", "cannot list resource"]),
    )]);
    let (head, _) = raw(cluster, &format!("{THINGS}/one"), forged, 1 << 20);
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("\"by\": \"kubernetes-admin\""), "{head}");
    // Paths that could be interpreted differently from their authorization.
    for path in ["%2e%2e/one", "..%2fone", "/one", "%2e%2e%2f%2e%2e/secrets"] {
        let (head, _) = raw(cluster, &format!("{THINGS}/{path}"), "", 1 << 20);
        assert!(head.starts_with("HTTP/1.1 400"), "{path}: {head}");
    }
    // Redirects are not followed.
    let (head, _) = raw(cluster, &format!("{THINGS}/redirect"), "", 1 << 20);
    assert!(head.starts_with("HTTP/1.1 502") && !head.contains("169.254"), "{head}");
    assert!(head.contains("the backend attempted to redirect this request, which is not permitted"), "{head}");
    // Endless responses are not buffered.
    let resident = || {
        let line = cluster.says("kubectl get --raw /metrics | grep ^process_resident_memory_bytes");
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap()
    };
    let before = resident();
    let (_, came) = raw(cluster, &format!("{THINGS}/endless"), "", 8 << 20);
    assert!(came >= 8 << 20, "it came as far as it was read: {came}");
    let grown = resident() - before;
    assert!(grown < 48e6, "{grown} bytes more are resident");
    // An unresponsive server is not waited for.
    let asked = Instant::now();
    let (head, _) = raw(cluster, &format!("{THINGS}/hang"), "", 1 << 20);
    let waited = asked.elapsed();
    assert!(head.starts_with("HTTP/1.1 504") && head.contains("\"reason\":\"Timeout\""), "{head} after {waited:?}");
    assert!(waited >= Duration::from_secs(59), "{waited:?}");
}

/// Unavailability is reported, and a returning server is used again.
fn comes_and_goes(cluster: &Cluster) {
    cluster.drill(&[
        ("kubectl -n ext delete pod extension --now", Has(&["deleted"])),
        ("kubectl wait --for=condition=Available=False apiservice/v1.ext.example.com --timeout=60s", Has(&["condition met"])),
        ("kubectl get apiservice v1.ext.example.com -o jsonpath='{.status.conditions[0].reason} {.status.conditions[0].message}'",
         Has(&["Endpoints", "for service/extension in \"ext\""])),
        ("kubectl get things", Fails(1, "the server is currently unable to handle the request")),
        ("kubectl get --raw /apis", Has(&["ext.example.com"])),
        ("kubectl get ns default -o name", Is("namespace/default")),
        ("kubectl apply -f extension.yaml 2>/dev/null", Has(&["pod/extension created"])),
        ("kubectl wait --for=condition=Available apiservice/v1.ext.example.com --timeout=60s", Has(&["condition met"])),
        ("kubectl get things", Has(&["No resources found"])),
        // A certificate not signed by the bundle.
        ("kubectl patch apiservice v1.ext.example.com --type=merge -p '{\"spec\":{\"caBundle\":null,\"insecureSkipTLSVerify\":false}}'", Has(&["patched"])),
        ("kubectl wait --for=condition=Available=False apiservice/v1.ext.example.com --timeout=60s", Has(&["condition met"])),
        ("kubectl describe apiservice v1.ext.example.com", Has(&["FailedDiscoveryCheck", "failing or missing response from https://extension.ext.svc:443/apis/ext.example.com/v1", "certificate"])),
        ("kubectl delete apiservice v1.ext.example.com", Has(&["deleted"])),
        ("kubectl get --raw /apis", Lacks(&["ext.example.com"])),
        ("kubectl get --raw /apis/ext.example.com/v1", Fails(1, "could not find the requested resource")),
    ]);
}

/// A version served by this server can be delegated to another one.
fn takes_the_place_of_ours(cluster: &Cluster) {
    cluster.drill(&[
        ("kubectl get --raw /apis/metrics.k8s.io/v1beta1", Has(&["NodeMetrics"])),
        ("kubectl apply -f metrics.yaml", Has(&["created"])),
        (
            "kubectl wait --for=condition=Available=False apiservice/v1beta1.metrics.k8s.io --timeout=60s",
            Has(&["condition met"]),
        ),
        // It only serves another group: its response is returned.
        (
            "kubectl get apiservice v1beta1.metrics.k8s.io -o jsonpath='{.status.conditions[0].message}'",
            Has(&["bad status from", ": 404"]),
        ),
        ("kubectl get --raw /apis/metrics.k8s.io/v1beta1", Fails(1, "currently unable to handle the request")),
        ("kubectl delete apiservice v1beta1.metrics.k8s.io", Has(&["deleted"])),
        ("kubectl get --raw /apis/metrics.k8s.io/v1beta1", Has(&["NodeMetrics"])),
        ("kubectl delete apiservice v1.apps", Has(&["deleted"])),
        ("kubectl get deployments", Has(&["No resources found"])),
        ("kubectl wait --for=create apiservice/v1.apps --timeout=30s", Has(&["condition met"])),
    ]);
    let answer: Answer = cluster.sh("kubectl get apiservices --no-headers | wc -l");
    assert!(answer.out.trim().parse::<usize>().unwrap() >= 20, "{}", answer.all());
}
