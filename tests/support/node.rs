//! A node for one test: `podwright up --isolated` on a temporary state folder.

use std::{
    io::Write,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use super::{Talk, eventually, leftovers, slowness, sysctls};

/// Output of one command.
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Answer {
    pub fn of(output: Output) -> Answer {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Answer { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }
    /// All output, for messages.
    pub fn all(&self) -> String {
        format!("exit code {}\n{}{}", self.code, self.out, self.err)
    }
}

/// Time limit of a client command; `delete` waits as long as necessary.
const LIMIT: Duration = Duration::from_secs(120);

/// A running node. Dropping it ends it with SIGTERM and removes its folder.
pub struct TestNode {
    pub dir: tempfile::TempDir,
    process: Option<Child>,
    verb: &'static str,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// The program for the next start.
    program: PathBuf,
}

/// The tested program; in a guest it is not where it was built.
pub fn binary() -> PathBuf {
    std::env::var_os("PODWRIGHT_BIN").map_or_else(|| env!("CARGO_BIN_EXE_podwright").into(), PathBuf::from)
}

impl TestNode {
    /// A node with more arguments for `up`; ready when this returns.
    pub fn start(args: &[&str]) -> TestNode {
        let mut node = TestNode::stopped(args);
        node.spawn();
        node.wait_ready();
        node
    }

    /// A folder for an isolated node that is not running yet.
    pub fn stopped(args: &[&str]) -> TestNode {
        TestNode::stopped_on_host(&[&["--isolated"], args].concat())
    }

    /// The same for a node on the machine's own network: only for a disposable guest.
    pub fn stopped_on_host(args: &[&str]) -> TestNode {
        TestNode::of("up", args)
    }

    /// A control plane alone; it responds when this returns. It listens on its own port, as others run beside it.
    pub fn server(args: &[&str]) -> TestNode {
        let mut server = TestNode::of_control_plane(args);
        server.spawn();
        server.wait_answering();
        server
    }

    /// The same, not running yet.
    pub fn of_control_plane(args: &[&str]) -> TestNode {
        let own: &[&str] = if args.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        TestNode::of("server", &[args, own].concat())
    }

    /// An isolated node of another server, ready when this returns. Query its server about it.
    pub fn agent(server: &TestNode, name: &str) -> TestNode {
        TestNode::agent_with(server, name, &[])
    }

    /// The same with more arguments.
    pub fn agent_with(server: &TestNode, name: &str, args: &[&str]) -> TestNode {
        let mut agent = TestNode::of_agent(server, name, args);
        agent.spawn();
        agent.wait_registered(server, name);
        agent
    }

    /// The same, not running yet.
    pub fn of_agent(server: &TestNode, name: &str, args: &[&str]) -> TestNode {
        let socket = format!("unix://{}", server.socket().display());
        let own = ["--isolated", "--node-name", name, "--server", &socket];
        TestNode::of("agent", &[&own[..], args].concat())
    }

    /// Waits until a server shows this agent's node as ready.
    pub fn wait_registered(&self, server: &TestNode, name: &str) {
        eventually("the node is registered", Duration::from_secs(20), || match server.run(&["get", "node", name]) {
            answer if answer.code == 0 => Ok(()),
            answer => Err(answer.all() + &self.log()),
        });
        server.wait("condition=Ready", &[&format!("node/{name}")], Duration::from_secs(20));
    }

    /// An isolated node that joins a server by TLS: with a bootstrap token until it has a certificate.
    pub fn joining(server: &TestNode, name: &str, token: &str) -> TestNode {
        let kubeconfig = std::fs::read_to_string(server.dir.path().join("admin.kubeconfig")).unwrap();
        let url = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap();
        let ca = server.dir.path().join("pki/ca.crt").display().to_string();
        let token = if token.is_empty() { vec![] } else { vec!["--token", token, "--ca-file", &ca] };
        TestNode::of("agent", &[&["--isolated", "--node-name", name, "--server", url][..], &token].concat())
    }

    /// An agent with these arguments alone, that does not run yet.
    pub fn of_joining(args: &[&str]) -> TestNode {
        TestNode::of("agent", args)
    }

    /// Other arguments for the next start.
    pub fn without_token(&mut self) {
        self.args.truncate(5);
    }

    fn of(verb: &'static str, args: &[&str]) -> TestNode {
        let dir = tempfile::Builder::new().prefix("pw").tempdir().unwrap();
        sysctls::note(verb != "server" && !args.contains(&"--isolated"));
        let args = args.iter().map(|a| a.to_string()).collect();
        TestNode { dir, process: None, verb, args, env: Vec::new(), program: binary() }
    }

    /// Waits until the server responds.
    pub fn wait_answering(&self) {
        eventually("the server answers", Duration::from_secs(20), || match self.run(&["version"]) {
            answer if answer.code == 0 => Ok(()),
            answer => Err(answer.all() + &self.log()),
        });
    }

    /// Sets an environment variable for `up`.
    pub fn set_env(&mut self, key: &str, value: &str) {
        self.env.push((key.to_owned(), value.to_owned()));
    }

    /// Uses another program from now on, with its own shim; `None`: this tree's again.
    pub fn be(&mut self, other: Option<(&Path, &Path)>) {
        self.env.retain(|(key, _)| key != "PODWRIGHT_SHIM");
        self.program = other.map_or_else(binary, |(program, _)| program.to_owned());
        if let Some((_, shim)) = other {
            self.set_env("PODWRIGHT_SHIM", shim.to_str().unwrap());
        }
    }

    pub fn spawn(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.log_path()).unwrap();
        let process = Command::new(&self.program)
            .args([self.verb, "--state-dir"])
            .arg(self.dir.path())
            .args(&self.args)
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
    }

    /// Waits until a process that exits by itself has ended; returns its status.
    pub fn wait_ended(&mut self) -> std::process::ExitStatus {
        let log = self.log_path();
        let process = self.process.as_mut().expect("it was spawned");
        let status = eventually("it ends", Duration::from_secs(20), || {
            process.try_wait().unwrap().ok_or_else(|| std::fs::read_to_string(&log).unwrap_or_default())
        });
        // Only now: one that does not end must still be ended with this node.
        self.process = None;
        status
    }

    pub fn wait_ready(&mut self) {
        let what = "the node gets ready";
        let process = self.process.as_mut().expect("it was spawned");
        let (dir, log) = (self.dir.path().to_owned(), self.dir.path().join("up.log"));
        eventually(what, Duration::from_secs(20), || {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            if let Some(status) = process.try_wait().unwrap() {
                panic!("`podwright up` ended with {status}:\n{log}");
            }
            if !dir.join("api.sock").exists() {
                return Err(log);
            }
            let waited = command(&dir).args(["wait", "--for=condition=Ready", "node", "--all"]).output().unwrap();
            let answer = Answer::of(waited);
            if answer.code == 0 { Ok(()) } else { Err(format!("{}\n{log}", answer.all())) }
        });
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    pub fn is_spawned(&self) -> bool {
        self.process.is_some()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    /// The node's network namespace.
    pub fn netns(&self) -> PathBuf {
        self.dir.path().join("network/netns")
    }

    /// The network namespace of a running Pod.
    #[track_caller]
    pub fn netns_of(&self, pod: &str) -> PathBuf {
        self.netns_in("default", pod)
    }

    /// The network namespace of a running Pod in any API namespace.
    #[track_caller]
    pub fn netns_in(&self, namespace: &str, pod: &str) -> PathBuf {
        let found = self.ok(&["-n", namespace, "inspect", "pod", pod, "-o", "json"]);
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        let pid = &found["containers"][0]["pid"];
        assert!(pid.as_u64().is_some_and(|pid| pid > 0), "{pod} does not run: {found:#}");
        format!("/proc/{pid}/ns/net").into()
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.path().join("up.log")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// SIGKILL, at once.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// SIGTERM; waits for the exit and returns its status.
    pub fn terminate(&mut self) -> Option<std::process::ExitStatus> {
        let pid = self.process.as_ref()?.id() as i32;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM).unwrap();
        let log = self.log_path();
        let process = self.process.as_mut()?;
        let status = eventually("the node ends after SIGTERM", Duration::from_secs(30), || {
            process.try_wait().unwrap().ok_or_else(|| std::fs::read_to_string(&log).unwrap_or_default())
        });
        self.process = None;
        Some(status)
    }

    /// One client command, as typed by a user. Fails if it does not end.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Answer {
        let begin = Instant::now();
        let answer = limited(self.command(args), LIMIT);
        let in_time = begin.elapsed() < LIMIT * slowness();
        assert!(in_time, "podwright {} did not end within {LIMIT:?}:\n{}", args.join(" "), answer.all());
        answer
    }

    /// The same, which must succeed; returns its standard output.
    #[track_caller]
    pub fn ok(&self, args: &[&str]) -> String {
        let answer = self.run(args);
        assert_eq!(answer.code, 0, "podwright {}: {}\n{}", args.join(" "), answer.all(), self.log());
        answer.out
    }

    /// The same with standard input.
    pub fn run_with(&self, args: &[&str], input: &[u8]) -> Answer {
        let mut child =
            self.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap();
        // The command may exit without reading everything.
        let _ = writer.join().unwrap();
        Answer::of(output)
    }

    /// Applies a manifest that must be accepted.
    #[track_caller]
    pub fn apply(&self, manifest: &str) {
        let answer = self.run_with(&["apply", "-f", "-"], manifest.as_bytes());
        assert_eq!(answer.code, 0, "{}", answer.all());
    }

    /// A client command, to be spawned.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = command(self.dir.path());
        command.args(args);
        command
    }

    /// A long-running client command.
    pub fn talk(&self, args: &[&str]) -> Talk {
        Talk::spawn(self.command(args))
    }

    /// Imports `localhost/busybox:1`, the image of all tests.
    pub fn import_busybox(&self) {
        let tar = busybox_tar();
        self.ok(&["image", "import", tar.to_str().unwrap(), "localhost/busybox:1"]);
    }

    /// One field of an object.
    #[track_caller]
    pub fn field(&self, object: &[&str], path: &str) -> String {
        let output = format!("jsonpath={{{path}}}");
        let mut args = vec!["get"];
        args.extend(object);
        args.extend(["-o", &output]);
        self.ok(&args)
    }

    /// Waits until a field of an object has this value.
    #[track_caller]
    pub fn wait_field(&self, object: &[&str], path: &str, wanted: &str, patience: Duration) {
        // `wait` watches: polling would take a slow machine's time from what is awaited.
        let (deadline, condition) =
            (Instant::now() + patience * slowness(), format!("--for=jsonpath={{{path}}}={wanted}"));
        eventually(&format!("{object:?} {path} = {wanted}"), patience, || {
            let left = deadline.saturating_duration_since(Instant::now()).as_secs() + 1;
            let timeout = format!("--timeout={left}s");
            let answer = self.run(&[&["wait", &condition, &timeout], object].concat());
            if answer.code == 0 {
                return Ok(());
            }
            let now = self.run(&[&["get"], object, &["-o", "yaml"]].concat());
            Err(format!("{}\n{}", answer.all(), now.all()))
        });
    }

    /// Waits until `podwright wait` succeeds.
    #[track_caller]
    pub fn wait(&self, wanted: &str, object: &[&str], patience: Duration) {
        let (wanted, timeout) = (format!("--for={wanted}"), format!("{}s", patience.as_secs() * u64::from(slowness())));
        let mut args = vec!["wait", &wanted, "--timeout", &timeout];
        args.extend(object);
        let answer = self.run(&args);
        let mut show = vec!["get", "-o", "yaml"];
        show.extend(object.iter().filter(|a| **a != "--all"));
        assert_eq!(answer.code, 0, "{}\n{}\n{}", answer.all(), self.run(&show).out, self.log());
    }
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(binary());
    command.env("PODWRIGHT_SERVER", format!("unix://{}/api.sock", dir.display()));
    command
}

/// The output of `command` until it ends, or is killed at its time limit.
fn limited(command: Command, limit: Duration) -> Answer {
    let mut limited = Command::new("timeout");
    limited.arg((limit * slowness()).as_secs().to_string()).arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Answer::of(limited.stdin(Stdio::null()).output().unwrap())
}

impl TestNode {
    /// Diagnostics for a failed test: the node's own reports, its log, its threads' stacks.
    fn report(&self) {
        for shown in [["get", "pods", "-A", "-o", "yaml"], ["get", "events", "-A", "-o", "wide"]] {
            let said = limited(self.command(&shown), Duration::from_secs(10)).all();
            eprintln!("--- {}:\n{said}", shown.join(" "));
        }
        eprintln!("--- the node's log:\n{}", self.log());
        let Some(process) = &self.process else { return };
        for thread in std::fs::read_dir(format!("/proc/{}/task", process.id())).into_iter().flatten().flatten() {
            let facts = ["comm", "wchan", "syscall", "stack"].map(|f| std::fs::read_to_string(thread.path().join(f)));
            eprintln!("--- thread: {}", facts.map(Result::unwrap_or_default).join(" ").replace('\n', " "));
        }
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
        let failed = std::thread::panicking();
        if failed {
            let _ = catch_unwind(AssertUnwindSafe(|| self.report()));
        }
        let ended = catch_unwind(AssertUnwindSafe(|| self.terminate()));
        if failed || ended.is_err() {
            // A failed test may have left the node in any state; nothing of it must remain.
            if let Some(mut process) = self.process.take() {
                let _ = process.kill();
                let _ = process.wait();
            }
            leftovers::sweep(self.dir.path());
        }
        match ended {
            Err(why) if !failed => resume_unwind(why),
            _ if !failed => assert_eq!(sysctls::touched(), [""; 0], "the machine's own settings have changed"),
            _ => {}
        }
    }
}

/// A root file system of Debian's busybox-static, made once a test run: a file without a name, which goes with this process.
pub fn busybox_tar() -> &'static Path {
    static TAR: OnceLock<(std::fs::File, PathBuf)> = OnceLock::new();
    let (_, path) = TAR.get_or_init(|| {
        let file = tempfile::tempfile().unwrap();
        write_busybox(&file);
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
        (file, path)
    });
    path
}

fn write_busybox(file: &std::fs::File) {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists());
    let busybox = busybox.expect("the package busybox-static is installed");
    let applets = Command::new(busybox).arg("--list").output().unwrap();
    let mut tar = tar::Builder::new(file);
    for dir in ["bin", "etc", "root", "var", "www"] {
        append_dir(&mut tar, dir, 0o755);
    }
    append_dir(&mut tar, "tmp", 0o1777);
    append_file(&mut tar, "bin/busybox", &std::fs::read(busybox).unwrap(), 0o755);
    append_file(&mut tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n", 0o644);
    append_file(&mut tar, "etc/group", b"root:x:0:\nnogroup:x:65534:\n", 0o644);
    for applet in String::from_utf8(applets.stdout).unwrap().lines().filter(|a| *a != "busybox") {
        let mut header = header(tar::EntryType::Symlink, 0, 0o777);
        tar.append_link(&mut header, format!("bin/{applet}"), "busybox").unwrap();
    }
    tar.finish().unwrap();
}

/// A header owned by root.
fn header(kind: tar::EntryType, size: usize, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn append_dir(tar: &mut tar::Builder<impl Write>, path: &str, mode: u32) {
    let mut header = header(tar::EntryType::Directory, 0, mode);
    tar.append_data(&mut header, format!("{path}/"), std::io::empty()).unwrap();
}

fn append_file(tar: &mut tar::Builder<impl Write>, path: &str, content: &[u8], mode: u32) {
    let mut header = header(tar::EntryType::Regular, content.len(), mode);
    tar.append_data(&mut header, path, content).unwrap();
}
