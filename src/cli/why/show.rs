//! How the ways of a packet are shown: a row for each step, and the verdict.

use serde_json::Value;

use super::story::{Story, Way};
use crate::print::Table;

/// The ways as text. `wide`: with tables and chains.
pub fn text(story: &Story, wide: bool) -> String {
    let mut text = String::new();
    for way in &story.ways {
        if story.ways.len() > 1 {
            let address = way.destination.or(way.to).map(|address| address.to_string()).unwrap_or_default();
            text += &format!("To {address} port {}: {}\n", way.port, way.verdict);
        }
        text += &rows(way, wide);
        for hop in way.hops.iter().filter(|hop| !hop.uncertain.is_empty()) {
            text += &format!("Not known on {}, and passed over: {}\n", hop.node, hop.uncertain.join("; "));
        }
        if story.ways.len() > 1 {
            text.push('\n');
        }
    }
    let shown = story.ways.len() as u64;
    let choices = story.ways.iter().map(|way| way.choices).max().unwrap_or(1);
    if choices > shown {
        text += &format!("{shown} of {choices} endpoints are shown.\n");
    }
    crate::page::plain(&format!("{text}Verdict: {}\n", story.verdict())).into_owned()
}

fn rows(way: &Way, wide: bool) -> String {
    let headings: &[&str] = match wide {
        true => &["NODE", "HOOK", "TABLE", "CHAIN", "LOOKUP", "FOUND", "OBJECT"],
        false => &["NODE", "HOOK", "LOOKUP", "FOUND", "OBJECT"],
    };
    let mut rows: Vec<Vec<String>> = vec![headings.iter().map(|heading| (*heading).to_owned()).collect()];
    for hop in &way.hops {
        for step in &hop.steps {
            let word = |field: &str| match step[field].as_str() {
                None | Some("") => "-".to_owned(),
                Some(text) => text.to_owned(),
            };
            let objects: Vec<&str> =
                step["objects"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let objects = if objects.is_empty() { "-".to_owned() } else { objects.join(", ") };
            let mut row = vec![hop.node.clone(), word("hook")];
            row.extend(wide.then(|| [word("table"), word("chain")]).into_iter().flatten());
            row.extend([word("lookup"), word("found"), objects]);
            rows.push(row);
        }
    }
    if rows.len() == 1 { String::new() } else { Table::default().render(&rows) }
}

#[cfg(test)]
mod tests {
    use super::super::{
        ends::Target,
        story::{Hop, Story, Way},
    };
    use serde_json::json;

    #[test]
    fn each_step_is_a_row() {
        let answer = json!({
            "source": "10.244.0.2", "to": "10.244.0.3", "destination": "10.244.0.3", "port": 80, "choices": 1,
            "steps": [
                {"hook": "route", "lookup": "10.244.0.3", "found": "dev pw1"},
                {"hook": "forward", "table": "ip podwright", "chain": "forbid", "lookup": "", "found": "drop",
                 "objects": ["NetworkPolicy a/deny"]},
            ],
            "end": {"is": "dropped"}, "verdict": {"allowed": false, "text": "dropped by NetworkPolicy a/deny"},
        });
        let mut story = Story::new("a", "b:80", &Target { port: 80, protocol: "TCP".into() });
        story.ways.push(Way::new(Hop::of("n1", &answer), &answer));
        let expected = "\
NODE   HOOK      LOOKUP       FOUND     OBJECT
n1     route     10.244.0.3   dev pw1   -
n1     forward   -            drop      NetworkPolicy a/deny
Verdict: dropped by NetworkPolicy a/deny
";
        assert_eq!(super::text(&story, false), expected);
        assert!(super::text(&story, true).contains("ip podwright   forbid"));
    }
}
