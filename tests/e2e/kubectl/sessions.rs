//! Sessions with containers: run, exec, attach, logs, cp, port-forward; standard input, terminals and exit codes.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use super::{Cluster, Ended, Fails, Has, Is, TIMEOUT};
use crate::support::{contains, eventually};

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: localhost/busybox:1
    command: [sh, -c, 'echo it serves > /www/index.html; echo started; exec httpd -f -p 80 -h /www']
    ports: [{name: http, containerPort: 80}]
  - name: aside
    image: localhost/busybox:1
    command: [sh, -c, 'echo aside; while read line; do echo \"heard $line\"; done; exec sleep 1000']
    stdin: true
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 8080, targetPort: http}]}
";

fn web(cluster: &Cluster) {
    cluster.file("web.yaml", PODS);
    cluster.drill(&[
        ("kubectl create -f web.yaml", Has(&["pod/web created", "service/web created"])),
        ("kubectl wait --for=condition=Ready pod/web --timeout=60s", Has(&["met"])),
    ]);
}

#[test]
fn commands_run_in_containers_and_files_are_copied() {
    let Some(cluster) = Cluster::start() else { return };
    web(&cluster);
    cluster.file("up/sub/word", "hello\n");
    cluster.drill(&[
        ("kubectl exec web -- cat /www/index.html", Has(&["it serves", "Defaulted container \"web\" out of: web, aside"])),
        ("echo typed | kubectl exec -i web -c web -- cat", Is("typed")),
        ("kubectl exec web -c aside -- sh -c 'echo out; echo err >&2; exit 7'", Fails(7, "err\ncommand terminated with exit code 7")),
        ("kubectl exec svc/web -c web -- hostname", Is("web")),
        ("kubectl exec web -c web -- no-such-program", Fails(127, "exec: \"no-such-program\": executable file not found in $PATH")),
        ("kubectl exec web -c nothing -- true", Fails(1, "container nothing is not valid for pod web")),
        ("kubectl exec nobody -- true", Fails(1, "Error from server (NotFound): pods \"nobody\" not found")),
        // A terminal: `script` provides kubectl with one, and the container has its own.
        ("script -qec \"kubectl exec -it web -c web -- sh -c 'test -t 0 && test -t 1 && tty'\" /dev/null < /dev/null", Has(&["/dev/pts/0"])),
        ("script -qec \"stty cols 101 rows 33; kubectl exec -it web -c web -- sh -c 'sleep 1; stty size'\" /dev/null < /dev/null", Has(&["33 101"])),
        // cp uses tar on both ends. (kubectl may end before showing the other side's output.)
        ("kubectl cp up/sub/word web:/tmp/word -c web && kubectl exec web -c web -- cat /tmp/word", Is("hello")),
        ("kubectl cp up default/web:/tmp/up -c web && kubectl exec web -c web -- find /tmp/up -type f", Is("/tmp/up/sub/word")),
        ("kubectl cp web:/tmp/up down -c web > /dev/null && cat down/sub/word", Is("hello")),
        ("kubectl exec web -c web -- sh -c 'head -c 3000000 /dev/urandom > /tmp/big; md5sum < /tmp/big' > sum; kubectl cp -c web web:/tmp/big big && md5sum < big | diff - sum", Has(&[])),
        ("kubectl cp web:/nothing none -c web; test ! -e none", Has(&[])),
        // run.
        ("echo hello | kubectl run once --rm -i --image=$IMAGE --restart=Never -- sh -c 'read x; echo got $x'", Has(&["got hello", "pod \"once\" deleted"])),
        ("kubectl run five --rm -i --image=$IMAGE --restart=Never -- sh -c 'read x; exit 5'", Fails(5, "pod \"five\" deleted")),
        ("(sleep 2; echo 'tty; exit') | script -qec 'kubectl run shell --rm -it --image=$IMAGE --restart=Never -- sh' /dev/null", Has(&["/dev/pts/0", "pod \"shell\" deleted"])),
        ("kubectl get pods -o name", Is("pod/web")),
        ("kubectl run made --image=$IMAGE --labels=a=b --env=X=y --port=80 --expose --dry-run=client -o name", Is("service/made\npod/made")),
        ("kubectl run over --image=$IMAGE --overrides='{\"spec\":{\"hostname\":\"else\"}}' --restart=Never -- hostname", Has(&["pod/over created"])),
        ("kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/over --timeout=60s && kubectl logs over", Has(&["else"])),
    ]);
}

#[test]
fn logs_are_read_and_followed() {
    let Some(cluster) = Cluster::start() else { return };
    web(&cluster);
    cluster.drill(&[
        ("kubectl logs web", Has(&["started", "Defaulted container \"web\""])),
        ("kubectl logs web -c aside", Is("aside")),
        ("kubectl logs web --all-containers --prefix", Has(&["[pod/web/web] started", "[pod/web/aside] aside"])),
        ("kubectl logs -l app=web -c web --tail=1", Is("started")),
        ("kubectl logs svc/web -c web --timestamps", Has(&["Z started"])),
        ("kubectl logs web -c web --limit-bytes=3", Is("sta")),
        ("kubectl logs web -c web --since=1h", Is("started")),
        ("kubectl logs web -c nothing", Fails(1, "container nothing is not valid for pod web")),
        (
            "kubectl logs web -c web --previous",
            Fails(1, "previous terminated container \"web\" in pod \"web\" not found"),
        ),
        ("kubectl logs nobody", Fails(1, "pods \"nobody\" not found")),
        // A previous run of the container.
        (
            "kubectl run again --image=$IMAGE -- sh -c 'echo life $(cat /proc/uptime); sleep 0.2; exit 3'",
            Has(&["created"]),
        ),
        (
            "kubectl wait --for=jsonpath='{.status.containerStatuses[0].restartCount}'=1 pod/again --timeout=60s",
            Has(&["met"]),
        ),
        ("kubectl logs again --previous", Has(&["life "])),
        ("test \"$(kubectl logs again -p)\" != \"$(kubectl logs again)\"", Is("")),
        ("kubectl delete pod again --now", Has(&["deleted"])),
    ]);
    let mut follow = cluster.goes_on("kubectl logs -f web -c aside");
    let mut lines = BufReader::new(follow.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "aside");
    let mut attached = cluster.shell("exec kubectl attach -i web -c aside");
    let mut attached = Ended(attached.stdin(std::process::Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(attached.0.stdout.take().unwrap()).lines();
    attached.0.stdin.as_mut().unwrap().write_all(b"two\n").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "heard two");
    assert_eq!(lines.next().unwrap().unwrap(), "heard two");
    drop(attached);
    cluster.says("kubectl delete pod web --wait=false");
    assert!(lines.next().is_none(), "a followed log ends with its container");
}

/// The local port printed by a `port-forward`.
fn forwarded(said: &mut impl Iterator<Item = std::io::Result<String>>) -> u16 {
    let said = said.next().unwrap().unwrap();
    let port = said.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split(' ').next()?.parse().ok());
    port.unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn ports_lead_into_pods() {
    let Some(cluster) = Cluster::start() else { return };
    web(&cluster);
    for target in ["pod/web :80", "svc/web :8080", "web :http"] {
        let mut forward = cluster.goes_on(&format!("kubectl port-forward {target}"));
        // It continues to print each connection: without a reader it would end.
        let mut said = BufReader::new(forward.0.stdout.take().unwrap()).lines();
        let port = forwarded(&mut said);
        for _ in 0..2 {
            eventually("the forwarded port answers", TIMEOUT, || {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|e| e.to_string())?;
                stream.write_all(b"GET / HTTP/1.0\r\n\r\n").map_err(|e| e.to_string())?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer).map_err(|e| e.to_string())?;
                contains(&answer, "it serves")
            });
        }
    }
    // The server forwards there too.
    cluster.drill(&[
        ("kubectl get --raw /api/v1/namespaces/default/pods/web:80/proxy/index.html", Is("it serves")),
        ("kubectl get --raw /api/v1/namespaces/default/services/web:8080/proxy/", Is("it serves")),
        ("kubectl get --raw /api/v1/namespaces/default/pods/web:81/proxy/", Fails(1, "")),
        ("kubectl port-forward pod/nobody :80", Fails(1, "pods \"nobody\" not found")),
        ("kubectl port-forward pod/web :nothing", Fails(1, "")),
    ]);
}

/// A client of one forwarded port that connects and never reads, while the Pod sends endlessly, and then one whose Pod's end never
/// reads: a client of the other port still transfers its MiB at once in both directions.
#[test]
fn a_port_that_stands_leaves_the_others_alone() {
    const MUCH: usize = 32 << 20;
    let Some(cluster) = Cluster::start() else { return };
    web(&cluster);
    cluster.says(
        "kubectl exec web -c aside -- sh -c 'nc -ll -p 9000 -e cat /dev/zero >/dev/null 2>&1 & \
         nc -ll -p 9001 -e head -c 33554432 /dev/zero >/dev/null 2>&1 & nc -ll -p 9002 -e sleep 1000 >/dev/null 2>&1 &'",
    );
    // kubectl ends with the first refused connection.
    for port in ["2328", "2329", "232A", "0050"] {
        eventually("its ports are listened on", TIMEOUT, || {
            let listens =
                format!("kubectl exec web -c aside -- sh -c 'grep -q \":{port} .* 0A\" /proc/net/tcp /proc/net/tcp6'");
            let answer = cluster.sh(&listens);
            if answer.code == 0 { Ok(()) } else { Err(answer.all()) }
        });
    }
    let mut forward = cluster.goes_on("kubectl port-forward pod/web :9000 :9001 :9002 :80");
    let said = BufReader::new(forward.0.stdout.take().unwrap()).lines();
    // It prints each port once per family.
    let mut said = said.filter(|line| !line.as_ref().is_ok_and(|line| line.contains("[::1]")));
    let [endless, much, deaf, page] = std::array::from_fn(|_| forwarded(&mut said));
    std::thread::spawn(move || said.for_each(drop));
    let connect = |port| {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    };
    let takes = |what: &str| {
        let begun = std::time::Instant::now();
        let got = std::io::copy(&mut connect(much), &mut std::io::sink()).unwrap() as usize;
        println!("beside {what}: {got} bytes in {:?}", begun.elapsed());
        assert_eq!(got, MUCH, "all of it comes");
        assert!(
            begun.elapsed().as_secs() < 8 * u64::from(crate::support::slowness()),
            "at once: {:?}",
            begun.elapsed()
        );
    };
    let unread = connect(endless);
    // Until all buffers on the way are full.
    std::thread::sleep(std::time::Duration::from_secs(2));
    takes("one that its client does not read");
    // It leaves; what kubectl's worker has buffered for it no longer blocks later ones.
    drop(unread);
    let mut flood = connect(deaf);
    let flood = std::thread::spawn(move || {
        let piece = vec![b'x'; 1 << 20];
        (0..64).all(|_| flood.write_all(&piece).is_ok())
    });
    let mut page = connect(page);
    page.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let (mut answer, begun) = (String::new(), std::time::Instant::now());
    page.read_to_string(&mut answer).unwrap();
    println!("beside one that the Pod does not read: answered after {:?}", begun.elapsed());
    assert!(!flood.is_finished(), "before that one is given up");
    contains(&answer, "it serves").unwrap();
    assert!(begun.elapsed().as_secs() < 8 * u64::from(crate::support::slowness()), "{:?}", begun.elapsed());
    assert!(!flood.join().unwrap(), "the one that the Pod does not read is given up");
    assert!(forward.0.try_wait().unwrap().is_none(), "and kubectl forwards on");
}
