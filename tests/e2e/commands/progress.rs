//! Long operations show progress on a terminal, and nowhere else.

use std::process::Command;

use serde_json::json;

use crate::support::{
    Talk, TestNode, contains,
    node::busybox_tar,
    registry::{Layout, Registry, noise, tar},
};

/// The terminal output of a command that succeeds.
fn on_terminal(command: &Command) -> String {
    let answer = Talk::on_terminal(command, (100, 40)).end();
    assert_eq!(answer.code, 0, "{}", answer.all());
    answer.out
}

#[test]
fn what_takes_long_tells_on_a_terminal_how_far_it_is() {
    let node = TestNode::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let tar = busybox_tar().display().to_string();

    let said = on_terminal(&node.command(&["image", "import", &tar, "localhost/busybox:1"]));
    contains(&said, "\r\x1b[Ksent ").unwrap();
    contains(&said, "kB of ").unwrap();
    contains(&said, "localhost/busybox:1 (").unwrap();
    // From standard input the total is unknown.
    let from_input = node.command(&["image", "import", "-", "localhost/busybox:2"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" \"$@\" < \"$TAR\""]).arg(from_input.get_program()).args(from_input.get_args());
    shell.envs(from_input.get_envs().filter_map(|(key, value)| Some((key, value?)))).env("TAR", &tar);
    let said = on_terminal(&shell);
    contains(&said, "\r\x1b[Ksent ").unwrap();
    assert!(!said.contains(" of "), "{said}");
    let said = on_terminal(&node.command(&["backup", &file("backup")]));
    contains(&said, "\r\x1b[Kreceived ").unwrap();
    contains(&said, "\r\x1b[Kbackup written to ").unwrap();
    let quiet = node.run(&["backup", "--force", &file("backup")]);
    assert_eq!((quiet.out, quiet.err), (format!("backup written to {}\n", file("backup")), String::new()));

    // A server started from a backup.
    let state = tempfile::tempdir().unwrap();
    let keys = "encryption-config.yaml";
    std::fs::copy(node.dir.path().join(keys), state.path().join(keys)).unwrap();
    let mut server = node.command(&["server", "--listen", "127.0.0.1:0", "--restore", &file("backup"), "--state-dir"]);
    server.arg(state.path());
    let server = Talk::on_terminal(&server, (200, 40));
    server.hear("\r\x1b[Krestored ");
    server.hear("serving on unix://");
    drop(server);
}

#[test]
fn loads_and_pulls_tell_on_a_terminal_how_far_they_are() {
    let node = TestNode::start(&[]);
    let registry = Registry::start();
    // Large enough for an intermediate figure: small ones are done within a tenth of a second.
    let mut layout = Layout::new();
    let image = layout.packed_image("amd64", &[tar(&[("noise", &noise(24 << 20))])], json!({}));
    layout.tag(image.clone(), "1");
    layout.tag(image, "localhost/noise:1");
    let pulled = registry.push(&layout, "1", "noise:1");
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("noise.tar");
    let packed =
        Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(layout.dir.path()).arg(".").status().unwrap();
    assert!(packed.success());
    let archive = archive.display().to_string();

    // A node does not download what it has: so the pull comes first.
    let said = on_terminal(&node.command(&["image", "pull", &pulled]));
    contains(&said, "\r\x1b[K1 layers, 25.2MB").unwrap();
    contains(&said, " of 25.2MB").unwrap();
    contains(&said, &format!("{pulled} (")).unwrap();
    let said = on_terminal(&node.command(&["image", "load", &archive]));
    contains(&said, "\r\x1b[Ksent ").unwrap();
    contains(&said, " of 25.2MB").unwrap();
    contains(&said, "localhost/noise:1 (").unwrap();
    let quiet = node.run(&["image", "load", &archive]);
    assert_eq!(quiet.err, "");
}
