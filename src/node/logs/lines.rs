//! Splits a log into lines and filters them. Pure.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use podwright_api::{
    Status,
    rpc::{LogOptions, LogStream},
};

use super::cri;

/// The shim writes no longer line: 16 KiB of the container's output, with timestamp and tag.
const LONGEST: usize = 64 << 10;

/// Which parts of a line are wanted, and how many bytes in all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub since: Option<Timestamp>,
    pub timestamps: bool,
    pub left: Option<usize>,
    /// `None`: all streams.
    pub stream: Option<LogStream>,
    /// The last shown line continues: no timestamp is put inside a line.
    goes_on: bool,
}

impl Filter {
    /// The filter for these options.
    ///
    /// # Errors
    ///
    /// `sinceTime` is not a valid time.
    pub fn of(options: &LogOptions, now: Timestamp) -> Result<Filter, Status> {
        let since = match (&options.since_time, options.since_seconds) {
            (Some(text), _) => Some(text.parse().map_err(|e| Status::bad_request(format!("sinceTime: {e}")))?),
            (None, Some(seconds)) => now.checked_sub(Duration::from_secs(seconds.max(0) as u64)).ok(),
            (None, None) => None,
        };
        let left = options.limit_bytes.map(|n| n.max(0) as usize);
        Ok(Filter { since, timestamps: options.timestamps, left, stream: options.stream, goes_on: false })
    }

    pub fn is_full(&self) -> bool {
        self.left == Some(0)
    }

    /// Appends the wanted part of `line` to `out`.
    pub fn take(&mut self, line: &[u8], out: &mut BytesMut) {
        let Some(line) = cri::parse(line) else { return };
        if let Some(since) = self.since
            && line.time.parse::<Timestamp>().is_ok_and(|t| t < since)
        {
            return;
        }
        if self.stream.is_some_and(|stream| stream.mark() != line.stream) {
            return;
        }
        let start = out.len();
        if self.timestamps && !std::mem::replace(&mut self.goes_on, line.partial) {
            out.extend_from_slice(line.time.as_bytes());
            out.extend_from_slice(b" ");
        }
        out.extend_from_slice(line.content());
        if let Some(left) = &mut self.left {
            let taken = (out.len() - start).min(*left);
            out.truncate(start + taken);
            *left -= taken;
        }
    }
}

/// Splits input into lines and filters them.
pub struct Follower {
    filter: Filter,
    /// The start of an incomplete line.
    rest: BytesMut,
    /// The line is longer than any written by the shim: it is skipped.
    overlong: bool,
}

impl Follower {
    pub fn new(filter: Filter) -> Follower {
        Follower { filter, rest: BytesMut::new(), overlong: false }
    }

    pub fn is_full(&self) -> bool {
        self.filter.is_full()
    }

    /// Consumes the next bytes; returns the output for them.
    pub fn take(&mut self, mut bytes: &[u8]) -> Option<Bytes> {
        let mut out = BytesMut::new();
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (line, after) = bytes.split_at(end + 1);
            bytes = after;
            self.rest.extend_from_slice(line);
            if !std::mem::take(&mut self.overlong) {
                self.filter.take(&self.rest, &mut out);
            }
            self.rest.clear();
        }
        self.rest.extend_from_slice(bytes);
        if self.rest.len() > LONGEST {
            self.overlong = true;
            self.rest.clear();
        }
        (!out.is_empty()).then(|| out.freeze())
    }
}
