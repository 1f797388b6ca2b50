//! A container's streams: from its pipes or terminal to the log and to attached clients, and from them to its stdin.
//!
//! Nothing here blocks. Unsent data is buffered, up to a bound; above it the container's pipe is not read, so that its writer
//! blocks as on any full pipe.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use super::log::Log;
use super::writer::Writer;
use podwright_sys::io::{self, PollFd};

/// While more than this is buffered for one reader, the container's output is not read.
const MAX_WAITING: usize = 64 << 10;

/// A part of [`Stdio`] to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdioPart {
    /// The container's stdout (0) or stderr (1).
    Output(usize),
    /// The container's stdin accepts bytes.
    Input,
    /// Attached stream `0` has input for the container.
    AttachedInput(usize),
    /// Attached stream `.0` accepts bytes of output `.1`, or was closed.
    AttachedOutput(usize, usize),
}

#[derive(Default)]
pub struct Stdio {
    /// Our read ends of stdout and stderr; with a terminal only the first, its master.
    pub outputs: [Option<OwnedFd>; 2],
    /// Our write end of stdin, or the terminal's master again.
    pub input: Option<OwnedFd>,
    pub terminal: bool,
    /// Close stdin when the first attached input ends.
    pub stdin_once: bool,
    pub log: Option<Log>,
    to_stdin: VecDeque<u8>,
    close_stdin: bool,
    attached: Vec<Attached>,
}

struct Attached {
    input: Option<OwnedFd>,
    outputs: [Option<OwnedFd>; 2],
    waiting: [VecDeque<u8>; 2],
}

impl Attached {
    fn full(&self) -> bool {
        self.waiting.iter().any(|w| w.len() > MAX_WAITING)
    }
}

impl Stdio {
    pub fn attach(&mut self, input: Option<OwnedFd>, outputs: [Option<OwnedFd>; 2]) {
        for fd in input.iter().chain(outputs.iter().flatten()) {
            let _ = io::set_nonblocking(fd.as_fd());
        }
        let mut attached = Attached { input, outputs, waiting: Default::default() };
        for stream in 0..2 {
            if self.outputs[stream].is_none() {
                attached.outputs[stream] = None;
            }
        }
        self.attached.push(attached);
    }

    /// Adds what should be polled now.
    pub fn interests(&self, mut add: impl FnMut(StdioPart, PollFd)) {
        let full = self.log.as_ref().is_some_and(|l| l.full()) || self.attached.iter().any(|a| a.full());
        if !full {
            for (stream, fd) in self.outputs.iter().enumerate() {
                if let Some(fd) = fd {
                    add(StdioPart::Output(stream), PollFd::new(fd.as_fd(), libc::POLLIN));
                }
            }
        }
        if let Some(fd) = self.input.as_ref().filter(|_| !self.to_stdin.is_empty()) {
            add(StdioPart::Input, PollFd::new(fd.as_fd(), libc::POLLOUT));
        }
        for (i, attached) in self.attached.iter().enumerate() {
            if let Some(fd) = attached.input.as_ref().filter(|_| self.to_stdin.len() < MAX_WAITING) {
                add(StdioPart::AttachedInput(i), PollFd::new(fd.as_fd(), libc::POLLIN));
            }
            for (stream, fd) in attached.outputs.iter().enumerate() {
                if let Some(fd) = fd {
                    // Without pending data, only an error of a closed reader is of interest.
                    let events = if attached.waiting[stream].is_empty() { 0 } else { libc::POLLOUT };
                    add(StdioPart::AttachedOutput(i, stream), PollFd::new(fd.as_fd(), events));
                }
            }
        }
    }

    /// `part` is ready.
    pub fn ready(&mut self, part: StdioPart, buffer: &mut [u8], now: u64) {
        match part {
            StdioPart::Output(stream) => self.read_output(stream, buffer, now),
            StdioPart::Input => self.write_input(),
            StdioPart::AttachedInput(i) => self.read_attached(i, buffer),
            StdioPart::AttachedOutput(i, stream) => self.write_attached(i, stream),
        }
    }

    /// Passes pending log lines to the writer and drops detached clients. Call after each round.
    pub fn settle(&mut self, slot: usize, writer: &mut Writer) {
        if let Some(log) = &mut self.log {
            log.flush(slot, writer);
        }
        self.attached.retain(|a| a.input.is_some() || a.outputs.iter().any(|o| o.is_some()));
    }

    /// Both outputs have ended.
    pub fn ended(&self) -> bool {
        self.outputs.iter().all(|o| o.is_none())
    }

    /// Whether reading is blocked: by the disk, or by an attached client that does not read.
    pub fn blocked(&self) -> bool {
        self.log.as_ref().is_some_and(|log| !log.idle()) || self.attached.iter().any(|a| a.full())
    }

    /// Drops attached clients that do not read.
    pub fn drop_stalled(&mut self) {
        self.attached.retain(|a| !a.full());
    }

    /// The container is gone: gives up on output that does not end (another process holds the pipe).
    pub fn close(&mut self, now: u64) {
        for stream in 0..2 {
            self.end_output(stream, now);
        }
    }

    fn read_output(&mut self, stream: usize, buffer: &mut [u8], now: u64) {
        let Some(fd) = &self.outputs[stream] else { return };
        match io::read_some(fd.as_fd(), buffer) {
            None => {}
            Some(0) => self.end_output(stream, now),
            Some(n) => {
                if let Some(log) = &mut self.log {
                    log.take(stream, &buffer[..n], now);
                }
                for i in 0..self.attached.len() {
                    if self.attached[i].outputs[stream].is_some() {
                        self.attached[i].waiting[stream].extend(&buffer[..n]);
                        self.write_attached(i, stream);
                    }
                }
            }
        }
    }

    fn end_output(&mut self, stream: usize, now: u64) {
        if self.outputs[stream].take().is_none() {
            return;
        }
        if let Some(log) = &mut self.log {
            log.end(stream, now);
        }
        if self.ended() {
            self.input = None;
        }
        for attached in &mut self.attached {
            if attached.waiting[stream].is_empty() {
                attached.outputs[stream] = None;
            }
        }
        self.detach_if_over();
    }

    /// After the end of all output, attached inputs are useless, too.
    fn detach_if_over(&mut self) {
        if self.ended() {
            for attached in self.attached.iter_mut() {
                attached.input = None;
            }
        }
    }

    fn write_input(&mut self) {
        let Some(fd) = &self.input else { return self.to_stdin.clear() };
        let (front, _) = self.to_stdin.as_slices();
        match io::write_some(fd.as_fd(), front) {
            Some(n) => drop(self.to_stdin.drain(..n)),
            None => self.input = None,
        }
        if self.to_stdin.is_empty() {
            self.to_stdin = VecDeque::new();
            if self.close_stdin {
                self.input = None;
            }
        }
    }

    fn read_attached(&mut self, i: usize, buffer: &mut [u8]) {
        let Some(fd) = self.attached.get(i).and_then(|a| a.input.as_ref()) else { return };
        match io::read_some(fd.as_fd(), buffer) {
            None => {}
            Some(0) => {
                self.attached[i].input = None;
                if self.stdin_once && !self.terminal {
                    self.close_stdin = true;
                    if self.to_stdin.is_empty() {
                        self.input = None;
                    }
                }
            }
            Some(n) => {
                self.to_stdin.extend(&buffer[..n]);
                self.write_input();
            }
        }
    }

    fn write_attached(&mut self, i: usize, stream: usize) {
        let over = self.outputs[stream].is_none();
        let Some(attached) = self.attached.get_mut(i) else { return };
        let Some(fd) = &attached.outputs[stream] else { return };
        let waiting = &mut attached.waiting[stream];
        let (front, _) = waiting.as_slices();
        // Ready without pending data: the reader is gone.
        let wrote = if front.is_empty() { None } else { io::write_some(fd.as_fd(), front) };
        match wrote {
            Some(n) => drop(waiting.drain(..n)),
            None => {
                // A client that closed its output has detached completely.
                *attached = Attached { input: None, outputs: [None, None], waiting: Default::default() };
                return;
            }
        }
        if waiting.is_empty() {
            *waiting = VecDeque::new();
            if over {
                attached.outputs[stream] = None;
            }
        }
    }
}
