//! Checks of the files of server and node: ownership, permissions, and expiry of certificates.

use jiff::SignedDuration;

use super::facts::{Content, Facts, File};
use super::{Check, CheckResult, fail, not_applicable, pass, warn};

/// Certificates are renewed a month before they expire.
const SOON: SignedDuration = SignedDuration::from_hours(20 * 24);
/// How many files are listed.
const NAMED: usize = 3;

pub const CHECKS: &[Check] = &[
    Check {
        id: "files.folders",
        cis: &["1.1.11", "1.1.12"],
        what: "nobody else may enter the server's folders",
        how: "modes of the state folder, pki and agent",
        rule: |facts| closed(facts, Content::Folder, 0o077),
        remedy: "chmod 0700; the server does so when it starts",
    },
    Check {
        id: "files.secrets",
        cis: &["1.1.13", "1.1.14", "1.1.19", "1.1.20", "1.1.21"],
        what: "nobody else may read the store, keys and kubeconfig",
        how: "modes of store.db*, pki/*, agent/*, admin.kubeconfig, encryption-config.yaml",
        rule: |facts| closed(facts, Content::Secret, 0o077),
        remedy: "chmod 0600; the server does so when it starts",
    },
    Check {
        id: "files.socket",
        cis: &[],
        what: "nobody else may write to the API's socket",
        how: "mode and owner of api.sock; a container with it mounted, as root without a user namespace, is administrator",
        rule: |facts| closed(facts, Content::Socket, 0o077),
        remedy: "chmod 0600",
    },
    Check {
        id: "files.programs",
        cis: &[],
        what: "only root may change the programs",
        how: "modes and owners of podwright and podwright-shim",
        rule: programs,
        remedy: "chown root and chmod 0755 both",
    },
    Check {
        id: "files.certificates",
        cis: &[],
        what: "no certificate has ended, or is about to",
        how: "pki/*.crt, agent/*.crt",
        rule: certificates,
        remedy: "start the server or the agent: it makes them anew a month before they end; a CA's end needs a new cluster CA",
    },
];

fn list<'a>(files: impl Iterator<Item = &'a File>) -> Vec<String> {
    files.map(|file| format!("{} ({:04o}, uid {})", file.path.display(), file.mode, file.uid)).collect()
}

fn shown(all: &[String]) -> String {
    let more = if all.len() > NAMED { format!(" and {} more", all.len() - NAMED) } else { String::new() };
    format!("{}{more}", all[..all.len().min(NAMED)].join(", "))
}

/// Files of one type that must be accessible only to their owner: root, or the server's own user.
fn closed(facts: &Facts, content: Content, others: u32) -> CheckResult {
    let all: Vec<&File> = facts.host.files.iter().filter(|file| file.content == content).collect();
    let Some(folder) = facts.host.files.iter().find(|file| file.path == facts.host.state) else {
        return not_applicable(format!(
            "no server keeps anything in {} as far as can be seen",
            facts.host.state.display()
        ));
    };
    let server = facts.cluster.as_ref().map_or(folder.uid, |cluster| cluster.protections.process.uid);
    let open = list(all.iter().copied().filter(|file| file.mode & others != 0));
    let strange = list(all.iter().copied().filter(|file| file.uid != 0 && file.uid != server));
    match (open.is_empty(), strange.is_empty()) {
        (true, true) => pass(format!("{} looked at", all.len())),
        (false, _) => fail(format!("open to others: {}", shown(&open))),
        (_, false) => fail(format!("of somebody else: {}", shown(&strange))),
    }
}

fn programs(facts: &Facts) -> CheckResult {
    let all = facts.host.files.iter().filter(|file| file.content == Content::Program);
    let wrong = list(all.filter(|file| file.mode & 0o022 != 0 || file.uid != 0));
    if wrong.is_empty() { pass("both are root's") } else { fail(shown(&wrong)) }
}

fn certificates(facts: &Facts) -> CheckResult {
    let left = |ends: jiff::Timestamp| ends.duration_since(facts.host.now);
    let all = &facts.host.certificates;
    let Some(first) = all.iter().min_by_key(|certificate| certificate.ends) else {
        return not_applicable("there are none here");
    };
    let days = left(first.ends).as_hours() / 24;
    match left(first.ends) {
        left if left <= SignedDuration::ZERO => fail(format!("{} has ended", first.name)),
        left if left < SOON => warn(format!("{} ends in {days} days", first.name)),
        _ => pass(format!("the first to end is {}, in {days} days", first.name)),
    }
}
