//! By users of the API, through sessions with nodes: starting processes, their number, methods, foreign web pages; and by the
//! author of a backup.

use serde_json::{Value, json};

use super::escapes::memory;
use super::world::{ADMIN, EDIT, OURS, ROOT, THEIRS, World};
use super::{Attack, POD, Pod, TIMEOUT, Target, Try, Verdict, beyond, verdict};
use crate::support::{TestNode, eventually};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "sessions-unclaimed",
        class: "exhaustion",
        cves: &[],
        how: "`admin` of a tenant asks for 400 execs by JSON-RPC, and dials none of them",
        held: "the node is asked once the client's stream is there, and not before",
        attempt: Try::Code(unclaimed),
    },
    Attack {
        id: "sessions-share",
        class: "exhaustion",
        cves: &[],
        how: "`admin` of a tenant has all the sessions with a Pod that he gets; another user execs into the same Pod",
        held: "a user has so many with one Pod, and no more than half of what the Pod has; beyond it is 429",
        attempt: Try::Code(share),
    },
    Attack {
        id: "sessions-methods",
        class: "identity",
        cves: &[],
        how: "HEAD, PUT, PATCH, DELETE and OPTIONS on exec, attach, portforward and log, with an upgrade to a WebSocket and to SPDY",
        held: "sessions open by upstream's methods alone, and each is authorized as its verb",
        attempt: Try::Code(methods),
    },
    Attack {
        id: "sessions-cross-site",
        class: "identity",
        cves: &[],
        how: "WebSockets as a browser opens them for a page of another site (its Origin): exec, attach, portforward, the proxy, JSON-RPC",
        held: "a WebSocket whose Origin is not the host that it names is refused; one without, or of this host, is taken",
        attempt: Try::Code(cross_site),
    },
    Attack {
        id: "proxy-old-address",
        class: "identity",
        cves: &[],
        how: "`pods/proxy` of a Pod of the tenant's whose status has the address of another tenant's Pod, as that of one that has ended may",
        held: "the node dials the address of a Pod while that Pod has it, and else nothing",
        attempt: Try::Code(old_address),
    },
    Attack {
        id: "spdy-headers",
        class: "exhaustion",
        cves: &["CVE-2026-35469"],
        how: "`admin` of a tenant opens an exec by SPDY, and sends settings and headers of which it says that there are two thousand million, and a block of headers that unpacks to 256 MiB; the server's memory",
        held: "a count makes no room; a frame has 1 MiB and a stream's headers 8 KiB, as they unpack",
        attempt: Try::Code(spdy_headers),
    },
    Attack {
        id: "backup-schema",
        class: "operators",
        cves: &[],
        how: "`--restore` of backups with a trigger, a view, an index on an expression, a generated column",
        held: "a schema that is not exactly the store's own is refused by name, and nothing is left; SQLite runs nothing of a schema",
        attempt: Try::Code(backup_schema),
    },
];

const SLEEP: Pod = Pod { namespace: OURS, script: "sleep 1000", ..POD };
pub const WEBSOCKET: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n";
const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n";

/// A request following a refused upgrade, so that the connection ends; after an accepted one it is not a frame.
const NEXT: &str = "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// The answer's code, 0 for none.
fn code(said: &str) -> u16 {
    said.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

fn connect(world: &World, token: &str, target: &Target, command: &[&str], times: usize) -> Vec<Value> {
    let params = json!({"resource": "pods", "namespace": OURS, "name": target.id, "subresource": "exec",
        "body": {"command": command, "stdin": true, "stdout": true}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "connect", "params": params});
    let mut answers = Vec::new();
    for batch in (0..times).collect::<Vec<_>>().chunks(100) {
        let (_, said) = world.ask(token, "POST", "/rpc", &Value::Array(vec![call.clone(); batch.len()]));
        let body = said.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let Some(list) = body.find('[').and_then(|at| serde_json::from_str::<Value>(&body[at..]).ok()) else {
            continue;
        };
        answers.extend(list.as_array().cloned().unwrap_or_default());
    }
    answers
}

fn refused(answers: &[Value]) -> usize {
    answers.iter().filter(|answer| answer["error"]["code"] == 429).count()
}

fn unclaimed(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &SLEEP) {
        return Verdict::Untried(why);
    }
    let answers = connect(world, ADMIN, target, &["sleep", "7777"], 400);
    let taken = answers.iter().filter(|answer| answer["result"]["stream"].is_string()).count();
    if answers.len() != 400 || taken == 0 {
        return Verdict::Untried(format!("{} answers, {taken} streams: {:?}", answers.len(), answers.first()));
    }
    // This request comes after all previous ones.
    let said = world.inside(target, OURS, &["sh", "-c", "sleep 1; ps -o args | grep -c '^[s]leep 7777'"]);
    verdict(said.contains("\n0\n"), format!("{taken} of 400 may be dialled, {} are refused: {said}", refused(&answers)))
}

fn share(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &SLEEP) {
        return Verdict::Untried(why);
    }
    let answers = connect(world, ADMIN, target, &["true"], 400);
    let shape = answers.iter().filter(|answer| answer["error"]["code"] == 429).all(|answer| {
        let status = &answer["error"]["data"];
        status["reason"] == "TooManyRequests" && status["details"]["retryAfterSeconds"] == 1
    });
    let path = format!("/api/v1/namespaces/{OURS}/pods/{}/exec?command=true&stdout=1", target.id);
    let ask =
        |token: &str| {
            code(&world.raw(format!(
                "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{WEBSOCKET}\r\n{NEXT}"
            )))
        };
    let (his, others) = (ask(ADMIN), ask(EDIT));
    let held = refused(&answers) >= 100 && shape && his == 429 && others == 101;
    verdict(held, format!("{} of 400 are refused; then {his} for him, {others} for another user", refused(&answers)))
}

fn methods(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &SLEEP) {
        return Verdict::Untried(why);
    }
    let mut through = Vec::new();
    for of in ["exec?command=true&stdout=1", "attach?stdout=1", "portforward?ports=80", "log?follow=1"] {
        for method in ["HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            for upgrade in [WEBSOCKET, SPDY] {
                let path = format!("/api/v1/namespaces/{OURS}/pods/{}/{of}", target.id);
                let said = world.raw(format!(
                    "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: 0\r\n{upgrade}\r\n{NEXT}"
                ));
                if code(&said) != 405 {
                    through.push(format!("{method} {of}: {}", code(&said)));
                }
            }
        }
    }
    verdict(through.is_empty(), format!("all but these are 405: {through:?}"))
}

fn cross_site(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &SLEEP) {
        return Verdict::Untried(why);
    }
    let pod = format!("/api/v1/namespaces/{OURS}/pods/{}", target.id);
    let ask = |path: &str, origin: &str| {
        let origin = if origin.is_empty() { String::new() } else { format!("Origin: {origin}\r\n") };
        code(&world.raw(format!(
            "GET {path} HTTP/1.1\r\nHost: api.example:6443\r\nAuthorization: Bearer {ADMIN}\r\n{origin}{WEBSOCKET}\r\n{NEXT}"
        )))
    };
    let exec = format!("{pod}/exec?command=true&stdout=1");
    let honest = [ask(&exec, ""), ask(&exec, "https://api.example:6443")];
    if honest != [101, 101] {
        return Verdict::Untried(format!("{honest:?} for who sends no Origin, and the host's"));
    }
    let paths = [
        exec,
        format!("{pod}/attach?stdout=1"),
        format!("{pod}/portforward?ports=80"),
        format!("{pod}/proxy/"),
        "/rpc".into(),
    ];
    let mut through = Vec::new();
    for path in &paths {
        for origin in ["https://evil.example", "null", "https://api.example:6443.evil.example", "http://localhost:8080"]
        {
            let code = ask(path, origin);
            if code != 403 {
                through.push(format!("{path} of {origin}: {code}"));
            }
        }
    }
    verdict(through.is_empty(), format!("all but these are 403: {through:?}"))
}

fn old_address(world: &World, target: &Target) -> Verdict {
    let serving = |namespace: &str, page: &str| {
        let script = format!("mkdir -p /tmp/www; echo {page} > /tmp/www/x; exec httpd -f -p 8080 -h /tmp/www");
        let mut pod = world.pod(target, &POD);
        pod["metadata"]["namespace"] = json!(namespace);
        pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
        world.create("pods", namespace, pod)
    };
    let (theirs, ours) = (format!("theirs-{}", target.id), format!("ours-{}", target.id));
    if let Err(why) = serving(THEIRS, &theirs).and_then(|_| serving(OURS, &ours)) {
        return Verdict::Untried(why);
    }
    let at = |namespace: &str| format!("/api/v1/namespaces/{namespace}/pods/{}", target.id);
    let asked = |token: &str, namespace: &str| {
        world.ask(token, "GET", &format!("{}:8080/proxy/x", at(namespace)), &Value::Null).1
    };
    let address =
        |namespace: &str| world.get("pods", namespace, target.id).unwrap_or_default()["status"]["podIP"].clone();
    for (namespace, page) in [(THEIRS, &theirs), (OURS, &ours)] {
        eventually("the Pod serves", TIMEOUT, || {
            let said = asked(ROOT, namespace);
            if said.contains(page) { Ok(()) } else { Err(said) }
        });
    }
    let ip = address(THEIRS);
    let mut said = String::new();
    // The agent may restore the status before the request arrives.
    for _ in 0..20 {
        let old = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
        world.ask(ROOT, "PATCH", &format!("{}/status", at(OURS)), &old);
        said = asked(ADMIN, OURS);
        if said.contains(&theirs) {
            return Verdict::Breach(said);
        }
        if code(&said) == 503 && address(OURS) == ip {
            return Verdict::Held(said);
        }
    }
    Verdict::Untried(said)
}

/// A control frame of SPDY/3.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80, 3, 0, kind];
    frame.extend((payload.len() as u32).to_be_bytes());
    frame.extend(payload);
    frame
}

/// A SYN_STREAM with these header bytes.
fn stream(headers: &[u8]) -> Vec<u8> {
    let mut zlib = flate2::write::ZlibEncoder::new(vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 0], flate2::Compression::best());
    std::io::Write::write_all(&mut zlib, headers).unwrap();
    frame(1, &zlib.finish().unwrap())
}

fn spdy_headers(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &SLEEP) {
        return Verdict::Untried(why);
    }
    let many = 0x7fff_ffff_u32.to_be_bytes();
    let path = format!("/api/v1/namespaces/{OURS}/pods/{}/exec?command=true&stdout=1", target.id);
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: 0\r\n{SPDY}\r\n");
    let tries = [
        [frame(4, &many), frame(7, &[0; 8])].concat(),
        stream(&many),
        stream(&[[0, 0, 0, 1].as_slice(), &many, b"name"].concat()),
        stream(&vec![0; 256 << 20]),
    ];
    std::fs::write(format!("/proc/{}/clear_refs", world.node.pid()), "5").unwrap();
    let before = memory(world);
    let codes = tries.map(|sent| code(&world.raw([head.as_bytes(), &sent].concat())));
    let most = beyond::most(world);
    match codes {
        [101, 101, 101, 101] => verdict(most < before + 64, format!("{before} MiB before, {most} MiB at most")),
        codes => Verdict::Untried(format!("not upgraded: {codes:?}")),
    }
}

fn backup_schema(world: &World, _: &Target) -> Verdict {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let answer = world.node.run(&["backup", saved.to_str().unwrap()]);
    if answer.code != 0 {
        return Verdict::Untried(answer.all());
    }
    let mut said = Vec::new();
    for (number, (change, named)) in [
        ("CREATE TRIGGER evil AFTER INSERT ON hole BEGIN DELETE FROM log; END", "trigger \"evil\""),
        ("CREATE VIEW evil AS SELECT * FROM log", "view \"evil\""),
        ("CREATE INDEX evil ON log (hex(key))", "index \"evil\""),
        ("ALTER TABLE hole ADD COLUMN evil AS (hex(first)) VIRTUAL", "table \"hole\""),
    ]
    .into_iter()
    .enumerate()
    {
        let copy = folder.path().join(format!("{number}.bak"));
        std::fs::copy(&saved, &copy).unwrap();
        rusqlite::Connection::open(&copy).unwrap().execute_batch(change).unwrap();
        let mut node = TestNode::stopped(&["--node-name", "restored", "--restore", copy.to_str().unwrap()]);
        node.spawn();
        let store = node.dir.path().join("store.db");
        eventually("it gives up, or takes the backup", super::TIMEOUT, || {
            let log = node.log();
            if log.contains(named) || store.exists() { Ok(()) } else { Err(log) }
        });
        // If accepted it goes on.
        if store.exists() {
            return Verdict::Breach(format!("{change}: it was restored"));
        }
        node.wait_ended();
        let log = node.log();
        if !log.contains(named) || store.exists() {
            return Verdict::Breach(format!("{change}: {log}"));
        }
        said.push(log.lines().last().unwrap_or_default().to_owned());
    }
    Verdict::Held(said.join("; "))
}
