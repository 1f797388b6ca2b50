//! Against aggregation: forged front proxies, hijacked groups, misdirected APIServices.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};

use super::nodes::all_refused;
use super::world::{ADMIN, EDIT, OURS, ROOT, World, with_headers};
use super::{Attack, Target, Try, Verdict, verdict};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "aggregation-headers",
        class: "identity",
        cves: &[],
        how: "a client, with a token and without, tells by X-Remote-User, -Group, -Uid and -Extra that it is root, in odd spellings too",
        held: "the server believes no front proxy: such headers count nowhere, and get through to nobody",
        attempt: Try::Code(front_proxy_headers),
    },
    Attack {
        id: "aggregation-takeover",
        class: "rights",
        cves: &[],
        how: "a namespace's administrator registers APIServices for apps and for a group of his own, changes those that there are, and writes whom extension servers believe",
        held: "APIServices are cluster-scoped and in no tenant's role, and the ConfigMap is in kube-system",
        attempt: Try::Code(takeover),
    },
    Attack {
        id: "extension-elsewhere",
        class: "server-side requests",
        cves: &["CVE-2022-3172"],
        how: "an APIService whose Service is called localhost, or has loopback and link-local endpoints",
        held: "the address is checked that is dialled; redirects are refused (tests/e2e/aggregation)",
        attempt: Try::Code(elsewhere),
    },
];

fn front_proxy_headers(world: &World, _: &Target) -> Verdict {
    const HEADERS: &str = "X-Remote-User: root\r\nx-remote-user: system:admin\r\nX-Remote-Group: system:masters\r\n\
                           X-Remote-Uid: 0\r\nX-Remote-Extra-Scopes: all\r\nX_Remote_User: root\r\n";
    let secrets = "/api/v1/namespaces/tenant-b/secrets";
    let (honest, _) = with_headers(world, ROOT, secrets, "");
    let mut seen = vec![format!("root {honest}")];
    if honest != 200 {
        return Verdict::Untried(seen.join("; "));
    }
    let mut held = true;
    for token in ["", EDIT] {
        let (code, said) = with_headers(world, token, secrets, HEADERS);
        held &= matches!(code, 401 | 403) && !said.contains("User \"root\"");
        seen.push(code.to_string());
    }
    verdict(held, seen.join("; "))
}

fn registration(group: &str, service: &str) -> Value {
    json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": format!("v1.{group}")},
        "spec": {"group": group, "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
            "insecureSkipTLSVerify": true, "service": {"namespace": OURS, "name": service}}})
}

fn takeover(world: &World, _: &Target) -> Verdict {
    const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
    let trust = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    all_refused(
        world,
        ADMIN,
        &[
            ("POST", SERVICES.to_owned(), registration("own.example.com", "mine")),
            ("PUT", format!("{SERVICES}/v1.apps"), registration("apps", "mine")),
            ("DELETE", format!("{SERVICES}/v1.apps"), Value::Null),
            ("PUT", format!("{SERVICES}/v1.apps/status"), registration("apps", "mine")),
            ("GET", trust.to_owned(), Value::Null),
            (
                "PUT",
                trust.to_owned(),
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extension-apiserver-authentication"},
                "data": {"requestheader-client-ca-file": "mine"}}),
            ),
        ],
    )
}

fn elsewhere(world: &World, target: &Target) -> Verdict {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let named = json!({"metadata": {"name": target.id}, "spec": {"type": "ExternalName", "externalName": "localhost",
        "ports": [{"port": port}]}});
    if let Err(why) = world.create("services", OURS, named) {
        return Verdict::Untried(why);
    }
    let mut object = registration("elsewhere.example.com", target.id);
    object["spec"]["service"]["port"] = port.into();
    if let Err(why) = world.create("apiservices.apiregistration.k8s.io", "", object) {
        return Verdict::Untried(why);
    }
    let name = "v1.elsewhere.example.com";
    let condition = crate::support::eventually("it was looked at", Duration::from_secs(60), || {
        let found = world.get("apiservices.apiregistration.k8s.io", "", name);
        let condition = found.map(|it| it["status"]["conditions"][0].clone()).unwrap_or_default();
        if condition["reason"].is_string() { Ok(condition) } else { Err(condition.to_string()) }
    });
    let (code, said) = world.ask(ROOT, "GET", "/apis/elsewhere.example.com/v1/things", &Value::Null);
    world.delete("apiservices.apiregistration.k8s.io", "", name);
    world.delete("services", OURS, target.id);
    let refused = condition["reason"] == "FailedDiscoveryCheck" && code == 503;
    verdict(listener.accept().is_err() && refused, format!("{condition}; {code} {said}"))
}
