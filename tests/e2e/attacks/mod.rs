//! Attacks from inside containers, by users and by nodes: a table of attempts, each of which must fail, on one node.
//!
//! A new attempt is one entry in one of the tables below; `README.md` is generated from them (`UPDATE_EXPECT=1`). An attempt that
//! prints neither `held: ...` nor `BREACH: ...` did not take place, and fails too. `ATTACKS=part,...` runs those whose ids contain
//! a part.

mod agent_reads;
mod archive_links;
mod beyond;
mod controllers;
mod credentials;
mod crowd;
mod elsewhere;
mod escapes;
mod extensions;
mod false_errors;
mod handed_on;
mod hidden_disk;
mod hostile_images;
mod identity;
mod images;
mod left_behind;
mod memory;
mod namesakes;
mod network;
mod nodes;
mod operators;
mod outside;
mod own_users;
mod policies;
mod private_images;
mod profiles;
mod server;
mod sessions;
mod shares;
mod stdio;
mod tenants;
mod uncovering;
mod volumes;
mod waiting_input;
mod watch;
mod world;

use std::{
    collections::BTreeSet,
    fmt::Write,
    sync::Mutex,
    time::{Duration, Instant},
};

use serde_json::Value;

use own_users::Users;
use world::World;

/// One attack.
struct Attack {
    id: &'static str,
    class: &'static str,
    /// Published vulnerabilities, such as `CVE-2019-5736`.
    cves: &'static [&'static str],
    /// How it is attempted.
    how: &'static str,
    /// Why it should fail.
    held: &'static str,
    attempt: Try,
}

enum Try {
    Pod(Pod),
    Code(fn(&World, &Target) -> Verdict),
}

/// A Pod whose only container runs a script. The YAML parts are merged over the common defaults.
#[derive(Clone, Copy)]
struct Pod {
    namespace: &'static str,
    image: &'static str,
    /// Merged over the spec.
    spec: &'static str,
    /// Merged over the container.
    container: &'static str,
    /// Its shell script. `@CANARY@` is a file of the host, `@FOLDER@` its folder.
    script: &'static str,
    expect: Expect,
}

/// The acceptable outcomes, beside the script's output.
#[derive(Clone, Copy)]
enum Expect {
    /// The script runs, and all its attempts are held.
    Held,
    /// The Pod, or its container, never starts; the reason or message contains this.
    Refused(&'static str),
    /// Either; for what may be refused or made harmless. A refusal contains this. A Pod with a user namespace must not be refused
    /// on hosts that support them.
    HeldOrRefused(&'static str),
}

const POD: Pod = Pod {
    namespace: world::OPEN,
    image: world::IMAGE,
    spec: "",
    container: "",
    script: "echo held: nothing was tried",
    expect: Expect::Held,
};

/// A host file for this attack: its name and content are unknown inside.
struct Target {
    id: &'static str,
    canary: std::path::PathBuf,
    text: String,
    users: Users,
}

#[derive(Debug)]
enum Verdict {
    Held(String),
    Breach(String),
    /// The attempt could not be made: that proves nothing, and fails.
    Untried(String),
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self {
            Verdict::Held(_) => "held",
            Verdict::Breach(_) => "BREACH",
            Verdict::Untried(_) => "UNTRIED",
        }
    }

    fn seen(&self) -> &str {
        let (Verdict::Held(seen) | Verdict::Breach(seen) | Verdict::Untried(seen)) = self;
        seen
    }
}

/// Evaluates the output from inside.
fn judge(target: &Target, said: &str) -> Verdict {
    let lines = |start: &str| said.lines().filter(|line| line.starts_with(start)).collect::<Vec<_>>().join("; ");
    let (held, breach) = (lines("held:"), lines("BREACH:"));
    if !breach.is_empty() || said.contains(&target.text) {
        return Verdict::Breach(if breach.is_empty() { format!("the canary was read: {said}") } else { breach });
    }
    if held.is_empty() { Verdict::Untried(said.to_owned()) } else { Verdict::Held(held) }
}

fn verdict(held: bool, seen: impl Into<String>) -> Verdict {
    if held { Verdict::Held(seen.into()) } else { Verdict::Breach(seen.into()) }
}

/// All tables.
fn attacks() -> impl Iterator<Item = &'static Attack> {
    let all = [
        escapes::ATTACKS,
        volumes::ATTACKS,
        agent_reads::ATTACKS,
        images::ATTACKS,
        hostile_images::ATTACKS,
        own_users::ATTACKS,
        profiles::ATTACKS,
        beyond::ATTACKS,
        left_behind::ATTACKS,
        handed_on::ATTACKS,
        policies::ATTACKS,
        hidden_disk::ATTACKS,
        uncovering::ATTACKS,
        network::ATTACKS,
        false_errors::ATTACKS,
        identity::ATTACKS,
        tenants::ATTACKS,
        server::ATTACKS,
        extensions::ATTACKS,
        controllers::ATTACKS,
        operators::ATTACKS,
        nodes::ATTACKS,
        sessions::ATTACKS,
        waiting_input::ATTACKS,
        credentials::ATTACKS,
        shares::ATTACKS,
        outside::ATTACKS,
    ];
    all.into_iter().flatten()
}

/// Attacks run at once: most of their time is waiting.
const AT_ONCE: usize = 10;
/// Attacks that measure others' waiting times or the agent's memory run alone, after the others, which would disturb the
/// measurement. So do those using the one host beside the node.
const ALONE: &[&str] = &[
    "job-without-end",
    "objects-that-multiply",
    "endpoints-without-end",
    "containers-without-end",
    "credential-outside-address",
    "external-ip-server",
    "own-profile-mounts",
    "exec-left-behind",
    "spdy-headers",
];

#[test]
fn no_attack_gets_through() {
    let wanted = std::env::var("ATTACKS").unwrap_or_default();
    let is_wanted = |attack: &&Attack| wanted.is_empty() || wanted.split(',').any(|part| attack.id.contains(part));
    let once = |attack| (attack, Users::Entrys);
    let (alone, together): (Vec<&Attack>, Vec<_>) =
        attacks().filter(is_wanted).partition(|attack| ALONE.contains(&attack.id));
    let again = |attack: &&'static Attack| Some((*attack, own_users::again(attack)?.0?));
    let again: Vec<_> = together.iter().filter_map(again).collect();
    let before = watch::Host::look();
    let world = World::start();
    let verdicts = Mutex::new(Vec::new());
    let attempt = |(attack, users): (&Attack, Users)| {
        let begin = Instant::now();
        let verdict = world.attempt(attack, users);
        let id = format!("{}{}", attack.id, if users == Users::Entrys { "" } else { ", with users of its own" });
        // Printed at once: an aborted run has results too.
        println!("{id} ({:.1?}): {}", begin.elapsed(), verdict.word());
        verdicts.lock().unwrap().push((id, verdict, begin.elapsed()));
    };
    let all_at_once = |queue: Vec<(&'static Attack, Users)>| {
        let queue = Mutex::new(queue);
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let Some(next) = queue.lock().unwrap().pop() else { return };
                        attempt(next);
                    }
                });
            }
        });
    };
    all_at_once(together.into_iter().map(once).collect());
    if world.gives_users() {
        world.sweep();
        all_at_once(again);
    } else {
        crate::support::missing::here("this host cannot give users of their own: nothing is tried with them");
    }
    alone.into_iter().rev().map(once).for_each(attempt);
    let (mut verdicts, (made, untouched)) = (verdicts.into_inner().unwrap(), world.end());
    verdicts.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    let mut report = String::new();
    for (id, verdict, took) in &verdicts {
        let (word, seen) = (verdict.word(), verdict.seen());
        let seen: String = seen.chars().take(if word == "held" { 160 } else { 2000 }).collect();
        writeln!(report, "{word:8} {id} ({took:.1?}): {}", seen.replace('\n', " | ")).unwrap();
    }
    let broken = verdicts.iter().filter(|(_, verdict, _)| !matches!(verdict, Verdict::Held(_))).count();
    println!("{report}");
    assert_eq!(before.changes(&watch::Host::look()), "", "the host is not as it was");
    assert!(made.is_empty(), "made on the host: {made:?}");
    untouched.assert_unchanged();
    assert!(broken == 0, "{broken} of {} attacks did not fail as they must:\n{report}", verdicts.len());
}

/// What stands above the table of the README.
const INTRODUCTION: &str = "\
# The attack corpus

Every entry is tried from where an attacker would be (inside a container of a real node, as a user of the API, with a node's
credential), and must fail. Host state is compared before and after: sysctls, mounts, devices, /etc, settings of /sys, others' cgroups, and
files of the test's own that no container may reach. Entries about containers are tried again with `hostUsers: false`, most of
them with SYS_ADMIN, NET_ADMIN, SYS_PTRACE and MKNOD beside. What undoing a defence gives is in `PROOFS.md`. `cargo test --test e2e attacks` runs all; `ATTACKS=part` those whose ids have that part. This file is made from the
tables: `UPDATE_EXPECT=1 cargo test --test e2e attacks::the_readme`.

| entry | class | published as | how it is tried | why it fails | with users of its own |
|---|---|---|---|---|---|
";

/// What stands above the table of those without an entry.
const BETWEEN: &str = "
## Published, and without an entry

What cannot concern podwright, or cannot be tried safely, or is tried by another test.

| published as | what it was | why there is no entry |
|---|---|---|
";

#[test]
fn the_readme_has_every_attack() {
    let mut text = INTRODUCTION.to_owned();
    for attack in attacks() {
        let Attack { id, class, cves, how, held, .. } = attack;
        let again = own_users::again(attack).map_or("-", |(_, told)| told);
        let cves = if cves.is_empty() { "-".to_owned() } else { cves.join(", ") };
        writeln!(text, "| `{id}` | {class} | {cves} | {how} | {held} | {again} |").unwrap();
    }
    text.push_str(BETWEEN);
    for (cve, what, why) in elsewhere::CVES {
        writeln!(text, "| {cve} | {what} | {why} |").unwrap();
    }
    expect_test::expect_file!["README.md"].assert_eq(&text);
    let mut ids: Vec<&str> = attacks().map(|attack| attack.id).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|two| two[0] != two[1]), "an id is used twice: {ids:?}");
}

#[test]
fn each_attack_is_proven_able_to_fail() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/attacks/PROOFS.md");
    let proofs = std::fs::read_to_string(path).unwrap();
    let lines: Vec<(&str, &str)> =
        proofs.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |")).collect();
    let ids: BTreeSet<&str> = attacks().map(|attack| attack.id).collect();
    let named: BTreeSet<&str> = lines.iter().map(|(id, _)| *id).collect();
    let proven: BTreeSet<&str> =
        lines.iter().filter(|(_, said)| said.contains("**BREACH**")).map(|(id, _)| *id).collect();
    let [unknown, unproven] = [&named - &ids, &ids - &proven];
    assert!(unknown.is_empty(), "PROOFS.md names what is no entry: {unknown:?}");
    assert!(unproven.is_empty(), "no line of PROOFS.md says that these have said BREACH: {unproven:?}");
}

/// YAML as a value, with the target's names substituted.
fn yaml(text: &str, target: &Target) -> Value {
    let folder = target.canary.parent().expect("it is in a folder").display().to_string();
    let text = text.replace("@CANARY@", &target.canary.display().to_string()).replace("@FOLDER@", &folder);
    if text.trim().is_empty() {
        return Value::Object(Default::default());
    }
    serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", target.id))
}

const TIMEOUT: Duration = Duration::from_secs(40);
