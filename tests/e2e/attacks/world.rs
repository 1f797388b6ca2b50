//! The attacked node: its namespaces, users, victims and images, and how Pods run on it.

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Instant,
};

use rustls::ClientConfig;
use serde_json::{Value, json};

use super::{Attack, Expect, Pod, TIMEOUT, Target, Try, Users, Verdict, judge, own_users, yaml};
use crate::support::{TestNode, api, eventually, leftovers::Machine, node::busybox_tar, registry, slowness, tls};

/// Busybox and the attack tool.
pub const IMAGE: &str = "localhost/attack:1";
/// Namespaces without Pod Security, and with its levels.
pub const OPEN: &str = "open";
pub const BASELINE: &str = "baseline";
pub const RESTRICTED: &str = "restricted";
/// The attackers' tenant, and an unrelated one.
pub const OURS: &str = "tenant-a";
pub const THEIRS: &str = "tenant-b";
/// The content of the victim's Secret.
pub const SECRET: &str = "what only tenant-b may read";
/// Only contained in that Secret.
pub const HIDDEN: &str = "hidden in a Secret alone";
pub const NODE: &str = "target";
/// The message to a Pod that cannot have a user namespace.
pub const NO_USERS: &str = "can't set `spec.hostUsers: false`";
/// The node's conntrack limit: small, so that an attack is quick.
pub const CONNTRACK_MAX: usize = 16_384;

/// Users: the roles `edit`, `admin` and `view` in the attackers' tenant; the node; and another node, which runs nothing.
pub const EDIT: &str = "token-edit";
pub const ADMIN: &str = "token-admin";
pub const VIEW: &str = "token-view";
pub const AGENT: &str = "token-agent";
pub const OTHER: &str = "token-other";
pub const ROOT: &str = "token-root";

const TOKENS: &str = "\
token-edit,edna,1,tenants
token-admin,adam,2,tenants
token-view,vera,3,tenants
token-agent,system:node:target,4,system:nodes
token-other,system:node:other,5,system:nodes
token-root,root,6,system:masters
";

const OBJECTS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: open}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: baseline, labels: {pod-security.kubernetes.io/enforce: baseline}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: restricted, labels: {pod-security.kubernetes.io/enforce: restricted}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: tenant-a}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: tenant-b}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: edit, namespace: tenant-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: edna}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: admin, namespace: tenant-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: adam}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: view, namespace: tenant-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: vera}]
---
{apiVersion: v1, kind: Secret, metadata: {name: victim, namespace: tenant-b}, stringData: {word: what only tenant-b may read, other: hidden in a Secret alone}}
---
{apiVersion: v1, kind: Node, metadata: {name: other}}
---
apiVersion: v1
kind: Pod
metadata: {name: victim, namespace: tenant-b, labels: {app: victim}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: 'localhost/attack:1', command: [sh, -c, 'echo what only tenant-b may read > /word; cat /word; sleep 1000']}
";

pub struct World {
    pub node: TestNode,
    /// Host files, one per attack, in a folder accessible to all: protection must not depend on its mode.
    canaries: tempfile::TempDir,
    tokens: tempfile::TempDir,
    address: String,
    anybody: Arc<ClientConfig>,
}

impl World {
    pub fn start() -> World {
        let (tokens, canaries) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::set_permissions(canaries.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let file = tokens.path().join("tokens");
        fs::write(&file, TOKENS).unwrap();
        let node = TestNode::start(&[
            "--node-name",
            NODE,
            "--token-auth-file",
            file.to_str().unwrap(),
            "--conntrack-max",
            &CONNTRACK_MAX.to_string(),
        ]);
        let (address, anybody) = tls::client(&node, false);
        let world = World { node, canaries, tokens, address, anybody };
        world.load(IMAGE, &[], json!({}));
        super::images::load(&world);
        super::profiles::write(&world);
        world.node.apply(OBJECTS);
        for namespace in [OPEN, BASELINE, RESTRICTED, OURS, THEIRS] {
            eventually("Pods can be made", TIMEOUT, || {
                world.get("serviceaccounts", namespace, "default").map(drop).ok_or_else(|| namespace.to_owned())
            });
        }
        world.node.wait("condition=Ready", &["-n", THEIRS, "pod/victim"], TIMEOUT);
        world
    }

    /// Creates an image of busybox, the tools, and further layers.
    pub fn load(&self, name: &str, layers: &[Vec<u8>], config: Value) {
        let mut layout = registry::Layout::new();
        let mut all = vec![fs::read(busybox_tar()).unwrap(), tool_layer().to_vec()];
        all.extend_from_slice(layers);
        let mut config = config;
        let mut env = vec![json!("PATH=/bin")];
        env.extend(config["Env"].as_array().cloned().unwrap_or_default());
        config["Env"] = Value::Array(env);
        let image = layout.image(architecture(), &all, config);
        layout.tag(image, name);
        let answer = self.load_layout(&layout);
        assert_eq!(answer.code, 0, "{name}: {}", answer.all());
    }

    /// Loads what may be refused.
    pub fn load_layout(&self, layout: &registry::Layout) -> crate::support::Answer {
        let archive = tempfile::NamedTempFile::new().unwrap();
        registry::run(Command::new("tar").arg("-C").arg(layout.dir.path()).arg("-cf").arg(archive.path()).arg("."));
        self.node.run(&["image", "--node", NODE, "load", archive.path().to_str().unwrap()])
    }

    /// Whether its host supports user namespaces for Pods.
    pub fn gives_users(&self) -> bool {
        self.node.field(&["node", NODE], ".status.runtimeHandlers[0].features.userNamespaces") == "true"
    }

    /// Removes what attacks have left in the Pods' namespaces, so that they can be repeated.
    pub fn sweep(&self) {
        for namespace in [OPEN, BASELINE, RESTRICTED] {
            for kind in ["pods", "pvc"] {
                self.node.ok(&["-n", namespace, "delete", kind, "--all", "--wait=false"]);
            }
            self.delete("configmaps", namespace, "lease-volumes");
            eventually("all Pods have gone", TIMEOUT, || {
                let left = self.node.ok(&["-n", namespace, "get", "pods", "-o", "name"]);
                if left.is_empty() { Ok(()) } else { Err(left) }
            });
        }
    }

    fn target(&self, id: &'static str, users: Users) -> Target {
        let text = format!("the canary of {id} {}", uuid::Uuid::new_v4());
        let canary = self.canaries.path().join(id);
        fs::write(&canary, &text).unwrap();
        Target { id, canary, text, users }
    }

    /// Runs one attack and checks its canary.
    pub fn attempt(&self, attack: &Attack, users: Users) -> Verdict {
        let target = self.target(attack.id, users);
        let attempt = || match &attack.attempt {
            Try::Pod(pod) => self.run_pod(&target, pod),
            Try::Code(code) => code(self, &target),
        };
        let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)).unwrap_or_else(|why| {
            let text = why.downcast_ref::<String>().cloned();
            Verdict::Untried(text.or_else(|| why.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
        });
        let made = self.canaries.path().join(format!("made-by-{}", attack.id));
        match fs::read_to_string(&target.canary) {
            Ok(_) if made.exists() => Verdict::Breach(format!("{} was made on the host; {verdict:?}", made.display())),
            Ok(text) if text == target.text => verdict,
            other => Verdict::Breach(format!("the canary was changed to {other:?}; {verdict:?}")),
        }
    }

    /// Ends the node. Returns what was created in the canaries' folder, and what the node must leave behind: nothing.
    pub fn end(self) -> (Vec<String>, Machine) {
        let found = fs::read_dir(self.canaries.path()).unwrap().flatten().map(|e| e.file_name().into_string().unwrap());
        let strange = found.filter(|name| super::attacks().all(|attack| attack.id != name)).collect();
        let untouched = Machine::untouched(self.node.dir.path());
        drop(self.node);
        drop(self.tokens);
        (strange, untouched)
    }

    /// The Pod of an entry, as an object.
    pub fn pod(&self, target: &Target, pod: &Pod) -> Value {
        let folder = self.canaries.path().display().to_string();
        let script = pod.script.replace("@CANARY@", &target.canary.display().to_string()).replace("@FOLDER@", &folder);
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": target.id, "namespace": pod.namespace},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [
                {"name": "c", "image": pod.image, "command": ["sh", "-c", script]},
            ]},
        });
        if pod.namespace == RESTRICTED {
            object["spec"]["securityContext"] =
                json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
            object["spec"]["containers"][0]["securityContext"] =
                json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        }
        lay_over(&mut object["spec"], yaml(pod.spec, target));
        lay_over(&mut object["spec"]["containers"][0], yaml(pod.container, target));
        own_users::give(&mut object["spec"], target.users, pod.namespace);
        object
    }

    fn run_pod(&self, target: &Target, pod: &Pod) -> Verdict {
        let object = self.pod(target, pod);
        let said = self.run_to_the_end(&object);
        match (&said, pod.expect) {
            (End::Refused(why), Expect::Refused(wanted)) => match why.contains(wanted) {
                true => Verdict::Held(why.clone()),
                false => Verdict::Untried(format!("refused, but not because of {wanted:?}: {why}")),
            },
            (End::Refused(why), Expect::HeldOrRefused(wanted)) => match () {
                () if why.contains(&target.text) => Verdict::Breach(why.clone()),
                () if why.contains(NO_USERS) && self.gives_users() => {
                    Verdict::Untried(format!("this host can give users of their own: {why}"))
                }
                () if why.contains(wanted) || why.contains(NO_USERS) => Verdict::Held(format!("refused: {why}")),
                () => Verdict::Untried(format!("refused, but not because of {wanted:?}: {why}")),
            },
            (End::Refused(why), Expect::Held) => Verdict::Untried(why.clone()),
            (End::Said(said), Expect::Refused(wanted)) => {
                Verdict::Breach(format!("it ran, not refused by {wanted:?}: {said}"))
            }
            (End::Said(said), _) => judge(target, said),
        }
    }

    /// Creates a Pod, waits until it has ended or cannot start, removes it.
    pub fn run_to_the_end(&self, object: &Value) -> End {
        let (namespace, name) =
            (object["metadata"]["namespace"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        if let Err(why) = self.create("pods", namespace, object.clone()) {
            return End::Refused(why);
        }
        let end = self.wait_end(namespace, name);
        self.delete("pods", namespace, name);
        end
    }

    pub fn wait_end(&self, namespace: &str, name: &str) -> End {
        let (deadline, mut looked) = (Instant::now() + TIMEOUT * slowness(), Instant::now());
        loop {
            let pod = self.get("pods", namespace, name).unwrap_or_default();
            let status = &pod["status"];
            let all = || {
                status["initContainerStatuses"]
                    .as_array()
                    .into_iter()
                    .chain(status["containerStatuses"].as_array())
                    .flatten()
            };
            let stuck = all().map(|c| &c["state"]["waiting"]).find(|waiting| is_stuck(waiting));
            let unstarted = all()
                .map(|c| &c["state"]["terminated"])
                .find(|t| t["reason"] == "StartError" || t["reason"] == "ContainerCannotRun");
            let phase = status["phase"].as_str().unwrap_or_default();
            if let Some(why) = stuck.or(unstarted) {
                return End::Refused(why.to_string());
            }
            if phase == "Failed" && !status["reason"].is_null() {
                return End::Refused(format!("{} {}", status["reason"], status["message"]));
            }
            if phase == "Failed" || phase == "Succeeded" {
                let said = self.node.run(&["-n", namespace, "logs", name, "--all-containers"]).all();
                // The status counts as output: messages come from inside.
                return End::Said(format!("{said}\n{}", status));
            }
            if phase == "Pending" && looked.elapsed() > std::time::Duration::from_secs(2) {
                looked = Instant::now();
                if let Some(why) = self.failed_to_start(namespace, name) {
                    return End::Refused(why);
                }
            }
            if Instant::now() > deadline {
                let events = self.node.run(&["-n", namespace, "events", "--for", &format!("pod/{name}")]).out;
                let said = self.node.run(&["-n", namespace, "logs", name, "--all-containers"]).all();
                return End::Refused(format!("it neither ended nor failed to start: {status}\n{events}\n{said}"));
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// The events of a Pod that its node cannot start.
    pub fn failed_to_start(&self, namespace: &str, name: &str) -> Option<String> {
        let params = json!({"resource": "events", "namespace": namespace, "options": {"fieldSelector": format!("involvedObject.name={name}")}});
        let events = api::call(&self.node.socket(), "list", params).ok()?;
        let failed = |event: &&Value| event["reason"].as_str().is_some_and(|reason| reason.starts_with("Failed"));
        let told: Vec<String> = events["items"]
            .as_array()?
            .iter()
            .filter(failed)
            .map(|e| format!("{} {}", e["reason"], e["message"]))
            .collect();
        if told.is_empty() { None } else { Some(told.join("; ")) }
    }

    /// Starts a long-running Pod; waits until it runs.
    #[track_caller]
    pub fn start_pod(&self, target: &Target, pod: &Pod) -> Result<(), String> {
        self.create("pods", pod.namespace, self.pod(target, pod))?;
        let phase = "--for=jsonpath={.status.phase}=Running";
        let answer =
            self.node.run(&["-n", pod.namespace, "wait", phase, "--timeout=30s", &format!("pod/{}", target.id)]);
        if answer.code == 0 {
            Ok(())
        } else {
            Err(format!("{} {:?}", answer.all(), self.get("pods", pod.namespace, target.id)))
        }
    }

    /// The output of a command in the entry's Pod.
    pub fn inside(&self, target: &Target, namespace: &str, command: &[&str]) -> String {
        self.node.run(&[&["-n", namespace, "exec", target.id, "--"], command].concat()).all()
    }

    /// The container's output so far.
    pub fn logs(&self, target: &Target, namespace: &str) -> String {
        self.node.run(&["-n", namespace, "logs", target.id, "--all-containers"]).all()
    }

    pub fn create(&self, resource: &str, namespace: &str, body: Value) -> Result<Value, String> {
        let params = json!({"resource": resource, "namespace": namespace, "body": body});
        api::call(&self.node.socket(), "create", params).map_err(|e| format!("{e:?}"))
    }

    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let params = json!({"resource": resource, "namespace": namespace, "name": name});
        api::call(&self.node.socket(), "get", params).ok()
    }

    pub fn delete(&self, resource: &str, namespace: &str, name: &str) {
        let params =
            json!({"resource": resource, "namespace": namespace, "name": name, "options": {"gracePeriodSeconds": 0}});
        // It may have gone by itself.
        let _ = api::call(&self.node.socket(), "delete", params);
    }

    /// A REST request with or without a token; returns the code and the body.
    pub fn ask(&self, token: &str, method: &str, path: &str, body: &Value) -> (u16, String) {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let bearer = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
        let said = self.raw(format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {kind}\r\n{bearer}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        (said.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0), said)
    }

    /// The server's response to these bytes until it closes the connection.
    pub fn raw(&self, sent: impl AsRef<[u8]>) -> String {
        let mut stream = tls::dial(&self.address, &self.anybody);
        let _ = stream.write_all(sent.as_ref()).and_then(|()| stream.flush());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// The folder in which canaries are.
    pub fn folder(&self) -> &Path {
        self.canaries.path()
    }
}

/// How a Pod ended.
#[derive(Debug)]
pub enum End {
    Said(String),
    Refused(String),
}

/// Waiting reasons that mean a container will not start.
fn is_stuck(waiting: &Value) -> bool {
    let reason = waiting["reason"].as_str().unwrap_or_default();
    reason.ends_with("Error") || reason.contains("Err") || reason == "ImagePullBackOff" || reason == "InvalidImageName"
}

/// Objects are merged, all else is replaced.
fn lay_over(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                lay_over(under.entry(key).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over,
    }
}

pub fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// The tool, compiled once.
pub fn tool() -> &'static [u8] {
    static TOOL: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    TOOL.get_or_init(|| compiled("tool.c"))
}

pub fn compiled(source: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let program: PathBuf = dir.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/attacks").join(source);
    registry::run(Command::new("gcc").args(["-static", "-pthread", "-O1", "-s", "-o"]).arg(&program).arg(source));
    fs::read(&program).unwrap()
}

/// The tool as a layer, with the other tools.
pub fn tool_layer() -> &'static [u8] {
    static LAYER: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    LAYER.get_or_init(|| {
        let mut tar = tar::Builder::new(Vec::new());
        let [hide, beyond, handed] = ["hide.c", "beyond.c", "handed.c"].map(compiled);
        let tools =
            [("bin/attack", tool()), ("bin/hide", &hide), ("bin/beyond", &beyond), ("bin/handed", handed.as_slice())];
        for (path, program) in tools {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o755);
            header.set_size(program.len() as u64);
            header.set_uid(0);
            header.set_gid(0);
            tar.append_data(&mut header, path, program).unwrap();
        }
        tar.into_inner().unwrap()
    })
}

pub fn get(path: impl Into<String>) -> (&'static str, String, Value) {
    ("GET", path.into(), Value::Null)
}

/// One request with more headers; returns the code and the whole response.
pub fn with_headers(world: &World, token: &str, path: &str, headers: &str) -> (u16, String) {
    let bearer = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let said = world.raw(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}{headers}\r\n"));
    (said.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0), said)
}
