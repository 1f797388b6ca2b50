//! The volumes of a Pod, each with a state of its own: one that cannot be had is tried again alone.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::backoff::{LONGEST_STEP, pause, retry_step};

/// How far all volumes of a Pod are.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PodVolumes {
    /// None has been made, or all are unmounted.
    #[default]
    Absent,
    /// By their names in the Pod. One that is not here is pending.
    Present(BTreeMap<String, VolumeState>),
    /// All of them at once: they share the Pod's folder and its tmpfs.
    Unmounting,
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
            PodVolumes::Present(states) => states.get(name).unwrap_or(&PENDING),
            PodVolumes::Absent | PodVolumes::Unmounting => &PENDING,
        }
    }

    pub fn is_mounted(&self, name: &str) -> bool {
        *self.get(name) == VolumeState::Mounted
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
            *self = PodVolumes::Present(BTreeMap::new());
        }
    }

    pub(super) fn begin(&mut self, name: &str) {
        let failures = self.get(name).failures();
        self.set(name, VolumeState::Mounting { failures });
    }

    /// The mounting of one has come to its end.
    pub(super) fn ended(&mut self, name: &str, succeeded: bool, now: Timestamp) {
        let failures = self.get(name).failures();
        let failed =
            || VolumeState::Failed { failures: failures.saturating_add(1), retry_at: retry_step(failures, now) };
        self.set(name, if succeeded { VolumeState::Mounted } else { failed() });
    }

    /// What they are made of has changed: those that have failed are due.
    pub(super) fn retry(&mut self, now: Timestamp) {
        let PodVolumes::Present(states) = self else { return };
        for state in states.values_mut() {
            if let VolumeState::Failed { retry_at, .. } = state {
                *retry_at = now;
            }
        }
    }

    fn known(&self) -> impl Iterator<Item = (&str, &VolumeState)> {
        let states = match self {
            PodVolumes::Present(states) => Some(states),
            PodVolumes::Absent | PodVolumes::Unmounting => None,
        };
        states.into_iter().flatten().map(|(name, state)| (name.as_str(), state))
    }

    fn set(&mut self, name: &str, state: VolumeState) {
        self.hold();
        if let PodVolumes::Present(states) = self {
            states.insert(name.to_owned(), state);
        }
    }
}
