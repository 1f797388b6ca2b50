//! The Pod Security Standards: for each check of each level a Pod that may run and one that may not; modes, versions, warnings.

use podwright::api::{Options, Request, User, Verb, request::PatchType};
use podwright::server::{Config, PodSecurity};
use serde_json::{Value, json};

use super::{Api, object_of, request, told, with, within};

/// A Pod that the restricted level allows.
fn hardened() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": {}}, "spec": {
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "image": "x:1", "ports": [{"containerPort": 80}], "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}})
}

struct Case {
    standard: &'static str,
    /// What makes the Pod a bad one, and what makes it one that is just good enough.
    bad: &'static [(&'static str, &'static str)],
    good: &'static [(&'static str, &'static str)],
    why: &'static str,
}

const fn case(
    standard: &'static str,
    bad: &'static [(&'static str, &'static str)],
    good: &'static [(&'static str, &'static str)],
    why: &'static str,
) -> Case {
    Case { standard, bad, good, why }
}

const POD: &str = "/spec/securityContext";
const C: &str = "/spec/containers/0/securityContext";

#[rustfmt::skip]
const CASES: &[Case] = &[
    // baseline
    case("baseline:latest", &[(POD, r#"{"appArmorProfile": {"type": "Unconfined"}}"#)], &[(POD, r#"{"appArmorProfile": {"type": "RuntimeDefault"}}"#)],
        r#"forbidden AppArmor profile (pod must not set AppArmor profile type to "Unconfined")"#),
    case("baseline:v1.25", &[("/metadata/annotations", r#"{"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}"#)],
        &[("/metadata/annotations", r#"{"container.apparmor.security.beta.kubernetes.io/c": "runtime/default"}"#)],
        // What it says is in the field by then.
        r#"forbidden AppArmor profiles (container "c" and annotation must not set AppArmor profile type to "Unconfined", "container.apparmor.security.beta.kubernetes.io/c="unconfined"")"#),
    case("baseline:latest", &[(C, r#"{"capabilities": {"add": ["NET_RAW", "CHOWN"]}}"#)], &[(C, r#"{"capabilities": {"add": ["CHOWN"]}}"#)],
        r#"non-default capabilities (container "c" must not include "NET_RAW" in securityContext.capabilities.add)"#),
    case("baseline:latest", &[("/spec/hostNetwork", "true"), ("/spec/hostPID", "true"), ("/spec/containers/0/ports", "[]")], &[("/spec/hostNetwork", "false")],
        "host namespaces (hostNetwork=true, hostPID=true)"),
    case("baseline:latest", &[("/spec/volumes", r#"[{"name": "a", "hostPath": {"path": "/a"}}, {"name": "b", "hostPath": {"path": "/b"}}]"#)],
        &[("/spec/volumes", r#"[{"name": "a", "nfs": {"server": "s", "path": "/a"}}]"#)], r#"hostPath volumes (volumes "a", "b")"#),
    case("baseline:latest", &[("/spec/containers/0/ports/0/hostPort", "80")], &[("/spec/containers/0/ports/0/hostPort", "0")],
        r#"hostPort (container "c" uses hostPort 80)"#),
    case("baseline:v1.34", &[("/spec/containers/0/livenessProbe", r#"{"httpGet": {"port": 80, "host": "h"}}"#)], &[("/spec/containers/0/livenessProbe", r#"{"httpGet": {"port": 80}}"#)],
        r#"probe or lifecycle host (container "c" uses probe or lifecycle host "h")"#),
    case("baseline:latest", &[("/spec/containers/0/lifecycle", r#"{"preStop": {"httpGet": {"port": 80, "host": "h"}}}"#)], &[("/spec/containers/0/lifecycle", r#"{"preStop": {"httpGet": {"port": 80}}}"#)],
        r#"probe or lifecycle host (container "c" uses probe or lifecycle host "h")"#),
    case("baseline:latest", &[(C, r#"{"privileged": true}"#)], &[(C, r#"{"privileged": false}"#)],
        r#"privileged (container "c" must not set securityContext.privileged=true)"#),
    case("baseline:v1.34", &[(C, r#"{"procMount": "Unmasked"}"#), ("/spec/hostUsers", "false")], &[(C, r#"{"procMount": "Default"}"#)],
        r#"procMount (container "c" must not set securityContext.procMount to "Unmasked")"#),
    case("baseline:latest", &[(POD, r#"{"seLinuxOptions": {"type": "spc_t", "user": "u"}}"#)], &[(POD, r#"{"seLinuxOptions": {"type": "container_engine_t"}}"#)],
        r#"seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type "spc_t"; user may not be set)"#),
    case("baseline:v1.30", &[(C, r#"{"seLinuxOptions": {"type": "container_engine_t"}}"#)], &[(C, r#"{"seLinuxOptions": {"type": "container_kvm_t"}}"#)],
        r#"seLinuxOptions (container "c" set forbidden securityContext.seLinuxOptions: type "container_engine_t")"#),
    case("baseline:latest", &[(C, r#"{"seccompProfile": {"type": "Unconfined"}}"#)], &[(C, "{}"), (POD, "{}")],
        r#"seccompProfile (container "c" must not set securityContext.seccompProfile.type to "Unconfined")"#),
    case("baseline:v1.18", &[("/metadata/annotations", r#"{"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}"#), (POD, "{}")],
        &[("/metadata/annotations", r#"{"seccomp.security.alpha.kubernetes.io/pod": "localhost/x"}"#), (POD, "{}")],
        r#"seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod="unconfined")"#),
    case("baseline:latest", &[(POD, r#"{"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}"#)], &[(POD, r#"{"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}]}"#)],
        "forbidden sysctls (kernel.msgmax)"),
    case("baseline:v1.31", &[(POD, r#"{"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}]}"#)], &[(POD, r#"{"sysctls": [{"name": "net.ipv4.tcp_fin_timeout", "value": "1"}]}"#)],
        "forbidden sysctls (net.ipv4.tcp_rmem)"),
    case("baseline:v1.28", &[(POD, r#"{"sysctls": [{"name": "net.ipv4.tcp_fin_timeout", "value": "1"}]}"#)], &[(POD, r#"{"sysctls": [{"name": "net.ipv4.ip_local_reserved_ports", "value": "1"}]}"#)],
        "forbidden sysctls (net.ipv4.tcp_fin_timeout)"),
    case("baseline:v1.26", &[(POD, r#"{"sysctls": [{"name": "net.ipv4.ip_local_reserved_ports", "value": "1"}]}"#)], &[(POD, r#"{"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}"#)],
        "forbidden sysctls (net.ipv4.ip_local_reserved_ports)"),
    case("baseline:latest", &[(POD, r#"{"windowsOptions": {"hostProcess": true}}"#), ("/spec/hostNetwork", "true"), ("/spec/containers/0/ports", "[]")], &[(POD, r#"{"windowsOptions": {"hostProcess": false}}"#)],
        "host namespaces (hostNetwork=true), hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)"),
    // restricted
    case("restricted:latest", &[(C, r#"{"capabilities": {"drop": ["ALL"]}}"#)], &[],
        r#"allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false)"#),
    case("restricted:latest", &[(C, r#"{"allowPrivilegeEscalation": false, "capabilities": {"add": ["CHOWN"]}}"#)],
        &[(C, r#"{"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}"#)],
        r#"unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]; container "c" must not include "CHOWN" in securityContext.capabilities.add)"#),
    case("restricted:v1.21", &[(C, r#"{"allowPrivilegeEscalation": false, "capabilities": {"add": ["NET_RAW"]}}"#)], &[(C, r#"{"allowPrivilegeEscalation": false, "capabilities": {"add": ["CHOWN"]}}"#)],
        r#"non-default capabilities (container "c" must not include "NET_RAW" in securityContext.capabilities.add)"#),
    case("restricted:latest", &[(C, r#"{"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "procMount": "Unmasked"}"#), ("/spec/hostUsers", "false")], &[],
        r#"procMount (container "c" must not set securityContext.procMount to "Unmasked")"#),
    case("restricted:latest", &[("/spec/volumes", r#"[{"name": "a", "hostPath": {"path": "/a"}}, {"name": "b", "nfs": {"server": "s", "path": "/a"}}]"#)],
        &[("/spec/volumes", r#"[{"name": "a", "emptyDir": {}}, {"name": "b", "secret": {"secretName": "s"}}]"#)],
        r#"restricted volume types (volumes "a", "b" use restricted volume types "hostPath", "nfs")"#),
    case("restricted:latest", &[(POD, r#"{"seccompProfile": {"type": "RuntimeDefault"}}"#)], &[],
        r#"runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)"#),
    case("restricted:latest", &[(POD, r#"{"seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": false}"#)], &[],
        "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)"),
    case("restricted:v1.34", &[(POD, r#"{"seccompProfile": {"type": "RuntimeDefault"}}"#), ("/spec/hostUsers", "false")], &[],
        r#"runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)"#),
    case("restricted:latest", &[(POD, r#"{"runAsNonRoot": true, "runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}"#)],
        &[(POD, r#"{"runAsNonRoot": true, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}}"#)],
        "runAsUser=0 (pod must not set runAsUser=0)"),
    case("restricted:latest", &[(POD, r#"{"runAsNonRoot": true}"#)], &[(POD, r#"{"runAsNonRoot": true, "seccompProfile": {"type": "Localhost", "localhostProfile": "x"}}"#)],
        r#"seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#),
    case("restricted:latest", &[(POD, r#"{"runAsNonRoot": true, "seccompProfile": {"type": "Unconfined"}}"#)], &[],
        r#"seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")"#),
];

fn changed(changes: &[(&str, &str)]) -> Value {
    let apply = |pod, (pointer, value): &(&str, &str)| with(pod, pointer, serde_json::from_str(value).unwrap());
    changes.iter().fold(hardened(), apply)
}

fn labels(mode: &str, standard: &str) -> Value {
    let (level, version) = standard.split_once(':').unwrap();
    json!({format!("pod-security.kubernetes.io/{mode}"): level, format!("pod-security.kubernetes.io/{mode}-version"): version})
}

#[tokio::test]
async fn each_check_refuses_what_it_must_and_nothing_else() {
    let api = Api::new().await;
    for (i, case) in CASES.iter().enumerate() {
        let namespace = format!("n{i}");
        api.namespace(&namespace, labels("enforce", case.standard)).await;
        let create = |pod: Value| {
            let dry = Options { dry_run: true, ..Options::default() };
            api.0.handle(within(&namespace, request(Verb::Create, "pods", "", Some(pod), dry)))
        };
        let refused = create(changed(case.bad)).await.unwrap_err();
        let why = format!("pods \"p\" is forbidden: violates PodSecurity \"{}\": {}", case.standard, case.why);
        assert_eq!((refused.code, refused.message), (403, why));
        if let Err(status) = create(changed(case.good)).await {
            panic!("{} with {:?}: {status}", case.standard, case.good);
        }
        // Who demands nothing gets everything.
        api.create("pods", changed(case.bad)).await.unwrap();
        api.delete("pods", "p", Options::default()).await.unwrap();
    }
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

/// Lets a node say whether it gives Pods users of their own.
async fn declare(api: &Api, name: &str, gives: bool) {
    let handlers = json!({"status": {"runtimeHandlers": [{"name": "", "features": {"userNamespaces": gives}}]}});
    let options = Options { patch_type: Some(PatchType::Merge), ..Options::default() };
    let patch = request(Verb::Patch, "nodes", name, Some(handlers), options);
    api.0.handle(Request { subresource: Some("status".into()), ..patch }).await.unwrap();
}

#[tokio::test]
async fn users_of_its_own_relax_nothing_where_a_node_does_not_give_them() {
    let api = Api::new().await;
    api.namespace("n", labels("enforce", "restricted:latest")).await;
    let root = changed(&[
        (POD, r#"{"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 0}"#),
        ("/spec/hostUsers", "false"),
    ]);
    let create = || {
        let dry = Options { dry_run: true, ..Options::default() };
        api.0.handle(within("n", request(Verb::Create, "pods", "", Some(root.clone()), dry)))
    };
    // What no node gives yet, none may ever give.
    assert_eq!(create().await.unwrap_err().code, 403);
    api.create("nodes", node("a")).await.unwrap();
    let refused = create().await.unwrap_err();
    assert_eq!(refused.code, 403);
    assert!(refused.message.contains("runAsNonRoot != true"), "{}", refused.message);
    declare(&api, "a", true).await;
    create().await.unwrap();
    // One node that does not is enough: nobody knows where the Pod will run.
    api.create("nodes", node("b")).await.unwrap();
    assert_eq!(create().await.unwrap_err().code, 403);
    declare(&api, "b", false).await;
    assert_eq!(create().await.unwrap_err().code, 403);
    declare(&api, "b", true).await;
    create().await.unwrap();
}

#[tokio::test]
async fn checks_have_their_versions_and_exceptions() {
    let unconfined = changed(&[(POD, "{}"), (C, "{}")]);
    let own_users = changed(&[
        (POD, r#"{"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 0}"#),
        ("/spec/hostUsers", "false"),
    ]);
    let windows = changed(&[("/spec/os", r#"{"name": "windows"}"#), (POD, r#"{"runAsNonRoot": true}"#), (C, "{}")]);
    for (standard, pod, allowed) in [
        ("baseline:latest", &unconfined, true),
        ("restricted:v1.7", &unconfined, false),
        (
            "baseline:v1.33",
            &changed(&[("/spec/containers/0/livenessProbe", r#"{"tcpSocket": {"port": 1, "host": "h"}}"#)]),
            true,
        ),
        (
            "restricted:v1.22",
            &changed(&[(
                POD,
                r#"{"runAsNonRoot": true, "runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}"#,
            )]),
            true,
        ),
        ("restricted:v1.18", &changed(&[(POD, r#"{"runAsNonRoot": true}"#)]), true),
        ("restricted:v1.34", &own_users, false),
        ("restricted:v1.35", &own_users, true),
        ("restricted:v1.24", &windows, false),
        ("restricted:v1.25", &windows, true),
        ("baseline:v1.35", &changed(&[(C, r#"{"procMount": "Unmasked"}"#), ("/spec/hostUsers", "false")]), true),
        ("privileged:latest", &changed(&[(C, r#"{"privileged": true}"#)]), true),
    ] {
        let api = Api::new().await;
        api.create("nodes", node("a")).await.unwrap();
        declare(&api, "a", true).await;
        api.namespace("n", labels("enforce", standard)).await;
        let made =
            api.0.handle(within("n", request(Verb::Create, "pods", "", Some(pod.clone()), Options::default()))).await;
        assert_eq!(made.is_ok(), allowed, "{standard} {pod} {made:?}");
    }
}

fn deployment(template: &Value) -> Value {
    let mut template = template.clone();
    template["metadata"] = json!({"labels": {"a": "b"}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": template["metadata"], "spec": template["spec"]}}})
}

#[tokio::test]
async fn warnings_are_for_workloads_too_and_refusals_for_pods_alone() {
    let api = Api::new().await;
    api.namespace("warned", labels("warn", "restricted:v1.30")).await;
    api.namespace("enforced", labels("enforce", "baseline:latest")).await;
    let create = async |namespace: &str, resource: &str, object: Value| {
        told(
            api.0
                .handle(within(namespace, request(Verb::Create, resource, "", Some(object), Options::default())))
                .await,
        )
    };
    let privileged = changed(&[(C, r#"{"privileged": true}"#)]);
    let detail = "privileged (container \"c\" must not set securityContext.privileged=true)";
    let (made, warnings) = create("warned", "pods", privileged.clone()).await;
    assert!(made.is_ok());
    let unhardened = "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), \
                      unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"])";
    assert_eq!(warnings, [format!("would violate PodSecurity \"restricted:v1.30\": {detail}, {unhardened}")]);
    let (made, warnings) = create("warned", "pods", with(hardened(), "/metadata/name", "q".into())).await;
    assert!(made.is_ok() && warnings.is_empty(), "{warnings:?}");

    let (refused, warnings) = create("enforced", "pods", privileged.clone()).await;
    assert_eq!(refused.unwrap_err().code, 403);
    assert_eq!(warnings, [""; 0], "a refusal says it all");
    // Who enforces, and says nothing of warnings, is warned of what will be refused.
    let (made, warnings) = create("enforced", "deployments", deployment(&privileged)).await;
    assert!(made.is_ok());
    assert_eq!(warnings, [format!("would violate PodSecurity \"baseline:latest\": {detail}")]);
    let job = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "j"}, "spec": {"schedule": "@daily",
        "jobTemplate": {"spec": {"template": {"spec": privileged["spec"]}}}}});
    let job = with(job, "/spec/jobTemplate/spec/template/spec/restartPolicy", "Never".into());
    let (made, warnings) = create("enforced", "cronjobs", job).await;
    assert!(made.is_ok(), "{made:?}");
    assert_eq!(warnings, [format!("would violate PodSecurity \"baseline:latest\": {detail}")]);
}

#[tokio::test]
async fn a_stricter_label_warns_of_the_pods_that_are_there() {
    let api = Api::new().await;
    api.namespace("n", json!({})).await;
    let privileged = changed(&[(C, r#"{"privileged": true}"#)]);
    for (name, pod) in [("a", &privileged), ("b", &privileged), ("c", &privileged), ("d", &hardened())] {
        let pod = with(pod.clone(), "/metadata/name", name.into());
        api.0.handle(within("n", request(Verb::Create, "pods", "", Some(pod), Options::default()))).await.unwrap();
    }
    let label = async |labels: Value| {
        let options = Options { patch_type: Some(podwright::api::request::PatchType::Merge), ..Options::default() };
        let patch = json!({"metadata": {"labels": labels}});
        told(api.0.handle(request(Verb::Patch, "namespaces", "n", Some(patch), options)).await)
    };
    let (made, warnings) = label(labels("enforce", "baseline:latest")).await;
    assert!(made.is_ok());
    let head = "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"";
    assert_eq!(warnings, [head, "a (and 2 other pods): privileged"]);
    let (_, warnings) = label(json!({"x": "y"})).await;
    assert_eq!(warnings, [""; 0], "nothing new is demanded");
    let (_, warnings) = label(labels("enforce", "privileged:latest")).await;
    assert_eq!(warnings, [""; 0]);

    let (refused, _) = label(json!({"pod-security.kubernetes.io/enforce": "strict"})).await;
    let refused = refused.unwrap_err();
    let why = "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of privileged, baseline, \
               restricted";
    assert_eq!((refused.code, refused.message), (422, format!("Namespace \"n\" is invalid: {why}")));
    let (refused, _) = label(json!({"pod-security.kubernetes.io/warn-version": "v2.0"})).await;
    assert!(refused.unwrap_err().message.ends_with("Invalid value: \"v2.0\": must be \"latest\" or \"v1.x\""));
}

#[tokio::test]
async fn some_are_spared_and_clusters_have_defaults() {
    let config = json!({"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
        "defaults": {"enforce": "restricted", "enforce-version": "v1.30"},
        "exemptions": {"usernames": ["root"], "namespaces": ["kube-system"], "runtimeClasses": ["vm"]}});
    let pod_security = PodSecurity::from_json(&config).unwrap();
    let api = Api::with(Config { pod_security, ..Config::default() }).await;
    let privileged = changed(&[(C, r#"{"privileged": true}"#)]);
    let refused = api.create("pods", privileged.clone()).await.unwrap_err();
    assert!(refused.message.contains("violates PodSecurity \"restricted:v1.30\": privileged ("), "{refused}");
    let create =
        |pod: Value| request(Verb::Create, "pods", "", Some(pod), Options { dry_run: true, ..Options::default() });
    api.0.handle(within("kube-system", create(privileged.clone()))).await.unwrap();
    let mut by_root = create(privileged.clone());
    by_root.user = User::system("root");
    object_of(api.0.handle(by_root).await.unwrap());
    let class =
        json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "vm"}, "handler": "vm"});
    api.create("runtimeclasses", class).await.unwrap();
    api.0.handle(create(with(privileged, "/spec/runtimeClassName", "vm".into()))).await.unwrap();

    for (config, why) in [
        (
            json!({"defaults": {"audit": "lax"}}),
            "defaults.audit: Invalid value: \"lax\": must be one of privileged, baseline, restricted",
        ),
        (json!({"exemptions": {"usernames": "root"}}), "exemptions.usernames: must be a list"),
        (json!({"exemptions": {"namespaces": ["a", 1]}}), "exemptions.namespaces[1]: Invalid value: 1: must be a name"),
    ] {
        assert_eq!(PodSecurity::from_json(&config).unwrap_err().to_string(), why);
    }
}

#[tokio::test]
async fn what_runs_already_may_change_in_what_does_not_matter() {
    let api = Api::new().await;
    api.create("pods", changed(&[(C, r#"{"privileged": true}"#)])).await.unwrap();
    api.patch("namespaces", "default", json!({"metadata": {"labels": labels("enforce", "baseline:latest")}}))
        .await
        .unwrap();
    api.patch("pods", "p", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "y:2"}]);
    let options = Options { patch_type: Some(podwright::api::request::PatchType::Json), ..Options::default() };
    let refused = api.0.handle(request(Verb::Patch, "pods", "p", Some(image), options)).await.unwrap_err();
    assert_eq!(refused.code, 403);
}
