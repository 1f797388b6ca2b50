//! ephemeral volumes: a claim that a controller creates for one Pod, from the manifest's template.

use super::{Location, Measured, Row, SetUp, never, persistent_volume_claim};

pub const ROW: Row = Row {
    field: "ephemeral",
    is: |volume| volume.ephemeral.is_some(),
    location: Location::Link,
    set_up: SetUp::Claim,
    measured: |_| Measured::FileSystem,
    refers_to: persistent_volume_claim::claim,
    shows_pod: never,
    read_only: never,
    scratch: false,
    unsupported: &[],
};
