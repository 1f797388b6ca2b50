//! A client that reads little of an answer, and never nothing, on a real connection.

use std::time::Duration;

use podwright::server::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::config_map;
use super::limits::{Door, ended};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// More than the buffers of sockets have, which are as good as read.
const OBJECTS: usize = 24;
const SIZE: usize = 900 << 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_an_answer_of_http1_slowly_gives_way_to_others() {
    let limits = Limits { answers: 16 << 20, stalled: Duration::from_secs(3), ..Limits::default() };
    let door = Door::open(limits, "{level: None}").await;
    for number in 0..OBJECTS {
        let mut map = config_map(&format!("a{number}"));
        map["data"] = json!({"a": "x".repeat(SIZE)});
        door.api.create("configmaps", map).await.unwrap();
    }
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "all-view"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "people"}],
    });
    door.api.create("clusterrolebindings.rbac.authorization.k8s.io", binding).await.unwrap();
    let asked = async |who: &str, what: &str| {
        let mut stream = door.stranger().await;
        let head = format!(
            "GET {MAPS}{what} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-{who}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    // Rights take a moment to be in force.
    while ended(&mut asked("ann", "/a0").await).await != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut slow = asked("ann", "").await;
    let mut piece = vec![0; 10 << 10];
    slow.read_exact(&mut piece).await.unwrap();
    assert!(piece.starts_with(b"HTTP/1.1 200"));
    let reader = tokio::spawn(async move {
        let mut read = piece.len();
        while let Ok(more @ 1..) = slow.read(&mut piece).await {
            read += more;
            // At the end what the sockets have is read faster.
            tokio::time::sleep(Duration::from_millis(if read < 1 << 20 { 250 } else { 1 })).await;
        }
        read
    });
    assert_eq!(ended(&mut asked("bob", "/a0").await).await, 200, "the room is never one user's alone");
    assert_eq!(ended(&mut asked("bob", "").await).await, 200, "he waits for more of it, and has it");
    let read = tokio::time::timeout(Duration::from_secs(60), reader).await.unwrap().unwrap();
    assert!(read < OBJECTS * SIZE, "the slow answer has ended");
}
