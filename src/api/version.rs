//! The version that servers and nodes report.

use serde_json::{Value, json};

/// The version of Kubernetes whose API this implements, that of k8s-openapi's types.
pub const MINOR: &str = "35";

/// `/version`
pub fn version() -> Value {
    json!({
        "major": "1", "minor": MINOR,
        "gitVersion": format!("v1.{MINOR}.0+podwright.{}", podwright_version::NUMBER),
        "gitCommit": podwright_version::COMMIT, "gitTreeState": podwright_version::TREE, "buildDate": podwright_version::DATE,
        "goVersion": "none", "compiler": "rustc",
        "platform": format!("linux/{}", if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }),
    })
}

/// The labels of `kubernetes_build_info`.
pub fn labels() -> Vec<(&'static str, String)> {
    const LABELS: [(&str, &str); 8] = [
        ("major", "major"),
        ("minor", "minor"),
        ("git_version", "gitVersion"),
        ("git_commit", "gitCommit"),
        ("git_tree_state", "gitTreeState"),
        ("build_date", "buildDate"),
        ("compiler", "compiler"),
        ("platform", "platform"),
    ];
    let version = version();
    LABELS.map(|(label, field)| (label, version[field].as_str().unwrap_or("").to_owned())).to_vec()
}
