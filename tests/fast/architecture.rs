//! The allowed dependencies between the crates, and the one-sentence opening comment of every file.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

#[path = "architecture/circles.rs"]
mod circles;

/// The crates of the workspace that each crate may depend on, by the last part of their names. Cargo rejects names that are no
/// dependency, and cycles. The root package (`src/cmd`, `main.rs`) assembles the parts, and may use all.
const EDGES: &[(&str, &[&str])] = &[
    ("src/version", &[]),
    ("src/api", &["version"]),
    ("src/store", &["tls", "version"]),
    ("src/server", &["api", "store", "tls"]),
    ("src/client", &["api", "server", "tls"]),
    ("src/controllers", &["api", "client"]),
    ("src/scheduler", &["api", "client"]),
    // `trace` reads the node's journal records directly.
    ("src/cli", &["api", "client", "journal", "tls"]),
    ("src/proxy", &["api", "client", "net"]),
    ("src/node", &["api", "client", "proxy", "runtime", "net", "journal"]),
    ("runtime/src/sys", &["journal"]),
    ("runtime/src/shim", &["journal", "sys"]),
    ("runtime", &["journal", "shim", "sys", "tls"]),
    ("runtime/journal", &[]),
    ("runtime/tls", &[]),
    ("net", &["journal"]),
];

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

/// The workspace crates that a manifest names as dependencies of any kind.
fn depends_on(manifest: &str) -> Vec<&str> {
    let (mut inside, mut found) = (false, Vec::new());
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]");
        } else if let (true, Some(name)) = (inside, line.strip_prefix("podwright-")) {
            found.push(name.split(['.', ' ', '=']).next().unwrap_or(name));
        }
    }
    found
}

#[test]
fn crates_depend_on_what_they_may() {
    let mut wrong = Vec::new();
    for (folder, allowed) in EDGES {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let beside = depends_on(&manifest).into_iter().filter(|name| !allowed.contains(name));
        wrong.extend(beside.map(|name| format!("{folder} depends on {name}")));
    }
    assert!(wrong.is_empty(), "edges that the design does not allow:\n{}", wrong.join("\n"));
    let manifest = "podwright-no = 1\n[dependencies]\npodwright-api.workspace = true\nserde = \"1\"\n\n[dev-dependencies]\n\
                    podwright-net = { path = \"net\" }\n[features]\npodwright-no = []\n";
    assert_eq!(depends_on(manifest), ["api", "net"]);
}

/// A crate missing from the table could depend on anything.
#[test]
fn every_crate_has_its_edges() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.split_once("\nmembers = [").and_then(|(_, rest)| rest.split_once(']')).unwrap().0;
    let members: BTreeSet<&str> = members.split('"').skip(1).step_by(2).collect();
    let known: BTreeSet<&str> = EDGES.iter().map(|(folder, _)| *folder).chain(["tests/fuzz"]).collect();
    assert_eq!(members, known);
}

/// To break a cycle between files of a folder, move what they share down into a file of its own, or the caller up.
#[test]
fn imports_run_one_way() {
    let read = |path: &Path| fs::read_to_string(root().join(path)).ok();
    let roots = EDGES.iter().flat_map(|(folder, _)| [format!("{folder}/lib.rs"), format!("{folder}/src/lib.rs")]);
    let roots = roots.chain(["src/lib.rs".to_owned()]).filter(|file| root().join(file).exists());
    let found: Vec<circles::Circle> = roots.flat_map(|file| circles::of_crate(Path::new(&file), &read)).collect();
    let ties: Vec<String> = found.iter().map(|circle| circle.join("\n")).collect();
    assert!(ties.is_empty(), "files that import each other in a circle:\n{}", ties.join("\n\n"));
}

/// Only the code that assembles the parts knows which store it is: all others have `Arc<dyn Store>`.
#[test]
fn a_kind_of_store_is_named_by_the_commands_alone() {
    let mut wrong = Vec::new();
    for file in sources(&root().join("src")) {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        if !["src/store/", "src/cmd/"].iter().any(|room| name.starts_with(room)) && !name.ends_with("/tests.rs") {
            let named = |line: &&str| {
                ["Sqlite", "Etcd::", "store::Etcd", "store::Memory"].iter().any(|kind| line.contains(kind))
            };
            wrong.extend(lines.filter(named).map(|line| format!("{name}: {}", line.trim())));
        }
    }
    assert!(wrong.is_empty(), "these know which store it is:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_opens_with_one_sentence() {
    let all = ["src", "runtime/src", "runtime/journal/src", "net/src", "runtime/tls/src", "tests"]
        .iter()
        .flat_map(|d| sources(&root().join(d)));
    let bare: Vec<String> = all
        .filter(|file| !fs::read_to_string(file).unwrap().starts_with("//! "))
        .map(|file| file.strip_prefix(root()).unwrap().display().to_string())
        .collect();
    assert!(bare.is_empty(), "files without an opening `//!` sentence:\n{}", bare.join("\n"));
}

/// The crates that contain `unsafe`; in the root package only one attribute does, which `deny` lets through.
const UNSAFE: &[&str] = &["runtime/journal", "runtime/src/shim", "runtime/src/sys"];

#[test]
fn crates_without_unsafe_forbid_it() {
    let forbids = |file: PathBuf| fs::read_to_string(file).is_ok_and(|text| text.contains("#![forbid(unsafe_code)]"));
    let folders = EDGES
        .iter()
        .map(|(folder, _)| root().join(folder))
        .filter(|folder| !UNSAFE.iter().any(|it| folder.ends_with(it)));
    let lax: Vec<PathBuf> =
        folders.filter(|at| !forbids(at.join("lib.rs")) && !forbids(at.join("src/lib.rs"))).collect();
    assert!(lax.is_empty(), "these do not forbid `unsafe`: {lax:?}");
    assert!(fs::read_to_string(root().join("src/lib.rs")).unwrap().contains("#![deny(unsafe_code)]"));
}

#[test]
fn unsafe_stays_behind_the_doors() {
    let shim = ["fork.rs", "writer.rs", "pause.rs"].map(|file| format!("runtime/src/shim/{file}"));
    let doors: Vec<&str> = shim.iter().map(String::as_str).chain(["runtime/src/sys", "runtime/journal/src"]).collect();
    let outside: Vec<String> = ["src", "runtime/src", "net/src", "runtime/tls/src"]
        .iter()
        .flat_map(|d| sources(&root().join(d)))
        .map(|file| (file.strip_prefix(root()).unwrap().display().to_string(), fs::read_to_string(&file).unwrap()))
        .filter(|(name, text)| !doors.iter().any(|d| name.starts_with(d)) && text.contains("unsafe {"))
        .map(|(name, _)| name)
        .collect();
    assert!(outside.is_empty(), "`unsafe` outside the doors to the kernel:\n{}", outside.join("\n"));
}

/// The code that mounts: the runtime's module, for containers and for the node, and the network's, which pins namespaces.
const MOUNTS: &[&str] = &["runtime/src/sys/mount.rs", "runtime/src/sys/mount/", "net/src/netlink.rs"];

/// The crates that have system calls.
const CALLS: [&str; 3] = ["rustix", "nix", "libc"];

/// What names a system call that mounts. A filter's list of them calls none.
fn names_a_mount(line: &str) -> bool {
    let crates = CALLS.iter().any(|name| line.contains(&format!("{name}::mount")));
    let calls = ["libc::umount", "libc::pivot_root", "mount_bind", "mount_change", "mount_remount"];
    crates || calls.iter().any(|call| line.contains(call))
}

/// The imports of a text that name one, or by which one could be named otherwise: all of such a crate, or the crate by another name.
fn imports_a_mount(text: &str) -> Vec<String> {
    let hides = |import: &str| {
        CALLS.iter().any(|name| import == format!("{name}::*") || import.starts_with(&format!("{name} as ")))
    };
    circles::imports(text).into_iter().filter(|import| names_a_mount(import) || hides(import)).collect()
}

#[test]
fn mounts_go_through_one_door() {
    let mut wrong = Vec::new();
    for file in ["src", "runtime/src", "net/src"].iter().flat_map(|folder| sources(&root().join(folder))) {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let found = code.lines().filter(|line| !line.trim_start().starts_with("//") && names_a_mount(line));
        if !MOUNTS.iter().any(|door| name.starts_with(door)) {
            wrong.extend(imports_a_mount(code).into_iter().map(|import| format!("{name}: use {import};")));
            wrong.extend(found.map(|line| format!("{name}: {}", line.trim())));
        }
    }
    assert!(wrong.is_empty(), "mounted beside the door, `sys::mount`:\n{}", wrong.join("\n"));
    assert!(names_a_mount("use nix::mount::{MsFlags, mount};") && names_a_mount("rustix::mount::unmount(at, flags)?;"));
    assert!(!names_a_mount("    libc::SYS_mount,") && !names_a_mount("kernel.unmount(at)?;"));
    for (text, found) in [
        ("use nix::{\n    fcntl,\n    mount::{MsFlags, mount},\n};", vec!["nix::mount::MsFlags", "nix::mount::mount"]),
        ("use {libc::{c_int, umount2}, std::fs};", vec!["libc::umount2"]),
        ("use rustix::{self as calls, fs};", vec!["rustix as calls"]),
        ("fn f() {\n    use libc as c;\n}", vec!["libc as c"]),
        ("use rustix::*;", vec!["rustix::*"]),
        ("use rustix::fs::*;\nuse libc::SYS_mount;\nuse podwright_sys::{Kernel, mount};", vec![]),
    ] {
        assert_eq!(imports_a_mount(text), found, "{text}");
    }
}

/// A fork of the shim goes on with what its threads have made of memory and locks: so they are those of `writer`, which touch none.
#[test]
fn the_shim_starts_no_thread_but_its_writers() {
    let mut wrong = Vec::new();
    for file in sources(&root().join("runtime/src/shim")).into_iter().filter(|file| !file.ends_with("writer.rs")) {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let starts = |line: &&str| {
            ["thread::spawn", "thread::scope", "thread::Builder", "tokio"].iter().any(|word| line.contains(word))
        };
        let found = code.lines().filter(|line| !line.trim_start().starts_with("//")).filter(starts);
        wrong.extend(found.map(|line| format!("{}: {}", file.display(), line.trim())));
    }
    assert!(wrong.is_empty(), "threads beside `writer`:\n{}", wrong.join("\n"));
}

/// A Pod worker's decision is a function of its state, the event and the time: it does no waiting and no I/O.
#[test]
fn a_pods_function_is_pure() {
    let impure =
        ["async ", ".await", "tokio", "Shared", "Client", "dyn Executor", "::now()", "std::fs", "std::env", "rand::"];
    let mut wrong = Vec::new();
    for file in sources(&root().join("src/node/pod")) {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let found = code.filter(|line| impure.iter().any(|word| line.contains(word)));
        wrong.extend(found.map(|line| format!("{name}: {}", line.trim())));
    }
    assert!(wrong.is_empty(), "these are no part of a pure function:\n{}", wrong.join("\n"));
}

/// Text from a node or a server is sanitized: only `src/cli/out.rs` writes to the terminal, and unsanitized output is named as
/// such.
#[test]
fn the_clients_words_go_through_one_door() {
    let prints = ["eprint", "println!", "print!(", "io::stdout()", "io::stderr()"];
    // The build script writes to Cargo.
    let streams =
        ["src/cli/out.rs", "src/cli/stream.rs", "src/cli/terminal.rs", "src/cli/attach.rs", "src/cli/build.rs"];
    let mut wrong = Vec::new();
    for file in sources(&root().join("src/cli")) {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let found = text.lines().filter(|line| {
            !["is_terminal()", "flush("].iter().any(|it| line.contains(it)) && prints.iter().any(|p| line.contains(p))
        });
        wrong.extend(found.filter(|_| !streams.contains(&name.as_str())).map(|line| format!("{name}: {line}")));
    }
    assert!(wrong.is_empty(), "words that are written past `src/cli/out.rs`:\n{}", wrong.join("\n"));
}

/// The folders of the agent that handle files visible to or written by containers, and the calls that open a file (and so may block
/// on a lease, or on the other end of a FIFO): there all opens go through `runtime/src/sys/shared.rs`.
const SHARING: &[&str] = &["src/node/volumes", "src/node/machine", "src/node/logs"];
const OPENS: &[&str] = &[
    "File::open",
    "File::create",
    "File::options",
    "OpenOptions",
    "fs::read(",
    "fs::read_to_string(",
    "fs::write(",
    "fs::copy(",
    "OFlags::WRONLY",
    "OFlags::RDWR",
];

#[test]
fn files_that_containers_share_are_opened_by_their_door() {
    let mut wrong = Vec::new();
    for room in SHARING {
        let path = root().join(room);
        for file in if path.is_dir() { sources(&path) } else { vec![path] } {
            let text = fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            for line in lines.filter(|line| OPENS.iter().any(|word| line.contains(word))) {
                wrong.push(format!("{}: {}", file.strip_prefix(root()).unwrap().display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "opened beside the door, `sys::shared`:\n{}", wrong.join("\n"));
}

/// The entries at the top level, besides dot files and build output.
const TOP: &[&str] = &[
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "deny.toml",
    "dev",
    "manifests",
    "net",
    "runtime",
    "rustfmt.toml",
    "src",
    "tests",
    "vm",
];

#[test]
fn the_top_level_has_nothing_more() {
    let names = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = names.filter(|name| !name.starts_with('.') && name != "target").collect();
    assert_eq!(names, TOP.iter().map(|name| name.to_string()).collect());
}

#[test]
fn every_attack_is_in_the_corpus_readme_and_no_other() {
    let folder = root().join("tests/e2e/attacks");
    let between = |text: &str, start: &str, end: char| -> BTreeSet<String> {
        text.split(start).skip(1).filter_map(|rest| Some(rest.split_once(end)?.0.to_owned())).collect()
    };
    let tables: String = sources(&folder).iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let readme = fs::read_to_string(folder.join("README.md")).unwrap();
    let ids = tables.lines().filter_map(|line| line.trim_start().strip_prefix("id: \"")?.split_once('"'));
    let entries: BTreeSet<String> = ids.map(|(id, _)| id.to_owned()).collect();
    assert!(entries.len() > 50, "the tables are written otherwise: {entries:?}");
    assert_eq!(entries, between(&readme, "\n| `", '`'));
    // Each published CVE is recorded once: with the entries, or with the reasons for having none.
    for cve in between(&tables, "\"CVE-", '"') {
        assert!(readme.contains(&format!("CVE-{cve}")), "CVE-{cve} is not in the README");
    }
}

#[test]
fn the_threat_model_names_what_there_is() {
    let text = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let is_path = |word: &&str| ["src/", "net/", "runtime/", "tests/"].iter().any(|room| word.starts_with(room));
    let named: BTreeSet<&str> = text.split('`').skip(1).step_by(2).filter(is_path).collect();
    assert!(named.len() > 20, "{named:?}");
    let missing: Vec<&&str> = named.iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "SECURITY.md sends readers to {missing:?}");
}

/// The files that decode cached objects outside of any user's budget, and why users cannot trigger that at will. All other code
/// inspects objects as part of a request's weight (`LargeRequests::part`, `Server::look`).
const DECODES_UNWEIGHED: &[(&str, &str)] = &[
    ("admission/node_restriction/node.rs", "Nodes, those with a certain address"),
    ("admission/policy/values.rs", "the Namespace: administrators write it"),
    ("admission/resource_quota.rs", "quotas: administrators write them"),
    ("admission/review.rs", "what administrators write, or `service_account` has weighed; the rest aside"),
    ("admission/together.rs", "Nodes and mirror Pods, which nodes write"),
    ("aggregator/available.rs", "APIServices: administrators write them"),
    ("aggregator/local.rs", "APIServices: administrators write them"),
    ("aggregator/mod.rs", "APIServices: administrators write them"),
    ("authorize/defaults/mod.rs", "roles of the server's own, when it starts"),
    ("authorize/node.rs", "volumes and attachments, which controllers write"),
    ("authorize/params.rs", "policies: administrators write them"),
    ("certificates/mod.rs", "requests, by a controller"),
    ("certificates/names.rs", "requests and Leases of the server's own"),
    ("certificates/standing.rs", "a ServiceAccount, by a controller"),
    ("custom.rs", "definitions, by a controller"),
    ("endpoints.rs", "Endpoints of the server's own"),
    ("tokens/bootstrap.rs", "tokens of kube-system"),
];

#[test]
fn nothing_of_a_users_is_decoded_beside_the_door() {
    let decodes = |line: &str| line.contains("Weighed::own()") || line.contains("from_slice(&item.bytes)");
    let mut found = BTreeSet::new();
    let server = root().join("src/server");
    for path in sources(&server) {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        if code.lines().any(|line| decodes(line) && !line.trim_start().starts_with("//")) {
            found.insert(path.strip_prefix(&server).unwrap().display().to_string());
        }
    }
    let known: BTreeSet<String> = DECODES_UNWEIGHED.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, known);
    assert!(decodes("let object = Object::from_slice(&item.bytes)?;") && !decodes("item.decode(weighed)?"));
}

/// Decisions by a kind's name, which should use `Kind::built_in`: users may name their own kinds Service or Node.
fn goes_by_name(line: &str) -> bool {
    let code = line.split(" //").next().unwrap_or_default().trim_start();
    let judges = ["==", "!=", "match ", "matches!(", "contains("].iter().any(|word| code.contains(word));
    let by_row = code.contains("kind.kind") && (judges || code.starts_with("let kind = "));
    by_row || [".kind() == \"", ".kind() != \""].iter().any(|text| code.contains(text))
}

#[test]
fn built_in_behaviour_goes_by_the_row_of_the_table() {
    // The table itself; and code that finds a row by group, version and kind, or an object's columns.
    let doors = ["src/api/kinds.rs", "src/api/kinds/", "src/server/rest/table.rs"];
    let mut wrong = Vec::new();
    for file in sources(&root().join("src")) {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//") && goes_by_name(line));
        if !doors.iter().any(|door| name.starts_with(door)) {
            wrong.extend(lines.map(|line| format!("{name}: {}", line.trim())));
        }
    }
    assert!(wrong.is_empty(), "these go by what a kind is called:\n{}", wrong.join("\n"));
    assert!(goes_by_name("    match call.kind.kind {") && goes_by_name("if call.kind.kind == \"Pod\" {"));
    assert!(!goes_by_name("kind: call.kind.kind.to_owned(),"));
}

/// The files that create or replace files, and why the result is whole after a power loss, or need not be. Persistent files go
/// through one of the writers: written, synced, renamed, folder synced; records of running processes are synced after they are
/// named, as no process survives a power loss.
const MAKERS: &[(&str, &str)] = &[
    ("runtime/journal/src/kept.rs", "the writer of records"),
    ("runtime/src/sys/fs.rs", "a folder is moved, and its parent synced"),
    ("runtime/src/shim/writer.rs", "the shim's: exits, with the records of what has ended"),
    ("runtime/src/image/disk.rs", "the writer of images; and the lock of their folder"),
    ("runtime/src/image/folders.rs", "what is in the making, for the writer of images"),
    ("src/server/pki/mod.rs", "the server's: keys, certificates, kubeconfigs"),
    ("src/store/sqlite/log.rs", "the database, which SQLite writes"),
    ("src/store/sqlite/backup.rs", "a backup: SQLite writes and syncs it before it has its name"),
    ("src/store/sqlite/lock.rs", "a lock, with nothing in it"),
    ("src/node/volumes/atomic.rs", "compared with what it should be whenever it is shown"),
    ("runtime/src/sys/shared.rs", "the same: files of volumes"),
    ("src/node/volumes/kinds/empty_dir.rs", "an empty folder, which is whole before it has its name"),
    ("runtime/src/image/unpack.rs", "layers: synced with the whole file system before they count"),
    ("runtime/src/image/archive/files.rs", "parts of an archive, on their way to the writer of images"),
    ("runtime/src/shim/log.rs", "logs of containers: rotation"),
    ("src/server/audit/writer.rs", "the audit log"),
    ("runtime/journal/src/file.rs", "journals: a ring, which is read as far as it is whole"),
    ("runtime/src/runtime/sandboxes.rs", "what a shim could tell nobody else"),
    ("runtime/src/image/collect.rs", "out of the way, to be removed"),
    ("runtime/src/sys/tree.rs", "out of the way, to be removed"),
    ("runtime/src/shim/lib.rs", "a file of /proc"),
    ("net/src/netlink.rs", "files of /proc, and what a namespace is mounted on"),
    ("src/api/build.rs", "while this is built"),
    ("src/build.rs", "while this is built"),
];

/// The calls that create a file or rename one over another.
const MAKES: &[&str] = &[
    "fs::rename(",
    "renameat(",
    "renameat_with(",
    "fs::write(",
    "fs::copy(",
    "fs::hard_link(",
    "File::create",
    "create(true)",
    "create_new(",
    "OFlags::CREATE",
];

fn makes_files(text: &str) -> bool {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.any(|line| MAKES.iter().any(|call| line.contains(call)))
}

#[test]
fn what_is_kept_is_written_by_the_writers() {
    let mut makers = BTreeSet::new();
    for dir in ["src", "net/src", "runtime/src", "runtime/journal/src", "runtime/tls/src"] {
        for path in sources(&root().join(dir)) {
            if makes_files(&fs::read_to_string(&path).unwrap()) {
                makers.insert(path.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    // Files that the client writes belong to its user.
    makers.retain(|file| !file.ends_with("_tests.rs") && !file.ends_with("/tests.rs") && !file.starts_with("src/cli/"));
    let known: BTreeSet<String> = MAKERS.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(makers, known);
    for line in ["std::fs::write(&path, bytes)?;", "let mut file = File::create(&path)?;", "File::create_new(path)"] {
        assert!(makes_files(line), "{line}");
    }
    assert!(!makes_files("// fs::write(path)\nlet text = fs::read(&path)?;"));
}
