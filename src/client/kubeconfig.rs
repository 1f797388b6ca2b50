//! An administrator's kubeconfig: which server it names, and by what one is known there.

use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::tls::{Identity, ServerEndpoint};
use podwright_api::yaml;
use podwright_server::pki::Pair;

/// The server of a kubeconfig's current context.
///
/// # Errors
/// The text is no kubeconfig, its context is not there, or it names files, commands or passwords: certificates, keys and tokens
/// stand in it (`*-data`, `token`).
pub fn server(text: &str) -> anyhow::Result<ServerEndpoint> {
    let documents = yaml::documents(text).map_err(|why| anyhow!("no YAML: {why}"))?;
    let config = documents.first().context("it is empty")?;
    let context = named(config, "contexts", "context", config["current-context"].as_str().unwrap_or_default())?;
    let of = |list, field: &str| named(config, list, field, context[field].as_str().unwrap_or_default());
    let (cluster, user) = (of("clusters", "cluster")?, of("users", "user")?);
    let url = cluster["server"].as_str().context("the cluster has no server")?;
    let ca = data(cluster, "certificate-authority-data")?.context("the cluster has no certificate-authority-data")?;
    let identity = Arc::new(Identity::default());
    let certificate = data(user, "client-certificate-data")?.zip(data(user, "client-key-data")?);
    let token = user["token"].as_str().map(str::to_owned);
    match (certificate, &token) {
        (Some((certificate, key)), _) => {
            let pair = Pair { certificate, key };
            identity.set(pair.certified().context("the user's client certificate")?);
        }
        (None, Some(_)) => {}
        (None, None) => bail!("the user has neither client-certificate-data with client-key-data nor a token"),
    }
    ServerEndpoint::new(url, &ca, identity, token).map_err(anyhow::Error::msg)
}

/// What a list of named things has under a name.
fn named<'a>(config: &'a Value, list: &str, field: &str, name: &str) -> anyhow::Result<&'a Value> {
    let mut all = config[list].as_array().into_iter().flatten();
    let found = all.find(|one| one["name"] == name).with_context(|| format!("{list}: there is no {name:?}"))?;
    Ok(&found[field])
}

fn data(of: &Value, field: &str) -> anyhow::Result<Option<String>> {
    let Some(encoded) = of[field].as_str() else { return Ok(None) };
    let bytes = STANDARD.decode(encoded).with_context(|| format!("{field}: no base64"))?;
    Ok(Some(String::from_utf8(bytes).with_context(|| format!("{field}: no text"))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_server::pki::{Names, Pki};

    #[test]
    fn a_servers_own_kubeconfig_is_read_and_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path(), &Names::default(), jiff::Timestamp::now()).unwrap();
        let text = pki.kubeconfig("https://127.0.0.1:7443");
        assert_eq!(server(&text).map(|server| server.authority).unwrap(), "127.0.0.1:7443");
        let why = |text: &str| format!("{:#}", server(text).err().unwrap());
        assert!(why("").contains("empty"));
        assert!(
            why(&text.replace("current-context: podwright", "current-context: other"))
                .contains("there is no \"other\"")
        );
        assert!(why(&text.replace("client-key-data", "client-key")).contains("neither client-certificate-data"));
        let token = text.replace("client-key-data", "client-key").replace("client-certificate-data: ", "token: t");
        assert!(server(&token).unwrap().bearer.is_some());
    }
}
