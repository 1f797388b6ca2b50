//! How long decisions take, as `/metrics` tells it.

use podwright::{
    api::{
        Env,
        instruments::{self, Format},
    },
    scheduler::{
        decide::{Decision, decide},
        profile::{Profile, ProfileConfig},
    },
};
use prometheus_client::registry::Registry;

use super::{cluster, node, pod, requesting};

/// A figure by the beginning of its line.
fn figure(line: &str) -> f64 {
    let text = instruments::expose(&Registry::default(), "", Format::Text);
    let found = text.lines().find_map(|it| it.strip_prefix(line)?.trim().parse().ok());
    found.unwrap_or(0.0)
}

fn points(point: &str, status: &str) -> f64 {
    figure(&format!(
        "scheduler_framework_extension_point_duration_seconds_count{{extension_point=\"{point}\",status=\"{status}\",profile=\"timed\"}}"
    ))
}

#[test]
fn each_extension_point_is_timed_and_of_ten_decisions_the_plugins_of_one() {
    let profile = Profile::new(ProfileConfig { name: "timed".into(), ..ProfileConfig::default() }).unwrap();
    let plugin = |of: &str, point: &str| {
        figure(&format!(
            "scheduler_plugin_execution_duration_seconds_count{{plugin=\"{of}\",extension_point=\"{point}\",status=\"Success\"}}"
        ))
    };
    let before = plugin("NodeResourcesFit", "Filter");
    let mut cluster = cluster([node("n1", serde_json::json!({})), node("n2", serde_json::json!({}))]);
    for n in 0..40 {
        let pod = pod(&format!("p{n}"), serde_json::json!({}));
        assert!(matches!(decide(&pod, &mut cluster, &profile, &Env::system()), Decision::Bind(_)));
    }
    for point in ["PreFilter", "Filter", "Score"] {
        assert_eq!(points(point, "Success"), 40.0, "{point}");
    }
    // Others decide at the same time: of 40 some were sampled, and by no means all.
    let sampled = plugin("NodeResourcesFit", "Filter") - before;
    assert!(sampled >= 1.0, "{sampled}");
    let large = pod("large", requesting(serde_json::json!({ "cpu": "100" })));
    assert!(matches!(decide(&large, &mut cluster, &profile, &Env::system()), Decision::Unschedulable { .. }));
    assert_eq!(points("PostFilter", "Unschedulable"), 1.0);
}
