//! Tracks the position within WebSocket frames (RFC 6455, 5.2), in bytes that are split anywhere.

/// The longest payload of a control frame.
pub(super) const MAX_CONTROL: u64 = 125;
/// How much of a message's beginning is kept.
const START: usize = 26;

#[derive(Clone, Copy, Default)]
pub(super) struct Frames {
    head: [u8; 14],
    of_head: usize,
    /// How much of the frame's payload is outstanding.
    left: u64,
    frame: Frame,
    /// Of the current message: its payload bytes and frames so far.
    pub message: u64,
    pub fragments: u32,
    start: [u8; START],
    of_start: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    pub length: u64,
    pub is_control: bool,
    /// It ends a message, and is complete.
    pub ends: bool,
    pub is_whole: bool,
}

impl Frames {
    /// Consumes input up to the end of a frame: returns how much, and the frame if it has ended.
    pub fn read(&mut self, bytes: &[u8]) -> (usize, Option<Frame>) {
        let mut at = 0;
        while let Some(byte) = bytes.get(at).filter(|_| self.left == 0) {
            self.head[self.of_head] = *byte;
            self.of_head += 1;
            at += 1;
            if let Some(length) = self.length() {
                self.begin(length);
                if length == 0 {
                    return (at, Some(self.end()));
                }
            }
        }
        let rest = &bytes[at..];
        let come = rest.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if come == 0 {
            return (at, None);
        }
        if !self.frame.is_control {
            let known = come.min(START - self.of_start);
            self.start[self.of_start..][..known].copy_from_slice(&rest[..known]);
            self.of_start += known;
        }
        self.left -= come as u64;
        (at + come, (self.left == 0).then(|| self.end()))
    }

    /// The frame that started or ended last.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Whether the next byte starts a frame.
    pub fn is_between(&self) -> bool {
        self.of_head == 0 && self.left == 0
    }

    /// Whether the current message starts with these bytes; for the side that does not mask.
    pub fn starts_with(&self, bytes: &[u8]) -> bool {
        self.start[..self.of_start].starts_with(bytes)
    }

    fn begin(&mut self, length: u64) {
        let (first, is_last) = (self.head[0] & 0x0f, self.head[0] & 0x80 != 0);
        let is_control = first & 0x08 != 0;
        let ends = is_last && !is_control;
        (self.of_head, self.left) = (0, length);
        self.frame = Frame { length, is_control, ends, is_whole: ends && first != 0 };
        if is_control {
            return;
        }
        if self.fragments == 0 {
            self.of_start = 0;
        }
        self.fragments = self.fragments.saturating_add(1);
        self.message = self.message.saturating_add(length);
    }

    fn end(&mut self) -> Frame {
        if self.frame.ends {
            (self.message, self.fragments) = (0, 0);
        }
        self.frame
    }

    /// The length of the payload, once the header is complete.
    fn length(&self) -> Option<u64> {
        let [_, second, rest @ ..] = &self.head;
        let (short, mask) = (second & 0x7f, if second & 0x80 == 0 { 0 } else { 4 });
        let more = match short {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let is_whole = self.of_head >= 2 + more + mask;
        let long = rest[..more].iter().fold(0, |length, byte| length << 8 | u64::from(*byte));
        is_whole.then_some(if more == 0 { short.into() } else { long })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The header of a client's frame.
    pub fn head(first: u8, length: usize) -> Vec<u8> {
        let mut frame = vec![first];
        match length {
            0..126 => frame.push(0x80 | length as u8),
            126..0x10000 => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend([7; 4]);
        frame
    }

    pub fn whole(first: u8, length: usize) -> Vec<u8> {
        let mut bytes = head(first, length);
        bytes.resize(bytes.len() + length, b'x');
        bytes
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let all = [
            whole(0x81, 5),
            whole(0x82, 200),
            whole(0x01, 70_000),
            // A ping may come between the frames of a message.
            whole(0x89, 100),
            whole(0x00, 0),
            whole(0x80, 3),
        ]
        .concat();
        for piece in [1, 2, 3, 7, 1000, all.len()] {
            let (mut frames, mut found, mut longest) = (Frames::default(), Vec::new(), 0);
            for mut bytes in all.chunks(piece) {
                while !bytes.is_empty() {
                    let (read, frame) = frames.read(bytes);
                    bytes = &bytes[read..];
                    longest = longest.max(frames.message);
                    found.extend(frame.map(|frame| (frame.length, frame.is_control, frame.ends, frame.is_whole)));
                }
            }
            assert!(frames.is_between() && frames.message == 0 && frames.fragments == 0, "{piece}");
            let expected = [
                (5, false, true, true),
                (200, false, true, true),
                (70_000, false, false, false),
                (100, true, false, false),
                (0, false, false, false),
                (3, false, true, false),
            ];
            assert_eq!(found, expected, "{piece}");
            assert!(longest >= 70_000, "{piece}");
        }
        let mut frames = Frames::default();
        let read = frames.read(&[0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4]);
        assert_eq!((read, frames.message), ((14, None), u64::MAX));
    }

    #[test]
    fn a_message_is_known_by_its_beginning() {
        let mut frames = Frames::default();
        for (bytes, is_event) in [
            (&b"\x81\x04{\"ev"[..], true),
            // Frames of one message; a ping does not count.
            (b"\x01\x02{\"\x89\x01x\x80\x02ev", true),
            (b"\x81\x03{\"e", false),
            (b"\x81\x00", false),
        ] {
            let mut rest = bytes;
            let mut last = None;
            while !rest.is_empty() {
                let (read, frame) = frames.read(rest);
                (rest, last) = (&rest[read..], frame);
            }
            assert!(last.is_some_and(|frame| frame.ends));
            assert_eq!(frames.starts_with(b"{\"ev"), is_event, "{bytes:?}");
        }
    }
}
