//! Against the cluster's operator: files, terminal, copies out of a Pod, stored data.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use serde_json::{Value, json};

use super::world::{EDIT, OPEN, OURS, ROOT, VIEW, World};
use super::{Attack, POD, Pod, Target, Try, Verdict, verdict};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "copy-out",
        class: "cp",
        cves: &["CVE-2018-1002100", "CVE-2019-1002101", "CVE-2019-11246", "CVE-2019-11249", "CVE-2019-11251"],
        how: "the container's tar is the attacker's: `..` in names, absolute names, links and files below them; `cp` out of it",
        held: "names are kept below the destination; links that lead out are not made, and none is followed",
        attempt: Try::Code(copy_out),
    },
    Attack {
        id: "terminal",
        class: "terminal",
        cves: &["CVE-2021-25743"],
        how: "control sequences in events, conditions, annotations and container messages; get, describe and events print them",
        held: "tables and descriptions print control characters as text",
        attempt: Try::Code(terminal),
    },
    Attack {
        id: "state-files",
        class: "files",
        cves: &["CVE-2021-41103", "CVE-2021-41091", "CVE-2024-25621"],
        how: "modes of the store, its log and lock, keys, kubeconfigs and sockets",
        held: "0600: nobody but root reads, whatever folder they are in",
        attempt: Try::Code(state_files),
    },
    Attack {
        id: "secrets-at-rest",
        class: "files",
        cves: &["CVE-2019-11250", "CVE-2019-13509", "CVE-2020-8565"],
        how: "searches the store and the log for a Secret's text and for tokens",
        held: "Secrets are encrypted in the store; logs have no bodies and no credentials",
        attempt: Try::Code(secrets_at_rest),
    },
    Attack {
        id: "backup-path",
        class: "files",
        cves: &[],
        how: "a user who was granted `post` on `/backup` names a file of the host",
        held: "a path is root's to name, by the Unix socket",
        attempt: Try::Code(backup_path),
    },
];

/// The image lacks Python: the archives are created here, and printed by a script in place of `tar`.
fn copy_out(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &Pod { script: "mkdir /x; echo inner > /x/a; sleep 1000", ..POD }) {
        return Verdict::Untried(why);
    }
    let place = tempfile::tempdir().unwrap();
    let canary = target.canary.display().to_string();
    let up = format!("../../../../../../../..{canary}");
    let archives: [Vec<(&str, char, &str)>; 5] = [
        vec![(&up, 'f', "overwritten")],
        vec![(&canary, 'f', "overwritten")],
        vec![("x/l", 'l', target.canary.parent().unwrap().to_str().unwrap()), ("x/l/copy-out", 'f', "overwritten")],
        vec![("x/l", 'l', &canary), ("x/l", 'f', "overwritten")],
        vec![("x/../../y", 'f', "beside"), ("x/h", 'h', &canary), ("x/h", 'f', "overwritten")],
    ];
    let mut seen = Vec::new();
    for (number, entries) in archives.iter().enumerate() {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            let raw = header.as_old_mut();
            raw.name[..name.len()].copy_from_slice(name.as_bytes());
            if *kind != 'f' {
                raw.linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.set_entry_type(match kind {
                'l' => tar::EntryType::Symlink,
                'h' => tar::EntryType::Link,
                _ => tar::EntryType::Regular,
            });
            header.set_mode(0o644);
            header.set_size(if *kind == 'f' { content.len() as u64 } else { 0 });
            header.set_cksum();
            tar.append(&header, if *kind == 'f' { content.as_bytes() } else { &[] }).unwrap();
        }
        use base64::Engine;
        let bytes = base64::engine::general_purpose::STANDARD.encode(tar.into_inner().unwrap());
        let script = format!(
            "rm -f /bin/tar; printf '#!/bin/sh\\nbase64 -d /evil\\n' > /bin/tar; chmod 755 /bin/tar; printf %s {bytes} > /evil"
        );
        world.inside(target, OPEN, &["sh", "-c", &script]);
        let folder = place.path().join(format!("{number}/in"));
        fs::create_dir_all(&folder).unwrap();
        let source = format!("{OPEN}/{}:/x", target.id);
        let answer = world.node.run(&["cp", &source, folder.to_str().unwrap()]);
        let beside: Vec<_> = fs::read_dir(folder.parent().unwrap()).unwrap().flatten().map(|e| e.file_name()).collect();
        if beside != ["in"] || fs::read_to_string(&target.canary).ok().as_ref() != Some(&target.text) {
            return Verdict::Breach(format!("archive {number}: {beside:?} {}", answer.all()));
        }
        let out: Vec<String> =
            links(&folder).into_iter().filter(|link| link.contains(&canary) || link.starts_with('/')).collect();
        if !out.is_empty() {
            return Verdict::Breach(format!("archive {number} made links that lead out: {out:?}"));
        }
        seen.push(format!("{number}: {}", answer.code));
    }
    Verdict::Held(seen.join(", "))
}

/// The targets of the links below a folder.
fn links(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        match fs::read_link(entry.path()) {
            Ok(to) => found.push(to.display().to_string()),
            Err(_) if entry.path().is_dir() => found.extend(links(&entry.path())),
            Err(_) => {}
        }
    }
    found
}

fn terminal(world: &World, target: &Target) -> Verdict {
    let evil = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}[31mred\r\u{9b}1A";
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": target.id}, "reason": "Evil", "message": evil, "type": "Normal",
        "involvedObject": {"kind": "Pod", "namespace": OURS, "name": target.id},
    });
    let (code, said) = world.ask(EDIT, "POST", &format!("/api/v1/namespaces/{OURS}/events"), &event);
    if code != 201 && code != 403 {
        return Verdict::Untried(said);
    }
    if code == 403 {
        world.create("events", OURS, event).unwrap();
    }
    let mut pod =
        world.pod(target, &Pod { script: "printf '\\033]0;owned\\007\\033[2J' > /dev/termination-log; exit 1", ..POD });
    pod["metadata"] = json!({"name": target.id, "namespace": OURS, "annotations": {"a": evil}});
    world.create("pods", OURS, pod).unwrap();
    world.wait_end(OURS, target.id);
    let commands: [&[&str]; 5] = [
        &["get", "events"],
        &["events"],
        &["describe", "pod", target.id],
        &["get", "pods", "-o", "wide"],
        &["get", "pod", target.id, "-o", "yaml"],
    ];
    let mut raw = Vec::new();
    for command in commands {
        let said = world.node.run(&[&["-n", OURS], command].concat()).out;
        if said.contains(['\u{1b}', '\u{7}', '\u{9b}']) {
            raw.push(command.join(" "));
        }
    }
    verdict(raw.is_empty(), format!("control sequences reach the terminal by: {raw:?}"))
}

fn state_files(world: &World, _: &Target) -> Verdict {
    let top = world.node.dir.path();
    let mode = |path: &Path| fs::symlink_metadata(path).map(|meta| meta.permissions().mode() & 0o7777).unwrap_or(0);
    let mut open = Vec::new();
    // Secrets must be protected by their own mode, whatever the folder's.
    for entry in fs::read_dir(top).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let secret = name.starts_with("store.db")
            || name.ends_with(".kubeconfig")
            || name.ends_with(".sock")
            || name.starts_with("encryption");
        if secret && mode(&entry.path()) & 0o077 != 0 {
            open.push(format!("{name} {:o}", mode(&entry.path())));
        }
    }
    verdict(open.is_empty(), format!("{open:?}"))
}

fn secrets_at_rest(world: &World, _: &Target) -> Verdict {
    let found = |path: &Path, part: &str| {
        let bytes = fs::read(path).unwrap_or_default();
        bytes.windows(part.len()).any(|window| window == part.as_bytes())
    };
    let top = world.node.dir.path();
    let mut leaks = Vec::new();
    for file in ["store.db", "store.db-wal", "up.log"] {
        for part in [super::world::HIDDEN, "aGlkZGVuIGluIGEgU2VjcmV0IGFsb25l", ROOT] {
            if found(&top.join(file), part) {
                leaks.push(format!("{part:?} in {file}"));
            }
        }
    }
    verdict(leaks.is_empty(), format!("{leaks:?}"))
}

fn backup_path(world: &World, target: &Target) -> Verdict {
    let role = json!({"metadata": {"name": "backup"}, "rules": [{"nonResourceURLs": ["/backup"], "verbs": ["post"]}]});
    let binding = json!({"metadata": {"name": "backup"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "backup"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "vera"}]});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "backup", "params": {"path": target.canary, "force": true}});
    let mut seen = Vec::new();
    let ask = |token: &str, call: &Value| world.ask(token, "POST", "/rpc", call).1;
    seen.push(ask(EDIT, &call));
    world.create("clusterroles.rbac.authorization.k8s.io", "", role).unwrap();
    world.create("clusterrolebindings.rbac.authorization.k8s.io", "", binding).unwrap();
    seen.push(ask(VIEW, &call));
    let beside = target.canary.with_extension("backup");
    seen.push(ask(VIEW, &json!({"jsonrpc": "2.0", "id": 1, "method": "backup", "params": {"path": beside}})));
    let written = beside.exists() || fs::read_to_string(&target.canary).ok().as_ref() != Some(&target.text);
    let _ = fs::remove_file(&beside);
    verdict(!written, seen.iter().map(|said| said.lines().last().unwrap_or_default()).collect::<Vec<_>>().join("; "))
}
