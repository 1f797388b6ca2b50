//! Downloads one blob: completely, verified, within its announced size, and with time limits.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Buf;
use hyper::StatusCode;

use super::digest::{self, Hasher};
use super::folders::Temp;
use super::job::{Job, blocking};
use super::limits::{Options, Room};
use super::registry::Registry;
use super::{ImageError, PullEvent, Result};

/// Attempts to download one blob; each resumes where the last one stopped.
const DOWNLOAD_TRIES: u32 = 4;
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Bytes buffered before each write.
const PIECE: usize = 1 << 20;

/// A blob to fetch: a layer, or an image's config.
pub(super) struct Blob {
    pub digest: String,
    pub size: u64,
    /// Whether progress is reported: for layers, not documents.
    pub told: bool,
}

impl Job {
    /// Downloads a blob into a temporary file and verifies it. A broken connection is resumed.
    pub(super) async fn download(&self, registry: &Registry, blob: &Blob) -> Result<Temp> {
        let most = patience(&self.inner.options, blob.size);
        let whole = tokio::time::timeout(most, self.download_whole(registry, blob)).await;
        let late = || format!("blob {} of {} bytes did not arrive within {} s", blob.digest, blob.size, most.as_secs());
        whole.unwrap_or_else(|_| Err(ImageError::Network(late())))
    }

    async fn download_whole(&self, registry: &Registry, blob: &Blob) -> Result<Temp> {
        let room = self.inner.space.download(&self.tenant, blob.size)?;
        let temp = self.inner.temp("blob");
        let mut sink = Sink::new(temp.create()?, room);
        let mut try_again = DOWNLOAD_TRIES;
        loop {
            try_again -= 1;
            match self.download_rest(registry, blob, &mut sink).await {
                Ok(()) => break,
                Err(ImageError::Network(_)) if try_again > 0 => {
                    tokio::time::sleep(RETRY_AFTER * 2u32.pow(DOWNLOAD_TRIES - try_again - 1)).await;
                }
                Err(error) => return Err(error),
            }
        }
        let actual = sink.finish().await?;
        digest::verify(&format!("blob of {}", self.name.family()), &blob.digest, &actual)?;
        Ok(temp)
    }

    async fn download_rest(&self, registry: &Registry, blob: &Blob, sink: &mut Sink) -> Result<()> {
        let mut body = registry.blob(&blob.digest, sink.sent).await?;
        // A registry that ignores ranges sends everything again.
        let mut known = if body.status() == StatusCode::PARTIAL_CONTENT { 0 } else { sink.sent };
        let mut pace = Pace::new(&self.inner.options);
        while let Some(mut bytes) = body.chunk().await? {
            pace.check(bytes.len() as u64)?;
            let skipped = known.min(bytes.len() as u64);
            known -= skipped;
            bytes.advance(skipped as usize);
            if bytes.is_empty() {
                continue;
            }
            let longer = sink.sent.saturating_add(bytes.len() as u64);
            if longer > blob.size {
                let what = format!("blob {} is longer ({longer}) than the {} announced", blob.digest, blob.size);
                return Err(ImageError::Invalid(what));
            }
            sink.send(&bytes).await?;
            if blob.told {
                self.tell(PullEvent::Downloading { digest: blob.digest.clone(), done: sink.sent, total: blob.size });
            }
        }
        match sink.sent == blob.size {
            true => Ok(()),
            false => Err(ImageError::Network(format!("blob {} ended after {} bytes", blob.digest, sink.sent))),
        }
    }
}

/// Total time limit for a download of this size.
fn patience(options: &Options, size: u64) -> Duration {
    Duration::from_secs((options.read_timeout_seconds.max(1) * 5).saturating_add(size / options.min_average.max(1)))
}

/// Enforces a minimum rate: a server sending a byte now and then would keep a connection, and a puller, forever.
struct Pace {
    window: Duration,
    least: u64,
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn new(options: &Options) -> Pace {
        let window = Duration::from_secs(options.read_timeout_seconds.max(1));
        let least = options.min_rate.saturating_mul(window.as_secs());
        Pace { window, least, since: Instant::now(), bytes: 0 }
    }

    fn check(&mut self, bytes: u64) -> Result<()> {
        self.bytes += bytes;
        if self.since.elapsed() < self.window {
            return Ok(());
        }
        if self.bytes < self.least {
            let (bytes, seconds) = (self.bytes, self.window.as_secs());
            return Err(ImageError::Network(format!("no progress: {bytes} bytes in {seconds} s")));
        }
        (self.since, self.bytes) = (Instant::now(), 0);
        Ok(())
    }
}

/// Hashes and writes incoming data piecewise, each on a blocking thread. No thread waits for a registry: the node shares a limited
/// number of threads, and a registry may be slow.
struct Sink {
    /// `None`: a write failed.
    disk: Option<Disk>,
    piece: Vec<u8>,
    sent: u64,
}

struct Disk {
    file: File,
    room: Room,
    hasher: Hasher,
}

impl Disk {
    fn write(&mut self, piece: &[u8]) -> Result<()> {
        self.hasher.update(piece);
        self.room.write(piece.len() as u64)?;
        self.file.write_all(piece).map_err(|e| ImageError::io("write", "downloaded blob".as_ref(), e))
    }
}

impl Sink {
    fn new(file: File, room: Room) -> Sink {
        Sink { disk: Some(Disk { file, room, hasher: Hasher::default() }), piece: Vec::new(), sent: 0 }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.sent += bytes.len() as u64;
        self.piece.extend_from_slice(bytes);
        if self.piece.len() < PIECE { Ok(()) } else { self.flush().await }
    }

    async fn flush(&mut self) -> Result<()> {
        let piece = std::mem::take(&mut self.piece);
        let Some(mut disk) = self.disk.take() else {
            return Err(ImageError::Local("an earlier write of the blob has failed".into()));
        };
        let (disk, mut piece) = blocking(move || {
            disk.write(&piece)?;
            Ok((disk, piece))
        })
        .await?;
        piece.clear();
        (self.disk, self.piece) = (Some(disk), piece);
        Ok(())
    }

    /// The digest of everything received.
    async fn finish(mut self) -> Result<String> {
        self.flush().await?;
        let disk = self.disk.ok_or_else(|| ImageError::Local("the blob was not written".into()))?;
        Ok(disk.hasher.finish())
    }
}
