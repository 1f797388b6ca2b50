//! The Pod Security Standards: levels, versions, and the table of checks.
//! <https://kubernetes.io/docs/concepts/security/pod-security-standards/>

use std::fmt;
use std::str::FromStr;

use super::violation::{Pod, Violation};
use super::{baseline, restricted};

/// How strict a policy is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

/// What is wrong with a part of a standard, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StandardError {
    #[error("must be one of privileged, baseline, restricted")]
    Level,
    #[error("must be \"latest\" or \"v1.x\"")]
    Version,
}

impl FromStr for Level {
    type Err = StandardError;
    fn from_str(text: &str) -> Result<Level, StandardError> {
        match text {
            "privileged" => Ok(Level::Privileged),
            "baseline" => Ok(Level::Baseline),
            "restricted" => Ok(Level::Restricted),
            _ => Err(StandardError::Level),
        }
    }
}

/// The minor version of Kubernetes whose checks apply: 30 for `v1.30`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Version {
    #[default]
    Latest,
    Minor(u32),
}

impl FromStr for Version {
    type Err = StandardError;
    fn from_str(text: &str) -> Result<Version, StandardError> {
        if text == "latest" {
            return Ok(Version::Latest);
        }
        let minor = text.strip_prefix("v1.").filter(|minor| *minor == "0" || !minor.starts_with(['0', '+']));
        minor.and_then(|minor| minor.parse().ok()).map(Version::Minor).ok_or(StandardError::Version)
    }
}

/// What a namespace requires: `restricted:latest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standard {
    pub level: Level,
    pub version: Version,
}

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Latest => write!(f, "{level}:latest"),
            Version::Minor(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

pub(super) type CheckFn = fn(Pod<'_>) -> Option<Violation>;

/// One check.
pub(super) struct Check {
    /// Upstream's name.
    pub id: &'static str,
    pub level: Level,
    /// The function by the minor version from which it applies, oldest first.
    pub versions: &'static [(u32, CheckFn)],
    /// The check of the level below that this one supersedes.
    pub instead_of: &'static str,
}

/// The table: by level, then by name, the order in which violations are reported.
#[rustfmt::skip]
static CHECKS: &[Check] = &[
    Check { id: "appArmorProfile", level: Level::Baseline, versions: &[(0, baseline::app_armor)], instead_of: "" },
    Check { id: "capabilities_baseline", level: Level::Baseline, versions: &[(0, baseline::capabilities)], instead_of: "" },
    Check { id: "hostNamespaces", level: Level::Baseline, versions: &[(0, baseline::host_namespaces)], instead_of: "" },
    Check { id: "hostPathVolumes", level: Level::Baseline, versions: &[(0, baseline::host_paths)], instead_of: "" },
    Check { id: "hostPorts", level: Level::Baseline, versions: &[(0, baseline::host_ports)], instead_of: "" },
    Check { id: "hostProbesAndHostLifecycle", level: Level::Baseline, versions: &[(34, baseline::probed_hosts)], instead_of: "" },
    Check { id: "privileged", level: Level::Baseline, versions: &[(0, baseline::privileged)], instead_of: "" },
    Check { id: "procMount_baseline", level: Level::Baseline, versions: &[(0, baseline::proc_mount_0), (35, baseline::proc_mount_35)], instead_of: "" },
    Check { id: "seLinuxOptions", level: Level::Baseline, versions: &[(0, baseline::se_linux_0), (31, baseline::se_linux_31)], instead_of: "" },
    Check { id: "seccompProfile_baseline", level: Level::Baseline, versions: &[(0, baseline::seccomp_annotations), (19, baseline::seccomp)], instead_of: "" },
    Check { id: "sysctls", level: Level::Baseline, versions: &[(0, baseline::sysctls_0), (27, baseline::sysctls_27), (29, baseline::sysctls_29), (32, baseline::sysctls_32)], instead_of: "" },
    Check { id: "windowsHostProcess", level: Level::Baseline, versions: &[(0, baseline::windows_host_process)], instead_of: "" },
    Check { id: "allowPrivilegeEscalation", level: Level::Restricted, versions: &[(8, restricted::escalation), (25, restricted::escalation_25)], instead_of: "" },
    Check { id: "capabilities_restricted", level: Level::Restricted, versions: &[(22, restricted::capabilities), (25, restricted::capabilities_25)], instead_of: "capabilities_baseline" },
    Check { id: "procMount_restricted", level: Level::Restricted, versions: &[(35, baseline::proc_mount_0)], instead_of: "procMount_baseline" },
    Check { id: "restrictedVolumes", level: Level::Restricted, versions: &[(0, restricted::volumes)], instead_of: "hostPathVolumes" },
    Check { id: "runAsNonRoot", level: Level::Restricted, versions: &[(0, restricted::non_root), (35, restricted::non_root_35)], instead_of: "" },
    Check { id: "runAsUser", level: Level::Restricted, versions: &[(23, restricted::user), (35, restricted::user_35)], instead_of: "" },
    Check { id: "seccompProfile_restricted", level: Level::Restricted, versions: &[(19, restricted::seccomp), (25, restricted::seccomp_25)], instead_of: "seccompProfile_baseline" },
];

impl Check {
    /// The function for a version; `None` if the check is newer.
    fn at(&self, version: Version) -> Option<CheckFn> {
        let in_force = |since: u32| match version {
            Version::Latest => true,
            Version::Minor(minor) => since <= minor,
        };
        self.versions.iter().rev().find(|(since, _)| in_force(*since)).map(|(_, check)| *check)
    }
}

/// All violations of a standard by a Pod.
pub(crate) fn violations(standard: Standard, pod: Pod<'_>) -> Vec<Violation> {
    let in_force: Vec<(&Check, CheckFn)> = CHECKS
        .iter()
        .filter(|check| check.level <= standard.level)
        .filter_map(|check| Some((check, check.at(standard.version)?)))
        .collect();
    let is_replaced = |id: &str| in_force.iter().any(|(check, _)| check.instead_of == id);
    in_force.iter().filter(|(check, _)| !is_replaced(check.id)).filter_map(|(_, check)| check(pod)).collect()
}
