//! The volumes of a Pod, each with a state of its own: one that cannot be had is tried again alone. Many of them share a pace.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use crate::backoff::{LONGEST_STEP, later, pause, retry_step};

/// So many volumes of a Pod that fail are tried again each when it is due; more of them share a pace.
const FEW: usize = 4;
/// The pause of a Pod after it has tried a volume again that had failed once; it doubles with each failure.
const PACE: Duration = Duration::from_millis(250);
/// The longest such pause.
const LONGEST_PACE: Duration = Duration::from_secs(4);

/// How far all volumes of a Pod are.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PodVolumes {
    /// None has been made, or all are unmounted.
    #[default]
    Absent,
    Present(VolumeStates),
    /// All of them at once: they share the Pod's folder and its tmpfs.
    Unmounting,
}

/// How far each volume is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeStates {
    /// By their names in the Pod. One that is not here is pending.
    by_name: BTreeMap<String, VolumeState>,
    /// Before then none of many that have failed is tried again, however many are due: a Pod has room for a thousand.
    next_try: Option<Timestamp>,
}

/// How far one volume is.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum VolumeState {
    #[default]
    Pending,
    /// `failures`: how often that has failed in a row.
    Mounting {
        failures: u32,
    },
    Mounted,
    /// Worth another try at `retry_at`.
    Failed {
        failures: u32,
        retry_at: Timestamp,
    },
}

impl VolumeState {
    /// Until when what has failed waits; `None`: it is due, or has not failed.
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

    /// Whether so many fail that they are tried again one at a time.
    pub fn is_paced(&self) -> bool {
        self.known().filter(|(_, state)| state.failures() > 0).count() > FEW
    }

    /// Until when all wait that are paced, whatever they wait for themselves; `None`: one may be tried.
    pub fn rests(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            PodVolumes::Present(states) => pause(states.next_try, LONGEST_PACE, now),
            PodVolumes::Absent | PodVolumes::Unmounting => None,
        }
    }

    /// The names of those that are mounted.
    pub fn mounted(&self) -> Vec<String> {
        let mounted = self.known().filter(|(_, state)| **state == VolumeState::Mounted);
        mounted.map(|(name, _)| name.to_owned()).collect()
    }

    /// How many are being mounted.
    pub fn mounting(&self) -> usize {
        self.known().filter(|(_, state)| matches!(state, VolumeState::Mounting { .. })).count()
    }

    /// Whether something is being done with any of them.
    pub fn is_busy(&self) -> bool {
        *self == PodVolumes::Unmounting || self.mounting() > 0
    }

    /// Something of the Pod is there from now on, and is to be taken away.
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

    /// The mounting of one has come to its end. What could be had at last is a reason to try the others.
    pub(super) fn ended(&mut self, name: &str, succeeded: bool, now: Timestamp) {
        let failures = self.get(name).failures();
        let failed =
            || VolumeState::Failed { failures: failures.saturating_add(1), retry_at: retry_step(failures, now) };
        self.set(name, if succeeded { VolumeState::Mounted } else { failed() });
        if let (PodVolumes::Present(states), true) = (self, succeeded) {
            states.next_try = None;
        }
    }

    /// What they are made of has changed: those that have failed are due.
    pub(super) fn retry(&mut self, now: Timestamp) {
        let PodVolumes::Present(states) = self else { return };
        for state in states.by_name.values_mut() {
            if let VolumeState::Failed { retry_at, .. } = state {
                // Who is due already stays before the others.
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
