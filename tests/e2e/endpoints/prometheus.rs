//! Debian's Prometheus, with static targets only: the server, the node and a Pod, all through the server's single port.
//!
//! It is `PROMETHEUS`, the one on PATH, or `target/tools/prometheus`; `./dev test` installs Debian's package.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use super::{TIMEOUT, name, raw};
use crate::support::{Answer, TestNode, contains, eventually, missing};

const WORLD: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: monitoring}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus, namespace: monitoring}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus}
rules:
- {apiGroups: [''], resources: [nodes/proxy, pods/proxy], verbs: [get]}
- {nonResourceURLs: [/metrics], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: monitoring}]
---
apiVersion: v1
kind: Pod
metadata: {name: busy, namespace: monitoring}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: worker, image: localhost/busybox:1, command: [sh, -c, 'while :; do :; done']}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: monitoring}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: localhost/busybox:1
    command: [sh, -c, 'echo shop_orders_total 42 > /www/metrics; exec httpd -f -p 8080 -h /www']
    livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
";

fn tool(variable: &str, name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join(name));
    let fetched = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/tools").join(name);
    let mut all = std::env::var_os(variable).map(PathBuf::from).into_iter().chain(on_path).chain([fetched]);
    all.find(|file| file.is_file())
}

/// A Prometheus for one test, on loopback, ended with it.
struct Prometheus {
    process: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have exited by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Prometheus {
    fn start(program: &Path, node: &TestNode, token: &str) -> Prometheus {
        let dir = tempfile::Builder::new().prefix("prometheus").tempdir().unwrap();
        let kubeconfig = std::fs::read_to_string(node.dir.path().join("admin.kubeconfig")).unwrap();
        let server = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: https://")).unwrap();
        std::fs::write(dir.path().join("token"), token).unwrap();
        let job = |job: &str, path: &str| {
            format!(
                "- job_name: {job}\n  scheme: https\n  metrics_path: {path}\n  \
                 authorization: {{credentials_file: {token}}}\n  tls_config: {{ca_file: {ca}}}\n  \
                 static_configs: [{{targets: ['{server}']}}]\n",
                token = dir.path().join("token").display(),
                ca = node.dir.path().join("pki/ca.crt").display(),
            )
        };
        let of_node = |path: &str| format!("/api/v1/nodes/{}/proxy/{path}", name(node));
        let jobs: String = [
            job("apiserver", "/metrics"),
            job("kubelet", &of_node("metrics")),
            job("cadvisor", &of_node("metrics/cadvisor")),
            job("resource", &of_node("metrics/resource")),
            job("probes", &of_node("metrics/probes")),
            job("web", "/api/v1/namespaces/monitoring/pods/web:8080/proxy/metrics"),
        ]
        .concat();
        let config = format!("global: {{scrape_interval: 2s, scrape_timeout: 2s}}\nscrape_configs:\n{jobs}");
        std::fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let process = Command::new(program)
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Prometheus { process, port, dir }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn get(&self, path: &str) -> Result<String, String> {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().map_err(|e| format!("{e}\n{}", self.log()))?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        if head.contains(" 200 ") { Ok(body.to_owned()) } else { Err(answer) }
    }

    fn json(&self, path: &str) -> Result<Value, String> {
        let text = self.get(path)?;
        serde_json::from_str(&text).map_err(|e| format!("{e}: {text}"))
    }

    /// The values of an instant query.
    fn query(&self, query: &str) -> Result<Vec<f64>, String> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.json(&format!("/api/v1/query?query={encoded}"))?;
        let values = answer["data"]["result"].as_array().ok_or_else(|| answer.to_string())?.iter();
        Ok(values.filter_map(|series| series["value"][1].as_str()?.parse().ok()).collect())
    }

    /// Waits until there are values of a query and all are as expected.
    #[track_caller]
    fn wait(&self, query: &str, wanted: impl Fn(f64) -> bool) {
        eventually(query, TIMEOUT, || match self.query(query)? {
            values if !values.is_empty() && values.iter().all(|value| wanted(*value)) => Ok(()),
            values => Err(format!("{values:?}")),
        });
    }
}

#[test]
fn a_real_prometheus_scrapes_server_node_and_pod() {
    let Some(program) = tool("PROMETHEUS", "prometheus") else {
        return missing::client("there is no Prometheus here; `./dev test` installs Debian's");
    };
    let node = TestNode::start(&[]);
    node.import_busybox();
    node.apply(WORLD);
    node.wait("condition=Ready", &["-n", "monitoring", "pod/busy", "pod/web"], TIMEOUT);
    let token = node.ok(&["-n", "monitoring", "create", "token", "prometheus"]);
    let prometheus = Prometheus::start(&program, &node, token.trim());
    eventually("all targets are up", TIMEOUT, || {
        let found = prometheus.json("/api/v1/targets")?;
        let targets = found["data"]["activeTargets"].as_array().ok_or("no targets")?;
        let up = targets.iter().filter(|target| target["health"] == "up" && target["lastError"] == "").count();
        if (targets.len(), up) == (6, 6) { Ok(()) } else { Err(format!("{found:#}")) }
    });
    let node_name = name(&node);
    prometheus
        .wait("rate(container_cpu_usage_seconds_total{job='cadvisor',pod='busy',container='worker'}[30s])", |cores| {
            (0.05..=1.5).contains(&cores)
        });
    prometheus
        .wait("rate(container_cpu_usage_seconds_total{job='resource',pod='busy',container='worker'}[30s])", |cores| {
            (0.05..=1.5).contains(&cores)
        });
    prometheus.wait("kubelet_running_pods", |pods| pods == 2.0);
    prometheus.wait(&format!("kubelet_node_name{{node='{node_name}'}}"), |one| one == 1.0);
    prometheus.wait("sum(apiserver_request_total{resource='pods'})", |requests| requests > 0.0);
    prometheus.wait("sum(rate(node_cpu_usage_seconds_total[30s]))", |cores| cores > 0.0);
    prometheus
        .wait("container_memory_working_set_bytes{job='cadvisor',pod='web',container='web'}", |bytes| bytes > 0.0);
    prometheus.wait("prober_probe_total{pod='web',probe_type='Liveness',result='successful'}", |probes| probes > 0.0);
    prometheus.wait("histogram_quantile(0.99, sum by (le) (kubelet_pod_start_duration_seconds_bucket))", |s| s > 0.0);
    prometheus.wait("shop_orders_total", |orders| orders == 42.0);
    prometheus.wait("resource_scrape_error + on() container_scrape_error", |errors| errors == 0.0);
    // Every sample was accepted, at every scrape.
    prometheus.wait("scrape_samples_scraped - scrape_samples_post_metric_relabeling", |dropped| dropped == 0.0);
    prometheus.wait("min_over_time(up[1m])", |up| up == 1.0);
    let own = prometheus.get("/metrics").unwrap();
    for kind in ["sample_duplicate_timestamp", "sample_out_of_order", "sample_out_of_bounds"] {
        contains(&own, &format!("prometheus_target_scrapes_{kind}_total 0\n")).unwrap();
    }
    let warned: Vec<String> = prometheus
        .log()
        .lines()
        .filter(|l| l.contains("scrape") && l.contains("level=warn"))
        .map(str::to_owned)
        .collect();
    assert!(warned.is_empty(), "{warned:#?}");
    if let Some(promtool) = tool("PROMTOOL", "promtool") {
        for path in ["metrics", "metrics/cadvisor", "metrics/resource", "metrics/probes"] {
            check(&promtool, path, &raw(&node, path));
        }
    }
}

/// Upstream's names that violate its linter.
const UPSTREAMS: [&str; 3] = [
    "container_fs_inodes_total non-counter metrics should not have \"_total\" suffix",
    "container_memory_failcnt counter metrics should have \"_total\" suffix",
    "kubelet_evictions ",
];

#[track_caller]
fn check(promtool: &Path, path: &str, exposition: &str) {
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, text) = (child.stdin.take().unwrap(), exposition.to_owned());
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let answer = Answer::of(child.wait_with_output().unwrap());
    writer.join().unwrap().unwrap();
    // 3: it parses, with linter warnings.
    assert!(matches!(answer.code, 0 | 3), "{path}: {}", answer.all());
    let said = [answer.out.as_str(), answer.err.as_str()].concat();
    let other: Vec<&str> = said.lines().filter(|line| !UPSTREAMS.iter().any(|known| line.contains(known))).collect();
    assert!(other.is_empty(), "{path}: {other:#?}");
}
