//! Access to the server's Unix socket: only root, whatever the socket's mode.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::time::Duration;

use podwright::api::Env;
use podwright::server::listen::{bind, serve};
use podwright::server::{Config, Server};
use podwright::store::Memory;

/// Runs something as an unprivileged user; only this thread changes.
pub fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    const NOBODY: libc::c_long = 65_534;
    let changed = move || {
        // SAFETY: plain values, and raw calls, as the C library's would change all threads. This thread ends afterwards.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()), 0);
            assert_eq!(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY), 0);
        }
        work()
    };
    std::thread::scope(|scope| scope.spawn(changed).join().unwrap())
}

#[test]
fn the_servers_socket_is_for_root() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("api.sock");
    runtime.block_on(async {
        let server = Server::open(Arc::new(Memory::new()), Env::system(), Config::default()).await.unwrap();
        tokio::spawn(serve(server, bind(&path).unwrap(), None, std::future::pending()));
    });
    let ask = |line: &str| {
        use std::io::{Read, Write};
        let mut stream = std::os::unix::net::UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(
            format!("{line} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer.split(' ').nth(1).unwrap_or_default().to_owned())
    };
    let is_private = || {
        let socket = std::fs::symlink_metadata(&path)?;
        std::io::Result::Ok(socket.uid() == 0 && socket.mode() & 0o777 == 0o600)
    };
    assert!(is_private().unwrap());
    assert_eq!(ask("GET /api/v1/namespaces").unwrap(), "200");
    let refused = as_nobody(|| ask("GET /healthz")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    for line in ["GET /healthz", "GET /api/v1/namespaces", "POST /rpc", "GET /stream/x"] {
        assert_eq!(as_nobody(|| ask(line)).unwrap(), "403", "{line}");
    }
    assert_eq!(ask("GET /api/v1/namespaces").unwrap(), "200");
    // A recreated one is as private.
    std::fs::remove_file(&path).unwrap();
    super::net_world::eventually(|| is_private().ok(), |found| *found == Some(true));
}
