//! The volumes of a Pod, each with its own state and retries. If many fail, their retries are rate-limited together.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use crate::backoff::{LONGEST_STEP, later, pause, retry_step};

/// Up to this many failing volumes of a Pod are retried independently; more are rate-limited together.
const FEW: usize = 4;
/// The Pod's pause after retrying a volume that had failed once; doubles with each failure.
const PACE: Duration = Duration::from_millis(250);
/// The longest such pause.
const LONGEST_PACE: Duration = Duration::from_secs(4);

/// The progress of all volumes of a Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PodVolumes {
    /// None is set up, or all are unmounted.
    #[default]
    Absent,
    Present(VolumeStates),
    /// All at once: they share the Pod's folder and its tmpfs.
    Unmounting,
}

/// The progress of each volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeStates {
    /// By name. One that is missing here is pending.
    by_name: BTreeMap<String, VolumeState>,
    /// If many have failed, none is retried before this time, however many are due: a Pod may have a thousand.
    next_try: Option<Timestamp>,
}

/// The progress of one volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum VolumeState {
    #[default]
    Pending,
    /// `failures`: consecutive failures so far.
    Mounting {
        failures: u32,
    },
    Mounted,
    /// Retried at `retry_at`.
    Failed {
        failures: u32,
        retry_at: Timestamp,
    },
}

impl VolumeState {
    /// Until when the retry waits; `None`: it is due, or has not failed.
    pub fn waits(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            VolumeState::Failed { retry_at, .. } => pause(Some(*retry_at), LONGEST_STEP, now),
            _ => None,
        }
    }

    fn failures(&self) -> u32 {
        match self {
            VolumeState::Mounting { failures } | VolumeState::Failed { failures, .. } => *failures,
            VolumeState::Pending | VolumeState::Mounted => 0,
        }
    }
}

impl PodVolumes {
    pub fn get(&self, name: &str) -> &VolumeState {
        static PENDING: VolumeState = VolumeState::Pending;
        match self {
            PodVolumes::Present(states) => states.by_name.get(name).unwrap_or(&PENDING),
            PodVolumes::Absent | PodVolumes::Unmounting => &PENDING,
        }
    }

    pub fn is_mounted(&self, name: &str) -> bool {
        *self.get(name) == VolumeState::Mounted
    }

    /// Whether so many fail that they are retried one at a time.
    pub fn is_paced(&self) -> bool {
        self.known().filter(|(_, state)| state.failures() > 0).count() > FEW
    }

    /// Until when rate-limited volumes wait; `None`: one may be retried.
    pub fn rests(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            PodVolumes::Present(states) => pause(states.next_try, LONGEST_PACE, now),
            PodVolumes::Absent | PodVolumes::Unmounting => None,
        }
    }

    /// The names of the mounted ones.
    pub fn mounted(&self) -> Vec<String> {
        let mounted = self.known().filter(|(_, state)| **state == VolumeState::Mounted);
        mounted.map(|(name, _)| name.to_owned()).collect()
    }

    /// How many are being mounted.
    pub fn mounting(&self) -> usize {
        self.known().filter(|(_, state)| matches!(state, VolumeState::Mounting { .. })).count()
    }

    /// Whether any operation is in progress.
    pub fn is_busy(&self) -> bool {
        *self == PodVolumes::Unmounting || self.mounting() > 0
    }

    /// The Pod has something to release from now on.
    pub(super) fn hold(&mut self) {
        if *self == PodVolumes::Absent {
            *self = PodVolumes::Present(VolumeStates::default());
        }
    }

    pub(super) fn begin(&mut self, name: &str, now: Timestamp) {
        let failures = self.get(name).failures();
        self.set(name, VolumeState::Mounting { failures });
        if let (PodVolumes::Present(states), 1..) = (self, failures) {
            let pace = PACE * (1 << (failures - 1).min(8));
            states.next_try = Some(later(now, pace.min(LONGEST_PACE)));
        }
    }

    /// A mount attempt ended. A success after failures is a reason to retry the others.
    pub(super) fn ended(&mut self, name: &str, succeeded: bool, now: Timestamp) {
        let failures = self.get(name).failures();
        let failed =
            || VolumeState::Failed { failures: failures.saturating_add(1), retry_at: retry_step(failures, now) };
        self.set(name, if succeeded { VolumeState::Mounted } else { failed() });
        if let (PodVolumes::Present(states), true) = (self, succeeded) {
            states.next_try = None;
        }
    }

    /// Their sources have changed: failed ones are due.
    pub(super) fn retry(&mut self, now: Timestamp) {
        let PodVolumes::Present(states) = self else { return };
        for state in states.by_name.values_mut() {
            if let VolumeState::Failed { retry_at, .. } = state {
                // Those due already keep their place before the others.
                *retry_at = now.min(*retry_at);
            }
        }
    }

    fn known(&self) -> impl Iterator<Item = (&str, &VolumeState)> {
        let states = match self {
            PodVolumes::Present(states) => Some(&states.by_name),
            PodVolumes::Absent | PodVolumes::Unmounting => None,
        };
        states.into_iter().flatten().map(|(name, state)| (name.as_str(), state))
    }

    fn set(&mut self, name: &str, state: VolumeState) {
        self.hold();
        if let PodVolumes::Present(states) = self {
            states.by_name.insert(name.to_owned(), state);
        }
    }
}
