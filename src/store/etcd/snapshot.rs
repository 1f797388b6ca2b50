//! Backups of etcd: its own snapshots, verified.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
};

use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::{TIMEOUT, calls::Failure, shared::Shared};
use crate::Error;

impl Shared {
    /// etcd's own snapshot, verified, for `etcdctl snapshot restore`.
    pub async fn backup(&self) -> Result<File, Error> {
        let failed = |e: std::io::Error| Error::Io(format!("{}: {e}", self.scratch.display()));
        let mut file = tempfile::tempfile_in(&self.scratch).map_err(failed)?;
        let client = self.calls.client();
        let broken = |error| Failure::from(error).error();
        let mut stream = client.maintenance_client().snapshot().await.map_err(broken)?;
        while let Some(piece) = timeout(TIMEOUT, stream.message())
            .await
            .map_err(|_| Error::Unavailable("etcd's snapshot stands still".to_owned()))?
            .map_err(broken)?
        {
            file.write_all(piece.blob()).map_err(failed)?;
        }
        tokio::task::spawn_blocking(move || check_snapshot(file))
            .await
            .map_err(|e| Error::Io(format!("checking the snapshot: {e}")))?
    }
}

/// Returns the file from its beginning, if it ends with the digest of the rest, like etcd's snapshots.
fn check_snapshot(mut file: File) -> Result<File, Error> {
    const DIGEST: u64 = 32;
    let failed = |e: std::io::Error| Error::Io(format!("etcd's snapshot: {e}"));
    let length = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let content = length.checked_sub(DIGEST).filter(|content| *content > 0);
    let Some(content) = content else { return Err(Error::Damaged("etcd's snapshot is empty".to_owned())) };
    file.rewind().map_err(failed)?;
    let (mut digest, mut left, mut piece) = (Sha256::new(), content, vec![0; 1 << 18]);
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        let read = file.read(&mut piece[..most]).map_err(failed)?;
        if read == 0 {
            return Err(Error::Damaged("etcd's snapshot is cut off".to_owned()));
        }
        digest.update(&piece[..read]);
        left -= read as u64;
    }
    let mut wanted = [0; DIGEST as usize];
    file.read_exact(&mut wanted).map_err(failed)?;
    if digest.finalize()[..] != wanted[..] {
        return Err(Error::Damaged("etcd's snapshot does not match its digest".to_owned()));
    }
    file.rewind().map_err(failed)?;
    Ok(file)
}
