//! The facts of the cluster, by the API.

use k8s_openapi::api::core::v1::{self as core, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding, RoleRef, Subject};
use serde_json::json;

use super::facts::{Cluster, Namespace, Node, Pod};
use crate::api::protections::{DISK_USAGE, METHOD, Protections};
use crate::api::sysctls::{dotted, is_safe};
use crate::api::{Options, Status};
use crate::cli::Session;

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
const ADMINISTRATORS: &str = "system:masters";
const ANYONE: [&str; 2] = ["system:anonymous", "system:unauthenticated"];
/// Roles that upstream itself gives to everyone.
const PUBLIC_ROLES: [&str; 2] = ["system:public-info-viewer", "system:service-account-issuer-discovery"];
pub async fn look(session: &Session) -> Result<Cluster, String> {
    gather(session).await.map_err(|status| status.message)
}

async fn gather(session: &Session) -> Result<Cluster, Status> {
    let client = &session.client;
    let protections: Protections =
        serde_json::from_value(client.method(METHOD, json!({})).await?).map_err(Status::internal)?;
    let all = Options::default;
    let nodes = client.list::<core::Node>(None, all()).await?.items;
    let namespaces = client.list::<core::Namespace>(None, all()).await?.items;
    let pods = client.list::<core::Pod>(None, all()).await?.items;
    let secrets = client.list::<Secret>(None, all()).await?.items;
    let wide = client.list::<ClusterRoleBinding>(None, all()).await?.items;
    let narrow = client.list::<RoleBinding>(None, all()).await?.items;
    let bindings: Vec<Binding> =
        wide.into_iter().map(Binding::from).chain(narrow.into_iter().map(Binding::from)).collect();
    Ok(Cluster {
        protections,
        nodes: nodes.into_iter().map(node).collect(),
        namespaces: namespaces.into_iter().map(namespace).collect(),
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
        anyone && !PUBLIC_ROLES.contains(&self.role.name.as_str())
    }
}

fn administrators(binding: &Binding) -> Vec<String> {
    if binding.role.name != "cluster-admin" {
        return Vec::new();
    }
    let others = binding.subjects.iter().filter(|subject| subject.name != ADMINISTRATORS);
    others.map(|subject| format!("{} {} ({})", subject.kind, subject.name, binding.name)).collect()
}

fn node(it: core::Node) -> Node {
    let handlers = it.status.and_then(|status| status.runtime_handlers).unwrap_or_default();
    let mut default = handlers.into_iter().filter(|handler| handler.name.as_deref().unwrap_or("").is_empty());
    let user_namespaces = default.any(|handler| handler.features.is_some_and(|f| f.user_namespaces == Some(true)));
    let disk_usage = it.metadata.annotations.and_then(|mut all| all.remove(DISK_USAGE)).unwrap_or_default();
    Node { name: it.metadata.name.unwrap_or_default(), user_namespaces, disk_usage }
}

fn namespace(it: core::Namespace) -> Namespace {
    let enforced = it.metadata.labels.and_then(|mut labels| labels.remove(ENFORCE));
    Namespace { name: it.metadata.name.unwrap_or_default(), enforced }
}

fn pod(it: &core::Pod) -> Pod {
    let meta = &it.metadata;
    let name = format!("{}/{}", meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""));
    let Some(spec) = &it.spec else { return Pod { name, ..Pod::default() } };
    let inits = spec.init_containers.iter().flatten();
    let contexts = spec.containers.iter().chain(inits).filter_map(|c| c.security_context.as_ref());
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
        privileged: contexts.into_iter().any(|context| context.privileged == Some(true)),
        host_path: volumes().any(|volume| volume.host_path.is_some()),
        host_namespaces: [spec.host_network, spec.host_pid, spec.host_ipc].contains(&Some(true)),
        default_token: is_default && spec.automount_service_account_token != Some(true) && volumes().any(token),
        unlimited: !spec.containers.iter().all(limited),
        shares_users: spec.host_users != Some(false),
        unsafe_sysctls: sysctls.into_iter().any(|sysctl| !is_safe(&dotted(&sysctl.name), u32::MAX)),
    }
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
