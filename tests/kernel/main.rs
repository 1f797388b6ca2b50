//! Tests of one kernel primitive at a time, as root, each in namespaces of its own.
