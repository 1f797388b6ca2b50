//! The control plane's store: a file in the state directory, or an etcd.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, ensure};

use super::paths::Paths;
use crate::{
    cli,
    server::restored,
    store::{self, Etcd, EtcdConfig, EtcdTls, Sqlite, Store},
};

/// The root of every key. (Upstream's prefix replaces it in etcd.)
const ROOT: &str = "/registry";

/// Upstream's flags.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreArgs {
    /// List of etcd servers to connect to, as URLs; without, the state is in a file of the state directory (etcd 3.4 or
    /// later)
    #[arg(long, value_delimiter = ',', value_name = "URL", conflicts_with = "restore")]
    pub etcd_servers: Vec<String>,
    /// TLS certificate authority file used to secure etcd communication
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    pub etcd_cafile: Option<PathBuf>,
    /// TLS certification file used to secure etcd communication
    #[arg(long, value_name = "FILE", requires_all = ["etcd_keyfile", "etcd_cafile"])]
    pub etcd_certfile: Option<PathBuf>,
    /// TLS key file used to secure etcd communication
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// The prefix to prepend to all resource paths in etcd
    #[arg(long, value_name = "PREFIX", default_value = ROOT, value_parser = prefix)]
    pub etcd_prefix: String,
    /// Start from this backup; refused if a store already exists
    #[arg(long, value_name = "FILE")]
    pub restore: Option<PathBuf>,
}

fn prefix(text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    match text.starts_with('/') && !text.contains("//") {
        true => Ok(text.to_owned()),
        false => Err("expected a path, as /registry".to_owned()),
    }
}

impl StoreArgs {
    /// The files in flags, each of which is read once.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [
            ("--etcd-cafile", &self.etcd_cafile),
            ("--etcd-certfile", &self.etcd_certfile),
            ("--etcd-keyfile", &self.etcd_keyfile),
            ("--restore", &self.restore),
        ];
        files.into_iter().filter_map(|(flag, file)| Some((flag, file.as_deref()?)))
    }

    /// Whether other servers may share it.
    pub fn is_shared(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// Opens the store, restoring a backup first if requested.
    pub async fn open(&self, paths: &Paths) -> anyhow::Result<Arc<dyn Store>> {
        let file = paths.store();
        if self.is_shared() {
            if file.exists() {
                tracing::warn!(file = %file.display(), "ignoring this file: the state is in etcd");
            }
            return Ok(Arc::new(Etcd::open(self.etcd(paths)?).await.context("--etcd-servers")?));
        }
        if let Some(backup) = &self.restore {
            let mut progress = cli::Progress::begin();
            let copied = |done, whole| progress.tell("restored", done, Some(whole));
            let check = |key: &str, value: &[u8]| restored::check(key, value).map_err(|why| why.to_string());
            store::restore(backup, &file, check, copied).with_context(|| format!("--restore {}", backup.display()))?;
        }
        Ok(Arc::new(Sqlite::open(&file).context("opening the store")?))
    }

    fn etcd(&self, paths: &Paths) -> anyhow::Result<EtcdConfig> {
        let read = |flag: &str, file: &Path| fs::read(file).with_context(|| format!("{flag} {}", file.display()));
        let identity = match (&self.etcd_certfile, &self.etcd_keyfile) {
            (Some(certificate), Some(key)) => {
                Some((read("--etcd-certfile", certificate)?, read("--etcd-keyfile", key)?))
            }
            _ => None,
        };
        let authorities = self.etcd_cafile.as_deref().map(|file| read("--etcd-cafile", file)).transpose()?;
        if let Some(authorities) = &authorities {
            let text = String::from_utf8_lossy(authorities);
            ensure!(text.contains("-----BEGIN CERTIFICATE-----"), "--etcd-cafile: there is no certificate (PEM) in it");
        }
        Ok(EtcdConfig {
            servers: self.etcd_servers.clone(),
            root: ROOT.to_owned(),
            prefix: self.etcd_prefix.clone(),
            tls: authorities.map(|authorities| EtcdTls { authorities, identity }),
            scratch: paths.state.clone(),
            ..EtcdConfig::default()
        })
    }
}
