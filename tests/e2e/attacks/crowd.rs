//! A node in its own user namespace, with separate limits that can be exhausted.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::beyond::{number, said};
use super::profiles::ALLOWS;
use super::world::{BASELINE, World, compiled};
use super::{POD, Pod, TIMEOUT, Target, Verdict};
use crate::support::{TestNode, eventually, node::binary, slowness};

/// Namespaces of a kind that each user may have there: enough for the node's own, and for some Pods.
const ROOM: usize = 24;
/// Namespaces that a container creates on the machine itself: few of root's limit.
const FEW: usize = 50;

/// Ids are mapped to themselves: only the limits matter. The kernel permits no devices there, so containers do not get to run.
struct Crowd {
    holder: Child,
    folder: tempfile::TempDir,
}

impl Crowd {
    fn new() -> Crowd {
        let holder = Command::new("unshare")
            .args(["--user", "--mount", "--net", "--propagation", "private", "sleep", "1000"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let crowd = Crowd { holder, folder: tempfile::tempdir().unwrap() };
        let of_holder = PathBuf::from(format!("/proc/{}", crowd.holder.id()));
        eventually("it has its program", Duration::from_secs(10), || {
            let program = fs::read_to_string(of_holder.join("comm")).unwrap();
            if program == "sleep\n" { Ok(()) } else { Err(program) }
        });
        for map in ["uid_map", "gid_map"] {
            fs::write(of_holder.join(map), "0 0 4294967295").unwrap();
        }
        let setup = format!("echo {ROOM} > /proc/sys/user/max_uts_namespaces && ip link set lo up");
        assert!(crowd.inside("sh").args(["-c", &setup]).status().unwrap().success());
        crowd
    }

    /// A program there, as root.
    fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--mount", "--net", "--target", &self.holder.id().to_string(), program]);
        command
    }

    /// An executable file.
    fn program(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// A node there.
    fn node(&self) -> TestNode {
        let enter = format!("nsenter --user --mount --net --target {}", self.holder.id());
        let script = format!("#!/bin/sh\nexec {enter} {} \"$@\"\n", binary().display());
        let program = self.program("podwright", script.as_bytes());
        let own = || binary().with_file_name("podwright-shim");
        let shim = std::env::var_os("PODWRIGHT_SHIM").map_or_else(own, PathBuf::from);
        let mut node = TestNode::stopped(&[]);
        node.be(Some((&program, &shim)));
        node.spawn();
        node.wait_ready();
        node
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Creates a Pod; returns whether it got as far as its containers, and its messages.
fn is_born(node: &TestNode, name: &str) -> (bool, String) {
    node.apply(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 0, containers: [\
         {{name: c, image: 'localhost/busybox:1', command: [sleep, '1000']}}]}}}}"
    ));
    let deadline = Instant::now() + TIMEOUT * slowness();
    loop {
        let events = node.run(&["events", "--for", &format!("pod/{name}")]).all();
        let born = events.contains("container init") || events.contains("Started");
        if born || events.contains("No space left on device") || Instant::now() > deadline {
            return (born, events);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub fn namespaces(world: &World, target: &Target) -> Verdict {
    let script = "beyond uts 50";
    if let Err(why) = world.start_pod(target, &Pod { namespace: BASELINE, spec: ALLOWS, script, ..POD }) {
        return Verdict::Untried(why);
    }
    let inside = said(world, target, BASELINE, "namespaces: ");
    world.delete("pods", BASELINE, target.id);
    if number(&inside, "made ") != FEW && !inside.contains("held: ") {
        return Verdict::Untried(inside);
    }
    let crowd = Crowd::new();
    let node = crowd.node();
    node.import_busybox();
    if let (false, why) = is_born(&node, "before") {
        return Verdict::Untried(format!("not even without a crowd: {why}"));
    }
    let tool = crowd.program("beyond", &compiled("beyond.c"));
    let output = crowd.folder.path().join("output");
    let mut others = crowd
        .inside(tool.to_str().unwrap())
        .args(["uts", "1000"])
        .stdin(Stdio::null())
        .stdout(fs::File::create(&output).unwrap())
        .spawn()
        .unwrap();
    let made = eventually("they have made what they can", TIMEOUT, || {
        let said = fs::read_to_string(&output).unwrap();
        if said.contains("namespaces: ") { Ok(said) } else { Err(said) }
    });
    let (born, told) = is_born(&node, "after");
    let _ = others.kill();
    let _ = others.wait();
    match born {
        _ if !made.contains("No space left") => Verdict::Untried(format!("there is no end to them: {made}")),
        true => {
            Verdict::Held(format!("inside: {}; in the crowd: {}; the next Pod is born", inside.trim(), made.trim()))
        }
        false => Verdict::Breach(format!("{}; the next Pod is not born: {told}", made.trim())),
    }
}
