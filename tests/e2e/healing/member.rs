//! Damage to certificates: a node joined by TLS rewrites its own and reconnects with them; a server rewrites its CA's and recreates
//! the others.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Load, TIMEOUT, mended, timely};
use crate::support::{TestNode, eventually, registry::run};

const TOKEN: &str = "
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: abcdef
  token-secret: 0123456789abcdef
  usage-bootstrap-authentication: 'true'
";

/// Ways to damage a file; or everything in a folder.
const RUINS: [(&str, fn(&Path)); 3] = [
    ("removed", |path| match path.is_dir() {
        true => fs::remove_dir_all(path).unwrap(),
        false => fs::remove_file(path).unwrap(),
    }),
    ("empty", |path| of_all(path, &|path| fs::write(path, "").unwrap())),
    ("garbage", |path| of_all(path, &|path| fs::write(path, "garbage").unwrap())),
];

fn of_all(path: &Path, ruin: &dyn Fn(&Path)) {
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().for_each(|entry| ruin(&entry.path())),
        Err(_) => ruin(path),
    }
}

/// A server, and a node joined by TLS with changing Pods.
struct Cluster {
    server: TestNode,
    agent: TestNode,
    load: Load,
}

impl Cluster {
    fn new() -> Cluster {
        let server = TestNode::server(&[]);
        server.apply(TOKEN);
        let mut agent = TestNode::joining(&server, "member", "abcdef.0123456789abcdef");
        agent.spawn();
        is_ready(&server, &agent);
        let tar = crate::support::node::busybox_tar().to_str().unwrap();
        server.ok(&["image", "--node", "member", "import", tar, "localhost/busybox:1"]);
        let load = Load::of_pods(&server);
        Cluster { server, agent, load }
    }
}

fn is_ready(server: &TestNode, agent: &TestNode) {
    eventually("the node is ready", TIMEOUT, || {
        let answer = server.run(&["wait", "--for=condition=Ready", "node/member", "--timeout=1s"]);
        if answer.code == 0 { Ok(()) } else { Err(answer.all() + &agent.log()) }
    });
}

#[test]
fn a_members_certificate_is_mended() {
    let Cluster { server, mut agent, load } = Cluster::new();
    let folder = agent.dir.path().join("agent");
    let names = ["client.crt", "client.key", "ca.crt"];
    let read = || names.map(|name| fs::read(folder.join(name)).unwrap_or_default());
    let own = read();
    let pid = agent.pid();
    for path in names.map(|name| folder.join(name)).iter().chain([&folder]) {
        for (how, ruin) in RUINS {
            let what = format!("{}, {how}", path.strip_prefix(agent.dir.path()).unwrap().display());
            let sound = || if read() == own { Ok(()) } else { Err(agent.log()) };
            timely(&what, mended(pid, &what, || ruin(path), sound));
        }
    }
    assert_eq!(agent.pid(), pid);
    println!("{}", load.end());
    // It restarts with nothing but them.
    agent.kill();
    server.ok(&["-n", "kube-system", "delete", "secret", "bootstrap-token-abcdef"]);
    agent.without_token();
    let before = server.field(&["lease", "-n", "kube-node-lease", "member"], ".spec.renewTime");
    agent.spawn();
    eventually("it renews its lease", TIMEOUT, || {
        let now = server.field(&["lease", "-n", "kube-node-lease", "member"], ".spec.renewTime");
        if now != before { Ok(()) } else { Err(agent.log()) }
    });
    is_ready(&server, &agent);
}

/// openssl's check that a certificate matches its key and is signed by the original CA.
fn is_of(folder: &Path, name: &str, authority: &Path) -> Result<(), String> {
    let script = format!(
        "cd '{}' && openssl verify -CAfile '{}' {name}.crt && test \"$(openssl x509 -in {name}.crt -noout -pubkey)\" = \
         \"$(openssl pkey -in {name}.key -pubout)\"",
        folder.display(),
        authority.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn a_servers_certificates_are_mended() {
    let Cluster { server, agent, load } = Cluster::new();
    let dir = server.dir.path();
    let (pki, kubeconfig) = (dir.join("pki"), dir.join("admin.kubeconfig"));
    let authority = dir.join("authority.copy");
    fs::copy(pki.join("ca.crt"), &authority).unwrap();
    let sound = || {
        ["ca", "server", "admin"].iter().try_for_each(|name| is_of(&pki, name, &authority))?;
        let text = fs::read_to_string(&kubeconfig).map_err(|e| e.to_string())?;
        if text.ends_with("preferences: {}\n") { Ok(()) } else { Err(text) }
    };
    let files = ["ca.crt", "ca.key", "server.crt", "server.key", "admin.crt", "admin.key"].map(|name| pki.join(name));
    let (pids, all) = ((server.pid(), agent.pid()), files.into_iter().chain([kubeconfig.clone(), pki.clone()]));
    for path in all.collect::<Vec<PathBuf>>() {
        for (how, ruin) in RUINS {
            let what = format!("{}, {how}", path.strip_prefix(dir).unwrap().display());
            timely(&what, mended(server.pid(), &what, || ruin(&path), sound));
        }
    }
    // TLS clients are served with the current certificates, without reconfiguration.
    let text = fs::read_to_string(&kubeconfig).unwrap();
    let url = text.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap();
    let script = format!(
        "cd '{}' && curl -sSf --cacert '{}' --cert admin.crt --key admin.key {url}/api/v1/nodes/member",
        pki.display(),
        authority.display()
    );
    run(Command::new("sh").args(["-c", &script]));
    is_ready(&server, &agent);
    assert_eq!((server.pid(), agent.pid()), pids);
    println!("{}", load.end());
}
