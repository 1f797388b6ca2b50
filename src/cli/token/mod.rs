//! `token`: bootstrap tokens, by which machines join. Commands, flags, output and words are those of `kubeadm token`.

mod create;
mod list;

use std::process::ExitCode;

use super::{Outcome, Session, error::Failure, pods::kind_of};
use podwright_api::{
    Env, Verb,
    bootstrap_token::{self, ID_PATTERN, PATTERN, Token},
};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Create bootstrap tokens on the server
    Create(create::Args),
    /// List bootstrap tokens on the server
    List(list::Args),
    /// Delete bootstrap tokens on the server
    Delete(Delete),
    /// Generate and print a bootstrap token, but do not create it on the server
    Generate,
}

#[derive(clap::Args)]
struct Delete {
    /// Token IDs of the form [a-z0-9]{6}, or full tokens
    #[arg(value_name = "ID", required = true)]
    tokens: Vec<String>,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    match args.what {
        What::Create(args) => create::run(args, session).await,
        What::List(args) => list::run(args, session).await,
        What::Delete(args) => delete(&args.tokens, session).await,
        What::Generate => {
            outln!("{}", Token::generate(&Env::system()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The id that a word of argv means. A word that is none is not repeated: it may be a secret.
fn id_of(word: &str) -> Result<String, Failure> {
    if bootstrap_token::is_id(word) {
        return Ok(word.to_owned());
    }
    let token = word.parse::<Token>();
    let token =
        token.map_err(|_| Failure::usage(format!("given token didn't match pattern {ID_PATTERN:?} or {PATTERN:?}")));
    Ok(token?.id().to_owned())
}

async fn delete(words: &[String], session: &Session) -> Outcome {
    // A wrong one deletes none.
    let ids: Vec<String> = words.iter().map(|word| id_of(word)).collect::<Result<_, _>>()?;
    for id in ids {
        let name = format!("{}{id}", bootstrap_token::PREFIX);
        let (kind, namespace) = (kind_of("secrets"), Some(bootstrap_token::NAMESPACE));
        let deleted = session.call(session.request(Verb::Delete, kind, namespace, Some(&name))).await;
        deleted.map_err(|why| Failure::doing(why, format!("failed to delete bootstrap token {id:?}")))?;
        outln!("bootstrap token {id:?} deleted");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_named_by_their_ids_or_whole_and_no_secret_is_repeated() {
        assert_eq!(id_of("abcdef").expect("an id"), "abcdef");
        assert_eq!(id_of("abcdef.0123456789abcdef").expect("a token"), "abcdef");
        let Err(Failure::Client(why)) = id_of("abcdef.0123456789abcdefg") else { panic!("it is none") };
        assert!(why.starts_with("given token didn't match pattern") && !why.contains("0123456789"), "{why}");
    }
}
