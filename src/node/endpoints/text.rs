//! Prometheus' text format, 0.0.4, bounded in size. Pure.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

use jiff::Timestamp;

use crate::counters::{Count, Row, Series};

/// Maximum size of an exposition: more than a full node needs. Whole metrics beyond it are left out.
pub const MOST: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// Labels of a series, in output order.
pub type Labels<'a> = Vec<(&'a str, Cow<'a, str>)>;

/// One number of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    pub labels: Labels<'a>,
    pub value: f64,
    /// When it was read, if earlier than the scrape.
    pub at: Option<Timestamp>,
}

/// The output so far.
#[derive(Debug)]
pub struct Exposition {
    out: String,
    most: usize,
    left_out: bool,
}

impl Default for Exposition {
    fn default() -> Exposition {
        Exposition::of(MOST)
    }
}

impl Exposition {
    pub fn of(most: usize) -> Exposition {
        Exposition { out: String::new(), most, left_out: false }
    }

    /// Writes a metric with its samples; nothing if there are none.
    pub fn metric<'a>(&mut self, name: &str, kind: Kind, help: &str, samples: impl IntoIterator<Item = Sample<'a>>) {
        self.block(name, kind, help, |block| {
            for Sample { labels, value, at } in samples {
                block.line(name, &labels, value, at);
                if block.is_full() {
                    return;
                }
            }
        });
    }

    /// Writes a gauge without labels, if its value is known.
    pub fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) {
        let sample = value.map(|value| Sample { labels: Vec::new(), value, at: None });
        self.metric(name, Kind::Gauge, help, sample);
    }

    /// Writes a counted metric.
    pub fn counted(&mut self, row: &Row, series: &Series) {
        let kind = if row.buckets.is_empty() { Kind::Counter } else { Kind::Histogram };
        self.block(row.name, kind, row.help, |block| {
            for (values, count) in series {
                let values = values.iter().map(|value| Cow::Borrowed(value.as_str()));
                let labels: Labels<'_> = row.labels.iter().copied().zip(values).collect();
                match count {
                    Count::Total(total) => block.line(row.name, &labels, *total as f64, None),
                    Count::Spread(spread) => block.histogram(row, &labels, &spread.buckets, spread.sum),
                }
                if block.is_full() {
                    return;
                }
            }
        });
    }

    /// Appends text that is already in this format.
    pub fn append(&mut self, text: &str) {
        if self.out.len() + text.len() > self.most {
            self.left_out = true;
        } else {
            self.out.push_str(text);
        }
    }

    fn block(&mut self, name: &str, kind: Kind, help: &str, fill: impl FnOnce(&mut Block)) {
        let mut block = Block { text: String::new(), room: self.most.saturating_sub(self.out.len()) };
        // Writing to a String cannot fail.
        let _ = write!(block.text, "# HELP {name} {}\n# TYPE {name} {}\n", Help(help), kind.word());
        let head = block.text.len();
        fill(&mut block);
        if block.is_full() {
            self.left_out = true;
        } else if block.text.len() > head {
            self.out.push_str(&block.text);
        }
    }

    /// Whether something was left out because of the size limit.
    pub fn is_cut(&self) -> bool {
        self.left_out
    }

    pub fn finish(self) -> String {
        self.out
    }
}

/// One metric being written.
struct Block {
    text: String,
    room: usize,
}

impl Block {
    fn is_full(&self) -> bool {
        self.text.len() > self.room
    }

    fn line(&mut self, name: &str, labels: &[(&str, Cow<'_, str>)], value: f64, at: Option<Timestamp>) {
        self.text.push_str(name);
        if !labels.is_empty() {
            self.text.push('{');
            for (index, (label, value)) in labels.iter().enumerate() {
                let comma = if index > 0 { "," } else { "" };
                let _ = write!(self.text, "{comma}{label}=\"{}\"", Quoted(value));
            }
            self.text.push('}');
        }
        let _ = write!(self.text, " {}", Number(value));
        if let Some(at) = at {
            let _ = write!(self.text, " {}", at.as_millisecond());
        }
        self.text.push('\n');
    }

    fn histogram(&mut self, row: &Row, labels: &[(&str, Cow<'_, str>)], buckets: &[u64], sum: f64) {
        let (name, mut total) = (row.name, 0);
        let bounds = row.buckets.iter().map(|bound| bound.to_string()).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(buckets) {
            total += count;
            let labels = [labels, &[("le", Cow::Borrowed(bound.as_str()))]].concat();
            self.line(&format!("{name}_bucket"), &labels, total as f64, None);
        }
        self.line(&format!("{name}_sum"), labels, sum, None);
        self.line(&format!("{name}_count"), labels, total as f64, None);
    }
}

struct Help<'a>(&'a str);

impl fmt::Display for Help<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escaped(f, self.0, false)
    }
}

struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escaped(f, self.0, true)
    }
}

fn escaped(f: &mut fmt::Formatter<'_>, text: &str, quotes: bool) -> fmt::Result {
    for c in text.chars() {
        match c {
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '"' if quotes => f.write_str("\\\"")?,
            c => f.write_char(c)?,
        }
    }
    Ok(())
}

struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            infinite if infinite == f64::INFINITY => f.write_str("+Inf"),
            infinite if infinite == f64::NEG_INFINITY => f.write_str("-Inf"),
            number if number.is_nan() => f.write_str("NaN"),
            number => write!(f, "{number}"),
        }
    }
}
