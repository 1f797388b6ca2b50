//! One tenant against another, and against its own roles and policies.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::{Value, json};

use super::nodes::all_refused;
use super::world::{ADMIN, BASELINE, EDIT, OURS, ROOT, SECRET, THEIRS, VIEW, World, get};
use super::{Attack, POD, Pod, Target, Try, Verdict, verdict};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "tenant-reads",
        class: "tenants",
        cves: &["CVE-2022-3162", "CVE-2019-11247"],
        how: "users with edit, admin and view in one tenant read, write, watch, exec, proxy in the other; cluster-wide lists; paths with `..`, encoded slashes, and a namespace before cluster-scoped kinds",
        held: "RBAC on the parsed path; what was decoded is a name, never a path",
        attempt: Try::Code(tenant_reads),
    },
    Attack {
        id: "view-reads-secrets",
        class: "tenants",
        cves: &[],
        how: "`view` in its own tenant: Secrets, exec, attach, port-forward, proxy, tokens, ephemeral containers, writes",
        held: "upstream's role `view`",
        attempt: Try::Code(view_reads_secrets),
    },
    Attack {
        id: "grants",
        class: "tenants",
        cves: &[],
        how: "`edit` and `admin` grant themselves more: bindings, roles with more than they have, aggregation labels, quotas, the namespace's Pod Security labels",
        held: "nobody grants what he does not have (escalate, bind)",
        attempt: Try::Code(grants),
    },
    Attack {
        id: "endpoints-write",
        class: "tenants",
        cves: &["CVE-2021-25740"],
        how: "`edit` and `admin` point Endpoints and EndpointSlices at another tenant's Pod",
        held: "the roles have no write on them, as upstream since 1.22",
        attempt: Try::Code(endpoints_write),
    },
    Attack {
        id: "legacy-token",
        class: "tenants",
        cves: &[],
        how: "a Secret of type service-account-token for the account of another tenant, by `edit`",
        held: "a token's Secret is for an account of its own namespace",
        attempt: Try::Code(legacy_token),
    },
    Attack {
        id: "ephemeral-container",
        class: "Pod Security",
        cves: &["CVE-2023-2727", "CVE-2023-1260"],
        how: "a privileged ephemeral container in a Pod of a `baseline` namespace",
        held: "Pod Security looks at ephemeral containers too",
        attempt: Try::Code(ephemeral_container),
    },
    Attack {
        id: "mountable-secrets",
        class: "admission",
        cves: &["CVE-2023-2728", "CVE-2024-3177"],
        how: "a ServiceAccount with `kubernetes.io/enforce-mountable-secrets`: Pods that take other Secrets by volume, env, envFrom, imagePullSecrets",
        held: "the ServiceAccount plugin refuses all of them",
        attempt: Try::Code(mountable_secrets),
    },
    Attack {
        id: "namesakes",
        class: "tenants",
        cves: &[],
        how: "a tenant who may all in the group `evil.example`, which defines Service, Node and Secret: a Service with the ClusterIP of a victim is deleted, and the address asked for; a Node named as the real one, and sessions with it by REST and JSON-RPC; a Secret that asks for a token; specs of every shape",
        held: "built-in behaviour goes by the row of the kinds table, never by what a kind is called; a ClusterIP is freed by its owner alone",
        attempt: Try::Code(super::namesakes::namesakes),
    },
];

fn tenant_reads(world: &World, _: &Target) -> Verdict {
    let theirs = "/api/v1/namespaces/tenant-b";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": "root", "resourceAttributes": {"verb": "get"}}});
    let asked = [
        get(format!("{theirs}/secrets/victim")),
        get(format!("{theirs}/secrets")),
        get(format!("{theirs}/secrets?watch=1&timeoutSeconds=1")),
        get("/api/v1/secrets"),
        get("/api/v1/watch/secrets?timeoutSeconds=1"),
        get("/api/v1/watch/namespaces/tenant-b/secrets/victim?timeoutSeconds=1"),
        get("/api/v1/pods"),
        get(format!("{theirs}/pods/victim")),
        get(format!("{theirs}/pods/victim/log")),
        get(format!("{theirs}/pods/victim/proxy/")),
        get(format!("{theirs}/pods/victim:1/proxy/../../../secrets/victim")),
        get(format!("{theirs}/services/x/proxy/")),
        get(format!("{theirs}/pods/victim/exec?command=id&stdout=1")),
        ("POST", format!("{theirs}/pods/victim/exec?command=id&stdout=1"), Value::Null),
        ("POST", format!("{theirs}/pods"), pod),
        ("POST", format!("{theirs}/serviceaccounts/default/token"), json!({"spec": {}})),
        ("DELETE", format!("{theirs}/pods/victim"), Value::Null),
        ("PATCH", format!("{theirs}/secrets/victim"), json!({"data": {}})),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews".into(), review),
        get("/api/v1/namespaces/tenant-a/../tenant-b/secrets/victim"),
        get("/api/v1/namespaces/tenant-a/secrets/..%2f..%2ftenant-b%2fsecrets%2fvictim"),
        get("/api/v1/namespaces/tenant-a%2f..%2ftenant-b/secrets/victim"),
        get("/api/v1/namespaces/tenant-a/secrets%2f..%2f..%2ftenant-b%2fsecrets/victim"),
        get("/api/v1/namespaces/tenant-a/%2e%2e/tenant-b/secrets/victim"),
        get("/api/v1/namespaces//secrets"),
        get("/api/v1/namespaces/tenant-b%00/secrets/victim"),
        get("//api/v1/namespaces/tenant-b/secrets/victim"),
        get("/api/v1/namespaces/tenant-a/nodes"),
        get("/api/v1/namespaces/tenant-a/persistentvolumes"),
        get("/apis/rbac.authorization.k8s.io/v1/namespaces/tenant-a/clusterroles/cluster-admin"),
        get("/api/v1/nodes"),
        get("/api/v1/nodes/target/proxy/"),
        get("/apis/metrics.k8s.io/v1beta1/pods"),
    ];
    for token in [EDIT, ADMIN, VIEW] {
        match all_refused(world, token, &asked) {
            Verdict::Held(_) => {}
            other => return other,
        }
    }
    Verdict::Held(format!("{} requests by three users", asked.len() * 3))
}

fn view_reads_secrets(world: &World, _: &Target) -> Verdict {
    let ours = "/api/v1/namespaces/tenant-a";
    world.create("secrets", OURS, json!({"metadata": {"name": "own"}, "stringData": {"word": SECRET}})).unwrap();
    let asked = [
        get(format!("{ours}/secrets/own")),
        get(format!("{ours}/secrets")),
        get(format!("{ours}/secrets?watch=1&timeoutSeconds=1")),
        get(format!("{ours}/pods/p/exec?command=id&stdout=1")),
        ("POST", format!("{ours}/pods/p/exec?command=id&stdout=1"), Value::Null),
        get(format!("{ours}/pods/p/attach?stdout=1")),
        get(format!("{ours}/pods/p/portforward?ports=1")),
        get(format!("{ours}/pods/p/proxy/")),
        ("POST", format!("{ours}/serviceaccounts/default/token"), json!({"spec": {}})),
        ("PATCH", format!("{ours}/pods/p/ephemeralcontainers"), json!({"spec": {}})),
        ("POST", format!("{ours}/configmaps"), json!({"metadata": {"name": "x"}})),
        get("/apis/rbac.authorization.k8s.io/v1/namespaces/tenant-a/rolebindings"),
    ];
    all_refused(world, VIEW, &asked)
}

fn grants(world: &World, _: &Target) -> Verdict {
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/tenant-a";
    let binding = |role: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "more"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "tenants"}]})
    };
    let role = |rule: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "more"}, "rules": [rule]});
    let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    let impersonate =
        json!({"apiGroups": [""], "resources": ["serviceaccounts", "users"], "verbs": ["impersonate", "escalate"]});
    let cluster = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "more", "labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}, "rules": [all]});
    let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    let asked = [
        ("POST", format!("{rbac}/rolebindings"), binding("cluster-admin")),
        ("POST", format!("{rbac}/roles"), role(all.clone())),
        ("PATCH", format!("{rbac}/rolebindings/edit"), json!({"roleRef": {"name": "cluster-admin"}})),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned(), cluster),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(), binding("cluster-admin")),
        ("PATCH", "/api/v1/namespaces/tenant-a".to_owned(), labels),
        ("POST", "/api/v1/namespaces/tenant-a/resourcequotas".to_owned(), json!({"metadata": {"name": "q"}})),
    ];
    for token in [EDIT, ADMIN] {
        match all_refused(world, token, &asked) {
            Verdict::Held(_) => {}
            other => return other,
        }
    }
    // An admin may grant what the admin has; not more.
    all_refused(world, EDIT, &[("POST", format!("{rbac}/roles"), role(impersonate))])
}

fn endpoints_write(world: &World, _: &Target) -> Verdict {
    let victim = world.node.field(&["-n", THEIRS, "pod", "victim"], ".status.podIP");
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [{"addresses": [victim]}]});
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "s"}, "subsets": [{"addresses": [{"ip": victim}]}]});
    let asked = [
        ("POST", "/apis/discovery.k8s.io/v1/namespaces/tenant-a/endpointslices".to_owned(), slice),
        ("POST", "/api/v1/namespaces/tenant-a/endpoints".to_owned(), endpoints),
    ];
    match all_refused(world, EDIT, &asked) {
        Verdict::Held(_) => all_refused(world, ADMIN, &asked),
        other => other,
    }
}

fn ephemeral_container(world: &World, target: &Target) -> Verdict {
    if let Err(why) = world.start_pod(target, &Pod { namespace: BASELINE, script: "sleep 1000", ..POD }) {
        return Verdict::Untried(why);
    }
    let path = format!("/api/v1/namespaces/{BASELINE}/pods/{}/ephemeralcontainers", target.id);
    let container = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "localhost/attack:1", "securityContext": {"privileged": true}}]}});
    let (code, said) = world.ask(ROOT, "PATCH", &path, &container);
    verdict(code == 403, said)
}

fn mountable_secrets(world: &World, target: &Target) -> Verdict {
    let account = json!({"metadata": {"name": target.id, "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}, "secrets": [{"name": "allowed"}]});
    world.create("serviceaccounts", OURS, account).unwrap();
    let mut seen = Vec::new();
    for (number, (spec, container)) in [
        (json!({"volumes": [{"name": "v", "secret": {"secretName": "other"}}]}), json!({})),
        (json!({}), json!({"envFrom": [{"secretRef": {"name": "other"}}]})),
        (json!({}), json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "other", "key": "x"}}}]})),
        (json!({"imagePullSecrets": [{"name": "other"}]}), json!({})),
    ]
    .into_iter()
    .enumerate()
    {
        let mut pod = world.pod(target, &POD);
        pod["metadata"] = json!({"name": format!("{}-{number}", target.id)});
        pod["spec"]["serviceAccountName"] = json!(target.id);
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        pod["spec"]["containers"][0].as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let (code, said) = world.ask(EDIT, "POST", &format!("/api/v1/namespaces/{OURS}/pods"), &pod);
        if code != 403 {
            return Verdict::Breach(format!("{spec} {container}: {code} {said}"));
        }
        seen.push(said.lines().last().unwrap_or_default().to_owned());
    }
    Verdict::Held(seen.remove(0))
}

fn legacy_token(world: &World, target: &Target) -> Verdict {
    let uid = world.get("serviceaccounts", THEIRS, "default").unwrap()["metadata"]["uid"].clone();
    let mut seen = Vec::new();
    for (number, account) in ["default", "../tenant-b/default", "tenant-b:default"].iter().enumerate() {
        let name = format!("{}-{number}", target.id);
        let secret = json!({"metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": account, "kubernetes.io/service-account.uid": uid}}, "type": "kubernetes.io/service-account-token"});
        let (code, _) = world.ask(EDIT, "POST", &format!("/api/v1/namespaces/{OURS}/secrets"), &secret);
        let stored = world.get("secrets", OURS, &name).unwrap_or_default();
        seen.push(format!("{account}: {code}"));
        // `edit` may read those of its own tenant anyway.
        let token = stored["data"]["token"].as_str().map(|text| STANDARD.decode(text).unwrap()).unwrap_or_default();
        let claims = String::from_utf8_lossy(&token).split('.').nth(1).map(str::to_owned).unwrap_or_default();
        let claims = URL_SAFE_NO_PAD.decode(claims).unwrap_or_default();
        let claims = String::from_utf8_lossy(&claims).into_owned();
        if claims.contains(THEIRS) {
            return Verdict::Breach(format!("{account}: a token was made: {claims}"));
        }
    }
    Verdict::Held(seen.join(", "))
}
