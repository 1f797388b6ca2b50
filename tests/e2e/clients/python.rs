//! Python's `kubernetes` package (Debian's `python3-kubernetes`), running the drills of the folder `python`, one node each.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
};

use crate::support::{Answer, TestNode, missing, slowness};

/// Time limit of a drill.
const LIMIT_SECONDS: u32 = 240;

/// The interpreter of Debian's packages, which need not be the first one in the path.
fn python() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "/usr/bin/python3".into())
}

/// A node for a drill; `None`, with a message, if the package is missing.
fn node() -> Option<TestNode> {
    let known = Command::new(python()).args(["-c", "import kubernetes"]).stderr(Stdio::null()).status();
    if !known.is_ok_and(|status| status.success()) {
        missing::client("there is no Python package kubernetes here; `./dev test` installs one");
        return None;
    }
    let node = TestNode::start(&[]);
    node.import_busybox();
    Some(node)
}

/// `python3 SCRIPT DRILL` as the node's administrator. Its files are in the node's folder.
fn command(node: &TestNode, script: &str, drill: &str) -> Command {
    let dir = node.dir.path();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/clients/python").join(script);
    let mut command = Command::new("timeout");
    command.arg((LIMIT_SECONDS * slowness()).to_string()).arg(python()).arg(script).arg(drill);
    command
        .env("KUBECONFIG", dir.join("admin.kubeconfig"))
        .env("HOME", dir)
        .env("TMPDIR", dir)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(|name| (name, "")))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[track_caller]
fn drill(script: &str, drill: &str) {
    let Some(node) = node() else { return };
    let answer = Answer::of(command(&node, script, drill).output().unwrap());
    assert!(answer.code == 0 && answer.out.ends_with("passed\n"), "{script} {drill}: {}", answer.all());
}

#[test]
fn objects_are_made_listed_patched_and_deleted() {
    drill("objects.py", "objects");
}

#[test]
fn a_manifest_is_created_scaled_and_deleted() {
    drill("objects.py", "yaml");
}

#[test]
fn watches_begin_anywhere_and_end_in_time() {
    drill("watches.py", "watches");
}

#[test]
fn a_watch_is_resumed_after_the_servers_death() {
    let Some(mut node) = node() else { return };
    let mut child = command(&node, "watches.py", "resumed").stdin(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    if line == "before\n" {
        node.kill();
        node.spawn();
        node.wait_ready();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        said.read_line(&mut line).unwrap();
    }
    let answer = Answer::of(child.wait_with_output().unwrap());
    assert!(answer.code == 0 && line == "before\npassed\n", "{line}{}", answer.all());
}

#[test]
fn commands_are_executed_with_streams_and_return_codes() {
    drill("sessions.py", "exec");
}

#[test]
fn logs_are_followed() {
    drill("sessions.py", "logs");
}

#[test]
fn ports_are_forwarded() {
    drill("sessions.py", "forward");
}

#[test]
fn the_dynamic_client_patches_applies_and_knows_custom_resources() {
    drill("dynamic.py", "dynamic");
}

#[test]
fn leases_are_held_by_one_and_leaders_are_elected() {
    drill("coordination.py", "leases");
}

#[test]
fn jobs_and_cron_jobs_run() {
    drill("coordination.py", "jobs");
}

#[test]
fn a_token_may_do_what_rbac_lets_it() {
    drill("access.py", "access");
}
