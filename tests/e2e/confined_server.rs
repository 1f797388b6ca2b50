//! The privileges that the server drops and the files it protects, and `doctor`'s report.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::Value;

use crate::support::TestNode;

/// The user `nobody`, on every machine.
const NOBODY: u32 = 65534;

const OPEN: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: open}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: 'system:anonymous'}]
";

/// The verdict and the reason of each check, and the command's exit code.
fn doctor(node: &TestNode) -> (i32, Vec<(String, String, String)>) {
    let answer = node.run(&["doctor", "-o", "json"]);
    let report: Value = serde_json::from_str(&answer.out).unwrap_or_else(|_| panic!("{}", answer.all()));
    let text = |check: &Value, field: &str| check[field].as_str().unwrap_or("").to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    (answer.code, checks.map(|check| (text(check, "id"), text(check, "verdict"), text(check, "why"))).collect())
}

#[track_caller]
fn expect(checks: &[(String, String, String)], id: &str, verdict: &str) {
    let found = checks.iter().find(|check| check.0 == id).unwrap_or_else(|| panic!("no check {id} in {checks:?}"));
    assert_eq!(found.1, verdict, "{id}: {}", found.2);
}

/// Every file below a folder, with its mode and owner.
fn modes(dir: &Path) -> Vec<(String, u32, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let meta = entry.metadata().unwrap();
        found.push((entry.path().display().to_string(), meta.mode() & 0o777, meta.uid()));
        if meta.is_dir() {
            found.extend(modes(&entry.path()));
        }
    }
    found
}

#[test]
fn a_server_gives_up_what_it_does_not_need_and_serves() {
    let mut server = TestNode::server(&["--user", "nobody"]);
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    for line in [
        "Uid:\t65534\t65534\t65534",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(status.contains(line), "{line} is not in\n{status}");
    }
    server.apply("{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {a: b}}");
    let (folder, log) = (tempfile::tempdir().unwrap(), server.log_path().display().to_string());
    server.ok(&["backup", &folder.path().join("backup").display().to_string()]);
    for (path, mode, uid) in modes(server.dir.path()) {
        // The log belongs to the harness.
        assert!(path == log || mode & 0o077 == 0 && uid == NOBODY, "{path}: {mode:o}, uid {uid}");
    }
    let (_, checks) = doctor(&server);
    for id in
        ["files.folders", "files.secrets", "files.socket", "server.encryption", "server.token-file", "server.anonymous"]
    {
        expect(&checks, id, "PASS");
    }
    let process = checks.iter().find(|check| check.0 == "server.process").unwrap();
    assert!(process.1 == "PASS" || process.2.contains("no Landlock"), "{process:?}");
    server.terminate();
    server.set_env("PODWRIGHT_LOG", "trace");
    server.spawn();
    server.wait_answering();
    server.ok(&["get", "secret", "s"]);
    // Whatever it logs, it logs no Secrets and no tokens.
    server.apply("{apiVersion: v1, kind: Secret, metadata: {name: t}, stringData: {a: open sesame}}");
    let token = server.ok(&["create", "token", "default"]);
    let log = server.log();
    for hidden in ["open sesame", "b3BlbiBzZXNhbWU=", token.trim()] {
        assert!(!hidden.is_empty() && !log.contains(hidden), "the log tells {hidden}");
    }
}

#[test]
fn the_doctor_finds_what_is_broken_and_the_server_mends_its_files() {
    let mut server = TestNode::server(&[]);
    let (_, checks) = doctor(&server);
    expect(&checks, "files.secrets", "PASS");
    expect(&checks, "server.reachable", "PASS");
    expect(&checks, "server.audit", "WARN");
    expect(&checks, "workloads.pod-security", "WARN");

    let store = server.dir.path().join("store.db");
    fs::set_permissions(&store, Permissions::from_mode(0o644)).unwrap();
    let (code, checks) = doctor(&server);
    assert_eq!(code, 1);
    expect(&checks, "files.secrets", "FAIL");
    server.apply(OPEN);
    let (_, checks) = doctor(&server);
    expect(&checks, "server.anonymous", "FAIL");
    let shown = server.run(&["doctor", "--problems"]);
    assert!(shown.code == 1 && shown.out.contains("FAIL") && !shown.out.contains("   PASS   "), "{}", shown.all());

    server.terminate();
    let (code, checks) = doctor(&server);
    assert_eq!(code, 1);
    expect(&checks, "server.reachable", "FAIL");
    server.spawn();
    server.wait_answering();
    assert_eq!(fs::metadata(&store).unwrap().mode() & 0o777, 0o600);
    assert!(server.log().contains("store.db was accessible to others (mode 0644)"), "{}", server.log());
    let (_, checks) = doctor(&server);
    expect(&checks, "files.secrets", "PASS");
}

#[test]
fn a_folder_that_others_may_write_to_is_no_state_folder() {
    let mut server = TestNode::server(&[]);
    server.terminate();
    fs::set_permissions(server.dir.path(), Permissions::from_mode(0o777)).unwrap();
    server.spawn();
    server.wait_ended();
    assert!(server.log().contains("others may write what is trusted here"), "{}", server.log());
    fs::set_permissions(server.dir.path(), Permissions::from_mode(0o700)).unwrap();
}

/// Files that control authorization belong to authorized users, for every process and flag: one that others may write prevents the
/// start.
#[test]
fn what_others_may_write_decides_nothing() {
    let node = TestNode::stopped(&[]);
    let (state, file) = (node.dir.path().join("state"), node.dir.path().join("file"));
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    let (state, file) = (state.to_str().unwrap(), file.to_str().unwrap());
    let control_plane = [
        "--restore",
        "--token-auth-file",
        "--admission-control-config-file",
        "--scheduler-config",
        "--encryption-provider-config",
        "--audit-policy-file",
        "--oidc-ca-file",
        "--oidc-jwks-file",
    ];
    let away = ["--server", "https://127.0.0.1:1"];
    let of = |verb: &[&'static str], flags: &[&'static str]| -> Vec<(Vec<&'static str>, &'static str)> {
        flags.iter().map(|flag| (verb.to_vec(), *flag)).collect()
    };
    let all = [
        of(&["server"], &control_plane),
        of(&["up", "--isolated"], &control_plane),
        of(&["up", "--isolated"], &["--pod-manifests"]),
        of(&[&["agent", "--isolated"][..], &away].concat(), &["--pod-manifests", "--ca-file", "--token-file"]),
    ];
    for (verb, flag) in all.concat() {
        let beside: &[&str] = match flag {
            "--audit-policy-file" => &["--audit-log-path", "-"],
            // Without it no token is looked at.
            "--token-file" => &["--ca-hash", "sha256:0000000000000000000000000000000000000000000000000000000000000000"],
            _ => &[],
        };
        let answer = node.run(&[&verb[..], &["--state-dir", state, flag, file], beside].concat());
        let why = format!("{flag} {file}: {file} has the mode 0666: others may write what is trusted here");
        assert!(answer.code == 1 && answer.err.contains(&why), "{verb:?} {flag}: {}", answer.all());
        assert!(!std::path::Path::new(state).join("store.db").exists(), "{verb:?} {flag}: it has begun");
    }
}
