//! The build script: notes which commit is built.

use std::process::{Command, Stdio};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    note_commit();
}

/// What `git archive` makes of a tarball's copy: the commit and its date. Elsewhere it is a pattern.
const ARCHIVED: &str = "archived.txt";

/// Tells `/version` what is built: by `PODWRIGHT_COMMIT` (who packages it knows best), by a tarball's own
/// note, or by git. That is asked for releases alone: everything would be built anew after each commit. Who cannot know says
/// "unknown", never another commit.
fn note_commit() {
    println!("cargo:rerun-if-env-changed=PODWRIGHT_COMMIT");
    println!("cargo:rerun-if-changed={ARCHIVED}");
    let archived = fs::read_to_string(ARCHIVED).unwrap_or_default();
    let told = env::var("PODWRIGHT_COMMIT").ok().filter(|commit| is_commit(commit));
    let noted = archived.trim().split_once(' ').filter(|(commit, _)| is_commit(commit));
    let released = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let (commit, tree, date) = match (told, noted) {
        (Some(commit), _) => (commit, "unknown", String::new()),
        (None, Some((commit, date))) => (commit.to_owned(), "archive", date.to_owned()),
        (None, None) if released => by_git().unwrap_or_default(),
        (None, None) => Default::default(),
    };
    let or = |text: String, other: &str| if text.is_empty() { other.to_owned() } else { text };
    println!("cargo:rustc-env=BUILT_COMMIT={}", or(commit, "unknown"));
    println!("cargo:rustc-env=BUILT_TREE={}", or(tree.to_owned(), "unknown"));
    println!("cargo:rustc-env=BUILT_DATE={}", or(date, "1970-01-01T00:00:00Z"));
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The commit that is checked out here, whether there are changes beside it, and its date.
fn by_git() -> Option<(String, &'static str, String)> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // A tarball inside of somebody else's checkout is not that one's commit.
    let root = fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()?;
    if root != fs::canonicalize("../..").ok()? {
        return None;
    }
    println!("cargo:rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    let (commit, date) = (git(&["rev-parse", "HEAD"])?, git(&["show", "-s", "--format=%cI", "HEAD"])?);
    let tree = if git(&["status", "--porcelain"])?.is_empty() { "clean" } else { "dirty" };
    is_commit(&commit).then_some((commit, tree, date))
}
