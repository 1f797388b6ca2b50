//! node: placeholder until its owner lands it.
