//! Expositions: upstream's names and labels, unknown values left out, lengths bounded.

use std::collections::HashSet;
use std::time::Duration;

use podwright::node::counters::table::{
    OPERATIONS_TOTAL, POD_START, PROBES, PROBES_DURATION, PROBES_TOTAL, ROWS, STARTED_PODS,
};
use podwright::node::counters::{Counters, MOST};
use podwright::node::endpoints::facts::Facts;
use podwright::node::endpoints::text::{Exposition, Kind, Sample};
use podwright::node::endpoints::{cadvisor, kubelet, resource};

use super::{at, facts};

/// Each series once, after its metric's TYPE, each metric once: Prometheus accepts it without a warning.
fn well_formed(text: &str) {
    let (mut metrics, mut series, mut current) = (HashSet::new(), HashSet::new(), "");
    for line in text.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            current = typed.split_once(' ').unwrap().0;
            assert!(metrics.insert(current), "{current} is described twice");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(name.starts_with(current), "{line} stands below {current}");
            let labels = line.rsplit_once('}').map_or(name, |(labels, _)| labels);
            assert!(series.insert(labels), "{line} is told twice");
        }
    }
}

#[track_caller]
fn has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|found| found == *line), "{line} is not in:\n{text}");
    }
}

const C: &str = r#"container="c",id="/podwright/besteffort/podu1/c.0",image="registry/i:1",name="u1_0/c.0",namespace="default",pod="web""#;
const POD: &str = r#"container="",id="/podwright/besteffort/podu1",image="",name="",namespace="default",pod="web""#;
const MACHINE: &str = r#"container="",id="/",image="",name="",namespace="",pod="""#;

#[test]
fn cadvisors_series_have_its_names_and_labels() {
    let text = cadvisor::render(&facts());
    well_formed(&text);
    let time = at(100).as_millisecond();
    has(
        &text,
        &[
            "# TYPE container_cpu_usage_seconds_total counter",
            &format!("container_cpu_usage_seconds_total{{{C},cpu=\"total\"}} 1.5 {time}"),
            &format!("container_cpu_usage_seconds_total{{{POD},cpu=\"total\"}} 3.5 {time}"),
            &format!("container_cpu_usage_seconds_total{{{MACHINE},cpu=\"total\"}} 9 {time}"),
            &format!("container_memory_working_set_bytes{{{C}}} 2000 {time}"),
            &format!("container_network_receive_bytes_total{{{POD},interface=\"eth0\"}} 70 {time}"),
            &format!("container_network_transmit_bytes_total{{{POD},interface=\"eth0\"}} 71 {time}"),
            &format!("container_fs_reads_bytes_total{{{C},device=\"/dev/sda\"}} 7 {time}"),
            &format!("container_fs_usage_bytes{{{C},device=\"/\"}} 50 {time}"),
            &format!("container_fs_usage_bytes{{{MACHINE},device=\"/\"}} 600 {time}"),
            &format!("container_spec_cpu_quota{{{C}}} 50000 {time}"),
            &format!("container_spec_memory_limit_bytes{{{C}}} 8000 {time}"),
            &format!("container_file_descriptors{{{C}}} 40 {time}"),
            &format!("container_sockets{{{C}}} 4 {time}"),
            &format!("container_pressure_cpu_waiting_seconds_total{{{C}}} 2.5 {time}"),
            &format!("container_pressure_io_waiting_seconds_total{{{C}}} 1 {time}"),
            &format!("container_pressure_io_stalled_seconds_total{{{C}}} 0.5 {time}"),
            "# TYPE container_pressure_io_stalled_seconds_total counter",
            "machine_cpu_cores{boot_id=\"\",machine_id=\"m\",system_uuid=\"\"} 2",
            "machine_memory_bytes{boot_id=\"\",machine_id=\"m\",system_uuid=\"\"} 10000",
            "container_scrape_error 0",
        ],
    );
    let d = C.replace("\"c\"", "\"d\"").replace("/c.0", "/d.0");
    has(&text, &[&format!("container_spec_memory_limit_bytes{{{d}}} 0 {time}")]);
    assert!(!text.contains(&format!("container_spec_cpu_quota{{{d}")), "there is none");
    // Values that this host does not report.
    for unknown in [
        "container_memory_rss",
        "container_oom_events_total",
        "machine_swap_bytes",
        "container_threads_max",
        "container_pressure_cpu_stalled_seconds_total",
        "container_pressure_memory_waiting_seconds_total",
        &format!("container_sockets{{{d}"),
    ] {
        assert!(!text.contains(unknown), "{unknown} is invented");
    }
}

#[test]
fn resource_metrics_are_those_that_metrics_servers_read() {
    let text = resource::render(&facts());
    well_formed(&text);
    let time = at(100).as_millisecond();
    let started = at(50).as_second();
    has(
        &text,
        &[
            &format!("node_cpu_usage_seconds_total 9 {time}"),
            &format!("node_memory_working_set_bytes 5000 {time}"),
            &format!("pod_cpu_usage_seconds_total{{pod=\"web\",namespace=\"default\"}} 3.5 {time}"),
            &format!("pod_memory_working_set_bytes{{pod=\"web\",namespace=\"default\"}} 3000 {time}"),
            &format!(
                "container_cpu_usage_seconds_total{{container=\"c\",pod=\"web\",namespace=\"default\"}} 1.5 {time}"
            ),
            &format!("container_start_time_seconds{{container=\"c\",pod=\"web\",namespace=\"default\"}} {started}"),
            "resource_scrape_error 0",
            "scrape_error 0",
        ],
    );
    assert!(!text.contains("swap"), "{text}");
    let failed = resource::render(&Facts { failed: true, ..Facts::default() });
    has(&failed, &["resource_scrape_error 1"]);
    assert!(!failed.contains("node_cpu"), "{failed}");
}

#[test]
fn the_agent_tells_of_itself_and_of_claims() {
    let counters = Counters::default();
    counters.add(&STARTED_PODS, &[]);
    counters.add(&OPERATIONS_TOTAL, &["run_podsandbox"]);
    for millis in [400, 700, 4_000_000] {
        counters.observe(&POD_START, &[], Duration::from_millis(millis));
    }
    let version = [("git_version", "v1".to_owned())];
    let text = kubelet::render(&facts(), &counters, &version, "# TYPE process_x gauge\nprocess_x 1\n");
    well_formed(&text);
    has(
        &text,
        &[
            "kubelet_node_name{node=\"n\"} 1",
            "kubelet_running_pods 1",
            "kubelet_running_containers{container_state=\"running\"} 2",
            "kubelet_running_containers{container_state=\"exited\"} 1",
            "kubernetes_build_info{git_version=\"v1\"} 1",
            "kubelet_started_pods_total 1",
            "kubelet_started_pods_errors_total 0",
            "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 1",
            "kubelet_pod_start_duration_seconds_bucket{le=\"0.5\"} 1",
            "kubelet_pod_start_duration_seconds_bucket{le=\"1\"} 2",
            "kubelet_pod_start_duration_seconds_bucket{le=\"3600\"} 2",
            "kubelet_pod_start_duration_seconds_bucket{le=\"+Inf\"} 3",
            "kubelet_pod_start_duration_seconds_sum 4001.1",
            "kubelet_pod_start_duration_seconds_count 3",
            "kubelet_volume_stats_used_bytes{namespace=\"default\",persistentvolumeclaim=\"data-0\"} 400",
            "kubelet_volume_stats_capacity_bytes{namespace=\"default\",persistentvolumeclaim=\"data-0\"} 500",
            "process_x 1",
        ],
    );
    // Nothing of it has happened.
    assert!(!text.contains("kubelet_evictions") && !text.contains("prober_"), "{text}");
    let mut twice = facts();
    let mut other = twice.pods[0].clone();
    other.name = "other".to_owned();
    twice.pods.push(other);
    well_formed(&kubelet::render(&twice, &counters, &version, ""));
}

#[test]
fn probes_are_told_until_their_pod_is_gone() {
    let counters = Counters::default();
    counters.add(&PROBES_TOTAL, &["Liveness", "successful", "c", "web", "default", "u1"]);
    counters.observe(&PROBES_DURATION, &["Liveness", "c", "web", "default"], Duration::from_millis(7));
    let text = kubelet::probes(&counters, "");
    well_formed(&text);
    has(
        &text,
        &[
            "prober_probe_total{probe_type=\"Liveness\",result=\"successful\",container=\"c\",pod=\"web\",\
             namespace=\"default\",pod_uid=\"u1\"} 1",
            "prober_probe_duration_seconds_bucket{probe_type=\"Liveness\",container=\"c\",pod=\"web\",\
             namespace=\"default\",le=\"0.01\"} 1",
        ],
    );
    counters.forget(&[&PROBES_TOTAL, &PROBES_DURATION], |labels| labels.iter().any(|label| label == "web"));
    assert_eq!(kubelet::probes(&counters, ""), "");
}

#[test]
fn nobody_makes_endless_series_or_forges_one() {
    let counters = Counters::default();
    for n in 0..MOST * 2 {
        counters.add(&PROBES_TOTAL, &["Liveness", "failed", &n.to_string(), "p", "ns", "u"]);
    }
    assert_eq!(counters.read(&PROBES_TOTAL).len(), MOST);
    let sample = |value: &'static str| Sample { labels: vec![("a", value.into())], value: 1.0, at: None };
    let mut out = Exposition::default();
    out.metric("m", Kind::Gauge, "Two\nlines, a \\", [sample("x\"} 9\nforged{a=\"\\")]);
    assert_eq!(out.finish(), "# HELP m Two\\nlines, a \\\\\n# TYPE m gauge\nm{a=\"x\\\"} 9\\nforged{a=\\\"\\\\\"} 1\n");
    // A metric that does not fit is left out as a whole, and that is recorded.
    let mut small = Exposition::of(100);
    small.metric("short", Kind::Gauge, "h", [sample("x")]);
    small.metric("long", Kind::Gauge, "h", std::iter::repeat_with(|| sample("x")));
    assert!(small.is_cut());
    assert_eq!(small.finish(), "# HELP short h\n# TYPE short gauge\nshort{a=\"x\"} 1\n");
}

#[test]
fn no_metric_is_declared_twice_and_buckets_grow() {
    let names: HashSet<&str> = ROWS.iter().chain(&PROBES).map(|row| row.name).collect();
    assert_eq!(names.len(), ROWS.len() + PROBES.len());
    assert!(ROWS.iter().chain(&PROBES).all(|row| row.buckets.is_sorted()));
}
