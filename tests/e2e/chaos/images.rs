//! Images being pulled, loaded and removed at the kill: what exists afterwards is complete.

use std::{
    fmt, fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::{Dice, TIMEOUT};
use crate::support::{
    TestNode,
    registry::{Registry, noise, run, tar},
};

const IMAGES: usize = 3;
const IMPORTS: u64 = 2;
/// Size of a file in the imported tar: unpacking takes a moment.
const MUCH: usize = 4 << 20;

pub struct Images {
    _registry: Registry,
    /// By number, which is also the content of their `/word`.
    pub names: Vec<String>,
    /// An archive with another image.
    archive: PathBuf,
    /// A root file system, to be imported.
    imported: PathBuf,
    done: AtomicU64,
}

impl Images {
    pub fn start(node: &TestNode) -> Images {
        let registry = Registry::start();
        let names = (0..IMAGES).map(|n| format!("{}/app:{n}", registry.addr)).collect();
        for n in 0..IMAGES {
            registry.push(&crate::images::image(&n.to_string()), "it", &format!("app:{n}"));
        }
        let archive = node.dir.path().join("loaded.tar");
        let from = format!("docker://{}/app:0", registry.addr);
        let to = format!("docker-archive:{}:localhost/loaded:1", archive.display());
        run(Command::new("skopeo").args(["copy", "--src-tls-verify=false", &from, &to]));
        let imported = node.dir.path().join("imported.tar");
        fs::write(&imported, tar(&[("word", b"imported\n"), ("much", &noise(MUCH))])).unwrap();
        Images { _registry: registry, names, archive, imported, done: AtomicU64::new(0) }
    }

    /// Commands to run until the server dies.
    pub fn commands(&self, node: &TestNode, dice: &mut Dice) -> Vec<Command> {
        let (archive, imported) = (self.archive.display().to_string(), self.imported.display().to_string());
        let one = |dice: &mut Dice| {
            let name = &self.names[dice.roll(IMAGES as u64) as usize];
            match dice.roll(6) {
                0 => node.command(&["image", "load", &archive]),
                1 => {
                    let name = format!("localhost/imported:{}", dice.roll(IMPORTS));
                    node.command(&["image", "import", &imported, &name])
                }
                2 => node.command(&["image", "rm", name]),
                3 => node.command(&["image", "rm", &format!("localhost/imported:{}", dice.roll(IMPORTS))]),
                _ => node.command(&["image", "pull", name]),
            }
        };
        (0..6).map(|_| one(dice)).collect()
    }

    pub fn write(&self, commands: Vec<Command>, stop: &AtomicBool) {
        for mut command in commands {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
            self.done.fetch_add(u64::from(ended.success()), Ordering::Relaxed);
        }
    }

    /// Each image is usable, and complete in its containers.
    pub fn check(&self, node: &TestNode) {
        node.ok(&["image", "load", &self.archive.display().to_string()]);
        let loaded = ("localhost/loaded:1".to_owned(), "0".to_owned());
        let pulled = self.names.iter().enumerate().map(|(n, name)| (name.clone(), n.to_string()));
        for (n, (image, word)) in pulled.chain([loaded]).enumerate() {
            node.apply(&format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: image-{n}}}, spec: {{restartPolicy: Never, containers: [{{name: c, \
                 image: '{image}', imagePullPolicy: IfNotPresent, command: [sh, -c, 'test $(cat /word) = {word} && busybox sha256sum \
                 /bin/busybox']}}]}}}}"
            ));
            node.wait("jsonpath={.status.phase}=Succeeded", &[&format!("pod/image-{n}")], TIMEOUT);
        }
        node.ok(&["delete", "pods", "--all", "--timeout", "60s"]);
        // What was imported is complete, if it exists at all.
        let much = noise(MUCH);
        for n in 0..IMPORTS {
            node.ok(&["image", "import", &self.imported.display().to_string(), &format!("localhost/imported:{n}")]);
        }
        let layers = fs::read_dir(node.dir.path().join("images/layers")).unwrap().flatten();
        let found = layers.filter_map(|layer| fs::read(layer.path().join("fs/much")).ok()).collect::<Vec<_>>();
        assert!(!found.is_empty() && found.iter().all(|found| *found == much), "{} layers are imported", found.len());
    }
}

impl fmt::Display for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} images pulled, loaded or removed", self.done.load(Ordering::Relaxed))
    }
}
