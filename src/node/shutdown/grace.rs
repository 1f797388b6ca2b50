//! How much time Pods get when the machine shuts down, by their priority. Pure. KEP-2000, KEP-2712.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use podwright_api::duration;

use crate::spec::PodExt;

/// `SystemCriticalPriority`: where critical Pods begin.
const CRITICAL: i32 = 2_000_000_000;

/// The shortest grace period that is not none.
const LEAST: Duration = Duration::from_secs(1);

/// Grace periods by priority, as `shutdownGracePeriodByPodPriority` of upstream's `KubeletConfiguration`. Empty: the machine does not
/// wait for Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GracePeriods(BTreeMap<i32, Duration>);

/// Why grace periods are refused, with the field as its flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GracePeriodError {
    #[error("{0}: expected PRIORITY=DURATION, as 100000=20s")]
    Malformed(String),
    #[error("{0}: the priority is named twice")]
    Repeated(i32),
    #[error("--{flag} {got}: must be either zero or otherwise >= 1 sec", got = duration::go(*.got))]
    TooShort { flag: &'static str, got: Duration },
    #[error("--shutdown-grace-period-critical-pods must be <= --shutdown-grace-period")]
    CriticalIsLonger,
    #[error("cannot specify both --shutdown-grace-period-by-pod-priority and --shutdown-grace-period")]
    Both,
}

impl FromStr for GracePeriods {
    type Err = GracePeriodError;

    /// `PRIORITY=DURATION`, separated by commas.
    fn from_str(text: &str) -> Result<GracePeriods, GracePeriodError> {
        let mut all = BTreeMap::new();
        for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let malformed = || GracePeriodError::Malformed(one.to_owned());
            let (priority, period) = one.split_once('=').ok_or_else(malformed)?;
            let priority = priority.trim().parse().map_err(|_| malformed())?;
            let period = duration::parse(period.trim()).ok_or_else(malformed)?;
            if all.insert(priority, valid("shutdown-grace-period-by-pod-priority", period)?).is_some() {
                return Err(GracePeriodError::Repeated(priority));
            }
        }
        Ok(GracePeriods(all))
    }
}

/// A grace period that may be given.
fn valid(flag: &'static str, got: Duration) -> Result<Duration, GracePeriodError> {
    if got > Duration::ZERO && got < LEAST { Err(GracePeriodError::TooShort { flag, got }) } else { Ok(got) }
}

impl fmt::Display for GracePeriods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> =
            self.periods().map(|(priority, period)| format!("{priority}={}", duration::go(period))).collect();
        f.write_str(&all.join(","))
    }
}

/// Pods that end together.
#[derive(Debug, PartialEq)]
pub struct Group {
    /// How long the machine waits for them.
    pub grace: Duration,
    pub pods: Vec<Arc<Pod>>,
}

impl GracePeriods {
    /// From `total`, of which critical Pods have the last `critical`, or `by_priority`.
    ///
    /// # Errors
    ///
    /// Upstream's `ValidateKubeletConfiguration`.
    pub fn new(
        total: Duration,
        critical: Duration,
        by_priority: GracePeriods,
    ) -> Result<GracePeriods, GracePeriodError> {
        let total = valid("shutdown-grace-period", total)?;
        let critical = valid("shutdown-grace-period-critical-pods", critical)?;
        if critical > total {
            return Err(GracePeriodError::CriticalIsLonger);
        }
        match (total.is_zero(), by_priority.0.is_empty()) {
            (false, false) => Err(GracePeriodError::Both),
            (true, _) => Ok(by_priority),
            (false, true) => Ok(GracePeriods(BTreeMap::from([(0, total - critical), (CRITICAL, critical)]))),
        }
    }

    /// Whether the machine waits for no Pod.
    pub fn is_none(&self) -> bool {
        self.total().is_zero()
    }

    /// How long the machine waits for all.
    pub fn total(&self) -> Duration {
        self.0.values().fold(Duration::ZERO, |all, one| all.saturating_add(*one))
    }

    /// Priorities with their periods, the lowest first.
    pub fn periods(&self) -> impl Iterator<Item = (i32, Duration)> {
        self.0.iter().map(|(priority, period)| (*priority, *period))
    }

    /// Groups Pods in the order in which they end: each belongs to the highest priority that is not above its own, or to the lowest.
    pub fn groups(&self, pods: Vec<Arc<Pod>>) -> Vec<Group> {
        let mut groups: BTreeMap<i32, Group> =
            self.0.iter().map(|(from, grace)| (*from, Group { grace: *grace, pods: Vec::new() })).collect();
        for pod in pods {
            let priority = pod.spec().priority.unwrap_or(0);
            let own = self.0.range(..=priority).next_back().or_else(|| self.0.iter().next()).map(|(from, _)| *from);
            if let Some(group) = own.and_then(|from| groups.get_mut(&from)) {
                group.pods.push(pod);
            }
        }
        groups.into_values().filter(|group| !group.pods.is_empty()).collect()
    }
}

impl Group {
    /// Whether `pod` is one of them.
    pub fn has(&self, pod: &Pod) -> bool {
        self.pods.iter().any(|own| own.uid() == pod.uid())
    }

    /// The grace period of one of its Pods, in seconds: its own, but not longer than the group's.
    pub fn grace_of(&self, pod: &Pod) -> i64 {
        pod.grace().min(i64::try_from(self.grace.as_secs()).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn pod(name: &str, priority: Option<i32>, grace: i64) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        let spec = pod.spec.get_or_insert_default();
        spec.priority = priority;
        spec.termination_grace_period_seconds = Some(grace);
        Arc::new(pod)
    }

    #[test]
    fn critical_pods_have_the_last_part() {
        let periods = GracePeriods::new(seconds(30), seconds(10), GracePeriods::default()).expect("valid");
        assert_eq!((periods.to_string().as_str(), periods.total()), ("0=20s,2000000000=10s", seconds(30)));
        let alone = GracePeriods::new(seconds(30), seconds(0), GracePeriods::default()).expect("valid");
        assert_eq!((alone.total(), alone.is_none()), (seconds(30), false));
        assert!(GracePeriods::new(seconds(0), seconds(0), GracePeriods::default()).expect("valid").is_none());
    }

    #[test]
    fn grace_periods_are_refused_as_upstream_refuses_them() {
        let some = || "1=5s".parse::<GracePeriods>().expect("valid");
        let refused = |total, critical, by| GracePeriods::new(total, critical, by).map_err(|why| why.to_string());
        let none = GracePeriods::default;
        for (total, critical, by, why) in [
            (
                seconds(5),
                seconds(6),
                none(),
                "--shutdown-grace-period-critical-pods must be <= --shutdown-grace-period",
            ),
            (
                Duration::from_millis(1),
                seconds(0),
                none(),
                "--shutdown-grace-period 1ms: must be either zero or otherwise >= 1 sec",
            ),
            (
                seconds(5),
                seconds(0),
                some(),
                "cannot specify both --shutdown-grace-period-by-pod-priority and --shutdown-grace-period",
            ),
        ] {
            assert_eq!(refused(total, critical, by), Err(why.to_owned()));
        }
        for (text, why) in [
            ("5s", "5s: expected PRIORITY=DURATION, as 100000=20s"),
            ("x=5s", "x=5s: expected PRIORITY=DURATION, as 100000=20s"),
            ("1=5", "1=5: expected PRIORITY=DURATION, as 100000=20s"),
            ("1=5s,1=6s", "1: the priority is named twice"),
            ("1=5ms", "--shutdown-grace-period-by-pod-priority 5ms: must be either zero or otherwise >= 1 sec"),
        ] {
            assert_eq!(text.parse::<GracePeriods>().map_err(|why| why.to_string()), Err(why.to_owned()));
        }
    }

    #[test]
    fn pods_end_by_priority_and_lower_ones_than_any_with_the_first() {
        let periods: GracePeriods = "-5=3s, 100=20s,2000000000=10s".parse().expect("valid");
        let pods = [
            pod("last", Some(i32::MAX), 30),
            pod("below", Some(-6), 30),
            pod("plain", None, 2),
            pod("middle", Some(100), 30),
            pod("most", Some(99), 30),
        ];
        let groups = periods.groups(pods.to_vec());
        let shown: Vec<(u64, Vec<(&str, i64)>)> = groups
            .iter()
            .map(|group| (group.grace.as_secs(), group.pods.iter().map(|p| (p.name(), group.grace_of(p))).collect()))
            .collect();
        let expected =
            [(3, vec![("below", 3), ("plain", 2), ("most", 3)]), (20, vec![("middle", 20)]), (10, vec![("last", 10)])];
        assert_eq!(shown, expected);
        assert!(GracePeriods::default().groups(pods.to_vec()).is_empty());
    }
}
