//! Impersonation for authorized users: the `Impersonate-*` headers.

use std::collections::BTreeMap;

use super::Server;
use super::authorize::attributes::Attributes;
use super::large::give_way;
use podwright_api::validation::names;
use podwright_api::{Status, User};

const AUTHENTICATION: &str = "authentication.k8s.io";

/// The user that a request impersonates. Faces fill it from headers with [`Impersonation::add`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    wanted: User,
}

impl Impersonation {
    /// Takes in one header; other headers than `Impersonate-*` are ignored.
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
    /// The effective user of a request: its own, or the impersonated one, if the former may impersonate all of its attributes. The
    /// lookups count as the requestor's work.
    pub async fn impersonate(&self, user: User, asked: &Impersonation) -> Result<User, Status> {
        if asked.wanted == User::default() {
            return Ok(user);
        }
        let (asker, wanted) = (user.clone(), &asked.wanted);
        // Each name is an authorization decision.
        let names = 1 + wanted.groups.len() + wanted.extra.values().map(Vec::len).sum::<usize>();
        let size = self.authorizer.weight_of_decisions(&asker, "", names);
        let becoming = self.large.part(&asker, size, |_| self.become_another(user, wanted));
        let whom = self.limiters.cpu.measured(&asker, becoming).await??;
        // Decisions about the impersonated user must not take too long either. (They are checked again with the request's
        // namespace.)
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
        // Each decision may search all of the user's bindings: others run in between.
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

/// The namespace and name in a ServiceAccount's user name; any other name is an ordinary user's, even with that prefix.
fn account_of(name: &str) -> Option<(&str, &str)> {
    let (namespace, name) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let valid = names::dns1123_label(namespace).is_empty() && names::dns1123_subdomain(name).is_empty();
    valid.then_some((namespace, name))
}

/// Adds the groups that all users of this type have.
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

/// Header names cannot hold every character: keys are percent-encoded. Invalid encodings stay as they are.
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
