//! Components' requests to the server, as counted by their own metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use super::get;
use crate::support::{TestNode, eventually};

const TIMEOUT: Duration = Duration::from_secs(60);

/// `k8s.io/component-base/metrics/prometheus/restclient`.
const SECONDS: [f64; 13] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, f64::INFINITY];
const BYTES: [f64; 12] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0, f64::INFINITY];

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: asked}
spec:
  selector: {matchLabels: {app: asked}}
  template:
    metadata: {labels: {app: asked}}
    spec: {containers: [{name: c, image: nowhere.invalid/x, imagePullPolicy: Never}]}
";

/// The samples of metrics with this name, with their labels.
struct Samples(Vec<(String, BTreeMap<String, String>, f64)>);

impl Samples {
    fn of(text: &str) -> Samples {
        let lines = text.lines().filter(|line| line.starts_with("rest_client_"));
        let sample = |line: &str| {
            let (name, rest) = line.split_once('{')?;
            let (labels, value) = rest.rsplit_once("} ")?;
            let labels = labels.split("\",").map(|pair| pair.trim_end_matches('"').split_once("=\""));
            let labels = labels.map(|pair| pair.map(|(key, value)| (key.to_owned(), value.to_owned())));
            Some((name.to_owned(), labels.collect::<Option<_>>()?, value.parse().ok()?))
        };
        Samples(lines.map(|line| sample(line).unwrap_or_else(|| panic!("{line}"))).collect())
    }
    fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a (String, BTreeMap<String, String>, f64)> {
        self.0.iter().filter(move |(of, ..)| of == name)
    }
    /// The sum of those with these labels.
    fn total(&self, name: &str, wanted: &[(&str, &str)]) -> f64 {
        let has = |labels: &BTreeMap<String, String>| {
            wanted.iter().all(|(key, value)| labels.get(*key).is_some_and(|found| found == value))
        };
        self.named(name).filter(|(_, labels, _)| has(labels)).map(|(.., value)| value).sum()
    }

    /// Checks that all metrics exist, with upstream's labels and buckets, for one host. In-process requests have no size.
    fn check(&self, host: &str, sends: bool) {
        const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];
        let keys = |labels: &BTreeMap<String, String>| labels.keys().cloned().collect::<Vec<_>>();
        for (_, labels, _) in self.named("rest_client_requests_total") {
            assert_eq!(keys(labels), ["code", "host", "method"]);
            assert!(labels["host"] == host && METHODS.contains(&labels["method"].as_str()), "{labels:?}");
            let code = &labels["code"];
            assert!(code == "<error>" || (code.len() == 3 && code.parse::<u16>().is_ok()), "{labels:?}");
        }
        let histograms = [
            ("rest_client_request_duration_seconds", &SECONDS[..]),
            ("rest_client_request_size_bytes", &BYTES[..]),
            ("rest_client_response_size_bytes", &BYTES[..]),
        ];
        for (name, bounds) in histograms.into_iter().filter(|(name, _)| sends || !name.contains("request_size")) {
            let of_get = [("verb", "GET"), ("host", host)];
            assert!(self.total(&format!("{name}_count"), &of_get) > 0.0, "{name}");
            for (_, labels, _) in self.named(&format!("{name}_count")) {
                assert_eq!(keys(labels), ["host", "verb"]);
                assert!(labels["host"] == host && METHODS.contains(&labels["verb"].as_str()), "{labels:?}");
            }
            let buckets = format!("{name}_bucket");
            let le = |labels: &BTreeMap<String, String>| labels["le"].replace('+', "").parse::<f64>().unwrap();
            let found = self.named(&buckets).filter(|(_, labels, _)| labels["verb"] == "GET");
            assert_eq!(found.map(|(_, labels, _)| le(labels)).collect::<Vec<_>>(), bounds, "{name}");
        }
        // Watches are requests without a duration.
        let (all, timed) = (
            self.total("rest_client_requests_total", &[("method", "GET")]),
            self.total("rest_client_request_duration_seconds_count", &[("verb", "GET")]),
        );
        assert!(timed < all, "{timed} of {all}");
        // Writes have a body, and so does the response.
        let sum = |name: &str, verb| self.total(&format!("rest_client_{name}_size_bytes_sum"), &[("verb", verb)]);
        assert!(sum("request", "GET") == 0.0 && sum("response", "GET") > 0.0);
        assert!((sum("request", "POST") > 0.0) == sends && sum("response", "POST") > 0.0);
    }
}

#[test]
fn requests_of_components_are_counted_as_upstream_counts_them() {
    let node = TestNode::start(&[]);
    let name = node.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let of_server = || Samples::of(&get(&node, "/metrics").text());
    let of_node = || Samples::of(&node.ok(&["get", "--raw", &format!("/api/v1/nodes/{name}/proxy/metrics")]));
    const CREATED: [(&str, &str); 2] = [("code", "201"), ("method", "POST")];
    const REQUESTS: &str = "rest_client_requests_total";

    let before = (of_server().total(REQUESTS, &CREATED), of_node().total(REQUESTS, &[("method", "PATCH")]));
    node.apply(DEPLOYMENT);
    // Controllers: a ReplicaSet, a Pod, and their events. The agent: the Pod's status.
    eventually("what the components have done counts", TIMEOUT, || {
        let after = (of_server().total(REQUESTS, &CREATED), of_node().total(REQUESTS, &[("method", "PATCH")]));
        let enough = after.0 >= before.0 + 2.0 && after.1 > before.1;
        if enough { Ok(()) } else { Err(format!("{before:?} {after:?}")) }
    });
    of_server().check("in-process", false);
    let agent = of_node();
    agent.check("localhost", true);
    // The agent renews the Lease, and watches its Pods.
    assert!(agent.total(REQUESTS, &[("code", "200"), ("method", "GET")]) > 0.0);
}
