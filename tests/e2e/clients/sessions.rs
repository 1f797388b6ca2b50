//! Sessions with `kube` over WebSockets: followed logs, exec, attach, port-forward.

use futures::{AsyncBufReadExt, SinkExt, StreamExt, TryStreamExt};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Status};
use kube::{
    Api,
    api::{AttachParams, AttachedProcess, DeleteParams, LogParams, PostParams, TerminalSize},
    runtime::{conditions, wait::await_condition},
};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt, AsyncWriteExt};

use super::{Cluster, object, refused};

/// A cluster with a Pod `p` that runs `script` in a shell, with its stdin open.
fn with_pod(script: &str, tty: bool) -> (Cluster, Api<Pod>) {
    let cluster = Cluster::start();
    cluster.node.import_busybox();
    let pods = cluster.pods();
    let container = json!({
        "name": "c", "image": "localhost/busybox:1", "command": ["sh", "-c", script], "stdin": true, "tty": tty,
    });
    let pod: Pod = object(json!({
        "metadata": {"name": "p"},
        "spec": {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container]},
    }));
    cluster.run(async {
        pods.create(&PostParams::default(), &pod).await.unwrap();
        await_condition(pods.clone(), "p", conditions::is_pod_running()).await.unwrap();
    });
    (cluster, pods)
}

/// A process's output until it ends: stdout, stderr, and its status.
async fn all_of(mut process: AttachedProcess) -> (String, String, Status) {
    let status = process.take_status().unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let read_out = async {
        if let Some(mut stdout) = stdout {
            stdout.read_to_string(&mut out).await.unwrap();
        }
    };
    let read_err = async {
        if let Some(mut stderr) = stderr {
            stderr.read_to_string(&mut err).await.unwrap();
        }
    };
    tokio::join!(read_out, read_err);
    let status = status.await.expect("a status");
    process.join().await.unwrap();
    (out, err, status)
}

fn succeeded(status: &Status) -> bool {
    status.status.as_deref() == Some("Success")
}

/// The exit code in a status.
fn exit_code(status: &Status) -> Option<&str> {
    let mut causes = status.details.as_ref()?.causes.iter().flatten();
    causes.find(|cause| cause.reason.as_deref() == Some("ExitCode"))?.message.as_deref()
}

#[test]
fn exec_has_streams_and_an_exit_status() {
    let (cluster, pods) = with_pod("sleep infinity", false);
    let both = AttachParams::default();
    cluster.run(async {
        let shell = async |script: &str| pods.exec("p", ["sh", "-c", script], &both).await.unwrap();
        let (out, err, status) = all_of(shell("echo out; echo err >&2").await).await;
        assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
        assert!(succeeded(&status), "{status:?}");
        let (_, _, status) = all_of(shell("exit 7").await).await;
        assert_eq!((status.reason.as_deref(), exit_code(&status)), (Some("NonZeroExitCode"), Some("7")), "{status:?}");
        assert_eq!(status.message.unwrap(), "command terminated with non-zero exit code: exit status 7");
        let (_, _, status) = all_of(pods.exec("p", ["no-such-command"], &both).await.unwrap()).await;
        assert!(!succeeded(&status), "{status:?}");

        // Much data, in both directions at once.
        let piped = AttachParams::default().stdin(true).stderr(false);
        let mut process = pods.exec("p", ["cat"], &piped).await.unwrap();
        let (mut stdin, mut stdout) = (process.stdin().unwrap(), process.stdout().unwrap());
        let sent: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
        let write = async {
            stdin.write_all(&sent).await.unwrap();
            // Closing its input ends it.
            stdin.shutdown().await.unwrap();
        };
        let read = async {
            let mut received = Vec::new();
            stdout.read_to_end(&mut received).await.unwrap();
            received
        };
        let ((), received) = tokio::join!(write, read);
        assert!(sent == received, "{} of {} bytes", received.len(), sent.len());
        assert!(succeeded(&process.take_status().unwrap().await.unwrap()));

        refused(pods.exec("none", ["true"], &both).await.map(drop), 404, "NotFound", "pods \"none\" not found");
        let wrong = AttachParams::default().container("none");
        let wrong = pods.exec("p", ["true"], &wrong).await.map(drop);
        refused(wrong, 400, "BadRequest", "container none is not valid for pod p");
    });
}

#[test]
fn a_terminal_has_a_size_that_changes() {
    let (cluster, pods) = with_pod("sleep infinity", false);
    cluster.run(async {
        let mut process = pods.exec("p", ["sh"], &AttachParams::interactive_tty()).await.unwrap();
        let mut sizes = process.terminal_size().unwrap();
        let (mut stdin, mut stdout) = (process.stdin().unwrap(), process.stdout().unwrap());
        let status = process.take_status().unwrap();
        let mut said = String::new();
        for (height, width) in [(33, 101), (44, 122)] {
            sizes.send(TerminalSize { height, width }).await.unwrap();
            let wanted = format!("{height} {width}");
            // The size arrives on its own channel, before or after the input.
            let begin = said.len();
            while !said[begin..].contains(&wanted) {
                stdin.write_all(b"stty size\n").await.unwrap();
                let mut some = [0; 1024];
                let count = stdout.read(&mut some).await.unwrap();
                assert!(count > 0, "it ended: {said}");
                said.push_str(&String::from_utf8_lossy(&some[..count]));
            }
        }
        stdin.write_all(b"exit 3\n").await.unwrap();
        stdout.read_to_string(&mut said).await.unwrap();
        assert_eq!(exit_code(&status.await.unwrap()), Some("3"), "{said}");
    });
}

#[test]
fn attach_joins_the_process_that_is_there() {
    let (cluster, pods) =
        with_pod("while read line; do echo \"got $line\"; echo \"err $line\" >&2; done; exit 5", false);
    cluster.run(async {
        let mut process = pods.attach("p", &AttachParams::default().stdin(true)).await.unwrap();
        let mut stdin = process.stdin().unwrap();
        let mut stdout = tokio::io::BufReader::new(process.stdout().unwrap()).lines();
        let mut stderr = tokio::io::BufReader::new(process.stderr().unwrap()).lines();
        for word in ["one", "two"] {
            stdin.write_all(format!("{word}\n").as_bytes()).await.unwrap();
            assert_eq!(stdout.next_line().await.unwrap().unwrap(), format!("got {word}"));
            assert_eq!(stderr.next_line().await.unwrap().unwrap(), format!("err {word}"));
        }
        drop((stdin, stdout, stderr, process));
        // A later attach continues where the other left.
        let mut process = pods.attach("p", &AttachParams::default().stdin(true).stderr(false)).await.unwrap();
        process.stdin().unwrap().write_all(b"three\n").await.unwrap();
        let mut stdout = tokio::io::BufReader::new(process.stdout().unwrap()).lines();
        assert_eq!(stdout.next_line().await.unwrap().unwrap(), "got three");
    });
    cluster.until("the log has all of it", async || {
        let log = pods.logs("p", &LogParams::default()).await.unwrap();
        let told = ["got one\n", "err two\n", "got three\n"].iter().all(|line| log.contains(line));
        if told { Ok(()) } else { Err(log) }
    });
}

#[test]
fn logs_are_read_and_followed_to_their_end() {
    let (cluster, pods) = with_pod("echo first; echo second; while read line; do echo $line; done", false);
    cluster.run(async {
        let follow = LogParams { follow: true, ..LogParams::default() };
        let mut lines = pods.log_stream("p", &follow).await.unwrap().lines();
        for wanted in ["first", "second"] {
            assert_eq!(lines.next().await.unwrap().unwrap(), wanted);
        }
        let mut process = pods.attach("p", &AttachParams::default().stdin(true)).await.unwrap();
        process.stdin().unwrap().write_all(b"third\n").await.unwrap();
        assert_eq!(lines.next().await.unwrap().unwrap(), "third");
        let of = async |params: LogParams| pods.logs("p", &params).await.unwrap();
        assert_eq!(of(LogParams::default()).await, "first\nsecond\nthird\n");
        assert_eq!(of(LogParams { tail_lines: Some(1), ..LogParams::default() }).await, "third\n");
        assert_eq!(of(LogParams { limit_bytes: Some(8), ..LogParams::default() }).await, "first\nse");
        assert_eq!(of(LogParams { since_seconds: Some(3600), ..LogParams::default() }).await.lines().count(), 3);
        let stamped = of(LogParams { timestamps: true, tail_lines: Some(1), ..LogParams::default() }).await;
        let (stamp, line) = stamped.split_once(' ').unwrap();
        assert!(stamp.contains('T') && stamp.ends_with('Z') && line == "third\n", "{stamped}");
        let previous = LogParams { previous: true, ..LogParams::default() };
        let why = "previous terminated container \"c\" in pod \"p\" not found";
        refused(pods.logs("p", &previous).await, 400, "BadRequest", why);
        refused(pods.logs("none", &follow).await, 404, "NotFound", "pods \"none\" not found");
        pods.delete("p", &DeleteParams::default()).await.unwrap();
        let rest: Vec<String> = lines.try_collect().await.unwrap();
        assert!(rest.is_empty(), "a followed log ends with its container: {rest:?}");
    });
}

#[test]
fn ports_are_forwarded() {
    let script = "mkdir -p /www; echo it serves > /www/index.html; httpd -p 80 -h /www; exec httpd -f -p 81 -h /www";
    let (cluster, pods) = with_pod(script, false);
    cluster.until("it listens", async || {
        let probe = pods.exec("p", ["wget", "-qO-", "http://127.0.0.1:81/"], &AttachParams::default()).await;
        let (out, err, _) = all_of(probe.map_err(|why| why.to_string())?).await;
        if out == "it serves\n" { Ok(()) } else { Err(out + &err) }
    });
    cluster.run(async {
        // Ports sharing a connection: the protocol cannot end one of them, so each is read up to its response's end.
        for ports in [&[80, 81][..], &[81], &[80]] {
            let mut forwarder = pods.portforward("p", ports).await.unwrap();
            let mut streams = Vec::new();
            for port in ports {
                let mut stream = forwarder.take_stream(*port).unwrap();
                stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").await.unwrap();
                let mut lines = tokio::io::BufReader::new(stream).lines();
                assert!(lines.next_line().await.unwrap().unwrap().ends_with(" 200 OK"), "{port}");
                while lines.next_line().await.unwrap().expect("an answer") != "it serves" {}
                streams.push(lines);
            }
            // When the servers have closed all of them, all end.
            for lines in &mut streams {
                assert_eq!(lines.next_line().await.unwrap(), None);
            }
            drop(streams);
            // It answers the server's close with its own, and may fail to: that is up to the client.
            let _ = forwarder.join().await;
        }
        // If nothing listens, the port's error channel reports it.
        let mut forwarder = pods.portforward("p", &[7]).await.unwrap();
        let error = forwarder.take_error(7).unwrap();
        let said = error.await.expect("an error");
        assert!(!said.is_empty());
        refused(pods.portforward("none", &[80]).await.map(drop), 404, "NotFound", "pods \"none\" not found");
    });
}
