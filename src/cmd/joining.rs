//! How an agent's flags say which cluster its machine joins, and how the cluster's authority is known.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use podwright_runtime::sys::arguments::hide_argument;

use super::private::{self, Owner};
use crate::{
    api::{
        Env,
        bootstrap_token::Token,
        cluster_info::{CaHash, hashes},
    },
    client::{
        discovery::Discovery,
        join::{Joining, Membership, kept_authority},
    },
};

/// How long a server that does not answer, or a token that has not signed yet, is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub struct JoinArgs {
    /// The server of the cluster to join, as https://HOST:PORT. The first start needs a bootstrap token and the cluster's
    /// certificate authority, or its hash: 'podwright token create --print-join-command' prints them
    #[arg(long, value_name = "URL", env = "PODWRIGHT_JOIN")]
    join: Option<String>,
    /// A file with the bootstrap token by which a node joins; needed once
    #[arg(long, value_name = "FILE", conflicts_with = "token", env = "PODWRIGHT_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// The bootstrap token; prefer the environment or --token-file, as all users of the machine can see a process's arguments
    /// until it has read them
    #[arg(long, value_name = "ID.SECRET", env = "PODWRIGHT_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A hash of the public key of the certificate authority of the cluster that the node joins; several for several
    /// authorities. The authority itself is then asked of the server, and verified
    #[arg(
        long,
        value_name = "sha256:HEX",
        value_delimiter = ',',
        conflicts_with = "ca_file",
        env = "PODWRIGHT_CA_HASH"
    )]
    ca_hash: Vec<CaHash>,
    /// A file with the certificate authority of the cluster that the node joins (the server's pki/ca.crt); needed once
    #[arg(long, value_name = "FILE", visible_alias = "ca")]
    ca_file: Option<PathBuf>,
}

impl JoinArgs {
    /// Takes the token out of the arguments that other users see.
    pub fn hide_token(&self) {
        let Some(token) = self.token.as_deref().filter(|token| !token.is_empty()) else { return };
        if let Err(why) = hide_argument(token.as_bytes()) {
            eprintln!("podwright: --token stays among the arguments that all users see: {why}; use --token-file");
        }
    }

    /// Refuses files that others may write: they decide whose Pods this machine runs.
    ///
    /// # Errors
    /// One may be written by others, or is not there.
    pub fn check_files(&self) -> anyhow::Result<()> {
        self.ca_file.as_ref().map_or(Ok(()), |file| private::named("--ca-file", file, Owner::here()))
    }

    /// Where the server is, if it is reached by TLS. `server`: what `--server` says.
    ///
    /// # Errors
    /// `--join` is no URL of one.
    pub fn url(&self, server: &str) -> anyhow::Result<Option<String>> {
        match &self.join {
            Some(url) if url.starts_with("https://") => Ok(Some(url.clone())),
            Some(url) => bail!("--join {url}: expected https://HOST:PORT"),
            None => Ok(Some(server).filter(|url| url.starts_with("https://")).map(str::to_owned)),
        }
    }

    /// Joins the cluster at `url` as `node`, or comes back to it by what `folder` keeps.
    ///
    /// # Errors
    /// What is needed for the first time is not given, the authority is not found or is another cluster's, or no certificate is signed.
    pub async fn membership(&self, url: String, folder: PathBuf, node: String) -> anyhow::Result<Membership> {
        let ca = self.authority(&url, &folder).await?;
        let joining = Joining { folder, node, url, ca, token: self.token()? };
        Membership::open(joining, Env::system()).await
    }

    fn token(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.token_file else { return Ok(self.token.clone()) };
        if !file.exists() {
            // It was needed once; who needs it now says so.
            tracing::warn!("--token-file {} is not there: there is no token to join by", file.display());
            return Ok(None);
        }
        private::named("--token-file", file, Owner::here())?;
        let text = std::fs::read_to_string(file).with_context(|| format!("--token-file {}", file.display()))?;
        Ok(Some(text.trim().to_owned()))
    }

    /// The cluster's authority: a file's, or what discovery finds; `None`: the one that the folder keeps.
    async fn authority(&self, url: &str, folder: &Path) -> anyhow::Result<Option<String>> {
        if let Some(file) = &self.ca_file {
            let text = std::fs::read_to_string(file).with_context(|| format!("--ca-file {}", file.display()))?;
            return Ok(Some(text));
        }
        if let Some(kept) = kept_authority(folder)? {
            check_kept(&kept, &self.ca_hash)?;
            return Ok(None);
        }
        ensure!(
            !self.ca_hash.is_empty(),
            "--ca-hash sha256:HEX or --ca-file FILE is needed: this node has not joined yet, and without one whoever answers at {url} \
             would be taken for the cluster (podwright token create --print-join-command prints it)"
        );
        let token = self.token()?.context("--token-file (or --token) is needed: this node has not joined yet")?;
        let token: Token = token.parse()?;
        let discovery = Discovery { url: url.to_owned(), token, hashes: self.ca_hash.clone() };
        discovery.authority(PATIENCE).await.context("discovery").map(Some)
    }
}

/// Whether the authority that a node keeps is of the cluster that its flags mean.
fn check_kept(kept: &str, wanted: &[CaHash]) -> anyhow::Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let kept = hashes(kept).context("the certificate authority that this node keeps")?;
    ensure!(
        kept.iter().any(|(hash, _)| wanted.contains(hash)),
        "this node has joined another cluster, whose certificate authority has none of the hashes of --ca-hash: leave that one first \
         (podwright node leave, or podwright reset)"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Argv {
        #[command(flatten)]
        join: JoinArgs,
    }

    fn joining(words: &[&str]) -> JoinArgs {
        Argv::parse_from([&["podwright"], words].concat()).join
    }

    const HASH: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn the_server_is_that_of_join_or_of_server() {
        let url = |words: &[&str], server: &str| joining(words).url(server).map_err(|why| why.to_string());
        let (socket, other) = ("unix:///run/podwright/api.sock", "https://b:1");
        assert_eq!(url(&["--join", "https://a:1"], socket), Ok(Some("https://a:1".into())));
        assert_eq!(url(&["--join", "https://a:1"], other), Ok(Some("https://a:1".into())));
        assert_eq!(url(&[], other), Ok(Some(other.into())));
        assert_eq!(url(&[], socket), Ok(None));
        assert_eq!(url(&["--join", "a:1"], socket), Err("--join a:1: expected https://HOST:PORT".into()));
    }

    #[tokio::test]
    async fn nobody_is_trusted_without_a_hash_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        for (words, why) in [
            (&["--token", "abcdef.0123456789abcdef"][..], "--ca-hash sha256:HEX or --ca-file FILE is needed"),
            (&["--ca-hash", HASH], "--token-file (or --token) is needed"),
            (&["--ca-hash", HASH, "--token", "abcdef.0123"], "the bootstrap token is not of the form"),
            (&["--ca-hash", HASH, "--token-file", "/does/not/exist"], "--token-file (or --token) is needed"),
        ] {
            let refused = joining(words).authority("https://127.0.0.1:1", folder.path()).await.unwrap_err();
            assert!(format!("{refused:#}").starts_with(why), "{words:?}: {refused:#}");
            assert!(!format!("{refused:#}").contains("0123"), "no secret is told: {refused:#}");
        }
        assert!(Argv::try_parse_from(["podwright", "--ca-hash", &HASH[7..]]).is_err());
    }

    #[tokio::test]
    async fn a_node_keeps_to_the_cluster_that_it_has_joined() {
        let (folder, now) = (tempfile::tempdir().unwrap(), jiff::Timestamp::now());
        let names = crate::server::pki::Names::default();
        let pki = crate::server::pki::Pki::open(&folder.path().join("pki"), &names, now).unwrap();
        std::fs::write(folder.path().join("ca.crt"), pki.authority()).unwrap();
        let own = hashes(pki.authority()).unwrap()[0].0.to_string();
        let authority = async |words: &[&str]| joining(words).authority("https://127.0.0.1:1", folder.path()).await;
        let refused = authority(&[]).await.unwrap_err().to_string();
        assert!(refused.contains("this node has not joined yet"), "a join that failed has left it: {refused}");
        std::fs::write(folder.path().join("client.crt"), "").unwrap();
        for words in [&[][..], &["--ca-hash", &own], &["--ca-hash", HASH, "--ca-hash", &own]] {
            assert_eq!(authority(words).await.unwrap(), None, "{words:?}: nobody is asked");
        }
        let refused = authority(&["--ca-hash", HASH]).await.unwrap_err().to_string();
        assert!(refused.starts_with("this node has joined another cluster"), "{refused}");
    }
}
