//! What a Pod requests for its own or its neighbours' safety and this node cannot provide: the Pod is rejected, never run with
//! less. Pure.

use k8s_openapi::api::core::v1::{Pod, SELinuxOptions, WindowsSecurityContextOptions};

use super::{ids, sysctls::Sysctls};
use crate::{app_armor::AppArmor, id_pool::IdPool, pod::intent::Failure, spec::PodExt};

/// Why a node cannot provide something that Pods may request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Secret volumes cannot be shown to a Pod with a user namespace.
    #[error("Linux {0} has no idmapped mounts of tmpfs, which are of 6.3")]
    OldKernel(String),
    /// The runtime tried it and reports why it failed.
    #[error("{0}")]
    Runtime(String),
    #[error("SELinux is not enabled on the host")]
    SeLinuxDisabled,
    #[error("this node's runtime does not set SELinux labels")]
    SeLinuxLabels,
    /// Quotas count only for Pods with user namespaces.
    #[error("Pods can have no users of their own: {0}")]
    UserNamespaces(#[source] Box<Unavailable>),
    /// The file system of a folder does not support project quotas, as the runtime reports.
    #[error("{0}")]
    ProjectQuotas(String),
    /// The node is hollow.
    #[error("there is no disk")]
    NoDisk,
}

/// What a node can provide, or why it cannot.
#[derive(Clone, Debug)]
pub struct Protections {
    pub sysctls: Sysctls,
    pub user_namespaces: Result<(), Unavailable>,
    /// The host ids reserved for Pods with user namespaces.
    pub ids: IdPool,
    pub app_armor: AppArmor,
    pub se_linux: Result<(), Unavailable>,
    /// Not something Pods request: without it, disk usage is measured by walking.
    pub project_quotas: Result<(), Unavailable>,
}

/// A request: whether the Pod makes it, and whether the node can fulfil it.
type Rule = (fn(&Pod) -> bool, fn(&Protections) -> Result<(), Failure>);

fn failure(reason: &str, message: String) -> Failure {
    Failure { reason: reason.to_owned(), message }
}

/// Upstream's reason for unsupported features.
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
    /// Checks that this node provides everything the Pod requests.
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
