//! What a Pod asks for its own safety or its neighbours', and this node cannot give: the Pod is refused, never run with less.
//! Pure.

use k8s_openapi::api::core::v1::{Pod, SELinuxOptions, WindowsSecurityContextOptions};

use super::{ids, sysctls::Sysctls};
use crate::{app_armor::AppArmor, id_pool::IdPool, pod::intent::Failure, spec::PodExt};

/// Why a node cannot give something that Pods may ask for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Volumes of Secrets cannot be shown to users of a Pod's own.
    #[error("Linux {0} has no idmapped mounts of tmpfs, which are of 6.3")]
    OldKernel(String),
    /// The runtime has tried it, and says why it failed.
    #[error("{0}")]
    Runtime(String),
    #[error("SELinux is not enabled on the host")]
    SeLinuxDisabled,
    #[error("this node's runtime does not set SELinux labels")]
    SeLinuxLabels,
    /// Quotas count for Pods with users of their own alone.
    #[error("Pods can have no users of their own: {0}")]
    UserNamespaces(#[source] Box<Unavailable>),
    /// The file system of a folder does not count by projects, as the runtime says.
    #[error("{0}")]
    ProjectQuotas(String),
    /// The node is hollow.
    #[error("there is no disk")]
    NoDisk,
}

/// What a node can give; where it cannot, why.
#[derive(Clone, Debug)]
pub struct Protections {
    pub sysctls: Sysctls,
    pub user_namespaces: Result<(), Unavailable>,
    /// The ids of the host that Pods with users of their own have, and no others.
    pub ids: IdPool,
    pub app_armor: AppArmor,
    pub se_linux: Result<(), Unavailable>,
    /// No Pod asks for them: without, what it has on disk is counted by walking.
    pub project_quotas: Result<(), Unavailable>,
}

/// A Pod's wish: whether it has it, and whether it can be given.
type Rule = (fn(&Pod) -> bool, fn(&Protections) -> Result<(), Failure>);

fn failure(reason: &str, message: String) -> Failure {
    Failure { reason: reason.to_owned(), message }
}

/// Upstream's reason for what a node does not do.
const UNSUPPORTED: &str = "PodFeatureUnsupported";

#[rustfmt::skip]
const RULES: &[Rule] = &[
    (Pod::has_own_users, |node| node.user_namespaces.as_ref().map(drop).map_err(|why| failure(UNSUPPORTED,
        format!("can't set `spec.hostUsers: false`, runtime does not support user namespaces: {why}")))),
    (has_se_linux, |node| node.se_linux.as_ref().map(drop).map_err(|why| failure(UNSUPPORTED,
        format!("Cannot enforce seLinuxOptions: {why}")))),
    (has_windows, |_| Err(failure(UNSUPPORTED, "Cannot enforce windowsOptions: this node runs Linux".to_owned()))),
    (|pod| pod.spec().runtime_class_name.is_some(), |_| Err(failure(UNSUPPORTED,
        "no runtime handlers are configured on this node: it runs no Pods with a runtimeClassName".to_owned()))),
];

impl Protections {
    /// Whether this node gives all that the Pod asks for.
    ///
    /// # Errors
    ///
    /// What is missing, with upstream's reason.
    pub fn admit(&self, pod: &Pod) -> Result<(), Failure> {
        self.sysctls.admit(pod)?;
        ids::admit(pod, self.ids)?;
        self.app_armor.admit(pod).map_err(|why| failure("AppArmor", format!("Cannot enforce AppArmor: {why}")))?;
        RULES.iter().filter(|(asks, _)| asks(pod)).try_for_each(|(_, given)| given(self))
    }
}

fn has_se_linux(pod: &Pod) -> bool {
    let of_pod = pod.spec().security_context.as_ref().and_then(|c| c.se_linux_options.as_ref());
    let parts = pod.parts();
    let mut of_parts = parts.iter().filter_map(|p| p.container.security_context.as_ref()?.se_linux_options.as_ref());
    of_parts.any(|options| *options != SELinuxOptions::default())
        || of_pod.is_some_and(|options| *options != SELinuxOptions::default())
}

fn has_windows(pod: &Pod) -> bool {
    let of_pod = pod.spec().security_context.as_ref().and_then(|c| c.windows_options.as_ref());
    let parts = pod.parts();
    let mut of_parts = parts.iter().filter_map(|p| p.container.security_context.as_ref()?.windows_options.as_ref());
    of_parts.any(|options| *options != WindowsSecurityContextOptions::default())
        || of_pod.is_some_and(|options| *options != WindowsSecurityContextOptions::default())
}
