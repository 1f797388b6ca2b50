//! When a disk is too full, and which Pod is evicted: thresholds, ranking, messages. Pure.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/>

use std::{cmp::Reverse, fmt, str::FromStr, sync::Arc};

use k8s_openapi::api::core::v1::Pod;

use super::limits::{Usage, bytes};
use crate::{
    pod::intent::Failure,
    qos,
    spec::{ContainerRef, PodExt, is_critical},
};
use podwright_api::{Quantity, pod_resources, quantity::Format};

/// The disk part of upstream's `DefaultEvictionHard`.
pub const DEFAULT: &str = "nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%";
/// For an isolated node: a guest on a machine that may be full for other reasons, so only the very end counts.
pub const ISOLATED: &str = "nodefs.available<16Mi,nodefs.inodesFree<1k";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The file system with volumes, writable layers and logs.
    NodefsAvailable,
    NodefsInodesFree,
    /// The one with images; often the same.
    ImagefsAvailable,
    ImagefsInodesFree,
}

const SIGNALS: [(&str, Signal); 4] = [
    ("nodefs.available", Signal::NodefsAvailable),
    ("nodefs.inodesFree", Signal::NodefsInodesFree),
    ("imagefs.available", Signal::ImagefsAvailable),
    ("imagefs.inodesFree", Signal::ImagefsInodesFree),
];

impl Signal {
    pub fn name(self) -> &'static str {
        // Invariant: the table has all of them.
        SIGNALS.iter().find(|(_, signal)| *signal == self).map_or("", |(name, _)| name)
    }
}

/// How much must stay free.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Least {
    /// Percent of the capacity.
    Percent(f64),
    Amount(Quantity),
}

/// Why a text is not a valid [`Thresholds`]: the text, or the wrong part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    #[error("{0}: expected SIGNAL<QUANTITY")]
    Malformed(String),
    #[error("{0}: this node knows the signals {known}", known = SIGNALS.map(|(name, _)| name).join(", "))]
    UnknownSignal(String),
    #[error("{0}: expected a percentage from 0% to 100%")]
    Percentage(String),
    #[error("{0}: expected a quantity, such as 1Gi, or a percentage")]
    Quantity(String),
    #[error("{0}: a signal is named twice")]
    Repeated(String),
}

/// `--eviction-hard`: how much of which disk must stay free; Pods are evicted at once below it.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds(Vec<(Signal, Least)>);

impl Default for Thresholds {
    fn default() -> Thresholds {
        // Invariant: a constant, parsed by a test.
        DEFAULT.parse().expect("the default thresholds")
    }
}

impl FromStr for Thresholds {
    type Err = ThresholdError;

    /// `SIGNAL<QUANTITY` or `SIGNAL<PERCENT%`, separated by commas; empty for none.
    fn from_str(text: &str) -> Result<Thresholds, ThresholdError> {
        let statements = text.split(',').map(str::trim).filter(|statement| !statement.is_empty());
        let all: Vec<(Signal, Least)> = statements.map(threshold).collect::<Result<_, _>>()?;
        match (1..all.len()).find(|i| all[..*i].iter().any(|(signal, _)| *signal == all[*i].0)) {
            Some(_) => Err(ThresholdError::Repeated(text.to_owned())),
            None => Ok(Thresholds(all)),
        }
    }
}

fn threshold(text: &str) -> Result<(Signal, Least), ThresholdError> {
    let wrong = |why: fn(String) -> ThresholdError| why(text.to_owned());
    let (name, least) = text.split_once('<').ok_or_else(|| wrong(ThresholdError::Malformed))?;
    let signal = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
    let signal = signal.ok_or_else(|| wrong(ThresholdError::UnknownSignal))?;
    let least = match least.strip_suffix('%') {
        Some(percent) => match percent.parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Least::Percent(percent),
            _ => return Err(wrong(ThresholdError::Percentage)),
        },
        None => match least.parse::<Quantity>() {
            Ok(amount) if !amount.is_negative() => Least::Amount(amount),
            _ => return Err(wrong(ThresholdError::Quantity)),
        },
    };
    Ok((signal, least))
}

impl Thresholds {
    /// In the form of `evictionHard`: signals and what must stay free.
    pub fn shown(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.0.iter().map(|(signal, least)| {
            let least = match least {
                Least::Percent(percent) => format!("{percent}%"),
                Least::Amount(amount) => amount.to_string(),
            };
            (signal.name(), least)
        })
    }

    /// How many bytes of a Pods' disk of this capacity must stay free: not allocatable to Pods.
    pub fn reserved(&self, capacity: i64) -> i64 {
        let least = self.0.iter().find(|(signal, _)| *signal == Signal::NodefsAvailable).map(|(_, least)| *least);
        match least {
            Some(Least::Amount(amount)) => amount.value().min(capacity),
            Some(Least::Percent(percent)) => (capacity as f64 * percent / 100.0) as i64,
            None => 0,
        }
    }
}

/// The size of a file system, and the space free for everyone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub bytes: u64,
    pub bytes_free: u64,
    /// 0: allocated on demand.
    pub inodes: u64,
    pub inodes_free: u64,
}

/// The disks of a node; `None`: it has none, or cannot read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disks {
    pub nodefs: Option<Space>,
    pub imagefs: Option<Space>,
    /// Images and Pods share a file system.
    pub shared: bool,
}

/// What a disk is short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Storage,
    Inodes,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Storage => "ephemeral-storage",
            Resource::Inodes => "inodes",
        })
    }
}

/// A threshold that is crossed.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortage {
    pub signal: Signal,
    pub resource: Resource,
    pub threshold: Quantity,
    pub available: Quantity,
    /// Pods use the disk, so that evicting one helps.
    pub of_pods: bool,
}

/// The first threshold that is crossed, those of the Pods' disk first.
pub fn shortage(thresholds: &Thresholds, disks: &Disks) -> Option<Shortage> {
    let met = thresholds.0.iter().filter_map(|(signal, least)| {
        let node = matches!(signal, Signal::NodefsAvailable | Signal::NodefsInodesFree);
        let space = if node { disks.nodefs } else { disks.imagefs }?;
        let (resource, capacity, free, format) = match signal {
            Signal::NodefsAvailable | Signal::ImagefsAvailable => {
                (Resource::Storage, space.bytes, space.bytes_free, Format::BinarySi)
            }
            Signal::NodefsInodesFree | Signal::ImagefsInodesFree => {
                (Resource::Inodes, space.inodes, space.inodes_free, Format::DecimalSi)
            }
        };
        let whole = |n: u64| Quantity::from_units(i64::try_from(n).unwrap_or(i64::MAX), format);
        let threshold = match least {
            Least::Amount(amount) => *amount,
            Least::Percent(percent) => whole((capacity as f64 * percent / 100.0) as u64),
        };
        let available = whole(free);
        let short = capacity > 0 && available.value() < threshold.value();
        short.then_some(Shortage { signal: *signal, resource, threshold, available, of_pods: node || disks.shared })
    });
    let mut met: Vec<Shortage> = met.collect();
    met.sort_by_key(|shortage| !shortage.of_pods);
    met.into_iter().next()
}

/// Whether the images' disk crosses a threshold, so that removing images helps.
pub fn images_help(thresholds: &Thresholds, disks: &Disks) -> bool {
    let nodefs = disks.nodefs.filter(|_| disks.shared);
    shortage(thresholds, &Disks { nodefs, ..*disks }).is_some()
}

/// Whether the shortage would end if Pods' measured usage were gone. One that cannot be measured may account for all of it.
pub fn explains<'a>(pods: impl IntoIterator<Item = Option<&'a Usage>>, shortage: &Shortage) -> bool {
    let lacks = shortage.threshold.value().saturating_sub(shortage.available.value());
    let had = |usage: Option<&Usage>| match (usage.map(Usage::total), shortage.resource) {
        (Some(total), Resource::Inodes) if !total.evades => i64::try_from(total.inodes).unwrap_or(i64::MAX),
        (Some(total), Resource::Storage) => bytes(total),
        _ => i64::MAX,
    };
    pods.into_iter().fold(0i64, |sum, usage| sum.saturating_add(had(usage))) >= lacks
}

/// Pods with their disk usage (`None`: unknown), in eviction order: those above their request, then lower priority, then further
/// above the request. Critical Pods are left out.
pub fn rank(pods: Vec<(Arc<Pod>, Option<Usage>)>, resource: Resource) -> Vec<(Arc<Pod>, Option<Usage>)> {
    let mut ranked: Vec<_> = pods.into_iter().filter(|(pod, _)| !is_critical(pod)).collect();
    ranked.sort_by_cached_key(|(pod, usage)| {
        let Some(usage) = usage else { return (false, false, 0, Reverse(i64::MAX)) };
        let (used, requested) = match resource {
            Resource::Storage => (bytes(usage.total()), pod_resources::requests(pod).ephemeral_storage),
            Resource::Inodes if usage.total().evades => (i64::MAX, 0),
            Resource::Inodes => (i64::try_from(usage.total().inodes).unwrap_or(i64::MAX), 0),
        };
        let priority = pod.spec().priority.unwrap_or(0);
        (true, used <= requested, priority, Reverse(used.saturating_sub(requested)))
    });
    ranked
}

/// Upstream's message for an eviction due to a shortage.
pub fn message(shortage: &Shortage, pod: &Pod, usage: Option<&Usage>) -> String {
    let Shortage { resource, threshold, available, .. } = shortage;
    let low =
        format!("The node was low on resource: {resource}. Threshold quantity: {threshold}, available: {available}. ");
    let more = |part: &ContainerRef<'_>| {
        let used = bytes(usage?.containers.get(part.name())?.total());
        let request = qos::request(&part.container, "ephemeral-storage").map_or(0, qos::units);
        let shown = |n: i64| Quantity::from_units(n, Format::BinarySi);
        (used > request && *resource == Resource::Storage).then(|| {
            let (name, used, request) = (part.name(), shown(used), shown(request));
            format!("Container {name} was using {used}, request is {request}, has larger consumption of {resource}. ")
        })
    };
    pod.parts().iter().filter_map(more).fold(low, |text, more| text + &more)
}

/// Checks whether a node accepts a Pod under disk pressure.
///
/// # Errors
///
/// `Evicted`: the disk is too full, and the Pod is not critical.
pub fn admit(pod: &Pod, pressure: bool) -> Result<(), Failure> {
    if !pressure || is_critical(pod) {
        return Ok(());
    }
    let message = "Pod was rejected: The node had condition: [DiskPressure]. ".to_owned();
    Err(Failure { reason: "Evicted".to_owned(), message })
}

#[cfg(test)]
mod tests {
    use podwright_runtime::sys::walk::Measure;

    use super::*;

    fn space(bytes_free: u64) -> Option<Space> {
        Some(Space { bytes: 1000, bytes_free, inodes: 0, inodes_free: 0 })
    }

    #[test]
    fn images_go_where_that_helps() {
        let thresholds = Thresholds::default();
        for (nodefs, imagefs, shared, helps) in [
            (50, 900, false, false),
            (50, 50, true, true),
            (120, 120, true, true),
            (900, 50, false, true),
            (900, 900, true, false),
        ] {
            let disks = Disks { nodefs: space(nodefs), imagefs: space(imagefs), shared };
            assert_eq!(images_help(&thresholds, &disks), helps, "{disks:?}");
        }
    }

    #[test]
    fn a_shortage_is_explained_by_who_has_as_much_or_cannot_be_measured() {
        let disks = Disks { nodefs: space(40), ..Disks::default() };
        let shortage = shortage(&Thresholds::default(), &disks).unwrap();
        let usage = |bytes, evades| Usage { rest: Measure { bytes, evades, ..Measure::default() }, ..Usage::default() };
        let (small, half, evading) = (usage(20, false), usage(30, false), usage(0, true));
        assert!(!explains([], &shortage));
        assert!(!explains([Some(&small), Some(&half)], &shortage));
        assert!(explains([Some(&half), Some(&half)], &shortage));
        assert!(explains([Some(&evading)], &shortage));
        assert!(explains([Some(&small), None], &shortage));
    }
}
