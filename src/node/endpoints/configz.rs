//! `/configz`: the parts of upstream's `KubeletConfiguration` that apply here. Pure.

use std::collections::BTreeMap;

use podwright_runtime::{BIRTH, LogSpec};
use serde_json::{Map, Value, json};

use crate::{Config, KUBELET_PORT, register, storage};
use podwright_api::{Quantity, duration, quantity::Format};

pub fn render(config: &Config) -> Value {
    let eviction: BTreeMap<&str, String> = config.eviction_hard.shown().collect();
    let shutdown: Vec<Value> = config
        .shutdown_grace_periods
        .periods()
        .map(|(priority, period)| json!({ "priority": priority, "shutdownGracePeriodSeconds": period.as_secs() }))
        .collect();
    let log = LogSpec::new("");
    let log_size = Quantity::from_units(i64::try_from(log.max_bytes).unwrap_or(i64::MAX), Format::BinarySi);
    let (verification, allowlist) = config.verification.shown();
    let (manifests, sysctls): (_, Vec<&str>) = (&config.manifests, config.sysctls.unsafe_ones().collect());
    let fields = [
        ("staticPodPath", manifests.as_ref().map(|path| json!(path))),
        ("podLogsDir", Some(json!(config.log_dir))),
        ("port", Some(json!(KUBELET_PORT))),
        ("registerNode", Some(json!(true))),
        ("clusterDomain", Some(json!(config.cluster_domain))),
        ("clusterDNS", Some(json!(config.cluster_dns))),
        ("resolvConf", Some(json!(config.resolv_conf))),
        ("nodeStatusUpdateFrequency", Some(json!(duration::go(register::HEARTBEAT)))),
        ("nodeStatusReportFrequency", Some(json!(duration::go(register::REPORT)))),
        ("nodeLeaseDurationSeconds", Some(json!(register::LEASE_SECONDS))),
        ("runtimeRequestTimeout", Some(json!(duration::go(BIRTH)))),
        ("volumeStatsAggPeriod", Some(json!(duration::go(super::disk::PERIOD)))),
        ("cgroupDriver", Some(json!("cgroupfs"))),
        ("cgroupsPerQOS", Some(json!(true))),
        ("maxPods", Some(json!(config.max_pods))),
        ("podPidsLimit", Some(config.pod_pids_max.map_or(json!(-1), Value::from))),
        ("evictionHard", Some(json!(eviction))),
        ("evictionPressureTransitionPeriod", Some(json!(duration::go(storage::TRANSITION)))),
        ("shutdownGracePeriodByPodPriority", (!config.shutdown_grace_periods.is_none()).then(|| json!(shutdown))),
        ("containerLogMaxSize", Some(json!(log_size.to_string()))),
        ("containerLogMaxFiles", Some(json!(log.max_files))),
        ("seccompDefault", Some(json!(true))),
        ("localStorageCapacityIsolation", Some(json!(true))),
        ("allowedUnsafeSysctls", (!sysctls.is_empty()).then(|| json!(sysctls))),
        ("imagePullCredentialsVerificationPolicy", Some(json!(verification))),
        ("preloadedImagesVerificationAllowlist", (!allowlist.is_empty()).then(|| json!(allowlist))),
    ];
    let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    json!({ "kubeletconfig": Value::Object(known.collect::<Map<_, _>>()) })
}
