//! A lab's nodes: isolated ones, processes of their own that outlive the command that starts them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::busybox;
use super::shell::Shell;

/// How long a node may take to start, and to end with its Pods.
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(60);
/// How long an import of the image may take.
const IMPORT: Duration = Duration::from_secs(60);
const OFTEN: Duration = Duration::from_millis(20);

/// A process, told from a later one with the same number by when it started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pid: i32,
    /// In clock ticks since the machine's start (proc_pid_stat(5)).
    started: u64,
}

impl Process {
    fn of(pid: u32) -> Option<Process> {
        let pid = i32::try_from(pid).ok()?;
        Some(Process { pid, started: started(pid)? })
    }

    pub fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    fn signal(&self, signal: Signal) -> std::io::Result<()> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(()) };
        // The descriptor stays with the process that had the number when it was looked at.
        let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
        if self.is_alive() {
            pidfd_send_signal(&descriptor, signal)?;
        }
        Ok(())
    }
}

impl Process {
    /// Ends it without a chance to clean up; returns when it has ended.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)?;
        while self.is_alive() {
            tokio::time::sleep(OFTEN).await;
        }
        Ok(())
    }
}

/// When a process started; none if it has ended, or waits as a zombie for its parent.
fn started(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    if matches!(fields.first(), Some(&("Z" | "X"))) { None } else { fields.get(19)?.parse().ok() }
}

/// Where a lab's nodes keep their state.
#[derive(Clone)]
pub struct Nodes {
    /// The lab's name, for its own commands.
    pub name: String,
    /// The lab's folder.
    pub folder: PathBuf,
    pub count: usize,
}

impl Nodes {
    /// The nodes' names: `n1`, with the control plane, and `n2`.
    pub fn names(&self) -> impl Iterator<Item = String> + use<> {
        (1..=self.count).map(|number| format!("n{number}"))
    }

    fn first(&self) -> PathBuf {
        self.folder.join("n1")
    }

    fn server(&self) -> String {
        format!("unix://{}/api.sock", self.first().display())
    }

    /// Where the lab's commands run.
    pub fn shell(&self) -> Shell {
        let mut path = OsString::from(self.folder.join("bin"));
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into()));
        let environment = vec![
            ("PATH", path),
            ("PODWRIGHT_SERVER", self.server().into()),
            ("KUBECONFIG", self.first().join("admin.kubeconfig").into()),
            ("PODWRIGHT_LABS_DIR", self.folder.parent().unwrap_or(Path::new("/")).into()),
            ("LAB", self.name.clone().into()),
            ("NODE", self.first().into()),
            ("NODE_NETNS", self.first().join("network/netns").into()),
            ("CGROUP2", cgroup2().into()),
        ];
        Shell { folder: self.folder.join("files"), environment }
    }

    /// 1. starts the control plane with its node, 2. the other nodes, 3. waits until all are ready, 4. imports the image into each.
    ///    `note` records each process once it runs.
    pub async fn start(&self, mut note: impl FnMut(Process) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let begin = Instant::now();
        for name in self.names() {
            let process = self.spawn(&name)?;
            note(process.clone())?;
            self.wait_ready(&name, &process, begin + START).await?;
        }
        self.import().await
    }

    /// Starts the first node again, on its former state.
    pub async fn restart(&self, note: impl FnOnce(Process) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let process = self.spawn("n1")?;
        note(process.clone())?;
        self.wait_ready("n1", &process, Instant::now() + START).await
    }

    fn spawn(&self, name: &str) -> anyhow::Result<Process> {
        let log = self.log(name);
        let log =
            std::fs::File::options().create(true).append(true).open(&log).with_context(|| log.display().to_string())?;
        let mut command = self.shell().command(self.folder.join("bin/podwright")).into_std();
        let socket = self.server();
        let role: &[&str] = if name == "n1" { &["up"] } else { &["agent", "--server", &socket] };
        command.args(role).args(["--isolated", "--node-name", name, "--state-dir"]).arg(self.folder.join(name));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Ctrl-C in a terminal is for the command there, not for the node.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().context("podwright")?;
        Process::of(child.id()).with_context(|| format!("node {name} ended at once:\n{}", self.last_words(name)))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// The last lines of a node's log.
    fn last_words(&self, name: &str) -> String {
        let log = std::fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    async fn wait_ready(&self, name: &str, process: &Process, deadline: Instant) -> anyhow::Result<()> {
        let script = format!("podwright wait --for=condition=Ready node/{name} --timeout=1s");
        loop {
            if !process.is_alive() {
                anyhow::bail!("node {name} ended:\n{}", self.last_words(name));
            }
            if self.shell().run(&script, START).await?.code == Some(0) {
                return Ok(());
            }
            if Instant::now() > deadline {
                anyhow::bail!("node {name} is not ready within {START:?}:\n{}", self.last_words(name));
            }
            tokio::time::sleep(OFTEN).await;
        }
    }

    async fn import(&self) -> anyhow::Result<()> {
        let archive = self.folder.join("busybox.tar");
        busybox::write_archive(&archive)?;
        for name in self.names() {
            let script = format!("podwright image --node {name} import ../busybox.tar {}", busybox::IMAGE);
            let output = self.shell().run(&script, IMPORT).await?;
            anyhow::ensure!(output.code == Some(0), "{script}: {}", output.text);
        }
        Ok(std::fs::remove_file(archive)?)
    }

    /// Ends the nodes with their Pods, the last one first, as the first has the server. One that was killed has left things in the
    /// kernel: `reset` finds them.
    pub async fn end(&self, processes: &[Process]) -> anyhow::Result<()> {
        for (name, process) in self.names().zip(processes).collect::<Vec<_>>().into_iter().rev() {
            let was_alive = process.is_alive();
            process.signal(Signal::TERM).with_context(|| format!("node {name}"))?;
            let deadline = Instant::now() + END;
            while process.is_alive() {
                let said = || format!("node {name} does not end within {END:?}:\n{}", self.last_words(&name));
                anyhow::ensure!(Instant::now() < deadline, said());
                tokio::time::sleep(OFTEN).await;
            }
            if !was_alive {
                self.clear(&name).await?;
            }
        }
        Ok(())
    }

    async fn clear(&self, name: &str) -> anyhow::Result<()> {
        if !self.folder.join(name).exists() {
            return Ok(());
        }
        let script = format!("podwright reset --isolated --yes --node-name {name} --state-dir ../{name}");
        let output = self.shell().run(&script, END).await?;
        anyhow::ensure!(output.code == Some(0), "{script}: {}", output.text);
        Ok(())
    }
}

/// Where cgroups v2 are: beside the older ones, or alone.
fn cgroup2() -> &'static str {
    let hybrid = "/sys/fs/cgroup/unified";
    if Path::new(hybrid).join("cgroup.controllers").exists() { hybrid } else { "/sys/fs/cgroup" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_anothers_now_is_not_the_process() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.is_alive());
        let former = Process { started: own.started - 1, ..own };
        assert!(!former.is_alive());
        // SIGTERM would end this test.
        former.signal(Signal::TERM).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        while started(pid).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
