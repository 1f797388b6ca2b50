//! Being someone else, for those who may: the `Impersonate-*` headers.

use std::collections::BTreeMap;

use super::Server;
use super::authorize::attributes::Attributes;
use super::large::give_way;
use podwright_api::validation::names;
use podwright_api::{Status, User};

const AUTHENTICATION: &str = "authentication.k8s.io";

/// Who a request wants to be. Faces read it from their headers with [`Impersonation::add`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    wanted: User,
}

impl Impersonation {
    /// Takes in one header; others than `Impersonate-*` mean nothing.
    pub fn add(&mut self, header: &str, value: &str) {
        let header = header.to_ascii_lowercase();
        match header.as_str() {
            "impersonate-user" => self.wanted.name = value.to_owned(),
            "impersonate-uid" => self.wanted.uid = value.to_owned(),
            "impersonate-group" => self.wanted.groups.push(value.to_owned()),
            other => {
                if let Some(key) = other.strip_prefix("impersonate-extra-") {
                    self.wanted.extra.entry(unescaped(key)).or_default().push(value.to_owned());
                }
            }
        }
    }
}

impl Server {
    /// The user that a request is made as: its own, or the one it names, if its own may impersonate all that makes that one.
    /// What it takes to find out is the work of who asks.
    pub async fn impersonate(&self, user: User, asked: &Impersonation) -> Result<User, Status> {
        if asked.wanted == User::default() {
            return Ok(user);
        }
        let (asker, wanted) = (user.clone(), &asked.wanted);
        // Each name is a decision about who asks.
        let names = 1 + wanted.groups.len() + wanted.extra.values().map(Vec::len).sum::<usize>();
        let size = self.authorizer.weight_of_decisions(&asker, "", names);
        let becoming = self.large.part(&asker, size, |_| self.become_another(user, wanted));
        let whom = self.limiters.cpu.measured(&asker, becoming).await??;
        // What is asked under all these names must not take longer than a decision may. (What it asks names a namespace, of which
        // the same is demanded there.)
        self.authorizer.bound(&whom, "")?;
        Ok(whom)
    }

    async fn become_another(&self, user: User, wanted: &User) -> Result<User, Status> {
        if wanted.name.is_empty() {
            let parts: BTreeMap<&str, bool> = BTreeMap::from([
                ("groups", !wanted.groups.is_empty()),
                ("uid", !wanted.uid.is_empty()),
                ("extra", !wanted.extra.is_empty()),
            ]);
            let parts: Vec<&str> = parts.into_iter().filter(|(_, given)| *given).map(|(part, _)| part).collect();
            return Err(Status::bad_request(format!("requested {} without impersonating a user", parts.join(", "))));
        }
        let account = account_of(&wanted.name);
        let as_what = match account {
            Some((namespace, name)) => {
                Attributes { namespace, name, ..Attributes::new(&user, "impersonate", "", "serviceaccounts") }
            }
            None => Attributes { name: &wanted.name, ..Attributes::new(&user, "impersonate", "", "users") },
        };
        self.authorize(&as_what).await?;
        // Of each it may have to be looked into all that the user is bound to: others go first in between.
        for group in &wanted.groups {
            give_way().await;
            self.authorize(&Attributes { name: group, ..Attributes::new(&user, "impersonate", "", "groups") }).await?;
        }
        if !wanted.uid.is_empty() {
            let uid = Attributes::new(&user, "impersonate", AUTHENTICATION, "uids");
            self.authorize(&Attributes { name: &wanted.uid, ..uid }).await?;
        }
        for (key, values) in &wanted.extra {
            for value in values {
                give_way().await;
                let extra = Attributes::new(&user, "impersonate", AUTHENTICATION, "userextras");
                self.authorize(&Attributes { name: value, subresource: key, ..extra }).await?;
            }
        }
        let mut whom = complete(wanted.clone(), account);
        whom.impersonator = (!user.is_in("system:masters")).then_some(user.name);
        Ok(whom)
    }
}

/// Namespace and name of a ServiceAccount's user name; another one is a plain user's, however it begins.
fn account_of(name: &str) -> Option<(&str, &str)> {
    let (namespace, name) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let valid = names::dns1123_label(namespace).is_empty() && names::dns1123_subdomain(name).is_empty();
    valid.then_some((namespace, name))
}

/// With the groups that everyone of his sort is in.
fn complete(mut user: User, account: Option<(&str, &str)>) -> User {
    if let Some((namespace, _)) = account
        && user.groups.is_empty()
    {
        user.groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
    let everyone = match user.name.as_str() {
        "system:anonymous" => "system:unauthenticated",
        _ => "system:authenticated",
    };
    if !user.is_in("system:authenticated") && !user.is_in("system:unauthenticated") {
        user.groups.push(everyone.to_owned());
    }
    user
}

/// A header's name cannot hold every character: keys are percent-encoded. What is wrongly encoded stays as it is.
fn unescaped(key: &str) -> String {
    let mut bytes = key.bytes();
    let mut out = Vec::with_capacity(key.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let hex = |byte: Option<u8>| byte.and_then(|b| (b as char).to_digit(16));
        match (hex(bytes.next()), hex(bytes.next())) {
            // Two hexadecimal digits make a byte.
            (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
            _ => return key.to_owned(),
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| key.to_owned())
}
