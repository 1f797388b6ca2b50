//! Tokens from a file: one per line, `token,user,uid,"group1,group2"`, as in upstream's `--token-auth-file`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use podwright_api::User;

/// The users of static tokens, by the tokens' digests. Cheap to clone.
#[derive(Clone, Default)]
pub struct StaticTokens(Arc<HashMap<[u8; 32], User>>);

impl StaticTokens {
    pub fn read(path: &Path) -> anyhow::Result<StaticTokens> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        StaticTokens::parse(&text).with_context(|| format!("{}", path.display()))
    }

    pub fn parse(text: &str) -> anyhow::Result<StaticTokens> {
        let mut users = HashMap::new();
        for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let n = n + 1;
            let mut fields = columns(line).with_context(|| format!("line {n}"))?.into_iter();
            let mut next = || fields.next().unwrap_or_default();
            let (token, name, uid, groups) = (next(), next(), next(), next());
            if token.is_empty() || name.is_empty() {
                bail!("line {n}: a token and a user name are needed");
            }
            let groups = groups.split(',').map(str::trim).filter(|group| !group.is_empty());
            let user = User { uid, ..User::new(name, groups) };
            if users.insert(digest(&token), user).is_some() {
                bail!("line {n}: this token stands there twice");
            }
        }
        Ok(StaticTokens(Arc::new(users)))
    }

    /// Their number.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// By digest, so that timing reveals nothing about the tokens.
    pub(super) fn find(&self, token: &str) -> Option<User> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&digest(token)).cloned()
    }
}

impl std::fmt::Debug for StaticTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The columns of one CSV line; quoted ones may contain commas and doubled quotes.
fn columns(line: &str) -> anyhow::Result<Vec<String>> {
    let (mut all, mut column, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.trim().chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                column.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(std::mem::take(&mut column)),
            c => column.push(c),
        }
    }
    if quoted {
        bail!("a quote is not closed");
    }
    all.push(column);
    Ok(all.iter().map(|column| column.trim().to_owned()).collect())
}
