//! The CAs: how each is found in the directory, created once, and refused when unusable.

use std::path::Path;

use anyhow::Context;
use jiff::Timestamp;

use super::sign::{authority, belongs};
use super::{Pair, RENEW_WITHIN, write_private};

/// A CA: its file name, its own name, and the advice if it is lost.
pub(super) struct Root {
    pub file: &'static str,
    subject: &'static str,
    called: &'static str,
    rests: &'static str,
    follows: &'static str,
}

pub(super) const CLUSTER: Root = Root {
    file: "ca",
    subject: "podwright-ca",
    called: "the cluster's CA",
    rests: "All certificates of nodes and administrators rest on it",
    follows: "all nodes have to join again then",
};

pub(super) const FRONT_PROXY: Root = Root {
    file: "front-proxy-ca",
    subject: "podwright-front-proxy-ca",
    called: "the front proxy's CA",
    rests: "Extension API servers know this server by it",
    follows: "those servers are told of it",
};

impl Root {
    /// The CA in the directory, or a new one if there has never been any. `in_use`: there must have been one; the same if it has
    /// signed one of these `files`.
    pub fn open(&self, folder: &Path, files: &[String], now: Timestamp, in_use: bool) -> anyhow::Result<Pair> {
        let read = |name: &str| match std::fs::read_to_string(folder.join(name)) {
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).with_context(|| format!("reading {}", folder.join(name).display())),
        };
        let (crt, key) = (format!("{}.crt", self.file), format!("{}.key", self.file));
        let making = folder.join(self.making());
        let is_new = || !in_use && files.iter().all(|file| !folder.join(file).exists());
        let pair = match (read(&crt)?, read(&key)?) {
            (Some(certificate), Some(key)) => Pair { certificate, key },
            (certificate, secret) if making.exists() || certificate.is_none() && secret.is_none() && is_new() => {
                let pair = authority(self.subject, now).with_context(|| format!("making {}", self.called))?;
                write_private(&making, "")?;
                write_private(&folder.join(&key), &pair.key)?;
                write_private(&folder.join(&crt), &pair.certificate)?;
                pair
            }
            (certificate, secret) => {
                let missing = [(certificate, &crt), (secret, &key)].into_iter().filter(|(text, _)| text.is_none());
                let missing: Vec<&str> = missing.map(|(_, name)| name.as_str()).collect();
                return Err(
                    self.unusable(&format!("{} missing, and it has been in use", missing.join(" and ")), folder)
                );
            }
        };
        if !belongs(&pair) {
            return Err(self.unusable(&format!("{crt} or {key} is damaged, or they do not belong together"), folder));
        }
        self.check_life(&pair, now).map_err(|why| self.unusable(&why.to_string(), folder))?;
        match std::fs::remove_file(&making) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                return Err(why).with_context(|| format!("removing {}", making.display()));
            }
            _ => {}
        }
        let ends = pair.validity()?.1;
        if ends.duration_since(now) < RENEW_WITHIN {
            tracing::warn!(%ends, "{} expires soon", self.called);
        }
        Ok(pair)
    }

    /// Errors if, by this clock, the CA has expired or is not valid yet.
    pub fn check_life(&self, pair: &Pair, now: Timestamp) -> anyhow::Result<()> {
        let (begins, ends) = pair.validity()?;
        let clock = format!("if the clock is right, which says {now}. If not, set the clock");
        anyhow::ensure!(now < ends, "it has ended on {ends}, {clock}");
        anyhow::ensure!(begins <= now, "it begins on {begins}, {clock}");
        Ok(())
    }

    /// Exists while the CA is being created: this tells an interrupted first start from a lost CA. An administrator creates it to
    /// get a new CA.
    fn making(&self) -> String {
        format!("{}.new", self.file)
    }

    fn unusable(&self, why: &str, folder: &Path) -> anyhow::Error {
        let Root { file, called, rests, follows, .. } = self;
        let (shown, making) = (folder.display(), self.making());
        anyhow::anyhow!(
            "{called} in {shown} cannot be used: {why}. {rests}: put {file}.crt and {file}.key back from a backup. To begin with \
             another CA instead, empty the folder {shown} and put an empty file {making} into it: {follows}"
        )
    }
}
