//! The dataplane: one endpoint's change, however many Services there are.

use std::time::Duration;

use crate::report;

pub fn endpoint() {
    for services in [10, 1_000, 10_000] {
        match podwright_net::dataplane::speed::measure(services, 300) {
            Ok(figures) => report(
                &format!("one endpoint's change, {services} Services loaded"),
                format!("p50 {:.2?}, p99 {:.2?} (full load {:.2?})", figures.p50(), figures.p99(), figures.load),
                "p50 <= 2 ms; full load <= 500 ms",
                figures.p50() <= Duration::from_millis(2) && figures.load <= Duration::from_millis(500),
            ),
            Err(error) => println!("one endpoint's change with {services} Services: {error}"),
        }
    }
}
