//! The client's commands as typed by users: kubectl's wording, formats and exit codes.

mod edit;
mod nodes;
mod objects;
mod progress;
mod rollouts;
mod streams;
mod waiting;

use std::time::Duration;

use crate::support::{TestNode, contains, leftovers::Machine};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A node with the image, and what may remain of it at the end.
fn node() -> (TestNode, Machine) {
    let node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    (node, untouched)
}

/// Expects success with exactly this on standard output.
#[track_caller]
fn says(node: &TestNode, args: &[&str], expected: &str) {
    let answer = node.run(args);
    assert_eq!((answer.code, answer.out.as_str()), (0, expected), "podwright {}: {}", args.join(" "), answer.all());
}

/// Expects exit code 1 with exactly this on standard error.
#[track_caller]
fn refuses(node: &TestNode, args: &[&str], expected: &str) {
    let answer = node.run(args);
    let (code, err) = (answer.code, answer.err.trim_end());
    assert_eq!((code, err), (1, expected), "podwright {}: {}", args.join(" "), answer.all());
}
