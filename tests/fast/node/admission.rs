//! What a node rejects although the scheduler sent it: sysctls, protections that it lacks, excessive containers and mounts.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use podwright::node::{
    admission::{
        Allocatable, admit,
        protections::{Protections, Unavailable},
        sysctls::{SysctlError, Sysctls},
    },
    app_armor::{AppArmor, AppArmorError, Decision},
    id_pool::IdPool,
    pod::Failure,
};
use serde_json::{Value, json};

use super::pod;

const KERNEL: &str = "6.1.0-13-amd64";

fn allowing(patterns: &[&str]) -> Result<Sysctls, SysctlError> {
    let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
    Sysctls::new(KERNEL, &patterns)
}

fn refusal(sysctls: &Sysctls, name: &str, spec: Value) -> Option<String> {
    let mut spec = spec;
    spec["containers"] = json!([]);
    spec["securityContext"] = json!({ "sysctls": [{ "name": name, "value": "1" }] });
    let refused = sysctls.admit(&pod(spec)).err();
    refused.map(|Failure { reason, message }| format!("{reason}: {message}"))
}

#[test]
fn a_pod_sets_safe_sysctls_alone() {
    let safe = allowing(&[]).unwrap();
    for name in [
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_wmem",
        "net/ipv4/tcp_wmem",
    ] {
        assert_eq!(refusal(&safe, name, json!({})), None, "{name}");
    }
    for (name, shown) in [
        ("kernel.core_pattern", "kernel.core_pattern"),
        ("kernel/core_pattern", "kernel.core_pattern"),
        ("net.core.somaxconn", "net.core.somaxconn"),
        ("kernel.msgmax", "kernel.msgmax"),
        ("vm.swappiness", "vm.swappiness"),
        ("net.ipv4.tcp_syncookies2", "net.ipv4.tcp_syncookies2"),
        ("net.ipv4..tcp_syncookies", "net.ipv4..tcp_syncookies"),
        ("net/../kernel/core_pattern", "net.//.kernel.core_pattern"),
        ("", ""),
    ] {
        let why = format!("SysctlForbidden: forbidden sysctl: {shown:?} not allowlisted");
        assert_eq!(refusal(&safe, name, json!({})), Some(why), "{name}");
    }
}

#[test]
fn an_old_kernel_has_fewer_safe_sysctls() {
    for (name, before, since) in [
        ("net.ipv4.ip_local_reserved_ports", "3.15.0", "3.16.0"),
        ("net.ipv4.tcp_keepalive_time", "4.4.0", "4.5.0"),
        ("net.ipv4.tcp_fin_timeout", "4.5.7", "4.6"),
        ("net.ipv4.tcp_wmem", "4.14.99-x", "4.15-rc1"),
        ("net.ipv4.tcp_rmem", "nonsense", "10.0"),
    ] {
        assert!(refusal(&Sysctls::safe(before), name, json!({})).is_some(), "{name} {before}");
        assert!(refusal(&Sysctls::safe(since), name, json!({})).is_none(), "{name} {since}");
    }
    assert!(refusal(&Sysctls::safe(""), "net.ipv4.tcp_syncookies", json!({})).is_none());
}

#[test]
fn an_operator_allows_more_but_never_the_hosts() {
    let more = allowing(&["kernel.msg*", "net/core/somaxconn", "fs.mqueue.*", "net.ipv6.conf.*"]).unwrap();
    for name in ["kernel.msgmax", "net.core.somaxconn", "fs/mqueue/msg_max", "net.ipv6.conf.all.forwarding"] {
        assert_eq!(refusal(&more, name, json!({})), None, "{name}");
    }
    for name in ["net.core.rmem_max", "net.core.somaxconn2", "kernel.core_pattern", "net.ipv6.conf.//.kernel.x"] {
        assert!(refusal(&more, name, json!({})).is_some(), "{name}");
    }
    for (pattern, why) in [
        ("kernel.core_pattern", "is not known to be namespaced"),
        ("kernel.*", "is not known to be namespaced"),
        ("kernel/*", "is not known to be namespaced"),
        ("vm.*", "is not known to be namespaced"),
        ("n*", "is not known to be namespaced"),
        ("net*", "is not known to be namespaced"),
        ("*", "match regex"),
        ("", "match regex"),
        ("net.*.x", "match regex"),
        ("net..x", "match regex"),
        ("/net.x", "match regex"),
        ("net.X", "match regex"),
        ("net.../kernel.core_pattern", "match regex"),
    ] {
        let refused = allowing(&[pattern]).unwrap_err();
        assert!(refused.to_string().contains(why), "{pattern}: {refused}");
    }
}

#[test]
fn a_namespace_of_the_hosts_is_not_set_whatever_is_allowed() {
    let more = allowing(&["net.*", "kernel.msg*"]).unwrap();
    for (name, spec, kept_by) in [
        ("net.core.somaxconn", json!({ "hostNetwork": true }), "Net"),
        ("net.ipv4.tcp_syncookies", json!({ "hostNetwork": true }), "Net"),
        ("kernel.msgmax", json!({ "hostIPC": true }), "IPC"),
        ("kernel.shm_rmid_forced", json!({ "hostIPC": true }), "IPC"),
    ] {
        let why = format!("SysctlForbidden: forbidden sysctl: {name:?} not allowed with host {kept_by} enabled");
        assert_eq!(refusal(&more, name, spec), Some(why));
    }
    assert_eq!(refusal(&more, "net.core.somaxconn", json!({ "hostIPC": true })), None);
    assert_eq!(refusal(&more, "kernel.msgmax", json!({ "hostNetwork": true })), None);
}

#[test]
fn a_node_takes_the_pods_whose_selector_and_affinity_name_it() {
    let room = Allocatable { cpu_millis: 1000, memory: 1 << 30, storage: 1 << 30, pods: 10, descriptors: 1024 };
    let labels = [("disk", "ssd"), ("cores", "8"), ("rack", "r2d2")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let labels = labels.into_iter().collect();
    let refused = |mut spec: Value| {
        spec["nodeName"] = "here".into();
        spec["containers"] = json!([{ "name": "c", "image": "i:1" }]);
        admit(&pod(spec), &[], &room, &labels, &bare()).err().map(|Failure { reason, .. }| reason)
    };
    let wants = |part: &str, key: &str, operator: &str, values: &[&str]| {
        let mut requirement = json!({ "key": key, "operator": operator });
        if !values.is_empty() {
            requirement["values"] = json!(values);
        }
        let terms = json!([{ part: [requirement] }]);
        let required = json!({ "nodeSelectorTerms": terms });
        json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } } })
    };
    let (by_label, by_field) = ("matchExpressions", "matchFields");
    for (spec, fits) in [
        (json!({ "nodeSelector": { "disk": "ssd" } }), true),
        (json!({ "nodeSelector": { "disk": "ssd", "zone": "a" } }), false),
        (wants(by_label, "disk", "In", &["hdd", "ssd"]), true),
        (wants(by_label, "zone", "NotIn", &["a"]), true),
        (wants(by_label, "zone", "Exists", &[]), false),
        (wants(by_label, "zone", "DoesNotExist", &[]), true),
        (wants(by_label, "cores", "Gt", &["4"]), true),
        (wants(by_label, "cores", "Lt", &["16"]), true),
        (wants(by_label, "cores", "Lt", &["8"]), false),
        // A label that is no number is neither more nor less than one, and nothing compares with what is none.
        (wants(by_label, "rack", "Lt", &["16"]), false),
        (wants(by_label, "rack", "Gt", &["16"]), false),
        (wants(by_label, "cores", "Gt", &["few"]), false),
        (wants(by_label, "zone", "Lt", &["16"]), false),
        (wants(by_field, "metadata.name", "In", &["here"]), true),
        (wants(by_field, "metadata.name", "NotIn", &["here"]), false),
    ] {
        let expected = (!fits).then(|| "NodeAffinity".to_owned());
        assert_eq!(refused(spec.clone()), expected, "{spec}");
    }
}

/// A node without any protections, with a reason for each.
fn bare() -> Protections {
    let not = |why: &str| Err(Unavailable::Runtime(why.to_owned()));
    Protections {
        sysctls: Sysctls::safe(KERNEL),
        user_namespaces: not("no users"),
        ids: IdPool::for_pods(110),
        app_armor: AppArmor::disabled(),
        se_linux: Err(Unavailable::SeLinuxDisabled),
        project_quotas: not("no quotas"),
    }
}

fn refused_by(node: &Protections, spec: Value) -> Option<(String, String)> {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{ "name": "c", "image": "i:1" }]);
    }
    let room = Allocatable { cpu_millis: 1000, memory: 1 << 30, storage: 1 << 30, pods: 10, descriptors: 1024 };
    let refused = admit(&pod(spec), &[], &room, &Default::default(), node).err();
    refused.map(|Failure { reason, message }| (reason, message))
}

#[test]
fn what_only_looks_like_a_mirror_is_not_run() {
    let mut false_mirror = pod(json!({ "containers": [{ "name": "c", "image": "i:1" }] }));
    let annotations = false_mirror.metadata.annotations.get_or_insert_default();
    annotations.insert("kubernetes.io/config.mirror".into(), "hash".into());
    let room = Allocatable { cpu_millis: 1000, memory: 1 << 30, storage: 1 << 30, pods: 10, descriptors: 1024 };
    let failure = admit(&false_mirror, &[], &room, &Default::default(), &bare()).unwrap_err();
    assert_eq!(failure.reason, "InvalidMirrorPod");
}

#[test]
fn a_protection_that_cannot_be_given_refuses_the_pod() {
    let own = |context: Value| json!({ "containers": [{ "name": "c", "image": "i:1", "securityContext": context }] });
    let init = |context: Value| {
        json!({ "containers": [{ "name": "c", "image": "i:1" }],
                "initContainers": [{ "name": "i", "image": "i:1", "securityContext": context }] })
    };
    let of_pod = |context: Value| json!({ "securityContext": context });
    let app_armor = ("AppArmor", "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host");
    let users = (
        "PodFeatureUnsupported",
        "Pod was rejected: can't set `spec.hostUsers: false`, runtime does not support user namespaces: no users",
    );
    let labels = (
        "PodFeatureUnsupported",
        "Pod was rejected: Cannot enforce seLinuxOptions: SELinux is not enabled on the host",
    );
    let windows = ("PodFeatureUnsupported", "Pod was rejected: Cannot enforce windowsOptions: this node runs Linux");
    for (spec, (reason, message)) in [
        (json!({ "hostUsers": false }), users),
        (of_pod(json!({ "appArmorProfile": { "type": "RuntimeDefault" } })), app_armor),
        (of_pod(json!({ "appArmorProfile": { "type": "Localhost", "localhostProfile": "p" } })), app_armor),
        (own(json!({ "appArmorProfile": { "type": "RuntimeDefault" } })), app_armor),
        (init(json!({ "appArmorProfile": { "type": "RuntimeDefault" } })), app_armor),
        (of_pod(json!({ "seLinuxOptions": { "level": "s0:c1,c2" } })), labels),
        (own(json!({ "seLinuxOptions": { "type": "container_t" } })), labels),
        (of_pod(json!({ "windowsOptions": { "runAsUserName": "a" } })), windows),
        (own(json!({ "windowsOptions": { "hostProcess": true } })), windows),
    ] {
        let told = refused_by(&bare(), spec.clone());
        assert_eq!(told, Some((reason.to_owned(), message.to_owned())), "{spec}");
    }
    let class = refused_by(&bare(), json!({ "runtimeClassName": "vm" })).unwrap();
    assert!(class.0 == "PodFeatureUnsupported" && class.1.contains("runtimeClassName"), "{class:?}");
    let sysctl = of_pod(json!({ "sysctls": [{ "name": "kernel.core_pattern", "value": "x" }] }));
    assert_eq!(refused_by(&bare(), sysctl).unwrap().0, "SysctlForbidden");
}

#[test]
fn what_asks_for_no_protection_runs_anywhere() {
    for spec in [
        json!({}),
        json!({ "hostUsers": true }),
        json!({ "securityContext": { "appArmorProfile": { "type": "Unconfined" }, "seLinuxOptions": {}, "windowsOptions": {} } }),
    ] {
        assert_eq!(refused_by(&bare(), spec.clone()), None, "{spec}");
    }
    let all = Protections { user_namespaces: Ok(()), app_armor: AppArmor::hollow(), se_linux: Ok(()), ..bare() };
    let asks = json!({ "hostUsers": false, "securityContext": {
        "appArmorProfile": { "type": "RuntimeDefault" }, "seLinuxOptions": { "type": "container_t" } } });
    assert_eq!(refused_by(&all, asks), None);
}

/// Who runs as another tenant's user has a share of what the kernel counts by user, and of files.
#[test]
fn ids_of_pods_with_users_of_their_own_are_refused_to_others() {
    let node = Protections { ids: "131072:131072".parse().unwrap(), user_namespaces: Ok(()), ..bare() };
    let of_pod = |field: &str, id: Value| json!({ "securityContext": { field: id } });
    let of = |list: &str, field: &str, id: i64| {
        let mut spec = json!({ "containers": [{ "name": "c", "image": "i:1" }] });
        spec[list] = json!([{ "name": "d", "image": "i:1", "securityContext": { field: id } }]);
        spec
    };
    let spec_of = |place: &str, id: i64| match place.split_once("{d}.securityContext.") {
        Some((list, field)) => of(list, field, id),
        None if place.ends_with(']') => of_pod("supplementalGroups", json!([7, id])),
        None => of_pod(place.strip_prefix("securityContext.").unwrap(), id.into()),
    };
    for place in [
        "securityContext.runAsUser",
        "securityContext.runAsGroup",
        "securityContext.fsGroup",
        "securityContext.supplementalGroups[1]",
        "containers{d}.securityContext.runAsUser",
        "containers{d}.securityContext.runAsGroup",
        "initContainers{d}.securityContext.runAsUser",
        "initContainers{d}.securityContext.runAsGroup",
        "ephemeralContainers{d}.securityContext.runAsUser",
        "ephemeralContainers{d}.securityContext.runAsGroup",
    ] {
        for id in [131072, 200000, 262143] {
            let why = "this node keeps ids 131072 to 262143 for Pods with `hostUsers: false` (--userns-range)";
            let message = format!("Pod was rejected: forbidden id: spec.{place}: Invalid value: {id}: {why}");
            for host_users in [json!(null), json!(true)] {
                let mut spec = spec_of(place, id);
                spec["hostUsers"] = host_users;
                assert_eq!(refused_by(&node, spec), Some(("IDForbidden".to_owned(), message.clone())), "{place}");
            }
            // Its ids are of its own range, wherever that is; those that it has not are refused by the translation.
            let mut own = spec_of(place, id);
            own["hostUsers"] = json!(false);
            assert_eq!(refused_by(&node, own), None, "{place}");
        }
        for id in [-1, 0, 1000, 131071, 262144, i32::MAX.into(), i64::MAX, i64::MIN] {
            assert_eq!(refused_by(&node, spec_of(place, id)), None, "{place} {id}");
        }
    }
}

fn annotated(value: &str, spec: Value) -> Pod {
    let mut pod = pod(spec);
    let key = "container.apparmor.security.beta.kubernetes.io/c".to_owned();
    pod.metadata.annotations.get_or_insert_default().insert(key, value.to_owned());
    pod
}

#[test]
fn a_container_has_the_profile_that_is_asked_for_nearest_to_it() {
    let all = AppArmor::hollow();
    let named = |name: &str| json!({ "appArmorProfile": { "type": "Localhost", "localhostProfile": name } });
    let typed = |kind: &str| json!({ "appArmorProfile": { "type": kind } });
    let mighty = |mut context: Value| {
        context["privileged"] = true.into();
        context
    };
    let (none, nothing) = (json!({}), "");
    use Decision::{Default, Localhost, Unconfined};
    for (annotation, of_pod, own, decision) in [
        (nothing, none.clone(), none.clone(), Default),
        (nothing, none.clone(), mighty(none.clone()), Unconfined),
        (nothing, typed("RuntimeDefault"), none.clone(), Default),
        // Privileged ones are under no default, also where it is asked for; as containerd has it.
        (nothing, typed("RuntimeDefault"), mighty(none.clone()), Unconfined),
        (nothing, none.clone(), mighty(typed("RuntimeDefault")), Unconfined),
        (nothing, none.clone(), mighty(named("p")), Localhost("p")),
        (nothing, typed("Unconfined"), none.clone(), Unconfined),
        (nothing, typed("Unconfined"), named("p"), Localhost("p")),
        (nothing, named("p"), typed("Unconfined"), Unconfined),
        (nothing, named("p"), none.clone(), Localhost("p")),
        ("localhost/a", named("p"), none.clone(), Localhost("a")),
        ("localhost/a", named("p"), named("b"), Localhost("b")),
        ("unconfined", none.clone(), none.clone(), Unconfined),
        ("runtime/default", named("p"), none.clone(), Default),
        ("docker/default", named("p"), none.clone(), Localhost("p")),
    ] {
        let spec = json!({ "securityContext": of_pod, "containers": [{ "name": "c", "image": "i:1", "securityContext": own }] });
        let mut pod = annotated(annotation, spec.clone());
        if annotation.is_empty() {
            pod.metadata.annotations = None;
        }
        let container = &pod.spec.as_ref().unwrap().containers[0];
        assert_eq!(all.decide(&pod, container, true), decision, "{annotation:?} {spec}");
        // A sandbox of an earlier release's gives no default to who has not asked; else the runtime refuses it.
        let asked = spec.to_string().contains("appArmor") || !annotation.is_empty();
        let there = if asked { decision } else { Unconfined };
        assert_eq!(all.decide(&pod, container, false), there, "{annotation:?} {spec}");
    }
}

#[test]
fn a_default_profile_that_is_not_loaded_refuses_who_asks_for_it() {
    let missing = AppArmorError::NotLoaded("no parser".to_owned());
    let node = Protections { app_armor: AppArmor { host: Ok(()), default: Err(missing.clone()) }, ..bare() };
    let asks = json!({ "securityContext": { "appArmorProfile": { "type": "RuntimeDefault" } } });
    let why = ("AppArmor".to_owned(), format!("Pod was rejected: Cannot enforce AppArmor: {missing}"));
    assert!(missing.to_string().ends_with(" is not loaded: no parser"), "{missing}");
    assert_eq!(refused_by(&node, asks), Some(why));
    let named = json!({ "securityContext": { "appArmorProfile": { "type": "Localhost", "localhostProfile": "p" } } });
    assert_eq!(refused_by(&node, named), None, "whether it is loaded is asked when a container starts");
    assert_eq!(refused_by(&node, json!({})), None);
    let plain = pod(json!({ "containers": [{ "name": "c", "image": "i:1" }] }));
    let container = &plain.spec.as_ref().unwrap().containers[0];
    assert_eq!(node.app_armor.decide(&plain, container, true), Decision::Unconfined);
    // A static Pod's annotation has nobody else to judge it.
    let empty = annotated("localhost/", json!({ "containers": [{ "name": "c", "image": "i:1" }] }));
    let refused = node.app_armor.admit(&empty);
    let nameless = AppArmorError::EmptyName("localhost/".to_owned());
    assert_eq!(nameless.to_string(), "invalid empty AppArmor profile name: \"localhost/\"");
    assert_eq!(refused, Err(nameless));
    let needless = annotated("unconfined", json!({ "containers": [{ "name": "c", "image": "i:1" }] }));
    assert_eq!(bare().app_armor.admit(&needless), Ok(()));
    let wanted = annotated("runtime/default", json!({ "containers": [{ "name": "c", "image": "i:1" }] }));
    assert_eq!(bare().app_armor.admit(&wanted), Err(AppArmorError::Disabled));
}

fn mounting(mounts: usize, volumes: usize) -> Value {
    let mount = |n: usize| json!({ "name": "v0", "mountPath": format!("/m{n}"), "subPath": n.to_string() });
    let half = |range: std::ops::Range<usize>| {
        json!({ "name": format!("c{}", range.start), "image": "i:1",
        "volumeMounts": range.map(mount).collect::<Vec<_>>() })
    };
    let volumes: Vec<Value> = (0..volumes).map(|n| json!({ "name": format!("v{n}"), "emptyDir": {} })).collect();
    json!({ "volumes": volumes, "initContainers": [half(0..mounts / 2)], "containers": [half(mounts / 2..mounts)] })
}

#[test]
fn containers_are_bounded_in_one_pod() {
    let some = |list: &str, most: usize| {
        (0..most).map(|n| json!({ "name": format!("{list}{n}"), "image": "i:1" })).collect::<Vec<_>>()
    };
    let asks = |init: usize, main: usize, ephemeral: usize| {
        json!({ "initContainers": some("i", init), "containers": some("c", main),
            "ephemeralContainers": some("e", ephemeral) })
    };
    assert_eq!(refused_by(&bare(), asks(500, 10, 2)), None);
    for (init, main, ephemeral) in [(512, 1, 0), (500, 10, 3), (0, 513, 0)] {
        let lists = "spec.initContainers, spec.containers and spec.ephemeralContainers";
        let why = format!("Pod was rejected: {lists}: {}, more than 512 in one Pod", init + main + ephemeral);
        assert_eq!(refused_by(&bare(), asks(init, main, ephemeral)), Some(("TooManyContainers".to_owned(), why)));
    }
}

#[test]
fn mounts_are_bounded_in_one_pod_and_on_one_node() {
    assert_eq!(refused_by(&bare(), mounting(500, 12)), None);
    for (mounts, volumes) in [(500, 13), (512, 1), (10, 503), (33_000, 1)] {
        let sum = mounts + volumes;
        let why = "Pod was rejected: spec.volumes and volumeMounts of all containers";
        let expected = ("TooManyMounts".to_owned(), format!("{why}: {sum}, more than 512 in one Pod"));
        assert_eq!(refused_by(&bare(), mounting(mounts, volumes)), Some(expected));
    }
    let room = Allocatable { cpu_millis: 1000, memory: 1 << 30, storage: 1 << 30, pods: 1000, descriptors: 1 << 20 };
    let heavy = Arc::new(pod(mounting(499, 1)));
    let beside = |others: usize| admit(&heavy, &vec![heavy.clone(); others], &room, &Default::default(), &bare());
    assert!(beside(49).is_ok());
    let Failure { reason, message } = beside(50).unwrap_err();
    let why = "Node didn't have enough resource: mounts, requested: 500, used by the namespace: 25000, capacity for it: 25000";
    assert_eq!((reason.as_str(), message), ("OutOfmounts", format!("Pod was rejected: {why}")));
    // Others get half of what is left.
    let mut other = Pod::clone(&heavy);
    other.metadata.namespace = Some("other".to_owned());
    let beside = |own: usize| {
        let others = Arc::new(other.clone());
        let all = [vec![heavy.clone(); 50], vec![others; own]].concat();
        admit(&other, &all, &room, &Default::default(), &bare())
    };
    assert!(beside(24).is_ok());
    beside(25).unwrap_err();
}

/// Of each emptyDir in memory the agent has a descriptor, and there may be few of these.
#[test]
fn volumes_in_memory_are_bounded_by_the_descriptors_of_the_agent() {
    let with = |medium: &str, number: usize, namespace: &str| {
        let volume = |n: usize| json!({ "name": format!("v{n}"), "emptyDir": { "medium": medium } });
        let volumes: Vec<Value> = (0..number).map(volume).collect();
        let mut made = pod(json!({ "volumes": volumes, "containers": [{ "name": "c", "image": "i:1" }] }));
        made.metadata.namespace = Some(namespace.to_owned());
        Arc::new(made)
    };
    // A quarter of 4,096 for these volumes, and half of that for the one namespace.
    let room = Allocatable { cpu_millis: 1000, memory: 1 << 30, storage: 1 << 30, pods: 1000, descriptors: 4096 };
    let admits = |pod: &Pod, others: &[Arc<Pod>]| admit(pod, others, &room, &Default::default(), &bare());
    let (greedy, more) = (with("Memory", 500, "greedy"), with("Memory", 13, "greedy"));
    assert!(admits(&greedy, &[]).is_ok());
    let Failure { reason, message } = admits(&more, &[greedy.clone()]).unwrap_err();
    let numbers = "requested: 13, used by the namespace: 500, capacity for it: 512";
    let why = format!("Pod was rejected: Node didn't have enough resource: descriptors, {numbers}");
    assert_eq!((reason.as_str(), message), ("OutOfdescriptors", why));
    assert!(admits(&with("Memory", 12, "greedy"), &[greedy.clone()]).is_ok());
    assert!(admits(&with("", 13, "greedy"), &[greedy.clone()]).is_ok());
    // Others have half of the rest.
    assert!(admits(&with("Memory", 262, "other"), &[greedy.clone()]).is_ok());
    assert!(admits(&with("Memory", 263, "other"), &[greedy.clone()]).is_err());
}
