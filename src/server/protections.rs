//! Reports the server's protections, verified where possible.

use podwright_api::protections::{AtRest, PATH, Process, Protections};
use podwright_api::{Status, User};
use podwright_store::{Range, Store};

use super::encryption::is_sealed;
use super::{Server, store_error};

const SECRETS: &str = "/registry/secrets/";
const PAGE: usize = 500;
/// How many keys of unencrypted values are listed.
const TOLD: usize = 20;

impl Server {
    /// For users who may `get /debug/protections`.
    pub async fn protections(&self, user: &User) -> Result<Protections, Status> {
        self.authorizer.authorize_path(user, "get", PATH)?;
        let config = &self.config;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Ok(Protections {
            secrets: AtRest {
                configured: config.encryption.as_ref().is_some_and(|rules| rules.seals(SECRETS)),
                ..at_rest(&*self.raw).await?
            },
            audit: config.audit.is_some(),
            fixed_tokens: config.tokens.len(),
            issuer: config.oidc.as_ref().map(|oidc| format!("{oidc:?}")),
            authorization: config.authorization.iter().map(ToString::to_string).collect(),
            disabled_admission: config.disabled_admission.names().iter().map(ToString::to_string).collect(),
            listening: config.listening.iter().map(ToString::to_string).collect(),
            process: Process {
                runs_node: config.confinement.runs_node,
                landlock: config.confinement.landlock,
                ..Process::parse(&status)
            },
        })
    }
}

/// Reads Secrets in their stored form.
async fn at_rest(raw: &dyn Store) -> Result<AtRest, Status> {
    let (mut found, mut after) = (AtRest::default(), None);
    loop {
        let range = Range { prefix: SECRETS.to_owned(), after: after.take(), limit: PAGE, at: None };
        let page = raw.list(range).await.map_err(store_error)?;
        for entry in &page.entries {
            match is_sealed(&entry.value) {
                true => found.encrypted += 1,
                false if found.clear.len() < TOLD => found.clear.push(entry.key.to_string()),
                false => {}
            }
        }
        match page.entries.last() {
            Some(last) if page.remaining > 0 => after = Some(last.key.to_string()),
            _ => return Ok(found),
        }
    }
}
