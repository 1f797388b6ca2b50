//! Upgrades from the programs of an older commit, which `./dev older` builds from this repository's history: a node's Pods keep
//! running, its store migrates, downgrades are refused; agents and servers of both work together.

mod across;
mod backup;
mod one_node;

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::support::{Answer, TestNode, eventually, missing};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The older programs.
struct Older {
    podwright: PathBuf,
    shim: PathBuf,
}

impl Older {
    /// None, if the history to build them from is missing: `./dev test` has reported that, and how to get it.
    fn here() -> Option<Older> {
        if std::env::var_os("PODWRIGHT_OLDER").is_some_and(|older| older == "none") {
            missing::here("the commit to upgrade from is not here");
            return None;
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(target).join("older");
        let wanted = include_str!("../../../dev").lines().find_map(|line| line.strip_prefix("older_commit=")).unwrap();
        let has = fs::read_to_string(folder.join("commit")).unwrap_or_default();
        assert_eq!(has.trim(), wanted, "`./dev older` builds the programs of that commit");
        Some(Older { podwright: folder.join("podwright"), shim: folder.join("podwright-shim") })
    }

    /// Uses this program for the node's next start.
    fn takes(&self, node: &mut TestNode) {
        node.be(Some((&self.podwright, &self.shim)));
    }

    /// The output of this program's command with a server; `input` is its standard input.
    fn client(&self, node: &TestNode, args: &[&str], input: &str) -> Answer {
        let mut command = Command::new(&self.podwright);
        command.args(args).env("PODWRIGHT_SERVER", format!("unix://{}", node.socket().display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().expect("it is a pipe").write_all(input.as_bytes()).unwrap();
        Answer::of(child.wait_with_output().unwrap())
    }

    /// Whether this program's shim manages the Pod. A shim executes a copy of its file.
    fn holds(&self, node: &TestNode, pod: &str) -> bool {
        let pause = inspected(node, pod)["sandbox"]["pause"]["pid"].as_u64().expect("it has a sandbox");
        let status = fs::read_to_string(format!("/proc/{pause}/status")).unwrap();
        let shim =
            status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("each process has a parent").trim();
        fs::read(format!("/proc/{shim}/exe")).unwrap() == fs::read(&self.shim).unwrap()
    }
}

/// The agent may not have connected to the newly started server.
fn inspected(node: &TestNode, pod: &str) -> Value {
    let answer = eventually("the agent answers", TIMEOUT, || {
        let answer = node.run(&["inspect", "pod", pod, "-o", "json"]);
        if answer.err.contains("is not connected to this server") { Err(answer.err) } else { Ok(answer) }
    });
    assert_eq!(answer.code, 0, "inspect pod {pod}: {}", answer.err);
    serde_json::from_str(&answer.out).unwrap()
}

/// What must not change for a running Pod: its identity and address, its containers with their processes.
#[derive(Debug, PartialEq)]
struct Running {
    uid: String,
    ip: String,
    containers: Vec<[String; 4]>,
    pids: Vec<u64>,
}

fn running(node: &TestNode, selector: &str) -> BTreeMap<String, Running> {
    let pods: Value = serde_json::from_str(&node.ok(&["get", "pods", "-l", selector, "-o", "json"])).unwrap();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let of = |pod: &Value| {
        let name = text(&pod["metadata"]["name"]);
        let container = |c: &Value| {
            [&c["name"], &c["containerID"], &c["restartCount"], &c["state"]["running"]["startedAt"]].map(text)
        };
        let found = inspected(node, &name);
        let pids = found["containers"].as_array().unwrap().iter().map(|c| c["pid"].as_u64().unwrap());
        // It also lists exited containers.
        let pids = pids.filter(|pid| *pid > 0);
        let running = Running {
            uid: text(&pod["metadata"]["uid"]),
            ip: text(&pod["status"]["podIP"]),
            containers: pod["status"]["containerStatuses"].as_array().unwrap().iter().map(container).collect(),
            pids: pids.collect(),
        };
        (name, running)
    };
    pods["items"].as_array().unwrap().iter().map(of).collect()
}
