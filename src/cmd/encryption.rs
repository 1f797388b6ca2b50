//! Encryption at rest: its configuration is given, or created in the state directory.

use std::{fs, io, path::PathBuf, sync::Arc};

use anyhow::{Context, bail};

use super::paths::Paths;
use crate::{
    api::Env,
    server::{
        encryption::{Rules, first_sealed},
        pki::write_private,
    },
    store::Store,
};

#[derive(Clone, Debug, clap::Args)]
pub struct EncryptionArgs {
    /// File with an EncryptionConfiguration: which resources are encrypted in the store, and with which keys [default: Secrets,
    /// with the keys of encryption-config.yaml in the state directory, created at the first start]
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
}

/// Reads the configuration. The default one is created if missing, unless the store needs a lost one.
pub async fn rules(args: &EncryptionArgs, paths: &Paths, store: &dyn Store, env: &Env) -> anyhow::Result<Arc<Rules>> {
    let path = args.encryption_provider_config.clone().unwrap_or_else(|| paths.encryption());
    let shown = path.display();
    let text = match fs::read_to_string(&path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound && args.encryption_provider_config.is_none() => {
            if let Some(key) = first_sealed(store).await? {
                bail!(
                    "{shown} is missing: {key} and others in the store are encrypted with its keys. Put it back (a backup \
                     needs the file of the server that it was made of)"
                );
            }
            let text = Rules::generate(env);
            // Before anything is encrypted with it.
            write_private(&path, &text)?;
            text
        }
        text => text.with_context(|| format!("reading {shown}"))?,
    };
    let rules = Rules::parse(&text).map_err(anyhow::Error::msg).with_context(|| shown.to_string())?;
    Ok(Arc::new(rules))
}
