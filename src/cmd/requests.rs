//! Flags for the server's audit log and request limits.

use std::{fs, path::PathBuf, sync::Arc};

use anyhow::{Context, bail};
use podwright_runtime::sys::own;

use crate::{
    api::Env,
    server::{
        Limits,
        audit::{Audit, LogTarget, Policy},
    },
};

#[derive(Clone, Debug, clap::Args)]
pub struct RequestArgs {
    /// File that defines the audit policy configuration (audit.k8s.io/v1 Policy)
    #[arg(long, value_name = "FILE", requires = "audit_log_path")]
    pub audit_policy_file: Option<PathBuf>,
    /// File to write audit events to; -: standard out
    #[arg(long, value_name = "FILE", requires = "audit_policy_file")]
    pub audit_log_path: Option<PathBuf>,
    /// Maximum size in megabytes of the audit log file before it gets rotated; 0: unlimited
    #[arg(long, value_name = "MB", default_value_t = 100)]
    pub audit_log_maxsize: u64,
    /// Maximum number of old audit log files to retain; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub audit_log_maxbackup: usize,
    /// Maximum number of days to retain old audit log files; 0: forever
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    pub audit_log_maxage: u16,
    /// Maximum number of non-mutating requests in flight at a given time
    #[arg(long, value_name = "N", default_value_t = Limits::default().inflight)]
    pub max_requests_inflight: usize,
    /// Maximum number of mutating requests in flight at a given time
    #[arg(long, value_name = "N", default_value_t = Limits::default().mutating_inflight)]
    pub max_mutating_requests_inflight: usize,
}

impl RequestArgs {
    pub fn limits(&self) -> anyhow::Result<Limits> {
        let (inflight, mutating_inflight) = (self.max_requests_inflight, self.max_mutating_requests_inflight);
        if inflight == 0 || mutating_inflight == 0 {
            bail!("--max-requests-inflight and --max-mutating-requests-inflight: at least 1");
        }
        let limits = Limits { inflight, mutating_inflight, ..Limits::default() };
        let descriptors = own::descriptor_limit().context("getrlimit RLIMIT_NOFILE")?;
        let within = limits.clone().within(descriptors);
        if within.connections < limits.connections {
            let connections = within.connections;
            tracing::warn!(
                connections,
                descriptors,
                "fewer connections than usual: so few descriptors may be open (ulimit -Hn)"
            );
        }
        Ok(within)
    }

    /// Opens the audit log, if configured.
    pub fn audit(&self, env: &Env) -> anyhow::Result<Option<Arc<Audit>>> {
        let (Some(policy), Some(path)) = (&self.audit_policy_file, &self.audit_log_path) else { return Ok(None) };
        let shown = policy.display();
        let text = fs::read_to_string(policy).with_context(|| format!("--audit-policy-file {shown}"))?;
        let policy = Policy::parse(&text).map_err(anyhow::Error::msg);
        let policy = policy.with_context(|| format!("--audit-policy-file {shown}"))?;
        let place = LogTarget {
            path: Some(path.clone()).filter(|path| path.as_os_str() != "-"),
            max_size: self.audit_log_maxsize,
            max_backups: self.audit_log_maxbackup,
            max_age: self.audit_log_maxage.into(),
        };
        let opened = Audit::open(policy, place, env.clone());
        Ok(Some(Arc::new(opened.with_context(|| format!("--audit-log-path {}", path.display()))?)))
    }
}
