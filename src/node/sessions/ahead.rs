//! Buffers a caller's input for a process or port that does not read it yet, so that the caller's hangup is noticed.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use podwright_api::stream::{CLOSE, Frame, STDIN};

/// Buffer size per caller. A frame has at most `MAX_PAYLOAD` bytes, which fit.
const ROOM: usize = 1 << 20;
/// Overhead per buffered frame.
const OVERHEAD: usize = 64;
/// With a full buffer nothing is read, so a hangup goes unnoticed: the caller is written to at this interval, which fails once it
/// is gone.
const PULSE: Duration = Duration::from_secs(5);

/// Input for a process or a port.
pub enum Input {
    Piece(Bytes),
    End,
}

/// The same, with its buffer space until it is read.
pub struct Waiting {
    pub input: Input,
    _room: OwnedSemaphorePermit,
}

/// The writing end of the buffer.
pub struct Ahead {
    room: Arc<Semaphore>,
    waiting: mpsc::UnboundedSender<Waiting>,
}

/// A buffer for one caller's input.
pub fn ahead() -> (Ahead, mpsc::UnboundedReceiver<Waiting>) {
    let (waiting, input) = mpsc::unbounded_channel();
    (Ahead { room: Arc::new(Semaphore::new(ROOM)), waiting }, input)
}

impl Ahead {
    /// Takes the frame once there is room, and returns it if it is not input. Until then it stays in its slot, so cancelling loses
    /// nothing.
    pub async fn keep(&self, slot: &mut Option<Frame>) -> Option<Frame> {
        let frame = slot.as_ref()?;
        let ends = frame.channel == CLOSE && frame.payload.first() == Some(&STDIN);
        if !ends && frame.channel != STDIN {
            return slot.take();
        }
        // ROOM fits a u32, and the semaphore is never closed.
        let wanted = (frame.payload.len() + OVERHEAD).min(ROOM) as u32;
        let taken = self.room.clone().acquire_many_owned(wanted).await;
        if let (Some(frame), Ok(_room)) = (slot.take(), taken) {
            let input = if ends { Input::End } else { Input::Piece(frame.payload) };
            // A reader that is gone needs no input.
            self.waiting.send(Waiting { input, _room }).ok();
        }
        None
    }

    /// Waits until the caller should be written to: its input has been waiting for a while.
    pub async fn beat(&self) {
        loop {
            tokio::time::sleep(PULSE).await;
            if self.room.available_permits() < ROOM {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_api::stream::{MAX_PAYLOAD, RESIZE};

    fn frame(channel: u8, payload: &'static [u8]) -> Option<Frame> {
        Some(Frame { channel, payload: Bytes::from_static(payload) })
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_has_a_bound_whatever_its_pieces_and_stays_in_order() {
        static LARGEST: [u8; MAX_PAYLOAD] = [7; MAX_PAYLOAD];
        let (ahead, mut waiting) = ahead();
        assert!(futures::poll!(std::pin::pin!(ahead.beat())).is_pending());
        assert!(ahead.keep(&mut frame(RESIZE, b"{}")).await.is_some(), "it is no input");
        ahead.keep(&mut frame(STDIN, &LARGEST)).await;
        for next in [frame(STDIN, b"x"), frame(CLOSE, &[STDIN])] {
            let mut slot = next;
            let late = tokio::time::timeout(PULSE * 2, ahead.keep(&mut slot)).await;
            assert!(late.is_err() && slot.is_some(), "there is no room, and it is not lost");
        }
        ahead.beat().await;
        let first = waiting.recv().await.unwrap();
        assert!(matches!(&first.input, Input::Piece(bytes) if bytes.len() == MAX_PAYLOAD));
        drop(first);
        let mut kept = 0;
        while tokio::time::timeout(PULSE, ahead.keep(&mut frame(CLOSE, &[STDIN]))).await.is_ok() {
            kept += 1;
        }
        assert_eq!(kept, ROOM / (OVERHEAD + 1), "the least takes room, too");
    }
}
