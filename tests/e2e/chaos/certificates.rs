//! SIGKILL while certificates are being made: the CA and what it signs at a server's first start, a node's own when it joins.

use std::{fs, time::Duration};

use super::{Dice, PATIENCE, seed, setting};
use crate::support::{TestNode, eventually, registry::run};

/// How often each is killed.
const KILLS: u64 = 12;

/// What openssl says: each certificate is of its key, and signed by the CA.
fn belong_together(folder: &std::path::Path, ca: &std::path::Path, pairs: &[&str]) {
    for name in pairs {
        let file = |end: &str| folder.join(format!("{name}.{end}")).display().to_string();
        let script = format!(
            "set -e; openssl verify -CAfile '{}' '{crt}' >/dev/null; \
             test \"$(openssl x509 -in '{crt}' -noout -pubkey)\" = \"$(openssl pkey -in '{}' -pubout)\"",
            ca.display(),
            file("key"),
            crt = file("crt")
        );
        run(std::process::Command::new("sh").args(["-c", &script]));
    }
}

#[test]
fn a_server_killed_while_it_makes_its_certificates_makes_them_all_the_same() {
    let mut dice = Dice(seed());
    let kills = setting("PODWRIGHT_CHAOS_KILLS").unwrap_or(KILLS);
    let mut server = TestNode::server(&[]);
    let pki = server.dir.path().join("pki");
    for round in 0..kills {
        server.kill();
        // A first start, or one that finds some of its certificates gone; the CA itself is an operator's to put back.
        match dice.roll(4) {
            0 => fs::remove_dir_all(server.dir.path()).and_then(|()| fs::create_dir(server.dir.path())).unwrap(),
            1 => fs::remove_file(pki.join("server.crt")).unwrap_or_default(),
            2 => fs::remove_file(pki.join("admin.key")).unwrap_or_default(),
            _ => fs::remove_file(server.dir.path().join("admin.kubeconfig")).unwrap_or_default(),
        }
        server.spawn();
        dice.pause(150);
        server.kill();
        server.spawn();
        server.wait_answering();
        belong_together(&pki, &pki.join("ca.crt"), &["ca", "server", "admin"]);
        let kubeconfig = fs::read_to_string(server.dir.path().join("admin.kubeconfig")).unwrap();
        assert!(kubeconfig.ends_with("preferences: {}\n"), "round {round}: {kubeconfig}");
    }
    println!("a server was killed {kills} times while it made its certificates");
}

#[test]
fn a_node_killed_while_it_joins_joins_all_the_same() {
    let mut dice = Dice(seed());
    // Each may leave a request that waits, and a token's holder has a hundred.
    let kills = setting("PODWRIGHT_CHAOS_KILLS").unwrap_or(KILLS).min(60);
    let server = TestNode::server(&[]);
    server.apply(
        "{apiVersion: v1, kind: Secret, metadata: {name: bootstrap-token-abcdef, namespace: kube-system}, type: \
         bootstrap.kubernetes.io/token, stringData: {token-id: abcdef, token-secret: 0123456789abcdef, \
         usage-bootstrap-authentication: 'true'}}",
    );
    let mut agent = TestNode::joining(&server, "member", "abcdef.0123456789abcdef");
    let folder = agent.dir.path().join("agent");
    let mut whole = 0;
    for _ in 0..kills {
        agent.spawn();
        dice.pause(600);
        agent.kill();
        // A certificate that is there has its key: as it is, or as the next start finds it.
        if folder.join("client.crt").exists() {
            whole += 1;
            break;
        }
    }
    agent.spawn();
    let joined = || {
        let answer = server.run(&["wait", "--for=condition=Ready", "node/member", "--timeout=1s"]);
        if answer.code == 0 { Ok(()) } else { Err(answer.all()) }
    };
    // A request that nobody came back for is signed or left; each start makes one of its own.
    let name_is_taken =
        || fs::read_to_string(agent.log_path()).unwrap_or_default().contains("waits for an administrator");
    eventually("the node is ready", PATIENCE + Duration::from_secs(60), || {
        if name_is_taken() {
            let names = server.field(&["csr"], ".items[*].metadata.name");
            for name in names.split_whitespace() {
                server.run(&["certificate", "approve", name]);
            }
        }
        joined()
    });
    belong_together(&folder, &server.dir.path().join("pki/ca.crt"), &["client"]);
    println!("a node was killed up to {kills} times while it joined, {whole} times with its certificate there");
}
