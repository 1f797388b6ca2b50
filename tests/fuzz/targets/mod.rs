//! What is fuzzed: a target for each parser of what others send, with what must hold besides that nothing panics.
//!
//! `./dev fuzz` feeds them by coverage; the fast tests feed them their seeds and what once was a finding.

mod borders;
mod files;
mod objects;
mod server;
mod text;
mod wire;

use serde_json::Value;

/// One parser (or a family of them that read the same), and inputs that it understands.
pub struct Target {
    pub name: &'static str,
    pub run: Run,
    /// Valid inputs, from which others are made; past findings with them.
    pub seeds: Seeds,
}

/// How a target takes its input; bytes that are no such thing are no input of it.
pub enum Run {
    Bytes(fn(&[u8])),
    Text(fn(&str)),
    Json(fn(Value)),
}

pub enum Seeds {
    Texts(&'static [&'static str]),
    Made(fn() -> Vec<Vec<u8>>),
}

/// All targets, in the order of what they read: words, objects, files, bytes on the wire, whole requests, whole conversations.
pub const TARGETS: &[&[Target]] =
    &[text::TARGETS, objects::TARGETS, files::TARGETS, wire::TARGETS, server::TARGETS, borders::TARGETS];

pub fn all() -> impl Iterator<Item = &'static Target> {
    TARGETS.iter().copied().flatten()
}

impl Target {
    const fn text(name: &'static str, run: fn(&str), seeds: &'static [&'static str]) -> Target {
        Target { name, run: Run::Text(run), seeds: Seeds::Texts(seeds) }
    }
    const fn json(name: &'static str, run: fn(Value), seeds: &'static [&'static str]) -> Target {
        Target { name, run: Run::Json(run), seeds: Seeds::Texts(seeds) }
    }
    const fn bytes(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
        Target { name, run: Run::Bytes(run), seeds: Seeds::Made(seeds) }
    }

    pub fn execute(&self, input: &[u8]) {
        match self.run {
            Run::Bytes(run) => run(input),
            Run::Text(run) => {
                if let Ok(text) = std::str::from_utf8(input) {
                    run(text);
                }
            }
            Run::Json(run) => {
                if let Ok(value) = serde_json::from_slice(input) {
                    run(value);
                }
            }
        }
    }

    pub fn seeds(&self) -> Vec<Vec<u8>> {
        match self.seeds {
            Seeds::Texts(texts) => texts.iter().map(|text| text.as_bytes().to_vec()).collect(),
            Seeds::Made(made) => made(),
        }
    }
}

/// The parts of an input that is several texts.
fn parts<const N: usize>(text: &str) -> [&str; N] {
    let mut parts = text.splitn(N, '\0');
    std::array::from_fn(|_| parts.next().unwrap_or(""))
}
