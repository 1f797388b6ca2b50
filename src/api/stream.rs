//! The frames of a raw stream (log, exec, attach, portforward): a channel, a length, a payload.
//!
//! The channels are those of upstream's WebSocket protocol `v5.channel.k8s.io`, so that faces only re-frame. A frame on the wire is
//! one byte of channel, four bytes of big-endian length, then the payload.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder};

/// Caller to container. For portforward: bytes to the port.
pub const STDIN: u8 = 0;
/// Container to caller. For log and portforward: the bytes themselves.
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
/// The last frame from the node: a `v1.Status`; a non-zero exit is a Failure with reason `NonZeroExitCode` and a cause `ExitCode`
/// whose message is the number, as in upstream's remotecommand v4.
pub const STATUS: u8 = 3;
/// Caller to node: `{"Width":80,"Height":24}`.
pub const RESIZE: u8 = 4;
/// Half-close: the payload is the one-byte number of the channel that has ended.
pub const CLOSE: u8 = 255;

/// The largest payload of one frame; a longer one is a protocol error.
pub const MAX_PAYLOAD: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub channel: u8,
    pub payload: Bytes,
}

/// Encodes and decodes frames over any byte stream (`tokio_util::codec::Framed`).
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameCodec;

impl Decoder for FrameCodec {
    type Item = Frame;
    type Error = std::io::Error;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<Frame>, std::io::Error> {
        const HEADER: usize = 5;
        if src.len() < HEADER {
            return Ok(None);
        }
        let length = u32::from_be_bytes([src[1], src[2], src[3], src[4]]) as usize;
        if length > MAX_PAYLOAD {
            let why = format!("a stream frame of {length} bytes is larger than {MAX_PAYLOAD}");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
        }
        if src.len() < HEADER + length {
            src.reserve(HEADER + length - src.len());
            return Ok(None);
        }
        let channel = src[0];
        src.advance(HEADER);
        // A copy: a slice would keep the whole buffer, with all that came beside it, for as long as one byte of it waits.
        let payload = Bytes::copy_from_slice(&src[..length]);
        src.advance(length);
        Ok(Some(Frame { channel, payload }))
    }
}

impl Encoder<Frame> for FrameCodec {
    type Error = std::io::Error;

    fn encode(&mut self, frame: Frame, dst: &mut BytesMut) -> Result<(), std::io::Error> {
        let length = frame.payload.len();
        if length > MAX_PAYLOAD {
            let why = format!("a stream frame of {length} bytes is larger than {MAX_PAYLOAD}");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why));
        }
        dst.reserve(5 + length);
        dst.put_u8(frame.channel);
        dst.put_u32(length as u32);
        dst.put(frame.payload);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_keeps_nothing_of_the_buffer_that_it_came_in() {
        let mut buffer = BytesMut::with_capacity(1 << 16);
        let frame = |channel, length| Frame { channel, payload: vec![7; length].into() };
        for frame in [frame(STDIN, 1), frame(RESIZE, 8000), frame(STDIN, 0)] {
            FrameCodec.encode(frame, &mut buffer).unwrap();
        }
        let kept: Vec<Frame> = std::iter::from_fn(|| FrameCodec.decode(&mut buffer).unwrap()).collect();
        assert_eq!(kept, [frame(STDIN, 1), frame(RESIZE, 8000), frame(STDIN, 0)]);
        assert!(buffer.try_reclaim(1 << 16), "the whole buffer is free again, while the frames are there");
    }
}
