//! The dataplane: one endpoint's change, however many Services there are.

use crate::report;

pub fn endpoint() {
    for services in [10, 1_000, 10_000] {
        match podwright_net::dataplane::speed::measure(services, 300) {
            Ok(figures) => report(
                &format!("one endpoint's change, {services} Services loaded"),
                format!("p50 {:.2?}, p99 {:.2?} (full load {:.2?})", figures.p50(), figures.p99(), figures.load),
                "<= 2 ms; full load of 10,000 <= 500 ms",
            ),
            Err(error) => println!("one endpoint's change with {services} Services: {error}"),
        }
    }
}
