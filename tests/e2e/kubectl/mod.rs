//! The real kubectl drives a running server: what everyone does with a cluster, over TLS with the administrator's kubeconfig.
//!
//! A drill is a table: shell commands, and their expected results. `any` contains what every kubectl can do, the other files use
//! the newest one installed: `KUBECTL`, the one on PATH, or `target/tools/kubectl` (`./dev test` gets it).

mod access;
mod any;
mod apply;
mod autoscale;
mod change;
mod create;
mod custom;
mod debug;
mod delete;
mod describe;
mod nodes;
mod operators;
mod resize;
mod same;
mod sessions;
mod sets;
mod show;
mod top;

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::support::{Answer, TestNode, contains, missing};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The oldest kubectl that supports all drills.
const SINCE: u32 = 32;

/// The expected result of a line.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// Success, with exactly this on standard output, white space at the ends aside.
    Is(&'static str),
    /// Success, with each of these on standard output or error.
    Has(&'static [&'static str]),
    /// Success, with none of these.
    Lacks(&'static [&'static str]),
    /// This exit code, with this on standard output or error.
    Fails(i32, &'static str),
}
use Expect::{Fails, Has, Is, Lacks};

impl Expect {
    fn check(self, answer: &Answer) -> Result<(), String> {
        let all = answer.all();
        let wanted = if let Fails(code, _) = self { code } else { 0 };
        if answer.code != wanted {
            return Err(format!("exit code {wanted} was expected: {all}"));
        }
        match self {
            Is(text) if answer.out.trim() == text.trim() => Ok(()),
            Is(text) => Err(format!("{text:?} was expected: {all}")),
            Has(parts) => parts.iter().try_for_each(|part| contains(&all, part)),
            Lacks(parts) => parts.iter().try_for_each(|part| match contains(&all, part) {
                Ok(()) => Err(format!("{part:?} is in:\n{all}")),
                Err(_) => Ok(()),
            }),
            Fails(_, part) => contains(&all, part),
        }
    }
}

/// A server, with or without a node, and a shell whose kubectl is configured for it.
pub struct Cluster {
    pub node: TestNode,
    kubectl: PathBuf,
    env: Vec<(&'static str, String)>,
}

impl Cluster {
    /// A node with the image `$IMAGE`, and the newest kubectl. `None`, with a message, if none is new enough.
    pub fn start() -> Option<Cluster> {
        let kubectl = newest()?;
        let node = TestNode::start(&[]);
        node.import_busybox();
        Some(Cluster::of(node, kubectl))
    }

    /// A control plane without a node: nothing runs there.
    pub fn without_node() -> Option<Cluster> {
        let kubectl = newest()?;
        Some(Cluster::of(TestNode::server(&["--listen", "127.0.0.1:0"]), kubectl))
    }

    fn of(node: TestNode, kubectl: PathBuf) -> Cluster {
        let (dir, bin) = (node.dir.path().to_owned(), node.dir.path().join("bin"));
        std::fs::create_dir(&bin).unwrap();
        for folder in ["work", "tmp"] {
            std::fs::create_dir(dir.join(folder)).unwrap();
        }
        std::os::unix::fs::symlink(&kubectl, bin.join("kubectl")).unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        let inside = |name: &str| dir.join(name).display().to_string();
        let env = vec![
            ("PATH", path),
            ("HOME", inside("work")),
            ("KUBECONFIG", inside("admin.kubeconfig")),
            ("KUBECACHEDIR", inside("kubecache")),
            ("KUBE_EDITOR", "false".to_owned()),
            // Where it keeps copies of edits that came to nothing.
            ("TMPDIR", inside("tmp")),
            ("IMAGE", "localhost/busybox:1".to_owned()),
        ];
        Cluster { node, kubectl, env }
    }

    /// The working directory of the lines.
    fn work(&self) -> PathBuf {
        self.node.dir.path().join("work")
    }

    pub fn file(&self, name: &str, text: &str) {
        let path = self.work().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A shell that runs `line`; its input is empty unless the line redirects it.
    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.work()).envs(self.env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn sh(&self, line: &str) -> Answer {
        Answer::of(self.shell(line).output().unwrap())
    }

    /// Makes this program available to lines by its name.
    pub fn offer(&self, program: &Path) {
        let name = program.file_name().expect("it is a file");
        std::os::unix::fs::symlink(program, self.node.dir.path().join("bin").join(name)).unwrap();
    }

    /// Runs the lines one after the other.
    #[track_caller]
    pub fn drill(&self, rows: &[(&str, Expect)]) {
        for (line, expect) in rows {
            let answer = self.sh(line);
            if let Err(why) = expect.check(&answer) {
                panic!("$ {line}\n{why}\n{}", self.node.log());
            }
        }
    }

    /// Success; returns the output.
    #[track_caller]
    pub fn says(&self, line: &str) -> String {
        let answer = self.sh(line);
        assert_eq!(answer.code, 0, "$ {line}\n{}\n{}", answer.all(), self.node.log());
        answer.out
    }

    /// A line that runs in the background until dropped; it must be one command.
    fn goes_on(&self, line: &str) -> Ended {
        Ended(self.shell(&format!("exec {line}")).spawn().unwrap())
    }
}

/// Ends a process started by a test, whatever happens.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have exited by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The minor version: 32 for 1.32.
fn minor(kubectl: &Path) -> Option<u32> {
    let output = Command::new(kubectl).args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let digits = version["clientVersion"]["minor"].as_str()?.split(|c: char| !c.is_ascii_digit()).next()?.to_owned();
    digits.parse().ok()
}

/// All installed kubectls, the machine's default first.
fn kubectls() -> Vec<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join("kubectl")).find(|file| file.exists());
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/kubectl");
    let all = std::env::var_os("KUBECTL").map(PathBuf::from).into_iter().chain(on_path).chain([fetched]);
    all.filter(|file| minor(file).is_some()).collect()
}

pub fn newest() -> Option<PathBuf> {
    let newest = kubectls().into_iter().max_by_key(|file| minor(file)).filter(|file| minor(file) >= Some(SINCE));
    if newest.is_none() {
        missing::client(&format!("there is no kubectl 1.{SINCE} or newer here; `./dev test` gets one"));
    }
    newest
}
