//! A disk that fails below the store of a process: health checks report it, and a process that has lost writes ends.

use std::{fs, path::Path, process::Command};

use super::TIMEOUT;
use crate::support::{TestNode, contains, eventually, registry::run};

/// Preloaded into the process: fsync of the store's files fails while a file of this name exists, and the write-ahead log is
/// discarded with it if another one does.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int fd) {
    char link[64], path[4096], wal[4200];
    const char *fails = getenv("TEST_DISK_FAILS"), *loses = getenv("TEST_DISK_LOSES");
    if (!fails || access(fails, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    char *name = strstr(path, "/store.db");
    if (!name) return 0;
    if (loses && access(loses, F_OK) == 0) {
        snprintf(wal, sizeof wal, "%.*s/store.db-wal", (int)(name - path), path);
        if (truncate(wal, 0) != 0) perror(wal);
        unlink(fails);
    }
    errno = EIO;
    return 1;
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return fails(fd) ? -1 : real(fd);
}
"#;

/// The status code and body for a path of the API.
fn asked(node: &TestNode, path: &str) -> (String, String) {
    let mut curl = Command::new("curl");
    curl.args(["-s", "-m", "20", "-w", "\n%{http_code}", "--unix-socket"]).arg(node.socket());
    let output = curl.arg(format!("http://localhost{path}")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (said, code) = text.rsplit_once('\n').unwrap();
    (code.to_owned(), said.to_owned())
}

fn library(folder: &Path) -> String {
    let (source, library) = (folder.join("disk.c"), folder.join("disk.so"));
    fs::write(&source, LIBRARY).unwrap();
    run(Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl"));
    library.display().to_string()
}

#[test]
fn a_store_in_trouble_is_told_of_and_one_that_lost_writes_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let (fails, loses) = (folder.path().join("fails"), folder.path().join("loses"));
    let mut node = TestNode::stopped(&[]);
    node.set_env("LD_PRELOAD", &library(folder.path()));
    node.set_env("TEST_DISK_FAILS", fails.to_str().unwrap());
    node.set_env("TEST_DISK_LOSES", loses.to_str().unwrap());
    node.spawn();
    node.wait_ready();
    const PATHS: [&str; 3] = ["/readyz", "/livez", "/healthz"];
    for path in PATHS {
        assert_eq!(asked(&node, path).0, "200", "{path}");
    }
    let write = |name: &str| node.run(&["create", "configmap", name, "--from-literal=a=b"]);
    fs::write(&fails, "").unwrap();
    let refused = write("refused");
    assert_ne!(refused.code, 0, "{}", refused.all());
    for path in PATHS {
        let (code, said) = asked(&node, path);
        assert_eq!(code, "500", "{path}: {said}");
        contains(&said, "[-]etcd failed").unwrap();
    }
    contains(&asked(&node, "/readyz").1, "[-]etcd-readiness failed").unwrap();
    assert_eq!(node.run(&["get", "namespaces"]).code, 0, "it is read all the while");
    fs::remove_file(&fails).unwrap();
    for path in PATHS {
        eventually(path, TIMEOUT, || match asked(&node, path) {
            (code, _) if code == "200" => Ok(()),
            (code, said) => Err(code + &said),
        });
    }
    assert_eq!(write("taken").code, 0);

    // The disk loses acknowledged writes: the process must not go on without them.
    fs::write(&loses, "").unwrap();
    fs::write(&fails, "").unwrap();
    write("lost");
    let status = node.wait_ended();
    assert!(!status.success(), "{status}");
    contains(&node.log(), "the store has failed for good").unwrap();
}

/// A lost cluster CA is reported, and not replaced unless requested.
#[test]
fn a_server_whose_ca_is_gone_says_so_and_makes_another_one_only_when_told() {
    let mut server = TestNode::server(&[]);
    let pki = server.dir.path().join("pki");
    let kept = server.dir.path().join("kept");
    let own = fs::read(pki.join("ca.crt")).unwrap();
    server.kill();
    fs::rename(&pki, &kept).unwrap();
    server.spawn();
    assert!(!server.wait_ended().success());
    for told in ["cannot be used: ca.crt and ca.key missing", "from a backup", "ca.new"] {
        contains(&server.log(), told).unwrap();
    }
    assert!(!pki.join("ca.crt").exists());
    // Restored.
    fs::remove_dir(&pki).unwrap();
    fs::rename(&kept, &pki).unwrap();
    server.spawn();
    server.wait_answering();
    assert_eq!(fs::read(pki.join("ca.crt")).unwrap(), own);
    // Another one, as requested by an operator.
    server.kill();
    fs::remove_dir_all(&pki).unwrap();
    fs::create_dir(&pki).unwrap();
    fs::write(pki.join("ca.new"), "").unwrap();
    server.spawn();
    server.wait_answering();
    assert_ne!(fs::read(pki.join("ca.crt")).unwrap(), own);
    assert!(!pki.join("ca.new").exists());
}
