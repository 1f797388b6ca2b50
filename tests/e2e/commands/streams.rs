//! Streams between the caller and containers: logs, exec, attach, port-forward, run.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
};

use super::{TIMEOUT, node, refuses, says};
use crate::support::{Talk, TestNode, contains, eventually};

const TALKER: &str = "
apiVersion: v1
kind: Pod
metadata: {name: talker, labels: {app: talker}}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: data, emptyDir: {}}]
  containers:
  - name: a
    image: localhost/busybox:1
    command: [sh, -c, 'for i in 1 2 3 4 5; do echo line $i; sleep 0.01; done; touch /data/feed; exec tail -f /data/feed']
    volumeMounts: [{name: data, mountPath: /data}]
  - name: twice
    image: localhost/busybox:1
    command: [sh, -c, 'test -e /data/been && { echo second; exec sleep 1000; }; touch /data/been; echo first; exit 3']
    volumeMounts: [{name: data, mountPath: /data}]
";

#[test]
fn logs_are_followed_filtered_and_kept_of_the_run_before() {
    let (node, untouched) = node();
    node.apply(TALKER);
    node.wait("condition=Ready", &["pod/talker"], TIMEOUT);
    node.wait_field(&["pod", "talker"], ".status.containerStatuses[1].restartCount", "1", TIMEOUT);
    let all = "line 1\nline 2\nline 3\nline 4\nline 5\n";
    let logs = |args: &[&str]| node.ok(&[&["logs", "talker"], args].concat());
    eventually("all is written", TIMEOUT, || if logs(&["-c", "a"]) == all { Ok(()) } else { Err(logs(&["-c", "a"])) });
    let answer = node.run(&["logs", "talker"]);
    assert_eq!(
        (answer.code, answer.out.as_str(), answer.err.as_str()),
        (0, all, "Defaulted container \"a\" out of: a, twice\n")
    );
    assert_eq!(logs(&["a"]), all);
    assert_eq!(logs(&["-c", "a", "--tail", "2"]), "line 4\nline 5\n");
    assert_eq!(logs(&["-c", "a", "--tail", "0"]), "");
    assert_eq!(logs(&["-c", "a", "--limit-bytes", "8"]), "line 1\nl");
    let stamped = logs(&["-c", "a", "--timestamps"]);
    let stamps: Vec<&str> = stamped.lines().map(|l| l.strip_suffix(&l[l.len() - 7..]).unwrap()).collect();
    assert!(stamps.iter().all(|s| s.parse::<jiff::Timestamp>().is_ok()) && stamps.is_sorted(), "{stamped}");
    assert_eq!(logs(&["-c", "a", "--since-time", stamps[3]]), "line 4\nline 5\n");
    assert_eq!(logs(&["-c", "a", "--since", "1h"]), all);
    eventually("the lines are older than a second", TIMEOUT, || match logs(&["-c", "a", "--since", "1s"]) {
        none if none.is_empty() => Ok(()),
        some => Err(some),
    });
    assert_eq!(logs(&["-c", "twice"]), "second\n");
    assert_eq!(logs(&["-c", "twice", "--previous"]), "first\n");
    let none = "Error from server (BadRequest): previous terminated container \"a\" in pod \"talker\" not found";
    refuses(&node, &["logs", "talker", "-c", "a", "-p"], none);
    assert_eq!(logs(&["--all-containers"]), format!("{all}second\n"));
    let prefixed = node.ok(&["logs", "-l", "app=talker", "--all-containers", "--prefix", "--tail", "1"]);
    assert_eq!(prefixed, "[pod/talker/a] line 5\n[pod/talker/twice] second\n");
    let refused = node.run(&["logs", "talker", "-c", "nobody"]);
    assert_eq!(refused.code, 1);
    contains(&refused.err, "container nobody is not valid for pod talker").unwrap();
    let why = "error: error from server (NotFound): pods \"nobody\" not found in namespace \"default\"";
    refuses(&node, &["logs", "nobody"], why);
    assert_eq!(node.run(&["logs"]).code, 1);

    let follow = node.talk(&["logs", "-f", "talker", "-c", "a", "--tail", "1"]);
    let several = node.talk(&["logs", "-f", "talker", "--all-containers", "--prefix"]);
    follow.hear("line 5\n");
    several.hear("[pod/talker/twice] second\n");
    node.ok(&["exec", "talker", "-c", "a", "--", "sh", "-c", "echo more >> /data/feed"]);
    follow.hear("more\n");
    several.hear("[pod/talker/a] more\n");
    node.ok(&["delete", "pod", "talker"]);
    let answer = follow.end();
    assert_eq!((answer.code, answer.out.as_str()), (0, "line 5\nmore\n"), "{}", answer.err);
    assert_eq!(several.end().code, 0);
    drop(node);
    untouched.assert_unchanged();
}

const SHELL: &str = "
apiVersion: v1
kind: Pod
metadata: {name: shell}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: 'localhost/busybox:1', command: [sleep, '1000'], env: [{name: HOME, value: /root}]}
  - {name: other, image: 'localhost/busybox:1', command: [sh, -c, 'hostname; exec sleep 1000'], workingDir: /var}
---
apiVersion: v1
kind: Pod
metadata: {name: over}
spec:
  restartPolicy: Never
  containers: [{name: c, image: 'localhost/busybox:1', command: ['true']}]
";

#[test]
fn exec_has_the_commands_streams_code_and_terminal() {
    let (node, untouched) = node();
    node.apply(SHELL);
    node.wait("condition=Ready", &["pod/shell"], TIMEOUT);
    let exec = |script: &str| node.run(&["exec", "shell", "-c", "main", "--", "sh", "-c", script]);
    let answer = exec("echo out; echo err >&2; exit 7");
    assert_eq!(
        (answer.code, answer.out.as_str(), answer.err.as_str()),
        (7, "out\n", "err\ncommand terminated with exit code 7\n")
    );
    assert_eq!(exec("kill -9 $$").code, 137);
    says(&node, &["exec", "shell", "-c", "other", "--", "pwd"], "/var\n");
    let named = node.run(&["exec", "shell", "--", "true"]);
    assert_eq!((named.code, named.err.as_str()), (0, "Defaulted container \"main\" out of: main, other\n"));
    // More than all buffers on the way, in both directions at once.
    let big: Vec<u8> = (0..3_000_000u32).map(|i| b'a' + (i % 23) as u8).collect();
    let answer = node.run_with(&["exec", "-i", "shell", "-c", "main", "--", "cat"], &big);
    assert!(
        answer.code == 0 && answer.out.as_bytes() == big,
        "{} of {} bytes, {}",
        answer.out.len(),
        big.len(),
        answer.err
    );
    let answer = node.run_with(&["exec", "shell", "-c", "main", "--", "cat"], b"not wanted");
    assert_eq!((answer.code, answer.out.as_str()), (0, ""), "without -i nothing is passed on");
    let missing = node.run(&["exec", "shell", "-c", "main", "--", "/nope"]);
    assert!(missing.code != 0 && missing.err.contains("/nope"), "{}", missing.all());
    for (args, said) in [
        (&["exec", "shell", "-c", "nobody", "--", "true"][..], "container nobody is not valid for pod shell"),
        (&["exec", "nobody", "--", "true"], "pods \"nobody\" not found"),
        (&["exec", "shell"], "you must specify at least one command for the container"),
    ] {
        let answer = node.run(args);
        assert_eq!(answer.code, 1, "{}", answer.all());
        contains(&answer.err, said).unwrap();
    }
    node.wait_field(&["pod", "over"], ".status.phase", "Succeeded", TIMEOUT);
    let over = node.run(&["exec", "over", "--", "true"]);
    assert_eq!(over.code, 1);
    contains(&over.err, "cannot exec into a container in a completed pod; current phase is Succeeded").unwrap();

    let command = node.command(&["exec", "-it", "shell", "-c", "main", "--", "sh"]);
    let mut terminal = Talk::on_terminal(&command, (100, 40));
    terminal.say("tty; stty size\n");
    terminal.hear("/dev/pts/0");
    terminal.hear("40 100");
    terminal.resize((123, 45));
    eventually("the new size has come", TIMEOUT, || {
        terminal.say("stty size\n");
        contains(&terminal.out(), "45 123")
    });
    // ^C reaches the command inside, not the client.
    terminal.say("echo now $((40+2)); sleep 1000\n");
    terminal.hear("now 42");
    // The shell may not have started the command yet, and handle it itself.
    eventually("the command is interrupted", TIMEOUT, || {
        terminal.say("\x03");
        terminal.say("echo still $((40+3))\n");
        contains(&terminal.out(), "still 43")
    });
    terminal.say("exit 5\n");
    let answer = terminal.end();
    assert_eq!(answer.code, 5, "{}", answer.out);
    contains(&answer.out, "command terminated with exit code 5").unwrap();
    let command = node.command(&["exec", "-t", "shell", "-c", "main", "--", "true"]);
    assert_eq!(Talk::on_terminal(&command, (80, 24)).end().code, 0);
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

const LISTENERS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: listeners, labels: {app: listeners}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: localhost/busybox:1
    command: [sh, -c, 'echo hello > /www/index.html; exec httpd -f -p 8080 -h /www']
    ports: [{name: http, containerPort: 8080}]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
  - name: echo
    image: localhost/busybox:1
    command: [nc, -ll, -p, '9090', -e, cat]
    readinessProbe: {tcpSocket: {port: 9090}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: listeners}
spec:
  selector: {app: listeners}
  ports: [{name: web, port: 80, targetPort: http}]
";

/// The local port of a running port-forward for a remote one.
fn local_port(forward: &Talk, remote: u16) -> u16 {
    let part = format!(" -> {remote}\n");
    forward.hear(&part);
    let out = forward.out();
    let line = out.lines().find(|l| l.starts_with("Forwarding from 127.0.0.1:") && format!("{l}\n").ends_with(&part));
    let port = line.and_then(|l| l.split(' ').nth(2)?.rsplit(':').next()?.parse().ok());
    port.unwrap_or_else(|| panic!("no port for {remote} in {out}"))
}

fn fetch(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn port_forward_leads_into_the_pod_both_ways() {
    let (node, untouched) = node();
    node.apply(LISTENERS);
    node.wait("condition=Ready", &["pod/listeners"], TIMEOUT);
    let forward = node.talk(&["port-forward", "pod/listeners", ":8080", ":9090", ":7"]);
    let [web, echo, closed] = [8080, 9090, 7].map(|remote| local_port(&forward, remote));
    contains(&fetch(web), "hello").unwrap();
    // Many at once, and more than the buffers in both directions.
    let big: Vec<u8> = (0..2_000_000u32).map(|i| (i % 251) as u8).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| contains(&fetch(web), "hello").unwrap());
        }
        let mut stream = TcpStream::connect(("127.0.0.1", echo)).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sent = &big;
        scope.spawn(move || {
            writer.write_all(sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == big, "{} of {} bytes came back", back.len(), big.len());
    });
    // Nothing listens there: the connection ends, the reason is shown, and the others continue.
    let mut stream = TcpStream::connect(("127.0.0.1", closed)).unwrap();
    // It may be closed before this is sent.
    let _ = stream.write_all(b"anybody?");
    let ended = stream.read(&mut [0; 10]);
    assert!(!matches!(ended, Ok(1..)), "{ended:?}");
    forward.hear_error("an error occurred forwarding to pod/listeners");
    forward.hear_error("failed to connect to localhost:7 inside the Pod's network: ");
    forward.hear_error("refused");
    contains(&fetch(web), "hello").unwrap();
    contains(&forward.out(), &format!("Handling connection for {web}")).unwrap();

    let service = node.talk(&["port-forward", "service/listeners", ":web"]);
    contains(&fetch(local_port(&service, 8080)), "hello").unwrap();
    let taken = node.run(&["port-forward", "pod/listeners", "--address", "127.0.0.1", &format!("{web}:8080")]);
    assert_eq!(taken.code, 1, "{}", taken.all());
    contains(&taken.err, &format!("unable to listen on port {web}")).unwrap();
    assert_eq!(node.run(&["port-forward", "pod/listeners", "x"]).code, 1);
    assert_eq!(node.run(&["port-forward", "pod/nobody", "80"]).code, 1);
    drop((forward, service));
    node.ok(&["delete", "pods", "--all"]);
    drop(node);
    untouched.assert_unchanged();
}

const PROMPT: &str = "
apiVersion: v1
kind: Pod
metadata: {name: prompt}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
  - name: c
    image: localhost/busybox:1
    stdin: true
    command: [sh, -c, 'while read word; do echo got $word; echo not $word >&2; done; echo over; exit 6']
---
apiVersion: v1
kind: Pod
metadata: {name: console}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers: [{name: c, image: 'localhost/busybox:1', stdin: true, tty: true, command: [sh]}]
";

fn run(node: &TestNode, name: &str, more: &[&str], input: &[u8]) -> crate::support::node::Answer {
    let args = [&["run", name, "--image=localhost/busybox:1", "--restart=Never"], more].concat();
    node.run_with(&args, input)
}

#[test]
fn attach_and_run_join_a_containers_own_process() {
    let (node, untouched) = node();
    node.apply(PROMPT);
    for pod in ["prompt", "console"] {
        node.wait("condition=Ready", &[&format!("pod/{pod}")], TIMEOUT);
    }
    let listener = node.talk(&["attach", "prompt"]);
    let mut speaker = node.talk(&["attach", "-i", "prompt"]);
    eventually("both have joined", TIMEOUT, || {
        speaker.say("one\n");
        contains(&listener.out(), "got one").and(contains(&speaker.out(), "got one"))
    });
    speaker.hear_error("not one");
    // Leaving does not end it (stdinOnce is not set).
    drop(speaker);
    let mut speaker = node.talk(&["attach", "-i", "prompt"]);
    speaker.say("two\n");
    listener.hear("got two");
    let mut console = Talk::on_terminal(&node.command(&["attach", "-it", "console"]), (91, 33));
    eventually("the console has our size", TIMEOUT, || {
        console.say("stty size\n");
        contains(&console.out(), "33 91")
    });
    console.say("exit 4\n");
    console.end();
    node.wait_field(&["pod", "console"], ".status.containerStatuses[0].state.terminated.exitCode", "4", TIMEOUT);
    contains(&node.ok(&["logs", "console"]), "33 91").unwrap();
    drop((speaker, listener));

    let answer = run(&node, "plain", &["--labels=a=b", "--env=V=1", "--", "sh", "-c", "echo $V; exit 3"], b"");
    assert_eq!((answer.code, answer.out.as_str()), (0, "pod/plain created\n"), "{}", answer.err);
    node.wait_field(&["pod", "plain"], ".status.containerStatuses[0].state.terminated.exitCode", "3", TIMEOUT);
    says(&node, &["logs", "plain"], "1\n");
    says(&node, &["get", "pods", "-l", "a=b", "-o", "name"], "pod/plain\n");
    let answer = run(&node, "plain", &["--", "true"], b"");
    assert_eq!(
        (answer.code, answer.err.as_str()),
        (1, "Error from server (AlreadyExists): pods \"plain\" already exists\n")
    );
    // Its input, output and exit code are passed through; nothing of it remains.
    let answer =
        run(&node, "ours", &["-i", "--rm", "--command", "--", "sh", "-c", "cat; exit 4"], b"through and through\n");
    assert_eq!(answer.code, 4, "{}", answer.all());
    contains(&answer.out, "through and through\n").and(contains(&answer.out, "pod \"ours\" deleted")).unwrap();
    node.wait("delete", &["pod/ours"], TIMEOUT);
    let late = run(
        &node,
        "late",
        &["--attach", "--pod-running-timeout=300ms", "--overrides={\"spec\":{\"nodeName\":\"nowhere\"}}"],
        b"",
    );
    assert_eq!((late.code, late.err.as_str()), (1, "error: timed out waiting for the condition\n"));
    node.ok(&["delete", "pods", "--all", "--force", "--grace-period=0"]);
    drop(node);
    untouched.assert_unchanged();
}
