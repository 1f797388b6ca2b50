//! Pressure stall information: how long work waited for a resource, of a cgroup (`cpu.pressure`) or of the machine
//! (`/proc/pressure/cpu`).

use std::fs;
use std::path::Path;

/// `None`: not available in this kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// `some` tasks stalled, or all non-idle ones (`full`).
    pub some: Option<Stall>,
    pub full: Option<Stall>,
}

/// Shares of the last 10, 60 and 300 s in per cent, and the total time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    pub total_us: u64,
}

impl Pressure {
    /// Empty if the file does not exist or cannot be read, because the accounting is switched off.
    pub fn read(file: &Path) -> Pressure {
        Pressure::parse(&fs::read_to_string(file).unwrap_or_default())
    }

    /// Parses `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and the same with `full`, which older kernels lack for the CPU.
    fn parse(text: &str) -> Pressure {
        let line = |kind: &str| {
            let fields = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
            let of = |key: &str| fields.split(' ').find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
            let share = |key: &str| of(key)?.parse::<f64>().ok().filter(|share| share.is_finite());
            let total_us = of("total")?.trim().parse().ok()?;
            Some(Stall { avg10: share("avg10")?, avg60: share("avg60")?, avg300: share("avg300")?, total_us })
        };
        Pressure { some: line("some"), full: line("full") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_what_is_none_is_left_out() {
        let some = "some avg10=0.74 avg60=0.52 avg300=0.21 total=35232438\n";
        let stall = Stall { avg10: 0.74, avg60: 0.52, avg300: 0.21, total_us: 35_232_438 };
        assert_eq!(Pressure::parse(some), Pressure { some: Some(stall), full: None });
        let both = format!("{some}{}", some.replace("some", "full"));
        assert_eq!(Pressure::parse(&both), Pressure { some: Some(stall), full: Some(stall) });
        for wrong in
            ["", "some\n", "some avg10=x avg60=1 avg300=1 total=1\n", "some avg10=1 avg60=1 avg300=1 total=-1\n"]
        {
            assert_eq!(Pressure::parse(wrong), Pressure::default(), "{wrong:?}");
        }
        assert_eq!(Pressure::read(Path::new("/nonexistent")), Pressure::default());
    }
}
