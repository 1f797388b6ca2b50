//! A test bed for containers: a rootfs made of busybox, a runtime with its own folders and cgroup subtree.

use std::collections::HashSet;
use std::fmt::Debug;
use std::fs;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use podwright_runtime::{
    CgroupName, Config, ContainerId, ContainerSpec, ContainerStatus, Event, ExecOutput, ExecSpec, Exit, JournalWriter,
    LogSpec, Resources, Result, Rootfs, Runtime, SandboxSpec, default_capabilities, default_masked_paths,
    default_mounts, default_readonly_paths, default_seccomp, oci,
};

use tokio::sync::broadcast::error::RecvError;

use crate::sweep;

pub struct Bed {
    pub dir: tempfile::TempDir,
    pub runtime: Runtime,
    cgroup: PathBuf,
}

impl Bed {
    pub async fn new(name: &str) -> Bed {
        Bed::with_births_within(name, podwright_runtime::BIRTH).await
    }

    pub async fn with_births_within(name: &str, birth_timeout: Duration) -> Bed {
        let dir = tempfile::tempdir().unwrap();
        make_rootfs(&dir.path().join("layers"));
        let cgroup = PathBuf::from(format!("/podwright-test-{}-{name}", std::process::id()));
        let runtime = Runtime::open(Config { birth_timeout, ..config(dir.path(), &cgroup) }).await.unwrap();
        Bed { dir, runtime, cgroup }
    }

    pub fn config(&self) -> Config {
        config(self.dir.path(), &self.cgroup)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub async fn sandbox(&self, id: &str) {
        self.sandbox_with(id, |_| ()).await
    }

    pub async fn sandbox_by(&self, id: &str, journal: &JournalWriter) {
        self.runtime.run_sandbox(sandbox_spec(id), journal).await.unwrap();
    }

    pub async fn sandbox_with(&self, id: &str, change: impl FnOnce(&mut SandboxSpec)) {
        let mut spec = sandbox_spec(id);
        change(&mut spec);
        self.runtime.run_sandbox(spec, &JournalWriter::none()).await.unwrap();
    }

    pub fn sandbox_spec(&self, id: &str) -> SandboxSpec {
        sandbox_spec(id)
    }

    /// A process running `sh -c script`, with options as in [`Bed::container`].
    pub fn process(&self, script: &str, options: &[(&str, &str)]) -> ExecSpec {
        let option = |name: &str| options.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        let args: Vec<String> = match option("argv") {
            Some(one) => vec![one.to_owned()],
            None => ["sh", "-c", script].map(str::to_owned).to_vec(),
        };
        let capabilities = if option("caps") == Some("none") { HashSet::new() } else { default_capabilities() };
        let (mut uid, mut gid, mut more) = (0, 0, Vec::new());
        if let Some(user) = option("user") {
            let numbers: Vec<u32> = user.split([':', '+']).map(|n| n.parse().unwrap()).collect();
            (uid, gid, more) = (numbers[0], numbers[1], numbers[2..].to_vec());
        }
        let user = oci::UserBuilder::default().uid(uid).gid(gid).additional_gids(more).build().unwrap();
        let process = oci::ProcessBuilder::default()
            .args(args)
            .env(option("env").into_iter().map(str::to_owned).collect::<Vec<_>>())
            .cwd(option("cwd").unwrap_or("/"))
            .user(user)
            .capabilities(capability_sets(&capabilities))
            .no_new_privileges(true)
            .terminal(option("tty").is_some())
            .build()
            .unwrap();
        let seccomp = Some(default_seccomp(&capabilities));
        ExecSpec { process, seccomp, stdin: option("stdin").is_some(), size: None }
    }

    /// A container running `sh -c script`. Options: `argv`, `caps`, `user`, `env`, `cwd`, `tty`, `stdin` (`once`), `root`
    /// (`readonly`), `file` (a file to mount), `ro` and `rw` (a folder to mount there).
    pub fn container(&self, name: &str, script: &str, options: &[(&str, &str)]) -> ContainerSpec {
        let option = |name: &str| options.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        let ExecSpec { process, seccomp, .. } = self.process(script, options);
        let mut mounts = default_mounts(false);
        if let Some(target) = option("file") {
            fs::write(self.path("given"), "given by the host\n").unwrap();
            mounts.push(bind(&self.path("given"), target, "ro"));
        }
        if self.path("go").exists() {
            mounts.push(bind(&self.path("go"), "/go", "ro"));
        }
        for how in ["ro", "rw"] {
            if let Some(source) = option(how) {
                mounts.push(bind(Path::new(source), &format!("/{how}"), how));
            }
        }
        let linux = oci::LinuxBuilder::default()
            .masked_paths(default_masked_paths())
            .readonly_paths(default_readonly_paths())
            .seccomp(seccomp.unwrap())
            .build()
            .unwrap();
        let root = oci::RootBuilder::default().path("rootfs").readonly(option("root").is_some()).build().unwrap();
        let mut spec = oci::Spec::default();
        spec.set_process(Some(process));
        spec.set_mounts(Some(mounts));
        spec.set_linux(Some(linux));
        spec.set_root(Some(root));
        let layers = ["base", "top"].map(|layer| self.path("layers").join(layer)).to_vec();
        ContainerSpec {
            pid_of: None,
            id: ContainerId::new("s", name, 0),
            oci: spec,
            rootfs: Rootfs::Layers(layers),
            log: Some(LogSpec::new(self.path("logs").join(name).join("0.log"))),
            stdin: option("stdin").is_some(),
            stdin_once: option("stdin") == Some("once"),
            resources: Resources::default(),
            labels: Default::default(),
            annotation: String::new(),
        }
    }

    pub async fn create(&self, name: &str, script: &str, options: &[(&str, &str)]) -> ContainerId {
        self.create_by(name, script, options, &JournalWriter::none()).await
    }

    pub async fn create_by(
        &self,
        name: &str,
        script: &str,
        options: &[(&str, &str)],
        journal: &JournalWriter,
    ) -> ContainerId {
        let spec = self.container(name, script, options);
        self.runtime.create_container(spec, journal).await.unwrap().id
    }

    pub async fn run(&self, name: &str, script: &str) -> ContainerId {
        // A FIFO that a test may open without a running agent.
        if script.contains("/go") {
            let path = self.path("go");
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
        }
        let id = self.create(name, script, &[]).await;
        self.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
        id
    }

    /// [`Bed::run`] in another sandbox than `s`.
    pub async fn run_in(&self, sandbox: &str, name: &str, script: &str) -> ContainerId {
        let mut spec = self.container(name, script, &[]);
        spec.id.sandbox = sandbox.to_owned();
        let id = self.runtime.create_container(spec, &JournalWriter::none()).await.unwrap().id;
        self.runtime.start_container(&id, &JournalWriter::none()).await.unwrap();
        id
    }

    pub async fn exec(&self, id: &ContainerId, script: &str) -> Result<ExecOutput> {
        self.runtime.exec_sync(id, self.process(script, &[]), Duration::from_secs(10), &JournalWriter::none()).await
    }

    /// A container's exit, waiting until the timeout.
    pub async fn exit(&self, id: &ContainerId, timeout: Duration) -> Exit {
        let mut events = self.runtime.events();
        let ended = async {
            loop {
                if let Some(exit) = self.status(id).await.exit {
                    return exit;
                }
                match events.recv().await {
                    Ok(Event::ContainerExited { id: ended, exit }) if ended == *id => return exit,
                    Err(RecvError::Closed) => panic!("the runtime is gone"),
                    _ => {}
                }
            }
        };
        tokio::time::timeout(timeout, ended).await.unwrap_or_else(|_| panic!("container {id} has not ended"))
    }

    pub async fn status(&self, id: &ContainerId) -> ContainerStatus {
        let sandbox = self.runtime.sandbox(&id.sandbox).await.unwrap();
        sandbox.containers.into_iter().find(|c| c.id == *id).unwrap()
    }

    /// A container's output, without the log format; parts of split lines are joined.
    pub fn log(&self, id: &ContainerId) -> String {
        let text = fs::read_to_string(self.path("logs").join(&id.name).join("0.log")).unwrap_or_default();
        let mut said = String::new();
        for line in text.lines() {
            let mut words = line.splitn(4, ' ');
            let (tag, rest) = (words.nth(2).unwrap_or_default(), words.next().unwrap_or_default());
            said.push_str(rest);
            if tag == "F" {
                said.push('\n');
            }
        }
        said
    }

    pub async fn log_has(&self, id: &ContainerId, words: &str) {
        within(words, || async {
            let log = self.log(id);
            log.contains(words).then_some(()).ok_or(log)
        })
        .await
    }

    /// The agent disappears, as by kill -9.
    pub async fn forget(&mut self) {
        let empty = tempfile::tempdir().unwrap();
        let cgroup = self.cgroup.join("nobody");
        self.runtime = Runtime::open(config(empty.path(), &cgroup)).await.unwrap();
        let _ = fs::remove_dir(cgroup_path(&cgroup));
    }

    pub async fn reopen(&mut self) {
        self.runtime = Runtime::open(self.config()).await.unwrap();
    }

    /// The state left by an agent without secrets.
    pub fn without_secret(&self, sandbox: &str) {
        let (own, copy) = (self.path("state/sandboxes").join(sandbox), self.path("state/copies").join(sandbox));
        for folder in [&own, &copy] {
            fs::remove_file(folder.join("secret")).unwrap();
        }
        for record in [own.join("sandbox.json"), copy.join("sandbox")] {
            let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
            json["secret"] = false.into();
            fs::write(&record, json.to_string()).unwrap();
        }
    }

    pub fn kill_shim(&self, sandbox: &str) {
        self.signal_shim(sandbox, rustix::process::Signal::KILL);
    }

    pub fn signal_shim(&self, sandbox: &str, signal: rustix::process::Signal) {
        let procs = cgroup_path(&self.cgroup).join("shims").join(sandbox).join("cgroup.procs");
        let pid: i32 = fs::read_to_string(procs).unwrap().trim().parse().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// The processes of a sandbox, including its shim.
    pub fn processes_of(&self, sandbox: &str) -> Vec<u32> {
        let folders = ["shims", "burstable"].map(|parent| cgroup_path(&self.cgroup).join(parent).join(sandbox));
        folders.iter().flat_map(|folder| podwright_runtime::cgroup::procs(folder)).collect()
    }

    /// The cgroup of all processes of a sandbox except its shim.
    pub fn cgroup_of(&self, sandbox: &str) -> PathBuf {
        cgroup_path(&self.cgroup).join("burstable").join(sandbox)
    }

    /// Removes everything, and checks that nothing is left.
    pub async fn end(self) {
        for sandbox in self.runtime.list().await {
            self.runtime.remove_sandbox(&sandbox.spec.id, &JournalWriter::none()).await.unwrap();
            self.runtime.remove_sandbox(&sandbox.spec.id, &JournalWriter::none()).await.unwrap();
        }
        assert_eq!(self.runtime.removals().drained().await, [""; 0]);
        for folder in ["state/sandboxes", "state/copies", "run"] {
            let left: Vec<_> = fs::read_dir(self.path(folder)).unwrap().flatten().map(|e| e.path()).collect();
            assert_eq!(left, Vec::<PathBuf>::new());
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.dir.path().to_str().unwrap()), "{mounts}");
        // Parents shared by sandboxes stay until the runtime is removed; their own leaves are gone.
        let root = cgroup_path(&self.cgroup);
        let shared = [root.clone(), root.join("shims"), root.join("burstable")];
        let left: Vec<PathBuf> = walk(&root).into_iter().filter(|p| !shared.contains(p)).collect();
        assert_eq!(left, Vec::<PathBuf>::new());
        self.runtime.remove_root(&JournalWriter::none()).await.unwrap();
        assert!(!root.exists());
    }
}

/// The sets of a process with these capabilities: as from a container runtime, nothing inheritable or ambient.
pub fn capability_sets(capabilities: &HashSet<oci::Capability>) -> oci::LinuxCapabilities {
    oci::LinuxCapabilitiesBuilder::default()
        .bounding(capabilities.clone())
        .effective(capabilities.clone())
        .permitted(capabilities.clone())
        .inheritable(HashSet::new())
        .ambient(HashSet::new())
        .build()
        .expect("every set is given")
}

/// Cleans up after a failed test: its shims and containers, their cgroups, their mounts.
impl Drop for Bed {
    fn drop(&mut self) {
        sweep::cgroup(&cgroup_path(&self.cgroup));
        sweep::mounts(&self.dir.path().canonicalize().unwrap_or_else(|_| self.dir.path().to_owned()));
    }
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.map(|e| e.path()).filter(|p| p.is_dir());
    std::iter::once(folder.to_owned()).chain(folders.flat_map(|f| walk(&f))).collect()
}

fn cgroup_path(root: &Path) -> PathBuf {
    podwright_runtime::cgroup::find_mount().unwrap().join(root.strip_prefix("/").unwrap())
}

fn sandbox_spec(id: &str) -> SandboxSpec {
    SandboxSpec {
        hostname: "pod-host".into(),
        annotation: "kept".into(),
        ..SandboxSpec::new(id, CgroupName::new("burstable").child(id))
    }
}

fn config(dir: &Path, cgroup: &Path) -> Config {
    Config {
        state_dir: dir.join("state"),
        run_dir: dir.join("run"),
        cgroup_root: cgroup.to_owned(),
        shim: shim().clone(),
        birth_timeout: podwright_runtime::BIRTH,
        owners: Default::default(),
    }
}

/// The shim, built once by the test process (cargo builds other packages' binaries only on request).
fn shim() -> &'static PathBuf {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
        if let Some(path) = std::env::var_os("PODWRIGHT_SHIM") {
            return path.into();
        }
        let mut build = std::process::Command::new(env!("CARGO"));
        build.args(["build", "-q", "-p", "podwright-shim", "--bin", "podwright-shim"]);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
        folder.join("podwright-shim")
    })
}

fn bind(source: &Path, target: &str, how: &str) -> oci::Mount {
    let options = vec!["rbind".to_owned(), how.to_owned()];
    let mount = oci::MountBuilder::default().destination(target).typ("bind").source(source).options(options);
    mount.build().unwrap()
}

/// Two layers: busybox with its applets, and some files on top.
fn make_rootfs(layers: &Path) {
    let (base, top) = (layers.join("base"), layers.join("top"));
    for folder in [base.join("bin"), base.join("tmp"), top.join("etc")] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::copy("/bin/busybox", base.join("bin/busybox")).unwrap();
    let applets = std::process::Command::new("/bin/busybox").arg("--list").output().unwrap();
    for applet in String::from_utf8(applets.stdout).unwrap().lines().filter(|a| *a != "busybox") {
        symlink("busybox", base.join("bin").join(applet)).unwrap();
    }
    fs::write(top.join("etc/plain"), "no program").unwrap();
    fs::write(top.join("etc/garbage"), [0u8; 64]).unwrap();
    fs::set_permissions(top.join("etc/garbage"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(top.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
}

/// Waits until `what` holds; on failure shows its last state.
pub async fn within<F: Future<Output = std::result::Result<(), S>>, S: Debug>(
    what: &str,
    mut holds: impl FnMut() -> F,
) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        match holds().await {
            Ok(()) => return,
            Err(state) if tokio::time::Instant::now() > deadline => panic!("{what}: {state:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// All output of a terminal until its other side closes (which reads as EIO).
pub async fn read_tty(fd: OwnedFd) -> String {
    let reading = tokio::task::spawn_blocking(move || {
        let (mut said, mut buffer) = (Vec::new(), [0u8; 1024]);
        loop {
            match rustix::io::read(&fd, &mut buffer) {
                Ok(0) | Err(rustix::io::Errno::IO) => return String::from_utf8(said).unwrap(),
                Ok(n) => said.extend_from_slice(&buffer[..n]),
                Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
                Err(e) => panic!("reading a terminal: {e}"),
            }
        }
    });
    tokio::time::timeout(Duration::from_secs(10), reading).await.unwrap().unwrap()
}
