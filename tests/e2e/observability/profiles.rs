//! Profiles of a busy confined server, decoded like pprof's tools.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use prost::Message;

use super::{Answer, ask, get};
use crate::support::{TestNode, contains, eventually};

/// The used parts of pprof's `Profile`.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    types: Vec<Pair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mappings: Vec<Mapping>,
    #[prost(message, repeated, tag = "5")]
    functions: Vec<Pair>,
    #[prost(string, repeated, tag = "6")]
    texts: Vec<String>,
    #[prost(int64, tag = "10")]
    nanos: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(int64, tag = "1")]
    first: i64,
    #[prost(int64, tag = "2")]
    second: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    locations: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(int64, tag = "5")]
    file: i64,
}

#[track_caller]
fn decoded(answer: &Answer) -> Profile {
    assert_eq!(answer.code, 200, "{}\n{}", answer.head, answer.text());
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&answer.body[..]).read_to_end(&mut bytes).unwrap();
    Profile::decode(&bytes[..]).unwrap()
}

impl Profile {
    fn text(&self, number: i64) -> &str {
        &self.texts[usize::try_from(number).unwrap()]
    }
    fn functions(&self) -> Vec<&str> {
        self.functions.iter().map(|function| self.text(function.second)).collect()
    }
    #[track_caller]
    fn has_ours(&self, types: &[&str]) {
        let found: Vec<&str> = self.types.iter().map(|of| self.text(of.first)).collect();
        assert_eq!(found, types);
        assert!(!self.samples.is_empty());
        for sample in &self.samples {
            assert!(!sample.locations.is_empty() && sample.values.len() == types.len(), "{sample:?}");
        }
        let functions = self.functions();
        assert!(functions.iter().any(|name| name.contains("podwright")), "{functions:#?}");
        let files: Vec<&str> = self.mappings.iter().map(|mapping| self.text(mapping.file)).collect();
        assert!(files.iter().any(|file| file.contains("podwright")), "{files:?}");
    }
}

/// Sets the flag on drop, also in a failing test: otherwise the workers would run forever.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Keeps the server busy until told to stop.
fn work(node: &TestNode, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        assert_eq!(get(node, "/openapi/v3/api/v1?pretty=true").code, 200);
        assert_eq!(get(node, "/apis?pretty=true").code, 200);
    }
}

/// Makes the server store 10 MiB, a bit every 50 ms: one allocation per half MiB is sampled.
fn store(node: &TestNode) {
    let value = "x".repeat(256 << 10);
    for number in 0..40 {
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"kept-{number}"}},"data":{{"value":"{value}"}}}}"#
        );
        let made = ask(node, "POST /api/v1/namespaces/default/configmaps", &[], &body);
        assert_eq!(made.code, 201, "{}", made.text());
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_confined_server_tells_where_its_time_and_memory_go_to_who_may_ask() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "token-ann,ann,1,people\n").unwrap();
    let server = TestNode::server(&["--token-auth-file", &tokens.display().to_string()]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stops = Stop(&stop);
        scope.spawn(|| work(&server, &stop));
        let began = Instant::now();
        let first = scope.spawn(|| get(&server, "/debug/pprof/profile?seconds=10"));
        eventually("the profile has begun", Duration::from_secs(20), || {
            contains(&server.log(), "starting cpu profiler")
        });
        // One at a time.
        eventually("another profile is refused", Duration::from_secs(9), || {
            match get(&server, "/debug/pprof/heap?seconds=1") {
                answer if answer.code == 500 && answer.text().contains("a profile is being made") => Ok(()),
                answer => Err(answer.text()),
            }
        });
        let profile = decoded(&first.join().unwrap());
        assert!(began.elapsed() >= Duration::from_secs(10));
        assert_eq!(profile.nanos, 10_000_000_000);
        profile.has_ours(&["samples", "cpu"]);
        // Temporary allocations are rarely sampled; stored data stays.
        scope.spawn(|| store(&server));
        let heap = decoded(&get(&server, "/debug/pprof/heap?seconds=3"));
        heap.has_ours(&["inuse_objects", "inuse_space"]);
        drop(stops);
    });
    // A second one works as well, and all of them leave one file that is reused.
    decoded(&get(&server, "/debug/pprof/profile?seconds=1"));
    assert!(std::fs::read_dir(server.dir.path().join("profiles")).unwrap().count() <= 1);
    for path in ["/debug/pprof/profile?seconds=1", "/debug/pprof/heap?seconds=1", "/debug/pprof/", "/flagz", "/statusz"]
    {
        let refused = ask(&server, &format!("GET {path}"), &[("Authorization", "Bearer token-ann")], "");
        assert_eq!(refused.code, 403, "{path}: {}", refused.text());
        assert!(refused.text().contains("cannot get path"), "{}", refused.text());
    }
    let flags = get(&server, "/flagz").text();
    let told = format!("token-auth-file={}", tokens.display());
    for line in [told.as_str(), "profiling=true", "leader-elect=false", "listen=127.0.0.1:0"] {
        assert!(flags.lines().any(|found| found == line), "{line}: {flags}");
    }
    assert!(get(&server, "/statusz").text().contains("\nUp: 0 hr "));
    let slis = get(&server, "/metrics/slis").text();
    assert!(slis.contains(r#"kubernetes_healthcheck{name="etcd-readiness",type="readyz"} 1"#), "{slis}");
    let metrics = get(&server, "/metrics").text();
    for series in
        ["apiserver_storage_size_bytes{", "rest_client_requests_total{", "rest_client_request_duration_seconds_"]
    {
        assert!(metrics.lines().any(|line| line.starts_with(series)), "{series}: {metrics}");
    }
}

#[test]
fn a_server_may_be_told_to_make_no_profiles() {
    let server = TestNode::server(&["--profiling=false"]);
    let answer = get(&server, "/debug/pprof/profile?seconds=1");
    assert_eq!((answer.code, answer.text().as_str()), (404, "404 page not found\n"));
}
