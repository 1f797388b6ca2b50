//! The flags for an OpenID Connect issuer, as upstream's.

use std::path::PathBuf;

use anyhow::Context;

use crate::server;

/// An OpenID Connect issuer whose tokens are accepted.
#[derive(Clone, Debug, clap::Args)]
pub struct OidcArgs {
    /// The URL of the OpenID issuer, only the https scheme is accepted
    #[arg(long, value_name = "URL", requires = "oidc_client_id")]
    pub oidc_issuer_url: Option<String>,
    /// The client ID for the OpenID Connect client, which must be the token's audience
    #[arg(long, value_name = "ID")]
    pub oidc_client_id: Option<String>,
    /// The OpenID claim to use as the user name
    #[arg(long, value_name = "CLAIM", default_value = "sub")]
    pub oidc_username_claim: String,
    /// Prefix for user names [default: the issuer URL and #, unless the claim is email; -: no prefix]
    #[arg(long, value_name = "TEXT")]
    pub oidc_username_prefix: Option<String>,
    /// The OpenID claim to use as the user's groups
    #[arg(long, value_name = "CLAIM")]
    pub oidc_groups_claim: Option<String>,
    /// Prefix for group names
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub oidc_groups_prefix: String,
    /// File with the certificate authority that must have signed the issuer's certificate [default: the host's root
    /// authorities]
    #[arg(long, value_name = "FILE")]
    pub oidc_ca_file: Option<PathBuf>,
    /// File with the issuer's keys (a JWK set), used instead of fetching them
    #[arg(long, value_name = "FILE")]
    pub oidc_jwks_file: Option<PathBuf>,
}

impl OidcArgs {
    pub fn issuer(&self) -> anyhow::Result<Option<server::Oidc>> {
        let args = self.clone();
        let (Some(issuer), Some(client_id)) = (args.oidc_issuer_url, args.oidc_client_id) else { return Ok(None) };
        let oidc = server::Oidc::new(server::OidcConfig {
            issuer,
            client_id,
            username_claim: args.oidc_username_claim,
            username_prefix: args.oidc_username_prefix,
            groups_claim: args.oidc_groups_claim,
            groups_prefix: args.oidc_groups_prefix,
            ca_file: args.oidc_ca_file,
            jwks_file: args.oidc_jwks_file,
        });
        oidc.context("--oidc-issuer-url").map(Some)
    }
}
