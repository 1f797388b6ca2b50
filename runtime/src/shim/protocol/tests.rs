//! Messages between agent and shim, in pieces and within their bounds.

use super::*;

#[test]
fn frames_survive_any_chopping() {
    let mut wire = Vec::new();
    for id in 0..3 {
        wire.extend(encode(&Request { id, cause: Cause::default(), call: Call::State }, 0, VERSION).unwrap());
    }
    for step in 1..wire.len() {
        let (mut frames, mut seen) = (Frames::default(), Vec::new());
        for piece in wire.chunks(step) {
            frames.bytes.extend_from_slice(piece);
            while let Some((request, _)) = frames.take::<Request>().unwrap() {
                seen.push(request.id);
            }
        }
        assert_eq!(seen, [0, 1, 2]);
    }
}

/// The other one hangs up on whoever sends more. What is escaped grows.
#[test]
fn no_frame_is_made_that_the_other_one_does_not_take() {
    let exec = |env: String| {
        let process = ProcessPlan { env: vec![env], ..Default::default() };
        let (stdin, stdout, stderr) = (false, false, false);
        let plan = ExecPlan { exec: 1, key: "a_0".into(), process, stdin, stdout, stderr, timeout_ms: None };
        Request { id: 1, cause: Cause::default(), call: Call::Exec(Box::new(plan)) }
    };
    let bare = encode(&exec(String::new()), 0, VERSION).unwrap().len() - HEADER;
    let most = MAX_FRAME - bare;
    let bytes = encode(&exec("x".repeat(most)), 0, VERSION).unwrap();
    assert!(Frames { bytes, ..Frames::default() }.take::<Request>().unwrap().is_some());
    for env in ["x".repeat(most + 1), "\u{1}".repeat(most / 6 + 1)] {
        let why = encode(&exec(env), 0, VERSION).unwrap_err();
        assert_eq!(why.kind(), ErrorKind::InvalidInput);
        assert_eq!(why.to_string(), "argument list too long: more than 8388608 bytes of JSON");
    }
    assert_eq!(fits(&"\u{1}", MAX_FRAME - 8).unwrap(), 8);
    assert!(fits(&"\u{1}", MAX_FRAME - 7).is_err());
}

#[test]
fn versions_from_the_oldest_to_the_newest_are_taken_and_no_others() {
    for version in 0..=VERSION + 1 {
        let bytes = encode(&Message::SandboxGone, 0, version).unwrap();
        let mut frames = Frames { bytes, ..Frames::default() };
        let taken = frames.take::<Message>();
        assert_eq!(taken.is_ok(), (OLDEST..=VERSION).contains(&version), "{version}: {taken:?}");
        if taken.is_ok() {
            assert_eq!(frames.version, version, "what the other one speaks is known");
        }
    }
    assert_eq!(VERSION - OLDEST, 1, "this version and the one before");
}

/// What a release has put on the wire is understood for as long as its version is: these lines are never changed, only removed
/// when `OLDEST` leaves them behind.
#[test]
fn what_the_version_before_says_is_understood() {
    for text in super::recorded::REQUESTS {
        let request: Request = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let again = serde_json::to_value(&request).unwrap();
        let was: serde_json::Value = serde_json::from_str(text).unwrap();
        assert!(includes(&again, &was), "what it said is lost or changed:\n{was}\n{again}");
    }
    for text in super::recorded::MESSAGES {
        let message: Message = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let again = serde_json::to_value(&message).unwrap();
        assert!(includes(&again, &serde_json::from_str(text).unwrap()), "{text}\n{again}");
    }
}

/// Whether `all` has everything that `part` has.
fn includes(all: &serde_json::Value, part: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Object};
    match (all, part) {
        (Object(all), Object(part)) => part.iter().all(|(key, v)| all.get(key).is_some_and(|a| includes(a, v))),
        (Array(all), Array(part)) => all.len() == part.len() && all.iter().zip(part).all(|(a, p)| includes(a, p)),
        (all, part) => all == part,
    }
}
