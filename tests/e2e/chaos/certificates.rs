//! SIGKILL while certificates are created: the CA and those it signs at a server's first start, a node's own when it joins and when
//! it is renewed; at random moments, and while a temporary file exists.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use podwright::server::pki::{Authority, Names, Pki};

use super::{Dice, TIMEOUT, seed, setting};
use crate::support::{TestNode, eventually, leftovers::Machine, registry::run};

/// How often each is killed.
const KILLS: u64 = 12;

/// openssl's checks: each certificate matches its key, and is signed by the CA.
fn belong_together(folder: &Path, ca: &Path, pairs: &[&str]) {
    for name in pairs {
        let file = |end: &str| folder.join(format!("{name}.{end}")).display().to_string();
        let script = format!(
            "set -e; openssl verify -CAfile '{}' '{crt}' >/dev/null; \
             test \"$(openssl x509 -in '{crt}' -noout -pubkey)\" = \"$(openssl pkey -in '{}' -pubout)\"",
            ca.display(),
            file("key"),
            crt = file("crt")
        );
        run(Command::new("sh").args(["-c", &script]));
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
        // A first start, or one with some certificates missing; the CA itself must be restored by an operator.
        match dice.roll(4) {
            0 => fs::remove_dir_all(server.dir.path()).and_then(|()| fs::create_dir(server.dir.path())).unwrap(),
            1 => fs::remove_file(pki.join("server.crt")).unwrap_or_default(),
            2 => fs::remove_file(pki.join("admin.key")).unwrap_or_default(),
            _ => fs::remove_file(server.dir.path().join("admin.kubeconfig")).unwrap_or_default(),
        }
        server.spawn();
        die(&mut server, &mut dice, 150, || has(&pki, ".new"));
        server.spawn();
        server.wait_answering();
        belong_together(&pki, &pki.join("ca.crt"), &["ca", "server", "admin"]);
        let kubeconfig = fs::read_to_string(server.dir.path().join("admin.kubeconfig")).unwrap();
        assert!(kubeconfig.ends_with("preferences: {}\n"), "round {round}: {kubeconfig}");
    }
    println!("a server was killed {kills} times while it made its certificates");
}

/// Whether a folder contains a file with this suffix.
fn has(folder: &Path, end: &str) -> bool {
    fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(end))
}

/// Kills a process at a random time in its first milliseconds, or when a condition is seen, if ever: returns whether it was.
fn die(node: &mut TestNode, dice: &mut Dice, below_ms: u64, is_moment: impl Fn() -> bool) -> bool {
    let waits = dice.roll(2) == 0;
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut seen = false;
    match waits {
        false => dice.pause(below_ms),
        // Shorter than any sleep.
        true => {
            while !seen && Instant::now() < deadline {
                seen = is_moment();
                std::hint::spin_loop();
            }
            std::thread::sleep(Duration::from_micros(dice.roll(3000)));
        }
    }
    node.kill();
    seen
}

const TOKEN: &str = "{apiVersion: v1, kind: Secret, metadata: {name: bootstrap-token-abcdef, namespace: kube-system}, type: \
                     bootstrap.kubernetes.io/token, stringData: {token-id: abcdef, token-secret: 0123456789abcdef, \
                     usage-bootstrap-authentication: 'true'}}";

/// An abandoned request is signed or left; each start creates its own, which an administrator approves if the name is taken by
/// then.
fn joins(server: &TestNode, agent: &TestNode) {
    eventually("the node is ready", TIMEOUT + Duration::from_secs(60), || {
        if agent.log().contains("waits for an administrator") {
            let names = server.field(&["csr"], ".items[*].metadata.name");
            for name in names.split_whitespace() {
                server.run(&["certificate", "approve", name]);
            }
        }
        let answer = server.run(&["wait", "--for=condition=Ready", "node/member", "--timeout=1s"]);
        if answer.code == 0 { Ok(()) } else { Err(answer.all()) }
    });
}

#[test]
fn a_node_killed_while_it_joins_joins_all_the_same() {
    let mut dice = Dice(seed());
    // Each may leave a pending request, and a token's holder may have a hundred.
    let kills = setting("PODWRIGHT_CHAOS_KILLS").unwrap_or(KILLS).min(60);
    let server = TestNode::server(&[]);
    server.apply(TOKEN);
    let mut agent = TestNode::joining(&server, "member", "abcdef.0123456789abcdef");
    let folder = agent.dir.path().join("agent");
    let mut whole = 0;
    for _ in 0..kills {
        agent.spawn();
        die(&mut agent, &mut dice, 600, || has(&folder, ".new") || has(&folder, ".next"));
        if folder.join("client.crt").exists() {
            // It has its key, now or after the next start. The next one begins from scratch, on a new machine.
            has_its_key(&folder);
            whole += 1;
            server.run(&["delete", "node", "member"]);
            fs::remove_dir_all(&folder).unwrap();
        }
    }
    agent.spawn();
    joins(&server, &agent);
    belong_together(&folder, &server.dir.path().join("pki/ca.crt"), &["client"]);
    println!("a node was killed {kills} times while it joined, {whole} times with its certificate there");
}

/// The certificate matches the key, or the next one.
fn has_its_key(folder: &Path) {
    let of = |command: &[&str]| {
        let output = Command::new("openssl").args(command).current_dir(folder).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let certificate = of(&["x509", "-in", "client.crt", "-noout", "-pubkey"]);
    let keys = ["client.key", "client.key.next"].map(|name| of(&["pkey", "-in", name, "-pubout"]));
    assert!(!certificate.is_empty() && keys.contains(&certificate), "{certificate} is of none of {keys:?}");
}

/// Makes a member's certificate look nearly expired.
fn make_due(folder: &Path, authority: &Authority) {
    let key = rcgen::KeyPair::from_pem(&fs::read_to_string(folder.join("client.key")).unwrap()).unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:member");
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    let (day, usages) = (24 * 3600, ["digital signature", "client auth"].map(str::to_owned));
    let begun = Timestamp::now().checked_sub(SignedDuration::from_secs(95 * day)).unwrap();
    fs::write(folder.join("client.crt"), authority.sign(&request, &usages, 100 * day, begun).unwrap()).unwrap();
}

#[test]
fn a_node_killed_while_it_renews_its_certificate_comes_back_with_one() {
    let mut dice = Dice(seed());
    let kills = setting("PODWRIGHT_CHAOS_KILLS").unwrap_or(KILLS).min(40);
    let server = TestNode::server(&[]);
    server.apply(TOKEN);
    let mut agent = TestNode::joining(&server, "member", "abcdef.0123456789abcdef");
    let untouched = Machine::untouched(agent.dir.path());
    let folder = agent.dir.path().join("agent");
    agent.spawn();
    joins(&server, &agent);
    agent.kill();
    // From here on it only has its certificate.
    agent.without_token();
    server.ok(&["-n", "kube-system", "delete", "secret", "bootstrap-token-abcdef"]);
    let copy = tempfile::tempdir().unwrap();
    let authority = copy.path().join("ca.crt");
    for name in ["ca.crt", "ca.key"] {
        fs::copy(server.dir.path().join("pki").join(name), copy.path().join(name)).unwrap();
    }
    let signer = Pki::open(copy.path(), &Names::default(), Timestamp::now()).unwrap().signer();
    let certificate = || fs::read_to_string(folder.join("client.crt")).unwrap();
    let lease = || server.field(&["lease", "-n", "kube-node-lease", "member"], ".spec.renewTime");
    let renews_its_lease = |agent: &TestNode| {
        let before = lease();
        eventually("it renews its lease", TIMEOUT, || if lease() != before { Ok(()) } else { Err(agent.log()) });
    };
    let (mut renewed, mut between) = (0, 0);
    for _ in 0..kills {
        make_due(&folder, &signer);
        let due = certificate();
        agent.spawn();
        let moment = die(&mut agent, &mut dice, 2500, || has(&folder, ".next"));
        has_its_key(&folder);
        renewed += u64::from(certificate() != due);
        between += u64::from(moment);
        // What was left unfinished is continued by the next start, or begun again.
        agent.spawn();
        renews_its_lease(&agent);
        eventually("it has its next certificate", TIMEOUT, || {
            if certificate() != due && !has(&folder, ".next") { Ok(()) } else { Err(agent.log()) }
        });
        agent.kill();
        belong_together(&folder, &authority, &["client"]);
    }
    assert!(renewed > 0 || kills < KILLS, "none was killed with the next certificate there");
    // It ends, and removes what it has created.
    agent.spawn();
    renews_its_lease(&agent);
    drop(agent);
    untouched.assert_unchanged();
    println!(
        "a node was killed {kills} times while it renewed its certificate, {renewed} times with the next one there, {between} times \
         while its key was renamed"
    );
}
