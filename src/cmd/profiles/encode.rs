//! Encodes pprof's `Profile` (`github.com/google/pprof/proto/profile.proto`): code addresses, their mapped files, and, if the
//! program has symbols, their functions. A stripped program's profile can be read with the unstripped one: `go tool pprof PROGRAM
//! PROFILE`.

use std::{
    collections::HashMap,
    io::Write,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};

use crate::api::protobuf::Writer;

/// One stack, the innermost address first, and its counts.
#[derive(Debug, PartialEq)]
pub struct Sample {
    pub stack: Vec<u64>,
    pub values: Vec<i64>,
}

pub struct Profile {
    /// What is counted, with units.
    pub types: &'static [(&'static str, &'static str)],
    /// The sampling interval.
    pub period: (&'static str, &'static str, i64),
    pub default: &'static str,
    pub time: Duration,
    pub samples: Vec<Sample>,
}

/// Removes the common beginning of all stacks: the sampling code itself.
pub fn without_handler(samples: &mut [Sample]) {
    let Some((first, others)) = samples.split_first().filter(|(_, others)| !others.is_empty()) else { return };
    let common = |other: &Sample| first.stack.iter().zip(&other.stack).take_while(|(a, b)| a == b).count();
    let shortest = samples.iter().map(|sample| sample.stack.len()).min().unwrap_or(0);
    let common = others.iter().map(common).min().unwrap_or(0).min(shortest.saturating_sub(1));
    for sample in samples {
        sample.stack.drain(..common);
    }
}

/// A mapped file with code.
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    file: String,
}

fn mappings(maps: &str) -> Vec<Mapping> {
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let executable = words.next()?.contains('x');
        let offset = words.next()?;
        let file = words.nth(2).unwrap_or("").to_owned();
        let hex = |word| u64::from_str_radix(word, 16).ok();
        executable.then_some(Mapping { start: hex(start)?, end: hex(end)?, offset: hex(offset)?, file })
    };
    maps.lines().filter_map(of).collect()
}

/// The function at an address, with its position.
struct Found {
    name: String,
    file: String,
    line: u64,
}

/// The innermost first: inlined ones.
fn functions(address: u64) -> Vec<Found> {
    let mut found = Vec::new();
    backtrace::resolve(address as *mut _, |symbol| {
        let Some(name) = symbol.name() else { return };
        let file = symbol.filename().map(|file| file.display().to_string()).unwrap_or_default();
        found.push(Found { name: format!("{name:#}"), file, line: symbol.lineno().unwrap_or(0).into() });
    });
    found
}

/// A string table; the first one is empty.
struct Texts {
    numbers: HashMap<String, u64>,
    all: Vec<String>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.all.len() as u64;
        self.all.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    fn value_type(&mut self, (name, unit): (&str, &str)) -> Writer {
        let mut message = Writer::default();
        message.varint(1, self.number(name));
        message.varint(2, self.number(unit));
        message
    }
}

impl Profile {
    pub fn gzipped(&self) -> Bytes {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        // Writing to a Vec cannot fail.
        let _ = gzip.write_all(&self.encoded(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default()));
        // The symbol cache takes tens of megabytes if the program has symbols.
        backtrace::clear_symbol_cache();
        gzip.finish().unwrap_or_default().into()
    }

    fn encoded(&self, maps: &str) -> Vec<u8> {
        let mut texts = Texts { numbers: HashMap::new(), all: Vec::new() };
        texts.number("");
        let mut out = Writer::default();
        for of in self.types {
            out.message(1, &texts.value_type(*of));
        }
        // Locations and functions by their ids, which start at 1.
        let (mut locations, mut functions_of) = (HashMap::new(), HashMap::new());
        let mut behind = Writer::default();
        let mappings = mappings(maps);
        for (number, mapping) in (1..).zip(&mappings) {
            let mut message = Writer::default();
            message.varint(1, number);
            message.varint(2, mapping.start);
            message.varint(3, mapping.end);
            message.varint(4, mapping.offset);
            message.varint(5, texts.number(&mapping.file));
            behind.message(3, &message);
        }
        for sample in &self.samples {
            let mut stack = Vec::with_capacity(sample.stack.len());
            for address in &sample.stack {
                let next = locations.len() as u64 + 1;
                let number = *locations.entry(*address).or_insert(next);
                if number == next {
                    location(number, *address, &mappings, &mut functions_of, &mut texts, &mut behind);
                }
                stack.push(number);
            }
            let mut message = Writer::default();
            message.packed(1, stack);
            // Two's complement, as in protobuf.
            message.packed(2, sample.values.iter().map(|value| *value as u64));
            out.message(2, &message);
        }
        out.append(behind);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (name, unit, period) = self.period;
        let period_type = texts.value_type((name, unit));
        let default = texts.number(self.default);
        texts.all.iter().for_each(|text| out.bytes(6, text.as_bytes()));
        out.varint(9, nanos(now.saturating_sub(self.time)));
        out.varint(10, nanos(self.time));
        out.message(11, &period_type);
        out.varint(12, period as u64);
        out.varint(14, default);
        out.finish()
    }
}

fn location(
    number: u64,
    address: u64,
    mappings: &[Mapping],
    functions_of: &mut HashMap<(String, String), u64>,
    texts: &mut Texts,
    out: &mut Writer,
) {
    let mut message = Writer::default();
    message.varint(1, number);
    let mapping = mappings.iter().position(|mapping| (mapping.start..mapping.end).contains(&address));
    message.varint(2, mapping.map_or(0, |at| at as u64 + 1));
    message.varint(3, address);
    for Found { name, file, line } in functions(address) {
        let next = functions_of.len() as u64 + 1;
        let function = *functions_of.entry((name.clone(), file.clone())).or_insert(next);
        if function == next {
            let mut of = Writer::default();
            of.varint(1, function);
            of.varint(2, texts.number(&name));
            of.varint(3, texts.number(&name));
            of.varint(4, texts.number(&file));
            out.message(5, &of);
        }
        let mut at = Writer::default();
        at.varint(1, function);
        at.varint(2, line);
        message.message(4, &at);
    }
    out.message(4, &message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_stacks_begin_with_is_taken_away() {
        let sample = |stack: &[u64]| Sample { stack: stack.to_vec(), values: vec![] };
        let mut samples = vec![sample(&[1, 2, 3, 4]), sample(&[1, 2, 3, 5]), sample(&[1, 2, 9])];
        without_handler(&mut samples);
        assert_eq!(samples, [sample(&[3, 4]), sample(&[3, 5]), sample(&[9])]);
        let mut one = vec![sample(&[1, 2])];
        without_handler(&mut one);
        assert_eq!(one, [sample(&[1, 2])]);
        let mut contained = vec![sample(&[1]), sample(&[1, 2])];
        without_handler(&mut contained);
        assert_eq!(contained, [sample(&[1]), sample(&[1, 2])], "something of each is left");
    }

    #[test]
    fn only_code_is_mapped() {
        let maps = "1000-2000 r--p 00000000 08:01 7 /bin/a\n2000-3000 r-xp 00001000 08:01 7 /bin/a\n4000-5000 r-xp 0 00:00 0\n";
        let found: Vec<_> = mappings(maps).into_iter().map(|m| (m.start, m.end, m.offset, m.file)).collect();
        assert_eq!(found, [(0x2000, 0x3000, 0x1000, "/bin/a".to_owned()), (0x4000, 0x5000, 0, String::new())]);
    }
}
