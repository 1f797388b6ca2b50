//! `backup`: writes a consistent online copy of the server's store to a local file.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;
use tempfile::NamedTempFile;
use tokio_util::codec::Framed;

use super::{Outcome, Session, error::Failure, progress::Progress, stream};
use podwright_api::{Status, stream::FrameCodec};

#[derive(clap::Args)]
pub struct Args {
    /// The file to create, readable by its owner only. Secrets in it stay encrypted: keep the server's
    /// encryption-config.yaml with it
    file: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

/// 1. a draft beside the file, 2. the server's copy into it, 3. the file's name. An interrupted one leaves nothing.
pub async fn run(args: Args, session: &Session) -> Outcome {
    let (file, shown) = (&args.file, args.file.display());
    refuse(file, args.force)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |why: io::Error| Failure::usage(format!("{shown}: {why}"));
    let mut draft = NamedTempFile::new_in(folder).map_err(failed)?;
    let answer = session.client.method("backup", json!({})).await?;
    let id = answer["stream"].as_str().ok_or_else(|| Status::internal("the server did not answer with a stream"))?;
    let frames = Framed::new(session.client.dial(id).await?, FrameCodec);
    let (mut written, mut received, mut progress) = (Ok(()), 0, Progress::begin());
    let ended = stream::exchange(frames, stream::no_input(), |_, bytes| {
        if written.is_ok() {
            written = draft.write_all(bytes);
        }
        received += bytes.len() as u64;
        progress.tell("received", received, None);
    });
    let ended = ended.await?;
    drop(progress);
    if ended.code >= 300 || ended.status == "Failure" {
        return Err(ended.into());
    }
    written.and_then(|()| draft.as_file().sync_all()).map_err(failed)?;
    // A rename replaces a link instead of following it.
    let put = if args.force { draft.persist(file) } else { draft.persist_noclobber(file) };
    put.map_err(|why| failed(why.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    outln!("backup written to {shown}");
    Ok(ExitCode::SUCCESS)
}

/// Refuses to replace certain files.
fn refuse(file: &Path, force: bool) -> Result<(), Failure> {
    let mut wal = file.as_os_str().to_owned();
    wal.push("-wal");
    let shown = file.display();
    if Path::new(&wal).exists() {
        return Err(Failure::usage(format!("{shown} is a store: a backup does not replace one")));
    }
    if !force && file.symlink_metadata().is_ok() {
        return Err(Failure::usage(format!("{shown} exists already: a backup replaces it by --force alone")));
    }
    Ok(())
}
