//! Probes: effects of failure and success on containers, endpoints and traffic.

use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::{HeaderMap, Request, Response, body::Frame, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::support::{
    TestNode, contains, eventually,
    leftovers::Machine,
    netns::{Server, ask, at, within},
};

const TIMEOUT: Duration = Duration::from_secs(30);

fn node() -> (TestNode, Machine) {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    (node, untouched)
}

const LIVENESS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: sick}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'touch /tmp/well; exec sleep 1000']
    livenessProbe: {exec: {command: [sh, -c, 'test -e /tmp/well || { echo feeling unwell; exit 1; }']}, periodSeconds: 1, failureThreshold: 2}
  - {name: beside, image: 'localhost/busybox:1', command: [sleep, '1000']}
---
apiVersion: v1
kind: Pod
metadata: {name: slow}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    startupProbe: {exec: {command: [test, -e, /tmp/started]}, periodSeconds: 1, failureThreshold: 100}
    livenessProbe: {exec: {command: [sh, -c, 'touch /tmp/probed; test -e /tmp/alive']}, periodSeconds: 1, failureThreshold: 1, terminationGracePeriodSeconds: 1}
    readinessProbe: {exec: {command: ['true']}, periodSeconds: 1}
";

#[test]
fn a_failing_liveness_probe_restarts_and_a_startup_probe_holds_it_off() {
    let (node, untouched) = node();
    node.apply(LIVENESS);
    node.wait("condition=Ready", &["pod/sick"], TIMEOUT);
    let status = ".status.containerStatuses";
    assert_eq!(node.field(&["pod", "sick"], &format!("{status}[0].restartCount")), "0");
    node.ok(&["exec", "sick", "-c", "c", "--", "rm", "/tmp/well"]);
    node.wait_field(&["pod", "sick"], &format!("{status}[?(@.name==\"c\")].restartCount"), "1", TIMEOUT);
    assert_eq!(node.field(&["pod", "sick"], &format!("{status}[?(@.name==\"beside\")].restartCount")), "0");
    assert_eq!(
        node.field(&["pod", "sick"], &format!("{status}[?(@.name==\"c\")].lastState.terminated.exitCode")),
        "137"
    );
    let events = node.ok(&["events", "--for", "pod/sick"]);
    contains(&events, "Liveness probe failed: feeling unwell")
        .and(contains(&events, "Container c failed liveness probe, will be restarted"))
        .unwrap();
    // Until it has started, only the startup probe runs.
    let slow = ["pod", "slow"];
    node.wait_field(&slow, ".status.phase", "Running", TIMEOUT);
    eventually("its startup probe fails", TIMEOUT, || {
        contains(&node.ok(&["events", "--for", "pod/slow"]), "Startup probe failed")
    });
    let state = format!("{status}[0]['started','ready','restartCount']");
    assert_eq!(node.field(&slow, &state), "false false 0");
    assert_ne!(node.run(&["exec", "slow", "--", "test", "-e", "/tmp/probed"]).code, 0);
    node.ok(&["exec", "slow", "--", "touch", "/tmp/alive", "/tmp/started"]);
    node.wait("condition=Ready", &["pod/slow"], TIMEOUT);
    assert_eq!(node.field(&slow, &state), "true true 0");
    eventually("now the liveness probe is asked", TIMEOUT, || {
        let answer = node.run(&["exec", "slow", "--", "test", "-e", "/tmp/probed"]);
        if answer.code == 0 { Ok(()) } else { Err(answer.all()) }
    });
    node.ok(&["exec", "slow", "--", "rm", "/tmp/alive"]);
    node.wait_field(&slow, &format!("{status}[0].restartCount"), "1", TIMEOUT);
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

/// Probes by HTTP and TCP, of Pods behind one Service.
const BACKENDS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: http, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'mkdir /www/up; echo ok > /www/up/index.html; exec httpd -f -p 8080 -h /www']
    ports: [{name: health, containerPort: 8080}]
    readinessProbe: {httpGet: {path: /up/, port: health}, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: tcp, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'nc -ll -p 8080 -e true & while ! test -e /tmp/closed; do sleep 0.1; done; kill $!; exec sleep 1000']
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 7777}]}
";

#[test]
fn readiness_opens_and_closes_the_way_to_a_pod() {
    let (node, untouched) = node();
    node.apply(BACKENDS);
    for pod in ["pod/http", "pod/tcp"] {
        node.wait("condition=Ready", &[pod], TIMEOUT);
    }
    let servers = ["http", "tcp"].map(|pod| Server::start(&node.netns_of(pod), pod, 7777));
    let service = at(&node.field(&["service", "web"], ".spec.clusterIP"), 80);
    // A Pod that responds ten times in a row is alone behind the Service, almost certainly (1 : 1024).
    let answers = |wanted: &[&str]| {
        eventually(&format!("{wanted:?} answer"), TIMEOUT, || {
            let mut heard: Vec<String> = Vec::new();
            for _ in 0..10 {
                let line = ask(&node.netns(), service)?;
                heard.push(line.split(' ').next().unwrap_or_default().to_owned());
            }
            heard.sort();
            heard.dedup();
            if heard == wanted { Ok(()) } else { Err(format!("{heard:?}")) }
        });
    };
    let slice = |pod: &str, ready: &str| {
        let path = format!(".endpoints[?(@.targetRef.name==\"{pod}\")].conditions.ready");
        node.wait_field(&["endpointslices", "-l", "kubernetes.io/service-name=web"], &path, ready, TIMEOUT);
    };
    answers(&["http", "tcp"]);
    node.ok(&["exec", "http", "--", "mv", "/www/up", "/www/down"]);
    node.wait("condition=Ready=False", &["pod/http"], TIMEOUT);
    slice("http", "false");
    answers(&["tcp"]);
    contains(
        &node.ok(&["events", "--for", "pod/http"]),
        "Readiness probe failed: HTTP probe failed with statuscode: 404",
    )
    .unwrap();
    node.ok(&["exec", "http", "--", "mv", "/www/down", "/www/up"]);
    slice("http", "true");
    answers(&["http", "tcp"]);
    node.ok(&["exec", "tcp", "--", "touch", "/tmp/closed"]);
    slice("tcp", "false");
    answers(&["http"]);
    let ip = node.field(&["pod", "tcp"], ".status.podIP");
    let refused = format!("Readiness probe failed: dial tcp {ip}:8080: connect: connection refused");
    contains(&node.ok(&["events", "--for", "pod/tcp"]), &refused).unwrap();
    // Neither was restarted because of that.
    assert_eq!(node.field(&["pods"], ".items[*].status.containerStatuses[0].restartCount"), "0 0");
    drop(servers);
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

/// `grpc.health.v1.Health/Check` in a network namespace, answering what `status` is.
struct Health {
    runtime: Option<tokio::runtime::Runtime>,
}

type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

async fn check(request: Request<Incoming>, status: Arc<AtomicU8>) -> Result<Response<Body>, Infallible> {
    let right = request.uri().path() == "/grpc.health.v1.Health/Check"
        && request.headers().get("content-type").is_some_and(|v| v == "application/grpc");
    let asked = request.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    // One frame: HealthCheckRequest { service: "db" }.
    let known = asked.as_ref() == [0, 0, 0, 0, 4, 0x0a, 2, b'd', b'b'];
    let code = if !right {
        "12"
    } else if known {
        "0"
    } else {
        "5"
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.parse().unwrap());
    let frame = Bytes::from(vec![0, 0, 0, 0, 2, 0x08, status.load(Ordering::SeqCst)]);
    let frames = vec![Ok(Frame::data(frame)), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(futures::stream::iter(frames)).boxed();
    Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
}

impl Health {
    fn start(netns: &Path, port: u16, status: &Arc<AtomicU8>) -> Health {
        let listener = within(netns, || TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))).unwrap());
        listener.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let status = status.clone();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((tcp, _)) = listener.accept().await {
                let status = status.clone();
                let service = service_fn(move |request| check(request, status.clone()));
                let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(http2.serve_connection(TokioIo::new(tcp), service));
            }
        });
        Health { runtime: Some(runtime) }
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

const GRPC: &str = "
apiVersion: v1
kind: Pod
metadata: {name: grpc}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, '1000']
    readinessProbe: {grpc: {port: 5000, service: db}, periodSeconds: 1, failureThreshold: 1}
";

#[test]
fn a_grpc_probe_asks_the_health_service() {
    let (node, untouched) = node();
    node.apply(GRPC);
    node.wait_field(&["pod", "grpc"], ".status.phase", "Running", TIMEOUT);
    let said = |part: &str| {
        eventually(part, TIMEOUT, || contains(&node.ok(&["events", "--for", "pod/grpc"]), part));
    };
    said("Readiness probe failed: timeout: failed to connect service");
    let status = Arc::new(AtomicU8::new(1));
    let health = Health::start(&node.netns_of("grpc"), 5000, &status);
    node.wait("condition=Ready", &["pod/grpc"], TIMEOUT);
    status.store(2, Ordering::SeqCst);
    node.wait("condition=Ready=False", &["pod/grpc"], TIMEOUT);
    said("Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")");
    status.store(1, Ordering::SeqCst);
    node.wait("condition=Ready", &["pod/grpc"], TIMEOUT);
    drop(health);
    node.wait("condition=Ready=False", &["pod/grpc"], TIMEOUT);
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}
