//! cmd: placeholder until its owner lands it.
