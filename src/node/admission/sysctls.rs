//! Which sysctls a Pod may set on this node: the safe ones, and those that its operator allows. Pure.
//!
//! Upstream: `pkg/kubelet/sysctl` (`allowlist.go`, `safe_sysctls.go`);
//! <https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/>.

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::sysctl::{Namespace, dotted, namespace, path};

use crate::{kernel::version, pod::intent::Failure, spec::PodExt};
use podwright_api::sysctls::SAFE;

const LONGEST: usize = 253;

/// Why a node cannot allow a sysctl.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysctlError {
    #[error(
        "sysctl {0:?} must have at most {LONGEST} characters and match regex \
         ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9][-_a-z0-9]*[*]?$"
    )]
    Malformed(String),
    /// The sysctl, or some that match the pattern, affects the whole host.
    #[error("the sysctl {0:?} is not known to be namespaced")]
    NotNamespaced(String),
}

/// The sysctls that a node allows: names, or prefixes ending in `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctls(Vec<String>);

impl Sysctls {
    /// The safe sysctls of this kernel (`uname -r`) plus `unsafe_ones`.
    ///
    /// # Errors
    ///
    /// A pattern is malformed, or its sysctls affect the whole host.
    pub fn new(kernel: &str, unsafe_ones: &[String]) -> Result<Sysctls, SysctlError> {
        let mut all = Sysctls::safe(kernel);
        for pattern in unsafe_ones {
            all.0.push(checked(pattern)?);
        }
        Ok(all)
    }

    /// Only the safe sysctls of this kernel.
    pub fn safe(kernel: &str) -> Sysctls {
        let kernel = version(kernel);
        let safe = SAFE.iter().filter(|safe| kernel >= safe.kernel).map(|safe| safe.name.to_owned());
        Sysctls(safe.collect())
    }

    /// The allowed sysctls that are not safe: `allowedUnsafeSysctls`.
    pub fn unsafe_ones(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str).filter(|name| SAFE.iter().all(|safe| safe.name != *name))
    }

    fn allows(&self, name: &str) -> bool {
        let is_it = |p: &String| p.strip_suffix('*').map_or(p == name, |prefix| name.starts_with(prefix));
        self.0.iter().any(is_it)
    }

    /// Checks that the Pod may set the sysctls it requests.
    ///
    /// # Errors
    ///
    /// The first that it may not set: `SysctlForbidden`.
    pub fn admit(&self, pod: &Pod) -> Result<(), Failure> {
        let asked = pod.spec().security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
        let mut refusals = asked.filter_map(|sysctl| self.refusal(&dotted(&sysctl.name), pod));
        match refusals.next() {
            None => Ok(()),
            Some(why) => {
                Err(Failure { reason: "SysctlForbidden".to_owned(), message: format!("forbidden sysctl: {why}") })
            }
        }
    }

    fn refusal(&self, name: &str, pod: &Pod) -> Option<String> {
        let shared = match namespace(name) {
            Some(Namespace::Ipc) => pod.spec().host_ipc == Some(true),
            Some(Namespace::Net) => pod.host_network(),
            None => false,
        };
        match namespace(name) {
            Some(_) if !self.allows(name) || path(name).is_err() => Some(format!("{name:?} not allowlisted")),
            Some(kept_by) if shared => Some(format!("{name:?} not allowed with host {} enabled", kept_by.as_str())),
            Some(_) => None,
            None => Some(format!("{name:?} not allowlisted")),
        }
    }
}

/// A pattern of `--allowed-unsafe-sysctls`, with dots.
fn checked(pattern: &str) -> Result<String, SysctlError> {
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    let is_part = |part: &str| {
        let ends = [part.bytes().next(), part.bytes().last()];
        ends.iter().all(|end| end.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'))
    };
    // Accepts `net.*` as well as `kernel.sh*`.
    let parts = if pattern.ends_with('*') { name.strip_suffix(['.', '/']).unwrap_or(name) } else { name };
    if pattern.len() > LONGEST || !parts.split(['.', '/']).all(is_part) {
        return Err(SysctlError::Malformed(pattern.to_owned()));
    }
    let dotted = dotted(pattern).into_owned();
    // All names with a prefix belong to the same namespace as the prefix itself.
    match namespace(dotted.strip_suffix('*').unwrap_or(&dotted)) {
        Some(_) => Ok(dotted),
        None => Err(SysctlError::NotNamespaced(dotted)),
    }
}
