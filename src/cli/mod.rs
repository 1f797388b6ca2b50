//! cli: placeholder until its owner lands it.
