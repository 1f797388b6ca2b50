//! From manifests to words of the runtime.

use std::sync::Arc;

use podwright::node::{
    executor::StartOrder,
    id_pool::IdPool,
    spec::PodExt,
    translate::{
        Context, container,
        env::{Facts, Sources, env},
        expand,
        files::{Names, hostname, hosts, resolv_conf},
    },
    unsupported,
};
use serde_json::{Value, json};

use super::pod;

#[test]
fn references_expand_as_upstream() {
    let lookup = |name: &str| (name == "A").then_some("x");
    for (text, expected) in [
        ("$(A)", "x"),
        ("$$(A)", "$(A)"),
        ("$(B)", "$(B)"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
        ("$$$(A)", "$x"),
        ("a$(A)b$(A)", "axbx"),
        ("$(A)$(", "x$("),
    ] {
        assert_eq!(expand(text, lookup).as_deref(), Ok(expected), "{text}");
    }
}

/// It is not made to be measured.
#[test]
fn what_is_longer_than_any_string_of_a_process_is_not_expanded() {
    let value = "v".repeat(1 << 10);
    let long = |times: usize| expand(&"$(A)".repeat(times), |_| Some(&value)).map(|text| text.len());
    assert_eq!(long(128), Ok(128 << 10));
    assert!(long(129).is_err() && expand(&"x".repeat((128 << 10) + 1), |_| None).is_err());
}

/// Values that name each other double, and a ConfigMap may be named as often as one likes: what no process can be given is
/// refused before it is made, not after.
#[test]
fn variables_that_double_and_sources_that_repeat_are_refused_in_time() {
    let refused = |container: Value| {
        let pod = pod(json!({ "containers": [container] }));
        let facts = Facts::default();
        let why = env(&pod, &pod.spec.as_ref().unwrap().containers[0], &sources_with_much(), &facts).map(drop);
        why.unwrap_err().message
    };
    let doubling: Vec<Value> =
        (1..64).map(|n| json!({ "name": format!("V{n}"), "value": format!("$(V{})$(V{})", n - 1, n - 1) })).collect();
    let first = json!({ "name": "V0", "value": "12345678" });
    let variables: Vec<Value> = std::iter::once(first).chain(doubling).collect();
    assert!(refused(json!({ "name": "a", "env": variables })).starts_with("argument list too long"));
    let often: Vec<Value> =
        (0..100).map(|n| json!({ "prefix": format!("P{n}_"), "configMapRef": { "name": "much" } })).collect();
    assert!(refused(json!({ "name": "a", "envFrom": often })).starts_with("argument list too long"));
    let by_key: Vec<Value> = (0..100)
        .map(|n| {
            let from = json!({ "configMapKeyRef": { "name": "much", "key": "k" } });
            json!({ "name": format!("V{n}"), "valueFrom": from })
        })
        .collect();
    assert!(refused(json!({ "name": "a", "env": by_key })).starts_with("argument list too long"));
}

fn sources_with_much() -> Sources {
    let mut sources = Sources::default();
    let much: Value = json!({ "data": { "k": "x".repeat(100 << 10) } });
    sources.config_maps.insert("much".into(), Arc::new(serde_json::from_value(much).unwrap()));
    sources
}

#[test]
fn files_that_show_a_key_again_and_again_are_bounded() {
    use podwright::node::volumes::{kinds::config_map, payload::Room};
    let items: Vec<_> =
        (0..1000).map(|n| serde_json::from_value(json!({ "key": "k", "path": format!("f{n}") })).unwrap()).collect();
    let mut room = Room::default();
    let shown = |items: &[_], room: &mut Room| {
        config_map::files(&sources_with_much(), "much", Some(items), None, None, room).map(|payload| payload.len())
    };
    assert_eq!(shown(&items[..500], &mut room).unwrap(), 500);
    let why = shown(&items[500..], &mut room).unwrap_err().to_string();
    assert!(why.contains("more than 67108864 bytes"), "{why}");
}

fn sources() -> Sources {
    let object = |value: Value| Arc::new(serde_json::from_value(value).unwrap());
    let mut sources = Sources::default();
    sources.config_maps.insert("m".into(), object(json!({ "data": { "k": "v", "n": "1" } })));
    let secret = json!({ "data": { "p": "cGFzcw==" } });
    sources.secrets.insert("s".into(), Arc::new(serde_json::from_value(secret).unwrap()));
    let service = json!({
        "metadata": { "name": "red-is", "namespace": "default" },
        "spec": { "clusterIP": "10.96.0.9", "ports": [{ "port": 6379, "name": "main" }] } });
    sources.services.push(Arc::new(serde_json::from_value(service).unwrap()));
    sources
}

fn variables(container: Value) -> Result<Vec<String>, String> {
    let pod = pod(json!({ "nodeName": "n1", "serviceAccountName": "sa", "containers": [container] }));
    let facts = Facts {
        host_ips: vec!["192.0.2.1".parse().unwrap()],
        pod_ips: vec!["10.0.0.7".parse().unwrap()],
        cpu_millis: 2000,
        memory: 1 << 30,
        ephemeral_storage: 1 << 30,
    };
    let part = &pod.parts()[0];
    let all = env(&pod, &part.container, &sources(), &facts).map_err(|t| format!("{}: {}", t.reason, t.message))?;
    Ok(all.iter().map(|(k, v)| format!("{k}={v}")).filter(|v| !v.starts_with("RED_IS")).collect())
}

#[test]
fn variables_from_everywhere() {
    let got = variables(json!({ "name": "a",
        "resources": { "limits": { "cpu": "1500m" }, "requests": { "memory": "100Mi" } },
        "envFrom": [{ "prefix": "P_", "configMapRef": { "name": "m" } }, { "secretRef": { "name": "s" } },
                    { "configMapRef": { "name": "none", "optional": true } }],
        "env": [
            { "name": "A", "value": "1" },
            { "name": "B", "value": "$(A)$(P_k)$(later)" },
            { "name": "later", "value": "$(RED_IS_SERVICE_HOST)" },
            { "name": "K", "valueFrom": { "configMapKeyRef": { "name": "m", "key": "k" } } },
            { "name": "S", "valueFrom": { "secretKeyRef": { "name": "s", "key": "p" } } },
            { "name": "GONE", "valueFrom": { "secretKeyRef": { "name": "s", "key": "q", "optional": true } } },
            { "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
            { "name": "APP", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['app']" } } },
            { "name": "CPU", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } },
            { "name": "MILLI", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu", "divisor": "1m" } } },
            { "name": "MEM", "valueFrom": { "resourceFieldRef": { "resource": "requests.memory", "divisor": "1Mi" } } },
            { "name": "MAX", "valueFrom": { "resourceFieldRef": { "resource": "limits.memory" } } },
        ] }))
    .unwrap();
    let expected = [
        "P_k=v",
        "P_n=1",
        "p=pass",
        "A=1",
        "B=1v$(later)",
        "later=10.96.0.9",
        "K=v",
        "S=pass",
        "IP=10.0.0.7",
        "APP=web",
        "CPU=2",
        "MILLI=1500",
        "MEM=100",
        "MAX=1073741824",
    ];
    assert_eq!(got, expected);
}

#[test]
fn missing_references_are_named() {
    let from = |source: Value| variables(json!({ "name": "a", "env": [{ "name": "X", "valueFrom": source }] }));
    for (source, message) in [
        (json!({ "configMapKeyRef": { "name": "none", "key": "k" } }), "configmap \"none\" not found"),
        (json!({ "configMapKeyRef": { "name": "m", "key": "z" } }), "couldn't find key z in ConfigMap default/m"),
        (json!({ "secretKeyRef": { "name": "none", "key": "k" } }), "secret \"none\" not found"),
        (json!({ "secretKeyRef": { "name": "s", "key": "z" } }), "couldn't find key z in Secret default/s"),
    ] {
        assert_eq!(from(source).unwrap_err(), format!("CreateContainerConfigError: {message}"));
    }
}

#[test]
fn service_links() {
    let pod = pod(json!({ "containers": [{ "name": "a" }] }));
    let part = &pod.parts()[0];
    let all = env(&pod, &part.container, &sources(), &Facts::default()).unwrap();
    let lines: Vec<String> = all.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let expected = [
        "RED_IS_SERVICE_HOST=10.96.0.9",
        "RED_IS_SERVICE_PORT=6379",
        "RED_IS_SERVICE_PORT_MAIN=6379",
        "RED_IS_PORT=tcp://10.96.0.9:6379",
        "RED_IS_PORT_6379_TCP=tcp://10.96.0.9:6379",
        "RED_IS_PORT_6379_TCP_PROTO=tcp",
        "RED_IS_PORT_6379_TCP_PORT=6379",
        "RED_IS_PORT_6379_TCP_ADDR=10.96.0.9",
    ];
    assert_eq!(lines, expected);
    let mut quiet = pod.clone();
    quiet.spec.as_mut().unwrap().enable_service_links = Some(false);
    assert_eq!(env(&quiet, &part.container, &sources(), &Facts::default()).unwrap().iter().count(), 0);
}

/// Of more Services than any process can be told of no variables are made beyond what it can; of many honest ones all are.
#[test]
fn service_links_are_bounded() {
    let made = |services: usize, ports: usize| {
        let ports: Vec<Value> = (1..=ports).map(|port| json!({ "port": port, "name": format!("p{port}") })).collect();
        let service = |n: usize| {
            let name = format!("s{n:04}-{}", "x".repeat(57));
            let metadata = json!({ "name": name, "namespace": "default" });
            let service = json!({ "metadata": metadata, "spec": { "clusterIP": "10.96.0.9", "ports": ports } });
            Arc::new(serde_json::from_value(service).unwrap())
        };
        let sources = Sources { services: (0..services).map(service).collect(), ..Sources::default() };
        let pod = pod(json!({ "containers": [{ "name": "a" }] }));
        let all = env(&pod, &pod.parts()[0].container, &sources, &Facts::default());
        all.map(|all| all.iter().count()).map_err(|t| format!("{}: {}", t.reason, t.message))
    };
    assert_eq!(made(800, 3), Ok(800 * (3 + 5 * 3)));
    let why =
        "CreateContainerError: argument list too long: at most 6291456 bytes of args and env, 131072 in one string";
    assert_eq!(made(40, 4096).unwrap_err(), why);
    // As many as a ConfigMap has room for: each has a pointer.
    let data: std::collections::BTreeMap<String, &str> = (0..280_000).map(|n| (format!("{n:06x}"), "")).collect();
    let map = Arc::new(serde_json::from_value(json!({ "metadata": { "name": "m" }, "data": data })).unwrap());
    let sources = Sources { config_maps: [("m".to_owned(), map)].into(), ..Sources::default() };
    let of = |prefix: &str| json!({ "prefix": prefix, "configMapRef": { "name": "m" } });
    let refused = |from: Value| {
        let pod = pod(json!({ "containers": [{ "name": "a", "envFrom": from }] }));
        env(&pod, &pod.parts()[0].container, &sources, &Facts::default()).is_err()
    };
    assert!(!refused(json!([of("A")])));
    assert!(refused(json!([of("A"), of("B")])));
}

#[test]
fn names_and_files() {
    let names = Names { dns: vec!["10.96.0.10".parse().unwrap()], domain: "cluster.local".into() };
    let conf = |spec: Value| resolv_conf(&pod(spec), &names, "search lan\nnameserver 192.0.2.53\noptions edns0\n");
    let cluster = "search default.svc.cluster.local svc.cluster.local cluster.local lan\nnameserver 10.96.0.10\n";
    assert_eq!(conf(json!({ "containers": [] })), format!("{cluster}options ndots:5\n"));
    let host = "search lan\nnameserver 192.0.2.53\noptions edns0\n";
    assert_eq!(conf(json!({ "containers": [], "dnsPolicy": "Default" })), host);
    assert_eq!(conf(json!({ "containers": [], "hostNetwork": true })), host);
    let both = json!({ "containers": [], "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet" });
    assert_eq!(conf(both), format!("{cluster}options ndots:5\n"));
    let own = json!({ "containers": [], "dnsPolicy": "None", "dnsConfig": {
        "nameservers": ["1.1.1.1"], "searches": ["x"], "options": [{ "name": "ndots", "value": "2" }, { "name": "rotate" }] } });
    assert_eq!(conf(own), "search x\nnameserver 1.1.1.1\noptions ndots:2 rotate\n");
    let over = json!({ "containers": [], "dnsConfig": { "options": [{ "name": "ndots", "value": "1" }] } });
    assert_eq!(conf(over), format!("{cluster}options ndots:1\n"));

    let named = pod(json!({ "containers": [], "hostname": "db", "subdomain": "sub",
        "hostAliases": [{ "ip": "1.2.3.4", "hostnames": ["foo", "bar"] }] }));
    let text = hosts(&named, "cluster.local", &["10.0.0.7".parse().unwrap()]);
    assert!(text.contains("10.0.0.7\tdb.sub.default.svc.cluster.local\tdb\n"), "{text}");
    assert!(text.ends_with("\n# Entries added by HostAliases.\n1.2.3.4\tfoo\tbar\n"), "{text}");
    assert_eq!(hostname(&named, "cluster.local"), "db");
    let mut long = pod(json!({ "containers": [] }));
    long.metadata.name = Some(format!("{}-x", "a".repeat(62)));
    assert_eq!(hostname(&long, "cluster.local"), "a".repeat(62));
}

#[test]
fn nothing_is_ignored_in_silence() {
    let quiet = pod(json!({ "containers": [{ "name": "a", "image": "i:1" }] }));
    assert_eq!(unsupported::fields(&quiet), Vec::<String>::new());
    let loud = pod(json!({
        "resourceClaims": [{ "name": "gpu", "resourceClaimName": "g" }],
        "containers": [{ "name": "a", "resources": { "limits": { "hugepages-2Mi": "4Mi" } },
            "ports": [{ "containerPort": 2, "hostPort": 2, "hostIP": "127.0.0.1" }] }],
        "volumes": [
            { "name": "held", "emptyDir": { "sizeLimit": "1Gi" } },
            { "name": "v", "projected": { "sources": [{ "clusterTrustBundle": { "name": "b", "path": "p" } }] } },
        ] }));
    let expected = [
        "spec.resourceClaims",
        "spec.containers[a].resources.limits.hugepages",
        "spec.volumes[v].projected.sources.clusterTrustBundle",
    ];
    assert_eq!(unsupported::fields(&loud), expected);
}

#[test]
fn the_largest_quantities_stay_within_what_cgroups_take() {
    let most = json!({ "cpu": i64::MAX.to_string(), "memory": i64::MAX.to_string() });
    let pod = pod(
        json!({ "containers": [{ "name": "c", "image": "i", "resources": { "limits": most, "requests": most } }] }),
    );
    let spec = podwright::node::translate::sandbox(&pod, 0, "h", None, None);
    assert_eq!(spec.resources.cpu_quota_us, Some((1 << 44) - 1));
    assert_eq!(spec.resources.cpu_weight, Some(10_000));
    let adjust = podwright::node::qos::oom_score_adj(&pod, &pod.spec().containers[0], 1 << 30);
    assert_eq!(adjust, -997, "it is Guaranteed");
}

/// An image whose `USER` and `/etc/passwd` are these.
fn image_of(user: &str, layer: &tempfile::TempDir) -> podwright_runtime::image::Image {
    let config = json!({ "architecture": "amd64", "os": "linux", "config": { "User": user, "Cmd": ["/x"] },
        "rootfs": { "type": "layers", "diff_ids": [] } });
    podwright_runtime::image::Image {
        id: "sha256:1".into(),
        digest: "sha256:2".into(),
        names: vec!["i:1".into()],
        repo_digests: Vec::new(),
        size: 1,
        config: serde_json::from_value(config).unwrap(),
        layers: vec![layer.path().to_owned()],
    }
}

/// What no process can be given makes no container.
#[test]
fn arguments_and_variables_that_no_process_can_have_are_refused() {
    let said = |text: &str, arg: usize, variables: usize, each: usize| {
        let layer = tempfile::tempdir().unwrap();
        let pod = pod(json!({ "containers": [{ "name": "a", "command": ["c"], "args": [text.repeat(arg)] }] }));
        let mut env = podwright::node::translate::env::Env::default();
        (0..variables).for_each(|n| env.set(format!("V{n}"), text.repeat(each)));
        let spec = container(Context {
            pod: &pod,
            part: &pod.parts()[0],
            order: &order(),
            image: &image_of("", &layer),
            env,
            mounts: Vec::new(),
            devices: Vec::new(),
            hostname: "h",
            log: "/log".into(),
            memory: 1 << 30,
            seccomp_dir: std::path::Path::new("/nowhere"),
            app_armor: None,
            ids: IdPool::for_pods(1),
        });
        spec.map(drop).map_err(|t| format!("{}: {}", t.reason, t.message))
    };
    let made = |arg, variables, each| said("x", arg, variables, each);
    assert_eq!(made(100 << 10, 50, 100 << 10), Ok(()));
    // The shim is told in JSON, which escapes some.
    assert_eq!(said("\n", 100 << 10, 30, 100 << 10), Ok(()));
    let error = said("\u{1}", 100 << 10, 20, 100 << 10).unwrap_err();
    assert!(error.starts_with("CreateContainerError: argument list too long: more than 8388608 bytes"), "{error}");
    for (arg, variables, each) in [(128 << 10, 1, 1), (1, 1, 128 << 10), (1, 70, 100 << 10)] {
        let error = made(arg, variables, each).unwrap_err();
        assert!(error.starts_with("CreateContainerError: argument list too long: "), "{error}");
    }
}

fn order() -> StartOrder {
    StartOrder {
        sandbox: 0,
        restart: 0,
        backoff: Default::default(),
        image_id: "sha256:1".into(),
        ips: Vec::new(),
        target: None,
    }
}

/// The uid, gid and groups that a container of this image runs as, or why it does not.
fn identity(user: &str, context: Value) -> Result<(u32, u32, Vec<u32>), String> {
    identity_with(None, user, context)
}

fn identity_with(host_users: Option<bool>, user: &str, context: Value) -> Result<(u32, u32, Vec<u32>), String> {
    let layer = tempfile::tempdir().unwrap();
    std::fs::create_dir(layer.path().join("etc")).unwrap();
    let passwd = "toor:x:0:0::/:\nweb:x:7:8::/srv:\nfar:x:65536:8::/:\nnear:x:70:8::/:\nedgy:x:65535:8::/:\n00x:x:0:0::/:\n99999999999:x:0:0::/:\n-5:x:0:0::/:\n 9:x:0:0::/:\n";
    std::fs::write(layer.path().join("etc/passwd"), passwd).unwrap();
    std::fs::write(layer.path().join("etc/group"), "crowd:x:196607:near\nedge:x:65535:edgy\n").unwrap();
    let pod = pod(json!({ "hostUsers": host_users, "securityContext": context, "containers": [{ "name": "a" }] }));
    let spec = container(Context {
        pod: &pod,
        part: &pod.parts()[0],
        order: &order(),
        image: &image_of(user, &layer),
        env: Default::default(),
        mounts: Vec::new(),
        devices: Vec::new(),
        hostname: "h",
        log: "/log".into(),
        memory: 1 << 30,
        seccomp_dir: std::path::Path::new("/nowhere"),
        app_armor: None,
        ids: IdPool::for_pods(1),
    });
    let spec = spec.map_err(|t| format!("{}: {}", t.reason, t.message))?;
    let user = spec.oci.process().as_ref().unwrap().user().clone();
    Ok((user.uid(), user.gid(), user.additional_gids().clone().unwrap_or_default()))
}

#[test]
fn run_as_non_root_looks_at_the_uid_that_the_process_will_have() {
    const PLACE: &str = "(pod: \"web_default(u1)\", container: a)";
    let non_root = json!({ "runAsNonRoot": true });
    for user in ["", "0", "00", "+0", "-0", "000:000", "0:5", ":5"] {
        let error = identity(user, non_root.clone()).unwrap_err();
        let why = "CreateContainerConfigError: container has runAsNonRoot and image will run as root";
        assert_eq!(error, format!("{why} {PLACE}"), "{user:?}");
    }
    // Whatever a passwd file calls them, some of its lines with uid 0.
    for user in ["web", "toor", "00x", "0x0", "0.", " 9", "99999999999999999999"] {
        let error = identity(user, non_root.clone()).unwrap_err();
        let why = format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
        );
        assert_eq!(error, format!("CreateContainerConfigError: {why} {PLACE}"), "{user:?}");
    }
    for user in ["4294967295", "-1", "-5", "99999999999", "1:4294967295"] {
        for context in [non_root.clone(), json!({})] {
            let error = identity(user, context).unwrap_err();
            assert_eq!(error, "CreateContainerError: uids and gids must be in range 0-2147483647", "{user:?}");
        }
    }
    let error = identity("5", json!({ "runAsNonRoot": true, "runAsUser": 0 })).unwrap_err();
    assert_eq!(error, format!("CreateContainerConfigError: container's runAsUser breaks non-root policy {PLACE}"));
    assert_eq!(identity("7", non_root), Ok((7, 8, vec![8])));
    assert_eq!(identity("0", json!({ "runAsNonRoot": true, "runAsUser": 9 })), Ok((9, 0, vec![0])));
    assert_eq!(
        identity("web", json!({ "runAsGroup": 3, "fsGroup": 4, "supplementalGroups": [5] })),
        Ok((7, 3, vec![3, 4, 5]))
    );
}

#[test]
fn ids_that_are_none_to_the_kernel_are_refused() {
    for context in [
        json!({ "runAsUser": 4294967295u64 }),
        json!({ "runAsUser": -1 }),
        json!({ "runAsUser": 1, "runAsGroup": 4294967295u64 }),
        json!({ "supplementalGroups": [4294967295u64] }),
        json!({ "supplementalGroups": [-1] }),
        json!({ "fsGroup": 4294967295u64 }),
    ] {
        let error = identity("5", context.clone()).unwrap_err();
        assert!(error.contains("range 0-2147483647"), "{context}: {error}");
    }
}

/// An image may name a user as a manifest may, by number or by a file that it brings along.
#[test]
fn ids_of_pods_with_users_of_their_own_are_not_an_images_to_take() {
    for (user, context, taken) in [
        ("65536", json!({}), "user 65536"),
        ("196607", json!({}), "user 196607"),
        ("far", json!({}), "user 65536"),
        ("70:65536", json!({}), "group 65536"),
        ("70:crowd", json!({}), "group 196607"),
        ("near", json!({}), "group 196607"),
        ("near", json!({ "runAsGroup": 5 }), "group 196607"),
        ("5", json!({ "runAsUser": 65536 }), "user 65536"),
        ("5", json!({ "fsGroup": 65536 }), "group 65536"),
        ("5", json!({ "supplementalGroups": [3, 196607] }), "group 196607"),
    ] {
        let why = "this node keeps ids 65536 to 196607 for Pods with `hostUsers: false` (--userns-range)";
        let place = "(pod: \"web_default(u1)\", container: a)";
        let expected = format!("CreateContainerConfigError: container and image have {taken}: {why} {place}");
        for host_users in [None, Some(true)] {
            assert_eq!(identity_with(host_users, user, context.clone()), Err(expected.clone()), "{user} {context}");
        }
    }
    let plain = json!({});
    assert_eq!(identity("65535:65535", plain.clone()), Ok((65535, 65535, vec![65535])));
    assert_eq!(identity("196608:196608", plain.clone()), Ok((196608, 196608, vec![196608])));
    assert_eq!(identity("edgy", plain), Ok((65535, 8, vec![8, 65535])));
    assert_eq!(identity("far", json!({ "runAsUser": 1 })), Ok((1, 0, vec![0])), "who asks for another is another");
    // Its ids are of its own range, of which it has as many.
    let own = |user| identity_with(Some(false), user, json!({}));
    assert_eq!(own("65535"), Ok((65535, 8, vec![8, 65535])));
    assert!(own("65536").unwrap_err().contains("id 65536 is not mapped"));
}
