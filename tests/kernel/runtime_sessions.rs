//! Nothing of an exec remains after its session has ended.

use std::fs;
use std::time::Duration;

use podwright_runtime::{ContainerId, ExecSpec, JournalWriter};

use super::runtime::support::{Bed, within};

/// The number of a container's processes with these words in their arguments.
async fn count(bed: &Bed, id: &ContainerId, words: &str) -> usize {
    let processes = bed.runtime.processes(id, usize::MAX).await.unwrap();
    processes.iter().filter(|p| p.args.join(" ") == words).count()
}

async fn counted(bed: &Bed, id: &ContainerId, words: &str, wanted: usize) {
    within(&format!("{wanted} times {words}"), || async {
        let seen = count(bed, id, words).await;
        (seen == wanted).then_some(()).ok_or(format!("{seen}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_and_its_group_end_with_their_session() {
    let bed = Bed::new("hang-up").await;
    bed.sandbox("s").await;
    let id = bed.run("main", "sleep 1000").await;
    let exec = async |script: &str, options: &[(&str, &str)]| {
        bed.runtime.exec(&id, bed.process(script, options), &JournalWriter::none()).await.unwrap()
    };
    // An exited command may leave background processes.
    let session = exec("sleep 1001 & exit 3", &[]).await;
    assert_eq!(session.wait().await.unwrap(), 3);
    drop(session);
    for options in [&[][..], &[("tty", "yes")]] {
        for deaf in ["", "trap '' HUP; "] {
            let session = exec(&format!("{deaf}sleep 1002 & sleep 1002"), options).await;
            counted(&bed, &id, "sleep 1002", 2).await;
            drop(session);
            counted(&bed, &id, "sleep 1002", 0).await;
        }
    }
    assert_eq!(count(&bed, &id, "sleep 1001").await, 1);
    bed.end().await;
}

/// A frozen container is another way to stop a process being created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_nobody_waits_for_any_more_is_not_born() {
    let bed = Bed::new("birth").await;
    bed.sandbox("s").await;
    let id = bed.run("main", "sleep 1000").await;
    let spec = bed.runtime.sandbox("s").await.unwrap().spec;
    let freezer = bed.runtime.cgroup_path(&spec, Some(&id)).join("cgroup.freeze");
    fs::write(&freezer, "1").unwrap();
    let exec = ExecSpec { stdin: true, ..bed.process("sleep 1002", &[]) };
    let asked =
        tokio::time::timeout(Duration::from_millis(200), bed.runtime.exec(&id, exec, &JournalWriter::none())).await;
    asked.expect_err("nothing is born in a frozen cgroup");
    fs::write(&freezer, "0").unwrap();
    assert_eq!(bed.exec(&id, "echo hi").await.unwrap().stdout, b"hi\n");
    counted(&bed, &id, "sleep 1002", 0).await;
    within("one process", || async {
        let processes = bed.runtime.processes(&id, usize::MAX).await.unwrap();
        (processes.len() == 1).then_some(()).ok_or(format!("{processes:?}"))
    })
    .await;
    bed.end().await;
}

/// A killed agent sends nothing: its shims see the closed connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_ends_with_the_agent_that_asked_for_it() {
    let mut bed = Bed::new("widowed").await;
    bed.sandbox("s").await;
    let id = bed.run("main", "sleep 1000").await;
    let mut sessions = Vec::new();
    for deaf in ["", "trap '' HUP; "] {
        let exec = bed.process(&format!("{deaf}sleep 1003 & sleep 1003"), &[]);
        sessions.push(bed.runtime.exec(&id, exec, &JournalWriter::none()).await.unwrap());
    }
    counted(&bed, &id, "sleep 1003", 4).await;
    // Without a runtime, a session cannot send a hangup.
    std::thread::spawn(move || drop(sessions)).join().unwrap();
    assert_eq!(count(&bed, &id, "sleep 1003").await, 4);
    bed.forget().await;
    bed.reopen().await;
    counted(&bed, &id, "sleep 1003", 0).await;
    assert_eq!(count(&bed, &id, "sleep 1000").await, 1, "the container is nobody's session");
    bed.end().await;
}
