//! What should be and what is, side by side.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::model::Flow;

/// One connection that was tried, or judged by somebody else.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    /// As it is after a Service's address has been replaced.
    pub flow: Flow<'a>,
    pub by_service: bool,
    pub wanted: bool,
    pub seen: bool,
}

impl Trial<'_> {
    pub fn is_different(&self) -> bool {
        self.wanted != self.seen
    }

    /// Those of one table.
    fn table(&self) -> String {
        let Flow { destination, protocol, port, .. } = self.flow;
        let family = if destination.is_ipv4() { "IPv4" } else { "IPv6" };
        let way = if self.by_service { "by Service" } else { "directly" };
        format!("{} {port}, {family}, {way}", protocol.name())
    }

    fn mark(&self) -> char {
        match (self.wanted, self.seen) {
            (true, true) => '.',
            (false, false) => 'x',
            (false, true) => 'A',
            (true, false) => 'D',
        }
    }

    fn line(&self) -> String {
        let Flow { from, source, to, destination, .. } = self.flow;
        let what = if self.seen { "is allowed and must not be" } else { "is denied and must not be" };
        format!("{} ({source}) -> {} ({destination}), {}: {what}", from.name, to.name, self.table())
    }
}

pub fn differences<'a, 'b>(trials: &'a [Trial<'b>]) -> Vec<&'a Trial<'b>> {
    trials.iter().filter(|trial| trial.is_different()).collect()
}

/// The differences, and the tables that have any; nothing where there is none.
pub fn report(trials: &[Trial<'_>]) -> String {
    /// How many of the differences are told one by one.
    const TOLD: usize = 30;
    let different = differences(trials);
    let mut text = String::new();
    for trial in different.iter().take(TOLD) {
        let _ = writeln!(text, "{}", trial.line());
    }
    if different.len() > TOLD {
        let _ = writeln!(text, "... and {} more", different.len() - TOLD);
    }
    let tables: BTreeSet<String> = different.iter().map(|trial| trial.table()).collect();
    // Most often all protocols and ways look the same.
    let mut alike: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for table in tables {
        let of_table: Vec<&Trial<'_>> = trials.iter().filter(|trial| trial.table() == table).collect();
        alike.entry(matrix(&of_table)).or_default().push(table);
    }
    for (matrix, tables) in alike {
        let legend = "(. allowed, x denied; A allowed and must not be, D denied and must not be)";
        let _ = writeln!(text, "\n{}\n{legend}\n{matrix}", tables.join("\n"));
    }
    text
}

/// A row for each source, a column for each destination.
fn matrix(trials: &[&Trial<'_>]) -> String {
    let mut rows: BTreeMap<&str, BTreeMap<&str, char>> = BTreeMap::new();
    for trial in trials {
        rows.entry(&trial.flow.from.name).or_default().insert(&trial.flow.to.name, trial.mark());
    }
    let columns: BTreeSet<&str> = trials.iter().map(|trial| trial.flow.to.name.as_str()).collect();
    let wide = |name: &str| format!("{name:>8}");
    let mut text = wide("") + &columns.iter().map(|name| wide(name)).collect::<String>() + "\n";
    for (from, row) in rows {
        let marks = columns.iter().map(|to| wide(&row.get(to).unwrap_or(&' ').to_string()));
        let _ = writeln!(text, "{from:>8}{}", marks.collect::<String>());
    }
    text
}

#[test]
fn a_difference_is_found_and_shown() {
    let world = super::world::on_paper();
    let wrong = |flow: &Flow<'_>| (flow.from.name.as_str(), flow.to.name.as_str(), flow.port) == ("x/a", "y/b", 81);
    fn trial(flow: Flow<'_>, seen: bool) -> Trial<'_> {
        Trial { flow, by_service: false, wanted: true, seen }
    }
    let right: Vec<Trial<'_>> = super::flows(&world).map(|flow| trial(flow, true)).collect();
    assert_eq!((differences(&right).len(), report(&right).as_str()), (0, ""));
    let seen: Vec<Trial<'_>> = super::flows(&world).map(|flow| trial(flow, !wrong(&flow))).collect();
    assert_eq!(differences(&seen).len(), 6, "of three protocols and two families");
    let text = report(&seen);
    assert!(
        text.contains("x/a (10.244.0.3) -> y/b (10.244.0.7), TCP 81, IPv4, directly: is denied and must not be"),
        "{text}"
    );
    let row = text.lines().find(|line| line.trim_start().starts_with("x/a  ")).unwrap();
    assert_eq!(row.matches('D').count(), 1, "{text}");
    assert!(!text.contains("TCP 80"), "{text}");
}
