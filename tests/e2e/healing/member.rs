//! Damage to the certificate of a node that has joined by TLS: the node writes it again, and comes back with it.

use std::{fs, time::Instant};

use super::{LIMIT, PATIENCE};
use crate::support::{TestNode, eventually, slowness};

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

#[test]
fn a_members_certificate_is_mended() {
    let server = TestNode::server(&[]);
    server.apply(TOKEN);
    let mut agent = TestNode::joining(&server, "member", "abcdef.0123456789abcdef");
    agent.spawn();
    let ready = |agent: &TestNode| {
        eventually("the node is ready", PATIENCE, || {
            let answer = server.run(&["wait", "--for=condition=Ready", "node/member", "--timeout=1s"]);
            if answer.code == 0 { Ok(()) } else { Err(answer.all() + &agent.log()) }
        });
    };
    ready(&agent);
    let folder = agent.dir.path().join("agent");
    let names = ["client.crt", "client.key", "ca.crt"];
    let read = || names.map(|name| fs::read(folder.join(name)).unwrap_or_default());
    let own = read();
    let mut all: Vec<(String, Box<dyn Fn()>)> = Vec::new();
    for name in names {
        let path = folder.join(name);
        let (removed, written) = (path.clone(), path);
        all.push((format!("{name}, removed"), Box::new(move || fs::remove_file(&removed).unwrap())));
        all.push((format!("{name}, garbage"), Box::new(move || fs::write(&written, "garbage").unwrap())));
    }
    let whole = folder.clone();
    all.push(("all of them with their folder".to_owned(), Box::new(move || fs::remove_dir_all(&whole).unwrap())));
    for (what, damage) in all {
        let begun = Instant::now();
        damage();
        eventually(&what, PATIENCE, || if read() == own { Ok(()) } else { Err(agent.log()) });
        println!("{what:<44} {:>5} ms", begun.elapsed().as_millis());
        assert!(begun.elapsed() < LIMIT * slowness(), "{what}: {:?}", begun.elapsed());
    }
    // With nothing but them it comes back.
    agent.kill();
    server.ok(&["-n", "kube-system", "delete", "secret", "bootstrap-token-abcdef"]);
    agent.without_token();
    let before = server.field(&["lease", "-n", "kube-node-lease", "member"], ".spec.renewTime");
    agent.spawn();
    eventually("it renews its lease", PATIENCE, || {
        let now = server.field(&["lease", "-n", "kube-node-lease", "member"], ".spec.renewTime");
        if now != before { Ok(()) } else { Err(agent.log()) }
    });
    ready(&agent);
}
