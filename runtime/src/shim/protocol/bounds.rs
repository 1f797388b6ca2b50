//! Limits the text in a shim's messages, which others control: a command of 128 KiB appears twice in its error. So texts are cut
//! where they are created, and no answer exceeds a frame.

use std::fmt::Display;

use serde::{Deserialize, Deserializer, Serialize};

use super::{ShimState, fits};
use crate::protocol::StartFailure;

/// Maximum message length. JSON may need six bytes for each, and a child reports in one message of 12 KiB.
const LONGEST: usize = 1536;
/// Maximum bytes of messages in an answer about all containers.
const ALL: usize = 512 << 10;
/// The remaining size of an answer.
const BESIDE: usize = 4 << 10;
const CUT: &str = " ... ";

/// Why a request failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    #[serde(deserialize_with = "read_cut")]
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    NotFound,
    Conflict,
    Kernel,
    Start(StartFailure),
}

impl Failure {
    pub fn new(kind: FailureKind, message: impl Display) -> Failure {
        Failure { kind, message: cut(message.to_string(), LONGEST) }
    }
}

impl From<podwright_sys::SysError> for Failure {
    fn from(e: podwright_sys::SysError) -> Failure {
        Failure::new(FailureKind::Kernel, e)
    }
}

/// The sender may be another release, or a child traced by a container.
fn read_cut<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(cut(String::deserialize(deserializer)?, LONGEST))
}

/// The beginning and end of a text, within this many bytes: what failed is at the front, and why at the end.
fn cut(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let room = most.saturating_sub(CUT.len());
    let begin = text.floor_char_boundary(room - room / 3);
    let end = text.ceil_char_boundary(text.len() - room / 3);
    format!("{}{CUT}{}", &text[..begin], &text[end..])
}

impl ShimState {
    /// Shortened to fit a frame: with many containers messages are shorter, with more there are no logs.
    pub fn bounded(mut self) -> ShimState {
        let each = (ALL / self.containers.len().max(1)).min(LONGEST);
        for exit in self.containers.iter_mut().filter_map(|container| container.exit.as_mut()) {
            exit.message = cut(std::mem::take(&mut exit.message), each);
        }
        if fits(&self, BESIDE).is_err() {
            self.containers.iter_mut().for_each(|container| container.log = None);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::protocol::{ContainerSnapshot, MAX_FRAME};
    use crate::protocol::{Exit, ExitReason, LogSpec};

    #[test]
    fn a_message_is_cut_where_it_is_made_and_where_it_is_read() {
        let short = "exec: \"x\": permission denied";
        assert_eq!(Failure::new(FailureKind::Kernel, short).message, short);
        for letter in ["x", "\u{1}", "ä", "𝕏"] {
            let name = letter.repeat(128 << 10);
            let why = Failure::new(FailureKind::Kernel, format!("exec: {name}: stat {name}: permission denied"));
            let text = &why.message;
            assert!(text.len() <= LONGEST && text.starts_with("exec: ") && text.ends_with(": permission denied"));
            let json = serde_json::to_string(&why).unwrap();
            assert!(json.len() < 12 << 10, "a child's report of it is one message: {}", json.len());
            let long = serde_json::to_string(&Failure { message: name, ..why }).unwrap();
            assert!(serde_json::from_str::<Failure>(&long).unwrap().message.len() <= LONGEST);
        }
    }

    /// The maximum of a Pod's manifest, each with the longest texts.
    #[test]
    fn all_that_a_shim_knows_has_room_in_a_frame() {
        for (many, has_log) in [(1, true), (700, true), (10_000, false)] {
            let container = |n: usize| ContainerSnapshot {
                key: format!("{}_{n}", "c".repeat(63)),
                pid: u32::MAX,
                started_ns: Some(u64::MAX),
                exit: Some(Exit {
                    code: 128,
                    signal: 0,
                    reason: ExitReason::StartError,
                    message: "\u{1}".repeat(64 << 10),
                    finished: Timestamp::MAX,
                }),
                log: Some(LogSpec::new("/".repeat(800))),
                stdin: false,
                terminal: false,
            };
            let state = ShimState { sandbox: 1, containers: (0..many).map(container).collect(), app_armor: true };
            let state = state.bounded();
            assert!(fits(&state, 0).unwrap() <= MAX_FRAME - BESIDE);
            assert_eq!(state.containers[0].log.is_some(), has_log, "{many}");
            assert!(state.containers.iter().all(|c| !c.exit.as_ref().unwrap().message.is_empty()));
        }
    }
}
