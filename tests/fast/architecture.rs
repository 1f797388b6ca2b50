//! The allowed edges between the rooms of the house, and the one-sentence door plate of every file.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Which modules of the root crate may name which others. What is not listed may name all (`cmd`, `main`).
const EDGES: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("store", &[]),
    ("server", &["api", "store"]),
    ("client", &["api", "server"]),
    ("controllers", &["api", "client"]),
    ("scheduler", &["api", "client"]),
    // `trace` reads the node's journal records as they are.
    ("cli", &["api", "client", "journal"]),
    ("proxy", &["api", "client", "net"]),
    ("node", &["api", "client", "proxy", "runtime", "net", "journal"]),
];

/// The same for the member crates.
const CRATE_EDGES: &[(&str, &[&str])] =
    &[("runtime/journal/src", &[]), ("runtime/src", &["journal"]), ("net/src", &["journal"])];

const ROOMS: &[&str] = &["api", "cli", "client", "cmd", "controllers", "node", "proxy", "scheduler", "server", "store"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The rooms that a file's code names: `crate::room`, `podwright_room`, and the members of `use crate::{a, b::c}`.
fn named(text: &str) -> BTreeSet<String> {
    let code: String = text.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for krate in ["runtime", "net", "journal"] {
        if code.contains(&format!("podwright_{krate}::")) {
            found.insert(krate.to_owned());
        }
    }
    for (at, _) in code.match_indices("crate::") {
        let rest = code[at + "crate::".len()..].trim_start();
        match rest.strip_prefix('{') {
            None => drop(found.insert(word(rest))),
            Some(group) => found.extend(members(group)),
        }
    }
    found.retain(|name| ROOMS.contains(&name.as_str()) || ["runtime", "net", "journal"].contains(&name.as_str()));
    found
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The first words of the members of a `use` group, up to its closing brace.
fn members(group: &str) -> Vec<String> {
    let (mut depth, mut start, mut found) = (0, true, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            c if start && !c.is_whitespace() => {
                found.push(word(&group[at..]));
                start = false;
            }
            _ => {}
        }
    }
    found
}

#[test]
fn rooms_name_only_what_they_may() {
    let mut wrong = Vec::new();
    for (room, allowed) in EDGES {
        for file in sources(&root().join("src").join(room)) {
            for name in named(&fs::read_to_string(&file).unwrap()) {
                if name != *room && !allowed.contains(&name.as_str()) {
                    wrong.push(format!("{} names {name}", file.strip_prefix(root()).unwrap().display()));
                }
            }
        }
    }
    for (dir, allowed) in CRATE_EDGES {
        for file in sources(&root().join(dir)) {
            let text = fs::read_to_string(&file).unwrap();
            for krate in ["runtime", "net", "journal"].iter().filter(|k| !allowed.contains(k)) {
                let own =
                    dir.starts_with(krate) && *krate != "journal" || dir.contains("journal") && *krate == "journal";
                if !own && text.contains(&format!("podwright_{krate}::")) {
                    wrong.push(format!("{} names {krate}", file.strip_prefix(root()).unwrap().display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "edges that the design does not allow:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_opens_with_one_sentence() {
    let all =
        ["src", "runtime/src", "runtime/journal/src", "net/src", "tests"].iter().flat_map(|d| sources(&root().join(d)));
    let bare: Vec<String> = all
        .filter(|file| !fs::read_to_string(file).unwrap().starts_with("//! "))
        .map(|file| file.strip_prefix(root()).unwrap().display().to_string())
        .collect();
    assert!(bare.is_empty(), "files without an opening `//!` sentence:\n{}", bare.join("\n"));
}

#[test]
fn unsafe_stays_behind_the_doors() {
    let doors = ["runtime/src/sys", "runtime/src/shim/writer.rs", "runtime/journal/src"];
    let outside: Vec<String> = ["src", "runtime/src", "net/src"]
        .iter()
        .flat_map(|d| sources(&root().join(d)))
        .map(|file| (file.strip_prefix(root()).unwrap().display().to_string(), fs::read_to_string(&file).unwrap()))
        .filter(|(name, text)| !doors.iter().any(|d| name.starts_with(d)) && text.contains("unsafe {"))
        .map(|(name, _)| name)
        .collect();
    assert!(outside.is_empty(), "`unsafe` outside the doors to the kernel:\n{}", outside.join("\n"));
}

#[test]
fn the_search_for_names_finds_them() {
    let names = |text: &str| named(text).into_iter().collect::<Vec<_>>();
    assert_eq!(names("use crate::server::Server;"), ["server"]);
    assert_eq!(names("use crate::{api::{Object, Status}, node::plan, Other};"), ["api", "node"]);
    assert_eq!(names("fn f() { crate::store::open(); podwright_net::up() }"), ["net", "store"]);
    assert_eq!(names("// crate::store is not named by a comment"), [""; 0]);
}
