//! The facts about the cluster, from the API.

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{self as core, ResourceQuota, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding, RoleRef, Subject};
use serde_json::json;

use super::facts::{Cluster, Namespace, Node, Pod};
use crate::Session;
use podwright_api::capabilities::BASELINE;
use podwright_api::protections::{CONFLICTING_TABLES, DISK_USAGE, METHOD, Protections};
use podwright_api::sysctls::{dotted, is_safe};
use podwright_api::{Options, Status};

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
const ADMINISTRATORS: &str = "system:masters";
/// The binding, with its role, by which anybody reads `cluster-info`: who joins needs it.
const CLUSTER_INFO: (&str, &str) =
    ("kube-public/podwright:bootstrap-signer-clusterinfo", "podwright:bootstrap-signer-clusterinfo");
const ANYONE: [&str; 2] = ["system:anonymous", "system:unauthenticated"];
/// Roles that upstream itself grants to everyone.
const PUBLIC_ROLES: [&str; 2] = ["system:public-info-viewer", "system:service-account-issuer-discovery"];
const SYSTEM_PRIORITIES: [&str; 2] = ["system-node-critical", "system-cluster-critical"];

/// What the server reports on the cluster. Fails if any request does.
pub async fn look(session: &Session) -> Result<Cluster, Status> {
    let client = &session.client;
    let protections: Protections =
        serde_json::from_value(client.method(METHOD, json!({})).await?).map_err(Status::internal)?;
    let all = Options::default;
    let nodes = client.list::<core::Node>(None, all()).await?.items;
    let namespaces = client.list::<core::Namespace>(None, all()).await?.items;
    let pods = client.list::<core::Pod>(None, all()).await?.items;
    let secrets = client.list::<Secret>(None, all()).await?.items;
    let quotas = client.list::<ResourceQuota>(None, all()).await?.items;
    let policies = client.list::<ValidatingAdmissionPolicy>(None, all()).await?.items;
    let policy_bindings = client.list::<ValidatingAdmissionPolicyBinding>(None, all()).await?.items;
    let wide = client.list::<ClusterRoleBinding>(None, all()).await?.items;
    let narrow = client.list::<RoleBinding>(None, all()).await?.items;
    let bindings: Vec<Binding> =
        wide.into_iter().map(Binding::from).chain(narrow.into_iter().map(Binding::from)).collect();
    Ok(Cluster {
        protections,
        nodes: nodes.into_iter().map(node).collect(),
        namespaces: namespaces.into_iter().map(|it| namespace(it, &quotas)).collect(),
        bars_system_priorities: bars_by_policy(&policies, &policy_bindings),
        pods: pods.iter().map(pod).collect(),
        administrators: bindings.iter().flat_map(administrators).collect(),
        anonymous_bindings: bindings.iter().filter(|binding| binding.is_of_anyone()).map(|b| b.name.clone()).collect(),
        bootstrap_tokens: secrets.iter().filter_map(bootstrap_token).collect(),
        endless_tokens: secrets.iter().filter_map(endless_token).collect(),
    })
}

/// A binding of either kind.
struct Binding {
    name: String,
    role: RoleRef,
    subjects: Vec<Subject>,
}

impl From<ClusterRoleBinding> for Binding {
    fn from(it: ClusterRoleBinding) -> Binding {
        let name = it.metadata.name.unwrap_or_default();
        Binding { name, role: it.role_ref, subjects: it.subjects.unwrap_or_default() }
    }
}

impl From<RoleBinding> for Binding {
    fn from(it: RoleBinding) -> Binding {
        let (namespace, name) = (it.metadata.namespace.unwrap_or_default(), it.metadata.name.unwrap_or_default());
        Binding { name: format!("{namespace}/{name}"), role: it.role_ref, subjects: it.subjects.unwrap_or_default() }
    }
}

impl Binding {
    fn is_of_anyone(&self) -> bool {
        let anyone = self.subjects.iter().any(|subject| ANYONE.contains(&subject.name.as_str()));
        let is_public = PUBLIC_ROLES.contains(&self.role.name.as_str())
            || (self.role.kind == "Role" && self.role.name == CLUSTER_INFO.1 && self.name == CLUSTER_INFO.0);
        anyone && !is_public
    }
}

fn administrators(binding: &Binding) -> Vec<String> {
    if binding.role.name != "cluster-admin" {
        return Vec::new();
    }
    let others = binding.subjects.iter().filter(|subject| subject.name != ADMINISTRATORS);
    others.map(|subject| format!("{} {} ({})", subject.kind, subject.name, binding.name)).collect()
}

pub(super) fn node(it: core::Node) -> Node {
    let status = it.status.unwrap_or_default();
    let handlers = status.runtime_handlers.unwrap_or_default();
    let mut default = handlers.into_iter().filter(|handler| handler.name.as_deref().unwrap_or("").is_empty());
    let user_namespaces = default.any(|handler| handler.features.is_some_and(|f| f.user_namespaces == Some(true)));
    let disk_usage = it.metadata.annotations.and_then(|mut all| all.remove(DISK_USAGE)).unwrap_or_default();
    let mut conditions = status.conditions.into_iter().flatten();
    let conflicting_tables = conditions.find(|condition| condition.type_ == CONFLICTING_TABLES);
    let conflicting_tables =
        conflicting_tables.map(|found| (found.status != "False", found.message.unwrap_or_default()));
    Node { name: it.metadata.name.unwrap_or_default(), user_namespaces, disk_usage, conflicting_tables }
}

fn namespace(it: core::Namespace, quotas: &[ResourceQuota]) -> Namespace {
    let enforced = it.metadata.labels.and_then(|mut labels| labels.remove(ENFORCE));
    let mut own = quotas.iter().filter(|quota| quota.metadata.namespace == it.metadata.name);
    let bars_system_priorities = own.any(bars_by_quota);
    Namespace { name: it.metadata.name.unwrap_or_default(), enforced, bars_system_priorities }
}

fn pod(it: &core::Pod) -> Pod {
    let meta = &it.metadata;
    let name = format!("{}/{}", meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""));
    let Some(spec) = &it.spec else { return Pod { name, ..Pod::default() } };
    let contexts = contexts(spec);
    let any = |is: fn(&core::SecurityContext) -> bool| contexts.iter().flatten().any(|context| is(context));
    let volumes = || spec.volumes.iter().flatten();
    let token = |volume: &core::Volume| {
        let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        sources.into_iter().any(|source| source.service_account_token.is_some())
    };
    let limited = |container: &core::Container| {
        container
            .resources
            .as_ref()
            .and_then(|resources| resources.limits.as_ref())
            .is_some_and(|l| l.contains_key("memory"))
    };
    let sysctls = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    let is_default = matches!(spec.service_account_name.as_deref(), None | Some("" | "default"));
    Pod {
        name,
        privileged: any(is_privileged),
        host_path: volumes().any(|volume| volume.host_path.is_some()),
        host_namespaces: [spec.host_network, spec.host_pid, spec.host_ipc].contains(&Some(true)),
        default_token: is_default && spec.automount_service_account_token != Some(true) && volumes().any(token),
        unlimited: !spec.containers.iter().all(limited),
        shares_users: spec.host_users != Some(false),
        unsafe_sysctls: sysctls.into_iter().any(|sysctl| !is_safe(&dotted(&sysctl.name), u32::MAX)),
        added_capabilities: any(adds_capabilities),
        unfiltered: contexts.iter().any(|context| is_unfiltered(spec, *context)),
        unmasked: any(|context| context.proc_mount.as_deref() == Some("Unmasked")),
        system_priority: spec.priority_class_name.as_deref().is_some_and(|class| SYSTEM_PRIORITIES.contains(&class)),
    }
}

/// The security contexts of all containers, including ephemeral ones, which may differ from the others.
fn contexts(spec: &core::PodSpec) -> Vec<Option<&core::SecurityContext>> {
    let inits = spec.init_containers.iter().flatten();
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| c.security_context.as_ref());
    spec.containers.iter().chain(inits).map(|c| c.security_context.as_ref()).chain(ephemeral).collect()
}

fn is_privileged(context: &core::SecurityContext) -> bool {
    context.privileged == Some(true)
}

fn adds_capabilities(context: &core::SecurityContext) -> bool {
    let added = context.capabilities.iter().flat_map(|capabilities| capabilities.add.iter().flatten());
    let plain = |name: &str| name.to_uppercase().trim_start_matches("CAP_").to_owned();
    added.into_iter().any(|name| !BASELINE.contains(&&*plain(name)))
}

/// Whether a container explicitly has no seccomp filter, by itself or its Pod. (A privileged one has none either, which is reported
/// separately.)
fn is_unfiltered(spec: &core::PodSpec, context: Option<&core::SecurityContext>) -> bool {
    let own = context.and_then(|context| context.seccomp_profile.as_ref());
    let profile = own.or_else(|| spec.security_context.as_ref()?.seccomp_profile.as_ref());
    !context.is_some_and(is_privileged) && profile.is_some_and(|profile| profile.type_ == "Unconfined")
}

/// Whether a policy on the priority class of Pods has a denying binding, for all namespaces that it matches.
fn bars_by_policy(policies: &[ValidatingAdmissionPolicy], bindings: &[ValidatingAdmissionPolicyBinding]) -> bool {
    let judges = |policy: &&ValidatingAdmissionPolicy| {
        let validations = policy.spec.iter().flat_map(|spec| spec.validations.iter().flatten());
        validations.into_iter().any(|validation| validation.expression.contains("priorityClassName"))
    };
    let denied = |policy: &ValidatingAdmissionPolicy| {
        let specs = bindings.iter().filter_map(|binding| binding.spec.as_ref());
        let mut of_policy = specs.filter(|spec| spec.policy_name == policy.metadata.name);
        of_policy.any(|spec| {
            spec.match_resources.is_none() && spec.validation_actions.iter().flatten().any(|action| action == "Deny")
        })
    };
    policies.iter().filter(judges).any(denied)
}

/// Whether a quota has no room for Pods of either class.
fn bars_by_quota(quota: &ResourceQuota) -> bool {
    let Some(spec) = &quota.spec else { return false };
    let none = spec.hard.as_ref().and_then(|hard| hard.get("pods")).is_some_and(|pods| pods.0 == "0");
    let scopes = spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
    let mut scopes = scopes.filter(|scope| scope.scope_name == "PriorityClass");
    let both = |scope: &core::ScopedResourceSelectorRequirement| {
        let values = scope.values.iter().flatten();
        match scope.operator.as_str() {
            "Exists" => true,
            "In" => SYSTEM_PRIORITIES.iter().all(|class| values.clone().any(|value| value == class)),
            _ => false,
        }
    };
    none && scopes.any(both)
}

fn full_name(secret: &Secret) -> String {
    let meta = &secret.metadata;
    format!("{}/{}", meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""))
}

fn bootstrap_token(secret: &Secret) -> Option<(String, bool)> {
    let ends = secret.data.as_ref().is_some_and(|data| data.contains_key("expiration"));
    (secret.type_.as_deref() == Some("bootstrap.kubernetes.io/token")).then(|| (full_name(secret), ends))
}

fn endless_token(secret: &Secret) -> Option<String> {
    (secret.type_.as_deref() == Some("kubernetes.io/service-account-token")).then(|| full_name(secret))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn seen(spec: Value) -> Pod {
        pod(&serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "n" }, "spec": spec })).unwrap())
    }

    /// Each setting is found in each of the three container lists.
    #[test]
    fn no_container_is_looked_past() {
        let flags = |pod: &Pod| [pod.privileged, pod.added_capabilities, pod.unfiltered, pod.unmasked];
        for (context, wanted) in [
            (json!({}), [false; 4]),
            (json!({ "privileged": true }), [true, false, false, false]),
            (json!({ "privileged": true, "seccompProfile": { "type": "Unconfined" } }), [true, false, false, false]),
            (json!({ "capabilities": { "add": ["CHOWN", "CAP_KILL"] } }), [false; 4]),
            (json!({ "capabilities": { "add": ["SYS_ADMIN"] } }), [false, true, false, false]),
            (json!({ "capabilities": { "add": ["all"] } }), [false, true, false, false]),
            (json!({ "seccompProfile": { "type": "Unconfined" } }), [false, false, true, false]),
            (json!({ "procMount": "Unmasked" }), [false, false, false, true]),
        ] {
            for list in ["containers", "initContainers", "ephemeralContainers"] {
                let mut spec = json!({ "containers": [{ "name": "a" }] });
                spec[list] = json!([{ "name": "b", "securityContext": context }]);
                assert_eq!(flags(&seen(spec.clone())), wanted, "{spec}");
            }
        }
        let of_pod = |profile: &str| {
            seen(json!({ "securityContext": { "seccompProfile": { "type": "Unconfined" } },
                "containers": [{ "name": "a", "securityContext": { "seccompProfile": { "type": profile } } }] }))
        };
        assert!(!of_pod("RuntimeDefault").unfiltered && of_pod("Unconfined").unfiltered);
        assert!(seen(json!({ "priorityClassName": "system-node-critical", "containers": [] })).system_priority);
    }

    #[test]
    fn priorities_are_barred_by_a_policy_that_denies_or_a_quota_without_room() {
        let documents =
            podwright_api::yaml::documents(include_str!("../../../manifests/system-priorities.yaml")).unwrap();
        let policies: Vec<ValidatingAdmissionPolicy> = vec![serde_json::from_value(documents[0].clone()).unwrap()];
        let mut bindings: Vec<ValidatingAdmissionPolicyBinding> =
            vec![serde_json::from_value(documents[1].clone()).unwrap()];
        assert!(bars_by_policy(&policies, &bindings));
        assert!(!bars_by_policy(&policies, &[]) && !bars_by_policy(&[], &bindings));
        bindings[0].spec.as_mut().unwrap().validation_actions = Some(vec!["Warn".to_owned()]);
        assert!(!bars_by_policy(&policies, &bindings), "it warns alone");
        let quota = |pods: &str, values: &[&str]| -> bool {
            let scope = json!({ "scopeName": "PriorityClass", "operator": "In", "values": values });
            let spec = json!({ "hard": { "pods": pods }, "scopeSelector": { "matchExpressions": [scope] } });
            bars_by_quota(&serde_json::from_value(json!({ "spec": spec })).unwrap())
        };
        assert!(quota("0", &SYSTEM_PRIORITIES));
        assert!(!quota("1", &SYSTEM_PRIORITIES) && !quota("0", &SYSTEM_PRIORITIES[..1]));
    }
}
