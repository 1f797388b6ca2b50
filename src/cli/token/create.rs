//! `token create`: a new bootstrap token, and the command by which a machine joins with it.

use std::{process::ExitCode, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::super::{Outcome, Session, error::Failure, pods::kind_of};
use podwright_api::{
    Env, Verb,
    bootstrap_token::{self, GROUP_PATTERN, NoToken, Token, USAGES, is_group},
    cluster_info::{self, ClusterInfo},
    duration,
};

/// kubeadm's own group for machines.
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";

#[derive(clap::Args)]
pub struct Args {
    /// The token to write, as [a-z0-9]{6}.[a-z0-9]{16} [default: a random one, which no argument shows to other users]
    #[arg(value_name = "TOKEN")]
    token: Option<String>,
    /// The duration before the token is automatically deleted (e.g. 1s, 2m, 3h); 0: it never expires
    #[arg(long, default_value = "24h", value_parser = ttl)]
    ttl: Duration,
    /// A human friendly description of how this token is used
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
    /// Describes the ways in which this token can be used: signing, authentication
    #[arg(long, value_delimiter = ',', default_value = "signing,authentication")]
    usages: Vec<String>,
    /// Extra groups that this token will authenticate as when used for authentication [default:
    /// system:bootstrappers:kubeadm:default-node-token]
    #[arg(long, value_delimiter = ',')]
    groups: Vec<String>,
    /// Instead of printing only the token, print the full 'podwright agent' command that joins the cluster using the token
    #[arg(long)]
    print_join_command: bool,
}

fn ttl(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| format!("time: invalid duration {text:?}"))
}

/// What is wrong with a token that is asked for, in kubeadm's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum TokenError {
    #[error(transparent)]
    Form(#[from] NoToken),
    #[error("invalid bootstrap token usage string: {0}, valid usage options: signing, authentication")]
    Usages(String),
    #[error("token groups cannot be specified unless --usages includes \"authentication\"")]
    Groups,
    #[error("bootstrap group {0:?} is invalid (must match {GROUP_PATTERN:?})")]
    Group(String),
    #[error("--ttl is too long")]
    Ttl,
}

/// The token's Secret.
fn secret(args: &Args, token: &Token, now: Timestamp) -> Result<Value, TokenError> {
    let usages: Vec<&str> = args.usages.iter().map(|usage| usage.trim()).filter(|usage| !usage.is_empty()).collect();
    let unknown: Vec<&str> = usages.iter().copied().filter(|usage| !USAGES.contains(usage)).collect();
    if !unknown.is_empty() {
        return Err(TokenError::Usages(unknown.join(",")));
    }
    let mut groups: Vec<&str> =
        args.groups.iter().map(|group| group.trim()).filter(|group| !group.is_empty()).collect();
    match usages.contains(&"authentication") {
        true if args.groups.is_empty() => groups.push(GROUP),
        false if !groups.is_empty() => return Err(TokenError::Groups),
        _ => {}
    }
    if let Some(wrong) = groups.iter().find(|group| !is_group(group)) {
        return Err(TokenError::Group((*wrong).to_owned()));
    }
    let mut data = json!({ bootstrap_token::ID: token.id(), bootstrap_token::SECRET: token.secret() });
    if !args.description.is_empty() {
        data[bootstrap_token::DESCRIPTION] = args.description.as_str().into();
    }
    if !args.ttl.is_zero() {
        let life = SignedDuration::try_from(args.ttl).map_err(|_| TokenError::Ttl)?;
        let end = now.checked_add(life).map_err(|_| TokenError::Ttl)?;
        data[bootstrap_token::EXPIRATION] = end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
    }
    for usage in usages {
        data[format!("{}{usage}", bootstrap_token::USAGE)] = "true".into();
    }
    if !groups.is_empty() {
        data[bootstrap_token::GROUPS] = groups.join(",").into();
    }
    Ok(json!({
        "apiVersion": "v1", "kind": "Secret", "type": bootstrap_token::TYPE, "stringData": data,
        "metadata": {
            "name": format!("{}{}", bootstrap_token::PREFIX, token.id()), "namespace": bootstrap_token::NAMESPACE,
        },
    }))
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let env = Env::system();
    let token = match &args.token {
        Some(text) => text.parse().map_err(Failure::usage)?,
        None => Token::generate(&env),
    };
    let secret = secret(&args, &token, env.now()).map_err(Failure::usage)?;
    // What cannot be printed makes no token.
    let join = match args.print_join_command {
        true => Some(command(session, &token).await?),
        false => None,
    };
    let mut request = session.request(Verb::Create, kind_of("secrets"), Some(bootstrap_token::NAMESPACE), None);
    request.body = Some(secret);
    match session.call(request).await {
        Ok(_) => {}
        Err(why) if why.is_already_exists() => {
            return Err(Failure::usage(format!("a token with id {:?} already exists", token.id())));
        }
        Err(why) => return Err(Failure::doing(why, "failed to create the bootstrap token")),
    }
    outln!("{}", join.unwrap_or_else(|| token.to_string()));
    Ok(ExitCode::SUCCESS)
}

/// The command by which a machine joins the cluster that `kube-public/cluster-info` tells of.
async fn command(session: &Session, token: &Token) -> Result<String, Failure> {
    let info = session.get(kind_of("configmaps"), Some(cluster_info::NAMESPACE), cluster_info::NAME).await;
    let info =
        info.map_err(|why| Failure::doing(why, "the server does not say where it is reached (--listen none?)"))?;
    join(info.0["data"][cluster_info::KUBECONFIG].as_str().unwrap_or_default(), token).map_err(Failure::usage)
}

fn join(kubeconfig: &str, token: &Token) -> Result<String, cluster_info::InfoError> {
    let info: ClusterInfo = kubeconfig.parse()?;
    let hashes = cluster_info::hashes(&info.authority)?;
    let hashes: String = hashes.iter().map(|(hash, _)| format!(" --ca-hash {hash}")).collect();
    Ok(format!("podwright agent --join {} --token {token}{hashes}", info.server))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(flags: &str) -> Result<Value, TokenError> {
        let args: Args = crate::flags(flags.split_whitespace());
        let token = "abcdef.0123456789abcdef".parse().expect("a token");
        secret(&args, &token, Timestamp::UNIX_EPOCH).map(|mut secret| secret["stringData"].take())
    }

    #[test]
    fn a_token_is_kept_as_kubeadm_keeps_it() {
        assert_eq!(
            made(""),
            Ok(json!({
                "token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": "1970-01-02T00:00:00Z",
                "usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true",
                "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
            }))
        );
        assert_eq!(
            made("--ttl 0 --usages signing --description mine"),
            Ok(json!({
                "token-id": "abcdef", "token-secret": "0123456789abcdef", "description": "mine",
                "usage-bootstrap-signing": "true",
            }))
        );
        let groups = made("--groups system:bootstrappers:a,system:bootstrappers:b").expect("good groups");
        assert_eq!(groups["auth-extra-groups"], "system:bootstrappers:a,system:bootstrappers:b");
    }

    #[test]
    fn what_upstream_refuses_is_refused() {
        assert_eq!(made("--usages signing,sing,dance"), Err(TokenError::Usages("sing,dance".into())));
        assert_eq!(made("--usages signing --groups system:bootstrappers:a"), Err(TokenError::Groups));
        assert_eq!(made("--groups system:masters"), Err(TokenError::Group("system:masters".into())));
        assert_eq!(made("--ttl 90000000h"), Err(TokenError::Ttl));
        assert!(ttl("-1h").is_err() && ttl("1").is_err());
    }
}
