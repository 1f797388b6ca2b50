//! The frames of raw streams.

use bytes::{Bytes, BytesMut};
use podwright::api::stream::{Frame, FrameCodec, MAX_PAYLOAD, STDOUT};
use proptest::prelude::*;
use tokio_util::codec::{Decoder, Encoder};

proptest! {
    #[test]
    fn frames_survive_any_chopping(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8), step in 1usize..50) {
        let frames: Vec<Frame> =
            payloads.into_iter().map(|p| Frame { channel: STDOUT, payload: Bytes::from(p) }).collect();
        let mut wire = BytesMut::new();
        for frame in &frames {
            FrameCodec.encode(frame.clone(), &mut wire).unwrap();
        }
        let (mut seen, mut buffer) = (Vec::new(), BytesMut::new());
        for piece in wire.chunks(step) {
            buffer.extend_from_slice(piece);
            while let Some(frame) = FrameCodec.decode(&mut buffer).unwrap() {
                seen.push(frame);
            }
        }
        prop_assert_eq!(seen, frames);
    }
}

#[test]
fn an_oversized_frame_is_refused_before_it_is_buffered() {
    let mut wire = BytesMut::from(&[STDOUT, 0xff, 0xff, 0xff, 0xff][..]);
    assert!(FrameCodec.decode(&mut wire).unwrap_err().to_string().contains("4294967295"));
    let big = Frame { channel: STDOUT, payload: Bytes::from(vec![0; MAX_PAYLOAD + 1]) };
    assert!(FrameCodec.encode(big, &mut BytesMut::new()).is_err());
}
