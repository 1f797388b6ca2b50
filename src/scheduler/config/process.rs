//! `KubeSchedulerConfiguration`'s settings for a separate process: invalid values are refused as upstream does, valid ones have no
//! effect, as the scheduler is part of the server.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::KubeSchedulerConfiguration;
use podwright_api::configuration::FieldError;
use podwright_api::duration;

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LeaderElection {
    leader_elect: Option<bool>,
    lease_duration: Option<String>,
    renew_deadline: Option<String>,
    retry_period: Option<String>,
    resource_lock: Option<String>,
    resource_name: Option<String>,
    resource_namespace: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClientConnection {
    kubeconfig: Option<String>,
    accept_content_types: Option<String>,
    content_type: Option<String>,
    qps: Option<f64>,
    burst: Option<i64>,
}

/// The fields that are set.
pub(super) fn ignored(file: &KubeSchedulerConfiguration) -> Vec<&'static str> {
    let fields = [
        ("parallelism", file.parallelism.is_some()),
        ("leaderElection", file.leader_election.is_some()),
        ("clientConnection", file.client_connection.is_some()),
        ("enableProfiling", file.enable_profiling.is_some()),
        ("enableContentionProfiling", file.enable_contention_profiling.is_some()),
        ("delayCacheUntilActive", file.delay_cache_until_active.is_some()),
    ];
    fields.into_iter().filter(|(_, given)| *given).map(|(field, _)| field).collect()
}

pub(super) fn check(file: &KubeSchedulerConfiguration) -> Result<(), FieldError> {
    if let Some(parallelism @ ..=0) = file.parallelism {
        let why = "should be an integer value greater than zero";
        return Err(FieldError::invalid("parallelism", format!("{parallelism}: {why}")));
    }
    let burst = file.client_connection.as_ref().and_then(|connection| connection.burst);
    if let Some(burst @ ..=-1) = burst {
        return Err(FieldError::invalid("clientConnection.burst", format!("{burst}: must be non-negative")));
    }
    let election = file.leader_election.as_ref().map_or(Ok(()), LeaderElection::check);
    election.map_err(|why| why.below("leaderElection."))
}

impl LeaderElection {
    fn check(&self) -> Result<(), FieldError> {
        let lease = time("leaseDuration", self.lease_duration.as_deref(), 15)?;
        let deadline = time("renewDeadline", self.renew_deadline.as_deref(), 10)?;
        let retry = time("retryPeriod", self.retry_period.as_deref(), 2)?;
        if self.leader_elect == Some(false) {
            return Ok(());
        }
        if lease <= deadline {
            return Err(FieldError::invalid("leaseDuration", "LeaseDuration must be greater than RenewDeadline"));
        }
        if deadline <= retry {
            return Err(FieldError::invalid("renewDeadline", "RenewDeadline must be greater than RetryPeriod"));
        }
        match self.resource_lock.as_deref() {
            None | Some("" | "leases") => Ok(()),
            Some(other) => {
                Err(FieldError::invalid("resourceLock", format!("{other:?}: resourceLock value must be \"leases\"")))
            }
        }
    }
}

/// Absent and zero mean the default.
fn time(field: &str, text: Option<&str>, seconds: u64) -> Result<Duration, FieldError> {
    let invalid = |text: &str| FieldError::invalid(field, format!("{text:?}: must be a duration greater than zero"));
    let given = text.map(|text| duration::parse(text).ok_or_else(|| invalid(text))).transpose()?;
    Ok(given.filter(|time| !time.is_zero()).unwrap_or(Duration::from_secs(seconds)))
}
